"""A model that FSDP2 has sharded, with its optimiser: what a training of it needs instead of DDP.

FSDP2 averages the gradients of a micro-batch over the processes that share a copy of the model, which leaves each of
them with its shard of the copy's gradient. From there it goes as with DDP: shards take the place of whole gradients,
copies that of processes. They are added up at the end of the backward pass, not during it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

import torch
from torch import Tensor

from ._errors import CheckpointError, UsageError
from ._gradients import StepPlan
from ._group import Group
from ._part import Part, trained_by, unused
from ._shards import local
from ._state import bare, load_module, load_optimizer


class ShardedPart(Part):
    """One model, the processes that share it, its optimiser, and the shards of its gradients."""

    _group: Group

    def _join(self, group: Group) -> None:
        self.ddp = self.module
        self._scatter = _WeightedScatter()
        for module in bare(self.module).modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(self._scatter)  # type: ignore[arg-type]

    def _sync(self, is_last: bool) -> None:
        """FSDP2 always averages within a copy; between copies `_begin_sync` sees to it."""

    def _plan(self, plan: StepPlan) -> StepPlan:
        """With other copies of the model, shards are weighted when they are added up."""
        return plan if self.reader.is_alone else replace(plan, scale=1.0)

    def begin_micro_batch(self, idx: int, emphasis: float) -> None:
        """The loop is about to get one of the micro-batches of a step."""
        super().begin_micro_batch(idx, emphasis)
        weights = self.reader.plan.shard_weights
        self._scatter.weight = weights[idx] if weights else 1.0

    def _begin_sync(self) -> None:
        """The backward pass is through. FSDP2 has asked to be called then; this comes after it."""
        self._is_queued = False
        parameters = [parameter for parameter in self._parameters if parameter.requires_grad]
        if any(parameter.grad is None for parameter in parameters):
            raise UsageError(unused(self.module, advice=""))
        self.reader.begin_sync()
        if not self.reader.is_alone:
            buckets = [_ShardBucket(alike) for alike in _by_type(parameters)]
            works = [self._group.start_sum(bucket.weighted(self.reader.plan.weight)) for bucket in buckets]
            for work, bucket in zip(works, buckets):
                work.wait()
                bucket.put_back()
        self.reader.end_sync(self._measured(parameters))

    def _has_no_gradient(self) -> bool:
        gradients = [local(each.grad) for each in trained_by(self.optimizer) if each.grad is not None]
        return self._group.sum_of_shards([float(any(bool(gradient.any()) for gradient in gradients))]) == [0.0]

    def is_finite(self) -> bool:
        """Whether all parameters are numbers, in all shards."""
        is_finite = all(bool(local(parameter).isfinite().all()) for parameter in self.module.parameters())
        return self._group.sum_of_shards([float(not is_finite)]) == [0.0]

    def state(self, *, whole: bool) -> dict[str, Any]:
        """Model and optimiser: `whole`, which takes all that share them, or this process's shards of them."""
        self._refuse_strange_state()
        state: dict[str, Any] = _mapped(super().state(whole=whole), self._gathered if whole else local)
        return state

    def _gathered(self, value: Any) -> Any:
        """The whole of a tensor for the first of those who share it; anything else as it is."""
        if not isinstance(value, DTensor):
            return value
        whole = value.full_tensor()
        return whole.cpu() if self._group.shard == 0 else None

    def load(self, state: dict[str, Any], where: str, *, whole: bool) -> None:
        """Takes up what `state` gave, the whole of it with any number of shards."""
        own = bare(self.module).state_dict()
        model = {name: _like(value, own.get(name), whole) for name, value in state["model"].items()}
        load_module(self.module, model, where)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = state["optimizer"]["state"]
        if len(parameters) <= max(moments, default=-1):
            raise CheckpointError(
                f"{where} is of another optimiser, with more parameters; remove the folder or the change"
            )
        placed = {
            idx: {name: _like(value, parameters[idx], whole) for name, value in moment.items()}
            for idx, moment in moments.items()
        }
        load_optimizer(self.optimizer, {**state["optimizer"], "state": placed}, where)

    def _refuse_strange_state(self) -> None:
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, DTensor) and value.shape != parameter.shape:
                    raise CheckpointError(
                        f"{type(self.optimizer).__name__} keeps {name!r} in another shape than its parameter, which "
                        "cannot be sharded anew; expected an optimiser like SGD and AdamW"
                    )


class _WeightedScatter:
    """FSDP2's reduce-scatter, for shards that have different numbers of samples."""

    def __init__(self) -> None:
        self.weight = 1.0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """As FSDP2 does by itself."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """The same, with this process's gradients weighted."""
        if self.weight != 1.0:
            input_tensor.mul_(self.weight)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, group=group, op=op, async_op=async_op)


class _ShardBucket:
    """Shards of gradients of one type, copied beside each other."""

    def __init__(self, parameters: list[Tensor]):
        self._own = [local(parameter.grad) for parameter in parameters]
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in self._own])

    def weighted(self, weight: float) -> Tensor:
        """All of them, multiplied by what this copy of the model counts for."""
        return self._buffer.mul_(weight)

    def put_back(self) -> None:
        """Where the optimiser looks for them."""
        parts = self._buffer.split([gradient.numel() for gradient in self._own])
        torch._foreach_copy_(self._own, [part.view_as(own) for part, own in zip(parts, self._own)])


def _by_type(parameters: list[Tensor]) -> Iterable[list[Tensor]]:
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        assert parameter.grad is not None
        by_type.setdefault(parameter.grad.dtype, []).append(parameter)
    return by_type.values()


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return change(value)


def _like(value: Any, own: Any, whole: bool) -> Any:
    """What was saved, sharded as what is here is; anything else as it is."""
    if not isinstance(own, DTensor) or not isinstance(value, Tensor):
        return value
    mesh, shard = own.device_mesh, local(own)
    if value.shape != (own.shape if whole else shard.shape):
        return value
    if whole:
        [placement] = own.placements
        assert isinstance(placement, Shard)
        chunks, rank = value.chunk(mesh.size(), placement.dim), mesh.get_local_rank()
        value = chunks[rank] if rank < len(chunks) else value.narrow(placement.dim, 0, 0)
    # A copy: not a view of the whole, nor of the file that it is in.
    value = value.to(shard.device, copy=True)
    return DTensor.from_local(value, mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride())
