"""What a training of Keras cannot be."""

from __future__ import annotations

from typing import Any

import keras

from pollux._elastic.errors import UsageError

_BACKENDS = {
    "torch": "a Keras model is a torch.nn.Module there: train it with pollux.torch",
    "jax": "train its stateless_call() with pollux.jax",
}
_MEANS = ("mean", "sum_over_batch_size")


def check_backend() -> None:
    """Refuses what is not TensorFlow."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UsageError(
            f"Keras runs on {backend}; expected tensorflow (KERAS_BACKEND=tensorflow)"
            + (f"; {_BACKENDS[backend]}" if backend in _BACKENDS else "")
        )


def check_model(model: Any) -> None:
    """Refuses models whose steps would not be those of `px.fit`."""
    import tensorflow as tf

    if not isinstance(model, keras.Model):
        raise UsageError(f"px.fit of a {type(model).__name__}; expected a keras.Model")
    if not model.compiled or model.optimizer is None:
        raise UsageError("a model without an optimiser; call model.compile(optimizer=..., loss=...) first")
    if type(model).train_step is not keras.Model.train_step:
        raise UsageError(
            f"{type(model).__name__}.train_step() of its own, which applies gradients by itself; write compute_loss() "
            "instead, px.fit calls it"
        )
    if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
        raise UsageError("a strategy of tf.distribute with Pollux, which finds the processes itself; leave it out")
    if model.steps_per_execution != 1:
        raise UsageError(
            f"steps_per_execution={model.steps_per_execution} with Pollux, which looks at every step; leave it out"
        )
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError('a LossScaleOptimizer with Pollux; expected the policy "mixed_bfloat16", which needs none')
    if optimizer.gradient_accumulation_steps:
        raise UsageError(
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps} with Pollux: give px.fit the whole "
            "batch, and per_gpu what fits; leave it out"
        )
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in _MEANS:
            raise UsageError(
                f"a loss with reduction={reduction!r}; expected {' and '.join(_MEANS)}, since batches differ in size"
            )


def rule_for(optimizer: Any, scaling: Any) -> Any:
    """How the learning rate follows the batch, where the user leaves that open."""
    if scaling != "auto":
        return scaling
    if is_adam(optimizer):
        return "adamscale"
    if isinstance(optimizer, keras.optimizers.SGD):
        return "adascale"
    raise UsageError(
        f'no rule is known to suit {type(optimizer).__name__}; give scaling, such as "sqrt" for optimisers that '
        "normalise gradients"
    )


def is_adam(optimizer: Any) -> bool:
    """Whether it divides gradients by the root of a second moment."""
    return isinstance(optimizer, keras.optimizers.Adam | keras.optimizers.Nadam)
