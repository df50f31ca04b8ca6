"""Rebuild spans from the records of a journal: one by one, and totalled by name.

`SpanTreeBuilder` matches `span_start` with `span_stop` by id and returns a span when it ends. At the same time it adds
each span to a `SpanGroup`, a node in a tree of totals keyed by the names from the root. A child finds its parent's
group by `parent_id`, which also works for a short while after the parent has ended: ids of the last ended spans are
kept. Both the number of groups and their depth are bounded, so a journal with unbounded names does not exhaust memory.

A process that dies writes no `span_stop`. Its open spans are closed by the next `start` record, or by `close`, with the
status `died` and the last time its attempt recorded anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.records import finite_or_none

__all__ = ["RecordedSpan", "SPAN_KINDS", "SpanGroup", "SpanTreeBuilder", "sort_depth_first"]

SPAN_KINDS = frozenset({"span_start", "span_stop", "span"})

_MAX_GROUPS = 5_000
_MAX_DEPTH = 40
_MAX_ENDED_IDS = 10_000


class RecordedSpan(msgspec.Struct, kw_only=True):
    """A span, as recorded in the journal."""

    id: str
    name: str
    start: float
    """Seconds since the epoch."""
    duration_s: float | None = None
    """None while the span is open; until the last record of the attempt if the process died in it."""
    parent_id: str | None = None
    attempt: int = 0
    depth: int = 0
    """The number of enclosing spans."""
    status: str = "ok"
    """`ok`, `error`, `left`, `left_open` (never ended by the program), `open` or `died`."""
    attributes: dict[str, Any] = {}


class SpanGroup(msgspec.Struct, kw_only=True):
    """Totals of all spans with the same name and the same enclosing names."""

    name: str
    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    num_errors: int = 0
    num_unfinished: int = 0
    """Spans that the program never ended or in which it died."""
    num_open: int = 0
    """Spans that are still open."""
    open_starts: float = 0.0
    """The sum of the start times of the open spans."""
    depth: int = 0
    children: dict[str, SpanGroup] = {}

    def seconds(self, now_s: float) -> float:
        """Return the total duration, counting open spans up to `now_s`."""
        return self.total_s + max(0.0, self.num_open * now_s - self.open_starts)


class SpanTreeBuilder:
    """Builds spans and their totals from records added in order; see the module."""

    def __init__(self) -> None:
        self.roots: dict[str, SpanGroup] = {}
        """Totals of the outermost spans, by name."""
        self.num_not_grouped = 0
        """The number of spans in no group, because there were too many names."""
        self._open: dict[str, RecordedSpan] = {}
        self._groups: dict[str, SpanGroup] = {}
        self._ended_groups: dict[str, SpanGroup] = {}
        self._num_groups = 0
        self._attempt = -1

    def add(self, record: dict[str, Any], last_time: float | None = None) -> list[RecordedSpan]:
        """Add a record of any kind; return the spans that it completes.

        Args:
            record: the record.
            last_time: for a `start` record, the time of the last record of the previous attempt.
        """
        event = record.get("event")
        if event == "start":
            interrupted_spans = self.close(last_time)
            self._attempt += 1
            return interrupted_spans
        span_id = record.get("span_id")
        if event not in SPAN_KINDS or not isinstance(span_id, str):
            return []
        time_s = finite_or_none(record.get("time")) or 0.0
        duration_s = max(0.0, finite_or_none(record.get("duration_s")) or 0.0)
        if span_id in self._ended_groups or (event == "span_start" and span_id in self._open):
            return []  # a duplicate
        if event == "span_start":
            self._add_open(_parse_span(span_id, record, time_s, self._attempt))
            return []
        span = self._open.pop(span_id, None)
        if span is None:  # a `span` record, or its start was in an invalid line
            span = _parse_span(span_id, record, time_s - duration_s, self._attempt)
            group = self._group(span)
            span.depth = group.depth
        else:
            group = self._groups.pop(span_id)
            group.num_open -= 1
            group.open_starts -= span.start
        # Children may be recorded after their parent has ended, so keep its group for a while.
        self._ended_groups[span_id] = group
        if len(self._ended_groups) > _MAX_ENDED_IDS:
            del self._ended_groups[next(iter(self._ended_groups))]
        if isinstance(record.get("attributes"), dict):
            span.attributes = record["attributes"]
        return [_finish(span, group, duration_s, str(record.get("status", "ok")))]

    def set_clock(self, jump_s: float) -> None:
        """Shift the starts of the open spans, because the wall clock was set."""
        for span in self._open.values():
            span.start += jump_s
            self._groups[span.id].open_starts += jump_s

    def close(self, last_time: float | None = None) -> list[RecordedSpan]:
        """Close all open spans, because the process has died; return them."""
        interrupted_spans = []
        for span in self._open.values():
            group = self._groups[span.id]
            group.num_open -= 1
            group.open_starts -= span.start
            duration_s = max(0.0, last_time - span.start) if last_time is not None else 0.0
            interrupted_spans.append(_finish(span, group, duration_s, "died"))
        self._open, self._groups, self._ended_groups = {}, {}, {}
        return interrupted_spans

    def open_spans(self) -> list[RecordedSpan]:
        """Return the spans that have not ended, oldest first."""
        return list(self._open.values())

    def _add_open(self, span: RecordedSpan) -> None:
        group = self._group(span)
        span.depth = group.depth
        group.num_open += 1
        group.open_starts += span.start
        self._open[span.id] = span
        self._groups[span.id] = group

    def _group(self, span: RecordedSpan) -> SpanGroup:
        parent = self._groups.get(span.parent_id or "") or self._ended_groups.get(span.parent_id or "")
        level = self.roots if parent is None else parent.children
        depth = 0 if parent is None else parent.depth + 1
        if parent is not None and depth > _MAX_DEPTH:
            return parent  # count deeper spans as their parents
        group = level.get(span.name)
        if group is None:
            # Beyond the limit the group is not linked into the tree, but the caller still needs one.
            group = SpanGroup(name=span.name, depth=depth, children={})
            if self._num_groups < _MAX_GROUPS:
                self._num_groups += 1
                level[span.name] = group
            else:
                self.num_not_grouped += 1
        return group


def sort_depth_first(spans: list[RecordedSpan]) -> list[RecordedSpan]:
    """Return spans with parents before children. A missing, cyclic or self-referencing parent is removed."""
    by_id = {span.id: span for span in spans}
    children: dict[str | None, list[RecordedSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.attempt, span.start, span.id)):
        if span.parent_id not in by_id or span.parent_id == span.id:
            span.parent_id = None
        children.setdefault(span.parent_id, []).append(span)
    sorted_spans: list[RecordedSpan] = []
    waiting = children.pop(None, [])[::-1]  # a stack, because recursion could be too deep
    while waiting or children:
        if not waiting:  # only cycles are left: break one
            parent_id = next(iter(children))
            first = children[parent_id].pop(0)
            if not children[parent_id]:
                del children[parent_id]
            first.parent_id = None
            waiting = [first]
        span = waiting.pop()
        sorted_spans.append(span)
        waiting += children.pop(span.id, [])[::-1]
    return sorted_spans


def _finish(span: RecordedSpan, group: SpanGroup, duration_s: float, status: str) -> RecordedSpan:
    span.duration_s, span.status = duration_s, status
    group.count += 1
    group.total_s += duration_s
    group.longest_s = max(group.longest_s, duration_s)
    group.num_errors += status == "error"
    group.num_unfinished += status in {"left_open", "died"}
    return span


def _parse_span(span_id: str, record: dict[str, Any], start: float, attempt: int) -> RecordedSpan:
    parent, attributes = record.get("parent_id"), record.get("attributes")
    return RecordedSpan(
        id=span_id,
        name=str(record.get("name", "?")),
        start=start,
        parent_id=parent if isinstance(parent, str) else None,
        attempt=max(attempt, 0),
        attributes=attributes if isinstance(attributes, dict) else {},
    )
