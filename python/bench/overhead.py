"""What adapting costs per step: pollux.torch and AdaptDL against plain DDP, same script, same batch, two processes.

DDP has the same options on both sides: gradients are views of its buckets. The same processes train both and
take turns between them, an epoch each: a process has its memory where it has it, which makes it up to a tenth faster or
slower than another, and a busy machine slows both alike. What counts is the median over all rounds of the ratio in a
round. Processes are started several times, since where two models of one process lie is luck, too.

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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    batch_size: Callable[[], int]


@dataclass(frozen=True)
class Turn:
    """What an epoch took one process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Round:
    """A turn of each."""

    own: Turn
    plain: Turn


def plain(case: Case) -> Training:
    """PyTorch as it comes, but for gradients in buckets, in the group of whoever is compared with it."""
    model, dataset = network_of(case)
    optimizer = optimizer_of(case, model)
    if PROCESSES == 1:
        batches: Any = data.DataLoader(dataset, case.batch_size, shuffle=True)
        return Training(model, optimizer, batches, lambda: batches.batch_size)
    sampler: Any = data.DistributedSampler(dataset, shuffle=True)
    loader: Any = data.DataLoader(dataset, case.batch_size // PROCESSES, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return Training(model, optimizer, loader, lambda: loader.batch_size * PROCESSES)


def pollux(case: Case, epochs: int) -> tuple[Training, Iterable[int]]:
    """All that Pollux does, except that the batch has nowhere to go."""
    import pollux.torch as px

    model, dataset = network_of(case)
    model, optimizer = px.wrap(model, optimizer_of(case, model))
    batch, share = case.batch_size, case.batch_size // PROCESSES
    loader = px.DataLoader(dataset, batch, max_batch_size=batch, per_gpu=(share, share), shuffle=True)
    return Training(model, optimizer, loader, lambda: px.status().batch_size), px.epochs(epochs)


def adaptdl(case: Case, epochs: int) -> tuple[Training, Iterable[int]]:
    """AdaptDL with a fixed batch, which is its default."""
    import adaptdl.torch as adl

    adl.init_process_group("gloo")
    model, dataset = network_of(case)
    optimizer = optimizer_of(case, model)
    loader = adl.AdaptiveDataLoader(dataset, batch_size=case.batch_size, shuffle=True)
    model = adl.AdaptiveDataParallel(model, optimizer)
    training = Training(model, optimizer, loader, lambda: loader.batch_sampler.batch_size * PROCESSES)
    return training, adl.remaining_epochs_until(epochs)


KINDS = {"pollux.torch": pollux, "AdaptDL": adaptdl}


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
    """One process: epochs of both in turn, and a line about each round."""
    torch.set_num_threads(1)
    own, numbers = KINDS[kind](case, epochs)
    other: Training | None = None
    for _ in numbers:
        turn = take_turn(own, case)
        other = other or plain(case)  # Whoever is compared with it has made the group by now.
        print(json.dumps(asdict(Round(turn, take_turn(other, case)))), flush=True)


def take_turn(training: Training, case: Case) -> Turn:
    """Trains an epoch."""
    begun, begun_cpu, samples = time.perf_counter(), time.process_time(), 0
    for inputs, targets in training.loader:
        training.optimizer.zero_grad()
        output = training.model(inputs).flatten(0, -2)
        loss: Any = nn.functional.cross_entropy(output, targets.flatten())
        loss.backward()
        training.optimizer.step()
        samples += len(inputs)
    turn = Turn(time.perf_counter() - begun, time.process_time() - begun_cpu)
    ran, wanted = (samples, training.batch_size()), (case.steps * case.batch_size // PROCESSES, case.batch_size)
    if ran != wanted:
        raise SystemExit(f"{ran} samples of this process and in a step of all; expected are {wanted}")
    return turn


def measure(kind: str, case: Case, epochs: int, python: str, folder: Path, processes: int) -> list[Round]:
    """Starts the processes of one kind and waits for what they say."""
    log = folder / f"{case.name}-{kind}.log"
    checkpoints = folder / f"{case.name}-adaptdl"
    checkpoints.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(processes):
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        place |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        place |= {f"ADAPTDL_{name}": place[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
        place |= {"ADAPTDL_REPLICA_RANK": rank, "ADAPTDL_NUM_REPLICAS": processes, "ADAPTDL_NUM_NODES": 1}
        place |= {"ADAPTDL_CHECKPOINT_PATH": checkpoints, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
        command = [python, __file__, "--kind", kind, "--case", case.name, "--rounds", str(epochs)]
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        with open(log, "a") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True))
    said = [process.communicate()[0].splitlines() for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{kind} ended early:\n{log.read_text()[-3000:]}")
    rounds = [[json.loads(line) for line in lines if line.startswith("{")] for lines in said]
    return [Round(whole(turns, "own"), whole(turns, "plain")) for turns in zip(*rounds)]


def whole(turns: Iterable[dict[str, dict[str, float]]], side: str) -> Turn:
    """Of all processes: the time of the slowest, and what they took together."""
    walls, cpus = zip(*((turn[side]["wall_s"], turn[side]["cpu_s"]) for turn in turns))
    return Turn(max(walls), sum(cpus))


def show(case: Case, kind: str, rounds: list[Round]) -> None:
    """A row."""
    parameters = sum(parameter.numel() for parameter in network_of(case)[0].parameters()) / 1e6
    ratios = sorted(each.own.wall_s / each.plain.wall_s for each in rounds)
    cpu_ratio = statistics.median(each.own.cpu_s / each.plain.cpu_s for each in rounds)
    quarter = len(ratios) // 4
    own_ms = statistics.median(each.own.wall_s for each in rounds) / case.steps * 1e3
    plain_ms = statistics.median(each.plain.wall_s for each in rounds) / case.steps * 1e3
    print(
        f"| {case.network} {parameters:.1f} M, {case.optimizer} | {kind} | {plain_ms:.1f} | {own_ms:.1f} "
        f"| {statistics.median(ratios):.3f} | {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f} | {cpu_ratio:.3f} |",
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
    parser.add_argument("--rounds", type=int, default=10, help="turns of each kind that count, in each of them")
    parser.add_argument(
        "--warmup", type=int, default=140, help="steps of each kind that do not: the first are measured"
    )
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.case or case.name in options.case]
    if options.kind:
        train(options.kind, cases[0], options.rounds)
        return
    pythons = {"pollux.torch": sys.executable}
    other = None if options.alone else adaptdl_python(options.adaptdl_python, options.adaptdl)
    if other is None and not options.alone:
        print("AdaptDL: not measured; --adaptdl sets it up, --adaptdl-python PATH takes one that is there\n")
    elif other is not None:
        pythons["AdaptDL"] = other
    print("| network, optimiser | kind | plain in ms | step in ms | ratio | middle half | of processor time |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            warmup = -(-options.warmup // case.steps)
            for kind, python in pythons.items():
                rounds: list[Round] = []
                for start in range(options.starts):
                    print(f"{case.name}, {kind}: start {start + 1} of {options.starts}", file=sys.stderr)
                    epochs, processes = warmup + options.rounds, 1 if options.alone else 2
                    rounds += measure(kind, case, epochs, python, Path(folder), processes)[warmup:]
                show(case, kind, rounds)


if __name__ == "__main__":
    main()
