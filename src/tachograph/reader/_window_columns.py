"""Parses the windows of many ranks into arrays, several times faster than a JSON decoder.

The lines of windows are all written by `RankWindow.to_fields`, in this order and without spaces:

    {"event":"rank","from_rank":17,"time":1795051822.4,"last":15,"n":16,"ms":[39.01,1.2,12.4,…],"max":[41.2,6],"seq":15}

So the commas of a line are the borders of its fields. A line is parsed with whole arrays only if its fields have these
names, if the numbers that are needed are plain decimals, and if it has one opening brace, and a closing one at its end.
All other windows are decoded one by one, so a torn line, or one with an unusual number, has the same result as with a
decoder. Numbers that are not needed are not looked at.

Up to eight characters are compared and parsed at once, as one integer of 64 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tachograph._base.guard import suppress
from tachograph._base.typed import lines_decoder
from tachograph.reader._rank_lines import RANK_LINE

__all__ = ["MIN_TIMES", "FirstLines", "WindowColumns", "parse_windows", "split_first_lines"]

MIN_TIMES = 6
"""A window states at least so many times; see `RankWindow`."""
_BLOCK_BYTES = 1 << 20
_WORD_BYTES = 8
_MAX_DIGITS = 8
_PADDING = bytes(64)
_NULL = int.from_bytes(b"null", "little")
_POWERS = np.array([10**exponent for exponent in range(_MAX_DIGITS + 1)], np.uint64)
_MARKERS = (b"\x00", b'NaN"', b'Infinity"')
"""What no line has that can be parsed with arrays: the hole of a damaged file, and numbers in quotes."""

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


class WindowColumns(NamedTuple):
    """Some fields of windows, in no order."""

    ranks: Integers
    last_iterations: Integers
    values: npt.NDArray[np.float64]


class _WindowTimes(msgspec.Struct):
    """The fields of one `rank` record."""

    last: int = -1
    from_rank: int = -1
    """In the file of a host, the rank."""
    ms: list[float | None] = []
    """At least six numbers; none in other records."""


_decode_lines = lines_decoder(_WindowTimes)


def parse_windows(tails: Iterable[tuple[int | None, bytes]], index: int) -> WindowColumns:
    """Return a quantity of all windows that have it and a wait.

    Args:
        tails: for each file, its rank, or None if its lines state their rank, and whole lines.
        index: where the quantity is among the times of a window.
    """
    columns = [_parse_block(rank, lines, index) for rank, lines in _blocks(tails)]
    if not columns:
        return WindowColumns(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    return WindowColumns(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


class FirstLines(NamedTuple):
    """The lines at the beginning of files, of windows only their ranks."""

    window_ranks: set[int]
    others: list[tuple[int | None, bytes]]
    """Lines that are no windows, in the order of a file, each with the rank of its file, or None."""


def split_first_lines(heads: Iterable[tuple[int | None, bytes]]) -> FirstLines:
    """Separate windows from other lines.

    Args:
        heads: for each file, its rank, or None if its lines state their rank, and whole lines.
    """
    window_ranks: set[int] = set()
    others: list[tuple[int | None, bytes]] = []
    prefix = RANK_LINE + b',"from_rank":'
    for line_ranks, lines in _blocks(heads):
        block = _LineBlock(lines)
        is_window = block.has(block.starts, RANK_LINE)
        starts = block.starts[is_window]
        if line_ranks is None:
            words = block.words[starts + len(prefix)]
            length = _find(words, ord(","))
            numbers, is_number = _parse_digits(words, length)
            is_number &= block.has(starts, prefix) & (length >= 1) & (length < _WORD_BYTES)
            window_ranks.update(np.unique(numbers[is_number]).tolist())
        else:
            window_ranks.update(np.unique(line_ranks[is_window]).tolist())
        for row in np.flatnonzero(~is_window).tolist():
            rank = None if line_ranks is None else int(line_ranks[row])
            others.append((rank, lines[block.starts[row] : block.ends[row]]))
    return FirstLines(window_ranks, others)


def _blocks(tails: Iterable[tuple[int | None, bytes]]) -> Iterator[tuple[Integers | None, bytes]]:
    """Yield blocks of lines, each with the rank of every line, or with None if the lines state it."""
    pending: dict[bool, list[tuple[int, bytes]]] = {False: [], True: []}
    sizes = {False: 0, True: 0}
    for rank, lines in tails:
        is_host = rank is None
        for block in _cut(lines):
            pending[is_host].append((-1 if rank is None else rank, block))
            sizes[is_host] += len(block)
            if sizes[is_host] >= _BLOCK_BYTES:
                yield _join(pending[is_host], is_host=is_host)
                pending[is_host], sizes[is_host] = [], 0
    for is_host, parts in pending.items():
        if parts:
            yield _join(parts, is_host=is_host)


def _cut(lines: bytes) -> Iterator[bytes]:
    start = 0
    while len(lines) - start > _BLOCK_BYTES and (end := lines.find(b"\n", start + _BLOCK_BYTES) + 1):
        yield lines[start:end]
        start = end
    if start < len(lines):
        yield lines[start:]


def _join(parts: list[tuple[int, bytes]], *, is_host: bool) -> tuple[Integers | None, bytes]:
    lines = b"".join(block for _, block in parts)
    if is_host:
        return None, lines
    numbers, counts = [rank for rank, _ in parts], [block.count(b"\n") for _, block in parts]
    return np.repeat(np.array(numbers, np.int64), counts), lines


def _parse_block(line_ranks: Integers | None, lines: bytes, index: int) -> WindowColumns:
    block = _LineBlock(lines)
    ranks = np.full(len(block.ends), -1) if line_ranks is None else line_ranks.copy()
    last_iterations, values = np.zeros(len(block.ends), np.int64), np.full(len(block.ends), np.nan)
    is_parsed = np.zeros(len(block.ends), bool)
    rows = np.zeros(0, np.int64)
    if not any(marker[:1] in lines and marker in lines for marker in _MARKERS):  # one character is found faster
        num_fields = 4 if line_ranks is None else 3
        rows = np.flatnonzero(block.has(block.starts, RANK_LINE + b",") & block.is_whole(num_fields + MIN_TIMES))
    if len(rows):
        # The commas after `event`, `from_rank`, `time`, `last`, `n` and the first times.
        commas = block.commas(rows, (5 if line_ranks is None else 4) + MIN_TIMES - 1)
        is_valid = np.ones(len(rows), bool)
        if line_ranks is None:
            ranks[rows], is_valid = block.integers(commas[0], commas[1], b'"from_rank":')
            commas = commas[1:]
        is_valid &= block.has(commas[0] + 1, b'"time":')
        last_iterations[rows], is_last = block.integers(commas[1], commas[2], b'"last":')
        is_valid &= is_last & block.has(commas[2] + 1, b'"n":') & block.has(commas[3] + 1, b'"ms":[')
        for comma in commas[4:]:
            is_valid &= block.chars[comma - 1] != ord("]")  # not enough times
        commas[3] += len(b'"ms":[')
        waits, is_wait = block.times(commas[5], commas[6])
        times, is_time = (waits, is_wait) if index == 2 else block.times(commas[3 + index], commas[4 + index])
        is_parsed[rows] = is_valid & is_wait & is_time
        values[rows] = np.where(np.isnan(waits), np.nan, times)
    others = np.flatnonzero(~is_parsed)
    for row in others[block.has(block.starts[others], RANK_LINE)].tolist():
        window = _decode_window(lines[block.starts[row] : block.ends[row]], states_rank=line_ranks is None)
        if window is not None:
            value = window.ms[index]
            is_parsed[row] = value is not None
            last_iterations[row], values[row] = window.last, np.nan if value is None else value
            ranks[row] = window.from_rank if line_ranks is None else ranks[row]
    chosen = is_parsed & (values >= 0)
    return WindowColumns(ranks[chosen], last_iterations[chosen], values[chosen])


def _decode_window(line: bytes, *, states_rank: bool) -> _WindowTimes | None:
    """Return a window that has a wait; None if the line is invalid or has none."""
    with suppress(msgspec.MsgspecError, ValueError):
        for window in _decode_lines(line):
            if len(window.ms) >= MIN_TIMES and window.last >= 0 and window.ms[2] is not None:
                return window if window.from_rank >= 0 or not states_rank else None
    return None


class _LineBlock:
    """Lines of JSON, and where the fields of each one begin."""

    def __init__(self, lines: bytes) -> None:
        data = lines + _PADDING
        self.chars: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.words: Words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, strides=(1,))
        """Eight characters, from each character on."""
        self.ends = np.flatnonzero(self.chars == ord("\n"))
        self.starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1] + 1])[: len(self.ends)]

    def has(self, positions: Integers, text: bytes) -> Flags:
        """Return whether a text is at each position."""
        is_there = np.ones(len(positions), bool)
        for offset in range(0, len(text), _WORD_BYTES):
            part = text[offset : offset + _WORD_BYTES]
            words = self.words[positions + offset if offset else positions]
            if len(part) < _WORD_BYTES:
                words &= np.uint64((1 << (8 * len(part))) - 1)
            is_there &= words == np.uint64(int.from_bytes(part, "little"))
        return is_there

    def is_whole(self, num_commas: int) -> Flags:
        """Return whether each line is one object and has at least so many commas."""
        is_whole: Flags = self.chars[np.maximum(self.ends - 1, 0)] == ord("}")
        is_brace = self.chars == ord("{")
        if np.count_nonzero(is_brace) != len(self.starts) or not is_brace[self.starts].all():  # else each line has one
            braces = np.searchsorted(np.flatnonzero(is_brace), np.append(self.starts, len(self.chars)))
            is_whole &= np.diff(braces) == 1
        is_whole &= np.diff(self._first_comma, append=len(self._commas)) >= num_commas
        return is_whole

    @functools.cached_property
    def _commas(self) -> Integers:
        return np.flatnonzero(self.chars == ord(","))

    @functools.cached_property
    def _first_comma(self) -> Integers:
        return np.searchsorted(self._commas, self.starts)

    def commas(self, rows: Integers, num_commas: int) -> list[Integers]:
        """Return where the first comma of each line is, the second one, and so on."""
        first = self._first_comma[rows]
        return [self._commas[first + number] for number in range(num_commas)]

    def integers(self, before: Integers, after: Integers, name: bytes) -> tuple[Integers, Flags]:
        """Return the numbers of a field, and whether each one has this name and is an integer of some digits.

        Args:
            before: the commas before the field.
            after: the commas after it.
            name: the name of the field with quotes and colon.
        """
        start = before + 1
        words, length = self.words[start + len(name)], after - start - len(name)
        is_short = (length >= 1) & (length <= _MAX_DIGITS)
        number, is_number = _parse_digits(words, np.where(is_short, length, 0))
        is_number &= is_short & self.has(start, name) & ((length == 1) | ~_begins_with_zero(words))
        return number.astype(np.int64), is_number

    def times(self, before: Integers, after: Integers) -> tuple[npt.NDArray[np.float64], Flags]:
        """Return the time between two commas, NaN for null, and whether each one is a decimal number or null."""
        length = after - before - 1
        words = self.words[before + 1]
        is_null = (length == len(b"null")) & (words & np.uint64(0xFFFFFFFF) == np.uint64(_NULL))
        is_short = (length >= 1) & (length <= _MAX_DIGITS)
        length = np.where(is_short, length, 0)
        num_whole = np.minimum(_find(words, ord(".")), length)  # digits before the point
        num_decimals = np.maximum(length - num_whole - 1, 0)
        whole, is_whole = _parse_digits(words, num_whole)
        decimals, is_decimals = _parse_digits(words >> ((num_whole + 1) << 3).astype(np.uint64), num_decimals)
        scale = _POWERS[num_decimals]
        number = (whole * scale + decimals) / scale  # correctly rounded: both are integers of less than 53 bits
        is_number = is_short & is_whole & is_decimals & (num_whole >= 1) & (num_whole + 1 != length)
        is_number &= (num_whole == 1) | ~_begins_with_zero(words)
        number[is_null] = np.nan
        return number, is_number | is_null


def _begins_with_zero(words: Words) -> Flags:
    is_zero: Flags = (words & np.uint64(0xFF)) == np.uint64(ord("0"))
    return is_zero


def _find(words: Words, char: int) -> Integers:
    """Return the index of the first such character in each word, 8 without one."""
    difference = words ^ np.uint64(char * 0x0101010101010101)
    zeros = (difference - np.uint64(0x0101010101010101)) & ~difference & np.uint64(0x8080808080808080)
    lowest = zeros & (~zeros + np.uint64(1))
    exponent = np.frexp(lowest.astype(np.float64))[1]  # exact: a power of two
    return np.where(zeros == 0, _WORD_BYTES, (exponent - 1) >> 3).astype(np.int64)


def _parse_digits(words: Words, length: Integers) -> tuple[Words, Flags]:
    """Return the number in the first characters of each word, at most eight, and whether all of them are digits."""
    num_bits = (8 * length).astype(np.uint64)
    zeros = np.uint64(0x3030303030303030)
    digits = (words << (np.uint64(64) - num_bits)) | (zeros >> num_bits)  # shifts by 64 bits return 0
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    is_valid = ((digits & high) == zeros) & (((digits + np.uint64(0x0606060606060606)) & high) == zeros)
    # The numbers of one digit become numbers of two digits, those of four, and that one of eight.
    number: Any = digits & np.uint64(0x0F0F0F0F0F0F0F0F)
    number = (number * np.uint64(10) + (number >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    number = (number * np.uint64(100) + (number >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    number = (number * np.uint64(10_000) + (number >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return number, is_valid
