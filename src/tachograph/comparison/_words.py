"""Put the numbers of a comparison into words; the terminal, Markdown and HTML show the same."""

from __future__ import annotations

import math
from typing import NamedTuple

from tachograph._base.text import format_duration
from tachograph.comparison._comparable import ConfigChange
from tachograph.comparison._report import ComparisonReport, MetricVerdict

__all__ = [
    "VerdictRow",
    "change_texts",
    "lines_before_headline",
    "noise_line",
    "percent",
    "runs_text",
    "value_text",
    "verdict_rows",
    "verdict_text",
]

_WORDS = {
    "unknown": "not enough evidence",
    "not_comparable": "not comparable",
    "rounding": "differs by rounding only",
    "identical_until": "identical until step {step}",
    "": "",
}
_SIGNS = {"slower": "bad", "more": "bad", "worse": "bad", "faster": "good", "less": "good", "better": "good"}
_MAX_NAME_CHARS = 60


class VerdictRow(NamedTuple):
    """A line of the table of a comparison."""

    title: str
    a: str
    b: str
    effect: str
    verdict: str
    sign: str
    """`good`, `bad`, `same`, `open`, or empty without a verdict."""
    notes: list[str]
    noise: str
    """The spread between runs and its source, if there is a verdict."""


def verdict_rows(report: ComparisonReport) -> list[VerdictRow]:
    """Return the table of a comparison as texts; what several quantities have in common is said with the first."""
    rows = []
    told_texts: set[str] = set()
    for metric in report.metrics:
        notes = [note for note in metric.notes if note not in told_texts]
        rows.append(
            VerdictRow(
                metric.title,
                value_text(metric.a, metric.unit),
                value_text(metric.b, metric.unit),
                effect_text(metric),
                verdict_text(metric, with_reason=metric.reason not in told_texts),
                _SIGNS.get(metric.verdict) or ("" if not metric.verdict else "same" if metric.is_settled else "open"),
                [*_needed_runs(metric), *notes],
                _noise(metric),
            )
        )
        told_texts |= {metric.reason, *notes}
    return rows


def value_text(value: float | None, unit: str) -> str:
    """Return a value with its unit; a dash if it is missing."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "seconds":
        return f"{1000 * value:.4g} ms" if value < 1 else f"{value:.4g} s" if value < 120 else format_duration(value)
    if unit == "bytes":
        return f"{value / 2**30:.4g} GiB" if value >= 2**30 else f"{value / 2**20:.4g} MiB"
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:.3g}×" if unit == "ratio" else f"{value:.5g}"


def percent(value: float, half_width: float | None = None) -> str:
    """Return a relative difference with a sign, and no more digits than its interval allows."""
    places = 1
    if half_width:
        places = min(3, max(0, 1 - math.floor(math.log10(100 * half_width)))) if math.isfinite(half_width) else 0
    if abs(value) >= 10:
        return f"{1 + value:.3g}×"
    return f"{100 * value:+.{places}f} %"


def effect_text(metric: MetricVerdict) -> str:
    """Return the effect with its interval."""
    if metric.effect is None:
        return ""
    if metric.unit == "max_difference":
        interval = "" if metric.low is None else f" ({_short(metric.low)}…{_short(metric.high)})"
        return _short(metric.effect) + interval
    if not metric.is_relative:
        interval = "" if metric.low is None or metric.high is None else f" ({metric.low:+.2g} … {metric.high:+.2g})"
        return f"{metric.effect:+.2g} ranges{interval}"
    if metric.low is None or metric.high is None:
        return percent(metric.effect) if metric.effect else "0 %"
    half = (metric.high - metric.low) / 2
    low, high = (percent(bound, half).removesuffix(" %") for bound in (metric.low, metric.high))
    return f"{percent(metric.effect, half)} ({low}…{high})"


def _short(value: float | None) -> str:
    """Return a difference that may be tiny: 2.5, 0.013 or 3e-07."""
    return "–" if value is None else f"{value:.2g}" if value >= 0.01 or value == 0 else f"{value:.0e}"


def verdict_text(metric: MetricVerdict, *, with_reason: bool = True) -> str:
    """Return the verdict in words."""
    step = "" if metric.onset_step is None else f"{metric.onset_step:,.0f}"
    text = _WORDS.get(metric.verdict, metric.verdict).format(step=step)
    if metric.verdict in _SIGNS and step and metric.name == "step_time":
        text += f" from step {step} on"
    return f"{text}: {metric.reason}" if metric.reason and with_reason else text


def _needed_runs(metric: MetricVerdict) -> list[str]:
    """Return how many runs would give a verdict."""
    if metric.verdict != "unknown" or metric.reason:
        return []
    if metric.runs_needed is None:
        return [f"over 1,000 {metric.repeats} would be needed for a verdict"]
    return [f"about {max(2, metric.runs_needed)} {metric.repeats} would probably give a verdict"]


def _noise(metric: MetricVerdict) -> str:
    if metric.noise is None or metric.confidence is None:
        return ""
    spread = f"{100 * metric.noise:.2g} %" if metric.is_relative else f"{metric.noise:.2g} ranges"
    return f"{spread} ({metric.noise_source})"


def noise_line(report: ComparisonReport) -> str:
    """Return the assumed spread between runs of all quantities, as a sentence."""
    metric_noise = [f"{row.title} {row.noise}" for row in verdict_rows(report) if row.noise]
    confidences = [metric.confidence for metric in report.metrics if metric.confidence]
    if not metric_noise:
        return ""
    return f"intervals of {100 * max(confidences):.4g} %, from the noise between runs: {', '.join(metric_noise)}"


def lines_before_headline(report: ComparisonReport) -> list[str]:
    """Return what matters more than any number and is not in the headline."""
    return [line for line in report.first if line.lower() not in report.headline.lower()]


def runs_text(report: ComparisonReport) -> str:
    """Return how many runs were compared."""
    if report.basis:
        return report.basis
    a, b = len(report.a.runs), len(report.b.runs)
    return "one run each" if a == b == 1 else f"{b} against {a} {'run' if a == 1 else 'runs'}"


def change_texts(change: ConfigChange) -> tuple[str, str]:
    """Return the values of a config key in both groups."""
    first, second = (
        ", ".join("–" if value is None else str(value)[:_MAX_NAME_CHARS] for value in side[:5])
        + (f" and {len(side) - 5} more" if len(side) > 5 else "")
        for side in (change.first, change.second)
    )
    return first, second
