"""Pollux for Keras: `fit` that adapts to its GPUs, and lets a scheduler change them.

>>> import pollux.keras as px
>>> model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
>>> history = px.fit(model, images, labels, batch_size=128, max_batch_size=4096, per_gpu=(16, 512), epochs=90)

The same script runs alone, as several processes and under `pollux submit`. Keras has to run on TensorFlow.
"""

from pollux._elastic.errors import CheckpointError, DivergedError, UsageError
from pollux._elastic.status import Status

from ._fit import fit, rank, status, world_size

__all__ = ["CheckpointError", "DivergedError", "Status", "UsageError", "fit", "rank", "status", "world_size"]
