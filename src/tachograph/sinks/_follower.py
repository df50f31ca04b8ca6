"""Drives one sink from the journal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tachograph.journal import JournalFollower, RunFolder, atomic_write
from tachograph.records import METRIC_KINDS, mask_text

__all__ = ["Sink", "SinkFollower", "metrics_of"]

_POLL_S = 1.0
_LONGEST_BACKOFF_S = 60.0
_LAST_ROUNDS = 3


class Sink(Protocol):
    """Takes records and hands them on. May raise: it is tried again later with the same records."""

    name: str

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Get ready for a run, whose `start` record is given; called again, without a `close`, after a failure."""
        ...

    def write(self, records: list[dict[str, Any]]) -> None:
        """Take records, in order."""
        ...

    def close(self) -> None:
        """Finish up."""
        ...


class _Cursor(msgspec.Struct):
    journal_bytes: int = 0


class SinkFollower:
    """Follows a journal for a sink, from where the last attempt left off."""

    def __init__(
        self, folder: RunFolder, sink: Sink, report: Callable[[str, str, str], None], *, from_start: bool = True
    ) -> None:
        """Get ready to follow.

        Args:
            folder: the run.
            sink: what to drive.
            report: takes faults: their kind, the sink's name, and what happened.
            from_start: whether a sink that is new to the run gets what was recorded before.
        """
        self._folder = folder
        self._sink = sink
        self._report = report
        self._is_open = False
        self._told: set[str] = set()
        self._num_failures = 0
        self._stopping = threading.Event()
        self._cursor_path = folder.private / f"sink-{sink.name}.json"
        begin = self._load_cursor()
        if begin is None:
            begin = 0 if from_start or not folder.journal.exists() else folder.journal.stat().st_size
        self._follower = JournalFollower(folder.journal, begin, block_bytes=256 << 10)
        self._save_cursor()  # from now on it is known, even if it never gets to take anything
        self._thread = threading.Thread(target=self._run, name=f"tachograph-{sink.name}", daemon=True)

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def move(self, folder: RunFolder) -> None:
        """Go on in another folder, to which the journal was moved."""
        self._folder = folder
        self._cursor_path = folder.private / self._cursor_path.name
        self._follower.move(folder.journal)

    def close(self, timeout_s: float) -> bool:
        """Hand on what is left and stop; return False if the deadline came first. The journal keeps what is left."""
        self._stopping.set()
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive() and self._num_failures == 0

    def _run(self) -> None:
        while True:
            backoff_s = min(_POLL_S * 2**self._num_failures, _LONGEST_BACKOFF_S)
            is_last = self._stopping.wait(backoff_s)
            for _ in range(_LAST_ROUNDS if is_last else 1):
                try:
                    self._drain()
                    self._num_failures = 0
                    break
                except Exception as error:  # noqa: BLE001 - a sink is somebody else's code
                    self._failed(error)
            if is_last:
                break
        with contextlib.suppress(Exception):
            self._sink.close()

    def _drain(self) -> None:
        if not self._is_open:
            start = next((record for record in self._head() if record["event"] == "start"), {})
            self._sink.open(self._folder, start)
            self._is_open = True
        while True:
            before = self._follower.offset
            records = self._follower.poll_block()
            if self._follower.offset == before:
                return
            try:
                self._sink.write(records)
            except Exception:
                self._follower.offset = before
                raise
            self._save_cursor()
            time.sleep(0)  # a long backlog must not keep the interpreter to itself

    def _head(self) -> list[dict[str, Any]]:
        return JournalFollower(self._folder.journal, block_bytes=64 << 10).poll_block()

    def _failed(self, error: Exception) -> None:
        self._num_failures += 1
        self._is_open = False
        reason = mask_text(f"{type(error).__name__}: {error}")[:500]
        if reason not in self._told and len(self._told) < 20:
            self._told.add(reason)
            self._report("sink_failed", self._sink.name, f"{reason}; it will be tried again")

    def _load_cursor(self) -> int | None:
        try:
            return msgspec.json.decode(self._cursor_path.read_bytes(), type=_Cursor).journal_bytes
        except (OSError, msgspec.MsgspecError):
            return None

    def _save_cursor(self) -> None:
        with contextlib.suppress(OSError):  # without it some records are handed on twice after a restart
            atomic_write(self._cursor_path, msgspec.json.encode(_Cursor(self._follower.offset)))


def metrics_of(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, under the names another tool should show them by."""
    if record["event"] not in METRIC_KINDS:
        return {}
    prefix = "system/" if record["event"] == "system" else ""
    return {
        f"{prefix}{name}": value
        for name, value in record.items()
        if name not in {"time", "global_step"} and (type(value) is float or type(value) is int)
    }
