"""No sample lost, none repeated."""

import pytest
from torch.utils.data import RandomSampler, SubsetRandomSampler
from trainings import Numbered, Stream, seen, train

import torch


def assert_each_once(results, samples, epochs):
    counts = seen(results)
    assert sorted(counts) == list(range(epochs))
    for count in counts.values():
        assert count == dict.fromkeys(samples, 1)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"num_workers": 2, "shuffle": True}], ids=str)
def test_alone_every_sample_is_used_once_per_epoch_while_the_batch_changes(options, monkeypatch) -> None:
    monkeypatch.setattr("pollux.torch._brain.MEASURE_EVERY_MAX", 1)
    monkeypatch.setattr("pollux.torch._brain.RETUNE_PERIOD_S", 0.0)
    result = train(Numbered(1003), epochs=3, pace_s=0.002, batch_size=4, **options)
    assert_each_once([result], range(1003), 3)
    assert len({len(samples) for _, samples in result["steps"]}) > 2, "the batch never changed"


def test_shuffled_epochs_have_different_orders() -> None:
    result = train(Numbered(64), shuffle=True)
    first, second = ([idx for epoch, part in result["steps"] if epoch == which for idx in part] for which in (0, 1))
    assert first != second != sorted(second)


def test_samplers_of_the_user_decide_the_order() -> None:
    backwards = list(range(99, -1, -1))
    result = train(Numbered(100), epochs=1, sampler=backwards)
    assert [idx for _, part in result["steps"] for idx in part] == backwards
    result = train(Numbered(100), epochs=2, sampler=SubsetRandomSampler(range(0, 100, 2)))
    assert_each_once([result], range(0, 100, 2), 2)
    assert_each_once([train(Numbered(100), epochs=2, sampler=RandomSampler(Numbered(100)))], range(100), 2)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("make", [Numbered, Stream])
def test_processes_share_every_epoch_without_overlap(together, make, world_size) -> None:
    results = together(train, world_size, make(515))
    assert_each_once(results, range(515), 2)
    for other in results[1:]:
        for ours, theirs in zip(results[0]["parameters"], other["parameters"]):
            assert torch.equal(ours, theirs), "ranks have different models"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_read_to_its_end(workers) -> None:
    assert_each_once([train(Stream(333), num_workers=workers)], range(333), 2)


def plain(dataset, steps, parameters, lr):
    """The same steps without Pollux, in one process: one mean over all samples of each."""
    from trainings import loss_of, network

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for samples in steps:
        batch = [
            torch.stack([torch.as_tensor(value) for value in column])
            for column in zip(*(dataset[idx] for idx in samples))
        ]
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), parameters):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-4, atol=1e-5)


def test_steps_of_uneven_shares_are_those_of_one_process(together) -> None:
    dataset = Numbered(103)
    fixed = together(train_fixed, 3, dataset)
    steps = [sum(parts, []) for parts in zip(*([part for _, part in result["steps"]] for result in fixed))]
    assert sorted(sum(steps, [])) == list(range(103))
    plain(dataset, steps, fixed[0]["parameters"], 0.05)


def train_fixed(dataset):
    return train(dataset, epochs=1, batch_size=12, max_batch_size=12, per_gpu=(4, 4))


def test_accumulated_steps_are_those_of_one_batch() -> None:
    dataset = Numbered(96)
    result = train(dataset, epochs=1, batch_size=24, max_batch_size=24, per_gpu=(4, 8))
    assert result["status"].accumulation_steps == 2
    parts = [part for _, part in result["steps"]]
    steps = [sum(parts[idx : idx + 3], []) for idx in range(0, len(parts), 3)]
    plain(dataset, steps, result["parameters"], 0.05)


def test_halves_of_an_odd_batch_count_by_their_samples() -> None:
    dataset = Numbered(100)
    result = train(dataset, epochs=1, batch_size=5, max_batch_size=5, per_gpu=(1, 5))
    steps, parts = [], []
    for _, samples in result["steps"]:
        parts += samples
        if len(parts) == 5:
            steps.append(parts)
            parts = []
    assert any(len(samples) < 5 for _, samples in result["steps"]), "no step was split"
    plain(dataset, steps, result["parameters"], 0.05)
