"""Nothing moves."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import BLOCK, SignalStats
from tachograph.diagnostics._text import figure
from tachograph.records import finite_or_none

__all__ = ["DeadLearningRate"]


class DeadLearningRate(Rule):
    """The learning rate is zero where it should not be, or the loss is the same number again and again.

    A rate of zero is expected in the very first steps and at the end of a schedule: it is reported if it stays zero for
    a while, more than a twentieth of the steps that were planned are still to come, or it was zero from the start. A
    loss that is exactly the same for many values while the gradient is not zero says the same without the rate; one
    of exactly zero does not, nor does any in reinforcement learning.
    """

    name = "dead_learning_rate"
    severity = "critical"
    meaning = (
        "The weights do not change. The scheduler was stepped too often (per batch where it counts epochs) or made for "
        "fewer steps than are run; or optimizer.step() does not reach the parameters that the loss depends on."
    )
    advice = (
        "Print the scheduler's total steps and compare with the steps that are run, gradient accumulation counted.",
        "See that optimizer.step() is called, and that its parameter groups are those of the model that is trained.",
    )
    hears = ("lr", "loss")
    kinds = ("start",)
    absorbs = ("plateau",)

    class Thresholds(RuleSettings):
        """When it fires."""

        blocks: Annotated[int, Meta(description="Blocks of 16 values for which it must last.", ge=1)] = 2

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._num_blocks = {"lr": 0, "loss": 0}
        self._max_steps: float | None = None

    def on_record(self, record: dict[str, Any]) -> None:
        """Learn how many steps are planned."""
        self._max_steps = finite_or_none(record.get("max_steps"))

    def on_block(self, gauge: SignalStats) -> None:
        """Look for zeros, or for a loss that stands."""
        signal, values = gauge.signal, gauge.values
        is_dead = values[-1] <= 0 if signal == "lr" else self._stands(values)
        self._num_blocks[signal] = self._num_blocks[signal] + 1 if is_dead else 0
        if not is_dead:
            if self.is_open(signal):
                self.over(f"{gauge.metric} is at {figure(gauge.level)}", key=signal)
        elif self._num_blocks[signal] == self.thresholds.blocks and not self._is_near_the_end():
            num_values = BLOCK * self._num_blocks[signal]
            evidence = {"metric": gauge.metric, "value": values[-1], "step": self.now.step, "window_values": num_values}
            title = f"Learning rate is zero, in the last {num_values} values up to step {self.now.step}"
            if signal == "loss":
                title = f"Loss is exactly {figure(values[-1])} in all of the last {num_values} values"
            self.found(title, "Nothing is learnt.", key=signal, evidence=evidence)

    def _stands(self, values: list[float]) -> bool:
        """Tell whether the loss does not move though it should; a rate of zero is told by itself."""
        is_told = self.is_open("lr") or self.desk.is_reinforcement
        return values[0] == values[-1] != 0 and _num_digits(values[0]) > 4 and not is_told and self._has_gradient()

    def _has_gradient(self) -> bool:
        gauge = self.gauges.get("grad_norm")
        return gauge is None or gauge.level is None or gauge.level > 0

    def _is_near_the_end(self) -> bool:
        return bool(self._max_steps and self.now.step is not None and self.now.step >= 0.95 * self._max_steps)


def _num_digits(value: float) -> int:
    """Return how many digits of a number matter; many trainers round to four."""
    return len(repr(float(value)).partition("e")[0].replace(".", "").replace("-", "").strip("0"))
