"""How the learning rate follows the batch. Subclasses of the user's own say `scale_lr`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import torch

from .data import current_dataloader

if TYPE_CHECKING:
    from .parallel import AdaptiveDataParallel

__all__ = ["AdaScale", "AdamScale", "LEGWScale", "LinearScale", "ScalingRuleBase", "SqrtScale"]


class ScalingRuleBase:
    """A rule: `scale_lr(scale)` is what to multiply the learning rate by at `scale` times the batch."""

    def __init__(self) -> None:
        self.adp: AdaptiveDataParallel | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def initialize(
        self, adp: AdaptiveDataParallel, optimizer: torch.optim.Optimizer, patch_optimizer: bool = False
    ) -> None:
        """Called by AdaptiveDataParallel, which has made the optimiser follow the rule."""
        self.adp, self._optimizer = adp, optimizer

    def scale_lr(self, scale: float) -> Any:
        """For subclasses. Rank 0 asks for all."""
        raise NotImplementedError(f"{type(self).__name__}.scale_lr(scale)")

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """The optimiser's step."""
        return self._bound().step(*args, **kwargs)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The optimiser's."""
        self._bound().zero_grad(*args, **kwargs)

    def _bound(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            raise ValueError(f"{type(self).__name__} before it has a model; give it to AdaptiveDataParallel")
        return self._optimizer


class AdaScale(ScalingRuleBase):
    """By what a larger batch gains: for SGD."""

    def scale_lr(self, scale: float) -> Any:
        assert self.adp is not None
        return self.adp.gns.gain(scale)


class AdamScale(AdaScale):
    """By a power of what a larger batch gains: for Adam and its family."""

    def scale_lr(self, scale: float, power: float = 0.5) -> Any:
        return super().scale_lr(scale) ** power


class LinearScale(ScalingRuleBase):
    """As the batch."""

    def scale_lr(self, scale: float) -> Any:
        return scale


class SqrtScale(ScalingRuleBase):
    """As the root of the batch."""

    def scale_lr(self, scale: float) -> Any:
        return math.sqrt(scale)


class LEGWScale(ScalingRuleBase):
    """As the root of the batch, after a warm-up that is the longer the larger it is."""

    def __init__(self, base_warmup_epochs: float, data_size: int):
        super().__init__()
        self.base_warmup_epochs, self._data_size = base_warmup_epochs, data_size

    def scale_lr(self, scale: float) -> Any:
        loader = current_dataloader()
        assert self.adp is not None and loader is not None
        warmup = self.base_warmup_epochs * scale * self._data_size / loader.batch_size
        reached = self.adp.gns.get_progress() / warmup if warmup > 0 else 1.0
        return math.sqrt(scale) * min(1.0, reached)


_NATIVE = {AdaScale: "adascale", AdamScale: "adamscale", LinearScale: "linear", SqrtScale: "sqrt", LEGWScale: "legw"}


def scaling(rule: ScalingRuleBase) -> str | Callable[[Any], float]:
    """What `px.wrap` calls a rule."""
    if type(rule) in _NATIVE:
        return _NATIVE[type(rule)]

    def factor(context: Any) -> float:
        assert rule.adp is not None
        gns, before = rule.adp.gns, rule.adp.gns.context
        gns.context = context
        try:
            factors = np.unique(np.asarray(rule.scale_lr(context.scale), dtype=float))
        finally:
            gns.context = before
        if len(factors) != 1:
            raise ValueError(
                f"{type(rule).__name__}.scale_lr gave factors from {factors[0]} to {factors[-1]}; expected one for "
                "all groups of parameters"
            )
        return float(factors[0])

    return factor
