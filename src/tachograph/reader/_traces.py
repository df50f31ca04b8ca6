"""The traces of a run: files written by torch's profiler to `traces/`."""

from __future__ import annotations

import os
import re
import stat
from typing import BinaryIO, NamedTuple

from tachograph._base.files import open_to_read
from tachograph._base.guard import faults
from tachograph.journal import RunFolder

__all__ = ["TraceFile", "list_traces", "open_trace", "trace_name"]

_NAME = re.compile(r"step-(-?[0-9]{1,16})-([0-9]{1,4})(?:-[0-9]{1,3})?\.json\.gz")


class TraceFile(NamedTuple):
    """A stored trace."""

    name: str
    first_step: int
    num_steps: int
    size_bytes: int
    time: float
    """The modification time of the file."""


def trace_name(first_step: int, num_steps: int, number: int = 1) -> str:
    """Return the file name of a trace; `number` distinguishes traces of the same steps."""
    return f"step-{first_step:06d}-{num_steps}{f'-{number}' if number > 1 else ''}.json.gz"


def list_traces(folder: RunFolder) -> list[TraceFile]:
    """Return the stored traces, oldest first. Ignore links and files with other names."""
    traces = []
    try:
        if stat.S_ISDIR(os.lstat(folder.traces).st_mode):
            for entry in os.scandir(folder.traces):
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    file_status = entry.stat(follow_symlinks=False)
                    traces.append(
                        TraceFile(entry.name, int(match[1]), int(match[2]), file_status.st_size, file_status.st_mtime)
                    )
    except faults(OSError):
        pass  # the folder does not exist or is being deleted
    return sorted(traces, key=lambda trace: (trace.time, trace.name))


def open_trace(folder: RunFolder, name: str) -> BinaryIO | None:
    """Open a trace by name, or return None. Follows no links, so no other file can be read this way."""
    if _NAME.fullmatch(name) is None:
        return None
    try:
        return open_to_read(folder.traces / name, below=folder.path)
    except faults(OSError):
        return None
