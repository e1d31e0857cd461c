"""Everything of a training that outlives its processes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ._errors import CheckpointError, UsageError
from ._shards import local

FORMAT = 1
"""Changes with what a checkpoint holds."""


@dataclass
class Position:
    """How far the training is: whole epochs, and samples of the one at hand."""

    epoch: int = 0
    cursor: int = 0
    samples: int = 0
    """Since the training began."""
    is_ended: bool = False
    """Whether the epoch is through, but not what the user does after it."""


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """The module that the user wrote, under what compiles it."""
    original = getattr(module, "_orig_mod", module)
    assert isinstance(original, torch.nn.Module)
    return original


def load_module(module: torch.nn.Module, state: Mapping[str, Any], where: str) -> None:
    """Puts saved parameters into a model, or says how they differ."""
    own = bare(module).state_dict()
    for name in sorted(own.keys() | state.keys()):
        ours, theirs = own.get(name), state.get(name)
        shapes = [list(value.shape) if isinstance(value, torch.Tensor) else value for value in (ours, theirs)]
        if ours is None or theirs is None:
            owner = "the checkpoint" if ours is None else "the model"
            raise CheckpointError(
                f"{where} is of another model: {name!r} is in {owner} only; remove the folder or the change"
            )
        if isinstance(ours, torch.Tensor) and shapes[0] != shapes[1]:
            raise CheckpointError(
                f"{where} is of another model: {name!r} has shape {shapes[1]} there and {shapes[0]} here; "
                "remove the folder or the change"
            )
    bare(module).load_state_dict(dict(state))


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], where: str) -> None:
    """Puts saved moments into an optimiser."""
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{where} is of another optimiser: {error}; remove the folder or the change") from error


def random_states() -> dict[str, Any]:
    """Of every generator that training commonly uses."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    try:
        import numpy
    except ImportError:
        return states
    states["numpy"] = numpy.random.get_state()
    return states


def restore_random_states(states: Mapping[str, Any], rank: int) -> None:
    """Rank 0 goes on with the numbers that were to come; the others draw their own seeds from them."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if rank > 0:
        seed = int(torch.randint(1 << 31, (rank + 1,))[rank])
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in states:
            numpy.random.seed(seed)


class UserStates:
    """Objects of the user's own, by name."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._saved: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Keeps an object; what was saved of it is put back at once, or once it is known."""
        has_methods = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        if not has_methods and not isinstance(value, dict | list):
            raise UsageError(
                f"checkpoint_state({name}={type(value).__name__}(...)): expected objects with state_dict() and "
                "load_state_dict(), dicts and lists"
            )
        try:
            pickle.dumps(_state_of(name, value))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"checkpoint_state({name}=...) cannot be pickled: {error}; leave that part out of its state"
            ) from error
        self._objects[name] = value
        if name in self._saved:
            _put_back(value, self._saved.pop(name))

    def optimizers(self) -> list[Any]:
        """Those that objects change, as schedulers do."""
        return [value.optimizer for value in self._objects.values() if hasattr(value, "optimizer")]

    def capture(self) -> dict[str, Any]:
        """All states, with those that nobody asked for yet."""
        return {**self._saved, **{name: _state_of(name, value) for name, value in self._objects.items()}}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Puts states back; those of objects that are still to come wait."""
        self._saved = dict(states)
        for name in list(self._saved.keys() & self._objects.keys()):
            _put_back(self._objects[name], self._saved.pop(name))


def _state_of(name: str, value: Any) -> Any:
    state = value.state_dict() if hasattr(value, "state_dict") else value
    if _has_shards(state):
        raise CheckpointError(
            f"checkpoint_state({name}=...) holds a shard of a tensor, and the others would be lost; keep whole tensors "
            "in it, such as parameter.full_tensor()"
        )
    return state


def _has_shards(state: Any) -> bool:
    if isinstance(state, dict | list | tuple):
        return any(map(_has_shards, state.values() if isinstance(state, dict) else state))
    return local(state) is not state


def _put_back(value: Any, state: Any) -> None:
    if hasattr(value, "load_state_dict"):
        value.load_state_dict(state)
    elif isinstance(value, dict):
        value.clear()
        value.update(state)
    else:
        value[:] = state
