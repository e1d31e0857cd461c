"""The loader by itself: no agent, no wrapped model, any launcher. What others lose or repeat must be here once."""

import collections
import json
import os
import random

import pytest
from torch.utils.data import DistributedSampler, RandomSampler
from trainings import Numbered, Stream

import pollux.torch as px
import torch


def group(dataset, world_size, state=None, batch_size=8, **options):
    """A loader for each process of a group."""
    loaders = [
        px.ElasticLoader(dataset, batch_size, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


def read(loaders, steps=None):
    """What every process gets of so many steps, or of the rest of the epoch: lists of numbers, by step and rank."""
    iterators, told = [iter(loader) for loader in loaders], []
    while len(told) != steps:
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            assert all(batch is None for batch in batches), "some process has fewer steps than another"
            break
        told.append([batch[2].tolist() for batch in batches])
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
    return told


def flat(told):
    return [idx for step in told for part in step for idx in part]


def test_from_one_to_two_processes_within_an_epoch_nothing_is_lost_or_repeated() -> None:
    # transformers #40245: batches that one process had not reached are skipped by two.
    [alone] = group(Numbered(16), 1, batch_size=2)
    before = flat(read([alone], steps=2))
    pair = group(Numbered(16), 2, alone.state_dict(), batch_size=4)
    assert before + flat(read(pair)) == list(range(16))


@pytest.mark.parametrize("make", [Numbered, Stream])
def test_any_group_and_batch_goes_on_where_any_other_was(make) -> None:
    # torchdata #1455, anemoi #200: a loader whose saved state knows how many processes there were.
    chance = random.Random(5)
    for trial in range(20 if make is Numbered else 4):
        size, state = chance.randrange(40, 200), None
        options = {"shuffle": trial % 2 == 0} if make is Numbered else {}
        counts = collections.defaultdict(collections.Counter)
        epochs = 3 if make is Numbered else 2
        while state is None or state["epoch"] < epochs:
            world_size, batch_size = chance.randrange(1, 6), chance.randrange(1, 24)
            loaders = group(make(size), world_size, state, batch_size, **options)
            epoch = loaders[0].epoch
            told = read(loaders, chance.choice([1, 2, 5, None]))
            for step in told:
                parts = set(map(tuple, step))
                # Fewer samples than processes: everybody gets them all, and they count once.
                shared = len(parts) == 1 and len(step) > 1
                counts[epoch].update(step[0] if shared else flat([step]))
            state = json.loads(json.dumps(loaders[0].state_dict()))
        assert all(count == dict.fromkeys(range(size), 1) for count in counts.values()), (trial, counts)


def test_a_state_saved_while_workers_read_ahead_is_behind_the_last_batch_of_the_loop() -> None:
    # pytorch #36650: what workers have fetched ahead is not what was trained.
    loader = px.ElasticLoader(Numbered(64), 4, shuffle=True, num_workers=2, prefetch_factor=4)
    seen = []
    for batch in loader:
        seen += batch[2].tolist()
        if len(seen) == 12:
            break
    resumed = px.ElasticLoader(Numbered(64), 16, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(seen + flat(read([resumed]))) == list(range(64))


def test_a_resumed_epoch_keeps_its_number_and_its_order() -> None:
    # accelerate #4071: the sampler of the resumed epoch begins with epoch 0's order.
    whole = px.ElasticLoader(Numbered(40), 4, shuffle=True)
    orders = [flat(read([whole])) for _ in range(3)]
    assert orders[0] != orders[1] != orders[2]
    loader = px.ElasticLoader(Numbered(40), 4, shuffle=True)
    read([loader])
    read([loader], steps=3)
    resumed = px.ElasticLoader(Numbered(40), 4, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1
    for epoch in (1, 2):
        resumed.set_epoch(epoch)  # As frameworks do before every epoch.
        assert flat(read([resumed])) == (orders[1][12:] if epoch == 1 else orders[2])


def test_a_state_of_the_last_batch_ends_its_epoch_without_another() -> None:
    loader = px.ElasticLoader(Numbered(16), 8)
    for _ in loader:
        state = loader.state_dict()
    resumed = px.ElasticLoader(Numbered(16), 8)
    resumed.load_state_dict(state)
    assert (resumed.epoch, list(resumed), resumed.epoch) == (0, [], 1)
    assert len(flat(read([resumed]))) == 16


def test_an_absent_replica_takes_no_samples_with_it_and_the_batch_stays() -> None:
    # torchft #58: samples of a replica that is away are missing, and the total batch changes with the quorum.
    loaders = group(Numbered(60), 3, batch_size=12)
    iterators = [iter(loader) for loader in loaders]
    told = [[next(iterator)[2].tolist() for iterator in iterators]]
    committed = loaders[0].state_dict()
    # The second replica dies within this step, so nobody's part of it counts.
    [next(iterator) for iterator in iterators]
    for rank, which in enumerate((0, 2)):
        loaders[which].set_group(rank, 2)
        loaders[which].load_state_dict(committed)
    told += [[next(iterators[which])[2].tolist() for which in (0, 2)] for _ in range(2)]
    # It comes back with what its peers tell.
    returned = px.ElasticLoader(Numbered(60), 12, rank=2, world_size=3)
    returned.load_state_dict(loaders[0].state_dict())
    loaders[0].set_group(0, 3)
    loaders[2].set_group(1, 3)
    iterators = [iterators[0], iterators[2], iter(returned)]
    told += [[next(iterator)[2].tolist() for iterator in iterators] for _ in range(2)]
    assert all(next(iterator, None) is None for iterator in iterators)
    assert flat(told) == list(range(60))
    assert [sum(map(len, step)) for step in told] == [12] * 5


def test_weights_make_uneven_parts_count_by_their_samples() -> None:
    dataset = Numbered(23)
    for world_size in (1, 2, 3, 4):
        loaders = group(dataset, world_size, batch_size=10)
        for batches in zip(*loaders):
            means = [batch[0].mean(0) * loader.weight for batch, loader in zip(batches, loaders)]
            together = torch.cat([batch[0] for batch in batches]).mean(0)
            torch.testing.assert_close(torch.stack(means).mean(0), together)


def test_the_length_is_the_number_of_batches() -> None:
    for size in range(1, 40):
        for world_size, batch_size in ((1, 1), (1, 4), (2, 4), (3, 7), (4, 50)):
            loaders = group(Numbered(size), world_size, batch_size=batch_size)
            assert {len(loader) for loader in loaders} == {len(read(loaders))}


def test_samplers_decide_the_order() -> None:
    for sampler in (list(range(29, -1, -1)), RandomSampler(Numbered(30))):
        loaders = group(Numbered(30), 2, batch_size=4, sampler=sampler)
        before, state = read(loaders, 3), loaders[0].state_dict()
        rest = read(group(Numbered(30), 3, state, batch_size=9, sampler=sampler))
        assert sorted(flat(before + rest)) == list(range(30))


def test_what_cannot_be_is_refused(monkeypatch) -> None:
    def refused(message, call):
        with pytest.raises(px.UsageError) as error:
            call()
        assert str(error.value) == message

    numbers = Numbered(10)
    loader = px.ElasticLoader(numbers, 2)
    refused("batch_size 0; expected whole numbers from 1", lambda: px.ElasticLoader(numbers, 0))
    refused(
        "px.ElasticLoader(drop_last=...): every sample is used; leave it out",
        lambda: px.ElasticLoader(numbers, 2, drop_last=True),
    )
    refused(
        "sampler=DistributedSampler(...): px.ElasticLoader deals samples out to processes itself; leave it out, and "
        "give shuffle=True for another order in every epoch",
        lambda: px.ElasticLoader(numbers, 2, sampler=DistributedSampler(numbers, 2, 0)),
    )
    refused("rank 2 of world_size 2; expected both, with 0 <= rank < world_size", lambda: loader.set_group(2, 2))
    refused(
        "rank 0 of world_size None; expected both, with 0 <= rank < world_size",
        lambda: px.ElasticLoader(numbers, 2, rank=0),
    )
    refused("weight before there is a batch; ask for it inside of a loop over the loader", lambda: loader.weight)
    first = iter(loader)
    next(first)
    next(iter(loader))
    refused("two loops over one px.ElasticLoader at a time; end one before the other begins", lambda: next(first))
    monkeypatch.setenv("RANK", "0")
    refused("one of RANK and WORLD_SIZE is set; expected both or neither", lambda: len(loader))


def test_a_state_of_another_order_is_refused() -> None:
    state = px.ElasticLoader(Numbered(10), 2, shuffle=True, seed=3).state_dict()
    for other, message in (
        (px.ElasticLoader(Numbered(10), 2, shuffle=True), "the state is of a loader with seed 3, this one has 0"),
        (px.ElasticLoader(Numbered(9), 2, shuffle=True, seed=3), "with samples 10, this one has 9"),
    ):
        with pytest.raises(px.CheckpointError, match=message):
            other.load_state_dict(state)
    with pytest.raises(px.CheckpointError, match="not a state of a px.ElasticLoader"):
        px.ElasticLoader(Numbered(10), 2).load_state_dict({"epoch": 1})


def launched(state):
    """One process of a launcher that sets RANK and WORLD_SIZE, before and after torch.distributed knows of them."""
    loader = px.ElasticLoader(Numbered(32), 4, shuffle=True)
    seen = [next(iter(loader))[2].tolist()]
    torch.distributed.init_process_group("gloo")
    for batch in loader:
        seen.append(batch[2].tolist())
    torch.distributed.barrier()
    # Only one process loads the state.
    if torch.distributed.get_rank() == 0:
        loader.load_state_dict(state)
    try:
        list(loader)
        told = ""
    except px.UsageError as error:
        told = str(error)
    torch.distributed.barrier()
    return seen, told


def test_processes_of_a_launcher_share_an_epoch_and_notice_where_others_are(together) -> None:
    first = px.ElasticLoader(Numbered(32), 4, shuffle=True)
    next(iter(first))
    results = together(launched, 2, first.state_dict())
    assert sorted(idx for seen, _ in results for part in seen for idx in part) == list(range(32))
    [told] = [told for _, told in results if told]
    places = ("epoch 0, sample 4", "epoch 1, sample 0")
    advice = "load the same state in every process, and loop over the loader in all of them"
    assert told in [
        f"this process is at {here}, another at {there}; {advice}" for here, there in (places, places[::-1])
    ]


def in_another_order() -> str:
    loader = px.ElasticLoader(Numbered(32), 4, shuffle=True, seed=int(os.environ["RANK"]))
    torch.distributed.init_process_group("gloo")
    try:
        next(iter(loader))
        told = ""
    except px.UsageError as error:
        told = str(error)
    torch.distributed.barrier()
    return told


def test_processes_of_a_launcher_with_another_seed_notice_it(together) -> None:
    [told] = [told for told in together(in_another_order, 2) if told]
    assert told.startswith("this process has another order of samples than another; expected the same data set, seed")
