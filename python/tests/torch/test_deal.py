import random

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
