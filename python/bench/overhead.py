"""What adapting costs per step: plain DDP, pollux.torch and AdaptDL, same script, same batch, two processes.

DDP has the same options on both sides: gradients are views of its buckets. The processes of all three stand ready and
take turns, an epoch each, so that a busy machine slows all of them alike. What counts is the median over the rounds of
the ratio to plain DDP in the same round. Where a process has its memory is luck that stays with it and makes it up to a
tenth faster or slower: so they are started several times, and plain DDP is compared with itself, too.

    python bench/overhead.py --adaptdl
    python bench/overhead.py --alone        # one process, against PyTorch without DDP
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils import data

import torch
from torch import nn

PROCESSES = int(os.environ.get("WORLD_SIZE", "2"))
ADAPTDL = ["adaptdl==0.2.11", "requests", "setuptools<81"]
"""It imports the second without asking for it, and a part of the third that later ones do not have."""
ADAPTDL_HOME = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pollux" / "adaptdl-0.2.11"


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and how many steps a turn has."""

    network: str
    optimizer: str
    batch_size: int
    steps: int

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.network}-{self.optimizer}"


CASES = [
    Case("mlp", "sgd", batch_size=64, steps=60),
    Case("mlp", "adamw", batch_size=64, steps=50),
    Case("cnn", "sgd", batch_size=32, steps=25),
    Case("cnn", "adamw", batch_size=32, steps=25),
    Case("transformer", "sgd", batch_size=8, steps=8),
    Case("transformer", "adamw", batch_size=8, steps=8),
]


@dataclass
class Training:
    """What the loop is written with, whoever made it."""

    model: Any
    optimizer: Any
    loader: Iterable[Any]
    epochs: Iterable[int]
    batch_size: Callable[[], int]


@dataclass(frozen=True)
class Turn:
    """What an epoch took one process."""

    wall_s: float
    cpu_s: float
    samples: int
    batch_size: int


