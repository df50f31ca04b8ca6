"""The checkpoints that a run saved, and the runs that it continues."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph.reader._digest import RunDigest
from tachograph.records import PARENT, finite_or_none, step_of

__all__ = ["ParentRun", "SavedCheckpoint", "checkpoint_records", "parents_of", "saved_checkpoints"]


class SavedCheckpoint(msgspec.Struct, omit_defaults=True):
    """A checkpoint that a run saved."""

    path: str
    """The absolute path at the time of saving."""
    global_step: int | None = None
    time: float | None = None
    """When it was recorded."""
    size_bytes: int | None = None
    modified: float | None = None
    """The modification time of the file or folder."""
    is_best: bool = False


class ParentRun(msgspec.Struct):
    """A run, or a checkpoint of it, that another run started from."""

    run_id: str | None = None
    run_name: str | None = None
    checkpoint_path: str | None = None
    global_step: int | None = None
    how: str | None = None
    """`resume`, `init`, `finetune`, `merge`, `distill`, or `artifact` for the run that stored an artifact."""


def checkpoint_records(run: RunDigest) -> list[dict[str, Any]]:
    """Return the checkpoint records; if there are none, build them from the events of checkpoint spans."""
    records = run.latest("checkpoint")
    if records:
        return records
    return [
        {
            "event": "checkpoint",
            "time": record.get("time"),
            "global_step": record.get("current_iteration"),
            "checkpoint_path": record.get("checkpoint_directory"),
            "size_bytes": record.get("checkpoint_size"),
        }
        for record in run.latest("event", "save_checkpoint_success")
        if record.get("checkpoint_directory")
    ]


def saved_checkpoints(run: RunDigest) -> list[SavedCheckpoint]:
    """Return the checkpoints of a run, oldest first."""
    checkpoints = []
    for record in checkpoint_records(run):
        path = record.get("checkpoint_path")
        if isinstance(path, str) and path:
            num_bytes = record.get("size_bytes")
            time = finite_or_none(record.get("time"))
            checkpoints.append(
                SavedCheckpoint(
                    path=os.path.normpath(os.path.join(_folder_at(run, time), path)),
                    global_step=step_of(record),
                    time=time,
                    size_bytes=num_bytes if type(num_bytes) is int else None,
                    modified=finite_or_none(record.get("modified")),
                    is_best=record.get("is_best") is True,
                )
            )
    return checkpoints


def _folder_at(run: RunDigest, time: float | None) -> str:
    """Return the working folder of the attempt that was recorded at a time."""
    folder = ""
    for attempt in run.attempts:
        started_at = finite_or_none(attempt.start.get("time"))
        if not folder or (time is not None and started_at is not None and started_at <= time):
            folder = str(attempt.start.get("cwd") or folder)
    return folder


def parents_of(run: RunDigest) -> list[ParentRun]:
    """Return the runs that a run started from, in order, without the run itself and without repetitions."""
    entries: list[Any] = []
    for attempt in run.attempts:
        parents_at_start = attempt.start.get("parents")
        entries += parents_at_start if isinstance(parents_at_start, list) else []
    entries += run.latest("event", PARENT)
    own_run_id = run.attempts[-1].start.get("run_id") if run.attempts else None
    parents: list[ParentRun] = []
    for entry in entries:
        if isinstance(entry, Mapping):
            texts = {name: entry.get(name) for name in ("run_id", "run_name", "checkpoint_path", "how")}
            identifiers = {name: value for name, value in texts.items() if isinstance(value, str) and value}
            parent = ParentRun(**identifiers, global_step=step_of(dict(entry)))
            if identifiers and parent not in parents and (parent.run_id is None or parent.run_id != own_run_id):
                parents.append(parent)
    return parents
