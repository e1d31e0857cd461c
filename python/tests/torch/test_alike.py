"""Processes of one training that differ where they must not: told at once, or at the end of the epoch."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from test_mistakes import told
from test_statistics import SIZE, exact_noise_scale
from trainings import Numbered, loss_of, network

import pollux.torch as px
import torch
from pollux._elastic import deal
from pollux.torch import _brain


def trained(loader: Any, prepare: Callable[..., Any] = lambda *_: None, epochs: int = 2) -> str:
    """Trains a network, with something done before every epoch; what was refused."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for epoch in px.epochs(epochs):
            prepare(epoch, wrapped, optimizer)
            for batch in loader:
                optimizer.zero_grad()
                loss_of(wrapped, batch).backward()
                optimizer.step()
    except px.UsageError as error:
        return str(error)
    return ""


class OwnNumbers(torch.utils.data.Sampler):
    """Shuffles by random numbers of its own."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __len__(self) -> int:
        return 96

    def __iter__(self) -> Any:
        return iter(self._random.sample(range(96), 96))


def other_sampler() -> str:
    return trained(px.DataLoader(Numbered(96), 16, sampler=OwnNumbers(px.rank())))


def other_seed() -> str:
    return trained(px.DataLoader(Numbered(96), 16, shuffle=True, seed=px.rank()))


def other_data() -> str:
    return trained(px.DataLoader(Numbered(96 + px.rank()), 16))


def other_rate() -> str:
    def set_rate(epoch, _model, optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch * px.rank())

    return trained(px.DataLoader(Numbered(96), 16), set_rate)


def other_weights() -> str:
    def load(epoch, model, _optimizer) -> None:
        if epoch == 1 and px.rank() == 0:
            model.load_state_dict(network(5).state_dict())

    return trained(px.DataLoader(Numbered(96), 16), load)


ORDER = "the `sampler` draws random numbers of its own, or `seed` is another in every process"
RATE = "the learning rate follows what each process has seen by itself, such as its own loss"
WEIGHTS = "weights are loaded on rank 0 only while the model trains"


@pytest.mark.parametrize(
    ("mistake", "row"),
    [(other_sampler, ORDER), (other_seed, ORDER), (other_data, ORDER), (other_rate, RATE), (other_weights, WEIGHTS)],
)
def test_processes_that_would_train_other_models_are_told(together, mistake, row) -> None:
    assert together(mistake, 2) == [told()[row]] * 2


def same() -> str:
    def change_all(epoch, model, optimizer) -> None:
        model.load_state_dict(network(5 + epoch).state_dict())
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch)

    return trained(px.DataLoader(Numbered(96), 16, sampler=OwnNumbers(7)), change_all, epochs=3)


def test_what_all_processes_do_alike_is_theirs_to_do(together) -> None:
    assert together(same, 2) == ["", ""]


def restarted(folder: str, seed: int, batches: int) -> int:
    """Trains some batches of an epoch with a sampler that begins anew with every process."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=folder)
    loader, count = px.DataLoader(Numbered(96), 16, sampler=OwnNumbers(seed)), 0
    for _ in px.epochs(1):
        for batch in loader:
            if count == batches:
                break
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            count += 1
        else:
            continue
        break
    return count


def test_an_epoch_that_goes_on_in_another_order_is_told(tmp_path, capfd) -> None:
    restarted(str(tmp_path), 0, 2)
    assert "the order of samples" not in capfd.readouterr().err
    restarted(str(tmp_path), 0, 1)
    assert "the order of samples" not in capfd.readouterr().err
    assert restarted(str(tmp_path), 1, 100) > 0
    assert "pollux: the order of samples in epoch 0 is another than when this was saved" in capfd.readouterr().err


def rates(folder: str | None, batches: int) -> list[float]:
    """The rate of each batch, of a schedule that is stepped before the loop over batches."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=schedule, checkpoint_dir=folder)
    loader, found = px.DataLoader(Numbered(96), 16), list[float]()
    for epoch in px.epochs(3):
        if epoch > 0:
            schedule.step()
        for batch in loader:
            if len(found) == batches:
                return found
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            found.append(optimizer.param_groups[0]["lr"])
    return found


def test_a_schedule_before_the_loop_over_batches_is_not_stepped_again_when_an_epoch_goes_on(tmp_path) -> None:
    whole = rates(None, 1000)
    assert sorted(set(whole)) == [0.25, 0.5, 1.0]

    first = rates(str(tmp_path), whole.index(0.5) + 2)
    assert first[-1] == 0.5
    assert set(rates(str(tmp_path), 1000)) == {0.5, 0.25}


def head_alone(name: str) -> tuple[float, float]:
    """The noise scale of a model whose head alone is trained, with nothing frozen, and as it is."""
    _brain.MEASURE_SHARE = 100.0
    deal.SPLIT_EVERY_LATER = deal.SPLIT_EVERY
    model = network()
    optimizer: Any = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name](model[2].parameters(), lr=0.0)
    wrapped, optimizer = px.wrap(model, optimizer)
    dataset = Numbered(SIZE)
    loader = px.DataLoader(dataset, batch_size=16, max_batch_size=16, per_gpu=(4, 64), shuffle=True)
    for _ in px.epochs(16):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    if px.rank() > 0:
        return 0.0, 0.0
    divisors = None
    if name == "adamw":
        states = [optimizer.state[parameter] for parameter in model[2].parameters()]
        divisors = [(state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8 for state in states]
    return px.status().noise_scale or 0.0, exact_noise_scale(Head(model), dataset, divisors)


class Head(torch.nn.Module):
    """The last layer of a network, with the others before it."""

    def __init__(self, network: torch.nn.Sequential) -> None:
        super().__init__()
        self.layer = copy.deepcopy(network[2])
        self._body = [copy.deepcopy(network[:2]).requires_grad_(False)]

    def forward(self, inputs):
        return self.layer(self._body[0](inputs))


@pytest.mark.parametrize(("name", "world_size"), [("sgd", 1), ("sgd", 2), ("adamw", 2)])
def test_the_noise_is_that_of_the_parameters_that_are_trained(together, name, world_size) -> None:
    estimate, exact = together(head_alone, world_size, name)[0]
    assert abs(estimate / exact - 1) < 0.1, f"{estimate:.1f} instead of {exact:.1f}"


HIDDEN = """
import torch, pollux.torch as px
model = torch.nn.Linear(8, 3)
model, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
scaler = torch.amp.GradScaler("cpu")
loader = px.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), 16, per_gpu=(4, 8))
for _ in px.epochs(1):
    for inputs, in loader:
        optimizer.zero_grad()
        LOOP
"""
SCALER = "scaler.scale(model(inputs).mean()).backward(); scaler.step(optimizer); scaler.update()"
LOOK = "model(inputs).mean().backward(); norm = model.weight.grad.norm(); optimizer.step()"


@pytest.mark.parametrize(
    ("loop", "row"),
    [
        (SCALER, "the `GradScaler` is not given to `px.wrap`"),
        (LOOK, "gradients are looked at in every batch, such as `parameter.grad.norm()`"),
    ],
)
def test_errors_of_a_loop_that_knows_of_no_micro_batches_get_a_line_of_advice(loop, row) -> None:
    script = HIDDEN.replace("LOOP", loop)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert told()[row] in done.stderr.splitlines()
