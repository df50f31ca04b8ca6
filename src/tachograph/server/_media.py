"""Builds the API's pages of media, and serves their files.

Files may contain anything, and the dashboard's origin holds the user's session. So:

- A file is named by its hash, and only if the journal of the run lists that hash, or a table that the journal lists.
  No part of a path comes from the request, and no link is followed.
- The first bytes decide about the type, never a name. Pictures, audio and video of a few formats can be shown; anything
  else, such as HTML and SVG, is a download. `nosniff` keeps browsers from guessing another type.
- Every file is sent with the policy ``sandbox; default-src 'none'``: opened as a page, it has no origin and no scripts.
- HTML and plotly figures are pages with scripts. They are served only by `send_frame`, with a policy that gives them an
  origin of their own (`sandbox` without `allow-same-origin`) and no requests. WebRTC remains, which no policy of
  Chromium forbids; the dashboard says so before it shows them, in a sandboxed frame. They cannot be put into the
  dashboard's page as `srcdoc`, because such a frame inherits the policy of the page, which allows no inline scripts;
  and allowing them there would weaken the dashboard itself.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tachograph.catalog import direction_of
from tachograph.journal import journal_size
from tachograph.reader import (
    MediaExportError,
    MediaFile,
    MediaLocation,
    ThumbnailError,
    animate_pictures,
    contact_sheet,
    file_size,
    has_media,
    has_thumbnail,
    is_media_file,
    make_thumbnail,
    open_media,
    read_histograms,
    read_media_items,
    read_media_records,
    read_table_rows,
    read_thumbnail,
    table_cell_files,
    zip_media,
)
from tachograph.records import finite_or_none, mark_non_finite
from tachograph.server._copy_status import read_copy_status
from tachograph.server._errors import ApiError
from tachograph.server._media_models import (
    BlobQuery,
    HistogramName,
    HistogramQuery,
    HistogramsPage,
    MediaExportQuery,
    MediaGap,
    MediaItemsPage,
    MediaItemsQuery,
    MediaMetricPage,
    MediaMetricQuery,
    MediaNameView,
    MediaPage,
    MediaRecordView,
    TableRowsPage,
    TableRowsQuery,
)
from tachograph.server._models import encode_number
from tachograph.store import StoredRun

__all__ = [
    "FILE_HEADERS",
    "SHOWN_TYPES",
    "FileResponse",
    "build_histograms_page",
    "build_items_page",
    "build_media_page",
    "build_metric_page",
    "build_rows_page",
    "export_media",
    "send_blob",
    "send_frame",
]

_MAX_STEPS = 20_000
_MAX_NAMES = 500
_MAX_HISTOGRAM_NAMES = 5_000
_MAX_GAPS = 200
_MAX_RESULT_BYTES = 4 << 20
_MAX_HISTOGRAM_BYTES = 64 << 20
_MAX_FRAME_BYTES = 64 << 20
_MAX_CACHED_TABLES = 16
_BLOCK_BYTES = 64 << 10
_TYPE_OF_START = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"\xff\xf3": "audio/mpeg",
    b"\xff\xf2": "audio/mpeg",
}
SHOWN_TYPES = tuple(sorted({*_TYPE_OF_START.values(), "image/webp", "audio/wav", "video/mp4", "video/webm"}))
"""The media types of files that browsers may show."""
FILE_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, max-age=31536000, immutable",
}
_FRAME_HEADERS = {
    **FILE_HEADERS,
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:; media-src data: blob:; font-src data:; worker-src blob:; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Frame-Options": "SAMEORIGIN",
    "X-DNS-Prefetch-Control": "off",
}


# Pages ---------------------------------------------------------------------------------------------------------------


def build_media_page(run: StoredRun) -> MediaPage:
    """Return the names of a run's media and histograms with their steps and counts."""
    with run.lock:
        version = run.version
        names = run.media.names()
        locations = run.media.locations()
        histograms = run.media.histogram_names()
        indexed_share = run.indexed_share
    gaps: dict[str, list[MediaGap]] = {}
    for location in locations:
        if location.num_dropped:
            gap = MediaGap(location.step, location.num_dropped, location.reason)
            gaps.setdefault(location.name, []).append(gap)
    return MediaPage(
        version=version,
        media=[
            MediaNameView(
                name=name,
                kind=entry.kind,
                steps=_thin_out(entry.steps, _MAX_STEPS),
                num_steps=len(entry.steps),
                num_items=entry.num_items,
                num_dropped=entry.num_dropped,
                gaps=gaps.get(name, [])[-_MAX_GAPS:],
            )
            for name, entry in list(names.items())[:_MAX_NAMES]
        ],
        histograms=[HistogramName(name, count) for name, count in list(histograms.items())[:_MAX_HISTOGRAM_NAMES]],
        is_whole=len(names) <= _MAX_NAMES and len(histograms) <= _MAX_HISTOGRAM_NAMES,
        indexed_share=indexed_share,
    )


