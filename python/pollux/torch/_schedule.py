"""Optimiser, gradient scaler and learning-rate schedules of the user, made to fit steps of any size."""

from __future__ import annotations

import functools
import math
import types
from typing import TYPE_CHECKING, Any

import torch

from ._errors import UsageError

if TYPE_CHECKING:
    from ._session import Session


def adapt_optimizer(optimizer: torch.optim.Optimizer, session: Session) -> None:
    """A step happens once per batch, with the learning rate that the batch deserves."""
    original = optimizer.step

    # With the marks that schedulers leave on it, which they look for later.
    @functools.wraps(original)
    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        if not session.in_loop:
            raise UsageError(
                "optimizer.step() outside of a loop over px.DataLoader; step inside of `for batch in loader`"
            )
        if closure is not None:
            raise UsageError("optimizer.step() with a closure, which may run several backward passes; call it without")
        if not session.accumulation.is_last:
            return None
        if not session.reader.is_pending:
            raise UsageError(
                "optimizer.step() without gradients of the wrapped model: other processes would not hear of them; call "
                "the model that px.wrap returned, and backward() once per batch"
            )
        session.reader.is_pending = False
        session.accumulation.complete()
        rates = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, rates):
            group["lr"] = rate * session.terms.learning_rate_factor
        session.is_updating = True
        result = original()
        session.is_updating = False
        session.has_stepped = True
        for group, rate in zip(self.param_groups, rates):
            group["lr"] = rate
        return result

    zero_grad = optimizer.zero_grad

    @functools.wraps(zero_grad)
    def clear(_self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        session.reader.is_pending = False
        zero_grad(*args, **kwargs)

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(clear, optimizer)  # type: ignore[method-assign]


def adapt_scaler(scaler: Any, session: Session) -> None:
    """Between micro-batches there is nothing to unscale, to step or to learn from."""
    for name in ("unscale_", "step", "update"):
        original = getattr(scaler, name)

        def call(_self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if not session.accumulation.is_last:
                return None
            session.accumulation.complete()
            return _original(*args, **kwargs)

        setattr(scaler, name, types.MethodType(call, scaler))


class Schedule:
    """A learning-rate schedule. Called once per epoch it counts epochs, as ever; called for every batch it follows the
    training's progress, counted in steps of the batch size that the user asked for."""

    def __init__(self, scheduler: Any, session: Session):
        self._scheduler = scheduler
        self._done = 0
        self._original = original = scheduler.step

        def step(_self: Any, *args: Any, **kwargs: Any) -> None:
            if not session.in_loop or args or kwargs:
                original(*args, **kwargs)
                return
            reached = math.floor(session.progress_after_step() + 1e-6)
            while self._done < reached:
                original()
                self._done += 1

        scheduler.step = types.MethodType(step, scheduler)

    def state_dict(self) -> dict[str, Any]:
        """Of the schedule and of what it has followed so far."""
        state = dict(self._scheduler.state_dict())
        state.pop("step", None)  # The method that was put in its place is no state.
        return {"scheduler": state, "done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up what `state_dict` gave."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._done = state["done"]
