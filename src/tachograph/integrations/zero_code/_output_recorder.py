"""Records the output of a program while it prints: complete lines, masked, into the folder of its run.

The threads that pass output through (`_output`) only add bytes to a queue. A thread here takes them a few times a
second, completes lines, masks them and appends them to the run (`journal.OutputWriter`). Masking is slow compared with
copying, and both need the interpreter. So that a program which prints without end is not slowed down, this thread works
for a small share of the time as long as more arrives than it can handle, and the oldest bytes of a full queue are
dropped and counted.

Secrets are recognised in whole lines, and with the line before. A line is therefore recorded when it is complete, or as
a partial line when nothing was added to it for a while. After dropped bytes, the rest of the torn line is skipped, too.
The lines of a private key are replaced by one mask.

The run may start long after the program. Until then, the first and the newest lines wait in memory.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from tachograph._base.guard import guard
from tachograph._base.threads import TelemetryThread
from tachograph.journal import OutputWriter, RunFolder, output_line
from tachograph.records import MASK, mask_text

__all__ = ["OutputRecorder", "strip_escapes"]

_TICK_S = 0.2
_FIND_INTERVAL_S = 0.5
_PART_BYTES = 64 << 10
"""Recorded per tick while the program prints faster than that. It takes about 13 ms."""
_MAX_QUEUED_BYTES = 1 << 20
_BATCH_BYTES = 4 << 10
"""Masked at once: a regular expression keeps the interpreter from the threads that pass output through."""
_JOIN_S = 0.05
_MAX_LINE_CHARS = 4_000
_MAX_OPEN_BYTES = 64 << 10
_MAX_KEY_LINES = 200
_MAX_WAITING_BYTES = 512 << 10
"""Of the first lines, and of the newest ones, before there is a run."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)])
del _CONTROLS[ord("\t")]
_KEY_START = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|private-lines: ?\d", re.IGNORECASE)
_KEY_END = re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{0,5}|private-mac:", re.IGNORECASE)


def strip_escapes(text: str) -> str:
    """Remove the escape codes of a terminal: colours, cursor movements, titles."""
    return _ESCAPES.sub("", text)


class _Chunk:
    """Bytes of one stream that arrived together."""

    __slots__ = ("data", "stream", "time_s")

    def __init__(self, stream: str, time_s: float, data: bytes | bytearray) -> None:
        self.stream = stream
        self.time_s = time_s
        self.data = bytearray(data)

    def split_off(self, num_bytes: int) -> _Chunk:
        """Remove the first bytes and return them."""
        first = _Chunk(self.stream, self.time_s, self.data[:num_bytes])
        del self.data[:num_bytes]
        return first


