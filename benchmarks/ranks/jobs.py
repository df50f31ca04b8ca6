"""Simulated jobs: the records that the ranks of a data-parallel job write, without the job.

A step of rank r takes its own time (data, forward, optimizer, and with measured collectives backward), then waits until
the last rank arrives, then for the transfer. Own times have one of the noises of `NOISES`, and a fault changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import numpy.typing

from tachograph.diagnostics import RuleEngine
from tachograph.diagnostics._ranks._collector import COLUMNS, RankTimes

LENGTH = 16
PHASES_S = {"data": 0.005, "forward": 0.030, "backward": 0.045, "optimizer": 0.005}
TRANSFER_S = 0.012
NOISES = ("normal 3 %", "1 % of steps x 3", "AR(1) 3 %", "hardware 2 %", "lognormal 0.3")

Numbers = numpy.typing.NDArray[numpy.float64]
Integers = numpy.typing.NDArray[numpy.int64]
Fault = Callable[[dict[str, Numbers], Numbers, int], Numbers | None]
"""Changes the phases (steps x ranks) and the transfer (steps) of a window in place, from its first step on."""


class SimulatedJob:
    """Makes windows of a job, one after the other."""

    def __init__(
        self,
        num_ranks: int,
        noise: str,
        seed: int,
        *,
        fault: Fault | None = None,
        is_measured: bool = True,
        hosts: int = 1,
        stages: int = 0,
        length: int = LENGTH,
    ) -> None:
        """Start at step 0.

        Args:
            num_ranks: number of ranks.
            noise: one of `NOISES`, or "" for none.
            seed: of the noise.
            fault: changes the phases of each window.
            is_measured: whether collectives are measured.
            hosts: number of hosts, each with as many ranks.
            stages: number of pipeline stages; 0 for none.
            length: iterations of a window.
        """
        self.num_ranks = num_ranks
        self.length = length
        self._noise = noise
        self._random = numpy.random.default_rng(seed)
        self._fault = fault
        self._is_measured = is_measured
        self._hosts, self._stages = hosts, stages
        self._hardware = 1 + 0.02 * self._random.standard_normal(num_ranks)
        self._last = 0.03 * self._random.standard_normal(num_ranks)
        self._time_s = 0.0
        self.step = 0

    def starts(self) -> Iterator[dict[str, Any]]:
        """Yield the `start` record of each rank."""
        for rank in range(self.num_ranks):
            host = f"node{rank * self._hosts // self.num_ranks}"
            record = {
                "event": "start",
                "time": 0.0,
                "rank": rank,
                "world_size": self.num_ranks,
                "process": {"host": host, "pid": 100 + rank},
            }
            if self._stages:
                record["mesh"] = {"pipeline": rank * self._stages // self.num_ranks, "data": rank % self._stages}
            yield record

    def _factors(self, length: int) -> Numbers:
        shape, random = (length, self.num_ranks), self._random
        if self._noise == "lognormal 0.3":
            return numpy.exp(0.3 * random.standard_normal(shape))
        if self._noise == "hardware 2 %":
            return self._hardware * (1 + 0.02 * random.standard_normal(shape))
        if self._noise == "AR(1) 3 %":
            # Noise of 3 % that is similar from step to step (0.9).
            factors = numpy.empty(shape)
            for row in range(length):
                self._last = 0.9 * self._last + 0.03 * (1 - 0.81) ** 0.5 * random.standard_normal(self.num_ranks)
                factors[row] = 1 + self._last
            return factors
        factors = 1 + 0.03 * random.standard_normal(shape) if self._noise else numpy.ones(shape)
        if self._noise == "1 % of steps x 3":
            factors *= numpy.where(random.random(shape) < 0.01, 3.0, 1.0)
        return factors

    def _simulate(self, length: int) -> tuple[Numbers, Numbers, Integers]:
        """Return median and deviation of each quantity, by rank, and the longest own time with its iteration."""
        factors = self._factors(length)
        phases = {name: seconds * factors for name, seconds in PHASES_S.items()}
        transfer = numpy.full(length, TRANSFER_S)
        if self._fault is not None:
            self._fault(phases, transfer, self.step)
        work = sum(phases.values())
        wait = work.max(axis=1, keepdims=True) - work + transfer[:, None]
        own = work if self._is_measured else work - phases["backward"]
        phases["backward"] = phases["backward"] + wait
        times = {"own": own, "wait": wait if self._is_measured else phases["backward"], **phases}
        columns = []
        for name in ("own", "wait", "data", "forward", "backward", "optimizer"):
            median = _median(times[name])
            columns += [median, _median(numpy.abs(times[name] - median))]
        longest = self.step + own.argmax(axis=0)
        self.step += length
        self._time_s += float((work + wait)[:, 0].sum())
        return numpy.stack(columns), own.max(axis=0), longest

    def window(self, length: int | None = None) -> list[dict[str, Any]]:
        """Return the records of all ranks for the next window."""
        length = self.length if length is None else length
        columns, longest_s, longest = self._simulate(length)
        records = []
        for rank, row in enumerate((1e3 * columns.T).round(4).tolist()):
            record = {
                "event": "rank",
                "time": self._time_s,
                "last": self.step - 1,
                "n": length,
                "ms": row,
                "max": [1e3 * float(longest_s[rank]), int(longest[rank])],
            }
            if self._is_measured:
                record["seq"] = self.step
            records.append(record)
        return records

    def observe_window(self, engine: RuleEngine) -> list[dict[str, Any]]:
        """Feed the next window to an engine as a table, without the records of 10,000 ranks; return the alerts."""
        columns, longest_s, longest = self._simulate(self.length)
        quantities = dict(zip(COLUMNS, [*columns[::2], *columns[1::2]], strict=True))
        counts = numpy.full(self.num_ranks, float(self.length))
        times = RankTimes(
            self.step, self.length, 0, self._time_s, counts, quantities, longest_s, longest, self._is_measured
        )
        observer = engine._rank_observer
        judge = observer._judge
        assert judge is not None
        for table in (times, *judge._collector._merge(times)):
            scored_window = judge._scorer.score(table)
            assert scored_window is not None
            observer._pass_on(scored_window)
        return engine._drain()


def _median(values: Numbers) -> Numbers:
    """Return the median of each column; faster than numpy's for many columns."""
    in_order, middle = numpy.sort(values, axis=0), len(values) // 2
    return in_order[middle] if len(values) % 2 else (in_order[middle - 1] + in_order[middle]) / 2


def observe(engine: RuleEngine, rank: int, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Feed a record of a rank to an engine."""
    return engine.observe(record) if rank == 0 else engine.observe_rank(rank, record)


def slow_rank(rank: int, share: float, phases: tuple[str, ...] = tuple(PHASES_S), since: int = 0) -> Fault:
    """Return a fault: phases of one rank take longer."""

    def fault(times: dict[str, Numbers], _transfer: Numbers, first: int) -> None:
        if first >= since:
            for name in phases:
                times[name][:, rank] *= 1 + share

    return fault
