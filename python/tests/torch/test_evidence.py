"""Nothing is learned from what was not measured, and nothing trained from what was thrown away."""

import pytest
from trainings import Numbered, Stream, loss_of, network, train

import pollux.torch as px
import torch
from pollux.torch import _brain
from pollux.torch._preconditioner import Preconditioner
from pollux.torch._process import current


@pytest.mark.parametrize("world_size", [1, 2])
def test_steps_of_a_stream_are_as_large_as_asked_for_and_measured(together, world_size) -> None:
    results = together(stream_of_336, world_size)
    for result in results:
        sizes = [len(samples) for epoch, samples in result["steps"] if epoch == 1]
        assert sum(sizes) == 336 // world_size
    per_epoch = sum(sum(1 for epoch, _ in result["steps"] if epoch == 1) for result in results)
    # 21 steps; alone, one of four runs in halves: the 24th of all, the 28th and so on to the 40th.
    assert per_epoch == (21 + 5 if world_size == 1 else 42)
    assert results[0]["status"].noise_scale is not None


def stream_of_336() -> dict:
    return train(Stream(336), epochs=2, max_batch_size=16, per_gpu=(4, 16))


def test_noise_is_measured_where_half_of_an_odd_data_set_is_a_batch() -> None:
    result = train(Numbered(101), epochs=40, batch_size=50, max_batch_size=50, per_gpu=(50, 64))
    assert result["status"].noise_scale is not None


class Spoilt(Numbered):
    """Some samples are no numbers."""

    def __init__(self, size: int, *bad: int):
        super().__init__(size)
        self.inputs[list(bad)] = float("nan")


def guarded(dataset: Numbered, guard: str, per_gpu: tuple[int, int], set_to_none: bool = True) -> list[torch.Tensor]:
    """Trains with the usual guard against a loss that is no number."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = px.DataLoader(dataset, batch_size=16, per_gpu=per_gpu)
    for _ in px.epochs(2):
        for batch in loader:
            optimizer.zero_grad(set_to_none)
            loss = loss_of(wrapped, batch)
            if guard != "before":
                loss.backward()
            if not loss.isfinite():
                if guard != "unused":  # There, the next turn clears it.
                    optimizer.zero_grad(set_to_none)
                continue
            if guard == "before":
                loss.backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def plainly_guarded(dataset: Numbered) -> list[torch.Tensor]:
    """The same without Pollux: a bad batch is left out."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(dataset, 16):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if loss.isfinite():
                loss.backward()
                optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("guard", ["before", "after", "unused"])
