"""Goodput-driven training: jobs that adapt to the GPUs they get.

`pollux.torch` makes a PyTorch script adaptive, `pollux.jax` and `pollux.keras` one of JAX and of Keras, `pollux.sim`
compares scheduling policies on whole workloads, and `pollux.lab` fits measured steps and runs experiments. None is
imported before it is used, so that `import pollux` is quick and needs nothing else.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from pollux._native import VERSION as __version__
from pollux._native import PolluxError

__all__ = ["PolluxError", "__version__", "jax", "keras", "lab", "sim", "torch"]


def __getattr__(name: str) -> ModuleType:
    if name in ("jax", "keras", "lab", "sim", "torch"):
        return import_module(f"pollux.{name}")
    raise AttributeError(f"module 'pollux' has no attribute {name!r}")
