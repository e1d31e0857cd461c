"""An Accelerator for training loops of your own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import accelerate
from accelerate.utils import DistributedType, send_to_device
from torch.optim.lr_scheduler import LRScheduler

import pollux.torch as px
import torch
from pollux.torch import UsageError

from ._place import alone, bare, refuse

_ADVICE = {
    "gradient_accumulation_steps": "give px.DataLoader the whole batch, and per_gpu what fits; leave it out",
    "dispatch_batches": "every process reads its own samples; leave it out",
    "split_batches": "batches are dealt by Pollux; leave it out",
}


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` for a model and an optimiser that adapt. Options of `px.wrap` are given here.

    >>> accelerator = Accelerator(checkpoint_dir="checkpoints")
    >>> loader = px.DataLoader(dataset, 32, max_batch_size=256, per_gpu=(4, 64), shuffle=True)
    >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    >>> for epoch in px.epochs(10):
    ...     for batch in loader:
    ...         accelerator.backward(loss_function(model, batch))
    """

    def __init__(
        self,
        *args: Any,
        checkpoint_dir: str | None = None,
        checkpoint_every_s: float = 300.0,
        scaling: Any = "auto",
        **kwargs: Any,
    ):
        with alone():
            super().__init__(*args, **kwargs)
        if self.distributed_type != DistributedType.NO:
            raise UsageError(
                f"an Accelerator of type {self.distributed_type.value} with Pollux: parameters are replicated, as in "
                "DDP; expected GPUs and CPUs without DeepSpeed, FSDP, Megatron or TPUs"
            )
        steps = self.gradient_accumulation_steps
        config = self.dataloader_config
        refuse({"gradient_accumulation_steps": steps if steps > 1 else None}, _ADVICE)
        refuse({name: getattr(config, name) for name in ("dispatch_batches", "split_batches")}, _ADVICE)
        if self.device.type == "cuda":
            self.state.device = px.device()
            torch.cuda.set_device(self.device)
        self._wrapping = {
            "checkpoint_dir": checkpoint_dir,
            "checkpoint_every_s": checkpoint_every_s,
            "scaling": scaling,
        }

    def prepare(self, *objects: Any, **kwargs: Any) -> Any:
        """Makes one model and its optimiser adapt, with their schedulers; loaders put batches on the device."""
        models = [one for one in objects if isinstance(one, torch.nn.Module)]
        optimizers = [one for one in objects if isinstance(one, torch.optim.Optimizer)]
        if len(models) != len(optimizers) or len(models) > 1:
            raise UsageError(
                f"accelerator.prepare of {len(models)} models and {len(optimizers)} optimisers with Pollux; "
                "expected one of each in one call, with its schedulers and loaders, or loaders alone"
            )
        made: dict[int, Any] = {}
        if models:
            schedulers = [one for one in objects if isinstance(one, LRScheduler)]
            handler = self.ddp_handler
            options = handler.to_kwargs() if handler is not None else {}
            # With nobody else there, this is autocast, compilation and the device.
            prepared = self.prepare_model(models[0])
            elastic, optimizer = px.wrap(
                prepared, optimizers[0], scaler=self.scaler, scheduler=schedulers, **self._wrapping, **options
            )
            made = {id(models[0]): elastic, id(optimizers[0]): self.prepare_optimizer(optimizer)}
            made |= {id(one): one for one in schedulers}
        results = [made[id(one)] if id(one) in made else self._prepare_loader(one) for one in objects]
        return results[0] if len(results) == 1 else tuple(results)

    def _prepare_loader(self, one: Any) -> Any:
        if isinstance(one, px.DataLoader):
            return _OnDevice(one, self.device) if self.device_placement else one
        return super().prepare(one)

    @property
    def is_main_process(self) -> bool:
        """Whether this process is the first of the group at hand."""
        return px.rank() == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process is the first of the group at hand."""
        return px.rank() == 0

    @property
    def process_index(self) -> int:
        """The place of this process in the group at hand."""
        return px.rank()

    @property
    def sync_gradients(self) -> bool:
        """Whether the optimiser steps after the batch at hand."""
        return px.is_step_end()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once."""
        if px.rank() == 0:
            print(*args, **kwargs)

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The model itself."""
        return super().unwrap_model(bare(model), *args, **kwargs)

    def gather(self, tensor: Any) -> NoReturn:
        """Refused: processes have different numbers of samples."""
        _refuse_collective("gather")

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: processes have different numbers of samples."""
        _refuse_collective("reduce")

    def gather_for_metrics(self, input_data: Any, *args: Any, **kwargs: Any) -> Any:
        """As it is: every process evaluates all of a prepared loader."""
        return input_data

    def save_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: Pollux saves."""
        _refuse_state("save_state")

    def load_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: Pollux loads."""
        _refuse_state("load_state")


class _OnDevice:
    """A px.DataLoader whose batches are on the device."""

    def __init__(self, loader: px.DataLoader, device: torch.device):
        self.loader = loader
        self.device = device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield send_to_device(batch, self.device)


def _refuse_collective(name: str) -> NoReturn:
    raise UsageError(
        f"accelerator.{name} with Pollux: processes have different numbers of samples; use px.Mean, which weights them"
    )


def _refuse_state(name: str) -> NoReturn:
    raise UsageError(
        f"accelerator.{name} with Pollux: a training goes on by itself from Accelerator(checkpoint_dir=...); keep "
        "objects of your own with px.checkpoint_state"
    )
