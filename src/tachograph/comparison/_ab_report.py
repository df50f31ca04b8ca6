"""Reports of A/B tests: of arms that took turns inside a run, and of commands that took turns on a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from tachograph.comparison._ab import (
    MIN_QUADS,
    ArmSteps,
    ArmSwitch,
    QuadLevels,
    judge_differences,
    measure_quads,
)
from tachograph.comparison._comparable import ConfigChange, check_comparable
from tachograph.comparison._compare import DEFAULT_MARGINS, compare_groups
from tachograph.comparison._evidence import Floats, RunEvidence, StepClock
from tachograph.comparison._load import load_evidence, load_step_times
from tachograph.comparison._report import (
    ComparedGroup,
    ComparisonReport,
    MetricVerdict,
    Verdict,
    make_headline,
)
from tachograph.comparison._speed import TooShort, _tail, block_levels, steady_edges
from tachograph.exceptions import RunNotFoundError
from tachograph.journal import RunFolder
from tachograph.records import AB_ARM, finite_or_none
from tachograph.store import StoredRun

__all__ = ["MIN_PAIRS", "ArmCommand", "ArmRun", "report_arms", "report_pairs"]

MIN_PAIRS = 3
_MIN_STEPS = 40
"""Fewer than for runs started at any time, because the spread between pairs is observed and not assumed."""
_MAX_SWITCHES = 1_000


class ArmCommand(NamedTuple):
    """An arm whose runs are started by a command."""

    name: str
    command: str


class ArmRun(NamedTuple):
    """A run of an arm."""

    evidence: RunEvidence
    seconds: float
    """How long the whole command took."""
    peak_bytes: Mapping[str, float] = {}
    """The peaks of memory that were measured: `device_allocated` and `host`. Without, those that the run recorded."""


# Arms inside a run ---------------------------------------------------------------------------------------------------


def report_arms(
    folder: RunFolder, *, margin: float = DEFAULT_MARGINS["step_time"], confidence: float = 0.99
) -> tuple[ComparisonReport, tuple[RunEvidence, RunEvidence]]:
    """Compare the arms that took turns inside a run; also return each of them like a run, for charts.

    Raises:
        RunNotFoundError: if no arms were recorded in the run.
        OSError: if the journal cannot be read.
        SegmentError: if its columns are damaged while they are read.
    """
    run = StoredRun(folder)
    evidence = load_evidence(run)
    names, switches, num_switches = _read_switches(run)
    metric = MetricVerdict(name="step_time", title="step time", unit="seconds")
    metrics, arms = [metric], (evidence, evidence)
    try:
        levels = measure_quads(switches, load_step_times(run))
    except TooShort as missing:
        metric.verdict, metric.reason = "unknown", str(missing)
        basis = f"{num_switches:,} switches in one run"
    else:
        _judge(metric, levels.differences, levels.seconds, margin, confidence, "quad")
        metrics += _more_of_arms(levels)
        arms = _as_runs(evidence, names, levels)
        basis = f"{len(levels.differences):,} quads A B B A of blocks of {levels.block:.0f} steps, in one run"
    warnings = [
        "memory and loss belong to the whole run, so they are not compared: use tacho ab --arms for them",
        "the first 2 steps of each block are left out; what takes longer to settle is part of the result",
    ]
    if num_switches >= _MAX_SWITCHES:
        warnings.append(f"only the last {_MAX_SWITCHES:,} switches are compared")
    report = ComparisonReport(
        a=ComparedGroup(runs=[run.id], name=names[0], states=[evidence.state]),
        b=ComparedGroup(runs=[run.id], name=names[1], states=[evidence.state]),
        headline=_sentence(metrics, names),
        first=[f"{evidence.name!r} {evidence.state}: {evidence.failure}"] if evidence.has_failed else [],
        comparable=f"both arms took turns in {evidence.name!r}",
        metrics=metrics,
        warnings=warnings,
        basis=basis,
    )
    return report, arms


def _read_switches(run: StoredRun) -> tuple[tuple[str, str], list[list[ArmSwitch]], int]:
    """Return the names of both arms, and the switches of each attempt."""
    with run.lock:
        events = run.digest.latest("event", AB_ARM)
        starts = [finite_or_none(attempt.start.get("time")) or 0.0 for attempt in run.digest.attempts]
    arm_events = [event for event in events if isinstance(event.get("arm"), str)]
    if not arm_events:
        raise RunNotFoundError(
            f"no A/B test was recorded in {run.id!r}: call tachograph.ab('A', 'B') once per step of the training loop, "
            "or compare commands with tacho ab --arms"
        )
    last = arm_events[-1].get("arms")
    arm_names = [str(name) for name in last] if isinstance(last, list) and len(last) == 2 else []
    names = list(dict.fromkeys(arm_names or [event["arm"] for event in arm_events]))
    names = [*names, *(name for name in ("A", "B") if name not in names)][:2]
    attempts: list[list[ArmSwitch]] = [[] for _ in (*starts, 0.0)]
    for event in arm_events:
        if event["arm"] not in names:
            continue
        attempt = sum((finite_or_none(event.get("time")) or 0.0) >= start for start in starts)
        step = finite_or_none(event.get("global_step"))
        attempts[attempt].append(ArmSwitch(-math.inf if step is None else step, names.index(event["arm"])))
    return (names[0], names[1]), attempts, len(arm_events)


def _more_of_arms(levels: QuadLevels) -> list[MetricVerdict]:
    overall = [float((arm.seconds * arm.num_steps).sum() / arm.num_steps.sum()) for arm in levels.arms]
    tails = [float(np.quantile(arm.seconds, 0.95) / np.median(arm.seconds)) for arm in levels.arms]
    mean = MetricVerdict(name="overall_time", title="step time overall", unit="seconds")
    mean.a, mean.b, mean.effect = overall[0], overall[1], overall[1] / overall[0] - 1
    tail = MetricVerdict(name="tail_ratio", title="p95 / median step", unit="ratio")
    tail.a, tail.b = tails
    mean.runs_a = mean.runs_b = tail.runs_a = tail.runs_b = len(levels.differences)
    return [mean, tail]


def _as_runs(run: RunEvidence, names: tuple[str, str], levels: QuadLevels) -> tuple[RunEvidence, RunEvidence]:
    first, second = (
        RunEvidence(name, facts=run.facts, clock=_clock(arm)) for name, arm in zip(names, levels.arms, strict=True)
    )
    return first, second


def _clock(arm: ArmSteps) -> StepClock:
    """Return a clock that stands still while the other arm is used."""
    steps = np.concatenate([arm.steps[:1] - 1, arm.steps])
    return StepClock(steps, np.concatenate([[0.0], np.cumsum(arm.seconds * np.diff(steps))]))


# Commands that took turns --------------------------------------------------------------------------------------------


def report_pairs(
    pairs: Sequence[tuple[ArmRun, ArmRun]],
    arms: tuple[ArmCommand, ArmCommand],
    *,
    margin: float = DEFAULT_MARGINS["step_time"],
    confidence: float = 0.99,
    is_repeated: bool = False,
) -> ComparisonReport:
    """Compare runs that took turns on one machine.

    Args:
        pairs: neighbouring runs of the first and the second arm; at least one pair.
        arms: both arms.
        margin: the ratio minus one that matters.
        confidence: of a difference.
        is_repeated: whether the runs of an arm repeat one training with the same seed and the same batches, and both
            arms have the same. Such repeats say nothing more about the loss, so the first pair is compared.
    """
    a, b = ([pair[side].evidence for pair in pairs] for side in (0, 1))
    report = compare_groups(a, b, confidence=confidence, is_deliberate=True)
    if is_repeated:
        report.metrics = _with_losses_of_first_pair(report.metrics, a[0], b[0], confidence)
    speed = _speed_of_pairs(a, b, margin, confidence)
    wall = MetricVerdict(name="wall_time", title="whole command", unit="seconds")
    seconds = np.array([[pair[side].seconds for pair in pairs] for side in (0, 1)])
    levels = np.log(np.maximum(seconds, 1e-6))
    _judge(wall, (levels[1] - levels[0]).tolist(), _typical(levels), margin, confidence, "pair")
    speed_metrics = {"step_time", "overall_time", "tail_ratio"}
    peaks = _peaks_of_pairs(pairs, confidence)
    replaced_metrics = speed_metrics | {metric.name for metric in peaks}
    rest = [metric for metric in report.metrics if metric.name not in replaced_metrics]
    metrics = [*speed, wall, *peaks, *rest, *_phases(a, b)]
    changes = [ConfigChange("command", [arms[0].command], [arms[1].command]), *report.config_diff]
    assumption = "speed is judged by the differences between neighbours, so slow changes of the machine cancel"
    return msgspec.structs.replace(
        report,
        direction="",
        a=msgspec.structs.replace(report.a, name=arms[0].name),
        b=msgspec.structs.replace(report.b, name=arms[1].name),
        metrics=metrics,
        config_diff=changes,
        headline=_sentence(metrics, (arms[0].name, arms[1].name), report.first),
        warnings=[*report.warnings, assumption],
        basis=f"{len(pairs)} pairs of runs that took turns",
    )


def _with_losses_of_first_pair(
    metrics: Sequence[MetricVerdict], a: RunEvidence, b: RunEvidence, confidence: float
) -> list[MetricVerdict]:
    single = compare_groups([a], [b], confidence=confidence, is_deliberate=True, is_same_data=True)
    losses = {metric.name: metric for metric in single.metrics if metric.name in {"train_loss", "val_loss"}}
    return [losses.get(metric.name, metric) for metric in metrics]


def _speed_of_pairs(
    a: Sequence[RunEvidence], b: Sequence[RunEvidence], margin: float, confidence: float
) -> list[MetricVerdict]:
    metric = MetricVerdict(name="step_time", title="step time", unit="seconds", runs_a=len(a), runs_b=len(b))
    try:
        edges = steady_edges([*a, *b], min_steps=_MIN_STEPS, min_seconds=0.0)
    except TooShort as missing:
        metric.verdict, metric.reason = "unknown", str(missing)
        return [metric]
    blocks = block_levels(a, edges), block_levels(b, edges)
    profile = np.median(blocks[0], axis=0)
    levels = np.array([np.median(side - profile, axis=1) for side in blocks])
    refusal = check_comparable(a, b, is_deliberate=True).speed_refusal
    typical = float(np.median(profile))
    seconds = tuple(float(np.exp(typical + side.mean())) for side in levels)
    _judge(metric, (levels[1] - levels[0]).tolist(), (seconds[0], seconds[1]), margin, confidence, "pair")
    if refusal is not None:
        metric.verdict, metric.reason = "not_comparable", refusal
    totals = np.array(
        [[np.log((run.clock.at(edges[-1:]) - run.clock.at(edges[:1]))[0]) for run in runs] for runs in (a, b)]
    )
    overall = MetricVerdict(name="overall_time", title="step time overall", unit="seconds")
    _judge(
        overall,
        (totals[1] - totals[0]).tolist(),
        _typical(totals - math.log(edges[-1] - edges[0])),
        margin,
        confidence,
        "pair",
    )
    overall.verdict, overall.reason, overall.noise, overall.notes = "", "", None, []
    tails = _tail(a, edges), _tail(b, edges)
    tail = MetricVerdict(name="tail_ratio", title="p95 / median step", unit="ratio", a=tails[0], b=tails[1])
    return [metric, overall, *([tail] if None not in tails else [])]


def _peaks_of_pairs(pairs: Sequence[tuple[ArmRun, ArmRun]], confidence: float) -> list[MetricVerdict]:
    """Judge peaks of memory that were measured in each run; on a GPU, only those of the GPU."""
    for kind, name, title in (
        ("device_allocated", "device_memory", "peak GPU memory"),
        ("host", "host_memory", "peak host memory"),
    ):
        if all(run.peak_bytes.get(kind) for pair in pairs for run in pair):
            metric = MetricVerdict(name=name, title=title, unit="bytes")
            levels = np.log([[pair[side].peak_bytes[kind] for pair in pairs] for side in (0, 1)])
            words: dict[str, Verdict] = {"higher": "more", "lower": "less"}
            differences = (levels[1] - levels[0]).tolist()
            _judge(metric, differences, _typical(levels), DEFAULT_MARGINS["memory"], confidence, "pair", words)
            return [metric]
    return []


def _typical(levels: Floats) -> tuple[float, float]:
    first, second = np.exp(levels.mean(axis=1)).tolist()
    return float(first), float(second)


def _phases(a: Sequence[RunEvidence], b: Sequence[RunEvidence]) -> list[MetricVerdict]:
    metrics = []
    for phase in dict.fromkeys(phase for run in (*a, *b) for phase in run.phases_s):
        sides = [[run.phases_s[phase] for run in runs if phase in run.phases_s] for runs in (a, b)]
        metric = MetricVerdict(name=f"phase.{phase}", title=f"{phase}, per step", unit="seconds")
        metric.a, metric.b = (float(np.mean(side)) if side else None for side in sides)
        metric.runs_a, metric.runs_b = map(len, sides)
        if metric.a and metric.b:
            metric.effect = metric.b / metric.a - 1
        metrics.append(metric)
    return metrics


# Both ----------------------------------------------------------------------------------------------------------------


def _judge(
    metric: MetricVerdict,
    differences: Sequence[float],
    seconds: tuple[float, float],
    margin: float,
    confidence: float,
    unit: str,
    words: Mapping[str, Verdict] = {"higher": "slower", "lower": "faster"},
) -> None:
    """Fill in the verdict about times, or with other words about another quantity."""
    metric.a, metric.b = seconds
    metric.runs_a = metric.runs_b = count = len(differences)
    metric.repeats = "quads" if unit == "quad" else "pairs"
    min_count = MIN_QUADS if unit == "quad" else MIN_PAIRS
    if count < min_count:
        metric.effect = math.expm1(math.fsum(differences) / count)
        metric.verdict, metric.reason = "unknown", f"{count} {unit}{'s' * (count > 1)}; {min_count} are needed"
        return
    judgement = judge_differences(differences, margin, confidence)
    expm1: Callable[[float], float] = math.expm1
    metric.effect, metric.low, metric.high = map(expm1, (judgement.difference, judgement.low, judgement.high))
    metric.confidence, metric.noise = confidence, judgement.sd
    metric.noise_source = f"observed between {count} {unit}s"
    verdicts: dict[str, Verdict] = {**words, "equal": "equal", "unknown": "unknown"}
    metric.verdict = verdicts[judgement.direction]
    if judgement.direction == "unknown":
        metric.runs_needed = judgement.runs_needed
    elif judgement.direction == "equal" and judgement.is_certain:
        metric.notes.append(f"a difference of {abs(metric.effect):.2%} is certain, but too small to matter")


def _sentence(metrics: Sequence[MetricVerdict], names: tuple[str, str], first: Sequence[str] = ()) -> str:
    """Return one sentence, about the whole command only if nothing is known about its steps."""
    steps, wall = (next((each for each in metrics if each.name == name), None) for name in ("step_time", "wall_time"))
    judged_metrics = [metric for metric in metrics if metric.name != "wall_time"]
    if wall is not None and wall.is_settled and (steps is None or steps.a is None):
        judged_metrics = [msgspec.structs.replace(wall, name="step_time"), *judged_metrics[1:]]
    text = make_headline(judged_metrics, first, False)
    return f"{names[1]} compared with {names[0]}: {text[:1].lower()}{text[1:]}"
