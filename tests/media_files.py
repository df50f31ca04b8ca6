"""Write media into run folders in their format, without the recorder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

from PIL import Image


def store(run: Path, data: bytes, extension: str) -> dict[str, Any]:
    """Store a file of a run; return the fields of an item that name it."""
    sha256 = hashlib.sha256(data).hexdigest()
    path = run / "media" / sha256[:2] / f"{sha256}.{extension}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"sha256": sha256, "ext": extension, "bytes": len(data)}


def media(name: str, kind: str, step: int, *items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a record."""
    numbered = [{"index": index, **item} for index, item in enumerate(items)]
    record = {"event": "media", "time": 1_000.0 + step, "global_step": step, "name": name, "kind": kind}
    return {**record, "items": numbered, "num_dropped": 0, **fields}


def histograms(step: int, **values: dict[str, Any]) -> dict[str, Any]:
    return {"event": "histograms", "time": 1_000.0 + step, "global_step": step, "values": values}


def picture(
    width: int = 64, height: int = 48, colour: Any = (200, 30, 30), kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height), colour).save(buffer, kind)
    return buffer.getvalue()


def image(run: Path, data: bytes | None = None, extension: str = "png", **fields: Any) -> dict[str, Any]:
    """Store a picture; return its item."""
    return {**store(run, picture() if data is None else data, extension), "width": 64, "height": 48, **fields}


def table_file(run: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Store the rows of a table in a file; return its item."""
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {**store(run, data, "jsonl.gz"), "columns": columns, "num_rows": len(rows)}


def points(run: Path, rows: Any, **fields: Any) -> dict[str, Any]:
    """Store points, a list of rows with 3, 4, 6 or 7 numbers; return their item."""
    import numpy as np

    buffer = io.BytesIO()
    array = np.asarray(rows, "<f4") if rows else np.empty((0, 3), "<f4")
    np.save(buffer, array)
    return {**store(run, buffer.getvalue(), "npy"), "num_points": len(array), **fields}


def png_bomb(width: int, height: int) -> bytes:
    """Return a small PNG that claims to have many pixels, all of them there."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    compressor = zlib.compressobj(1)
    line = bytes(1 + (width + 7) // 8)
    blocks = [compressor.compress(line * 1_000) for _ in range(height // 1_000)]
    pixels = b"".join(blocks) + compressor.compress(line * (height % 1_000)) + compressor.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
