"""The mistakes that users make most, each with exactly the message that docs/python/mistakes.md shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist
from torch.utils.data import DistributedSampler
from trainings import Numbered, loss_of, network

import pollux.torch as px
import pollux.torch._loader as loaders
import torch

PAGE = Path(__file__).parents[3] / "docs" / "python" / "mistakes.md"
_ROW = re.compile(r"^\| (.+?) \| `{1,2} ?(.+?) ?`{1,2} \|$", re.MULTILINE)


def told() -> dict[str, str]:
    """What the page says that users see, by mistake."""
    return dict(_ROW.findall(PAGE.read_text()))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def wrapped(model=None, **options):
    model = model or network()
    return px.wrap(model, sgd(model), **options)


def batches(samples=64):
    loader = px.DataLoader(Numbered(samples), batch_size=16)
    for _ in px.epochs(1):
        yield from loader


def make_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def leftover_group() -> None:
    make_group()
    try:
        wrapped()
    finally:
        dist.destroy_process_group()


def ddp_inside() -> None:
    make_group()
    model = torch.nn.parallel.DistributedDataParallel(network())
    dist.destroy_process_group()
    px.wrap(model, sgd(model))


def distributed_sampler() -> None:
    px.DataLoader(Numbered(64), 16, sampler=DistributedSampler(Numbered(64), 2, 0))


def set_epoch() -> None:
    px.DataLoader(Numbered(64), 16).sampler.set_epoch(1)


def unknown_schedule() -> None:
    model = network()
    optimizer = sgd(model)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    px.wrap(model, optimizer)
    next(batches())


def rate_by_hand() -> None:
    model, optimizer = wrapped()
    for idx, batch in enumerate(batches(128)):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.9**idx
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def steps_now_and_then() -> None:
    model, optimizer = wrapped()
    for idx, batch in enumerate(batches()):
        (loss_of(model, batch) / 4).backward()
        if idx % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def no_sync() -> None:
    wrapped()[0].no_sync()


def two_backwards() -> None:
    model, optimizer = wrapped()
    for batch in batches():
        optimizer.zero_grad()
        found = model(batch[0])
        torch.nn.functional.cross_entropy(found, batch[1]).backward(retain_graph=True)
        (0.1 * found.square().mean()).backward()
        optimizer.step()


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.aside = network(), torch.nn.Linear(8, 3)

    def forward(self, inputs):
        return self.used(inputs)


def unused_parameters() -> None:
    model, optimizer = wrapped(Branching())
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def bare_model() -> None:
    model = network()
    _, optimizer = px.wrap(model, sgd(model))
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def unfreeze_before_a_look() -> None:
    model = network()
    model[0].requires_grad_(False)
    trained, optimizer = wrapped(model)
    for batch in batches():
        loss_of(trained, batch).backward()
        model[0].requires_grad_(True)
        trained(batch[0])
        optimizer.step()


def sparse_layer() -> None:
    wrapped(torch.nn.Sequential(torch.nn.EmbeddingBag(10, 8, sparse=True), network()))


def static_graph() -> None:
    wrapped(static_graph=True)


def misspelt() -> None:
    wrapped(schedular=None)


def wrapped_one_by_one() -> None:
    first, first_optimizer = wrapped()
    second, second_optimizer = wrapped()
    for batch in batches():
        (loss_of(first, batch) + loss_of(second, batch)).backward()
        second_optimizer.step()
        first_optimizer.step()


def one_of_two() -> None:
    generator = torch.nn.Linear(8, 8)
    generator_optimizer = torch.optim.Adam(generator.parameters())
    critic, _ = wrapped()
    for batch in batches():
        generator_optimizer.zero_grad()
        critic(generator(batch[0])).mean().backward()
        generator_optimizer.step()


def strange_parameters() -> None:
    model, head = network(), torch.nn.Linear(3, 2)
    px.wrap(model, torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1))


def added_layers() -> None:
    model, optimizer = wrapped()
    for _ in batches():
        model.module.append(torch.nn.Linear(3, 3))
        optimizer.add_param_group({"params": model.module[-1].parameters()})


def strange_group() -> None:
    _, optimizer = wrapped()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))]})


def several_steps() -> None:
    model, optimizer = wrapped()
    for batch in batches():
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()


def prefetched() -> None:
    model, optimizer = wrapped()
    ahead = iter(batches())
    following = next(ahead)
    while following is not None:
        batch, following = following, next(ahead, None)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def sharing_models() -> None:
    model = network()
    px.wrap([model, model], [sgd(model[0]), sgd(model[2])])


def evaluation() -> None:
    wrapped()
    with torch.no_grad():
        for _ in batches():
            pass


def two_loaders() -> None:
    wrapped()
    first, _newest = (px.DataLoader(Numbered(64), 16) for _ in range(2))
    for _ in px.epochs(1):
        next(iter(first))


def range_of_epochs() -> None:
    wrapped()
    loader = px.DataLoader(Numbered(64), 16)
    for _ in range(2):
        for _ in loader:
            pass


def loader_of_pytorch() -> None:
    loaders._latest = None
    model, optimizer = wrapped()
    for _ in px.epochs(1):
        for batch in torch.utils.data.DataLoader(Numbered(64), 16):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()


def no_rule() -> None:
    model = network()
    px.wrap(model, torch.optim.RMSprop(model.parameters()))


def drop_last() -> None:
    px.DataLoader(Numbered(64), 16, drop_last=True)


def too_little_data() -> None:
    px.DataLoader(Numbered(64), 128)


def closure() -> None:
    _, optimizer = wrapped()
    for _ in batches():
        optimizer.step(lambda: torch.zeros(()))


def torchrun_in_job() -> None:
    variables = {"POLLUX_REPLICA_ID": "1", "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4"}
    with mock.patch.dict(os.environ, variables):
        wrapped()


MISTAKES: dict[str, Callable[[], None]] = {
    "`init_process_group()` is left in, or something that needs it": leftover_group,
    "the model is a `DistributedDataParallel`": ddp_inside,
    "a `DistributedSampler` is left in": distributed_sampler,
    "`loader.sampler.set_epoch(epoch)` is left in": set_epoch,
    "the learning-rate scheduler is not given to `px.wrap`": unknown_schedule,
    "the learning rate is set by hand for every batch": rate_by_hand,
    "gradients are accumulated by hand": steps_now_and_then,
    "`model.no_sync()`": no_sync,
    "two losses, each with its `backward()`": two_backwards,
    "a part of the model gets no gradient": unused_parameters,
    "the bare model is called, not the wrapped one": bare_model,
    "layers are frozen or unfrozen between `backward()` and a look at the model": unfreeze_before_a_look,
    "layers are added while the model trains": added_layers,
    "`optimizer.step()` several times for one batch": several_steps,
    "batches are fetched one ahead, by a prefetcher around the loader": prefetched,
    "two models share layers, or one model has two optimisers": sharing_models,
    "a layer with `sparse=True`": sparse_layer,
    "`static_graph=True`": static_graph,
    "an option is misspelt": misspelt,
    "`px.wrap` once for each of two models": wrapped_one_by_one,
    "only one of two models is wrapped": one_of_two,
    "the optimiser has parameters from outside of the model": strange_parameters,
    "the training loader is used to evaluate": evaluation,
    "a second `px.DataLoader`": two_loaders,
    "`range` in the place of `px.epochs`": range_of_epochs,
    "PyTorch's loader in the place of `px.DataLoader`": loader_of_pytorch,
    "an optimiser that no rule is known for": no_rule,
    "`drop_last=True`": drop_last,
    "`batch_size` above the data set": too_little_data,
    "`optimizer.step(closure)`": closure,
    "`pollux submit -- torchrun …` with a script that calls `px.wrap`": torchrun_in_job,
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.replace("`", ""))
def test_a_mistake_is_refused_with_the_message_of_the_page(mistake: str) -> None:
    with pytest.raises(Exception) as refused:
        MISTAKES[mistake]()
    # What is raised in a backward pass comes wrapped in an error of PyTorch.
    message = str(refused.value).removeprefix("UsageError: ").split("\n\nAt:")[0]
    assert message == told()[mistake]
    assert "\n" not in message


def test_a_group_that_the_user_makes_after_a_training_is_refused_and_left_alone() -> None:
    model, optimizer = wrapped()
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    dist.destroy_process_group()
    make_group()
    try:
        with pytest.raises(px.UsageError, match="a process group is there already"):
            wrapped()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def on_rank_0(where: str) -> str:
    """Asks for a mean where only one rank does."""
    model, optimizer = wrapped()
    mean = px.Mean("loss")
    loader = px.DataLoader(Numbered(64), 16)
    try:
        for _ in px.epochs(2):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            if where == "between" and px.rank() == 0:
                mean.compute()
        if where == "after" and px.rank() == 0:
            mean.compute()
    except px.UsageError as error:
        return str(error)
    return ""


def test_a_collective_on_one_rank_only_is_told_at_once(together) -> None:
    message = told()["`Mean.compute()` on rank 0 only"]
    assert together(on_rank_0, 2, "between") == [message] * 2
    after = "Mean.compute() after the loops, where another process has ended already; call it on every rank, not under "
    assert together(on_rank_0, 2, "after") == [after + "`if px.rank() == 0`", ""]


def test_messages_of_pytorch_that_lead_elsewhere_get_a_line_of_advice() -> None:
    script = "import pollux.torch\nfrom torch.utils.data import DistributedSampler\nDistributedSampler(range(8))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == told()["`DistributedSampler(dataset)` before the loops"]


def test_parameters_that_the_optimiser_gets_later_are_the_models() -> None:
    with pytest.raises(px.UsageError) as refused:
        strange_group()
    assert str(refused.value) == told()["the optimiser has parameters from outside of the model"]


def test_the_page_tells_of_every_mistake_and_of_no_other() -> None:
    # Those that take several processes, or one that ends; the others are in test_alike.py.
    others = {"`Mean.compute()` on rank 0 only", "`DistributedSampler(dataset)` before the loops"}
    others |= {
        row for row in told() if row.startswith(("the `sampler` draws", "the learning rate follows", "weights are"))
    }
    others |= {row for row in told() if row.startswith(("the `GradScaler`", "gradients are looked at"))}
    assert told().keys() == MISTAKES.keys() | others
    assert len(others) == 7
    assert len(told()) >= 20
