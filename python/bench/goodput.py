"""What adapting is worth to a process that is alone: the same training, to the same quality, for less time.

Both sides train on scikit-learn's digits with the ingredients of quality.py, from the same seeds, until they have made
the progress of `--steps` steps of 16 samples: plain PyTorch with that batch, Pollux with one that may grow. They take
turns, and processor time is compared, which a busy machine changes least. A row whose accuracy is more than
`--tolerance` points lower with Pollux compares nothing, and the program ends with 1.

    python bench/goodput.py --steps 8000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from quality import BATCH_SIZE, CHOSEN, TRAINED, digits, ingredients
from torch.utils.data import DataLoader

import torch
from torch import nn


def train_plain(data: Any, name: str, steps: int, seed: int, _batch_size_max: int) -> nn.Module:
    """PyTorch as it comes."""
    model, optimizer, schedule = ingredients(name, CHOSEN[name], epochs_of(steps), seed)
    loader = DataLoader(data.train, BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(seed))
    for _ in range(epochs_of(steps)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            schedule.step()  # type: ignore[attr-defined]
    return model


def train_pollux(data: Any, name: str, steps: int, seed: int, batch_size_max: int) -> nn.Module:
    """The same loop with a batch that may grow."""
    import pollux.torch as px

    model, optimizer, schedule = ingredients(name, CHOSEN[name], epochs_of(steps), seed)
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=schedule)
    loader = px.DataLoader(
        data.train, BATCH_SIZE, max_batch_size=batch_size_max, per_gpu=(8, batch_size_max), shuffle=True, seed=seed
    )
    for inputs, targets in px.steps(epochs_of(steps) * len(loader), loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(inputs), targets).backward()
        optimizer.step()
        schedule.step()  # type: ignore[attr-defined]
    return model


def epochs_of(steps: int) -> int:
    """Whole ones, at least as many steps."""
    return -(-steps // -(-TRAINED // BATCH_SIZE))


def main() -> int:
    """Prints a row for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CHOSEN), help="these alone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--max-batch-size", type=int, default=256)
    parser.add_argument("--tolerance", type=float, default=0.5, help="points that the accuracy may be below")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = digits()
    print("| training | accuracy plain | with Pollux | processor s plain | with Pollux | times less |")
    print("|---|---|---|---|---|---|")
    is_equal = True
    for name in options.only or CHOSEN:
        accuracies: list[list[float]] = [[], []]
        seconds: list[list[float]] = [[], []]
        for seed in range(options.seeds):
            for side, train in enumerate((train_plain, train_pollux)):
                begun = time.process_time()
                model = train(data, name, options.steps, seed, options.max_batch_size)
                seconds[side].append(time.process_time() - begun)
                accuracies[side].append(data.accuracy(model))
        plain, ours = map(statistics.fmean, accuracies)
        plain_s, ours_s = map(statistics.median, seconds)
        is_equal &= ours >= plain - options.tolerance
        print(
            f"| {name} | {plain:.2f} | {ours:.2f} | {plain_s:.1f} | {ours_s:.1f} | {plain_s / ours_s:.2f} |", flush=True
        )
    return int(not is_equal)


if __name__ == "__main__":
    sys.exit(main())
