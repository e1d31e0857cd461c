import random

import pytest

from pollux.torch._deal import Tuning, deal


def test_every_sample_of_an_epoch_is_dealt_once_whatever_changes_on_the_way() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        end = rng.randint(1, 400)
        cursor, dealt = 0, []
        while cursor < end:
            world_size = min(rng.randint(1, 7), end - cursor)  # There is a sample for every rank.
            local_batch_max = rng.randint(1, 20)
            tuning = Tuning(rng.randint(1, local_batch_max), rng.randint(0, 3))
            step = deal(cursor, end, world_size, tuning, local_batch_max)
            for rank in range(world_size):
                parts = step.parts(rank)
                assert sum(map(len, parts)) == step.share(rank)
                assert all(1 <= len(part) <= local_batch_max for part in parts)
                dealt += [place for part in parts for place in part]
            weights = (step.weight(rank) * len(step.parts(rank)) for rank in range(world_size))
            assert abs(sum(weights) - 1.0) < 1e-9
            cursor = step.stop
        assert dealt and sorted(dealt) == list(range(end))


def test_samples_that_cannot_go_round_are_given_to_all_and_count_once() -> None:
    step = deal(98, 100, 4, Tuning(8, 0), 16)
    assert [step.parts(rank) for rank in range(4)] == [[range(98, 100)]] * 4
    assert sum(step.weight(rank) for rank in range(4)) == 1.0


def test_every_sample_of_a_step_counts_the_same() -> None:
    step = deal(0, 23, 2, Tuning(4, 2), 4)
    for rank in range(2):
        for idx, part in enumerate(step.parts(rank)):
            assert abs(step.weight(rank) * step.emphasis(rank, idx) / len(part) - 1 / step.samples) < 1e-12


def test_a_whole_step_is_what_the_tuning_says() -> None:
    step = deal(0, 1000, 4, Tuning(8, 1), 16)
    assert (step.samples, step.micro_batches, step.is_whole) == (64, 2, True)


def test_a_rest_that_is_too_small_for_all_goes_with_the_step_before_it() -> None:
    step = deal(0, 66, 4, Tuning(8, 1), 16)
    assert (step.samples, step.is_whole) == (66, False)
    assert deal(0, 71, 4, Tuning(8, 1), 16).samples == 71
    assert deal(0, 72, 4, Tuning(8, 1), 16).samples == 64


def test_a_process_alone_runs_fewer_steps_in_halves_once_it_has_trained_for_a_while() -> None:
    def halves(trained: int, batch: int, steps: int) -> int:
        tuning = Tuning(batch, 0)
        dealt = (deal(idx * batch, 1 << 30, 1, tuning, batch, before=trained) for idx in range(steps))
        return sum(step.micro_batches == 2 for step in dealt)

    assert halves(0, 16, 64) == 16
    assert halves(128 * 16, 16, 64) == 2
    # A batch that has grown is new.
    assert halves(128 * 16, 64, 64) == 16


def test_steps_run_in_halves_by_where_the_training_is_and_not_by_how_long_its_epochs_are() -> None:
    def halves(samples: int) -> list[int]:
        """Steps in halves among the first 2000, with so many samples in an epoch."""
        found, before, cursor = [], 0, 0
        for idx in range(2000):
            step = deal(cursor, samples, 1, Tuning(16, 0), 16, before=before)
            found += [idx] * (step.micro_batches == 2)
            # A loop that is left after the first batch of an epoch has made a step.
            assert cursor > 0 or step.micro_batches == 1
            before, cursor = (before + samples, 0) if step.stop == samples else (before, step.stop)
        return found

    for samples in (32, 48, 64, 80, 1600, 1 << 30):
        found = halves(samples)
        assert len([idx for idx in found if idx < 128]) == 32
        assert len([idx for idx in found if idx >= 128]) == pytest.approx((2000 - 128) / 32, abs=1)


@pytest.mark.parametrize(("samples", "batch"), [(101, 50), (1797, 898), (100, 50), (64, 64), (75, 50)])
def test_steps_are_compared_where_an_epoch_has_only_one_or_two_that_are_whole(samples, batch) -> None:
    """The batch goes up to half of the data set, which leaves an odd one with one whole step."""

    def compared(first: int, epochs: int) -> int:
        count, tuning = 0, Tuning(batch, 0)
        for epoch in range(first, first + epochs):
            cursor = 0
            while cursor < samples:
                step = deal(cursor, samples, 1, tuning, 2 * batch, before=epoch * samples)
                assert step.is_whole or step.micro_batches == 1  # Nothing would be learned of it.
                count += step.is_whole and step.micro_batches == 2
                cursor = step.stop
        return count

    # One of four steps, later one of 32, up to what begins twice in one step.
    steps = samples // batch
    assert compared(0, 40) >= 40 * steps // 4
    young = 128 // steps
    assert compared(young, 320) >= 320 * steps // 32 - 1


def test_the_first_step_of_a_stream_runs_whole_however_little_of_it_was_read() -> None:
    for before in range(0, 500, 50):
        assert deal(0, 52, 1, Tuning(50, 0), 50, before=before, knows_end=False).micro_batches == 1
