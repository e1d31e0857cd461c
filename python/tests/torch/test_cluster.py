"""Real trainings under a real `pollux up`: resized in place, killed, and none the worse for it."""

from __future__ import annotations

import collections
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launching import free_port
from scheduler import PATIENCE_S, Scheduler, scheduler

pytest.importorskip("sklearn")

TRAINING = """
import json, os, sys, time
import numpy, torch
torch.set_num_threads(1)
from sklearn.datasets import load_digits
import pollux.torch as px

out, epochs, pace_s, seed = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
open(f"{out}/started", "w").close()
while os.path.exists(f"{out}/../wait"):
    time.sleep(0.05)
torch.manual_seed(seed)
digits = load_digits()
inputs, targets = torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target)
order = torch.tensor(numpy.random.RandomState(0).permutation(len(inputs)))
train, test = order[:1500], order[1500:]
dataset = torch.utils.data.TensorDataset(inputs[train], targets[train], torch.arange(1500))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
open(f"{out}/wrapping", "w").close()
model, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=3e-3), checkpoint_every_s=5)
loader = px.DataLoader(dataset, batch_size=32, max_batch_size=256, per_gpu=(4, 64), shuffle=True, seed=seed)
log = open(f"{out}/steps-{os.environ['POLLUX_REPLICA_ID']}", "w", buffering=1)
numbers, squares = px.Mean("numbers"), px.Mean("squares")
for epoch in px.epochs(epochs):
    for x, y, number in loader:
        if not os.path.exists(f"{out}/first-step"):
            with open(f"{out}/first-step", "w") as file:
                print(time.time(), file=file)
        time.sleep(pace_s * len(x))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        numbers.update(number.sum(), len(number))
        squares.update((number * number).sum(), len(number))
        print(json.dumps([epoch, px.world_size(), px.rank(), number.tolist()]), file=log)
    audit = [numbers.compute(), squares.compute(), px.status().samples]
    if px.rank() == 0:
        with open(f"{out}/audit-{epoch}", "w") as file:
            json.dump(audit, file)
    numbers.reset()
    squares.reset()
with torch.no_grad():
    accuracy = float((model(inputs[test]).argmax(1) == targets[test]).float().mean())
if px.rank() == 0:
    with open(f"{out}/accuracy", "a") as file:
        print(accuracy, file=file)
"""


class Training:
    """A job of digits, with what its processes wrote down."""

    def __init__(
        self, server: Scheduler, folder: Path, name: str, epochs: int, pace_s: float, *more: str, seed: int = 0
    ):
        self.folder, self.epochs, self.server = folder / name, epochs, server
        self.folder.mkdir()
        script = folder / "train.py"
        script.write_text(TRAINING)
        program = [sys.executable, str(script), str(self.folder), str(epochs), str(pace_s), str(seed)]
        options = ["--name", name, "--replicas-max", "4", "--epochs", str(epochs), "--env", "OMP_NUM_THREADS=1", *more]
        self.id = server.pollux("submit", "-o", "id", *options, "--", *program).strip()

    def steps(self) -> list[tuple[int, int, int, list[int]]]:
        """Epoch, size of the group, rank and samples of every step of every process."""
        lines = [line for path in self.folder.glob("steps-*") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("]")]

    def sizes(self) -> set[int]:
        """Sizes at which it has trained."""
        return {step[1] for step in self.steps()}

    def wait_until(self, met: Any) -> Any:
        """Waits for a condition on it, while it trains, and returns what met it."""
        deadline = time.monotonic() + 4 * PATIENCE_S
        while not (found := met(self)):
            assert time.monotonic() < deadline, f"{self.sizes()}\n{self.server.pollux('logs', self.id)}"
            time.sleep(0.2)
        return found

    def check(self, was_killed: bool = False) -> None:
        """It is done, has learned, and has used every sample of every epoch once."""
        for epoch in range(self.epochs):
            # As the training itself counts, which goes back with it when a process is killed.
            mean = sum(range(1500)) / 1500, sum(number**2 for number in range(1500)) / 1500
            assert json.loads((self.folder / f"audit-{epoch}").read_text()) == [*mean, 1500 * (epoch + 1)]
        counts = collections.Counter((epoch, number) for epoch, _, _, numbers in self.steps() for number in numbers)
        assert was_killed or counts == dict.fromkeys(itertools.product(range(self.epochs), range(1500)), 1)
        # What follows the last epoch runs again if the job was preempted in it.
        [accuracy] = set(map(float, (self.folder / "accuracy").read_text().split()))
        assert accuracy > 0.9, accuracy


def succeeded(job: dict[str, Any]) -> bool:
    assert job["phase"] not in ("failed", "cancelled"), job
    return bool(job["phase"] == "succeeded")