def _thin_out(values: list[Any], limit: int) -> list[Any]:
    """Return at most `limit` values, evenly spaced, with the first and the last."""
    if len(values) <= limit:
        return values
    if limit == 1:
        return values[-1:]
    last = len(values) - 1
    return [values[index * last // (limit - 1)] for index in range(limit)]


def build_items_page(run: StoredRun, query: MediaItemsQuery) -> MediaItemsPage:
    """Return the matching media, newest first, limited in number and in size."""
    with run.lock:
        version = run.version
        locations = [
            location
            for location in run.media.locations(query.name)
            if (query.step_min is None or location.step >= query.step_min)
            and (query.step_max is None or location.step <= query.step_max)
        ]
    # The latest steps, and of equal steps the latest record: a resumed run repeats some.
    locations.reverse()
    newest = sorted(locations, key=lambda location: -location.step)
    chosen = _choose(newest, query.limit)
    # The records are read from the journal without the lock: the store keeps only their positions.
    awaits_files = _awaits_files(run)
    records = [
        _record_view(run, record, query.limit, awaits_files=awaits_files)
        for record in read_media_records(run.folder.journal, chosen)
    ]
    return MediaItemsPage(version=version, records=records, is_whole=len(chosen) == len(newest))


def _choose(locations: list[MediaLocation], max_items: int) -> list[MediaLocation]:
    num_items = num_bytes = 0
    for index, location in enumerate(locations):
        num_items += location.num_items
        num_bytes += location.size_bytes
        if index and (num_items > max_items or num_bytes > _MAX_RESULT_BYTES):
            return locations[:index]
    return locations


def _awaits_files(run: StoredRun) -> bool:
    """Return whether another machine may still send media files of the run: they follow its records."""
    status = read_copy_status(run.folder)
    return status is not None and status.media_offset < journal_size(run.folder.journal)


def _record_view(run: StoredRun, record: dict[str, Any], max_items: int, *, awaits_files: bool) -> MediaRecordView:
    num_dropped = record.get("num_dropped")
    return MediaRecordView(
        step=record["global_step"],
        time=finite_or_none(record.get("time")),
        kind=str(record.get("kind", "unknown"))[:50],
        items=[mark_non_finite(_with_missing(run, item, awaits_files)) for item in record["items"][:max_items]],
        num_dropped=num_dropped if type(num_dropped) is int and num_dropped > 0 else 0,
        reason=str(record.get("reason") or "")[:500],
    )


def _with_missing(run: StoredRun, item: dict[str, Any], awaits_files: bool) -> dict[str, Any]:
    """Return an item that says whether its file is missing, and if it is still to come, also as its problem."""
    item = {name: value for name, value in item.items() if name not in {"is_missing", "is_thumbnail"}}
    sha256, extension = item.get("sha256"), item.get("ext")
    if is_media_file(sha256, extension) and item.get("kept") is not False:
        item["is_missing"] = not has_media(run.folder, str(sha256), str(extension))
        if item["is_missing"] and has_thumbnail(run.folder, str(sha256)):
            item["is_thumbnail"] = True
        elif item["is_missing"] and awaits_files:
            item.setdefault("problem", "not received yet")
    return item


def build_metric_page(run: StoredRun, query: MediaMetricQuery) -> MediaMetricPage:
    """Return a metric at the steps of the media of one name."""
    with run.lock:
        version = run.version
        locations = run.media.locations(query.name)
    steps = _thin_out(sorted({location.step for location in locations if location.num_items}), _MAX_STEPS)
    values = _values_at(run, query.metric, steps)
    sign = 1 if direction_of(query.metric) > 0 else -1
    finite = [
        (sign * value, -step)
        for step, value in zip(steps, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    return MediaMetricPage(
        version=version,
        steps=steps,
        values=[None if value is None else encode_number(value) for value in values],
        best_step=-max(finite)[1] if finite else None,
        is_lower_better=sign < 0,
    )


def _values_at(run: StoredRun, metric: str, steps: list[int]) -> list[float | None]:
    """Return the latest value of a metric until each step; None before the first value."""
    points = run.latest_points(metric)
    if points is None:
        return [None] * len(steps)
    recorded_steps, recorded_values = points
    order = recorded_steps.argsort(kind="stable")  # of equal steps, the last point counts
    places = recorded_steps[order].searchsorted(steps, side="right")
    return [float(recorded_values[order[place - 1]]) if place else None for place in places.tolist()]


def build_histograms_page(run: StoredRun, query: HistogramQuery) -> HistogramsPage:
    """Return a histogram at some steps: as many as asked for and as can be read in reasonable time."""
    with run.lock:
        version = run.version
        locations = run.media.histogram_locations(query.name)
    if not locations:
        raise ApiError(404, "no_such_histogram", f"no histogram {query.name[:100]!r} in this run")
    mean_bytes = sum(location.size_bytes for location in locations) / len(locations)
    chosen = _thin_out(locations, max(1, min(query.limit, int(_MAX_HISTOGRAM_BYTES / max(mean_bytes, 1.0)))))
    return HistogramsPage(
        version=version,
        name=query.name,
        histograms=list(read_histograms(run.folder.journal, chosen, query.name)),
        num_steps=len(locations),
    )


def build_rows_page(run: StoredRun, sha256: str, query: TableRowsQuery) -> TableRowsPage:
    """Return rows of a table that is stored in a file."""
    file, listed_file = _open_blob(run, sha256, None)
    with file:
        rows, is_whole = read_table_rows(file) if listed_file.kind == "table" else ([], True)
    chosen = rows[query.offset : query.offset + query.limit]
    return TableRowsPage(rows=mark_non_finite(chosen), num_rows=len(rows), is_whole=is_whole)


# Files ---------------------------------------------------------------------------------------------------------------


def _listed_file(run: StoredRun, sha256: str, table: str | None) -> MediaFile | None:
    """Return the file with a hash if the run lists it; None otherwise."""
    with run.lock:
        file = run.media.file(sha256)
        table_file = run.media.file(table) if table is not None else None
    if file is None and table is not None and table_file is not None and table_file.kind == "table":
        extension = _table_files(run, table, table_file.extension).get(sha256)
        return None if extension is None else MediaFile(extension, "image")
    return file


_cached_table_files: OrderedDict[tuple[str, str], dict[str, str]] = OrderedDict()


def _table_files(run: StoredRun, table: str, extension: str) -> dict[str, str]:
    """Return the extension of each file in the cells of a table; the tables used last are kept."""
    key = (str(run.folder.path), table)
    files = _cached_table_files.pop(key, None)
    if files is None:
        file = open_media(run.folder, table, extension)
        if file is None:
            return {}
        with file:
            rows, _ = read_table_rows(file)
        files = dict(table_cell_files(rows))
    _cached_table_files[key] = files
    while len(_cached_table_files) > _MAX_CACHED_TABLES:
        _cached_table_files.popitem(last=False)
    return files


def _open_blob(run: StoredRun, sha256: str, table: str | None) -> tuple[BinaryIO, MediaFile]:
    listed_file = _listed_file(run, sha256, table)
    if listed_file is None:
        raise ApiError(404, "no_such_file", f"no media file {sha256[:100]!r} in this run")
    file = open_media(run.folder, sha256, listed_file.extension)
    if file is None:
        missing = "is missing in this run, or was changed by the program that wrote it"
        state = "was not received yet" if _awaits_files(run) else missing
        raise ApiError(404, "missing_file", f"the file {sha256[:12]}….{listed_file.extension} {state}")
    return file, listed_file


def send_blob(run: StoredRun, sha256: str, query: BlobQuery) -> Response:
    """Return a file, or a small version of a picture."""
    if query.size is not None and _listed_file(run, sha256, query.table) is not None:
        thumbnail = read_thumbnail(run.folder, sha256, query.size)  # the picture itself may have been removed
        if thumbnail is not None:
            return _CachedResponse(thumbnail, f"{sha256}-{query.size}", "image/webp")
    file, listed_file = _open_blob(run, sha256, query.table)
    if query.size is not None:
        with file:
            try:
                data = make_thumbnail(run.folder, sha256, file, query.size)
            except ThumbnailError as error:
                raise ApiError(422, "no_thumbnail", str(error)) from None
        return _CachedResponse(data, f"{sha256}-{query.size}", "image/webp")
    media_type = sniff_media_type(file.read(64))
    is_shown = media_type is not None and not query.download
    headers = {
        **FILE_HEADERS,
        "Content-Disposition": "inline"
        if is_shown
        else f'attachment; filename="{sha256[:16]}.{listed_file.extension}"',
    }
    return FileResponse(file, sha256, headers, media_type or "application/octet-stream")


def sniff_media_type(head: bytes) -> str | None:
    """Return the media type of a file that browsers may show, from its first bytes; None for any other file."""
    if head[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        return "video/mp4"
    if head[:4] == b"\x1a\x45\xdf\xa3":  # Matroska; browsers show its subset WebM
        return "video/webm" if b"webm" in head else None
    return next((media_type for start, media_type in _TYPE_OF_START.items() if head.startswith(start)), None)


class _CachedResponse(Response):
    """Bytes that never change under their tag."""

    def __init__(self, data: bytes, tag: str, media_type: str) -> None:
        super().__init__(data, 200, {**FILE_HEADERS, "ETag": f'"{tag}"'}, media_type)
        self._tag = f'"{tag}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tag in Headers(scope=scope).get("if-none-match", ""):
            await Response(status_code=304, headers={**FILE_HEADERS, "ETag": self._tag})(scope, receive, send)
            return
        await super().__call__(scope, receive, send)


class FileResponse(Response):
    """Streams an open file, all or one range of it, and always closes it. Players seek with ranges."""

    def __init__(self, file: BinaryIO, sha256: str, headers: dict[str, str], media_type: str) -> None:
        super().__init__(b"", 200, {**headers, "ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}, media_type)
        del self.headers["content-length"]
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(Headers(scope=scope))(scope, receive, send)
        finally:
            self._file.close()

    def _answer(self, request_headers: Headers) -> Response:
        headers = dict(self.headers)
        if headers["etag"] in request_headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        size = file_size(self._file)
        first, last, status = 0, size - 1, 200
        if request_headers.get("if-range", headers["etag"]) == headers["etag"]:
            match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", request_headers.get("range", ""))
            if match is not None and any(match.groups()):
                first, last = _byte_range(match[1], match[2], size)
                if first > last:
                    return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
                status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{size}"
        headers["Content-Length"] = str(last - first + 1)
        return StreamingResponse(_read_range(self._file, first, last), status, headers)


def _byte_range(first: str, last: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte of a requested range; the first is greater if it is outside of the file."""
    if not first:
        return (max(0, size - int(last)), size - 1) if int(last) else (1, 0)
    return int(first), min(int(last), size - 1) if last else size - 1


def _read_range(file: BinaryIO, first: int, last: int) -> Iterator[bytes]:
    file.seek(first)
    num_left = last - first + 1
    while num_left > 0 and (block := file.read(min(_BLOCK_BYTES, num_left))):
        num_left -= len(block)
        yield block


def export_media(run: StoredRun, query: MediaExportQuery) -> Response:
    """Return the media of one name as a download."""
    with run.lock:
        locations = [location for location in run.media.locations(query.name) if location.num_items]
    if not locations:
        raise ApiError(404, "no_such_media", f"no media {query.name[:100]!r} in this run")
    # The file name goes into a header: keep only characters that need no quoting.
    stem = re.sub(r"[^A-Za-z0-9.]+", "_", query.name).strip("._")[:80] or "media"
    if query.format == "png":
        step = query.step if query.step is not None else max(location.step for location in locations)
        locations = [location for location in locations if location.step == step]
        stem = f"{stem}-{step}"
    headers = {**FILE_HEADERS, "Cache-Control": "no-store"}
    headers["Content-Disposition"] = f'attachment; filename="{stem}.{query.format}"'
    items = read_media_items(run.folder, locations)
    if query.format == "zip":
        return StreamingResponse(zip_media(items), 200, headers, "application/zip")
    try:
        if query.format == "png":
            return Response(contact_sheet(items), 200, headers, "image/png")
        pictures = list(items)
        prompt = query.prompt if query.prompt is not None else pictures[0].prompt_id if pictures else ""
        ordered = sorted((item for item in pictures if item.prompt_id == prompt), key=lambda item: item.step)
        return Response(animate_pictures(ordered), 200, headers, "image/webp")
    except MediaExportError as error:
        raise ApiError(404, "no_pictures", str(error)) from None


# Frames --------------------------------------------------------------------------------------------------------------


def send_frame(run: StoredRun, sha256: str) -> Response:
    """Return logged HTML, or a page that draws a plotly figure, for a sandboxed frame."""
    file, listed_file = _open_blob(run, sha256, None)
    with file:
        if listed_file.kind not in {"html", "plotly"}:
            raise ApiError(404, "no_such_file", f"{sha256[:100]!r} is not a page")
        data = file.read(_MAX_FRAME_BYTES + 1)
    if len(data) > _MAX_FRAME_BYTES:
        raise ApiError(422, "too_large", f"a page with more than {_MAX_FRAME_BYTES >> 20} MB is not shown; download it")
    page = data if listed_file.kind == "html" else _plotly_page(data)
    return _FrameResponse(page)


class _FrameResponse(Response):
    """A page for a frame. Where the browser says that it wants it for anything else, such as a tab, it is refused."""

    def __init__(self, page: bytes) -> None:
        super().__init__(page, 200, _FRAME_HEADERS, "text/html; charset=utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("sec-fetch-dest", "iframe") != "iframe":
            raise ApiError(403, "only_in_frame", "this page is shown only in a frame of the dashboard")
        await super().__call__(scope, receive, send)


@functools.cache
def _plotly_script() -> bytes | None:
    """Return the script of the installed package plotly, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_bytes()
    return None


def _plotly_page(figure: bytes) -> bytes:
    script = _plotly_script()
    if script is None:
        return (
            b"<!doctype html><p style='font: 14px sans-serif'>To draw this figure, install the Python package "
            b"<code>plotly</code> where <code>tacho ui</code> runs, and start it again.</p>"
        )
    # Inside of a script element, `<` could start its end tag.
    data = figure.replace(b"<", b"\\u003c")
    return (
        b"<!doctype html><meta charset=utf-8><body style='margin:0'><div id=figure></div><script>"
        + script.replace(b"</script", b"<\\/script")
        + b"</script><script type='application/json' id=data>"
        + data
        + b"</script><script>const figure = JSON.parse(document.getElementById('data').textContent);"
        b"Plotly.newPlot('figure', figure.data || [], figure.layout || {}, {responsive: true, displaylogo: false});"
        b"</script>"
    )
