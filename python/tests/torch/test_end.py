"""How a process of a training ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launching import LIMIT_S, environment

SCRIPT = """
import os, sys
import torch
from torch.distributed.fsdp import fully_shard
import pollux.torch as px

# Threads that want Python's lock get it only where this one lets go of it: at the very end.
sys.setswitchinterval(20)
torch.set_num_threads(1)

def last_words():
    mesh = px.shard_mesh()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.randn(4, 8)).sum().backward()
    return [parameter.full_tensor().tolist() for parameter in model.parameters()]

def replica(idx):
    os.environ.update(POLLUX_SHARD_COUNT="2", POLLUX_SHARD_STORE=f"{sys.argv[1]}/store-{idx}")
    pids = []
    for rank in range(2):
        if not (pid := os.fork()):
            os.environ["POLLUX_SHARD_RANK"] = str(rank)
            return last_words()
        pids.append(pid)
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), flush=True)

for idx in range(10):
    if replica(idx) is not None:
        break
"""


def test_threads_that_free_what_a_last_collective_has_left_do_not_end_the_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.splitlines() == ["0 0"] * 10, done.stdout + done.stderr
