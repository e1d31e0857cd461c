"""Scripts as they are written for AdaptDL, on `pollux.torch`: alone, together, restarted and joined as they train."""

from __future__ import annotations

import collections
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any, BinaryIO

import adaptdl.torch as adl
import pytest
from adaptdl.torch.scaling_rules import AdaScale, LEGWScale, ScalingRuleBase, SqrtScale
from trainings import Numbered, network

import adaptdl
import torch
from adaptdl import checkpoint, collective
from pollux.torch._process import current
from pollux.torch.selftest._director import Director

SAMPLES, TESTED, BATCH = 203, 41, 16


class Script:
    """The usual parts of a script, and what it sees."""

    def __init__(self, **options: Any):
        adl.init_process_group("gloo")
        torch.manual_seed(0)
        self.train = adl.AdaptiveDataLoader(Numbered(SAMPLES), batch_size=BATCH, shuffle=True, drop_last=True)
        self.test = adl.AdaptiveDataLoader(Numbered(TESTED, seed=1), batch_size=BATCH)
        if "max_batch_size" in options:
            self.train.autoscale_batch_size(options.pop("max_batch_size"), local_bsz_bounds=(2, 32))
        net = network()
        self.optimizer = options.pop("optimizer", torch.optim.SGD)(net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.9)
        self.model = adl.AdaptiveDataParallel(net, self.optimizer, self.schedule, **options)
        self.seen: list[list[int]] = []

    def learn(self, batch: Any) -> None:
        """A step of the usual loop."""
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]).backward()
        self.optimizer.step()

    def pass_over(self, stats: adl.Accumulator | None = None) -> list[int]:
        """Trains an epoch; the samples of this process."""
        self.model.train()
        numbers: list[int] = []
        for batch in self.train:
            self.learn(batch)
            numbers += batch[2].tolist()
            if stats is not None:
                stats["total"] += len(batch[2])
                stats.update(numbers=int(batch[2].sum()))
        return numbers

    def evaluate(self) -> tuple[list[int], dict[str, Any]]:
        """The samples of this process, and what all have counted."""
        self.model.eval()
        stats = adl.Accumulator()
        numbers: list[int] = []
        with torch.no_grad():
            for inputs, targets, number in self.test:
                stats["correct"] += int((self.model(inputs).argmax(1) == targets).sum())
                stats["total"] += len(number)
                numbers += number.tolist()
        assert len(stats) == 0
        with stats.synchronized():
            return numbers, dict(stats)


def fixed(epochs: int) -> list[Any]:
    script = Script()
    assert [adl.current_epoch(), adl.finished_epochs(), script.train.current_batch_size] == [None, 0, None]
    seen = []
    for epoch in adl.remaining_epochs_until(epochs):
        assert adl.current_epoch() == epoch == adl.finished_epochs()
        stats = adl.Accumulator(epoch=epoch)
        numbers = script.pass_over(stats)
        with stats.synchronized():
            sums = dict(stats)
        seen.append([numbers, sums, *script.evaluate(), script.optimizer.param_groups[0]["lr"]])
        script.schedule.step()
    assert [adl.current_epoch(), adl.finished_epochs(), adaptdl.env.num_replicas()] == [None, epochs, len(ranks())]
    return seen


def ranks() -> list[int]:
    """Of everybody, which takes a word from everybody."""
    gathered: list[int] = collective.allreduce([adaptdl.env.replica_rank()])
    assert collective.broadcast(adaptdl.env.replica_rank()) == 0
    assert collective.allreduce_async(adaptdl.env.replica_rank(), max).result() == len(gathered) - 1
    return gathered


def dry_run() -> int:
    """The usual way to try a script: one batch of each epoch."""
    script = Script()
    updates: list[int] = []
    script.optimizer.register_step_post_hook(lambda *_: updates.append(1))
    for _ in adl.remaining_epochs_until(3):
        script.model.train()
        for batch in script.train:
            script.learn(batch)
            break
    return len(updates)


