"""Name, tags and notes of a run, as the training code states and changes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tachograph.records import RUN_LABELED, finite_or_none

__all__ = ["labels_of"]

_NAMES = ("display_name", "tags", "notes")


def labels_of(start: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `display_name`, `tags` and `notes`, as far as they are stated.

    Args:
        start: the last `start` record. What it states replaces changes that an earlier attempt made.
        records: records in order, of which those that change labels count.
    """
    labels = {name: start[name] for name in _NAMES if start.get(name)}
    stated_names = set(labels)
    started_at = finite_or_none(start.get("time")) or 0.0
    for record in records:
        if record.get("event") == "event" and record.get("name") == RUN_LABELED:
            is_later = (finite_or_none(record.get("time")) or 0.0) >= started_at
            changes = {name: record[name] for name in _NAMES if name in record}
            labels.update({name: value for name, value in changes.items() if is_later or name not in stated_names})
    return labels
