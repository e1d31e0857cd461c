"""Groups that change while they train: whoever joins knows everything, whoever leaves takes nothing along."""

import collections
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from trainings import Numbered, loss_of, network

import pollux.torch as px
import torch
from pollux.torch.selftest._director import Director

EPOCHS, SAMPLES, BATCH, GROWTH = 60, 203, 16, 64


def body(folder: str) -> dict:
    """Trains with everything that has a state, and writes down what it sees of it in every step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=GROWTH)
    wrapped, optimizer = px.wrap(model, optimizer, scaler=scaler, scheduler=schedule)
    history: list[int] = []
    px.checkpoint_state(history=history)
    mean = px.Mean("index")
    loader = px.DataLoader(Numbered(SAMPLES), batch_size=BATCH, per_gpu=(2, BATCH), shuffle=True)
    log = open(f"{folder}/{os.environ['POLLUX_REPLICA_ID']}", "w", buffering=1)
    for epoch in px.epochs(EPOCHS):
        for batch in loader:
            if not os.path.exists(f"{folder}/enough"):
                time.sleep(0.03)
            optimizer.zero_grad()
            scaler.scale(loss_of(wrapped, batch)).backward()
            scaler.step(optimizer)
            scaler.update()
            mean.update(batch[2].sum(), len(batch[2]))
            updates = int(optimizer.state[model[0].weight]["step"]) if optimizer.state else 0
            draw = float(torch.rand(1, dtype=torch.float64))
            place = [px.world_size(), px.rank(), epoch, updates]
            state = [scaler.get_scale(), optimizer.param_groups[0]["lr"], list(history)]
            print(json.dumps([place, state, draw, batch[2].tolist()]), file=log)
        history.append(epoch)
        schedule.step()
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    return {"history": history, "mean": mean.compute(), "parameters": parameters, "status": px.status()}


@pytest.fixture
def director(tmp_path):
    made = Director(body, str(tmp_path))
    yield made
    made.close()


def lines(folder: Path) -> list:
    """What all processes have written."""
    texts = [path.read_text() for path in folder.iterdir() if path.name.isdigit()]
    return [json.loads(line) for text in texts for line in text.splitlines() if line.endswith("]]")]


def sizes(folder: Path) -> set[int]:
    return {line[0][0] for line in lines(folder)}


def check(folder: Path, results: list) -> None:
    """Every sample was used once, and every state went along with the training through all of its groups."""
    seen = collections.Counter((line[0][2], number) for line in lines(folder) for number in line[3])
    assert seen == {(epoch, number): 1 for epoch in range(EPOCHS) for number in range(SAMPLES)}
    for (_, _, epoch, updates), (scale, rate, history), _, _ in lines(folder):
        assert scale == 2.0 ** (1 + updates // GROWTH)
        assert rate == pytest.approx(0.01 * 0.9**epoch)
        assert history == list(range(epoch))
    draws = [line[2] for line in lines(folder)]
    assert len(set(draws)) == len(draws), "two processes draw the same numbers"
    for result in results:
        assert result["history"] == list(range(EPOCHS))
        assert result["mean"] == 101.0
        assert result["status"].samples == EPOCHS * SAMPLES
        # What the agent counts: a rank 0 that begins anew would begin at 0.
        assert result["status"].baseline_steps >= EPOCHS * SAMPLES / BATCH
        for ours, theirs in zip(result["parameters"], results[0]["parameters"], strict=True):
            assert torch.equal(ours, theirs)


def test_every_state_goes_along_when_a_group_grows_and_shrinks(director, tmp_path) -> None:
    director.announce(1)
    director.wait_until(lambda: len(lines(tmp_path)) > 20)
    director.announce(1, 2, 3)
    director.wait_until(lambda: 3 in sizes(tmp_path))
    director.announce(1, 3)
    director.wait_until(lambda: 2 in sizes(tmp_path))
    (tmp_path / "enough").touch()
    assert director.code(2) == 143
    check(tmp_path, [director.result(1), director.result(3)])
    told = {ready["generation"]: ready.get("pause_s") for ready in director.ready}
    assert told.keys() == {1, 2, 3} and told[1] is None and min(told[2], told[3]) > 0.0


def test_every_state_stays_when_rank_0_leaves(director, tmp_path) -> None:
    director.announce(1, 2, 3)
    director.wait_until(lambda: len(lines(tmp_path)) > 100)
    director.announce(2, 3)
    director.wait_until(lambda: 2 in sizes(tmp_path))
    assert director.code(1) == 143
    director.announce(3, 4)
    director.wait_until(lambda: (tmp_path / "4").exists() and (tmp_path / "4").read_text())
    (tmp_path / "enough").touch()
    assert director.code(2) == 143
    check(tmp_path, [director.result(3), director.result(4)])
    assert {ready["generation"] for ready in director.ready} == {1, 2, 3}


def test_a_generation_that_is_overtaken_leads_on_to_the_next(director, tmp_path) -> None:
    director.announce(1)
    director.wait_until(lambda: len(lines(tmp_path)) > 20)
    # Two of three newcomers stand at the door when the third is given up.
    director.announce(1, 2, 3, 4, launch=False)
    director.launch(2)
    director.launch(3)
    director.wait_until(lambda: director.asked >= {1, 2, 3})
    director.announce(1, 2)
    director.wait_until(lambda: 2 in sizes(tmp_path))
    assert director.code(3) == 143
    # And nobody has come at all.
    director.announce(1, 2, 5, launch=False)
    director.wait_until(lambda: director.asked >= {1, 2})
    director.announce(2, 6)
    director.wait_until(lambda: (tmp_path / "6").exists() and (tmp_path / "6").read_text())
    (tmp_path / "enough").touch()
    assert director.code(1) == 143
    check(tmp_path, [director.result(2), director.result(6)])
    assert sizes(tmp_path) == {1, 2}
    assert {ready["generation"] for ready in director.ready} == {1, 3, 5}


def batches(folder: str) -> None:
    """Trains until it is enough."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = px.DataLoader(Numbered(512), batch_size=16, max_batch_size=256, per_gpu=(2, 64), shuffle=True)
    for _ in px.epochs(100_000):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
        if os.path.exists(f"{folder}/enough"):
            return


