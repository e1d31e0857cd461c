"""What the scheduler says of a training: who belongs to it, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass

from pollux import _native as native

from .group import Member
from .line import Address

DEFAULT_GPU_TYPE = "gpu"
"""What GPUs are called where nobody names them."""


@dataclass(frozen=True)
class Conditions:
    """What the scheduler says of a training, besides who belongs to it."""

    gpu_type: str = DEFAULT_GPU_TYPE
    adapts_batch: bool = True
    batch_size: int | None = None
    """The user's batch, if it is kept and the user named one; otherwise the baseline is."""
    shares_gpus: bool = False
    """Whether another job runs on the same GPUs: steps then tell nothing of what those could do."""


@dataclass(frozen=True)
class Assignment:
    """A generation of the group, in order of rank."""

    generation: int
    members: tuple[Member, ...]
    endpoint: Address | None
    """Where rank 0 waits, once it has told."""
    is_given: bool = False
    """Whether the scheduler is of version 0.1, which finds a port by itself."""

    def rank_of(self, replica: int) -> int | None:
        """The place of a process, if it has one."""
        return next((rank for rank, member in enumerate(self.members) if member.replica == replica), None)


def assignment_of(heard: native.Assignment) -> Assignment:
    """As the worker heard it."""
    members = tuple(Member(item["replica"], item["local_rank"]) for item in heard["replicas"])
    if "rendezvous" not in heard:
        return Assignment(heard["generation"], members, (heard["master_address"], heard["master_port"]), is_given=True)
    place = heard["rendezvous"]
    return Assignment(heard["generation"], members, (place["address"], place["port"]) if place else None)
