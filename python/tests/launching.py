"""Scripts as several processes that meet over loopback, as any launcher would start them."""

from __future__ import annotations

import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 480
THREAD_LIMIT_S = 30.0
_HERE = Path(__file__).parent
ADDED = {
    "PYTHONPATH": f"{_HERE}:{_HERE / 'torch'}",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""What processes of trainings find in their environment."""


def environment() -> dict[str, str]:
    """Ours, without a scheduler's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POLLUX_")} | ADDED


_PORTS = itertools.count(12_000 + os.getpid() % 8_000)


def free_port(host: str = "127.0.0.1") -> int:
    """A port for somebody who has to be told one: none that the system gives to others meanwhile."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in _PORTS:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
    raise AssertionError("there is always another one")


def start(
    script: Path, world_size: int, *arguments: str, python: str = sys.executable, host: str = "127.0.0.1"
) -> list[subprocess.Popen[str]]:
    """The processes of a script, by rank."""
    place = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": host, "MASTER_PORT": str(free_port(host))}
    return [
        subprocess.Popen(
            [python, script, *arguments],
            env=environment() | place | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def together(text: str, folder: Path, world_size: int, *arguments: str, python: str = sys.executable) -> list[Any]:
    """What every process of a script prints in its last line, by rank."""
    script = folder / "script.py"
    script.write_text(text)
    processes = start(script, world_size, *arguments, python=python)
    try:
        told = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, talk) in zip(processes, told):
        assert process.returncode == 0, out + talk
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


def in_threads(count: int, body: Callable[[int], Any]) -> list[Any]:
    """What threads of these numbers give, or the errors that ended them; nothing of those that go on."""
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(THREAD_LIMIT_S)
    return results