class OutputRecorder:
    """Records the output added to it, in a thread of its own.

    Args:
        find_run: returns the folder of the run that the program records at present, or None if there is none yet.
    """

    def __init__(self, find_run: Callable[[], str | None]) -> None:
        self._find_run = find_run
        self._lock = threading.Lock()
        self._chunks: deque[_Chunk] = deque()
        self._num_queued_bytes = 0
        self._num_added_bytes = 0
        self._num_dropped_bytes = 0
        self._num_dropped_lines = 0
        self._torn_streams: set[str] = set()
        """Streams of which bytes were dropped."""
        self._wake = threading.Event()
        self._is_closing = threading.Event()
        self._streams: dict[str, _StreamLines] = {}
        self._waiting = _WaitingLines()
        self._folder: str | None = None
        self._writer: OutputWriter | None = None
        self._last_search_at = 0.0
        self._num_unwritten = 0
        self._thread = TelemetryThread(self._run, name="tacho-output")
        self._thread.start()

    def add(self, stream: str, data: bytes) -> None:
        """Queue bytes of a stream. Never waits."""
        if self._is_closing.is_set():  # a process that outlives the program
            return
        now_s = time.time()
        with self._lock:
            last = self._chunks[-1] if self._chunks else None
            is_recent = last is not None and last.stream == stream and 0 <= now_s - last.time_s < _JOIN_S
            if last is not None and is_recent and len(last.data) + len(data) <= _PART_BYTES:
                last.data += data
            else:
                self._chunks.append(_Chunk(stream, now_s, data))
            self._num_queued_bytes += len(data)
            self._num_added_bytes += len(data)
            while self._num_queued_bytes > _MAX_QUEUED_BYTES:
                oldest = self._chunks.popleft()
                self._num_queued_bytes -= len(oldest.data)
                self._num_dropped_bytes += len(oldest.data)
                self._num_dropped_lines += oldest.data.count(b"\n")
                self._torn_streams.add(oldest.stream)
        self._wake.set()

    def close(self, folder: RunFolder | None) -> None:
        """Record the rest, into the last run or into this one if there was none."""
        self._is_closing.set()
        self._wake.set()
        self._thread.join()
        with guard("recording the last output"):
            if self._folder is None and folder is not None:
                self._open(str(folder.path))
            while self._num_queued_bytes or self._num_dropped_bytes:
                self._take()
            for stream, lines in self._streams.items():
                self._append(output_line(time.time(), stream, text) for text in lines.finish())
            if self._writer is not None:
                self._writer.close()

    # The thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing.is_set():
            # Wakes up without new output only to look for the run, or to record the last line as a partial one.
            has_more = not self._waiting.is_empty or any(lines.is_unsettled for lines in self._streams.values())
            self._wake.wait(_TICK_S if has_more else None)
            self._wake.clear()
            if self._is_closing.wait(_TICK_S):
                return
            with guard("recording output"):
                self._poll_run()
                num_added = self._num_added_bytes
                self._take()
                # Go on without a pause only while the program prints nothing.
                while self._num_queued_bytes and num_added == self._num_added_bytes and not self._is_closing.is_set():
                    self._take()
                self._write_partial()
            if self._num_queued_bytes:
                self._wake.set()

    def _take(self) -> None:
        """Record a part of the queue."""
        with self._lock:
            num_lines, num_bytes, torn_streams = self._num_dropped_lines, self._num_dropped_bytes, self._torn_streams
            self._num_dropped_lines, self._num_dropped_bytes, self._torn_streams = 0, 0, set()
            chunks: list[_Chunk] = []
            num_taken = 0
            while self._chunks and num_taken < _PART_BYTES:
                chunks.append(self._chunks[0].split_off(_PART_BYTES - num_taken))
                num_taken += len(chunks[-1].data)
                if not self._chunks[0].data:
                    self._chunks.popleft()
            self._num_queued_bytes -= num_taken
        for stream in torn_streams:
            self._lines_of(stream).skip_line()
        if num_bytes:
            reason = "the program printed faster than they could be masked"
            notice = f"{num_lines:,} lines ({num_bytes:,} bytes) were not recorded: {reason}"
            self._append([output_line(time.time(), "notice", notice)])
        for chunk in chunks:
            while chunk.data:
                texts = self._lines_of(chunk.stream).add(bytes(chunk.split_off(_BATCH_BYTES).data))
                self._append(output_line(chunk.time_s, chunk.stream, text) for text in texts)

    def _lines_of(self, stream: str) -> _StreamLines:
        if stream not in self._streams:
            self._streams[stream] = _StreamLines()
        return self._streams[stream]

    # The run -------------------------------------------------------------------------------------------------------

    def _poll_run(self) -> None:
        """Look for the run. A program may record several, one after the other."""
        if time.monotonic() - self._last_search_at < _FIND_INTERVAL_S:
            return
        self._last_search_at = time.monotonic()
        folder = self._find_run()
        if folder is not None and folder != self._folder and RunFolder(folder).exists():
            self._open(folder)

    def _open(self, path: str) -> None:
        if self._writer is not None:
            self._writer.close()
        self._folder, self._writer = path, None
        waiting, self._waiting = self._waiting, _WaitingLines()
        with contextlib.suppress(OSError):
            self._writer = OutputWriter(RunFolder(path))
        self._append(waiting.lines())

    def _append(self, lines: Iterable[bytes]) -> None:
        if self._folder is None:
            self._waiting.add(lines)
        elif self._writer is not None:
            lines = list(lines)
            missing = f"{self._num_unwritten:,} lines or more could not be written"
            notice = [output_line(time.time(), "notice", missing)] if self._num_unwritten else []
            try:
                self._writer.append([*notice, *lines])
                self._num_unwritten = 0
            except OSError:  # a full disk or a deleted folder: the program must not notice
                self._num_unwritten += len(lines)

    def _write_partial(self) -> None:
        if self._writer is not None:
            partial = [(stream, lines.partial()) for stream, lines in self._streams.items()]
            with contextlib.suppress(OSError):
                now_s = time.time()
                self._writer.set_partial(output_line(now_s, stream, text) for stream, text in partial if text)


