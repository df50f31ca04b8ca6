"""Compare two groups of runs: a verdict for each quantity that they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tachograph.comparison._comparable import Comparability, check_comparable
from tachograph.comparison._evidence import RunEvidence, SeriesPoints, memory_level, memory_of
from tachograph.comparison._groups import group_by_seed, independent_runs, seeds_of, training_key
from tachograph.comparison._judge import Judgement, Noise, judge
from tachograph.comparison._loss import (
    Agreement,
    LossLevels,
    agree,
    have_same_batches,
    judge_losses,
    measure_final,
    measure_loss,
)
from tachograph.comparison._progress import Progress, measure_progress
from tachograph.comparison._report import (
    ComparedGroup,
    ComparisonReport,
    MetricVerdict,
    Verdict,
    make_headline,
    share_text,
)
from tachograph.comparison._speed import SpeedLevels, TooShort, measure_speed
from tachograph.records import metric_direction

__all__ = ["DEFAULT_MARGINS", "compare_groups"]

_MEMORY: Mapping[str, tuple[str, str, float]] = {
    "device_allocated": ("device_memory", "GPU memory", 0.0005),
    "device_reserved": ("device_memory_reserved", "GPU mem. reserved", 0.005),
    "host": ("host_memory", "host memory", 0.01),
}
"""The name, the title and the assumed noise of each kind of memory."""
DEFAULT_MARGINS: Mapping[str, float] = {"step_time": 0.01, "memory": 0.01}
_ROUNDING = 1e-5
_UNKNOWN_SPREAD = "the spread between seeds is not known"
_MIN_SEEDS = 3
"""Of each group, to judge an accuracy or a reward."""
_OBSERVED_FACTOR = 1.5
"""A spread this many times the assumed one comes from the runs themselves."""


def compare_groups(
    first: Sequence[RunEvidence],
    second: Sequence[RunEvidence],
    *,
    earlier: Sequence[RunEvidence] = (),
    margins: Mapping[str, float] | None = None,
    confidence: float = 0.99,
    is_deliberate: bool = False,
    is_same_data: bool | None = None,
    seed_spread: float | None = None,
    ignores_refusals: bool = False,
) -> ComparisonReport:
    """Compare two groups of repeated runs, often of one run each.

    Args:
        first: the runs to compare with.
        second: the runs to judge.
        earlier: other runs of the same kind, to learn the spread between runs from.
        margins: the ratio minus one that matters, by the name of the quantity.
        confidence: of a difference.
        is_deliberate: as for `check_comparable`.
        is_same_data: whether the runs saw the same batches; by default, the losses tell.
        seed_spread: the relative standard deviation of final losses between seeds, if the user states it.
        ignores_refusals: as for `check_comparable`.
    """
    margins = {**DEFAULT_MARGINS, **(margins or {})}
    a, notes_a = independent_runs(first)
    b, notes_b = independent_runs(second)
    comparable = check_comparable(a, b, is_deliberate=is_deliberate, ignores_refusals=ignores_refusals)
    faults, early = _faults(a, b), _early_ends(a, b)
    sessions = {run.session_tag for run in (*a, *b)} - {None}
    others = [run for run in independent_runs(earlier)[0] if run.session_tag not in sessions]
    maker = _Maker(a, b, others, comparable, confidence, margins, is_same_data, seed_spread)
    metrics = [*maker.speed(), *maker.memory(), *maker.losses(), *maker.results(), *maker.extras()]
    failed_runs = [run for run in b if run.has_failed]
    return ComparisonReport(
        a=_group(a),
        b=_group(b),
        headline=make_headline(metrics, faults, len(a) == len(b) == 1),
        first=[*faults, *early],
        comparable=_comparable_text(comparable, a, b),
        metrics=metrics,
        config_diff=comparable.changes,
        num_more_changes=comparable.num_more_changes,
        warnings=[*notes_a, *notes_b, *comparable.warnings, *maker.warnings],
        has_failed=bool(failed_runs),
    )


def _group(runs: Sequence[RunEvidence]) -> ComparedGroup:
    commits = dict.fromkeys(str(commit) for run in runs if (commit := run.facts.get("git.commit")))
    return ComparedGroup(runs=[run.name for run in runs], commits=list(commits), states=[run.state for run in runs])


class _Maker:
    """Makes the verdicts of one comparison."""

    def __init__(
        self,
        a: Sequence[RunEvidence],
        b: Sequence[RunEvidence],
        earlier: Sequence[RunEvidence],
        comparable: Comparability,
        confidence: float,
        margins: Mapping[str, float],
        is_same_data: bool | None,
        seed_spread: float | None,
    ) -> None:
        self._is_same_data = is_same_data
        self._a, self._b = a, b
        self._earlier = earlier
        self._comparable = comparable
        self._confidence = confidence
        self._margins = margins
        self._seed_spread = seed_spread
        self.warnings: list[str] = []

    def _metric(self, name: str, title: str, **fields: Any) -> MetricVerdict:
        return MetricVerdict(name=name, title=title, runs_a=len(self._a), runs_b=len(self._b), **fields)

    def _apply_judgement(
        self, metric: MetricVerdict, judgement: Judgement, noise: Noise, words: tuple[Verdict, Verdict]
    ) -> None:
        """Fill in a judgement; the words are those for *higher* and *lower*."""
        to_effect: Callable[[float], float] = math.expm1 if metric.is_relative else float
        metric.effect, metric.low, metric.high = map(to_effect, (judgement.difference, judgement.low, judgement.high))
        metric.confidence = judgement.confidence
        is_observed = judgement.sd > _OBSERVED_FACTOR * noise.sd
        metric.noise, metric.noise_source = judgement.sd, "between these runs" if is_observed else noise.source
        verdicts: dict[str, Verdict] = {"higher": words[0], "lower": words[1], "equal": "equal", "unknown": "unknown"}
        metric.verdict = verdicts[judgement.direction]
        metric.runs_needed = judgement.runs_needed
        if judgement.direction == "equal" and judgement.is_certain and metric.effect:
            metric.notes.append(
                f"a difference of {share_text(abs(metric.effect), 2)} is certain, but too small to matter"
            )

    # Speed -----------------------------------------------------------------------------------------------------------

    def speed(self) -> list[MetricVerdict]:
        metric = self._metric("step_time", "step time", unit="seconds")
        margin = self._margins["step_time"]
        try:
            levels = measure_speed(
                self._a, self._b, is_same_machine=self._comparable.is_same_machine, margin=margin, earlier=self._earlier
            )
        except TooShort as missing:
            metric.verdict, metric.reason = "unknown", str(missing)
            return [metric]
        metric.a, metric.b = levels.seconds
        if self._comparable.speed_refusal is not None:
            metric.verdict, metric.reason = "not_comparable", self._comparable.speed_refusal
            metric.effect = math.expm1(float(np.mean(levels.second) - np.mean(levels.first)))
            return [metric]
        self._apply_judgement(
            metric,
            judge(levels.first, levels.second, levels.noise, margin, self._confidence),
            levels.noise,
            ("slower", "faster"),
        )
        _add_onset(metric, levels, margin)
        if metric.verdict == "unknown" and levels.has_other_schedule:
            metric.notes.append("the ratio changes by over 10 % within the runs: their schedules may differ")
        invalid = sum(run.clock.num_invalid for run in (*self._a, *self._b))
        if invalid:
            metric.notes.append(f"{invalid:,} steps without a valid time were left out")
        return [metric, *self._overall(levels, metric, margin)]

    def _overall(self, levels: SpeedLevels, typical: MetricVerdict, margin: float) -> list[MetricVerdict]:
        difference = float(np.mean(levels.second) - np.mean(levels.first))
        overall = self._metric("overall_time", "step time overall", unit="seconds", effect=math.expm1(levels.overall))
        overall.a, overall.b = levels.overall_seconds
        if typical.onset_step is None and levels.overall - difference > math.log1p(margin):
            text = f"stalls cost a further {share_text(math.expm1(levels.overall - difference))}"
            uses = _uses_text(self._a, self._b)
            typical.notes.append(f"{text} ({uses})" if uses else text)
        tails = self._metric("tail_ratio", "p95 / median step", unit="ratio", a=levels.tails[0], b=levels.tails[1])
        return [overall, *([tails] if None not in levels.tails else [])]

    # Memory ----------------------------------------------------------------------------------------------------------

    def memory(self) -> list[MetricVerdict]:
        metrics = []
        for kind, (name, title, sd) in _MEMORY.items():
            runs_with_memory, is_over_ranks = memory_of([*self._a, *self._b], kind)
            sides = [
                [memory_level(run, kind, is_over_ranks=is_over_ranks) for run in runs if kind in run.memory]
                for runs in (self._a, self._b)
            ]
            if not any(sides):
                continue
            metric = self._metric(name, title, unit="bytes")
            metrics.append(metric)
            if not all(sides):
                metric.verdict, metric.reason = "unknown", "a group has no readings over at least 50 steps"
                continue
            metric.a, metric.b = (float(np.mean(side)) for side in sides)
            metric.runs_a, metric.runs_b = map(len, sides)
            metric.notes += _rank_notes(runs_with_memory, kind, is_over_ranks=is_over_ranks)
            if self._comparable.speed_refusal is not None:
                metric.verdict, metric.reason = "not_comparable", self._comparable.speed_refusal
                continue
            noise = self._memory_noise(kind, sd)
            levels_a, levels_b = (np.log(side).tolist() for side in sides)
            margin = self._margins.get(name, self._margins["memory"])
            self._apply_judgement(
                metric, judge(levels_a, levels_b, noise, margin, self._confidence), noise, ("more", "less")
            )
        by_name = {metric.name: metric for metric in metrics}
        allocated_metric, reserved_metric = by_name.get("device_memory"), by_name.get("device_memory_reserved")
        if (
            allocated_metric is not None
            and reserved_metric is not None
            and allocated_metric.verdict == "equal"
            and reserved_metric.is_regression
        ):
            reserved_metric.notes.append("fragmentation or cached blocks: the allocated memory is equal")
        return metrics

    def _memory_noise(self, kind: str, sd: float) -> Noise:
        """Return the spread between peaks; readings that vary within a run miss its peak by about as much."""
        spread = max((run.memory_spread.get(kind, 0.0) for run in (*self._a, *self._b)), default=0.0)
        return Noise(spread, "from the readings within the runs") if spread > sd else Noise(sd, "assumed")

    # Loss ------------------------------------------------------------------------------------------------------------

    def losses(self) -> list[MetricVerdict]:
        curves = ([run.loss for run in self._a], [run.loss for run in self._b])
        metrics = []
        is_same = False
        if any(len(curve.steps) for curve in (*curves[0], *curves[1])):
            scaled_curves = self._at_equal_samples(curves)
            recorded_curves = [curve for side in self._at_equal_samples(self._recorded_losses()) for curve in side]
            is_same = all(len(curve.steps) for curve in recorded_curves) and (
                have_same_batches(recorded_curves) if self._is_same_data is None else self._is_same_data
            )
            # The earlier runs have one of the two batch sizes.
            earlier = self._repeats_of_the_trainings() if scaled_curves is curves else []
            metric = self._metric("train_loss", "training loss")
            metrics.append(metric)
            self._judge_loss(
                metric,
                scaled_curves,
                self._comparable.loss_refusal,
                lambda: measure_loss(
                    *scaled_curves,
                    is_same_data=is_same,
                    earlier=[[run.loss for run in repeats] for repeats in earlier],
                    seed_spread=self._seed_spread,
                ),
            )
            if self._comparable.samples_per_step and scaled_curves is not curves:
                metric.notes.append("compared at equal numbers of samples, because the batch sizes differ")
        validations = ([run.val_loss for run in self._a], [run.val_loss for run in self._b])
        if any(len(curve.steps) for curve in (*validations[0], *validations[1])):
            metric = self._metric("val_loss", "validation loss")
            metrics.append(metric)
            earlier_validations = [[run.val_loss for run in repeats] for repeats in self._repeats_of_the_trainings()]
            self._judge_loss(
                metric,
                validations,
                self._comparable.val_loss_refusal,
                lambda: measure_final(
                    *validations, is_same_data=is_same, earlier=earlier_validations, seed_spread=self._seed_spread
                ),
            )
        if any(metric.reason == _UNKNOWN_SPREAD for metric in metrics):
            self.warnings.append(
                "one run each gives no verdict on losses: repeat them with other seeds and compare the groups, record "
                "repeats before, or state their spread with tacho compare --seed-spread PERCENT"
            )
        return metrics

    def results(self) -> list[MetricVerdict]:
        """Judge the accuracy or the reward, if all runs have the same one; much less is known of their spread."""
        names = {run.result_name for run in (*self._a, *self._b)}
        name = names.pop()
        if names or not name:
            return []
        curves = ([run.result for run in self._a], [run.result for run in self._b])
        metric = self._metric("result", name)
        comparable = self._comparable
        refusal = comparable.quality_refusal if metric_direction(name) > 0 else comparable.val_loss_refusal
        self._judge_loss(metric, curves, refusal, lambda: _measure_result(*curves))
        return [metric]

    def _repeats_of_the_trainings(self) -> list[list[RunEvidence]]:
        """Return earlier runs that differ from those compared only in their seed, oldest first.

        One list if both groups have the same config, else one for each group: another model or another learning rate
        has another loss, and another spread.
        """
        keys_of_sides = [{training_key(run.config) for run in runs} for runs in (self._a, self._b)]
        if keys_of_sides[0] == keys_of_sides[1]:
            del keys_of_sides[1]
        has_one_seed = len({seeds_of(run) for run in (*self._a, *self._b)}) == 1
        by_start = sorted(self._earlier, key=lambda run: run.started)
        return [
            [
                runs[-1]
                for runs in group_by_seed(
                    [run for run in by_start if training_key(run.config) in keys], has_one_seed=has_one_seed
                )
            ]
            for keys in keys_of_sides
        ]

    def _recorded_losses(self) -> tuple[list[SeriesPoints], list[SeriesPoints]]:
        first, second = (
            [run.loss if run.batches is None else run.batches for run in runs] for runs in (self._a, self._b)
        )
        return first, second

    def _at_equal_samples(
        self, curves: tuple[list[SeriesPoints], list[SeriesPoints]]
    ) -> tuple[list[SeriesPoints], list[SeriesPoints]]:
        sizes = self._comparable.samples_per_step
        if sizes is None:
            return curves
        first, second = (
            [SeriesPoints(curve.steps * size, curve.values) for curve in side]
            for side, size in zip(curves, sizes, strict=True)
        )
        return first, second

    def _judge_loss(
        self,
        metric: MetricVerdict,
        curves: tuple[list[SeriesPoints], list[SeriesPoints]],
        refusal: str | None,
        measure: Callable[[], LossLevels],
    ) -> None:
        non_finite_losses = _broken_losses(self._a, curves[0]), _broken_losses(self._b, curves[1])
        if non_finite_losses[1] and not non_finite_losses[0]:
            metric.verdict, metric.reason = "worse", non_finite_losses[1][0]
            return
        if refusal is not None:
            metric.verdict, metric.reason = "not_comparable", refusal
            return
        is_single = len(curves[0]) == len(curves[1]) == 1 and not (self._a[0].is_summary or self._b[0].is_summary)
        agreement = agree(curves[0][0], curves[1][0]) if is_single else None
        margin = self._margins.get(metric.name, 0.0)
        try:
            levels = measure()
        except TooShort as missing:
            metric.verdict, metric.reason = "unknown", str(missing)
            levels = None
        if levels is not None:
            metric.a, metric.b = levels.values
            metric.is_relative = levels.is_logarithm
            margin = self._margins.get(metric.name, levels.margin)
            if not levels.is_logarithm:
                metric.notes.append(
                    "values are not all above 0, so differences are divided by the range of the first run"
                )
            self._judge_levels(metric, levels)
            if metric.verdict in {"worse", "better"} and levels.onset is not None:
                metric.onset_step = levels.onset.step
                grows = " and the distance grows" if levels.onset.is_growing else ""
                since = f"from step {levels.onset.step:,.0f} on" if levels.onset.block else "from the start"
                metric.notes.append(f"apart {since}{grows}")
        if agreement is not None:
            _add_agreement(metric, agreement, margin)

    def _judge_levels(self, metric: MetricVerdict, levels: LossLevels) -> None:
        """Judge the final losses of seeds: repeats with the same seed say nothing about others."""
        has_one_seed = len({seeds_of(run) for run in (*self._a, *self._b)}) == 1
        sides = []
        for runs, run_levels in ((self._a, levels.first), (self._b, levels.second)):
            level_of_run = dict(zip(map(id, runs), run_levels, strict=True))
            groups = group_by_seed(runs, has_one_seed=has_one_seed)
            sides.append([float(np.mean([level_of_run[id(run)] for run in group])) for group in groups])
        first, second = sides
        if len(first) < len(self._a) or len(second) < len(self._b):
            metric.notes.append("runs with the same seed, or with the same losses, count once")
        metric.runs_a, metric.runs_b = len(first), len(second)
        if metric.name == "result" and min(len(first), len(second)) < _MIN_SEEDS:
            metric.verdict, metric.reason = "unknown", f"each group needs {_MIN_SEEDS} seeds"
            metric.runs_needed = _MIN_SEEDS
            return
        margin = self._margins.get(metric.name, levels.margin)
        result = judge_losses(first, second, levels, margin, self._confidence)
        if result is None:
            metric.verdict, metric.reason = "unknown", _UNKNOWN_SPREAD
            to_effect: Callable[[float], float] = math.expm1 if metric.is_relative else float
            metric.effect = to_effect(second[0] - first[0])
            return
        is_higher_better = metric.name == "result" and metric_direction(metric.title) > 0
        self._apply_judgement(metric, *result, ("better", "worse") if is_higher_better else ("worse", "better"))

    # Quantities without a verdict ------------------------------------------------------------------------------------

    def extras(self) -> list[MetricVerdict]:
        metrics = []
        goodput = [[run.goodput for run in runs if run.goodput is not None] for runs in (self._a, self._b)]
        if all(goodput):
            a, b = (float(np.mean(side)) for side in goodput)
            metrics.append(self._metric("goodput", "goodput", unit="share", a=a, b=b))
        progress = None if self._comparable.loss_refusal else measure_progress(self._a, self._b)
        if progress is not None:
            metrics += self._progress(progress)
        return metrics

    def _progress(self, progress: Progress) -> list[MetricVerdict]:
        at_time = self._metric("loss_at_equal_time", "loss at same time", a=progress.losses[0], b=progress.losses[1])
        at_time.notes.append(f"after {progress.seconds:,.0f} s of training")
        to_target = self._metric("time_to_target", "time to target", unit="seconds")
        to_target.a, to_target.b = progress.seconds_to_target
        if to_target.a and to_target.b:
            to_target.effect = to_target.b / to_target.a - 1
        to_target.notes.append(f"until the loss stays at or below {progress.target:.4g}")
        return [at_time, to_target]


def _measure_result(first: Sequence[SeriesPoints], second: Sequence[SeriesPoints]) -> LossLevels:
    """Measure the level at the end: over the last tenth of the steps, or of the last validations if there are few."""
    try:
        return measure_loss(first, second, is_same_data=False, earlier=([], []))
    except TooShort:
        return measure_final(first, second, is_same_data=False, earlier=([], []))


def _rank_notes(runs: Sequence[RunEvidence], kind: str, *, is_over_ranks: bool) -> list[str]:
    """Say whose memory was compared, if some runs have several ranks."""
    levels = {run.name: run.rank_memory.get(kind) for run in runs if run.has_ranks or kind in run.rank_memory}
    if not levels:
        return []
    if not is_over_ranks:
        missing = next(name for name, level in levels.items() if level is None)
        return [f"of rank 0: {missing!r} has no readings of other ranks"]
    each = [
        f"rank {level.rank} of {level.num_ranks} in {name!r}" for name, level in levels.items() if level is not None
    ]
    return [f"of the rank with the highest: {', '.join(each[:4])}" + (" and others" if len(each) > 4 else "")]


def _add_onset(metric: MetricVerdict, levels: SpeedLevels, margin: float) -> None:
    """Say from where on the speed differs, if the first part is equal.

    A difference in less than half of the blocks does not show in the typical speed.
    """
    onset = levels.onset
    if onset is None or not levels.is_first_part_equal or abs(onset.difference) < math.log1p(margin):
        return
    metric.verdict = "slower" if onset.difference > 0 else "faster"
    metric.onset_step = onset.step
    metric.runs_needed = None
    metric.notes.append(
        f"{metric.verdict} by {share_text(abs(math.expm1(onset.difference)))} from step {onset.step:,.0f} on"
    )


def _add_agreement(metric: MetricVerdict, agreement: Agreement, margin: float) -> None:
    """Say how far two single curves agree, which is stronger than any statistics."""
    if agreement.kind == "identical":
        metric.verdict, metric.effect, metric.reason = "identical", 0.0, ""
        metric.low = metric.high = None
        metric.runs_needed = None
        if agreement.num_digits < 12:
            metric.notes.append(f"the logged values have {agreement.num_digits} digits")
        return
    is_harmless = agreement.largest_difference <= _ROUNDING
    if agreement.kind == "identical_until" and agreement.step is not None:
        metric.notes.insert(
            0,
            f"identical until step {agreement.step:,.0f}; then {agreement.first_difference:.1e} apart, "
            f"{agreement.last_difference:.1e} at the end",
        )
    ends_alike = metric.verdict == "equal" or (
        metric.verdict == "unknown" and metric.effect is not None and abs(metric.effect) <= margin
    )
    if is_harmless or (agreement.kind == "identical_until" and ends_alike):
        metric.verdict = "identical_until" if agreement.kind == "identical_until" else "rounding"
        metric.reason, metric.runs_needed = "", None
        metric.onset_step = agreement.step if agreement.kind == "identical_until" else None
    if metric.verdict == "rounding":
        metric.notes.append(f"differences up to {agreement.largest_difference:.1e}")


def _broken_losses(runs: Sequence[RunEvidence], curves: Sequence[SeriesPoints]) -> list[str]:
    """Return which curves end with NaN or infinity, and since when."""
    notes = []
    for run, curve in zip(runs, curves, strict=True):
        is_bad = ~np.isfinite(curve.values)
        if is_bad.any() and is_bad[-max(1, len(is_bad) // 20) :].all():
            last_good = np.flatnonzero(~is_bad)
            since = run.loss.steps[last_good[-1] + 1] if len(last_good) and len(run.loss.steps) == len(is_bad) else None
            notes.append("not finite" if since is None else f"not finite from step {since:,.0f} on")
    return notes


def _uses_text(a: Sequence[RunEvidence], b: Sequence[RunEvidence]) -> str:
    parts = []
    for use in ("data", "checkpoint", "validation"):
        sides = [[run.uses[use] for run in runs if use in run.uses] for runs in (a, b)]
        if all(sides) and max(map(max, sides)) > 0.001:
            parts.append(f"{use} {share_text(float(np.mean(sides[0])))} → {share_text(float(np.mean(sides[1])))}")
    return ", ".join(parts)


def _faults(a: Sequence[RunEvidence], b: Sequence[RunEvidence]) -> list[str]:
    lines = []
    for run in (*a, *b):
        if run.has_failed:
            lines.append(f"{run.name!r} {run.state}" + (f": {run.failure}" if run.failure else ""))
        is_bad = ~np.isfinite(run.loss.values)
        if is_bad.any():
            step = run.loss.steps[int(np.argmax(is_bad))]
            lines.append(f"{run.name!r} has a loss that is not finite, first at step {step:,.0f}")
    return lines


_MAX_NAMED_RUNS = 2


def _early_ends(a: Sequence[RunEvidence], b: Sequence[RunEvidence]) -> list[str]:
    runs = [*a, *b]
    longest = max((run.num_steps for run in runs), default=0)
    short_runs = [run for run in runs if run.num_steps < 0.9 * longest]
    if len(short_runs) > _MAX_NAMED_RUNS:
        first = min(short_runs, key=lambda run: run.num_steps)
        return [
            f"{len(short_runs)} of {len(runs)} runs ended before step {longest:,}, {first.name!r} first, at "
            f"{first.num_steps:,}: common steps count"
        ]
    return [
        f"{run.name!r} ended at step {run.num_steps:,} and others at {longest:,}: common steps count"
        for run in short_runs
    ]


def _comparable_text(comparability: Comparability, a: Sequence[RunEvidence], b: Sequence[RunEvidence]) -> str:
    if comparability.common_tag is not None:
        return f"same perf_tag {comparability.common_tag!r}: equal speed and memory are expected"
    if comparability.is_expected_to_differ:
        tags = [", ".join(sorted({tag for run in runs for tag in run.perf_tags})) for runs in (a, b)]
        return f"different perf tags ({tags[0]} and {tags[1]}): speed and memory are expected to differ"
    if comparability.speed_refusal is not None:
        return "speed and memory are not comparable"
    return "comparable by their facts; no common perf_tag"
