"""The loop over epochs. After a restart it begins with the epoch that was at hand."""

from __future__ import annotations

from collections.abc import Iterator

from . import _training


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """Numbers of the epochs that are still to be trained, up to `epoch`. A `break` ends the epoch that it is in."""
    record = _training.record
    if current_epoch() is not None:
        raise RuntimeError("overlapping epoch loops detected; end one loop before the next")
    _training.begin()
    while record.finished_epochs < epoch:
        number = record.begin_epoch()
        try:
            yield number
        finally:
            record.has_left_epoch = True
        _training.settle()
    _training.finish()


def current_epoch() -> int | None:
    """The epoch at hand; `None` outside of a loop over epochs."""
    record = _training.record
    return None if record.has_left_epoch else record.current_epoch


def finished_epochs() -> int:
    """How many epochs are over."""
    record = _training.record
    return record.finished_epochs + record.has_left_epoch
