import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pollux import PolluxError, sim
from scheduler import binary

JOBS = """name,time,application,num_replicas,batch_size
cifar10-0,0,cifar10,1,128
ncf-0,30,ncf,2,4096
bert-0,60,bert,1,12
"""
DATA = Path(os.environ.get("POLLUX_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "osdi21"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def command(*args: str) -> list[Any]:
    """The runs that `pollux sim` tells of."""
    told = subprocess.run([binary(), "sim", *args, "-o", "json"], capture_output=True, text=True, check=True)
    runs: list[Any] = json.loads(told.stdout)["runs"]
    return runs


def test_a_run_has_the_figures_of_the_command() -> None:
    assert [sim.run(cluster="2x4", generate_jobs=12, seed=3)] == command(
        "run", "--cluster", "2x4", "--generate-jobs", "12", "--seed", "3"
    )


def test_a_comparison_has_the_figures_of_the_command_in_its_order(jobs: Path) -> None:
    compared = sim.compare(
        ["castor", "fifo"],
        workload=jobs,
        seed=[0, 1],
        load=3,
        cluster="2x2",
        interval=120,
        restart_delay=10,
        failures=2,
    )
    args = "--load 3 --seed 0,1 --cluster 2x2 --interval 120 --restart-delay 10 --failures 2 --policy castor,fifo"
    assert compared["runs"] == command("compare", "--workload", str(jobs), *args.split())


def test_a_cluster_that_follows_its_load_has_the_figures_of_the_command() -> None:
    options = ["--autoscale", "1..4", "--generate-jobs", "6", "--requests", "realistic", "--declare-epochs", "no"]
    run = sim.run(autoscale=(1, 4), generate_jobs=6, requests="realistic", declare_epochs=False)
    assert [run] == command("run", *options)


@pytest.mark.skipif(not DATA.exists(), reason="no recorded data; POLLUX_DATA says where it is")
def test_recorded_applications_have_the_figures_of_the_command() -> None:
    workload = min((DATA / "workloads").glob("*.csv"))
    run = sim.run("tiresias", workload=workload, traces=DATA / "traces")
    args = ("--policy", "tiresias", "--workload", str(workload), "--traces", str(DATA / "traces"))
    assert [run] == command("run", *args)


def test_settings_of_a_policy_change_what_it_does_and_have_a_name() -> None:
    policies: dict[str, sim.Policy] = {"mild": "pollux", "strict": {"policy": "pollux", "fairness": -10}}
    mild, strict = sim.compare(policies, cluster="2x4", generate_jobs=20)["runs"]
    assert (mild["policy"], strict["policy"]) == ("mild", "strict")
    assert mild["jobs"] != strict["jobs"]


def test_series_are_there_where_they_are_asked_for() -> None:
    run = sim.run(cluster="1x4", generate_jobs=4, series=True)
    assert max(sample["gpus_used"] for sample in run["cluster"]) <= 4
    assert all(job["series"][0]["time_s"] == job["started_s"] for job in run["jobs"])
    without = sim.run(cluster="1x4", generate_jobs=4)
    assert "cluster" not in without and "series" not in without["jobs"][0]


def test_pandas_has_a_row_per_run_or_per_job() -> None:
    compared = sim.compare(["pollux", "srtf"], cluster="1x4", generate_jobs=5, series=True)
    runs = sim.to_pandas(compared)
    assert list(runs["policy"]) == ["pollux", "srtf"]
    assert {"jobs", "cluster"}.isdisjoint(runs.columns) and runs["avg_jct_s"].notna().all()
    jobs = sim.to_pandas(compared["runs"][0])
    assert len(jobs) == 5 and "series" not in jobs.columns
    assert (jobs["finished_s"] > jobs["submitted_s"]).all()


def test_a_comparison_tells_what_it_is_a_function_of() -> None:
    compared = sim.compare(["fifo"], cluster="1x4", generate_jobs=2)
    assert compared["version"]
    assert (compared["settings"]["cluster"], compared["settings"]["interval"]) == ("1x4", 60.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "polux"}, 'unknown policy "polux": expected pollux, '),
        ({"policy": {"policy": "fifo", "fairness": 1}}, "policy: unknown field `fairness`, there are no fields"),
        ({"policy": {"policy": "pollux", "fairness": 11}}, "fairness 11: expected numbers up to 10"),
        ({"cluster": "16"}, "16"),
        ({"seed": -1}, "seed is -1; expected whole numbers from 0 to 18446744073709551615"),
        ({"generate_jobs": 1 << 32}, "generate_jobs is 4294967296; expected whole numbers from 0 to 4294967295"),
        ({"interval": math.nan}, "interval NaN; expected 1 to 86400 seconds"),
        ({"requests": "wild"}, 'requests is "wild"; expected tuned, realistic'),
        ({"workload": "nowhere.csv"}, "nowhere.csv: No such file or directory"),
        ({"traces": "nowhere"}, "nowhere"),
        ({"autoscale": (0, 0)}, "0"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_accepted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolluxError) as raised:
        sim.run(**{"generate_jobs": 4, **options})
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_options_and_policies_that_make_no_sense_are_named() -> None:
    with pytest.raises(TypeError, match="'intervall' is no option; expected traces, cluster"):
        sim.run(intervall=3)  # type: ignore[call-arg]
    with pytest.raises(PolluxError, match="policy pollux is given more than once"):
        sim.compare(["pollux", {"policy": "pollux", "fairness": -10}])
    with pytest.raises(PolluxError, match="no policy is given"):
        sim.compare([])


def test_the_example_of_the_guide_runs() -> None:
    guide = Path(__file__).parents[2] / "docs" / "notebooks.md"
    code = guide.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert set(names["figures"]["policy"]) == {"pollux", "tiresias", "fifo"} and len(names["jobs"]) == 40
