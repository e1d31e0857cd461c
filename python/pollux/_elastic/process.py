"""The training of this process: there is one at a time. What an error that nobody catches means for it is told here."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from .errors import LostError, UsageError, say
from .scheduler_link import RESTART
from .termination import watch_termination

if TYPE_CHECKING:
    from .session import Session

_current: Session | None = None


def make_way() -> None:
    """Another training is about to be that of this process. The flag that check-ins read is set by a handler in Rust,
    which must be installed behind the one that is installed here."""
    global _current
    if _current is not None and _current.in_epochs:
        raise UsageError("a second training while one is in its loop; a process trains one model at a time")
    if _current is not None:
        _current.close()
    _current = None
    _watch()


def begin(session: Session) -> None:
    """This training is that of this process from now on."""
    global _current
    _current = session


@functools.cache
def _watch() -> None:
    """Once for all trainings of a process."""
    watch_termination(lambda: _current)
    atexit.register(_close)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_lost = isinstance(error, LostError)
        if is_lost:
            say(f"another process is gone ({error})")
        else:
            before(kind, error, trace)
        # The loops are left already, and have saved unless they were between two steps.
        if _current is not None:
            try:
                _current.save_after_loss() if is_lost else _current.break_off()
            except Exception as trouble:
                say(f"cannot save: {trouble}; the checkpoint before counts")
        if is_lost:
            sys.stdout.flush()
            # Whatever a framework does at its end may wait for those who are gone.
            os._exit(RESTART)

    sys.excepthook = hook


def _close() -> None:
    if _current is not None:
        _current.close()
