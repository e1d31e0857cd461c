"""Does adaptive training learn as much as training with a fixed batch?

Both train on scikit-learn's digits for the same progress, from the same seeds, with the same learning rate and
schedule. The fixed side is a plain PyTorch loop without Pollux at a batch of 16, with a learning rate that suits it
(`--sweep` tries those around it, on other seeds). The adaptive side may grow its batch to four times that. `--short`
trains for 1,500 steps of 8 samples and lets the batch grow to 128: there is little time to learn what a large batch is
worth. Ends with 1 if an adaptive mean is more than `--tolerance` points below the fixed one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import torch
from torch import Tensor, nn

TRAINED = 1197
"""Images to learn from."""
LEARNING_RATES = {
    "sgd": (0.01, 0.02, 0.05, 0.1),
    "adamw": (0.001, 0.002, 0.005, 0.01),
}


@dataclass(frozen=True)
class Length:
    """How long and with which batches to train."""

    epochs: int
    batch_size: int
    batch_size_max: int

    @property
    def steps(self) -> int:
        """Of the fixed batch."""
        return self.epochs * -(-TRAINED // self.batch_size)


WIDTHS = {"mlp": (128, 64), "wide": (1024, 768)}
"""Of perceptrons. The optimiser's part of a step of the wide one is larger than that of its samples."""
CHOSEN = {"cnn/sgd": 0.05, "cnn/adamw": 0.005, "mlp/sgd": 0.05, "mlp/adamw": 0.002, "wide/adamw": 0.001}
"""Learning rates that serve the fixed batch best."""
USUAL = Length(epochs=20, batch_size=16, batch_size_max=64)
SHORT = Length(epochs=10, batch_size=8, batch_size_max=128)


@dataclass(frozen=True)
class Run:
    """How one training ended."""

    accuracy: float
    steps: int
    batch_size: int
    """The largest one."""
    samples: int


@dataclass(frozen=True)
class Digits:
    """The data set, split in the same way every time."""

    train: TensorDataset
    inputs: Tensor
    targets: Tensor

    def accuracy(self, model: nn.Module) -> float:
        """On the held-out part, in percent."""
        model.eval()
        with torch.no_grad():
            return 100.0 * (model(self.inputs).argmax(1) == self.targets).float().mean().item()


def digits() -> Digits:
    """1,197 images to learn from, 600 held out."""
    data = load_digits()
    inputs = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    targets = torch.tensor(data.target)
    train, held_out = train_test_split(range(len(targets)), test_size=600, random_state=0, stratify=data.target)
    return Digits(TensorDataset(inputs[train], targets[train]), inputs[held_out], targets[held_out])


