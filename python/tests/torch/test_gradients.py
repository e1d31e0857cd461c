"""Trainings by two processes give what plain PyTorch gives for the whole batch, however gradients come about."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn import functional
from trainings import Numbered, loss_of, network

import pollux.torch as px
import torch
from pollux.torch import UsageError

Body = Callable[[Any, Any, Any], None]
ACCUMULATED = (4, 4)


def usual(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


class Shared(torch.nn.Module):
    """Two parameters whose gradients are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(8)), torch.nn.Parameter(torch.zeros(8))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(inputs + self.first.view(1, 8) + self.second.view(1, 8)))


class Towers(torch.nn.Module):
    """Two models in one, of which each has a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(inputs), self.right(inputs)


class Hidden(torch.nn.Module):
    """Gives its outputs in an object of which nobody knows that there are tensors inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, inputs: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(scores=self.inner(inputs))


def of_hidden(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(batch[0]).scores, batch[1]).backward()
    optimizer.step()


def towers(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    for output in model(batch[0]):
        functional.cross_entropy(output, batch[1]).backward()
    optimizer.step()


def against_attacks(model: Any, optimizer: Any, batch: Any) -> None:
    inputs = batch[0].clone().requires_grad_()
    [slope] = torch.autograd.grad(functional.cross_entropy(model(inputs), batch[1]), inputs)
    usual(model, optimizer, ((inputs + 0.1 * slope.sign()).detach(), batch[1]))


def with_a_penalty(model: Any, optimizer: Any, batch: Any) -> None:
    inputs = batch[0].clone().requires_grad_()
    output = model(inputs)
    [slope] = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    optimizer.zero_grad()
    (functional.cross_entropy(output, batch[1]) + slope.square().sum(1).mean()).backward()
    optimizer.step()


def beside_a_look(model: Any, optimizer: Any, batch: Any) -> None:
    """Asks the model for something that has no gradient, before it is trained."""
    model(batch[0]).argmax()
    usual(model, optimizer, batch)


MADE: dict[str, tuple[Callable[[], torch.nn.Module], Body]] = {
    "one gradient of two parameters": (Shared, usual),
    "hidden outputs": (Hidden, of_hidden),
    "two losses": (Towers, towers),
    "against attacks": (network, against_attacks),
    "with a penalty": (network, with_a_penalty),
    "beside a look": (network, beside_a_look),
}


def made(kind: str) -> tuple[torch.nn.Module, Body]:
    torch.manual_seed(0)
    make, body = MADE[kind]
    return make(), body


def train(wrapped: Any, optimizer: Any, body: Body, samples: int, per_gpu: tuple[int, int]) -> list[torch.Tensor]:
    """One step of all samples; what the model has learned."""
    sizes = {"batch_size": samples, "max_batch_size": samples, "per_gpu": per_gpu}
    loader = px.DataLoader(Numbered(samples), shuffle=False, **sizes)
    for _ in px.epochs(1):
        for batch in loader:
            body(wrapped, optimizer, batch)
    return [parameter.detach().clone() for parameter in wrapped.parameters()]


def trained(kind: str, samples: int, per_gpu: tuple[int, int]) -> list[torch.Tensor]:
    model, body = made(kind)
    return train(*px.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0)), body, samples, per_gpu)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(("samples", "per_gpu"), [(16, ACCUMULATED), (17, (9, 9))], ids=["accumulated", "uneven"])
def test_a_step_of_two_processes_is_that_of_one_with_the_whole_batch(together, kind, samples, per_gpu) -> None:
    model, body = made(kind)
    whole = Numbered(samples)
    body(model, torch.optim.SGD(model.parameters(), lr=1.0), (whole.inputs, whole.targets))
    for found in together(trained, 2, kind, samples, per_gpu):
        torch.testing.assert_close(found, [parameter.detach() for parameter in model.parameters()])


def unfrozen() -> list[torch.Tensor]:
    """What was frozen when the model was wrapped learns."""
    model = network()
    model[0].requires_grad_(False)
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    model[0].requires_grad_(True)
    return train(wrapped, optimizer, usual, 16, ACCUMULATED)


def test_layers_that_are_unfrozen_before_the_loop_learn_like_the_others(together) -> None:
    model, whole = network(), Numbered(16)
    usual(model, torch.optim.SGD(model.parameters(), lr=1.0), (whole.inputs, whole.targets))
    for found in together(unfrozen, 2):
        torch.testing.assert_close(found, [parameter.detach() for parameter in model.parameters()])


STAGES = [(0, [False, True]), (1, [True, True]), (2, [True, False])]
"""Which layers learn from which epoch on."""


def staged(processes: int) -> list[torch.Tensor]:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    share = 16 // processes
    loader = px.DataLoader(Numbered(64), batch_size=16, max_batch_size=16, per_gpu=(share, share), shuffle=False)
    for epoch in px.epochs(3):
        freeze(model, epoch)
        for batch in loader:
            usual(wrapped, optimizer, batch)
    return [parameter.detach().clone() for parameter in model.parameters()]


def freeze(model: Any, epoch: int) -> None:
    for layer, learns in zip((model[0], model[2]), dict(STAGES)[epoch]):
        layer.requires_grad_(learns)


