"""The loop of a training in JAX: a step's gradients are averaged, compared and handed to the user's own update."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pollux._elastic.brain import Limits, checked_rule
from pollux._elastic.deal import Deal
from pollux._elastic.errors import UsageError
from pollux._elastic.options import Options
from pollux._elastic.session import Session
from pollux._elastic.status import Status

from . import _tree
from ._data import Data

ADAM_SETTLING_STEPS = 20
"""The first second moments of Adam are noise themselves."""


class Training:
    """A training whose batch, learning rate and processes adapt while it runs.

    `state` is a tree of all arrays that a step changes: parameters, moments of the optimiser, random keys. `data` is an
    array, or a tree of arrays, with a row for each sample, or an object that takes an array of numbers of samples.
    `batch_size` is where training begins, over all processes; `max_batch_size` and `per_gpu`, for a micro-batch of one
    process, bound where it goes. `scaling` says how the learning rate follows the batch: "adascale" (for SGD),
    "adamscale" (for Adam and its family, with `preconditioner`), "linear", "sqrt", "legw" (with `warmup_epochs`), or a
    function. `preconditioner` is a function of the state that gives what the optimiser divides gradients by, in a tree
    like theirs. Checkpoints go to `checkpoint_dir`, or where the scheduler says, every `checkpoint_every_s`.
    """

    def __init__(
        self,
        state: Any,
        data: Any,
        *,
        batch_size: int,
        max_batch_size: int | None = None,
        per_gpu: tuple[int, int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        scaling: str | Callable[[Any], float] = "adascale",
        preconditioner: Callable[[Any], Any] | None = None,
        warmup_epochs: float = 0.0,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every_s: float = 300.0,
    ):
        if (scaling == "adamscale") != (preconditioner is not None):
            raise UsageError(
                "scaling 'adamscale' and preconditioner; expected both, or neither: gradients of Adam are compared "
                "after it has divided them"
            )
        self._state = state
        self._data = Data(data)
        self._preconditioner = preconditioner
        self._at_hand: Step | None = None
        options = Options(
            limits=Limits.checked(batch_size, max_batch_size, per_gpu, self._data.samples),
            samples=self._data.samples,
            shuffle=shuffle,
            seed=seed,
            scaling=checked_rule(scaling),
            warmup_epochs=warmup_epochs,
            settling_steps=ADAM_SETTLING_STEPS if preconditioner is not None else 0,
            checkpoint_dir=checkpoint_dir,
            checkpoint_every_s=checkpoint_every_s,
        )
        self._session = Session(options, self)

    @property
    def state(self) -> Any:
        """All arrays that a step changes; the same in every process between two steps."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        step = self._at_hand
        if self._session.in_loop:
            if step is None or not step.has_gradients:
                raise UsageError(
                    "training.state is set in a step before step.gradients() was called, so that processes would "
                    "differ; compute the new state from the gradients that it gives"
                )
            self._session.has_stepped = True
        self._state = state

    @property
    def extras(self) -> dict[str, Any]:
        """What else is to survive restarts and resizes, as far as JSON can tell it: a history, the best accuracy."""
        return self._session.user

    @property
    def rank(self) -> int:
        """This process's place in the group, 0 for the one that prints; before the loops, as it was started."""
        group = self._session.group
        return group.rank if group is not None else int(os.environ.get("RANK", "0"))

    @property
    def world_size(self) -> int:
        """Processes of the group; before the loops, of the one that this process was started for."""
        group = self._session.group
        return group.world_size if group is not None else int(os.environ.get("WORLD_SIZE", "1"))

    def status(self) -> Status:
        """How the training runs at the moment."""
        return self._session.status()

    def epochs(self, total: int) -> Iterator[int]:
        """Numbers of the epochs that are still to be trained, from 0 to `total`.

        After a restart, and in a process that joins a training, it begins with the epoch that was at hand.
        """
        return self._session.epochs(total)

    def steps(self) -> Iterator[Step]:
        """The steps of the epoch at hand that are still to be trained."""
        for dealt in self._session.steps():
            self._at_hand = step = Step(self, dealt)
            yield step
            step._check_end()
            self._at_hand = None

    # What a session asks for

    def capture(self) -> dict[str, np.ndarray[Any, Any]]:
        """The state as NumPy arrays by name."""
        return _tree.to_arrays(self._state)

    def restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Puts back what was captured, here or in another process."""
        self._state = _tree.from_arrays(self._state, arrays)

    def share(self) -> None:
        """Every process has all of the state."""

    def regroup(self, rank: int) -> None:
        """This process has a place in another group, which changes nothing of the state."""


class Step:
    """One step of all processes: some samples, in one or several micro-batches."""

    def __init__(self, training: Training, dealt: Deal):
        self._training = training
        self._session = training._session
        self._dealt = dealt
        self.has_gradients = False
        self._is_skipped = False

    @property
    def number(self) -> int:
        """Steps before this one, since the training began."""
        return self._session.position.steps

    @property
    def progress(self) -> float:
        """Likewise in steps of the batch size that was asked for: what learning-rate schedules follow."""
        return self._session.terms.baseline_steps

    @property
    def samples(self) -> int:
        """Samples of this step, over all processes."""
        return self._dealt.samples

    @property
    def learning_rate_factor(self) -> float:
        """What to multiply the learning rate of the batch size that was asked for by."""
        return self._session.terms.learning_rate_factor

    def skip(self) -> None:
        """The state stays as it is, for instance because the loss is not finite. All processes skip, or none."""
        self._is_skipped = True

    def gradients(self, function: Callable[..., Any], *, key: Any = None) -> tuple[Any, Any]:
        """The means over all samples of the step, of all processes, of what a function gives for a micro-batch: a
        value, such as a loss, and a tree of gradients. It is what `jax.value_and_grad` makes of a mean loss.

        With a `key`, the function gets another one with every micro-batch: `function(batch, key)`.
        """
        if self.has_gradients:
            raise UsageError("step.gradients() for the second time in a step; add the losses and call it once")
        self.has_gradients = True
        session, step, rank = self._session, self._dealt, self._training.rank
        measures = session.is_measured(step)
        denominators = self._denominators() if measures else None
        is_alone = step.world_size == 1
        total: Any = None
        parts_sqr: list[Any] = []
        batches = session.indices(step)
        for idx, numbers in enumerate(batches):
            keys = () if key is None else (_folded(key, session.position.steps, rank, idx),)
            means = _pair(function(self._training._data.batch(numbers), *keys))
            emphasis = step.emphasis(rank, idx)
            if measures and is_alone:
                parts_sqr.append(_tree.squared_norm(means[1], denominators))
            if total is not None:
                total = _tree.added(total, means, emphasis)
            else:
                total = means if emphasis == 1.0 else _tree.scaled(means, emphasis)
        if not is_alone:
            return self._sum(total, len(batches), denominators, measures)
        value, gradients = total if len(batches) == 1 else _tree.scaled(total, step.weight(rank))
        jax.block_until_ready(gradients)
        if measures:
            begun = time.perf_counter()
            own_sqr = sum(float(part) for part in parts_sqr) / len(parts_sqr)
            mean_sqr = float(_tree.squared_norm(gradients, denominators))
            session.note(own_sqr, mean_sqr, time.perf_counter() - begun)
        return value, gradients

    def _sum(self, total: Any, count: int, denominators: Any, measures: bool) -> tuple[Any, Any]:
        """The mean over all processes, by way of the CPU."""
        session = self._session
        size = sum(leaf.size for leaf in jax.tree.leaves(total[1]))
        # Gradients first: values are not measured.
        values = np.array(_tree.flat((total[1], total[0])))
        own_sqr, cost_s, divide = 0.0, 0.0, None
        if measures:
            begun = time.perf_counter()
            divide = None if denominators is None else np.asarray(_tree.flat(denominators))
            own_sqr = _squared_norm(values[:size], divide) / count**2
            cost_s = time.perf_counter() - begun
        values *= self._dealt.weight(self._training.rank)
        session.sum(values)
        if measures:
            begun = time.perf_counter()
            mean_sqr = _squared_norm(values[:size], divide)
            session.note(own_sqr, mean_sqr, cost_s + time.perf_counter() - begun)
        gradients, value = _tree.unflat(values, (total[1], total[0]))
        return value, gradients

    def _denominators(self) -> Any:
        preconditioner = self._training._preconditioner
        return None if preconditioner is None else preconditioner(self._training.state)

    def _check_end(self) -> None:
        if not (self._session.has_stepped or self._is_skipped):
            raise UsageError(
                "a step whose samples count as trained, but training.state was not set; set it to the updated state, "
                "or call step.skip()"
            )


def adam_denominators(second_moments: Any, steps: Any, *, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """What Adam divides gradients by, from its second moments after so many steps: for `preconditioner`.

    >>> px.Training(state, data, scaling="adamscale", batch_size=32,
    ...             preconditioner=lambda state: px.adam_denominators(state["nu"], state["count"]))
    """
    return _adam_denominators(second_moments, steps, b2, eps)


@jax.jit
def _adam_denominators(second_moments: Any, steps: Any, b2: float, eps: float) -> Any:
    correction = jnp.maximum(1.0 - b2**steps, 1e-12)
    return jax.tree.map(lambda moment: jnp.sqrt(moment / correction) + eps, second_moments)


def _pair(result: Any) -> tuple[Any, Any]:
    if not (isinstance(result, tuple) and len(result) == 2):
        raise UsageError(
            f"the function of step.gradients() gave a {type(result).__name__}; expected a pair of a value and "
            "gradients, as jax.value_and_grad gives it"
        )
    value, gradients = result
    _tree.check_gradients(gradients)
    return _tree.floats(value), gradients


def _folded(key: Any, *numbers: int) -> Any:
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def _squared_norm(values: np.ndarray[Any, Any], denominators: np.ndarray[Any, Any] | None) -> float:
    divided = values if denominators is None else values / denominators
    return float(np.dot(divided, divided))
