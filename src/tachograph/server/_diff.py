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
    chosen = _choose(catalog, query, [*query.column, "config.*"])
    rows = chosen.rows
    found = diff_rows(rows, query.column, has_all=query.all, has_code=query.code)
    listed: list[DiffKey | DiffResult | Variation] = [*found.config, *found.results]
    for each in (*listed, *found.git, *found.packages, *found.environment):
        each.values = mark_non_finite(each.values)
    return DiffPage(
        **msgspec.structs.asdict(found),
        num_matching=chosen.num_matching,
        missing=chosen.missing,
        indexed_share=chosen.indexed_share,
    )


def build_importance_page(catalog: Catalog, query: ImportanceQuery) -> ImportancePage:
    """Return the config keys that vary, by their rank correlation with a result."""
    chosen = _choose(catalog, query, [query.metric or "loss", "config.*"])
    rows = chosen.rows
    field = query.metric or next(iter(default_results(rows)), "loss.best")
    if chosen.indexed_share >= 1.0 and rows and query.metric and not any(row.has(field) for row in rows):
        raise ApiError(404, "no_such_metric", f"none of these runs has {field!r}")
    return ImportancePage(
        rank_keys(rows, field), direction_of(field), chosen.num_matching, chosen.missing, chosen.indexed_share
    )


class _Chosen(NamedTuple):
    rows: list[RunRow]
    num_matching: int
    missing: list[str]
    """Named runs that do not exist."""
    indexed_share: float
    """The share of runs with a known summary."""


def _choose(catalog: Catalog, query: RunChoice, columns: Sequence[str]) -> _Chosen:
    if bool(query.run) == bool(query.filter.strip()):
        raise ApiError(409, "incomplete", "give either `run`, which can be repeated, or a `filter` that is not empty")
    try:
        if query.run:
            return _choose_named(catalog, list(dict.fromkeys(query.run)), columns)
        parsed = parse_query(query.filter)
        rows = catalog.select(parsed, columns=columns, max_s=_MAX_S)
    except RunNotFoundError as error:
        raise ApiError(404, "no_such_run", str(error)) from error
    except QueryError as error:
        raise ApiError(409, "bad_filter", f"{error.reason} (at character {error.position} of the filter)") from None
    return _Chosen(rows[:MAX_DIFF_RUNS], len(rows), [], catalog.indexed_share_for([*parsed.fields, *columns]))


def _choose_named(catalog: Catalog, names: Sequence[str], columns: Sequence[str]) -> _Chosen:
    """Return runs by their ids. A comparison is shared by its address: it outlives some of its runs."""
    found, missing = [], []
    for name in names:
        try:
            catalog.row(name)
            found.append(name)
        except RunNotFoundError:
            missing.append(name)
            if len(missing) == len(names):
                raise
    rows = catalog.full_rows(found, columns=columns, max_s=_MAX_S)
    return _Chosen(rows, len(rows), missing, catalog.indexed_share_for(columns, rows))
