"""Where a checkpoint comes from, and how runs descend from each other.

A run states its parents by their ids, or by the path of a checkpoint whose run was unknown when it started. Children
are found the other way round, from the parents that all runs state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tachograph.catalog._row import RunRow
from tachograph.reader import ParentRun, SavedCheckpoint, read_stamp
from tachograph.records import step_of

__all__ = ["Origin", "RelatedRun", "ancestors_of", "children_of", "descendants_of", "find_origins"]

Certainty = Literal["certain", "likely", "possible"]
_RANKS: dict[Certainty, int] = {"certain": 0, "likely": 1, "possible": 2}
_CLOCK_S = 2.0
"""File systems round modification times, some to two seconds."""
_MAX_RELATED = 100


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


class RelatedRun(msgspec.Struct):
    """A run that another one descends from, or that descends from it."""

    run: str
    """The name of the run in its log folder; the recorded name if the run is not there."""
    run_id: str | None
    global_step: int | None
    """The step of the parent's checkpoint that the child started from."""
    how: str | None
    """`resume`, `init`, `finetune`, `merge`, `distill`, or `artifact` for the run that stored an artifact."""
    checkpoint_path: str | None
    is_here: bool
    """Whether the run is in the log folders."""
    depth: int
    """The number of runs in between. A run follows the one that it is the parent, or a child, of."""


def find_origins(path: str | os.PathLike[str], rows: Sequence[RunRow]) -> list[Origin]:
    """Return the runs that a checkpoint may come from, the most certain one first.

    A stamp decides. Without one, the path, the size and the modification time are compared with the records of
    runs; the content is not read.

    Args:
        path: the file or folder. It need not exist any more.
        rows: the runs, with full summaries.
    """
    checkpoint_path = os.path.abspath(path)
    stamp = read_stamp(checkpoint_path)
    if stamp is not None:
        row = next((row for row in rows if row.summary.run_id == stamp["run_id"]), None)
        name = row.id if row is not None else str(stamp.get("run_name") or stamp["run_id"])
        return [Origin(name, stamp["run_id"], step_of(stamp), *_check_stamp(checkpoint_path, stamp))]
    file_facts = _facts(checkpoint_path)
    origins: list[tuple[int, float, Origin]] = []
    for row in rows:
        for checkpoint in row.summary.checkpoints:
            match = _match(checkpoint_path, file_facts, checkpoint)
            if match is not None:
                origin = Origin(row.id, row.summary.run_id, checkpoint.global_step, *match, saved_as=checkpoint.path)
                origins.append((_RANKS[match[0]], -(checkpoint.time or 0.0), origin))
    return [origin for _, _, origin in sorted(origins, key=lambda entry: entry[:2])]


class _FileFacts(msgspec.Struct):
    size_bytes: int | None
    modified: float


def _facts(path: str) -> _FileFacts | None:
    try:
        file_status = os.stat(path)
    except OSError:
        return None
    return _FileFacts(None if os.path.isdir(path) else file_status.st_size, file_status.st_mtime)


def _check_stamp(path: str, stamp: dict[str, Any]) -> tuple[Certainty, str]:
    file_facts = _facts(path)
    size = stamp.get("size_bytes")
    if (
        file_facts is not None
        and file_facts.size_bytes is not None
        and type(size) is int
        and size != file_facts.size_bytes
    ):
        return "likely", "the stamp beside it names the run, but the file has another size than when it was saved"
    return "certain", "the stamp that was written with it names the run"


def _match(path: str, file_facts: _FileFacts | None, checkpoint: SavedCheckpoint) -> tuple[Certainty, str] | None:
    """Return how sure it is that a file is a saved checkpoint, and why; None if it is not."""
    is_same_path = checkpoint.path == path
    if file_facts is None:
        return ("likely", "the run saved it at this path; it is no longer there") if is_same_path else None
    has_size = checkpoint.size_bytes is not None and file_facts.size_bytes is not None
    is_same_size = has_size and checkpoint.size_bytes == file_facts.size_bytes
    is_same_time = checkpoint.modified is not None and abs(checkpoint.modified - file_facts.modified) <= _CLOCK_S
    if is_same_path:
        if has_size and not is_same_size:
            return "possible", "the run saved a file at this path, but of another size"
        if is_same_time or (
            checkpoint.modified is None and checkpoint.time is not None and file_facts.modified <= checkpoint.time + 60
        ):
            return "certain", "path, size and time agree" if is_same_size else "path and time agree"
        return "likely", "the run saved it at this path, but it was modified later"
    if is_same_size and is_same_time:
        is_same_name = os.path.basename(checkpoint.path) == os.path.basename(path)
        what = "name, size and time" if is_same_name else "size and time"
        return ("likely" if is_same_name else "possible"), f"{what} agree, but it was saved at another path"
    return None


