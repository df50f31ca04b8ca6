"""Completions are cut off."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tachograph.diagnostics._high_share import HighShareRule

__all__ = ["TruncatedCompletions"]


class TruncatedCompletions(HighShareRule):
    """Nearly all completions reach the maximum length and are cut off.

    The rule uses the mean of the last sixteen values of the share that TRL logs as `completions/clipped_ratio`.
    """

    name = "truncated_completions"
    meaning = (
        "The policy does not end its answers: it rambles, has unlearned the end token, or the limit is too short for "
        "the task. Rewards that depend on the end of an answer see none."
    )
    advice = (
        "Read some completions. If they are good, raise max_completion_length.",
        "Check that the end token is in the template and not masked in the loss.",
        "Add a soft length penalty, or exclude truncated completions from the loss.",
    )
    block_signals = ("truncated_share",)
    title = "{share} of the completions are cut off"
    outcome = "{share} of the completions are cut off now"

    class Thresholds(HighShareRule.Thresholds):
        """When the rule fires."""

        share: Annotated[float, Meta(description="Minimum share of completions that are cut off.", gt=0, le=1)] = 0.9

    thresholds: Thresholds
