"""Steps of a Keras model on TensorFlow, taken apart: gradients as one flat array, and their way into the optimiser."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pollux._elastic.errors import UsageError

from ._refusals import is_adam


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The user's schedule, followed by progress instead of steps, times what the batch deserves."""

    def __init__(self, schedule: Any):
        self.schedule = schedule
        self.progress = tf.Variable(0.0, trainable=False, dtype=tf.float32)
        self.factor = tf.Variable(1.0, trainable=False, dtype=tf.float32)

    def __call__(self, step: Any) -> Any:
        return self.schedule(self.progress) * self.factor

    def get_config(self) -> dict[str, Any]:
        """As the user's own."""
        config: dict[str, Any] = self.schedule.get_config()
        return config


class Steps:
    """The two halves of a step, compiled."""

    def __init__(self, model: Any):
        self.model = model
        self.optimizer = model.optimizer
        self._loss = next(metric for metric in model.metrics if metric.name == "loss")
        self._used: list[Any] = []
        """Variables that have gradients."""
        rate = self.optimizer._learning_rate
        self.schedule = Schedule(rate) if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None
        if self.schedule is not None:
            self.optimizer.learning_rate = self.schedule
        compiled = not model.run_eagerly
        options = {"reduce_retracing": True, "jit_compile": model.jit_compile}
        self.gradients = tf.function(self._gradients, **options) if compiled else self._gradients
        self.update = tf.function(self._update, **options) if compiled else self._update

    def close(self) -> None:
        """Gives the user's schedule back."""
        if self.schedule is not None:
            self.optimizer.learning_rate = self.schedule.schedule

    def _gradients(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The loss of a micro-batch, its gradients and what metrics make of it."""
        model = self.model
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=True)
        samples = tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
        self._loss.update_state(loss, sample_weight=samples)
        variables = model.trainable_variables
        found = tape.gradient(loss, [variable.value for variable in variables])
        self._used = [variable for variable, gradient in zip(variables, found) if gradient is not None]
        parts = [tf.reshape(tf.cast(gradient, tf.float32), [-1]) for gradient in found if gradient is not None]
        if not parts:
            raise UsageError("the loss does not depend on any trainable variable; nothing can be learned")
        logs = model.compute_metrics(x, y, predicted, sample_weight=sample_weight)
        return loss, tf.concat(parts, 0), logs

    def _update(self, flat: Any, factor: Any) -> None:
        """A step of the optimiser."""
        sizes = [int(np.prod(variable.shape)) for variable in self._used]
        parts = tf.split(flat, sizes)
        gradients = [
            tf.cast(tf.reshape(part, variable.shape), variable.dtype) for part, variable in zip(parts, self._used)
        ]
        optimizer = self.optimizer
        if self.schedule is not None:
            self.schedule.factor.assign(factor)
            optimizer.apply_gradients(zip(gradients, self._used))
            return
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        optimizer.learning_rate.assign(rate * tf.cast(factor, rate.dtype))
        optimizer.apply_gradients(zip(gradients, self._used))
        optimizer.learning_rate.assign(rate)

    def denominators(self) -> Any:
        """What Adam divides each gradient by; nothing for others."""
        optimizer = self.optimizer
        if not is_adam(optimizer):
            return None
        second = {
            id(variable): one for variable, one in zip(self.model.trainable_variables, _second_moments(optimizer))
        }
        correction = max(1.0 - float(optimizer.beta_2) ** int(optimizer.iterations), 1e-12)
        parts = [tf.reshape(tf.cast(second[id(variable)], tf.float32), [-1]) for variable in self._used]
        return tf.sqrt(tf.concat(parts, 0) / correction) + float(optimizer.epsilon)


def _second_moments(optimizer: Any) -> list[Any]:
    return [variable for variable in optimizer.variables if variable.name.endswith("_velocity")]


def squared_norm(flat: Any, denominators: Any) -> float:
    """Of gradients as one array; preconditioned where there are denominators."""
    divided = flat if denominators is None else flat / denominators
    return float(tf.reduce_sum(divided * divided))
