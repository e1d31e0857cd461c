"""Small trainings that the tests share."""

from __future__ import annotations

import collections
import time
from typing import Any

from torch.utils.data import Dataset, IterableDataset

import pollux.torch as px
import torch


class Numbered(Dataset):
    """Samples of a noisy linear classification that know their numbers."""

    def __init__(self, size: int, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(size, 8, generator=generator)
        weights = torch.randn(8, 3, generator=generator)
        self.targets = (self.inputs @ weights + torch.randn(size, 3, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[idx], self.targets[idx], idx


class Stream(IterableDataset):
    """The same samples, to be read in order."""

    def __init__(self, size: int):
        self._samples = Numbered(size)
        self._size = size

    def __iter__(self) -> Any:
        return (self._samples[idx] for idx in range(self._size))


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(dataset: Any, epochs: int = 2, optimizer: str = "sgd", lr: float = 0.05, **options: Any) -> dict[str, Any]:
    """Trains through, and tells which samples were seen in which step of which epoch. `pace_s` is slept in every
    micro-batch, so that larger ones pay."""
    wrapping, pace_s = options.pop("wrapping", {}), options.pop("pace_s", 0.0)
    model = network()
    made = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer](model.parameters(), lr=lr)
    model, made = px.wrap(model, made, **wrapping)
    loader = px.DataLoader(dataset, **{"batch_size": 16, "max_batch_size": 256, "per_gpu": (2, 32), **options})
    steps: list[tuple[int, list[int]]] = []
    for epoch in px.epochs(epochs):
        for batch in loader:
            made.zero_grad()
            time.sleep(pace_s)
            loss_of(model, batch).backward()
            made.step()
            steps.append((epoch, batch[2].tolist()))
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    return {"steps": steps, "parameters": parameters, "status": px.status()}


def seen(results: list[dict[str, Any]]) -> dict[int, collections.Counter[int]]:
    """How often each sample was used, by epoch."""
    counts: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for result in results:
        for epoch, samples in result["steps"]:
            counts[epoch].update(samples)
    return counts
