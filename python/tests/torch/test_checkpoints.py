"""What is saved is whole, and enough to go on with at any size."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from trainings import Numbered, loss_of, network, seen

import pollux.torch as px
import torch
from pollux.torch._checkpoint import Checkpoints

HERE = Path(__file__).parent


def part(folder: str, epochs: int, steps_max: int, samples: int = 203) -> dict:
    """Trains on from what is saved, at most for so many batches, and leaves as if it were told to."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    updates: list[int] = []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=schedule, checkpoint_dir=folder, checkpoint_every_s=1e-9)
    history: list[int] = []
    px.checkpoint_state(history=history)
    mean = px.Mean("index")
    loader = px.DataLoader(Numbered(samples), batch_size=16, max_batch_size=16, per_gpu=(2, 16), shuffle=True)
    steps: list[tuple[int, list[int]]] = []
    for epoch in px.epochs(epochs):
        for batch in loader:
            if len(steps) == steps_max:
                return {"steps": steps, "history": list(history), "updates": len(updates)}
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            mean.update(batch[2].sum(), len(batch[2]))
            steps.append((epoch, batch[2].tolist()))
        history.append(epoch)
        schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    moments = float(sum(state["step"] for state in optimizer.state.values()))
    told = {"history": history, "mean": mean.compute(), "rate": rate, "moments": moments}
    return {"steps": steps, "updates": len(updates), **told}


def test_trainings_go_on_at_any_size_and_use_every_sample_once(together, tmp_path) -> None:
    folder = str(tmp_path)
    runs = [together(part, world_size, folder, 3, steps) for world_size, steps in [(2, 9), (1, 5), (3, 2), (1, 1000)]]
    counts = seen([result for run in runs for result in run])
    assert set(counts) == {0, 1, 2}
    for count in counts.values():
        assert count == dict.fromkeys(range(203), 1)
    [last] = runs[-1]
    assert last["history"] == [0, 1, 2]
    assert last["mean"] == 101.0, "what was counted before a restart is lost"
    assert last["rate"] == 0.01 / 8
    # Four tensors, each with the updates of the whole training: the moments of Adam went along.
    assert last["moments"] == 4 * sum(run[0]["updates"] for run in runs)
    assert together(part, 1, folder, 3, 1000)[0]["steps"] == [], "a training that is done begins again"


def test_a_damaged_checkpoint_is_passed_over_and_a_draft_is_no_checkpoint(tmp_path, capsys) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    for number in range(4):
        newest = checkpoints.save({"number": number})
    assert len(list(tmp_path.iterdir())) == 2
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    (tmp_path / ".draft-1").write_bytes(b"half of it")
    assert checkpoints.load() == {"number": 2}
    assert "damaged" in capsys.readouterr().err
    for path in tmp_path.glob("checkpoint-*"):
        path.write_bytes(b"")
    with pytest.raises(px.CheckpointError, match="all 2 checkpoints in .* are damaged; remove the folder"):
        checkpoints.load()


