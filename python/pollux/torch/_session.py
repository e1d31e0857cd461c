"""One training: the model, its agent, its group, and the moments at which they decide together.

    for batch in loader ──> step ──> step ──> check-in ──> step ──> ...
                                                 │
       every rank: what it measured, heard, wants│ rank 0: what its agent and the scheduler make of it
                                                 v
             same batch, learning rate, group and end for everybody

Between check-ins a step costs what DDP costs. Check-ins come after every step at first and then twice a second.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
from pollux._elastic.brain import Limits
from pollux._elastic.scheduler_link import RESTART, STOPPED
from pollux._elastic.terms import Action

from ._archive import Archive
from ._brain import Brain
from ._clock import StepClock
from ._deal import Deal, shard_weight
from ._early import claim
from ._errors import DivergedError, UsageError, say
from ._gradients import StepPlan
from ._group import Group, Meeting
from ._likeness import digest_of_settings, refuse_different_models
from ._membership import leave
from ._metrics_writer import MetricsWriter
from ._part import refuse_half_trained
from ._schedule import RateWatch, Schedule, loss_scale, refuse_unknown
from ._sharding import part_class
from ._shards import current_shards
from ._sources import TunedSeat
from ._state import Position
from ._terms import Decision, Measured, Row, Terms, check_alike
from ._transition import Transition


@dataclass(frozen=True)
class Options:
    """What the user said to `wrap`."""

    scaling: str | Callable[[Any], float]
    warmup_epochs: float
    checkpoint_dir: str | os.PathLike[str] | None
    checkpoint_every_s: float
    tensorboard: Any
    ddp: dict[str, Any]


class _Done(NamedTuple):
    """A step that has ended."""

    step: Deal
    is_typical: bool
    """Whether it is as large, and in as many pieces, as all are meant to be."""


class Session:
    """What `wrap` sets up and the loops drive."""

    def __init__(
        self,
        models: Sequence[tuple[torch.nn.Module, torch.optim.Optimizer]],
        scaler: Any,
        options: Options,
    ):
        self.clock: StepClock[_Done] = StepClock()
        scale = functools.partial(loss_scale, scaler)
        make = part_class()
        self.parts = [make(module, optimizer, options.ddp, self.clock, scale) for module, optimizer in models]
        self.reader = self.parts[0].reader
        self.scaler = scaler
        self.schedules: list[Schedule] = []
        self.options = options
        self.group: Group | None = None
        self.membership = claim()
        self._rates = RateWatch([part.optimizer for part in self.parts])
        self.position = Position()
        self.terms = Terms()
        self.brain: Brain | None = None
        self.archive = Archive(self)
        self.transition = Transition(self)
        self._metrics_writer = MetricsWriter(options.tensorboard)
        self.loader: Any = None
        self.in_epochs = False
        self.in_loop = False
        self.is_training = False
        """Whether what was done last is a part of a step, and not of an evaluation."""
        self.is_step_end = True
        """Whether the micro-batch at hand is the last one of its step."""
        self.is_replaced = False
        """Whether another training has begun in this process."""
        self.has_stepped = False
        self.updates = 0
        """Of optimisers, since the last check-in."""
        self.progress_max = math.inf
        self.at_hand: Deal | None = None
        self.is_updating = False
        self.is_deciding = False
        """Whether a check-in has begun and not come to its end, so that what is there may be no state to go on with."""
        self.is_saving = self.is_leaving = False
        self.has_left = False
        """Whether the loops are over and what was to be saved is."""
        self.resumes_epoch = False
        self.is_pressed = False
        """Whether somebody is to stop, leave or join, which waits for the next epoch to begin."""
        self._steps_since_check = 0
        self._steps_unmeasured = 0
        self._planned: tuple[tuple[Any, ...], tuple[StepPlan, StepPlan]] | None = None
        """The last step's plans, with all that they follow from in one group."""

    # Before the first step

    def start(self, loader: Any) -> None:
        """Meets the others and takes the training up where it is. Everything slow should be done by now."""
        if self.group is not None:
            if loader is not self.loader:
                raise UsageError("a second px.DataLoader in one training; use torch.utils.data.DataLoader to evaluate")
            return
        followed = [schedule.optimizer for schedule in self.schedules] + self.archive.user_states.optimizers()
        for part in self.parts:
            refuse_unknown(part.optimizer, followed)
        self.loader = loader
        self.terms = replace(self.terms, local_batch_max=self.limits().local_batch_max)
        device = self._device()
        if device.type == "cuda":
            torch.cuda.set_device(device)  # Events and random numbers are those of the current one.
        self.clock.use(device)
        self.membership.device = device
        # The first step of any optimiser imports this, which takes seconds: the others need not wait for it.
        importlib.import_module("torch._dynamo")
        self.group = self.membership.enter()
        if self.group.rank == 0:
            self.archive.take_up()
        self.transition.regroup()

    def begin_group(self) -> None:
        """Another group trains from now on."""
        self._steps_since_check = 0
        self._steps_unmeasured = 0
        self._planned = None
        self.clock.restart()

    def seat(self) -> TunedSeat:
        """Which samples this process gets."""
        group, terms, position = self.joined(), self.terms, self.position
        before = position.samples - position.cursor
        return TunedSeat(group.place, group.processes, terms.tuning, terms.local_batch_max, group.shards, before)

    def limits(self) -> Limits:
        """Bounds of the batch, for a copy of the model: all processes that share it have `per_gpu` samples each."""
        shards, limits = current_shards(), self.loader.limits
        assert isinstance(limits, Limits)
        return limits.of_shards(shards.count if shards is not None else 1)

    @property
    def is_before_known_epoch(self) -> bool:
        """Whether the loop over the loader is about to go on in the middle of an epoch, so that the script does once
        more what it did before that loop."""
        return self.in_epochs and self.resumes_epoch and self.position.cursor > 0

    # A step

    def begin_micro_batch(self, step: Deal, idx: int, count: int) -> None:
        """The loop is about to get one of the micro-batches of a step."""
        group = self.joined()
        rank = group.rank
        self.is_step_end, self.is_training = idx == count - 1, True
        if idx == 0:
            self.transition.begin_step()
            self.clock.begin()
            self.at_hand, self.has_stepped = step, False
        emphasis = 1.0
        if count > 1:
            emphasis = step.emphasis(rank, idx)
            self._rates.begin(idx)
        if idx == 0:
            measured, others = self._plans(step, count)
            self.parts[0].begin_step(measured)
            for part in self.parts[1:]:
                part.begin_step(others)
        for part in self.parts:
            part.begin_micro_batch(idx, emphasis)

    def _plans(self, step: Deal, count: int) -> tuple[StepPlan, StepPlan]:
        """For the model whose gradients are measured, and for all others. Most steps are like the one before."""
        likeness = (step.samples, step.micro_batches, count, step.is_whole and self._is_measured(step))
        if self._planned is None or self._planned[0] != likeness:
            group = self.joined()
            spans = step.parts(group.rank) if group.shards > 1 else []
            others = StepPlan(
                weight=step.weight(group.rank),
                scale=step.scale(group.rank),
                micro_batches=count,
                micro_batches_max=step.micro_batches,
                shard_weights=[shard_weight(span, group.shards, group.shard) for span in spans],
            )
            self._planned = likeness, (replace(others, measure=likeness[-1]), others)
        return self._planned[1]

    def _is_measured(self, step: Deal) -> bool:
        if self.reader.is_alone and step.micro_batches == 1:
            return False
        return self._is_split(step) or self._steps_unmeasured + 1 >= self.terms.measure_every

    def _is_split(self, step: Deal) -> bool:
        """Whether it has more micro-batches than the tuning asks for, only to be measured."""
        return step.micro_batches > self.terms.tuning.accumulation_steps + 1

    def end_micro_batch(self, count: int) -> None:
        """The loop is done with one of the micro-batches of a step."""
        self.allow_backward(False)
        if count > 1:
            self._rates.end()

    def allow_backward(self, is_allowed: bool) -> None:
        """Whether gradients stand for samples of the loader."""
        for part in self.parts:
            part.reader.is_allowed = is_allowed

    def end_loop(self) -> None:
        """The loop over the loader is over: until the next one the models are the user's."""
        self.in_loop = False
        self.allow_backward(False)
        for part in self.parts:
            part.release()

    @property
    def backwards(self) -> int:
        """Backward passes so far."""
        return sum(part.reader.backwards for part in self.parts)

    def end_step(self, step: Deal) -> None:
        """The loop is done with the last micro-batch of a step."""
        refuse_half_trained(self.parts)
        self.clock.end(_Done(step, step.is_whole and not self._is_split(step)))
        if self.parts[0].is_asked:
            self.reader.keep()
        self.has_stepped = False
        self.position.cursor = step.stop
        self.position.samples += step.samples
        self.terms.baseline_steps += self.terms.gain
        self._steps_since_check += 1
        self._steps_unmeasured = 0 if self.reader.plan.measure else self._steps_unmeasured + 1
        if self.brain is not None:
            self.brain.count()
        self.transition.end_step()

    def _learn_times(self) -> None:
        """Of steps since the last check-in, as far as they are known: a GPU runs behind."""
        for done, times in self.clock.known():
            if self.brain is not None:
                self.brain.time(done.step, times, done.is_typical, self.joined().nodes)

    def leave_step(self) -> None:
        """The loop is left within a batch. Its step is done or it is not."""
        if not self.in_loop or self.at_hand is None:
            return
        if self.has_stepped:
            self.end_step(self.at_hand)
        elif self.joined().place == 0 and any(part.is_asked_early for part in self.parts):
            say(
                f"the loop was left before the last micro-batch of a step: its {self.at_hand.samples} samples have "
                "taught the model nothing; leave it only if px.is_step_end()"
            )

    def progress_after_step(self) -> float:
        """Baseline steps with the step that the loop is at, once its last micro-batch is through."""
        progress = self.terms.baseline_steps + (self.terms.gain if self.is_step_end else 0.0)
        return min(progress, self.progress_max)

    # Between steps

    def is_due(self) -> bool:
        """Whether all ranks are to check in now."""
        return self._steps_since_check >= self.terms.check_every

    def check_in(self, left: int, *, ends_epoch: bool = False) -> bool:
        """All ranks decide together how to go on, with so many samples of the epoch left; true if batches are to be
        dealt anew."""
        self.is_deciding = True
        group = self.joined()
        group.meet(Meeting.CHECK_IN)
        heard, is_complete = self.transition.hear()
        norms = self.reader.take_norms()
        measured = Measured.of(norms).over_shards(group)
        self._learn_times()
        row = Row(
            heard=heard,
            wish=self.membership.wish(),
            steps=measured.steps,
            updates=self.updates,
            order=self.loader.order(self.position.epoch),
            settings=digest_of_settings(part.optimizer for part in self.parts),
            own_sqr=measured.own_sqr,
            is_whole=norms.is_whole,
            is_complete=is_complete,
        )
        rows = [Row.of(values) for values in group.gather(row.values())]
        check_alike(rows)
        rows = [Row.of_copy(rows[first : first + group.shards]) for first in range(0, len(rows), group.shards)]
        self.updates = 0
        self.is_pressed = ends_epoch and any(row.wish or row.heard for row in rows)
        decision = Decision(terms=self.terms)
        if self.brain is not None:
            self.brain.learn(rows, measured.mean_sqr, self._steps_since_check, self.terms)
            decision = self._decide(self.brain, rows, left, ends_epoch)
        decision = Decision.of(group.broadcast(decision.values()))
        if not group.is_leader:
            self.transition.leave_it_to_rank_0()
        self._steps_since_check = 0
        self.clock.forget()
        if decision.saves or ends_epoch:
            self.archive.share_metrics()
            refuse_different_models(group, self.parts)
        is_dealt_anew = self._apply(decision, rows)
        self.is_deciding = False
        return is_dealt_anew

    def _decide(self, brain: Brain, rows: list[Row], left: int, ends_epoch: bool) -> Decision:
        """Rank 0's part of a check-in."""
        self.transition.send_ready()
        terms = brain.terms(self.terms, self.reader.costs.take_s(), ends_epoch, self.membership.conditions())
        brain.report(self.membership, self.position, self._metrics_writer, self.terms.tuning.batch_size(len(rows)))
        # Whoever took the training up between an epoch's last batch and what the user does after it would see no batch.
        action, generation = (Action.TRAIN, 0) if ends_epoch else self.transition.action(rows, left)
        if brain.has_diverged(scaled=self.scaler is not None and self.scaler.is_enabled()):
            action = Action.DIVERGED
        is_urgent = self.is_pressed or action in (Action.STOP, Action.CUT)
        saves = self.archive.is_open and (self.archive.is_due() or is_urgent)
        return Decision(action=action, generation=generation, saves=saves, terms=terms)

    def _apply(self, decision: Decision, rows: list[Row]) -> bool:
        group = self.joined()
        changed = (decision.terms.tuning, decision.terms.local_batch_max) != (
            self.terms.tuning,
            self.terms.local_batch_max,
        )
        self.terms = decision.terms
        if decision.saves:
            self.archive.save()
        if decision.action is Action.STOP:
            self.end(STOPPED)
        if decision.action is Action.CUT:
            self.end(STOPPED if rows[group.rank].wish == 2 or self.membership.is_terminated else RESTART)
        if decision.action is Action.DIVERGED:
            raise DivergedError(
                "the gradients of the last steps are not finite, so the loss is not; lower the learning rate or clip "
                "gradients, and look for divisions by zero. The last checkpoint is from before"
            )
        if decision.action in (Action.SHRINK, Action.GROW):
            self.transition.change(decision)
            return True
        return changed

    # Epochs

    def begin_epochs(self, loader: Any) -> None:
        """A loop over epochs begins."""
        if self.in_epochs:
            raise UsageError("a loop over px.epochs or px.steps within another; a process trains one model at a time")
        self.start(loader)
        self.in_epochs = self.resumes_epoch = True
        self.is_deciding = self.has_left = False

    def begin_epoch(self) -> None:
        """A loop over the loader begins: at the beginning of an epoch, unless it is the first and goes on in the middle
        of one."""
        # Who has just joined goes on where the others are, in the middle of an epoch.
        if not self.resumes_epoch:
            self.joined().meet(Meeting.EPOCH)
            self.position.cursor, self.position.is_ended = 0, False
        self.resumes_epoch = False

    def end_data(self) -> None:
        """All samples of an epoch were used."""
        if self.brain is not None:
            self.brain.end_data(self.position.cursor)

    def end_epoch(self) -> None:
        """The loop of an epoch is over, and what the user does after it."""
        self.position.epoch += 1
        self.position.cursor, self.position.is_ended = 0, False

    def finish(self) -> None:
        """The training is done."""
        self.joined().meet(Meeting.END)
        self.archive.share_metrics()
        self._save_last()

    def break_off(self) -> None:
        """The user has left the loops early. Whether all ranks have, or this one alone with an error, nobody knows, so
        nothing is asked of the others."""
        if not (self.is_deciding or self.has_left or self.is_updating) and self.archive.can_save_apart():
            self._save_last()

    def _save_last(self) -> None:
        if self.joined().rank == 0:
            self.is_saving = True
            self.archive.save()
            self.is_saving = False
        if self.joined().is_leader and self.membership.worker is not None:
            self.membership.worker.finish(2.0)
        self._metrics_writer.close()
        self.has_left = True

    # Ends

    def apply_termination(self) -> None:
        """Ends the process that got `SIGTERM` outside of the loops, where nobody checks in. It may be called at any
        moment, and is called again until it works."""
        is_before_or_after = self.group is None or self.has_left
        if self.is_busy or not (is_before_or_after or self.membership.wish() != 0):
            return
        self.is_leaving = True
        if self.in_epochs:
            self.break_off()
        self.end(STOPPED)

    @property
    def is_busy(self) -> bool:
        """Whether the end of the process waits for what is being done."""
        return self.in_loop or self.is_saving or self.is_leaving

    def close(self) -> None:
        """Leaves the others."""
        self.has_left = True
        self._metrics_writer.close()
        for part in self.parts:
            part.close()
        if self.group is not None:
            self.group.close()

    def end(self, code: int) -> NoReturn:
        """Leaves the others and ends this process."""
        self.close()
        leave(code)

    def joined(self) -> Group:
        """The group at hand."""
        if self.group is None:
            raise UsageError("the training has not begun; loop over px.epochs(...) or px.steps(...)")
        return self.group

    def _device(self) -> torch.device:
        parameter = next(iter(self.parts[0].module.parameters()), None)
        return parameter.device if parameter is not None else torch.device("cpu")
