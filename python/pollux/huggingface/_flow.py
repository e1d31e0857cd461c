"""When a Trainer logs, evaluates, saves and ends, if a step counts for more than one."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import DefaultFlowCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy


class FlowCallback(DefaultFlowCallback):
    """In the place of the callback that every Trainer has: `global_step` counts progress, in steps of `batch_size`
    samples, so that a step of a larger batch may pass several."""

    def __init__(self) -> None:
        self._before = 0

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Notes from where the step goes on."""
        self._before = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Decides what is due after a step."""

        def is_due(every: int) -> bool:
            return bool(every > 0 and state.global_step // every > self._before // every)

        is_first = args.logging_first_step and self._before == 0 < state.global_step
        if is_first or (args.logging_strategy == IntervalStrategy.STEPS and is_due(state.logging_steps)):
            control.should_log = True
        ends = args.trains_by_progress and state.global_step >= state.max_steps
        may_evaluate = args.eval_strategy == IntervalStrategy.STEPS and args.eval_delay <= state.global_step
        if may_evaluate and (ends or is_due(state.eval_steps)):
            control.should_evaluate = True
        if args.save_strategy == SaveStrategy.STEPS and (ends or is_due(state.save_steps)):
            control.should_save = True
        if ends:
            control.should_training_stop = True
        return control


def replace_flow(callbacks: list[TrainerCallback]) -> None:
    """Puts ours where the Trainer's own is, which comes before those of the user."""
    for idx, callback in enumerate(callbacks):
        if type(callback) is DefaultFlowCallback:
            callbacks[idx] = FlowCallback()
