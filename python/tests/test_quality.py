"""A short version of bench/quality.py: adaptive training learns what a fixed batch teaches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: `make python` installs it")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: `make python` installs it")

BENCH = Path(__file__).parents[1] / "bench" / "quality.py"


def test_adaptive_training_is_about_as_accurate_as_a_fixed_batch() -> None:
    # Whether a batch grows within ten epochs is a matter of the machine's speed.
    # Two seeds differ by half a point for no reason: only the benchmark, with five, can be as strict as 0.5.
    options = ["--only", "mlp/adamw", "--seeds", "2", "--epochs", "10", "--tolerance", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, BENCH, *options], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
