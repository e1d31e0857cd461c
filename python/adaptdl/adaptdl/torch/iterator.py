"""AdaptDL's iterator over texts for back-propagation through time, which stood on parts of torchtext that are gone."""

from __future__ import annotations

from typing import Any


class AdaptiveBPTTIterator:
    """Refused."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise RuntimeError(
            "AdaptiveBPTTIterator needs torchtext's Field and BPTTIterator, which no longer exist; cut the text into "
            "samples of bptt_len in a torch.utils.data.Dataset, and give that to AdaptiveDataLoader"
        )
