"""`tacho origin`: the run that saved a checkpoint, and the parents of this run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import rich_click as click
from rich.text import Text

from tachograph.cli._format import json_text, new_console, safe
from tachograph.cli._options import complete_run, json_option, log_dirs_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import RunNotFoundError

if TYPE_CHECKING:
    from tachograph.catalog import Catalog, RelatedRun, RunRow

__all__ = ["origin"]

_MAX_SHOWN = 5


@click.command()
@click.argument("path", shell_complete=complete_run)
@log_dirs_option
@json_option
def origin(path: str, log_dirs: tuple[str, ...], as_json: bool) -> None:
    """Show which run saved the checkpoint PATH, and the chain of runs that this run was started from.

    PATH may also be a run; then only the chain is looked up. Exits with 1 if no run saved the checkpoint.
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
        echo(json_text({"origins": msgspec.to_builtins(origins), "ancestors": msgspec.to_builtins(chain)}))
    elif best is None:
        folders = ", ".join(log_dirs)
        echo(f"no run in {safe(folders)} is known to have saved {safe(path)}", err=True)
    else:
        console = new_console()
        for candidate in origins[:_MAX_SHOWN]:
            step = f" at step {candidate.global_step}" if candidate.global_step is not None else ""
            why = f"  {candidate.certainty}: {candidate.reason}" if candidate.reason else ""
            console.print(Text.assemble((safe(candidate.run), "bold"), step, (why, "dim")), soft_wrap=True)
            if candidate.saved_as is not None and candidate.saved_as != os.path.abspath(path):
                console.print(Text(f"  saved as {safe(candidate.saved_as, 1_000)}", style="dim"), soft_wrap=True)
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
