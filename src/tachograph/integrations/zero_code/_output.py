"""Passes the output of a program through to ours, records it while it is printed, and keeps the last lines.

The program writes into a pipe, or into a pseudo-terminal if our stream is a terminal, so that it formats its output the
same way. One thread per stream copies the bytes unchanged to our descriptor, keeps the tail, and hands the bytes to the
thread that records them (`_output_recorder`). If both of our streams go to the same place, so do the program's: with
two pipes, lines of one stream could overtake lines of the other.

If our reader goes away, the thread closes the pipe, and the program gets the same error as it would without us. At the
end we wait for output that is still being written, but not for a background process that keeps the stream open.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tachograph._base.threads import TelemetryThread
from tachograph.integrations.zero_code._output_recorder import OutputRecorder, strip_escapes
from tachograph.journal import RunFolder

__all__ = ["ProgramOutput", "tee_output"]

_MAX_LINES = 200
_MAX_BYTES = 16 << 10
_BLOCK_BYTES = 64 << 10


class _OutputTail:
    """The last bytes of one stream."""

    def __init__(self) -> None:
        self._blocks: deque[bytes] = deque()
        self._kept_bytes = 0
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self._blocks.append(data)
        self._kept_bytes += len(data)
        while (
            self._kept_bytes - len(self._blocks[0]) >= 4 * _MAX_BYTES
        ):  # more than is recorded: progress bars overwrite themselves
            self._kept_bytes -= len(self._blocks.popleft())

    def text(self) -> str:
        """Return the last lines as a terminal shows them: without escape codes and overwritten text."""
        text = strip_escapes(b"".join(self._blocks).decode("utf-8", "backslashreplace"))
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        last_lines: deque[str] = deque()
        num_chars = 0
        for line in reversed(lines):
            room = _MAX_BYTES - num_chars
            if len(last_lines) >= _MAX_LINES or room <= 0:
                break
            last_lines.appendleft(line if len(line) <= room else f"…{line[-room:]}")
            num_chars += len(line) + 1
        return "\n".join(last_lines).strip("\n")


class _StreamTee:
    """Copies one stream of the program to a descriptor of ours."""

    def __init__(self, name: str, our_fd: int, recorder: OutputRecorder) -> None:
        self.name = name
        self._recorder = recorder
        self.tail = _OutputTail()
        self._our_fd = our_fd
        self._source, self.end = _open_terminal(our_fd) if os.isatty(our_fd) else os.pipe()
        self._is_writing = False
        self._lock = threading.Lock()
        self._line = b""
        """A line of ours that waits until the program ends one of its own."""
        self._is_at_line_start = True
        self._thread = TelemetryThread(self._copy, name=f"tacho-{name}")
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until all output is written, even to a slow reader, but not for a process that keeps the stream open."""
        self._thread.join(timeout_s)
        while self._thread.is_alive() and (self._is_writing or self._has_unread()):
            self._thread.join(timeout_s)

    def _has_unread(self) -> bool:
        try:
            return bool(select.select([self._source], [], [], 0)[0])
        except (OSError, ValueError):  # it was just closed
            return False

    def resize(self) -> None:
        """Give the program's terminal, if it has one, the size of ours."""
        if os.isatty(self._our_fd):
            _copy_size(self._our_fd, self._source)

    def _copy(self) -> None:
        try:
            while data := os.read(self._source, _BLOCK_BYTES):
                self.tail.add(data)
                self._is_writing = True
                with self._lock:
                    self._write(data)
                self._is_writing = False
                self._recorder.add(self.name, data)
        except OSError:  # the program has ended, or our reader has: closing the pipe lets the program notice
            pass
        finally:
            self._is_writing = False
            with contextlib.suppress(OSError):
                os.close(self._source)

    def print_line(self, line: str) -> None:
        """Print a line of ours, not into a line of the program. It is not recorded."""
        with self._lock:
            self._line += f"{line}\n".encode(errors="backslashreplace")
            if self._is_at_line_start:
                self._write(b"")

    def _write(self, data: bytes) -> None:
        output = _insert_line(self._line, data, is_at_line_start=self._is_at_line_start) if self._line else None
        if output is not None:
            self._line = b""
        _write(self._our_fd, data if output is None else output)
        self._is_at_line_start = data.endswith(b"\n") if data else self._is_at_line_start