def test_a_disk_that_is_full_is_told_as_such(tmp_path, monkeypatch) -> None:
    class Full:
        def write(self, _data):
            raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path)
    monkeypatch.setattr("pollux._elastic.checkpoint.Digesting.__init__", lambda self, _file: fill(self))

    def fill(digesting) -> None:
        import hashlib

        digesting._file, digesting.digest, digesting.failure = Full(), hashlib.sha256(), None

    with pytest.raises(OSError, match="No space left"):
        checkpoints.save({"tensor": torch.ones(1000)})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_model_is_refused_and_kept(together, tmp_path) -> None:
    together(part, 1, str(tmp_path), 1, 1000)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(AssertionError, match="is of another model: '0.bias' has shape .16. there and .4. here"):
        together(other_model, 1, str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before


def other_model(folder: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    px.wrap(model, torch.optim.AdamW(model.parameters()), checkpoint_dir=folder)
    loader = px.DataLoader(Numbered(64), batch_size=16)
    next(px.epochs(1))
    assert loader


SCRIPT = """
import glob, json, os, sys, time
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from trainings import Numbered, loss_of, network
import pollux.torch as px

def parent(path):
    try:
        with open(path) as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # It has ended since.

{before}
model = network()
wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir={folder!r})
loader = px.DataLoader(
    Numbered({samples}), batch_size=16, max_batch_size=16, per_gpu=(2, {most}), shuffle=True{options}
)
mean = px.Mean("index")
{before_loops}
for epoch in px.epochs({epochs}):
    for batch in loader:
        {trouble}
        optimizer.zero_grad()
        loss_of(wrapped, batch).backward()
        optimizer.step()
        mean.update(batch[2].sum(), len(batch[2]))
        print(json.dumps([epoch, batch[2].tolist()]), flush=True)
        {late}
{after}
"""


def launch(folder: Path, trouble: str = "pass", **given: Any) -> subprocess.Popen[str]:
    defaults = {
        "most": 16,
        "epochs": 3,
        "samples": 200,
        "before": "",
        "before_loops": "",
        "late": "pass",
        "after": "",
        "options": "",
    }
    script = SCRIPT.format(here=str(HERE), folder=str(folder), trouble=trouble, **{**defaults, **given})
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def steps_of(output: str) -> dict:
    return {"steps": [json.loads(line) for line in output.splitlines() if line.startswith("[")]}


def test_a_training_that_is_told_to_end_at_the_last_batch_of_an_epoch_is_taken_up_with_a_batch(tmp_path) -> None:
    trouble = "cursor = px._process.current().position.cursor; loss = cursor"
    late = "if epoch == 0 and cursor + 16 >= 200: os.kill(os.getpid(), 15)"
    outputs = []
    for code in (143, 0):
        run = launch(tmp_path, trouble, late=late, epochs=2, after="    assert loss is not None")
        output, error = run.communicate(timeout=90)
        assert run.returncode == code, error
        outputs.append(steps_of(output))
    counts = seen(outputs)
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(2)] == [True] * 2


def test_a_training_that_is_told_to_end_saves_and_ends_with_143(tmp_path) -> None:
    first = launch(tmp_path, trouble="time.sleep(0.05)")
    assert first.stdout is not None
    lines = [first.stdout.readline() for _ in range(16)]
    first.send_signal(signal.SIGTERM)
    rest, error = first.communicate(timeout=60)
    assert first.returncode == 143, error
    second = launch(tmp_path)
    output, error = second.communicate(timeout=60)
    assert second.returncode == 0, error
    counts = seen([steps_of("".join(lines) + rest), steps_of(output)])
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(3)] == [True] * 3


def test_a_step_that_does_not_fit_into_memory_lowers_the_bound_and_training_goes_on(tmp_path) -> None:
    # On a GPU the allocator raises it; here it is raised for batches above 6.
    trouble = "if len(batch[0]) > 6: raise torch.OutOfMemoryError('CUDA out of memory')"
    run = launch(tmp_path, trouble, most=16, epochs=2)
    output, error = run.communicate(timeout=90)
    assert run.returncode == 0, error
    assert re.search(r"out of memory with \d+ samples on a GPU; going on with at most \d+", error), error
    counts = seen([steps_of(output)])
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(2)] == [True] * 2


def test_memory_that_runs_out_after_a_step_repeats_none_of_its_samples(tmp_path) -> None:
    # Of a step in halves, which are smaller, the first is not the end.
    late = "if len(batch[0]) > 10: raise torch.OutOfMemoryError('CUDA out of memory')"
    run = launch(tmp_path, late=late, epochs=2)
    output, error = run.communicate(timeout=90)
    assert run.returncode == 0 and "out of memory with" in error, error
    counts = seen([steps_of(output)])
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(2)] == [True] * 2


