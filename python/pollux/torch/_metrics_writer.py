"""Curves for TensorBoard."""

from __future__ import annotations

import os
from typing import Any


class MetricsWriter:
    """Writes scalars where the user asked for them: a folder, or a writer of the user's own."""

    def __init__(self, target: Any):
        self._target = target
        self._writer: Any = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody asked."""
        return self._target is not None

    def write(self, samples: int, scalars: dict[str, float | None]) -> None:
        """Scalars at so many samples."""
        if self._target is None:
            return
        if self._writer is None:
            self._writer = self._target
            if isinstance(self._target, str | os.PathLike):
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(os.fspath(self._target))
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(f"pollux/{name}", value, samples)

    def close(self) -> None:
        """Makes what was written last."""
        if self._writer is not None:
            self._writer.flush()
