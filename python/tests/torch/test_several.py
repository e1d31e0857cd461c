"""Several models in one training: their gradients do not get into each other's way, whoever trains and in how many
micro-batches."""

from __future__ import annotations

import copy

import pytest
from trainings import Numbered

import pollux.torch as px
import torch

STEPS = 6
BATCH = 16
SAMPLES = STEPS * BATCH + 5
"""The last step is smaller, and uneven for two processes."""


class Game:
    """A generator and a critic, which learn from the same batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        self.critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.optimizers = [
            torch.optim.SGD(self.generator.parameters(), lr=0.1),
            torch.optim.SGD(self.critic.parameters(), lr=0.1),
        ]

    def parameters(self) -> list[torch.Tensor]:
        models = (self.generator, self.critic)
        return [parameter.detach().clone() for model in models for parameter in model.parameters()]


def judge(critic, samples, is_real: bool):
    target = torch.full((len(samples), 1), float(is_real))
    return torch.nn.functional.binary_cross_entropy_with_logits(critic(samples), target)


def play(generator, critic, optimizers, real, order: str) -> None:
    """A batch: what a script for PyTorch does with it."""
    generator_optimizer, critic_optimizer = optimizers
    # Numbers that depend on the samples alone, so that everybody has the same for the same sample.
    fake = generator(real.flip(1))

    def train_critic() -> None:
        critic.requires_grad_(True)
        critic_optimizer.zero_grad()
        (judge(critic, real, True) + judge(critic, fake.detach(), False)).backward()
        critic_optimizer.step()

    def train_generator() -> None:
        if order.startswith("frozen"):
            critic.requires_grad_(False)
        generator_optimizer.zero_grad()
        judge(critic, fake, True).backward()
        generator_optimizer.step()
        if order != "frozen at the end":
            critic.requires_grad_(True)

    for train in (train_generator, train_critic) if order == "generator" else (train_critic, train_generator):
        train()


def elastic(order: str, per_gpu: tuple[int, int], folder: str | None = None) -> list[torch.Tensor]:
    game = Game()
    (generator, critic), optimizers = px.wrap([game.generator, game.critic], game.optimizers, checkpoint_dir=folder)
    loader = px.DataLoader(Numbered(SAMPLES), batch_size=BATCH, max_batch_size=BATCH, per_gpu=per_gpu)
    for _ in px.epochs(1):
        for inputs, _, _ in loader:
            play(generator, critic, optimizers, inputs, order)
    return game.parameters()


def plain(order: str, world_size: int, per_gpu: int) -> list[torch.Tensor]:
    """The same in plain PyTorch. Of the micro-batches of a step only the last of each process comes after the first
    model has changed."""
    game = Game()
    for step, whole in enumerate(Numbered(SAMPLES).inputs.split(BATCH)):
        # A process that is alone runs one of four steps in halves, but never the first.
        is_split = world_size == 1 and step in (1, 4)
        shares = whole.tensor_split(world_size)
        count = max(-(-len(shares[0]) // per_gpu), 2 if is_split else 1)
        split = [share.tensor_split(count) for share in shares]
        micro_batches = [(part, idx == count - 1) for parts in split for idx, part in enumerate(parts)]
        before = copy.deepcopy(game)
        for learns in ("generator", "critic") if order == "generator" else ("critic", "generator"):
            model, optimizer = getattr(game, learns), game.optimizers[learns == "critic"]
            model.zero_grad()
            gradients = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for real, is_last in micro_batches:
                critic = (game if is_last or learns == "critic" else before).critic
                fake = before.generator(real.flip(1))
                loss = judge(critic, fake, True)
                if learns == "critic":
                    loss = judge(critic, real, True) + judge(critic, fake.detach(), False)
                source = model if learns == "critic" else before.generator
                for total, gradient in zip(
                    gradients, torch.autograd.grad(loss, list(source.parameters())), strict=True
                ):
                    total += gradient * (len(real) / len(whole))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return game.parameters()


@pytest.mark.parametrize("order", ["critic", "generator", "frozen", "frozen at the end"])
@pytest.mark.parametrize(("world_size", "per_gpu"), [(1, 16), (1, 4), (2, 2), (2, 8)])
def test_two_models_learn_what_they_learn_in_plain_pytorch(together, order, world_size, per_gpu) -> None:
    expected = plain(order, world_size, per_gpu)
    for result in together(elastic, world_size, order, (per_gpu, per_gpu)):
        for ours, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("counts", ["batches", "steps"])
def test_a_model_that_is_trained_now_and_then_counts_steps(counts) -> None:
    game = Game()
    stepped: list[int] = []
    game.optimizers[0].register_step_post_hook(lambda *_: stepped.append(1))
    (generator, critic), (generator_optimizer, critic_optimizer) = px.wrap(
        [game.generator, game.critic], game.optimizers
    )
    loader = px.DataLoader(Numbered(6 * BATCH), batch_size=BATCH, max_batch_size=BATCH, per_gpu=(8, 8))
    count = 0

    def train() -> None:
        nonlocal count
        for _ in px.epochs(1):
            for real, _, _ in loader:
                fake = generator(real.flip(1))
                critic_optimizer.zero_grad()
                (judge(critic, real, True) + judge(critic, fake.detach(), False)).backward()
                critic_optimizer.step()
                if count % 3 == 0:
                    generator_optimizer.zero_grad()
                    judge(critic, fake, True).backward()
                    generator_optimizer.step()
                count += counts == "batches" or px.is_step_end()

    if counts == "batches":
        with pytest.raises(px.UsageError, match="trained in some micro-batches of a step only"):
            train()
    else:
        train()
        assert len(stepped) == 2


def test_all_models_are_saved_and_taken_up(together, tmp_path) -> None:
    [first] = together(elastic, 1, "critic", (16, 16), str(tmp_path))
    [path] = tmp_path.glob("checkpoint-*.pt")
    saved = torch.load(path, weights_only=False)
    assert set(saved["others"][0]["model"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    # It is done: what it has is what was saved.
    [again] = together(elastic, 1, "critic", (16, 16), str(tmp_path))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, again, strict=True))


def test_lists_that_do_not_fit_and_checkpoints_of_fewer_models_are_refused(tmp_path) -> None:
    game = Game()
    with pytest.raises(px.UsageError, match="expected two lists, with an optimiser for each model"):
        px.wrap([game.generator, game.critic], game.optimizers[:1])
    with pytest.raises(px.UsageError, match="8 parameters that are not the model's|4 parameters that are not"):
        px.wrap([game.generator, game.critic], game.optimizers[::-1])
    loader = px.DataLoader(Numbered(64), batch_size=16)
    px.wrap(game.generator, game.optimizers[0], checkpoint_dir=tmp_path)
    for _ in px.epochs(0):
        pass
    game = Game()
    px.wrap([game.generator, game.critic], game.optimizers, checkpoint_dir=tmp_path)
    with pytest.raises(px.CheckpointError, match="is of a training of 1 models, this one has 2"):
        next(px.epochs(1))
    assert loader


def test_a_first_model_that_is_trained_now_and_then_is_measured_where_it_is(monkeypatch) -> None:
    # However fast the machine is, every step is measured, and what was is looked at.
    monkeypatch.setattr("pollux.torch._brain.MEASURE_SHARE", 1e9)
    monkeypatch.setattr("pollux.torch._brain.CHECK_PERIOD_S", 1e-9)
    game = Game()
    (generator, critic), optimizers = px.wrap([game.generator, game.critic], game.optimizers)
    loader = px.DataLoader(Numbered(30 * BATCH), batch_size=BATCH, max_batch_size=BATCH, per_gpu=(4, 4))
    steps = 0
    for _ in px.epochs(2):
        for real, _, _ in loader:
            fake = generator(real.flip(1))
            optimizers[1].zero_grad()
            (judge(critic, real, True) + judge(critic, fake.detach(), False)).backward()
            optimizers[1].step()
            if steps % 2 == 1:
                optimizers[0].zero_grad()
                judge(critic, fake, True).backward()
                optimizers[0].step()
            steps += px.is_step_end()
    assert px.status().noise_scale is not None
