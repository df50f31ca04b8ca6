"""`tacho replay`: repeat the steps of a training before a fault, and check every operation.

The training starts again from the last checkpoint before the fault, so the order of the data and the random generators
are the same as in the run. Only code that `tacho train` runs for the config of the user is executed: the run and its
dump contribute step numbers and losses.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tachograph.black_box import FailedOperation, OperationTrace, trace_operations
from tachograph.exceptions import ConfigError
from tachograph.train._job import load

__all__ = ["Replay", "ReplayedStep", "replay"]

_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,12})")
_OVERRIDES = ("resume_from_checkpoint=null", "auto_resume_from_checkpoints=false")
_MAX_NAMES = 16


class ReplayedStep(msgspec.Struct):
    """A step that was repeated."""

    step: int
    loss: float
    recorded_loss: float | None
    """The loss that the run has recorded; rounded, if the run rounds it."""


class Replay(msgspec.Struct, kw_only=True):
    """The findings of a repeated part of a training."""

    checkpoint: str | None
    """The checkpoint that it started from; None for the beginning of the training."""
    steps: list[ReplayedStep] = []
    fault_step: int | None = None
    """The step in which an operation returned NaN."""
    operation: FailedOperation | None = None
    """The operation with which the NaN began."""
    first_nan: FailedOperation | None = None
    """The first operation that returned NaN; the same one, unless an overflow came before it."""
    bad_weights: list[str] = []
    """Parameters that were not finite when the first checked step began."""
    num_operations: int = 0


def replay(
    config: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    *,
    first_checked: int,
    last_step: int,
    recorded_losses: Mapping[int, float] | None = None,
    checkpoint: str | None = None,
) -> Replay:
    """Repeat a training up to a fault.

    Args:
        config: the config of the training.
        overrides: changes of the config, as of `load`.
        first_checked: the first step whose operations are checked.
        last_step: the last step to repeat.
        recorded_losses: the losses of the run by step, to compare.
        checkpoint: the checkpoint to start from; by default the last one before `first_checked` in `output_dir`.

    Raises:
        ConfigError: if the config is invalid, or the checkpoint is not before the fault.
    """
    job = load(config, [*overrides, *_OVERRIDES])
    if checkpoint is None:
        checkpoint = _last_checkpoint(job.config.output_dir, first_checked)
    elif _step_of(Path(checkpoint)) is None or not Path(checkpoint, "trainer_state.json").is_file():
        raise ConfigError(f"--checkpoint {checkpoint!r}: expected a folder checkpoint-NUMBER with a trainer_state.json")
    result = Replay(checkpoint=checkpoint)
    job.repeat(_make_callback(result, first_checked, last_step, recorded_losses or {}), checkpoint)
    return result


def _last_checkpoint(output_dir: str, before_step: int) -> str | None:
    folder = Path(output_dir)
    found = [(step, path) for path in folder.glob("checkpoint-*") if (step := _step_of(path)) is not None]
    usable = [(step, path) for step, path in found if step < before_step and (path / "trainer_state.json").is_file()]
    return str(max(usable)[1]) if usable else None


def _step_of(path: Path) -> int | None:
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else None


def _make_callback(result: Replay, first_checked: int, last_step: int, losses: Mapping[int, float]) -> Any:
    from transformers import TrainerCallback

    class _Replayer(TrainerCallback):
        """Traces the checked steps, and stops after the fault."""

        def __init__(self) -> None:
            self._block = contextlib.ExitStack()
            self._trace: OperationTrace | None = None
            self._losses: list[float] = []

        def attach(self, trainer: Any) -> None:
            """Observe the losses of a trainer."""
            inner_step = trainer.training_step

            def training_step(*arguments: Any, **options: Any) -> Any:
                if self._trace is not None:
                    self._trace.phase = "forward"
                loss = inner_step(*arguments, **options)
                self._losses.append(float(loss.detach()))
                return loss

            trainer.training_step = training_step

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self._losses.clear()
            if state.global_step + 1 >= first_checked:
                if self._trace is None:
                    names = [name for name, value in model.named_parameters() if not value.detach().isfinite().all()]
                    result.bad_weights = names[:_MAX_NAMES]
                self._trace = self._block.enter_context(trace_operations(model))

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self._trace is not None:
                self._trace.phase = "optimizer"

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._block.close()
            step, trace = int(state.global_step), self._trace
            result.steps.append(ReplayedStep(step, math.fsum(self._losses), losses.get(step)))
            if trace is not None:
                result.num_operations += trace.num_operations
                if trace.first_nan is not None:
                    result.fault_step, result.operation, result.first_nan = step, trace.first, trace.first_nan
            if result.fault_step is not None or result.bad_weights or step >= last_step:
                control.should_training_stop = True

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._block.close()

    return _Replayer()
