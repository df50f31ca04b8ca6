"""The ranks of a distributed run: the worst ones, where they hang, and how they compare over time."""

from __future__ import annotations

from collections import Counter

import msgspec
from starlette.responses import Response

from tachograph.reader import RankHeat, RankView, read_rank_heat, read_ranks, read_stacks, worst_ranks
from tachograph.server._copy_fields import copy_fields
from tachograph.server._models import RankHeatQuery, RankQuery, RankRow, RanksPage, RankStacks
from tachograph.store import StoredRun

__all__ = ["build_ranks_page", "download_rank_heat"]

_MAX_STACK_LINES = 40
_MAX_STACKS = 20
_MAX_TEXT = 500


def build_ranks_page(run: StoredRun, query: RankQuery) -> RanksPage:
    """Return the states of all ranks, the worst ranks, and the stacks of ranks that hung."""
    ranks = read_ranks(run.folder)
    with run.lock:
        version = run.version
    return RanksPage(
        version=version,
        num_ranks=len(ranks),
        num_by_state=dict(Counter(str(view.state) for view in ranks)),
        ranks=[_row(view) for view in worst_ranks(ranks)[: query.limit]],
        stacks=[
            RankStacks(num_ranks=len(group.ranks), ranks=group.ranks[:100], lines=group.lines[-_MAX_STACK_LINES:])
            for group in read_stacks(run.folder)[:_MAX_STACKS]
        ],
    )


def _row(view: RankView) -> RankRow:
    error = (view.error or view.reason or "").partition("\n")[0][:_MAX_TEXT]
    return copy_fields(RankRow, view, state=str(view.state), error=error or None)


def download_rank_heat(run: StoredRun, query: RankHeatQuery) -> Response:
    """Return the matrix: a line of JSON with its shape, and its cells as bytes. Without windows it is empty."""
    heat = read_rank_heat(run.folder, query.quantity) or RankHeat([], 0, 0, 0, b"")
    shape = {
        "ranks": heat.ranks,
        "first_iteration": heat.first_iteration,
        "last_iteration": heat.last_iteration,
        "num_columns": heat.num_columns,
    }
    return Response(msgspec.json.encode(shape) + b"\n" + heat.cells, media_type="application/octet-stream")
