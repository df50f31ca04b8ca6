"""`MediaSender`: sends the files that the media records of a run name, after the records.

It asks the server for up to 500 files at once, and sends the missing ones, in parts; see `PartSender`. If a key has
a limit of bytes per second, media use half of it. At most one part and the names of a few hundred files are in memory,
besides the hashes of files that were named before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from tachograph.journal import JournalFollower, RunFolder
from tachograph.reader import (
    MediaFileName,
    has_media,
    locate_media,
    media_size,
    open_media,
    read_table_rows,
    table_cell_files,
)
from tachograph.records import decode
from tachograph.remote._parts import FileToSend, PartSender, decode_answer
from tachograph.remote._wire import MAX_MEDIA_FILES, MediaAnswer, MediaFiles

__all__ = ["MediaSender", "media_lag_bytes"]

_MAX_DONE_FILES = 200_000


class MediaSender(PartSender[MediaFileName]):
    """Sends the media files of one run; see `PartSender`."""

    _kind = "media"

    def restart(self) -> None:
        """Start again from the beginning of the journal."""
        super().restart()
        self._done: set[bytes] = set()
        """The hashes of files that were named before."""

    @property
    def num_pending(self) -> int:
        """How many files are known to be missing on the server, or were not asked for yet."""
        return len(self._unsent) + len(self._unnamed)

    def _items_in(self, folder: RunFolder, lines: bytes) -> Iterator[MediaFileName]:
        if len(self._done) > _MAX_DONE_FILES:
            self._done.clear()
        for file in _files_in(folder, lines):
            key = bytes.fromhex(file.sha256)
            if key not in self._done:
                self._done.add(key)
                yield file

    def _name_next(self, folder: RunFolder, run_id: str) -> None:
        """Ask the server which of the next files it lacks."""
        files = [self._unnamed[index] for index in range(min(MAX_MEDIA_FILES, len(self._unnamed)))]
        body = msgspec.json.encode(MediaFiles([(file.sha256, file.extension) for file in files]))
        response = self._request(f"/api/v1/ingest/runs/{run_id}/media", body)
        if response is None:
            return
        reply = decode_answer(self._accept(response), MediaAnswer)
        for file in files:
            if file.sha256 in reply.missing:
                if has_media(folder, *file):
                    open_file = functools.partial(open_media, folder, *file)
                    have = reply.missing[file.sha256]
                    self._unsent.append(FileToSend(file.sha256, open_file, have, file.extension))
                else:
                    self.num_missing += 1
            self._unnamed.popleft()


def media_lag_bytes(folder: RunFolder, sent_offset: int) -> int:
    """Return the size of the media files that a journal names after an offset, as far as they exist."""
    follower = JournalFollower(folder.journal, sent_offset)
    sizes: dict[str, int] = {}
    while lines := follower.poll_lines():
        for file in _files_in(folder, lines):
            if file.sha256 not in sizes:
                sizes[file.sha256] = media_size(folder, *file) or 0
    return sum(sizes.values())


def _files_in(folder: RunFolder, lines: bytes) -> Iterator[MediaFileName]:
    """Yield the files that the media records in some lines name, also in the cells of tables."""
    for line in lines.split(b"\n"):
        if b'"media"' not in line:  # most lines are steps, and decoding all of them would take long
            continue
        try:
            record = decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if record["event"] != "media":
            continue
        for file in (MediaFileName(*each) for each in locate_media(record, 0, 0).files):
            yield file
            if record.get("kind") == "table":
                yield from _files_of_table(folder, file)


def _files_of_table(folder: RunFolder, table: MediaFileName) -> Iterator[MediaFileName]:
    file = open_media(folder, *table) if table.extension.endswith("gz") else None
    if file is None:
        return
    with file:
        rows, _ = read_table_rows(file)
    yield from (MediaFileName(*each) for each in table_cell_files(rows))
