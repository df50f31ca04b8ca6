"""The own time of all ranks over the run, compared with each other, as a small matrix of bytes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tachograph._base.guard import suppress
from tachograph.journal import JournalFollower, RunFolder
from tachograph.records import RankWindow

__all__ = ["RankHeat", "read_rank_heat"]

_MAX_BYTES = 64 << 20
_MAX_RANK_BYTES = 4 << 20
_MAX_ROWS = 500
_MAX_COLUMNS = 480
_LOW, _HIGH = -0.1, 0.5

Quantity = Literal["own", "wait", "data"]


class RankHeat(NamedTuple):
    """How much longer each rank took than the others, over the iterations of a run.

    A cell is 0 without data. 1 to 255 stand for -10 % to +50 % of the median of all ranks in the same column. A cell
    that covers several ranks or windows has the highest of them, so one slow rank among many stays visible.
    """

    ranks: list[int]
    """The first rank of each row."""
    first_iteration: int
    last_iteration: int
    num_columns: int
    cells: bytes
    """Row by row."""


def read_rank_heat(folder: RunFolder, quantity: Quantity = "own") -> RankHeat | None:
    """Return the matrix of a run; None if no rank has recorded windows. Of very long runs, the end is read."""
    import numpy as np

    ranks = [0, *folder.other_ranks()]
    num_bytes = min(_MAX_RANK_BYTES, _MAX_BYTES // len(ranks))
    rows: list[int] = []
    ends: list[int] = []
    values: list[float] = []
    for row, rank in enumerate(ranks):
        path = folder.rank_journal(rank) if rank else folder.journal
        with suppress(OSError):
            follower = JournalFollower.from_end(path, num_bytes)
            while lines := follower.poll_lines():
                matching = b"\n".join(line for line in lines.split(b"\n") if line.startswith(b'{"event":"rank"'))
                for record in follower.parse(matching, follower.offset - len(lines)):
                    times = RankWindow.from_record(record)
                    phase = getattr(times, quantity) if times is not None and times.wait is not None else None
                    if times is not None and phase is not None:
                        rows.append(row)
                        ends.append(times.last_iteration)
                        values.append(phase.median_s)
    if not values:
        return None
    end, value = np.array(ends), np.array(values)
    windows, window = np.unique(end, return_inverse=True)
    num_columns = min(_MAX_COLUMNS, len(windows))
    column = window * num_columns // len(windows)
    reference = np.ones(num_columns)
    for index in range(num_columns):
        inside = value[column == index]
        reference[index] = np.median(inside) if len(inside) else 1.0
    excess = np.clip(value / np.maximum(reference[column], 1e-9) - 1, _LOW, _HIGH)
    cells = np.zeros((min(len(ranks), _MAX_ROWS), num_columns), np.uint8)
    height = -(-len(ranks) // len(cells))
    codes = (1 + np.round(254 * (excess - _LOW) / (_HIGH - _LOW))).astype(np.uint8)
    np.maximum.at(cells, (np.array(rows) // height, column), codes)
    num_rows = len(ranks[::height])
    return RankHeat(ranks[::height], int(windows[0]), int(windows[-1]), num_columns, cells[:num_rows].tobytes())
