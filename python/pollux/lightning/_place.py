"""Who this process is to Pollux, and alone to Lightning.

Lightning is told that each process is alone: it would meet the others once, at a group that never changes. Pollux meets
them, and again whenever the group changes.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only

import pollux.torch as px
import torch
from pollux.torch import UsageError
from pollux.torch._group import Group
from pollux.torch._process import current
from pollux.torch._session import Session


class AloneEnvironment(LightningEnvironment):
    """A launcher that has started one process, whatever the environment says."""

    @property
    def creates_processes_externally(self) -> bool:
        """So that Lightning starts none."""
        return True

    def world_size(self) -> int:
        """One."""
        return 1

    def global_rank(self) -> int:
        """The only one."""
        return 0

    def local_rank(self) -> int:
        """The only one."""
        return 0


class Elastic:
    """What both strategies say of this process. Put before a strategy for a single device."""

    def __init__(
        self, *, scaling: Any = "auto", checkpoint_dir: Any = None, checkpoint_every_s: float = 300.0, **ddp: Any
    ):
        super().__init__(device=px.device())  # type: ignore[call-arg]
        self.cluster_environment = AloneEnvironment()
        self.wrapping = {"scaling": scaling, "checkpoint_dir": checkpoint_dir, "checkpoint_every_s": checkpoint_every_s}
        self.wrapping |= ddp

    @property
    def global_rank(self) -> int:
        """The place of this process in the group at hand."""
        rank = px.rank()
        # Who logs and prints may be another since the group changed.
        rank_zero_only.rank = rank
        return rank

    @global_rank.setter
    def global_rank(self, _: int) -> None:
        """Nobody else decides it."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is the first of the group at hand."""
        return self.global_rank == 0

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes say so, or any."""
        group = trained_group()
        if group is None:
            return decision
        votes = group.sum([float(decision)])[0]
        return votes == group.world_size if all else votes > 0

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Refused: processes have different numbers of samples."""
        if trained_group() is not None:
            raise UsageError("all_gather with Pollux: processes have different numbers of samples; use px.Mean")
        return tensor


def reduced(tensor: Any, how: Any) -> Any:
    """The mean or the sum over all processes; as it is while there are no others."""
    group = trained_group()
    if group is None or group.world_size == 1 or not isinstance(tensor, torch.Tensor):
        return tensor
    if str(how).lower() not in ("mean", "avg", "sum", "redoptype.sum", "redoptype.avg"):
        raise UsageError(f"reduce_op {how!r} with Pollux; expected mean and sum")
    total = tensor.clone()
    dist.all_reduce(total)
    return total if "sum" in str(how).lower() else total / group.world_size


def session() -> Session | None:
    """The training of this process, if it has begun."""
    try:
        return current()
    except UsageError:
        return None


def trained_group() -> Group | None:
    """The group that trains at the moment."""
    begun = session()
    return begun.group if begun is not None and not begun.has_left else None


def refuse(settings: dict[str, tuple[Any, Any, str]]) -> None:
    """Says of the first setting that is not what it must be why, and what to do instead."""
    for name, (value, accepted, advice) in settings.items():
        if value != accepted:
            raise UsageError(f"{name}={value!r} with Pollux: {advice}")
