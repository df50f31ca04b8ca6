"""`tacho rm` and `tacho trash`: remove runs, restore them, or delete them for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import rich_click as click
from rich.text import Text

from tachograph._base.settings import resolve_settings
from tachograph.cli._audit import audit_local_change
from tachograph.cli._format import add_row, ago, json_text, new_console, new_table, plural, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option, log_dirs_of, parse_duration
from tachograph.cli._select import for_each_run, select_runs, where_option
from tachograph.cli._terminal import echo

if TYPE_CHECKING:
    from tachograph.catalog import RunRow

__all__ = ["empty_old_trash", "rm", "trash"]

_DAY_S = 86_400.0


def _complete_removed_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from tachograph.catalog import list_trash

    names = (run.name for log_dir in log_dirs_of(context) for run in list_trash(log_dir))
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@log_dir_option
@where_option
@click.option("--force", is_flag=True, help="Include runs that another machine may still be recording.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before removing runs that --where matches.")
def rm(runs: tuple[str, ...], log_dir: str, where: str | None, force: bool, yes: bool) -> None:
    """Move runs to the trash. Bring one back with: tacho trash restore RUN"""
    from tachograph.catalog import trash_run

    rows = select_runs(log_dir, runs, where, archived=None)
    if where is not None and not yes:
        names = ", ".join(safe(row.id) for row in rows[:5]) + (" …" if len(rows) > 5 else "")
        click.confirm(f"Move {plural(len(rows), 'run')} to the trash ({names})?", abort=True)

    def act(row: RunRow) -> str:
        trash_run(row.log_dir, row.name, is_forced=force)
        audit_local_change(row.log_dir, "trash", [row.name])
        return "moved to the trash"

    try:
        for_each_run(rows, act)
    finally:
        empty_old_trash(log_dir)


def empty_old_trash(log_dir: str) -> int:
    """Delete runs that have been in the trash for longer than `trash_keep_days`; return the number of runs."""
    from tachograph.catalog import empty_trash

    days = resolve_settings({}).trash_keep_days
    if not days:
        return 0
    deleted_runs = empty_trash(log_dir, older_than_s=days * _DAY_S)
    if deleted_runs:
        audit_local_change(log_dir, "delete", [run.name for run in deleted_runs])
        num_days = plural(days, "day")
        echo(
            f"deleted {plural(len(deleted_runs), 'run')} that had been in the trash for more than {num_days}", err=True
        )
    return len(deleted_runs)


@click.group(invoke_without_command=True)
@log_dir_option
@click.pass_context
def trash(context: click.Context, log_dir: str) -> None:
    """List, restore or delete removed runs. Without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_, log_dir=log_dir, as_json=False)


@trash.command("list")
@log_dir_option
@json_option
def list_(log_dir: str, as_json: bool) -> None:
    """List the runs in the trash, latest first."""
    from tachograph.catalog import list_trash, tidy_trash

    tidy_trash(log_dir)
    runs = list_trash(log_dir)
    if as_json:
        echo(json_text(msgspec.to_builtins(runs)))
        return
    if not runs:
        new_console().print(Text("The trash is empty."))
        return
    table = new_table("run", "removed", "by", wraps=("by",))
    for run in runs:
        add_row(table, safe(run.name, 60), ago(run.removed), safe(run.by, 60))
    new_console().print(table)


@trash.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=_complete_removed_run)
@log_dir_option
def restore(runs: tuple[str, ...], log_dir: str) -> None:
    """Move runs back from the trash. If the name of a run is taken, a number is appended."""
    from tachograph.catalog import restore_run, tidy_trash

    tidy_trash(log_dir)
    for run in runs:
        name = restore_run(log_dir, run)
        audit_local_change(log_dir, "restore", [run], new={"name": name})
        echo(f"{safe(run)}: restored" + (f" as {safe(name)}" if name != run else ""))


@trash.command()
@log_dir_option
@click.option(
    "--older-than", default="0s", metavar="AGE", help="Only runs removed at least this long ago, such as 30d."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def empty(log_dir: str, older_than: str, yes: bool) -> None:
    """Delete the runs in the trash for good."""
    from tachograph.catalog import empty_trash, list_trash

    older_than_s = parse_duration("--older-than", older_than)
    if not yes and (runs := list_trash(log_dir)):
        click.confirm(f"Delete up to {plural(len(runs), 'run')} for good?", abort=True)
    deleted_runs = empty_trash(log_dir, older_than_s=older_than_s)
    if deleted_runs:
        audit_local_change(log_dir, "delete", [run.name for run in deleted_runs])
    echo(f"deleted {plural(len(deleted_runs), 'run')}")
