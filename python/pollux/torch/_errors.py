"""What can go wrong, by what to do about it, and how the user is told."""

from pollux._elastic.errors import CheckpointError, DivergedError, LostError, UsageError, say

__all__ = ["CheckpointError", "DivergedError", "LostError", "UsageError", "say"]
