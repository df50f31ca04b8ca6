"""Spans as a reader sees them: each by itself, and added up by name.

A span that never stopped is closed by the end of its attempt: the process died in it, or is still in it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.records import finite_or_none

__all__ = ["SPAN_KINDS", "RecordedSpan", "SpanTreeBuilder", "SpanGroup", "in_order"]

SPAN_KINDS = frozenset({"span_start", "span_stop", "span"})

_MOST_GROUPS = 5_000
_DEEPEST = 40
_MOST_KNOWN = 10_000


class RecordedSpan(msgspec.Struct, kw_only=True):
    """A stretch of time with a name, as it was recorded."""

    id: str
    name: str
    start: float
    """Seconds since the epoch."""
    duration_s: float | None = None
    """None while it goes on; for one in which the process died, what is known of it."""
    parent_id: str | None = None
    attempt: int = 0
    depth: int = 0
    """How many spans it lies in."""
    status: str = "ok"
    """`ok`, `error`, `left_open` (never ended by the program), `open` or `died`."""
    attributes: dict[str, Any] = {}


class SpanGroup(msgspec.Struct, kw_only=True):
    """All spans of a name under the same parents, added up."""

    name: str
    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    num_errors: int = 0
    num_unfinished: int = 0
    """How many the program never ended, or died in."""
    num_open: int = 0
    """How many go on."""
    open_starts: float = 0.0
    """The sum of when those began."""
    depth: int = 0
    children: dict[str, SpanGroup] = {}

    def seconds(self, now_s: float) -> float:
        """Return the time they took, of those that go on as of now."""
        return self.total_s + max(0.0, self.num_open * now_s - self.open_starts)


class SpanTreeBuilder:
    """Puts spans together from the records of a journal, in order."""

    def __init__(self) -> None:
        self.roots: dict[str, SpanGroup] = {}
        """The outermost spans, added up."""
        self.num_not_grouped = 0
        """Spans of names for which there was no room."""
        self._open: dict[str, RecordedSpan] = {}
        self._groups: dict[str, SpanGroup] = {}
        self._ended: dict[str, SpanGroup] = {}
        self._num_groups = 0
        self._attempt = -1

    def take(self, record: dict[str, Any], last_time: float | None = None) -> list[RecordedSpan]:
        """Take a record of any kind; return the spans that it completes.

        Args:
            record: the record.
            last_time: when the attempt before a `start` record was last heard of.
        """
        event = record.get("event")
        if event == "start":
            died = self.close(last_time)
            self._attempt += 1
            return died
        span_id = record.get("span_id")
        if event not in SPAN_KINDS or not isinstance(span_id, str):
            return []
        time_s, duration_s = (
            finite_or_none(record.get("time")) or 0.0,
            max(0.0, finite_or_none(record.get("duration_s")) or 0.0),
        )
        if span_id in self._ended or (event == "span_start" and span_id in self._open):
            return []  # told twice
        if event == "span_start":
            self._begin(_span(span_id, record, time_s, self._attempt))
            return []
        span = self._open.pop(span_id, None)
        if span is None:  # a whole one, or its start is in a line that cannot be read
            span = _span(span_id, record, time_s - duration_s, self._attempt)
            group = self._group(span)
            span.depth = group.depth
        else:
            group = self._groups.pop(span_id)
            group.num_open -= 1
            group.open_starts -= span.start
        self._ended[span_id] = group
        if len(self._ended) > _MOST_KNOWN:
            del self._ended[next(iter(self._ended))]
        if isinstance(record.get("attributes"), dict):
            span.attributes = record["attributes"]
        return [_ended(span, group, duration_s, str(record.get("status", "ok")))]

    def close(self, last_time: float | None = None) -> list[RecordedSpan]:
        """Take it that the process has died; return the spans it was in."""
        died = []
        for span in self._open.values():
            group = self._groups[span.id]
            group.num_open -= 1
            group.open_starts -= span.start
            lasted_s = max(0.0, last_time - span.start) if last_time is not None else 0.0
            died.append(_ended(span, group, lasted_s, "died"))
        self._open, self._groups, self._ended = {}, {}, {}
        return died

    def open_spans(self) -> list[RecordedSpan]:
        """Return the spans that have not stopped, oldest first."""
        return list(self._open.values())

    def _begin(self, span: RecordedSpan) -> None:
        group = self._group(span)
        span.depth = group.depth
        group.num_open += 1
        group.open_starts += span.start
        self._open[span.id] = span
        self._groups[span.id] = group

    def _group(self, span: RecordedSpan) -> SpanGroup:
        parent = self._groups.get(span.parent_id or "") or self._ended.get(span.parent_id or "")
        level = self.roots if parent is None else parent.children
        depth = 0 if parent is None else parent.depth + 1
        if parent is not None and depth > _DEEPEST:
            return parent  # deeper ones are taken for their parents
        group = level.get(span.name)
        if group is None:
            group = SpanGroup(name=span.name, depth=depth, children={})
            if self._num_groups < _MOST_GROUPS:
                self._num_groups += 1
                level[span.name] = group
            else:
                self.num_not_grouped += 1
        return group


def in_order(spans: list[RecordedSpan]) -> list[RecordedSpan]:
    """Return spans with each after the one around it; a parent that is not there, or is its own, counts as none."""
    by_id = {span.id: span for span in spans}
    children: dict[str | None, list[RecordedSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.attempt, span.start, span.id)):
        if span.parent_id not in by_id or span.parent_id == span.id:
            span.parent_id = None
        children.setdefault(span.parent_id, []).append(span)
    ordered: list[RecordedSpan] = []
    waiting = children.pop(None, [])[::-1]
    while waiting or children:
        if not waiting:  # what is left goes round in circles
            parent_id = next(iter(children))
            first = children[parent_id].pop(0)
            if not children[parent_id]:
                del children[parent_id]
            first.parent_id = None
            waiting = [first]
        span = waiting.pop()
        ordered.append(span)
        waiting += children.pop(span.id, [])[::-1]
    return ordered


def _ended(span: RecordedSpan, group: SpanGroup, duration_s: float, status: str) -> RecordedSpan:
    span.duration_s, span.status = duration_s, status
    group.count += 1
    group.total_s += duration_s
    group.longest_s = max(group.longest_s, duration_s)
    group.num_errors += status == "error"
    group.num_unfinished += status in {"left_open", "died"}
    return span


def _span(span_id: str, record: dict[str, Any], start: float, attempt: int) -> RecordedSpan:
    parent, attributes = record.get("parent_id"), record.get("attributes")
    return RecordedSpan(
        id=span_id,
        name=str(record.get("name", "?")),
        start=start,
        parent_id=parent if isinstance(parent, str) else None,
        attempt=max(attempt, 0),
        attributes=attributes if isinstance(attributes, dict) else {},
    )
