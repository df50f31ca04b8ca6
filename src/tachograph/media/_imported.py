"""Stores the media of logs of other tools: files beside a log, and contents inside of it.

Nothing of a log is trusted. The first bytes of a file decide about its type, a path must stay in the folder of the log
without a link that leads out of it, and sizes are limited. A file is stored under the hash of its content, so that a
repeated import changes nothing. While a growing log is followed, it is imported again and again in one process, which
remembers the files that it has stored.
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
_MAX_TEXT_BYTES = 10 << 20
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

    def read(self) -> bytes | None:
        """Return the content; None if a file is missing, too large or not below the folder of the log."""
        if self.data is not None:
            return self.data
        root = os.path.realpath(self.root)
        try:
            path = os.path.realpath(os.path.join(root, self.path))
            if not path.startswith(root + os.sep):
                return None
            with open_to_read(Path(path)) as content:
                status = os.fstat(content.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                    return None
                return content.read(MAX_FILE_BYTES + 1)
        except faults(OSError, ValueError):
            return None

    def fingerprint(self) -> tuple[Any, ...] | None:
        """Return what changes when the file does; None if there is no file."""
        try:
            status = os.stat(os.path.join(self.root, self.path)) if self.data is None else None
        except faults(OSError, ValueError):
            return None
        return status and (self.root, self.path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class MediaImport:
    """Stores the files of the `media` records of one run.

    Args:
        folder: the run; None for a trial, which stores nothing.
    """

    def __init__(self, folder: RunFolder | None) -> None:
        from tachograph.media._items import ItemBuilder
        from tachograph.media._store import MediaStore

        self._folder = folder
        self._store = MediaStore(lambda: folder)
        self._builder = ItemBuilder(self._store)
        self._is_open = False

    def store(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record whose items name stored files, in place of an `ImportedFile` as their ``file``.

        The item of a table has ``columns`` and ``rows``, whose cells may be an `ImportedFile`, too: a picture.

        Raises:
            OSError: if a file cannot be written.
        """
        if not self._is_open:
            self._store.open()
            self._is_open = True
        kind = str(record.get("kind"))
        items = []
        for index, item in enumerate(record["items"][:MAX_ITEMS]):
            facts = {name: value for name, value in item.items() if name not in {"file", "rows", "columns"}}
            facts |= self._store_file(item["file"], kind) if "file" in item else {}
            facts |= self._store_table(item["columns"], item["rows"]) if "rows" in item else {}
            items.append({**facts, "index": index, "meta": {"prompt_id": index, **facts.get("meta", {})}})
        num_dropped = max(len(record["items"]) - MAX_ITEMS, 0)
        return {**record, "items": items, "num_dropped": num_dropped}

    def _store_table(self, columns: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
        from tachograph.media._snapshots import MAX_ROWS
        from tachograph.media._values import Table

        def cell_of(value: Any) -> Any:
            if not isinstance(value, ImportedFile):
                return value
            fields = self._store_file(value, "image")
            return fields.get("problem") or {"media": "image", **fields}

        stored_rows = [{name: cell_of(value) for name, value in row.items()} for row in rows[:MAX_ROWS]]
        table = Table(rows=[*stored_rows, *rows[MAX_ROWS:]])
        table.columns = columns
        return self._builder.build(table)[0]

    def _store_file(self, file: ImportedFile, kind: str) -> dict[str, Any]:
        """Return the fields of an item, without reading a file again that has not changed since it was stored."""
        fingerprint = file.fingerprint()
        key = fingerprint and (self._folder and self._folder.path, kind, fingerprint)
        fields = _stored_fields.get(key)
        if fields is None or not self._store.has(fields["sha256"], fields["ext"]):
            fields = self._read_and_store(file, kind)
            if key is not None and "sha256" in fields:
                if len(_stored_fields) >= _MAX_RUN_FILES:
                    _stored_fields.clear()
                _stored_fields[key] = fields
        return dict(fields)

    def _read_and_store(self, file: ImportedFile, kind: str) -> dict[str, Any]:
        from tachograph.media._pictures import size_of_file, sniff
        from tachograph.media._pixels import MAX_PIXELS
        from tachograph.media._values import Points

        data = file.read()
        if data is None:
            return {"problem": f"there is no file {file.path[:200]!r} beside the log, or it is too large"}
        if len(data) > MAX_FILE_BYTES:
            return {"problem": f"a file of more than {MAX_FILE_BYTES >> 20} MB"}
        if kind in {"text", "markdown"}:
            return self._store_text(data, kind)
        if kind == "points":
            return self._builder.build(Points(data))[0]
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

    def _store_text(self, data: bytes, kind: str) -> dict[str, Any]:
        from tachograph.media._values import Markdown, Text

        if len(data) > _MAX_TEXT_BYTES:
            return {"problem": f"a text of more than {_MAX_TEXT_BYTES >> 20} MB"}
        text = data.decode("utf-8", "replace")
        return self._builder.build(Markdown(text) if kind == "markdown" else Text(text))[0]


_stored_fields: dict[Any, dict[str, Any]] = {}
"""The fields of stored files, by the run, the kind and what changes when the file does."""