def _insert_line(line: bytes, data: bytes, *, is_at_line_start: bool) -> bytes | None:
    """Return output with a line where the output begins or ends one, or before a progress bar is printed again.

    None if there is no such place.
    """
    if is_at_line_start:
        return line + data
    before, newline, after = data.rpartition(b"\n")
    if newline:
        return before + newline + line + after
    before, carriage_return, after = data.partition(b"\r")
    return before + b"\n" + line + carriage_return + after if carriage_return else None


class ProgramOutput:
    """The output of a program: passed through unchanged, recorded, with the last lines kept.

    Args:
        find_run: returns the folder of the run that the program records at present, or None if there is none yet.
    """

    def __init__(self, find_run: Callable[[], str | None]) -> None:
        self._tees: list[_StreamTee] = []
        self._recorder = OutputRecorder(find_run)
        self._is_recording = True

    def open(self) -> tuple[int, int]:
        """Return the descriptors for the program's standard output and error."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if _is_same(1, 2):
            self._tees = [_StreamTee("output", 1, self._recorder)]
        else:
            self._tees = [_StreamTee("stdout", 1, self._recorder), _StreamTee("stderr", 2, self._recorder)]
        return self._tees[0].end, self._tees[-1].end

    def print_line(self, line: str) -> bool:
        """Print a line of ours to standard error; return False if the program writes there itself."""
        if self._tees:
            self._tees[-1].print_line(line)
        return bool(self._tees)

    def close_ends(self) -> None:
        """Close our copies of the program's descriptors; otherwise we would never read the end of its output."""
        for tee in self._tees:
            if tee.end >= 0:
                os.close(tee.end)
                tee.end = -1

    def resize(self) -> None:
        """Handle a change of the size of our terminal."""
        for tee in self._tees:
            with contextlib.suppress(OSError):
                tee.resize()

    def wait(self, timeout_s: float) -> None:
        """Wait until all output is written; see `_StreamTee.wait`."""
        for tee in self._tees:
            tee.wait(timeout_s)

    def finish_recording(self, folder: RunFolder | None) -> None:
        """Record the rest of the output, into the run of the program or into this one if it had none."""
        if self._is_recording:
            self._is_recording = False
            self._recorder.close(folder)

    def tails(self) -> list[dict[str, Any]]:
        """Return the fields of a `log` record for each stream that has output."""
        return [
            {"stream": tee.name, "text": tee.tail.text(), "num_bytes": tee.tail.num_bytes}
            for tee in self._tees
            if tee.tail.num_bytes
        ]


@contextlib.contextmanager
def tee_output(output: ProgramOutput) -> Iterator[tuple[int | None, int | None]]:
    """Yield the descriptors for the program's standard output and error; None if it inherits ours."""
    if not all(_is_open(number) for number in (0, 1, 2)):  # a new pipe would get the number of the closed stream
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
    """Return whether two descriptors refer to the same file, pipe or terminal."""
    return os.path.samestat(os.fstat(first), os.fstat(second)) and os.isatty(first) == os.isatty(second)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # our parent made the shared descriptor non-blocking
            select.select([], [descriptor], [])


def _open_terminal(our_fd: int) -> tuple[int, int]:
    """Return both ends of a pseudo-terminal like ours: programs format output differently without a terminal."""
    import pty
    import termios

    source, end = pty.openpty()
    attributes = termios.tcgetattr(end)
    attributes[1] &= ~termios.OPOST  # our terminal does that
    termios.tcsetattr(end, termios.TCSANOW, attributes)
    with contextlib.suppress(OSError):
        _copy_size(our_fd, end)
    return source, end


def _copy_size(terminal: int, other: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(other, termios.TIOCSWINSZ, fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8))
