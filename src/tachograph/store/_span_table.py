"""The spans of a run as columns, and views of them for the timeline.

A run may have millions of spans, but a view returns a bounded number: the longest ones individually, the others merged
into clusters of spans with the same depth that start within the same pixel. Ids are stored as 64-bit integers; an id
that is not 16 hexadecimal digits is stored by its hash and looked up when a view is built.
"""

from __future__ import annotations

import hashlib
import re
from array import array

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph.reader import RecordedSpan

__all__ = ["SpanCluster", "SpanTable", "SpanView"]

_MAX_SPANS = 2_000_000
_STATUSES = ("ok", "error", "left", "left_open", "died", "open")


class SpanCluster(msgspec.Struct):
    """Several short spans of the same depth that start within the same pixel, shown as one."""

    start: float
    end: float
    depth: int
    count: int
    total_s: float
    name: str
    """The name of the longest span."""


class SpanView(msgspec.Struct):
    """The spans between two times, as parallel lists."""

    names: list[str]
    name: list[int]
    """Index into `names`."""
    id: list[str]
    parent: list[int]
    """Index of the parent span, or -1 if it is not in the view."""
    start: list[float]
    duration_s: list[float | None]
    """None for an open span."""
    depth: list[int]
    status: list[str]
    attempt: list[int]
    heaps: list[SpanCluster]
    num_spans: int
    """The number of spans in the view, including those in clusters (`heaps`)."""
    num_left_out: int
    """The number of spans of the run that were not stored, because there were too many."""


class SpanTable:
    """The spans that have ended, in order of their end."""

    def __init__(self) -> None:
        self.num_left_out = 0
        self._hashed_ids: dict[int, str] = {}
        self._names: dict[str, int] = {}
        self._start = array("d")
        self._end = array("d")
        self._id = array("Q")
        self._parent = array("Q")
        self._name = array("I")
        self._depth = array("B")
        self._status = array("B")
        self._attempt = array("I")

    def __len__(self) -> int:
        return len(self._start)

    def add(self, span: RecordedSpan) -> None:
        """Add a span that has ended."""
        if len(self._start) >= _MAX_SPANS:
            self.num_left_out += 1
            return
        self._start.append(span.start)
        self._end.append(span.start + (span.duration_s or 0.0))
        key = _key(span.id)
        if f"{key:016x}" != span.id:
            self._hashed_ids[key] = span.id
        self._id.append(key)
        self._parent.append(_key(span.parent_id) if span.parent_id else 0)
        self._name.append(self._names.setdefault(span.name, len(self._names)))
        self._depth.append(min(255, span.depth))
        self._status.append(_STATUSES.index(span.status) if span.status in _STATUSES else 0)
        self._attempt.append(span.attempt)

    def view(
        self, open_spans: list[RecordedSpan], low: float | None, high: float | None, *, num_points: int, max_spans: int
    ) -> SpanView:
        """Return the spans between two times.

        Args:
            open_spans: spans without an end.
            low: the earlier time; None for the beginning.
            high: the later time; None for the end.
            num_points: the width of the view in pixels; sets the resolution of clusters.
            max_spans: the maximum number of spans to return individually.
        """
        open_spans = [span for span in open_spans if _overlaps(span, low, high)]
        start, end = np.array(self._start), np.array(self._end)
        is_visible = np.ones(len(start), dtype=bool)
        if low is not None:
            is_visible &= end >= low
        if high is not None:
            is_visible &= start <= high
        indexes = np.flatnonzero(is_visible)
        heaps: list[SpanCluster] = []
        num_spans = len(indexes)
        if len(indexes) > max_spans:
            lengths = end[indexes] - start[indexes]
            # The longest spans are the visible ones; find them without sorting all.
            longest = np.argpartition(lengths, len(indexes) - max_spans)[len(indexes) - max_spans :]
            is_separate = np.zeros(len(indexes), dtype=bool)
            is_separate[longest] = True
            heaps = self._cluster(start, end, indexes[~is_separate], num_points)
            indexes = indexes[is_separate]
        indexes = indexes[np.argsort(start[indexes], kind="stable")]
        names = list(self._names)
        view = SpanView(
            names=names,
            name=np.array(self._name)[indexes].tolist(),
            id=[self._hashed_ids.get(key) or f"{key:016x}" for key in np.array(self._id)[indexes].tolist()],
            parent=_parents(np.array(self._id)[indexes], np.array(self._parent)[indexes], open_spans),
            start=start[indexes].tolist(),
            duration_s=(end[indexes] - start[indexes]).tolist(),
            depth=np.array(self._depth)[indexes].tolist(),
            status=[_STATUSES[index] for index in np.array(self._status)[indexes].tolist()],
            attempt=np.array(self._attempt)[indexes].tolist(),
            heaps=heaps,
            num_spans=num_spans + len(open_spans),
            num_left_out=self.num_left_out,
        )
        _add_open(view, open_spans)
        return view

    def _cluster(
        self,
        start: npt.NDArray[np.float64],
        end: npt.NDArray[np.float64],
        indexes: npt.NDArray[np.int64],
        num_points: int,
    ) -> list[SpanCluster]:
        depth = np.array(self._depth)[indexes].astype(np.int64)
        low, high = float(start[indexes].min()), float(end[indexes].max())
        width = max((high - low) / max(1, num_points), 1e-9)
        bucket = ((start[indexes] - low) / width).astype(np.int64)
        # One key per depth and pixel. Sorting by key and then length puts the longest span of a cluster last.
        key = depth * (num_points + 2) + bucket
        order = np.lexsort((end[indexes] - start[indexes], key))
        indexes, key = indexes[order], key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        last = np.append(first[1:], len(indexes)) - 1
        begins = np.minimum.reduceat(start[indexes], first)
        ends = np.maximum.reduceat(end[indexes], first)
        totals = np.add.reduceat(end[indexes] - start[indexes], first)
        names, name_of = list(self._names), np.array(self._name)
        return [
            SpanCluster(
                float(begins[i]),
                float(ends[i]),
                int(self._depth[indexes[last[i]]]),
                int(last[i] - first[i] + 1),
                float(totals[i]),
                names[name_of[indexes[last[i]]]],
            )
            for i in range(len(first))
        ]


