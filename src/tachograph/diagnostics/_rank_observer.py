"""Passes the records of all ranks to the rules: scored windows, and the start, end and errors of each rank.

Runs of one process have no second rank, so nothing is imported or kept for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tachograph.diagnostics._context import RunContext
from tachograph.diagnostics._rule import Rule
from tachograph.records import RANK_MESH, RankMap, RankWindow

if TYPE_CHECKING:
    from tachograph.diagnostics._ranks import RankJudge, RankMapBuilder, ScoredWindow

__all__ = ["RANK_KINDS", "RankObserver", "is_rank_record"]

RANK_KINDS = frozenset({"start", "rank", "error", "event", "end"})
"""Kinds of records of which rules learn something about a rank; see `is_rank_record`."""

_MAX_WORLD_SIZE = 1 << 20


def is_rank_record(record: Mapping[str, Any]) -> bool:
    """Return whether rules learn something about a rank from a record in its journal."""
    kind = record["event"]
    return kind in RANK_KINDS and (kind != "event" or record.get("name") == RANK_MESH)


class RankObserver:
    """Compares the ranks of a job while their records arrive, and calls the rules."""

    def __init__(self, rules: Sequence[Rule], context: RunContext) -> None:
        self._context = context
        self._window_rules = [rule for rule in rules if type(rule).on_rank_window is not Rule.on_rank_window]
        self._record_rules = [rule for rule in rules if type(rule).on_rank_record is not Rule.on_rank_record]
        self._judge: RankJudge | None = None
        self._processes: dict[int, Any] = {}
        self._map_builder: RankMapBuilder | None = None

    def keep_map(self, earlier: RankMap | None) -> None:
        """Keep a map of the run from now on, which continues that of an earlier attempt."""
        from tachograph.diagnostics._ranks import RankMapBuilder

        self._map_builder = RankMapBuilder(earlier)

    def build_map(self) -> RankMap | None:
        """Return the map of the run; None if it has none, or does not keep one."""
        return self._map_builder.build() if self._map_builder is not None else None

    def observe(self, rank: int, record: dict[str, Any]) -> None:
        """Handle a record of a rank; see `is_rank_record`."""
        event = record["event"]
        if not is_rank_record(record) or not 0 <= rank < _MAX_WORLD_SIZE:
            return
        if event == "start":
            self._start_rank(rank, record)
        judge = self._judge
        if judge is None:
            return  # one process, or the number of ranks is not known yet
        if rank >= judge.world_size:
            judge = self._judge = _make_judge(rank + 1, judge)
        if event == "rank":
            window = RankWindow.from_record(record)
            if window is not None and (self._window_rules or self._map_builder is not None):
                for scored_window in judge.add(rank, window):
                    self._pass_on(scored_window)
            return
        if event == "event":
            judge.set_labels(rank, None, _coordinates(record))
            return
        for rule in self._record_rules:
            rule.on_rank_record(rank, record)

    def _start_rank(self, rank: int, record: dict[str, Any]) -> None:
        """Set the labels of a rank, and forget its windows if it is another process than before."""
        world_size = record.get("world_size")
        world_size = world_size if isinstance(world_size, int) and world_size <= _MAX_WORLD_SIZE else 1
        judge = self._judge
        if rank == 0 and judge is not None and judge.world_size == world_size:
            judge.restart()  # the labels stay: the other ranks may have started before
        elif rank == 0 or world_size > (judge.world_size if judge is not None else 1):
            judge = self._judge = _make_judge(world_size, judge) if world_size > 1 else None
        if judge is None or rank >= judge.world_size:
            return
        process = record.get("process")
        identity = (process.get("host"), process.get("pid")) if isinstance(process, Mapping) else (None, None)
        is_other = self._processes.get(rank, identity) != identity
        self._processes[rank] = identity
        if rank and is_other:
            judge.restart_rank(rank)
            for rule in self._window_rules:
                rule.on_rank_restart(rank)
        host = identity[0] or record.get("host")
        judge.set_labels(rank, str(host) if host else None, _coordinates(record))

    def _pass_on(self, window: ScoredWindow) -> None:
        """Call the rules as if the window were the last thing that happened, whatever rank 0 has recorded since."""
        if self._map_builder is not None:
            self._map_builder.add(window)
        context = self._context
        step, time_s = context.step, context.time_s
        context.step = window.end - 1
        if window.time_s is not None:
            context.time_s = window.time_s
        for rule in self._window_rules:
            rule.on_rank_window(window)
        context.step, context.time_s = step, time_s


def _coordinates(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the position of a rank in the mesh of its job, as its record states it."""
    mesh = record.get("mesh")
    coordinates = mesh.items() if isinstance(mesh, Mapping) else ()
    return {name: value for name, value in coordinates if isinstance(value, int) and 0 <= value < _MAX_WORLD_SIZE}


def _make_judge(world_size: int, judge: RankJudge | None) -> RankJudge:
    """Return a judge for more or fewer ranks, with the labels of the one before."""
    from tachograph.diagnostics._ranks import RankJudge

    other_judge = RankJudge(world_size)
    if judge is not None:
        for rank in range(min(world_size, judge.world_size)):
            other_judge.labels.copy(rank, judge.labels)
    return other_judge
