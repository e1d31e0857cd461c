"""Rank 0's agent: what is learned from steps, and what follows for the next ones. The learning itself is Rust."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pollux import PolluxError
from pollux._native import Agent

from .assignment import Conditions
from .deal import Deal, Tuning
from .errors import UsageError, say
from .membership import Membership
from .state import Position
from .terms import Row, Terms

CHECK_PERIOD_S = 0.5
"""Check-ins are this far apart, unless steps are longer."""
CHECK_EVERY_MAX = 64
"""And so many steps at most, however short they are."""
EAGER_CHECKS = 12
"""So many steps after a change are followed by a check-in each."""
MEASURE_SHARE = 0.005
"""What measuring gradients may cost of a step."""
MEASURE_EVERY_MAX = 64
REPORT_PERIOD_S = 2.0
RETUNE_PERIOD_S = 0.5
THINKING_SHARE = 0.01
"""What fits may cost of the training."""
COMPILING_SHARE = 0.05
"""What compiling steps of another size may cost of the training."""
BAD_CHECKS_MAX = 3

RULES = ("adascale", "adamscale", "linear", "sqrt", "legw")


@dataclass(frozen=True)
class Times:
    """Of one step."""

    compute_s: float
    """All of it but the wait."""
    sync_s: float
    """From the last gradient of this rank to the mean of all."""

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.sync_s


@dataclass(frozen=True)
class Limits:
    """Bounds of the batch."""

    batch_size: int
    max_batch_size: int
    local_batch_min: int
    local_batch_max: int

    @classmethod
    def checked(
        cls, batch_size: int, max_batch_size: int | None, per_gpu: tuple[int, int] | None, samples: int
    ) -> Limits:
        """As the user gave them, for an epoch of so many samples. An epoch has two steps at least: the last one may be
        of any size, so that a single one could never be measured."""
        if not (per_gpu is None or (isinstance(per_gpu, tuple | list) and len(per_gpu) == 2)):
            raise UsageError(f"per_gpu {per_gpu!r}; expected (smallest, largest)")
        most = batch_size if max_batch_size is None else max_batch_size
        low, high = (1, batch_size) if per_gpu is None else per_gpu
        for name, value in (("batch_size", batch_size), ("max_batch_size", most), ("per_gpu", low), ("per_gpu", high)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r}; expected whole numbers from 1")
        if most < batch_size:
            raise UsageError(f"max_batch_size {most} is below batch_size {batch_size}")
        if not low <= min(high, most):
            raise UsageError(f"per_gpu ({low}, {high}); expected (smallest, largest), from 1 to max_batch_size {most}")
        bound = min(most, max(batch_size, samples // 2))
        if low > bound:
            raise UsageError(f"per_gpu ({low}, {high}) begins above {bound}, which is half of the {samples} samples")
        return cls(batch_size, bound, low, high)

    def within(self, epoch_samples: int) -> Limits:
        """For an epoch of so many samples, which is two steps at least: the last one may be of any size, so that a
        single one could never be measured."""
        most = max(self.batch_size, epoch_samples // 2)
        return replace(self, max_batch_size=min(self.max_batch_size, most))

    def of_shards(self, shards: int) -> Limits:
        """For so many GPUs that share one copy of the model and have a batch between them."""
        low, high = self.local_batch_min * shards, self.local_batch_max * shards
        if low > self.max_batch_size:
            raise UsageError(
                f"per_gpu begins at {self.local_batch_min}, which is {low} for the {shards} GPUs of one copy of the "
                f"model; expected up to {self.max_batch_size}, the largest batch"
            )
        return replace(self, local_batch_min=low, local_batch_max=high)

    def nearest(self, replicas: int) -> Tuning:
        """The user's batch over so many, rounded up."""
        share = -(-self.batch_size // replicas)
        micro_batches = -(-share // self.local_batch_max)
        return Tuning(max(self.local_batch_min, -(-share // micro_batches)), micro_batches - 1)


class Brain:
    """An agent, with how often to look and how often to speak."""

    def __init__(
        self,
        limits: Limits,
        scaling: str | Callable[[Any], float],
        warmup_epochs: float,
        epoch_samples: int,
        state: str | None,
    ):
        self._limits = limits
        self._agent = Agent(
            **vars(limits),
            scaling=scaling,
            warmup_epochs=warmup_epochs,
            epoch_samples=epoch_samples,
            state=state,
            # Some of its steps run in halves, so noise is known without accumulation, too.
            lone_replica="whole",
        )
        if self._agent.relearns:
            say("what was learned of batches and speeds is of another version, and is learned anew")
        self._conditions = Conditions()
        self._forget()
        self._bad_checks = 0
        self._retune_at = 0.0
        self._report_at = 0.0

    def _forget(self) -> None:
        """Steps are others from now on."""
        self._eager = EAGER_CHECKS
        self._step_s = 0.0
        self._compile_s = 0.0
        self._rate_samples, self._rate_s = 0, 0.0
        self._samples_per_s: float | None = None

    def state(self) -> str:
        """All it has learned."""
        return self._agent.state()

    def resize(self, nodes: int, replicas: int, terms: Terms, conditions: Conditions) -> Terms:
        """The terms for a new group."""
        self._apply(conditions)
        self._forget()
        try:
            tuning = Tuning(*self._agent.resize(nodes, replicas, conditions.gpu_type))
        except PolluxError:
            # No batch within the bounds can be split over so many: the smallest that can is a little larger.
            tuning = self._limits.nearest(replicas)
            self._agent.run_fixed(nodes, replicas, tuning.local_batch, tuning.accumulation_steps, conditions.gpu_type)
        return self._complete(replace(terms, tuning=tuning, check_every=1, measure_every=1))

    def _apply(self, conditions: Conditions) -> None:
        self._agent.set_batch_mode(conditions.adapts_batch, conditions.batch_size)
        self._conditions = conditions

    def count(self, step: Deal, times: Times, is_typical: bool, is_first: bool, nodes: int) -> None:
        """A step is done; a typical one is as large, and in as many pieces, as all are meant to be. The first one of
        its size is longer by what was compiled for it."""
        if is_first:
            self._compile_s += times.total_s
        elif is_typical:
            if not self._conditions.shares_gpus:
                self._observe(step, times, nodes)
            self._step_s = times.total_s if self._step_s == 0.0 else 0.9 * self._step_s + 0.1 * times.total_s
        if not is_first:
            self._rate_samples += step.samples
            self._rate_s += times.total_s
        self._agent.advance(1)

    def _observe(self, step: Deal, times: Times, nodes: int) -> None:
        local_batch = step.samples // (step.world_size * step.micro_batches)
        compute_s = times.compute_s / step.micro_batches
        gpu_type = self._conditions.gpu_type
        try:
            self._agent.observe_step(
                nodes, step.world_size, local_batch, step.micro_batches - 1, compute_s, times.sync_s, gpu_type
            )
        except PolluxError:
            pass  # A time that no step can have, of a clock that jumped, teaches nothing.

    def learn(self, rows: Sequence[Row], mean_sqr: Sequence[float], passed: int, terms: Terms) -> None:
        """Takes in what the ranks have measured since the last check-in, for all steps that have passed since."""
        replicas, measured = len(rows), len(mean_sqr)
        batch_size = terms.tuning.batch_size(replicas)
        # A process that is alone compares micro-batches with the step that they are a part of.
        parts = replicas if replicas > 1 else max(2, terms.tuning.accumulation_steps + 1)
        is_bad = False
        for idx, mean in enumerate(mean_sqr):
            own_sqr = sum(row.own_sqr[idx] for row in rows) / replicas
            self._agent.observe_gradients(max(1, round(passed / measured)), parts, batch_size, own_sqr, mean)
            is_bad |= not math.isfinite(own_sqr)
        if measured:
            self._bad_checks = self._bad_checks + 1 if is_bad else 0
        if is_bad:
            self._eager = EAGER_CHECKS

    def has_diverged(self) -> bool:
        """Whether gradients were not finite for too long."""
        return self._bad_checks >= BAD_CHECKS_MAX

    def terms(self, terms: Terms, cost_s: float, measured: int, ends_epoch: bool, conditions: Conditions) -> Terms:
        """How to go on until the next check-in, where measuring so many steps has cost so much."""
        self._apply(conditions)
        now = time.monotonic()
        chosen = None
        if now >= self._retune_at or ends_epoch:
            try:
                chosen = self._agent.end_epoch() if ends_epoch else self._agent.retune()
            except PolluxError:
                pass  # No batch within the bounds fits: it stays as it is.
            spent = time.monotonic() - now
            self._retune_at = now + max(RETUNE_PERIOD_S, spent / THINKING_SHARE)
        if chosen is not None and Tuning(*chosen) != terms.tuning:
            self._forget()
            terms = replace(terms, tuning=Tuning(*chosen))
        elif self._compile_s > 0.0:
            self._retune_at = max(self._retune_at, now + self._compile_s / COMPILING_SHARE)
            self._compile_s = 0.0
        self._eager = max(0, self._eager - 1)
        check_every, measure_every = 1, 1
        if self._eager == 0 and self._step_s > 0.0:
            check_every = min(max(1, round(CHECK_PERIOD_S / self._step_s)), CHECK_EVERY_MAX)
            measure_every = terms.measure_every
            if measured > 0:
                wanted = math.ceil(cost_s / measured / (MEASURE_SHARE * self._step_s))
                measure_every = min(max(wanted, 1), MEASURE_EVERY_MAX)
        return self._complete(replace(terms, check_every=check_every, measure_every=measure_every))

    def report(self, membership: Membership, position: Position) -> None:
        """Lets the scheduler know, now and then."""
        now = time.monotonic()
        if now < self._report_at:
            return
        if self._rate_s > 0.0:
            self._samples_per_s = self._rate_samples / self._rate_s
            self._rate_samples, self._rate_s = 0, 0.0
        if membership.worker is not None:
            membership.worker.report(membership.generation, self._agent.report(position.samples, self._samples_per_s))
        spent = time.monotonic() - now
        self._report_at = now + max(REPORT_PERIOD_S, spent / THINKING_SHARE)

    def noise(self) -> tuple[float, float] | None:
        """Squared norm and variance of a gradient of the user's batch, once they can be trusted."""
        return self._agent.noise()

    def figures(self) -> dict[str, float | None]:
        """What it knows, for people."""
        return {
            "noise_scale": self._agent.noise_scale(),
            "efficiency": self._agent.efficiency(),
            "samples_per_s": self._samples_per_s,
        }

    def _complete(self, terms: Terms) -> Terms:
        return replace(
            terms,
            learning_rate_factor=self._agent.learning_rate_factor(),
            gain=self._agent.gain(),
            baseline_steps=self._agent.progress()["baseline_steps"],
        )


def checked_rule(scaling: str | Callable[[Any], float]) -> str | Callable[[Any], float]:
    """How the learning rate follows the batch, as the user gave it."""
    if isinstance(scaling, str) and scaling not in RULES:
        raise UsageError(f"scaling {scaling!r}; expected {', '.join(RULES)} and functions")
    return scaling
