"""`tacho diff` and `tacho reproduce`: how two runs differ, and the code of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click
from rich.console import Console
from rich.text import Text

from tachograph.cli._format import add_row, json_text, new_table, number, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option, run_argument
from tachograph.reader import read

if TYPE_CHECKING:
    from tachograph.provenance import CodeChange, Difference

__all__ = ["diff", "reproduce"]

_MAX_CELL_CHARS = 200
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@click.argument("first", metavar="RUN", shell_complete=complete_run)
@click.argument("second", metavar="OTHER", shell_complete=complete_run)
@log_dir_option
@json_option
def diff(first: str, second: str, log_dir: str, as_json: bool) -> None:
    """Show how two runs differ: config, git, packages, environment and code."""
    from tachograph.provenance import ComparedRun, compare_runs

    found = compare_runs(*(ComparedRun.of(read(run, log_dir)) for run in (first, second)))
    if as_json:
        click.echo(json_text(msgspec.to_builtins(found)))
        return
    console = Console()
    names = [safe(name, 60) for name in found.runs]
    names = names if names[0] != names[1] else [safe(first, 60), safe(second, 60)]
    parts = {"config": found.config, "git": found.git, "packages": found.packages, "environment": found.environment}
    for title, differences in parts.items():
        if differences:
            console.print(_table(title, names, differences), Text())
    for change in found.code:
        _print_change(console, change)
    if not any(parts.values()) and not found.code:
        console.print(Text("No differences found."))
    for note in found.notes:
        console.print(Text(f"not compared: {safe(note, 500)}", style="yellow"))


def _table(title: str, names: list[str], differences: list[Difference]) -> Any:
    table = new_table(title, *names, wraps=names)
    for each in differences:
        cells = [_cell(value) for value in (each.first, each.second)]
        add_row(table, safe(each.name, 80), *cells)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return safe(" ".join(map(str, value)), _MAX_CELL_CHARS)
    return safe(value, _MAX_CELL_CHARS) if isinstance(value, str) else number(value)


def _print_change(console: Console, change: CodeChange) -> None:
    what = "uncommitted changes differ" if change.is_patch else change.kind
    console.print(Text(f"{safe(change.path)}: {what}", style="bold"))
    if not change.diff:
        console.print(Text("  too large to compare", style="dim"))
    for line in change.diff.split("\n")[2:] if change.diff else ():
        console.print(Text(f"  {safe(line, 500)}", style=_STYLES.get(line[:1], "")), soft_wrap=True)
    console.print(Text())


@click.command()
@run_argument
@log_dir_option
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Create this folder with the code of the run instead of printing a script; nothing is run.",
)
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False),
    help="With --into: a local clone of the repository, if it is no longer where the run was started.",
)
def reproduce(run: str, log_dir: str, into: Path | None, repository: str | None) -> None:
    """Print a shell script that rebuilds the code and packages of a run and starts it again.

    Read the script before you run it. Masked arguments are shown as <…>.
    """
    from tachograph.provenance import rebuild, reproduction_script

    if repository is not None and into is None:
        raise click.UsageError("--repository is only used with --into")
    history = read(run, log_dir)
    if into is None:
        click.echo(reproduction_script(history), nl=False)
        return
    rebuilt = rebuild(history, into, os.path.abspath(repository) if repository else None)
    for note in rebuilt.notes:
        click.echo(f"note: {safe(note, 500)}", err=True)
    click.echo(f"{safe(into)} has the code of {safe(history.name)}. The command of the run was:", err=True)
    click.echo(rebuilt.command)
