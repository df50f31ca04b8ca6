"""Find the run that a checkpoint comes from, while another run starts from it.

In order: a stamp beside the checkpoint, the file that integrations write into a checkpoint folder, and the journals of
the log folder. Reading journals has a time limit, because a training waits for it. If no run is found, the path itself
is recorded; `tacho origin` can still find the run later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import read_small, replace_file
from tachograph._base.guard import suppress
from tachograph._base.typed import decode_json
from tachograph.journal import RunFolder, list_runs, read_records
from tachograph.reader._checkpoints import ParentRun
from tachograph.records import decode, finite_or_none, step_of

__all__ = ["CHECKPOINT_RUN_FILE", "find_parent", "read_stamp", "stamp_path", "write_stamp"]

CHECKPOINT_RUN_FILE = "tachograph.json"
"""The file in a checkpoint folder that names the run that saved it."""
_MAX_STAMP_BYTES = 64 << 10
_MAX_SEARCH_S = 0.5


def stamp_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the path of the stamp beside a checkpoint."""
    path = os.path.abspath(checkpoint)
    return Path(f"{path}.tacho.json")


def write_stamp(checkpoint: str | os.PathLike[str], run_id: str, run_name: str, step: int | None) -> None:
    """Write beside a checkpoint which run saved it.

    Raises:
        OSError: if it cannot be written.
    """
    path = stamp_path(checkpoint)
    file_status = os.stat(checkpoint)
    content = {
        "run_id": run_id,
        "run_name": run_name,
        "global_step": step,
        "size_bytes": None if os.path.isdir(checkpoint) else file_status.st_size,
        "modified": file_status.st_mtime,
    }
    data = msgspec.json.encode({name: value for name, value in content.items() if value is not None})
    replace_file(path, data, below=path.parent)


def read_stamp(checkpoint: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the stamp of a checkpoint, beside it or in its folder; None if it has none."""
    for path in (stamp_path(checkpoint), Path(os.path.abspath(checkpoint), CHECKPOINT_RUN_FILE)):
        with suppress(OSError, msgspec.MsgspecError):
            content = decode_json(read_small(path, _MAX_STAMP_BYTES), dict[str, Any])
            if isinstance(content.get("run_id"), str):
                return {"global_step": content.get("step"), **content}
    return None


def find_parent(parent: str | os.PathLike[str], log_dir: str, how: str) -> ParentRun | None:
    """Return the run that a name, a run folder or a checkpoint stands for; None if there is none.

    Args:
        parent: the name of a run in the log folder, the path of its folder, or the path of a checkpoint.
        log_dir: the log folder to search.
        how: how the new run uses it.
    """
    text = os.fspath(parent)
    for folder in (RunFolder(Path(log_dir, text)), RunFolder(text)):
        with suppress(OSError, ValueError):
            if folder.exists():
                start = next((record for record in read_records(folder.journal) if record["event"] == "start"), {})
                return ParentRun(run_id=_text(start.get("run_id")), run_name=folder.name, how=how)
    path = os.path.abspath(text)
    if not os.path.exists(path):
        return None
    stamp = read_stamp(path)
    if stamp is not None:
        return _parent(stamp, path, how)
    return _parent(_search(path, log_dir) or {}, path, how)


def _parent(run: Mapping[str, Any], path: str, how: str) -> ParentRun:
    return ParentRun(
        run_id=_text(run.get("run_id")),
        run_name=_text(run.get("run_name")),
        checkpoint_path=path,
        global_step=step_of(dict(run)),
        how=how,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _modified_s(folder: RunFolder) -> float:
    with suppress(OSError):
        return folder.journal.stat().st_mtime
    return 0.0


def _search(path: str, log_dir: str) -> dict[str, Any] | None:
    """Return the run whose journal names a checkpoint; of several runs, the one with the latest record."""
    deadline_s = time.monotonic() + _MAX_SEARCH_S
    name = os.path.basename(path).encode()
    best: tuple[float, dict[str, Any]] | None = None
    for folder in sorted(list_runs(log_dir), key=_modified_s, reverse=True):
        if time.monotonic() > deadline_s:
            break
        with suppress(OSError, ValueError, msgspec.MsgspecError):  # such as a torn line
            start: dict[str, Any] = {}
            with open(folder.journal, "rb") as file:
                for line in file:
                    is_start = line.startswith(b'{"event":"start"')
                    is_candidate = name in line and (b'"checkpoint_path"' in line or b'"checkpoint_directory"' in line)
                    if not is_start and not is_candidate:
                        if time.monotonic() > deadline_s:
                            break
                        continue
                    record = decode(line)
                    if is_start:
                        start = record
                        continue
                    saved_path = record.get("checkpoint_path") or record.get("checkpoint_directory")
                    saved_path = os.path.normpath(os.path.join(str(start.get("cwd") or ""), str(saved_path)))
                    if saved_path == path:
                        at = finite_or_none(record.get("time")) or 0.0
                        if best is None or at >= best[0]:
                            step = record.get("global_step", record.get("current_iteration"))
                            run = {"run_id": start.get("run_id"), "run_name": folder.name, "global_step": step}
                            best = (at, run)
    return best[1] if best is not None else None
