"""Pollux for Hugging Face: `Trainer` and `Accelerator` whose batch, learning rate and GPUs adapt while they train.

>>> from pollux.huggingface import Trainer, TrainingArguments
>>> arguments = TrainingArguments("out", batch_size=32, max_batch_size=256, per_device_train_batch_size=16)
>>> Trainer(model, arguments, train_dataset=dataset).train()

The same script runs alone, under torchrun and under `pollux submit`.
"""

from ._accelerator import Accelerator
from ._arguments import ArgumentsMixin, TrainingArguments
from ._flow import FlowCallback
from ._trainer import Trainer, TrainerMixin

__all__ = ["Accelerator", "ArgumentsMixin", "FlowCallback", "Trainer", "TrainerMixin", "TrainingArguments"]
