"""The traces of a run: files of torch's profiler in `traces/`, by the names that they are given."""

from __future__ import annotations

import os
import re
import stat
from typing import BinaryIO, NamedTuple

from tachograph.journal._folder import RunFolder

__all__ = ["TraceFile", "list_traces", "open_trace", "trace_name"]

_NAME = re.compile(r"step-(-?[0-9]{1,16})-([0-9]{1,4})(?:-[0-9]{1,3})?\.json\.gz")
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class TraceFile(NamedTuple):
    """A trace that is stored."""

    name: str
    first_step: int
    num_steps: int
    size_bytes: int
    time: float
    """When it was stored."""


def trace_name(first_step: int, num_steps: int, number: int = 1) -> str:
    """Return the name of a trace; `number` tells those of the same steps apart."""
    return f"step-{first_step:06d}-{num_steps}{f'-{number}' if number > 1 else ''}.json.gz"


def list_traces(folder: RunFolder) -> list[TraceFile]:
    """Return the traces that are there, oldest first. Links and whatever is named otherwise are passed over."""
    found = []
    try:
        if stat.S_ISDIR(os.lstat(folder.traces).st_mode):
            for entry in os.scandir(folder.traces):
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    known = entry.stat(follow_symlinks=False)
                    found.append(TraceFile(entry.name, int(match[1]), int(match[2]), known.st_size, known.st_mtime))
    except OSError:
        pass  # the folder is not there, or goes away at this moment
    return sorted(found, key=lambda trace: (trace.time, trace.name))


def open_trace(folder: RunFolder, name: str) -> BinaryIO | None:
    """Open a trace by its name; None if there is none. Follows no link, so that no other file can be read by it."""
    if _NAME.fullmatch(name) is None:
        return None
    try:
        if not stat.S_ISDIR(os.lstat(folder.traces).st_mode):
            return None
        descriptor = os.open(folder.traces / name, _FLAGS)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    return None
