"""`tacho store`: create, fill, verify and thin out the tables of runs in ClickHouse."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from tachograph.cli._format import json_text, plural, safe
from tachograph.cli._options import complete_run, json_option, log_dirs_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError, RunNotFoundError, did_you_mean
from tachograph.journal import FoundRun, LogFolders

if TYPE_CHECKING:
    from tachograph.server.columns import ColumnStore

__all__ = ["store"]

Command = TypeVar("Command", bound=Callable[..., Any])
_VARIABLE = "TACHO_STORE"
_MAX_SHOWN = 20


@click.group()
def store() -> None:
    """Keep a copy of runs in ClickHouse, so that lists and charts stay fast with very many runs.

    The files of the runs stay complete: you can drop the tables and fill them again with `tacho store backfill`.
    """


def _store_option(command: Command) -> Command:
    return click.option(
        "--store",
        "address",
        default=lambda: os.environ.get(_VARIABLE, ""),
        show_default=_VARIABLE,
        metavar="ADDRESS",
        help="ClickHouse database: clickhouse://USER@HOST:PORT/DATABASE. The password is TACHO_CLICKHOUSE_PASSWORD.",
    )(command)


def _runs_option(command: Command) -> Command:
    return click.option(
        "--run",
        "runs",
        multiple=True,
        metavar="RUN",
        shell_complete=complete_run,
        help="Only this run. Can be repeated.",
    )(command)


def _open(address: str) -> ColumnStore:
    from tachograph.server.columns import ColumnStore

    if not address:
        raise ConfigError(f"no store is given: pass --store clickhouse://HOST:PORT/DATABASE or set {_VARIABLE}")
    return ColumnStore(address)


def _select(log_dirs: tuple[str, ...], runs: tuple[str, ...], since: datetime | None = None) -> list[FoundRun]:
    all_runs = sorted(LogFolders(*log_dirs).find(), key=lambda run: run.id)
    ids = [run.id for run in all_runs]
    for run_id in runs:
        if run_id not in ids:
            raise RunNotFoundError(f"no run {run_id!r} in {', '.join(map(repr, log_dirs))}{did_you_mean(run_id, ids)}")
    since_s = since.timestamp() if since else 0.0
    return [run for run in all_runs if (not runs or run.id in runs) and run.journal.st_mtime >= since_s]


@store.command()
@_store_option
def init(address: str) -> None:
    """Create the database and its tables on a ClickHouse server. In a cluster, run it once per server."""
    with _open(address) as column_store:
        versions = column_store.schema.migrate()
        state = (
            f"created schema {versions[-1]}" if versions else f"schema {column_store.schema.applied()} exists already"
        )
        echo(f"{column_store.address.text}: {state}")


@store.command()
@_store_option
def migrate(address: str) -> None:
    """Upgrade tables that an older version of Tachograph created. Removes no data."""
    with _open(address) as column_store:
        if not column_store.schema.applied():
            raise ConfigError(f"{column_store.address.text} has no tables; create them with: tacho store init")
        versions = column_store.schema.migrate()
        outcome = f"applied {', '.join(map(str, versions))}" if versions else "nothing to do"
        echo(f"{column_store.address.text}: {outcome}")


@store.command()
@_store_option
@log_dirs_option
@_runs_option
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Only runs with records from this day or later.",
)
@click.option("--again", is_flag=True, help="Delete the rows of these runs first, and insert all of them again.")
@click.option(
    "--verify",
    "is_verified",
    is_flag=True,
    help="Compare the tables with the files afterwards, as `tacho store verify` does.",
)
@json_option
def backfill(
    address: str,
    log_dirs: tuple[str, ...],
    runs: tuple[str, ...],
    since: datetime | None,
    again: bool,
    is_verified: bool,
    as_json: bool,
) -> None:
    """Insert the records of existing runs that are missing in the tables.

    You can interrupt it: the next call continues from there.
    """
    from tachograph.server.columns import run_key

    with _open(address) as column_store:
        column_store.schema.migrate()
        selected_runs = _select(log_dirs, runs, since)
        for run in selected_runs if again else ():
            column_store.schema.delete_run(run_key(run.path, run.id))
        inserter = column_store.inserter(*log_dirs, runs=[run.id for run in selected_runs])
        num_rows = inserter.insert_all()
        if not as_json:
            echo(f"{plural(len(selected_runs), 'run')}: inserted {plural(num_rows, 'row')}")
            for run_id, reason in inserter.lag.skipped.items():
                echo(f"{safe(run_id)}: not inserted, because {safe(reason)}", err=True)
        differences = _compare(column_store, log_dirs, selected_runs, is_quiet=as_json) if is_verified else None
    if as_json:
        report = {
            "runs": len(selected_runs),
            "rows": num_rows,
            "skipped": inserter.lag.skipped,
            "differences": differences,
        }
        echo(json_text(report))
    if differences:
        raise SystemExit(1)


@store.command()
@_store_option
@log_dirs_option
@_runs_option
@json_option
def verify(address: str, log_dirs: tuple[str, ...], runs: tuple[str, ...], as_json: bool) -> None:
    """Check that the tables have the same metrics as the files of the runs.

    Compares for each metric the number of points, the lowest, highest and last value, and a hash of all points. Exits
    with 1 if something differs. A run that is still being recorded differs until its latest records are inserted.
    """
    with _open(address) as column_store:
        differences = _compare(column_store, log_dirs, _select(log_dirs, runs), is_quiet=as_json)
    if as_json:
        echo(json_text(differences))
    if differences:
        raise SystemExit(1)


def _compare(
    column_store: ColumnStore, log_dirs: tuple[str, ...], selected_runs: list[FoundRun], *, is_quiet: bool
) -> list[dict[str, Any]]:
    """Print and return the differences."""
    from tachograph.server.columns import verify_runs

    differences: list[dict[str, Any]] = []
    num_runs = 0
    for run_id, run_differences in verify_runs(column_store.schema, *log_dirs, runs=[run.id for run in selected_runs]):
        num_runs += 1
        for row in run_differences:
            if len(differences) < _MAX_SHOWN and not is_quiet:
                where = f"{row.stream}, attempt {row.attempt}" + (f", rank {row.rank}" if row.rank else "")
                echo(
                    f"{safe(run_id)}: {safe(row.metric)} ({safe(where)}): {row.what} is {row.in_files} in files"
                    f" and {row.in_store} in the store",
                    err=True,
                )
            differences.append(row._asdict())
    if not is_quiet:
        if len(differences) > _MAX_SHOWN:
            echo(f"… and {len(differences) - _MAX_SHOWN} more", err=True)
        state = plural(len(differences), "difference") if differences else "no differences"
        echo(f"{plural(num_runs, 'run')}: {state}")
    return differences


@store.command()
@_store_option
@click.option("--days", required=True, type=click.IntRange(1, 100_000), help="Keep the points of this many days.")
def retain(address: str, days: int) -> None:
    """Delete points that are older than --days from the tables. The files of the runs stay complete.

    Overview charts, summaries and events stay in the tables; zooming into an old run then reads its files. ClickHouse
    20.1 and newer keep deleting old points afterwards. Older versions delete only when this command runs, and only
    whole months: run it daily.
    """
    with _open(address) as column_store:
        removals = column_store.schema.retain(days, int(time.time() // 86_400))
        for line in removals or ["nothing to remove"]:
            echo(line)
