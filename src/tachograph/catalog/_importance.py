"""How much of a result each config key of a sweep explains.

The model is a sum of functions of one key and of two keys, a smoothing-spline analysis of variance: the result is a
Gaussian process whose covariance is a weighted sum of kernels, one for each key and one for each of a few pairs. The
kernels of numbers are cubic splines of their ranks, so that an optimum in the middle and logarithmic scales need no
special treatment; texts and missing values are categories. Each kernel is centred over the runs, so the parts of the
sum do not overlap, and the kernel of a pair is the product of two. The weights maximize the likelihood: each one is
multiplied by the ratio of what its part explains to what is expected (Zhou, Hu, Zhou and Lange 2019, without the root).
Pairs are chosen by their score in the model without pairs, which costs one product of matrices for all of them. The
share of a part is the variance of its function over the runs, divided by the variance of the result.

The model is fitted again ten times, with many runs five times, each time without a part of the runs. The runs left out
tell how much it explains out of sample: if that cannot be told from nothing, no shares are returned. The changes of the
shares give their intervals (a delete-a-group jackknife). Keys that vary together are one part, because the runs cannot
separate them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy
import numpy.typing

from tachograph.catalog._captured_diff import diff_values
from tachograph.catalog._config_keys import describes_training, is_repeat_key
from tachograph.catalog._groups import value_key
from tachograph.catalog._row import RunRow

__all__ = ["KeyImportance", "KeyRanking", "PairShare", "UnrankedKey", "explain_results", "rank_keys", "varying_keys"]

MIN_RUNS = 8
_MAX_RUNS = 300
"""More runs than these are drawn at random: the time grows with the third power."""
_MAX_KEYS = 60
_MAX_PAIRS = 10
_MANY_RUNS = 100
"""From here on, the model is fitted again five instead of ten times."""
_TOGETHER = 0.75
"""The alignment of kernels, 0 to 1, above which keys vary together; rank correlations of 0.9 reach it."""
_MIN_EXPLAINED = 0.1
_MIN_T = 2.5
"""How many standard errors the explained share must be above 0."""
_T95 = {5: 2.776, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t by the number of fits."""
_MIN_PRESENT_SHARE = 0.25
_NUM_UPDATES = 30
_NUM_FOLD_UPDATES = 15
_MIN_WEIGHT = 1e-3
_MAX_REACH = 3.0
"""Results beyond this many interquartile ranges from the quartiles count as if they were there."""

Numbers = numpy.typing.NDArray[numpy.float64]


class PairShare(msgspec.Struct):
    """What a key explains only together with another one: the best value of each depends on the other."""

    key: str
    share: float


class KeyImportance(msgspec.Struct):
    """The share of the variance of a result that a config key explains."""

    key: str
    num_runs: int
    """The number of runs that have it."""
    share: float
    """What it explains alone and in pairs with others; pairs count for both keys."""
    low: float
    """The lower end of the 95 % interval of the share; 0 if an effect is not certain."""
    high: float
    alone: float
    """What it explains by itself."""
    pairs: list[PairShare]
    """The largest first."""
    together: list[str]
    """Other keys that vary together with this one: the share is theirs in common."""


class UnrankedKey(msgspec.Struct):
    """A config key that varies, but is not ranked."""

    key: str
    reason: str


class KeyRanking(msgspec.Struct):
    """The config keys that vary, by the share of a result that they explain."""

    field: str
    num_runs: int
    """The number of runs with a finite result."""
    num_missing: int
    num_clipped: int = 0
    """Results so far off the others that they count as closer ones."""
    explained_share: float | None = None
    """The share of the variance that all keys explain of runs that the model has not seen; null if it is not known."""
    keys: list[KeyImportance] = []
    """The largest share first; empty if there is no ranking."""
    not_ranked: list[UnrankedKey] = []
    reason: str | None = None
    """Why there is no ranking, or null if there is one."""


class _Explanation(NamedTuple):
    explained_share: float
    is_certain: bool
    """Whether the explained share is above 0 for certain."""
    alone: Numbers
    """The share of each column."""
    pairs: dict[tuple[int, int], float]
    low: Numbers
    high: Numbers


