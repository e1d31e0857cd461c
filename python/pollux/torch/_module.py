"""The model as the training script sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ._errors import UsageError

if TYPE_CHECKING:
    from ._session import Session


class ElasticModule(torch.nn.Module):
    """The user's model, with DDP inside for as long as the group lasts. `module` is the model itself."""

    def __init__(self, module: torch.nn.Module, session: Session):
        super().__init__()
        self.module = module
        self.__dict__["_session"] = session

    def no_sync(self) -> NoReturn:
        """Refused: gradients are accumulated as `per_gpu` and `max_batch_size` ask for it."""
        raise UsageError(
            "no_sync() of a wrapped model; gradients are accumulated by themselves where per_gpu asks for it"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ever."""
        self.__dict__["_session"].throw_away()
        super().zero_grad(set_to_none)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Trains through DDP inside of a loop over px.DataLoader; otherwise it is the model itself."""
        session: Session = self.__dict__["_session"]
        # Whatever is in evaluation mode: layers may be frozen in it while others train.
        if session.ddp is not None and (session.in_loop or self.training) and torch.is_grad_enabled():
            return session.ddp(*args, **kwargs)
        session.apply_between_loops()
        return self.module(*args, **kwargs)