def test_a_training_grows_and_shrinks_in_place_and_counts_every_sample(tmp_path: Path) -> None:
    with scheduler(tmp_path, "--slots", "4", "--round-interval", "3") as server:
        fillers = [server.pollux("submit", "-o", "id", "--rigid", "--", "sleep", "600").strip() for _ in range(3)]
        training = Training(server, tmp_path, "elastic", epochs=50, pace_s=0.002)
        training.wait_until(lambda job: 1 in job.sizes())
        for filler in fillers:
            server.pollux("cancel", filler)
        training.wait_until(lambda job: job.sizes() & {3, 4})
        server.pollux("submit", "--rigid", "--replicas", "3", "--", "sleep", "5")
        server.wait_for(training.id, succeeded, patience_s=400)
        training.check()
        described = server.describe(training.id)
        assert described["restarts"] >= 2 and described["retries"] == 0, described


def test_workers_reach_a_scheduler_of_a_private_authority_by_tls(tmp_path: Path) -> None:
    files = Path(__file__).parents[1] / "tls"
    certificate, key = str(files / "cert.pem"), str(files / "key.pem")
    address = f"127.0.0.1:{free_port()}"
    tls = ("--tls-cert", certificate, "--tls-key", key)
    worker = ("--worker-url", f"https://{address}", "--worker-ca", certificate)
    with scheduler(tmp_path, "--slots", "2", *tls, *worker, listen=address, authority=files / "cert.pem") as server:
        training = Training(server, tmp_path, "encrypted", 8, 0.0, "--replicas", "2", "--replicas-min", "2")
        server.wait_for(training.id, succeeded, patience_s=400)
        training.check()
        assert training.sizes() == {2}


def test_six_trainings_survive_the_kill_of_a_worker_and_of_the_scheduler(tmp_path: Path) -> None:
    trainings: list[Training] = []
    arguments = ("--slots", "4", "--round-interval", "5")
    with scheduler(tmp_path, *arguments, kill=True) as server:
        for idx in range(4):
            if trainings:
                trainings[-1].wait_until(lambda job: job.sizes())
            trainings.append(Training(server, tmp_path, f"job{idx}", epochs=8, pace_s=0.002, seed=idx))
        victim = trainings[-1]
        victim.wait_until(lambda job: job.sizes())
        worker = victim.wait_until(lambda job: newest_worker(server, job))
        os.kill(worker, signal.SIGKILL)
        victim.wait_until(lambda job: not os.path.exists(f"/proc/{worker}"))
    # The scheduler was killed; those that train do not mind.
    with scheduler(tmp_path, *arguments) as server:
        for idx in range(4, 6):
            trainings.append(Training(server, tmp_path, f"job{idx}", epochs=8, pace_s=0.002, seed=idx))
            trainings[-1].wait_until(lambda job: job.sizes())
        for training in trainings:
            server.wait_for(training.id, succeeded, patience_s=400)
        for training in trainings:
            training.check(was_killed=training is victim)


def test_a_process_that_starts_while_the_scheduler_is_killed_waits_for_it_to_come_back(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with scheduler(tmp_path, "--slots", "1", kill=True) as server:
        training = Training(server, tmp_path, "early", epochs=3, pace_s=0.0)
        training.wait_until(lambda job: (job.folder / "started").exists())
    (tmp_path / "wait").unlink()
    training.wait_until(lambda job: (job.folder / "wrapping").exists())
    came_back = time.time()
    with scheduler(tmp_path, "--slots", "1") as server:
        server.wait_for(training.id, succeeded)
        assert float((training.folder / "first-step").read_text()) > came_back
        assert server.describe(training.id)["retries"] == 0


def test_a_training_whose_scheduler_is_gone_for_good_trains_to_its_end(tmp_path: Path) -> None:
    with scheduler(tmp_path, "--slots", "1", kill=True) as server:
        training = Training(server, tmp_path, "orphan", epochs=12, pace_s=0.001)
        training.wait_until(lambda job: job.steps())
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not (training.folder / "accuracy").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    training.check()


def newest_worker(server: Scheduler, training: Training) -> int | None:
    """The process of the last rank, if its group has not changed since the scheduler told of it."""
    group = server.describe(training.id)["group"]
    workers = [pid for member in group for pid in processes(training, member["replica"])]
    return workers[-1] if workers else None


def processes(training: Training, replica: int) -> list[int]:
    """Numbers of the processes of a replica, which its environment names."""
    found = []
    wanted = {f"POLLUX_JOB_ID={training.id}".encode(), f"POLLUX_REPLICA_ID={replica}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables, command = set(path.read_bytes().split(b"\0")), (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted <= variables and str(training.folder).encode() in command:
            found.append(int(path.parent.name))
    return found
