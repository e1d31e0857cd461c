"""What all processes of a training have alike. One that differs trains another model, and nobody would notice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._errors import UsageError
from ._group import Group
from ._shards import local
from ._state import bare

if TYPE_CHECKING:
    from ._part import Part

DIFFERENCE_MAX = 0.01
"""Of a parameter's norm. GPUs of several kinds round differently; who trains apart is soon further away."""


def digest(*values: Any) -> int:
    """A number that a float holds exactly, the same in every process for what looks the same."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=6).digest(), "big")


def digest_of_order(order: Sequence[Any]) -> int:
    """Of the samples that a sampler has chosen."""
    try:
        chosen = torch.tensor(order, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return digest(list(order))  # They have names instead of numbers.
    return int.from_bytes(hashlib.blake2b(chosen.numpy().tobytes(), digest_size=6).digest(), "big")


def other_order_of(process: str, other: str) -> str:
    """What to say of processes that would use samples twice, and others never."""
    return (
        f"{process} has another order of samples than {other}; expected the same data set, seed and sampler in every "
        "process, and of a sampler's own random numbers that they come from its `generator` or begin with set_epoch()"
    )


def digest_of_settings(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Of learning rates and all other numbers that decide how an optimiser steps. Tensors are left out: to read one
    may take waiting for a GPU."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return digest([sorted((name, value) for name, value in group.items() if _is_plain(value)) for group in groups])


def _is_plain(value: Any) -> bool:
    return isinstance(value, float | int) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def refuse_different_models(group: Group, parts: Sequence[Part]) -> None:
    """All ranks have to be at the same step. What is compared of a parameter is its norm and how its halves differ."""
    if group.world_size == 1:
        return
    named = [pair for part in parts for pair in bare(part.module).named_parameters()]
    named = [(name, parameter) for name, parameter in named if parameter.is_floating_point()]
    rows = group.gather(_looks([parameter for _, parameter in named]))
    copies = [rows[first : first + group.shards] for first in range(0, len(rows), group.shards)]
    for rank, copy in enumerate(copies):
        for idx, (name, parameter) in enumerate(named):
            tolerance = max(DIFFERENCE_MAX, 16 * torch.finfo(parameter.dtype).eps)
            pairs = [(one[2 * idx : 2 * idx + 2], other[2 * idx : 2 * idx + 2]) for one, other in zip(copies[0], copy)]
            if any(_differ(one, other, tolerance) for one, other in pairs):
                raise UsageError(
                    f"{name} of rank {rank} is another than that of rank 0: something has changed the model in some "
                    "processes only, such as load_state_dict() under `if px.rank() == 0`; do it on every rank"
                )


def _differ(one: Sequence[float], other: Sequence[float], tolerance: float) -> bool:
    scale = max(one[0], other[0])
    return any(abs(ours - theirs) > tolerance * scale for ours, theirs in zip(one, other))


def _looks(parameters: Sequence[Tensor]) -> list[float]:
    if not parameters:
        return []
    found = list(_numbers(parameters))
    return [float(value) for value in torch.stack([value.to(found[0].device) for value in found]).tolist()]


def _numbers(parameters: Sequence[Tensor]) -> Iterator[Tensor]:
    for parameter in parameters:
        values = local(parameter.detach()).reshape(-1)
        dtype = torch.promote_types(values.dtype, torch.float32)
        yield torch.linalg.vector_norm(values, dtype=dtype)
        yield values[::2].sum(dtype=dtype) - values[1::2].sum(dtype=dtype)
