"""Options and arguments of commands that work on several runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from tachograph.cli._format import safe
from tachograph.cli._terminal import echo
from tachograph.exceptions import TachographError

if TYPE_CHECKING:
    from tachograph.catalog import RunRow

__all__ = ["for_each_run", "parse_columns", "select_runs", "where_option"]

Command = TypeVar("Command", bound=Callable[..., Any])


def where_option(command: Command) -> Command:
    """Add `--where`."""
    return click.option("--where", metavar="EXPR", help="Select all runs that match this expression, as in tacho ls.")(
        command
    )


def select_runs(
    log_dir: str,
    names: Iterable[str],
    where: str | None,
    *,
    archived: bool | None = None,
    columns: Iterable[str] = (),
) -> list[RunRow]:
    """Return the rows of runs that are named, or that match an expression.

    Args:
        log_dir: the log folder.
        names: the runs.
        where: the expression, if no runs are named.
        archived: see `Catalog.select`.
        columns: fields that will be read from the rows.

    Raises:
        TachographError: if there is no such run, or the expression is invalid.
    """
    from tachograph.catalog import Catalog, parse_query

    catalog = Catalog(log_dir)
    names = list(names)
    if bool(names) == (where is not None):
        raise click.UsageError("name the runs, or select them with --where EXPR")
    if where is None:
        ids = [_relative_name(name, log_dir) for name in names]
        return (
            catalog.full_rows(dict.fromkeys(ids), columns=columns) if columns else [catalog.row(name) for name in ids]
        )
    query = parse_query(where)
    rows = catalog.select(query, columns=columns, archived=archived)
    if not rows:
        for error in catalog.unknown_fields(query):
            raise error
        raise click.ClickException(f"no run in {log_dir!r} matches: {safe(where)}")
    return rows


def _relative_name(name: str, log_dir: str) -> str:
    """Return the name of a run that was given as a path into the log folder, as a shell completes it."""
    inside = os.path.relpath(name, log_dir)
    is_path = os.sep in name and not inside.startswith("..") and os.path.isdir(name)
    return inside.replace(os.sep, "/") if is_path else name.rstrip("/")


def for_each_run(rows: Iterable[RunRow], act: Callable[[RunRow], str]) -> None:
    """Do something for each run and print the results; a failure does not stop the others, and exits with 1."""
    num_failed = 0
    for row in rows:
        try:
            echo(f"{safe(row.id)}: {act(row)}")
        except TachographError as error:
            num_failed += 1
            echo(f"{safe(row.id)}: {safe(getattr(error, 'strerror', None) or error, 1_000)}", err=True)
    if num_failed:
        raise SystemExit(1)


def parse_columns(text: str) -> list[str]:
    """Return the fields of a list with commas; a name in backticks may contain commas and spaces."""
    columns, name, is_quoted = [], "", False
    for character in text + ",":
        if character == "`":
            is_quoted = not is_quoted
        elif character == "," and not is_quoted:
            columns.append(name.strip())
            name = ""
        else:
            name += character
    if is_quoted:
        raise click.UsageError(f"--columns {text!r}: a backtick is missing")
    return list(dict.fromkeys(column for column in columns if column))
