"""Real trainings: alone in this process, or as several processes that meet over loopback."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launching import free_port

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make python` installs it")
from pollux.torch import _process  # noqa: E402

os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

_LIMIT_S = 600
_SERVER = multiprocessing.get_context("forkserver")
# Each process of a group is forked from one that has imported everything.
_SERVER.set_forkserver_preload(["torch", "torch._dynamo", "pollux.torch"])


def _run(
    body: Callable[..., Any], rank: int, world_size: int, port: int, env: dict[str, str], args: Any, out: Any
) -> None:
    os.environ.update(env, RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    try:
        out.put(pickle.dumps((rank, body(*args), None)))
    except Exception:
        out.put(pickle.dumps((rank, None, traceback.format_exc())))
        raise


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """A training in this process is over with its test, and so is what it set for itself."""
    before = dict(os.environ)
    yield
    _process.close()
    _process._current = None
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """Runs a function in so many processes of one group; their results, by rank."""

    def run(body: Callable[..., Any], world_size: int, *args: Any, **env: str) -> list[Any]:
        port = free_port()
        out = _SERVER.Queue()
        processes = [
            _SERVER.Process(target=_run, args=(body, rank, world_size, port, env, args, out))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        try:
            told = [pickle.loads(out.get(timeout=_LIMIT_S)) for _ in processes]
            results = {rank: (value, error) for rank, value, error in told}
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
        for rank in range(world_size):
            assert results[rank][1] is None, results[rank][1]
        return [results[rank][0] for rank in range(world_size)]

    return run
