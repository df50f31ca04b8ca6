"""How several runs differ, as tables in the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from tachograph.cli._format import add_row, new_table, number, safe

if TYPE_CHECKING:
    from tachograph.catalog import FileVersions, RunsDiff, Variation

__all__ = ["cell_text", "print_runs_diff"]

_MAX_CELL_CHARS = 200
_MAX_COLUMNS = 6
"""With more runs, they become rows."""
_MAX_VALUES = 4


def cell_text(value: Any) -> str:
    """Return a value for a cell of a table."""
    if isinstance(value, list):
        return safe(" ".join(map(str, value)), _MAX_CELL_CHARS)
    return safe(value, _MAX_CELL_CHARS) if isinstance(value, str) else number(value)


def print_runs_diff(console: Console, runs_diff: RunsDiff) -> None:
    """Print config beside results, then all other differences."""
    titles = [safe(run.title, 60) for run in runs_diff.runs]
    parts = {"git": runs_diff.git, "packages": runs_diff.packages, "environment": runs_diff.environment}
    if not any((runs_diff.config, runs_diff.files, *parts.values())):
        console.print(Text("No differences found."), Text())
    _print_config(console, titles, runs_diff)
    for name, part in parts.items():
        if part:
            _print_part(console, name, titles, part)
    if runs_diff.files:
        _print_files(console, titles, runs_diff.files)
    console.print(Text(f"Config keys that are equal in all runs: {runs_diff.num_equal}.", style="dim"))
    if runs_diff.num_ignored:
        text = f"Names of runs, paths, times, ports and similar keys that differ: {runs_diff.num_ignored}."
        console.print(Text(text, style="dim"))
    for note in runs_diff.notes:
        console.print(Text(f"not compared: {safe(note, 500)}", style="yellow"))


def _print_config(console: Console, titles: list[str], runs_diff: RunsDiff) -> None:
    """Print the config keys that differ, then the results, with the best ones marked."""
    cells = {safe(each.name, 80): list(map(cell_text, each.values)) for each in runs_diff.config if each.differs}
    for each in runs_diff.results:
        marks = [" *" if run.name == each.best else "" for run in runs_diff.runs]
        values = zip(map(cell_text, each.values), marks, strict=True)
        cells[safe(each.field, 80)] = [f"{text}{mark}" for text, mark in values]
    if not cells:
        return
    if len(titles) <= _MAX_COLUMNS:
        table = new_table("config and results", *titles, wraps=titles)
        for name, texts in cells.items():
            add_row(table, name, *texts)
    else:
        table = new_table("run", *cells, wraps=list(cells))
        for index, title in enumerate(titles):
            add_row(table, title, *(texts[index] for texts in cells.values()))
    console.print(table, Text())
    if any(each.best for each in runs_diff.results):
        console.print(Text("* the best value", style="dim"))


def _print_part(console: Console, title: str, titles: list[str], part: list[Variation]) -> None:
    if len(titles) <= _MAX_COLUMNS:
        table = new_table(title, *titles, wraps=titles)
        for each in part:
            add_row(table, safe(each.name, 80), *map(cell_text, each.values))
    else:
        table = new_table(title, "values", wraps=["values"])
        for each in part:
            add_row(table, safe(each.name, 80), _count_values([cell_text(value) for value in each.values]))
    console.print(table, Text())


def _count_values(values: list[str]) -> str:
    """Return values with the number of runs that have each, the most frequent first."""
    counts = Counter(values).most_common()
    texts = [f"{value} ({count} {'run' if count == 1 else 'runs'})" for value, count in counts[:_MAX_VALUES]]
    return ", ".join([*texts, f"{len(counts) - _MAX_VALUES} more"] if len(counts) > _MAX_VALUES else texts)


def _print_files(console: Console, titles: list[str], files: list[FileVersions]) -> None:
    table = new_table("code", "versions", wraps=["versions"])
    for file in files:
        texts = ["lacks it" if version is None else f"version {version}" for version in file.versions]
        pairs = zip(titles, texts, strict=True)
        text = (
            ", ".join(f"{name}: {text}" for name, text in pairs)
            if len(titles) <= _MAX_COLUMNS
            else _count_values(texts)
        )
        add_row(table, safe(file.path, 80), text)
    console.print(table, Text())
    console.print(Text("tacho diff RUN OTHER shows the changed lines of two runs.", style="dim"))
