"""Who gets which samples of a step."""

from pollux._elastic.deal import (
    Deal,
    Tuning,
    deal,
    part,
    rest_min,
    shard_weight,
    share_of,
    step_count,
    step_samples,
)

__all__ = [
    "Deal",
    "Tuning",
    "deal",
    "part",
    "rest_min",
    "shard_weight",
    "share_of",
    "step_count",
    "step_samples",
]
