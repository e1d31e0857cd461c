"""AdaptDL's names, outside of trainings: what they take, refuse and compute."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import adaptdl.torch as adl
import pytest
import tomllib
from adaptdl.torch.data import AdaptiveDataLoaderHelper, _shares
from adaptdl.torch.iterator import AdaptiveBPTTIterator
from trainings import Numbered

import pollux
from adaptdl import checkpoint, collective, goodput, sched_hints


def test_bad_arguments_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="give shuffle=True, or a Subset"):
        adl.AdaptiveDataLoader(Numbered(4), sampler=range(4))
    with pytest.raises(RuntimeError, match="cut the text into samples of bptt_len"):
        AdaptiveBPTTIterator(Numbered(4), 4, 2)
    loader = adl.AdaptiveDataLoader(Numbered(8), batch_size=4)
    with pytest.raises(ValueError, match="max_batch_size 3; expected whole numbers from 4"):
        loader.autoscale_batch_size(3)
    with pytest.raises(ValueError, match="expected bounds around the batch_size, 4"):
        loader.autoscale_batch_size(8, local_bsz_bounds=(5, 8))
    with pytest.raises(RuntimeError, match="give AdaptiveDataLoader a dataset and a collate_fn instead"):
        AdaptiveDataLoaderHelper(4).context()
    with pytest.raises(RuntimeError, match=r"call adaptdl.torch.init_process_group\(\) first"):
        collective.broadcast(1)
    checkpoint.State("best")
    with pytest.raises(ValueError, match="State 'best' already exists"):
        checkpoint.State("best")
    accumulator = adl.Accumulator()
    with pytest.raises(TypeError, match="a int set outside of synchronized"):
        accumulator["a"] = 1
    with pytest.raises(ValueError, match="hints speed; expected initBatchSize"):
        sched_hints.post_sched_hints({"speed": 1}, "job")


@pytest.mark.parametrize(("samples", "count", "local"), [(41, 3, 4), (2, 3, 4), (16, 4, 4), (7, 2, 100)])
def test_an_evaluation_deals_each_sample_once_and_all_get_as_many_batches(samples, count, local) -> None:
    shares = [_shares(list(range(samples)), rank, count, local) for rank in range(count)]
    assert sorted(number for share in shares for batch in share for number in batch) == list(range(samples))
    assert all(len(batch) <= local for share in shares for batch in share)
    assert samples < count or len({len(share) for share in shares}) == 1


def test_the_sampler_repeats_a_sample_where_they_do_not_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", "3")
    parts = []
    for rank in range(3):
        monkeypatch.setenv("ADAPTDL_REPLICA_RANK", str(rank))
        sampler = adl.ElasticSampler(Numbered(11), shuffle=False)
        sampler.set_epoch(2, index=4)
        parts.append(list(sampler))
        assert len(sampler) == 3
    assert parts == [[4, 7, 10], [5, 8, 1], [6, 9, 2]]


def test_goodput_is_that_of_the_scheduler() -> None:
    perf = goodput.PerfParams(0.1, 0.01, 0.2, 0.02, 0.1, 0.01, 1.0)
    function = goodput.GoodputFunction(perf, goodput.GradParams(1.0, 3.0), 32)
    # 64 samples on two replicas: 0.1 s and 0.01 s for each of 32 samples, and 0.1 s to synchronise.
    assert function.throughput(1, 2, 32, 0) == pytest.approx(64 / 0.52)
    assert function.efficiency(64) == pytest.approx((1 + 3) / (1 + 3 / 2) / 2)
    assert function(1, 2, 32, 0) == pytest.approx(64 / 0.52 * 0.8)
    assert function.throughput([1, 1], [1, 2], 32, 0).shape == (2,)
    best, local, steps = function.optimize(1, 2, max_batch_size=512, atomic_bsz_range=(8, 64))
    assert steps == 0 and 16 <= local <= 64
    assert best == pytest.approx(function(1, 2, local, steps))
    assert best >= max(function(1, 2, size, 0) for size in range(16, 65))
    with pytest.raises(ValueError, match="a batch of 16; expected 32 samples or more"):
        function(1, 1, 16, 0)
    local_batches = [8, 16, 32, 64]
    compute = [0.1 + 0.01 * local for local in local_batches]
    fitted = goodput.fit_perf_params([1] * 4, [2] * 4, local_batches, compute, [time_s + 0.1 for time_s in compute])
    assert fitted.alpha_c == pytest.approx(0.1, rel=0.2) and fitted.beta_c == pytest.approx(0.01, rel=0.2)


def test_the_signatures_are_those_of_adaptdl() -> None:
    def names(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(adl.init_process_group) == ["backend", "init_method", "world_size", "rank"]
    assert names(adl.AdaptiveDataLoader) == ["dataset", "batch_size", "shuffle", "kwargs"]
    assert names(adl.AdaptiveDataLoader.autoscale_batch_size)[1:] == [
        "max_batch_size",
        "local_bsz_bounds",
        "gradient_accumulation",
    ]
    assert names(adl.AdaptiveDataParallel) == [
        "model",
        "optimizer",
        "lr_scheduler",
        "mp_scaler",
        "scaling_rule",
        "name",
        "kwargs",
    ]
    assert names(collective.initialize) == ["master_addr", "master_port", "replica_rank", "num_replicas"]
    assert names(checkpoint.save_state) == ["state", "checkpoint_dir", "sync"]


def test_it_is_of_the_version_that_it_needs() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "adaptdl" / "pyproject.toml").read_text())["project"]
    assert project["version"] == pollux.__version__
    assert project["dependencies"] == [f"pollux[torch]=={pollux.__version__}"]


def test_beside_the_real_adaptdl_it_refuses_to_be_imported(tmp_path: Path) -> None:
    real = tmp_path / "adaptdl-0.2.11.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptdl\nVersion: 0.2.11\n")
    run = subprocess.run(
        [sys.executable, "-c", "import adaptdl"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "adaptdl 0.2.11 and pollux-adaptdl are both installed" in run.stderr
