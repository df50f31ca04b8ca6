"""Exceptions and threads of a process without values: names of functions, lines and shapes.

Of local variables only tensors and arrays are listed, by name, shape and type. No value and no text is read: locals may
contain data and passwords.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from tachograph._base.guard import faults, suppress
from tachograph._base.program_code import is_program_file

__all__ = ["describe_error", "describe_stacks"]

_MAX_ERRORS = 8
_MAX_FRAMES = 50
_MAX_TENSORS = 32
_NUM_LOOKS = 3
_MAX_WORKERS = 64


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the chain of an exception and, for the frames of the user's code, the shapes of local tensors."""
    chain: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < _MAX_ERRORS:
        chain.append({"type": type(current).__qualname__, "frames": _frames_of(current)})
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return {"chain": chain}


def _frames_of(error: BaseException) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    entry = error.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        path = frame.f_code.co_filename
        described: dict[str, Any] = {
            "file": os.path.basename(path),
            "line": entry.tb_lineno,
            "function": frame.f_code.co_name,
        }
        if is_program_file(path):
            described["is_user_code"] = True
            described["tensors"] = _local_tensors(frame)
        frames.append(described)
        entry = entry.tb_next
    return frames[-_MAX_FRAMES:]


def _local_tensors(frame: FrameType) -> list[dict[str, Any]]:
    tensors = []
    for name, value in list(frame.f_locals.items()):
        kind = type(value)
        # By the class: an attribute of another object could be computed on access.
        if kind.__module__.partition(".")[0] not in {"torch", "numpy"} or not hasattr(kind, "shape"):
            continue
        with suppress(Exception):
            described: dict[str, Any] = {"name": name, "shape": [int(size) for size in value.shape]}
            described["dtype"] = str(value.dtype).removeprefix("torch.")
            if hasattr(kind, "requires_grad"):
                described |= {"device": str(value.device), "requires_grad": bool(value.requires_grad)}
                if value.device.type == "cpu" and value.is_floating_point() and value.numel() <= 1 << 22:
                    described["is_finite"] = bool(sys.modules["torch"].isfinite(value.detach()).all())
            tensors.append(described)
        if len(tensors) >= _MAX_TENSORS:
            break
    return tensors


def describe_stacks(pause_s: float = 1.0) -> dict[str, Any]:
    """Return the stacks of all threads, three times; equal ones together. Also the state of the child processes."""
    groups: dict[tuple[str, str, str], int] = {}
    for look in range(_NUM_LOOKS):
        if look:
            time.sleep(pause_s)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            key = (names.get(ident, "?"), *_format_stack(frame))
            groups[key] = groups.get(key, 0) + 1
    stacks = [
        {"thread": name, "stack": stack, "program_line": line, "times_seen": count}
        for (name, stack, line), count in groups.items()
    ]
    stacks.sort(key=lambda group: group["thread"] != "MainThread")
    return {"num_looks": _NUM_LOOKS, "threads": stacks, "workers": _describe_children()}


def _format_stack(frame: FrameType) -> tuple[str, str]:
    """Return a stack without the source lines, which may contain texts, and the innermost line of the program."""
    summary = traceback.extract_stack(frame, limit=-_MAX_FRAMES)
    lines = [f"{os.path.basename(line.filename)}:{line.lineno} {line.name}" for line in summary]
    program_lines = [text for text, line in zip(lines, summary, strict=True) if is_program_file(line.filename)]
    return "\n".join(lines), program_lines[-1] if program_lines else ""


def _describe_children() -> list[dict[str, Any]]:
    """Return the state of the child processes, such as the workers of a loader, and where they wait; Linux only."""
    children = []
    for pid in _child_pids()[:_MAX_WORKERS]:
        described: dict[str, Any] = {"pid": pid}
        status = _read(f"/proc/{pid}/status")
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in {"Name", "State"}:
                described[name.lower()] = value.strip()
            elif name == "VmRSS":
                described["rss_mb"] = int(value.split()[0]) // 1024
        described["waits_in"] = _read(f"/proc/{pid}/wchan")
        described["system_call"] = _read(f"/proc/{pid}/syscall").partition(" ")[0]
        children.append({name: value for name, value in described.items() if value not in {"", "0"}})
    return children


def _child_pids() -> list[int]:
    pids: set[int] = set()
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            pids |= {int(pid) for pid in _read(str(task / "children")).split()}
    return sorted(pids)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536).strip()
    except faults(OSError):
        return ""
