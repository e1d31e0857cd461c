"""One training: its agent, its group, and the moments at which they decide together.

    for step in steps ──> step ──> step ──> check-in ──> step ──> ...
                                               │
      every rank: what it measured, heard, wants│ rank 0: what its agent and the scheduler make of it
                                               v
            same batch, learning rate, group and end for everybody

Check-ins come after every step at first and then twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np

from . import process
from .archive import Archive
from .brain import Brain, Times
from .deal import Deal, deal
from .errors import DivergedError, UsageError
from .group import Group
from .membership import Membership, leave
from .options import Content, Options
from .scheduler_link import RESTART, STOPPED
from .state import Position
from .status import Status
from .terms import Action, Decision, Row, Terms
from .transition import Transition


class Session:
    """What a framework's loop drives."""

    def __init__(self, options: Options, content: Content):
        if options.checkpoint_every_s <= 0:
            raise UsageError(f"checkpoint_every_s {options.checkpoint_every_s}; expected seconds above 0")
        process.make_way()
        self.options = options
        self.content = content
        self.membership = Membership()
        self.transition = Transition(self)
        self.group: Group | None = None
        self.brain: Brain | None = None
        self.agent: str | None = None
        """What an agent has learned that is not at work here yet."""
        self.position = Position()
        self.terms = Terms()
        self.user: dict[str, Any] = {}
        """Facts of the user's own."""
        self.archive = Archive(self)
        self.in_epochs = self.in_loop = self.is_deciding = False
        self.is_saving = self.is_leaving = self.has_left = False
        self.resumes = False
        """Whether the next loop goes on where the training is, which may be in the middle of an epoch."""
        self.at_hand: Deal | None = None
        self.has_stepped = False
        """Whether the step at hand has changed the content."""
        self._order: tuple[int, np.ndarray[Any, Any]] = (-1, np.empty(0))
        self._sizes: set[int] = set()
        """Of micro-batches that this process has run, which are compiled."""
        self._own_sqr: list[float] = []
        self._mean_sqr: list[float] = []
        self._cost_s = 0.0
        self._sync_s = 0.0
        self._begun = time.perf_counter()
        self._updates = 0
        self._steps_since_check = 0
        self._steps_unmeasured = 0
        process.begin(self)

    # Before the first step

    def joined(self) -> Group:
        """The group, which is there once the loops have begun."""
        if self.group is None:
            raise UsageError("a step before the loop over epochs; train inside of `for epoch in ...epochs(...)`")
        return self.group

    def start(self) -> None:
        """Meets the others and takes the training up where it is. Everything slow should be done by now."""
        if self.group is not None:
            return
        self.archive.begin()
        self.group, newcomers = self.membership.enter()
        if self.group.is_leader:
            self.archive.take_up()
        self.transition.regroup(newcomers)

    def begin_group(self, terms: Terms) -> None:
        """Another group trains from now on."""
        self.terms = terms
        self._own_sqr, self._mean_sqr = [], []
        self._updates = self._steps_since_check = self._steps_unmeasured = 0
        self.content.regroup(self.joined().rank)

    # Epochs and steps

    def epochs(self, total: int) -> Generator[int, None, None]:
        """Numbers of the epochs that are still to be trained."""
        if self.in_epochs:
            raise UsageError("a loop over epochs within another; a training has one at a time")
        self.start()
        self.in_epochs = self.resumes = True
        self.has_left = self.is_deciding = False
        try:
            while self.position.epoch < total:
                yield self.position.epoch
                self.position.epoch += 1
                self.position.cursor, self.position.is_ended = 0, False
        except GeneratorExit:
            self.break_off()
            raise
        finally:
            self.in_epochs = False
        self.agree("ends the training", None)
        self._save_last()

    def steps(self) -> Generator[Deal, None, None]:
        """The steps of the epoch at hand that are still to be trained."""
        if not self.in_epochs or self.in_loop:
            raise UsageError("a loop over steps; expected one at a time, inside of a loop over epochs")
        self.in_loop = True
        try:
            yield from self._deal_steps()
        except GeneratorExit:
            # The user has left in the middle of a step, which is done or is not.
            self.leave_step()
            raise
        finally:
            self.in_loop = False

    def _deal_steps(self) -> Iterator[Deal]:
        position, samples = self.position, self.options.samples
        resumes, self.resumes = self.resumes, False
        if position.is_ended:
            return
        if not resumes:
            # Who has just joined goes on where the others are, which is behind this.
            self.check_in(samples)
        self._begun = time.perf_counter()
        while position.cursor < samples:
            world_size = self.joined().world_size
            limits = self.options.limits
            before = position.samples - position.cursor
            step = deal(position.cursor, samples, world_size, self.terms.tuning, limits.local_batch_max, before=before)
            self.at_hand, self.has_stepped, self._sync_s = step, False, 0.0
            self.transition.begin_step()
            yield step
            self._end_step(step)
            left = samples - position.cursor
            if left > 0 and self._steps_since_check >= self.terms.check_every:
                self.check_in(left)
                self._begun = time.perf_counter()
        position.is_ended = True
        self.check_in(0, ends_epoch=True)

    def indices(self, step: Deal) -> list[np.ndarray[Any, Any]]:
        """Numbers of the samples of each micro-batch of this process."""
        epoch, order = self._order
        if epoch != self.position.epoch:
            order = np.arange(self.options.samples)
            if self.options.shuffle:
                order = np.random.default_rng([self.options.seed, self.position.epoch]).permutation(order)
            self._order = (self.position.epoch, order)
        return [order[part.start : part.stop] for part in step.parts(self.joined().rank)]

    def is_measured(self, step: Deal) -> bool:
        """Whether the gradients of a step are to be compared."""
        is_alike = step.is_whole and step.world_size * step.micro_batches > 1
        if not is_alike or self.position.steps < self.options.settling_steps:
            return False
        return self._is_split(step) or self._steps_unmeasured + 1 >= self.terms.measure_every

    def _is_split(self, step: Deal) -> bool:
        """Whether it has more micro-batches than the tuning asks for, only to be measured."""
        return step.micro_batches > self.terms.tuning.accumulation_steps + 1

    def note(self, own_sqr: float, mean_sqr: float, cost_s: float) -> None:
        """The squared norms of a step's gradients, and what measuring them has cost."""
        self._own_sqr.append(own_sqr)
        self._mean_sqr.append(mean_sqr)
        self._cost_s += cost_s

    def sum(self, values: np.ndarray[Any, Any]) -> None:
        """Puts the sum over all ranks in the place of flat values."""
        begun = time.perf_counter()
        self.joined().sum(values)
        self._sync_s += time.perf_counter() - begun

    def _end_step(self, step: Deal) -> None:
        """The loop is done with a step."""
        now = time.perf_counter()
        total = now - self._begun
        self._begun = now
        sizes = {len(part) for part in step.parts(self.joined().rank)}
        is_first, self._sizes = not sizes <= self._sizes, self._sizes | sizes
        is_measured = self.is_measured(step)
        self.at_hand = None
        self._updates += self.has_stepped
        self.has_stepped = False
        self.position.cursor = step.stop
        self.position.samples += step.samples
        self.position.steps += 1
        self.terms.baseline_steps += self.terms.gain
        self._steps_since_check += 1
        self._steps_unmeasured = 0 if is_measured else self._steps_unmeasured + 1
        if self.brain is not None:
            is_typical = step.is_whole and not self._is_split(step)
            times = Times(max(total - self._sync_s, 0.0), min(self._sync_s, total))
            self.brain.count(step, times, is_typical, is_first, self.joined().nodes)
        self.transition.end_step()

    def leave_step(self) -> None:
        """The loop is left within a step. It is done or it is not."""
        if self.at_hand is not None and self.has_stepped:
            self._end_step(self.at_hand)

    # Between steps

    def check_in(self, left: int, *, ends_epoch: bool = False) -> None:
        """All ranks decide together how to go on, with so many samples of the epoch left."""
        self.is_deciding = True
        group = self.joined()
        heard, is_complete = self.transition.hear()
        row = Row(heard, self.membership.wish(), self._updates, self._own_sqr, is_complete)
        told = group.gather("is between two steps", asdict(row))
        made = self._decide([Row(**values) for values in told], left, ends_epoch).told() if told is not None else None
        decision = Decision.of(group.broadcast(made))
        if not group.is_leader:
            self.transition.leave_it_to_rank_0()
        self._own_sqr, self._mean_sqr = [], []
        self._updates = self._steps_since_check = 0
        if decision.saves or ends_epoch or decision.action in (Action.SHRINK, Action.GROW):
            self.content.share()
        self._apply(decision, row)
        self.is_deciding = False

    def agree(self, meeting: str, value: Any) -> Any:
        """What rank 0 says, once all ranks are at the same place in the script."""
        group = self.joined()
        group.gather(meeting, None)
        return group.broadcast(value)

    def take_facts(self, user: dict[str, Any]) -> None:
        """Facts of the user's own, as rank 0 has them."""
        user = dict(user)
        self.user.clear()
        self.user.update(user)

    def _decide(self, rows: list[Row], left: int, ends_epoch: bool) -> Decision:
        """Rank 0's part of a check-in."""
        brain = self.brain
        assert brain is not None
        _refuse_different_updates(rows)
        if self._steps_since_check > 0:
            self.transition.send_ready()
        brain.learn(rows, self._mean_sqr, self._steps_since_check, self.terms)
        conditions = self.membership.conditions()
        terms = brain.terms(self.terms, self._cost_s, len(self._mean_sqr), ends_epoch, conditions)
        self._cost_s = 0.0
        brain.report(self.membership, self.position)
        # Whoever took the training up between an epoch's last step and what the user does after it would see no step.
        action, generation = (Action.TRAIN, 0) if ends_epoch else self.transition.action(rows, left)
        if brain.has_diverged():
            action = Action.DIVERGED
        is_urgent = action in (Action.STOP, Action.CUT) or (ends_epoch and any(row.wish or row.heard for row in rows))
        return Decision(action, generation, self.archive.is_due() or is_urgent, terms)

    def _apply(self, decision: Decision, row: Row) -> None:
        self.terms = decision.terms
        if decision.action is Action.DIVERGED:
            raise DivergedError(
                "the gradients of the last steps are not finite, so the loss is not; lower the learning rate or clip "
                "gradients, and look for divisions by zero. The last checkpoint is from before"
            )
        if decision.saves:
            self.archive.save()
        if decision.action is Action.STOP:
            self.end(STOPPED)
        if decision.action is Action.CUT:
            self.end(STOPPED if row.wish == 2 or self.membership.is_terminated else RESTART)
        if decision.action in (Action.SHRINK, Action.GROW):
            self.transition.change(decision)

    # Ends

    def break_off(self) -> None:
        """The user has left the loops early. Whether all ranks have, or this one alone with an error, nobody knows, so
        nothing is asked of the others."""
        if self.group is not None and not (self.is_deciding or self.has_left):
            self.leave_step()
            self._save_last()

    def save_after_loss(self) -> None:
        """Another process is gone. Rank 0 has the state after the last whole step."""
        if self.group is not None and self.group.is_leader and not self.has_left:
            self.leave_step()
            self.archive.save()

    def _save_last(self) -> None:
        self.is_saving = True
        self.archive.save()
        if self.joined().is_leader and self.membership.worker is not None:
            self.membership.worker.finish(2.0)
        self.is_saving, self.has_left = False, True

    @property
    def is_busy(self) -> bool:
        """Whether the end of the process waits for what is being done."""
        return self.in_loop or self.is_saving or self.is_leaving

    def apply_termination(self) -> None:
        """Ends the process that got `SIGTERM` outside of the loops, where nobody checks in."""
        is_before_or_after = self.group is None or self.has_left
        if self.is_busy or not (is_before_or_after or self.membership.wish() != 0):
            return
        if self.in_epochs:
            self.break_off()
        self.end(STOPPED)

    def close(self) -> None:
        """Leaves the others."""
        self.has_left = True
        if self.group is not None:
            self.group.close()
        self.membership.close()

    def end(self, code: int) -> NoReturn:
        """Leaves the others and ends this process."""
        self.is_leaving = True
        self.close()
        leave(code)

    def status(self) -> Status:
        """How the training runs at the moment."""
        world_size = self.joined().world_size
        return Status(
            epoch=self.position.epoch,
            batch_size=self.terms.tuning.batch_size(world_size),
            local_batch=self.terms.tuning.local_batch,
            accumulation_steps=self.terms.tuning.accumulation_steps,
            world_size=world_size,
            learning_rate_factor=self.terms.learning_rate_factor,
            samples=self.position.samples,
            baseline_steps=self.terms.baseline_steps,
            **(self.brain.figures() if self.brain else {}),
        )


def _refuse_different_updates(rows: list[Row]) -> None:
    """Models that have made other steps are other models, and nobody would notice."""
    counts = [row.updates for row in rows]
    if min(counts) != max(counts):
        rank = counts.index(min(counts))
        raise UsageError(
            f"rank {rank} has made {counts[rank]} steps where others have made {max(counts)}; expected all "
            "processes to skip a step or none: decide it from what all have, such as the loss that comes with gradients"
        )
