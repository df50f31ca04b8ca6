"""Decide whether a run passes a check, for continuous integration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

import msgspec

from tachograph.comparison._compare import compare_groups
from tachograph.comparison._evidence import RunEvidence
from tachograph.comparison._history import HistoryReport
from tachograph.comparison._report import GATED_METRICS, ComparedGroup, ComparisonReport, MetricVerdict
from tachograph.comparison._words import effect_text, value_text, verdict_text

__all__ = ["CHECKED_METRICS", "CheckResult", "check_run", "junit_error", "junit_report"]

CHECKED_METRICS = (*GATED_METRICS, "device_memory_reserved", "host_memory")
"""The quantities that can be checked."""
_ERROR_SHARE = 0.01
# The characters that XML has not. A negated set of those that it has takes 30 ms to compile.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class CheckResult(NamedTuple):
    """Whether a run passes."""

    report: ComparisonReport
    gated: tuple[str, ...]
    """The quantities that can fail the check."""
    status: Literal["passed", "regressed", "unjudged"]
    reasons: list[str]
    """Why the run does not pass, or what could not be judged."""
    warnings: list[str]
    """Open questions of a run that passes."""
    history: HistoryReport | None

    @property
    def exit_code(self) -> int:
        """0 if the run passes, 1 if it is worse or failed, 3 if it could not be judged."""
        return {"passed": 0, "regressed": 1, "unjudged": 3}[self.status]

    def to_builtins(self) -> dict[str, Any]:
        """Return the report with the outcome of the check, as plain values."""
        outcome = {
            "status": self.status,
            "exit_code": self.exit_code,
            "gated": list(self.gated),
            "reasons": self.reasons,
            "warnings": self.warnings,
            "history": self.history,
        }
        plain: dict[str, Any] = msgspec.to_builtins({**msgspec.structs.asdict(self.report), "check": outcome})
        return plain


def check_run(
    run: RunEvidence,
    baseline: Sequence[RunEvidence],
    *,
    metrics: Sequence[str] | None = None,
    margins: Mapping[str, float] | None = None,
    history: HistoryReport | None = None,
    seed_spread: float | None = None,
    requires_evidence: bool = False,
) -> CheckResult:
    """Check a run against a baseline.

    With several quantities, each one is judged with more confidence, so that one false alarm in a hundred checks
    remains.

    Args:
        run: the run to check.
        baseline: the runs to compare with.
        metrics: the quantities that can fail the check; by default the ones in `GATED_METRICS` that both sides have.
        margins: the relative differences that matter, by name.
        history: changes in the series of runs that ends with this one.
        seed_spread: as for `compare_groups`.
        requires_evidence: whether a run that cannot be judged does not pass.
    """
    gated_metrics = tuple(metrics or GATED_METRICS)
    report = _no_baseline(run) if not baseline else _compare(run, baseline, gated_metrics, margins, seed_spread)
    reasons = [f"{run.name!r} {run.state}" + (f": {run.failure}" if run.failure else "")] if run.has_failed else []
    open_questions: list[str] = [] if baseline else ["there is nothing to compare with"]
    unsettled_metrics: list[str] = []
    judged_metrics = [metric for metric in report.metrics if metric.name in gated_metrics]
    titles_by_cause: dict[str, list[str]] = {}
    for metric in judged_metrics:
        if metric.is_regression:
            reasons.append(metric_text(metric))
        elif metric.verdict == "not_comparable" or (metric.verdict == "unknown" and metric.confidence is None):
            titles_by_cause.setdefault(verdict_text(metric), []).append(metric.title)
        elif not metric.is_settled:
            unsettled_metrics.append(metric_text(metric))
    open_questions += [f"{', '.join(titles)}: {cause}" for cause, titles in titles_by_cause.items()]
    if baseline:
        judged_names = {metric.name for metric in judged_metrics}
        open_questions += [f"{name}: the runs do not have it" for name in metrics or () if name not in judged_names]
        if not judged_metrics:
            open_questions.append("the runs have none of: " + ", ".join(gated_metrics))
    if history is not None:
        reasons += [change.text for change in history.new_regressions]
        if requires_evidence and history.missing:
            open_questions += history.missing
    if reasons:
        return CheckResult(report, gated_metrics, "regressed", reasons, open_questions + unsettled_metrics, history)
    if open_questions and requires_evidence:
        return CheckResult(report, gated_metrics, "unjudged", open_questions, unsettled_metrics, history)
    return CheckResult(report, gated_metrics, "passed", [], open_questions + unsettled_metrics, history)


def _compare(
    run: RunEvidence,
    baseline: Sequence[RunEvidence],
    gated_metrics: Sequence[str],
    margins: Mapping[str, float] | None,
    seed_spread: float | None,
) -> ComparisonReport:
    report = compare_groups(baseline, [run], margins=margins, seed_spread=seed_spread)
    num_judged = sum(metric.name in gated_metrics and metric.confidence is not None for metric in report.metrics)
    if num_judged < 2:
        return report
    confidence = 1 - _ERROR_SHARE / num_judged
    return compare_groups(baseline, [run], margins=margins, confidence=confidence, seed_spread=seed_spread)


def _no_baseline(run: RunEvidence) -> ComparisonReport:
    commit = run.facts.get("git.commit")
    return ComparisonReport(
        a=ComparedGroup(runs=[]),
        b=ComparedGroup(runs=[run.name], commits=[commit] if commit else [], states=[run.state]),
        headline="Nothing to compare with",
        comparable="there is no baseline",
        metrics=[],
        has_failed=run.has_failed,
    )


def metric_text(metric: MetricVerdict) -> str:
    """Return a quantity and its verdict in one line."""
    effect = effect_text(metric)
    return f"{metric.title}: {verdict_text(metric)}" + (f", {effect}" if effect else "")


# JUnit ---------------------------------------------------------------------------------------------------------------


def junit_report(result: CheckResult) -> bytes:
    """Return the result as a JUnit file: one suite, with a case for the run and for each quantity."""
    report = result.report
    name = report.b.runs[0]
    cases = [_case("run", name)]
    if report.has_failed:
        _child(cases[0], "failure", next(iter(report.first), result.reasons[0]), "")
    if not report.a.runs:
        cases.append(_case("baseline", name))
        _child(cases[-1], "skipped", "there is nothing to compare with", "")
    for metric in report.metrics:
        if metric.name not in result.gated:
            continue
        case = _case(metric.name, name)
        cases.append(case)
        if metric.is_regression:
            _child(case, "failure", report.headline, _table(report))
        elif not metric.is_settled:
            _child(case, "skipped", metric_text(metric), "")
    if result.history is not None:
        case = _case("history", name)
        cases.append(case)
        regressions = [change.text for change in result.history.new_regressions]
        if regressions:
            _child(case, "failure", regressions[0], "\n".join(regressions))
        elif result.history.missing:
            _child(case, "skipped", result.history.missing[0], "")
    against = f"{len(report.a.runs)} runs" if len(report.a.runs) != 1 else report.a.runs[0]
    return _suite(f"{name} compared with {against}", cases)


def junit_error(name: str, message: str) -> bytes:
    """Return a JUnit file about a run that could not be checked."""
    case = _case("run", name)
    _child(case, "error", message, "")
    return _suite(name, [case])


def _suite(name: str, cases: Sequence[ElementTree.Element]) -> bytes:
    counts = {
        kind: str(sum(case.find(tag) is not None for case in cases))
        for kind, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items()
    }
    suite = ElementTree.Element("testsuite", {"name": _xml(name), "tests": str(len(cases)), **counts})
    suite.extend(cases)
    root = ElementTree.Element("testsuites", {"name": "tachograph"})
    root.append(suite)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(name: str, run: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", {"classname": _xml(f"tachograph.{run}"), "name": name})


def _child(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    child = ElementTree.SubElement(case, tag, {"message": _xml(message)})
    child.text = _xml(text) or None


def _table(report: ComparisonReport) -> str:
    rows = [
        (metric.title, value_text(metric.a, metric.unit), value_text(metric.b, metric.unit), metric_text(metric))
        for metric in report.metrics
        if metric.verdict
    ]
    return "\n".join(f"{title}: {a} → {b}; {text.partition(': ')[2]}" for title, a, b, text in rows)


def _xml(text: str) -> str:
    """Return text without the characters that XML does not allow."""
    return _NOT_IN_XML.sub("�", text)
