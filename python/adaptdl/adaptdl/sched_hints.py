"""What AdaptDL's trainers tell AdaptDL's scheduler. Pollux's agent speaks for itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .goodput import PerfParams

PERF_PARAMS: Mapping[str, float] = MappingProxyType(dict.fromkeys(PerfParams._fields, 0.0))
SCHED_HINTS: Mapping[str, Any] = MappingProxyType(
    {
        "initBatchSize": 0,
        "localBszBounds": None,
        "globalBatchSize": None,
        "maxBatchSize": 0,
        "maxProfiledReplicas": 0,
        "gradientAccumulation": False,
        "gradParams": None,
        "perfParams": None,
    }
)


def post_sched_hints(sched_hints: Mapping[str, Any], job_key: str) -> None:
    """Has no effect: rank 0 reports to Pollux by itself."""
    if unknown := sorted(sched_hints.keys() - SCHED_HINTS.keys()):
        raise ValueError(f"hints {', '.join(unknown)}; expected {', '.join(SCHED_HINTS)}")
    warnings.warn("post_sched_hints() has no effect: rank 0 reports to Pollux by itself", stacklevel=2)
