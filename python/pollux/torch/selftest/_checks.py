"""What the self-test looks at, one thing after the other."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _trainings
from ._director import Director
from ._places import Place, alone, together
from ._trainings import FITS, SAMPLES

DIFFERENCE_MAX = 1e-5
"""Of parameters: sums in another order differ a little, and more on GPUs."""
NOISE_TOLERANCE = 0.25
RECOVERY_S = 120.0
"""What survivors may take to notice that a process is gone."""
MEMORY_S = 600.0


class Failed(Exception):
    """Something is not as it should be."""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    place: Place
    run: Callable[[Path], str]
    """Says what was measured; gets a folder of its own."""
    is_verdict: bool = True
    """Whether it can fail. A speed never does: machines are busy."""


def checks(quick: bool) -> list[Check]:
    """All of them, cheapest first."""
    one, several = alone(), together()
    epochs, rounds = (6, 3) if quick else (16, 9)
    return [
        Check("fixed batch equals DDP", several, lambda folder: _fixed_batch(several, folder)),
        Check("sharded equals plain", several, lambda folder: _sharded(several, folder)),
        Check("noise scale, alone", one, lambda folder: _noise(one, 2 * epochs, folder)),
        Check("noise scale, together", several, lambda folder: _noise(several, epochs, folder)),
        Check(f"resized 1 to {several.processes} to 1", several, lambda folder: _resize(several, folder)),
        Check("a process is killed", several, lambda folder: _kill(several, folder)),
        Check("out of memory", one, lambda folder: _memory(one, folder)),
        Check("time against DDP", several, lambda folder: _overhead(several, rounds, folder), is_verdict=False),
    ]


def _fixed_batch(place: Place, folder: Path) -> str:
    return _largest(_results(place, folder, _trainings.difference_from_ddp))


def _sharded(place: Place, folder: Path) -> str:
    """Of one copy in as many shards as there are processes, and of as many copies."""
    store = str(folder / "store")
    each = [_results(place, folder, _trainings.difference_of_shards, store, n) for n in (place.processes, 1)]
    return _largest([difference for differences in each for difference in differences])


def _largest(differences: list[float]) -> str:
    if not max(differences) <= DIFFERENCE_MAX:
        raise Failed(f"parameters differ by {max(differences):.1e}, expected up to {DIFFERENCE_MAX:.0e}")
    return f"largest difference {max(differences):.1e}"


def _noise(place: Place, epochs: int, folder: Path) -> str:
    estimate, exact = _results(place, folder, _trainings.noise_scales, epochs)[0]
    if not abs(estimate / exact - 1) <= NOISE_TOLERANCE:
        raise Failed(f"{estimate:.0f}, brute force {exact:.0f}, expected within {NOISE_TOLERANCE:.0%}")
    return f"{estimate:.0f}, brute force {exact:.0f}"


def _resize(place: Place, folder: Path) -> str:
    with _directing(place, folder, _trainings.train_until_told, str(folder)) as director:
        director.announce(0)
        director.wait_until(lambda: len(_used(folder)) > 10)
        director.announce(*range(place.processes))
        director.wait_until(lambda: place.processes in _sizes(folder))
        director.announce(0)
        director.wait_until(lambda: _used(folder)[-1].world_size == 1)
        (folder / "enough").touch()
        director.result(0)
        pauses = [pause for ready in director.ready if (pause := ready.get("pause_s")) is not None]
    epochs = _refuse_uneven(_used(folder))
    return f"{epochs} epochs, all once; paused {max(pauses):.1f} s"


def _kill(place: Place, folder: Path) -> str:
    last = place.processes - 1
    with _directing(place, folder, _trainings.train_with_a_death, str(folder), last) as director:
        director.announce(*range(place.processes))
        if director.code(last) != -9:
            raise Failed(f"the process to be killed ended with {director.code(last)}")
        codes = [director.code(replica, RECOVERY_S) for replica in range(last)]
    if None in codes:
        raise Failed(f"a survivor still waits for the dead after {RECOVERY_S:.0f} s")
    before = _used(folder)
    with _directing(place, folder, _trainings.train_with_a_death, str(folder), None) as director:
        director.announce(*range(place.processes))
        for replica in range(place.processes):
            director.result(replica)
    after = _used(folder)[len(before) :]
    kept = [line for line in before if line.done < after[0].done]
    _refuse_uneven(kept + after, exactly=2)
    return f"goes on at sample {after[0].done}, all once"


def _memory(place: Place, folder: Path) -> str:
    command = [sys.executable, "-m", "pollux.torch.selftest", "--without-memory", str(folder)]
    names = {name: value for name, value in os.environ.items() if not name.startswith(("POLLUX_", "RANK", "WORLD_"))}
    with open(folder / "talk", "ab") as talk:
        run = subprocess.run(
            command,
            env=names | place.environment(0) | {"OMP_NUM_THREADS": "1"},
            stdout=talk,
            stderr=talk,
            timeout=MEMORY_S,
            check=False,
        )
    if run.returncode != 0:
        raise Failed(f"the training ended with {run.returncode} instead of going on with smaller batches")
    used = _used(folder)
    largest = max(len(line.samples) for line in used)
    if largest > FITS:
        raise Failed(f"a batch of {largest} was used where {FITS} fit")
    _refuse_uneven(used, exactly=2)
    return f"goes on with {largest} of 32, all once"


def _overhead(place: Place, rounds: int, folder: Path) -> str:
    ratio = max(_results(place, folder, _trainings.step_ratio, rounds, 20))
    return f"{ratio:.2f} x (for information)"


@dataclass(frozen=True)
class _Used:
    """A batch of one process."""

    done: int
    """Samples of the training before it."""
    world_size: int
    epoch: int
    samples: list[int]


def _used(folder: Path) -> list[_Used]:
    """What all processes have written, in the order of the training."""
    texts = [path.read_text() for path in folder.glob("used-*")]
    # The last line may be half written.
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line.endswith("]]")]
    return [_Used(*line) for line in sorted(lines)]


def _sizes(folder: Path) -> set[int]:
    return {line.world_size for line in _used(folder)}


def _refuse_uneven(used: list[_Used], exactly: int | None = None) -> int:
    """Every sample was used once in every epoch; how many epochs there were."""
    counts: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for line in used:
        counts[line.epoch].update(line.samples)
    for epoch, numbers in sorted(counts.items()):
        if len(numbers) != SAMPLES or set(numbers.values()) != {1}:
            twice = sum(count > 1 for count in numbers.values())
            raise Failed(f"epoch {epoch}: {SAMPLES - len(numbers)} samples lost, {twice} used twice")
    if exactly is not None and len(counts) != exactly:
        raise Failed(f"{len(counts)} epochs were trained, expected {exactly}")
    return len(counts)


@contextmanager
def _directing(place: Place, folder: Path, body: Callable[..., Any], *args: Any) -> Iterator[Director]:
    director = Director(body, *args, slots=place.environment)
    director.talk = folder / "talk"
    try:
        yield director
    finally:
        director.close()


def _results(place: Place, folder: Path, body: Callable[..., Any], *args: Any) -> list[Any]:
    """What the processes of a training return that nobody disturbs."""
    with _directing(place, folder, body, *args) as director:
        director.announce(*range(place.processes))
        return [director.result(replica) for replica in range(place.processes)]


def run(check: Check) -> tuple[bool, str, str]:
    """Whether it passed, what was measured or what is wrong, and what the processes said if something is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            return True, check.run(folder), ""
        except Exception as error:
            said = (folder / "talk").read_text(errors="replace") if (folder / "talk").exists() else ""
            text = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            return not check.is_verdict, " ".join(text.split()), said
