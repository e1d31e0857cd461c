"""One training: the model, its agent, its group, and the moments at which they decide together.

    for batch in loader ──> step ──> step ──> check-in ──> step ──> ...
                                                 │
       every rank: what it measured, heard, wants│ rank 0: what its agent and the scheduler make of it
                                                 v
             same batch, learning rate, group and end for everybody

Between check-ins a step costs what DDP costs. Check-ins come after every step at first and then twice a second.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from torch.nn.parallel import DistributedDataParallel

import torch

from . import _metrics, _state
from ._accumulation import Accumulation
from ._board import Board
from ._brain import Brain, BrainSettings
from ._checkpoint import Checkpoints, MemoryBound
from ._clock import StepClock
from ._deal import Deal
from ._errors import CheckpointError, DivergedError, UsageError
from ._failures import Failure, classify, guard_exit
from ._gradients import GradientReader, StepPlan
from ._group import Group
from ._membership import RESTART, STOPPED, Assignment, Membership, leave
from ._sources import Seat
from ._terms import Action, Decision, Row, Terms

if TYPE_CHECKING:
    from ._wrap import Status


@dataclass
class Position:
    """How far the training is: whole epochs, and samples of the one at hand."""

    epoch: int = 0
    cursor: int = 0
    samples: int = 0
    """Since the training began."""
    is_ended: bool = False
    """Whether the epoch is through, but not what the user does after it."""


@dataclass(frozen=True)
class Options:
    """What the user said to `wrap`."""

    scaling: str | Callable[[Any], float]
    warmup_epochs: float
    checkpoint_dir: str | os.PathLike[str] | None
    checkpoint_every_s: float
    tensorboard: Any
    is_adam: bool
    ddp: dict[str, Any]


class ElasticModule(torch.nn.Module):
    """The user's model, with DDP inside for as long as the group lasts. `module` is the model itself."""

    def __init__(self, module: torch.nn.Module, session: Session):
        super().__init__()
        self.module = module
        self.__dict__["_session"] = session

    def no_sync(self) -> NoReturn:
        """Refused: gradients are accumulated as `per_gpu` and `max_batch_size` ask for it."""
        raise UsageError(
            "no_sync() of a wrapped model; gradients are accumulated by themselves where per_gpu asks for it"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Trains through DDP inside of a loop over px.DataLoader; otherwise it is the model itself."""
        session: Session = self.__dict__["_session"]
        if session.ddp is not None and self.training and torch.is_grad_enabled():
            return session.ddp(*args, **kwargs)
        return self.module(*args, **kwargs)


class Session:
    """What `wrap` sets up and the loops drive."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        options: Options,
    ):
        self.module = module
        self.optimizer = optimizer
        self.scaler = scaler
        self.schedules: list[Any] = []
        self.options = options
        self.ddp: DistributedDataParallel | None = None
        self.group: Group | None = None
        self.membership = Membership()
        self.accumulation = Accumulation(module.parameters())
        self.reader = GradientReader(optimizer, options.is_adam, self._loss_scale)
        self.clock = StepClock(self._device())
        self.reader.on_computed = self.clock.computed
        self.reader.add_rest = self.accumulation.add_rest
        self.accumulation.on_gradient = self.reader.read_part
        self.position = Position()
        self.terms = Terms()
        self.user_states = _state.UserStates()
        self.metrics: list[_metrics.Mean] = []
        self._metric_states: dict[str, list[float]] = {}
        self._brain: Brain | None = None
        self._brain_state: str | None = None
        self._board = Board(options.tensorboard)
        self._folder = options.checkpoint_dir or os.environ.get("POLLUX_CHECKPOINT_DIR")
        self._checkpoints: Checkpoints | None = None
        self._saved_at = time.monotonic()
        self.loader: Any = None
        self.in_epochs = False
        self.in_loop = False
        self.is_updating = False
        self.is_finished = False
        self._resume_epoch = False
        self._steps_since_check = 0
        self._steps_unmeasured = 0
        self._later: Assignment | None = None
        self._has_changed = False
        self._paused_s: float | None = None
        self._stopped_at = 0.0
        self._unready = True

    # Before the first step

    def start(self, loader: Any) -> None:
        """Meets the others and takes the training up where it is. Everything slow should be done by now."""
        if self.group is not None:
            if loader is not self.loader:
                raise UsageError("a second px.DataLoader in one training; use torch.utils.data.DataLoader to evaluate")
            return
        self.loader = loader
        self.terms = replace(self.terms, local_batch_max=loader.limits.local_batch_max)
        guard_exit(self)
        atexit.register(self.close)
        # The first step of any optimiser imports this, which takes seconds: the others need not wait for it.
        importlib.import_module("torch._dynamo")
        self.group = self.membership.enter()
        if self.group.is_leader and self._folder:
            self._checkpoints = Checkpoints(self._folder)
            if (bound := MemoryBound(self._folder).read()) is not None:
                self.terms = replace(self.terms, local_batch_max=min(bound, self.terms.local_batch_max))
            saved = self._checkpoints.load()
            if saved is not None:
                self._restore(saved, f"the checkpoint in {self._folder}")
        self._regroup()

    def _regroup(self) -> None:
        """Everything that depends on who trains together."""
        group = self._group()
        handed = group.hand_over(self._capture() if group.is_leader and group.newcomers else None)
        if handed is not None:
            self._restore(handed, "the training at hand")
        self.reader.reset()
        self.reader.is_alone = group.world_size == 1
        self.accumulation.clear()
        self.ddp = None
        # Gradients that live in DDP's buckets are copied neither in nor out. Parameters are the same everywhere:
        # newcomers have just got them.
        options = {"gradient_as_bucket_view": True, "init_sync": False, **self.options.ddp}
        self.ddp = DistributedDataParallel(self.module, **options)
        # DDP reads annotations of hooks and does not know them as text.
        self.ddp.register_comm_hook(None, lambda _, bucket: self.reader.hook(bucket))
        if group.is_leader:
            if self._brain is None:
                self._brain = Brain(self._brain_settings(), self._brain_state)
            self._brain_state = None
            if self._checkpoints is None and self._folder:
                self._checkpoints = Checkpoints(self._folder)
            self.terms = self._brain.resize(group.nodes, group.world_size, self.terms)
        else:
            self._brain = None
        self.terms = Terms.of(group.tell(self.terms.values()))
        self._steps_since_check = 0
        self._steps_unmeasured = 0
        self.clock.forget()

    def seat(self) -> Seat:
        """Which samples this process gets."""
        group = self._group()
        return Seat(group.rank, group.world_size, self.terms.tuning, self.terms.local_batch_max)

    # A step

    def begin_micro_batch(self, step: Deal, idx: int, count: int) -> None:
        """The loop is about to get one of the micro-batches of a step."""
        group, ddp = self._group(), self.ddp
        assert ddp is not None
        self.accumulation.begin(idx, count, step.emphasis(group.rank, idx))
        ddp.require_backward_grad_sync = self.accumulation.is_last
        if idx == 0:
            if self._has_changed:
                self._paused_s = (self._paused_s or 0.0) + time.perf_counter() - self._stopped_at
                self._has_changed = False
            measure = step.is_whole and self._is_measured(step)
            self.reader.begin(StepPlan(step.weight(group.rank), count, measure))
            self.reader.synced_at = None
            self.clock.begin()
        self.reader.is_allowed = True

    def _is_measured(self, step: Deal) -> bool:
        if self.reader.is_alone and step.micro_batches == 1:
            return False
        return self._is_split(step) or self._steps_unmeasured + 1 >= self.terms.measure_every

    def _is_split(self, step: Deal) -> bool:
        """Whether it has more micro-batches than the tuning asks for, only to be measured."""
        return step.micro_batches > self.terms.tuning.accumulation_steps + 1

    def end_micro_batch(self) -> None:
        """The loop is done with a micro-batch."""
        self.reader.is_allowed = False

    def end_step(self, step: Deal) -> None:
        """The loop is done with the last micro-batch of a step."""
        group = self._group()
        times = self.clock.end(self.reader)
        self.position.cursor = step.stop
        self.position.samples += step.samples
        self.terms.baseline_steps += self.terms.gain
        self._steps_since_check += 1
        self._steps_unmeasured = 0 if self.reader.plan.measure else self._steps_unmeasured + 1
        if self._brain is not None:
            usable = times if step.is_whole and not self._is_split(step) else None
            self._brain.count(step, usable, group.nodes, group.world_size)
        self._stopped_at = time.perf_counter()

    def progress_after_step(self) -> float:
        """Baseline steps with the step that the loop is at, once its last micro-batch is through."""
        return self.terms.baseline_steps + (self.terms.gain if self.accumulation.is_last else 0.0)

    # Between steps

    def is_due(self) -> bool:
        """Whether all ranks are to check in now."""
        return self._steps_since_check >= self.terms.check_every

    def check_in(self, left: int, *, ends_epoch: bool = False) -> bool:
        """All ranks decide together how to go on, with so many samples of the epoch left; true if batches are to be
        dealt anew."""
        group = self._group()
        self._later = later = self.membership.newest()
        self.membership.prepare(group, later)
        norms = self.reader.take_norms()
        row = Row(
            heard=later.generation if later else 0,
            wish=self.membership.wish(),
            steps=norms.steps,
            own_sqr=norms.own_sqr,
            is_complete=bool(later and self.membership.is_complete(later.generation)),
        )
        rows = [Row.of(values) for values in group.gather(row.values())]
        decision = Decision(terms=self.terms)
        if self._brain is not None:
            self._brain.learn(rows, norms.mean_sqr, self._steps_since_check, self.terms)
            decision = self._decide(self._brain, rows, left, ends_epoch)
        decision = Decision.of(group.tell(decision.values()))
        if not group.is_leader:
            self._paused_s = None
        self._steps_since_check = 0
        self.clock.forget()
        return self._obey(decision, rows)

    def _decide(self, brain: Brain, rows: list[Row], left: int, ends_epoch: bool) -> Decision:
        """Rank 0's part of a check-in."""
        self._tell_ready()
        terms = brain.terms(self.terms, self.reader.cost_s, ends_epoch)
        self.reader.cost_s = 0.0
        brain.tell(self.membership, self.position, self._board)
        action, generation = self._action(rows, left)
        if brain.has_diverged(scaled=self.scaler is not None and self.scaler.is_enabled()):
            action = Action.DIVERGED
        due = time.monotonic() - self._saved_at >= self.options.checkpoint_every_s
        saves = self._checkpoints is not None and (due or action in (Action.STOP, Action.CUT))
        return Decision(action=action, generation=generation, saves=saves, terms=terms)

    def _action(self, rows: list[Row], left: int) -> tuple[Action, int]:
        group = self._group()
        wishes = {row.wish for row in rows}
        if 2 in wishes:
            return (Action.STOP if self.membership.worker is None else Action.CUT), 0
        if 1 in wishes:
            return Action.STOP, 0
        generation, later = rows[0].heard, self._later
        if later is None or any(row.heard != generation for row in rows) or 0 < left < len(later.members):
            return Action.TRAIN, 0
        known = {member.replica for member in group.members}
        listed = {member.replica for member in later.members}
        if known - listed:
            return Action.SHED, generation
        if any(row.is_complete for row in rows):
            return Action.GROW, generation
        return Action.TRAIN, 0

    def _obey(self, decision: Decision, rows: list[Row]) -> bool:
        group = self._group()
        changed = (decision.terms.tuning, decision.terms.local_batch_max) != (
            self.terms.tuning,
            self.terms.local_batch_max,
        )
        self.terms = decision.terms
        if decision.saves:
            self.share_metrics(self.metrics)
            self.save()
        if decision.action is Action.STOP:
            self._end(STOPPED)
        if decision.action is Action.CUT:
            self._end(STOPPED if rows[group.rank].wish == 2 or self.membership.is_terminated else RESTART)
        if decision.action is Action.DIVERGED:
            raise DivergedError(
                "the gradients of the last steps are not finite, so the loss is not; lower the learning rate or clip "
                "gradients, and look for divisions by zero. The last checkpoint is from before"
            )
        if decision.action in (Action.SHED, Action.GROW):
            self._change_group(decision)
            return True
        return changed

    def _change_group(self, decision: Decision) -> None:
        group, later = self._group(), self._later
        assert later is not None and later.generation == decision.generation
        self.share_metrics(self.metrics)
        self.ddp = None
        if decision.action is Action.GROW:
            self.group = self.membership.grow(group, later)
        else:
            state = self._brain.state() if self._brain else ""
            state = group.tell_text(state)
            survivors = self.membership.shed(group, later)
            if survivors is None:
                self._end(STOPPED)
            self._brain_state = state
            self.group = survivors
        self._regroup()
        self._has_changed = True
        self._unready = self.membership.generation == later.generation

    def _tell_ready(self) -> None:
        worker = self.membership.worker
        if worker is not None and self._unready:
            worker.ready(self.membership.generation, self._paused_s)
            self._unready = False
            self._paused_s = None

    # Epochs

    def begin_epochs(self, loader: Any) -> None:
        """A loop over epochs begins."""
        if self.in_epochs:
            raise UsageError("a loop over px.epochs or px.steps within another; a process trains one model at a time")
        self.start(loader)
        self.in_epochs = True

    def begin_epoch(self) -> None:
        """A loop over the loader begins: at the beginning of an epoch, unless the training was taken up within one."""
        if not self._resume_epoch:
            self.position.cursor, self.position.is_ended = 0, False
        self._resume_epoch = False

    def end_epoch(self) -> None:
        """The loop of an epoch is over, and what the user does after it."""
        self.position.epoch += 1
        self.position.cursor, self.position.is_ended = 0, False

    def finish(self) -> None:
        """The training is done."""
        if self.is_finished:
            return
        self.is_finished = True
        self.share_metrics(self.metrics)
        if self._group().is_leader:
            self.save()
            if self.membership.worker is not None:
                self.membership.worker.finish(2.0)
        self._board.close()

    # State

    def add_metric(self, metric: _metrics.Mean) -> None:
        """Keeps a metric across restarts."""
        if any(known.name == metric.name for known in self.metrics):
            raise UsageError(f"a second metric named {metric.name!r}; each needs a name of its own")
        self.metrics.append(metric)
        if metric.name in self._metric_states:
            _metrics.restore(metric, self._metric_states.pop(metric.name))

    def share_metrics(self, metrics: list[_metrics.Mean]) -> None:
        """Adds up what the ranks have."""
        if metrics:
            _metrics.share(metrics, self)

    def save(self) -> None:
        """Rank 0 writes a checkpoint; training goes on without one where that fails."""
        if self._checkpoints is None or not self._group().is_leader:
            return
        # A model that is not finite must not take the place of one that was.
        if not _state.is_finite(self.module):
            return
        try:
            self._checkpoints.save(self._capture())
        except OSError as error:
            _say(f"cannot save into {self._checkpoints.folder}: {error}; training goes on")
        self._saved_at = time.monotonic()

    def _capture(self) -> dict[str, Any]:
        brain = self._brain.state() if self._brain else self._brain_state
        return {
            "format": _state.FORMAT,
            "model": _state.bare(self.module).state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "agent": brain,
            "position": vars(self.position),
            "baseline_steps": self.terms.baseline_steps,
            "local_batch_max": self.terms.local_batch_max,
            "metrics": {**self._metric_states, **_metrics.capture(self.metrics)},
            "user": self.user_states.capture(),
            "random": _state.random_states(),
        }

    def _restore(self, state: dict[str, Any], where: str) -> None:
        if state.get("format") != _state.FORMAT:
            raise CheckpointError(
                f"{where} has format {state.get('format')}, accepted is {_state.FORMAT}; remove it, or use the version "
                "that wrote it"
            )
        _state.load_module(self.module, state["model"], where)
        _state.load_optimizer(self.optimizer, state["optimizer"], where)
        # It has stepped, if not in this process: schedulers ask.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        for schedule, saved in zip(self.schedules, state["schedules"]):
            schedule.load_state_dict(saved)
        self._brain_state = state["agent"]
        self.position = Position(**state["position"])
        self._resume_epoch = True
        local_batch_max = min(state["local_batch_max"], self.terms.local_batch_max)
        self.terms = replace(self.terms, baseline_steps=state["baseline_steps"], local_batch_max=local_batch_max)
        self._metric_states = dict(state["metrics"])
        for metric in self.metrics:
            if metric.name in self._metric_states:
                _metrics.restore(metric, self._metric_states.pop(metric.name))
        self.user_states.restore(state["user"])
        _state.restore_random_states(state["random"], self._group().rank)

    # Ends

    def fail(self, error: BaseException) -> int | None:
        """What to exit with after an error that a restart mends; `None` if it is the user's."""
        failure = classify(error, self.reader.is_lost)
        if failure is Failure.USER or (failure is Failure.MEMORY and not self._lower_bound()):
            return None
        if failure is Failure.LOST:
            _say(f"another process is gone ({str(error).splitlines()[0][:120]})")
        group = self.group
        # A step is done or it is not: what rank 0 has is the state after the last whole one.
        if group is not None and group.is_leader and not self.is_updating:
            try:
                if group.world_size == 1:
                    self.share_metrics(self.metrics)
                if _metrics.is_shared(self.metrics):
                    self.save()
            except Exception as trouble:
                _say(f"cannot save: {trouble}; the checkpoint before counts")
        return RESTART

    def _lower_bound(self) -> bool:
        """Has the next processes run smaller batches; false if they cannot, or would not know."""
        failed = self.terms.tuning.local_batch
        bound = failed * 3 // 4
        if self._folder is None or self.loader is None or bound < self.loader.limits.local_batch_min:
            return False
        try:
            MemoryBound(self._folder).write(bound)
        except OSError as error:
            _say(f"cannot write into {self._folder}: {error}")
            return False
        _say(f"out of memory with {failed} samples on a GPU; going on with at most {bound}")
        return True

    @property
    def can_run_again(self) -> bool:
        """Whether this process may start its own script once more: nobody else would, and there is a checkpoint."""
        alone = self.membership.worker is None and self.group is not None and self.group.world_size == 1
        return alone and self._checkpoints is not None and "TORCHELASTIC_RUN_ID" not in os.environ

    def close(self) -> None:
        """Leaves the others."""
        self._board.close()
        self.ddp = None
        if self.group is not None:
            self.group.close()

    def _end(self, code: int) -> NoReturn:
        self.close()
        leave(code)

    def status(self) -> Status:
        """How the training runs at the moment."""
        from ._wrap import Status

        group = self._group()
        figures = self._brain.figures() if self._brain else {}
        return Status(
            epoch=self.position.epoch,
            batch_size=self.terms.tuning.batch_size(group.world_size),
            local_batch=self.terms.tuning.local_batch,
            accumulation_steps=self.terms.tuning.accumulation_steps,
            world_size=group.world_size,
            learning_rate_factor=self.terms.learning_rate_factor,
            samples=self.position.samples,
            baseline_steps=self.terms.baseline_steps,
            noise_scale=figures.get("noise_scale"),
            efficiency=figures.get("efficiency"),
            samples_per_s=figures.get("samples_per_s"),
        )

    # Small

    def _group(self) -> Group:
        if self.group is None:
            raise UsageError("the training has not begun; loop over px.epochs(...) or px.steps(...)")
        return self.group

    def _device(self) -> torch.device:
        parameter = next(iter(self.module.parameters()), None)
        return parameter.device if parameter is not None else torch.device("cpu")

    def _loss_scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler else 1.0

    def _brain_settings(self) -> BrainSettings:
        return BrainSettings(
            limits=replace(self.loader.limits, local_batch_max=self.terms.local_batch_max),
            scaling=self.options.scaling,
            warmup_epochs=self.options.warmup_epochs,
            epoch_samples=self.loader.epoch_samples,
        )


def _say(text: str) -> None:
    """To the user. PyTorch puts another stream in the place of sys.stderr while it tells of errors."""
    print(f"pollux: {text}", file=sys.__stderr__)


_current: Session | None = None


def current() -> Session:
    """The training of this process."""
    if _current is None:
        raise UsageError("px.wrap(model, optimizer) comes first")
    return _current


def begin(session: Session) -> None:
    """From now on `session` is the training of this process."""
    global _current
    if _current is not None:
        if _current.in_loop:
            raise UsageError("px.wrap inside of a training loop; a process trains one model at a time")
        _current.close()
    _current = session
