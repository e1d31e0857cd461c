"""The interpreter that has Keras and TensorFlow: beside this one, which has PyTorch."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest


@functools.cache
def keras_python() -> str:
    """Where it is; the test is skipped if it is nowhere."""
    beside = Path(sys.prefix).parent / "keras" / "bin" / "python"
    if beside.exists():
        return str(beside)
    if any(importlib.util.find_spec(package) is None for package in ("keras", "tensorflow")):
        pytest.skip("Keras or TensorFlow is not installed: `make python` installs both")
    return sys.executable
