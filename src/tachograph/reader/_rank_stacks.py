"""The Python stacks that ranks wrote when their job hung, equal ones together."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from tachograph._base.files import read_small
from tachograph._base.guard import suppress
from tachograph.journal import RunFolder

__all__ = ["StackGroup", "read_stacks"]

_MAX_BYTES = 1 << 20
_MAX_FILES = 10_000
_STACKS_FILE = re.compile(r"(\d{5,})\.stacks\.txt")
_NATIVE_CALL = re.compile(r"(, line (?:\d+|\?\?\?)) in ")
_TIMER_TOLERANCE_S = 5.0


class StackGroup(msgspec.Struct, kw_only=True):
    """Ranks that hung in the same place."""

    ranks: list[int]
    lines: list[str]
    """The stack of the main thread, innermost call last."""


def read_stacks(folder: RunFolder) -> list[StackGroup]:
    """Return the stacks of all ranks that wrote one, rare ones first: the job waits for one of those."""
    groups: dict[tuple[str, ...], list[int]] = {}
    paths, native_paths = _stack_files(folder.ranks), _stack_files(folder.private / "ranks")
    for rank in sorted({*paths, *native_paths})[:_MAX_FILES]:
        stack = _read_stack(paths.get(rank), native_paths.get(rank))
        if stack:
            groups.setdefault(stack, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    return [StackGroup(ranks=ranks, lines=list(lines)) for lines, ranks in ordered]


def _stack_files(folder: Path) -> dict[int, str]:
    with suppress(OSError):
        matches = [_STACKS_FILE.fullmatch(name) for name in os.listdir(folder)]
        return {int(match[1]): os.path.join(folder, match[0]) for match in matches if match is not None}
    return {}


def _read_stack(path: str | None, native_path: str | None) -> tuple[str, ...]:
    """Return the stack of the main thread of a rank from its two files; see `HangStacks`.

    The timer of `faulthandler` fires at about the time at which a writer thread that can run writes its file, which has
    source lines. So the file of the timer counts only if it is clearly newer: the interpreter lock was held then.
    """
    stack: tuple[str, ...] = ()
    written_at = float("-inf")
    with suppress(OSError):
        if path is not None:
            stack, written_at = _main_stack(_read_text(path)), os.stat(path).st_mtime
    with suppress(OSError):
        # Each rank has this file while it runs; it is empty unless the timer has fired.
        status = os.stat(native_path) if native_path is not None else None
        if native_path and status and status.st_size and status.st_mtime > written_at + _TIMER_TOLERANCE_S:
            stack = _native_main_stack(_read_text(native_path)) or stack
    return stack


def _read_text(path: str) -> str:
    return read_small(Path(path), _MAX_BYTES).decode("utf-8", "replace")


def _main_stack(text: str) -> tuple[str, ...]:
    """Return the lines of the first thread, which is the main thread."""
    _, _, rest = text.partition("innermost call last:\n")
    stack, _, _ = rest.partition("\n\nThread ")
    return tuple(line for line in stack.splitlines() if line.strip())


def _native_main_stack(text: str) -> tuple[str, ...]:
    """Return the lines of the main thread as `faulthandler` wrote them, which it lists last, in the order of others."""
    _, _, last_dump = text.rpartition("Timeout (")
    _, _, stack = last_dump.rpartition("(most recent call first):\n")
    calls = [_NATIVE_CALL.sub(r"\1, in ", line, count=1) for line in stack.splitlines() if line.startswith("  File ")]
    return tuple(reversed(calls))
