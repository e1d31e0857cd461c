"""Tensors that are computed on one stream of a GPU and used on another.

Backward passes may run on streams of their own. Whoever uses a result elsewhere has to wait there for its event, and to
tell the allocator, or its memory is given away too early. On a processor there is nothing to do.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Handed:
    """A tensor with the moment at which it is ready."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self._ready = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def here(self) -> Tensor:
        """The tensor, for use on the current stream."""
        if self._ready is not None:
            stream = torch.cuda.current_stream(self._tensor.device)
            stream.wait_event(self._ready)
            self._tensor.record_stream(stream)
        return self._tensor


def collect(parts: list[Handed]) -> list[Tensor]:
    """Tensors for use on the current stream, all on the device of the first; nobody waits for it."""
    tensors = [part.here() for part in parts]
    return [tensor.to(tensors[0].device, non_blocking=True) for tensor in tensors]
