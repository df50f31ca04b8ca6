"""Lists the stored traces of the PyTorch profiler and serves their files."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tachograph.reader import list_traces, open_trace
from tachograph.records import finite_or_none
from tachograph.server._copy_fields import copy_fields
from tachograph.server._errors import ApiError
from tachograph.server._models import TracesPage, TraceView
from tachograph.store import StoredRun

__all__ = ["build_traces_page", "download_trace"]

_BLOCK_BYTES = 64 << 10


def build_traces_page(run: StoredRun) -> TracesPage:
    """Return the stored traces, newest first."""
    with run.lock:
        records: dict[str, dict[str, Any]] = {
            str(record.get("path")).rpartition("/")[2]: record for record in run.digest.latest("event", "trace")
        }
        version = run.version
    return TracesPage(
        version=version,
        traces=[
            copy_fields(TraceView, trace, duration_s=finite_or_none(records.get(trace.name, {}).get("duration_s")))
            for trace in reversed(list_traces(run.folder))
        ],
    )


def download_trace(run: StoredRun, name: str) -> Response:
    """Return a trace as a file download."""
    file = open_trace(run.folder, name)
    if file is None:
        raise ApiError(404, "no_such_trace", f"no trace {name[:100]!r} in this run")
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(os.fstat(file.fileno()).st_size),
    }
    return _FileResponse(file, headers)


class _FileResponse(StreamingResponse):
    """Streams an open file and always closes it: a HEAD request or a lost connection never reads to the end."""

    def __init__(self, file: BinaryIO, headers: dict[str, str]) -> None:
        super().__init__(iter(lambda: file.read(_BLOCK_BYTES), b""), 200, headers, "application/gzip")
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
