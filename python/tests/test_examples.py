"""The example scripts, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: `make python` installs it")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: `make python` installs it")

EXAMPLES = Path(__file__).parents[2] / "examples" / "pytorch"
LIMIT_S = 180
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(launcher: list[str], script: str, *arguments: str) -> list[str]:
    """The lines that it prints."""
    command = [*launcher, str(EXAMPLES / script), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("POLLUX_")}
    env["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def test_the_classifier_learns_to_read_digits() -> None:
    lines = run([sys.executable], "cnn.py", "--epochs", "4")
    assert [line.split(":")[0] for line in lines] == [f"epoch {number}/4" for number in (1, 2, 3, 4)]
    assert float(re.findall(r"best ([\d.]+)", lines[-1])[0]) > 0.8


def test_the_language_model_gets_better() -> None:
    [line] = run([sys.executable], "transformer.py", "--steps", "60")
    # Guessing among 256 characters costs ln 256 = 5.5, knowing how common each is about 3.2.
    assert float(re.findall(r"loss ([\d.]+)", line)[0]) < 3.4


def test_the_student_of_a_stream_gets_better() -> None:
    lines = run([sys.executable], "steps.py", "--steps", "400")
    errors = [float(error) for line in lines for error in re.findall(r"error ([\d.]+)", line)]
    assert len(errors) >= 5 and errors[-1] < errors[0]


def test_the_generator_comes_nearer_to_the_ring() -> None:
    lines = run([sys.executable], "gan.py", "--epochs", "5")
    distances = [float(distance) for line in lines for distance in re.findall(r"ring ([\d.]+)", line)]
    assert len(distances) == 5 and distances[-1] < distances[0]


def test_the_best_classifier_is_kept(tmp_path: Path) -> None:
    lines = run([sys.executable], "best.py", "--epochs", "12", "--output", str(tmp_path / "best.pt"))
    assert len(lines) == 12 and float(re.findall(r"best ([\d.]+)", lines[-1])[0]) < 0.5
    assert (tmp_path / "best.pt").exists()


def test_the_trainer_of_hugging_face_gets_better(tmp_path: Path) -> None:
    lines = run([sys.executable], "huggingface_trainer.py", "--steps", "60", "--output", str(tmp_path))
    assert float(re.findall(r"loss ([\d.]+)", lines[-1])[0]) < 3.4


def test_the_trainer_of_lightning_learns_to_read_digits() -> None:
    lines = [line for line in run([sys.executable], "lightning_trainer.py", "--epochs", "4") if "epoch" in line]
    assert [line.split(":")[0] for line in lines] == [f"epoch {number}/4" for number in (1, 2, 3, 4)]
    assert float(re.findall(r"accuracy ([\d.]+)", lines[-1])[0]) > 0.8


def test_two_shards_of_a_network_learn_to_read_digits() -> None:
    [line] = run(TORCHRUN, "fsdp.py", "--epochs", "1")
    assert line.startswith("epoch 1/1") and "GPUs 2 in replicas of 2" in line
    assert float(re.findall(r"accuracy ([\d.]+)", line)[0]) > 0.8


def test_two_processes_of_torchrun_print_once() -> None:
    lines = run(TORCHRUN, "cnn.py", "--epochs", "2")
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("GPUs 2" in line for line in lines)
