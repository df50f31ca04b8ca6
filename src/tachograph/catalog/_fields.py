"""The fields that some runs have, with their values, for menus of columns and for completion.

Values are looked at by column, because thousands of runs with hundreds of fields have millions of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tachograph.catalog._groups import value_key
from tachograph.catalog._index import columns_of
from tachograph.catalog._row import FACTS, RunRow, needs_full

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
    varies: bool = False
    """Whether runs that have it differ in it."""
    texts: list[str] = []
    """Its texts, the most frequent first, if there are few; of a list, its items."""


def describe_fields(rows: Sequence[RunRow]) -> list[FieldDescription]:
    """Return the fields that some rows have: facts first, then git and config, then metrics by their last value."""
    descriptions: dict[str, FieldDescription] = {}
    first_keys: dict[str, Any] = {}
    texts: dict[str, Counter[str] | None] = {}
    for field, values in _columns(rows):
        description = descriptions.get(field)
        if description is None:
            description = descriptions[field] = FieldDescription(field, values[0])
            first_keys[field] = value_key(values[0])
            texts[field] = Counter()
        description.num_runs += len(values)
        if not description.differs and values.count(description.example) < len(values):
            description.differs = any(value_key(value) != first_keys[field] for value in values)
        counts = texts[field]
        if counts is not None and not all(_count_texts(counts, value) for value in values):
            texts[field] = None
    num_full = sum(row.summary.is_full for row in rows)
    for description in descriptions.values():
        description.varies = description.differs
        # A run that was not read yet does not lack anything.
        description.differs = description.differs or description.num_runs < (
            num_full if needs_full(description.field) else len(rows)
        )
        description.texts = [text for text, _ in (texts[description.field] or Counter()).most_common()]
    return list(descriptions.values())


def _columns(rows: Sequence[RunRow]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield fields with their values in the rows that have them; a field may come several times."""
    for name, fact in FACTS.items():
        values = [value for row in rows if (value := fact.read(row)) is not None]
        if values:
            yield name, values
    summaries = [row.summary for row in rows]
    for prefix, mappings in (
        ("git.", [summary.git for summary in summaries]),
        ("config.", [summary.config for summary in summaries]),
        ("summary.", [summary.results for summary in summaries]),
        ("", [_custom(row) for row in rows]),
    ):
        for name, column in columns_of(mappings):
            yield prefix + name, column
    for name, metrics in columns_of([summary.metrics for summary in summaries]):
        yield f"{name}.last", [metric.last for metric in metrics]


def _custom(row: RunRow) -> dict[str, Any]:
    values = row.annotations.values
    return {name: value for name, value in values.items() if name.startswith("custom.")} if values else values


def _count_texts(counts: Counter[str], value: Any) -> bool:
    """Count the texts of a value; return whether they are still few and short."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str) or len(item) > _MAX_TEXT_CHARS:
            return False
        counts[item] += 1
    return len(counts) <= _MAX_TEXTS
