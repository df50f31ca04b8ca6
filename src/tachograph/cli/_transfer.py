"""`tacho mv` and `tacho cp`: move and copy runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from tachograph.cli._audit import audit_local_change
from tachograph.cli._format import safe
from tachograph.cli._options import log_dir_option
from tachograph.cli._select import for_each_run, select_runs, where_option

if TYPE_CHECKING:
    from tachograph.catalog import RunRow

__all__ = ["cp", "mv"]

_force_option = click.option("--force", is_flag=True, help="Include runs that another machine may still be recording.")


@click.command()
@click.argument("paths", metavar="[RUN]... TARGET", nargs=-1, required=True)
@log_dir_option
@where_option
@_force_option
def mv(paths: tuple[str, ...], log_dir: str, where: str | None, force: bool) -> None:
    """Rename the folder of a run, or move runs into another folder, also on another disk.

    TARGET is a new name in the log folder, a path, or an existing folder.
    """
    _transfer(paths, log_dir, where, force=force, is_copy=False)


@click.command()
@click.argument("paths", metavar="[RUN]... TARGET", nargs=-1, required=True)
@log_dir_option
@where_option
@_force_option
def cp(paths: tuple[str, ...], log_dir: str, where: str | None, force: bool) -> None:
    """Copy runs with all their files and annotations.

    TARGET is a new name in the log folder, a path, or an existing folder. A copy keeps the id of the run.
    """
    _transfer(paths, log_dir, where, force=force, is_copy=True)


def _transfer(paths: tuple[str, ...], log_dir: str, where: str | None, *, force: bool, is_copy: bool) -> None:
    from tachograph.catalog import copy_run, is_folder_target, move_run

    *names, target = paths
    rows = select_runs(log_dir, names, where)
    if len(rows) > 1 and not is_folder_target(log_dir, target):
        raise click.UsageError(f"{safe(target)!r} is not a folder, and only a folder can get several runs")

    def act(row: RunRow) -> str:
        transfer, verb = (copy_run, "copied") if is_copy else (move_run, "moved")
        new_path = transfer(log_dir, row.id, target, is_forced=force)
        audit_local_change(log_dir, "copy" if is_copy else "move", [row.id], new={"path": str(new_path)})
        return f"{verb} to {safe(new_path, 1_000)}"

    for_each_run(rows, act)
