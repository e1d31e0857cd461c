"""Mistakes are refused with a line that says what to change."""

import json

import pytest
from torch.utils.data import DistributedSampler
from trainings import Numbered, Stream, loss_of, network, train

import pollux.torch as px
import torch
from pollux import PolluxError
from scheduler import scheduler


def wrapped(**options):
    model = network()
    return px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 8}, "max_batch_size 8 is below batch_size 16"),
        ({"per_gpu": 16}, r"per_gpu 16; expected \(smallest, largest\)"),
        ({"per_gpu": (8, 4)}, r"per_gpu \(8, 4\) ends below its beginning"),
        ({"per_gpu": (32, 64)}, "per_gpu begins at 32, above max_batch_size 16"),
        ({"batch_size": 0}, "batch_size 0; expected whole numbers from 1"),
        ({"batch_size": 200}, "a dataset of 100 samples is smaller than batch_size=200"),
        ({"drop_last": True}, "drop_last=...*every sample is used"),
        ({"batch_sampler": [[1]]}, "batches are dealt by Pollux"),
        ({"shuffle": True, "sampler": [1]}, "both sampler and shuffle"),
        ({"sampler": DistributedSampler(range(100), 2, 0)}, "px.DataLoader deals samples out"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_loaders_that_contradict_themselves_are_refused(options, message) -> None:
    with pytest.raises(px.UsageError, match=message):
        px.DataLoader(Numbered(100), **{"batch_size": 16, **options})


def test_streams_with_several_workers_or_an_order_are_refused() -> None:
    with pytest.raises(px.UsageError, match="expected 0 or 1"):
        px.DataLoader(Stream(100), batch_size=16, num_workers=2)
    with pytest.raises(px.UsageError, match="an order of its own"):
        px.DataLoader(Stream(100), batch_size=16, shuffle=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": "cubic"}, "scaling 'cubic'; expected auto, adascale"),
        ({"checkpoint_every_s": 0}, "checkpoint_every_s 0; expected seconds above 0"),
        ({"mixed_precision": object()}, "use torch.autocast"),
        ({"delay_all_reduce_named_params": [("weight", None)]}, "leave it out"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options, message) -> None:
    with pytest.raises(px.UsageError, match=message):
        wrapped(**options)


def test_models_that_are_wrapped_already_are_refused() -> None:
    model, optimizer = wrapped()
    with pytest.raises(px.UsageError, match="give the model itself"):
        px.wrap(model, optimizer)
    with pytest.raises(px.UsageError, match="expected a torch.optim.Optimizer"):
        px.wrap(network(), "sgd")


def test_backward_and_step_outside_of_a_loop_are_refused() -> None:
    model, optimizer = wrapped()
    with pytest.raises(px.UsageError, match="step.. outside of a loop"):
        optimizer.step()
    loader = px.DataLoader(Numbered(64), batch_size=16)
    for _ in px.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    with pytest.raises(Exception, match="backward.. outside of a loop"):
        loss_of(model, batch).backward()


def test_loops_without_epochs_or_within_each_other_are_refused() -> None:
    _, _ = wrapped()
    loader, other = (px.DataLoader(Numbered(64), batch_size=16) for _ in range(2))
    with pytest.raises(px.UsageError, match="without epochs"):
        next(iter(loader))
    with pytest.raises(px.UsageError, match="a second px.DataLoader"):
        for _ in px.epochs(1):
            next(iter(loader))
    for _ in px.epochs(1):
        loop = iter(other)
        next(loop)
        with pytest.raises(px.UsageError, match="within another"):
            next(iter(other))
        with pytest.raises(px.UsageError, match="within another"):
            next(px.epochs(2))
        break


def test_epochs_before_there_is_a_loader_are_refused() -> None:
    import pollux.torch._loader as module

    module._latest = None
    wrapped()
    with pytest.raises(px.UsageError, match="make the loader of the training with it"):
        next(px.epochs(1))


def test_a_loss_that_is_no_number_ends_the_training_with_advice_and_is_not_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pollux.torch._brain.CHECK_PERIOD_S", 0.0)
    model, optimizer = wrapped(checkpoint_dir=tmp_path, checkpoint_every_s=1e-9)
    loader = px.DataLoader(Numbered(512), batch_size=4)
    with pytest.raises(px.DivergedError, match="lower the learning rate"):
        for _ in px.epochs(3):
            for batch in loader:
                optimizer.zero_grad()
                (loss_of(model, batch) * (float("nan") if px.status().samples > 800 else 1.0)).backward()
                optimizer.step()
    for path in tmp_path.glob("checkpoint-*"):
        saved = torch.load(path, weights_only=False)["model"]
        assert all(value.isfinite().all() for value in saved.values())


def test_accumulation_of_the_users_own_is_refused() -> None:
    model, _ = wrapped()
    with pytest.raises(px.UsageError, match="accumulated by themselves"):
        model.no_sync()


def test_states_that_cannot_be_kept_are_refused_at_once() -> None:
    wrapped()
    with pytest.raises(px.UsageError, match="expected objects with state_dict"):
        px.checkpoint_state(answer=42)
    with pytest.raises(px.CheckpointError, match=r"checkpoint_state\(bad=...\) cannot be pickled"):
        px.checkpoint_state(bad=[lambda: None])
    px.Mean("loss")
    with pytest.raises(px.UsageError, match="a second metric named 'loss'"):
        px.Mean("loss")


def test_an_environment_that_is_half_set_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("POLLUX_JOB_ID", "12")
    with pytest.raises(ValueError, match="POLLUX_URL is not set, but POLLUX_JOB_ID is"):
        wrapped()


def under_a_scheduler(monkeypatch, url: str, job: str = "1", token: str = "wrong") -> None:
    """The environment of a process that a scheduler has started."""
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    names = {"URL": url, "JOB_ID": job, "REPLICA_ID": "1", "TOKEN": token, "GENERATION": "1"}
    for name, value in {**ranks, **{f"POLLUX_{name}": value for name, value in names.items()}}.items():
        monkeypatch.setenv(name, value)


def test_a_training_without_its_scheduler_does_not_begin_and_says_what_to_change(monkeypatch) -> None:
    monkeypatch.setattr("pollux.torch._membership.FIRST_ANSWER_S", 0.5)
    under_a_scheduler(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(PolluxError, match=r"no server at http://127.0.0.1:1 \(.*start one with `pollux up`, or unset"):
        train(Numbered(64), epochs=1)


def test_a_wrong_token_is_refused_before_the_first_step(monkeypatch, tmp_path) -> None:
    with scheduler(tmp_path, "--slots", "1") as server:
        job = server.pollux("submit", "-o", "id", "--rigid", "--", "sleep", "600").strip()
        url = json.loads((tmp_path / "state" / "server.json").read_text())["url"]
        under_a_scheduler(monkeypatch, url, job)
        with pytest.raises(PolluxError, match=rf"{url} does not let job {job} in \(status 401\); POLLUX_TOKEN and"):
            train(Numbered(64), epochs=1)
        server.pollux("cancel", job)


def test_a_loop_that_steps_only_now_and_then_is_refused() -> None:
    model, optimizer = wrapped()
    loader = px.DataLoader(Numbered(128), batch_size=16)
    with pytest.raises(px.UsageError, match="step for every batch: for a larger one raise batch_size"):
        for _ in px.epochs(1):
            for idx, batch in enumerate(loader):
                (loss_of(model, batch) / 4).backward()
                if idx % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()


def test_a_loop_that_is_left_between_two_halves_of_a_step_is_told_what_is_lost(capfd) -> None:
    model, optimizer = wrapped()
    loader = px.DataLoader(Numbered(64), batch_size=16)
    for _ in px.epochs(1):
        for idx, batch in enumerate(loader):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if idx == 1:
                break
        break
    assert (
        "before the last micro-batch of a step: its 16 samples have taught the model nothing" in capfd.readouterr().err
    )
    assert px.status().samples == 16


@pytest.mark.parametrize("clear", ["optimizer", "model"])
def test_a_batch_whose_gradients_are_thrown_away_is_allowed(clear) -> None:
    model, optimizer = wrapped()
    loader = px.DataLoader(Numbered(128), batch_size=16, per_gpu=(8, 8))
    for _ in px.epochs(1):
        for idx, batch in enumerate(loader):
            (optimizer if clear == "optimizer" else model).zero_grad()
            loss_of(model, batch).backward()
            if idx % 4 == 3:
                optimizer.step()
    assert px.status().samples == 128


def test_gradients_that_others_would_not_hear_of_are_refused() -> None:
    model = network()
    _, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = px.DataLoader(Numbered(64), batch_size=16)
    with pytest.raises(px.UsageError, match="without gradients of the wrapped model"):
        for _ in px.epochs(1):
            for batch in loader:
                loss_of(model, batch).backward()
                optimizer.step()


def test_an_optimiser_that_no_rule_is_known_for_needs_one() -> None:
    model = network()
    with pytest.raises(px.UsageError, match="no rule is known to suit RMSprop; give scaling"):
        px.wrap(model, torch.optim.RMSprop(model.parameters(), lr=0.1))
    px.wrap(model, torch.optim.RMSprop(model.parameters(), lr=0.1), scaling="sqrt")


def test_a_stream_has_no_length() -> None:
    with pytest.raises(TypeError, match="a stream has no length"):
        len(px.DataLoader(Stream(100), batch_size=16))


def test_an_evaluation_over_the_training_loader_is_refused() -> None:
    model, optimizer = wrapped()
    loader = px.DataLoader(Numbered(64), batch_size=16)
    with pytest.raises(px.UsageError, match="a loop over px.DataLoader without a backward"):
        for _ in px.epochs(1):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            for batch in loader:
                with torch.no_grad():
                    loss_of(model, batch)


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(2, 3))

    def forward(self, inputs):
        return torch.nn.functional.embedding((inputs[:, 0] > 0).long(), self.rows, sparse=True)


def test_a_sparse_gradient_is_refused_wherever_it_comes_from() -> None:
    model = Lookup()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = px.DataLoader(Numbered(64), batch_size=16)
    with pytest.raises(px.UsageError, match="a parameter of shape \\[2, 3\\] has a sparse gradient, which is not"):
        for _ in px.epochs(1):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(wrapped, batch).backward()
                optimizer.step()
