"""The few lines in the files of many ranks that tell how each one is doing.

Most lines of a rank are windows, and only the last ones count. Ten thousand ranks have millions of lines, so the others
are left out before anything is decoded, and the lines of many ranks are decoded together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tachograph._base.guard import suppress
from tachograph.journal import RankJournal, open_journal
from tachograph.records import decode_block

__all__ = [
    "RANK_LINE",
    "RankLines",
    "decode_lines",
    "decode_many",
    "rank_of_host_line",
    "read_ends_of_journal",
    "read_lines_of_rank_0",
    "read_rank_lines",
]

RANK_LINE = b'{"event":"rank"'
"""How the line of a window begins."""

_START_LINE = b'{"event":"start"'
_HOST_RANK_LINE = RANK_LINE + b',"from_rank":'
_HOST_RANK_LINE_BYTES = len(_HOST_RANK_LINE)
_MAX_PREFIX_BYTES = _HOST_RANK_LINE_BYTES + 10
"""The beginning of the line of a window with its rank, which has up to nine digits, and the comma after it."""
_HOST_LINE = re.compile(rb'\{"event":"[^"\\]*","from_rank":(\d{1,9}),')

_NUM_WINDOWS = 2
"""The last window may be a part of one, without phases; the one before has them."""

_VIEW_BYTES = 256 << 10
_MIN_VIEW_BYTES = 16 << 10
_MAX_VIEW_BYTES = 64 << 20
"""Of the files of ranks with one file each, all together."""
_HOST_VIEW_BYTES = 64 << 10
_HEAD_BYTES = 16 << 10
"""The beginning of a journal has the `start` record of a rank, and usually its position in the mesh."""
_HOST_HEAD_BYTES = 64 << 10
"""The same for the ranks of a host."""


class RankLines:
    """The lines of one rank, of each of its files only the last windows. Files are in no order."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head: list[bytes] = []
        self._tail: list[bytes] = []

    def add(self, head: list[bytes], tail: list[bytes]) -> None:
        """Add the lines of a file.

        Args:
            head: its first lines without windows, or nothing if they are in the tail.
            tail: its last lines, of windows only the last ones.
        """
        self._head += head
        self._tail += tail

    def select(self) -> list[bytes]:
        """Return the lines to decode: the last ones, and the first ones if the `start` record is among them."""
        if any(line.startswith(_START_LINE) for line in self._tail):
            return self._tail
        return self._head + self._tail


