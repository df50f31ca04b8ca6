"""Milestones: conditions on a metric, reported the first time they are met."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.records import MASK, finite_or_none

__all__ = ["Milestone"]

_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FORM = re.compile(r"\s*(?P<metric>[^<>=\s][^<>=]*?)\s*(?P<operator><=|>=|<|>)\s*(?P<threshold>[^<>=\s]+)\s*")


class Milestone:
    """A condition such as ``train_loss < 0.5``."""

    __slots__ = ("_field", "_is_met", "metric", "text", "threshold")

    def __init__(self, text: str, origin: str = "milestones") -> None:
        """Parse a condition.

        Raises:
            ConfigError: if the text is not a condition.
        """
        match = _FORM.fullmatch(text)
        threshold = _parse_number(match["threshold"]) if match is not None else None
        if match is None or threshold is None:
            quoted_text = MASK if "://" in text else repr(text)[:100]
            raise ConfigError(
                f"{origin}: {quoted_text} is not a milestone; expected a metric, one of < <= > >= and a number, "
                "such as 'train_loss < 0.5'"
            )
        self.metric = match["metric"]
        self.threshold = threshold
        self.text = f"{self.metric} {match['operator']} {threshold:g}"
        self._is_met = _OPERATORS[match["operator"]]
        self._field = "global_step" if self.metric == "step" else self.metric

    def value_if_met(self, record: Mapping[str, Any]) -> float | None:
        """Return the metric's value in a record if it meets the condition; NaN and infinities never do."""
        value = finite_or_none(record.get(self._field))
        return value if value is not None and self._is_met(value, self.threshold) else None


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
