"""The ancestors and descendants of a run, over the API."""

from __future__ import annotations

import msgspec

from tachograph.catalog import Catalog, RelatedRun, RunRow, ancestors_of, descendants_of

__all__ = ["LineagePage", "build_lineage"]

_MAX_S = 0.25
"""A request computes missing summaries for at most this long."""


class LineagePage(msgspec.Struct):
    """The ancestors and descendants of a run."""

    indexed_share: float = msgspec.field(name="indexed")
    """The share of runs that were looked at, 0 to 1; ask again if it is less than 1."""
    ancestors: list[RelatedRun]
    """Its parents, each followed by its own."""
    descendants: list[RelatedRun]
    """Its children, each followed by its own."""


def build_lineage(catalog: Catalog, run: RunRow) -> LineagePage:
    """Return the ancestors and descendants of a run."""
    rows = catalog.rows(is_full=True, max_s=_MAX_S)
    row = next((row for row in rows if row.id == run.id), run)
    return LineagePage(catalog.indexed_share, ancestors_of(row, rows), descendants_of(row, rows))
