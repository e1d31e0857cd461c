"""How long a training stands still when its group changes: in place, and by checkpoint and restart.

A job of 10 million parameters with AdamW runs under a scheduler of its own, with four slots. Rigid jobs that come and
go leave it 2, 4 and 1 of them in turn; then it is paused and resumed with as many. The pause is the time from the end
of rank 0's last step before to the beginning of its first step after. Every sample of an epoch has to be used once.

    python bench/resize.py --pollux target/release/pollux
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLOTS = 4
SIZES = (2, 4, 1)
EPOCH_SAMPLES = 4096
PATIENCE_S = 180.0


@dataclass(frozen=True)
class Step:
    """What a process wrote about a step."""

    begun: float
    ended: float
    world_size: int
    rank: int
    epoch: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Pause:
    """Between two steps of rank 0."""

    before: int
    after: int
    seconds: float


def train(folder: Path, sample_s: float) -> None:
    """The job: a step sleeps as long as its samples would compute, so that more processes are worth having."""
    import pollux.torch as px
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(EPOCH_SAMPLES, 32)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.argmax(1), torch.arange(EPOCH_SAMPLES))
    first, wide, last = torch.nn.Linear(32, 3150), torch.nn.Linear(3150, 3150), torch.nn.Linear(3150, 32)
    model: Any = torch.nn.Sequential(first, torch.nn.ReLU(), wide, torch.nn.ReLU(), last)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = px.wrap(model, optimizer)
    loader = px.DataLoader(dataset, batch_size=32, max_batch_size=128, per_gpu=(8, 32), shuffle=True)
    with open(folder / f"steps-{os.getpid()}", "w", buffering=1) as log:
        for epoch in px.epochs(1_000_000):
            for features, targets, numbers in loader:
                begun = time.time()
                time.sleep(len(features) * sample_s)
                optimizer.zero_grad()
                loss: Any = torch.nn.functional.cross_entropy(model(features), targets)
                loss.backward()
                optimizer.step()
                samples = ",".join(map(str, numbers.tolist()))
                log.write(f"{begun} {time.time()} {px.world_size()} {px.rank()} {epoch} {samples}\n")


def read(folder: Path) -> list[Step]:
    """All steps so far, by time."""
    steps = []
    for path in folder.glob("steps-*"):
        for line in path.read_text().split("\n")[:-1]:
            begun, ended, world_size, rank, epoch, samples = line.split()
            numbers = tuple(map(int, samples.split(",")))
            steps.append(Step(float(begun), float(ended), int(world_size), int(rank), int(epoch), numbers))
    return sorted(steps, key=lambda step: step.begun)


def count(steps: list[Step]) -> str:
    """Whether every sample was used once; of the last epoch, which nobody ends, whether none was used twice."""
    used: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for step in steps:
        used[step.epoch].update(step.samples)
    last = max(used)
    twice = sum(times - 1 for counter in used.values() for times in counter.values())
    lost = sum(EPOCH_SAMPLES - len(counter) for epoch, counter in used.items() if epoch != last)
    total = sum(len(counter) for counter in used.values())
    return f"{total} samples in {last} whole epochs and a begun one: {twice} used twice, {lost} lost"


class Cluster:
    """A scheduler, the job in question, and jobs that take its slots away."""

    def __init__(self, binary: Path, folder: Path, sample_s: float):
        self._binary, self._folder = binary, folder
        self._fillers: list[str] = []
        self._state = {**os.environ, "POLLUX_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1"}
        command = [str(binary), "up", "--slots", str(SLOTS), "--listen", "127.0.0.1:0", "--round-interval", "2"]
        with open(folder / "up.log", "w") as log:
            self._process = subprocess.Popen(command, env=self._state, stdout=log, stderr=log)
        self._retry("ps")
        self._hold(SLOTS - SIZES[0])
        script = [sys.executable, __file__, "--train", folder, "--sample-s", str(sample_s)]
        python_path = os.environ.get("PYTHONPATH", "")
        limits = ["--replicas-max", str(SLOTS), "--env", f"PYTHONPATH={python_path}", "--env", "OMP_NUM_THREADS=1"]
        self._job = self._call("submit", "-o", "id", *limits, "--", *script)

    def resize(self, world_size: int) -> None:
        """Leaves the job so many slots, and waits until it trains with them."""
        begun = time.time()
        free = SLOTS - len(self._fillers)
        if world_size > free:
            leaving, self._fillers = self._fillers[: world_size - free], self._fillers[world_size - free :]
            self._call("cancel", *leaving)
        else:
            self._hold(free - world_size)
        self._wait(world_size, begun)

    def restart(self) -> None:
        """Pauses the job and lets it go on with as many slots."""
        world_size = read(self._folder)[-1].world_size
        self._call("pause", self._job)
        begun = time.time()
        while '"paused"' not in self._call("describe", "-o", "json", self._job):
            time.sleep(0.2)
        self._call("resume", self._job)
        self._wait(world_size, begun)

    def _hold(self, slots: int) -> None:
        """Single slots, so that jobs need not wait for each other."""
        for _ in range(slots):
            self._fillers.append(self._call("submit", "-o", "id", "--rigid", "--", "sleep", "86400"))

    def _wait(self, world_size: int, since: float, steps: int = 5) -> None:
        """Until rank 0 has made some steps with such a group."""
        deadline = time.time() + PATIENCE_S
        while time.time() < deadline:
            done = [step for step in read(self._folder) if step.rank == 0 and step.begun > since][-steps:]
            if len(done) == steps and all(step.world_size == world_size for step in done):
                return
            time.sleep(0.3)
        logs = self._call("logs", self._job)[-2000:]
        raise TimeoutError(f"no group of {world_size} within {PATIENCE_S:.0f} s:\n{logs}")

    def _retry(self, *arguments: str) -> None:
        deadline = time.time() + 30.0
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._call(*arguments)
                return
            if time.time() > deadline:
                raise SystemExit(f"no scheduler within 30 s:\n{(self._folder / 'up.log').read_text()}")
            time.sleep(0.2)

    def _call(self, *arguments: Any) -> str:
        command = [str(self._binary), *map(str, arguments)]
        done = subprocess.run(command, env=self._state, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def end(self) -> None:
        """Ends the jobs, then the scheduler."""
        with contextlib.suppress(subprocess.CalledProcessError, AttributeError):
            self._call("cancel", self._job, *self._fillers)
            time.sleep(3.0)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def pauses(steps: list[Step], since: float, until: float) -> Iterator[Pause]:
    """From each step of rank 0 to its next, within a span."""
    leading = [step for step in steps if step.rank == 0]
    for before, after in zip(leading, leading[1:]):
        if since <= before.ended and after.begun <= until:
            yield Pause(before.world_size, after.world_size, after.begun - before.ended)


def rows(in_place: list[Pause], restarts: list[Pause]) -> Iterator[str]:
    """Of the table."""
    kinds = {
        "grow, in place": [pause for pause in in_place if pause.after > pause.before],
        "shrink, in place": [pause for pause in in_place if pause.after < pause.before],
        "checkpoint and restart": restarts,
    }
    yield "| change | times | median in s | worst in s |\n|---|---|---|---|"
    for kind, found in kinds.items():
        if found:
            seconds = [pause.seconds for pause in found]
            yield f"| {kind} | {len(found)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |"


def main() -> None:
    """Prints the table and the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pollux", type=Path, metavar="PATH", help="the command; default: that of this workspace")
    parser.add_argument("--cycles", type=int, default=5, help="times through 2, 4 and 1 processes")
    parser.add_argument("--restarts", type=int, default=2, help="pauses at each of these sizes")
    parser.add_argument("--sample-s", type=float, default=0.01, help=argparse.SUPPRESS)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.sample_s)
        return
    with tempfile.TemporaryDirectory() as name:
        measure(options.pollux or _binary(), Path(name), options)


