"""Steps of several micro-batches, behind the back of a loop that knows of one.

Between the micro-batches of a step the loop sees no gradients: clipping, logging and `optimizer.step()` find nothing to
do. The gradients wait aside and are added to those of the last micro-batch before DDP takes them. What counts of a
micro-batch is what came since `zero_grad()` and before `optimizer.step()`, as ever: where models learn from each other,
the loss of one leaves gradients in another that nobody wants.

DDP gives the mean over ranks. Where they have different numbers of samples, gradients are scaled before DDP takes them,
so that it is the mean over samples. A step that needs none of this has no hooks, and costs what it costs with DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ._errors import UsageError
from ._gradients import SPARSE, StepPlan

OnGradient = Callable[[Tensor, Tensor], None]
"""Gets a parameter and its gradient."""


class Accumulation:
    """Gradients that wait for the last micro-batch of their step."""

    def __init__(self) -> None:
        self._parameters: list[Tensor] = []
        self._kept: dict[Tensor, Tensor] = {}
        """Of the micro-batches before."""
        self._aside: dict[Tensor, Tensor] = {}
        """Of the micro-batch at hand."""
        self._added: set[Tensor] = set()
        """Parameters whose gradients of this backward pass have those of the micro-batches before with them."""
        self._handles: dict[Tensor, torch.utils.hooks.RemovableHandle] = {}
        self._needs_hooks = False
        self.is_last = True
        self.is_taken = False
        """Whether the optimiser has taken what it wants of the micro-batch at hand."""
        self.filled = 0
        """Micro-batches of the step whose gradients wait."""
        self.is_spoiled = False
        """Whether the loop has thrown a micro-batch of the step away, and with it all of them."""
        self._emphasis = self._scale = 1.0
        self.on_part: OnGradient = _ignore
        """Gets every gradient of every micro-batch, before it is added to the others."""
        self.on_own: OnGradient = _ignore
        """Gets every gradient of all of them, scaled."""

    def regroup(self, parameters: Iterable[Tensor]) -> None:
        """Another DDP takes the gradients of these from now on."""
        self.clear()
        self.remove_hooks()
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]

    def begin(self, plan: StepPlan, idx: int, emphasis: float) -> None:
        """The next backward pass is that of a micro-batch. It may have more or fewer samples than the others, which
        `emphasis` makes up for."""
        self.is_last = idx == plan.micro_batches - 1
        self._emphasis, self._scale = emphasis, plan.scale
        self.take()
        self.is_taken = False
        if idx == 0:
            self.clear()
            self.filled = 0
        self.is_spoiled = self.is_last and self.filled < idx
        if self.is_spoiled:
            self.clear()
        self._needs_hooks = plan.micro_batches > 1 or plan.scale != 1.0 or plan.measure
        if not self._needs_hooks:
            self.remove_hooks()
        self.add_hooks()

    def add_hooks(self) -> None:
        """Sees the gradients of the micro-batch at hand, where that is needed. A frozen parameter has no hook: whoever
        thaws it has this called before the next forward pass."""
        if not self._needs_hooks or len(self._handles) == len(self._parameters):
            return
        for parameter in self._parameters:
            if parameter.requires_grad and parameter not in self._handles:
                self._handles[parameter] = parameter.register_post_accumulate_grad_hook(self._after_gradient)

    def remove_hooks(self) -> None:
        """Gradients go to the user as they come."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def clear(self) -> None:
        """Forgets what waits: the step is over, or will never be."""
        self._kept.clear()
        self._aside.clear()
        self._added.clear()

    def skip(self) -> None:
        """Forgets the gradients of a step that there will not be."""
        self.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def discard(self) -> None:
        """The user throws away what came in the micro-batch at hand."""
        self._aside.clear()
        self._added.clear()

    def take(self) -> None:
        """What came in the micro-batch at hand counts; what comes in it from now on does not."""
        self.filled += bool(self._aside)
        for parameter, gradient in self._aside.items():
            kept = self._kept.get(parameter)
            self._kept[parameter] = gradient if kept is None else kept + gradient
        self._aside.clear()
        self.is_taken = True

    def rest(self) -> dict[Tensor, Tensor]:
        """What waits for parameters that the last micro-batch did not use, which DDP knows nothing of."""
        kept = self._kept.items()
        return {parameter: self._give(parameter, own) for parameter, own in kept if parameter not in self._added}

    # Autograd may give two parameters one gradient, so none is changed in place.

    def _after_gradient(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.is_sparse:
            raise UsageError(SPARSE.format(what=f"a parameter of shape {list(parameter.shape)} has a sparse gradient"))
        if self.is_taken:
            if not self.is_last:
                parameter.grad = None
            return
        self.on_part(parameter, gradient)
        if self._emphasis != 1.0:
            gradient = gradient * self._emphasis
        if self.is_last:
            if (kept := self._kept.get(parameter)) is not None:
                gradient = gradient + kept
                self._added.add(parameter)
            parameter.grad = self._give(parameter, gradient)
            return
        if (waiting := self._aside.get(parameter)) is not None:
            gradient = gradient + waiting
        self._aside[parameter] = gradient
        parameter.grad = None

    def _give(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of all micro-batches is there."""
        if self.is_spoiled:
            gradient = torch.zeros_like(gradient)  # What was thrown away may not be finite.
        elif self._scale != 1.0:
            gradient = gradient * self._scale
        self.on_own(parameter, gradient)
        return gradient


def _ignore(_parameter: Tensor, _gradient: Tensor) -> None:
    pass
