"""Pollux for JAX: a training script that adapts itself to its GPUs, and lets a scheduler change them.

>>> import pollux.jax as px
>>> training = px.Training(state, data, batch_size=128, max_batch_size=4096, per_gpu=(16, 512))
>>> for epoch in training.epochs(90):
...     for step in training.steps():
...         loss, gradients = step.gradients(lambda batch: value_and_grad(training.state["params"], batch))
...         training.state = update(training.state, gradients, step.learning_rate_factor)

The same script runs alone, as several processes and under `pollux submit`.
"""

from pollux._elastic.errors import CheckpointError, DivergedError, UsageError
from pollux._elastic.status import Status

from ._training import Step, Training, adam_denominators

__all__ = [
    "CheckpointError",
    "DivergedError",
    "Status",
    "Step",
    "Training",
    "UsageError",
    "adam_denominators",
]
