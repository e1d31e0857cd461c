"""Who gets which samples of a step."""

from pollux._elastic.deal import (
    SPLIT_EVERY,
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
    "SPLIT_EVERY",
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
