"""`tacho reproduce`: rebuild the code of a run."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

from tachograph.cli._format import safe
from tachograph.cli._options import log_dir_option, run_argument
from tachograph.cli._terminal import echo, echo_data
from tachograph.reader import read

__all__ = ["reproduce"]


@click.command()
@run_argument
@log_dir_option
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Create this folder with the code of the run instead of printing a script; nothing is run.",
)
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False),
    help="With --into: a local clone of the repository; the one around the working directory by default.",
)
def reproduce(run: str, log_dir: str, into: Path | None, repository: str | None) -> None:
    """Print a shell script that rebuilds the code and packages of a run and starts it again.

    Read the script before you run it. Masked arguments are shown as <…>.
    """
    from tachograph.catalog import rebuild, reproduction_script

    if repository is not None and into is None:
        raise click.UsageError("--repository is only used with --into")
    history = read(run, log_dir)
    if into is None:
        echo_data(reproduction_script(history))
        return
    rebuilt = rebuild(history, into, os.path.abspath(repository) if repository else None)
    for note in rebuilt.notes:
        echo(f"note: {safe(note, 500)}", err=True)
    echo(f"{safe(into)} has the code of {safe(history.name)}. The command of the run was:", err=True)
    echo_data(f"{rebuilt.command}\n")
