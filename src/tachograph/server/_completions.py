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
        known = run.completions.places()
    # The rows are read from the journal without the lock: the store keeps only their positions.
    places = [place for place in known if query.table in (None, place.table)]
    found = read_rows(
        run.folder.journal, places, low=query.step_min, high=query.step_max, search=query.search, limit=query.limit
    )
    steps = sorted({step for place in places for step, _ in place.steps if step is not None})
    columns = dict.fromkeys(name for place in places for name in place.columns)
    return CompletionsPage(
        version=version,
        tables=list(dict.fromkeys(place.table for place in known))[:_MAX_TABLES],
        columns=sorted(columns, key=lambda name: name != "step")[:_MAX_COLUMNS],
        rows=mark_non_finite(found.rows),
        is_whole=found.is_whole,
        steps=_thin_out(steps),
        num_rows=sum(place.num_rows() for place in places),
        num_rows_of_steps=sum(place.num_rows(query.step_min, query.step_max) for place in places),
        num_dropped=sum(place.num_dropped for place in places),
    )


def _thin_out(steps: list[int]) -> list[int]:
    """Return at most as many steps as a slider can use, evenly spaced, with the first and the last."""
    if len(steps) <= _MAX_STEPS:
        return steps
    last = len(steps) - 1
    return [steps[index * last // (_MAX_STEPS - 1)] for index in range(_MAX_STEPS)]