def ancestors_of(row: RunRow | None, rows: Sequence[RunRow]) -> list[RelatedRun]:
    """Return the parents of a run, their parents and so on, each followed by its own."""
    index = _RunIndex(rows)
    ancestors: list[RelatedRun] = []
    visited_ids: set[int] = set()

    def add(child: RunRow, depth: int) -> None:
        visited_ids.add(id(child))
        for parent in child.summary.parents:
            if len(ancestors) >= _MAX_RELATED:
                return
            run, step = index.find(parent, child) or _search(parent, rows)
            name = run.id if run is not None else parent.run_name or parent.checkpoint_path or parent.run_id or "?"
            run_id = run.summary.run_id if run is not None else parent.run_id
            ancestors.append(RelatedRun(name, run_id, step, parent.how, parent.checkpoint_path, run is not None, depth))
            if run is not None and id(run) not in visited_ids:
                add(run, depth + 1)

    if row is not None:
        add(row, 0)
    return ancestors


def descendants_of(row: RunRow, rows: Sequence[RunRow]) -> list[RelatedRun]:
    """Return the children of a run, their children and so on, each followed by its own."""
    children = _links(rows)
    descendants: list[RelatedRun] = []
    visited_ids: set[int] = set()

    def add(parent: RunRow, depth: int) -> None:
        visited_ids.add(id(parent))
        for child, link, step in children.get(id(parent), ()):
            if len(descendants) >= _MAX_RELATED:
                return
            run_id = child.summary.run_id
            descendants.append(RelatedRun(child.id, run_id, step, link.how, link.checkpoint_path, True, depth))
            if id(child) not in visited_ids:
                add(child, depth + 1)

    add(row, 0)
    return descendants


def children_of(rows: Sequence[RunRow]) -> dict[int, list[str]]:
    """Return the ids of the runs that started from each row, oldest first, by the identity of the row."""
    return {row: list(dict.fromkeys(child.id for child, _, _ in links)) for row, links in _links(rows).items()}


def _links(rows: Sequence[RunRow]) -> dict[int, list[tuple[RunRow, ParentRun, int | None]]]:
    """Return the children of each row, oldest first: the child, how it names its parent, and the step."""
    links: dict[int, list[tuple[RunRow, ParentRun, int | None]]] = {}
    children = [row for row in rows if row.summary.parents]
    if not children:
        return links
    index = _RunIndex(rows)
    for child in sorted(children, key=lambda row: row.summary.overview.started or 0.0):
        for parent in child.summary.parents:
            parent_and_step = index.find(parent, child)
            # A copy of a run keeps its id: the child descends from each of them.
            copies = index.by_id.get(parent.run_id or "") or (
                [parent_and_step[0]] if parent_and_step is not None else []
            )
            for row in copies:
                links.setdefault(id(row), []).append(
                    (child, parent, parent_and_step[1] if parent_and_step else parent.global_step)
                )
    return links


class _RunIndex:
    """Runs by their ids and by the paths of their checkpoints."""

    def __init__(self, rows: Sequence[RunRow]) -> None:
        self.by_id: dict[str, list[RunRow]] = {}
        self._by_path: dict[str, list[tuple[float, RunRow, int | None]]] | None = None
        self._rows = rows
        for row in rows:
            if row.summary.run_id is not None:
                self.by_id.setdefault(row.summary.run_id, []).append(row)

    def find(self, parent: ParentRun, child: RunRow) -> tuple[RunRow, int | None] | None:
        """Return the run that a child names as its parent and the step at which it was left; None if it is not here."""
        copies = self.by_id.get(parent.run_id or "", [])
        if copies:
            return next((row for row in copies if row.name == parent.run_name), copies[0]), parent.global_step
        if parent.run_id is not None or parent.checkpoint_path is None:
            return None
        # Its run was unknown when the child started. Several runs may have written to the path, one after the other.
        started_at = child.summary.overview.started or float("inf")
        candidates = [
            (time, row, step)
            for time, row, step in self._saved_at(parent.checkpoint_path)
            if time <= started_at and row is not child
        ]
        if not candidates:
            return None
        _, row, step = max(candidates, key=lambda entry: entry[0])
        return row, step

    def _saved_at(self, path: str) -> list[tuple[float, RunRow, int | None]]:
        if self._by_path is None:
            self._by_path = {}
            for row in self._rows:
                for checkpoint in row.summary.checkpoints:
                    self._by_path.setdefault(checkpoint.path, []).append(
                        (checkpoint.time or 0.0, row, checkpoint.global_step)
                    )
        return self._by_path.get(path, [])


def _search(parent: ParentRun, rows: Sequence[RunRow]) -> tuple[RunRow | None, int | None]:
    """Return the run whose checkpoint looks like the checkpoint of a parent, and the step at which it was left."""
    if parent.run_id is None and parent.checkpoint_path is not None:
        for origin in find_origins(parent.checkpoint_path, rows):
            row = next((row for row in rows if row.id == origin.run), None)
            if origin.certainty != "possible" and row is not None:
                return row, origin.global_step
    return None, parent.global_step
