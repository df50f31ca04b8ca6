"""Which ranks and hosts are slow for several windows in a row, since when, in which phase, and what that costs.

Hosts come first: if half of the ranks are slow because they share a machine, the median lies between the two halves and
no single rank stands out. The excess of a slow host is then divided out, and single ranks are compared with the rest.

A rank or host must be slow in several windows in a row of one level: windows as they were recorded, of 64 iterations,
or of 256. Long windows find a slow rank behind work that varies from iteration to iteration. It has recovered after as
many windows in a row of the same level.

In a cohort of fewer than four ranks there is no typical rank. There, a rank is compared with its own earlier windows,
and with how much the other ranks have changed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from tachograph.diagnostics._ranks._labels import Integers, Numbers
from tachograph.diagnostics._ranks._scores import MAD_TO_SIGMA, ScoredWindow, cohort_statistics

__all__ = ["SlowRanks", "StragglerDetector", "StragglerLimits"]

_NUM_LEVELS = 3
_MIN_COHORT = 4
_HISTORY = 20
_MIN_HISTORY = 4
_MAX_OPEN = 8
_PHASE_SHARE = 0.6
_MIN_BACKWARD_RISE = 0.05


class StragglerLimits(NamedTuple):
    """When a rank is slow."""

    least_excess: float
    sigmas: float
    num_windows: int
    recovered_excess: float
    least_own_excess: float
    least_cost: float


class SlowRanks(NamedTuple):
    """A rank, or all ranks of a host, that the others wait for."""

    key: str
    name: str
    """`rank 2 (node2)` or `node2`."""
    ranks: list[int]
    host: str | None
    is_host: bool
    excess: float
    """How much longer its work takes, as a share: in the phase, if one is known, else of its own time."""
    phase: str | None
    cost_s: float
    """What the job would gain per step."""
    is_lower_bound: bool
    """Whether the cost may be higher, because the backward pass contains waiting."""
    step_s: float
    own_s: float
    reference_s: float
    score: float
    z: float
    since_iteration: int
    length: int
    is_individual: bool
    """Whether it is compared with its own earlier windows, because there are too few ranks."""


class _OpenSubject(NamedTuple):
    level: int
    num_calm: int
    ranks: Integers
    reference: float
    """The own time before, for a subject that is compared with itself; else NaN."""


class StragglerDetector:
    """Follows which ranks and hosts are slow; see the module docstring."""

    def __init__(self, limits: StragglerLimits, world_size: int) -> None:
        self.world_size = world_size
        self._limits = limits
        self._streaks = numpy.zeros((_NUM_LEVELS, world_size), numpy.int64)
        self._since = numpy.zeros((_NUM_LEVELS, world_size), numpy.int64)
        self._not_before = numpy.zeros(world_size, numpy.int64)  # windows that begin earlier do not count
        self._host_streaks: list[dict[int, tuple[int, int]]] = [{} for _ in range(_NUM_LEVELS)]  # number, since
        self._own_history = numpy.full((_HISTORY, world_size), numpy.nan)
        self._history_size = numpy.zeros(world_size, numpy.int64)
        self._backward: list[tuple[int, Numbers]] = []  # end, backward time of each rank
        self._open: dict[str, _OpenSubject] = {}

    def restart_rank(self, rank: int) -> list[str]:
        """Forget a rank, because another process has its number now; return the key of its alert, if one is open."""
        self._streaks[:, rank] = 0
        self._not_before[rank] = 0
        self._own_history[:, rank] = numpy.nan
        self._history_size[rank] = 0
        key = f"rank:{rank}"
        return [key] if self._open.pop(key, None) else []

    def add(self, window: ScoredWindow) -> tuple[list[SlowRanks], list[str]]:
        """Add a window; return the subjects that are slow, and the keys of those that have recovered."""
        limits, level = self._limits, window.level
        ranks = window.ranks
        host_codes = window.labels.host[ranks]
        is_new = window.first_iteration >= self._not_before[ranks]
        hosts = [host for host in window.slow_hosts(limits.least_excess) if is_new[host_codes == host.code].all()]
        own_s = window.own_s.copy()
        for host in hosts:
            own_s[host_codes == host.code] /= 1 + host.excess
        reference_s, spread_s = window.reference_s, window.spread_s
        if hosts:
            reference_s, spread_s, _ = cohort_statistics(own_s, window.error_s, window.cohort)
        deviation_s = own_s - reference_s
        is_slow = (
            (own_s > (1 + limits.least_excess) * reference_s)
            & (deviation_s > limits.sigmas * spread_s)
            & (deviation_s >= limits.least_cost * window.step_s)
            & is_new
        )
        is_small = window.cohort_size < _MIN_COHORT
        usual_s = numpy.full(len(ranks), numpy.nan)
        if is_small.any():
            is_slow[is_small] = False
            if level == 0:
                usual_s = self._compare_with_history(window, own_s, is_small, is_slow)
        self._count(level, ranks, is_slow, window.first_iteration)
        self._count_hosts(level, {host.code for host in hosts}, window.first_iteration)
        if level == 0:
            self._remember(window, is_slow)
        recovered_keys = self._close_recovered(window, own_s, reference_s)
        stragglers = self._open_hosts(window)
        stragglers += self._open_ranks(window, own_s, usual_s, is_small)
        return stragglers, recovered_keys

    # Candidates ----------------------------------------------------------------------------------------------------

    def _compare_with_history(
        self,
        window: ScoredWindow,
        own_s: Numbers,
        is_small: numpy.typing.NDArray[numpy.bool_],
        is_slow: numpy.typing.NDArray[numpy.bool_],
    ) -> Numbers:
        """Mark slow ranks of small cohorts; return the usual own time of each rank."""
        ranks, limits = window.ranks, self._limits
        history = self._own_history[:, ranks]
        has_history = self._history_size[ranks] >= _MIN_HISTORY
        usual_s = numpy.full(len(ranks), numpy.nan)
        columns = numpy.flatnonzero(has_history)
        if not len(columns):
            return usual_s
        usual_s[columns] = numpy.nanmedian(history[:, columns], axis=0)
        deviations = numpy.nanmedian(numpy.abs(history[:, columns] - usual_s[columns]), axis=0)
        change = own_s[columns] / usual_s[columns]
        for index, column in enumerate(columns):
            others = numpy.delete(change, index)
            if not is_small[column] or not len(others):
                continue
            expected_s = usual_s[column] * max(1.0, float(numpy.median(others)))
            spread_s = max(MAD_TO_SIGMA * deviations[index], window.error_s[column], 0.005 * expected_s)
            excess_s = own_s[column] - expected_s
            is_slow[column] = (
                excess_s > limits.least_own_excess * expected_s
                and excess_s > limits.sigmas * spread_s
                and excess_s >= limits.least_cost * window.step_s
            )
        return usual_s

    def _remember(self, window: ScoredWindow, is_slow: numpy.typing.NDArray[numpy.bool_]) -> None:
        self._backward = [*self._backward[1 - _HISTORY :], (window.end, window.times.columns["backward"])]
        is_usual = ~is_slow
        open_ranks = [subject.ranks for subject in self._open.values()]
        if open_ranks:
            is_usual &= ~numpy.isin(window.ranks, numpy.concatenate(open_ranks))
        ranks = window.ranks[is_usual]
        self._own_history[self._history_size[ranks] % _HISTORY, ranks] = window.own_s[is_usual]
        self._history_size[ranks] += 1

    def _count(self, level: int, ranks: Integers, is_slow: numpy.typing.NDArray[numpy.bool_], first: int) -> None:
        streaks, since = self._streaks[level], self._since[level]
        is_first = is_slow & (streaks[ranks] == 0)
        since[ranks[is_first]] = first
        streaks[ranks] = numpy.where(is_slow, streaks[ranks] + 1, 0)

    def _count_hosts(self, level: int, codes: set[int], first: int) -> None:
        before = self._host_streaks[level]
        self._host_streaks[level] = {
            code: (before[code][0] + 1, before[code][1]) if code in before else (1, first) for code in codes
        }

    # Slow subjects -------------------------------------------------------------------------------------------------

    def _open_hosts(self, window: ScoredWindow) -> list[SlowRanks]:
        stragglers = []
        for code, (number, since) in self._host_streaks[window.level].items():
            host = window.labels.hosts[code]
            key = f"host:{host}"
            if number < self._limits.num_windows or not self._has_room(key):
                continue
            indices = numpy.flatnonzero(window.labels.host[window.ranks] == code)
            others_s = numpy.delete(window.own_s / window.reference_s, indices)
            reference_s = (
                window.typical_own_s * float(numpy.median(others_s)) if len(others_s) else window.typical_own_s
            )
            self._open.setdefault(key, _OpenSubject(window.level, 0, window.ranks[indices], numpy.nan))
            straggler = self._describe(window, key, indices, numpy.full(len(indices), reference_s), since, host)
            if straggler is not None:
                stragglers.append(straggler)
            else:
                del self._open[key]
        return stragglers

    def _open_ranks(
        self, window: ScoredWindow, own_s: Numbers, usual_s: Numbers, is_small: numpy.typing.NDArray[numpy.bool_]
    ) -> list[SlowRanks]:
        level, ranks = window.level, window.ranks
        indices = numpy.flatnonzero(self._streaks[level][ranks] >= self._limits.num_windows)
        if not len(indices):
            return []
        on_slow_hosts = [subject.ranks for key, subject in self._open.items() if key.startswith("host:")]
        if on_slow_hosts:
            indices = indices[~numpy.isin(ranks[indices], numpy.concatenate(on_slow_hosts))]
        worst_first = indices[numpy.argsort(-(own_s - window.reference_s)[indices], kind="stable")]
        stragglers = []
        new_indices = []
        for index in worst_first:
            key = f"rank:{ranks[index]}"
            if not self._has_room(key):
                continue
            reference_s = float(usual_s[index]) if is_small[index] else numpy.nan
            self._open.setdefault(key, _OpenSubject(level, 0, ranks[index : index + 1], reference_s))
            new_indices.append(int(index))
        for index in new_indices:
            reference_s = float(usual_s[index]) if is_small[index] else float(window.reference_s[index])
            since = int(self._since[level][ranks[index]])
            key = f"rank:{ranks[index]}"
            one = numpy.array([index])
            straggler = self._describe(window, key, one, numpy.array([reference_s]), since, None, bool(is_small[index]))
            if straggler is not None:
                stragglers.append(straggler)
        return stragglers

    def _has_room(self, key: str) -> bool:
        return key in self._open or len(self._open) < _MAX_OPEN

    def _close_recovered(self, window: ScoredWindow, own_s: Numbers, reference_s: Numbers) -> list[str]:
        """Count the calm windows of open subjects; return the keys of those that have had enough of them."""
        keys = []
        for key, subject in list(self._open.items()):
            # A level disappears when the recorded windows are as long.
            if window.level != (subject.level if window.length < 256 and subject.level else 0):
                continue
            indices = numpy.flatnonzero(numpy.isin(window.ranks, subject.ranks))
            if not len(indices):
                continue
            values = window.own_s[indices] if key.startswith("host:") else own_s[indices]
            usual = (
                reference_s[indices] if numpy.isnan(subject.reference) else numpy.full(len(indices), subject.reference)
            )
            is_calm = float(numpy.median(values / usual)) < 1 + self._limits.recovered_excess
            num_calm = subject.num_calm + 1 if is_calm else 0
            self._open[key] = subject._replace(num_calm=num_calm)
            if num_calm >= self._limits.num_windows:
                del self._open[key]
                keys.append(key)
                self._not_before[subject.ranks] = window.end
        return keys

    def _describe(
        self,
        window: ScoredWindow,
        key: str,
        indices: Integers,
        reference_s: Numbers,
        since: int,
        host: str | None,
        is_individual: bool = False,
    ) -> SlowRanks | None:
        """Return a slow subject with its phase and cost; None if it costs too little."""
        ranks = window.ranks[indices]
        own_s = float(numpy.median(window.own_s[indices]))
        usual_s = float(numpy.median(reference_s))
        excess_s = own_s - usual_s
        phase, excess = self._phase_of(window, indices, excess_s)
        cost_s = self._cost(window, indices, reference_s)
        is_lower_bound = not window.is_measured
        if phase == "forward" and not window.is_measured:
            backward_s = self._backward_rise(ranks, since, excess)
            if backward_s is not None:
                phase, cost_s, is_lower_bound = "forward and backward", cost_s + backward_s, False
        if phase == "data":
            is_lower_bound = False
        if excess_s < self._limits.least_cost * window.step_s:
            return None
        return SlowRanks(
            key=key,
            name=host or window.labels.name_of(int(ranks[0])),
            ranks=[int(rank) for rank in ranks],
            host=host or window.labels.host_of(int(ranks[0])),
            is_host=host is not None,
            excess=excess if excess is not None else own_s / usual_s - 1,
            phase=phase,
            cost_s=cost_s,
            is_lower_bound=is_lower_bound,
            step_s=window.step_s,
            own_s=own_s,
            reference_s=usual_s,
            score=usual_s / own_s,
            z=float(numpy.median(window.z[indices])),
            since_iteration=since,
            length=window.length,
            is_individual=is_individual,
        )

    def _cost(self, window: ScoredWindow, indices: Integers, reference_s: Numbers) -> float:
        """Return what a step would gain if these ranks, and all other slow ones, were typical."""
        excess_s = float((window.own_s[indices] - reference_s).max())
        slow_ranks = numpy.concatenate([window.ranks[indices], *(subject.ranks for subject in self._open.values())])
        others = ~numpy.isin(window.ranks, slow_ranks)
        usual_s = float(reference_s[0]) if len(set(window.cohort.tolist())) == 1 else None
        others_s = window.own_s[others] - (usual_s if usual_s is not None else window.reference_s[others])
        return max(0.0, excess_s - max(0.0, float(others_s.max(initial=0.0))))

    def _phase_of(self, window: ScoredWindow, indices: Integers, excess_s: float) -> tuple[str | None, float | None]:
        """Return the phase that carries most of the excess, and how much longer it takes, as a share."""
        others = numpy.ones(window.num_ranks, bool)
        others[indices] = False
        others &= numpy.isin(window.cohort, window.cohort[indices])
        if not others.any() or excess_s <= 0:
            return None, None
        phases = {name: window.column(name) for name in ("data", "forward", "backward", "optimizer")}
        if window.is_measured:
            phases["backward"] = numpy.maximum(phases["backward"] - window.wait_s, 0.0)
            phases["forward and backward"] = phases["forward"] + phases["backward"]
            measured = [phases[name] for name in ("data", "forward and backward", "optimizer")]
            phases["rest"] = window.own_s - numpy.nansum(measured, axis=0)
        else:
            del phases["backward"]
        for name, values in phases.items():
            usual_s = float(numpy.median(values[others]))
            excess = float(numpy.median(values[indices])) - usual_s
            if excess >= _PHASE_SHARE * excess_s:
                return name, excess / usual_s if usual_s > 0.01 * window.own_s.max() else None
        return None, None

    def _backward_rise(self, ranks: Integers, since: int, least: float | None) -> float | None:
        """Return how much longer the backward pass of ranks takes than before they were slow; None if it does not.

        The last one to arrive does not wait, so its backward pass contains only work and the transfer.
        """
        before = [values[ranks] for end, values in self._backward if end <= since]
        after = [values[ranks] for end, values in self._backward if end > since]
        if len(before) < 2 or not after:
            return None
        before_s, after_s = float(numpy.median(before)), float(numpy.median(after))
        is_rise = before_s > 0 and after_s / before_s - 1 >= max(_MIN_BACKWARD_RISE, 0.5 * (least or 0.0))
        return after_s - before_s if is_rise else None
