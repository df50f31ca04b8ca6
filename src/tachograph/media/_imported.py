"""Stores the media of logs of other tools: files beside a log, and contents inside of it.

Nothing of a log is trusted. The first bytes of a file decide about its type, a path must stay in the folder of the log
without a link that leads out of it, and sizes are limited. A file is stored under the hash of its content, so that a
repeated import changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph._base.files import open_to_read
from tachograph._base.guard import faults
from tachograph.journal import RunFolder

__all__ = ["ImportedFile", "MediaImport"]

MAX_FILE_BYTES = 100 << 20
MAX_ITEMS = 64
_MAX_RUN_BYTES = 8 << 30
_MAX_RUN_FILES = 100_000
_EXTS = {
    "image": {"png", "jpg", "gif", "webp"},
    "video": {"mp4", "webm", "gif", "webp"},
    "audio": {"wav", "mp3", "flac", "ogg"},
}


class ImportedFile(NamedTuple):
    """The content of an item: bytes, or a file below the folder of a log."""

    data: bytes | None = None
    root: str = ""
    path: str = ""
    """Relative to `root`."""


class MediaImport:
    """Stores the files of the `media` records of one run.

    Args:
        folder: the run; None for a trial, which stores nothing.
    """

    def __init__(self, folder: RunFolder | None) -> None:
        from tachograph.media._store import MediaStore

        self._store = MediaStore(lambda: folder)
        self._is_open = False

    def store(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record whose items name stored files, in place of an `ImportedFile` as their ``file``.

        Raises:
            OSError: if a file cannot be written.
        """
        if not self._is_open:
            self._store.open()
            self._is_open = True
        kind = str(record.get("kind"))
        items = []
        for index, item in enumerate(record["items"][:MAX_ITEMS]):
            facts = {name: value for name, value in item.items() if name != "file"}
            facts |= self._store_file(item["file"], kind) if "file" in item else {}
            items.append({**facts, "index": index, "meta": {"prompt_id": index, **facts.get("meta", {})}})
        num_dropped = max(len(record["items"]) - MAX_ITEMS, 0)
        return {**record, "items": items, "num_dropped": num_dropped}

    def _store_file(self, file: ImportedFile, kind: str) -> dict[str, Any]:
        from tachograph.media._pictures import size_of_file, sniff
        from tachograph.media._pixels import MAX_PIXELS

        data = _read(file) if file.data is None else file.data
        if data is None:
            return {"problem": f"there is no file {file.path[:200]!r} beside the log, or it is too large"}
        if len(data) > MAX_FILE_BYTES:
            return {"problem": f"a file of more than {MAX_FILE_BYTES >> 20} MB"}
        ext = "html" if kind == "html" else sniff(data[:16])
        if kind != "html" and ext not in _EXTS.get(kind, set()):
            return {"problem": f"a file that is no {kind}, or of an unknown type"}
        facts: dict[str, Any] = {}
        if kind == "image":
            size = size_of_file(data)
            if size is None or size[0] * size[1] > MAX_PIXELS:
                return {"problem": "a picture that cannot be decoded, or is too large"}
            facts = {"width": size[0], "height": size[1], "lossy": ext == "jpg"}
        if self._store.num_bytes + len(data) > _MAX_RUN_BYTES or self._store.num_files >= _MAX_RUN_FILES:
            return {"problem": "the run has as much media as an import stores"}
        return {**self._store.add(data, str(ext)).fields, **facts}


def _read(file: ImportedFile) -> bytes | None:
    """Return the content of a file below the folder of a log; None if it is missing, too large or somewhere else."""
    root = os.path.realpath(file.root)
    try:
        path = os.path.realpath(os.path.join(root, file.path))
        if not path.startswith(root + os.sep):
            return None
        with open_to_read(Path(path)) as content:
            status = os.fstat(content.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                return None
            return content.read(MAX_FILE_BYTES + 1)
    except faults(OSError, ValueError):
        return None