def _overlaps(span: RecordedSpan, low: float | None, high: float | None) -> bool:
    ends_before = low is not None and span.duration_s is not None and span.start + span.duration_s < low
    return not ends_before and (high is None or span.start <= high)


def _key(span_id: str) -> int:
    """Return an id as a 64-bit integer; hash ids that are not 16 hexadecimal digits."""
    if re.fullmatch("[0-9a-f]{16}", span_id):
        return int(span_id, 16)
    return int.from_bytes(hashlib.blake2b(span_id.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def _parents(ids: npt.NDArray[np.uint64], parents: npt.NDArray[np.uint64], open_spans: list[RecordedSpan]) -> list[int]:
    index_of = {key: index for index, key in enumerate(ids.tolist())}
    index_of.update({_key(span.id): len(ids) + index for index, span in enumerate(open_spans)})
    return [index_of.get(key, -1) if key else -1 for key in parents.tolist()]


def _add_open(view: SpanView, open_spans: list[RecordedSpan]) -> None:
    index_of = {span_id: index for index, span_id in enumerate(view.id)}
    names = {name: index for index, name in enumerate(view.names)}
    for span in open_spans:
        index_of[span.id] = len(view.id)
        view.name.append(names.setdefault(span.name, len(names)))
        view.id.append(span.id)
        view.parent.append(index_of.get(span.parent_id or "", -1))
        view.start.append(span.start)
        view.duration_s.append(span.duration_s)
        view.depth.append(span.depth)
        view.status.append(span.status)
        view.attempt.append(span.attempt)
    view.names = list(names)
