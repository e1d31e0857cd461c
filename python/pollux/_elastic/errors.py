"""What can go wrong, by what to do about it, and how the user is told."""

import sys

from pollux import PolluxError


class UsageError(PolluxError):
    """The training script asks for something that cannot be."""


class CheckpointError(PolluxError):
    """A state cannot be saved, or what was saved cannot be used."""


class DivergedError(PolluxError):
    """The training no longer learns: its gradients are not numbers."""


class LostError(RuntimeError):
    """Another process of the group is gone."""


def say(text: str) -> None:
    """Tells the user. PyTorch puts another stream in the place of sys.stderr while it tells of errors."""
    print(f"pollux: {text}", file=sys.__stderr__)
