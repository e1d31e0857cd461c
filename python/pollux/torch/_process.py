"""The training of this process: there is one at a time."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

import torch
from pollux._elastic.termination import watch_termination

from ._errors import UsageError
from ._failures import guard_exit
from ._group import Group
from ._session import Options, Session
from ._threads import settle

_current: Session | None = None


def current() -> Session:
    """The training of this process."""
    if _current is None:
        raise UsageError("px.wrap(model, optimizer) comes first")
    return _current


def joined_group() -> Group | None:
    """The group of this process's training, once it has begun."""
    return _current.group if _current is not None else None


def begin(models: Sequence[tuple[torch.nn.Module, torch.optim.Optimizer]], scaler: Any, options: Options) -> Session:
    """Another training is that of this process from now on."""
    global _current
    if _current is not None:
        if _current.in_loop:
            raise UsageError("px.wrap inside of a training loop; a process trains one model at a time")
        _current.close()
        _current.is_replaced = True
    _watch()
    _current = Session(models, scaler, options)
    return _current


@functools.cache
def _watch() -> None:
    """Once for all trainings of a process, so that those that are over are not kept for it."""
    watch_termination(lambda: _current)


def close() -> None:
    """The training of this process is over; the others have to leave, too."""
    if _current is not None:
        _current.close()


def _refuse_stranger(optimizer: torch.optim.Optimizer) -> None:
    """Called before a step of any optimiser there is."""
    session = _current
    if session is None or not session.in_loop or session.is_updating:
        return
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    if any(isinstance(parameter, torch.nn.Parameter) for parameter in parameters):
        raise UsageError(
            f"a step of {type(optimizer).__name__}, which px.wrap does not know: every process would train its "
            "parameters by itself; for several models in one training call px.wrap([model, other], [optimizer, "
            "other_optimizer])"
        )


guard_exit(lambda: _current)
# The last to be called: the others leave groups.
atexit.register(settle)
atexit.register(close)
register_optimizer_step_pre_hook(lambda optimizer, *_: _refuse_stranger(optimizer))