def read_rank_lines(journals: Sequence[RankJournal]) -> dict[int, RankLines]:
    """Return the lines of each rank that has any in the journals. Files that cannot be read are left out."""
    lines_by_rank: dict[int, RankLines] = {}
    num_own_files = sum(not journal.is_host for journal in journals)
    own_bytes = min(_VIEW_BYTES, max(_MIN_VIEW_BYTES, _MAX_VIEW_BYTES // max(1, num_own_files)))
    for journal in journals:
        with suppress(OSError):
            if not journal.is_host:
                head, tail = read_ends_of_journal(journal.path, own_bytes)
                lines = lines_by_rank.setdefault(journal.number, RankLines())
                lines.add(_other_lines(head.split(b"\n")), _without_old_windows(tail.split(b"\n")))
                continue
            head, tail = read_ends_of_journal(journal.path, _HOST_VIEW_BYTES, _HOST_HEAD_BYTES)
            heads = _split_by_rank(head.split(b"\n"), num_windows=0)
            tails = _split_by_rank(tail.split(b"\n"), num_windows=_NUM_WINDOWS)
            for rank in heads.keys() | tails.keys():
                lines = lines_by_rank.setdefault(rank, RankLines())
                lines.add(heads.get(rank, []), tails.get(rank, []))
    return lines_by_rank


def rank_of_host_line(line: bytes) -> int | None:
    """Return the rank that a line in the file of a host states, or None; see `split_by_rank`."""
    match = _HOST_LINE.match(line)
    return None if match is None else int(match[1])


def read_lines_of_rank_0(path: Path) -> RankLines:
    """Return the lines of the journal of rank 0, which has all its records.

    Raises:
        OSError: if it cannot be read.
    """
    head, tail = read_ends_of_journal(path, _VIEW_BYTES)
    lines = RankLines()
    lines.add(_other_lines(head.split(b"\n")), _without_old_windows(tail.split(b"\n")))
    return lines


def _other_lines(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line and not line.startswith(RANK_LINE)]


def _without_old_windows(lines: list[bytes]) -> list[bytes]:
    indices = [index for index, line in enumerate(lines) if line.startswith(RANK_LINE)][:-_NUM_WINDOWS]
    if not indices:
        return lines
    first = indices[-1] + 1  # the rest has no others
    return _other_lines(lines[:first]) + lines[first:]


def _split_by_rank(lines: list[bytes], num_windows: int) -> dict[int, list[bytes]]:
    """Return the lines of each rank in the file of a host, with the last windows of each one; see `split_by_rank`."""
    selected: dict[int, list[bytes]] = {}
    num_by_rank: dict[int, int] = {}
    old_prefixes: set[bytes] = set()
    """How lines begin that are windows of ranks of which enough were found."""
    for line in reversed(lines):
        prefix = line[:_MAX_PREFIX_BYTES]
        if prefix in old_prefixes:
            continue
        if not prefix.startswith(_HOST_RANK_LINE):
            if line and (rank := rank_of_host_line(line)) is not None:
                selected.setdefault(rank, []).append(line)
            continue
        digits, comma, _ = prefix[_HOST_RANK_LINE_BYTES:].partition(b",")
        if not (comma and digits.isdigit()):
            continue
        number = int(digits)
        num_before = num_by_rank.get(number, 0)
        if num_before < num_windows:
            num_by_rank[number] = num_before + 1
            selected.setdefault(number, []).append(line)
        else:
            old_prefixes.add(prefix)
    for lines_of_rank in selected.values():
        lines_of_rank.reverse()
    return selected


def read_ends_of_journal(path: Path, max_tail_bytes: int, head_bytes: int = _HEAD_BYTES) -> tuple[bytes, bytes]:
    """Return whole lines from the beginning of a journal, and from its end. Empty if they are the same bytes.

    Args:
        path: the journal, plain or compressed.
        max_tail_bytes: how much of the end to read.
        head_bytes: how much of the beginning to read.
    """
    with open_journal(path, is_raw=True) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= max_tail_bytes:
            tail = _read_at(file, 0, size)
            return b"", tail[: tail.rfind(b"\n") + 1]
        tail = _read_at(file, size - max_tail_bytes - 1, max_tail_bytes + 1)
        first, end = tail.find(b"\n") + 1, tail.rfind(b"\n") + 1
        head = _read_at(file, 0, min(head_bytes, size - max_tail_bytes - 1 + first))
        return head[: head.rfind(b"\n") + 1], tail[first:end]


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Return bytes of a file without a buffer, of which one call may return a part."""
    file.seek(offset)
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def decode_lines(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the records of lines, without invalid ones."""
    lines = [line for line in lines if line]
    records = decode_block(b"\n".join([*lines, b""]))
    if records is not None:
        return records
    return [record for line in lines for record in decode_block(line + b"\n") or ()]


def decode_many(groups: Sequence[list[bytes]]) -> list[list[dict[str, Any]]]:
    """Return the records of groups of lines as `decode_lines` does for one, several times faster for small groups."""
    groups = [[line for line in lines if line] for lines in groups]
    records = decode_block(b"\n".join([*(line for lines in groups for line in lines), b""]))
    if records is None:
        return [decode_lines(lines) for lines in groups]
    by_group = []
    first = 0
    for lines in groups:
        by_group.append(records[first : first + len(lines)])
        first += len(lines)
    return by_group
