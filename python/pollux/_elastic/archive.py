"""What outlives the processes of a training: captured between two steps, saved, handed over, and taken up again."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from .checkpoint import Checkpoints
from .errors import CheckpointError, say
from .state import Position, State, compare, read_file, write_state

if TYPE_CHECKING:
    from .session import Session


class Archive:
    """The state of a training as one thing, for checkpoints and for newcomers."""

    def __init__(self, session: Session):
        self._session = session
        folder = session.options.checkpoint_dir or os.environ.get("POLLUX_CHECKPOINT_DIR")
        self._folder = os.fspath(folder) if folder else None
        self._checkpoints: Checkpoints[State] | None = None
        self._saved_at = time.monotonic()
        self._never_finite: set[str] = set()

    def begin(self) -> None:
        """Looks at the arrays as the script makes them: limits and masks may be infinite from the start."""
        if self._folder:
            self._never_finite = set(_not_finite(self._session.content.capture()))

    def open(self) -> None:
        """Rank 0 saves from now on, if there is a folder."""
        if self._checkpoints is None and self._folder:
            self._checkpoints = Checkpoints(self._folder, "state", write_state, read_file)

    def take_up(self) -> None:
        """Rank 0 goes on with what was saved, if anything was."""
        self.open()
        saved = self._checkpoints.load() if self._checkpoints is not None else None
        if saved is not None:
            self.restore(saved, f"the checkpoint in {self._folder}")

    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self._saved_at >= self._session.options.checkpoint_every_s

    def capture(self) -> State:
        """All of it, as of the last whole step."""
        session = self._session
        facts = {
            "position": asdict(session.position),
            "baseline_steps": session.terms.baseline_steps,
            "agent": session.brain.state() if session.brain else session.agent,
            "samples": session.options.samples,
            "seed": session.options.seed,
            "shuffle": session.options.shuffle,
            "user": session.user,
        }
        return State(facts, session.content.capture())

    def restore(self, state: State, where: str) -> None:
        """Puts everything back, or says why it is not of this training."""
        session = self._session
        compare(State({}, session.content.capture()), state, where)
        for name in ("samples", "seed", "shuffle"):
            own, other = getattr(session.options, name), state.facts[name]
            if own != other:
                raise CheckpointError(
                    f"{where} is of a training with {name} {other}, this one has {own}: the order of its samples is "
                    "another; remove the folder or the change"
                )
        session.content.restore(state.arrays)
        session.position = Position(**state.facts["position"])
        session.terms.baseline_steps = state.facts["baseline_steps"]
        session.agent = state.facts["agent"]
        session.take_facts(state.facts["user"])
        session.resumes = True

    def save(self) -> None:
        """Rank 0 writes a checkpoint; training goes on without one where that fails."""
        if self._checkpoints is None or not self._session.joined().is_leader:
            return
        state = self.capture()
        self._saved_at = time.monotonic()
        # A model that is not finite must not take the place of one that was.
        ruined = [name for name in _not_finite(state.arrays) if name not in self._never_finite]
        if ruined:
            say(f"not saved: {ruined[0]} was finite and is not any more; what was saved before stays")
            return
        try:
            self._checkpoints.save(state)
        except OSError as error:
            say(f"cannot save into {self._checkpoints.folder}: {error}; training goes on")


def _not_finite(arrays: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    return [name for name, array in arrays.items() if not _is_finite(array)]


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    kind = array.dtype.kind
    # Narrow floats are of kind V.
    return kind in "biuSU" or bool(np.isfinite(array.astype(np.float32) if kind == "V" else array).all())
