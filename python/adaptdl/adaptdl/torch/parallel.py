"""The model as AdaptDL's scripts see it."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pollux.torch as px
import torch
from pollux.torch._process import current

from .. import _replay, env
from . import _training
from .gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from .scaling_rules import AdamScale, AdaScale, LEGWScale, ScalingRuleBase, scaling


class AdaptiveDataParallel(torch.nn.Module):
    """A model that trains on all processes of the job. `optimizer`, `lr_scheduler` and `mp_scaler` are adapted in
    place; further options are those of DistributedDataParallel. What was saved is put back when the first loop begins.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any = None,
        mp_scaler: Any = None,
        scaling_rule: ScalingRuleBase | None = None,
        name: str = "adaptdl-dataparallel",
        **kwargs: Any,
    ):
        if _training.model is not None:
            raise RuntimeError(
                f"a second AdaptiveDataParallel ({name}); a training has one: put the models into one torch.nn.Module, "
                "and their parameters into one optimiser"
            )
        super().__init__()
        is_adam = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
        self.scaling_rule = scaling_rule or (AdamScale() if is_adam else AdaScale())
        noise = AdamGradientNoiseScale if isinstance(self.scaling_rule, AdamScale) else GradientNoiseScale
        self.gns = noise(self, optimizer, mp_scaler)
        rule = self.scaling_rule
        elastic, _ = px.wrap(
            model,
            optimizer,
            scaling=scaling(rule),
            warmup_epochs=rule.base_warmup_epochs if isinstance(rule, LEGWScale) else 0.0,
            scaler=mp_scaler,
            scheduler=lr_scheduler,
            checkpoint_dir=env.checkpoint_path(),
            **kwargs,
        )
        self.scaling_rule.initialize(self, optimizer, patch_optimizer=True)
        self.module = model
        self.__dict__["_elastic"] = elastic
        self._state = types.SimpleNamespace(
            model=model, optimizer=optimizer, lr_scheduler=lr_scheduler, mp_scaler=mp_scaler
        )
        if lr_scheduler is not None:
            _step_once(lr_scheduler)
        parameter = next((one for one in model.parameters() if one.requires_grad), None)
        if parameter is not None:
            parameter.register_hook(_refuse_outside)
        _training.model = self
        _training.adopt(current())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""
        session = current()
        if session.in_loop or not torch.is_grad_enabled():
            return self.__dict__["_elastic"](*args, **kwargs)
        # Nothing is trained here, so that DDP, which would wait for a backward(), is not to hear of it.
        session.is_training = False
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> AdaptiveDataParallel:
        """As ever."""
        self.__dict__["_elastic"].training = mode
        return super().train(mode)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Has no effect, as in AdaptDL."""
        warnings.warn("zero_grad() of an AdaptiveDataParallel has no effect; call the optimiser's", stacklevel=2)

    @property
    def gain(self) -> float:
        """Steps of `batch_size` samples that a step is worth at the moment."""
        return current().terms.gain

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Writes what is known of gradients and learning rate."""
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else tag_prefix + "/"
        scalars = {
            "Gradient_Norm_Sqr": self.gns.sqr_avg(),
            "Gradient_Variance": self.gns.var_avg(),
            "Gain": self.gain,
            "Learning_Rate_Factor": current().terms.learning_rate_factor,
            "Accum_Scale": self.gns.accum_scale,
            "Accum_Count": self.gns.accum_count,
            "Progress": self.gns.get_progress(),
        }
        for name, value in scalars.items():
            writer.add_scalar(prefix + name, value, global_step)


def _refuse_outside(_gradient: torch.Tensor) -> None:
    if _training.looping is None:
        raise RuntimeError(
            "backpropagation outside AdaptiveDataLoader: nobody knows how many samples it stands for; train inside of "
            "`for batch in loader`"
        )
    if not current().in_loop:
        raise RuntimeError(
            "backpropagation in a loop that began as an evaluation: the model was in evaluation mode, gradients off, "
            "or another loader trains; call model.train() before the loop, and make the loader that trains first"
        )


def _step_once(scheduler: Any) -> None:
    """What is run again after a restart, or by a process that joins, has changed the learning rate already."""
    original = scheduler.step

    def step(_self: Any, *args: Any, **kwargs: Any) -> None:
        if not _replay.is_replaying:
            original(*args, **kwargs)

    scheduler.step = types.MethodType(step, scheduler)
