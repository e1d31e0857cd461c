"""The extension module: the agent, the worker's line to the scheduler and the simulator, in Rust."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, final

from typing_extensions import NotRequired

VERSION: str

class PolluxError(ValueError):
    """What Pollux refuses: the message says what was read and what would be accepted."""

class Progress(TypedDict):
    steps: int
    samples: int
    epochs: int
    baseline_steps: float

class AssignedReplica(TypedDict):
    replica: int
    rank: int
    node: str
    local_rank: int
    local_world_size: int
    gpu_type: str

class Endpoint(TypedDict):
    address: str
    port: int

class Batch(TypedDict):
    mode: Literal["adaptive", "fixed"]
    batch_size: NotRequired[int]

class Assignment(TypedDict):
    generation: int
    epoch: NotRequired[int]
    state: Literal["run", "stop"]
    rendezvous: NotRequired[Endpoint | None]
    master_address: str
    master_port: int
    batch: Batch
    shares_gpus: bool
    key: NotRequired[str]
    replicas: list[AssignedReplica]

@final
class ScalingContext:
    """What a learning-rate rule may look at."""

    @property
    def scale(self) -> float:
        """The batch against the one the user's learning rate was chosen for."""
    @property
    def noise_sqr(self) -> float | None:
        """Squared norm of the gradient, once measured."""
    @property
    def noise_var(self) -> float | None:
        """Variance of a baseline batch's gradient, once measured."""
    @property
    def epochs(self) -> float:
        """Epochs done, counted in progress."""

