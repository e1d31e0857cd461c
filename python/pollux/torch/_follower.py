"""The other processes of a replica: the first one hears the scheduler and finds the other replicas, they go along."""

from __future__ import annotations

import datetime
import os
import time

import torch.distributed as dist

from pollux._elastic.assignment import Assignment
from pollux._elastic.scheduler_link import STOPPED

from ._errors import LostError
from ._formation import Formation, assignment_of_text
from ._group import Group, prefer_loopback
from ._membership import Membership, leave
from ._shards import Shards

_GLANCE_S = 0.02
_DOOR = datetime.timedelta(seconds=30)


class Follower(Membership):
    """The place of a process that is not the first of its replica."""

    def __init__(self, shards: Shards):
        super().__init__()
        self._first = shards
        self.replica = int(os.environ["POLLUX_REPLICA_ID"])

    def _listen(self) -> None:
        """The first one does."""

    def wish(self) -> int:
        """The first one knows what a signal is for."""
        return 0

    def enter(self) -> Group:
        """Goes where the first one has found the others."""
        while not self._first.has_word():
            if self.is_terminated:
                leave(STOPPED)
            time.sleep(_GLANCE_S)
        return self._go_along(is_new=True)

    def agreed(self, later: Assignment | None) -> Assignment:
        """The generation that all go over to, as the first one has heard of it."""
        return assignment_of_text(self._first.hear())

    def shrink(self, group: Group, later: Assignment) -> Group | None:
        """Goes on without those who leave; `None` if this replica is one of them."""
        group.close()
        return self._go_along(is_new=False) if later.rank_of(self.replica) is not None else None

    def grow(self, group: Group, later: Assignment) -> Group:
        """Goes on with those who have come."""
        group.close()
        return self._go_along(is_new=False)

    def _go_along(self, is_new: bool) -> Group:
        formation = Formation.of_text(self._first.hear())
        group = self._make(formation.rank, formation.members, _door(formation))
        self.generation = formation.generation
        group.introduce(formation.members[formation.rank], is_new)
        return group


def membership_of(shards: Shards | None) -> Membership:
    """The place of this process in its training."""
    is_follower = shards is not None and not shards.is_first and "POLLUX_JOB_ID" in os.environ
    return Follower(shards) if shards is not None and is_follower else Membership()


def _door(formation: Formation) -> dist.Store | None:
    if formation.endpoint is None:
        return None
    prefer_loopback(formation.endpoint[0])
    try:
        store = dist.TCPStore(*formation.endpoint, is_master=False, timeout=_DOOR)
    except RuntimeError as error:
        raise LostError(str(error)) from error
    return dist.PrefixStore(formation.prefix, store)
