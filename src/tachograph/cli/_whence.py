"""`tacho whence`: the run that a checkpoint comes from, and the runs before it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import rich_click as click
from rich.console import Console
from rich.text import Text

from tachograph.cli._format import json_text, safe
from tachograph.cli._options import json_option, log_dirs_option
from tachograph.exceptions import RunNotFoundError

if TYPE_CHECKING:
    from tachograph.catalog import Catalog, RelatedRun, RunRow

__all__ = ["whence"]

_MAX_SHOWN = 5


@click.command()
@click.argument("path")
@log_dirs_option
@json_option
def whence(path: str, log_dirs: tuple[str, ...], as_json: bool) -> None:
    """Show which run saved the checkpoint PATH, and which runs that one started from. PATH may also be a run.

    Exits with 1 if no run is known to have saved it.
    """
    from tachograph.catalog import Catalog, Origin, ancestors_of, find_origins

    catalog = Catalog(*log_dirs)
    rows = catalog.rows(is_full=True)
    origins = find_origins(path, rows)
    if not origins and (row := _find_row(catalog, path)) is not None:
        origins = [Origin(row.id, row.summary.run_id, None, "certain", "")]
    best = origins[0] if origins else None
    row = next((row for row in rows if best is not None and row.summary.run_id == best.run_id), None)
    chain = ancestors_of(row, rows)
    if as_json:
        click.echo(json_text({"origins": msgspec.to_builtins(origins), "ancestors": msgspec.to_builtins(chain)}))
    elif best is None:
        folders = ", ".join(log_dirs)
        click.echo(f"no run in {safe(folders)} is known to have saved {safe(path)}", err=True)
    else:
        console = Console()
        for origin in origins[:_MAX_SHOWN]:
            step = f" at step {origin.global_step}" if origin.global_step is not None else ""
            why = f"  {origin.certainty}: {origin.reason}" if origin.reason else ""
            console.print(Text.assemble((safe(origin.run), "bold"), step, (why, "dim")), soft_wrap=True)
            if origin.saved_as is not None and origin.saved_as != os.path.abspath(path):
                console.print(Text(f"  saved as {safe(origin.saved_as, 1_000)}", style="dim"), soft_wrap=True)
        if len(origins) > _MAX_SHOWN:
            console.print(Text(f"… and {len(origins) - _MAX_SHOWN} more", style="dim"))
        for ancestor in chain:
            console.print(_ancestor_line(ancestor), soft_wrap=True)
    if best is None:
        raise SystemExit(1)


def _find_row(catalog: Catalog, name: str) -> RunRow | None:
    try:
        return catalog.row(name)
    except (RunNotFoundError, ValueError):
        return None


def _ancestor_line(ancestor: RelatedRun) -> Text:
    step = f" at step {ancestor.global_step}" if ancestor.global_step is not None else ""
    how = f" ({safe(ancestor.how, 20)})" if ancestor.how else ""
    here = "" if ancestor.is_here else "  not in these folders"
    return Text.assemble("  " * (ancestor.depth + 1), "← ", (safe(ancestor.run), "bold"), step, how, (here, "dim"))
