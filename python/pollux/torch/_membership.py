"""Who belongs to the group, and how it changes while it trains.

    newest assignment ──> Invitation (rank 0 listens, tells where) <── newcomers knock, promise to stay
                              │ all are there
                              v
              everybody forms the next Group at the same step

The protocol is that of docs/worker.md: those who are not in a new generation leave once all have heard of it, newcomers
join once they are all there.
"""

from __future__ import annotations

import datetime
import itertools
import operator
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import torch.distributed as dist

import torch
from pollux._elastic.assignment import Assignment, assignment_of
from pollux._elastic.group import Member
from pollux._elastic.launcher import refuse_launcher_in_job
from pollux._elastic.scheduler_link import FIRST_ANSWER_S, STOPPED, SchedulerLink
from pollux._native import Worker

from ._assignment import started_for
from ._errors import LostError
from ._formation import Formation, as_text
from ._group import FORMING, TIMEOUT, Group, launched_store, prefer_loopback, refuse_foreign_group, refuse_other_gpu
from ._sharded_group import ShardedGroup
from ._shards import current_shards, launched_place

_PATIENCE = datetime.timedelta(seconds=600)
_KNOCK_S = 5.0
_NEWS_S = 5.0
_GLANCE_S = 0.02
_BEAT_S = 0.1
"""Who waits to be let in shows so often that it lives."""
_PROOF_S = 0.5
"""Who has not shown it for so long may be dead."""


