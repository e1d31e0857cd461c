"""What Adam divides gradients by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._shards import local

SETTLING_STEPS = 20
"""The first second moments of Adam are noise themselves."""
MOMENT_FLOOR = 0.1
"""What Adam divides a coordinate by counts for at least this share of what it divides its tensor by on average. One
that has hardly had a gradient would be divided by next to nothing and outweigh all others; Adam itself divides by a
moment that has seen the gradient."""


class Preconditioner:
    """The second moments of an optimiser of Adam's family.

    How many steps an optimiser has done it may keep on the GPU, where reading it would hold every step up. So that is
    read at check-ins, and counted on in between.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self._steps: dict[Tensor, float] = {}
        self._steps_since = 0
        self._groups: dict[Tensor, dict[str, Any]] = {}
        optimizer.register_step_post_hook(self._count)

    def read_steps(self) -> None:
        """Reads how many steps are done; on a GPU that waits for it."""
        known = [(parameter, state["step"]) for parameter, state in self._optimizer.state.items() if "step" in state]
        remote = [step for _, step in known if isinstance(step, Tensor) and step.device.type != "cpu"]
        values = iter(torch.stack([step.to(remote[0].device) for step in remote]).tolist() if remote else [])
        is_remote = {id(step) for step in remote}
        self._steps = {parameter: next(values) if id(step) in is_remote else float(step) for parameter, step in known}
        self._steps_since = 0
        self._groups = {parameter: group for group in self._optimizer.param_groups for parameter in group["params"]}

    def is_settled(self) -> bool:
        """Whether its moments say more of gradients than of their beginning."""
        return max(self._steps.values(), default=0.0) + self._steps_since >= SETTLING_STEPS

    def denominators(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """What each gradient is divided by, about as Adam does, in a precision that small moments need; nothing is left
        of one that has no moment yet."""
        roots, floors, offsets, seconds = [], [], [], []
        for parameter in parameters:
            state = self._optimizer.state.get(parameter, {})
            group = self._groups.get(parameter, {})
            # Of a sharded model, a shard is compared with its own average.
            second = local(state.get("exp_avg_sq"))
            correction = 1.0
            if second is None:
                second = torch.full_like(local(parameter), 1.0 if state else math.inf)
            else:
                correction -= group["betas"][1] ** (self._steps.get(parameter, 0.0) + self._steps_since)
            seconds.append(second.to(torch.promote_types(second.dtype, torch.float32)))
            roots.append(1.0 / math.sqrt(max(correction, 1e-12)))
            floors.append(MOMENT_FLOOR / math.sqrt(max(second.numel(), 1)))
            offsets.append(float(group.get("eps", 1e-8)))
        denominators = list(torch._foreach_sqrt(seconds))
        torch._foreach_mul_(denominators, roots)
        least = list(torch._foreach_norm(denominators))
        torch._foreach_mul_(least, floors)
        torch._foreach_maximum_(denominators, least)
        torch._foreach_add_(denominators, offsets)
        # A tensor whose gradients were all 0 so far has no scale to compare the first other one with.
        torch._foreach_add_(denominators, [torch.where(floor == 0, math.inf, 0.0) for floor in least])
        return denominators

    def _count(self, *_: Any) -> None:
        self._steps_since += 1
