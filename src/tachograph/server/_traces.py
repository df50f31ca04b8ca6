"""The traces of torch's profiler: what is stored, and the files themselves."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tachograph.reader import list_traces, open_trace
from tachograph.records import finite_or_none
from tachograph.server._faults import ApiError
from tachograph.server._models import Traces, TraceView
from tachograph.store import StoredRun

__all__ = ["trace", "traces"]

_BLOCK_BYTES = 1 << 18


def traces(run: StoredRun) -> Traces:
    """Return the traces that are stored, the newest first."""
    with run.lock:
        told: dict[str, dict[str, Any]] = {
            str(record.get("path")).rpartition("/")[2]: record for record in run.digest.latest("event", "trace")
        }
        version = run.version
    return Traces(
        version=version,
        traces=[
            TraceView(
                name=found.name,
                time=found.time,
                first_step=found.first_step,
                num_steps=found.num_steps,
                size_bytes=found.size_bytes,
                duration_s=finite_or_none(told.get(found.name, {}).get("duration_s")),
            )
            for found in reversed(list_traces(run.folder))
        ],
    )


def trace(run: StoredRun, name: str) -> Response:
    """Return a trace as a file to be saved."""
    file = open_trace(run.folder, name)
    if file is None:
        raise ApiError(404, "no_such_trace", f"no trace {name[:100]!r} in this run")
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Length": str(os.fstat(file.fileno()).st_size),
    }
    return _FileResponse(file, headers)


class _FileResponse(StreamingResponse):
    """An open file, closed however the answer ends: of a HEAD, or where the reader has gone, nobody reads it."""

    def __init__(self, file: BinaryIO, headers: dict[str, str]) -> None:
        super().__init__(iter(lambda: file.read(_BLOCK_BYTES), b""), 200, headers, "application/gzip")
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
