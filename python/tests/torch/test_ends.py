"""Outside of the loops a training ends as a user expects, too."""

from __future__ import annotations

import signal
import time

import pytest
import torch.distributed as dist
from test_checkpoints import launch, seen, steps_of

import pollux.torch as px
import torch

LIMIT_S = 300
WAIT = "print('here', flush=True); [time.sleep(0.05) for _ in range(100_000)]"
# A lock that is taken twice: no handler of Python interrupts it.
IMPATIENT = "import ctypes; from pollux._elastic import termination as t; t._PATIENCE_S = 0.5; "
IMPATIENT += "lock = ctypes.create_string_buffer(64)"
DEAF = "print('here', flush=True); [ctypes.CDLL(None).pthread_mutex_lock(lock) for _ in range(2)]"
MOMENTS = {
    "before": {"before_loops": WAIT},
    "between": {"after": f"    if epoch == 1: {WAIT}"},
    "after": {"after": WAIT},
    "deaf": {"before_loops": IMPATIENT, "after": f"    if epoch == 1: {DEAF}"},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_that_is_told_to_end_outside_of_the_loops_ends_at_once(tmp_path, moment) -> None:
    run = launch(tmp_path, **MOMENTS[moment])
    assert run.stdout is not None
    lines = [run.stdout.readline()]
    while lines[-1] not in ("here\n", ""):
        lines.append(run.stdout.readline())
    run.send_signal(signal.SIGTERM)
    rest, error = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143, error
    found = [torch.load(path, weights_only=False) for path in sorted(tmp_path.glob("checkpoint-*"))]
    # A signal that comes before the lock is heard in time to save.
    samples = {"before": [[]], "between": [[400]], "after": [[600]], "deaf": [[], [400]]}[moment]
    assert [state["position"]["samples"] for state in found] in samples
    if moment == "between":
        output, error = launch(tmp_path).communicate(timeout=LIMIT_S)
        counts = seen([steps_of("".join(lines)), steps_of(output)])
        assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(3)] == [True] * 3, error


@pytest.mark.parametrize("where", ["between", "within"])
def test_memory_that_runs_out_in_an_evaluation_is_the_users_to_mend(tmp_path, where) -> None:
    failing = "raise torch.OutOfMemoryError('CUDA out of memory')"
    given = {"after": f"    {failing}"}
    if where == "within":
        given = {"late": f"with torch.no_grad(): wrapped(batch[0])\n        {failing}"}
    run = launch(tmp_path, **given)
    _, error = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1 and "pollux:" not in error, error
    assert not (tmp_path / "samples-per-gpu").exists()


def before_the_loops(folder: str) -> list[int]:
    """Rank 0 prepares what the others read."""
    known = [px.rank(), px.world_size()]
    path = f"{folder}/prepared"
    if px.rank() == 0:
        with open(path, "w") as file:
            file.write("7")
    px.barrier()
    with open(path) as file:
        known.append(int(file.read()))
    px.barrier()
    assert not dist.is_initialized()
    return known


@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_and_barriers_are_there_before_the_loops(together, tmp_path, world_size) -> None:
    assert together(before_the_loops, world_size, str(tmp_path)) == [
        [rank, world_size, 7] for rank in range(world_size)
    ]


def late_at_its_only_barrier() -> None:
    wait = dist.PrefixStore.wait

    def wait_late(*args) -> None:
        time.sleep(1)
        wait(*args)

    if px.rank() != 0:
        dist.PrefixStore.wait = wait_late
    px.barrier()


def test_rank_0_ends_after_all_have_left_a_barrier_before_the_loops(together) -> None:
    assert together(late_at_its_only_barrier, 2) == [None, None]
