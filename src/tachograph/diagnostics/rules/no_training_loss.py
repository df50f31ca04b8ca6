"""No recorded metric is recognised as the training loss."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signal_stats import SignalStats

__all__ = ["NoTrainingLoss"]

_TELEMETRY = re.compile(
    r"(window|system|gpu|cpu|mem|memory|time|phase)[/_.]|nan_inf_detected|.*_(s|ms|sec|mb|gb|bytes)$|.*/(min|max|nonfinite)$"
)
"""Names of measurements of the machine and of windows, which are recorded beside the metrics of a training."""
_LIKELY = re.compile("loss|objective|criterion|cost|error|nll|perplexity|mse|elbo")


class NoTrainingLoss(Rule):
    """The first 64 steps have metrics, but none of them has a name that stands for the training loss.

    Most rules need a training loss, so a run without one is hardly judged. The alert lists the metrics that could be
    the loss. It is resolved when a training loss appears. In reinforcement learning the reward is judged instead, and
    the losses of a GAN are not judged at all.
    """

    name = "no_training_loss"
    severity = "info"
    meaning = (
        "The training loss has a name that is not in the list of known names, or it is not recorded. Spikes, "
        "divergence, plateaus and the like will not be noticed."
    )
    advice = (
        "Name it: `tacho doctor RUN --map loss=NAME` for a recorded run, `tacho.init(signals={'loss': 'NAME'})` for "
        "the next one.",
        "If it is not recorded, log it as train_loss.",
    )
    block_signals = ("loss",)

    class Thresholds(RuleSettings):
        """What the alert contains."""

        most_metrics: Annotated[int, Meta(description="Metrics that the alert names.", ge=1, le=64)] = 12

    thresholds: Thresholds

    def on_signal(self, stats: SignalStats) -> None:
        """Resolve the alert: there is a training loss."""
        self.resolve(f"{stats.metric} is the training loss")

    def on_first_steps(self, other_metrics: list[str]) -> None:
        """Report that there is none."""
        metrics = [name for name in other_metrics if _TELEMETRY.match(name.lower()) is None]
        is_other_training = self.context.is_reinforcement or self.context.is_adversarial
        if "loss" in self.signals or is_other_training or not metrics:
            return
        likely = sorted(metrics, key=lambda name: _LIKELY.search(name.lower()) is None)[: self.thresholds.most_metrics]
        self.report(
            f"No metric is recognised as the training loss; perhaps {likely[0]}",
            f"Metrics without a meaning to the rules: {', '.join(likely)}.",
            evidence={"metrics": likely, "step": self.context.step},
        )
