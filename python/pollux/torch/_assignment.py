"""The group that a process of a job was started for."""

from __future__ import annotations

import os

from pollux._elastic.assignment import Assignment, assignment_of
from pollux._elastic.group import Member
from pollux._native import Worker

from ._errors import UsageError


def started_for(worker: Worker) -> Assignment:
    """The group that the environment tells of."""
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]
    if missing:
        raise UsageError(f"{missing[0]} is not set, but POLLUX_JOB_ID is; expected both or neither")
    heard = worker.assignment()
    if heard is not None and heard["generation"] == worker.generation and heard["state"] == "run":
        return assignment_of(heard)
    # The scheduler is further: this group will not meet any more, only ranks are known of it.
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local, local_size = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    members = [Member(-1 - idx, (local + idx - rank) % local_size) for idx in range(world_size)]
    members[rank] = Member(worker.replica, local)
    return Assignment(worker.generation, tuple(members), None)
