"""Pollux for PyTorch: a training script that adapts itself to its GPUs, and lets a scheduler change them.

>>> import pollux.torch as px
>>> model, optimizer = px.wrap(model, optimizer)
>>> loader = px.DataLoader(dataset, batch_size=128, max_batch_size=4096, per_gpu=(16, 512), shuffle=True)
>>> for epoch in px.epochs(90):
...     for inputs, targets in loader:
...         loss = loss_function(model(inputs), targets)
...         optimizer.zero_grad()
...         loss.backward()
...         optimizer.step()

The same script runs alone, under torchrun and under `pollux submit`.
"""

from pollux._elastic.status import Status

from ._device import device
from ._elastic_loader import ElasticLoader
from ._errors import CheckpointError, DivergedError, UsageError
from ._loader import DataLoader, epochs, steps
from ._metrics import Mean
from ._module import ElasticModule
from ._shards import shard_mesh
from ._wrap import barrier, checkpoint_state, is_step_end, rank, status, world_size, wrap

__all__ = [
    "CheckpointError",
    "DataLoader",
    "DivergedError",
    "ElasticLoader",
    "ElasticModule",
    "Mean",
    "Status",
    "UsageError",
    "barrier",
    "checkpoint_state",
    "device",
    "epochs",
    "is_step_end",
    "rank",
    "shard_mesh",
    "status",
    "steps",
    "world_size",
    "wrap",
]
