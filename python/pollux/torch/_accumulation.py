"""Steps of several micro-batches, behind the back of a loop that knows of one.

Between the micro-batches of a step the loop sees no gradients: clipping, logging and `optimizer.step()` find nothing to
do. The gradients wait aside and are added to those of the last micro-batch before DDP takes them. What counts of a
micro-batch is what came since `zero_grad()` and before `optimizer.step()`, as ever: where models learn from each other,
the loss of one leaves gradients in another that nobody wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ._gradients import Bucket


class Accumulation:
    """Gradients that wait for the last micro-batch of their step."""

    def __init__(self, parameters: Iterable[Tensor], finds_unused: bool):
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._finds_unused = finds_unused
        self._kept: dict[Tensor, Tensor] = {}
        """Of the micro-batches before."""
        self._aside: dict[Tensor, Tensor] = {}
        """Of the micro-batch at hand."""
        self._added: set[Tensor] = set()
        """Parameters whose gradients of this backward pass have those of the micro-batches before with them."""
        self._reduced: list[tuple[Tensor, Tensor]] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.is_last = True
        self.is_taken = False
        """Whether the optimiser has taken what it wants of the micro-batch at hand."""
        self.filled = 0
        """Micro-batches of the step whose gradients wait."""
        self.is_spoiled = False
        """Whether the loop has thrown a micro-batch of the step away, and with it all of them."""
        self._emphasis = 1.0
        self.on_gradient: Callable[[Tensor, Tensor], None] = lambda _parameter, _gradient: None
        """Gets a parameter and its gradient of every micro-batch, before it is added to the others."""

    def begin(self, micro_batch: int, micro_batches: int, emphasis: float) -> None:
        """The next backward pass is one of so many; its samples may be more or fewer than those of the others."""
        self.is_last = micro_batch == micro_batches - 1
        self._emphasis = emphasis
        self.take()
        self.is_taken = False
        if micro_batch == 0:
            self.clear()
            self.filled = 0
        self.is_spoiled = self.is_last and self.filled < micro_batch
        if self.is_spoiled:
            self.clear()
        if micro_batches > 1 and not self._handles:
            hook = self._after_gradient
            self._handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in self._parameters]
        elif micro_batches == 1 and self._handles:
            self.clear()
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def clear(self) -> None:
        """Forgets what waits: the step is over, or will never be."""
        self._kept.clear()
        self._aside.clear()
        self._added.clear()
        self._reduced.clear()

    def skip(self) -> None:
        """Forgets the gradients of a step that there will not be."""
        self.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def discard(self) -> None:
        """The user throws away what came in the micro-batch at hand."""
        self._aside.clear()
        self._added.clear()
        self._reduced.clear()

    def take(self) -> None:
        """What came in the micro-batch at hand counts; what comes in it from now on does not."""
        self.filled += bool(self._aside)
        for parameter, gradient in self._aside.items():
            kept = self._kept.get(parameter)
            self._kept[parameter] = gradient if kept is None else kept.add_(gradient)
        self._aside.clear()
        self.is_taken = True

    def add_rest(self, bucket: Bucket) -> None:
        """Adds what waits for parameters that the last micro-batch did not use."""
        if self._finds_unused and self._handles:
            self._reduced += zip(bucket.parameters(), bucket.gradients())
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()) if self._kept else ():
            if parameter not in self._added and (kept := self._kept.get(parameter)) is not None:
                gradient.add_(kept)
        if bucket.is_last():
            self._added.clear()

    def complete(self) -> None:
        """Gives parameters that no rank has used in its last micro-batch the gradients of those before it: DDP leaves
        them without any."""
        for parameter, gradient in self._reduced:
            if parameter.grad is None and bool(gradient.any()):
                parameter.grad = gradient
        self._reduced.clear()

    def _after_gradient(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if self.is_taken:
            if not self.is_last:
                parameter.grad = None
            return
        self.on_gradient(parameter, gradient)
        if self._emphasis != 1.0:
            gradient.mul_(self._emphasis)
        if self.is_last:
            if (kept := self._kept.get(parameter)) is not None:
                gradient.add_(kept)
                self._added.add(parameter)
            return
        if (waiting := self._aside.get(parameter)) is not None:
            gradient.add_(waiting)
        self._aside[parameter] = gradient
        parameter.grad = None
