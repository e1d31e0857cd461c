"""Loaders whose batches are dealt out to all processes, to train with and to evaluate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn

from torch.utils.data import DataLoader, Dataset, Sampler

import pollux.torch as px
import torch
from pollux.torch._sources import _mixed, apart

from .. import env
from . import _training


class AdaptiveDataLoaderHelper:
    """What all loaders have in common: the batch and its bounds."""

    def __init__(self, batch_size: int = 1):
        if _training.looping is not None:
            raise RuntimeError("a loader made inside of a loop over another; make it before the loop")
        self.batch_size = batch_size
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: tuple[int | None, int | None] | None = None
        self.is_shuffled = False
        self._dataset: Any = None
        self._options: dict[str, Any] = {}
        self._source: px.DataLoader | None = None
        _training.loaders.append(self)

    def bind(self, dataset: Any, shuffle: bool, options: dict[str, Any]) -> None:
        """Where the batches come from."""
        self._dataset, self.is_shuffled, self._options = dataset, shuffle, options

    @property
    def source(self) -> px.DataLoader:
        """The loader of `pollux.torch` that trains."""
        if self._source is None:
            batch_size = min(self.batch_size, len(self._dataset))
            low, high = self.local_bsz_bounds or (None, None)
            most = self.max_batch_size or batch_size
            self._source = px.DataLoader(
                self._dataset,
                batch_size,
                max_batch_size=most,
                # Where nobody says how much fits, one process may get all of it.
                per_gpu=(low or 1, high or most),
                shuffle=self.is_shuffled,
                **self._options,
            )
        return self._source

    def progress_max(self, epoch: int | None) -> float:
        """Where an epoch ends: after one pass, or with the progress that one makes at `batch_size`."""
        if self.max_batch_size is None:
            return math.inf
        if epoch is None:
            raise RuntimeError(
                "a loop over a loader with autoscale_batch_size() outside of a loop over epochs, which says how much "
                "progress it is to make; write `for epoch in remaining_epochs_until(N)` around it"
            )
        return len(self._dataset) * (epoch + 1) / self.batch_size

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Lets the batch grow, up to `max_batch_size` over all processes and within bounds on each of them."""
        if not isinstance(max_batch_size, int) or max_batch_size < self.batch_size:
            raise ValueError(f"max_batch_size {max_batch_size!r}; expected whole numbers from {self.batch_size}")
        low, high = local_bsz_bounds or (None, None)
        if (low is not None and low > self.batch_size) or (high is not None and high < self.batch_size):
            raise ValueError(
                f"local_bsz_bounds {local_bsz_bounds}; expected bounds around the batch_size, {self.batch_size}"
            )
        if self._source is not None:
            raise RuntimeError("autoscale_batch_size() after the first loop; call it before")
        self.max_batch_size, self.local_bsz_bounds = max_batch_size, local_bsz_bounds
        self.train()

    def train(self) -> None:
        """Makes this the loader that trains."""
        if _training.trained is None:
            _training.trained = self

    @property
    def training(self) -> bool:
        """Whether this is the loader that trains."""
        return _training.trained is self

    @property
    def current_index(self) -> int | None:
        """Samples of the pass at hand that are done, over all processes; `None` outside of its loop."""
        if _training.looping is not self:
            return None
        return _training.session().position.cursor if self.training else 0

    @property
    def current_local_bsz(self) -> int:
        """Samples of a batch on one process."""
        if self._is_tuned():
            return _training.session().terms.tuning.local_batch
        return -(-self.batch_size // env.num_replicas())

    @property
    def accumulation_steps(self) -> int:
        """Batches before the one that ends a step."""
        return _training.session().terms.tuning.accumulation_steps if self._is_tuned() else 0

    @property
    def current_batch_size(self) -> int:
        """Samples of a step, over all processes."""
        return self.current_local_bsz * (self.accumulation_steps + 1) * env.num_replicas()

    def is_accum_step(self) -> bool:
        """Whether the gradient of the batch at hand waits for others."""
        return not self.is_optim_step()

    def is_optim_step(self) -> bool:
        """Whether the batch at hand ends a step."""
        return not self.training or _training.session().is_step_end

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Writes how large batches are."""
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else tag_prefix + "/"
        writer.add_scalar(f"{prefix}Total_Batch_Size", self.current_batch_size, global_step)
        writer.add_scalar(f"{prefix}Local_Batch_Size", self.current_local_bsz, global_step)
        writer.add_scalar(f"{prefix}Accumulation_Steps", self.accumulation_steps, global_step)

    def profile(self, commit: bool) -> NoReturn:
        """Refused, as all that a loader of one's own would be made of."""
        raise RuntimeError(
            "a loader of your own on AdaptiveDataLoaderHelper: nobody could deal out its batches anew after a resize; "
            "give AdaptiveDataLoader a dataset and a collate_fn instead"
        )

    def context(self) -> NoReturn:
        """As `profile`."""
        self.profile(False)

    def skipdone(self) -> NoReturn:
        """As `profile`."""
        self.profile(False)

    def _is_tuned(self) -> bool:
        return self.training and _training.model is not None and _training.session().group is not None


class AdaptiveDataLoaderMixin:
    """What loaders offer to training scripts."""

    def __init__(self, batch_size: int):
        self._elastic = AdaptiveDataLoaderHelper(batch_size)

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Lets the batch grow, up to `max_batch_size` over all processes and within bounds on each of them."""
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    @property
    def current_local_bsz(self) -> int | None:
        """Samples of a batch on one process; `None` outside of its loop."""
        return self._elastic.current_local_bsz if _training.looping is self._elastic else None

    @property
    def current_batch_size(self) -> int | None:
        """Samples of a step, over all processes; `None` outside of its loop."""
        return self._elastic.current_batch_size if _training.looping is self._elastic else None

    @property
    def accumulation_steps(self) -> int:
        """Batches before the one that ends a step."""
        return self._elastic.accumulation_steps

    @property
    def training(self) -> bool:
        """Whether this is the loader that trains."""
        return self._elastic.training

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Writes how large batches are."""
        self._elastic.to_tensorboard(writer, global_step, tag_prefix)


class AdaptiveDataLoader(DataLoader[Any], AdaptiveDataLoaderMixin):
    """A DataLoader whose `batch_size` is that of all processes together.

    Within a pass every sample is used once, by one of them. `drop_last` is accepted and has no effect.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **kwargs: Any):
        for name in ("sampler", "batch_sampler"):
            if kwargs.pop(name, None) is not None:
                raise ValueError(
                    f"AdaptiveDataLoader({name}=...): samples are dealt out by Pollux; give shuffle=True, or a Subset"
                )
        super().__init__(dataset, batch_size, shuffle=False, **kwargs)
        AdaptiveDataLoaderMixin.__init__(self, batch_size)
        kwargs.pop("drop_last", None)
        self._given = kwargs
        self._elastic.bind(dataset, shuffle, kwargs)

    def __len__(self) -> int:
        """Batches of this process in a pass, as large as they are at the moment."""
        share = -(-len(self.dataset) // env.num_replicas())  # type: ignore[arg-type]
        return max(1, -(-share // self._elastic.current_local_bsz))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Batches of this process: to train with if the model is in training mode, to evaluate otherwise."""
        if not self._trains():
            return _training.loop(self._elastic, self._evaluate)
        self._elastic.train()
        return _training.loop(self._elastic, lambda: _training.train(self._elastic))

    def _trains(self) -> bool:
        elastic, model = self._elastic, _training.model
        if not torch.is_grad_enabled() or (_training.trained is not None and not elastic.training):
            return False
        return elastic.max_batch_size is not None or (model is not None and model.training)

    def _evaluate(self) -> Iterator[Any]:
        epoch = _training.record.current_epoch or 0
        order = _order(len(self.dataset), epoch, self._elastic.is_shuffled)  # type: ignore[arg-type]
        batches = _shares(order, env.replica_rank(), env.num_replicas(), self._elastic.current_local_bsz)
        return iter(DataLoader(self.dataset, batch_sampler=batches, **apart(self._given)))


class ElasticSampler(Sampler[int]):
    """Samples of this process, from an index of an epoch on; the last one is repeated where they do not go round."""

    def __init__(self, dataset: Dataset[Any], shuffle: bool = True):
        self.dataset = dataset
        self.shuffle = shuffle
        self.epoch = 0
        self.index = 0

    def __iter__(self) -> Iterator[int]:
        size: int = len(self.dataset)  # type: ignore[arg-type]
        order = _order(size, self.epoch + (self.index // size << 32), self.shuffle)
        rank, count = env.replica_rank(), env.num_replicas()
        mine = order[self.index % size + rank :: count]
        return iter(mine if len(mine) == len(self) else [*mine, order[rank % size]])

    def __len__(self) -> int:
        size: int = len(self.dataset)  # type: ignore[arg-type]
        return -(-(size - self.index % size) // env.num_replicas())

    def set_epoch(self, epoch: int, index: int = 0) -> None:
        """Which order, and where in it."""
        self.epoch, self.index = epoch, index


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """The loader that is looped over at the moment."""
    return _training.looping


def _order(size: int, seed: int, shuffle: bool) -> list[int]:
    """The same on every process."""
    if not shuffle:
        return list(range(size))
    generator = torch.Generator().manual_seed(_mixed(0, seed))
    return torch.randperm(size, generator=generator).tolist()


def _shares(order: list[int], rank: int, count: int, local_batch: int) -> list[list[int]]:
    """The batches of one process: each sample is in one batch of one process, and all have as many batches."""
    mine = order[rank::count]
    batches = -(-len(order[::count]) // local_batch)
    size, longer = divmod(len(mine), batches) if batches else (0, 0)
    starts = [idx * size + min(idx, longer) for idx in range(batches + 1)]
    shares = [mine[start:stop] for start, stop in zip(starts, starts[1:])]
    return [share for share in shares if share]
