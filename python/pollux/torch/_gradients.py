"""What the gradients of a step tell, looked at as they come.

Autograd has each gradient before DDP adds up those of all ranks. In some of the steps they are measured there: the
squared norm of a rank's own gradient, and, once DDP is through, that of the mean. All other steps are DDP's alone. A
process that is alone has no other to compare with: it compares the micro-batches of a step with the whole of it. Two
steps in a row would not do: between them the parameters move, which looks like noise, and the more so the larger the
batch and the learning rate that follow from it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ._clock import CostMeter, GpuMark, Mark, StepClock
from ._errors import UsageError
from ._preconditioner import Preconditioner
from ._shards import local
from ._streams import Handed, collect

SPARSE = "{what}, which is not averaged with that of other processes; make the layer with sparse=False"
ARRIVAL_S = 5.0
"""What a GPU that is only behind may take to be through with a step when another rank is lost."""
NCCL_ERRORS, NCCL_GIVES_UP = "TORCH_NCCL_ASYNC_ERROR_HANDLING", ("1", "2")
"""What PyTorch does about errors of NCCL, and where that ends communication without ending the process at once."""
MEASURED_ELEMENTS_MAX = 1 << 22
"""Of gradients that are measured together: fewer calls, and not much memory."""


@dataclass
class Norms:
    """Squared norms of some steps."""

    own_sqr: list[float] = field(default_factory=list)
    mean_sqr: list[float] = field(default_factory=list)
    is_whole: bool = True
    """Whether this process had its share in all of them."""


@dataclass
class StepPlan:
    """How the backward pass at hand is to be treated."""

    weight: float = 1.0
    """What this process's gradient counts for in the sum over all."""
    scale: float = 1.0
    """What it is multiplied by before it is read, and before the mean over all is taken."""
    micro_batches: int = 1
    micro_batches_max: int = 1
    """Of any process: some may have too few samples for as many."""
    measure: bool = False
    shard_weights: list[float] = field(default_factory=list)
    """Of this process among those that share its copy of the model, by micro-batch."""