def rank_keys(rows: Sequence[RunRow], field: str) -> KeyRanking:
    """Rank the config keys that vary between runs by how much of a result they explain."""
    results = numpy.array([_finite(row.get(field)) for row in rows], dtype=numpy.float64)
    rows_with_result = [row for row, value in zip(rows, results, strict=True) if math.isfinite(value)]
    num_missing = len(rows) - len(rows_with_result)
    results = results[numpy.isfinite(results)]
    not_ranked: list[UnrankedKey] = []
    values_by_key: dict[str, list[Any]] = {}
    for name, values in varying_keys(rows_with_result).items():
        reason = _reason_against(name, values)
        if reason is None and len(values_by_key) >= _MAX_KEYS:
            reason = f"more than {_MAX_KEYS} keys vary"
        if reason is None:
            values_by_key[name] = values
        else:
            not_ranked.append(UnrankedKey(name, reason))
    ranking = KeyRanking(field, len(rows_with_result), num_missing, not_ranked=not_ranked)
    if len(results) < MIN_RUNS:
        ranking.reason = f"Too few runs: {len(results)} have a result; at least {MIN_RUNS} are needed."
        return ranking
    if not values_by_key:
        ranking.reason = "No config key that could be ranked varies."
        return ranking
    if len(results) > _MAX_RUNS:
        chosen = numpy.sort(numpy.random.default_rng(0).permutation(len(results))[:_MAX_RUNS])
        results = results[chosen]
        values_by_key = {name: [values[number] for number in chosen] for name, values in values_by_key.items()}
    results, ranking.num_clipped = _clip(results)
    if not results.std():
        ranking.reason = "The result is the same in all runs."
        return ranking
    _fill_in(ranking, values_by_key, results)
    return ranking


def _fill_in(ranking: KeyRanking, values_by_key: dict[str, list[Any]], results: Numbers) -> None:
    names = list(values_by_key)
    kernels = numpy.stack([_kernel(values) for values in values_by_key.values()])
    clusters = _clusters(kernels)
    explanation = _explain(numpy.stack([kernels[cluster].mean(axis=0) for cluster in clusters]), results)
    if not explanation.is_certain:
        ranking.reason = (
            f"The {len(names)} keys that vary do not predict the result of runs that were left out, so there is no "
            f"ranking of {len(results)} runs. More runs may show smaller effects."
        )
        return
    ranking.explained_share = explanation.explained_share
    for number, cluster in enumerate(clusters):
        pairs = [
            PairShare(names[clusters[first if second == number else second][0]], share)
            for (first, second), share in explanation.pairs.items()
            if number in (first, second) and share >= 0.005
        ]
        alone = float(explanation.alone[number])
        ranking.keys.append(
            KeyImportance(
                names[cluster[0]],
                sum(value is not None for value in values_by_key[names[cluster[0]]]),
                min(1.0, alone + math.fsum(share for pair, share in explanation.pairs.items() if number in pair)),
                float(explanation.low[number]),
                float(explanation.high[number]),
                alone,
                sorted(pairs, key=lambda pair: -pair.share),
                [names[other] for other in cluster[1:]],
            )
        )
    ranking.keys.sort(key=lambda key: -key.share)


def explain_results(columns: dict[str, Sequence[Any]], results: Sequence[float]) -> KeyRanking:
    """Rank columns of values by how much of a result they explain, as `rank_keys` does for the config of runs."""
    ranking = KeyRanking("", len(results), 0)
    _fill_in(ranking, {name: list(values) for name, values in columns.items()}, numpy.asarray(results, numpy.float64))
    return ranking


def varying_keys(rows: Sequence[RunRow]) -> dict[str, list[Any]]:
    """Return the config keys that describe the training and have two or more values, with the value of each run."""
    values_of_key = {each.name: each.values for each in diff_values([row.summary.config for row in rows])}
    return {
        name: values
        for name, values in values_of_key.items()
        if describes_training(name) and len({value_key(value) for value in values if value is not None}) > 1
    }