def measure(binary: Path, folder: Path, options: argparse.Namespace) -> None:
    """Drives the cluster and looks at what the job has written; Ctrl-C shows what there is."""
    cluster = Cluster(binary.resolve(), folder, options.sample_s)
    restarts: list[Pause] = []
    begun = ended = time.time()
    try:
        cluster.resize(SIZES[0])
        begun = time.time()
        for _ in range(options.cycles):
            for size in (*SIZES[1:], SIZES[0]):
                cluster.resize(size)
                ended = time.time()
        for size in SIZES:
            cluster.resize(size)
            for _ in range(options.restarts):
                since = time.time()
                cluster.restart()
                restarts.append(max(pauses(read(folder), since, time.time()), key=lambda pause: pause.seconds))
    except (KeyboardInterrupt, TimeoutError) as error:
        print(f"ended early: {error}", file=sys.stderr)
    finally:
        cluster.end()
    steps = read(folder)
    in_place = [pause for pause in pauses(steps, begun, ended) if pause.before != pause.after]
    print("\n".join(rows(in_place, restarts)))
    print(f"\n{count(steps)}")


def _binary() -> Path:
    root = Path(__file__).resolve().parents[2]
    found = [path for path in (root / "target/release/pollux", root / "target/debug/pollux") if path.exists()]
    if not found:
        raise SystemExit("no pollux in target/release or target/debug; build it or give --pollux PATH")
    return found[0]


if __name__ == "__main__":
    main()
