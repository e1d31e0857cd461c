"""A model that FSDP2 has sharded, with its optimiser: what a training of it needs instead of DDP.

FSDP2 averages the gradients of a micro-batch over the processes that share a copy of the model, which leaves each of
them with its shard of the copy's gradient. From there it goes as with DDP: shards take the place of whole gradients,
copies that of processes. They are added up at the end of the backward pass, not during it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.autograd.variable import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

import torch
from torch import Tensor

from ._errors import CheckpointError, UsageError
from ._gradients import StepPlan
from ._group import Group
from ._part import Part, unused
from ._shards import local
from ._state import bare, load_module, load_optimizer


class ShardedPart(Part):
    """One model, the processes that share it, its optimiser, and the shards of its gradients."""

    _group: Group
    _is_queued = False

    def _join(self, group: Group) -> None:
        self._group = group
        self.ddp = self.module
        self._scatter = _WeightedScatter()
        for module in bare(self.module).modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(self._scatter)  # type: ignore[arg-type]
        self.accumulation.on_gradient = lambda parameter, gradient: self.reader.read_part(parameter, local(gradient))

    def _sync(self, is_last: bool) -> None:
        """FSDP2 always averages within a copy; between copies `begin_backward` sees to it."""

    def begin_micro_batch(self, plan: StepPlan, idx: int, emphasis: float) -> None:
        """The loop is about to get one of the micro-batches of a step."""
        super().begin_micro_batch(plan, idx, emphasis)
        self._scatter.weight = plan.shard_weights[idx] if plan.shard_weights else 1.0
        self._is_queued = False

    def begin_backward(self) -> None:
        """The backward pass has come to the model. FSDP2 has asked to be called at its end; this comes after it."""
        if not self._is_queued:
            self._is_queued = True
            Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._is_queued = False
        if not self.reader.is_last:
            return
        parameters: list[Tensor] = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if any(parameter.grad is None for parameter in parameters):
            raise UsageError(unused(self.module, advice=""))
        buckets = list(_buckets(parameters))
        for bucket in buckets:
            self.reader.hook(bucket)
        for bucket in buckets:
            bucket.put_back()

    def _has_no_gradient(self) -> bool:
        gradients = [local(parameter.grad) for parameter in self.module.parameters() if parameter.grad is not None]
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

    def __init__(self, parameters: list[Tensor], is_last: bool):
        self._parameters = parameters
        self._own = [local(parameter.grad) for parameter in parameters]
        self._is_last = is_last
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in self._own])
        sizes = [gradient.numel() for gradient in self._own]
        self._views = [view.view_as(own) for view, own in zip(self._buffer.split(sizes), self._own)]

    def buffer(self) -> Tensor:
        """All of them."""
        return self._buffer

    def parameters(self) -> list[Tensor]:
        """Whose they are."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """Each of them."""
        return self._views

    def is_last(self) -> bool:
        """Whether there are no others."""
        return self._is_last

    def put_back(self) -> None:
        """Where the optimiser looks for them."""
        torch._foreach_copy_(self._own, self._views)


def _buckets(parameters: list[Tensor]) -> Iterator[_ShardBucket]:
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        assert parameter.grad is not None
        by_type.setdefault(parameter.grad.dtype, []).append(parameter)
    for idx, alike in enumerate(by_type.values()):
        yield _ShardBucket(alike, idx == len(by_type) - 1)


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
