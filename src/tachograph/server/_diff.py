"""How several runs differ, beside their results, and which config keys go with a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tachograph.catalog import (
    Catalog,
    DiffKey,
    DiffResult,
    QueryError,
    RunRow,
    Variation,
    default_results,
    diff_rows,
    direction_of,
    parse_query,
    rank_keys,
)
from tachograph.exceptions import RunNotFoundError
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
    selection = _choose(catalog, query, [*query.column, "config.*"])
    rows = selection.rows
    diff = diff_rows(rows, query.column, has_all=query.all, has_code=query.code)
    entries: list[DiffKey | DiffResult | Variation] = [*diff.config, *diff.results]
    for each in (*entries, *diff.git, *diff.packages, *diff.environment):
        each.values = mark_non_finite(each.values)
    return DiffPage(
        **msgspec.structs.asdict(diff),
        num_matching=selection.num_matching,
        missing=selection.missing,
        indexed_share=selection.indexed_share,
    )


def build_importance_page(catalog: Catalog, query: ImportanceQuery) -> ImportancePage:
    """Return the config keys that vary, by their rank correlation with a result."""
    selection = _choose(catalog, query, [query.metric or "loss", "config.*"])
    rows = selection.rows
    field = query.metric or next(iter(default_results(rows)), "loss.best")
    if selection.indexed_share >= 1.0 and rows and query.metric and not any(row.has(field) for row in rows):
        raise ApiError(404, "no_such_metric", f"none of these runs has {field!r}")
    return ImportancePage(
        rank_keys(rows, field), direction_of(field), selection.num_matching, selection.missing, selection.indexed_share
    )


class _Selection(NamedTuple):
    rows: list[RunRow]
    num_matching: int
    missing: list[str]
    """Named runs that do not exist."""
    indexed_share: float
    """The share of runs with a known summary."""


def _choose(catalog: Catalog, query: RunChoice, columns: Sequence[str]) -> _Selection:
    if bool(query.run) == bool(query.filter.strip()):
        raise ApiError(409, "incomplete", "give either `run`, which can be repeated, or a `filter` that is not empty")
    try:
        if query.run:
            return _choose_named(catalog, list(dict.fromkeys(query.run)), columns)
        parsed_filter = parse_query(query.filter)
        rows = catalog.select(parsed_filter, columns=columns, max_s=_MAX_S)
    except RunNotFoundError as error:
        raise ApiError(404, "no_such_run", str(error)) from error
    except QueryError as error:
        raise ApiError(409, "bad_filter", f"{error.reason} (at character {error.position} of the filter)") from None
    return _Selection(rows[:MAX_DIFF_RUNS], len(rows), [], catalog.indexed_share_for([*parsed_filter.fields, *columns]))


def _choose_named(catalog: Catalog, names: Sequence[str], columns: Sequence[str]) -> _Selection:
    """Return runs by their ids. A comparison is shared by its address: it outlives some of its runs."""
    existing, missing = [], []
    for name in names:
        try:
            existing.append(catalog.row(name))
        except RunNotFoundError:
            missing.append(name)
            if len(missing) == len(names):
                raise
    rows = catalog.complete_rows(existing, columns=columns, max_s=_MAX_S)
    return _Selection(rows, len(rows), missing, catalog.indexed_share_for(columns, rows))
