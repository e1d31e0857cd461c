"""Measured steps and questions about schedulers: `pollux fit` and `pollux experiment` for notebooks.

>>> from pollux import lab
>>> rows = [
...     {"num_nodes": 1, "num_replicas": n, "local_bsz": size, "step_time": 0.01 + 0.001 * size, "sync_time": 0.001 * n}
...     for n in (1, 2, 4)
...     for size in (16, 64)
... ]
>>> lab.fit(rows, gpus=8)["recommendation"]["gpus"]
8

Options and figures have the names that the commands have for them, and the same options give the same figures.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

from pollux import _native
from pollux._native import PolluxError

if TYPE_CHECKING:
    import pandas

__all__ = ["Experiment", "Fact", "Fit", "FitRow", "Recommendation", "experiment", "fit"]

PathLike: TypeAlias = "str | os.PathLike[str]"
#: A measured step: `num_nodes` and `num_replicas`, or `placement`; `local_bsz`, `step_time`, `sync_time` (seconds).
Step: TypeAlias = "Mapping[str, object]"


class FitRow(TypedDict):
    """A number of GPUs and the best batch there; nothing where no batch fits."""

    gpus: int
    nodes: int
    batch_size: int | None
    local_batch: int | None
    accumulation_steps: int | None
    throughput: float | None
    efficiency: float | None
    goodput: float | None
    scaling_efficiency: float | None


class Recommendation(TypedDict):
    """How many GPUs to take, and what stands behind it."""

    gpus: int
    scaling_efficiency: float
    goodput: float
    scaling_efficiency_min: float
    peak_gpus: int
    answer: str


class _FitFigures(TypedDict):
    settings: dict[str, Any]
    parameters: dict[str, float]
    objective: float
    error: dict[str, float]
    rows: list[FitRow]
    recommendation: Recommendation
    notes: list[str]


class Fit(_FitFigures, total=False):
    """What a fit found out; `svg` where it was asked for."""

    svg: str


class Fact(TypedDict):
    """Something that an experiment's table depends on."""

    name: str
    value: str


class Experiment(TypedDict):
    """An experiment's table, and everything it depends on."""

    name: str
    title: str
    question: str
    paper: str
    facts: list[Fact]
    table: list[dict[str, Any]]
    notes: list[str]


def fit(
    steps: PathLike | Iterable[PathLike] | Iterable[Step] | pandas.DataFrame,
    *,
    batch_size: int | None = None,
    max_batch_size: int | None = None,
    local_batch: tuple[int | None, int | None] = (None, None),
    noise_scale: float | None = None,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    parallelism: Literal["data-parallel", "sharded"] = "data-parallel",
    svg: bool = False,
) -> Fit:
    """Fits a throughput model to measured steps: how many GPUs should this job get?

    `steps` are CSV files, rows or a table of pandas, with the columns of `pollux fit`. What is not given follows from
    them: the smallest local batch is the baseline, and as many GPUs are shown as were measured. Without a `noise_scale`
    every sample counts in full. `svg` also draws it.
    """
    files, rows = _measurements(steps)
    options = {
        "files": files,
        "rows": rows,
        "batch_size": _whole("batch_size", batch_size),
        "max_batch_size": _whole("max_batch_size", max_batch_size),
        "local_batch": (_whole("local_batch min", local_batch[0]), _whole("local_batch max", local_batch[1])),
        "noise_scale": noise_scale,
        "gpus": _whole("gpus", gpus),
        "gpus_per_node": _whole("gpus_per_node", gpus_per_node),
        "parallelism": parallelism,
        "svg": svg,
    }
    return cast("Fit", _native.fit(options))


def experiment(
    folder: PathLike, *, data: PathLike | None = None, out: PathLike | None = None, threads: int | None = None
) -> Experiment:
    """Runs the experiment of a folder (its `experiment.toml`) on all cores, and saves its table and plot.

    They go to `out`: by default `results` beside the experiment, or `target/experiments` where there is no recorded
    `data` and generated jobs stand in.
    """
    if threads is not None and not 1 <= threads <= 1024:
        raise PolluxError(f"threads is {threads}; expected whole numbers from 1 to 1024")
    return cast("Experiment", _native.experiment(folder, data, out, threads))


def _measurements(steps: Any) -> tuple[list[PathLike], str | None]:
    """Files, or rows as the text of one."""
    if isinstance(steps, (str, os.PathLike)):
        return [cast("PathLike", steps)], None
    if hasattr(steps, "to_csv"):
        return [], steps.to_csv(index=False)
    several = list(steps)
    if all(isinstance(step, (str, os.PathLike)) for step in several):
        return several, None
    for step in several:
        if not isinstance(step, Mapping):
            raise TypeError(f"{step!r} is no measured step; expected mappings, or paths of CSV files")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(several[0]), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(several)
    return [], text.getvalue()


def _whole(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value < 1 << 32:
        raise PolluxError(f"{name} is {value}; expected whole numbers from 1 to {(1 << 32) - 1}")
    return value
