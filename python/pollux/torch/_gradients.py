"""What the gradients of a step tell, looked at where DDP has them anyway.

DDP hands over each bucket of gradients before it adds up those of all ranks. Here they are weighted, so that steps of
any size give the mean over their samples, and in some of the steps measured: the squared norm of a rank's own gradient,
and of the mean. A process that is alone has no other to compare with: it compares the micro-batches of a step with the
whole of it. Two steps in a row would not do: between them the parameters move, which looks like noise, and the more
so the larger the batch and the learning rate that follow from it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch.distributed as dist

import torch
from torch import Tensor

from ._errors import UsageError

SPARSE = "{what}, which is not averaged with that of other processes; make the layer with sparse=False"
ADAM_SETTLING_STEPS = 20
"""The first second moments of Adam are noise themselves."""


@dataclass
class Norms:
    """Sums of squared norms over some steps."""

    steps: int = 0
    own_sqr: float = 0.0
    mean_sqr: float = 0.0


@dataclass
class StepPlan:
    """How the backward pass at hand is to be treated."""

    weight: float = 1.0
    micro_batches: int = 1
    measure: bool = False


@dataclass
class _Step:
    own_sqr: list[Tensor] = field(default_factory=list)
    mean_sqr: list[Tensor] = field(default_factory=list)
    handed: int = 0
    """Buckets that DDP has handed over."""
    reduced: int = 0
    is_handed: bool = False
    """Whether the last one was among them."""
    before_part: int = 0
    """Norms of the micro-batches before the one at hand."""


class GradientReader:
    """DDP's communication hook, and what it has measured."""

    def __init__(self, optimizer: torch.optim.Optimizer, is_preconditioned: bool, loss_scale: Callable[[], float]):
        self._optimizer = optimizer
        self._is_preconditioned = is_preconditioned
        self._loss_scale = loss_scale
        self._groups: dict[int, dict[str, object]] = {}
        self.plan = StepPlan()
        self.is_allowed = False
        self.is_pending = False
        """Whether there are gradients that nobody has used or thrown away."""
        self.backwards = 0
        self.is_alone = True
        self.is_lost = False
        self.norms = Norms()
        self.cost_s = 0.0
        self.computed_at: float | None = None
        self.synced_at: float | None = None
        self.on_computed: Callable[[], None] = lambda: None
        self.add_rest: Callable[[dist.GradBucket], None] = lambda _bucket: None
        self._step = _Step()
        self._is_read = False
        """Whether the step is through: what comes after it is of the loss of another model."""
        # Buckets may be reduced by several threads, in any order.
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Forgets all that belongs to a group that is over."""
        self.norms = Norms()
        self._step = _Step()

    def take_norms(self) -> Norms:
        """What was measured since it was taken last."""
        norms, self.norms = self.norms, Norms()
        return norms

    def begin(self, plan: StepPlan) -> None:
        """A step begins."""
        self.plan = plan if self._is_settled() else replace(plan, measure=False)
        self._step = _Step()
        self._is_read = False

    def begin_part(self) -> None:
        """A micro-batch begins."""
        self._step.before_part = len(self._step.own_sqr)

    def discard_part(self) -> None:
        """The user throws the gradients of the micro-batch at hand away."""
        del self._step.own_sqr[self._step.before_part :]

    def read_part(self, parameter: Tensor, gradient: Tensor) -> None:
        """Called for every gradient of every micro-batch of a step that has several."""
        if not (self.is_alone and self.plan.measure) or self._is_read:
            return
        begun = time.perf_counter()
        denominators = self._denominators([parameter])
        part = gradient if denominators is None else gradient / denominators[0]
        self._step.own_sqr.append(_norm(part).square())
        self.cost_s += time.perf_counter() - begun

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Called by DDP for every bucket of the last backward pass of a step, on every rank in the same order."""
        if not self.is_allowed:
            raise UsageError(
                "backward() outside of a loop over px.DataLoader: nobody knows how many samples it stands for; "
                "train inside of `for batch in loader`, evaluate under torch.no_grad()"
            )
        if self.is_pending:
            raise UsageError(
                "backward() again before optimizer.step() or zero_grad(); add the losses of a batch and step for every "
                "batch: for a larger one raise batch_size or max_batch_size, and gradients are accumulated by "
                "themselves where per_gpu asks for it"
            )
        buffer = bucket.buffer()
        if buffer.is_sparse:
            raise UsageError(SPARSE.format(what="a parameter has a sparse gradient"))
        measured = self.plan.measure and not self._is_read
        self.add_rest(bucket)
        self._step.handed += 1
        denominators: Sequence[Tensor] | None = None
        if measured:
            begun = time.perf_counter()
            denominators = self._denominators(bucket.parameters())
            if not self.is_alone:
                self._step.own_sqr.append(_squared_norm(bucket, denominators))
            self.cost_s += time.perf_counter() - begun
        if self.plan.weight != 1.0:
            buffer.mul_(self.plan.weight)
        if bucket.is_last():
            self._step.is_handed = self.is_pending = True
            self.backwards += 1
            self.computed_at = time.perf_counter()
            self.on_computed()
        if self.is_alone:
            if measured:
                begun = time.perf_counter()
                self._step.mean_sqr.append(_squared_norm(bucket, denominators))
                self.cost_s += time.perf_counter() - begun
            if bucket.is_last():
                self._finish(measured)
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(buffer)
            return done
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda future: self._reduced(future, bucket, denominators, measured))

    def _reduced(
        self,
        future: torch.futures.Future[list[Tensor]],
        bucket: dist.GradBucket,
        denominators: Sequence[Tensor] | None,
        measured: bool,
    ) -> Tensor:
        try:
            mean = future.value()[0]
        except RuntimeError:
            self.is_lost = True
            raise
        if measured:
            begun = time.perf_counter()
            self._step.mean_sqr.append(_squared_norm(bucket, denominators))
            self.cost_s += time.perf_counter() - begun
        step = self._step
        with self._lock:
            step.reduced += 1
            is_done = step.is_handed and step.reduced == step.handed
        if is_done:
            self.synced_at = time.perf_counter()
            self._finish(measured)
        return mean

    def _finish(self, measured: bool) -> None:
        """The step's buckets are through."""
        step, self._step = self._step, _Step()
        self._is_read = True
        if not measured or not step.own_sqr:
            return
        begun = time.perf_counter()
        scale = self._loss_scale()
        # Alone, norms are those of micro-batches; otherwise they are of the sum of them.
        parts = self.plan.micro_batches
        own = float(torch.stack(step.own_sqr).sum()) / (parts if self.is_alone else parts**2) / scale**2
        mean = float(torch.stack(step.mean_sqr).sum()) / scale**2
        self.norms.steps += 1
        self.norms.own_sqr += own
        self.norms.mean_sqr += mean
        self.cost_s += time.perf_counter() - begun

    def _is_settled(self) -> bool:
        if not self._is_preconditioned:
            return True
        states = self._optimizer.state.values()
        return any(float(state.get("step", 0)) >= ADAM_SETTLING_STEPS for state in states)

    def _denominators(self, parameters: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """What Adam divides each gradient by."""
        if not self._is_preconditioned:
            return None
        roots, offsets, seconds = [], [], []
        groups = self._parameter_groups()
        for parameter in parameters:
            state = self._optimizer.state.get(parameter, {})
            group = groups.get(id(parameter), {})
            second = state.get("exp_avg_sq")
            if second is None:
                second = torch.ones_like(parameter)
                correction = 1.0
            else:
                correction = 1.0 - group["betas"][1] ** float(state["step"])  # type: ignore[index]
            seconds.append(second)
            roots.append(1.0 / math.sqrt(max(correction, 1e-12)))
            offsets.append(float(group.get("eps", 1e-8)))  # type: ignore[arg-type]
        denominators = torch._foreach_sqrt(seconds)
        torch._foreach_mul_(denominators, roots)
        torch._foreach_add_(denominators, offsets)
        return denominators

    def _parameter_groups(self) -> dict[int, dict[str, object]]:
        if not self._groups:
            for group in self._optimizer.param_groups:
                self._groups.update((id(parameter), group) for parameter in group["params"])
        return self._groups


def _norm(gradient: Tensor) -> Tensor:
    """In a precision that the sum of many squares needs."""
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=dtype)
    return norm.float()


def _squared_norm(bucket: dist.GradBucket, denominators: Sequence[Tensor] | None) -> Tensor:
    """Of a bucket; preconditioned where there are denominators."""
    if denominators is None:
        return _norm(bucket.buffer()).square()
    scaled = torch._foreach_div(bucket.gradients(), list(denominators))
    norms: list[Tensor] = list(torch._foreach_norm(scaled))
    return torch.stack(norms).square().sum()