class GradientReader:
    """What was measured of gradients, and which of them nobody has used yet."""

    def __init__(
        self,
        clock: StepClock[Any],
        preconditioner: Preconditioner | None,
        loss_scale: Callable[[torch.device], Tensor | None],
    ):
        self._clock = clock
        self._preconditioner = preconditioner
        self._loss_scale = loss_scale
        self.plan = StepPlan()
        self.is_allowed = False
        self.is_last = True
        """Whether the step at hand ends with this micro-batch."""
        self.is_pending = False
        """Whether there are gradients that nobody has used or thrown away."""
        self.backwards = 0
        self.is_alone = True
        self.is_syncing = False
        """Whether the mean over all ranks is waited for. If that ends with an error, another rank is lost."""
        self.keeps_gradients = True
        """Whether DDP leaves gradients as they are that it has taken."""
        self.costs = CostMeter()
        self._own: list[Handed] = []
        self._before_part = 0
        """Norms of the micro-batches before the one at hand."""
        self._waiting: list[tuple[Tensor, Handed]] = []
        """Parameters and gradients that are to be measured together."""
        self._waiting_elements = 0
        self._is_read = False
        """Whether the step is through: what comes after it is of the loss of another model."""
        self._is_left_out = False
        self._found: Handed | None = None
        """Norms of the step at hand."""
        self._measured: list[Handed] = []
        self._is_whole = True
        self._arrival: Mark | None = None
        """When the last mean was there. A GPU may still be waiting for it."""

    def regroup(self, is_alone: bool) -> None:
        """Gradients are those of another group from now on."""
        self.is_alone = is_alone
        self.reset()

    def reset(self) -> None:
        """Forgets all that belongs to a group that is over."""
        self._forget_own()
        self._measured, self._is_whole, self._arrival, self.is_syncing = [], True, None, False
        if self._preconditioner is not None:
            self._preconditioner.read_steps()

    def _forget_own(self) -> None:
        self._own, self._before_part = [], 0
        self._waiting, self._waiting_elements = [], 0

    def take_norms(self) -> Norms:
        """What was measured since it was taken last. Only here a GPU is waited for."""
        if self._preconditioner is not None:
            self._preconditioner.read_steps()
        measured, self._measured = self._measured, []
        is_whole, self._is_whole = self._is_whole, True
        if not measured:
            return Norms(is_whole=is_whole)
        own_sqr, mean_sqr = torch.stack(collect(measured)).T.tolist()
        return Norms(own_sqr, mean_sqr, is_whole)

    def begin(self, plan: StepPlan) -> None:
        """A step begins."""
        is_settled = self._preconditioner is None or self._preconditioner.is_settled()
        self.plan = plan if is_settled else replace(plan, measure=False)
        self._forget_own()
        self._is_read = self._is_left_out = False
        self._found = None

    def keep(self) -> None:
        """The optimiser has made its step: what was measured in it counts, unless a process had no share in it."""
        self._is_whole &= self.is_alone or not self._is_left_out
        if self._found is not None:
            self._measured.append(self._found)
            self._found = None

    def throw_away(self) -> None:
        """The gradients at hand are to be forgotten; if nobody has used them, so is what was measured of them."""
        if self.is_pending:
            self._found = None
        self.is_pending = False

    def leave_out(self) -> None:
        """This process has thrown a part of its step away: the rest says nothing, and counts for nothing."""
        self._is_left_out = True

    def begin_part(self) -> None:
        """A micro-batch begins."""
        self._before_part = len(self._own)

    def discard_part(self) -> None:
        """The user throws the gradients of the micro-batch at hand away."""
        del self._own[self._before_part :]

    def read_part(self, parameter: Tensor, gradient: Tensor) -> None:
        """Called for every gradient of every micro-batch of a step that has several, before anything changes it."""
        if self.is_alone and self._measures():
            with self.costs.span(gradient.device):
                self._own.append(Handed(self._norms([parameter], [local(gradient)])))

    def read_own(self, parameter: Tensor, gradient: Tensor) -> None:
        """Called for every gradient of this process's share of a step, once nothing but DDP changes it any more."""
        if self.is_alone or not self._measures():
            return
        gradient = local(gradient)
        self._waiting.append((parameter, Handed(gradient)))
        self._waiting_elements += gradient.numel()
        # A view may be one of DDP's buckets, to which those of other ranks are added.
        if not self.keeps_gradients or gradient._is_view() or self._waiting_elements > MEASURED_ELEMENTS_MAX:
            self._read_waiting()

    def _read_waiting(self) -> None:
        waiting, self._waiting, self._waiting_elements = self._waiting, [], 0
        self._own += self._read((parameter, handed.here()) for parameter, handed in waiting)

    def _read(self, gradients: Iterable[tuple[Tensor, Tensor]]) -> list[Handed]:
        norms = []
        for parameters, alike in _together(gradients):
            with self.costs.span(alike[0].device):
                norms.append(Handed(self._norms(parameters, alike)))
        return norms

    def begin_backward(self) -> None:
        """A backward pass has come to the model."""
        if not self.is_allowed:
            raise UsageError(
                "backward() outside of a loop over px.DataLoader: nobody knows how many samples it stands for; "
                "train inside of `for batch in loader`, evaluate under torch.no_grad()"
            )
        if self.is_last and self.is_pending:
            raise UsageError(
                "backward() again before optimizer.step() or zero_grad(); add the losses of a batch and step for every "
                "batch: for a larger one raise batch_size or max_batch_size, and gradients are accumulated by "
                "themselves where per_gpu asks for it"
            )

    def begin_sync(self) -> None:
        """This process has gradients; those of the others may still come."""
        self._read_waiting()
        if not self.is_alone:
            self._clock.computed()
            self.is_syncing = True

    def leave_sync(self) -> None:
        """There will be more gradients of this process before there is a mean."""
        self._clock.forget_computed()
        self.is_syncing = False

    def end_sync(self, parameters: Iterable[Tensor]) -> None:
        """The gradients of these are the means over all ranks."""
        self._read_waiting()
        if not self.is_alone:
            self._arrival = self._clock.synced()
            self.is_syncing = False
        measures, own = self._measures(), self._own
        self._is_read = True
        self.is_pending = True
        self.backwards += 1
        self._forget_own()
        if not measures or not own:
            return
        gradients = ((parameter, local(parameter.grad)) for parameter in parameters if parameter.grad is not None)
        mean_sqr = _sum_of_squares(self._read(gradients))
        # Alone, norms are those of micro-batches; otherwise they are of the sum of them, as it was scaled.
        parts = self.plan.micro_batches
        own_sqr = _sum_of_squares(own) / (parts if self.is_alone else (parts * self.plan.scale) ** 2)
        norms = torch.stack((own_sqr.to(mean_sqr.device), mean_sqr))
        scale = self._loss_scale(norms.device)
        self._found = Handed(norms if scale is None else norms / scale.square())

    def _measures(self) -> bool:
        """Whether the gradients at hand are to be measured."""
        return self.plan.measure and not (self._is_read or self._is_left_out)

    def has_arrived(self, limit_s: float = ARRIVAL_S) -> bool:
        """Whether the mean of the last step has come from all ranks. A GPU runs behind: it may already have been told
        to update parameters with a mean that will never come. Where NCCL gives communication up by itself, the GPU goes
        on without a mean, and nobody can tell."""
        if isinstance(self._arrival, GpuMark) and os.environ.get(NCCL_ERRORS) in NCCL_GIVES_UP:
            return False
        deadline = time.monotonic() + limit_s
        while self._arrival is not None and not self._arrival.is_past():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _norms(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        """As the optimiser sees gradients."""
        if self._preconditioner is None:
            return _norms(gradients)
        return _norms(torch._foreach_div(list(gradients), self._preconditioner.denominators(parameters)))


def _together(gradients: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Parameters and gradients of one device and type, as many as are measured at once."""
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    elements: Counter[tuple[torch.device, torch.dtype]] = Counter()
    for parameter, gradient in gradients:
        kind = gradient.device, gradient.dtype
        parameters, alike = groups.setdefault(kind, ([], []))
        parameters.append(parameter)
        alike.append(gradient)
        elements[kind] += gradient.numel()
        if elements[kind] > MEASURED_ELEMENTS_MAX:
            yield groups.pop(kind)
            elements[kind] = 0
    yield from groups.values()


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    """Of each of them, in a precision that the sum of many squares needs."""
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    if len(gradients) == 1:
        norm: Tensor = torch.linalg.vector_norm(gradients[0], dtype=dtype)
        return norm.float().reshape(1)
    return torch.stack(list(torch._foreach_norm(list(gradients), 2.0, dtype))).float()


def _sum_of_squares(norms: list[Handed]) -> Tensor:
    return torch.cat(collect(norms)).square().sum()
