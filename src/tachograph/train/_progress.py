"""Prints the progress of a training: a line now and then, which also reads well in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.text import format_duration

__all__ = ["ProgressPrinter"]

_INTERVAL_S = 10.0


class ProgressPrinter(TrainerCallback):
    """Prints the first and the last logged step, evaluations, and one line every ten seconds in between."""

    def __init__(self) -> None:
        self._start_s = self._last_s = time.monotonic()
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start to count."""
        self._start_s, self._last_s = time.monotonic(), 0.0
        self._first_step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print a line, if it is time for one."""
        now_s = time.monotonic()
        logged_values = {name: (logs or {}).get(name) for name in ("loss", "eval_loss", "learning_rate")}
        values = {name: value for name, value in logged_values.items() if isinstance(value, (int, float))}
        is_due = now_s - self._last_s >= _INTERVAL_S or state.global_step >= state.max_steps or "eval_loss" in values
        if not state.is_world_process_zero or not is_due or not ({"loss", "eval_loss"} & set(values)):
            return
        self._last_s = now_s
        num_done = state.global_step - self._first_step
        num_left = state.max_steps - state.global_step
        time_left = (
            f", {format_duration((now_s - self._start_s) / num_done * num_left)} left" if num_done and num_left else ""
        )
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"[train] step {state.global_step}/{state.max_steps}: {metrics}{time_left}", file=sys.stderr, flush=True)  # noqa: T201
