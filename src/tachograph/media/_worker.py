"""The work of the media thread on one job: builds its items, stores their files, and returns its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tachograph.media._curves import histogram, histogram_of_counts, histogram_of_exponents
from tachograph.media._items import MAX_CALL_BYTES, ItemBuilder, read_array
from tachograph.media._quota import Quota
from tachograph.media._snapshots import FileAt, SnapshotError
from tachograph.media._store import MediaStore
from tachograph.media._values import ExponentCounts, File, Histogram, MediaValue

__all__ = ["MediaWorker"]

_PROBLEM_KIND = "problem"
_MAX_PROBLEM_CHARS = 500
_MAX_JOINED_STEPS = 2
"""Media are logged at the present step of a loop, or at the next one."""


class MediaJob(Protocol):
    """One record to build; see `_recorder.py`."""

    kind: str
    name: str
    values: Any
    num_dropped: int
    num_bytes: int
    step: Any


class MediaWorker:
    """Builds records. Used only by the media thread."""

    def __init__(self, run: Any, between_blocks: Callable[[], None] = lambda: None) -> None:
        settings = run.settings
        self._run = run
        self._store = MediaStore(lambda: run.folder, between_blocks)
        self._quota = Quota(
            self._store,
            keep=settings.media_keep,
            max_bytes=settings.media_max_mb << 20,
            max_files=settings.media_max_files,
        )
        self._has_told = False
        self._num_joined_items: dict[str, dict[int, int]] = {}
        """By name and step; see `MediaValue.joined_step`."""

    def close(self, timeout_s: float) -> None:
        """Write no further file. Called by the thread that ends the run."""
        self._store.close(timeout_s)

    def build(self, job: MediaJob) -> tuple[str, dict[str, Any], list[tuple[str, str]]]:
        """Return the kind and the fields of a job's record, and the problems of its values with their names.

        Raises:
            OSError: if a file cannot be written.
        """
        if job.kind == "histograms":
            return self._build_histograms(job)
        if job.kind == ExponentCounts.kind:
            return self._build_exponent_histograms(job)
        self._store.open()
        fields: dict[str, Any] = {"global_step": job.step, "name": job.name, "kind": job.kind}
        if not self._quota.make_room(sum(map(_file_bytes, job.values))):
            reason = "the run has as much media as media_max_mb and media_max_files allow"
            self._run.count_loss(reason)
            num_items = len(job.values) + job.num_dropped
            return "media", {**fields, "items": [], "num_dropped": num_items, "reason": reason}, [(job.name, reason)]
        items: list[dict[str, Any]] = []
        builder = ItemBuilder(self._store, self._quota.has_room)  # one for each job: one may be built within another
        for value in job.values:
            if value.kind == _PROBLEM_KIND:
                items.append({"problem": value.data, **({"caption": value.caption} if value.caption else {})})
                if value.meta:
                    items[-1]["meta"] = dict(value.meta)
                if value.index is not None:
                    items[-1]["index"] = value.index
            else:
                built_items = builder.build(value)
                if value.index is not None:
                    built_items[0]["index"] = value.index
                items += built_items
        num_dropped = job.num_dropped + builder.num_dropped
        for index, item in enumerate(items, self._first_index(job, len(items))):
            number = item.setdefault("index", index)
            item.setdefault("meta", {}).setdefault("prompt_id", number)
        self._quota.add(job.name, builder.files)
        self._tell_of_thinning()
        problems = [(job.name, item["problem"]) for item in items if "problem" in item]
        if builder.num_dropped:
            num_pictures = len(items) + builder.num_dropped
            problems.append((job.name, f"{num_pictures} items in one call; the first {len(items)} were recorded"))
        return "media", {**fields, "items": items, "num_dropped": num_dropped}, problems

    def _first_index(self, job: MediaJob, num_items: int) -> int:
        """Return the number of the first item of a record, and count the items if later records are numbered on."""
        step = job.values[0].joined_step if job.values else None
        if step is None:
            return 0
        counts = self._num_joined_items.setdefault(job.name, {})
        first_index = counts.pop(step, 0)
        counts[step] = first_index + num_items
        while len(counts) > _MAX_JOINED_STEPS:
            del counts[next(iter(counts))]
        return first_index

    def _build_histograms(self, job: MediaJob) -> tuple[str, dict[str, Any], list[tuple[str, str]]]:
        values: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for name, value in job.values.items():
            try:
                if not isinstance(value, Histogram):
                    raise SnapshotError(str(value.data))
                if value.counts is not None:
                    values[name] = histogram_of_counts(read_array(value.counts), read_array(value.edges))
                else:
                    values[name] = histogram(read_array(value.data), value.bins)
            except SnapshotError as error:
                problems.append((name, str(error)))
            except Exception as error:  # noqa: BLE001 - data of any library; the other histograms are stored
                problems.append((name, f"{type(error).__name__}: {error}"[:_MAX_PROBLEM_CHARS]))
        return "histograms", {"global_step": job.step, "values": values} if values else {}, problems

    def _build_exponent_histograms(self, job: MediaJob) -> tuple[str, dict[str, Any], list[tuple[str, str]]]:
        values: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for value in job.values:
            try:
                if not isinstance(value, ExponentCounts):
                    raise SnapshotError(str(value.data))
                rows = zip(value.names, value.facts, read_array(value.data), strict=True)
                values |= {name: {**histogram_of_exponents(counts), **facts} for name, facts, counts in rows}
            except SnapshotError as error:
                problems.append((job.name, str(error)))
        return "histograms", {"global_step": job.step, "values": values} if values else {}, problems

    def _tell_of_thinning(self) -> None:
        """Record once that older media is removed, because the run has reached a limit."""
        if self._quota.num_thinned and not self._has_told and self._run.settings.media_keep == "thin":
            self._has_told = True
            self._run.add_record(
                "event",
                {
                    "name": "media_thinned",
                    "reason": "the run has as much media as media_max_mb and media_max_files allow: every second entry "
                    "of the largest name is reduced to thumbnails",
                },
            )


def _file_bytes(value: MediaValue) -> int:
    """Return the size of the copy of a file; one that is only pointed at, or is too large, is not copied."""
    if not isinstance(value.data, FileAt):
        return 0
    is_copied = value.keep if isinstance(value, File) else value.data.size_bytes <= MAX_CALL_BYTES
    return value.data.size_bytes if is_copied else 0
