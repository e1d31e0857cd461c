"""`fit`, with batches that are dealt by Pollux and gradients that are the mean over all processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from pollux._elastic.brain import Limits, checked_rule
from pollux._elastic.errors import UsageError
from pollux._elastic.options import Options
from pollux._elastic.session import Session
from pollux._elastic.status import Status

from ._refusals import check_backend, check_model, is_adam, rule_for

ADAM_SETTLING_STEPS = 20
"""The first second moments of Adam are noise themselves."""

_session: Session | None = None


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int = 32,
    max_batch_size: int | None = None,
    per_gpu: tuple[int, int] | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: list[Any] | None = None,
    validation_data: Any = None,
    validation_batch_size: int = 32,
    validation_freq: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    scaling: str | Callable[[Any], float] = "auto",
    warmup_epochs: float = 0.0,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 300.0,
) -> Any:
    """Trains a compiled model as `model.fit` does, with a batch, a learning rate and processes that adapt.

    `x`, `y` and `sample_weight` are arrays, or trees of them, with a row for each sample. `batch_size` is where
    training begins, over all processes; `max_batch_size` and `per_gpu`, for a micro-batch of one process, bound where
    it goes. `scaling` says how the learning rate follows the batch: "adascale" (for SGD), "adamscale" (for Adam and its
    family), "linear", "sqrt", "legw" (with `warmup_epochs`), or a function; "auto" chooses one of the first two.
    Checkpoints go to `checkpoint_dir`, or where the scheduler says, every `checkpoint_every_s`. Rank 0 calls the
    callbacks, and has the history that is returned.
    """
    global _session
    check_backend()
    check_model(model)
    from ._run import Run

    data = _rows(x, y, sample_weight)
    samples = _count(data)
    options = Options(
        limits=Limits.checked(batch_size, max_batch_size, per_gpu, samples),
        samples=samples,
        shuffle=shuffle,
        seed=seed,
        scaling=checked_rule(rule_for(model.optimizer, scaling)),
        warmup_epochs=warmup_epochs,
        settling_steps=ADAM_SETTLING_STEPS if is_adam(model.optimizer) else 0,
        checkpoint_dir=checkpoint_dir,
        checkpoint_every_s=checkpoint_every_s,
    )
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2

    def evaluate(epoch: int) -> dict[str, Any]:
        if validation_data is None or (epoch + 1) % validation_freq:
            return {}
        own_x, own_y, own_weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        found = model.evaluate(
            own_x, own_y, sample_weight=own_weight, batch_size=validation_batch_size, verbose=0, return_dict=True
        )
        return {f"val_{name}": value for name, value in found.items()}

    run = Run(model, data, callbacks, epochs, verbose, evaluate)
    run.session = _session = Session(options, run)
    try:
        run.train(epochs)
    finally:
        run.close()
    return run.callbacks.history


def status() -> Status:
    """How the training runs at the moment, or ran in the end; for callbacks."""
    if _session is None:
        raise UsageError("px.status() before px.fit(); ask in a callback, or after it")
    return _session.status()


def rank() -> int:
    """This process's place in the group; before `px.fit`, as it was started."""
    group = _session.group if _session is not None else None
    return group.rank if group is not None else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Processes of the group; before `px.fit`, of the one that this process was started for."""
    group = _session.group if _session is not None else None
    return group.world_size if group is not None else int(os.environ.get("WORLD_SIZE", "1"))


def _rows(*trees: Any) -> tuple[Any, ...]:
    for tree in trees:
        for leaf in keras.tree.flatten(tree):
            if leaf is not None and not hasattr(leaf, "shape"):
                raise UsageError(
                    f"data is a {type(leaf).__name__}; expected arrays with a row for each sample, and trees of them"
                )
    return tuple(
        keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), tree) for tree in trees
    )


def _count(data: tuple[Any, ...]) -> int:
    sizes = {leaf.shape[0] if leaf.shape else 0 for leaf in keras.tree.flatten(data) if leaf is not None}
    if len(sizes) != 1 or sizes == {0}:
        raise UsageError(f"data has arrays of {sorted(sizes)} rows; expected as many in all of them, and one or more")
    return int(sizes.pop())
