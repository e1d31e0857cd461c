"""Steps of several micro-batches, behind the back of a loop that knows of one.

Between the micro-batches of a step the loop sees no gradients: clipping, logging, `zero_grad()` and `optimizer.step()`
find nothing to do. The gradients wait aside and are added to those of the last micro-batch before DDP takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch.distributed as dist

import torch
from torch import Tensor


class Accumulation:
    """Gradients that wait for the last micro-batch of their step."""

    def __init__(self, parameters: Iterable[Tensor], finds_unused: bool):
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._finds_unused = finds_unused
        self._aside: dict[Tensor, Tensor] = {}
        self._reduced: list[tuple[Tensor, Tensor]] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.is_last = True
        self.is_used = False
        """Whether the loop has gradients of the micro-batch at hand that it did not throw away."""
        self.is_spoiled = False
        """Whether it has thrown a micro-batch of the step away, and with it all of them."""
        self.is_skipped = False
        """Whether nobody else has gradients, so that there is no step."""
        self._emphasis = 1.0
        self.on_gradient: Callable[[Tensor, Tensor], None] = lambda _parameter, _gradient: None
        """Gets a parameter and its gradient of every micro-batch, before it is added to the others."""

    def begin(self, micro_batch: int, micro_batches: int, emphasis: float) -> None:
        """The next backward pass is one of so many; its samples may be more or fewer than those of the others."""
        self.is_last = micro_batch == micro_batches - 1
        self._emphasis = emphasis
        if micro_batch == 0:
            self.clear()
            self.is_spoiled = self.is_skipped = False
        self.is_used = False
        if micro_batches > 1 and not self._handles:
            hook = self._after_gradient
            self._handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in self._parameters]
        elif micro_batches == 1 and self._handles:
            self.clear()
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def spoil(self, is_alone: bool) -> None:
        """The loop has thrown the micro-batch at hand away."""
        self.clear()
        self.is_spoiled, self.is_skipped = True, is_alone

    def skip(self) -> None:
        """Forgets the gradients of a step that there will not be."""
        for parameter in self._parameters:
            parameter.grad = None

    def clear(self) -> None:
        """Forgets what waits: the step is over, or will never be."""
        self._aside.clear()
        self._reduced.clear()

    def add_rest(self, bucket: dist.GradBucket) -> None:
        """Adds what waits for parameters that the last micro-batch did not use."""
        if self._finds_unused and self._handles:
            self._reduced += zip(bucket.parameters(), bucket.gradients())
        if self._aside:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                if (waiting := self._aside.pop(parameter, None)) is not None:
                    gradient.add_(waiting)

    def complete(self) -> None:
        """Gives parameters that no rank has used in its last micro-batch the gradients of those before it: DDP leaves
        them without any."""
        for parameter, gradient in self._reduced:
            if parameter.grad is None and bool(gradient.any()):
                parameter.grad = gradient
        self._reduced.clear()

    def _after_gradient(self, parameter: Tensor) -> None:
        waiting = self._aside.pop(parameter, None)
        gradient = parameter.grad
        if gradient is None:
            return
        self.is_used = True
        self.on_gradient(parameter, gradient)
        if self.is_spoiled and not self.is_last:
            parameter.grad = None
            return
        if self._emphasis != 1.0:
            gradient.mul_(self._emphasis)
        if waiting is not None:
            gradient.add_(waiting)
        if not self.is_last:
            self._aside[parameter] = gradient
            parameter.grad = None
