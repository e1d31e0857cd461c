"""From one group to the next, between two steps: who leaves, who joins, and what the training stood still for it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from .assignment import Assignment
from .brain import Brain
from .scheduler_link import STOPPED
from .terms import Action, Decision, Row, Terms

if TYPE_CHECKING:
    from .session import Session


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
        """The newest generation to come, 0 if there is none, and whether its newcomers have connected to it."""
        session = self._session
        self._later = later = session.membership.newest()
        if later is None:
            return 0, False
        session.membership.prepare(later)
        if not session.membership.can_follow(later):
            self._later = None
            return 0, False
        known = {member.replica for member in session.joined().members}
        return later.generation, session.membership.is_complete(later, known)

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
        session, later = self._session, self._later
        wishes = {row.wish for row in rows}
        if 2 in wishes:
            return (Action.STOP if session.membership.worker is None else Action.CUT), 0
        if 1 in wishes:
            return Action.STOP, 0
        if later is None or any(row.heard != later.generation for row in rows) or 0 < left < len(later.members):
            return Action.TRAIN, 0
        known = {member.replica for member in session.joined().members}
        if known - {member.replica for member in later.members}:
            return Action.SHRINK, later.generation
        is_complete = any(row.is_complete for row in rows)
        return (Action.GROW, later.generation) if is_complete else (Action.TRAIN, 0)

    def change(self, decision: Decision) -> None:
        """Everybody goes over to the next group, or leaves."""
        session, later = self._session, self._later
        assert later is not None and later.generation == decision.generation
        group, membership = session.joined(), session.membership
        newcomers: list[int] = []
        if decision.action is Action.GROW:
            session.group, newcomers = membership.grow(group, later)
        else:
            # Rank 0 may be among those who leave: what only it knows goes round before.
            session.agent, user = group.broadcast([session.brain.state() if session.brain else None, session.user])
            session.take_facts(user)
            survivors = membership.shrink(group, later)
            if survivors is None:
                session.end(STOPPED)
            session.group = survivors
        self.regroup(newcomers)
        self._has_changed = True
        self._unready = membership.generation == later.generation

    def regroup(self, newcomers: list[int]) -> None:
        """Everything that depends on who trains together."""
        session = self._session
        group, options = session.joined(), session.options
        state = session.archive.capture() if group.is_leader and newcomers else None
        handed = group.hand_over(state, newcomers)
        if handed is not None:
            session.archive.restore(handed, "the training at hand")
        terms = session.terms
        if group.is_leader:
            if session.brain is None:
                session.brain = Brain(
                    options.limits, options.scaling, options.warmup_epochs, options.samples, session.agent
                )
            session.agent = None
            session.archive.open()
            terms = session.brain.resize(group.nodes, group.world_size, terms, session.membership.conditions())
        else:
            session.brain = None
        session.begin_group(Terms.of(group.broadcast(asdict(terms))))
