import json
import subprocess
from pathlib import Path
from typing import Any

import pandas
import pytest

from pollux import PolluxError, lab
from scheduler import binary

ROWS: list[dict[str, float]] = [
    {
        "num_nodes": nodes,
        "num_replicas": replicas,
        "local_bsz": local_batch,
        "step_time": 0.01 + 0.002 * local_batch + 0.01 * (replicas - 1) * nodes,
        "sync_time": 0.01 * (replicas - 1) * nodes,
    }
    for nodes, replicas in ((1, 1), (1, 2), (1, 4), (2, 8))
    for local_batch in (16, 32, 64)
]
EXPERIMENT = """
title = "Small"
question = "Does it run?"
workloads = ["generated"]
seeds = [0]
measures = ["avg_jct_h"]
settings = { jobs = 6, cluster = "2x4" }
rows = [{ label = "FIFO", policy = "fifo" }, { label = "Tiresias", policy = "tiresias" }]
plot = { kind = "bars", measures = ["avg_jct_h"] }
"""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    lines = [",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def command(*args: str) -> Any:
    told = subprocess.run([binary(), *args, "-o", "json"], capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


def figures(result: lab.Fit) -> dict[str, Any]:
    """All but where the steps came from and what stands beside the report."""
    told = {name: value for name, value in result.items() if name not in ("notes", "svg", "settings")}
    return {**told, "settings": {**result["settings"], "files": None}}


def test_a_fit_has_the_figures_of_the_command(steps: Path) -> None:
    fitted = lab.fit(steps, batch_size=32, noise_scale=2000, gpus=12, local_batch=(16, None))
    args = ("--batch-size", "32", "--noise-scale", "2000", "--gpus", "12", "--local-batch", "16..")
    told = subprocess.run(
        [binary(), "fit", str(steps), *args, "-o", "json"], capture_output=True, text=True, check=True
    )
    assert {name: value for name, value in fitted.items() if name != "notes"} == json.loads(told.stdout)
    assert [f"note: {note}" for note in fitted["notes"]] == told.stderr.splitlines()
    assert "no step was measured on more than 8 GPUs; rows beyond are extrapolated" in fitted["notes"]


def test_files_rows_and_tables_of_the_same_steps_give_the_same_fit(steps: Path) -> None:
    from_file = figures(lab.fit([steps]))
    assert figures(lab.fit(ROWS)) == from_file
    assert figures(lab.fit(pandas.DataFrame(ROWS))) == from_file
    assert from_file["recommendation"]["gpus"] >= 1


def test_a_fit_is_drawn_where_that_is_asked_for() -> None:
    drawn = lab.fit(ROWS, svg=True)["svg"]
    assert drawn.startswith("<svg") and "goodput" in drawn
    assert "svg" not in lab.fit(ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": "nowhere.csv"}, "nowhere.csv: No such file or directory"),
        ({"steps": []}, "no measured steps; expected one or more"),
        ({"steps": [{**ROWS[0], "local_bsz": 0}]}, "rows:2: column local_bsz is "),
        ({"steps": [{"num_nodes": 1}]}, "rows:1: header "),
        ({"gpus": 0}, "gpus is 0; expected whole numbers from 1 to 65536"),
        ({"noise_scale": -1.0}, "noise_scale is -1; expected samples from 0 to 1e15, or inf"),
        ({"batch_size": 64, "max_batch_size": 32}, "batch_size 64 is above max_batch_size 32"),
        ({"parallelism": "magic"}, 'parallelism is "magic"; expected data-parallel, sharded'),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_accepted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolluxError) as raised:
        lab.fit(**{"steps": ROWS, **options})
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_what_is_no_step_is_named() -> None:
    with pytest.raises(TypeError, match="3 is no measured step"):
        lab.fit([3])  # type: ignore[list-item]


def test_an_experiment_has_the_table_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLUX_DATA", str(tmp_path / "nowhere"))
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "experiment.toml").write_text(EXPERIMENT)
    ran = lab.experiment(folder, out=tmp_path / "out", threads=2)
    assert {name: value for name, value in ran.items() if name != "notes"} == command(
        "experiment", str(folder), "--out", str(tmp_path / "other")
    )
    assert [line["row"] for line in ran["table"]] == ["FIFO", "Tiresias"]
    assert ran["notes"] == ["no recorded data (POLLUX_DATA, data): generated jobs on the profiles that ship"]
    for name in ("small.csv", "small.md", "small.svg"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "other" / name).read_text()


def test_an_experiment_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolluxError, match="expected a folder with an experiment.toml"):
        lab.experiment(tmp_path)


def test_the_example_of_the_guide_runs() -> None:
    guide = Path(__file__).parents[2] / "docs" / "notebooks.md"
    code = guide.read_text().split("```python\n")[2].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["fitted"]["recommendation"]["gpus"] > 1 and names["fitted"]["svg"].startswith("<svg")
