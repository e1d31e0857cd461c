"""Checkpoints: files that are whole or not there, and prove it by their names.

A state is written under another name, flushed and renamed to `checkpoint-NUMBER-DIGEST.SUFFIX`. The two newest are
kept; if the newest turns out to be damaged, the one before it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from .errors import CheckpointError

_KEPT = 2

State = TypeVar("State")


class Checkpoints(Generic[State]):
    """A folder of checkpoints of one training, in the format that its suffix names."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        suffix: str,
        write: Callable[[State, Digesting], None],
        read: Callable[[Path], State],
    ):
        self.folder = Path(folder)
        self._suffix = suffix
        self._write = write
        self._read = read
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"cannot save into {self.folder}: {error}; give a folder that can be written"
            ) from error

    def save(self, state: State) -> Path:
        """Makes a state last."""
        for left_behind in self.folder.glob(".draft-*"):
            left_behind.unlink(missing_ok=True)
        number = max((number for number, *_ in self._found()), default=0) + 1
        draft = self.folder / f".draft-{os.getpid()}"
        try:
            with open(draft, "wb") as file:
                digesting = Digesting(file)
                self._write(state, digesting)
                file.flush()
                os.fsync(file.fileno())
            path = self.folder / f"checkpoint-{number:08}-{digesting.digest.hexdigest()}.{self._suffix}"
            os.rename(draft, path)
            _flush_folder(self.folder)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        except Exception as error:
            draft.unlink(missing_ok=True)
            if digesting.failure is not None:  # Some formats tell of it in words of their own.
                raise digesting.failure from error
            raise CheckpointError(f"the state cannot be saved: {error}; keep what cannot be saved out of it") from error
        for _, _, old in self._found()[:-_KEPT]:
            old.unlink(missing_ok=True)
        return path

    def load(self) -> State | None:
        """The newest state that is whole; `None` if nothing was ever saved."""
        path = self.newest()
        return self._read(path) if path is not None else None

    def newest(self) -> Path | None:
        """The newest file that is whole; `None` if nothing was ever saved."""
        found = self._found()
        for _, digest, path in reversed(found):
            if _digest(path) == digest:
                return path
            print(f"pollux: {path.name} is damaged; looking for the one before it", file=sys.stderr)
        if found:
            raise CheckpointError(
                f"all {len(found)} checkpoints in {self.folder} are damaged; remove the folder to begin anew"
            )
        return None

    def _found(self) -> list[tuple[int, str, Path]]:
        """Number, digest and path, oldest first."""
        name = re.compile(rf"checkpoint-(\d{{8}})-([0-9a-f]{{64}})\.{self._suffix}")
        matches = ((name.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), match[2], path) for match, path in matches if match)


class Digesting:
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
