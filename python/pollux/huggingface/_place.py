"""Who this process is to Pollux, and nobody to Accelerate.

Accelerate is told that each process is alone: it would meet the others once, at a group that never changes. Pollux
meets them, and again whenever the group changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pollux.torch import ElasticModule, UsageError

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MPI = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")


@contextmanager
def alone() -> Iterator[None]:
    """Hides from Accelerate what a launcher says of other processes."""
    hidden = {name: os.environ.pop(name) for name in (*_LAUNCHERS, *_MPI) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def bare(model: Any) -> Any:
    """What `px.wrap` was given."""
    return model.module if isinstance(model, ElasticModule) else model


def refuse(what: dict[str, Any], advice: dict[str, str]) -> None:
    """Says of the first setting that is on and cannot be why, and what to do instead."""
    for name, value in what.items():
        if value:
            raise UsageError(f"{name}={value!r} with Pollux: {advice[name]}")
