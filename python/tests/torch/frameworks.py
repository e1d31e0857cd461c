"""A training script of a framework, run as users run it: alone, by torchrun, and under a real scheduler that resizes it
and whose worker is killed.

A script gets a folder and a number of epochs. Every process writes the epoch, the size of its group and the numbers of
the samples of each micro-batch it has trained into a file of its own there, calls `pace` for each, and prints a line
that begins with `done` in the end.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from launching import ADDED, LIMIT_S, environment
from pollux.torch.selftest._director import Director
from scheduler import PATIENCE_S, Scheduler, scheduler

SAMPLES = 96
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(
    script: Path, folder: Path, epochs: int, *options: str, launcher: Iterable[str] = (), python: str = sys.executable
) -> list[str]:
    """What a script says in the end, from every process."""
    folder.mkdir(exist_ok=True)
    (folder / "hurry").touch()
    command = [python, *launcher, str(script), str(folder), str(epochs), *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("done")]


def told(lines: list[str]) -> list[dict[str, Any]]:
    """What the processes of a script said in the end, by rank."""
    return sorted((json.loads(line.removeprefix("done ")) for line in lines), key=lambda one: one["rank"])


def steps(folder: Path) -> list[tuple[int, int, list[int]]]:
    """Epoch, size of the group and samples of every micro-batch of every process."""
    lines = [line for path in folder.glob("steps-*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("]")]


def counts(folder: Path) -> dict[int, collections.Counter[int]]:
    """How often each sample was used, by epoch."""
    found: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for epoch, _, samples in steps(folder):
        found[epoch].update(samples)
    return dict(found)


def assert_each_once(folder: Path, epochs: int) -> None:
    """Every epoch has used every sample once."""
    assert counts(folder) == {epoch: dict.fromkeys(range(SAMPLES), 1) for epoch in range(epochs)}


def grow_and_shrink(
    folder: Path,
    script: Path,
    epochs: int,
    stays: int = 0,
    python: str | None = None,
    main: Callable[..., None] | None = None,
) -> None:
    """Trains alone, with a process that joins, and without one of both again, all in place: in processes that have
    imported PyTorch, or in programs of their own."""
    folder.mkdir(exist_ok=True)
    body = main or (run_script if python is None else functools.partial(execute, python))
    director = Director(body, str(script), str(folder), str(epochs))
    try:
        director.announce(0)
        director.wait_until(lambda: any(size == 1 for _, size, _ in steps(folder)))
        director.announce(0, 1)
        director.wait_until(lambda: any(size == 2 for _, size, _ in steps(folder)))
        director.announce(stays)
        director.wait_until(lambda: director.ready[-1]["generation"] == 3)
        (folder / "hurry").touch()
        assert director.code(1 - stays) == 143 and director.code(stays) == 0
    finally:
        director.close()
    assert_each_once(folder, epochs)


def run_script(script: str, *arguments: str) -> None:
    """In this process, as if it were started with it."""
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def interrupt_twice(folder: Path, script: Path, epochs: int, *options: str, python: str = sys.executable) -> str:
    """Trains alone, is told to end in the second epoch, goes on, is killed in the fourth, and goes on to the end. What
    the script says then. It is to save often, into a folder that the environment names."""
    folder.mkdir()
    place = environment() | {"POLLUX_CHECKPOINT_DIR": str(folder / "checkpoints")}
    command = [python, str(script), str(folder), str(epochs), *options]
    for epoch, number, code in ((1, signal.SIGTERM, 143), (3, signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(command, env=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + LIMIT_S
        while not max(counts(folder), default=0) >= epoch:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        process.send_signal(number)
        talk, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, talk
        if number == signal.SIGTERM:
            found = counts(folder)
            assert found[0] == dict.fromkeys(range(SAMPLES), 1) and max(found[1].values()) == 1
    (folder / "hurry").touch()
    done = subprocess.run(command, env=place, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    # What was trained since the last checkpoint before the kill is trained again.
    after = counts(folder)
    assert {epoch: sorted(used) for epoch, used in after.items()} == dict.fromkeys(range(epochs), list(range(SAMPLES)))
    assert all(after[epoch] == dict.fromkeys(range(SAMPLES), 1) for epoch in range(3))
    [line] = [line for line in done.stdout.splitlines() if line.startswith("done")]
    return line


def execute(python: str, script: str, *arguments: str) -> None:
    """A program of its own in the place of a process that has imported other frameworks already."""
    os.environ.update(ADDED, POLLUX_TOKEN="0")
    os.execv(python, [python, script, *arguments])


def shrink_and_kill(
    folder: Path, script: Path, epochs: int, python: str = sys.executable, launcher: Iterable[str] = (), gpus: int = 1
) -> None:
    """Under a real scheduler: two replicas become one, in place, when another job comes. That one is killed, or a
    process of it, and another trains to the end."""
    out = folder / "out"
    out.mkdir()
    with scheduler(folder, "--slots", str(2 * gpus), "--round-interval", "2") as server:
        program = [python, *launcher, str(script), str(out), str(epochs)]
        options = ["--replicas", "2", "--replicas-max", "2", "--epochs", str(epochs), "--gpus", str(gpus)]
        for name, value in ADDED.items():
            options += ["--env", f"{name}={value}"]
        job = server.pollux("submit", "-o", "id", *options, "--", *program).strip()
        try:
            _wait(server, job, lambda: any(size == 2 for _, size, _ in steps(out)))
            server.pollux("submit", "--rigid", "--", "sleep", "600")
            _wait(server, job, lambda: any(size == 1 for _, size, _ in steps(out)))
            described = server.describe(job)
            assert described["retries"] == 0 and described["restarts"] == 1, server.pollux("logs", job)
            whole = counts(out)
            assert all(whole[epoch] == dict.fromkeys(range(SAMPLES), 1) for epoch in range(max(whole))), whole
            [member] = described["group"]
            os.kill(_process(script, job, member["replica"]), signal.SIGKILL)
            (out / "hurry").touch()
            ended = server.wait_for(job, lambda told: told["phase"] in ("succeeded", "failed"), 8 * PATIENCE_S)
            log = server.pollux("logs", job)
            assert ended["phase"] == "succeeded" and ended["retries"] == 1, log
        finally:
            server.pollux("cancel", *server.pollux("ps", "-o", "id").split())
    after = counts(out)
    # What was trained since the last checkpoint is trained again.
    assert {epoch: sorted(used) for epoch, used in after.items()} == dict.fromkeys(range(epochs), list(range(SAMPLES)))
    assert sum(line.split("| ")[-1].startswith("done") for line in log.splitlines()) == 1, log


def _wait(server: Scheduler, job: str, met: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 8 * PATIENCE_S
    while not met():
        is_late = time.monotonic() > deadline or server.describe(job)["phase"] in ("failed", "succeeded")
        assert not is_late, server.pollux("logs", job)
        time.sleep(0.2)


def _process(script: Path, job: str, replica: int) -> int:
    """The number of the process of a replica, which its environment names."""
    wanted = {f"POLLUX_JOB_ID={job}".encode(), f"POLLUX_REPLICA_ID={replica}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables, command = set(path.read_bytes().split(b"\0")), (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted <= variables and command.split(b"\0")[1:2] == [str(script).encode()]:
            return int(path.parent.name)
    raise AssertionError(f"no process of replica {replica}")
