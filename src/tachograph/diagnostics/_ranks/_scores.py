"""Scores the ranks of one window against each other.

The reference of a rank is the median own time of its cohort, the ranks that do the same work: the fastest rank gets
faster with the number of ranks, and the mean follows the slow one. The spread is the largest of three: the median
absolute deviation over the cohort; the error that the medians of single ranks have, from their variation within the
window; and half a percent. The second one matters with few ranks, whose deviations may agree by chance.

Rank 0 logs and saves. Where the rest of an iteration counts as own work, its excess over the rest of the other ranks is
subtracted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from tachograph.diagnostics._ranks._collector import RankTimes
from tachograph.diagnostics._ranks._labels import Integers, Numbers, RankLabels, group_medians

__all__ = ["ScoredWindow", "SlowGroup", "Spike", "WindowScorer", "cohort_statistics"]

MAD_TO_SIGMA = 1.4826
MEDIAN_ERROR = 1.2533
"""The standard error of a median, in standard errors of a mean."""

_MIN_SPREAD = 0.005
_HISTORY = 20
_GROUP_SPREADS = 4.0
_GROUP_SIGMAS = 5.0
_GROUP_VARIANCE = 0.8
_MAX_SPIKING = 0.5
_SPIKE_SIGMAS = 6.0


class Spike(NamedTuple):
    """One iteration that took one rank far longer than its others."""

    iteration: int
    rank: int
    own_s: float
    usual_s: float


class SlowGroup(NamedTuple):
    """A host or stage all of whose ranks are slow."""

    code: int
    excess: float
    """How much slower than the typical group, as a share."""


class CohortStatistics(NamedTuple):
    """The reference and the spread for each of some ranks."""

    reference: Numbers
    spread: Numbers
    size: Integers


class ScoredWindow:
    """One window of iterations, with the scores of all ranks that have reported it.

    Arrays have one element per rank of `ranks`. Numbers of the whole job are attributes, too.
    """

    def __init__(self, times: RankTimes, labels: RankLabels, best_own_s: Numbers | None) -> None:
        is_present = (times.num_iterations > 0) & numpy.isfinite(times.columns["own"])
        self.times = times
        self.labels = labels
        self.end = times.end
        self.length = times.length
        self.level = times.level
        self.time_s = times.time_s
        self.is_measured = times.is_measured
        self.first_iteration = times.end - times.length
        self.ranks = numpy.flatnonzero(is_present)
        self.num_ranks = len(self.ranks)
        self.world_size = len(is_present)
        self.num_missing = self.world_size - self.num_ranks
        self.wait_s = self.column("wait")
        self.own_s = self._own_without_extra_rest()
        self.step_s = float(numpy.median(self.own_s + self.wait_s))
        self.typical_own_s = float(numpy.median(self.own_s))
        self.typical_wait_s = float(numpy.median(self.wait_s))
        # The error of the median of one rank.
        num_iterations = times.num_iterations[self.ranks]
        self.error_s = MEDIAN_ERROR * MAD_TO_SIGMA * self.column("own_mad") / numpy.sqrt(num_iterations)
        self.cohort = labels.cohort[self.ranks]
        cohort = cohort_statistics(self.own_s, self.error_s, self.cohort)
        self.reference_s, self.spread_s, self.cohort_size = cohort
        own_s = numpy.maximum(self.own_s, 1e-12)
        self.relative = self.reference_s / own_s
        """1 is typical, 0.8 is 25 % slower."""
        self.z = (self.own_s - self.reference_s) / numpy.maximum(self.spread_s, 1e-12)
        self.individual = None if best_own_s is None else best_own_s[self.ranks] / own_s
        """Compared with the best of the rank's last windows; None for merged windows."""
        self.late_s = self.typical_wait_s - self.wait_s
        """How much later than most a rank arrives."""
        self.transfer_s = float(self.wait_s.min())
        """The wait of the last one to arrive: data still moves."""

    def column(self, name: str) -> Numbers:
        """Return a quantity of the ranks that have reported, NaN where it was not measured."""
        return self.times.columns[name][self.ranks]

    def _own_without_extra_rest(self) -> Numbers:
        own_s = self.column("own")
        if self.num_ranks and self.ranks[0] == 0 and self.is_measured:
            phases = sum(numpy.nan_to_num(self.column(name)) for name in ("data", "forward", "backward", "optimizer"))
            rest_s = own_s + self.wait_s - phases
            extra_s = rest_s[0] - float(numpy.median(rest_s[1:])) if self.num_ranks > 1 else 0.0
            own_s = own_s.copy()
            own_s[0] -= min(max(extra_s, 0.0), own_s[0])
        return own_s

    @property
    def is_any_rank_late(self) -> bool:
        """Whether a rank arrives later or earlier than most by 3 % of the step, and more than ranks usually differ."""
        deviation_s = numpy.abs(self.late_s)
        usual_s = _GROUP_SIGMAS * MAD_TO_SIGMA * float(numpy.median(deviation_s))
        return bool(deviation_s.max() > max(0.03 * self.step_s, usual_s))

    @property
    def variation(self) -> float:
        """How much the own time of a rank varies from iteration to iteration, as a share: the median over ranks."""
        return float(numpy.median(self.column("own_mad") / numpy.maximum(self.column("own"), 1e-12)))

    @property
    def varies_together(self) -> bool:
        """Whether more than half of the ranks have their longest iteration at the same one."""
        iterations = self.times.longest_iteration[self.ranks]
        iterations = iterations[iterations >= 0]
        if not len(iterations):
            return True
        return bool(2 * int(numpy.unique(iterations, return_counts=True)[1].max()) > len(iterations))

    def error_of(self, name: str) -> float:
        """Return the typical error of the median of one rank, from the variation within the window."""
        num_iterations = self.times.num_iterations[self.ranks]
        errors_s = MEDIAN_ERROR * MAD_TO_SIGMA * self.column(f"{name}_mad") / numpy.sqrt(num_iterations)
        return float(numpy.median(numpy.nan_to_num(errors_s)))

    def lowest(self, name: str) -> float | None:
        """Return the lowest value of a quantity over the ranks; None if it was not measured on all."""
        values = self.column(name)
        return float(values.min()) if numpy.isfinite(values).all() else None

    def typical(self, name: str) -> float | None:
        """Return the median of a quantity over the ranks; None if it was not measured on all."""
        values = self.column(name)
        return float(numpy.median(values)) if numpy.isfinite(values).all() else None

    def spikes(self, least_excess: float) -> list[Spike]:
        """Return iterations that took one or a few ranks far longer than usual, the longest first; at most eight.

        Args:
            least_excess: the minimum excess over the rank's median, as a share of it.
        """
        longest_s, own_s = self.times.longest_own_s[self.ranks], self.column("own")
        is_spike = (longest_s > (1 + least_excess) * own_s) & (own_s > 0)
        # Where the work varies, a long iteration now and then belongs to it.
        variation = numpy.maximum(self.column("own_mad")[is_spike] / own_s[is_spike], self.variation)
        rise = numpy.log(longest_s[is_spike] / own_s[is_spike])
        is_spike[is_spike] = rise > _SPIKE_SIGMAS * MAD_TO_SIGMA * variation
        indices = numpy.flatnonzero(is_spike)
        if not len(indices) or len(indices) > max(1, _MAX_SPIKING * self.num_ranks):
            return []
        order = indices[numpy.argsort(own_s[indices] - longest_s[indices], kind="stable")][:8]
        iterations = self.times.longest_iteration[self.ranks]
        return [
            Spike(int(iterations[index]), int(self.ranks[index]), float(longest_s[index]), float(own_s[index]))
            for index in order
        ]

    def slow_hosts(self, least_excess: float) -> list[SlowGroup]:
        """Return the hosts all of whose ranks are slow, compared within the same stage."""
        return self._slow_groups(self.own_s / self.reference_s, self.labels.host[self.ranks], least_excess, 2)

    def slow_stages(self, least_excess: float) -> list[SlowGroup]:
        """Return the pipeline stages that take longer than the typical one."""
        return self._slow_groups(self.own_s / self.typical_own_s, self.labels.stage[self.ranks], least_excess, 1)

    def _slow_groups(self, values: Numbers, codes: Integers, least_excess: float, min_size: int) -> list[SlowGroup]:
        """Return the groups that are slower than the typical group, as a whole.

        The difference must be four times the spread within groups, so that it explains at least 0.8 of the variance of
        such a group and a typical one. With many groups it must also be an outlier among them. With few groups half of
        them may be slow; then it must explain 0.8 of the variance of all ranks.
        """
        if self.typical_own_s <= 0 or codes.min() < 0:
            return []
        sizes = numpy.bincount(codes)
        groups = numpy.flatnonzero(sizes)
        if len(groups) < 2 or sizes[groups].min() < min_size:
            return []
        medians = group_medians(values, codes, len(sizes))
        typical = float(numpy.sort(medians[groups])[(len(groups) - 1) // 2])
        excess = medians / typical - 1
        if numpy.nanmax(excess) < least_excess:
            return []
        size_of = sizes[codes]
        residuals = (values - medians[codes])[size_of > 1] * numpy.sqrt(size_of / numpy.maximum(size_of - 1, 1))[
            size_of > 1
        ]
        within = MAD_TO_SIGMA * float(numpy.median(numpy.abs(residuals))) if len(residuals) else 0.0
        error = float(numpy.median(self.error_s)) / self.typical_own_s
        within = max(within, error, _MIN_SPREAD)
        between = MAD_TO_SIGMA * float(numpy.median(numpy.abs(medians[groups] - typical)))
        group_spread = numpy.maximum(between, MEDIAN_ERROR * within / numpy.sqrt(numpy.maximum(sizes, 1)))
        means = numpy.bincount(codes, weights=values) / numpy.maximum(sizes, 1)
        total = float(((values - values.mean()) ** 2).sum())
        explained = float((sizes * (means - values.mean()) ** 2).sum()) / max(total, 1e-30)
        lowest = numpy.full(len(sizes), numpy.inf)
        numpy.minimum.at(lowest, codes, values)
        with numpy.errstate(invalid="ignore"):
            is_slow = (
                (excess >= least_excess)
                & (excess >= _GROUP_SPREADS * within)
                & (lowest >= typical * (1 + excess / 2))
                & ((excess > _GROUP_SIGMAS * group_spread) | (explained >= _GROUP_VARIANCE))
            )
        return [SlowGroup(int(code), float(excess[code])) for code in numpy.flatnonzero(is_slow)]


def cohort_statistics(own_s: Numbers, error_s: Numbers, codes: Integers) -> CohortStatistics:
    """Return reference and spread of the cohort of each rank."""
    num_cohorts = int(codes.max()) + 1
    reference = group_medians(own_s, codes, num_cohorts)[codes]
    deviation = group_medians(numpy.abs(own_s - reference), codes, num_cohorts)[codes]
    error = group_medians(error_s, codes, num_cohorts)[codes]
    spread = numpy.maximum(numpy.maximum(MAD_TO_SIGMA * deviation, error), _MIN_SPREAD * reference)
    return CohortStatistics(reference, spread, numpy.bincount(codes, minlength=num_cohorts)[codes])


class WindowScorer:
    """Scores windows one after the other, and remembers the last own times of each rank."""

    def __init__(self, labels: RankLabels, world_size: int) -> None:
        self._labels = labels
        self._history = numpy.full((_HISTORY, world_size), numpy.nan)
        self._num_windows = 0

    def restart(self, rank: int) -> None:
        """Forget the history of a rank."""
        self._history[:, rank] = numpy.nan

    def score(self, times: RankTimes) -> ScoredWindow | None:
        """Return the scores of a window; None if fewer than two ranks have reported it."""
        best_own_s = None
        if times.level == 0:
            self._history[self._num_windows % _HISTORY] = times.columns["own"]
            self._num_windows += 1
            best_own_s = numpy.fmin.reduce(self._history, axis=0)
        return ScoredWindow(times, self._labels, best_own_s) if (times.num_iterations > 0).sum() >= 2 else None
