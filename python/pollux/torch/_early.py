"""Processes that meet before there is a model, for scripts that have a word with each other first."""

from __future__ import annotations

from ._device import device
from ._errors import UsageError
from ._follower import membership_of
from ._group import refuse_foreign_group
from ._membership import Membership
from ._shards import current_shards

_met: Membership | None = None


def meet_early() -> None:
    """Finds the others now; the next training of this process is with them."""
    global _met
    if _met is not None:
        raise UsageError("the processes of this training have met already; call it once, before px.wrap")
    if current_shards() is not None:
        raise UsageError(
            "px.shard_mesh() with a framework's own loop, where parameters are replicated; expected a loop over "
            "px.DataLoader"
        )
    _met = Membership()
    _met.device = device()
    _met.enter_early()


def claim() -> Membership:
    """For a training that begins: with those who were met, if any."""
    global _met
    met, _met = _met, None
    shards = current_shards()
    if met is None:
        refuse_foreign_group(shards.world if shards is not None else None)
    return met or membership_of(shards)
