"""Rank 0's agent: what is learned from steps, and what follows for the next ones. The learning itself is Rust."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pollux import PolluxError
from pollux._elastic.assignment import DEFAULT_GPU_TYPE, Conditions
from pollux._elastic.brain import Limits, Times
from pollux._native import Agent

from ._deal import Deal, Tuning
from ._errors import say
from ._metrics_writer import MetricsWriter
from ._terms import Row, Terms

if TYPE_CHECKING:
    from ._membership import Membership
    from ._state import Position

CHECK_PERIOD_S = 0.5
"""Check-ins are this far apart, unless steps are longer."""
EAGER_CHECKS = 12
"""So many steps after a change are followed by a check-in each."""
UNKNOWN_CHECK_EVERY = 64
"""So many steps apart at most until the noise is known: a batch cannot grow before, however short the steps are."""
MEASURE_SHARE = 0.002
"""What measuring gradients may cost of a step."""
MEASURE_EVERY_MAX = 64
REPORT_PERIOD_S = 2.0
RETUNE_PERIOD_S = 0.5
THINKING_SHARE = 0.01
"""What fits may cost of the training."""
BAD_CHECKS_MAX = 3
BAD_CHECKS_SCALED_MAX = 50
"""A gradient scaler finds its scale by way of gradients that are not finite."""


@dataclass(frozen=True)
class BrainSettings:
    """What the user says of the training."""

    limits: Limits
    scaling: str | Callable[[Any], float]
    warmup_epochs: float
    epoch_samples: int | None


class Brain:
    """An agent, with how often to look and how often to speak."""

    def __init__(self, settings: BrainSettings, state: str | None):
        self._settings = settings
        self._native = Agent(
            **vars(settings.limits),
            scaling=settings.scaling,
            warmup_epochs=settings.warmup_epochs,
            epoch_samples=settings.epoch_samples,
            state=state,
            # Some of its steps run in halves, so noise is known without accumulation, too.
            lone_replica="whole",
        )
        self._uncounted = 0
        """Steps that the agent has not heard of yet."""
        if self._agent.relearns:
            say("what was learned of batches and speeds is of another version, and is learned anew")
        self._gpu_type = DEFAULT_GPU_TYPE
        self._shares_gpus = False
        self._eager = EAGER_CHECKS
        self._step_s = 0.0
        self._measured = 0
        self._bad_checks = 0
        self._rate_samples = 0
        self._rate_s = 0.0
        self._samples_per_s: float | None = None
        self._retune_at = 0.0
        self._report_at = 0.0

    @property
    def _agent(self) -> Agent:
        """With all steps counted. To tell it of each step would take longer than all of them together."""
        if self._uncounted:
            self._native.advance(self._uncounted)
            self._uncounted = 0
        return self._native

    def end_data(self, epoch_samples: int) -> None:
        """An epoch of a stream is over, which tells how many samples it has."""
        self._agent.bound_batch_size(self._settings.limits.within(epoch_samples).max_batch_size)

    def state(self) -> str:
        """All it has learned."""
        return self._agent.state()

    def resize(self, nodes: int, replicas: int, terms: Terms, conditions: Conditions) -> Terms:
        """The terms for a new group."""
        self._gpu_type = conditions.gpu_type
        self._apply(conditions)
        self._eager, self._step_s = EAGER_CHECKS, 0.0
        self._rate_samples, self._rate_s, self._samples_per_s = 0, 0.0, None
        try:
            tuning = Tuning(*self._agent.resize(nodes, replicas, self._gpu_type))
        except PolluxError:
            # No batch within the bounds can be split over so many: the smallest that can is a little larger.
            tuning = self._settings.limits.nearest(replicas)
            self._agent.run_fixed(nodes, replicas, tuning.local_batch, tuning.accumulation_steps, self._gpu_type)
        return self._complete(replace(terms, tuning=tuning, check_every=1, measure_every=1))

    def count(self) -> None:
        """A step is done."""
        self._uncounted += 1

    def time(self, step: Deal, times: Times, is_typical: bool, nodes: int) -> None:
        """What a step took; a typical one is as large, and in as many pieces, as all are meant to be."""
        if is_typical:
            if not self._shares_gpus:
                self._observe(step, times, nodes)
            self._step_s = times.total_s if self._step_s == 0.0 else 0.9 * self._step_s + 0.1 * times.total_s
        self._rate_samples += step.samples
        self._rate_s += times.total_s

    def _observe(self, step: Deal, times: Times, nodes: int) -> None:
        accumulation_steps = step.micro_batches - 1
        local_batch = step.samples // (step.world_size * step.micro_batches)
        compute_s = times.compute_s / step.micro_batches
        try:
            self._agent.observe_step(
                nodes, step.world_size, local_batch, accumulation_steps, compute_s, times.sync_s, self._gpu_type
            )
        except ValueError:
            pass  # A time that no step can have, of a clock that jumped, teaches nothing.

    def _apply(self, conditions: Conditions) -> None:
        self._agent.set_batch_mode(conditions.adapts_batch, conditions.batch_size)
        self._shares_gpus = conditions.shares_gpus

    def learn(self, rows: list[Row], mean_sqr: Sequence[float], passed: int, terms: Terms) -> None:
        """Takes in what the ranks have measured since the last check-in, for all steps that have passed since."""
        steps = self._measured = rows[0].steps
        # Where a process had no share in a step, the mean is not that of all.
        if steps == 0 or not all(row.is_whole for row in rows):
            return
        replicas = len(rows)
        batch_size = terms.tuning.batch_size(replicas)
        # A process that is alone compares micro-batches with the step that they are a part of.
        parts = replicas if replicas > 1 else max(2, terms.tuning.accumulation_steps + 1)
        each = max(1, round(max(passed, steps) / len(mean_sqr)))
        for idx, mean in enumerate(mean_sqr):
            own_sqr = sum(row.own_sqr[idx] for row in rows) / replicas
            self._agent.observe_gradients(each, parts, batch_size, own_sqr, mean)
        is_bad = any(not math.isfinite(own_sqr) for row in rows for own_sqr in row.own_sqr)
        self._bad_checks = self._bad_checks + 1 if is_bad else 0
        if is_bad:
            self._eager = EAGER_CHECKS

    def has_diverged(self, scaled: bool) -> bool:
        """Whether gradients were not finite for too long."""
        return self._bad_checks >= (BAD_CHECKS_SCALED_MAX if scaled else BAD_CHECKS_MAX)

    def terms(self, terms: Terms, cost_s: float, ends_epoch: bool, conditions: Conditions) -> Terms:
        """How to go on until the next check-in."""
        self._apply(conditions)
        now = time.monotonic()
        chosen = None
        if ends_epoch or now >= self._retune_at:
            try:
                chosen = self._agent.end_epoch() if ends_epoch else self._agent.retune()
            except PolluxError:
                pass  # As above: it stays as it is.
            spent = time.monotonic() - now
            self._retune_at = now + max(RETUNE_PERIOD_S, spent / THINKING_SHARE)
        if chosen is not None and Tuning(*chosen) != terms.tuning:
            terms = replace(terms, tuning=Tuning(*chosen))
            self._eager, self._step_s = EAGER_CHECKS, 0.0
            self._rate_samples, self._rate_s = 0, 0.0
        self._eager = max(0, self._eager - 1)
        check_every = 1
        if self._eager == 0 and self._step_s > 0.0:
            check_every = max(1, round(CHECK_PERIOD_S / self._step_s))
            if self._agent.noise() is None:
                check_every = min(check_every, UNKNOWN_CHECK_EVERY)
        measure_every = terms.measure_every
        if self._measured > 0 and self._step_s > 0.0:
            wanted = math.ceil(cost_s / self._measured / (MEASURE_SHARE * self._step_s))
            measure_every = min(max(wanted, 1), MEASURE_EVERY_MAX)
        if self._eager > 0:
            measure_every = 1  # A batch grows on once it was measured.
        return self._complete(replace(terms, check_every=check_every, measure_every=measure_every))

    def report(self, membership: Membership, position: Position, writer: MetricsWriter, batch_size: int) -> None:
        """Lets the scheduler and the user's curves know, now and then."""
        now = time.monotonic()
        if now < self._report_at:
            return
        if self._rate_s > 0.0:
            self._samples_per_s = self._rate_samples / self._rate_s
            self._rate_samples, self._rate_s = 0, 0.0
        if membership.worker is not None:
            report = self._agent.report(position.samples, self._samples_per_s)
            membership.worker.report(membership.generation, report)
        spent = time.monotonic() - now
        self._report_at = now + max(REPORT_PERIOD_S, spent / THINKING_SHARE)
        if writer.is_wanted:
            writer.write(position.samples, {"batch_size": batch_size, **self.figures()})

    def noise(self) -> tuple[float, float] | None:
        """Squared norm and variance of a gradient of the user's batch, once they can be trusted."""
        return self._agent.noise()

    def figures(self) -> dict[str, float | None]:
        """What it knows, for people."""
        rate = self._samples_per_s
        efficiency = self._agent.efficiency()
        return {
            "learning_rate_factor": self._agent.learning_rate_factor(),
            "noise_scale": self._agent.noise_scale(),
            "efficiency": efficiency,
            "samples_per_s": rate,
            "goodput": rate * efficiency if rate is not None else None,
            "baseline_steps": self._agent.progress()["baseline_steps"],
        }

    def _complete(self, terms: Terms) -> Terms:
        return replace(
            terms,
            learning_rate_factor=self._agent.learning_rate_factor(),
            gain=self._agent.gain(),
            baseline_steps=self._agent.progress()["baseline_steps"],
        )
