"""Errors that a restart mends, told from those that only the user can mend."""

from __future__ import annotations

import enum
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from pollux._elastic.scheduler_link import RESTART

from ._checkpoint import MemoryBound
from ._errors import LostError, say
from ._group import TIMEOUT

if TYPE_CHECKING:
    from ._session import Session

_SILENT = "Timed out waiting"
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed", _SILENT)
_ADVICE = {
    "Default process group has not been initialized": "the process group is made by the first loop over px.epochs or "
    "px.steps: leave DistributedSampler out, px.DataLoader takes its place, and ask px.rank() and px.world_size()",
    "No inf checks were recorded for this optimizer": "a gradient scaler that px.wrap does not know finds no gradients "
    "between the micro-batches of a step; give scaler=... to px.wrap",
}
_NO_GRADIENTS = (
    "between the micro-batches of a step parameters have no gradients (grad is None); look at them if px.is_step_end()"
)
"""What to add to messages of PyTorch that lead elsewhere."""
_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class Failure(enum.Enum):
    """Whose fault an error is."""

    USER = "the user's"
    LOST = "another process is gone"
    MEMORY = "a step did not fit into memory"


def classify(error: BaseException, session: Session) -> Failure:
    """What kind of failure an error is."""
    text, group = str(error), session.group
    has_no_memory = isinstance(error, RuntimeError) and any(words in text for words in _MEMORY)
    if has_no_memory or isinstance(error, torch.OutOfMemoryError | MemoryError):
        # What an evaluation needs is the user's own affair: smaller steps do not mend it.
        return Failure.MEMORY if session.is_training else Failure.USER
    if not isinstance(error, RuntimeError):
        return Failure.USER
    is_lost = any(part.reader.is_syncing for part in session.parts)
    if is_lost or isinstance(error, LostError | torch.distributed.DistError):
        return Failure.LOST
    # A process that is alone has nobody to lose, but files and databases speak of peers, too.
    is_alone = group is not None and group.processes == 1
    if not is_alone and any(words in text for words in _LOST):
        return Failure.LOST
    return Failure.USER


def guard_exit(current: Callable[[], Session | None]) -> None:
    """From now on an uncaught error that a restart mends ends the process with the code that asks for one."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        session = current()
        failure = classify(error, session) if session is not None else Failure.USER
        code = _code(session, failure, error) if session is not None else None
        if session is None or code is None:
            before(kind, error, trace)
            for words, advice in _ADVICE.items():
                if words in str(error):
                    say(advice)
            if session is not None and _is_without_gradients(error, session):
                say(_NO_GRADIENTS)
            return
        for stream in (sys.stdout, sys.__stderr__):
            if stream is not None:
                stream.flush()
        if failure is Failure.MEMORY and _can_run_again(session):
            _end_children()
            os.execv(sys.executable, sys.orig_argv)
        # Whoever waits for this process to leave the group waits in vain.
        os._exit(code)

    sys.excepthook = hook


def _is_without_gradients(error: BaseException, session: Session) -> bool:
    """Whether the loop has looked for gradients that are not there yet."""
    return not session.is_step_end and isinstance(error, AttributeError | TypeError) and "NoneType" in str(error)


def _code(session: Session, failure: Failure, error: BaseException) -> int | None:
    """What to exit with after an error that a restart mends; `None` if it is the user's."""
    if failure is Failure.USER or (failure is Failure.MEMORY and not _lower_bound(session)):
        return None
    group = session.group
    if failure is Failure.LOST:
        what = str(error).splitlines()[0][:120]
        if _SILENT in what:
            say(
                f"no word from another process for {TIMEOUT.total_seconds():.0f} s ({what}); it hangs, or not every "
                "process calls what all have to call together, such as Mean.compute() or a barrier: call that on every "
                "rank, not only on rank 0"
            )
        else:
            say(f"another process is gone ({what})")
        has_arrived = all(part.reader.has_arrived() for part in session.parts)
        # Before anything reads parameters: a GPU may wait for ever for what the other was to send.
        if group is not None:
            group.abort()
        if not has_arrived:
            say("the last step was not finished everywhere; the checkpoint before counts")
            return RESTART
    # A step is done or it is not: what rank 0 has is the state after the last whole one.
    if group is not None and group.rank == 0 and not (session.is_updating or session.has_left):
        try:
            session.leave_step()
            if session.archive.can_save_apart():
                session.archive.save()
        except Exception as trouble:
            say(f"cannot save: {trouble}; the checkpoint before counts")
    return RESTART


def _lower_bound(session: Session) -> bool:
    """Has the next processes run smaller batches; false if they cannot, or would not know."""
    shards = session.group.shards if session.group is not None else 1
    folder, failed = session.archive.folder, -(-session.terms.tuning.local_batch // shards)
    bound = failed * 3 // 4
    if folder is None or session.loader is None or bound < session.loader.limits.local_batch_min:
        return False
    try:
        MemoryBound(folder).write(bound)
    except OSError as error:
        say(f"cannot write into {folder}: {error}")
        return False
    say(f"out of memory with {failed} samples on a GPU; going on with at most {bound}")
    return True


def _end_children() -> None:
    """Workers of data loaders end with their parent; they would take the next program for it."""
    # Data loaders raise an error when one of their workers ends.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def _can_run_again(session: Session) -> bool:
    """Whether this process may start its own script once more: nobody else would, and there is a checkpoint."""
    alone = session.membership.worker is None and session.group is not None and session.group.processes == 1
    return alone and session.archive.is_open and "TORCHELASTIC_RUN_ID" not in os.environ
