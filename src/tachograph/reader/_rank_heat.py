"""The own time of all ranks over the run, compared with each other, as a small matrix of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from tachograph._base.guard import suppress
from tachograph.journal import RankJournal, RunFolder, journal_size, list_rank_journals, read_rank_map
from tachograph.reader._rank_lines import rank_of_host_line, read_ends_of_journal
from tachograph.reader._ranks import mesh_of_line
from tachograph.records import RANK_MAP_COLUMNS, RANK_MAP_ROWS, RankMap, rank_map_codes

__all__ = ["RankHeat", "read_rank_heat"]

_MAX_BYTES = 64 << 20
_MAX_RANK_BYTES = 4 << 20
_MAX_HOST_BYTES = 32 << 20
_HEAD_BYTES = 16 << 10
_HOST_HEAD_BYTES = 64 << 10
_MAP_FROM_BYTES = 16 << 20
"""From this size on, the map that rank 0 kept is read instead of the journals."""

Quantity = Literal["own", "wait", "data"]


class RankHeat(NamedTuple):
    """How much longer each rank took than the others, over the iterations of a run.

    A cell is 0 without data. 1 to 255 stand for -10 % to +50 % of the median of the ranks in the same column. A cell
    that covers several ranks or windows has the highest of them, so one slow rank among many stays visible.
    """

    ranks: list[int]
    """The first rank of each row."""
    first_iteration: int
    last_iteration: int
    num_columns: int
    cells: bytes
    """Row by row."""


_INDEX = {"own": 0, "wait": 2, "data": 4}
"""Where the median of a quantity is in `ms`; see `RankWindow`."""


def read_rank_heat(folder: RunFolder, quantity: Quantity = "own") -> RankHeat | None:
    """Return the matrix of a run; None if no rank has recorded windows.

    A rank is compared with the ranks of the same pipeline stage. Large journals are not read, nor journals in which
    windows were merged: rank 0 keeps the matrix of the whole run while it compares the ranks. Without that, the end of
    large journals is read.
    """
    journals = [RankJournal(0, False, folder.journal), *list_rank_journals(folder)]
    rank_map = read_rank_map(folder)
    if rank_map is not None and (rank_map.has_merged_windows or _size_bytes(journals) > _MAP_FROM_BYTES):
        heat = _heat_of(rank_map, quantity)
        if heat is not None:
            return heat
    return _read_journals(folder, journals, quantity)


def _size_bytes(journals: list[RankJournal]) -> int:
    num_bytes = 0
    for journal in journals:
        with suppress(OSError):
            num_bytes += journal_size(journal.path)
    return num_bytes


def _heat_of(rank_map: RankMap, quantity: Quantity) -> RankHeat | None:
    cells = rank_map.codes_of(quantity)
    if cells is None:
        return None
    ranks = list(range(0, rank_map.world_size, rank_map.ranks_per_row))
    return RankHeat(ranks, rank_map.first_iteration, rank_map.last_iteration, rank_map.num_columns, cells)


def _read_journals(folder: RunFolder, journals: list[RankJournal], quantity: Quantity) -> RankHeat | None:
    import numpy as np

    from tachograph.reader._window_columns import parse_windows  # it loads numpy

    num_bytes = min(
        _MAX_HOST_BYTES if len(journals) > 1 and journals[1].is_host else _MAX_RANK_BYTES, _MAX_BYTES // len(journals)
    )
    heads: list[tuple[int | None, bytes]] = []

    def tails() -> Iterator[tuple[int | None, bytes]]:
        for journal in journals:
            head_bytes = _HOST_HEAD_BYTES if journal.is_host else _HEAD_BYTES
            head, tail = b"", b""
            with suppress(OSError):
                head, tail = read_ends_of_journal(journal.path, num_bytes, head_bytes)
            head = head or tail[:head_bytes]
            file_rank = None if journal.is_host else journal.number
            heads.append((file_rank, head[: head.rfind(b"\n") + 1]))
            yield file_rank, tail

    window_ranks, ends, value = parse_windows(tails(), _INDEX[quantity])
    if not len(value):
        return None
    stage_by_rank = _stages(heads)
    ranks = sorted(stage_by_rank.keys() | set(np.unique(window_ranks).tolist()))
    row = np.searchsorted(np.array(ranks), window_ranks)
    stages = np.array([stage_by_rank.get(rank, -1) for rank in ranks])
    stage = np.unique(stages, return_inverse=True)[1][row]
    windows = np.unique(ends)
    window = np.searchsorted(windows, ends)
    num_columns = min(RANK_MAP_COLUMNS, len(windows))
    column = window * num_columns // len(windows)
    reference = _group_medians(stage * num_columns + column, value)
    cells = np.zeros((min(len(ranks), RANK_MAP_ROWS), num_columns), np.uint8)
    height = -(-len(ranks) // len(cells))
    np.maximum.at(cells, (row // height, column), rank_map_codes(value / np.maximum(reference, 1e-9) - 1))
    num_rows = len(ranks[::height])
    return RankHeat(ranks[::height], int(windows[0]), int(windows[-1]), num_columns, cells[:num_rows].tobytes())


def _stages(heads: list[tuple[int | None, bytes]]) -> dict[int, int]:
    """Return the pipeline stage of each rank that has lines in the beginning of its files, -1 without one."""
    from tachograph.reader._window_columns import split_first_lines

    first_lines = split_first_lines(heads)
    stage_by_rank = dict.fromkeys([*first_lines.window_ranks, *(rank for rank, _ in heads if rank is not None)], -1)
    for file_rank, line in first_lines.others:
        rank = rank_of_host_line(line) if file_rank is None else file_rank
        if rank is not None:
            stage = mesh_of_line(line).get("pipeline", -1) if b'"pipeline"' in line else -1
            stage_by_rank[rank] = stage if stage >= 0 else stage_by_rank.get(rank, -1)
    return stage_by_rank


def _group_medians(group: Any, value: Any) -> Any:
    """Return for each value the median of its group; groups are numbered from 0."""
    import numpy as np

    by_value = np.argsort(value)
    sorted_group = group[by_value]
    num_groups = int(group.max()) + 1
    small_type = np.uint16 if num_groups <= 1 << 16 else np.int64  # numbers of 16 bits are sorted in linear time
    order = by_value[np.argsort(sorted_group.astype(small_type), kind="stable")]
    count = np.bincount(group, minlength=num_groups)
    first = np.cumsum(count) - count
    middle_values = [
        value[order[np.minimum(first + offset, len(order) - 1)]] for offset in ((count - 1) // 2, count // 2)
    ]
    return ((middle_values[0] + middle_values[1]) / 2)[group]
