"""What outlives the processes of a training: captured between two steps, saved, handed over, and taken up again."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import _metrics, _state
from ._checkpoint import Checkpoints, MemoryBound, load
from ._errors import CheckpointError, UsageError, say

if TYPE_CHECKING:
    from ._session import Session


APART_S = 5.0
"""How long those who share a model wait for each other where nobody knows who comes."""


class Shared(Protocol):
    """Something that every rank has a part of."""

    def share(self) -> None:
        """Puts the parts together; every rank is in it at the same time."""

    def is_shared(self) -> bool:
        """Whether no rank holds anything that the others do not know."""


class Archive:
    """The state of a training as one thing, for checkpoints and for newcomers."""

    def __init__(self, session: Session):
        self._session = session
        self.folder = session.options.checkpoint_dir or os.environ.get("POLLUX_CHECKPOINT_DIR")
        self.user_states = _state.UserStates()
        self.agent: str | None = None
        """What an agent has learned that is not at work here yet."""
        self.metrics: list[_metrics.Mean] = []
        self.shared: list[Shared] = []
        """What is shared besides metrics."""
        self._metric_states: dict[str, list[float]] = {}
        self._checkpoints: Checkpoints | None = None
        self._saved_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether this process saves."""
        return self._checkpoints is not None

    def open(self) -> None:
        """Rank 0 saves from now on, if there is a folder."""
        if self._checkpoints is None and self.folder:
            self._checkpoints = Checkpoints(self.folder)

    def take_up(self) -> None:
        """The first copy of the model goes on with what was saved, if anything was."""
        self.open()
        session = self._session
        group = session.joined()
        if self._checkpoints is not None:
            assert self.folder is not None
            if (bound := MemoryBound(self.folder).read()) is not None:
                bound = min(bound * group.shards, session.terms.local_batch_max)
                session.terms = replace(session.terms, local_batch_max=bound)
            newest = self._checkpoints.newest() if group.is_leader else None
            # Whoever shares the model reads its own part of the same file.
            path = group.send_to_shards(str(newest or ""))
            if path:
                state = load(Path(path), mapped=group.shards > 1)
                self.restore(state, f"the checkpoint in {self.folder}", whole=True)
                self._report_another_order(state.get("order"))
                return
        if group.shard > 0:  # Otherwise all that share a model would draw the same numbers.
            _state.restore_random_states(_state.random_states(), group.shard)

    def _report_another_order(self, order: int | None) -> None:
        position = self._session.position
        if order is not None and order != self._session.loader.order(position.epoch):
            say(
                f"the order of samples in epoch {position.epoch} is another than when this was saved, "
                f"{position.cursor} samples into it: in this epoch some are used twice and others never. Expected the "
                "same data set, seed and sampler, and of a sampler's own random numbers that they begin with "
                "set_epoch()"
            )

    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self._saved_at >= self._session.options.checkpoint_every_s

    def hasten(self) -> None:
        """The next check-in saves."""
        self._saved_at = -math.inf

    def is_whole(self) -> bool:
        """Whether this process knows all that a checkpoint holds: what others count is known once it is shared."""
        if self._session.joined().processes == 1:
            self.share_metrics()
        return _metrics.is_shared(self.metrics) and all(one.is_shared() for one in self.shared)

    def can_save_apart(self) -> bool:
        """Whether this process may save without a word to the others: those who share its model have to be at the same
        step, and to come here within a moment."""
        group, is_whole = self._session.joined(), self.is_whole()
        if group.shards == 1 or group.rank > 0 or not self.is_open:
            return is_whole
        return is_whole and group.agree(f"{self._session.position}", APART_S)

    def save(self) -> None:
        """Rank 0 writes a checkpoint; training goes on without one where that fails. It takes all that share the first
        copy of the model."""
        group = self._session.joined()
        if self._checkpoints is None or group.rank > 0:
            return
        # A model that is not finite must not take the place of one that was.
        if not all(part.is_finite() for part in self._session.parts):
            return
        state = self.capture(whole=True)
        if not group.is_leader:
            return
        try:
            self._checkpoints.save(state)
        except OSError as error:
            say(f"cannot save into {self._checkpoints.folder}: {error}; training goes on")
        self._saved_at = time.monotonic()

    def capture(self, *, whole: bool) -> dict[str, Any]:
        """All of it, as of the last whole step; `whole`, or with this process's shards of the model alone."""
        session = self._session
        first, *others = [part.state(whole=whole) for part in session.parts]
        return {
            "format": _state.FORMAT,
            **first,
            "others": others,
            "scaler": session.scaler.state_dict() if session.scaler else None,
            "schedules": [schedule.state_dict() for schedule in session.schedules],
            "agent": session.brain.state() if session.brain else self.agent,
            "position": vars(session.position),
            "order": session.loader.order(session.position.epoch) if session.position.cursor else None,
            "baseline_steps": session.terms.baseline_steps,
            "local_batch_max": session.terms.local_batch_max // session.joined().shards,
            "metrics": {**self._metric_states, **_metrics.capture(self.metrics)},
            "user": self.user_states.capture(),
            "random": _state.random_states(),
        }

    def restore(self, state: dict[str, Any], where: str, *, whole: bool) -> None:
        """Puts everything back, or says why it is not of this training."""
        session, group = self._session, self._session.joined()
        if state.get("format") != _state.FORMAT:
            raise CheckpointError(
                f"{where} has format {state.get('format')}, expected {_state.FORMAT}; remove it, or use the version "
                "that wrote it"
            )
        # Trainings of one model had no others to speak of before version 0.2.
        saved = [state, *state.get("others", [])]
        if len(saved) != len(session.parts):
            raise CheckpointError(
                f"{where} is of a training of {len(saved)} models, this one has {len(session.parts)}; remove the "
                "folder or the change"
            )
        for part, own in zip(session.parts, saved):
            part.load(own, where, whole=whole)
            # It has stepped, if not in this process: schedulers ask.
            part.optimizer._opt_called = True  # type: ignore[attr-defined]
        if session.scaler and state["scaler"]:
            session.scaler.load_state_dict(state["scaler"])
        for schedule, known in zip(session.schedules, state["schedules"]):
            schedule.load_state_dict(known)
        self.agent = state["agent"]
        session.position = _state.Position(**state["position"])
        session.resumes_epoch = True
        session.terms = replace(
            session.terms,
            baseline_steps=state["baseline_steps"],
            local_batch_max=min(state["local_batch_max"] * group.shards, session.terms.local_batch_max),
        )
        self._metric_states = dict(state["metrics"])
        for metric in self.metrics:
            self._restore_metric(metric)
        self.user_states.restore(state["user"])
        # Shards hand theirs over to newcomers, and each has others.
        _state.restore_random_states(state["random"], group.place if whole else group.rank)

    def add_metric(self, metric: _metrics.Mean) -> None:
        """Keeps a metric across restarts."""
        if any(known.name == metric.name for known in self.metrics):
            raise UsageError(f"a second metric named {metric.name!r}; each needs a name of its own")
        self.metrics.append(metric)
        self._restore_metric(metric)

    def share_metrics(self) -> None:
        """Adds up what the ranks have, so that one of them can tell all."""
        _metrics.share(self.metrics, self._session.group)
        for one in self.shared:
            one.share()

    def _restore_metric(self, metric: _metrics.Mean) -> None:
        if metric.name in self._metric_states:
            _metrics.restore(metric, self._metric_states.pop(metric.name))
