"""The `pollux` binary beside this interpreter, and a scheduler of its own for a test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# What anything may take on a busy machine.
PATIENCE_S = 60.0


def binary() -> str:
    """Where the binary is; the test is skipped if it is nowhere."""
    beside = Path(sys.prefix).parent / "debug" / "pollux"
    found = str(beside) if beside.exists() else shutil.which("pollux")
    if found is None:
        pytest.skip("no pollux binary; `make python` builds it")
    return found


class Scheduler:
    """`pollux up`, and the commands that speak to it."""

    def __init__(self, state: Path) -> None:
        names = {name: value for name, value in os.environ.items() if not name.startswith("POLLUX_")}
        self.environment = {**names, "POLLUX_STATE": str(state)}

    def pollux(self, *args: str) -> str:
        """What a command prints."""
        run = subprocess.run([binary(), *args], env=self.environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"pollux {' '.join(args)}: {run.stderr}"
        return run.stdout

    def describe(self, job: str) -> dict[str, Any]:
        """A job as the REST interface tells it."""
        described: dict[str, Any] = json.loads(self.pollux("describe", job, "-o", "json"))
        return described

    def wait_for(
        self, job: str, met: Callable[[dict[str, Any]], bool], patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The job as soon as a condition is met."""
        deadline = time.monotonic() + patience_s
        while not met(described := self.describe(job)):
            assert time.monotonic() < deadline, f"{described}\n{self.pollux('logs', job)}"
            time.sleep(0.05)
        return described


@contextmanager
def scheduler(
    folder: Path, *args: str, listen: str = "127.0.0.1:0", authority: Path | None = None, kill: bool = False
) -> Iterator[Scheduler]:
    """A scheduler with its state in a folder; it is ended in the end, or killed, its jobs are for the test to end."""
    (folder / "state" / "server.json").unlink(missing_ok=True)
    started = Scheduler(folder / "state")
    if authority is not None:
        started.environment["POLLUX_CA"] = str(authority)
    command = [binary(), "up", "--listen", listen, *args]
    with open(folder / "up.log", "wb") as talk:
        daemon = subprocess.Popen(command, env=started.environment, stdout=talk, stderr=talk, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "state" / "server.json").exists():
            ended = daemon.poll() is not None or time.monotonic() > deadline
            assert not ended, (folder / "up.log").read_text()
            time.sleep(0.05)
        yield started
    finally:
        daemon.kill() if kill else daemon.terminate()
        daemon.wait()
