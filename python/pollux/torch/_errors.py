"""What can go wrong, by what to do about it."""

from pollux import PolluxError


class UsageError(PolluxError):
    """The training script asks for something that cannot be."""


class CheckpointError(PolluxError):
    """A state cannot be saved, or what was saved cannot be used."""


class DivergedError(PolluxError):
    """The training no longer learns: its gradients are not numbers."""


class LostError(RuntimeError):
    """Another process of the group is gone."""
