"""Format values for the terminal.

Text from a journal is untrusted: it is never interpreted as rich markup, and everything that is not printable is
escaped (see `_terminal`), so that a run name or an error message cannot drive the terminal.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from tachograph._base.text import format_duration
from tachograph.cli._terminal import safe, safe_lines
from tachograph.journal import RunState
from tachograph.records import to_json

__all__ = [
    "Sparkline",
    "add_row",
    "ago",
    "bar",
    "duration",
    "grid",
    "json_text",
    "new_console",
    "new_table",
    "format_time",
    "number",
    "plural",
    "safe",
    "size",
    "sparkline",
    "state_text",
]

_STATE_STYLES = {
    RunState.RUNNING: "bold green",
    RunState.FINISHED: "cyan",
    RunState.FAILED: "bold red",
    RunState.INTERRUPTED: "yellow",
    RunState.CRASHED: "bold red",
    RunState.STALE: "yellow",
}
_BLOCKS = "▁▂▃▄▅▆▇█"


class _SafeConsole(Console):
    """Escapes the text of everything that is printed."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return what to print, in segments: texts, with their styles apart."""
        for segment in super().render(renderable, options):
            is_safe = segment.control is not None or segment.text.isprintable()
            yield segment if is_safe else segment._replace(text=safe_lines(segment.text))


def new_console(*, highlight: bool = True) -> Console:
    """Return a console that prints to the standard output."""
    return _SafeConsole(highlight=highlight)


def json_text(value: Any) -> str:
    """Return JSON with control characters escaped."""
    # JSON may contain characters such as U+009B unescaped, which some terminals interpret.
    text = to_json(value)
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}" if character.isascii() else json.dumps(character)[1:-1]


def state_text(state: RunState) -> Text:
    """Return the colored state."""
    return Text(str(state), style=_STATE_STYLES[state])


def number(value: Any) -> str:
    """Return a number in about ten characters at most; a dash if it is missing."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return safe(value, 40)
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ") if abs(value) >= 10_000 else str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    return f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 record``, ``2 records``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float | None) -> str:
    """Return a human-readable duration; a dash if it is missing."""
    return "–" if seconds is None or not math.isfinite(seconds) else format_duration(seconds)


def ago(time_s: float | None) -> str:
    """Return the approximate time since `time_s`."""
    if time_s is None:
        return "–"
    seconds = max(0.0, time.time() - time_s)
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def format_time(time_s: Any, pattern: str) -> str:
    """Return a time in the local time zone; an empty string if it is not a valid time."""
    try:
        return datetime.fromtimestamp(time_s).strftime(pattern)
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def size(num_bytes: float) -> str:
    """Return a human-readable size."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def bar(share: float, *, is_live: bool, width: int = 40) -> ProgressBar:
    """Return a progress bar."""
    return ProgressBar(total=1.0, completed=share, width=width, pulse=False, style="dim" if is_live else "bar.back")


class _FittingTable(Table):
    """A table that leaves out its last columns where the terminal is too narrow, so that the others stay readable."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def width_of(column: Column) -> int:
            if not column.no_wrap:
                return column.min_width or len(str(column.header))
            cells = [column.header, *column.cells]
            return max(Measurement.get(console, options, cell).maximum for cell in cells)

        table = copy.copy(self)
        table.columns = list(self.columns)
        gap = self.padding[1]
        while (
            len(table.columns) > 2
            and sum(map(width_of, table.columns)) + gap * (len(table.columns) - 1) > options.max_width
        ):
            table.columns.pop()
        yield from Table.__rich_console__(table, console, options)


def new_table(*headings: str, right: Collection[str] = (), wraps: Collection[str] = ()) -> Table:
    """Return an empty table in the common style; columns in `wraps` may wrap."""
    table = _FittingTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    first, *others = headings
    table.add_column(first, overflow="fold", min_width=12)  # names wrap rather than being truncated
    for heading in others:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=heading not in wraps)
    return table


def add_row(table: Table, *cells: RenderableType) -> None:
    """Add a row; text cells are never interpreted as markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def grid(rows: Sequence[tuple[str, Any]]) -> Table:
    """Return a two-column grid of names and values; skip rows without a value."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value not in (None, "", "–"):
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


class Sparkline:
    """A name and its values in one line, as wide as the terminal at most."""

    def __init__(self, name: str, values: Sequence[float]) -> None:
        self._name, self._values = name, values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(8, min(60, options.max_width - len(self._name) - 2))
        yield Text.assemble((f"{self._name}  ", "dim"), (sparkline(self._values, width), "green"))


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Draw values in one line; ``×`` marks a cell that contains a NaN or an infinity."""
    if not len(values):
        return ""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    cells = []
    num_cells = min(width, len(values))
    for cell in range(num_cells):
        part = values[cell * len(values) // num_cells : (cell + 1) * len(values) // num_cells]
        if not all(map(math.isfinite, part)):  # a mean would hide it
            cells.append("×")
            continue
        level = (sum(part) / len(part) - low) / (high - low) if high > low else 0.0
        cells.append(_BLOCKS[round(level * (len(_BLOCKS) - 1))])
    return "".join(cells)
