"""Who belongs to the group, and how it changes while it trains.

    newest assignment ──> rank 0 tells where it listens <── newcomers come, promise to stay
                              │ all are there
                              v
              everybody forms the next Group at the same step

The protocol is that of docs/worker.md: those who are not in a new generation leave once all have heard of it, newcomers
join once they are all there.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from pollux._native import Worker

from .assignment import Assignment, assignment_of
from .errors import LostError, UsageError
from .group import Group, Member, Ring
from .launcher import refuse_launcher_in_job
from .line import TIMEOUT_S, JoinListener, Line, call, group_key
from .scheduler_link import FIRST_ANSWER_S, STOPPED, SchedulerLink

_FORMING_S = 30.0
"""What a group may take to form once all of it has promised to come: whoever does not is dead."""
_PATIENCE_S = 600.0
_NEWS_S = 5.0
_GLANCE_S = 0.02
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Membership(SchedulerLink):
    """This process's place in the group, and the newest that is known of the group to come."""

    def __init__(self) -> None:
        refuse_launcher_in_job()
        super().__init__(Worker.from_env(), int(os.environ.get("RANK", "0")))
        self._listener: JoinListener | None = None
        self._told_generation = 0
        self._asked: set[tuple[Any, ...]] = set()
        self._promised: set[tuple[Any, ...]] = set()

    def newest(self) -> Assignment | None:
        """The newest generation heard of that comes after the one that trains."""
        heard = self._heard()
        return heard if heard is not None and heard.generation > self.generation else None

    # Before the first step

    def enter(self) -> tuple[Group, list[int]]:
        """Finds the others, with the ranks of those who have yet to hear of the training."""
        if self.worker is None:
            return self._meet_launched()
        # Once it trains, no training ends because the scheduler did. Until then a mistake can still be mended.
        while not self.worker.answered(FIRST_ANSWER_S):
            self._apply_before_training()
            time.sleep(_GLANCE_S)
        while True:
            self._apply_before_training()
            assignment = self._heard()
            if assignment is None or assignment.generation < self.worker.generation:
                time.sleep(_GLANCE_S)
                continue
            rank = assignment.rank_of(self.replica)
            if rank is None:
                leave(STOPPED)
            entered = self._lead(assignment) if rank == 0 else self._follow(assignment, rank)
            if entered is not None:
                self.generation = assignment.generation
                return entered

    def _meet_launched(self) -> tuple[Group, list[int]]:
        """Without a scheduler: the group of a launcher that sets ranks and rank 0's address, or this process alone."""
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if "RANK" not in os.environ or world_size == 1:
            return Group(0, (Member(0, 0),), {}, None), []
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UsageError(f"RANK is set, but {missing[0]} is not; expected all or none")
        rank, local_size = int(os.environ["RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        members = tuple(Member(idx, idx % local_size) for idx in range(world_size))
        assignment = Assignment(0, members, address)
        if rank == 0:
            self._listener = JoinListener((address[0] if address[0] in _LOOPBACK else "", address[1]))
            return self._form(assignment, "all", members, 0, None, _PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self._apply_before_training()
            try:
                line = self._call(assignment, "all", rank, is_new=True)
                return self._form(assignment, "all", members, rank, line, _PATIENCE_S)
            except LostError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(10 * _GLANCE_S)

    def _lead(self, assignment: Assignment) -> tuple[Group, list[int]] | None:
        """Waits for everybody; nothing if a later generation counts."""
        if len(assignment.members) == 1:
            return Group(0, assignment.members, {}, None), []
        deadline = time.monotonic() + _PATIENCE_S
        while not self.is_complete(assignment, set()):
            self._apply_before_training()
            if time.monotonic() > deadline:
                raise LostError(f"not all of generation {assignment.generation} came within {_PATIENCE_S:.0f} s")
            if self._is_overtaken(assignment):
                self._call_off(assignment)
                return None
            time.sleep(_GLANCE_S)
        return self._form(assignment, "all", assignment.members, 0, None, _FORMING_S)

    def _follow(self, assignment: Assignment, rank: int) -> tuple[Group, list[int]] | None:
        """Connects to rank 0 and waits to be let in; nothing if a later generation counts."""
        line: Line | None = None
        has_promised = False
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            if not has_promised:
                self._apply_before_training()
                if self._is_overtaken(assignment):
                    break
            try:
                if line is None:
                    assignment = self._same(assignment)
                    line = self._call(assignment, "all", rank, is_new=True)
                if not line.has_news(_GLANCE_S):
                    continue
                word = line.receive()
                if word == "ask":
                    line.send("stay")
                    has_promised = True
                else:
                    return self._form(assignment, "all", assignment.members, rank, line, _FORMING_S, word)
            except LostError:
                if line is not None:
                    line.close()
                line = None
                if has_promised and self._is_overtaken(assignment, _NEWS_S):
                    break
                if has_promised or time.monotonic() > deadline:
                    raise
                time.sleep(_GLANCE_S)
        if line is not None:
            line.close()
        return None

    def _heard(self) -> Assignment | None:
        heard = self.worker.assignment() if self.worker else None
        if heard is not None:
            group_key.record(heard.get("key"))
        return assignment_of(heard) if heard is not None and heard["state"] == "run" else None

    def _same(self, assignment: Assignment) -> Assignment:
        """The same generation with all that is known of it by now."""
        heard = self._heard()
        return heard if heard is not None and heard.generation == assignment.generation else assignment

    def _is_overtaken(self, assignment: Assignment, patience_s: float = 0.0) -> bool:
        """Whether a later generation is heard of, within so long."""
        deadline = time.monotonic() + patience_s
        while True:
            heard = self._heard()
            if heard is not None and heard.generation > assignment.generation:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_GLANCE_S)

    def _apply_before_training(self) -> None:
        if self.wish() != 0 or self.is_terminated:
            leave(STOPPED)

    # While it trains

    def prepare(self, later: Assignment) -> None:
        """Tells where newcomers of a generation find this process, if it is to lead them. Those of earlier generations
        are sent away."""
        if self._listener is not None:
            self._listener.drop_all(lambda key: key[1] < later.generation)
        if later.rank_of(self.replica) == 0 and len(later.members) > 1 and self._told_generation < later.generation:
            assert self.worker is not None
            if later.is_given:
                assert later.endpoint is not None
                port = later.endpoint[1]
                try:
                    self._own_listener().listen(port)
                except OSError as error:
                    # The next generation has another port.
                    raise LostError(f"cannot listen on port {port}: {error}") from error
            else:
                self.worker.publish_rendezvous(later.generation, self._own_listener().port)
            self._told_generation = later.generation

    def is_complete(self, later: Assignment, known: set[int]) -> bool:
        """Whether all newcomers of a generation have connected to this process, have promised to stay, and live."""
        if later.rank_of(self.replica) != 0:
            return False
        self.prepare(later)
        listener = self._own_listener()
        newcomers = [rank for rank, member in enumerate(later.members) if rank > 0 and member.replica not in known]
        keys = [("all", later.generation, rank, later.members[rank].replica) for rank in newcomers]
        for key in keys:
            found = listener.look(key)
            if found is None:
                self._asked.discard(key)
                self._promised.discard(key)
            elif found[0].is_broken():
                listener.drop(key)
        waiting = [(key, found) for key in keys if (found := listener.look(key)) is not None]
        if len(waiting) < len(keys):
            return False
        for key, (line, _) in waiting:
            try:
                if key not in self._asked:
                    line.send("ask")
                    self._asked.add(key)
                elif key not in self._promised and line.has_news():
                    line.receive()
                    self._promised.add(key)
            except LostError:
                listener.drop(key)
        return all(key in self._promised for key in keys)

    def shrink(self, group: Group, later: Assignment) -> Group | None:
        """Goes on without those who leave; `None` if this process is one of them."""
        known = {member.replica for member in group.members}
        stay = tuple(member for member in later.members if member.replica in known)
        group.close()
        rank = next((rank for rank, member in enumerate(stay) if member.replica == self.replica), None)
        if rank is None:
            return None
        if len(stay) == len(later.members):
            self.generation = later.generation
        return self._reform(later, "survivors", stay, rank)[0]

    def grow(self, group: Group, later: Assignment) -> tuple[Group, list[int]]:
        """Goes on with those who have come, with their ranks."""
        rank = later.rank_of(self.replica)
        assert rank is not None
        group.close()
        self.generation = later.generation
        return self._reform(later, "all", later.members, rank)

    def _reform(self, later: Assignment, stage: str, members: tuple[Member, ...], rank: int) -> tuple[Group, list[int]]:
        if len(members) == 1:
            return Group(0, members, {}, None), []
        line = None if rank == 0 else self._call(later, stage, rank, is_new=False)
        return self._form(later, stage, members, rank, line, _FORMING_S)

    def _form(
        self,
        assignment: Assignment,
        stage: str,
        members: tuple[Member, ...],
        rank: int,
        line: Line | None,
        patience_s: float,
        word: Any = None,
    ) -> tuple[Group, list[int]]:
        """Connects everybody with rank 0, and with its neighbours."""
        listener = self._own_listener()
        if rank == 0:
            found = [
                listener.take((stage, assignment.generation, idx, member.replica), patience_s)
                for idx, member in enumerate(members)
                if idx > 0
            ]
            lines = {idx: one for idx, (one, _) in enumerate(found, 1)}
            newcomers = [idx for idx, (_, said) in enumerate(found, 1) if said["is_new"]]
            word = [[self._host(), listener.port], *[said["ring"] for _, said in found]], newcomers
        else:
            assert line is not None
            lines = {0: line}
            if word is None:
                line.set_timeout(patience_s)
                word = line.receive()
        addresses, newcomers = word
        # From here on everybody answers at once. Who does not is dead, or stopped, and must not hold the others.
        for one in lines.values():
            one.set_timeout(_FORMING_S)
            if rank == 0:
                one.send(word)
        host, port = addresses[(rank + 1) % len(members)]
        key = (f"ring-{stage}", assignment.generation)
        following = call((host, port), [*key, rank, 0, None])
        preceding, _ = listener.take((*key, (rank - 1) % len(members), 0), _FORMING_S)
        group = Group(rank, members, lines, Ring(following, preceding))
        # All are there when all have said something.
        group.gather("has come", None)
        group.broadcast(None)
        for one in lines.values():
            one.set_timeout(TIMEOUT_S)
        return group, newcomers

    def _call(self, assignment: Assignment, stage: str, rank: int, is_new: bool) -> Line:
        """Goes to rank 0 of a generation and says who this is."""
        if assignment.endpoint is None:
            raise LostError(f"rank 0 of generation {assignment.generation} has not told where it is")
        said = {"ring": [self._host(), self._own_listener().port], "is_new": is_new}
        return call(assignment.endpoint, [stage, assignment.generation, rank, self.replica, said])

    def _call_off(self, assignment: Assignment) -> None:
        """Sends everybody away: a later generation counts."""
        self._own_listener().drop_all(lambda key: key[1] <= assignment.generation)

    def close(self) -> None:
        """This process is no part of the training any more."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _own_listener(self) -> JoinListener:
        if self._listener is None:
            host = self._host()
            self._listener = JoinListener((host if host in _LOOPBACK else "", 0))
        return self._listener

    def _host(self) -> str:
        """The host under which the others of its group reach it."""
        if self.worker is not None:
            return self.worker.host
        master = os.environ.get("MASTER_ADDR", "127.0.0.1")
        return master if master in _LOOPBACK else os.environ.get("POLLUX_HOST_ADDRESS", os.uname().nodename)


def leave(code: int) -> NoReturn:
    """Ends this process as the scheduler expects."""
    sys.exit(code)
