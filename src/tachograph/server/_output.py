"""Serves the console output of a run."""

from __future__ import annotations

import re

from starlette.responses import Response, StreamingResponse

from tachograph.journal import RunFolder
from tachograph.reader import output_text, output_version, read_output
from tachograph.server._copy_fields import copy_fields
from tachograph.server._models import OutputPage, OutputQuery, OutputRange, OutputRow

__all__ = ["build_output_page", "download_output"]


def build_output_page(folder: RunFolder, query: OutputQuery) -> OutputPage:
    """Return the requested lines."""
    version = output_version(folder)  # before the lines: an old version with new lines only causes another request
    part = read_output(folder, query.offset, query.limit, query.search)
    return OutputPage(
        version=version,
        ranges=[OutputRange(first, end) for first, end in part.ranges],
        rows=[copy_fields(OutputRow, line) for line in part.lines],
        partial=[copy_fields(OutputRow, line) for line in part.partial],
        num_matches=part.num_matches,
        matches=part.matches,
    )


def download_output(folder: RunFolder, run: str) -> Response:
    """Return the whole output as a text file."""
    # The file name goes into a header: keep only characters that need no quoting.
    stem = re.sub(r"[^A-Za-z0-9.-]+", "_", run).strip("._")[:100] or "run"
    headers = {"Content-Disposition": f'attachment; filename="{stem}-output.txt"'}
    texts = (text.encode("utf-8", "backslashreplace") for text in output_text(folder))
    return StreamingResponse(texts, 200, headers, "text/plain; charset=utf-8")
