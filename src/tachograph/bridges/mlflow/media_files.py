"""The media of a record as artifacts of MLflow, named so that a repeated delivery replaces its own files.

Pictures have the names that `mlflow.log_image` gives them, which MLflow's charts read: key, step, time and an id, which
comes from the content here instead of by chance. Everything else is `media/<name>/<step>.<ext>`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tachograph.bridges.exported_media import ExportedItem, cell_picture, exported_items, open_picture
from tachograph.journal import RunFolder

__all__ = ["PICTURES_TAG", "TABLES_TAG", "MlflowFile", "media_files"]

TABLES_TAG = "mlflow.loggedArtifacts"
"""The tag that names the files which MLflow shows as tables."""
PICTURES_TAG = "mlflow.loggedImages"
"""The tag of a run that has pictures for MLflow's charts."""

_EXTS = {"text": "txt", "markdown": "md", "html": "html"}
_MAX_NAME_CHARS = 100
_SMALL_PX = 256
_PNG = b"\x89PNG\r\n\x1a\n"


class MlflowFile(NamedTuple):
    """A file for the artifacts of a run."""

    path: str
    data: bytes
    is_table: bool = False


def media_files(record: dict[str, Any], folder: RunFolder | None, step: int, time_ms: int) -> Iterator[MlflowFile]:
    """Yield the files of a `media` record; ones of a kind that MLflow does not show are left out."""
    name = _path_name(str(record.get("name")))
    items = list(record["items"]) if isinstance(record.get("items"), list) else []
    for item in exported_items(record, folder):
        number = str(item.position) if len(items) > 1 else ""
        path = f"media/{name}/{step}{number and '-'}{number}"
        if item.kind == "image":
            key = f"{name}/{number}" if number else name
            yield from _pictures(item.data, f"{key.replace('/', '~')}+step+{step}+timestamp+{time_ms}")
        elif item.kind == "table":
            yield from _table(item, path, folder)
        elif item.kind in _EXTS:
            data = item.data or str(item.fields.get("text", "")).encode("utf-8", "backslashreplace")
            yield MlflowFile(f"{path}.{_EXTS[item.kind]}", data)
        elif item.kind in {"audio", "video", "points"} and item.data:
            yield MlflowFile(f"{path}.{item.fields['ext']}", item.data)


def _pictures(data: bytes, label: str) -> Iterator[MlflowFile]:
    """Yield a picture and its small version, if it can be decoded."""
    pictures = _png_and_small(data)
    if pictures is not None:
        path = f"images/{label}+{_id_of(label, data)}"
        yield MlflowFile(f"{path}.png", pictures[0])
        yield MlflowFile(f"{path}+compressed.webp", pictures[1])


def _png_and_small(data: bytes) -> tuple[bytes, bytes] | None:
    try:
        with open_picture(data) as image:
            png = data if data.startswith(_PNG) else _encode(lambda file: image.save(file, "png", compress_level=1))
            small = image.convert("RGBA" if image.has_transparency_data else "RGB")
            small.thumbnail((_SMALL_PX, _SMALL_PX))
            return png, _encode(lambda file: small.save(file, "webp"))
    except ImportError:  # no fault of the picture
        raise
    except Exception:  # noqa: BLE001 - Pillow raises almost anything for a damaged file
        return None


def _encode(save: Callable[[io.BytesIO], None]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def _table(item: ExportedItem, path: str, folder: RunFolder | None) -> Iterator[MlflowFile]:
    """Yield the pictures in the cells of a table, and the table in the form of `mlflow.log_table`."""
    stored_table = item.table()
    if stored_table is None:
        return
    columns, rows = stored_table
    data = []
    for row in rows:
        cells = []
        for column in columns:
            cell = row.get(column)
            files = list(_cell_pictures(cell, path, folder))
            if files:
                cell = {"type": "image", "filepath": files[0].path, "compressed_filepath": files[1].path}
            elif isinstance(cell, float) and not math.isfinite(cell):
                cell = (
                    "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
                )  # JSON has no such numbers
            yield from files
            cells.append(cell)
        data.append(cells)
    table = json.dumps({"columns": columns, "data": data}, default=str)
    yield MlflowFile(f"{path}.json", table.encode("utf-8", "backslashreplace"), is_table=True)


def _cell_pictures(cell: Any, table_path: str, folder: RunFolder | None) -> Iterator[MlflowFile]:
    data = cell_picture(cell, folder)
    pictures = _png_and_small(data) if data is not None else None
    if data is not None and pictures is not None:
        path = f"table_images/{table_path}/{_id_of('', data)}"
        yield MlflowFile(f"{path}.png", pictures[0])
        yield MlflowFile(f"{path}.webp", pictures[1])


def _id_of(label: str, data: bytes) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{label} {hashlib.sha256(data).hexdigest()}")


def _path_name(name: str) -> str:
    """Return a name that MLflow accepts as the key of a picture and as a path; unchanged where possible."""
    legal = re.sub(r"[^A-Za-z0-9_\-./ ]", lambda match: f"_x{ord(match[0]):x}_", name) or "_"
    if posixpath.normpath(legal) != legal or legal.startswith(("/", "..")) or legal == ".":
        legal = legal.replace("/", "_x2f_").replace(".", "_x2e_")
    if len(legal) > _MAX_NAME_CHARS:
        digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()
        legal = f"{legal[: _MAX_NAME_CHARS - 9]}-{digest}".replace("/-", "-")
    return legal