@pytest.mark.parametrize("per_gpu", [(4, 4), (4, 16)], ids=["accumulated", "halves"])
@pytest.mark.parametrize("bad", [65, 78], ids=["first part", "last part"])
def test_a_bad_batch_that_is_skipped_is_skipped_whole(guard, per_gpu, bad) -> None:
    dataset = Spoilt(128, bad)
    for found, expected in zip(guarded(dataset, guard, per_gpu), plainly_guarded(dataset)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("per_gpu", [(4, 4), (4, 16)], ids=["accumulated", "halves"])
def test_gradients_that_are_zeroed_in_place_are_not_lost_after_a_skipped_batch(per_gpu) -> None:
    dataset = Spoilt(128, 78)
    for found, expected in zip(guarded(dataset, "before", per_gpu, set_to_none=False), plainly_guarded(dataset)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("guard", ["before", "after", "unused"])
@pytest.mark.parametrize("bad", [65, 73], ids=["rank 0", "rank 1"])
def test_a_part_that_one_process_skips_is_left_out_by_all(together, guard, bad) -> None:
    # Of two micro-batches of the rank, the sample is in the first.
    first, second = together(guarded, 2, Spoilt(128, bad), guard, (4, 4))
    for one, other in zip(first, second):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("guard", ["before", "after", "unused"])
def test_a_part_that_all_processes_skip_makes_no_step(together, guard) -> None:
    # In the first micro-batch of both ranks: of a step without any gradient momentum would be left.
    dataset = Spoilt(128, 65, 73)
    for parameters in together(guarded, 2, dataset, guard, (4, 4)):
        for found, expected in zip(parameters, plainly_guarded(dataset)):
            torch.testing.assert_close(found, expected)


def skip_alone() -> str:
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = px.DataLoader(Numbered(128), batch_size=16, per_gpu=(4, 8))
    try:
        for _ in px.epochs(1):
            for idx, batch in enumerate(loader):
                optimizer.zero_grad()
                loss_of(wrapped, batch).backward()
                if idx != 2 or px.rank() == 0:
                    optimizer.step()
    except px.UsageError as error:
        return str(error)
    return "trained"


def test_a_step_that_one_process_alone_skips_is_refused(together) -> None:
    for message in together(skip_alone, 2):
        assert "rank 1 has made 0 steps where others have made 1; expected all processes to skip" in message


def test_a_skipped_batch_is_not_taken_for_divergence(monkeypatch) -> None:
    monkeypatch.setattr(_brain, "BAD_CHECKS_MAX", 1)
    for guard in ("before", "after"):
        parameters = guarded(Spoilt(128, 65), guard, (4, 4))
        assert all(parameter.isfinite().all() for parameter in parameters)


def test_a_batch_is_never_above_half_of_the_data() -> None:
    def most(dataset, batch_size=16, max_batch_size=4096):
        return px.DataLoader(dataset, batch_size, max_batch_size=max_batch_size).limits.max_batch_size

    assert most(Numbered(640)) == 320
    assert most(Numbered(640), max_batch_size=64) == 64
    assert most(Numbered(20)) == 16
    assert most(Stream(640)) == 4096, "nobody knows how long it is"


def test_a_stream_that_has_ended_bounds_the_batch() -> None:
    train(Stream(640), epochs=1, max_batch_size=4096, per_gpu=(4, 4096))
    assert '"batch_size_max":320' in current().brain._agent.report()


def test_half_precision_parameters_of_adam_are_measured() -> None:
    torch.manual_seed(0)
    # More coordinates than a half-precision number can count.
    model = torch.nn.Linear(300, 300, dtype=torch.float16)
    wrapped, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-4))
    inputs = torch.randn(512, 300, dtype=torch.float16)
    loader = px.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4, per_gpu=(2, 4))
    for _ in px.epochs(1):
        for (batch,) in loader:
            optimizer.zero_grad()
            (100 * wrapped(batch).float().square().mean()).backward()
            optimizer.step()
    assert px.status().noise_scale is not None


def test_a_coordinate_that_hardly_had_a_gradient_does_not_outweigh_all_others() -> None:
    weights, unused = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weights, unused], betas=(0.9, 0.5))
    optimizer.state[weights] = {"step": torch.tensor(60.0), "exp_avg_sq": torch.tensor([4.0, 4.0, 4.0, 0.0])}
    optimizer.state[unused] = {"step": torch.tensor(60.0), "exp_avg_sq": torch.zeros(2)}
    preconditioner = Preconditioner(optimizer)
    preconditioner.read_steps()
    used, never = preconditioner.denominators([weights, unused])
    torch.testing.assert_close(used, torch.tensor([2.0, 2.0, 2.0, 0.1 * 3**0.5]))
    assert never.isinf().all()


def dropped_out(folder: str | None, steps_max: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3))
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=folder)
    loader = px.DataLoader(Numbered(160), batch_size=16, shuffle=True)
    steps = 0
    for _ in px.epochs(2):
        for batch in loader:
            if steps == steps_max:
                return []
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            steps += 1
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_model_with_dropout_goes_on_in_the_middle_of_an_epoch_as_if_nothing_had_been(together, tmp_path) -> None:
    [whole] = together(dropped_out, 1, None, 1000)
    # 5 of about 13 micro-batches of the first epoch, and then on into the second.
    together(dropped_out, 1, str(tmp_path), 5)
    together(dropped_out, 1, str(tmp_path), 10)
    [resumed] = together(dropped_out, 1, str(tmp_path), 1000)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed))