@pytest.mark.parametrize("processes", [1, 2])
def test_layers_that_are_frozen_and_unfrozen_between_epochs_learn_as_in_plain_pytorch(together, processes) -> None:
    model, whole = network(), Numbered(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        freeze(model, epoch)
        for inputs, targets in zip(whole.inputs.split(16), whole.targets.split(16)):
            usual(model, optimizer, (inputs, targets))
    for found in together(staged, processes, processes):
        torch.testing.assert_close(found, [parameter.detach() for parameter in model.parameters()])


def unfrozen_within_a_step() -> None:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    model[0].requires_grad_(False)
    loader = px.DataLoader(Numbered(16), batch_size=16, max_batch_size=16, per_gpu=ACCUMULATED)
    for _ in px.epochs(1):
        for idx, batch in enumerate(loader):
            if idx == 1:
                model[0].requires_grad_(True)
            usual(wrapped, optimizer, batch)


def test_layers_that_are_unfrozen_between_micro_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="between the micro-batches of a step; do it between epochs"):
        unfrozen_within_a_step()


def thawed_for_each_batch(processes: int, samples: int, per_gpu: tuple[int, int]) -> list[torch.Tensor]:
    """A layer learns in every batch, and is frozen between them."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loader = px.DataLoader(Numbered(samples), batch_size=16, max_batch_size=16, per_gpu=per_gpu, shuffle=False)
    for _ in px.epochs(2):
        for batch in loader:
            model[0].requires_grad_(True)
            usual(wrapped, optimizer, batch)
            model[0].requires_grad_(False)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("processes", "per_gpu"), [(1, (16, 16)), (1, ACCUMULATED), (2, (8, 8)), (2, ACCUMULATED)])
def test_a_layer_that_is_frozen_between_batches_learns_as_in_plain_pytorch(together, processes, per_gpu) -> None:
    samples = 69  # The last step of an epoch has five.
    model, whole = network(), Numbered(samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for batch in zip(whole.inputs.split(16), whole.targets.split(16)):
            usual(model, optimizer, batch)
    for found in together(thawed_for_each_batch, processes, processes, samples, per_gpu):
        torch.testing.assert_close(found, [parameter.detach() for parameter in model.parameters()])


@pytest.mark.parametrize("moment", ["backward", "forward"])
def test_layers_that_are_unfrozen_between_two_calls_for_one_batch_are_refused(moment) -> None:
    model = network()
    model[0].requires_grad_(False)
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loader = px.DataLoader(Numbered(16), batch_size=16, max_batch_size=16, per_gpu=(16, 16))
    with pytest.raises(UsageError, match="between two calls of the model for one batch; do it before the first"):
        for _ in px.epochs(1):
            for batch in loader:
                optimizer.zero_grad()
                loss = loss_of(wrapped, batch)
                if moment == "backward":
                    loss.backward()
                model[0].requires_grad_(True)
                wrapped(batch[0])  # To be logged, say.
                optimizer.step()


def unfrozen_between_steps(clears: bool) -> None:
    """The gradients of the first step are left over when the second begins."""
    model = network()
    model[0].requires_grad_(False)
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loader = px.DataLoader(Numbered(32), batch_size=16, max_batch_size=16, per_gpu=(16, 16))
    for _ in px.epochs(2):
        for idx, batch in enumerate(loader):
            if idx == 0:
                loss_of(wrapped, batch).backward()
                continue
            model[0].requires_grad_(True)
            if clears:
                optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_layers_that_are_unfrozen_while_gradients_wait_are_refused() -> None:
    unfrozen_between_steps(clears=True)
    with pytest.raises(UsageError, match=r"gradients that optimizer.step\(\) has not used; call optimizer.zero_grad"):
        unfrozen_between_steps(clears=False)


def with_fewer_micro_batches_on_one_rank() -> int:
    model = network()
    options = {"find_unused_parameters": True}
    train(*px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **options), usual, 3, (1, 1))
    return px.status().samples


def test_ranks_with_different_numbers_of_micro_batches_wait_for_nothing(together) -> None:
    assert together(with_fewer_micro_batches_on_one_rank, 2) == [3, 3]


def test_gradients_that_did_not_come_by_a_backward_pass_are_refused() -> None:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = px.DataLoader(Numbered(16), batch_size=16, max_batch_size=16, per_gpu=(16, 16))
    with pytest.raises(UsageError, match="gradient|without a backward"):
        for _ in px.epochs(1):
            for batch in loader:
                parameters = list(model.parameters())
                for parameter, found in zip(parameters, torch.autograd.grad(loss_of(wrapped, batch), parameters)):
                    parameter.grad = found
                optimizer.step()


def test_a_training_that_was_left_leaves_nothing_with_its_model() -> None:
    model, whole = network(), Numbered(16)
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    loader = px.DataLoader(Numbered(16), batch_size=16, max_batch_size=16, per_gpu=ACCUMULATED, shuffle=False)
    for _ in px.epochs(1):
        for batch in loader:
            loss_of(wrapped, batch).backward()
            break  # In the first of four micro-batches.
        break
    usual(model, torch.optim.SGD(model.parameters(), lr=1.0), (whole.inputs, whole.targets))
    expected = network()
    usual(expected, torch.optim.SGD(expected.parameters(), lr=1.0), (whole.inputs, whole.targets))
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
