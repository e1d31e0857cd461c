"""Runs the self-test and prints its table."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import textwrap
import time

import torch

from . import __doc__ as ABOUT
from ._checks import checks, run
from ._places import machine
from ._trainings import train_without_memory

WIDTHS = (24, 8, 6)
"""Of the columns but the last, so that most lines fit into 80 characters."""
SAID_LINES = 15


def main() -> int:
    """0 if everything is as it should be, otherwise 1."""
    parser = argparse.ArgumentParser(
        prog="python -m pollux.torch.selftest",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps: less sure of the noise scale, and faster")
    parser.add_argument("--without-memory", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.without_memory:
        torch.set_num_threads(1)
        train_without_memory(options.without_memory)
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    server = multiprocessing.get_context("forkserver")
    # Processes are forked from one that has imported everything.
    server.set_forkserver_preload(["torch", "torch._dynamo", "pollux.torch.selftest._trainings"])
    begun, failed = time.monotonic(), []
    print(f"{machine()}\n")
    _print_row("check", "on", "result", "measured")
    for check in checks(options.quick):
        passed, measured, said = run(check)
        result = ("pass" if passed else "FAIL") if check.is_verdict else "info"
        _print_row(check.name, str(check.place), result, measured)
        if not passed:
            failed.append(check.name)
        for line in said.splitlines()[-SAID_LINES:]:
            print(f"  | {line}")
    took = f"in {time.monotonic() - begun:.0f} s"
    print(f"\nverdict: {'failed: ' + ', '.join(failed) if failed else 'pollux.torch works here'}, {took}")
    return int(bool(failed))


def _print_row(*cells: str) -> None:
    """One line, or more where the last cell is long."""
    *first, last = cells
    lead = "".join(f"{cell:<{width}}  " for cell, width in zip(first, WIDTHS))
    columns = max(shutil.get_terminal_size().columns, 80)
    lines = textwrap.wrap(last, columns - len(lead)) or [""]
    print(lead + f"\n{' ' * len(lead)}".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
