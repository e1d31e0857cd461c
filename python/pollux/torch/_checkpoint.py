"""Checkpoints in PyTorch's own format, and what is kept beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from pollux._elastic import checkpoint


class Checkpoints(checkpoint.Checkpoints[dict[str, Any]]):
    """A folder of checkpoints of one training."""

    def __init__(self, folder: str | os.PathLike[str]):
        super().__init__(folder, "pt", lambda state, file: torch.save(state, file), load)  # type: ignore[arg-type]


class MemoryBound:
    """Samples that fit on one GPU, as a step that did not has taught. It is kept beside the checkpoints."""

    def __init__(self, folder: str | os.PathLike[str]):
        self._path = Path(folder) / "samples-per-gpu"

    def read(self) -> int | None:
        """What was learned; `None` if every step has fitted so far."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return None

    def write(self, samples: int) -> None:
        """Makes it last."""
        draft = self._path.with_name(f".bound-{os.getpid()}")
        draft.write_text(f"{samples}\n")
        os.rename(draft, self._path)


def load(path: Path, mapped: bool = False) -> dict[str, Any]:
    """What a file holds; `mapped`, tensors are read when they are looked at."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False, mmap=mapped)
    return state
