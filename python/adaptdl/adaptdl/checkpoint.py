"""States of the user's own: saved with the training, put back after a restart and in processes that join."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import BinaryIO

from . import env

CKPT_DIR_PREFIX = "checkpoint-"


class State:
    """Something to be saved, under a name of its own. Subclasses say how."""

    def __init__(self, name: str):
        if name in _states:
            raise ValueError(f"State {name!r} already exists; each needs a name of its own")
        _states[name] = self

    def save(self, fileobj: BinaryIO) -> None:
        """Writes it; on rank 0."""

    def load(self, fileobj: BinaryIO) -> None:
        """Reads what `save` wrote; on every rank."""

    def sync(self) -> None:
        """Makes it the same on every rank before it is saved; called on all of them at the same time."""


_states: dict[str, State] = {}
_wanted: set[str] = set()
_saved: dict[str, bytes] = {}
"""What was saved of states that nobody has asked for yet."""


def load_state(state: State) -> bool:
    """Puts back what was saved of a state: now, or when the first loop begins, before which nothing is known; true if
    it is done."""
    name = _name(state)
    _wanted.add(name)
    if name not in _saved:
        return False
    state.load(io.BytesIO(_saved.pop(name)))
    return True


def save_state(state: State, checkpoint_dir: str, sync: bool = True) -> None:
    """Writes one state into a file of its name, on rank 0. All ranks call it."""
    if sync:
        state.sync()
    if env.replica_rank() == 0 and checkpoint_dir is not None:
        os.makedirs(checkpoint_dir, exist_ok=True)
        draft = os.path.join(checkpoint_dir, f".{_name(state)}")
        with open(draft, "wb") as file:
            state.save(file)
        os.replace(draft, os.path.join(checkpoint_dir, _name(state)))


def save_all_states() -> str | None:
    """Saves the whole training: at once between loops, after the next step inside of one. All ranks call it."""
    from .torch import _training

    _training.save()
    return env.checkpoint_path()


def capture() -> dict[str, bytes]:
    """All states, with those that nobody asked for yet."""
    return {**_saved, **{name: _bytes(state) for name, state in _states.items()}}


def restore(saved: Mapping[str, bytes]) -> None:
    """Puts states back; the others wait until somebody asks for them."""
    _saved.clear()
    _saved.update(saved)
    for name in sorted(_wanted & _saved.keys() & _states.keys()):
        load_state(_states[name])


def states() -> list[State]:
    """All of them, in an order that is the same on every rank."""
    return [_states[name] for name in sorted(_states)]


def forget(state: State) -> None:
    """It is not saved any more."""
    name = _name(state)
    del _states[name]
    _wanted.discard(name)


def forget_saved(names: set[str]) -> None:
    """Nobody will ask for them any more."""
    for name in names:
        _saved.pop(name, None)


def waiting() -> set[str]:
    """Names of what was saved and nobody has asked for."""
    return set(_saved)


def _name(state: State) -> str:
    for name, known in _states.items():
        if known is state:
            return name
    raise ValueError(f"{type(state).__name__} is not registered; call State.__init__(name) in its constructor")


def _bytes(state: State) -> bytes:
    file = io.BytesIO()
    state.save(file)
    return file.getvalue()