def ingredients(
    name: str, learning_rate: float, length: Length, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Model, optimiser and schedule, the same for both sides."""
    torch.manual_seed(seed)
    architecture, method = name.split("/")
    if architecture in WIDTHS:
        first, second = WIDTHS[architecture]
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10)
        )
    else:
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
    if method == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length.steps)


def train_fixed(data: Digits, name: str, learning_rate: float, length: Length, seed: int) -> Run:
    """Plain PyTorch."""
    model, optimizer, schedule = ingredients(name, learning_rate, length, seed)
    batch_size, generator = length.batch_size, torch.Generator().manual_seed(seed)
    loader = DataLoader(data.train, batch_size, shuffle=True, generator=generator)
    for _ in range(length.epochs):
        model.train()
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Run(data.accuracy(model), length.steps, batch_size, length.epochs * TRAINED)


def train_adaptive(data: Digits, name: str, length: Length, seed: int) -> Run:
    """The same progress with Pollux: as many steps of the fixed batch, each larger one for what it is worth."""
    import pollux.torch as px

    model, optimizer, schedule = ingredients(name, CHOSEN[name], length, seed)
    model, optimizer = px.wrap(model, optimizer, scheduler=schedule)
    most = length.batch_size_max
    loader = px.DataLoader(
        data.train,
        length.batch_size,
        max_batch_size=most,
        per_gpu=(length.batch_size // 2, most),
        shuffle=True,
        seed=seed,
    )
    steps, batch_size = 0, 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    # Between micro-batches the optimiser is called, but does nothing.
    optimizer.register_step_post_hook(count)
    model.train()
    for inputs, targets in px.steps(length.steps, loader):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if steps % 20 == 0:  # Figures for people are not made for every step.
            batch_size = max(batch_size, px.status().batch_size)
    return Run(data.accuracy(model), steps, batch_size, px.status().samples)


def train_together(processes: int, name: str, length: Length, seed: int) -> Run:
    """One adaptive training under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*launcher, __file__, "--one", name, str(seed), "--epochs", str(length.epochs)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Run(**json.loads(done.stdout))


def main() -> int:
    """Trains everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--short", action="store_true", help="1,500 steps of 8 samples, and batches of up to 128")
    parser.add_argument("--tolerance", type=float, default=0.5, help="points that the adaptive mean may be below")
    parser.add_argument("--only", action="append", choices=list(CHOSEN), help="these alone, in one process")
    parser.add_argument("--sweep", action="store_true", help="which learning rate serves the fixed batch best")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    length = SHORT if arguments.short else USUAL
    length = replace(length, epochs=arguments.epochs or length.epochs)
    data = digits()
    if arguments.one:
        name, seed = arguments.one
        run = train_adaptive(data, name, length, int(seed))
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(asdict(run)))
        return 0
    if arguments.sweep:
        sweep(data, arguments.seeds, length)
        return 0
    return compare(data, configurations(arguments), length, arguments.seeds, arguments.tolerance)


def configurations(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Trainings and how many processes each has."""
    alone = [(name, 1) for name in arguments.only or CHOSEN]
    return alone if arguments.only or arguments.short else [*alone, ("cnn/sgd", 2), ("mlp/sgd", 2)]


def compare(data: Digits, trainings: list[tuple[str, int]], length: Length, count: int, tolerance: float) -> int:
    """Prints the table; 1 if an adaptive mean is too far below the fixed one."""
    seeds = range(count)
    print(
        f"digits, {length.epochs} epochs, {count} seeds, batch {length.batch_size} fixed or up to "
        f"{length.batch_size_max}; accuracy in %"
    )
    print("training    processes  fixed           adaptive        difference  batch  steps      samples")
    has_failed = False
    for name, processes in trainings:
        fixed = [train_fixed(data, name, CHOSEN[name], length, seed) for seed in seeds]
        if processes == 1:
            adaptive = [train_adaptive(data, name, length, seed) for seed in seeds]
        else:
            adaptive = [train_together(processes, name, length, seed) for seed in seeds]
        difference = mean(adaptive, accuracy) - mean(fixed, accuracy)
        has_failed |= difference < -tolerance
        saved = 1.0 - mean(adaptive, lambda run: run.steps) / mean(fixed, lambda run: run.steps)
        more = mean(adaptive, lambda run: run.samples) / mean(fixed, lambda run: run.samples) - 1.0
        print(
            f"{name:<10}  {processes:>9}  {spread(fixed):<14}  {spread(adaptive):<14}  {difference:>+10.2f}  "
            f"{mean(adaptive, lambda run: run.batch_size):>5.0f}  {saved:.0%} fewer  {more:.0%} more",
            flush=True,
        )
    return int(has_failed)


def sweep(data: Digits, seeds: int, length: Length) -> None:
    """Accuracy of the fixed batch by learning rate, on seeds that the table does not use."""
    for name in CHOSEN:
        for rate in LEARNING_RATES[name.split("/")[1]]:
            runs = [train_fixed(data, name, rate, length, 1000 + seed) for seed in range(seeds)]
            print(f"{name:<10} {rate:<7g} {spread(runs)}", flush=True)


def accuracy(run: Run) -> float:
    """Of a run."""
    return run.accuracy


def mean(runs: list[Run], value: Callable[[Run], float]) -> float:
    """Over seeds."""
    return statistics.fmean(value(run) for run in runs)


def spread(runs: list[Run]) -> str:
    """Mean and standard deviation of the accuracy."""
    values = [run.accuracy for run in runs]
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.2f}"


if __name__ == "__main__":
    sys.exit(main())
