"""Workers of data loaders, which are processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TRAINING = """
import sys, torch
import pollux.torch as px
torch.set_num_threads(1)
dataset = torch.utils.data.TensorDataset(torch.randn(4096, 8), torch.zeros(4096).long())
model = torch.nn.Linear(8, 3)
model, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=sys.argv[1])
loader = px.DataLoader(dataset, batch_size=16, num_workers=2)
for epoch in px.epochs(1000):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        print("step", flush=True)
"""


def test_a_signal_to_the_whole_process_group_ends_the_training_after_a_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert training.stdout is not None
    assert training.stdout.readline() == b"step\n"
    os.killpg(training.pid, signal.SIGTERM)
    _, told = training.communicate(timeout=120)
    assert training.returncode == 143, told.decode()
    assert len(list(tmp_path.glob("checkpoint-*.pt"))) == 1
