"""Optimiser, gradient scaler and learning-rate schedules of the user, made to fit steps of any size."""

from __future__ import annotations

import functools
import math
import types
from typing import TYPE_CHECKING, Any

import torch

from ._errors import UsageError
from ._part import refuse_strangers, trained_by

if TYPE_CHECKING:
    from ._part import Part
    from ._session import Session


def adapt_optimizer(part: Part, session: Session) -> None:
    """A step happens once per batch, with the learning rate that the batch deserves."""
    optimizer = part.optimizer
    original = optimizer.step

    # With the marks that schedulers leave on it, which they look for later.
    @functools.wraps(original)
    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        if session.is_replaced:
            raise UsageError(
                "optimizer.step() of a training that ended when px.wrap was called again; for several models in one "
                "training call it once: px.wrap([model, other], [optimizer, other_optimizer])"
            )
        if not session.in_loop:
            raise UsageError(
                "optimizer.step() outside of a loop over px.DataLoader; step inside of `for batch in loader`"
            )
        if closure is not None:
            raise UsageError("optimizer.step() with a closure, which may run several backward passes; call it without")
        part.refuse_second_step()
        if not session.is_step_end:
            part.take()
            return None
        part.is_asked = True
        if part.is_skipped:
            part.skip()
            return None
        if not part.reader.is_pending:
            raise UsageError(part.why_no_gradients())
        part.reader.is_pending = False
        rates = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, rates):
            group["lr"] = rate * session.terms.learning_rate_factor
        session.is_updating = True
        result = original()
        session.is_updating = False
        session.has_stepped = True
        session.updates += 1
        part.accumulation.clear()
        part.accumulation.take()
        for group, rate in zip(self.param_groups, rates):
            group["lr"] = rate
        return result

    zero_grad = optimizer.zero_grad

    @functools.wraps(zero_grad)
    def clear(_self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        part.discard()
        zero_grad(*args, **kwargs)

    add_param_group = optimizer.add_param_group

    @functools.wraps(add_param_group)
    def add(_self: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        add_param_group(group)
        refuse_strangers(part.module, optimizer)
        if session.group is not None and not part.knows(trained_by(optimizer)):
            raise UsageError(
                "parameters that the model got while it trains: every process would begin with others; make them "
                "before the loop over epochs, and freeze them with requires_grad_(False) until they are to learn"
            )

    optimizer.add_param_group = types.MethodType(add, optimizer)  # type: ignore[method-assign]
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(clear, optimizer)  # type: ignore[method-assign]


def adapt_scaler(scaler: Any, session: Session) -> None:
    """Between micro-batches there is nothing to unscale, to step or to learn from."""
    for name in ("unscale_", "step", "update"):
        original = getattr(scaler, name)

        def call(_self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            meant = [part for part in session.parts if part.optimizer in args] if _name != "update" else []
            for part in meant:
                if session.is_step_end:
                    part.is_asked |= _name == "step"
                elif _name == "step":
                    part.take()
            if not session.is_step_end:
                return None
            if all(part.is_skipped for part in meant or session.parts):
                for part in meant:
                    part.skip()
                return None
            result = _original(*args, **kwargs)
            for part in meant if _name == "step" else ():
                part.reader.is_pending = False  # They are used, or their scale was too large.
            return result

        setattr(scaler, name, types.MethodType(call, scaler))


def loss_scale(scaler: Any, device: torch.device) -> torch.Tensor | None:
    """What losses are multiplied by. Asked for its number, a scaler would wait for the GPU."""
    return scaler.scale(torch.ones((), device=device)) if scaler else None


def refuse_unknown(optimizer: torch.optim.Optimizer, followed: list[Any]) -> None:
    """A scheduler that nobody told of would count micro-batches, and be anew in every process that joins. Schedulers
    mark the optimisers that they change; `followed` are those of the schedulers that are known."""
    is_marked = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if is_marked and not any(known is optimizer for known in followed):
        raise UsageError(
            "a learning-rate scheduler of the optimiser that px.wrap does not know: it would count micro-batches, and "
            "begin anew after a restart; make it before px.wrap and give scheduler=..."
        )


class RateWatch:
    """Sees a learning rate that is changed for every micro-batch, as if each were a step."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]):
        self._optimizers = optimizers
        self._changes = 0
        self._before: list[Any] = []

    def begin(self, idx: int) -> None:
        """The loop is about to get one of several micro-batches of a step."""
        self._changes = 0 if idx == 0 else self._changes
        self._before = self._rates()

    def end(self) -> None:
        """The loop is done with it."""
        self._changes += self._rates() != self._before
        # Once in a step is well: at its beginning, where it follows from the progress, or at its end.
        if self._changes > 1:
            raise UsageError(
                "a learning rate that changes between the micro-batches of a step; give the scheduler to px.wrap, let "
                "the rate follow px.status().baseline_steps, or change it only if px.is_step_end()"
            )

    def _rates(self) -> list[Any]:
        rates = [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
        # Reading a tensor would wait for the GPU.
        return [(id(rate), rate._version) if isinstance(rate, torch.Tensor) else rate for rate in rates]


class Schedule:
    """A learning-rate schedule. Called once per epoch it counts epochs, as ever; called for every batch it follows the
    training's progress, counted in steps of the batch size that the user asked for."""

    def __init__(self, scheduler: Any, session: Session):
        self._scheduler = scheduler
        self.optimizer = getattr(scheduler, "optimizer", None)
        self._done = 0
        self._original = original = scheduler.step

        def step(_self: Any, *args: Any, **kwargs: Any) -> None:
            if not session.in_loop:
                if not session.is_before_known_epoch:
                    original(*args, **kwargs)
                return
            if args or kwargs:
                # It is told what to follow, such as a loss.
                if session.is_step_end:
                    original(*args, **kwargs)
                return
            reached = math.floor(session.progress_after_step() + 1e-6)
            while self._done < reached:
                original()
                self._done += 1

        scheduler.step = types.MethodType(step, scheduler)
        # Methods that were put in the place of others are no state, and cannot be pickled.
        state_dict = scheduler.state_dict
        replaced = ("step", "state_dict")
        scheduler.state_dict = types.MethodType(
            lambda _: {name: value for name, value in state_dict().items() if name not in replaced}, scheduler
        )

    def state_dict(self) -> dict[str, Any]:
        """Of the schedule and of what it has followed so far."""
        return {"scheduler": self._scheduler.state_dict(), "done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up what `state_dict` gave."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._done = state["done"]
