"""Pollux for Lightning: strategies for `Trainer` and `Fabric` whose batch, learning rate and GPUs adapt.

>>> from pollux.lightning import ElasticStrategy
>>> loader = px.DataLoader(dataset, batch_size=32, max_batch_size=256, per_gpu=(4, 64), shuffle=True)
>>> lightning.Trainer(strategy=ElasticStrategy(), max_epochs=10).fit(model, loader)

The same script runs alone, under torchrun and under `pollux submit`.
"""

from ._fabric import ElasticFabricStrategy
from ._strategy import ElasticStrategy

__all__ = ["ElasticFabricStrategy", "ElasticStrategy"]
