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

OnGradient = Callable[[Tensor, Tensor], None]
"""Gets a parameter and its gradient."""


class Accumulation:
    """Gradients that wait for the last micro-batch of their step."""

    def __init__(self, parameters: Iterable[Tensor]):
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._kept: dict[Tensor, Tensor] = {}
        """Of the micro-batches before."""
        self._aside: dict[Tensor, Tensor] = {}
        """Of the micro-batch at hand."""
        self._added: set[Tensor] = set()
        """Parameters whose gradients of this backward pass have those of the micro-batches before with them."""
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
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

    def begin(self, micro_batch: int, micro_batches: int, emphasis: float, scale: float, is_read: bool) -> None:
        """The next backward pass is one of so many. Its samples may be more or fewer than those of the others, which
        `emphasis` makes up for; the sum of all is multiplied by `scale`. If it `is_read`, somebody looks at each."""
        self.is_last = micro_batch == micro_batches - 1
        self._emphasis, self._scale = emphasis, scale
        self.take()
        self.is_taken = False
        if micro_batch == 0:
            self.clear()
            self.filled = 0
        self.is_spoiled = self.is_last and self.filled < micro_batch
        if self.is_spoiled:
            self.clear()
        needs_hooks = micro_batches > 1 or scale != 1.0 or is_read
        if needs_hooks and not self._handles:
            hook = self._after_gradient
            self._handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in self._parameters]
        elif self._handles and not needs_hooks:
            for handle in self._handles:
                handle.remove()
            self._handles = []

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
            self._kept[parameter] = gradient if kept is None else kept.add_(gradient)
        self._aside.clear()
        self.is_taken = True

    def rest(self) -> dict[Tensor, Tensor]:
        """What waits for parameters that the last micro-batch did not use, which DDP knows nothing of."""
        rest = {parameter: kept for parameter, kept in self._kept.items() if parameter not in self._added}
        for parameter, gradient in rest.items():
            self._give(parameter, gradient)
        return rest

    def _after_gradient(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if self.is_taken:
            if not self.is_last:
                parameter.grad = None
            return
        self.on_part(parameter, gradient)
        if self._emphasis != 1.0:
            gradient.mul_(self._emphasis)
        if self.is_last:
            if (kept := self._kept.get(parameter)) is not None:
                gradient.add_(kept)
                self._added.add(parameter)
            self._give(parameter, gradient)
            return
        if (waiting := self._aside.get(parameter)) is not None:
            gradient.add_(waiting)
        self._aside[parameter] = gradient
        parameter.grad = None

    def _give(self, parameter: Tensor, gradient: Tensor) -> None:
        """The gradient of all micro-batches is there."""
        if self.is_spoiled:
            gradient.zero_()  # What was thrown away may not be finite.
        elif self._scale != 1.0:
            gradient.mul_(self._scale)
        self.on_own(parameter, gradient)


def _ignore(_parameter: Tensor, _gradient: Tensor) -> None:
    pass
