"""The Python stacks that ranks wrote when their job hung, equal ones together."""

from __future__ import annotations

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


class StackGroup(msgspec.Struct, kw_only=True):
    """Ranks that hung in the same place."""

    ranks: list[int]
    lines: list[str]
    """The stack of the main thread, innermost call last."""


def read_stacks(folder: RunFolder) -> list[StackGroup]:
    """Return the stacks of all ranks that wrote one, rare ones first: the job waits for one of those."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, path in sorted(_stack_files(folder.ranks).items())[:_MAX_FILES]:
        with suppress(OSError):
            text = read_small(path, _MAX_BYTES).decode("utf-8", "replace")
            groups.setdefault(_main_stack(text), []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    return [StackGroup(ranks=ranks, lines=list(lines)) for lines, ranks in ordered if lines]


def _stack_files(folder: Path) -> dict[int, Path]:
    with suppress(OSError):
        matches = [(_STACKS_FILE.fullmatch(path.name), path) for path in folder.iterdir()]
        return {int(match[1]): path for match, path in matches if match is not None}
    return {}


def _main_stack(text: str) -> tuple[str, ...]:
    """Return the lines of the first thread, which is the main thread."""
    _, _, rest = text.partition("innermost call last:\n")
    stack, _, _ = rest.partition("\n\nThread ")
    return tuple(line for line in stack.splitlines() if line.strip())
