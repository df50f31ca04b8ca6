"""The output of a program on its way to where ours goes, of which the last lines are kept."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

__all__ = ["Output", "tee"]

_MOST_LINES = 200
_MOST_BYTES = 16 << 10
_BLOCK_BYTES = 64 << 10

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class _Tail:
    """The last of what went through one stream."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._kept_bytes = 0
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self._blocks.append(data)
        self._kept_bytes += len(data)
        while self._kept_bytes - len(self._blocks[0]) >= 4 * _MOST_BYTES:  # more than is told: progress bars fold
            self._kept_bytes -= len(self._blocks.popleft())

    def text(self) -> str:
        """Return the last lines as a terminal would show them: of what overwrites itself, the last."""
        text = _ESCAPES.sub("", b"".join(self._blocks).decode("utf-8", "backslashreplace"))
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        kept: deque[str] = deque()
        num_chars = 0
        for line in reversed(lines):
            room = _MOST_BYTES - num_chars
            if len(kept) >= _MOST_LINES or room <= 0:
                break
            kept.appendleft(line if len(line) <= room else f"…{line[-room:]}")
            num_chars += len(line) + 1
        return "\n".join(kept).strip("\n")


class _Channel:
    """One stream on its way from the program to a descriptor of ours."""

    def __init__(self, name: str, ours: int) -> None:
        self.name = name
        self.tail = _Tail()
        self._ours = ours
        self._source, self.end = _terminal(ours) if os.isatty(ours) else os.pipe()
        self._is_writing = False
        self._thread = threading.Thread(target=self._pass_on, name=f"tacho-{name}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the rest: as long as it takes a slow reader, but not for a process that keeps the stream open."""
        self._thread.join(timeout_s)
        while self._thread.is_alive() and (self._is_writing or self._has_more()):
            self._thread.join(timeout_s)

    def _has_more(self) -> bool:
        try:
            return bool(select.select([self._source], [], [], 0)[0])
        except (OSError, ValueError):  # it was closed just now
            return False

    def resize(self) -> None:
        """Make the program's terminal as large as ours, if it has one."""
        if os.isatty(self._ours):
            _copy_size(self._ours, self._source)

    def _pass_on(self) -> None:
        try:
            while data := os.read(self._source, _BLOCK_BYTES):
                self.tail.add(data)
                self._is_writing = True
                _write(self._ours, data)
                self._is_writing = False
        except OSError:  # the program has ended, or nobody reads us: then it shall hear of that, too
            pass
        finally:
            self._is_writing = False
            with contextlib.suppress(OSError):
                os.close(self._source)


class Output:
    """What a program prints: passed on as it comes, the last of it kept."""

    def __init__(self) -> None:
        self._channels: list[_Channel] = []

    def open(self) -> tuple[int, int]:
        """Return what the program is to write to as its standard output and error.

        Where ours are the same, so are the program's, or lines of one could overtake those of the other.
        """
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if _is_same(1, 2):
            self._channels = [_Channel("output", 1)]
        else:
            self._channels = [_Channel("stdout", 1), _Channel("stderr", 2)]
        return self._channels[0].end, self._channels[-1].end

    def close_ends(self) -> None:
        """Close our copies of what the program writes to, so that its end is seen."""
        for channel in self._channels:
            if channel.end >= 0:
                os.close(channel.end)
                channel.end = -1

    def resize(self) -> None:
        """Hear that the size of our terminal has changed."""
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.resize()

    def wait(self, timeout_s: float) -> None:
        """Wait for the rest."""
        for channel in self._channels:
            channel.wait(timeout_s)

    def tails(self) -> list[dict[str, Any]]:
        """Return the fields of a record for each stream that anything was written to."""
        return [
            {"stream": channel.name, "text": channel.tail.text(), "num_bytes": channel.tail.num_bytes}
            for channel in self._channels
            if channel.tail.num_bytes
        ]


@contextlib.contextmanager
def tee(output: Output) -> Iterator[tuple[int | None, int | None]]:
    """Give what a program is to write to as its standard output and error; None where it gets ours."""
    if not all(_is_open(number) for number in (0, 1, 2)):  # a pipe would take its number
        yield None, None
        return
    try:
        yield output.open()
    finally:
        output.close_ends()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _is_same(first: int, second: int) -> bool:
    """Tell whether two descriptors lead to the same file, pipe or terminal."""
    return os.path.samestat(os.fstat(first), os.fstat(second)) and os.isatty(first) == os.isatty(second)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # whoever started us shares it, and does not want to wait
            select.select([], [descriptor], [])


def _terminal(ours: int) -> tuple[int, int]:
    """Return both ends of a terminal like ours: a program that sees no terminal prints in another way."""
    import pty
    import termios

    source, end = pty.openpty()
    attributes = termios.tcgetattr(end)
    attributes[1] &= ~termios.OPOST  # ours does that
    termios.tcsetattr(end, termios.TCSANOW, attributes)
    with contextlib.suppress(OSError):
        _copy_size(ours, end)
    return source, end


def _copy_size(terminal: int, other: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(other, termios.TIOCSWINSZ, fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8))
