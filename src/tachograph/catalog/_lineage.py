"""Where a checkpoint comes from: the run that saved it, and the runs which that one started from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tachograph.catalog._row import RunRow
from tachograph.provenance import read_stamp
from tachograph.reader import ParentRun, SavedCheckpoint
from tachograph.records import step_of

__all__ = ["Ancestor", "Origin", "ancestors_of", "find_origins"]

Certainty = Literal["certain", "likely", "possible"]
_RANKS: dict[Certainty, int] = {"certain": 0, "likely": 1, "possible": 2}
_CLOCK_S = 2.0
"""File systems round modification times, some to two seconds."""
_MAX_ANCESTORS = 100


class Origin(msgspec.Struct):
    """A run that a checkpoint may come from."""

    run: str
    """The name of the run in its log folder; the recorded name if the run is not there."""
    run_id: str | None
    global_step: int | None
    certainty: Certainty
    reason: str
    """Why the run is named, and how sure that is."""
    saved_as: str | None = None
    """The path under which the run saved the checkpoint."""


class Ancestor(msgspec.Struct):
    """A run in the chain of parents."""

    run: str
    run_id: str | None
    global_step: int | None
    """The step of the checkpoint that its child started from."""
    how: str | None
    checkpoint_path: str | None
    is_here: bool
    """Whether the run is in the log folders."""
    depth: int


def find_origins(path: str | os.PathLike[str], rows: Sequence[RunRow]) -> list[Origin]:
    """Return the runs that a checkpoint may come from, the most certain one first.

    A stamp decides. Without one, the path, the size and the modification time are compared with those that runs have
    recorded; the content is not read.

    Args:
        path: the file or folder. It need not exist any more.
        rows: the runs, with full summaries.
    """
    place = os.path.abspath(path)
    stamp = read_stamp(place)
    if stamp is not None:
        row = next((row for row in rows if row.summary.run_id == stamp["run_id"]), None)
        name = row.id if row is not None else str(stamp.get("run_name") or stamp["run_id"])
        return [Origin(name, stamp["run_id"], step_of(stamp), *_check_stamp(place, stamp))]
    found = _facts(place)
    origins: list[tuple[int, float, Origin]] = []
    for row in rows:
        for saved in row.summary.checkpoints:
            answer = _match(place, found, saved)
            if answer is not None:
                origin = Origin(row.id, row.summary.run_id, saved.global_step, *answer, saved_as=saved.path)
                origins.append((_RANKS[answer[0]], -(saved.time or 0.0), origin))
    return [origin for _, _, origin in sorted(origins, key=lambda entry: entry[:2])]


class _FileFacts(msgspec.Struct):
    size_bytes: int | None
    modified: float


def _facts(place: str) -> _FileFacts | None:
    try:
        found = os.stat(place)
    except OSError:
        return None
    return _FileFacts(None if os.path.isdir(place) else found.st_size, found.st_mtime)


def _check_stamp(place: str, stamp: dict[str, Any]) -> tuple[Certainty, str]:
    found = _facts(place)
    size = stamp.get("size_bytes")
    if found is not None and found.size_bytes is not None and type(size) is int and size != found.size_bytes:
        return "likely", "the stamp beside it names the run, but the file has another size than when it was saved"
    return "certain", "the stamp that was written with it names the run"


def _match(place: str, found: _FileFacts | None, saved: SavedCheckpoint) -> tuple[Certainty, str] | None:
    """Return how sure it is that a file is a saved checkpoint, and why; None if it is not."""
    is_same_path = saved.path == place
    if found is None:
        return ("likely", "the run saved it at this path; it is no longer there") if is_same_path else None
    has_size = saved.size_bytes is not None and found.size_bytes is not None
    is_same_size = has_size and saved.size_bytes == found.size_bytes
    is_same_time = saved.modified is not None and abs(saved.modified - found.modified) <= _CLOCK_S
    if is_same_path:
        if has_size and not is_same_size:
            return "possible", "the run saved a file at this path, but of another size"
        if is_same_time or (saved.modified is None and saved.time is not None and found.modified <= saved.time + 60):
            return "certain", "path, size and time agree" if is_same_size else "path and time agree"
        return "likely", "the run saved it at this path, but it was modified later"
    if is_same_size and is_same_time:
        is_same_name = os.path.basename(saved.path) == os.path.basename(place)
        what = "name, size and time" if is_same_name else "size and time"
        return ("likely" if is_same_name else "possible"), f"{what} agree, but it was saved at another path"
    return None


def ancestors_of(row: RunRow | None, rows: Sequence[RunRow]) -> list[Ancestor]:
    """Return the parents of a run, their parents and so on, each followed by its own."""
    by_id: dict[str, RunRow] = {}
    for each in rows:
        if each.summary.run_id is not None:
            by_id.setdefault(each.summary.run_id, each)
    found: list[Ancestor] = []
    seen: set[int] = set()

    def add(child: RunRow, depth: int) -> None:
        seen.add(id(child))
        for parent in child.summary.parents:
            if len(found) >= _MAX_ANCESTORS:
                return
            run, step = _run_of(parent, by_id, rows)
            name = run.id if run is not None else parent.run_name or parent.checkpoint_path or parent.run_id or "?"
            run_id = run.summary.run_id if run is not None else parent.run_id
            found.append(Ancestor(name, run_id, step, parent.how, parent.checkpoint_path, run is not None, depth))
            if run is not None and id(run) not in seen:
                add(run, depth + 1)

    if row is not None:
        add(row, 0)
    return found


def _run_of(parent: ParentRun, by_id: dict[str, RunRow], rows: Sequence[RunRow]) -> tuple[RunRow | None, int | None]:
    """Return the run of a parent, and the step at which it was left."""
    if parent.run_id is not None:
        return by_id.get(parent.run_id), parent.global_step
    if parent.checkpoint_path is not None:  # its run was unknown when the child started
        for origin in find_origins(parent.checkpoint_path, rows):
            if origin.certainty != "possible" and origin.run_id in by_id:
                return by_id[origin.run_id], origin.global_step
    return None, parent.global_step
