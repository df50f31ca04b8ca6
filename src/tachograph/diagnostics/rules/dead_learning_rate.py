"""The weights do not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, BlockBatch, SignalStats
from tachograph.diagnostics._text import figure

__all__ = ["DeadLearningRate"]

_MIN_DIGITS = 4
"""A loss with at most this many digits may have been rounded to the same number."""

_FINAL_SHARE = 0.05  # of the planned steps
_GRADUAL_FINAL_SHARE = 0.15
_GRADUAL_SHARE = 0.1  # of the highest learning rate, from which a schedule may go on to zero


class DeadLearningRate(Rule):
    """The learning rate is zero in the middle of a run, or the loss repeats exactly the same number.

    A learning rate of zero is normal in the very first steps and at the end of a schedule. It is reported if it lasts,
    unless at most 5 % of the planned steps remain, or 15 % if it fell to zero gradually. Where the number of planned
    steps is unknown, a learning rate that fell gradually is reported after the run has continued for as long: many logs
    round the last values of a schedule to zero. A loss that repeats exactly, while the gradient is not zero, means
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
    absorbs = ("plateau",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        blocks: Annotated[int, Meta(description="Consecutive blocks of 16 values for which it must last.", ge=1)] = 2

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all blocks."""
        self._num_blocks = {"lr": 0, "loss": 0}
        self._peak_lr = 0.0
        self._last_lr = 0.0  # the last one above zero
        self._zero_since = (0, 0)  # step and number of values

    def on_block(self, stats: SignalStats) -> None:
        """Check for a learning rate of zero, or a constant loss."""
        signal, values = stats.signal, stats.values
        if signal == "lr":
            self._observe_lr(stats)
        is_dead = values[-1] <= 0 if signal == "lr" else self._is_constant(values)
        self._num_blocks[signal] = self._num_blocks[signal] + 1 if is_dead else 0
        if not is_dead:
            if self.is_open(signal):
                self.resolve(f"{stats.metric} is at {figure(stats.level)}", key=signal)
        elif self._num_blocks[signal] >= self.thresholds.blocks and not self.is_open(signal) and self._is_fault(stats):
            num_values, step = BLOCK * self._num_blocks[signal], self.context.step
            title = f"Learning rate has been zero for {num_values} values, up to step {step}"
            if signal == "loss":
                title = f"Loss is exactly {figure(values[-1])} in all of the last {num_values} values"
            evidence = {"metric": stats.metric, "value": values[-1], "step": step, "window_values": num_values}
            self.report(title, "The model is not learning.", key=signal, evidence=evidence)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Skip positive learning rates, and losses that vary within each block."""
        signal = stats.signal
        if self.is_open(signal):
            return None
        if signal == "loss":
            if [block for block in batch.sorted_blocks if block[0] == block[-1]]:
                return None
        elif batch.lowest <= 0:
            return None

        def commit() -> None:
            self._num_blocks[signal] = 0
            if signal == "lr":
                self._peak_lr = max(self._peak_lr, *batch.peaks[:-1])
                self._last_lr = batch.sorted_blocks[-1][0]
                self._zero_since = (batch.steps[-1] or 0, batch.num_before + BLOCK * len(batch.blocks))

        return commit

    def _is_constant(self, values: list[float]) -> bool:
        """Return whether the loss does not change although it should, and no alert on the learning rate explains it."""
        if not (values[0] == values[-1] != 0 and _num_digits(values[0]) > _MIN_DIGITS):
            return False
        is_explained = self.is_open("lr") or self.context.is_reinforcement
        return not is_explained and self._has_gradient()

    def _has_gradient(self) -> bool:
        stats = self.signals.get("grad_norm")
        return stats is None or stats.level is None or stats.level > 0

    def _observe_lr(self, stats: SignalStats) -> None:
        """Note how the learning rate gets to zero."""
        lowest, highest = stats.values[0], stats.values[-1]
        if highest > 0:
            self._peak_lr = max(self._peak_lr, highest)
            self._last_lr = lowest if lowest > 0 else next(value for value in stats.values if value > 0)
            self._zero_since = (self.context.step or 0, stats.num_in_blocks)

    def _is_fault(self, stats: SignalStats) -> bool:
        """Return whether the end of the schedule cannot explain it."""
        step, max_steps = self.context.step, self.context.max_steps
        since_step, since_value = self._zero_since
        is_gradual = stats.signal == "lr" and 0 < self._last_lr <= _GRADUAL_SHARE * self._peak_lr
        if max_steps and step is not None:
            begin = since_step if is_gradual else step
            return begin < (1 - (_GRADUAL_FINAL_SHARE if is_gradual else _FINAL_SHARE)) * max_steps
        num_values = stats.num_in_blocks
        return not is_gradual or num_values - since_value > _GRADUAL_FINAL_SHARE * num_values


def _num_digits(value: float) -> int:
    """Return the number of significant digits."""
    return len(repr(float(value)).partition("e")[0].replace(".", "").replace("-", "").strip("0"))