def _reason_against(name: str, values: Sequence[Any]) -> str | None:
    if is_repeat_key(name):
        return "only distinguishes repeats"
    present = [value for value in values if value is not None]
    if len(present) < max(MIN_RUNS, _MIN_PRESENT_SHARE * len(values)):
        return f"only {len(present)} of {len(values)} runs have it"
    num_texts = len({str(value) for value in present})
    if not _are_numbers(present) and num_texts > max(2, len(present) // 3):
        return f"{num_texts} texts in {len(present)} runs"
    return None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _clip(results: Numbers) -> tuple[Numbers, int]:
    """Move results that are far off the others closer; a single diverged run would be nearly all of the variance."""
    low, high = numpy.quantile(results, (0.25, 0.75))
    reach = _MAX_REACH * (high - low)
    if not reach:
        return results, 0
    clipped = numpy.clip(results, low - reach, high + reach)
    return clipped, int((clipped != results).sum())


# Kernels --------------------------------------------------------------------------------------------------------------


def _kernel(values: Sequence[Any]) -> Numbers:
    """Return how similar the values of runs are: centred, with a mean of 1 on the diagonal."""
    present = numpy.array([value is not None for value in values])
    kernel = numpy.zeros((len(values), len(values)))
    if _are_numbers([value for value in values if value is not None]):
        numbers = numpy.array([_finite(value) for value in values])
        present = numpy.isfinite(numbers)
        both = numpy.ix_(present, present)
        kernel[both] = _spline_kernel(_ranks(numbers[present]))
        if not present.all():  # whether a run has the key may matter, too
            kernel = kernel / max(float(numpy.diag(kernel).mean()), 1e-12) + (present[:, None] == present[None, :])
    else:
        texts = numpy.array([str(value_key(value)) for value in values])
        kernel = (texts[:, None] == texts[None, :]).astype(numpy.float64)
    kernel = kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
    return _normed(kernel)


def _spline_kernel(x: Numbers) -> Numbers:
    """Return the kernel of cubic smoothing splines on 0 to 1, from Bernoulli polynomials (Wahba 1990)."""

    def second(values: Numbers) -> Numbers:
        return ((values - 0.5) ** 2 - 1 / 12) / 2

    def fourth(values: Numbers) -> Numbers:
        return ((values - 0.5) ** 4 - (values - 0.5) ** 2 / 2 + 7 / 240) / 24

    distance = numpy.abs(x[:, None] - x[None, :])
    kernel: Numbers = numpy.outer(x - 0.5, x - 0.5) + numpy.outer(second(x), second(x)) - fourth(distance)
    return kernel


def _ranks(values: Numbers) -> Numbers:
    """Return ranks between 0 and 1; equal values share their mean rank."""
    _, inverse, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    means: Numbers = numpy.cumsum(counts) - counts / 2.0
    return means[inverse.reshape(-1)] / max(1, len(values))


def _clusters(kernels: Numbers) -> list[list[int]]:
    """Return columns that vary together, as lists of their numbers."""
    flat = kernels.reshape(len(kernels), -1)
    products = flat @ flat.T
    norms = numpy.sqrt(numpy.diag(products))
    aligned = products / numpy.outer(norms, norms) > _TOGETHER
    clusters: list[list[int]] = []
    for number in range(len(kernels)):
        cluster = next((each for each in clusters if aligned[each[0], number]), None)
        if cluster is None:
            clusters.append([number])
        else:
            cluster.append(number)
    return clusters


# The model ------------------------------------------------------------------------------------------------------------


def _explain(kernels: Numbers, results: Numbers) -> _Explanation:
    """Fit the model, and again without each part of the runs."""
    y = (results - results.mean()) / results.std()
    count = len(kernels)
    pairs = _choose_pairs(kernels, y)
    parts = numpy.stack([*kernels, *(_normed(kernels[first] * kernels[second]) for first, second in pairs)])
    weights, noise = _fit(parts, y, _NUM_UPDATES)
    shares = _shares(parts, weights, noise, y)
    order = numpy.random.default_rng(0).permutation(len(y))
    folds = numpy.array_split(order, 5 if len(y) > _MANY_RUNS else min(10, len(y)))
    errors, errors_of_mean = numpy.zeros(len(y)), numpy.zeros(len(y))
    shares_of_folds = []
    members = numpy.zeros((count, len(parts)))
    members[numpy.arange(count), numpy.arange(count)] = 1.0
    for number, (first, second) in enumerate(pairs):
        members[[first, second], count + number] = 1.0
    for fold in folds:
        rest = numpy.setdiff1d(order, fold)
        inside = parts[:, rest[:, None], rest]
        mean = float(y[rest].mean())
        fold_weights, fold_noise = _fit(inside, y[rest] - mean, _NUM_FOLD_UPDATES)
        shares_of_folds.append(members @ _shares(inside, fold_weights, fold_noise, y[rest] - mean))
        covariance = numpy.tensordot(fold_weights, inside, 1) + fold_noise * numpy.eye(len(rest))
        across = numpy.tensordot(fold_weights, parts[:, fold[:, None], rest], 1)
        errors[fold] = (y[fold] - mean - across @ numpy.linalg.solve(covariance, y[rest] - mean)) ** 2
        errors_of_mean[fold] = (y[fold] - mean) ** 2
    gains = errors_of_mean - errors
    explained = 1.0 - float(errors.sum() / errors_of_mean.sum())
    is_certain = explained > _MIN_EXPLAINED and float(gains.mean()) > _MIN_T * float(gains.std(ddof=1)) / math.sqrt(
        len(y)
    )
    totals = members @ shares
    folds_totals = numpy.array(shares_of_folds)
    num_folds = len(folds)
    deviations = ((folds_totals - folds_totals.mean(axis=0)) ** 2).sum(axis=0)
    half = _T95[num_folds] * numpy.sqrt((num_folds - 1) / num_folds * deviations)
    return _Explanation(
        explained,
        is_certain,
        shares[:count],
        {pair: float(share) for pair, share in zip(pairs, shares[count:], strict=True)},
        numpy.clip(totals - half, 0.0, 1.0),
        numpy.clip(totals + half, 0.0, 1.0),
    )


def _normed(kernel: Numbers) -> Numbers:
    normed: Numbers = kernel / max(float(numpy.diag(kernel).mean()), 1e-12)
    return normed


def _choose_pairs(kernels: Numbers, y: Numbers) -> list[tuple[int, int]]:
    """Return the pairs of columns whose product explains most of what the single columns leave."""
    weights, noise = _fit(kernels, y, _NUM_FOLD_UPDATES)
    inverse = numpy.linalg.inv(numpy.tensordot(weights, kernels, 1) + noise * numpy.eye(len(y)))
    alpha = inverse @ y
    flat = kernels.reshape(len(kernels), -1)
    gains = (flat * numpy.outer(alpha, alpha).ravel()) @ flat.T
    expected = (flat * inverse.ravel()) @ flat.T
    scores = gains / numpy.maximum(expected, 1e-12)
    candidates = sorted(itertools.combinations(range(len(kernels)), 2), key=lambda pair: -scores[pair])
    return [pair for pair in candidates[:_MAX_PAIRS] if scores[pair] > 1.0]


def _fit(parts: Numbers, y: Numbers, num_updates: int) -> tuple[Numbers, float]:
    """Return the weights of the parts and of the noise that make the results most likely."""
    count, size = len(parts), len(y)
    weights, noise = numpy.full(count, 0.5 / count), 0.5
    active = numpy.arange(count)
    flat = parts.reshape(count, -1)
    for number in range(num_updates):
        covariance = (weights[active] @ flat).reshape(size, size)
        covariance[numpy.diag_indices(size)] += noise
        inverse = numpy.linalg.inv(covariance)
        alpha = inverse @ y
        gains, costs = (flat @ numpy.stack([numpy.outer(alpha, alpha).ravel(), inverse.ravel()], axis=1)).T
        weights[active] *= numpy.maximum(gains, 0.0) / numpy.maximum(costs, 1e-12)
        noise = min(2.0, max(1e-4, noise * float(alpha @ alpha) / float(numpy.trace(inverse))))
        if number % 5 == 4 and (weights[active] <= _MIN_WEIGHT).any():
            weights[weights <= _MIN_WEIGHT] = 0.0
            active = numpy.flatnonzero(weights)
            flat = parts[active].reshape(len(active), size * size)
            if not len(active):
                break
    return weights, noise


def _shares(parts: Numbers, weights: Numbers, noise: float, y: Numbers) -> Numbers:
    """Return the variance of the function of each part, as a share of the variance of the results."""
    covariance = numpy.tensordot(weights, parts, 1) + noise * numpy.eye(len(y))
    alpha = numpy.linalg.solve(covariance, y)
    shares: Numbers = weights**2 * (parts @ alpha).var(axis=1) / y.var()
    return shares


def _finite(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.nan
    return number if math.isfinite(number) else math.nan