def plain(case: Case, epochs: int) -> Training:
    """PyTorch as it comes, but for gradients in buckets."""
    model, dataset = network_of(case)
    optimizer = optimizer_of(case, model)
    if PROCESSES == 1:
        batches: Any = data.DataLoader(dataset, case.batch_size, shuffle=True)
        return Training(model, optimizer, batches, range(epochs), lambda: batches.batch_size)
    dist.init_process_group("gloo")
    sampler: Any = data.DistributedSampler(dataset, shuffle=True)
    loader: Any = data.DataLoader(dataset, case.batch_size // PROCESSES, sampler=sampler)

    def numbers() -> Iterator[int]:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            yield epoch

    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return Training(model, optimizer, loader, numbers(), lambda: loader.batch_size * PROCESSES)


def pollux(case: Case, epochs: int) -> Training:
    """All that Pollux does, except that the batch has nowhere to go."""
    import pollux.torch as px

    model, dataset = network_of(case)
    model, optimizer = px.wrap(model, optimizer_of(case, model))
    batch, share = case.batch_size, case.batch_size // PROCESSES
    loader = px.DataLoader(dataset, batch, max_batch_size=batch, per_gpu=(share, share), shuffle=True)
    return Training(model, optimizer, loader, px.epochs(epochs), lambda: px.status().batch_size)


def adaptdl(case: Case, epochs: int) -> Training:
    """AdaptDL with a fixed batch, which is its default."""
    import adaptdl.torch as adl

    adl.init_process_group("gloo")
    model, dataset = network_of(case)
    optimizer = optimizer_of(case, model)
    loader = adl.AdaptiveDataLoader(dataset, batch_size=case.batch_size, shuffle=True)
    model = adl.AdaptiveDataParallel(model, optimizer)
    numbers = adl.remaining_epochs_until(epochs)
    return Training(model, optimizer, loader, numbers, lambda: loader.batch_sampler.batch_size * PROCESSES)


KINDS = {"plain": plain, "plain, again": plain, "pollux.torch": pollux, "AdaptDL": adaptdl}


def network_of(case: Case) -> tuple[Any, data.Dataset[Any]]:
    """A network and random data of its shape."""
    torch.manual_seed(0)
    samples = case.batch_size * case.steps
    if case.network == "mlp":
        network = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, 10))
        return network, data.TensorDataset(torch.randn(samples, 784), torch.randint(10, (samples,)))
    if case.network == "cnn":
        layers: list[nn.Module] = []
        for before, after in ((3, 64), (64, 128), (128, 256), (256, 256)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))
        return network, data.TensorDataset(torch.randn(samples, 3, 16, 16), torch.randint(10, (samples,)))
    layer = nn.TransformerEncoderLayer(384, nhead=6, dim_feedforward=1536, dropout=0.0, batch_first=True)
    network = nn.Sequential(nn.Embedding(256, 384), nn.TransformerEncoder(layer, 6), nn.Linear(384, 256))
    tokens = torch.randint(256, (samples, 17))
    return network, data.TensorDataset(tokens[:, :-1], tokens[:, 1:])


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    """With settings that are common for it."""
    if case.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(kind: str, case: Case, epochs: int) -> None:
    """One process: an epoch whenever a line comes in, and a line about it."""
    torch.set_num_threads(1)
    training = KINDS[kind](case, epochs)
    for _ in training.epochs:
        if not sys.stdin.readline():
            os._exit(1)  # Nobody waits for it any more.
        begun, begun_cpu, samples, batch_size = time.perf_counter(), time.process_time(), 0, 0
        for inputs, targets in training.loader:
            training.optimizer.zero_grad()
            output = training.model(inputs).flatten(0, -2)
            loss: Any = nn.functional.cross_entropy(output, targets.flatten())
            loss.backward()
            training.optimizer.step()
            samples += len(inputs)
            batch_size = batch_size or training.batch_size()
        turn = Turn(time.perf_counter() - begun, time.process_time() - begun_cpu, samples, batch_size)
        print(json.dumps(vars(turn)), flush=True)


