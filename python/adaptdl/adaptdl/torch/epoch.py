"""The loop over epochs. After a restart it begins with the epoch that was at hand."""

from __future__ import annotations

from collections.abc import Iterator

from . import _training
from .accumulator import forget_finished


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """Numbers of the epochs that are still to be trained, up to `epoch`. A `break` ends the epoch that it is in."""
    record = _training.record
    if record.current_epoch is not None:
        raise RuntimeError("overlapping epoch loops detected; end one loop before the next")
    _training.begin()
    while record.finished_epochs < epoch:
        is_over = True
        try:
            yield record.begin_epoch()
        except Exception:
            is_over = False
            raise
        finally:
            if is_over:
                forget_finished(record.current_epoch)
                record.end_epoch()
    _training.finish()


def current_epoch() -> int | None:
    """The epoch at hand; `None` outside of a loop over epochs."""
    return _training.record.current_epoch


def finished_epochs() -> int:
    """How many epochs are over."""
    return _training.record.finished_epochs
