"""Where the trainings of the self-test run: on what the machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch.distributed as dist

import torch

PROCESSES_MAX = 4
"""More would show nothing more, and take longer."""


@dataclass(frozen=True)
class Place:
    """So many processes, each on a GPU of its own or all on the processors."""

    processes: int
    on_gpus: bool

    def __str__(self) -> str:
        return f"{self.processes} x {'gpu' if self.on_gpus else 'cpu'}"

    def environment(self, slot: int) -> dict[str, str]:
        """What shows a process its GPU, and no other."""
        return {"CUDA_VISIBLE_DEVICES": _visible()[slot] if self.on_gpus else ""}


def alone() -> Place:
    """One process."""
    return Place(1, on_gpus=torch.cuda.is_available())


def together() -> Place:
    """Several. Two processes cannot share a GPU, so that a machine with one runs them on its processors."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() and dist.is_nccl_available() else 0
    return Place(min(gpus, PROCESSES_MAX), on_gpus=True) if gpus > 1 else Place(2, on_gpus=False)


def machine() -> str:
    """What this machine has, in a line."""
    cpus = f"{len(os.sched_getaffinity(0))} CPUs"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__}, {cpus}, no GPU, gloo"
    names = {torch.cuda.get_device_name(idx) for idx in range(torch.cuda.device_count())}
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none"
    gpus = f"{torch.cuda.device_count()} x {', '.join(sorted(names))}"
    return f"torch {torch.__version__}, {cpus}, {gpus}, NCCL {nccl}"


def _visible() -> list[str]:
    """Names of the GPUs that this process may use, as it would write them itself."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",")]
    return [str(idx) for idx in range(torch.cuda.device_count())]
