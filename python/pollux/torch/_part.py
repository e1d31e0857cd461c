"""A model of a training with its optimiser. Most trainings have one; of several, the first is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.autograd.variable import Variable
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import Tensor

from ._accumulation import Accumulation
from ._clock import StepClock
from ._errors import UsageError
from ._gradients import GradientReader, StepPlan
from ._group import Group
from ._preconditioner import Preconditioner
from ._state import bare, load_module, load_optimizer


class Part:
    """One model, its optimiser, its DDP for as long as a group lasts, and its gradients."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        ddp_options: dict[str, Any],
        clock: StepClock[Any],
        loss_scale: Callable[[torch.device], torch.Tensor | None],
    ):
        self.module = module
        self.optimizer = optimizer
        self.ddp: torch.nn.Module | None = None
        """What the model is trained through: DDP, or the model itself where it is alone."""
        self._ddp_options = ddp_options
        self._parameters = list[Tensor](module.parameters())
        """Of the model: to look for them in every step would take time."""
        self._learns = list[bool]()
        """Which of them DDP knows to learn."""
        self._micro_batch = 0, 1.0
        self._group: Group | None = None
        self.accumulation = Accumulation()
        preconditioner = Preconditioner(optimizer) if is_adam(optimizer) else None
        self.reader = GradientReader(clock, preconditioner, loss_scale)
        self.accumulation.on_part, self.accumulation.on_own = self._read_part, self._read_own
        self._trained = set[Tensor]()
        """What the optimiser changes. Gradients of anything else say nothing of its steps, and nobody clears them."""
        self.has_forward = False
        """Whether the model was called through DDP in the micro-batch at hand."""
        self.is_asked_early = self.is_asked = False
        """Whether its optimiser was called in a micro-batch before the last one of the step, and in that."""
        self._is_skipped: bool | None = None
        """Of the step at hand, once that is known."""
        self._is_asked_each = False
        """Whether the loop calls the optimiser for every micro-batch, and not only at the end of a step."""
        self._watch: torch.utils.hooks.RemovableHandle | None = None
        self._is_queued = False
        """Whether the end of the backward pass at hand is waited for."""

    def regroup(self, group: Group) -> None:
        """Another group trains it from now on."""
        self.reader.regroup(group.world_size == 1)
        self.ddp = None
        self._group = group
        self._parameters = list(self.module.parameters())
        self._learns = [parameter.requires_grad for parameter in self._parameters]
        self.accumulation.regroup(self._parameters)
        # They are views of the last DDP's buckets, which would be kept beside the next one's.
        for parameter in self._parameters:
            parameter.grad = None
        self._join(group)

    def _join(self, group: Group) -> None:
        if group.world_size == 1:
            self.ddp = self.module  # There is nobody to average with: DDP would copy gradients for nobody.
            return
        # Gradients that live in DDP's buckets are copied neither in nor out. Parameters are the same everywhere:
        # newcomers have just got them.
        options = {"gradient_as_bucket_view": True, "init_sync": False, **self._ddp_options}
        self.ddp = DistributedDataParallel(self.module, **options)
        self.reader.keeps_gradients = bool(options["gradient_as_bucket_view"])

    def _sync(self, is_last: bool) -> None:
        """Whether the backward pass to come ends a step, so that its gradients are added up."""
        if self.reader.is_alone:
            return
        assert self.ddp is not None
        before: Any = self.ddp.require_backward_grad_sync
        if before is not is_last:  # To set anything on a module takes long.
            self.ddp.require_backward_grad_sync = is_last  # type: ignore[assignment]

    def _plan(self, plan: StepPlan) -> StepPlan:
        """The plan of a step, for whatever takes the gradients from here."""
        return plan

    def begin_step(self, plan: StepPlan) -> None:
        """The loop is about to get the first micro-batch of a step."""
        self.is_asked_early = self.is_asked = False
        self._is_skipped = None
        if plan.measure:
            self._trained = set(trained_by(self.optimizer))
        self.reader.begin(self._plan(plan))

    def _read_part(self, parameter: Tensor, gradient: Tensor) -> None:
        if parameter in self._trained:
            self.reader.read_part(parameter, gradient)

    def _read_own(self, parameter: Tensor, gradient: Tensor) -> None:
        if parameter in self._trained:
            self.reader.read_own(parameter, gradient)

    def _measured(self, parameters: Iterable[Tensor]) -> Iterator[Tensor]:
        """Those of parameters whose gradients say something."""
        return (parameter for parameter in parameters if parameter in self._trained)

    def begin_micro_batch(self, idx: int, emphasis: float) -> None:
        """The loop is about to get one of the micro-batches of a step."""
        self._micro_batch = idx, emphasis
        if idx > 0 and self._is_asked_each and not self.accumulation.is_taken:
            self.discard()  # The loop went on without a step, and clears what is left before the next one.
        self.forget_watch()
        self.accumulation.begin(self.reader.plan, idx, emphasis)
        self.reader.is_last = self.accumulation.is_last
        self._sync(self.reader.is_last)
        if self.accumulation.is_spoiled:
            self.reader.leave_out()
        self.reader.begin_part()
        self.reader.is_allowed = True
        self.has_forward = self._is_queued = False

    def begin_forward(self) -> None:
        """The model is about to be called. DDP adds up the gradients of what learned when it was made: layers that were
        unfrozen since every process would train by itself. What is frozen only between two calls may lack a hook."""
        if [parameter.requires_grad for parameter in self._parameters] == self._learns:
            self.accumulation.add_hooks()
            return
        idx, emphasis = self._micro_batch
        if idx > 0:
            raise UsageError(
                "layers that are frozen or unfrozen between the micro-batches of a step; do it between epochs, or "
                "after optimizer.step() if px.is_step_end()"
            )
        if self.has_forward:
            raise UsageError(
                "layers that are frozen or unfrozen between two calls of the model for one batch; do it before the "
                "first, and look at the model under torch.no_grad()"
            )
        if self.reader.is_pending:
            raise UsageError(
                "layers that are frozen or unfrozen while there are gradients that optimizer.step() has not used; call "
                "optimizer.zero_grad() before the model"
            )
        assert self._group is not None
        self.regroup(self._group)
        self.begin_micro_batch(idx, emphasis)

    def begin_backward(self, before: int) -> None:
        """A backward pass has come to the model, which was called when there had been so many `before`."""
        if not Variable._execution_engine.is_checkpoint_valid():
            return  # It is torch.autograd.grad(), which leaves the parameters' gradients alone.
        if self.reader.backwards > before:
            raise UsageError(
                "backward() a second time after one forward pass: other processes would not hear of it; add the "
                "losses and call backward() once"
            )
        self.reader.begin_backward()
        if self.reader.is_last and not self._is_queued:
            self._is_queued = True
            _at_end_of_backward(self._begin_sync)

    def watch(self, begin_backward: Callable[[Tensor], None]) -> None:
        """The model's outputs are hidden in an object of the user's, so the backward pass is seen when it has come to a
        parameter."""
        self.forget_watch()
        watched = next(parameter for parameter in self._parameters if parameter.requires_grad)
        self._watch = watched.register_post_accumulate_grad_hook(begin_backward)

    def forget_watch(self) -> None:
        """Nobody waits for the backward pass of hidden outputs any more."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def release(self) -> None:
        """Nothing looks at the model's gradients until the next step."""
        self.forget_watch()
        self.accumulation.remove_hooks()

    def close(self) -> None:
        """The training is over."""
        self.ddp = None
        self.release()

    def _begin_sync(self) -> None:
        """All gradients of this process have come."""
        self._is_queued = False
        self.reader.begin_sync()
        # DDP has asked to be called now, too, and waits for the mean then.
        _at_end_of_backward(self._end_sync)

    def _end_sync(self) -> None:
        """The mean of all gradients is there, unless some of this process are still to come."""
        if not self._has_all_gradients():
            self.reader.leave_sync()
            return  # Another backward pass has the rest, or the optimiser's step tells why there is none.
        self._add_rest()
        self.reader.end_sync(self._measured(self._parameters))

    def _has_all_gradients(self) -> bool:
        if not isinstance(self.ddp, DistributedDataParallel):
            may_miss = bool(self._ddp_options.get("find_unused_parameters"))
            return may_miss or all(each.grad is not None for each in self._parameters if each.requires_grad)
        try:
            self.ddp._check_reducer_finalized()
        except RuntimeError:
            return False
        return True

    def _add_rest(self) -> None:
        """Adds up what DDP knows nothing of."""
        if not self._ddp_options.get("find_unused_parameters") or self.reader.plan.micro_batches_max == 1:
            return
        rest = self.accumulation.rest()
        assert self._group is not None
        counts = self._group.sum([float(parameter in rest) for parameter in self._parameters])
        for parameter, count in zip(self._parameters, counts):
            if count == 0.0:
                continue
            mean = rest.get(parameter)
            mean = torch.zeros_like(parameter) if mean is None else mean
            if self._group.world_size > 1:
                self._group.start_sum(mean).wait()
                mean /= self._group.world_size
            parameter.grad = mean if parameter.grad is None else parameter.grad.add_(mean)

    def state(self, *, whole: bool) -> dict[str, Any]:
        """Model and optimiser; `whole`, or this process's shards of them."""
        return {"model": bare(self.module).state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any], where: str, *, whole: bool) -> None:
        """Takes up what `state` gave."""
        load_module(self.module, state["model"], where)
        load_optimizer(self.optimizer, state["optimizer"], where)

    def is_finite(self) -> bool:
        """Whether all parameters are numbers."""
        return all(bool(parameter.isfinite().all()) for parameter in self.module.parameters())

    def discard(self) -> None:
        """The user throws the gradients of the micro-batch at hand away."""
        self.reader.throw_away()
        if not self.accumulation.is_taken:
            self.reader.discard_part()
            self.accumulation.discard()

    def refuse_second_step(self) -> None:
        """Gradients of a second pass over a micro-batch would go into no step, or be those of the last one alone."""
        if self.accumulation.is_taken:
            raise UsageError(
                "optimizer.step() a second time for one batch, which may be a part of a step; step once for every "
                "batch, and go over the data more often"
            )

    def take(self) -> None:
        """The user's optimiser steps between micro-batches: their gradients count once the last one is through."""
        self.is_asked_early = self._is_asked_each = True
        self.accumulation.take()

    @property
    def is_skipped(self) -> bool:
        """Whether there will be no step, because a part of it was thrown away. With others it is a step of what they
        have, unless all have thrown theirs away."""
        if self.accumulation.is_spoiled and self._is_skipped is None:
            self._is_skipped = self.reader.is_alone or (self.reader.is_pending and self._has_no_gradient())
        return bool(self._is_skipped)

    def _has_no_gradient(self) -> bool:
        """Who has thrown a part away has given 0 for the whole, so that the sum says whether anybody gave more."""
        gradients = [parameter.grad for parameter in trained_by(self.optimizer)]
        return not any(bool(gradient.any()) for gradient in gradients if gradient is not None)

    def skip(self) -> None:
        """Forgets the gradients of a step that there will not be."""
        self.reader.throw_away()
        self.accumulation.skip()

    def is_half_trained(self) -> bool:
        """Whether the user's loop trained it in some micro-batches of the step and not in others."""
        misses_some = self.is_asked and self.accumulation.filled < self.reader.plan.micro_batches - 1
        return misses_some or (self.is_asked_early and not self.is_asked)

    def knows(self, parameters: Iterable[Tensor]) -> bool:
        """Whether all of these were in the model when the group at hand began."""
        return set(self._parameters).issuperset(parameters)

    def trains(self) -> bool:
        """Whether any parameter is to learn at the moment: a critic that only judges needs nobody else."""
        return any(parameter.requires_grad for parameter in self._parameters)

    def why_no_gradients(self) -> str:
        """What to say of a step for which nothing came through DDP."""
        if self.has_forward and any(parameter.grad is not None for parameter in self.module.parameters()):
            return unused(self.module)
        return (
            "optimizer.step() without gradients of the wrapped model: other processes would not hear of them; call "
            "the model that px.wrap returned, and backward() once per batch"
        )


