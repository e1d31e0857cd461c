"""Callbacks of the user: they are called by rank 0, and what they count survives restarts and changes of rank 0."""

from __future__ import annotations

import json
from typing import Any

import keras

_OWN = ("model", "_model", "params", "validation_data")


class Callbacks:
    """A list of callbacks with what they have counted since the training began."""

    def __init__(self, callbacks: Any, model: Any, epochs: int, verbose: Any):
        self.all = keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=None,
            model=model,
        )
        self.history = next(one for one in self.all.callbacks if isinstance(one, keras.callbacks.History))
        self.history.on_train_begin()
        self._before: list[dict[str, Any]] = []
        self.has_begun = False

    def begin(self, counted: list[dict[str, Any]], epoch: int) -> None:
        """This process calls them from now on, in the middle of a training that others may have begun."""
        self.all.on_train_begin()
        self._before = [_facts(one) for one in self.all.callbacks]
        for one, facts in zip(self.all.callbacks, counted):
            vars(one).update(json.loads(json.dumps(facts)))
        self.has_begun = True
        self.begin_epoch(epoch)

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins, and nobody knows how many steps it will have."""
        for one in self.all.callbacks:
            if isinstance(one, keras.callbacks.ProgbarLogger):
                one.target = None
        self.all.on_epoch_begin(epoch)

    def told_history(self) -> dict[str, Any]:
        """The history as every rank is to have it."""
        facts = _facts(self.history)
        return {name: facts[name] for name in ("epoch", "history")}

    def counted(self) -> list[dict[str, Any]]:
        """What has changed in each since the training began, as far as JSON can tell it."""
        now = [_facts(one) for one in self.all.callbacks]
        return [
            {name: value for name, value in facts.items() if name not in before or before[name] != value}
            for facts, before in zip(now, self._before)
        ]


def _facts(callback: Any) -> dict[str, Any]:
    found = {}
    for name, value in vars(callback).items():
        if name in _OWN:
            continue
        try:
            found[name] = json.loads(json.dumps(value, default=_number))
        except (TypeError, ValueError):
            continue
    return found


def _number(value: Any) -> Any:
    """Numbers of NumPy and TensorFlow as those of Python."""
    if getattr(value, "shape", None) == ():
        return value.item() if hasattr(value, "item") else float(value)
    raise TypeError
