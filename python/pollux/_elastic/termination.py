"""`SIGTERM` outside of the loops. Within them it waits for the next check-in; before, between and after them nobody
checks in, so the process is ended from here."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from .errors import say
from .scheduler_link import STOPPED

_GLANCE_S = 0.2
_PATIENCE_S = 8.0
"""How long the script may be deaf outside of the loops, in a computation or a call that waits for others."""


class Asked(Protocol):
    """Who may have been asked to end."""

    @property
    def is_terminated(self) -> bool:
        """Whether this process was."""


class Session(Protocol):
    """A training, as far as its end goes."""

    @property
    def membership(self) -> Asked:
        """Who hears of it."""

    @property
    def is_busy(self) -> bool:
        """Whether the end of the process waits for what is being done."""

    def apply_termination(self) -> None:
        """Ends the process, unless it is where it cannot. It may be called at any moment, and is called again."""


def watch_termination(current: Callable[[], Session | None]) -> None:
    """From now on `SIGTERM` ends a process that is not within the loops. The flag that check-ins read is set by a
    handler in Rust, which is installed later and calls this one, too."""
    watch = _Watch(current)
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, frame: watch.hear(number, frame, before))
        watch.can_interrupt = True
    threading.Thread(target=watch.run, name="pollux-termination", daemon=True).start()


class _Watch:
    def __init__(self, current: Callable[[], Session | None]):
        self._current = current
        self._pid = os.getpid()
        self._heard_at = time.monotonic()
        self._is_reminder = False
        self._deaf_since: float | None = None
        self.can_interrupt = False

    def hear(self, number: int, frame: Any, before: Any) -> None:
        """The signal's handler: Python runs it in the main thread, between two instructions."""
        if os.getpid() != self._pid:
            # A child that was forked: the signal is not for the training.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._heard_at = time.monotonic()
        if callable(before) and not self._is_reminder:
            before(number, frame)
        self._is_reminder = False
        session = self._current()
        if session is not None and session.membership.is_terminated:
            session.apply_termination()

    def run(self) -> None:
        """Looks again and again, and keeps no training that is over."""
        while True:
            time.sleep(_GLANCE_S)
            self._look()

    def _look(self) -> None:
        """Calls the handler again until the script is where it can end, or has been deaf for too long."""
        session, now = self._current(), time.monotonic()
        if session is None or session.is_busy or not session.membership.is_terminated:
            self._deaf_since = None
            return
        if self._deaf_since is None or self._heard_at > self._deaf_since:
            self._deaf_since = now
        if now - self._deaf_since > _PATIENCE_S:
            say(f"told to end, and the script has not listened for {_PATIENCE_S:.0f} s: ending it")
            os._exit(STOPPED)
        if self.can_interrupt:
            self._is_reminder = True
            _thread.interrupt_main(signal.SIGTERM)