class Membership(SchedulerLink):
    """This process's place in the group, and the newest that is known of the group to come."""

    def __init__(self) -> None:
        self._shards = current_shards()
        refuse_launcher_in_job(shares_model=self._shards is not None)
        super().__init__(self._listen(), 0)
        self.device = torch.device("cpu")
        """Where the model is."""
        self.is_late = False
        """Whether the others were training already when this process came to them."""
        self._early: Group | None = None
        self._invitation: Invitation | None = None
        # Their doors stay, so that those who stand there can read that nothing comes of it.
        self._called_off: list[Invitation] = []

    def _listen(self) -> Worker | None:
        """Who hears the scheduler, if there is one."""
        return Worker.from_env()

    def newest(self) -> Assignment | None:
        """The newest generation heard of that comes after the one that trains."""
        heard = self.worker.assignment() if self.worker else None
        if heard is None or heard["state"] != "run" or heard["generation"] <= self.generation:
            return None
        return assignment_of(heard)

    def enter(self) -> Group:
        """Finds the others, once everything slow is done."""
        early, self._early = self._early, None
        if early is not None and not self.is_late:
            refuse_other_gpu(early.device, self.device)
            return early
        if early is not None:
            early.close()
        refuse_foreign_group(self._shards.world if self._shards is not None else None)
        group = self._meet(comes_late=True)
        assert group is not None
        return group

    def enter_early(self) -> None:
        """Finds the others before there is a model, if all have just started. Who comes to a training that runs would
        let it wait: until everything slow is done it has a group of its own."""
        self._early = self._meet(comes_late=False)
        self.is_late = self._early is None
        if self._early is None:
            self._early = Group(0, [Member(self.replica, 0)], None, self.device)

    def _meet(self, comes_late: bool) -> Group | None:
        """The group, or `None` if it is already training and nobody is to come late."""
        if self.worker is None:
            group = self._own_group()
            group.introduce(group.members[group.rank], is_new=True)
            return group
        # Once it trains, no training ends because the scheduler did. Until then a mistake can still be mended.
        while not self.worker.answered(FIRST_ANSWER_S):
            self._apply_before_training()
            time.sleep(_GLANCE_S)
        assignment = started_for(self.worker)
        while True:
            leads = assignment.rank_of(self.replica) == 0
            entered = self._lead(assignment) if leads else self._follow(assignment, comes_late)
            if entered is None:
                return None
            if isinstance(entered, Group):
                self.generation = assignment.generation
                entered.introduce(entered.members[entered.rank], is_new=True)
                return entered
            if entered.rank_of(self.replica) is None:
                leave(STOPPED)
            assignment = entered

    def _lead(self, assignment: Assignment) -> Group | Assignment:
        if len(assignment.members) == 1:
            return self._alone(assignment.generation, assignment.members)
        assert self.worker is not None
        invitation = Invitation(assignment, range(1, len(assignment.members)), self.worker, trains=False)
        while not invitation.is_complete():
            self._apply_before_training()
            later = self.newest()
            if later is not None and later.generation > assignment.generation:
                invitation.call_off()
                self._called_off.append(invitation)
                return later
            time.sleep(_GLANCE_S)
        return self._let_in(invitation)

    def _follow(self, assignment: Assignment, comes_late: bool) -> Group | Assignment | None:
        """Knocks at rank 0's door and waits to be let in; leaves it if the others train and nobody is to come late."""
        rank = assignment.rank_of(self.replica)
        assert rank is not None
        store: dist.TCPStore | None = None
        has_promised = False
        beats, beat_at = 0, 0.0
        deadline = time.monotonic() + _PATIENCE.total_seconds()
        while True:
            if not has_promised:
                self._apply_before_training()
            later = self.newest()
            if not has_promised and later is not None and later.generation > assignment.generation:
                return later
            try:
                if store is None:
                    assignment = self._told(assignment)
                    if assignment.endpoint is None:
                        time.sleep(_GLANCE_S)
                        continue
                    prefer_loopback(assignment.endpoint[0])
                    # PyTorch tells of a door that is still closed with a page of its own frames.
                    socket.create_connection(assignment.endpoint, timeout=_KNOCK_S).close()
                    store = dist.TCPStore(*assignment.endpoint, is_master=False, timeout=_PATIENCE)
                    self.is_late = store.get("trains") == b"1"
                    if self.is_late and not comes_late:
                        return None
                    store.set(f"joined/{rank}", "1")
                if time.monotonic() >= beat_at:
                    beats, beat_at = beats + 1, time.monotonic() + _BEAT_S
                    store.set(f"alive/{rank}", str(beats))
                if store.check(["go"]):
                    return self._form(store, assignment, rank, "all", assignment.members)
                if store.check(["void"]):
                    has_promised = False
                elif not has_promised and store.check(["ask"]):
                    store.set(f"stay/{rank}", "1")
                    has_promised = True
            except (RuntimeError, OSError) as error:
                if has_promised and (later := self._overtaking(assignment)) is not None:
                    return later
                if time.monotonic() > deadline or has_promised:
                    raise LostError(f"rank 0 at {assignment.endpoint} is gone: {error}") from error
                store = None
            time.sleep(_GLANCE_S)

    def _told(self, assignment: Assignment) -> Assignment:
        """The same generation with all that is known of it by now."""
        heard = self.worker.assignment() if self.worker else None
        is_same = heard is not None and heard["generation"] == assignment.generation and heard["state"] == "run"
        return assignment_of(heard) if heard is not None and is_same else assignment

    def _overtaking(self, assignment: Assignment) -> Assignment | None:
        """The generation after one whose door is gone, if it is heard of soon."""
        deadline = time.monotonic() + _NEWS_S
        while time.monotonic() < deadline:
            later = self.newest()
            if later is not None and later.generation > assignment.generation:
                return later
            time.sleep(_GLANCE_S)
        return None

    def _apply_before_training(self) -> None:
        if self.wish() != 0 or self.is_terminated:
            leave(STOPPED)

    # While it trains

    def prepare(self, group: Group, later: Assignment | None) -> None:
        """Opens the door for the next generation, if this process is to lead it."""
        invitation = self._invitation
        if later is not None and invitation is not None and invitation.assignment.generation < later.generation:
            invitation.call_off()
            self._called_off.append(invitation)
            self._invitation = None
        if later is not None and self._invitation is None and later.rank_of(self.replica) == 0:
            known = {member.replica for member in group.members}
            newcomers = [rank for rank, member in enumerate(later.members) if member.replica not in known]
            assert self.worker is not None
            self._invitation = Invitation(later, newcomers, self.worker, trains=True)

    def is_complete(self, generation: int) -> bool:
        """Whether all newcomers of a generation are at this process's door."""
        invitation = self._invitation
        return invitation is not None and invitation.assignment.generation == generation and invitation.is_complete()

    def shrink(self, group: Group, later: Assignment) -> Group | None:
        """Goes on without those who leave; `None` if this process is one of them."""
        known = {member.replica for member in group.members}
        stay = [member for member in later.members if member.replica in known]
        group.close()
        rank = later.rank_of(self.replica)
        if rank is None:
            return None
        if len(stay) == len(later.members):
            self.generation = later.generation
        alone = len(stay) == 1
        if alone:
            survivors = self._alone(later.generation, stay)
        else:
            survivors = self._form(self._store(later, rank), later, rank, "survivors", stay)
        survivors.introduce(later.members[rank], is_new=False)
        return survivors

    def grow(self, group: Group, later: Assignment) -> Group:
        """Goes on with those who have come."""
        rank = later.rank_of(self.replica)
        assert rank is not None
        group.close()
        self.generation = later.generation
        if rank == 0:
            assert self._invitation is not None
            grown = self._let_in(self._invitation)
        else:
            grown = self._form(self._store(later, rank), later, rank, "all", later.members)
        grown.introduce(later.members[rank], is_new=False)
        self._called_off.clear()
        return grown

    def agreed(self, later: Assignment | None) -> Assignment:
        """The generation that all go over to, as those who share a model with this process have heard of it."""
        assert later is not None
        if self._shards is not None:
            self._shards.send(as_text(later))
        return later

    def _let_in(self, invitation: Invitation) -> Group:
        invitation.store.set("go", "1")
        later = invitation.assignment
        return self._form(invitation.store, later, 0, "all", later.members)

    def _form(
        self, store: dist.TCPStore, assignment: Assignment, rank: int, stage: str, members: Sequence[Member]
    ) -> Group:
        prefix = f"{assignment.generation}/{stage}"
        self._send_to_shards(Formation(assignment.generation, rank, tuple(members), (store.host, store.port), prefix))
        return self._make(rank, members, dist.PrefixStore(prefix, store))

    def _alone(self, generation: int, members: Sequence[Member]) -> Group:
        self._send_to_shards(Formation(generation, 0, tuple(members), None, ""))
        return self._make(0, members, None)

    def _send_to_shards(self, formation: Formation) -> None:
        if self._shards is not None:
            self._shards.send(formation.as_text())

    def _make(
        self,
        rank: int,
        members: Sequence[Member],
        store: dist.Store | None,
        forming: datetime.timedelta = FORMING,
    ) -> Group:
        if self._shards is not None:
            return ShardedGroup(self._shards, rank, members, store, self.device, forming)
        return Group(rank, members, store, self.device, forming)

    def _own_group(self) -> Group:
        """Without a scheduler: the group of a launcher such as torchrun, or this process alone."""
        shards = self._shards.count if self._shards is not None else 1
        rank, world_size = launched_place()
        if world_size == shards:
            return self._make(0, [Member(0, 0)], None)
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        members = [Member(idx, idx * shards % local_size // shards) for idx in range(world_size // shards)]
        # A launcher's store outlives the trainings of its processes.
        store = dist.PrefixStore(f"pollux-training-{next(_trainings)}", launched_store())
        return self._make(rank // shards, members, store, TIMEOUT)

    def _store(self, later: Assignment, rank: int) -> dist.TCPStore:
        if rank == 0:
            assert self._invitation is not None
            return self._invitation.store
        if later.endpoint is None:
            raise LostError(f"rank 0 of generation {later.generation} has not told where it is")
        prefer_loopback(later.endpoint[0])
        try:
            return dist.TCPStore(*later.endpoint, is_master=False, timeout=_PATIENCE)
        except RuntimeError as error:
            raise LostError(str(error)) from error


class Invitation:
    """Rank 0's door: newcomers knock, are asked to stay, and are let in together."""

    def __init__(self, assignment: Assignment, newcomers: Any, worker: Worker, trains: bool):
        self.assignment = assignment
        self._ranks = list(newcomers)
        self._has_asked = False
        self._beats: list[bytes] = []
        self._beats_at = 0.0
        self._are_alive = False
        if assignment.is_given:
            assert assignment.endpoint is not None
            host, port = assignment.endpoint
        else:
            # It listens everywhere; what follows is how this process itself gets there.
            host, port = "127.0.0.1", 0
        prefer_loopback(host if assignment.is_given else worker.host)
        self.store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_PATIENCE)
        self.store.set("trains", "1" if trains else "0")
        if not assignment.is_given:
            worker.publish_rendezvous(assignment.generation, self.store.port)

    def is_complete(self) -> bool:
        """Whether all are there, have promised to stay, and live."""
        if not self._ranks:
            return True
        if not self._has_asked and self.store.check(self._keys("joined")):
            self.store.set("ask", "1")
            self._has_asked = True
        shown = self._keys("stay") + self._keys("alive")
        return self._has_asked and self.store.check(shown) and self._look_alive()

    def _look_alive(self) -> bool:
        """Whether all have shown that they live since they were looked at last, which must be a moment ago."""
        now = time.monotonic()
        if now >= self._beats_at + _PROOF_S:
            before, self._beats = self._beats, self.store.multi_get(self._keys("alive"))
            self._are_alive = len(before) == len(self._beats) and all(map(operator.ne, before, self._beats))
            self._beats_at = now
        return self._are_alive

    def _keys(self, name: str) -> list[str]:
        return [f"{name}/{rank}" for rank in self._ranks]

    def call_off(self) -> None:
        """Sends everybody away: a later generation counts."""
        self.store.set("void", "1")


def leave(code: int) -> NoReturn:
    """Ends this process as the scheduler expects."""
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(code)


_trainings = itertools.count()
