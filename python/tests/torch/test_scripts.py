"""Things that training scripts do to a model and its steps, which a wrapped one allows as well."""

from __future__ import annotations

import copy
import io

import pytest
from trainings import Numbered, loss_of, network

import pollux.torch as px
import torch


def train(model, optimizer, each, samples=256, **options):
    """A plain loop; `each` is called at its end."""
    loader = px.DataLoader(Numbered(samples), **{"batch_size": 16, "max_batch_size": 16, "per_gpu": (4, 4), **options})
    for _ in px.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            each()


def test_the_end_of_a_step_is_told_once_for_every_update() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    updates: list[int] = []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    wrapped, optimizer = px.wrap(model, optimizer)
    told: list[tuple[int, bool]] = []
    train(wrapped, optimizer, lambda: told.append((len(updates), px.is_step_end())))
    assert told == [(step + (part == 3), part == 3) for step in range(16) for part in range(4)]
    with pytest.raises(px.UsageError, match=r"px.is_step_end\(\) outside of a loop"):
        px.is_step_end()


def test_an_average_of_the_model_is_one_of_its_steps() -> None:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    average = torch.optim.swa_utils.AveragedModel(wrapped)
    by_hand: list[torch.Tensor] = []

    def update() -> None:
        if px.is_step_end():
            average.update_parameters(wrapped)
            by_hand.append(model[0].weight.detach().clone())

    train(wrapped, optimizer, update)
    assert len(by_hand) == 16
    torch.testing.assert_close(average.module[0].weight.detach(), torch.stack(by_hand).mean(0))


class Configured(torch.nn.Module):
    """As models of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.config = {"hidden": 16}

    def forward(self, inputs):
        return self.inner(inputs)

    def save_pretrained(self, file) -> None:
        torch.save(self.state_dict(), file)


def test_a_wrapped_model_has_what_the_model_has_under_the_same_names() -> None:
    model = Configured()
    wrapped, _ = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert wrapped.config is model.config
    with pytest.raises(AttributeError, match="nothing_like_it"):
        wrapped.nothing_like_it  # noqa: B018
    file = io.BytesIO()
    wrapped.save_pretrained(file)
    file.seek(0)
    saved = torch.load(file)
    assert list(saved) == list(wrapped.state_dict()) == list(model.state_dict())
    fresh = Configured()
    fresh.load_state_dict(saved)
    saved["inner.0.bias"] = torch.ones(16)
    assert wrapped.load_state_dict(saved).missing_keys == []
    assert torch.equal(model.inner[0].bias, torch.ones(16))
    twin = copy.deepcopy(wrapped)
    assert type(twin) is Configured and twin.inner[0].bias is not model.inner[0].bias


def test_models_of_transformers_train_and_save(tmp_path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 8)
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=schedule)
    texts = torch.randint(32, (32, 12), generator=torch.Generator().manual_seed(0))
    loader = px.DataLoader(texts, batch_size=8)
    for batch in px.steps(8, loader):
        optimizer.zero_grad()
        wrapped(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
    assert schedule.last_epoch == 8
    wrapped.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert wrapped.config.n_embd == again.config.n_embd == 16
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_schedule_that_follows_a_loss_counts_steps() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=7)
    wrapped, optimizer = px.wrap(model, optimizer, scheduler=schedule)
    train(wrapped, optimizer, lambda: schedule.step(1.0))
    # 16 steps of 4 micro-batches, none of them better than the first.
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_rate_that_is_set_by_hand_may_follow_progress_or_steps() -> None:
    for kind in ("progress", "steps"):
        model = network()
        wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        done: list[int] = []

        def change(kind=kind, optimizer=optimizer, done=done) -> None:
            if px.is_step_end():
                done.append(1)
            count = px.status().baseline_steps if kind == "progress" else len(done)
            optimizer.param_groups[0]["lr"] = 0.1 * 0.9**count

        train(wrapped, optimizer, change)
        assert len(done) == 16


def test_a_schedule_that_is_kept_with_the_checkpoint_may_be_stepped_between_epochs() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    wrapped, optimizer = px.wrap(model, optimizer)
    px.checkpoint_state(schedule=schedule)
    train(wrapped, optimizer, lambda: None, samples=32)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
