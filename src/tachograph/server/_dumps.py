"""Builds the API's pages of dumps: the evidence that a run captured when something went wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.black_box import Dump, read_dumps
from tachograph.records import mark_non_finite
from tachograph.server._errors import ApiError
from tachograph.server._models import DumpCause, DumpDetail, DumpsPage, DumpView
from tachograph.store import StoredRun

__all__ = ["build_dump", "build_dumps_page"]

_MAX_DUMPS = 100
_MAX_ITEMS = 500
_MAX_TEXT_CHARS = 4_000
_MAX_DEPTH = 8
_MAX_PAGE_BYTES = 4 << 20
_NOT_SENT = frozenset({"generators"})
"""Only needed to repeat a step, and long."""


def build_dumps_page(run: StoredRun) -> DumpsPage:
    """Return the dumps of a run, oldest first."""
    dumps = read_dumps(run.folder)[:_MAX_DUMPS]
    return DumpsPage(version=run.version, dumps=[_build_view(dump) for dump in dumps])


def build_dump(run: StoredRun, name: str, rank: int) -> DumpDetail:
    """Return one dump with its parts; long lists are shortened.

    Raises:
        ApiError: if the run has no such dump.
    """
    dump = next((dump for dump in read_dumps(run.folder) if dump.name == name and dump.rank == rank), None)
    if dump is None:
        raise ApiError(404, "no_such_dump", f"no dump {name[:100]!r} in this run")
    content: dict[str, Any] = {}
    num_bytes = 0
    for part in dump.parts:
        value = mark_non_finite(_shorten(dump[part], 0))
        num_bytes += len(msgspec.json.encode(value))
        if num_bytes > _MAX_PAGE_BYTES:
            break
        content[part] = value
    return DumpDetail(dump=_build_view(dump), content=content)


def _build_view(dump: Dump) -> DumpView:
    verdict = dump.verdict
    cause = None
    if verdict is not None:
        cause = DumpCause(kind=verdict.kind[:100], text=verdict.text[:_MAX_TEXT_CHARS], confidence=verdict.confidence)
    return DumpView(
        name=dump.name,
        reason=dump.reason,
        step=dump.step,
        time=dump.time,
        rank=dump.rank,
        alert_id=dump.alert_id,
        cause=cause,
        size_bytes=sum(file.size_bytes for file in dump.files),
        parts=dump.parts,
        problems=[problem[:_MAX_TEXT_CHARS] for problem in dump.problems[:_MAX_ITEMS]],
    )


def _shorten(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value[:_MAX_TEXT_CHARS]
    if isinstance(value, (dict, list)) and depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        items = [(name, item) for name, item in value.items() if name not in _NOT_SENT][:_MAX_ITEMS]
        return {str(name): _shorten(item, depth + 1) for name, item in items}
    if isinstance(value, list):
        return [_shorten(item, depth + 1) for item in value[:_MAX_ITEMS]]
    return value
