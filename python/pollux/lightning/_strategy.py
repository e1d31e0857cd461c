"""Lightning's Trainer: the loop is Lightning's, and Pollux's loops go along with it.

Trainer.fit ──> on_train_start: meet the others, take up what was saved
   epoch ──> _Epoch: px.epochs goes on, batches come from px.DataLoader
      batch ──> training_step through DDP, optimiser's step where Pollux says so
   on_train_epoch_end: the last step is ended, everybody checks in
on_train_end ──> the last checkpoint
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from torch.utils import data

import pollux.torch as px
import torch
from pollux.torch import UsageError
from pollux.torch._process import current

from ._place import Elastic, reduced, refuse, session, trained_group


class ElasticStrategy(Elastic, SingleDeviceStrategy):
    """For `lightning.Trainer`, whose training loader is a px.DataLoader. It takes the options of `px.wrap`.

    >>> trainer = lightning.Trainer(strategy=ElasticStrategy(checkpoint_dir="checkpoints"), max_epochs=10)
    >>> trainer.fit(model, px.DataLoader(dataset, batch_size=32, max_batch_size=256, per_gpu=(4, 64)))
    """

    strategy_name = "pollux"
    handles_gradient_accumulation = True

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.loops: _Loops | None = None

    def setup(self, trainer: pl.Trainer) -> None:
        """Makes the model and its optimiser adapt, if they are to be trained."""
        super().setup(trainer)
        if trainer.state.fn != "fit":
            return
        _check(trainer)
        given = list(trainer.optimizers)
        if len(given) != 1:
            raise UsageError(f"{len(given)} optimisers with Pollux; expected one")
        assert self.lightning_module is not None
        scaler = getattr(self.precision_plugin, "scaler", None)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        model, optimizer = px.wrap(
            self.lightning_module, given[0], scaler=scaler, scheduler=schedulers, **self.wrapping
        )
        self.model, self.optimizers = model, [optimizer]
        self.loops = _Loops(trainer)
        if not any(isinstance(callback, _LoopCallback) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, _LoopCallback(self))
        epoch_loop = trainer.fit_loop.epoch_loop
        epoch_loop._should_accumulate = _should_accumulate
        # A process that is asked to end saves, and leaves when the others know; Lightning's would end it at once.
        trainer._signal_connector.register_signal_handlers = lambda: None
        px.checkpoint_state(lightning=_Progress(trainer))

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """For evaluation; a training goes on from a checkpoint of Pollux."""
        assert self.lightning_module is not None
        if self.lightning_module.trainer.state.fn == "fit":
            raise UsageError(
                f"ckpt_path={checkpoint_path!r} with Pollux: a training goes on by itself from checkpoint_dir; "
                "leave it out"
            )
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return loaded

    def process_dataloader(self, dataloader: object) -> object:
        """Batches that are dealt by Pollux, an epoch at a time."""
        return _Epoch(dataloader, self) if isinstance(dataloader, px.DataLoader) else dataloader

    @property
    def is_distributed(self) -> bool:
        """Whether there is a group to reduce what is logged over."""
        return trained_group() is not None

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Every process evaluates all of the data."""
        return {"num_replicas": 1, "rank": 0}

    def on_train_start(self) -> None:
        """Meets the others, and takes up what was saved."""
        assert self.loops is not None
        self.loops.begin()

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Forward, backward and, after the last micro-batch of a step, the optimiser."""
        module = model or self.lightning_module
        if _should_accumulate():
            return closure()
        if getattr(self.precision_plugin, "scaler", None) is not None:
            return super().optimizer_step(optimizer, closure, module, **kwargs)
        result = closure()
        self.precision_plugin._after_closure(module, optimizer)
        optimizer.step(**kwargs)
        return result

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean or the sum over all processes."""
        return reduced(tensor, reduce_op)

    def teardown(self) -> None:
        """Leaves the loops, also after an error."""
        if self.loops is not None:
            self.loops.close()
        super().teardown()


def _check(trainer: pl.Trainer) -> None:
    whole = "every sample of an epoch is used; leave it out"
    refuse(
        {
            "accumulate_grad_batches": (
                trainer.accumulate_grad_batches,
                1,
                "give px.DataLoader the whole batch, and per_gpu what fits; leave it out",
            ),
            "max_steps": (trainer.max_steps, -1, "steps change their size; give max_epochs"),
            "limit_train_batches": (trainer.limit_train_batches, 1.0, whole),
            "overfit_batches": (trainer.overfit_batches, 0.0, whole),
        }
    )
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_interval != 1.0:
        raise UsageError(
            f"val_check_interval={trainer.val_check_interval} with Pollux: nobody knows how many batches an epoch has; "
            "expected 1.0 and whole numbers of batches"
        )


def _should_accumulate() -> bool:
    """Lightning also asks before and after the loop."""
    begun = session()
    return begun is not None and begun.in_loop and not px.is_step_end()


