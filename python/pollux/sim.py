"""Whole workloads under scheduling policies, in virtual time: `pollux sim` for notebooks.

>>> from pollux import sim
>>> comparison = sim.compare(["pollux", "tiresias"], cluster="4x4", generate_jobs=20, seed=[0, 1])
>>> [run["policy"] for run in comparison["runs"]]
['pollux', 'tiresias', 'pollux', 'tiresias']

Options and figures have the names that the command has for them, and the same options give the same figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

from pollux._native import VERSION, Applications, PolluxError, simulate

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

__all__ = ["Comparison", "Job", "Options", "Policy", "Run", "compare", "run", "to_pandas"]

PathLike: TypeAlias = "str | os.PathLike[str]"
#: A policy by name, or settings of one: `{"policy": "pollux", "fairness": -10}`.
Policy: TypeAlias = "str | Mapping[str, object]"

_DEFAULT_POLICIES = ("pollux", "castor", "tiresias", "srtf", "fifo")


class Options(TypedDict, total=False):
    """The world that jobs run in; each has the default of the command."""

    traces: PathLike | None
    """Measured applications, a folder each; the profiles that ship without it."""
    cluster: str
    """Nodes by GPUs per node, such as 16x4, or a .toml file of node groups."""
    autoscale: tuple[int, int] | None
    """Fewest and most nodes, which then come and go."""
    interval: float
    """Seconds between scheduling rounds."""
    restart_delay: float
    """Seconds a job stands still when its GPUs change."""
    resume_delay: float | None
    """The same where a preempted job gets the same GPUs again."""
    interference: float
    """Share of its speed a multi-node job loses on a node that hosts another."""
    declare_epochs: bool
    """Whether users say how many epochs their jobs train."""
    failures: float
    """Failures per node and day."""
    failure_seed: int | None
    """Seed of the moments of failure; that of the workload without it."""
    generate_jobs: int
    """Jobs to generate, or to draw from a log, at load 1."""
    load: float | None
    """Multiplies jobs; those of a workload file are then drawn anew."""
    requests: Literal["tuned", "realistic"]
    """What users of jobs that are generated or drawn from a log ask for."""
    series: bool
    """Whether to keep what the cluster and every job had over time."""


_DEFAULTS: Options = {
    "traces": None,
    "cluster": "16x4",
    "autoscale": None,
    "interval": 60.0,
    "restart_delay": 30.0,
    "resume_delay": None,
    "interference": 0.0,
    "declare_epochs": True,
    "failures": 0.0,
    "failure_seed": None,
    "generate_jobs": 160,
    "load": None,
    "requests": "tuned",
    "series": False,
}


class _JobFigures(TypedDict):
    name: str
    application: str
    submitted_s: float
    started_s: float
    finished_s: float
    restarts: int
    gpu_seconds: float
    queued_s: float
    rho: float
    efficiency: float


class Job(_JobFigures, total=False):
    """What became of a job; `failure` where it failed, `series` where it was asked for."""

    failure: str
    series: list[dict[str, float]]


class _RunFigures(TypedDict):
    policy: str
    workload: str
    seed: int
    avg_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float
    gpu_hours: float
    node_hours: float
    utilisation: float
    restarts_per_job: float
    avg_queued_s: float
    rho_max: float
    rho_p90: float
    rho_above_1: float
    avg_efficiency: float
    jobs: list[Job]


class Run(_RunFigures, total=False):
    """What became of a workload under a policy; `failed` where jobs did, `cluster` over time where `series` were asked
    for."""

    failed: int
    cluster: list[dict[str, float]]


class Comparison(TypedDict):
    """What became of every workload under every policy, and of what it is a function."""

    version: str
    settings: Options
    runs: list[Run]


def run(
    policy: Policy = "pollux",
    *,
    workload: PathLike | None = None,
    seed: int | None = None,
    **options: Unpack[Options],
) -> Run:
    """Simulates a workload under a policy.

    Without a `workload` (a CSV file of jobs, or a cluster's log to draw from) one is generated. For the other options
    see `Options`.
    """
    seeds = None if seed is None else [seed]
    return compare([policy], workload=workload, seed=seeds, **options)["runs"][0]


def compare(
    policies: Iterable[Policy] | Mapping[str, Policy] = _DEFAULT_POLICIES,
    *,
    workload: PathLike | Iterable[PathLike] | None = None,
    seed: int | Iterable[int] | None = None,
    threads: int | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Simulates workloads under several policies, on all cores: workload by workload, seed by seed, policy by policy.

    A mapping says what each policy is to be called. `workload` and `seed` may be several; for the other options see
    `Options`.
    """
    settings = _settings(options)
    traces = settings.pop("traces")
    labelled = _labelled(policies)
    seeds: list[int | None] = [None] if seed is None else [_whole("seed", one, 64) for one in _several(seed, int)]
    files: list[PathLike | None] = [None] if workload is None else list(_several(workload, (str, os.PathLike)))
    plans: list[dict[str, object]] = [
        {**settings, "policy": policy, "label": label, "workload": file, "seed": one}
        for file in files
        for one in seeds
        for label, policy in labelled.items()
    ]
    applications = Applications(cast("PathLike | None", traces))
    executor = ThreadPoolExecutor(max_workers=threads or os.cpu_count())
    try:
        runs = list(executor.map(lambda plan: simulate(applications, plan), plans))
    finally:
        # Whoever interrupts it gets the prompt back; simulations under way end on their own.
        executor.shutdown(wait=False, cancel_futures=True)
    return {"version": VERSION, "settings": {**_DEFAULTS, **options}, "runs": cast("list[Run]", runs)}


def to_pandas(result: Comparison | Run) -> pandas.DataFrame:
    """A row per run of a comparison, or per job of a run; needs pandas."""
    import pandas

    given = cast("dict[str, list[dict[str, Any]]]", result)
    rows = given["runs"] if "runs" in given else given["jobs"]
    nested = ("jobs", "cluster", "series")
    return pandas.DataFrame([{name: value for name, value in row.items() if name not in nested} for row in rows])


def _settings(options: Options) -> dict[str, object]:
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise TypeError(f"{unknown[0]!r} is no option; expected {', '.join(_DEFAULTS)}")
    given: Options = {**_DEFAULTS, **options}
    _whole("generate_jobs", given["generate_jobs"], 32)
    if given["failure_seed"] is not None:
        _whole("failure_seed", given["failure_seed"], 64)
    for nodes in given["autoscale"] or ():
        _whole("autoscale", nodes, 32)
    return dict(given)


def _labelled(policies: Iterable[Policy] | Mapping[str, Policy]) -> dict[str, str]:
    if isinstance(policies, str):
        policies = [policies]
    if isinstance(policies, Mapping):
        pairs = list(policies.items())
    else:
        pairs = [(policy if isinstance(policy, str) else str(policy.get("policy")), policy) for policy in policies]
    labelled: dict[str, str] = {}
    for label, policy in pairs:
        if label in labelled:
            raise PolluxError(f"policy {label} is given more than once; expected a mapping with a name for each")
        labelled[label] = policy if isinstance(policy, str) else json.dumps(policy)
    if not labelled:
        raise PolluxError("no policy is given; expected one or more")
    return labelled


def _several(value: Any, kind: type | tuple[type, ...]) -> Iterable[Any]:
    return [value] if isinstance(value, kind) else value


def _whole(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise PolluxError(f"{name} is {value}; expected whole numbers from 0 to {(1 << bits) - 1}")
    return value
