"""Read the console output of a run: any range of lines, searched and followed. See `journal._output` for the files.

Nothing is kept between calls, except the number of lines of segments that are complete. A call reads only the segments
that it needs, or all of them to search: at most `OUTPUT_MAX_BYTES`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from tachograph._base.files import open_to_read, read_small
from tachograph._base.guard import faults
from tachograph.journal import OutputSegment, RunFolder, list_output_segments, partial_output

__all__ = ["OutputFollower", "OutputLine", "OutputPart", "output_text", "output_version", "read_output"]

_LINE = re.compile(rb"(\d{1,12}(?:\.\d{1,9})?) (stdout|stderr|output|notice) (.*)", re.DOTALL)
_MAX_PART_BYTES = 1 << 20
_MAX_MATCHES = 5_000
_MAX_SEGMENT_BYTES = 4 << 20
"""We write smaller ones."""


class OutputLine(NamedTuple):
    """A line that the program printed."""

    number: int
    """Counted from the start of the run; lines that were not kept count, too."""
    time: float | None
    stream: str
    """`stdout`, `stderr`, `output` for both in one, or `notice` for a remark of Tachograph."""
    text: str


class OutputPart(NamedTuple):
    """A part of the output."""

    ranges: list[tuple[int, int]]
    """The numbers of the lines that are kept: the first one, and the one after the last."""
    lines: list[OutputLine]
    partial: list[OutputLine]
    """Lines that are not complete yet."""
    num_matches: int
    matches: list[int]
    """The numbers of the lines that contain the text searched for, the newest ones if there are very many."""


def read_output(folder: RunFolder, offset: int | None = None, limit: int = 500, search: str = "") -> OutputPart:
    """Return up to `limit` lines from a number on, or the last ones; fewer if they are very long."""
    segments = list_output_segments(folder)
    ends = [_end(segment, is_last=segment is segments[-1]) for segment in segments]
    ranges: list[tuple[int, int]] = []
    for segment, end in zip(segments, ends, strict=True):
        if ranges and ranges[-1][1] >= segment.first:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        elif end > segment.first:
            ranges.append((segment.first, end))
    if offset is None:
        offset = _start_of_last(ranges, limit)
    lines: list[OutputLine] = []
    num_bytes = 0
    for segment, end in zip(segments, ends, strict=True):
        if end <= offset or len(lines) >= limit or num_bytes > _MAX_PART_BYTES:
            continue
        for number, line in enumerate(_split(_read_segment(segment)), start=segment.first):
            if number < offset:
                continue
            if len(lines) >= limit or num_bytes > _MAX_PART_BYTES:
                break
            lines.append(_parse(number, line))
            num_bytes += len(line)
    num_lines = ranges[-1][1] if ranges else 0
    num_matches, matches = _search(segments, search) if search else (0, [])
    return OutputPart(ranges, lines, _read_partial(folder, num_lines), num_matches, matches)


def output_version(folder: RunFolder) -> str:
    """Return a text that changes whenever the output does; empty if there is none."""
    segments = list_output_segments(folder)
    try:
        partial = partial_output(folder).stat().st_mtime_ns
    except faults(OSError):
        partial = 0
    if not segments:
        return str(partial) if partial else ""
    return f"{segments[-1].first}-{segments[-1].size_bytes}-{partial}"


def output_text(folder: RunFolder) -> Iterator[str]:
    """Yield the whole output as text, one segment at a time; a line says where lines were not kept."""
    end = 0
    for segment in list_output_segments(folder):
        if segment.first > end:
            yield f"[{segment.first - end:,} lines were not kept]\n"
        lines = _split(_read_segment(segment))
        end = segment.first + len(lines)
        yield "".join(f"{_parse(0, line).text}\n" for line in lines)
    yield "".join(f"{line.text}\n" for line in _read_partial(folder, 0))


class OutputFollower:
    """Reads the last lines and then new ones."""

    def __init__(self, folder: RunFolder, num_lines: int) -> None:
        self._folder = folder
        self._limit = num_lines
        self._next: int | None = None

    def poll(self) -> list[OutputLine]:
        """Return lines that were not returned before."""
        lines: list[OutputLine] = []
        while True:
            part = read_output(self._folder, self._next, self._limit if self._next is None else 1_000)
            if self._next is None:
                self._next = part.ranges[-1][1] - len(part.lines) if part.ranges else 0
            if not part.lines:
                return lines
            lines += part.lines
            self._next = part.lines[-1].number + 1


def _start_of_last(ranges: list[tuple[int, int]], limit: int) -> int:
    for start, end in reversed(ranges):
        if end - start >= limit:
            return end - limit
        limit -= end - start
    return 0


def _read_segment(segment: OutputSegment) -> bytes:
    try:
        with open_to_read(segment.path, below=segment.path.parent) as file:
            return file.read(_MAX_SEGMENT_BYTES)
    except faults(OSError):  # it was just deleted, to make room for newer lines
        return b""


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _end(segment: OutputSegment, *, is_last: bool) -> int:
    return segment.first + (_count.__wrapped__(segment) if is_last else _count(segment))


@functools.lru_cache(maxsize=4_096)
def _count(segment: OutputSegment) -> int:
    return len(_split(_read_segment(segment)))


def _parse(number: int, line: bytes) -> OutputLine:
    match = _LINE.fullmatch(line)
    if match is None:  # torn, or not ours
        return OutputLine(number, None, "output", line.decode("utf-8", "backslashreplace"))
    return OutputLine(number, float(match[1]), match[2].decode(), match[3].decode("utf-8", "backslashreplace"))


def _read_partial(folder: RunFolder, first: int) -> list[OutputLine]:
    try:
        data = read_small(partial_output(folder), 1 << 20, below=folder.path)
    except faults(OSError):
        return []
    return [_parse(first + offset, line) for offset, line in enumerate(_split(data)[:4])]


def _search(segments: list[OutputSegment], search: str) -> tuple[int, list[int]]:
    needle = search.lower()
    line_numbers: list[int] = []
    for segment in segments:
        text = _read_segment(segment).decode("utf-8", "backslashreplace")
        if needle not in text.lower():
            continue
        for number, line in enumerate(text.split("\n"), start=segment.first):
            if needle in line.split(" ", 2)[-1].lower():
                line_numbers.append(number)
    return len(line_numbers), line_numbers[-_MAX_MATCHES:]