def test_a_batch_that_the_scheduler_leaves_to_the_user_is_kept_and_types_are_reported_by_name(tmp_path) -> None:
    director = Director(batches, str(tmp_path))

    def trains_at(batch: int, replicas: int) -> bool:
        told = director.reports[-1] if director.reports else None
        if told is None or told["generation"] != director.generation or told["report"]["tuning"] is None:
            return False
        tuning = told["report"]["tuning"]
        return batch == replicas * tuning["local_batch"] * (tuning["accumulation_steps"] + 1)

    try:
        director.batch = {"mode": "fixed", "batch_size": 48}
        director.announce(1)
        director.wait_until(lambda: trains_at(48, 1) and director.reports[-1]["report"]["types"])
        assert director.reports[-1]["report"]["types"][0]["gpu_type"] == "t4"
        director.announce(1, 2)
        director.wait_until(lambda: trains_at(48, 2))
        director.batch = {"mode": "fixed"}  # Nobody named a batch: the baseline is kept.
        director.announce(1)
        director.wait_until(lambda: trains_at(16, 1))
        (tmp_path / "enough").touch()
        assert [director.code(replica) for replica in (1, 2)] == [0, 143]
    finally:
        director.close()


def promise(place: dict, promised) -> None:
    """A newcomer that knocks and promises to stay, and then does nothing."""
    store = torch.distributed.TCPStore(place["address"], place["port"], is_master=False)
    store.set("joined/1", "1")
    store.set("alive/1", "1")
    store.wait(["ask"])
    store.set("stay/1", "1")
    promised.set()
    time.sleep(600)


def test_a_newcomer_that_dies_after_its_promise_holds_nobody(tmp_path, director) -> None:
    director.announce(1)
    director.wait_until(lambda: lines(tmp_path))
    director.announce(1, 2, launch=False)
    director.wait_until(director.rendezvous)
    context = multiprocessing.get_context("spawn")
    promised = context.Event()
    newcomer = context.Process(target=promise, args=(director.rendezvous(), promised))
    newcomer.start()
    director.wait_until(promised.is_set)
    newcomer.kill()
    newcomer.join()
    seen = len(lines(tmp_path))
    director.wait_until(lambda: len(lines(tmp_path)) >= seen + 60)
    assert sizes(tmp_path) == {1}
    # The scheduler starts another one for it.
    director.announce(1, 3)
    director.wait_until(lambda: 2 in sizes(tmp_path))
    (tmp_path / "enough").touch()
    check(tmp_path, [director.result(replica) for replica in (1, 3)])