def test_a_pass_that_is_left_after_its_first_batch_has_made_a_step(together) -> None:
    assert together(dry_run, 1) == [3]


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_uses_and_evaluates_every_sample_once(together, world_size: int) -> None:
    results = together(fixed, world_size, 2)
    for epoch, rows in enumerate(zip(*results)):
        assert sorted(number for row in rows for number in row[0]) == list(range(SAMPLES))
        assert sorted(number for row in rows for number in row[2]) == list(range(TESTED))
        for _, sums, _, tested, rate in rows:
            assert sums == {"epoch": epoch, "total": SAMPLES, "numbers": sum(range(SAMPLES))}
            assert tested["total"] == TESTED and tested == rows[0][3]
            assert rate == pytest.approx(0.1 * 0.9**epoch)


def test_adaptdls_own_variables_name_the_processes(together) -> None:
    variables = {"ADAPTDL_NUM_REPLICAS": "1", "ADAPTDL_REPLICA_RANK": "0", "ADAPTDL_JOB_ID": "a/b"}
    [(count, job)] = together(named, 1, **variables)
    assert (count, job) == (1, "a/b")


def named() -> tuple[int, str | None]:
    adl.init_process_group("gloo", init_method="tcp://127.0.0.1:1", world_size=1, rank=0)
    return adaptdl.env.num_replicas(), adaptdl.env.job_id()


def autoscaled() -> list[Any]:
    script = Script(max_batch_size=64)
    seen = []
    for epoch in adl.remaining_epochs_until(4):
        for batch in script.train:
            before = script.model.gns.get_progress()
            assert script.train.current_batch_size <= 64
            local = script.train.current_local_bsz
            assert local is not None and 2 <= local <= 32 and script.train.training and len(script.train) >= 1
            assert adl.current_dataloader() is script.train._elastic
            script.learn(batch)
        seen.append((epoch, before, script.model.gns.get_progress(), script.model.gain))
    return seen


def test_with_autoscaling_an_epoch_ends_by_progress(together) -> None:
    [seen] = together(autoscaled, 1)
    for epoch, before, after, gain in seen:
        # As AdaptDL: the step that reaches what one pass at the initial batch would be is the last one.
        assert before < SAMPLES * (epoch + 1) / BATCH <= after
        assert gain >= 1.0


