"""The scheduler of the self-test, which says what a test wants when it wants."""

from pollux.torch.selftest._director import Director

__all__ = ["Director"]
