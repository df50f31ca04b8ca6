"""The result of a comparison: verdicts, and a headline that needs no statistics to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tachograph.comparison._comparable import ConfigChange

__all__ = [
    "GATED_METRICS",
    "ComparedGroup",
    "ComparisonReport",
    "MetricVerdict",
    "Verdict",
    "group_name",
    "make_headline",
    "share_text",
]

Verdict = Literal[
    "slower",
    "faster",
    "more",
    "less",
    "worse",
    "better",
    "equal",
    "identical",
    "rounding",
    "identical_until",
    "different",
    "unknown",
    "not_comparable",
    "",
]
"""Without a verdict, a quantity is only reported."""

GATED_METRICS = ("step_time", "device_memory", "train_loss", "val_loss")
"""The quantities that can fail a check."""
_MAX_NAME_CHARS = 60
_REGRESSIONS = frozenset({"slower", "more", "worse"})
_IMPROVEMENTS = frozenset({"faster", "less", "better"})
_SETTLED_VERDICTS = frozenset({"equal", "identical", "rounding", "identical_until"}) | _IMPROVEMENTS


class MetricVerdict(msgspec.Struct, kw_only=True):
    """One quantity: its levels in both groups, their difference and the verdict."""

    name: str
    title: str
    unit: Literal["seconds", "bytes", "share", "ratio", "max_difference", ""] = ""
    a: float | None = None
    b: float | None = None
    effect: float | None = None
    """The relative difference: 0.05 means that the second group is 5 % higher; without a sign if the unit says so."""
    low: float | None = None
    high: float | None = None
    """The interval of the effect."""
    confidence: float | None = None
    verdict: Verdict = ""
    runs_a: int = 0
    runs_b: int = 0
    noise: float | None = None
    """The spread between runs that was assumed or observed."""
    noise_source: str = ""
    runs_needed: int | None = None
    """How many runs per group, or how many repeats of another kind, would probably settle it."""
    repeats: Literal["runs per side", "pairs", "quads"] = "runs per side"
    onset_step: float | None = None
    """From which step on the groups differ."""
    reason: str = ""
    """Why there is no verdict."""
    notes: list[str] = []
    is_relative: bool = True
    """Whether the effect is a ratio. Values below 0 are compared by their difference, in ranges of the first run."""

    @property
    def is_regression(self) -> bool:
        """Whether the second group is worse."""
        return self.verdict in _REGRESSIONS

    @property
    def is_different(self) -> bool:
        """Whether the second group is worse or better."""
        return self.verdict in _REGRESSIONS | _IMPROVEMENTS

    @property
    def is_settled(self) -> bool:
        """Whether there is an answer: different or equal."""
        return self.is_regression or self.verdict in _SETTLED_VERDICTS


class ComparedGroup(msgspec.Struct, kw_only=True):
    """The runs of a group."""

    runs: list[str]
    name: str = ""
    """A name for the group; by default the name of its first run."""
    commits: list[str] = []
    states: list[str] = []


class ComparisonReport(msgspec.Struct, kw_only=True):
    """The result of comparing two groups of runs; `a` is the one to compare with."""

    schema: int = 1
    direction: str = ""
    """Which runs are judged against which: every verdict and difference is about the first ones."""
    a: ComparedGroup
    b: ComparedGroup
    headline: str
    first: list[str] = []
    """What matters more than any number: a run that failed, NaN, or a run that ended early."""
    comparable: str
    """What makes the runs comparable, or not."""
    metrics: list[MetricVerdict]
    config_diff: list[ConfigChange] = []
    num_more_changes: int = 0
    warnings: list[str] = []
    has_failed: bool = False
    """Whether a run of the second group failed."""
    basis: str = ""
    """The compared parts, if they were not two groups of whole runs."""

    def __post_init__(self) -> None:
        """State the direction."""
        if not self.direction:
            judged_name, reference_name = (group_name(group.runs, group.name) for group in (self.b, self.a))
            self.direction = f"{judged_name} judged against {reference_name}"

    def metric(self, name: str) -> MetricVerdict | None:
        """Return the verdict about a quantity."""
        return next((metric for metric in self.metrics if metric.name == name), None)


def group_name(runs: Sequence[str], name: str = "") -> str:
    """Return a short name for a group of runs, if it has none of its own."""
    if name:
        return name
    first = runs[0] if runs else "nothing"
    first = first if len(first) <= _MAX_NAME_CHARS else first[: _MAX_NAME_CHARS - 1] + "…"
    return first if len(runs) < 2 else f"{first} and {len(runs) - 1} more"


_PHRASES: Mapping[str, str] = {
    "step_time": "{verdict} by {effect}",
    "device_memory": "{effect} {verdict} GPU memory",
    "device_memory_reserved": "{effect} {verdict} reserved GPU memory",
    "host_memory": "{effect} {verdict} host memory",
    "train_loss": "{verdict} training loss ({effect})",
    "val_loss": "{verdict} validation loss ({effect})",
    "result": "{verdict} {title} ({effect})",
}


def make_headline(metrics: Sequence[MetricVerdict], faults: Sequence[str], is_single: bool) -> str:
    """Return one sentence: the differences, else the equal quantities, else that the evidence is not enough."""
    losses = {metric.name: metric.verdict for metric in metrics if metric.name in {"train_loss", "val_loss"}}
    disagree = {"worse", "better"} <= set(losses.values())
    judged_metrics = [metric for metric in metrics if metric.verdict]
    differing = [metric for metric in judged_metrics if metric.is_different]
    parts = [
        _PHRASES[metric.name]
        .format(verdict=metric.verdict, title=metric.title, effect=_effect_text(metric))
        .removesuffix(" ()")
        for metric in differing
        if not (disagree and metric.name in losses)
    ]
    if disagree:
        parts.append("training and validation loss disagree")
    if not parts:
        same = [
            f"{metric.title} {_plain(metric.verdict)}"
            for metric in judged_metrics
            if metric.is_settled and not metric.is_different
        ]
        open_questions = [metric.title for metric in judged_metrics if metric.verdict in {"unknown", "different"}]
        refused_metrics = [metric.title for metric in judged_metrics if metric.verdict == "not_comparable"]
        if same:
            parts.append(f"no difference: {', '.join(same)}")
        if open_questions:
            parts.append(f"not enough evidence{' from one run each' if is_single else ''}: {', '.join(open_questions)}")
        if refused_metrics:
            parts.append(f"not comparable: {', '.join(refused_metrics)}")
    text = "; ".join([*faults[:1], *parts])
    return text[:1].upper() + text[1:]


def _plain(verdict: str) -> str:
    return {"rounding": "equal up to rounding", "identical_until": "identical at first"}.get(verdict, verdict)


def _effect_text(metric: MetricVerdict) -> str:
    if metric.effect is None:
        return ""
    if not metric.is_relative:
        return f"{abs(metric.effect):.2g} ranges"
    if metric.onset_step is not None and metric.notes and metric.name == "step_time":
        return metric.notes[0].partition(" by ")[2]
    return share_text(abs(metric.effect))


def share_text(share: float, places: int = 1) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.{places}f} %"
