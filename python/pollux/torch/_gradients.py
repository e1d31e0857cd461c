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


MOMENT_FLOOR = 0.1
"""What Adam divides a coordinate by counts for at least this share of what it divides its tensor by on average. One
that has hardly had a gradient would be divided by next to nothing and outweigh all others; Adam itself divides by a
moment that has seen the gradient."""


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
        self.is_last = True
        """Whether the step at hand ends with this micro-batch."""
        self.is_pending = False
        """Whether there are gradients that nobody has used or thrown away."""
        self.backwards = 0
        self.is_alone = True
        self.is_lost = False
        self.norms = Norms()
        self._found: tuple[float, float] | None = None
        self._is_left_out = False
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
        self._is_read = self._is_left_out = False
        self._found = None

    def keep(self) -> None:
        """The step is over: what was measured in it counts."""
        if self._found is not None:
            self.norms.own_sqr.append(self._found[0])
            self.norms.mean_sqr.append(self._found[1])
            self._found = None

    def throw_away(self) -> None:
        """The gradients at hand are to be forgotten; if nobody has used them, so is what was measured of them."""
        if self.is_pending:
            self._found = None
        self.is_pending = False

    def leave_out(self) -> None:
        """This process has thrown a part of its step away: the rest says nothing, and counts for nothing."""
        self._is_left_out = True
        self.norms.is_whole = False

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
        part = gradient if denominators is None else torch._foreach_div([gradient], list(denominators))[0]
        self._step.own_sqr.append(_norm(part).square())
        self.cost_s += time.perf_counter() - begun

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Called by DDP for every bucket of the last backward pass of a step, on every rank in the same order."""
        if not self.is_allowed:
            raise UsageError(
                "backward() outside of a loop over px.DataLoader: nobody knows how many samples it stands for; "
                "train inside of `for batch in loader`, evaluate under torch.no_grad()"
            )
        if not self.is_last:
            # DDP still waits for the backward pass of a batch that the loop has skipped, and takes this one for it.
            return _done(bucket.buffer())
        if self.is_pending:
            raise UsageError(
                "backward() again before optimizer.step() or zero_grad(); add the losses of a batch and step for every "
                "batch: for a larger one raise batch_size or max_batch_size, and gradients are accumulated by "
                "themselves where per_gpu asks for it"
            )
        buffer = bucket.buffer()
        if buffer.is_sparse:
            raise UsageError(SPARSE.format(what="a parameter has a sparse gradient"))
        measured = self.plan.measure and not (self._is_read or self._is_left_out)
        self.add_rest(bucket)
        self._step.handed += 1
        denominators: Sequence[Tensor] | None = None
        if measured:
            begun = time.perf_counter()
            denominators = self._denominators(bucket.parameters())
            if not self.is_alone:
                self._step.own_sqr.append(_squared_norm(bucket, denominators))
            self.cost_s += time.perf_counter() - begun
        if self._is_left_out:
            buffer.zero_()  # What was thrown away may not be finite.
        elif self.plan.weight != 1.0:
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
            return _done(buffer)
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
        self._found = own, mean
        self.cost_s += time.perf_counter() - begun

    def _is_settled(self) -> bool:
        if not self._is_preconditioned:
            return True
        states = self._optimizer.state.values()
        return any(float(state.get("step", 0)) >= ADAM_SETTLING_STEPS for state in states)

    def _denominators(self, parameters: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """What each gradient is divided by, about as Adam does; nothing is left of one that has no moment yet."""
        if not self._is_preconditioned:
            return None
        roots, floors, offsets, seconds = [], [], [], []
        groups = self._parameter_groups()
        for parameter in parameters:
            state = self._optimizer.state.get(parameter, {})
            group = groups.get(id(parameter), {})
            second = state.get("exp_avg_sq")
            if second is None:
                second = torch.full_like(parameter, 1.0 if state else math.inf)
                correction = 1.0
            else:
                correction = 1.0 - group["betas"][1] ** float(state["step"])  # type: ignore[index]
            seconds.append(second.to(_precise(second.dtype)))
            roots.append(1.0 / math.sqrt(max(correction, 1e-12)))
            floors.append(MOMENT_FLOOR / math.sqrt(max(second.numel(), 1)))
            offsets.append(float(group.get("eps", 1e-8)))  # type: ignore[arg-type]
        denominators = torch._foreach_sqrt(seconds)
        torch._foreach_mul_(denominators, roots)
        least = list(torch._foreach_norm(denominators))
        torch._foreach_mul_(least, floors)
        torch._foreach_maximum_(denominators, least)
        torch._foreach_add_(denominators, offsets)
        # A tensor whose gradients were all 0 so far has no scale to compare the first other one with.
        torch._foreach_add_(denominators, [torch.where(floor == 0, math.inf, 0.0) for floor in least])
        return denominators

    def _parameter_groups(self) -> dict[int, dict[str, object]]:
        if not self._groups:
            for group in self._optimizer.param_groups:
                self._groups.update((id(parameter), group) for parameter in group["params"])
        return self._groups


def _done(buffer: Tensor) -> torch.futures.Future[Tensor]:
    """What a hook answers that has nobody to wait for."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def _precise(dtype: torch.dtype) -> torch.dtype:
    """A precision that the sum of many squares needs."""
    return torch.promote_types(dtype, torch.float32)


def _norm(gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=_precise(gradient.dtype))
    return norm.float()


def _squared_norm(bucket: dist.GradBucket, denominators: Sequence[Tensor] | None) -> Tensor:
    """Of a bucket; preconditioned where there are denominators."""
    if denominators is None:
        return _norm(bucket.buffer()).square()
    scaled = torch._foreach_div(bucket.gradients(), list(denominators))
    norms: list[Tensor] = list(torch._foreach_norm(scaled))
    return torch.stack(norms).square().sum()
