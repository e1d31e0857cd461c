"""What is known of the gradients' noise: a view of what the agent of rank 0 has measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import torch

from . import _training

if TYPE_CHECKING:
    from .parallel import AdaptiveDataParallel


class GradientNoiseScale:
    """Squared norm and variance of a gradient of `batch_size` samples; NaN until measured, and beyond rank 0."""

    def __init__(self, adp: AdaptiveDataParallel, optimizer: torch.optim.Optimizer, mp_scaler: Any = None):
        self.context: Any = None
        """What the agent knows while it asks a rule of the user's own."""

    def sqr_avg(self) -> float:
        """Squared norm of the gradient."""
        return self._noise()[0]

    def var_avg(self) -> float:
        """Variance of the gradient."""
        return self._noise()[1]

    @property
    def raw_sqr_avg(self) -> np.ndarray[Any, Any]:
        """As `sqr_avg`, for all groups of parameters together."""
        return np.array([self.sqr_avg()])

    @property
    def raw_var_avg(self) -> np.ndarray[Any, Any]:
        """As `var_avg`, for all groups of parameters together."""
        return np.array([self.var_avg()])

    def gain(self, scale: float) -> float:
        """Steps of `batch_size` samples that one of `scale` times as many is worth; 1 until it is measured."""
        sqr, var = self._noise()
        noisy = var / scale + sqr
        return (var + sqr) / noisy if math.isfinite(noisy) and noisy > 0 else 1.0

    def get_progress(self) -> float:
        """Steps of `batch_size` samples that the training is worth so far."""
        return _training.session().terms.baseline_steps

    def set_progress(self, progress: float) -> NoReturn:
        """Refused."""
        raise RuntimeError("set_progress(): progress is counted by Pollux, and saved with the training; leave it out")

    @property
    def accum_scale(self) -> float:
        """Samples of a batch over all processes, against `batch_size`."""
        terms, loader = _training.session().terms, _training.trained
        samples = terms.tuning.local_batch * _training.session().joined().world_size
        return samples / loader.batch_size if loader else 1.0

    @property
    def accum_count(self) -> int:
        """Batches of a step."""
        return _training.session().terms.tuning.accumulation_steps + 1

    @property
    def should_zero_grad(self) -> bool:
        """Whether the step at hand is over with this batch."""
        return _training.session().is_step_end

    def set_accum_scale(self, accum_scale: float) -> None:
        """Has no effect: it follows from the batch."""

    def reset_accumulation(self) -> None:
        """Has no effect: every step begins anew."""

    def _noise(self) -> tuple[float, float]:
        if self.context is not None:
            known = self.context.noise_sqr, self.context.noise_var
        else:
            brain = _training.session().brain if _training.model is not None else None
            known = (brain.noise() if brain else None) or (None, None)
        return tuple(math.nan if value is None else value for value in known)  # type: ignore[return-value]


class AdamGradientNoiseScale(GradientNoiseScale):
    """The same, of gradients as Adam divides them; which of both is measured follows from the optimiser."""
