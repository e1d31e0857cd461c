"""What a training script calls besides its loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._errors import UsageError
from ._module import ElasticModule
from ._schedule import Schedule, adapt_optimizer, adapt_scaler
from ._session import Options, Session, begin, current

_RULES = ("adascale", "adamscale", "linear", "sqrt", "legw")


def wrap(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    scaling: str | Callable[[Any], float] = "auto",
    warmup_epochs: float = 0.0,
    scaler: Any = None,
    scheduler: Any = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 300.0,
    tensorboard: Any = None,
    **ddp_options: Any,
) -> tuple[ElasticModule, torch.optim.Optimizer]:
    """Makes a model and its optimiser adapt to batch and group. Both are used as before.

    `scaling` says how the learning rate follows the batch: "adascale" (for SGD), "adamscale" (for Adam and its family),
    "linear", "sqrt", "legw" (with `warmup_epochs`), or a function of a context with `scale`, `noise_sqr`, `noise_var`
    and `epochs`; "auto" chooses one of the first two. `scaler` is the GradScaler in use, `scheduler` a learning-rate
    scheduler or several. Checkpoints go to `checkpoint_dir`, or where the scheduler says, every `checkpoint_every_s`.
    `tensorboard` is a folder or a SummaryWriter. Anything else is passed on to DistributedDataParallel.
    """
    if isinstance(model, ElasticModule | torch.nn.parallel.DistributedDataParallel):
        raise UsageError(f"px.wrap of a {type(model).__name__}; give the model itself, DDP is inside")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"px.wrap with a {type(optimizer).__name__} for an optimiser; accepted is a torch.optim.Optimizer"
        )
    is_adam = _is_adam(optimizer)
    if scaling == "auto":
        if not (is_adam or isinstance(optimizer, torch.optim.SGD)):
            raise UsageError(
                f'no rule is known to suit {type(optimizer).__name__}; give scaling, such as "sqrt" for optimisers '
                "that normalise gradients"
            )
        scaling = "adamscale" if is_adam else "adascale"
    if isinstance(scaling, str) and scaling not in _RULES:
        raise UsageError(f"scaling {scaling!r}; accepted are auto, {', '.join(_RULES)} and functions")
    if checkpoint_every_s <= 0:
        raise UsageError(f"checkpoint_every_s {checkpoint_every_s}; accepted are seconds above 0")
    options = Options(scaling, warmup_epochs, checkpoint_dir, checkpoint_every_s, tensorboard, is_adam, ddp_options)
    session = Session(model, optimizer, scaler, options)
    given = scheduler if isinstance(scheduler, Sequence) else [scheduler] if scheduler is not None else []
    session.schedules = [Schedule(one, session) for one in given]
    begin(session)
    adapt_optimizer(optimizer, session)
    if scaler is not None:
        adapt_scaler(scaler, session)
    return ElasticModule(model, session), optimizer


def checkpoint_state(**objects: Any) -> None:
    """Keeps objects of your own across restarts and resizes, by name: anything with `state_dict` and
    `load_state_dict`, dicts and lists.

    >>> history = []
    >>> px.checkpoint_state(ema=ema, history=history)
    """
    session = current()
    for name, value in objects.items():
        session.archive.user_states.add(name, value)


def rank() -> int:
    """This process's place in the group, 0 for the one that prints and evaluates."""
    group = current().group
    return group.rank if group is not None else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Processes of the group."""
    group = current().group
    return group.world_size if group is not None else int(os.environ.get("WORLD_SIZE", "1"))


def device() -> torch.device:
    """The GPU of this process, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    # Pollux and some launchers show each process its own GPU and no other.
    if "POLLUX_REPLICA_ID" in os.environ or count == 1:
        return torch.device("cuda", 0)
    if local_rank >= count:
        raise UsageError(
            f"LOCAL_RANK {local_rank}, but this process sees {count} GPUs; expected is at most one process for each GPU"
        )
    return torch.device("cuda", local_rank)


@dataclass(frozen=True)
class Status:
    """How the training runs at the moment."""

    epoch: int
    batch_size: int
    """Samples of a step, over all processes."""
    local_batch: int
    """Samples of a micro-batch on one GPU."""
    accumulation_steps: int
    """Micro-batches of a step before the last one."""
    world_size: int
    learning_rate_factor: float
    samples: int
    """Since the training began."""
    baseline_steps: float
    """Progress, in steps of the batch size that was asked for."""
    noise_scale: float | None
    """Samples at which noise and signal of a gradient are equal; known to rank 0."""
    efficiency: float | None
    """Progress per sample against the batch size that was asked for; known to rank 0."""
    samples_per_s: float | None
    """Known to rank 0."""


def status() -> Status:
    """How the training runs at the moment."""
    return current().status()


def _is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it divides gradients by the root of a second moment."""
    return all("betas" in group and "eps" in group for group in optimizer.param_groups)
