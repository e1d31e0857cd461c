"""A Hugging Face Trainer whose steps are those of Pollux.

The Trainer's own loop knows how many batches an epoch has, and counts them. Here the batch changes and so does the
group, so the loop is ours; what happens in a step, and at its end, is the Trainer's.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import time
from typing import Any

import transformers
from torch.utils import data
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import seed_worker

import pollux.torch as px
import torch
from pollux.torch import UsageError
from pollux.torch._process import current

from ._arguments import ArgumentsMixin, TrainingArguments
from ._flow import replace_flow
from ._place import bare

_KEPT = (
    "epoch",
    "global_step",
    "total_flos",
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Of a Trainer's state: the rest are settings, or differs between processes."""


class TrainerMixin:
    """Put before a Trainer class, so that it adapts: `class MyTrainer(TrainerMixin, Seq2SeqTrainer)`. Its arguments
    must be of a class with `ArgumentsMixin`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        mine: Any = self
        if not isinstance(mine.args, ArgumentsMixin):
            raise UsageError(
                f"a Trainer of Pollux with a {type(mine.args).__module__}.{type(mine.args).__name__}; expected a "
                "pollux.huggingface.TrainingArguments"
            )
        replace_flow(mine.callback_handler.callbacks)
        unwrap = mine.accelerator.unwrap_model
        mine.accelerator.unwrap_model = lambda model, *more, **options: unwrap(bare(model), *more, **options)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As ever, from where the checkpoint in `checkpoint_dir` is."""
        if resume_from_checkpoint:
            raise UsageError(
                f"resume_from_checkpoint={resume_from_checkpoint!r} with Pollux: a training goes on by itself where "
                "the checkpoint in checkpoint_dir is; leave it out"
            )
        return super().train(None, *args, **kwargs)  # type: ignore[misc]

    # Data

    def get_train_dataloader(self) -> px.DataLoader:
        """Batches that are dealt by Pollux."""
        mine: Any = self
        arguments = mine.args
        if mine.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        dataset, collate = mine.train_dataset, mine.data_collator
        if type(dataset).__module__.startswith("datasets."):
            dataset = mine._remove_unused_columns(dataset, description="training")
        else:
            collate = mine._get_collator_with_removed_columns(collate, description="training")
        order: dict[str, Any] = {}
        if not isinstance(dataset, data.IterableDataset):
            sampler = mine._get_train_sampler(dataset)
            order = {"shuffle": True} if isinstance(sampler, data.RandomSampler) else {"sampler": sampler}
        seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
        workers = arguments.dataloader_num_workers
        return px.DataLoader(
            dataset,
            arguments.batch_size,
            max_batch_size=arguments.max_batch_size,
            per_gpu=(arguments.per_device_train_batch_size_min, arguments.per_device_train_batch_size),
            seed=seed,
            collate_fn=collate,
            num_workers=workers,
            pin_memory=arguments.dataloader_pin_memory and torch.cuda.is_available(),
            prefetch_factor=arguments.dataloader_prefetch_factor,
            worker_init_fn=functools.partial(seed_worker, num_workers=workers, rank=px.rank()) if workers else None,
            **order,
        )

    def get_total_train_batch_size(self, args: Any) -> int:
        """Samples of a whole step to begin with."""
        return int(args.batch_size)

    # The loop

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        mine: Any = self
        mine.accelerator.free_memory()
        loader = self.get_train_dataloader()
        epochs, per_epoch, _, samples, _, _, max_steps = mine.set_initial_training_values(args, loader)
        mine._init_training_state(max_steps, per_epoch, epochs, None, trial)
        mine._tr_loss = torch.zeros((), device=args.device)
        mine._loss_samples = torch.zeros((), device=args.device)
        mine._total_loss_scalar, mine._globalstep_last_logged = 0.0, 0
        mine._initial_num_input_tokens_seen, mine._initial_global_step = 0, 0
        mine.current_gradient_accumulation_steps = 1
        model = self._wrap_elastic(max_steps, loader)
        begun = time.time()
        with contextlib.closing(px.epochs(sys.maxsize if args.trains_by_progress else epochs)) as numbers:
            # Meets the others, and takes up what was saved.
            first = next(numbers, None)
            mine.control = mine.callback_handler.on_train_begin(args, mine.state, mine.control)
            if args.eval_on_start:
                mine._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
            is_over = self._is_far or mine.control.should_training_stop
            for epoch in () if is_over or first is None else itertools.chain([first], numbers):
                self._run_elastic_epoch(model, epoch, loader, trial, ignore_keys_for_eval, begun)
                if mine.control.should_training_stop:
                    break
        self._average_loss()
        return mine._finalize_training(trial, samples, begun)

    def _wrap_elastic(self, max_steps: int, loader: px.DataLoader) -> torch.nn.Module:
        """Model, optimiser and schedule, for batches and groups of any size."""
        mine: Any = self
        arguments = mine.args
        if mine._created_lr_scheduler:
            mine.lr_scheduler, mine._created_lr_scheduler = None, False
        mine.create_optimizer()
        mine.create_scheduler(num_training_steps=max_steps)
        # With nobody else there, this is autocast, compilation and the device.
        prepared = mine.accelerator.prepare_model(mine.model)
        handler = mine.accelerator.ddp_handler
        model: torch.nn.Module
        model, optimizer = px.wrap(
            prepared,
            mine.optimizer,
            scaling=arguments.scaling,
            scaler=mine.accelerator.scaler,
            scheduler=mine.lr_scheduler,
            checkpoint_dir=arguments.checkpoint_dir,
            checkpoint_every_s=arguments.checkpoint_every_s,
            **(handler.to_kwargs() if handler is not None else {}),
        )
        mine.optimizer = mine.accelerator.prepare_optimizer(optimizer)
        mine.model_wrapped = model
        px.checkpoint_state(trainer=_Progress(mine))
        handler = mine.callback_handler
        handler.model, handler.optimizer, handler.lr_scheduler = mine.model, mine.optimizer, mine.lr_scheduler
        handler.train_dataloader = loader
        return model

    def _run_elastic_epoch(
        self, model: torch.nn.Module, epoch: int, loader: px.DataLoader, trial: Any, ignored: Any, begun: float
    ) -> None:
        mine: Any = self
        mine.control = mine.callback_handler.on_epoch_begin(mine.args, mine.state, mine.control)
        norm = rate = None
        is_begun = False
        for inputs in loader:
            if not is_begun:
                mine.control = mine.callback_handler.on_step_begin(mine.args, mine.state, mine.control)
            is_begun = not px.is_step_end()
            [inputs], items = mine.get_batch_samples(iter([inputs]), 1, mine.args.device)
            self._count_loss(mine.training_step(model, inputs, items), find_batch_size(inputs) or 1)
            mine.current_flos += float(mine.floating_point_ops(inputs))
            if is_begun:
                mine.control = mine.callback_handler.on_substep_end(mine.args, mine.state, mine.control)
                continue
            norm, rate = self._update(model)
            self._count_step(epoch, loader)
            mine.control = mine.callback_handler.on_step_end(mine.args, mine.state, mine.control)
            mine._maybe_log_save_evaluate(mine._tr_loss, norm, model, trial, epoch, ignored, begun, learning_rate=rate)
            if mine.control.should_epoch_stop or mine.control.should_training_stop:
                break
        else:
            mine.state.epoch = float(epoch + 1)
        mine.control = mine.callback_handler.on_epoch_end(mine.args, mine.state, mine.control)
        mine._maybe_log_save_evaluate(mine._tr_loss, norm, model, trial, epoch, ignored, begun, learning_rate=rate)

    def _update(self, model: torch.nn.Module) -> tuple[Any, float]:
        """The optimiser's step, with what the Trainer does around it; the gradients' norm and the learning rate."""
        mine: Any = self
        norm = mine._clip_grad_norm(model) if mine.args.max_grad_norm > 0 else None
        norm = mine._get_grad_norm(model, grad_norm=norm)
        mine.control = mine.callback_handler.on_pre_optimizer_step(mine.args, mine.state, mine.control)
        mine.optimizer.step()
        mine.control = mine.callback_handler.on_optimizer_step(mine.args, mine.state, mine.control)
        rate = mine._get_learning_rate()
        by_metric = isinstance(mine.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if not (by_metric or mine.accelerator.optimizer_step_was_skipped):
            mine.lr_scheduler.step()
        model.zero_grad()
        return norm, rate

    def _count_step(self, epoch: int, loader: px.DataLoader) -> None:
        mine: Any = self
        training, state = current(), mine.state
        reached = math.floor(training.progress_after_step() + 1e-6)
        state.global_step = reached if mine.args.trains_by_progress else min(reached, state.max_steps)
        if loader.epoch_samples is not None and training.at_hand is not None:
            state.epoch = epoch + training.at_hand.stop / loader.epoch_samples
        # Another rank may be the first since the group changed.
        state.is_world_process_zero = mine.is_world_process_zero()

    @property
    def _is_far(self) -> bool:
        """Whether the progress that was asked for is made."""
        mine: Any = self
        return bool(mine.args.trains_by_progress and mine.state.global_step >= mine.state.max_steps)

    # Around a step

    def _count_loss(self, loss: torch.Tensor, samples: int) -> None:
        """Without a wait for the device."""
        mine: Any = self
        counts = loss.isfinite() if mine.args.logging_nan_inf_filter else torch.ones_like(loss, dtype=torch.bool)
        mine._tr_loss += torch.where(counts, loss.detach() * samples, 0.0)
        mine._loss_samples += counts * samples

    def _average_loss(self) -> None:
        """Has the Trainer's sum of losses hold the mean over the samples of all processes, once for every step."""
        mine: Any = self
        group = current().group
        own = [float(mine._tr_loss), float(mine._loss_samples)]
        total, count = group.sum(own) if group is not None else own
        steps = mine.state.global_step - mine._globalstep_last_logged
        mine._tr_loss.fill_(total / count * steps if count else 0.0)
        mine._loss_samples.zero_()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        mine: Any = self
        begun = time.perf_counter()
        if mine.control.should_log and mine.state.global_step > mine._globalstep_last_logged:
            self._average_loss()
        super()._maybe_log_save_evaluate(*args, **kwargs)  # type: ignore[misc]
        current().clock.leave_out(time.perf_counter() - begun)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """With how the training runs at the moment."""
        if "loss" in logs:
            now = px.status()
            logs |= {
                "batch_size": now.batch_size,
                "gpus": now.world_size,
                "learning_rate_factor": now.learning_rate_factor,
            }
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """One process writes; the others look for what it wrote."""
        group = current().joined()
        if not group.is_leader:
            group.sum([0.0])
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]
        if group.is_leader:
            group.sum([0.0])


class _Progress:
    """What a Trainer knows of its training, for checkpoints and for processes that join."""

    def __init__(self, trainer: Any):
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """All of it that is the same in every process."""
        trainer = self._trainer
        return {
            "state": {name: getattr(trainer.state, name) for name in _KEPT},
            "callbacks": [(type(callback).__name__, callback.state()) for callback in self._callbacks()],
            "last_logged": trainer._globalstep_last_logged,
            "total_loss": trainer._total_loss_scalar,
            "is_stopped": trainer.control.should_training_stop and not trainer._is_far,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with it."""
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        for callback, (name, saved) in zip(self._callbacks(), state["callbacks"]):
            if type(callback).__name__ == name:
                vars(callback).update(vars(type(callback).from_state(saved)))
        trainer._globalstep_last_logged = state["last_logged"]
        trainer._total_loss_scalar = state["total_loss"]
        trainer.control.should_training_stop = state["is_stopped"]

    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]


class Trainer(TrainerMixin, transformers.Trainer):
    """`transformers.Trainer` whose batch, learning rate and GPUs adapt while it trains."""


__all__ = ["Trainer", "TrainerMixin", "TrainingArguments"]