def _at_end_of_backward(call: Callable[[], None]) -> None:
    """Has something called when the backward pass is through with all gradients, in the order of asking."""
    Variable._execution_engine.queue_callback(call)


def refuse_half_trained(parts: list[Part]) -> None:
    """At the end of a step. A loop that throws a batch away asks for no step of any model, or has thrown away a part of
    each."""
    is_thrown_away = not any(part.is_asked for part in parts) or all(part.accumulation.is_spoiled for part in parts)
    if len(parts) > 1 and not is_thrown_away and any(part.is_half_trained() for part in parts):
        raise UsageError(
            "one of several models is trained in some micro-batches of a step only; decide once for a step, with a "
            "count that grows only if px.is_step_end()"
        )


def unused(module: torch.nn.Module, advice: str = ", or give find_unused_parameters=True to px.wrap") -> str:
    """What to say of parameters that got no gradient."""
    named = bare(module).named_parameters()
    names = [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]
    told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"parameters without a gradient{': ' + told if told else ''}; use them in every batch, freeze them with "
        f"requires_grad_(False){advice}"
    )


def trained_by(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The parameters that an optimiser changes."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def refuse_strangers(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An optimiser is to train its model and nothing else."""
    known = set(module.parameters())
    strangers = sum(parameter not in known for parameter in trained_by(optimizer))
    if strangers:
        raise UsageError(
            f"the optimiser has {strangers} parameters that are not the model's: every process would train them by "
            "itself; put them into the model, or wrap their model with an optimiser of its own"
        )


def is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it divides gradients by the root of a second moment."""
    return all("betas" in group and "eps" in group for group in optimizer.param_groups)
