"""What a training script calls besides its loops."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from pollux._elastic.status import Status

from ._errors import UsageError
from ._gradients import SPARSE
from ._group import Meeting, wait_for_launched
from ._module import ElasticModule
from ._part import is_adam, refuse_strangers
from ._process import begin, current, joined_group
from ._schedule import Schedule, adapt_optimizer, adapt_scaler
from ._session import Options
from ._sharding import check_sharding
from ._shards import launched_place

_RULES = ("adascale", "adamscale", "linear", "sqrt", "legw")


@overload
def wrap(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any
) -> tuple[ElasticModule, torch.optim.Optimizer]: ...


@overload
def wrap(
    model: Sequence[torch.nn.Module], optimizer: Sequence[torch.optim.Optimizer], **options: Any
) -> tuple[list[ElasticModule], list[torch.optim.Optimizer]]: ...


def wrap(
    model: Any,
    optimizer: Any,
    *,
    scaling: str | Callable[[Any], float] = "auto",
    warmup_epochs: float = 0.0,
    scaler: Any = None,
    scheduler: Any = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = 300.0,
    tensorboard: Any = None,
    **ddp_options: Any,
) -> tuple[Any, Any]:
    """Makes a model and its optimiser adapt to batch and group. Both are used as before.

    Several models that train together, such as a generator and a discriminator, are two lists, and lists come back. The
    gradients of the first decide how large a batch pays.

    `scaling` says how the learning rate follows the batch: "adascale" (for SGD), "adamscale" (for Adam and its family),
    "linear", "sqrt", "legw" (with `warmup_epochs`), or a function of a context with `scale`, `noise_sqr`, `noise_var`
    and `epochs`; "auto" chooses one of the first two. `scaler` is the GradScaler in use, `scheduler` a learning-rate
    scheduler or several. Checkpoints go to `checkpoint_dir`, or where the scheduler says, every `checkpoint_every_s`.
    `tensorboard` is a folder or a SummaryWriter. Anything else is passed on to DistributedDataParallel.
    """
    pairs = _pairs(model, optimizer)
    first = pairs[0][1]
    if scaling == "auto":
        if not (is_adam(first) or isinstance(first, torch.optim.SGD)):
            raise UsageError(
                f'no rule is known to suit {type(first).__name__}; give scaling, such as "sqrt" for optimisers '
                "that normalise gradients"
            )
        scaling = "adamscale" if is_adam(first) else "adascale"
    if isinstance(scaling, str) and scaling not in _RULES:
        raise UsageError(f"scaling {scaling!r}; expected auto, {', '.join(_RULES)} and functions")
    if checkpoint_every_s <= 0:
        raise UsageError(f"checkpoint_every_s {checkpoint_every_s}; expected seconds above 0")
    _check_ddp_options(ddp_options)
    check_sharding(pairs, scaler, ddp_options)
    options = Options(scaling, warmup_epochs, checkpoint_dir, checkpoint_every_s, tensorboard, ddp_options)
    session = begin(pairs, scaler, options)
    given = scheduler if isinstance(scheduler, Sequence) else [scheduler] if scheduler is not None else []
    session.schedules = [Schedule(one, session) for one in given]
    for part in session.parts:
        adapt_optimizer(part, session)
    if scaler is not None:
        adapt_scaler(scaler, session)
    wrapped = [ElasticModule(part, session) for part in session.parts]
    return (wrapped[0], first) if isinstance(model, torch.nn.Module) else (wrapped, [own for _, own in pairs])


def checkpoint_state(**objects: Any) -> None:
    """Keeps objects of your own across restarts and resizes, by name: anything with `state_dict` and
    `load_state_dict`, dicts and lists.

    >>> history = []
    >>> px.checkpoint_state(ema=ema, history=history)
    """
    session = current()
    for name, value in objects.items():
        session.archive.user_states.add(name, value)


def is_step_end() -> bool:
    """Whether the batch that the loop has is the last micro-batch of a step, so that `optimizer.step()` changes the
    model: for averages of the model, counters and logs.

    >>> if px.is_step_end():
    ...     ema.update_parameters(model)
    """
    session = current()
    if not session.in_loop:
        raise UsageError("px.is_step_end() outside of a loop over px.DataLoader; ask inside of `for batch in loader`")
    return session.is_step_end


def rank() -> int:
    """This process's place in the group, 0 for the one that prints and evaluates; before the loops, the one it was
    started with."""
    group = joined_group()
    return group.place if group is not None else launched_place()[0]


def world_size() -> int:
    """Processes of the group; before the loops, of the one that this process was started for."""
    group = joined_group()
    return group.processes if group is not None else launched_place()[1]


def barrier() -> None:
    """Waits until every process is here. Before the loops too, so that rank 0 can prepare what all need:

    >>> if px.rank() == 0:
    ...     download()
    >>> px.barrier()
    """
    group = joined_group()
    if group is not None:
        group.meet(Meeting.BARRIER)
    elif "POLLUX_JOB_ID" in os.environ:
        raise UsageError(
            "px.barrier() before the loops under a scheduler, where processes join at any time; let rank 0 prepare "
            "a file under another name and rename it, and the others wait for the file"
        )
    else:
        wait_for_launched()


def status() -> Status:
    """How the training runs at the moment."""
    session = current()
    group, terms = session.joined(), session.terms
    figures = session.brain.figures() if session.brain else {}
    return Status(
        epoch=session.position.epoch,
        batch_size=terms.tuning.batch_size(group.world_size),
        local_batch=-(-terms.tuning.local_batch // group.shards),
        accumulation_steps=terms.tuning.accumulation_steps,
        world_size=group.processes,
        learning_rate_factor=terms.learning_rate_factor,
        samples=session.position.samples,
        baseline_steps=terms.baseline_steps,
        noise_scale=figures.get("noise_scale"),
        efficiency=figures.get("efficiency"),
        samples_per_s=figures.get("samples_per_s"),
    )


def _pairs(model: Any, optimizer: Any) -> list[tuple[torch.nn.Module, torch.optim.Optimizer]]:
    """Models with their optimisers, which must fit each other."""
    is_one = isinstance(model, torch.nn.Module)
    models, optimizers = ([model], [optimizer]) if is_one else (list(model), optimizer)
    if not is_one and not (isinstance(optimizers, Sequence) and len(optimizers) == len(models) > 0):
        raise UsageError("px.wrap of several models; expected two lists, with an optimiser for each model")
    for one, own in zip(models, optimizers):
        if isinstance(one, ElasticModule | torch.nn.parallel.DistributedDataParallel):
            raise UsageError(f"px.wrap of a {type(one).__name__}; give the model itself, DDP is inside")
        if not isinstance(own, torch.optim.Optimizer):
            raise UsageError(f"px.wrap with a {type(own).__name__} for an optimiser; expected a torch.optim.Optimizer")
        refuse_strangers(one, own)
        for name, layer in one.named_modules():
            if getattr(layer, "sparse", False) is True:
                raise UsageError(SPARSE.format(what=f"layer {name or type(layer).__name__} has a sparse gradient"))
    parameters = [parameter for one in models for parameter in one.parameters()]
    if len(set(parameters)) < len(parameters):
        raise UsageError(
            f"px.wrap of models that share {len(parameters) - len(set(parameters))} parameters, each of which would "
            "average them by itself; put the models into one module with one optimiser"
        )
    return list(zip(models, optimizers))


def _check_ddp_options(options: dict[str, Any]) -> None:
    known = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    for name in options:
        if name not in known or name in ("module", "process_group"):
            raise UsageError(
                f"px.wrap({name}=...); expected its own options and those of DistributedDataParallel but groups"
            )
    for name, advice in (("mixed_precision", "use torch.autocast"), ("delay_all_reduce_named_params", "leave it out")):
        if options.get(name):
            raise UsageError(f"px.wrap({name}=...): what DDP does for it cannot be undone for another size; {advice}")
    if options.get("static_graph"):
        raise UsageError(
            "px.wrap(static_graph=True): DDP would take one micro-batch of a step for the whole; leave it out, and "
            "give find_unused_parameters=True if parts of the model get no gradient"
        )
