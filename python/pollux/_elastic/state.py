"""A training as named arrays and facts, for files and for other processes. Reading it runs nothing."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .errors import CheckpointError

FORMAT = 1
"""Changes with what a state holds."""
_HEAD = struct.Struct("<Q")
_HEADER_BYTES_MAX = 1 << 30


@dataclass
class Position:
    """How far the training is: whole epochs, and samples of the one at hand."""

    epoch: int = 0
    cursor: int = 0
    samples: int = 0
    """Since the training began."""
    steps: int = 0
    """Likewise."""
    is_ended: bool = False
    """Whether the epoch is through, but not what the user does after it."""


@dataclass
class State:
    """Arrays by name, and facts that JSON can tell."""

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: Any, /) -> Any:
        """Takes all of them."""


def write_state(state: State, sink: Sink) -> None:
    """As bytes: the length of a header, the header, and the arrays in its order."""
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in state.arrays.items()}
    kinds = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({"format": FORMAT, "facts": state.facts, "arrays": kinds}).encode()
    sink.write(_HEAD.pack(len(header)))
    sink.write(header)
    for array in arrays.values():
        if array.size:
            sink.write(array.reshape(-1).view(np.uint8).data)


def read_state(read_into: Callable[[memoryview], None], where: str) -> State:
    """What `write_state` wrote."""
    head = bytearray(_HEAD.size)
    read_into(memoryview(head))
    (length,) = _HEAD.unpack(head)
    if length > _HEADER_BYTES_MAX:
        raise CheckpointError(f"{where} begins with a header of {length} bytes; expected at most {_HEADER_BYTES_MAX}")
    text = bytearray(length)
    read_into(memoryview(text))
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise CheckpointError(
            f"{where} has format {header['format']}, expected {FORMAT}; remove it, or use the version that wrote it"
        )
    arrays = {}
    for name, kind, shape in header["arrays"]:
        array = np.empty(shape, _dtype(kind))
        if array.size:
            read_into(array.reshape(-1).view(np.uint8).data)
        arrays[name] = array
    return State(header["facts"], arrays)


def read_file(path: Path) -> State:
    """A state from a file."""
    with open(path, "rb") as file:

        def read_into(view: memoryview) -> None:
            if file.readinto(view) != len(view):
                raise CheckpointError(f"{path.name} ends early; remove it")

        return read_state(read_into, path.name)


def compare(own: State, other: State, where: str) -> None:
    """Refuses a state whose arrays have other names, shapes or types."""
    for name in sorted(own.arrays.keys() | other.arrays.keys()):
        ours, theirs = own.arrays.get(name), other.arrays.get(name)
        if ours is None or theirs is None:
            owner = "the checkpoint" if ours is None else "the training"
            raise CheckpointError(
                f"{where} is of another training: {name} is in {owner} only; remove the folder or the change"
            )
        kinds = [f"{array.dtype.name}{list(array.shape)}" for array in (theirs, ours)]
        if kinds[0] != kinds[1]:
            raise CheckpointError(
                f"{where} is of another training: {name} is {kinds[0]} there and {kinds[1]} here; remove the folder or "
                "the change"
            )


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        # Narrow floats are known to NumPy by way of this package, which every framework brings.
        narrow: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        return narrow
