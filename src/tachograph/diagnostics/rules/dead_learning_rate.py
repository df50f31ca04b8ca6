"""The weights do not change."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, SignalStats
from tachograph.diagnostics._text import figure
from tachograph.records import finite_or_none

__all__ = ["DeadLearningRate"]

_MIN_DIGITS = 4
"""A loss with at most this many digits may have been rounded to the same number."""


class DeadLearningRate(Rule):
    """The learning rate is zero in the middle of a run, or the loss repeats exactly the same number.

    A learning rate of zero is normal in the very first steps and at the end of a schedule. It is reported if it lasts,
    unless at most 5 % of the planned steps remain. A loss that repeats exactly, while the gradient is not zero, means
    the same where no learning rate is recorded. A loss of exactly zero does not count, nor does any loss in
    reinforcement learning.
    """

    name = "dead_learning_rate"
    severity = "critical"
    meaning = (
        "The weights do not change. Either the scheduler is stepped too often (per batch although it counts epochs), "
        "or it was created for fewer steps than the run has, or optimizer.step() does not update the parameters that "
        "the loss depends on."
    )
    advice = (
        "Compare the scheduler's total steps with the steps of the run, taking gradient accumulation into account.",
        "Check that optimizer.step() is called and that its parameter groups contain the model being trained.",
    )
    block_signals = ("lr", "loss")
    record_kinds = ("start",)
    absorbs = ("plateau",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        blocks: Annotated[int, Meta(description="Consecutive blocks of 16 values for which it must last.", ge=1)] = 2

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all blocks."""
        self._num_blocks = {"lr": 0, "loss": 0}
        self._max_steps: float | None = None

    def on_record(self, record: dict[str, Any]) -> None:
        """Read the number of planned steps."""
        self._max_steps = finite_or_none(record.get("max_steps"))

    def on_block(self, stats: SignalStats) -> None:
        """Check for a learning rate of zero, or a constant loss."""
        signal, values = stats.signal, stats.values
        is_dead = values[-1] <= 0 if signal == "lr" else self._is_constant(values)
        self._num_blocks[signal] = self._num_blocks[signal] + 1 if is_dead else 0
        if not is_dead:
            if self.is_open(signal):
                self.resolve(f"{stats.metric} is at {figure(stats.level)}", key=signal)
        elif self._num_blocks[signal] == self.thresholds.blocks and not self._is_near_end():
            num_values, step = BLOCK * self._num_blocks[signal], self.context.step
            title = f"Learning rate has been zero for {num_values} values, up to step {step}"
            if signal == "loss":
                title = f"Loss is exactly {figure(values[-1])} in all of the last {num_values} values"
            evidence = {"metric": stats.metric, "value": values[-1], "step": step, "window_values": num_values}
            self.report(title, "The model is not learning.", key=signal, evidence=evidence)

    def _is_constant(self, values: list[float]) -> bool:
        """Return whether the loss does not change although it should, and no alert on the learning rate explains it."""
        is_explained = self.is_open("lr") or self.context.is_reinforcement
        is_exact = values[0] == values[-1] != 0 and _num_digits(values[0]) > _MIN_DIGITS
        return is_exact and not is_explained and self._has_gradient()

    def _has_gradient(self) -> bool:
        stats = self.signals.get("grad_norm")
        return stats is None or stats.level is None or stats.level > 0

    def _is_near_end(self) -> bool:
        return bool(self._max_steps and self.context.step is not None and self.context.step >= 0.95 * self._max_steps)


def _num_digits(value: float) -> int:
    """Return the number of significant digits."""
    return len(repr(float(value)).partition("e")[0].replace(".", "").replace("-", "").strip("0"))
