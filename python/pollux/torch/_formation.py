"""What the first process of a replica tells those that share its model of the groups it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pollux._elastic.assignment import Assignment
from pollux._elastic.group import Member


@dataclass(frozen=True)
class Formation:
    """A group that forms now, and where."""

    generation: int
    rank: int
    members: tuple[Member, ...]
    endpoint: tuple[str, int] | None
    prefix: str

    def as_text(self) -> str:
        """For a store."""
        members = [[member.replica, member.local_rank] for member in self.members]
        return json.dumps([self.generation, self.rank, members, self.endpoint, self.prefix])

    @classmethod
    def of_text(cls, text: str) -> Formation:
        """From a store."""
        generation, rank, members, endpoint, prefix = json.loads(text)
        return cls(generation, rank, _members(members), tuple(endpoint) if endpoint else None, prefix)


def as_text(assignment: Assignment) -> str:
    """An assignment for a store."""
    members = [[member.replica, member.local_rank] for member in assignment.members]
    return json.dumps([assignment.generation, members])


def assignment_of_text(text: str) -> Assignment:
    """From a store; where its members meet is told with the formation."""
    generation, members = json.loads(text)
    return Assignment(generation, _members(members), None)


def _members(rows: list[list[int]]) -> tuple[Member, ...]:
    return tuple(Member(replica, local_rank) for replica, local_rank in rows)
