"""The model as the training script sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ._errors import UsageError
from ._part import Part, unused
from ._state import bare

if TYPE_CHECKING:
    from ._session import Session


class ElasticModule(torch.nn.Module):
    """The user's model, with DDP inside for as long as the group lasts. `module` is the model itself; whatever else is
    asked for is the model's own."""

    def __init__(self, part: Part, session: Session):
        super().__init__()
        self.module = part.module
        # Neither is a part of the model.
        self.__dict__.update(_part=part, _session=session)

    def __getattr__(self, name: str) -> Any:
        """`config`, `save_pretrained`, `generate`: what the model has, it has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def __reduce__(self) -> Any:
        """Copies and files are of the model alone: averages of it, `torch.save`."""
        return _itself, (self.module,)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own, under its own names."""
        return bare(self.module).state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return bare(self.module).load_state_dict(*args, **kwargs)

    def no_sync(self) -> NoReturn:
        """Refused: gradients are accumulated as `per_gpu` and `max_batch_size` ask for it."""
        raise UsageError(
            "no_sync() of a wrapped model; gradients are accumulated by themselves where per_gpu asks for it"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ever."""
        self.__dict__["_part"].discard()
        super().zero_grad(set_to_none)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Trains through DDP inside of a loop over px.DataLoader; otherwise it is the model itself."""
        session: Session = self.__dict__["_session"]
        part: Part = self.__dict__["_part"]
        # Whatever is in evaluation mode: layers may be frozen in it while others train.
        is_training = (session.in_loop or self.training) and torch.is_grad_enabled()
        if part.ddp is not None and is_training and part.trains():
            session.is_training = True
            if session.in_loop:
                part.begin_forward()
            return self._train(part, part.ddp, args, kwargs)
        session.is_training = is_training and session.in_loop
        return self.module(*args, **kwargs)

    def _train(self, part: Part, ddp: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        part.forget_watch()
        try:
            outputs = ddp(*args, **kwargs)
        except RuntimeError as error:
            if "Expected to have finished reduction" in str(error):
                raise UsageError(unused(self.module)) from error
            raise
        part.has_forward = True
        before = part.reader.backwards

        def begin_backward(_gradient: torch.Tensor) -> None:
            part.begin_backward(before)

        tensors = list(_tensors(outputs))
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(begin_backward)
        if not tensors:
            part.watch(begin_backward)
        return outputs


def _itself(module: torch.nn.Module) -> torch.nn.Module:
    return module


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """All tensors of what a model gives."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from _tensors(value)
    elif dataclasses.is_dataclass(outputs):
        for field in dataclasses.fields(outputs):
            yield from _tensors(getattr(outputs, field.name))
