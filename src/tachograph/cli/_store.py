"""`tacho store`: create, fill, compare and thin out the tables of a column store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from tachograph.cli._format import json_text, plural, safe
from tachograph.cli._options import complete_run, json_option, log_dirs_option
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
    """Keep runs as tables in ClickHouse, for lists and charts of more runs than files can serve.

    Everything in the tables is derived from the journals: they can be dropped and filled again.
    """


def _store_option(command: Command) -> Command:
    return click.option(
        "--store",
        "address",
        default=lambda: os.environ.get(_VARIABLE, ""),
        show_default=_VARIABLE,
        metavar="ADDRESS",
        help="Address of the store, clickhouse://USER@HOST:PORT/DATABASE; the password is TACHO_CLICKHOUSE_PASSWORD.",
    )(command)


def _runs_option(command: Command) -> Command:
    return click.option(
        "--run",
        "runs",
        multiple=True,
        metavar="RUN",
        shell_complete=complete_run,
        help="Only this run; repeatable.",
    )(command)


def _open(address: str) -> ColumnStore:
    from tachograph.server.columns import ColumnStore

    if not address:
        raise ConfigError(f"no store is given: pass --store clickhouse://HOST:PORT/DATABASE or set {_VARIABLE}")
    return ColumnStore(address)


def _select(log_dirs: tuple[str, ...], runs: tuple[str, ...], since: datetime | None = None) -> list[FoundRun]:
    found = sorted(LogFolders(*log_dirs).find(), key=lambda run: run.id)
    ids = [run.id for run in found]
    for run_id in runs:
        if run_id not in ids:
            raise RunNotFoundError(f"no run {run_id!r} in {', '.join(map(repr, log_dirs))}{did_you_mean(run_id, ids)}")
    first_time = since.timestamp() if since else 0.0
    return [run for run in found if (not runs or run.id in runs) and run.journal.st_mtime >= first_time]


@store.command()
@_store_option
def init(address: str) -> None:
    """Create the database and its tables on one server. In a cluster, run it for each server."""
    with _open(address) as opened:
        applied = opened.schema.migrate()
        state = f"created schema {applied[-1]}" if applied else f"schema {opened.schema.applied()} exists already"
        click.echo(f"{opened.address.text}: {state}")


@store.command()
@_store_option
def migrate(address: str) -> None:
    """Change the tables of an older version to those of this one. Nothing is removed."""
    with _open(address) as opened:
        if not opened.schema.applied():
            raise ConfigError(f"{opened.address.text} has no tables; create them with: tacho store init")
        applied = opened.schema.migrate()
        listed = f"applied {', '.join(map(str, applied))}" if applied else "nothing to do"
        click.echo(f"{opened.address.text}: {listed}")


@store.command()
@_store_option
@log_dirs_option
@_runs_option
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="Only runs that were recorded on this day or later.")
@click.option("--again", is_flag=True, help="Remove the rows of the runs first, and insert all of them again.")
@click.option("--verify", "is_verified", is_flag=True, help="Compare with the files afterwards.")
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
    """Insert what the journals have and the store lacks. Stop and repeat it at any time."""
    from tachograph.server.columns import run_key

    with _open(address) as opened:
        opened.schema.migrate()
        chosen = _select(log_dirs, runs, since)
        for run in chosen if again else ():
            opened.schema.delete_run(run_key(run.path, run.id))
        inserter = opened.inserter(*log_dirs, runs=[run.id for run in chosen])
        num_rows = inserter.insert_all()
        if not as_json:
            click.echo(f"{plural(len(chosen), 'run')}: inserted {plural(num_rows, 'row')}")
            for run_id, reason in inserter.lag.skipped.items():
                click.echo(f"{safe(run_id)}: not inserted, because {safe(reason)}", err=True)
        differences = _compare(opened, log_dirs, chosen, is_quiet=as_json) if is_verified else None
    if as_json:
        found = {"runs": len(chosen), "rows": num_rows, "skipped": inserter.lag.skipped, "differences": differences}
        click.echo(json_text(found))
    if differences:
        raise SystemExit(1)


@store.command()
@_store_option
@log_dirs_option
@_runs_option
@json_option
def verify(address: str, log_dirs: tuple[str, ...], runs: tuple[str, ...], as_json: bool) -> None:
    """Compare each series with the files: number of points, lowest, highest and last value, hash of all points.

    Exits with 1 if there is a difference. Runs that are being recorded differ until the store has caught up.
    """
    with _open(address) as opened:
        differences = _compare(opened, log_dirs, _select(log_dirs, runs), is_quiet=as_json)
    if as_json:
        click.echo(json_text(differences))
    if differences:
        raise SystemExit(1)


def _compare(
    opened: ColumnStore, log_dirs: tuple[str, ...], chosen: list[FoundRun], *, is_quiet: bool
) -> list[dict[str, Any]]:
    """Print and return the differences."""
    from tachograph.server.columns import verify_runs

    differences: list[dict[str, Any]] = []
    num_runs = 0
    for run_id, found in verify_runs(opened.schema, *log_dirs, runs=[run.id for run in chosen]):
        num_runs += 1
        for each in found:
            if len(differences) < _MAX_SHOWN and not is_quiet:
                where = f"{each.stream}, attempt {each.attempt}" + (f", rank {each.rank}" if each.rank else "")
                click.echo(
                    f"{safe(run_id)}: {safe(each.metric)} ({safe(where)}): {each.what} is {each.in_files} in files"
                    f" and {each.in_store} in the store",
                    err=True,
                )
            differences.append(each._asdict())
    if not is_quiet:
        if len(differences) > _MAX_SHOWN:
            click.echo(f"… and {len(differences) - _MAX_SHOWN} more", err=True)
        state = plural(len(differences), "difference") if differences else "no differences"
        click.echo(f"{plural(num_runs, 'run')}: {state}")
    return differences


@store.command()
@_store_option
@click.option("--days", required=True, type=click.IntRange(1, 100_000), help="How many days of points to keep.")
def retain(address: str, days: int) -> None:
    """Remove old points; tiles, summaries and events stay. Zooming into old runs then reads their files.

    A recent ClickHouse removes points by itself from then on. One older than 20.1 drops whole months, and only when
    this command runs: run it daily.
    """
    with _open(address) as opened:
        done = opened.schema.retain(days, int(time.time() // 86_400))
        for line in done or ["nothing to remove"]:
            click.echo(line)