def test_a_training_that_was_left_after_the_last_step_of_an_epoch_goes_on_with_the_next(tmp_path) -> None:
    is_last = "px.is_step_end() and px._process.current().position.cursor + 16 >= 200"
    late = f"if epoch == 0 and {is_last}: raise KeyboardInterrupt"
    first = launch(tmp_path, late=late, epochs=2)
    output, error = first.communicate(timeout=90)
    assert "KeyboardInterrupt" in error, error
    second = launch(tmp_path, epochs=2)
    rest, error = second.communicate(timeout=90)
    assert second.returncode == 0, error
    counts = seen([steps_of(output), steps_of(rest)])
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(2)] == [True] * 2


def test_a_connection_of_the_users_own_that_breaks_is_not_a_lost_process(tmp_path) -> None:
    run = launch(tmp_path, "raise RuntimeError('Connection reset by peer')")
    _, error = run.communicate(timeout=90)
    assert run.returncode == 1 and "another process is gone" not in error, error


def test_memory_that_runs_out_below_the_bounds_is_the_users_to_mend(tmp_path) -> None:
    run = launch(tmp_path, "raise torch.OutOfMemoryError('CUDA out of memory')", most=2)
    _, error = run.communicate(timeout=90)
    assert run.returncode == 1 and "OutOfMemoryError" in error


def lose(folder: str, victim: bool) -> dict:
    """One of two processes is killed in the middle of a step; the other ends as the scheduler expects."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=folder)
    loader = px.DataLoader(Numbered(200), batch_size=16, max_batch_size=16, per_gpu=(2, 16), shuffle=True)
    log = open(f"{folder}/../steps-{px.rank()}-{os.getpid()}", "w", buffering=1)
    for epoch in px.epochs(2):
        for idx, batch in enumerate(loader):
            if victim and px.rank() == 1 and idx == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            print(json.dumps([epoch, batch[2].tolist()]), file=log)
    return {}


LOSE = """
import sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from test_checkpoints import lose
lose({folder!r}, {victim})
"""


def test_a_lost_process_sends_the_others_back_to_the_last_whole_step(tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    codes = []
    for victim in (True, False):
        port = str(29000 + os.getpid() % 2000 + victim)
        script = LOSE.format(here=str(HERE), folder=str(folder), victim=victim)
        group = []
        for rank in range(2):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
            group.append(
                subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
            )
        codes.append([process.wait(90) for process in group])
        assert victim or codes[-1] == [0, 0], [process.stderr.read() for process in group]
    assert codes[0] == [75, -9]
    logs = [path.read_text() for path in tmp_path.glob("steps-*")]
    counts = seen([steps_of(text) for text in logs])
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(2)] == [True] * 2


def leave(folder: str, where: str) -> list[tuple[int, list[int]]]:
    """Trains three epochs, with a break in the second, and what follows in the same process."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=folder)
    mean = px.Mean("index")
    loader = px.DataLoader(Numbered(200), batch_size=16, max_batch_size=16, per_gpu=(2, 16), shuffle=True)
    steps: list[tuple[int, list[int]]] = []
    for epoch in px.epochs(3):
        for idx, batch in enumerate(loader):
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            mean.update(batch[2].sum(), len(batch[2]))
            steps.append((epoch, batch[2].tolist()))
            if where == "within" and epoch == 1 and idx > 6:
                return steps
            if where == "error" and epoch == 1 and idx > 6:
                raise ArithmeticError("a mistake of the user's")
        if where == "after" and epoch == 1:
            break
    return [*steps, (-1, [round(mean.compute() * 1e6)])]


@pytest.mark.parametrize(("world_size", "where"), [(1, "within"), (1, "after"), (2, "after")])
def test_a_break_is_saved_and_what_was_done_is_not_done_again(together, tmp_path, world_size, where) -> None:
    first = together(leave, world_size, str(tmp_path), where)
    assert list(tmp_path.glob("checkpoint-*")), "nothing was saved"
    second = together(leave, world_size, str(tmp_path), "nowhere")
    results = [{"steps": [step for step in steps if step[0] >= 0]} for steps in first + second]
    counts = seen(results)
    assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(3)] == [True] * 3
    assert [steps[-1] for steps in second] == [(-1, [99_500_000])] * world_size


