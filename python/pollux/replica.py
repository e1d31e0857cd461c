"""Starts a script as the processes of one replica, which share one copy of its model:

    pollux submit --gpus 2 -- python -m pollux.replica train.py

They begin together and end together: if one is lost, the others end, and the scheduler sees the end of one replica.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NoReturn

GRACE_S = 20.0
"""What the others have to end once one has, or is lost. They notice by themselves, and may be saving."""
_GLANCE_S = 0.05


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the processes, and ends as the first of them that ended did."""
    parser = argparse.ArgumentParser(prog="python -m pollux.replica", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--processes", type=int, metavar="N", help="how many (default: one for each GPU of the replica)"
    )
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")
    given = parser.parse_args(arguments)
    if "POLLUX_JOB_ID" not in os.environ:
        parser.error("this is no replica of a job; without a scheduler, torchrun --nproc-per-node N starts N processes")
    count = given.processes if given.processes is not None else _gpus()
    if count is None:
        parser.error("CUDA_VISIBLE_DEVICES does not tell how many GPUs there are; expected --processes N")
    if count < 1:
        parser.error(f"--processes {count}; expected whole numbers from 1")
    with tempfile.TemporaryDirectory(prefix="pollux-replica-") as folder:
        code = _run([sys.executable, given.script, *given.arguments], count, f"{folder}/store")
    if code < 0:
        # As whoever started this would have seen it of a single process.
        with contextlib.suppress(OSError):  # Some cannot be caught anyway.
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _gpus() -> int | None:
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len(seen.split(",")) if seen else None


def _run(command: list[str], count: int, store: str) -> int:
    processes: list[subprocess.Popen[bytes]] = []
    heard: list[int] = []

    def forward(number: int, _frame: Any) -> None:
        heard.append(number)
        for process in processes:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    shared = {"POLLUX_SHARD_COUNT": str(count), "POLLUX_SHARD_STORE": store}
    for rank in range(count):
        env = {**os.environ, **shared, "POLLUX_SHARD_RANK": str(rank)}
        processes.append(subprocess.Popen(command, env=env))
        for early in heard:  # This one was not there yet.
            processes[-1].send_signal(early)
    try:
        return _first_end(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _first_end(processes: list[subprocess.Popen[bytes]]) -> int:
    """How the first process ended that did not end well; the others have a moment to follow."""
    deadline: float | None = None
    failures: list[int] = []
    while True:
        codes = [process.poll() for process in processes]
        failures = failures or [code for code in codes if code]
        if None not in codes or (deadline is not None and time.monotonic() > deadline):
            return next(iter(failures), 0)
        if failures and deadline is None:
            deadline = time.monotonic() + GRACE_S
        time.sleep(_GLANCE_S)


if __name__ == "__main__":
    main()
