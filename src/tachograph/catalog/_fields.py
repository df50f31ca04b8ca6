"""The fields that some runs have, with their values, for menus of columns and for completion.

All runs are looked at in one pass, which asks each run for what it has. Asking every run for every field would take
seconds with thousands of runs and hundreds of fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tachograph.catalog._groups import value_key
from tachograph.catalog._row import FACTS, RunRow

__all__ = ["FieldDescription", "describe_fields"]

_MAX_TEXTS = 20
_MAX_TEXT_CHARS = 100


class FieldDescription(msgspec.Struct):
    """A field, and its values in some runs."""

    field: str
    example: Any
    """The first value."""
    num_runs: int = 0
    differs: bool = False
    """Whether runs differ in it; a missing value differs from any other."""
    texts: list[str] = []
    """Its texts, the most frequent first, if there are few; of a list, its items."""


def describe_fields(rows: Sequence[RunRow]) -> list[FieldDescription]:
    """Return the fields that some rows have: facts first, then git and config, then metrics by their last value."""
    found: dict[str, FieldDescription | None] = dict.fromkeys(FACTS)
    first_keys: dict[str, Any] = {}
    texts: dict[str, Counter[str] | None] = {}
    for row in rows:
        for field, value in _items(row):
            known = found.get(field)
            if known is None:
                known = found[field] = FieldDescription(field, value)
                first_keys[field] = value_key(value)
                texts[field] = Counter()
            known.num_runs += 1
            if not known.differs and value_key(value) != first_keys[field]:
                known.differs = True
            counts = texts[field]
            if counts is not None and not _count_texts(counts, value):
                texts[field] = None
    described = [known for known in found.values() if known is not None]
    for known in described:
        known.differs = known.differs or known.num_runs < len(rows)
        known.texts = [text for text, _ in (texts[known.field] or Counter()).most_common()]
    return described


def _items(row: RunRow) -> Iterator[tuple[str, Any]]:
    summary = row.summary
    for name, fact in FACTS.items():
        value = fact.read(row)
        if value is not None:
            yield name, value
    for prefix, values in (("git", summary.git), ("config", summary.config), ("summary", summary.results)):
        for name, value in values.items():
            yield f"{prefix}.{name}", value
    for name, value in row.annotations.values.items():
        if name.startswith("custom."):
            yield name, value
    for name, metric in summary.metrics.items():
        yield f"{name}.last", metric.last


def _count_texts(counts: Counter[str], value: Any) -> bool:
    """Count the texts of a value; return whether they are still few and short."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str) or len(item) > _MAX_TEXT_CHARS:
            return False
        counts[item] += 1
    return len(counts) <= _MAX_TEXTS