class Best(checkpoint.State):
    """A state of the user's own."""

    def __init__(self) -> None:
        super().__init__("best")
        self.steps = 0
        self.syncs = 0

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump(self.steps, fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        self.steps = pickle.load(fileobj)

    def sync(self) -> None:
        self.syncs += 1


def interrupted(stop_in: int | None, dies: bool) -> list[Any]:
    """Evaluates, then trains, and saves after a step in the middle of an epoch, or for an error in the next one."""
    script, best = Script(), Best()
    assert not checkpoint.load_state(best)
    seen: list[Any] = []
    has_saved = False
    for epoch in adl.remaining_epochs_until(3):
        script.schedule.step()
        seen.append(["evaluated", epoch, *script.evaluate()])
        stats = adl.Accumulator()
        script.model.train()
        for idx, batch in enumerate(script.train):
            if has_saved and dies:
                raise Dead(seen)
            if has_saved:
                return seen
            script.learn(batch)
            best.steps += 1
            stats["total"] += len(batch[2])
            seen.append(["trained", epoch, batch[2].tolist(), script.optimizer.param_groups[0]["lr"], best.steps])
            if epoch == stop_in and idx >= 4 and script.train._elastic.is_optim_step():
                if not dies:
                    checkpoint.save_all_states()
                has_saved = True
        with stats.synchronized():
            seen.append(["total", epoch, stats["total"]])
    return seen


class Dead(Exception):
    """What a process dies of."""


def dying(stop_in: int) -> list[Any]:
    """Saves after an error as a process does whose group is gone."""
    try:
        return interrupted(stop_in, dies=True)
    except Dead as error:
        current().archive.share_metrics()
        current().archive.save()
        seen: list[Any] = error.args[0]
        return seen


@pytest.mark.parametrize("dies", [False, True])
def test_a_restart_goes_on_in_the_middle_of_a_loop_and_repeats_nothing(together, tmp_path: Path, dies: bool) -> None:
    folder = {"ADAPTDL_CHECKPOINT_PATH": str(tmp_path)}
    [before] = together(dying, 1, 1, **folder) if dies else together(interrupted, 1, 1, False, **folder)
    [after] = together(interrupted, 1, None, False, **folder)
    trained = [row for row in before + after if row[0] == "trained"]
    seen = collections.Counter((row[1], number) for row in trained for number in row[2])
    assert seen == {(epoch, number): 1 for epoch in range(3) for number in range(SAMPLES)}
    assert [row[3] for row in trained] == [pytest.approx(0.1 * 0.9 ** (row[1] + 1)) for row in trained]
    assert [row[4] for row in trained] == list(range(1, len(trained) + 1))
    # The evaluation that was over gives no batch and the sums that it gave before.
    [first] = [row for row in before if row[:2] == ["evaluated", 1]]
    [again] = [row for row in after if row[:2] == ["evaluated", 1]]
    assert again[2] == [] and again[3] == first[3] and first[3]["total"] == TESTED
    assert [row[2] for row in after if row[0] == "total"] == [SAMPLES, SAMPLES]


def without_epochs(folder: str) -> list[Any]:
    """Loops as the first steps of AdaptDL's tutorial have them, with a word of its own between them."""
    script = Script()
    if adaptdl.env.replica_rank() == 0:
        time.sleep(0.5)
        Path(folder, "downloaded").touch()
    torch.distributed.barrier()
    assert Path(folder, "downloaded").exists()
    log = open(f"{folder}/{os.environ['POLLUX_REPLICA_ID']}", "w", buffering=1)
    seen = []
    for round_ in range(40):
        script.model.train()
        for batch in script.train:
            if not Path(folder, "enough").exists():
                time.sleep(0.03)
            script.learn(batch)
            world = adaptdl.env.num_replicas()
            print(json.dumps([round_, world, batch[2].tolist(), script.schedule.get_last_lr()[0]]), file=log)
        seen.append([collective.allreduce(1) >= 1, *script.evaluate()])
        script.schedule.step()
    return [seen, [parameter.detach().tolist() for parameter in script.model.parameters()]]


def logged(folder: Path) -> list[Any]:
    texts = [path.read_text() for path in folder.iterdir() if path.name.isdigit()]
    return [json.loads(line) for text in texts for line in text.splitlines() if line.endswith("]")]


def test_who_joins_skips_what_the_others_have_done(tmp_path: Path) -> None:
    director = Director(without_epochs, str(tmp_path))
    try:
        director.announce(1, 2)
        director.wait_until(lambda: any(row[0] >= 1 for row in logged(tmp_path)))
        director.announce(1, 2, 3)
        director.wait_until(lambda: any(row[1] == 3 for row in logged(tmp_path)))
        director.announce(2, 3)
        director.wait_until(lambda: director.code(1) == 143)
        (tmp_path / "enough").touch()
        [(told, parameters), (told_late, parameters_late)] = director.result(2), director.result(3)
    finally:
        director.close()
    seen = collections.Counter((row[0], number) for row in logged(tmp_path) for number in row[2])
    assert seen == {(round_, number): 1 for round_ in range(40) for number in range(SAMPLES)}
    assert all(row[3] == pytest.approx(0.1 * 0.9 ** row[0]) for row in logged(tmp_path))
    # Sums of evaluations that were over before it came are those that the others saw.
    assert [row[2] for row in told] == [row[2] for row in told_late]
    assert all(row[2]["total"] == TESTED for row in told)
    assert [bool(row[1]) for row in told_late] != [True] * 40
    assert parameters == parameters_late


class Halved(AdaScale):
    """A rule of the user's own."""

    asked = 0

    def scale_lr(self, scale: float) -> Any:
        Halved.asked += 1
        assert self.adp is not None and len(self.adp.gns.raw_sqr_avg) == 1
        return super().scale_lr(scale) / 2


def ruled(rule: str) -> tuple[float, int, str]:
    rules: dict[str, ScalingRuleBase] = {"own": Halved(), "sqrt": SqrtScale(), "legw": LEGWScale(2, SAMPLES)}
    script = Script(scaling_rule=rules[rule])
    for _ in adl.remaining_epochs_until(1):
        script.pass_over()
    written: dict[str, float] = {}
    writer = type("Writer", (), {"add_scalar": lambda _, tag, value, step: written.update({f"{tag}@{step}": value})})()
    script.model.to_tensorboard(writer, 3, tag_prefix="a")
    script.train.to_tensorboard(writer, 3)
    return written["a/Learning_Rate_Factor@3"], Halved.asked, " ".join(sorted(written))


def test_rules_follow_the_batch_and_may_be_the_users_own(together) -> None:
    [(factor, asked, tags)] = together(ruled, 1, "own")
    assert factor == 0.5 and asked > 0
    assert tags == (
        "Accumulation_Steps@3 Local_Batch_Size@3 Total_Batch_Size@3 a/Accum_Count@3 a/Accum_Scale@3 a/Gain@3 "
        "a/Gradient_Norm_Sqr@3 a/Gradient_Variance@3 a/Learning_Rate_Factor@3 a/Progress@3"
    )
    [(factor, _, _)] = together(ruled, 1, "sqrt")
    assert factor == 1.0
    [(factor, _, _)] = together(ruled, 1, "legw")
    assert 0.0 < factor < 1.0


def refused() -> dict[str, str]:
    """What a script is told that asks for what cannot be."""
    script = Script(max_batch_size=64)
    told: dict[str, str] = {}

    def attempt(mistake: str, call: Any, *args: Any) -> None:
        try:
            call(*args)
        except RuntimeError as error:
            told[mistake] = str(error)

    batch = next(iter(torch.utils.data.DataLoader(Numbered(SAMPLES), batch_size=4)))
    attempt("second model", lambda: adl.AdaptiveDataParallel(network(), script.optimizer, name="other"))
    attempt("outside", script.learn, batch)
    attempt("no epochs", lambda: next(iter(script.train)))
    for _ in adl.remaining_epochs_until(1):
        attempt("nested epochs", lambda: next(iter(adl.remaining_epochs_until(2))))
        for batch in script.test:
            attempt("other loader", script.learn, batch)
        for batch in script.train:
            attempt("nested", lambda: next(iter(script.test)))
            attempt("accumulator", adl.Accumulator)
            script.learn(batch)
            break
        attempt("unlearned", lambda: list(script.train))
    return told


MISTAKES = {
    "second model": "a second AdaptiveDataParallel (other); a training has one",
    "outside": "backpropagation outside AdaptiveDataLoader",
    "no epochs": "write `for epoch in remaining_epochs_until(N)` around it",
    "nested epochs": "overlapping epoch loops detected",
    "other loader": "or another loader trains; call model.train() before the loop",
    "nested": "overlapping dataloader iterations detected",
    "accumulator": "an Accumulator made inside of a loop over a loader",
    "unlearned": "to evaluate, call model.eval() or torch.no_grad() before the loop",
}


def test_what_cannot_be_is_refused_with_what_to_do(together) -> None:
    [told] = together(refused, 1)
    assert told.keys() == MISTAKES.keys()
    assert [words for mistake, words in MISTAKES.items() if words not in told[mistake]] == []