def _has_last_batch(loader: px.DataLoader) -> bool:
    """Whether the loop has the last batch of its epoch."""
    training = current()
    at = training.at_hand
    return training.is_step_end and at is not None and loader.left(training.position.epoch, at.stop) == 0


class _Loops:
    """Pollux's loops, of which Lightning asks for one batch after the other."""

    def __init__(self, trainer: pl.Trainer):
        self._trainer = trainer
        self._epochs: Generator[int, None, None] | None = None
        self._first: int | None = None
        self._batches: Iterator[Any] | None = None

    def begin(self) -> None:
        """Goes to the epoch that is to be trained."""
        fit_loop = self._trainer.fit_loop
        assert fit_loop._combined_loader is not None
        others = [loader for loader in fit_loop._combined_loader.flattened if not isinstance(loader, _Epoch)]
        if others:
            raise UsageError(f"a {type(others[0]).__name__} for training with Pollux; expected a px.DataLoader")
        if fit_loop.max_epochs is None or fit_loop.max_epochs < 0:
            raise UsageError(f"max_epochs={fit_loop.max_epochs} with Pollux; expected whole numbers from 1")
        self._epochs = px.epochs(fit_loop.max_epochs)
        self._first = next(self._epochs, None)
        at = fit_loop.max_epochs if self._first is None else self._first
        progress = fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = at
        if self._trainer.val_check_interval == 1.0:
            # After the last batch, whichever that is.
            self._trainer.val_check_batch = math.inf

    def epoch(self, loader: px.DataLoader) -> Iterator[Any]:
        """Batches of the next epoch."""
        assert self._epochs is not None
        if self._first is None and next(self._epochs, None) is None:
            return
        self._first = None
        fit_loop = self._trainer.fit_loop
        fetcher: Any = fit_loop._data_fetcher
        self._batches = iter(loader)
        # A loop of its own over the iterator would close it when Lightning drops this one.
        while (batch := next(self._batches, _END)) is not _END:
            is_last = _has_last_batch(loader)
            count = fetcher.fetched + 1
            # As many as there are so far, and one more unless this is the last.
            fetcher.length = fit_loop.max_batches = count if is_last else count + 1
            yield batch
        self._batches = None

    def end_epoch(self) -> None:
        """Ends the last step, or leaves the epoch in the middle if the user stops there."""
        if self._batches is None:
            return
        batches, self._batches = self._batches, None
        if self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            next(batches, None)
        else:
            batches.close()  # type: ignore[attr-defined]
            self.close()

    def finish(self) -> None:
        """All epochs are trained."""
        if self._epochs is not None:
            next(self._epochs, None)
        self.close()

    def close(self) -> None:
        """Leaves the loops where they are."""
        epochs, self._epochs = self._epochs, None
        if epochs is not None:
            epochs.close()


_END = object()


class _Epoch:
    """A px.DataLoader as Lightning sees it."""

    def __init__(self, loader: px.DataLoader, strategy: ElasticStrategy):
        if isinstance(loader.dataset, data.IterableDataset):
            raise UsageError(
                "an iterable dataset with Pollux and Lightning, which has to know the last batch of an epoch; "
                "expected datasets with len() and indices"
            )
        self.loader = loader
        self.dataset = loader.dataset
        self._strategy = strategy

    def __len__(self) -> int:
        """Steps of `batch_size` samples, in which schedules are planned."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        # Lightning asks for an iterator earlier than for a batch, when there may be no optimiser yet.
        assert self._strategy.loops is not None
        yield from self._strategy.loops.epoch(self.loader)


class _LoopCallback(Callback):
    """Tells the loops when Lightning is through with an epoch. It comes before all others."""

    def __init__(self, strategy: ElasticStrategy):
        self._strategy = strategy
        self._begun = 0.0

    @property
    def _loops(self) -> _Loops:
        assert self._strategy.loops is not None
        return self._strategy.loops

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends the epoch."""
        self._loops.end_epoch()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends the training."""
        self._loops.finish()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A validation within a step is no part of it."""
        self._begun = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The step goes on."""
        begun = session()
        if begun is not None and begun.in_loop:
            begun.clock.leave_out(time.perf_counter() - self._begun)


class _Progress:
    """What a Trainer knows of its training, for checkpoints and for processes that join."""

    def __init__(self, trainer: pl.Trainer):
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """All of it that is the same in every process."""
        loop = self._trainer.fit_loop.epoch_loop
        return {
            "steps": loop.automatic_optimization.optim_progress.optimizer.step.total.completed,
            "batches": loop.batch_progress.total.completed,
            "logged": loop._batches_that_stepped,
            "callbacks": call._call_callbacks_state_dict(self._trainer),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with it."""
        loop = self._trainer.fit_loop.epoch_loop
        steps = loop.automatic_optimization.optim_progress.optimizer.step.total
        steps.ready = steps.completed = state["steps"]
        batches = loop.batch_progress.total
        batches.ready = batches.started = batches.processed = batches.completed = state["batches"]
        loop._batches_that_stepped = state["logged"]
        for callback in self._trainer.callbacks:
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])
