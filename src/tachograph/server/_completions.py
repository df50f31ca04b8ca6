"""Builds the API's page of completions."""

from __future__ import annotations

from tachograph.records import mark_non_finite
from tachograph.server._models import CompletionQuery, CompletionsPage
from tachograph.store import StoredRun, read_rows

__all__ = ["build_completions_page"]

_MAX_STEPS = 2_000
_MAX_TABLES = 100
_MAX_COLUMNS = 500


def build_completions_page(run: StoredRun, query: CompletionQuery) -> CompletionsPage:
    """Return the matching rows, newest first, with the available tables, columns and steps."""
    with run.lock:
        version = run.version
        locations = run.completions.locations()
    # The rows are read from the journal without the lock: the store keeps only their positions.
    matches = [location for location in locations if query.table in (None, location.table)]
    view = read_rows(
        run.folder.journal, matches, low=query.step_min, high=query.step_max, search=query.search, limit=query.limit
    )
    steps = sorted({step for location in matches for step, _ in location.steps if step is not None})
    columns = dict.fromkeys(name for location in matches for name in location.columns)
    return CompletionsPage(
        version=version,
        tables=list(dict.fromkeys(location.table for location in locations))[:_MAX_TABLES],
        columns=sorted(columns, key=lambda name: name != "step")[:_MAX_COLUMNS],
        rows=mark_non_finite(view.rows),
        is_whole=view.is_whole,
        steps=_thin_out(steps),
        num_rows=sum(location.num_rows() for location in matches),
        num_rows_of_steps=sum(location.num_rows(query.step_min, query.step_max) for location in matches),
        num_dropped=sum(location.num_dropped for location in matches),
    )


def _thin_out(steps: list[int]) -> list[int]:
    """Return at most as many steps as a slider can use, evenly spaced, with the first and the last."""
    if len(steps) <= _MAX_STEPS:
        return steps
    last = len(steps) - 1
    return [steps[index * last // (_MAX_STEPS - 1)] for index in range(_MAX_STEPS)]
