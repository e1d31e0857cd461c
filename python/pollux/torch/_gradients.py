"""What the gradients of a step tell, looked at where DDP has them anyway.

DDP hands over each bucket of gradients before it adds up those of all ranks. Here they are weighted, so that steps of
any size give the mean over their samples, and in some of the steps measured: the squared norm of a rank's own gradient,
and of the mean. A process that is alone has no other to compare with: it compares the micro-batches of a step with the
whole of it. Two steps in a row would not do: between them the parameters move, which looks like noise, and the more
so the larger the batch and the learning rate that follow from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch.distributed as dist

import torch
from torch import Tensor

from ._clock import CostMeter, StepClock
from ._errors import UsageError
from ._group import Group
from ._preconditioner import Preconditioner
from ._streams import Handed, collect

SPARSE = "{what}, which is not averaged with that of other processes; make the layer with sparse=False"
ARRIVAL_S = 5.0
"""What a GPU that is only behind may take to be through with a step when another rank is lost."""


class Bucket(Protocol):
    """Gradients that lie beside each other in memory: DDP's, or those of shards."""

    def buffer(self) -> Tensor:
        """All of them."""

    def parameters(self) -> list[Tensor]:
        """Whose they are."""

    def gradients(self) -> list[Tensor]:
        """Each of them, a view of the buffer."""

    def is_last(self) -> bool:
        """Whether the backward pass ends with it."""


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
    shard_weights: list[float] = field(default_factory=list)
    """Of this process among those that share its copy of the model, by micro-batch."""


@dataclass
class _Step:
    own: list[Handed] = field(default_factory=list)
    buckets: list[tuple[Bucket, Handed]] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)
    before_part: int = 0
    """Norms of the micro-batches before the one at hand."""


class GradientReader:
    """DDP's communication hook, and what it has measured.

    It starts the sum over all ranks of each bucket as soon as DDP hands it over, and waits for all of them with the
    last one. So nothing runs in callbacks of communication, and nothing is left to do when DDP takes the sums. On a GPU
    it is the stream that waits, not the program.
    """

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
        self.is_lost = False
        self.add_rest: Callable[[Bucket], None] = lambda _bucket: None
        self._start_sum: Callable[[Tensor], dist.Work] | None = None
        self.costs = CostMeter()
        self._step = _Step()
        self._is_read = False
        """Whether the step is through: what comes after it is of the loss of another model."""
        self._is_left_out = False
        self._found: Handed | None = None
        """Norms of the step at hand."""
        self._measured: list[Handed] = []
        self._is_whole = True
        self._running: list[dist.Work] = []
        """Sums of the last step that a GPU may still be waiting for."""

    def regroup(self, group: Group) -> None:
        """Gradients are those of another group from now on."""
        self.is_alone, self._start_sum = group.world_size == 1, group.start_sum
        self.reset()

    def reset(self) -> None:
        """Forgets all that belongs to a group that is over."""
        self._step = _Step()
        self._measured, self._is_whole, self._running = [], True, []
        if self._preconditioner is not None:
            self._preconditioner.read_steps()

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
        self._step = _Step()
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
        self._step.before_part = len(self._step.own)

    def discard_part(self) -> None:
        """The user throws the gradients of the micro-batch at hand away."""
        del self._step.own[self._step.before_part :]

    def read_part(self, parameter: Tensor, gradient: Tensor) -> None:
        """Called for every gradient of every micro-batch of a step that has several."""
        if self.is_alone and self._measures():
            with self.costs.span(gradient.device):
                self._step.own.append(Handed(self._norms([parameter], [gradient])))

    def hook(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Called by DDP for every bucket of the last backward pass of a step, on every rank in the same order."""
        buffer, step = bucket.buffer(), self._step
        # It may name no device: whoever takes the buffer does so on a stream that has waited for it.
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        self._refuse_misuse(buffer)
        if not self.is_last:
            # DDP still waits for the backward pass of a batch that the loop has skipped, and takes this one for it.
            return done
        measures = self._measures()
        self.add_rest(bucket)
        if measures and not self.is_alone:
            with self.costs.span(buffer.device):
                step.own.append(Handed(self._bucket_norms(bucket)))
        if self._is_left_out:
            buffer.zero_()  # What was thrown away may not be finite.
        elif self.plan.weight != 1.0:
            buffer.mul_(self.plan.weight)
        if not self.is_alone:
            assert self._start_sum is not None
            step.works.append(self._start_sum(buffer))
        if measures:
            step.buckets.append((bucket, Handed(buffer)))
        if bucket.is_last():
            self.is_pending = True
            self.backwards += 1
            self._finish(buffer.is_cuda, measures)
        return done

    def _measures(self) -> bool:
        """Whether the gradients at hand are to be measured."""
        return self.plan.measure and not (self._is_read or self._is_left_out)

    def _refuse_misuse(self, buffer: Tensor) -> None:
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
        if buffer.is_sparse:
            raise UsageError(SPARSE.format(what="a parameter has a sparse gradient"))

    def _finish(self, is_on_gpu: bool, measures: bool) -> None:
        """The last bucket of a step is handed over."""
        step, self._step = self._step, _Step()
        self._is_read = True
        if not self.is_alone:
            self._clock.computed()
            self._running = step.works if is_on_gpu else []
            try:
                for work in step.works:
                    work.wait()
            except RuntimeError:
                self.is_lost = True
                raise
            self._clock.synced()
        if not measures or not step.own:
            return
        with self.costs.span(step.buckets[0][0].buffer().device):
            for _, buffer in step.buckets:
                buffer.here()
            mean_sqr = _sum_of_squares([Handed(self._bucket_norms(bucket)) for bucket, _ in step.buckets])
            # Alone, norms are those of micro-batches; otherwise they are of the sum of them.
            parts = self.plan.micro_batches
            own_sqr = _sum_of_squares(step.own) / (parts if self.is_alone else parts**2)
            norms = torch.stack((own_sqr.to(mean_sqr.device), mean_sqr))
            scale = self._loss_scale(norms.device)
            self._found = Handed(norms if scale is None else norms / scale.square())

    def has_arrived(self, limit_s: float = ARRIVAL_S) -> bool:
        """Whether the sums of the last step have come from all ranks. A GPU runs behind: it may already have
        been told to update parameters with sums that will never come."""
        deadline = time.monotonic() + limit_s
        for work in self._running:
            while not work.is_completed():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
            if work.exception():
                return False
        return True

    def _bucket_norms(self, bucket: Bucket) -> Tensor:
        if self._preconditioner is None:
            return _norms([bucket.buffer()])
        return self._norms(bucket.parameters(), bucket.gradients())

    def _norms(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        """As the optimiser sees gradients."""
        if self._preconditioner is None:
            return _norms(gradients)
        return _norms(torch._foreach_div(list(gradients), self._preconditioner.denominators(parameters)))


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    """Of each of them, in a precision that the sum of many squares needs."""
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    if len(gradients) == 1:
        norm: Tensor = torch.linalg.vector_norm(gradients[0], dtype=dtype)
        return norm.float().reshape(1)
    return torch.stack(list(torch._foreach_norm(list(gradients), 2.0, dtype))).float()


def _sum_of_squares(norms: list[Handed]) -> Tensor:
    return torch.cat(collect(norms)).square().sum()
