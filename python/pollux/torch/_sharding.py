"""Which sharded models can be trained, and what to change of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._errors import UsageError
from ._part import Part
from ._shards import Shards, current_shards
from ._state import bare

_MESH = "expected fully_shard(..., mesh=px.shard_mesh()); Pollux adds gradients up over replicas"

Models = Sequence[tuple[torch.nn.Module, torch.optim.Optimizer]]


def part_class() -> type[Part]:
    """What a model is trained through: DDP, or FSDP2 where there is a mesh for it."""
    if current_shards() is None:
        return Part
    from ._sharded_part import ShardedPart  # With what it imports it takes a second.

    return ShardedPart


def check_sharding(models: Models, scaler: Any, ddp_options: dict[str, Any]) -> None:
    """Refuses what would not be trained as it is meant."""
    shards = current_shards()
    for model, _ in models:
        if any(type(layer).__name__ == "FullyShardedDataParallel" for layer in model.modules()):
            raise UsageError(f"px.wrap of a model with FullyShardedDataParallel, which is FSDP1; {_MESH}")
        if shards is None and any(map(_is_sharded, model.parameters())):
            raise UsageError(f"px.wrap of a model that is sharded over a mesh of its own; {_MESH}")
        if shards is not None:
            _check_model(bare(model), shards)
    if shards is None:
        return
    if len(models) > 1:
        raise UsageError(f"px.wrap of {len(models)} models with px.shard_mesh(); expected one")
    if scaler is not None:
        raise UsageError(
            "px.wrap(scaler=...) with px.shard_mesh(): every shard would see other overflows; leave it out, and give "
            "fully_shard a MixedPrecisionPolicy with torch.bfloat16"
        )
    if ddp_options:
        raise UsageError(
            f"px.wrap({next(iter(ddp_options))}=...) with px.shard_mesh(), where there is no DDP; leave it out"
        )


def _check_model(model: torch.nn.Module, shards: Shards) -> None:
    if not hasattr(model, "set_custom_reduce_scatter"):
        is_fsdp = hasattr(model, "set_requires_gradient_sync")
        raise UsageError(
            "px.wrap of a model sharded by a PyTorch without FSDPModule.set_custom_reduce_scatter; use a newer one"
            if is_fsdp
            else "px.wrap after px.shard_mesh() of a model that is not sharded: processes that share it would train it "
            "apart; call fully_shard(model, mesh=px.shard_mesh()) on the model itself, after its layers"
        )
    for name, parameter in model.named_parameters():
        if not _is_sharded(parameter):
            if parameter.requires_grad:
                raise UsageError(
                    f"parameter {name!r} is not sharded: every process would train it by itself; leave it to "
                    "fully_shard(model, mesh=px.shard_mesh()), or freeze it with requires_grad_(False)"
                )
            continue
        mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
        if mesh.ndim != 1 or mesh.size() != shards.count:
            kind = f"a mesh of {' x '.join(map(str, mesh.shape))} processes"
            raise UsageError(f"parameter {name!r} is on {kind}, as HSDP and tensor parallelism have it; {_MESH}")
        if not all(placement.is_shard() for placement in parameter.placements):  # type: ignore[attr-defined]
            raise UsageError(f"parameter {name!r} is replicated over the mesh, not sharded; {_MESH}")
        if parameter.device.type != mesh.device_type:
            raise UsageError(
                f"parameter {name!r} is on {parameter.device.type}, and its mesh on {mesh.device_type}, as "
                "CPUOffloadPolicy has it; leave the policy out, and put the model on px.device()"
            )


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "device_mesh")
