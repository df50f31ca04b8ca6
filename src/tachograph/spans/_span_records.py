"""Builds the records of spans and their events.

A start is written lazily: a span that has stopped by the time the writer handles its start gets a single `span` record
instead of `span_start` and `span_stop`, unless something inside it was written in between and refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.recorder import PendingRecord
from tachograph.spans._attributes import Attributes
from tachograph.spans._filter import SpanFilter
from tachograph.spans._span import Span, ancestors
from tachograph.spans._span_ids import SpanIds

__all__ = ["SpanRecordBuilder"]


class SpanRecordBuilder:
    """Builds the records of one run's spans, on the writer thread."""

    def __init__(self, ids: SpanIds) -> None:
        self._ids = ids
        self.filter = SpanFilter()

    def build(self, span: Span | None, steady_s: float, event: str, fields: Mapping[str, Any]) -> list[PendingRecord]:
        """Return a record that belongs to a span, or to its nearest ancestor that is recorded."""
        owner = self._recorded_ancestor(span)
        fields = dict(fields)
        if span is not None and span.name and owner is not span:
            fields["span_name"] = span.name_str
        if owner is None:
            return [PendingRecord(steady_s, event, fields)]
        records = self.start(owner)
        records.append(PendingRecord(steady_s, event, {**fields, "span_id": self._ids.text_of(owner)}))
        return records

    def _recorded_ancestor(self, span: Span | None) -> Span | None:
        return next((outer for outer in ancestors(span) if outer.name and self.filter.keeps(outer.name_str)), None)

    def start(self, span: Span) -> list[PendingRecord]:
        """Return the start records of a span and of its ancestors that are not in the journal yet."""
        if not self.filter.keeps(span.name_str):
            return []
        chain: list[Span] = []
        inner: Span | None = span
        while inner is not None and not inner.extras.is_written:
            inner.extras.is_written = True
            chain.append(inner)
            inner = self._recorded_ancestor(inner._parent)
        records: list[PendingRecord] = []
        for outer in reversed(chain):
            records.append(PendingRecord(outer.start_s or 0.0, "span_start", self._head(outer, inner)))
            inner = outer
        return records

    def start_parent(self, span: Span) -> list[PendingRecord]:
        """Return the start records of the ancestors of a span that are not in the journal yet."""
        parent = self._recorded_ancestor(span._parent)
        return self.start(parent) if parent is not None and not span.extras.is_written else []

    def stop(self, span: Span) -> PendingRecord:
        """Return the stop record of a span, or its whole record if its start is not in the journal."""
        extras = span.extras
        assert span.start_s is not None and span.stop_s is not None  # noqa: S101 - it has stopped
        if extras.is_written:
            event = "span_stop"
            fields: dict[str, Any] = {"span_id": self._ids.text_of(span), "name": span.name_str}
        else:
            event, fields = "span", self._head(span, self._recorded_ancestor(span._parent))
            extras.is_written = True
        fields["duration_s"] = span.stop_s - span.start_s
        if extras.status != "ok":
            fields["status"] = extras.status
        if extras.attributes or extras.added_attributes or extras.stop_attributes:
            fields |= _to_json(attributes=span.attributes, stop_attributes=extras.stop_attributes)
        return PendingRecord(span.stop_s, event, fields)

    def _head(self, span: Span, parent: Span | None) -> dict[str, Any]:
        extras = span.extras
        fields: dict[str, Any] = {"span_id": self._ids.text_of(span)}
        if parent is not None:
            fields["parent_id"] = self._ids.text_of(parent)
        fields["name"] = span.name_str
        if extras.attributes or extras.added_attributes or extras.start_attributes:
            fields |= _to_json(attributes=span.attributes, start_attributes=extras.start_attributes)
        return fields

    def event(
        self, span: Span | None, steady_s: float, name: str, attributes: Mapping[str, Any]
    ) -> list[PendingRecord]:
        """Return the record of a standard event of a span, without the attributes that are None."""
        step = attributes.get("current_iteration")
        fields = {"name": str(name), "global_step": step, **attributes}
        fields = {field: value for field, value in fields.items() if value is not None}
        return self.build(span, steady_s, "event", fields)


def _to_json(**attributes: Attributes | None) -> dict[str, Any]:
    return {name: values.to_json() for name, values in attributes.items() if values}
