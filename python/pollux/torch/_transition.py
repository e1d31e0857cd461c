"""From one group to the next, between two steps: who leaves, who joins, and what the training stood still for it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pollux._elastic.assignment import Assignment
from pollux._elastic.scheduler_link import STOPPED
from pollux._elastic.terms import Action

from ._brain import Brain, BrainSettings
from ._terms import Decision, Row, Terms

if TYPE_CHECKING:
    from ._session import Session


class Transition:
    """The group that a session is to have next, if any, and how it gets there."""

    def __init__(self, session: Session):
        self._session = session
        self._later: Assignment | None = None
        self._has_changed = False
        self._stopped_at = 0.0
        self._paused_s: float | None = None
        self._unready = True

    # Around steps

    def begin_step(self) -> None:
        """The first step after a change ends the pause."""
        if self._has_changed:
            self._paused_s = (self._paused_s or 0.0) + time.perf_counter() - self._stopped_at
            self._has_changed = False

    def end_step(self) -> None:
        """If a change follows, the training stands still from here."""
        self._stopped_at = time.perf_counter()

    # At a check-in

    def hear(self) -> tuple[int, bool]:
        """The newest generation to come, 0 if there is none, and whether its newcomers are at this process's door."""
        membership = self._session.membership
        later = membership.newest()
        membership.prepare(self._session.joined(), later)
        if later is not None and not membership.can_follow(later):
            later = None
        self._later = later
        return (later.generation, membership.is_complete(later.generation)) if later else (0, False)

    def send_ready(self) -> None:
        """Rank 0 lets the scheduler know that the whole group trains."""
        membership = self._session.membership
        if membership.worker is not None and self._unready:
            membership.worker.ready(membership.generation, self._paused_s)
            self._unready = False
            self._paused_s = None

    def leave_it_to_rank_0(self) -> None:
        """A pause is told of once."""
        self._paused_s = None

    def action(self, rows: list[Row], left: int) -> tuple[Action, int]:
        """What rank 0 makes of all that was heard, with so many samples of the epoch left; with the generation."""
        membership = self._session.membership
        wishes = {row.wish for row in rows}
        if 2 in wishes:
            return (Action.STOP if membership.worker is None else Action.CUT), 0
        if 1 in wishes:
            return Action.STOP, 0
        generation, later, shards = rows[0].heard, self._later, self._session.joined().shards
        if later is None or any(row.heard != generation for row in rows) or 0 < left < len(later.members) * shards:
            return Action.TRAIN, 0
        known = {member.replica for member in self._session.joined().members}
        listed = {member.replica for member in later.members}
        if known - listed:
            return Action.SHRINK, generation
        if any(row.is_complete for row in rows):
            return Action.GROW, generation
        return Action.TRAIN, 0

    def change(self, decision: Decision) -> None:
        """Everybody goes over to the next group, or leaves."""
        session = self._session
        group, membership, archive = session.joined(), session.membership, session.archive
        later = membership.agreed(self._later)
        assert later.generation == decision.generation
        archive.share_metrics()
        for part in session.parts:
            part.ddp = None
        if decision.action is Action.GROW:
            session.group = membership.grow(group, later)
        else:
            # Rank 0 may be among those who leave: what only it knows goes round before.
            agent = group.broadcast_text(session.brain.state() if session.brain else "")
            survivors = membership.shrink(group, later)
            if survivors is None:
                session.end(STOPPED)
            archive.agent = agent
            session.group = survivors
        self.regroup()
        self._has_changed = True
        self._unready = membership.generation == later.generation

    def regroup(self) -> None:
        """Everything that depends on who trains together."""
        session = self._session
        group, archive = session.joined(), session.archive
        handed = group.hand_over(archive.capture(whole=False) if group.rank == 0 and group.newcomers else None)
        if handed is not None:
            archive.restore(handed, "the training at hand", whole=False)
        for part in session.parts:
            part.regroup(group)
        if group.rank == 0:
            archive.open()
        if group.is_leader:
            if session.brain is None:
                session.brain = Brain(self._brain_settings(), archive.agent)
            archive.agent = None
            session.terms = session.brain.resize(
                group.nodes, group.world_size, session.terms, session.membership.conditions()
            )
        else:
            session.brain = None
        session.terms = Terms.of(group.broadcast(session.terms.values()))
        session.begin_group()

    def _brain_settings(self) -> BrainSettings:
        session = self._session
        return BrainSettings(
            limits=replace(session.limits(), local_batch_max=session.terms.local_batch_max),
            scaling=session.options.scaling,
            warmup_epochs=session.options.warmup_epochs,
            epoch_samples=session.loader.epoch_samples,
        )
