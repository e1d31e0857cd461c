"""One call of `fit`: its steps, and all of the model that outlives a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pollux._elastic.deal import Deal
from pollux._elastic.session import Session

from ._callbacks import Callbacks
from ._steps import Steps, squared_norm

_SEED_STRIDE = 1_000_003
"""Seeds of ranks are so far apart."""


class Run:
    """A model on its way through the epochs."""

    session: Session

    def __init__(
        self,
        model: Any,
        data: tuple[Any, ...],
        callbacks: Any,
        epochs: int,
        verbose: Any,
        evaluate: Callable[[int], dict[str, Any]],
    ):
        self._model = model
        self._data = data
        self._evaluate = evaluate
        self.callbacks = Callbacks(callbacks, model, epochs, verbose)
        self._is_handed = False
        """Whether the model was just received, with the random seeds of rank 0."""
        _build(model, self._batch(np.arange(min(2, len(next(iter(_leaves(data))))))))
        model.stop_training = False
        self._steps = Steps(model)
        is_float = [np.issubdtype(keras.backend.standardize_dtype(v.dtype), np.floating) for v in model.variables]
        self._averages = [v for v, floats in zip(model.variables, is_float) if floats and not v.trainable]
        """What is no gradient's, such as the means of batch norms."""

    def close(self) -> None:
        """Leaves the model as the user knows it."""
        self._steps.close()

    # The loop

    def train(self, epochs: int) -> None:
        """All epochs that are still to be trained."""
        session, model = self.session, self._model
        for epoch in session.epochs(epochs):
            if session.user.get("stopped"):
                break
            if session.position.cursor == 0 and not session.position.is_ended:
                model.reset_metrics()
            self._lead(epoch)
            for idx, step in enumerate(session.steps()):
                if self._step(idx, step):
                    break
            if not session.position.is_ended:
                self.share()
            if self._end_epoch(epoch):
                break
        model.optimizer.finalize_variable_values(model.trainable_variables)
        if self.callbacks.has_begun:
            self.callbacks.all.on_train_end()

    def _lead(self, epoch: int) -> None:
        """Rank 0 tells the callbacks of an epoch."""
        if not self.session.joined().is_leader:
            return
        if self.callbacks.has_begun:
            self.callbacks.begin_epoch(epoch)
        else:
            self.callbacks.begin(self.session.user.get("callbacks", []), epoch)

    def _end_epoch(self, epoch: int) -> bool:
        """Rank 0 has what all have counted; true if nobody is to go on."""
        session = self.session
        leads, now = session.joined().is_leader, session.status()
        # An evaluation uses the same metrics, and may be interrupted.
        if leads and session.user.get("ended", {}).get("epoch") != epoch:
            found = {name: float(value) for name, value in self._model.get_metrics_result().items()}
            session.user["ended"] = {"epoch": epoch, "logs": found}
        # Everybody evaluates all, so that nobody waits for somebody else.
        evaluated = self._evaluate(epoch)
        told = None
        if leads:
            sizes = {"batch_size": now.batch_size, "gpus": now.world_size}
            self.callbacks.all.on_epoch_end(epoch, session.user["ended"]["logs"] | evaluated | sizes)
            session.user["callbacks"] = self.callbacks.counted()
            session.user["stopped"] = bool(self._model.stop_training)
            told = session.user["stopped"], self.callbacks.told_history()
        stops, history = session.agree("ends an epoch", told)
        vars(self.callbacks.history).update(history)
        return bool(stops)

    def _step(self, idx: int, step: Deal) -> bool:
        """One step of all processes; true if it is to be the last one."""
        session, model, steps = self.session, self._model, self._steps
        group = session.joined()
        if group.is_leader:
            self.callbacks.all.on_train_batch_begin(idx)
        flat, logs = self._mean(step)
        if group.world_size > 1:
            flat, stops = self._exchange(step, flat)
        else:
            stops = False
        if steps.schedule is not None:
            steps.schedule.progress.assign(session.terms.baseline_steps)
        steps.update(flat, tf.constant(session.terms.learning_rate_factor, tf.float32))
        session.has_stepped = True
        if group.is_leader:
            self.callbacks.all.on_train_batch_end(idx, logs)
        return stops or (group.world_size == 1 and bool(model.stop_training))

    def _mean(self, step: Deal) -> tuple[Any, Any]:
        """The mean gradient of this process, weighted for the mean of all, and what metrics say."""
        session, rank = self.session, self.session.joined().rank
        batches = session.indices(step)
        measures = session.is_measured(step)
        total: Any = None
        parts_sqr: list[float] = []
        cost_s = 0.0
        denominators: Any = None
        for idx, numbers in enumerate(batches):
            loss, flat, logs = self._steps.gradients(*self._batch(numbers))
            float(loss)  # Waits for it, so that its time is known.
            begun = time.perf_counter()
            if measures and idx == 0:
                denominators = self._steps.denominators()
            if measures and step.world_size == 1:
                parts_sqr.append(squared_norm(flat, denominators))
            cost_s += time.perf_counter() - begun
            emphasis = step.emphasis(rank, idx)
            flat = flat if emphasis == 1.0 else flat * emphasis
            total = flat if total is None else total + flat
        self._measured = (denominators, len(batches), cost_s) if measures else None
        if step.world_size == 1:
            total = total if len(batches) == 1 else total * step.weight(rank)
            if measures:
                begun = time.perf_counter()
                mean_sqr = squared_norm(total, denominators)
                cost_s += time.perf_counter() - begun
                session.note(sum(parts_sqr) / len(parts_sqr), mean_sqr, cost_s)
        return total, logs

    def _exchange(self, step: Deal, total: Any) -> tuple[Any, bool]:
        """The mean over all processes, by way of the CPU, and whether rank 0 wants to end. The learning rate is that of
        rank 0, whose callbacks may have changed it."""
        session, model, steps = self.session, self._model, self._steps
        rank = session.joined().rank
        own = total.numpy()
        share = step.weight(rank) * min(step.micro_batches, step.share(rank))
        averages = [variable.numpy().astype(np.float32).reshape(-1) * share for variable in self._averages]
        rate = 0.0 if steps.schedule is not None else float(steps.optimizer.learning_rate)
        words = [rate, float(bool(model.stop_training))] if rank == 0 else [0.0, 0.0]
        values = np.concatenate([own * step.weight(rank), *averages, np.array(words, np.float32)], dtype=np.float32)
        session.sum(values)
        mean = values[: own.size]
        if self._measured is not None:
            denominators, count, cost_s = self._measured
            begun = time.perf_counter()
            own_sqr = squared_norm(total, denominators) / count**2
            mean_sqr = squared_norm(tf.constant(mean), denominators)
            session.note(own_sqr, mean_sqr, cost_s + time.perf_counter() - begun)
        at = own.size
        for variable in self._averages:
            size = int(np.prod(variable.shape))
            variable.assign(values[at : at + size].reshape(variable.shape))
            at += size
        if steps.schedule is None and rank > 0:
            steps.optimizer.learning_rate.assign(values[-2])
        return tf.constant(mean), bool(values[-1])

    def _batch(self, numbers: np.ndarray[Any, Any]) -> tuple[Any, ...]:
        return tuple(
            keras.tree.map_structure(lambda leaf: None if leaf is None else tf.constant(leaf[numbers]), tree)
            for tree in self._data
        )

    # What a session asks for

    def _variables(self) -> dict[str, Any]:
        kinds = {
            "model": self._model.variables,
            "optimizer": self._model.optimizer.variables,
            "metrics": self._model.metrics_variables,
        }
        return {
            f"{kind}[{idx}] {variable.name}": variable
            for kind, variables in kinds.items()
            for idx, variable in enumerate(variables)
        }

    def capture(self) -> dict[str, np.ndarray[Any, Any]]:
        """Model, optimiser and metrics as NumPy arrays by name."""
        return {name: np.array(keras.ops.convert_to_numpy(one)) for name, one in self._variables().items()}

    def restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Puts back what was captured, here or in another process."""
        for name, variable in self._variables().items():
            variable.assign(arrays[name])
        self._is_handed = True

    def share(self) -> None:
        """Rank 0 gets what all have counted in their metrics."""
        group, counts = self.session.joined(), self._model.metrics_variables
        if group.world_size == 1 or not counts:
            return
        values = np.concatenate([keras.ops.convert_to_numpy(one).astype(np.float64).reshape(-1) for one in counts])
        group.sum(values)
        at = 0
        for variable in counts:
            size = int(np.prod(variable.shape))
            part = values[at : at + size].reshape(variable.shape)
            variable.assign(part if group.is_leader else np.zeros_like(part))
            at += size

    def regroup(self, rank: int) -> None:
        """Random numbers of ranks differ; whoever is rank 0 calls the callbacks."""
        if self._is_handed and rank > 0:
            for variable in self._model.variables:
                if "seed_generator_state" in variable.name:
                    state = keras.ops.convert_to_numpy(variable).copy()
                    state[0] += rank * _SEED_STRIDE
                    variable.assign(state)
            for variable in self._model.metrics_variables:
                variable.assign(np.zeros(variable.shape))
        self._is_handed = False
        if rank == 0 and self.session.in_loop and not self.callbacks.has_begun:
            self.callbacks.begin(self.session.user.get("callbacks", []), self.session.position.epoch)


def _leaves(tree: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(tree) if leaf is not None]


def _build(model: Any, batch: tuple[Any, ...]) -> None:
    """Makes all variables, of model, optimiser and metrics, without changing any."""
    x, y, sample_weight = batch
    predicted = model(x, training=False)
    model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=False)
    model.compute_metrics(x, y, predicted, sample_weight=sample_weight)
    model.reset_metrics()
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
