"""`tacho compact`: pack the media of ended runs."""

from __future__ import annotations

import rich_click as click

from tachograph.cli._format import plural, safe
from tachograph.cli._options import complete_run, log_dir_option, resolve_run
from tachograph.cli._terminal import echo
from tachograph.exceptions import TachographError

__all__ = ["compact"]


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run, callback=resolve_run)
@log_dir_option
@click.option("--force", is_flag=True, help="Also pack a run that may still be recorded on another machine.")
def compact(runs: tuple[str, ...], log_dir: str, force: bool) -> None:
    """Pack the media of ended runs into one file per run, media.zip.

    Nothing is compressed or lost: the dashboard and Python read the archive, and any tool can unpack it. Runs with many
    pictures then take two files instead of thousands. `tacho prune --do pack_media` does the same by a policy.
    """
    from tachograph.catalog import parse_action
    from tachograph.reader import find_readable_run

    num_failed = 0
    for run in runs:
        folder = find_readable_run(run, log_dir)
        try:
            freed = parse_action("pack_media").apply(log_dir, folder, run, is_forced=force)
        except (TachographError, OSError) as error:
            num_failed += 1
            echo(f"{safe(run)}: {safe(getattr(error, 'strerror', None) or error, 1_000)}", err=True)
            continue
        echo(f"{safe(run)}: packed {plural(freed.num_files, 'file')}")
    if num_failed:
        raise SystemExit(1)
