"""The completions of a run, as the API tells them."""

from __future__ import annotations

from tachograph.records import mark_non_finite
from tachograph.server._models import CompletionQuery, Completions
from tachograph.store import StoredRun, read_rows

__all__ = ["completions"]

_MOST_STEPS = 2_000
_MOST_TABLES = 100
_MOST_COLUMNS = 500


def completions(run: StoredRun, query: CompletionQuery) -> Completions:
    """Return the rows that are asked for, the newest first, and what there is to choose from."""
    with run.lock:
        version = run.version
        known = run.completions.places()
    places = [place for place in known if query.table in (None, place.table)]
    found = read_rows(
        run.folder.journal, places, low=query.step_min, high=query.step_max, search=query.search, limit=query.limit
    )
    steps = sorted({step for place in places for step, _ in place.steps if step is not None})
    columns = dict.fromkeys(name for place in places for name in place.columns)
    return Completions(
        version=version,
        tables=list(dict.fromkeys(place.table for place in known))[:_MOST_TABLES],
        columns=sorted(columns, key=lambda name: name != "step")[:_MOST_COLUMNS],
        rows=mark_non_finite(found.rows),
        is_whole=found.is_whole,
        steps=_thinned(steps),
        num_rows=sum(place.num_rows() for place in places),
        num_rows_of_steps=sum(place.num_rows(query.step_min, query.step_max) for place in places),
        num_dropped=sum(place.num_dropped for place in places),
    )


def _thinned(steps: list[int]) -> list[int]:
    """Return as many steps as a slider can use, with the first and the last of them."""
    if len(steps) <= _MOST_STEPS:
        return steps
    last = len(steps) - 1
    return [steps[index * last // (_MOST_STEPS - 1)] for index in range(_MOST_STEPS)]
