"""`tacho diff`: how runs differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click
from rich.console import Console
from rich.text import Text

from tachograph.cli._diff_tables import cell_text, print_runs_diff
from tachograph.cli._format import add_row, json_text, new_console, new_table, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.cli._select import parse_columns, select_runs, where_option
from tachograph.cli._terminal import echo
from tachograph.reader import read

if TYPE_CHECKING:
    from tachograph.catalog import CodeChange, Difference

__all__ = ["diff"]

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@click.argument("runs", metavar="RUN OTHER...", nargs=-1, shell_complete=complete_run, callback=resolve_run)
@where_option
@log_dir_option
@click.option("--columns", metavar="FIELDS", help="Results to show with three or more runs; default: the best losses.")
@json_option
def diff(runs: tuple[str, ...], where: str | None, log_dir: str, columns: str | None, as_json: bool) -> None:
    """Show how runs differ: config, git, packages, environment and code.

    For two runs, shows all differences, including changed lines of code. For three or more runs, prints one table with
    the results of each; config keys that do not describe the training, such as output paths, are only counted.
    """
    if where is None and len(runs) < 2:
        raise click.UsageError("name at least two runs, or select them with --where EXPR")
    if where is None and len(runs) == 2 and columns is None:
        _diff_two(*runs, log_dir, as_json=as_json)
        return
    from tachograph.catalog import diff_rows

    rows = select_runs(log_dir, runs, where, columns=[*parse_columns(columns or ""), "config.*"], archived=False)
    runs_diff = diff_rows(rows, parse_columns(columns or ""))
    if as_json:
        echo(json_text(msgspec.to_builtins(runs_diff)))
    else:
        print_runs_diff(new_console(), runs_diff)


def _diff_two(first: str, second: str, log_dir: str, *, as_json: bool) -> None:
    from tachograph.catalog import CapturedRun, diff_pair

    pair_diff = diff_pair(*(CapturedRun.of(read(run, log_dir)) for run in (first, second)))
    if as_json:
        echo(json_text(msgspec.to_builtins(pair_diff)))
        return
    console = new_console()
    names = [safe(name, 60) for name in pair_diff.runs]
    names = names if names[0] != names[1] else [safe(first, 60), safe(second, 60)]
    parts = {
        "config": pair_diff.config,
        "git": pair_diff.git,
        "packages": pair_diff.packages,
        "environment": pair_diff.environment,
    }
    for title, part in parts.items():
        if part:
            console.print(_table(title, names, part), Text())
    for change in pair_diff.code:
        _print_change(console, change)
    if not any(parts.values()) and not pair_diff.code:
        console.print(Text("No differences found."))
    for note in pair_diff.notes:
        console.print(Text(f"not compared: {safe(note, 500)}", style="yellow"))


def _table(title: str, names: list[str], differences: list[Difference]) -> Any:
    table = new_table(title, *names, wraps=names)
    for each in differences:
        cells = [cell_text(value) for value in (each.first, each.second)]
        add_row(table, safe(each.name, 80), *cells)
    return table


def _print_change(console: Console, change: CodeChange) -> None:
    what = "uncommitted changes differ" if change.is_patch else change.kind
    console.print(Text(f"{safe(change.path)}: {what}", style="bold"))
    if not change.diff:
        console.print(Text("  too large to compare", style="dim"))
    for line in change.diff.split("\n")[2:] if change.diff else ():
        console.print(Text(f"  {safe(line, 500)}", style=_STYLES.get(line[:1], "")), soft_wrap=True)
    console.print(Text())
