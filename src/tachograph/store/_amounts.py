"""The axes of samples and tokens: how many the model had seen after each step, over all processes.

The first of these that a run has is used:

1. a counter among the metrics, such as `num_tokens`. One that starts again in a resumed run is continued;
2. the amount of each step among the metrics, such as `num_tokens_per_step`. Steps without a record have the amount of
   the next record, or the mean of a record that covers several steps;
3. the rates of windows of marked iterations: rate times the seconds in which the window trained;
4. the config: samples per step, and for tokens also the length of sequences. Each attempt has its own.

A resumed run continues from the step before its first one, so that repeated steps lie where they were. If the first
step of a run is later than 1, the steps before it are assumed to have had the same amount.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tachograph.records import flatten
from tachograph.store._axes import AttemptSteps, Knots, RecordedValues, attempt_steps, build_knots, series_of
from tachograph.store._chart_lines import ColumnSource
from tachograph.store._columns import Floats

__all__ = ["Amount", "amount_knots", "window_training_s"]

Amount = Literal["samples", "tokens"]


class _Names(NamedTuple):
    counters: tuple[str, ...]
    per_step: tuple[str, ...]
    rate: str
    config: tuple[str, ...]
    """Keys of the config with the amount of a step."""


_NAMES: dict[Amount, _Names] = {
    "samples": _Names(
        counters=(
            "num_samples",
            "samples_seen",
            "num_samples_seen",
            "consumed_samples",
            "consumed_train_samples",
            "consumed-train-samples",
            "train/consumed_samples",
            "time/sample",
        ),
        per_step=("num_samples_per_step", "samples_per_step", "global_batch_size", "train/global_batch_size"),
        rate="window/samples_per_sec",
        config=("samples_per_step", "num_samples_per_step", "global_batch_size"),
    ),
    "tokens": _Names(
        counters=(
            "num_tokens",
            "num_input_tokens_seen",
            "train/num_input_tokens_seen",
            "train/num_tokens",
            "tokens_seen",
            "num_tokens_seen",
            "n_tokens_seen",
            "total_tokens",
            "consumed_tokens",
            "time/token",
        ),
        per_step=("num_tokens_per_step", "tokens_per_step", "perf/total_num_tokens"),
        rate="window/tokens_per_sec",
        config=("tokens_per_step", "num_tokens_per_step"),
    ),
}
_LENGTHS = ("sequence_length", "seq_length", "seq_len", "block_size", "context_length")
_NOT_TRAINING = ("checkpoint", "validation", "testing")


class _Growth(NamedTuple):
    """The growth of an amount in one attempt: values at increasing steps."""

    steps: Floats
    values: Floats


def amount_knots(
    sources: Sequence[ColumnSource], amount: Amount, facts: Mapping[int, Mapping[str, Any]]
) -> dict[int, Knots] | None:
    """Return the knots of each attempt; None if the run does not state the amount.

    Args:
        sources: the recorded columns.
        amount: the amount to count.
        facts: the fields of the start of each attempt, with its config.
    """
    attempts = attempt_steps(sources)
    names = _NAMES[amount]
    for counter in names.counters:
        counts = series_of(sources, "step", counter)
        if counts and all(_is_counter(series.values) for series in counts.values()):
            return _continue(attempts, {attempt: _last_of_steps(series) for attempt, series in counts.items()}, _count)
    for name in names.per_step:
        amounts = _per_step(sources, name)
        if amounts and all((series.values >= 0).all() for series in amounts.values()):
            return _continue(attempts, amounts, _add_per_step)
    totals = _window_amounts(sources, names.rate)
    if totals:
        return _continue(attempts, totals, _add_totals)
    config_amounts = _config_amounts(attempts, facts, amount)
    return _continue(attempts, config_amounts, _add_per_step) if config_amounts else None


def _continue(
    attempts: Mapping[int, AttemptSteps],
    growths: Mapping[int, _Growth],
    build: Callable[[AttemptSteps, _Growth, float | None], Knots],
) -> dict[int, Knots]:
    """Return the knots of each attempt with a growth, each continuing the one before."""
    knots: dict[int, Knots] = {}
    previous: Knots | None = None
    for attempt, step_range in attempts.items():
        if attempt in growths:
            start = None if previous is None else previous.at(step_range.before)
            previous = knots[attempt] = build(step_range, growths[attempt], start)
    return knots


def _add_per_step(step_range: AttemptSteps, growth: _Growth, start: float | None) -> Knots:
    steps, per_step = growth
    if start is None:
        start = max(0.0, step_range.before) * float(per_step[0])
    return build_knots(step_range, start, steps, start + np.cumsum(per_step * step_range.num_steps(steps)))


def _add_totals(step_range: AttemptSteps, growth: _Growth, start: float | None) -> Knots:
    steps, totals = growth
    if start is None:
        num_steps = step_range.num_steps(steps)[0]
        start = max(0.0, step_range.before) * float(totals[0]) / num_steps if num_steps > 0 else 0.0
    return build_knots(step_range, start, steps, start + np.cumsum(totals))


def _count(step_range: AttemptSteps, growth: _Growth, start: float | None) -> Knots:
    steps, counts = growth
    if start is not None:
        # The counter of a resumed run may start again.
        return build_knots(step_range, start, steps, counts + start if counts[0] < start else counts)
    if step_range.before <= 0:
        return build_knots(step_range, 0.0, steps, counts)
    # The run started later than its counter.
    slope = (counts[1] - counts[0]) / (steps[1] - steps[0]) if len(steps) > 1 else counts[0] / max(1.0, steps[0])
    return build_knots(step_range, max(0.0, float(counts[0] - slope * (steps[0] - step_range.before))), steps, counts)


def _is_counter(values: Floats) -> bool:
    """Return whether values never decrease and are not constant, as amounts per step are."""
    is_increasing = bool((np.diff(values) >= 0).all()) and values[0] >= 0
    return is_increasing and (len(values) == 1 or bool(values[-1] > values[0]))


def _last_of_steps(series: RecordedValues) -> _Growth:
    is_last = np.append(np.diff(series.steps) > 0, True)
    return _Growth(series.steps[is_last], series.values[is_last])


def _per_step(sources: Sequence[ColumnSource], name: str) -> dict[int, _Growth]:
    """Return the amount per step of each record: the mean, if the record covers steps with different amounts."""
    amounts = {attempt: _last_of_steps(series) for attempt, series in series_of(sources, "step", name).items()}
    for attempt, series in series_of(sources, "step", f"{name}/mean").items():
        if attempt in amounts:
            means, latest = _last_of_steps(series), amounts[attempt]
            index = np.searchsorted(latest.steps, means.steps)
            has_latest = np.isin(means.steps, latest.steps)
            values = latest.values.copy()
            values[index[has_latest]] = means.values[has_latest]
            amounts[attempt] = latest._replace(values=values)
    return amounts


def _window_amounts(sources: Sequence[ColumnSource], rate: str) -> dict[int, _Growth]:
    """Return the amount of each window of marked iterations."""
    rates = series_of(sources, "window", rate)
    amounts = {}
    for attempt, (steps, training_s) in window_training_s(sources).items():
        if attempt in rates:
            series = rates[attempt]
            index = np.searchsorted(steps, series.steps)  # windows with a rate have a duration
            amounts[attempt] = _Growth(series.steps, np.rint(series.values * training_s[index]))
    return amounts


def window_training_s(sources: Sequence[ColumnSource]) -> dict[int, tuple[Floats, Floats]]:
    """Return step and seconds of training of each window with iterations, by attempt.

    The seconds of a window without checkpoints, validation and testing count as training.
    """
    durations = series_of(sources, "window", "window/sec")
    iterations = series_of(sources, "window", "window/iterations")
    shares = [series_of(sources, "window", f"window/share_{phase}") for phase in _NOT_TRAINING]
    windows = {}
    for attempt, (steps, times, duration_s) in durations.items():
        # Match windows by their times: one without iterations may follow at the same step.
        training_share = np.ones(len(steps))
        for share in (share[attempt] for share in shares if attempt in share):
            training_share[np.isin(times, share.times)] -= share.values[np.isin(share.times, times)]
        has_iterations = np.zeros(len(steps), dtype=bool)
        if attempt in iterations:
            has_iterations[np.isin(times, iterations[attempt].times[iterations[attempt].values > 0])] = True
        if has_iterations.any():
            training_s = np.maximum(0.0, duration_s * training_share)
            windows[attempt] = steps[has_iterations], training_s[has_iterations]
    return windows


def _config_amounts(
    attempts: Mapping[int, AttemptSteps], facts: Mapping[int, Mapping[str, Any]], amount: Amount
) -> dict[int, _Growth]:
    """Return the amount of a step according to the config of each attempt, or of the nearest one that states it."""
    amounts = {attempt: _config_amount(facts.get(attempt, {}), amount) for attempt in attempts}
    last = next((value for value in amounts.values() if value is not None), None)
    growths = {}
    for attempt, step_range in attempts.items():
        last = amounts[attempt] or last
        if last is not None:
            growths[attempt] = _Growth(np.array([step_range.last]), np.array([last]))
    return growths


def _config_amount(facts: Mapping[str, Any], amount: Amount) -> float | None:
    """Return the amount of a step according to the start of an attempt."""
    config = facts.get("config")
    keys = flatten(config) if isinstance(config, Mapping) else {}
    per_step = _find(keys, _NAMES[amount].config) or _find(facts, _NAMES[amount].config)
    if per_step is not None:
        return per_step
    if amount == "tokens":
        samples, length = _config_amount(facts, "samples"), _find(keys, _LENGTHS) or _find(facts, _LENGTHS)
        return None if samples is None or length is None else samples * length
    batch_size = _find(facts, ("effective_batch_size", "batch_size"))
    return None if batch_size is None else batch_size * (_find(facts, ("world_size",)) or 1.0)


def _find(values: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return the positive number of the first name that some key ends with; None if keys disagree."""
    for name in names:
        numbers = {
            float(value)
            for key, value in values.items()
            if key.rpartition("/")[2] == name
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
            and 0 < value < 1e15
        }
        if numbers:
            return numbers.pop() if len(numbers) == 1 else None
    return None
