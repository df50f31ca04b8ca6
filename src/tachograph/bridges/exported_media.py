"""The media of a record, for the sinks of other tools that pass it on if they are asked to."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.reader import histogram_edges, media_path, open_media, read_table_rows
from tachograph.records import restore_non_finite

__all__ = [
    "MAX_FILE_BYTES",
    "ExportedItem",
    "as_png",
    "cell_picture",
    "check_media_option",
    "exported_histograms",
    "exported_items",
    "open_picture",
    "plain_cell",
]

MAX_FILE_BYTES = 64 << 20
_MAX_PIXELS = 64_000_000


class ExportedItem(NamedTuple):
    """One item, and the content of its file."""

    kind: str
    position: int
    caption: str
    data: bytes
    path: str
    """The file; empty if the item is part of its record."""
    fields: dict[str, Any]

    def table(self) -> tuple[list[Any], list[dict[str, Any]]] | None:
        """Return the columns and the rows of a table, from its file or its record; None if they are not valid."""
        columns = self.fields.get("columns")
        if self.data:
            rows: Any = read_table_rows(io.BytesIO(self.data))[0]
        else:
            rows = restore_non_finite(self.fields.get("rows"))
        if not isinstance(columns, list) or not isinstance(rows, list):
            return None
        return columns, [row if isinstance(row, dict) else {} for row in rows]


def check_media_option(media: object) -> None:
    """Raise `ConfigError` for an invalid option `media` of a sink."""
    if not isinstance(media, bool):
        raise ConfigError(f"media must be true or false, got {media!r}")


def exported_items(record: dict[str, Any], folder: RunFolder | None) -> Iterator[ExportedItem]:
    """Yield the items of a `media` record; ones without a file, such as files that were thinned, have no data."""
    items = record.get("items")
    for index, fields in enumerate(items if isinstance(items, list) else []):
        if not isinstance(fields, dict) or "problem" in fields:
            continue
        data, path = b"", ""
        sha256, ext = fields.get("sha256"), fields.get("ext")
        if folder is not None and isinstance(sha256, str) and isinstance(ext, str) and fields.get("kept") is not False:
            file = open_media(folder, sha256, ext)
            if file is None:
                continue
            with file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                continue
            path = str(media_path(folder, sha256, ext))
        caption = fields.get("caption")
        yield ExportedItem(
            str(record.get("kind")), index, caption if isinstance(caption, str) else "", data, path, fields
        )


def exported_histograms(record: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the counts and the edges of each histogram in a `histograms` record."""
    values = record.get("values")
    for name, histogram in (values if isinstance(values, dict) else {}).items():
        plain = restore_non_finite(histogram) if isinstance(histogram, dict) else {}
        counts, edges = plain.get("counts"), histogram_edges(plain)
        if isinstance(counts, list) and edges and len(edges) == len(counts) + 1:
            yield str(name), counts, edges


@contextlib.contextmanager
def open_picture(data: bytes) -> Iterator[Any]:
    """Open a picture or an animation with Pillow.

    Raises:
        Exception: almost any, if the file is damaged; `ValueError` if it has too many pixels.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels are too many")
        yield image


def cell_picture(cell: Any, folder: RunFolder | None) -> bytes | None:
    """Return the picture in a cell of a table; None for other cells, and if it is not there or too large."""
    if folder is None or not isinstance(cell, dict) or cell.get("media") != "image":
        return None
    sha256, ext = cell.get("sha256"), cell.get("ext")
    file = open_media(folder, sha256, ext) if isinstance(sha256, str) and isinstance(ext, str) else None
    if file is None:
        return None
    with file:
        data = file.read(MAX_FILE_BYTES + 1)
    return data if len(data) <= MAX_FILE_BYTES else None


def plain_cell(value: Any) -> Any:
    """Return a value that a table of another tool shows next to others of its column."""
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def as_png(data: bytes) -> bytes | None:
    """Return a picture as PNG, for tools that do not know WebP; None if it cannot be decoded."""
    if data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")):
        return data
    try:
        with open_picture(data) as image:
            buffer = io.BytesIO()
            image.save(buffer, "png", compress_level=1)
            return buffer.getvalue()
    except ImportError:  # no fault of the picture
        raise
    except Exception:  # noqa: BLE001 - Pillow raises almost anything for a damaged file
        return None