def test_an_error_of_the_user_leaves_the_state_of_the_last_whole_step(together, tmp_path) -> None:
    with pytest.raises(AssertionError, match="a mistake of the user's"):
        together(leave, 1, str(tmp_path), "error")
    [path] = tmp_path.glob("checkpoint-*")
    position = torch.load(path, weights_only=False)["position"]
    assert (position["epoch"], position["is_ended"]) == (1, False)
    assert position["cursor"] == position["samples"] - 200 > 80


def test_steps_go_on_where_those_before_have_ended(tmp_path) -> None:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), checkpoint_dir=tmp_path)
    loader = px.DataLoader(Numbered(200), batch_size=16, max_batch_size=16, per_gpu=(2, 16), shuffle=True)
    numbers: list[int] = []
    for total in (5, 9, 13):
        for batch in px.steps(total, loader):
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            numbers += batch[2].tolist()
            if total == 9:
                break
    assert sorted(numbers) == list(range(200))
    newest = max(tmp_path.glob("checkpoint-*"))
    assert torch.load(newest, weights_only=False)["position"]["samples"] == 200


EVALUATION = """
    if epoch == 1:
        print("evaluating", flush=True)
        with torch.no_grad():
            for _ in range(10_000):
                time.sleep(0.01)
                wrapped(batch[0])
"""


@pytest.mark.parametrize("moment", ["within an epoch", "evaluating"])
def test_a_training_without_a_scheduler_saves_whenever_it_is_told_to_end(tmp_path, moment) -> None:
    if moment == "evaluating":
        first = launch(tmp_path, after=EVALUATION)
    else:
        # Longer than anybody would wait: it ends because of the check-ins within.
        first = launch(tmp_path, trouble="time.sleep(0.05)", samples=20_000)
    assert first.stdout is not None
    lines = []
    while (moment == "evaluating" and "evaluating\n" not in lines) or len(lines) < 5:
        lines.append(first.stdout.readline())
    first.send_signal(signal.SIGTERM)
    rest, error = first.communicate(timeout=60)
    assert first.returncode == 143, error
    [path] = tmp_path.glob("checkpoint-*")
    saved = torch.load(path, weights_only=False)
    steps = steps_of("".join(lines) + rest)["steps"]
    assert saved["position"]["samples"] == sum(len(numbers) for _, numbers in steps)
    assert saved["metrics"]["index"][1] == saved["position"]["samples"]
    if moment == "evaluating":
        output, error = launch(tmp_path).communicate(timeout=60)
        counts = seen([{"steps": steps}, steps_of(output)])
        assert [counts[epoch] == dict.fromkeys(range(200), 1) for epoch in range(3)] == [True] * 3, error


def test_no_worker_of_a_data_loader_outlives_a_training_that_starts_itself_again(tmp_path) -> None:
    children = "print('children', [path for path in glob.glob('/proc/[0-9]*/stat') if parent(path) == os.getpid()])"
    trouble = "if len(batch[0]) > 6: raise torch.OutOfMemoryError('CUDA out of memory')"
    run = launch(tmp_path, trouble, epochs=1, before=children, options=", num_workers=2")
    output, error = run.communicate(timeout=90)
    assert run.returncode == 0, error
    told = [line for line in output.splitlines() if line.startswith("children")]
    assert len(told) >= 2 and set(told) == {"children []"}


def test_a_training_that_is_over_is_not_kept() -> None:
    kept = []
    for _ in range(2):
        model = network()
        kept.append(weakref.ref(model))
        wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = px.DataLoader(Numbered(32), batch_size=16)
        for _ in px.epochs(1):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(wrapped, batch).backward()
                optimizer.step()
    del wrapped, optimizer, model, loader, batch
    gc.collect()
    assert kept[0]() is None
