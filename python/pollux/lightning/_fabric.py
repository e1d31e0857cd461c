"""Fabric: the training loop is the user's, with Pollux's loops in it."""

from __future__ import annotations

from typing import Any

from lightning.fabric.strategies import SingleDeviceStrategy

import pollux.torch as px
import torch
from pollux.torch import UsageError

from ._place import Elastic, reduced


class ElasticFabricStrategy(Elastic, SingleDeviceStrategy):
    """For `lightning.Fabric`. It takes the options of `px.wrap`; loop over a px.DataLoader within px.epochs.

    >>> fabric = lightning.Fabric(strategy=ElasticFabricStrategy(checkpoint_dir="checkpoints"))
    >>> model, optimizer = fabric.setup(model, optimizer)
    """

    def setup_module_and_optimizers(
        self, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], scheduler: Any = None
    ) -> tuple[torch.nn.Module, list[torch.optim.Optimizer], Any]:
        """Makes a model and its optimiser adapt."""
        if len(optimizers) != 1:
            raise UsageError(f"fabric.setup with {len(optimizers)} optimisers and Pollux; expected one")
        scaler = getattr(self.precision, "scaler", None)
        model, optimizer = px.wrap(module, optimizers[0], scaler=scaler, scheduler=scheduler, **self.wrapping)
        return model, [optimizer], scheduler

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Refused: a model adapts with its optimiser."""
        raise UsageError("fabric.setup of a model without its optimiser and Pollux; expected setup(model, optimizer)")

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean or the sum over all processes."""
        return reduced(tensor, reduce_op)
