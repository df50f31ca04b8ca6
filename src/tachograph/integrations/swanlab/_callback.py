"""`SwanLabRLHFCompletionCallback`: samples of a TRL trainer, under the name of Axolotl's integration."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.integrations.transformers import find_trainer
from tachograph.integrations.trl import CompletionCapture, capture_completions
from tachograph.recorder import latest_run

__all__ = ["SwanLabRLHFCompletionCallback"]

_TRAINER_TYPES = ("cpo", "dpo", "grpo", "kto", "orpo", "rloo")


class SwanLabRLHFCompletionCallback(TrainerCallback):
    """Records samples of the texts that a TRL trainer generates or compares: ``Trainer(…, callbacks=[…])``.

    The samples go to the run that is current when training starts; without one, nothing is recorded. Use it with a run
    of your own: `TachographCallback` records the same samples already.

    Args:
        log_interval: steps between two tables.
        max_completions: maximum number of samples in a table.
        table_name: the name of the table.

    Raises:
        ConfigError: if a number is below 1.
    """

    def __init__(
        self, log_interval: int = 100, max_completions: int = 128, table_name: str = "rlhf_completions"
    ) -> None:
        for name, value in (("log_interval", log_interval), ("max_completions", max_completions)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
        self.log_interval = log_interval
        self.max_completions = max_completions
        self.table_name = table_name
        self.trainer_type: str | None = None
        """Such as `dpo`, once training has started; `unknown` if samples of the trainer cannot be recorded."""
        self._capture: CompletionCapture | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the trainer, which does not pass itself to its callbacks, and observe it."""
        with guard("capturing completions"):
            trainer, run = find_trainer(self), latest_run()
            names = [kind.__name__.lower() for kind in type(trainer).__mro__]
            trainer_types = (kind for name in names for kind in _TRAINER_TYPES if name == f"{kind}trainer")
            self.trainer_type = next(trainer_types, "unknown")
            if trainer is not None and run is not None and self._capture is None:
                every, size, table = self.log_interval, self.max_completions, self.table_name
                self._capture = capture_completions(trainer, run, every=every, max_buffer=size, table=table)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record a table if one is due."""
        if self._capture is not None:
            self._capture.on_step_end(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the trainer and record the rest."""
        if self._capture is not None:
            capture, self._capture = self._capture, None
            capture.close()
