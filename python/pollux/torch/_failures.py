"""Errors that a restart mends, told from those that only the user can mend."""

from __future__ import annotations

import enum
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from ._errors import LostError

if TYPE_CHECKING:
    from ._session import Session

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", "Timed out waiting")
_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class Failure(enum.Enum):
    """Whose fault an error is."""

    USER = "the user's"
    LOST = "another process is gone"
    MEMORY = "a step did not fit into memory"


def classify(error: BaseException, is_lost: bool) -> Failure:
    """What kind of failure an error is."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Failure.MEMORY
    if not isinstance(error, RuntimeError):
        return Failure.USER
    if any(words in text for words in _MEMORY):
        return Failure.MEMORY
    if is_lost or isinstance(error, LostError | torch.distributed.DistError) or any(words in text for words in _LOST):
        return Failure.LOST
    return Failure.USER


def guard_exit(session: Session) -> None:
    """From now on an uncaught error that a restart mends ends the process with the code that asks for one."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        code = session.fail(error)
        if code is None:
            before(kind, error, trace)
            return
        for stream in (sys.stdout, sys.__stderr__):
            if stream is not None:
                stream.flush()
        if session.can_run_again:
            os.execv(sys.executable, sys.orig_argv)
        # Whoever waits for this process to leave the group waits in vain.
        os._exit(code)

    sys.excepthook = hook
