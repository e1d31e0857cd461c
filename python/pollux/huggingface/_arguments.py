"""What a Trainer is told, with the bounds of the batch."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from typing import Any

import transformers

import torch
from pollux.torch import UsageError, device, rank

from ._place import alone, refuse

_ADVICE = {
    "deepspeed": "parameters are replicated, as in DDP; leave it out",
    "fsdp": "parameters are replicated, as in DDP; leave it out",
    "parallelism_config": "parameters are replicated, as in DDP; leave it out",
    "auto_find_batch_size": "samples per GPU are lowered when memory is short; leave it out",
    "dataloader_drop_last": "every sample is used; leave it out",
    "include_num_input_tokens_seen": "each process would count its own tokens only; leave it out",
    "dispatch_batches": "every process reads its own samples; leave it out",
    "split_batches": "batches are dealt by Pollux; leave it out",
    "use_configured_state": "Pollux meets the other processes; leave it out",
    "enable_jit_checkpoint": "a training that is asked to end saves by itself; leave it out",
    "ignore_data_skip": "a training goes on exactly where it was; leave it out",
}


@dataclass
class ArgumentsMixin:
    """Put before a class of training arguments, so that its Trainer can adapt.

    `per_device_train_batch_size` is the most that one GPU gets at a time, and `per_device_train_batch_size_min` the
    fewest; `batch_size` is that of a whole step over all GPUs, which the learning rate was chosen for (left out, as
    much as one GPU gets), and `max_batch_size` how far it may grow (left out, it does not).
    """

    batch_size: int | None = None
    max_batch_size: int | None = None
    per_device_train_batch_size_min: int = 1
    scaling: str = "auto"
    checkpoint_dir: str | None = None
    checkpoint_every_s: float = 300.0

    def __post_init__(self) -> None:
        mine: Any = self
        steps = mine.gradient_accumulation_steps
        if steps != 1:
            raise UsageError(
                f"gradient_accumulation_steps={steps} with Pollux: give batch_size={mine.per_device_train_batch_size} "
                f"* {steps} * GPUs, and steps are accumulated where per_device_train_batch_size asks for it"
            )
        names = ("deepspeed", "fsdp", "parallelism_config", "auto_find_batch_size", "dataloader_drop_last")
        refuse(
            {name: getattr(mine, name, None) for name in (*names, "ignore_data_skip", "enable_jit_checkpoint")}, _ADVICE
        )
        if mine.include_num_input_tokens_seen not in (False, "no"):
            refuse({"include_num_input_tokens_seen": mine.include_num_input_tokens_seen}, _ADVICE)
        if transformers.utils.is_torch_xla_available():
            raise UsageError("a TPU with Pollux: expected GPUs and CPUs")
        # What a training goes on with is in Pollux's own checkpoints, which any number of processes can read.
        mine.save_only_model = True
        super().__post_init__()  # type: ignore[misc]
        config = mine.accelerator_config
        refuse({name: getattr(config, name, None) for name in ("dispatch_batches", "split_batches")}, _ADVICE)
        if self.batch_size is None:
            self.batch_size = mine.per_device_train_batch_size

    @property
    def trains_by_progress(self) -> bool:
        """Whether training ends with the progress of `max_steps` steps, and not with a whole epoch."""
        mine: Any = self
        return bool(mine.max_steps > 0 or mine.num_train_epochs != math.floor(mine.num_train_epochs))

    @functools.cached_property
    def _setup_devices(self) -> torch.device:
        mine: Any = self
        configured = getattr(mine.accelerator_config, "use_configured_state", None)
        refuse({"use_configured_state": configured}, _ADVICE)
        with alone():
            found: torch.device = super()._setup_devices  # type: ignore[misc]
        if found.type == "cuda":
            # A process has one GPU, whatever else the machine has.
            found = mine.distributed_state.device = device()
            mine._n_gpu = 1
            torch.cuda.set_device(found)
        return found

    @property
    def process_index(self) -> int:
        """The place of this process in the group at hand."""
        return rank()

    @property
    def local_process_index(self) -> int:
        """The place of this process on its machine."""
        return int(os.environ.get("LOCAL_RANK", "0"))


@dataclass
class TrainingArguments(ArgumentsMixin, transformers.TrainingArguments):
    """`transformers.TrainingArguments` with the bounds of the batch."""
