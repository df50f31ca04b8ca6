"""Spans and events as records: what is written when a span begins, ends, or something happens in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tachograph.recorder import PendingRecord
from tachograph.spans._attributes import Attributes
from tachograph.spans._filter import SpanFilter
from tachograph.spans._span import Span, outward

if TYPE_CHECKING:
    from tachograph.spans._recorder import TrainingRecorder

__all__ = ["SpanRecords"]


class SpanRecords:
    """Makes the records of one run's spans, in the writer's thread."""

    def __init__(self, recorder: TrainingRecorder) -> None:
        self._recorder = recorder
        self.filter = SpanFilter()

    def about(self, span: Span | None, steady_s: float, event: str, fields: Mapping[str, Any]) -> list[PendingRecord]:
        """Return a record that belongs to a span, or to the one around it if that is not recorded itself."""
        kept = self._kept(span)
        if kept is None:
            return [PendingRecord(steady_s, event, dict(fields))]
        notes = self.start(kept)
        notes.append(PendingRecord(steady_s, event, {**fields, "span_id": self._recorder.ids.text_of(kept)}))
        return notes

    def _kept(self, span: Span | None) -> Span | None:
        return next((outer for outer in outward(span) if outer.name and self.filter.keeps(outer.name_str)), None)

    def start(self, span: Span) -> list[PendingRecord]:
        """Return the start of a span, and of those around it, unless they are in the journal."""
        if not self.filter.keeps(span.name_str):
            return []
        chain: list[Span] = []
        inner: Span | None = span
        while inner is not None and not inner.more.is_written:
            inner.more.is_written = True
            chain.append(inner)
            inner = self._kept(inner._parent)
        notes: list[PendingRecord] = []
        for begun in reversed(chain):
            notes.append(PendingRecord(begun.start_s or 0.0, "span_start", self._head(begun, inner)))
            inner = begun
        return notes

    def end(self, span: Span) -> list[PendingRecord]:
        """Return the end of a span, or all of it if nothing of it is in the journal."""
        more = span.more
        assert span.start_s is not None and span.stop_s is not None  # noqa: S101 - it has ended
        notes: list[PendingRecord] = []
        if more.is_written:
            event = "span_stop"
            fields: dict[str, Any] = {"span_id": self._recorder.ids.text_of(span), "name": span.name_str}
        else:
            parent = self._kept(span._parent)
            notes += self.start(parent) if parent is not None else []
            event, fields = "span", self._head(span, parent)
            more.is_written = True
        fields["duration_s"] = span.stop_s - span.start_s
        if more.status != "ok":
            fields["status"] = more.status
        if more.attributes or more.updated or more.stop_attributes:
            fields |= _said(attributes=span.attributes, stop_attributes=more.stop_attributes)
        notes.append(PendingRecord(span.stop_s, event, fields))
        return notes

    def _head(self, span: Span, parent: Span | None) -> dict[str, Any]:
        more = span.more
        fields: dict[str, Any] = {"span_id": self._recorder.ids.text_of(span)}
        if parent is not None:
            fields["parent_id"] = self._recorder.ids.text_of(parent)
        fields["name"] = span.name_str
        if more.attributes or more.updated or more.start_attributes:
            fields |= _said(attributes=span.attributes, start_attributes=more.start_attributes)
        return fields

    def event(
        self, span: Span | None, steady_s: float, name: str, attributes: Mapping[str, Any]
    ) -> list[PendingRecord]:
        """Return an event of a span."""
        step = attributes.get("current_iteration")
        fields = {"name": str(name), **({"global_step": step} if step is not None else {}), **attributes}
        return self.about(span, steady_s, "event", fields)


def _said(**attributes: Attributes | None) -> dict[str, Any]:
    return {name: given.to_json() for name, given in attributes.items() if given}
