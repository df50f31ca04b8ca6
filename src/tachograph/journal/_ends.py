"""Read only the beginning and the end of a journal: enough for the state of a run of any size."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

from tachograph._base.guard import faults
from tachograph.journal._files import open_journal
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import Heartbeat, RunState, infer_state, read_heartbeat, state_at_end
from tachograph.records import decode, decode_block, is_loss

__all__ = ["TAIL_BYTES", "JournalEnds", "current_state", "read_ends"]

TAIL_BYTES = 16 << 10

_HEAD_BYTES = 1 << 20
_ATTEMPT_HEAD_BYTES = 16 << 10


class JournalEnds(NamedTuple):
    """The first record of a journal, the first records of its current attempt, and its last records."""

    head: list[dict[str, Any]]
    attempt_head: list[dict[str, Any]]
    tail: list[dict[str, Any]]
    size_bytes: int

    @property
    def start(self) -> dict[str, Any]:
        """The `start` record of the last attempt, or an empty dict if it was not among the records read."""
        starts = (
            record for record in [*reversed(self.tail), *self.attempt_head, *self.head] if record["event"] == "start"
        )
        return next(starts, {})

    @property
    def end(self) -> dict[str, Any] | None:
        """The `end` record of the last attempt, or None if there is none."""
        boundary = next((record for record in reversed(self.tail) if record["event"] in {"start", "end"}), None)
        return boundary if boundary is not None and boundary["event"] == "end" else None

    def state(self, heartbeat: Heartbeat | None) -> RunState:
        """Return the state of the run, from its `end` record or inferred from its heartbeat."""
        return infer_state(self.start or None, heartbeat) if self.end is None else state_at_end(self.end)

    def has_step(self) -> bool:
        """Return whether a record of the tail has a step."""
        return any("global_step" in record for record in self._points())

    def has_loss(self) -> bool:
        """Return whether a record of the tail has the training loss."""
        names = set().union(*self._points())
        return "window/latest_loss" in names or any(map(is_loss, names))

    def _points(self) -> list[dict[str, Any]]:
        """Return the records of steps: an event may refer to an earlier step, and state a mean over the run."""
        return [record for record in self.tail if record["event"] != "event"]


def read_ends(folder: RunFolder, num_bytes: int, heartbeat: Heartbeat | None) -> JournalEnds:
    """Read the first record, the first records of the current attempt, and the last `num_bytes` of a journal."""
    # The heartbeat states where the current attempt starts, which may be far from both ends.
    attempt_offset = heartbeat.start_bytes if heartbeat else 0
    try:
        with open_journal(folder.journal) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = _decode_complete_lines(file.readline(_HEAD_BYTES))
            attempt_head: list[dict[str, Any]] = []
            if 0 < attempt_offset < size - num_bytes:
                file.seek(attempt_offset)
                attempt_head = _decode_complete_lines(file.read(_ATTEMPT_HEAD_BYTES))
            file.seek(max(0, size - num_bytes))
            return JournalEnds(head, attempt_head, _decode_complete_lines(file.read()), size)
    except faults(OSError):
        return JournalEnds([], [], [], 0)


def _decode_complete_lines(block: bytes) -> list[dict[str, Any]]:
    # A block read from the middle starts with part of a line; the last line may be incomplete.
    first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
    block_records = decode_block(block[:last] if block.startswith(b"{") else block[first:last])
    if block_records is not None:
        return block_records
    records = []
    for line in block[:last].split(b"\n"):
        try:
            records.append(decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # the block starts in the middle of a line, or the line is invalid
    return records


def current_state(folder: RunFolder) -> RunState:
    """Return the state of a run."""
    heartbeat = read_heartbeat(folder.heartbeat)
    return read_ends(folder, TAIL_BYTES, heartbeat).state(heartbeat)
