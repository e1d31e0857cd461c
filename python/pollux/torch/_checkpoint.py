"""Checkpoints: files that are whole or not there, and prove it by their names.

A state is written under another name, flushed and renamed to `checkpoint-NUMBER-DIGEST.pt`. The two newest are kept; if
the newest turns out to be damaged, the one before it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ._errors import CheckpointError

_NAME = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{64})\.pt")
_KEPT = 2


class Checkpoints:
    """A folder of checkpoints of one training."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"cannot save into {self.folder}: {error}; give a folder that can be written"
            ) from error

    def save(self, state: dict[str, Any]) -> Path:
        """Makes a state last."""
        for left_behind in self.folder.glob(".draft-*"):
            left_behind.unlink(missing_ok=True)
        number = max((number for number, *_ in self._found()), default=0) + 1
        draft = self.folder / f".draft-{os.getpid()}"
        try:
            with open(draft, "wb") as file:
                digesting = _Digesting(file)
                torch.save(state, digesting)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            path = self.folder / f"checkpoint-{number:08}-{digesting.digest.hexdigest()}.pt"
            os.rename(draft, path)
            _flush_folder(self.folder)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        except Exception as error:
            draft.unlink(missing_ok=True)
            if digesting.failure is not None:  # PyTorch tells of it in words of its own.
                raise digesting.failure from error
            raise CheckpointError(
                f"the state cannot be pickled: {error}; keep what cannot be saved out of it"
            ) from error
        for _, _, old in self._found()[:-_KEPT]:
            old.unlink(missing_ok=True)
        return path

    def load(self) -> dict[str, Any] | None:
        """The newest state that is whole; `None` if nothing was ever saved."""
        found = self._found()
        for _, digest, path in reversed(found):
            if _digest(path) == digest:
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
                return state
            print(f"pollux: {path.name} is damaged; looking for the one before it", file=sys.stderr)
        if found:
            raise CheckpointError(
                f"all {len(found)} checkpoints in {self.folder} are damaged; remove the folder to begin anew"
            )
        return None

    def _found(self) -> list[tuple[int, str, Path]]:
        """Number, digest and path, oldest first."""
        matches = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), match[2], path) for match, path in matches if match)


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


class _Digesting:
    """A file that knows the digest of what was written to it."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.digest = hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes on."""
        self.digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """As files do."""
        self._file.flush()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
