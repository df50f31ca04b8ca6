"""Which config keys of a sweep go with a result.

The measure is Spearman's rank correlation between the values of a key and the result, with ties at their mean rank. Its
95 % interval is the one of Fisher's z = atanh(rho) with the standard error sqrt((1 + rho²/2) / (n - 3)) of Bonett and
Wright (2000). It sees only what rises or falls throughout: a key with its optimum in the middle gets a value near 0.

With few runs, some key of many always looks important. So nothing is ranked with fewer than 30 runs, or with fewer than
five runs for each key. The effects of keys that vary together cannot be separated: each names the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
import numpy.typing

from tachograph.catalog._captured_diff import diff_values
from tachograph.catalog._config_keys import describes_training, is_seed
from tachograph.catalog._groups import value_key
from tachograph.catalog._row import RunRow

__all__ = ["KeyImportance", "KeyRanking", "UnrankedKey", "rank_keys", "spearman", "varying_keys"]

_MIN_RUNS = 30
_MIN_RUNS_PER_KEY = 5
_TOGETHER = 0.8
_Z95 = 1.959963984540054
Numbers = numpy.typing.NDArray[numpy.float64]


class KeyImportance(msgspec.Struct):
    """The rank correlation of a config key with a result."""

    key: str
    num_runs: int
    """The number of runs that have both."""
    rho: float
    """Spearman's rank correlation: 1 if the result always rises with the key, -1 if it always falls."""
    low: float | None
    """The lower end of its 95 % interval; null if the ranks agree perfectly."""
    high: float | None
    together: list[str]
    """Other keys with a rank correlation above 0.8 with this one: their effects cannot be separated."""
    one: str | None = None
    """For a key with two texts: the text that counts as 1; the other one counts as 0."""


class UnrankedKey(msgspec.Struct):
    """A config key that varies, but is not ranked."""

    key: str
    reason: str


class KeyRanking(msgspec.Struct):
    """The config keys that vary, by their rank correlation with a result."""

    field: str
    num_runs: int
    """The number of runs with a finite result."""
    num_missing: int
    num_keys: int
    """The number of keys that could be ranked."""
    keys: list[KeyImportance]
    """The strongest correlation first; empty if there are too few runs."""
    not_ranked: list[UnrankedKey]
    too_few: str | None
    """Why there is no ranking, or null if there is one."""


def rank_keys(rows: Sequence[RunRow], field: str) -> KeyRanking:
    """Rank the config keys that vary between runs by their rank correlation with a result."""
    results = numpy.array([_finite(row.get(field)) for row in rows], dtype=numpy.float64)
    rows_with_result = [row for row, value in zip(rows, results, strict=True) if math.isfinite(value)]
    results = results[numpy.isfinite(results)]
    columns: dict[str, Numbers] = {}
    ones: dict[str, str] = {}
    not_ranked: list[UnrankedKey] = []
    for name, values in varying_keys(rows_with_result).items():
        if is_seed(name):
            not_ranked.append(UnrankedKey(name, "a seed is a label"))
        elif (column := _column(values)) is not None:
            columns[name] = column
            texts = sorted({value for value in values if isinstance(value, str)})
            if texts:
                ones[name] = texts[1]
        else:
            not_ranked.append(UnrankedKey(name, _reason(values)))
    ranking = KeyRanking(
        field, len(rows_with_result), len(rows) - len(rows_with_result), len(columns), [], not_ranked, None
    )
    ranking.too_few = _too_few(len(rows_with_result), len(columns))
    if ranking.too_few is None:
        ranking.keys = _rank_by_result(columns, results, ones, not_ranked)
    return ranking


def varying_keys(rows: Sequence[RunRow]) -> dict[str, list[Any]]:
    """Return the config keys that describe the training and have two or more values, with the value of each run."""
    values_of_key = {each.name: each.values for each in diff_values([row.summary.config for row in rows])}
    return {
        name: values
        for name, values in values_of_key.items()
        if describes_training(name) and len({value_key(value) for value in values if value is not None}) > 1
    }


