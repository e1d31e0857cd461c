"""AdaptDL's names for PyTorch, on `pollux.torch`."""

from __future__ import annotations

from .. import collective
from .accumulator import Accumulator
from .data import AdaptiveDataLoader, ElasticSampler, current_dataloader
from .epoch import current_epoch, finished_epochs, remaining_epochs_until
from .parallel import AdaptiveDataParallel

__all__ = [
    "Accumulator",
    "AdaptiveDataLoader",
    "AdaptiveDataParallel",
    "ElasticSampler",
    "current_dataloader",
    "current_epoch",
    "finished_epochs",
    "init_process_group",
    "remaining_epochs_until",
]


def init_process_group(
    backend: str, init_method: str | None = None, world_size: int | None = None, rank: int | None = None
) -> None:
    """Waits for the other processes. Without arguments they are those that AdaptDL's variables, torchrun or Pollux tell
    of. The backend follows from the devices: NCCL for GPUs, Gloo for the rest."""
    address, port = None, None
    if init_method is not None:
        scheme, _, place = init_method.partition("://")
        address, _, digits = place.rpartition(":")
        if scheme != "tcp" or not address or not digits.isdigit():
            raise ValueError(f"init_method {init_method!r}; expected tcp://HOST:PORT")
        port = int(digits)
    collective.initialize(address, port, rank, world_size)
