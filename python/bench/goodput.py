"""What adapting is worth to a process that is alone: the same training, to the same quality, for less time.

Both sides train as in quality.py, from the same seeds, until they have made the progress of `--steps` steps of 16
samples: plain PyTorch with that batch, Pollux with one that may grow. They take turns, and processor time is
compared, which a busy machine changes least. A row whose accuracy is more than `--tolerance` points lower with Pollux
compares nothing, and the program ends with 1.

    python bench/goodput.py --steps 8000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from quality import CHOSEN, TRAINED, USUAL, Length, digits, train_adaptive, train_fixed

import torch


def length_of(steps: int, batch_size_max: int) -> Length:
    """Whole epochs with at least as many steps."""
    batch_size = USUAL.batch_size
    return Length(-(-steps // -(-TRAINED // batch_size)), batch_size, batch_size_max)


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
    data, length = digits(), length_of(options.steps, options.max_batch_size)
    print("| training | accuracy plain | with Pollux | processor s plain | with Pollux | times less |")
    print("|---|---|---|---|---|---|")
    is_equal = True
    for name in options.only or CHOSEN:
        accuracies: list[list[float]] = [[], []]
        seconds: list[list[float]] = [[], []]
        for seed in range(options.seeds):
            for side in range(2):
                begun = time.process_time()
                if side == 0:
                    run = train_fixed(data, name, CHOSEN[name], length, seed)
                else:
                    run = train_adaptive(data, name, length, seed)
                seconds[side].append(time.process_time() - begun)
                accuracies[side].append(run.accuracy)
        plain, ours = map(statistics.fmean, accuracies)
        plain_s, ours_s = map(statistics.median, seconds)
        is_equal &= ours >= plain - options.tolerance
        print(
            f"| {name} | {plain:.2f} | {ours:.2f} | {plain_s:.1f} | {ours_s:.1f} | {plain_s / ours_s:.2f} |", flush=True
        )
    return int(not is_equal)


if __name__ == "__main__":
    sys.exit(main())