@final
class Agent:
    """The per-job brain. One thread at a time may use it."""

    def __new__(
        cls,
        *,
        batch_size: int,
        max_batch_size: int,
        local_batch_min: int,
        local_batch_max: int,
        scaling: str | Callable[[ScalingContext], float],
        warmup_epochs: float = 0.0,
        epoch_samples: int | None = None,
        state: str | None = None,
        lone_replica: str = "accumulates",
    ) -> Agent:
        """`scaling` is adascale, adamscale, linear, sqrt, legw (which warms up for `warmup_epochs`) or a function.

        `state` is what `state()` gave, in any process at any size. A process that is alone runs a batch above
        `batch_size` in two micro-batches or more ("accumulates"), or in one where it fits ("whole"), if it runs some
        steps in halves to measure them.
        """
    @property
    def relearns(self) -> bool:
        """Whether something that it was made with is of another version, so that it is learned anew."""
    def state(self) -> str:
        """All it has learned, as JSON."""
    def observe_step(
        self,
        nodes: int,
        replicas: int,
        local_batch: int,
        accumulation_steps: int,
        compute_s: float,
        sync_s: float,
        gpu_type: str = "gpu",
    ) -> None:
        """Takes in the times of a step: one micro-batch, and what followed the last one.

        The first steps after a change are ignored.
        """
    def observe_gradients(
        self, steps: int, micro_batches: int, batch_size: float, micro_sqr: float, mean_sqr: float
    ) -> bool:
        """Takes in a measurement that stands for so many steps: squared gradient norms of the micro-batches, and of
        their mean.

        False if they cannot be used: one micro-batch, or not finite.
        """
    def observe_rate(self, samples_per_s: float) -> None:
        """Takes in how fast it trains at the moment."""
    def observe_loss(self, loss: float) -> None:
        """Takes in the loss of the training as it is now."""
    def advance(self, steps: int) -> None:
        """Counts finished steps of the current tuning."""
    def bound_batch_size(self, max_batch_size: int) -> None:
        """A batch is never larger from now on."""
    def set_batch_mode(self, adapts: bool, batch_size: int | None = None) -> None:
        """Who chooses the batch from the next choice on: the agent, or the user, who may have named one."""
    def resize(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> tuple[int, int]:
        """It now runs on so many of a type: chooses micro-batch and accumulation steps."""
    def run_fixed(
        self, nodes: int, replicas: int, local_batch: int, accumulation_steps: int, gpu_type: str = "gpu"
    ) -> None:
        """It now runs on so many with a tuning that its user fixed."""
    def end_epoch(self) -> tuple[int, int] | None:
        """Counts an epoch and chooses anew; nothing before it is placed."""
    def retune(self) -> tuple[int, int] | None:
        """In the middle of an epoch: another tuning only where it promises 5% more goodput or better."""
    def learning_rate_factor(self) -> float:
        """What to multiply the user's learning rate by; raises what a rule of the user's own raised."""
    def gain(self) -> float:
        """Steps at the baseline batch that one step of the current tuning is worth."""
    def noise(self) -> tuple[float, float] | None:
        """Squared norm and variance of the gradient at the baseline batch, as far as they are certain."""
    def noise_scale(self) -> float | None:
        """Samples at which the noise of a gradient equals its signal, most likely: infinite where there is no signal,
        nothing before ten measurements."""
    def efficiency(self) -> float:
        """What a sample of the current tuning is worth, against one at the baseline batch."""
    def progress(self) -> Progress:
        """How far the training is."""
    def report(self, samples: int | None = None, samples_per_s: float | None = None) -> str:
        """What the scheduler may know, as JSON, with samples and speed as the caller counted them."""

@final
class Goodput:
    """Goodput of data-parallel training: samples per second, times what each is worth."""

    def __new__(cls, *, parameters: Sequence[float], noise_sqr: float, noise_var: float, batch_size: int) -> Goodput:
        """`parameters` are seven, of step times, as `fit_steps` gives them; the noise is that of `batch_size`."""
    def step_s(self, nodes: int, replicas: int, local_batch: float, accumulation_steps: float) -> float:
        """Seconds of a step."""
    def efficiency(self, batch_size: float) -> float:
        """What a sample of such a batch is worth."""
    def best(
        self, nodes: int, replicas: int, *, max_batch_size: int, local_batch_min: int, local_batch_max: int
    ) -> tuple[int, int, float]:
        """Micro-batch, accumulation steps and goodput of the best batch."""

def fit_steps(rows: Sequence[tuple[int, int, int, float, float]]) -> list[float]:
    """Parameters of step times that tell measured ones best.

    A row has nodes, replicas, samples of a micro-batch, and the seconds of one without and with synchronisation.
    """

@final
class Worker:
    """A replica's line to the scheduler. No method waits for the network; only `answered` fails because of it."""

    @staticmethod
    def from_env() -> Worker | None:
        """As the environment says; nothing where there is no scheduler. From then on `SIGTERM` only sets a flag."""
    @property
    def job(self) -> str: ...
    @property
    def replica(self) -> int: ...
    @property
    def host(self) -> str:
        """The host under which the others of its group reach it."""
    @property
    def generation(self) -> int:
        """The group it was started for."""
    def answered(self, patience_s: float) -> bool:
        """Whether the scheduler has answered yet, to be asked before the first step. Raises if it does not let this
        worker in, or if nobody has answered for so long since it was made."""
    def orders(self) -> Literal["train", "stop", "leave"]:
        """What to do. To be asked at every step."""
    def assignment(self) -> Assignment | None:
        """The newest heard of; nothing until the scheduler has answered once."""
    def report(self, generation: int, report: str) -> None:
        """Tells what the agent of a generation has learned."""
    def ready(self, generation: int, pause_s: float | None = None) -> None:
        """Tells that every rank of a generation trains, after a pause that a fresh group does not know."""
    def publish_rendezvous(self, generation: int, port: int) -> None:
        """Tells the others of a generation that this process, its rank 0, waits on this port of its host."""
    def finish(self, patience_s: float) -> bool:
        """Gives the last words some time to be told; false if they were not."""
    def terminated(self) -> bool:
        """Whether `SIGTERM` came, whatever it is for."""

@final
class Termination:
    """Whether `SIGTERM` came, for programs without a scheduler."""

    @staticmethod
    def install() -> Termination:
        """From now on `SIGTERM` sets a flag instead of ending the process, but not those it forks."""
    def requested(self) -> bool: ...

@final
class Applications:
    """What training jobs really do: the profiles that ship, or measured applications."""

    def __new__(cls, traces: str | os.PathLike[str] | None = None) -> Applications: ...

def simulate(applications: Applications, options: Mapping[str, object]) -> dict[str, Any]:
    """Simulates a workload under a policy."""

def fit(options: Mapping[str, object]) -> dict[str, Any]:
    """Fits a throughput model to measured steps."""

def experiment(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Runs the experiment of a folder and saves its table and plot."""
