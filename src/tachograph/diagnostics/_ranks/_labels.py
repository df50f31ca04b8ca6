"""The labels of ranks (host, stage, cohort) as arrays, and the names of ranks in messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy
import numpy.typing

__all__ = ["Integers", "Numbers", "RankLabels", "group_medians"]

Numbers = numpy.typing.NDArray[numpy.float64]
Integers = numpy.typing.NDArray[numpy.int64]

_MIN_COHORT = 4


class RankLabels:
    """Where each rank runs and which part of the model it has. Ranks without a label have the code -1."""

    def __init__(self, world_size: int) -> None:
        self.hosts: list[str] = []
        """The name of each host, by its code."""
        self.host = numpy.full(world_size, -1, numpy.int64)
        self.stage = numpy.full(world_size, -1, numpy.int64)
        """The pipeline stage of each rank."""
        self._tensor = numpy.full(world_size, -1, numpy.int64)
        self._host_codes: dict[str, int] = {}
        self._cohort: Integers | None = None

    def set(self, rank: int, host: str | None, coordinates: Mapping[str, int]) -> None:
        """Set the labels of a rank.

        Args:
            rank: its number.
            host: the name of its machine.
            coordinates: its position in the mesh of the job, such as ``{"data": 3, "pipeline": 1}``.
        """
        if host:
            if host not in self._host_codes and len(self.hosts) < 2 * len(self.host):
                self._host_codes[host] = len(self.hosts)
                self.hosts.append(host)
            self.host[rank] = self._host_codes.get(host, -1)
        self.stage[rank] = coordinates.get("pipeline", -1)
        self._tensor[rank] = coordinates.get("tensor", -1)
        self._cohort = None

    def copy(self, rank: int, labels: RankLabels) -> None:
        """Set the labels of a rank to the ones it has elsewhere."""
        self.set(rank, labels.host_of(rank), {})
        self.stage[rank], self._tensor[rank] = labels.stage[rank], labels._tensor[rank]

    @property
    def cohort(self) -> Integers:
        """The code of the ranks that do the same work: same stage and, if that leaves enough ranks, tensor position."""
        cohort = self._cohort
        if cohort is None:
            cohort = _codes_of(self.stage, self._tensor)
            if numpy.bincount(cohort).min() < _MIN_COHORT:
                cohort = _codes_of(self.stage)
            self._cohort = cohort
        return cohort

    def host_of(self, rank: int) -> str | None:
        """Return the name of the machine of a rank, if it is known."""
        code = int(self.host[rank])
        return self.hosts[code] if code >= 0 else None

    def name_of(self, rank: int) -> str:
        """Return a rank as messages name it: `rank 2 (node2)`."""
        host = self.host_of(rank)
        return f"rank {rank} ({host})" if host else f"rank {rank}"


def _codes_of(*labels: Integers) -> Integers:
    """Return a code for each rank, equal for equal labels."""
    codes: Integers = numpy.unique(numpy.stack(labels, axis=1), axis=0, return_inverse=True)[1]
    return codes.reshape(-1).astype(numpy.int64)


def group_medians(values: Numbers, codes: Integers, num_groups: int) -> Numbers:
    """Return the median of each group, NaN for an empty one. Values are finite, and codes are not negative."""
    order = numpy.lexsort((values, codes))
    counts = numpy.bincount(codes, minlength=num_groups)
    starts = numpy.cumsum(counts) - counts
    medians = numpy.full(num_groups, numpy.nan)
    groups = numpy.flatnonzero(counts)
    in_order = values[order]
    low = in_order[starts[groups] + (counts[groups] - 1) // 2]
    high = in_order[starts[groups] + counts[groups] // 2]
    medians[groups] = (low + high) / 2
    return medians