def spearman(first: Numbers, second: Numbers) -> float:
    """Return the rank correlation of two series; NaN if one of them is constant."""
    first_ranks, second_ranks = _ranks(first), _ranks(second)
    first_ranks, second_ranks = first_ranks - first_ranks.mean(), second_ranks - second_ranks.mean()
    scale = math.sqrt(float(first_ranks @ first_ranks) * float(second_ranks @ second_ranks))
    return float(first_ranks @ second_ranks) / scale if scale else math.nan


def _ranks(values: Numbers) -> Numbers:
    """Return ranks from 1; equal values share their mean rank."""
    _, inverse, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    ends = numpy.cumsum(counts)
    means: Numbers = ends - (counts - 1) / 2.0
    return means[inverse.reshape(-1)]


def _interval(rho: float, num: int) -> tuple[float | None, float | None]:
    if abs(rho) >= 1.0 - 1e-12 or num < 4:
        return None, None
    z, error = math.atanh(rho), math.sqrt((1.0 + rho * rho / 2.0) / (num - 3))
    return math.tanh(z - _Z95 * error), math.tanh(z + _Z95 * error)


def _rank_by_result(
    columns: dict[str, Numbers], results: Numbers, ones: dict[str, str], not_ranked: list[UnrankedKey]
) -> list[KeyImportance]:
    rankings: list[KeyImportance] = []
    for name, column in columns.items():
        both = numpy.isfinite(column)
        num = int(both.sum())
        rho = spearman(column[both], results[both]) if num >= _MIN_RUNS else math.nan
        if math.isnan(rho):
            reason = f"only {num} runs have it" if num < _MIN_RUNS else "the result is the same in all runs"
            not_ranked.append(UnrankedKey(name, reason))
            continue
        low, high = _interval(rho, num)
        rankings.append(KeyImportance(name, num, rho, low, high, [], ones.get(name)))
    for first, second in itertools.combinations(rankings, 2):
        if _vary_together(columns[first.key], columns[second.key]):
            first.together.append(second.key)
            second.together.append(first.key)
    return sorted(rankings, key=lambda each: -abs(each.rho))


def _vary_together(first: Numbers, second: Numbers) -> bool:
    both = numpy.isfinite(first) & numpy.isfinite(second)
    return int(both.sum()) >= _MIN_RUNS and abs(spearman(first[both], second[both])) > _TOGETHER


def _too_few(num_runs: int, num_keys: int) -> str | None:
    if num_keys == 0:
        return "No config key that could be ranked varies."
    num_needed = max(_MIN_RUNS, _MIN_RUNS_PER_KEY * num_keys)
    if num_runs >= num_needed:
        return None
    keys = "1 key varies" if num_keys == 1 else f"{num_keys} keys vary"
    return (
        f"Too few runs to rank keys: {num_runs} have a result and {keys}; a ranking needs {num_needed} runs "
        f"(at least {_MIN_RUNS}, and {_MIN_RUNS_PER_KEY} for each key)."
    )


def _column(values: Sequence[Any]) -> Numbers | None:
    """Return the values of a key as numbers, NaN where a run lacks it; None if they cannot be ordered."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, (int, float)) for value in present):
        return numpy.array([_finite(value) for value in values], dtype=numpy.float64)
    texts = sorted({value for value in present if isinstance(value, str)})
    if len(texts) != 2 or not all(isinstance(value, str) for value in present):
        return None
    return numpy.array([math.nan if value is None else float(value == texts[1]) for value in values])


def _reason(values: Sequence[Any]) -> str:
    num = len({value for value in values if value is not None})
    is_text = all(value is None or isinstance(value, str) for value in values)
    return f"{num} texts have no order" if is_text else "texts and numbers have no common order"


def _finite(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.nan
    return number if math.isfinite(number) else math.nan
