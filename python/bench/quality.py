"""Does adaptive training learn as much as training with a fixed batch?

Both train on scikit-learn's digits for the same progress, from the same seeds, with the same learning rate and
schedule. The fixed side is a plain PyTorch loop without Pollux at a batch of 16, with a learning rate that suits it
(`--sweep` tries those around it, on other seeds). The adaptive side may grow its batch to four times that. Ends with 1
if an adaptive mean is more than `--tolerance` points below the fixed one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import torch
from torch import Tensor, nn

TRAINED = 1197
"""Images to learn from."""
BATCH_SIZE = 16
BATCH_SIZE_MAX = 64
LEARNING_RATES = {
    "sgd": (0.02, 0.05, 0.1),
    "adamw": (0.001, 0.002, 0.005, 0.01),
}
CHOSEN = {"cnn/sgd": 0.05, "cnn/adamw": 0.005, "mlp/sgd": 0.05, "mlp/adamw": 0.002}
CONFIGURATIONS = [*((name, 1) for name in CHOSEN), ("cnn/sgd", 2), ("mlp/sgd", 2)]


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
    name: str, learning_rate: float, epochs: int, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    """Model, optimiser and schedule, the same for both sides."""
    torch.manual_seed(seed)
    architecture, method = name.split("/")
    if architecture == "mlp":
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
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
    total = epochs * -(-TRAINED // BATCH_SIZE)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)


def train_fixed(data: Digits, name: str, learning_rate: float, epochs: int, seed: int) -> Run:
    """Plain PyTorch."""
    model, optimizer, schedule = ingredients(name, learning_rate, epochs, seed)
    loader = DataLoader(data.train, BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(seed))
    for _ in range(epochs):
        model.train()
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Run(data.accuracy(model), epochs * len(loader), BATCH_SIZE, epochs * TRAINED)


def train_adaptive(data: Digits, name: str, learning_rate: float, epochs: int, seed: int) -> Run:
    """The same progress with Pollux: as many steps of the fixed batch, each larger one for what it is worth."""
    import pollux.torch as px

    model, optimizer, schedule = ingredients(name, learning_rate, epochs, seed)
    model, optimizer = px.wrap(model, optimizer, scheduler=schedule)
    loader = px.DataLoader(
        data.train, BATCH_SIZE, max_batch_size=BATCH_SIZE_MAX, per_gpu=(8, BATCH_SIZE_MAX), shuffle=True, seed=seed
    )
    steps, batch_size = 0, 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    # Between micro-batches the optimiser is called, but does nothing.
    optimizer.register_step_post_hook(count)
    model.train()
    for inputs, targets in px.steps(epochs * -(-TRAINED // BATCH_SIZE), loader):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        batch_size = max(batch_size, px.status().batch_size)
    return Run(data.accuracy(model), steps, batch_size, px.status().samples)


def train_together(processes: int, name: str, epochs: int, seed: int) -> Run:
    """One adaptive training under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*launcher, __file__, "--one", name, str(seed), "--epochs", str(epochs)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Run(**json.loads(done.stdout))


def main() -> int:
    """Trains everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--tolerance", type=float, default=0.5, help="points that the adaptive mean may be below")
    parser.add_argument("--only", action="append", choices=list(CHOSEN), help="these alone, in one process")
    parser.add_argument("--sweep", action="store_true", help="which learning rate serves the fixed batch best")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, epochs = digits(), arguments.epochs
    if arguments.one:
        name, seed = arguments.one
        run = train_adaptive(data, name, CHOSEN[name], epochs, int(seed))
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(asdict(run)))
        return 0
    if arguments.sweep:
        sweep(data, arguments.seeds, epochs)
        return 0
    seeds = range(arguments.seeds)
    configurations = [(name, 1) for name in arguments.only] if arguments.only else CONFIGURATIONS
    print(
        f"digits, {epochs} epochs, {len(seeds)} seeds, batch {BATCH_SIZE} fixed or up to {BATCH_SIZE_MAX}; "
        "accuracy in %"
    )
    print("training    processes  fixed           adaptive        difference  batch  steps      samples")
    has_failed = False
    for name, processes in configurations:
        rate = CHOSEN[name]
        fixed = [train_fixed(data, name, rate, epochs, seed) for seed in seeds]
        if processes == 1:
            adaptive = [train_adaptive(data, name, rate, epochs, seed) for seed in seeds]
        else:
            adaptive = [train_together(processes, name, epochs, seed) for seed in seeds]
        difference = mean(adaptive, accuracy) - mean(fixed, accuracy)
        has_failed |= difference < -arguments.tolerance
        saved = 1.0 - mean(adaptive, lambda run: run.steps) / mean(fixed, lambda run: run.steps)
        more = mean(adaptive, lambda run: run.samples) / mean(fixed, lambda run: run.samples) - 1.0
        print(
            f"{name:<10}  {processes:>9}  {spread(fixed):<14}  {spread(adaptive):<14}  {difference:>+10.2f}  "
            f"{mean(adaptive, lambda run: run.batch_size):>5.0f}  {saved:.0%} fewer  {more:.0%} more",
            flush=True,
        )
    return int(has_failed)


def sweep(data: Digits, seeds: int, epochs: int) -> None:
    """Accuracy of the fixed batch by learning rate, on seeds that the table does not use."""
    for name in CHOSEN:
        for rate in LEARNING_RATES[name.split("/")[1]]:
            runs = [train_fixed(data, name, rate, epochs, 1000 + seed) for seed in range(seeds)]
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
