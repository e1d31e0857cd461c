"""Processes that meet before there is a model, for scripts that have a word with each other first."""

from __future__ import annotations

from ._device import device
from ._errors import UsageError
from ._group import refuse_foreign_group
from ._membership import Membership

_met: Membership | None = None


def meet_early() -> None:
    """Finds the others now; the next training of this process is with them."""
    global _met
    if _met is not None:
        raise UsageError("the processes of this training have met already; call it once, before px.wrap")
    _met = Membership()
    _met.device = device()
    _met.enter_early()


def claim() -> Membership:
    """For a training that begins: with those who were met, if any."""
    global _met
    met, _met = _met, None
    if met is None:
        refuse_foreign_group()
    return met or Membership()
