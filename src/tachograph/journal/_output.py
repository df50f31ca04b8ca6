"""The console output of a program, in the folder `output` of its run.

`tacho run` writes it while the program prints. The lines lie in segments of limited size, named after the number of
their first line: `000000000000.log`, `000000002345.log`. A line has its time, its stream and its text, without escape
codes and with secrets masked:

    1703200000.125 stderr UserWarning: the dataset is empty

If a run prints more than `OUTPUT_MAX_BYTES`, the first lines and the newest ones are kept, and segments between them
are deleted. Readers see that from the numbers. `partial.log` has the last line of each stream as long as it is not
complete, such as a progress bar. It exists as long as the output is recorded.

A process that is killed loses at most the output of the last fraction of a second. A torn last line is a line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tachograph._base.files import create_file, make_folder, open_to_read, replace_file, write_all
from tachograph._base.guard import faults, suppress
from tachograph.journal._folder import RunFolder

__all__ = [
    "OUTPUT_MAX_BYTES",
    "OutputSegment",
    "OutputWriter",
    "list_output_segments",
    "output_line",
    "partial_output",
]

OUTPUT_MAX_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20
"""The first lines are never deleted: they say how the program was started."""
_SEGMENT_BYTES = 256 << 10
_MAX_SEGMENTS = 1_000
_NAME = re.compile(r"(\d{12})\.log")


class OutputSegment(NamedTuple):
    """A file with consecutive lines."""

    first: int
    """The number of its first line, counted from the start of the run."""
    path: Path
    size_bytes: int
    mtime_ns: int


def output_line(time_s: float, stream: str, text: str) -> bytes:
    """Encode a line: `stdout`, `stderr`, `output` for both in one, or `notice` of ours."""
    return f"{time_s:.3f} {stream} {text}\n".encode("utf-8", "backslashreplace")


def partial_output(folder: RunFolder) -> Path:
    """Return the path of the lines that are not complete yet."""
    return folder.output / "partial.log"


def list_output_segments(folder: RunFolder) -> list[OutputSegment]:
    """Return the segments in order; links and other files are ignored."""
    segments = []
    try:
        if stat.S_ISDIR(os.lstat(folder.output).st_mode):
            for entry in os.scandir(folder.output):
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    segments.append(
                        OutputSegment(int(match[1]), folder.output / entry.name, status.st_size, status.st_mtime_ns)
                    )
    except faults(OSError):
        pass  # no output was recorded, or the run is being deleted
    return sorted(segments)


class OutputWriter:
    """Appends lines to the output of a run; a resumed run continues where the last attempt ended."""

    def __init__(self, folder: RunFolder) -> None:
        """Open the folder.

        Raises:
            OSError: if it cannot be created or read.
        """
        self._folder = folder
        make_folder(folder.output, below=folder.path)
        self._segments = list_output_segments(folder)
        self._next = _end_of(self._segments[-1], folder) if self._segments else 0
        self._descriptor = -1
        self._size_bytes = 0
        self._partial: bytes | None = None
        self.set_partial([])

    def append(self, lines: Iterable[bytes]) -> None:
        """Append encoded lines.

        Raises:
            OSError: if they cannot be written; some may have been.
        """
        batch: list[bytes] = []
        num_bytes = 0
        for line in lines:
            batch.append(line)
            num_bytes += len(line)
            if self._size_bytes + num_bytes >= _SEGMENT_BYTES:
                self._write(batch)
                batch, num_bytes = [], 0
        if batch:
            self._write(batch)

    def _write(self, lines: list[bytes]) -> None:
        if self._descriptor < 0:
            path = self._folder.output / f"{self._next:012d}.log"
            self._descriptor = create_file(path, below=self._folder.path)
            self._size_bytes = 0
            self._segments.append(OutputSegment(self._next, path, 0, 0))
        try:
            self._size_bytes += write_all(self._descriptor, b"".join(lines))
        except faults(OSError):  # a full disk: the segment may end with a part of a line, or be empty
            self._size_bytes = os.fstat(self._descriptor).st_size
            self._close_segment()
            if not self._size_bytes:
                self._segments.pop().path.unlink()
            raise
        self._next += len(lines)
        if self._size_bytes >= _SEGMENT_BYTES:
            self._close_segment()
            self._delete_old()

    def _close_segment(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        last = self._segments[-1]._replace(size_bytes=self._size_bytes)
        self._segments[-1] = last
        with suppress(OSError):
            self._next = max(self._next, _end_of(last, self._folder))

    def _delete_old(self) -> None:
        """Delete the oldest segments after the first ones until the rest fits."""
        total_bytes = sum(segment.size_bytes for segment in self._segments)
        num_head, head_bytes = 0, 0
        while num_head < len(self._segments) and head_bytes < _HEAD_BYTES:
            head_bytes += self._segments[num_head].size_bytes
            num_head += 1
        while len(self._segments) > num_head + 1 and (
            total_bytes > OUTPUT_MAX_BYTES - _SEGMENT_BYTES or len(self._segments) > _MAX_SEGMENTS
        ):
            oldest = self._segments.pop(min(num_head, len(self._segments) - 2))
            total_bytes -= oldest.size_bytes
            with suppress(OSError):
                oldest.path.unlink()

    def set_partial(self, lines: Iterable[bytes]) -> None:
        """Replace the lines that are not complete yet.

        Raises:
            OSError: if they cannot be written.
        """
        data = b"".join(lines)
        if data != self._partial:
            replace_file(partial_output(self._folder), data, below=self._folder.path, mode=0o644)
            self._partial = data

    def close(self) -> None:
        """Close the files and remove the incomplete lines."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with suppress(OSError):
            partial_output(self._folder).unlink()


def _end_of(segment: OutputSegment, folder: RunFolder) -> int:
    """Return the number after the last line of a segment."""
    with open_to_read(segment.path, below=folder.path) as file:
        data = file.read()
    return segment.first + data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
