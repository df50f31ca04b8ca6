"""How several runs differ, beside their results, and which config keys go with a result."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tachograph.catalog import (
    Catalog,
    DiffKey,
    DiffResult,
    QueryError,
    RunRow,
    compare_rows,
    default_results,
    direction_of,
    parse_query,
    rank_keys,
)
from tachograph.exceptions import RunNotFoundError
from tachograph.provenance import Variation
from tachograph.records import mark_non_finite
from tachograph.server._diff_models import (
    MAX_DIFF_RUNS,
    DiffPage,
    DiffQuery,
    ImportancePage,
    ImportanceQuery,
    RunChoice,
)
from tachograph.server._errors import ApiError

__all__ = ["build_diff_page", "build_importance_page"]

_MAX_S = 0.25
"""A request computes missing summaries for at most this long."""


def build_diff_page(catalog: Catalog, query: DiffQuery) -> DiffPage:
    """Return how runs differ."""
    rows, num_matching, indexed = _choose(catalog, query, [*query.column, "config.*"])
    found = compare_rows(rows, query.column, has_all=query.all, has_code=query.code)
    listed: list[DiffKey | DiffResult | Variation] = [*found.config, *found.results]
    for each in (*listed, *found.git, *found.packages, *found.environment):
        each.values = mark_non_finite(each.values)
    return DiffPage(**msgspec.structs.asdict(found), num_matching=num_matching, indexed=indexed)


def build_importance_page(catalog: Catalog, query: ImportanceQuery) -> ImportancePage:
    """Return the config keys that vary, by their rank correlation with a result."""
    rows, num_matching, indexed = _choose(catalog, query, [query.metric or "loss", "config.*"])
    field = query.metric or next(iter(default_results(rows)), "loss.best")
    if indexed >= 1.0 and rows and query.metric and not any(row.has(field) for row in rows):
        raise ApiError(404, "no_such_metric", f"none of these runs has {field!r}")
    return ImportancePage(rank_keys(rows, field), direction_of(field), num_matching, indexed)


def _choose(catalog: Catalog, query: RunChoice, columns: Sequence[str]) -> tuple[list[RunRow], int, float]:
    """Return the chosen runs, the number of runs that match, and the share of known summaries."""
    if bool(query.run) == bool(query.filter.strip()):
        raise ApiError(409, "incomplete", "give either `run`, which can be repeated, or a `filter` that is not empty")
    try:
        if query.run:
            rows = catalog.full_rows(dict.fromkeys(query.run), columns=columns, max_s=_MAX_S)
            return rows, len(rows), catalog.indexed_for(columns, rows)
        parsed = parse_query(query.filter)
        rows = catalog.select(parsed, columns=columns, max_s=_MAX_S)
    except RunNotFoundError as error:
        raise ApiError(404, "no_such_run", str(error)) from error
    except QueryError as error:
        raise ApiError(409, "bad_filter", f"{error.reason} (at character {error.position} of the filter)") from None
    return rows[:MAX_DIFF_RUNS], len(rows), catalog.indexed_for([*parsed.fields, *columns])
