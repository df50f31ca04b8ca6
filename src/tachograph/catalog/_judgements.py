"""What people say about alerts: right or wrong. And the cases that they may share, to make the rules better.

A judgement is an annotation of the run. Its field names the rule and the step at which the alert was opened, because
ids differ between a live run and a later diagnosis: ``alert.loss_spike@120``.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tachograph.catalog._annotations import JUDGEMENTS, Annotations, read_annotations
from tachograph.journal import RunFolder, list_runs
from tachograph.reader import Alert, read

__all__ = ["JudgedRule", "count_judgements", "export_cases", "judgement_field", "judgement_of"]

_PREFIX = "alert."
_MAX_BEFORE = 2_000
_MAX_AFTER = 500
"""Values of the metric before and after the alert that a case has."""


class JudgedRule(NamedTuple):
    """How often people agreed with the alerts of a rule."""

    rule: str
    num_right: int
    num_wrong: int

    @property
    def is_mostly_wrong(self) -> bool:
        """Whether at least three alerts, and at least half of them, were wrong."""
        return self.num_wrong >= 3 and self.num_wrong >= self.num_right


def judgement_field(rule: str, step: int | None) -> str:
    """Return the annotation that holds the judgement of an alert."""
    return f"{_PREFIX}{rule}@{'' if step is None else step}"


def judgement_of(alert: Alert, annotations: Annotations) -> str:
    """Return `right`, `wrong`, or an empty text."""
    value = annotations.values.get(judgement_field(alert.rule, alert.opened_step))
    return value if value in JUDGEMENTS else ""


def count_judgements(log_dir: str | os.PathLike[str]) -> list[JudgedRule]:
    """Return the judged rules of all runs of a log folder, by name."""
    counts: Counter[tuple[str, str]] = Counter()
    for folder in list_runs(log_dir):
        for field, value in read_annotations(folder).values.items():
            if field.startswith(_PREFIX) and value in JUDGEMENTS:
                counts[field.removeprefix(_PREFIX).partition("@")[0], value] += 1
    rules = sorted({rule for rule, _ in counts})
    return [JudgedRule(rule, counts[rule, "right"], counts[rule, "wrong"]) for rule in rules]


def export_cases(folders: Iterable[RunFolder]) -> Iterator[dict[str, Any]]:
    """Return the judged alerts of runs with the values that the rule saw.

    A case has numbers only: no names of runs, metrics, hosts or people, no texts, no times, and steps count from the
    alert.
    """
    for folder in folders:
        annotations = read_annotations(folder)
        if not any(field.startswith(_PREFIX) for field in annotations.values):
            continue
        run = read(folder.path)
        for alert in run.alerts:
            judgement = judgement_of(alert, annotations)
            if judgement:
                yield _case(run, alert, judgement)


def _case(run: Any, alert: Alert, judgement: str) -> dict[str, Any]:
    case: dict[str, Any] = {
        "rule": alert.rule,
        "severity": alert.severity,
        "judgement": judgement,
        "num_occurrences": alert.num_occurrences,
        "evidence": _numbers(alert.evidence),
    }
    metric = alert.evidence.get("metric")
    if isinstance(metric, str) and metric in run.metrics and alert.opened_step is not None:
        series = run.series(metric)
        steps = series.steps - alert.opened_step
        first_after = int((steps <= 0).sum())
        selection = slice(max(0, first_after - _MAX_BEFORE), first_after + _MAX_AFTER)
        case["steps"] = steps[selection].tolist()
        case["values"] = [value if math.isfinite(value) else str(value) for value in series.values[selection].tolist()]
    return case


def _numbers(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of evidence; steps are left out, because they would tell how long a training was."""
    return {
        name: value
        for name, value in evidence.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "step" not in name
    }
