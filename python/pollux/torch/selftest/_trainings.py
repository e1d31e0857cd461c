"""What runs in the processes of the self-test: trainings as users write them."""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, TensorDataset

import pollux.torch as px
import torch
from pollux._elastic import deal
from pollux.torch import _brain
from torch import Tensor, nn

SAMPLES = 512
CLASSES = 3
FITS = 24
"""Samples of a batch that fit into the memory that the last training has."""


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples of a noisy linear classification that know their numbers."""

    def __init__(self, size: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(size, 8, generator=generator)
        weights = torch.randn(8, CLASSES, generator=generator)
        self.targets = (self.inputs @ weights + torch.randn(size, CLASSES, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor, int]:
        return self.inputs[idx], self.targets[idx], idx


def network() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, CLASSES)).to(px.device())


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """Mean over a batch."""
    return nn.functional.cross_entropy(model(batch[0].to(px.device())), batch[1].to(px.device()))


def difference_from_ddp() -> float:
    """The largest difference between parameters trained with a batch that stays, and by plain DDP with the same
    batches, against the largest parameter."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    world_size = int(os.environ["WORLD_SIZE"])
    loader = px.DataLoader(Numbered(), batch_size=16 * world_size, per_gpu=(16, 16), shuffle=True)
    batches = []
    for _ in px.epochs(3):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            batches.append(batch)
    plain = network()
    ddp = nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(ddp, batch).backward()
        optimizer.step()
    return _difference(model.parameters(), plain.parameters())


def difference_of_shards(store: str, shards: int) -> float:
    """The same for a model that FSDP2 shards, against one that a single process trains: all processes share it, or each
    has a copy."""
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if shards > 1:
        for name in [name for name in os.environ if name.startswith("POLLUX_")]:
            del os.environ[name]
        os.environ.update(RANK="0", WORLD_SIZE="1")
        os.environ.update(POLLUX_SHARD_RANK=str(rank), POLLUX_SHARD_COUNT=str(shards), POLLUX_SHARD_STORE=store)
    fsdp = importlib.import_module("torch.distributed.fsdp")
    mesh, plain = px.shard_mesh(), network()
    model: Any = network()
    fsdp.fully_shard(model[0], mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    wrapped, optimizer = px.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    batch_size = 16 * processes
    dataset = Numbered(8 * batch_size)
    loader = px.DataLoader(dataset, batch_size=batch_size, per_gpu=(8, 16))
    for _ in px.epochs(3):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for _ in range(3):
        for first in range(0, len(dataset), batch_size):
            optimizer.zero_grad()
            loss_of(plain, (dataset.inputs[first:][:batch_size], dataset.targets[first:][:batch_size])).backward()
            optimizer.step()
    return _difference(whole, plain.parameters())


@torch.no_grad()
def _difference(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """The largest, against the largest of theirs."""
    own, other = (nn.utils.parameters_to_vector(part).double() for part in (ours, theirs))
    return float((own - other).abs().max() / other.abs().max())


def noise_scales(epochs: int) -> tuple[float, float]:
    """The noise scale as Pollux estimates it and as it is, of a model that stays as it is."""
    # As many steps are measured as can be, whatever that costs: fewer would only need more of them to be as sure.
    _brain.MEASURE_SHARE = 100.0
    deal.SPLIT_EVERY_LATER = deal.SPLIT_EVERY
    model, dataset = network(), Numbered()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = px.DataLoader(dataset, batch_size=16, per_gpu=(4, 16), shuffle=True)
    for _ in px.epochs(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
    gradients = []
    for inputs, target in zip(dataset.inputs, dataset.targets):
        model.zero_grad()
        loss_of(model, (inputs[None], target[None])).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double())  # type: ignore[union-attr]
    every = torch.stack(gradients)
    exact = float(every.var(0).sum() / every.mean(0).square().sum())
    return px.status().noise_scale or 0.0, exact


def train_until_told(folder: str) -> None:
    """Writes down which samples it sees, until it is alone again and told that it is enough."""
    model = network()
    wrapped, optimizer = px.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    loader = px.DataLoader(Numbered(), batch_size=16, per_gpu=(2, 16), shuffle=True)
    for epoch in px.epochs(100_000):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            _write(folder, epoch, batch)
        if px.world_size() == 1 and Path(folder, "enough").exists():
            break


def train_with_a_death(folder: str, victim: int | None) -> None:
    """Trains two epochs; one process kills itself on the way."""
    model = network()
    wrapped, optimizer = px.wrap(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        checkpoint_dir=f"{folder}/checkpoints",
        checkpoint_every_s=0.1,
    )
    loader = px.DataLoader(Numbered(), batch_size=16, per_gpu=(2, 16), shuffle=True)
    for epoch in px.epochs(2):
        for idx, batch in enumerate(loader):
            if epoch == 1 and idx == 7 and px.rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss_of(wrapped, batch).backward()
            optimizer.step()
            _write(folder, epoch, batch)


def train_without_memory(folder: str) -> None:
    """Trains two epochs with batches that do not fit. On a GPU its memory really runs out."""
    device = px.device()
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(2**30 / total, device)
    model = network()
    wrapped, optimizer = px.wrap(
        model, torch.optim.SGD(model.parameters(), lr=0.05), checkpoint_dir=f"{folder}/checkpoints"
    )
    loader = px.DataLoader(Numbered(), batch_size=32, per_gpu=(8, 32), shuffle=True)
    for epoch in px.epochs(2):
        for batch in loader:
            optimizer.zero_grad()
            _use_memory(len(batch[2]), device)
            loss_of(wrapped, batch).backward()
            optimizer.step()
            _write(folder, epoch, batch)


def _use_memory(samples: int, device: torch.device) -> None:
    if device.type == "cuda":
        torch.empty(samples * 2**30 // (FITS + 2), dtype=torch.uint8, device=device)
    elif samples > FITS:
        raise torch.OutOfMemoryError("a processor that pretends to be out of memory")


def step_ratio(rounds: int, steps: int) -> float:
    """Time of a step against plain DDP with the same options: the median of rounds in which both take turns."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        layers = (nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, 10))
        made = nn.Sequential(*layers).to(px.device())
        return made, torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)

    torch.manual_seed(0)
    world_size = int(os.environ["WORLD_SIZE"])
    samples = 32 * world_size * steps
    dataset = TensorDataset(torch.randn(samples, 784), torch.randint(10, (samples,)))
    plain, plain_optimizer = make()
    part: Any = DataLoader(TensorDataset(*(tensor[: 32 * steps] for tensor in dataset.tensors)), 32, shuffle=True)
    wrapped, optimizer = px.wrap(*make())
    loader = px.DataLoader(dataset, batch_size=32 * world_size, per_gpu=(32, 32), shuffle=True)
    ddp: nn.Module | None = None
    ratios = []
    for number in px.epochs(rounds + 2):
        ours_s = _time_epoch(wrapped, optimizer, loader)
        ddp = ddp or nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
        theirs_s = _time_epoch(ddp, plain_optimizer, part)
        # The first rounds set everything up.
        if number > 1:
            ratios.append(ours_s / theirs_s)
    return statistics.median(ratios)


def _time_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> float:
    begun = time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    if px.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _write(folder: str, epoch: int, batch: Any) -> None:
    """A line for each batch: how far the training was, and what was used. A line is there when the step is done."""
    if px.device().type == "cuda":
        torch.cuda.synchronize()
    line = json.dumps([px.status().samples, px.world_size(), epoch, batch[2].tolist()])
    with open(f"{folder}/used-{os.getpid()}", "a") as file:
        file.write(f"{line}\n")
