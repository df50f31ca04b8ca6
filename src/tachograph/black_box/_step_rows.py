"""Questions about the rows of the last steps: dictionaries of the logged values and the batches of a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.records import loss_names_in

__all__ = ["SUDDEN_RISE", "first_bad_row", "has_non_finite_value", "loss_of", "position_of", "risen_row"]

SUDDEN_RISE = 1e4
"""How many times the loss of the step before; no ordinary batch does that."""


def loss_of(row: Mapping[str, Any]) -> float | None:
    """Return the loss of a step, or None if it has none."""
    names = loss_names_in(row)
    return float(row[names[0]]) if names else None


def first_bad_row(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the first step whose loss is no number; None without one."""
    return next((index for index, row in enumerate(rows) if not math.isfinite(loss_of(row) or 0.0)), None)


def risen_row(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the first step whose loss rose suddenly, or else rose most; None if no loss rose."""
    losses = [(index, loss) for index, row in enumerate(rows) if (loss := loss_of(row)) is not None]
    rises = [
        (loss / before, index)
        for (_, before), (index, loss) in itertools.pairwise(losses)
        if 0 < before < loss and math.isfinite(loss)
    ]
    sudden = [index for rise, index in rises if rise > SUDDEN_RISE]
    return sudden[0] if sudden else max(rises)[1] if rises else None


def has_non_finite_value(row: Mapping[str, Any]) -> bool:
    """Return whether any value of a step is NaN or infinite."""
    return any(isinstance(value, float) and not math.isfinite(value) for value in row.values())


def position_of(row: Mapping[str, Any], batch: Mapping[str, Any]) -> str:
    """Return the place in the data of a batch of a step, as words."""
    return f"number {batch['position']:,} of pass {row['data_pass']} over the data"
