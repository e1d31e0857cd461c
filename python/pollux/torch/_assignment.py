"""What the scheduler says of a training: who belongs to it, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass

from pollux._elastic import assignment
from pollux._elastic.assignment import DEFAULT_GPU_TYPE, Conditions

__all__ = ["DEFAULT_GPU_TYPE", "Assignment", "Conditions"]


@dataclass(frozen=True)
class Assignment(assignment.Assignment):
    """A generation of the group, in order of rank."""

    is_given: bool = False
    """Whether the scheduler is of version 0.1, which finds a port by itself."""