class Pair:
    """The processes of one kind, which wait for their turn."""

    def __init__(self, kind: str, case: Case, epochs: int, python: str, folder: Path, processes: int):
        self.kind, self._case, self._log = kind, case, folder / f"{case.name}-{kind}.log"
        checkpoints = folder / f"{case.name}-adaptdl"
        checkpoints.mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._processes = []
        for rank in range(processes):
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            place |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            place |= {f"ADAPTDL_{name}": place[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
            place |= {"ADAPTDL_REPLICA_RANK": rank, "ADAPTDL_NUM_REPLICAS": processes, "ADAPTDL_NUM_NODES": 1}
            place |= {"ADAPTDL_CHECKPOINT_PATH": checkpoints, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
            command = [python, __file__, "--kind", kind, "--case", case.name, "--rounds", str(epochs)]
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            with open(self._log, "a") as log:
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            self._processes.append(process)

    def run(self) -> Turn:
        """Lets them train an epoch and waits for it."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        turns = [self._read(process) for process in self._processes]
        wanted = (self._case.steps * self._case.batch_size, self._case.batch_size)
        ran = (sum(turn.samples for turn in turns), turns[0].batch_size)
        if ran != wanted:
            raise SystemExit(f"{self.kind} ran {ran} samples in all and in a step; expected are {wanted}")
        return Turn(max(turn.wall_s for turn in turns), sum(turn.cpu_s for turn in turns), *wanted)

    def _read(self, process: subprocess.Popen[str]) -> Turn:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                return Turn(**json.loads(line))
        raise SystemExit(f"{self.kind} ended early:\n{self._log.read_text()[-3000:]}")

    def end(self) -> None:
        """Stops what still runs."""
        for process in self._processes:
            process.kill()
            process.wait()


def measure(
    case: Case, pythons: dict[str, str], rounds: int, warmup: int, folder: Path, processes: int
) -> dict[str, list[Turn]]:
    """The turns of every kind, in rounds; who begins changes from round to round."""
    pairs = [Pair(kind, case, warmup + rounds, python, folder, processes) for kind, python in pythons.items()]
    turns: dict[str, list[Turn]] = {kind: [] for kind in pythons}
    try:
        for number in range(warmup + rounds):
            first = number % len(pairs)
            for pair in pairs[first:] + pairs[:first]:
                turn = pair.run()
                took = f"{turn.wall_s:.2f} s, {turn.cpu_s:.2f} s of processors"
                print(f"{case.name} {number} {pair.kind}: {took}", file=sys.stderr)
                if number >= warmup:
                    turns[pair.kind].append(turn)
    finally:
        for pair in pairs:
            pair.end()
    return turns


def show(case: Case, turns: dict[str, list[Turn]]) -> None:
    """A row per kind."""
    parameters = sum(parameter.numel() for parameter in network_of(case)[0].parameters()) / 1e6
    base = turns["plain"]
    for kind, own in turns.items():
        ratios = sorted(turn.wall_s / other.wall_s for turn, other in zip(own, base))
        cpu_ratio = statistics.median(turn.cpu_s / other.cpu_s for turn, other in zip(own, base))
        quarter = len(ratios) // 4
        step_ms = statistics.median(turn.wall_s for turn in own) / case.steps * 1e3
        print(
            f"| {case.network} {parameters:.1f} M, {case.optimizer} | {kind} | {step_ms:.1f} "
            f"| {statistics.median(ratios):.3f} | {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f} "
            f"| {cpu_ratio:.3f} |",
            flush=True,
        )


def adaptdl_python(given: str | None, create: bool) -> str | None:
    """The interpreter that has AdaptDL, beside the PyTorch of this one."""
    if given or not create:
        return given
    python = ADAPTDL_HOME / "bin" / "python"
    if not (ADAPTDL_HOME / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", ADAPTDL_HOME], check=True)
        # A link to this environment's packages instead of a second copy of PyTorch.
        [packages] = ADAPTDL_HOME.glob("lib/python*/site-packages")
        (packages / "pytorch.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        subprocess.run([python, "-m", "pip", "install", "-q", *ADAPTDL], check=True)
        (ADAPTDL_HOME / "ready").touch()
    return str(python)


def main() -> None:
    """Prints a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adaptdl", action="store_true", help=f"set AdaptDL up in {ADAPTDL_HOME} unless it is there")
    parser.add_argument("--adaptdl-python", metavar="PATH", help="an interpreter that has AdaptDL and PyTorch")
    parser.add_argument("--alone", action="store_true", help="one process, against PyTorch without DDP")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only these")
    parser.add_argument("--starts", type=int, default=5, help="times that the processes are started")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind that count, in each of them")
    parser.add_argument("--warmup", type=int, default=80, help="steps of each kind that do not: the first are measured")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.case or case.name in options.case]
    if options.kind:
        train(options.kind, cases[0], options.rounds)
        return
    pythons = dict.fromkeys(("plain", "plain, again", "pollux.torch"), sys.executable)
    other = None if options.alone else adaptdl_python(options.adaptdl_python, options.adaptdl)
    if other is None and not options.alone:
        print("AdaptDL: not measured; --adaptdl sets it up, --adaptdl-python PATH takes one that is there\n")
    elif other is not None:
        pythons["AdaptDL"] = other
    print("| network, optimiser | kind | step in ms | ratio | middle half | ratio of processor time |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            processes = 1 if options.alone else 2
            turns: dict[str, list[Turn]] = {kind: [] for kind in pythons}
            for _ in range(options.starts):
                warmup = -(-options.warmup // case.steps)
                found = measure(case, pythons, options.rounds, warmup, Path(folder), processes)
                for kind, more in found.items():
                    turns[kind] += more
            show(case, turns)


if __name__ == "__main__":
    main()
