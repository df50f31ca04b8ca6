"""The results of runs that a comparison shows unless others are chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tachograph.catalog._direction import direction_of
from tachograph.catalog._row import RunRow
from tachograph.records import loss_names_in, result_name_in, result_names_in

__all__ = ["default_results"]

_MAX_RESULTS = 3


def default_results(rows: Sequence[RunRow]) -> list[str]:
    """Return the best values of the main result, the training loss and further results.

    Only metrics that at least half of the runs have, and whose names tell whether lower or higher values are better.
    """
    counts = Counter(name for row in rows for name in row.summary.metrics)
    usual = [name for name, count in counts.items() if 2 * count >= len(rows) and direction_of(name)]
    result_name = result_name_in(usual)
    order = dict.fromkeys([*([result_name] if result_name else []), *loss_names_in(usual)[:1], *result_names_in(usual)])
    return [f"{name}.best" for name in order][:_MAX_RESULTS]
