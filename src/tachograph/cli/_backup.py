"""`tacho backup` and `tacho restore`: archives of the data folder of a server."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from tachograph.cli._format import plural, safe, size
from tachograph.cli._options import data_option
from tachograph.cli._terminal import echo

__all__ = ["backup", "restore"]


@click.command()
@data_option("Data folder of the server, which may be running.")
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Archive to write, such as tacho.tar.gz. It must not exist.",
)
def backup(data: Path, target: Path) -> None:
    """Write runs, keys, annotations and the audit log of a server to one archive.

    The server can keep running. The archive has every record that it acknowledged before the command started.
    """
    from tachograph.server.team import create_backup

    summary = create_backup(data, target)
    echo(f"{safe(target, 1_000)}: {plural(summary.num_files, 'file')}, {size(summary.num_bytes)} before compression")


@click.command()
@click.argument("archive", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="New data folder; it must be empty or not exist.",
)
def restore(archive: Path, data: Path) -> None:
    """Restore the data folder of a server from an archive of tacho backup, after checking all of it."""
    from tachograph.server.team import restore_backup

    summary = restore_backup(archive, data)
    echo(f"{safe(data, 1_000)}: restored {plural(summary.num_files, 'file')}, {size(summary.num_bytes)}")
    echo(f"start the server with: tacho serve --data {safe(data, 1_000)}")
