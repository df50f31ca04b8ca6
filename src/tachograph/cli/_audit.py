"""`tacho audit`: the audit log of a server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from tachograph.cli._format import add_row, format_time, json_text, new_console, new_table, safe
from tachograph.cli._options import data_option, parse_duration
from tachograph.cli._terminal import echo
from tachograph.records import to_json

__all__ = ["audit", "audit_local_change"]


@click.command()
@data_option("Data folder of the server.")
@click.option("--since", metavar="AGE", help="Only actions of this last time, such as 30d. Default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def audit(data: Path, since: str | None, as_json: bool) -> None:
    """List who controlled, changed or deleted runs of a server, and who created or revoked keys, oldest first."""
    from tachograph.server.team import read_audit_log

    oldest_s = 0.0 if since is None else time.time() - parse_duration("--since", since)
    entries = read_audit_log(data, since=oldest_s)
    if as_json:
        for entry in entries:
            echo(json_text(msgspec.to_builtins(entry)))
        return
    table = new_table("time", "user", "address", "action", "runs", "change", wraps=("runs", "change"))
    for entry in entries:
        prefix = f"{entry.project}/" if entry.project is not None else ""
        runs = ", ".join(f"{prefix}{run}" for run in entry.runs[:5]) + (" …" if len(entry.runs) > 5 else "")
        action = entry.action if entry.outcome == "done" else f"{entry.action} ({entry.outcome})"
        time_text = format_time(entry.time, "%Y-%m-%d %H:%M:%S")
        cells = (time_text, safe(entry.user, 60), safe(entry.address, 60), safe(action, 60), safe(runs, 500))
        add_row(table, *cells, safe(_change(entry.old, entry.new, entry.reason), 500))
    new_console().print(table)


def _change(old: Any, new: Any, reason: str) -> str:
    parts = [f"{to_json(old)} →" if old else "", to_json(new) if new else "", reason]
    return " ".join(part for part in parts if part)


def audit_local_change(
    log_dir: str | os.PathLike[str], action: str, runs: Iterable[str], *, old: Any = None, new: Any = None
) -> None:
    """Add a change to the audit log, if the log folder is the data folder of a server or in it."""
    folder = Path(log_dir).absolute()
    root = next((each for each in (folder, *folder.parents) if (each / ".server" / "runs").is_dir()), None)
    if root is None:
        return
    from tachograph.server.team import add_local_entry

    project = folder.relative_to(root).as_posix() if root != folder else None
    add_local_entry(root, action, runs=list(runs), project=project, old=old, new=new)