class _StreamLines:
    """Turns the bytes of a stream into lines as a terminal shows them, with secrets masked."""

    def __init__(self) -> None:
        self._open = b""
        """The line that is not complete yet."""
        self._is_skipping = False
        self._last_open = b""
        self._is_shown = False
        self._previous = ""
        """The last complete line, before masking: it may name the secret on the next one."""
        self._num_key_lines = 0
        """How many more lines may belong to a private key."""

    @property
    def is_unsettled(self) -> bool:
        """Whether the line that is not complete has yet to be recorded as a whole."""
        return bool(self._open) and not (self._is_shown and self._open == self._last_open)

    def skip_line(self) -> None:
        """Ignore the rest of the current line: bytes of it are missing."""
        self._open, self._is_skipping = b"", True

    def add(self, data: bytes) -> list[str]:
        """Return the lines that are complete now."""
        if self._is_skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return []
            self._is_skipping = False
        complete, newline, self._open = (self._open + data).rpartition(b"\n")
        lines = [_as_shown(line) for line in complete.split(b"\n")] if newline else []
        if len(self._open) > _MAX_OPEN_BYTES:
            visible = self._open.rpartition(b"\r")[2]
            if len(visible) > _MAX_OPEN_BYTES:
                lines.append(_as_shown(visible))
                self.skip_line()
            else:
                self._open = b"\r" + visible
        return self._mask(lines) if lines else []

    def finish(self) -> list[str]:
        """Return the last line if it has no newline."""
        lines = self._mask([_as_shown(self._open)]) if self._open else []
        self._open = b""
        return [line for line in lines if line]

    def partial(self) -> str:
        """Return the incomplete line. While it changes, only a state that was overwritten is known to be whole."""
        self._is_shown = self._open == self._last_open
        self._last_open = self._open
        whole = self._open if self._is_shown else self._open.rpartition(b"\r")[0]
        if not whole or self._num_key_lines:
            return ""
        return _truncate(mask_text(f"{self._previous}\n{_as_shown(whole)}").rpartition("\n")[2])

    def _mask(self, lines: list[str]) -> list[str]:
        visible_lines: list[str] = []
        for line in lines:
            is_start = _KEY_START.search(line) is not None and _KEY_END.search(line) is None
            if self._num_key_lines and not is_start:
                end = _KEY_END.search(line)
                self._num_key_lines = 0 if end else self._num_key_lines - 1
                if end and line[end.end() :].strip():
                    visible_lines.append(line[end.end() :])
            elif is_start:
                self._num_key_lines = _MAX_KEY_LINES
                visible_lines.append(MASK)
            else:
                visible_lines.append(line)
        if not visible_lines:
            return []
        masked_lines = mask_text("\n".join([self._previous, *visible_lines])).split("\n")[1:]
        self._previous = visible_lines[-1][-_MAX_LINE_CHARS:]
        return [_truncate(line) for line in masked_lines]


class _WaitingLines:
    """The first and the newest lines of a program that has no run yet."""

    def __init__(self) -> None:
        self._first: list[bytes] = []
        self._newest: deque[bytes] = deque()
        self._num_bytes = [0, 0]
        self._num_dropped = 0

    @property
    def is_empty(self) -> bool:
        return not self._first

    def add(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if not self._newest and self._num_bytes[0] < _MAX_WAITING_BYTES:
                self._first.append(line)
                self._num_bytes[0] += len(line)
                continue
            self._newest.append(line)
            self._num_bytes[1] += len(line)
            while self._num_bytes[1] > _MAX_WAITING_BYTES:
                self._num_bytes[1] -= len(self._newest.popleft())
                self._num_dropped += 1

    def lines(self) -> list[bytes]:
        notices = [output_line(time.time(), "notice", f"{self._num_dropped:,} lines were not kept")]
        return [*self._first, *(notices if self._num_dropped else []), *self._newest]


def _as_shown(line: bytes) -> str:
    """Return a line as a terminal shows it: without escape codes and overwritten text."""
    text = strip_escapes(line.decode("utf-8", "backslashreplace")).rstrip("\r").rpartition("\r")[2]
    return text.translate(_CONTROLS)


def _truncate(line: str) -> str:
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}… [cut, {len(line):,} characters]"
