"""Goodput as a function of what a job runs on. The formulas are those of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pollux import _native


class PerfParams(NamedTuple):
    """What a step costs: overheads in seconds, slopes, and how far compute and network overlap."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


class GradParams(NamedTuple):
    """Squared norm and variance of a gradient at the initial batch."""

    sqr: float
    var: float


class GoodputFunction:
    """Throughput times statistical efficiency. Arguments may be numbers or arrays."""

    def __init__(self, perf_params: Sequence[float], grad_params: Sequence[float], init_batch_size: int):
        perf, (sqr, var) = PerfParams(*perf_params), grad_params
        self._init_batch_size = init_batch_size
        self._native = _native.Goodput(
            parameters=[float(value) for value in perf],
            noise_sqr=float(sqr),
            noise_var=float(var),
            batch_size=init_batch_size,
        )

    def __call__(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any:
        return self.evaluate(num_nodes, num_replicas, atomic_bsz, accum_steps)

    def evaluate(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any:
        """Goodput of a batch, which must not be below the initial one."""
        batch = np.multiply(np.multiply(num_replicas, atomic_bsz), np.add(accum_steps, 1))
        if np.any(batch < self._init_batch_size):
            raise ValueError(f"a batch of {np.min(batch)}; expected {self._init_batch_size} samples or more")
        return self.throughput(num_nodes, num_replicas, atomic_bsz, accum_steps) * self.efficiency(batch)

    def throughput(self, num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_steps: Any) -> Any:
        """Samples per second."""

        def one(nodes: int, replicas: int, local: float, steps: float) -> float:
            return replicas * local * (steps + 1) / self._native.step_s(int(nodes), int(replicas), local, steps)

        return np.vectorize(one, otypes=[float])(num_nodes, num_replicas, atomic_bsz, accum_steps)[()]

    def efficiency(self, batch_size: Any) -> Any:
        """What a sample is worth, against one of the initial batch."""
        return np.vectorize(self._native.efficiency, otypes=[float])(batch_size)[()]

    def optimize(
        self,
        num_nodes: Any,
        num_replicas: Any,
        max_batch_size: int | None = None,
        atomic_bsz_range: tuple[int | None, int | None] | None = None,
        accumulation: bool = False,
    ) -> tuple[Any, Any, Any]:
        """The best goodput, with its batch on one replica and its accumulation steps."""
        most = max_batch_size or self._init_batch_size
        low, high = atomic_bsz_range or (None, None)

        def one(nodes: int, replicas: int) -> tuple[float, int, int]:
            largest = high or most
            bound = most
            if not accumulation:
                bound = min(most, largest * int(replicas)) if replicas > 1 else self._init_batch_size
            local, steps, goodput = self._native.best(
                int(nodes),
                int(replicas),
                max_batch_size=max(bound, self._init_batch_size),
                local_batch_min=low or 1,
                local_batch_max=largest,
            )
            return goodput, local, steps

        goodput, local, steps = np.vectorize(one, otypes=[float, int, int])(num_nodes, num_replicas)
        return goodput[()], local[()], steps[()]


def fit_perf_params(
    num_nodes: Any, num_replicas: Any, atomic_bsz: Any, accum_step_time: Any, optim_step_time: Any
) -> PerfParams:
    """Parameters that tell measured times best: of batches without and with synchronisation."""
    columns = (num_nodes, num_replicas, atomic_bsz, accum_step_time, optim_step_time)
    rows = [
        (int(nodes), int(replicas), int(local), float(compute_s), float(step_s))
        for nodes, replicas, local, compute_s, step_s in zip(*map(np.atleast_1d, columns), strict=True)
    ]
    return PerfParams(*_native.fit_steps(rows))
