"""`tacho media`: list and export the media of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import rich_click as click

from tachograph._base.files import replacing, write_all
from tachograph.cli._format import add_row, new_console, new_table, plural, safe
from tachograph.cli._options import log_dir_option, run_argument
from tachograph.cli._recording_problems import media_loss
from tachograph.cli._terminal import echo
from tachograph.exceptions import TachographError
from tachograph.reader import MediaExportError, MediaItem, animate_pictures, contact_sheet, read, zip_media

__all__ = ["media"]

_SUFFIXES = (".zip", ".png", ".webp")


@click.command()
@run_argument
@click.argument("name", required=False)
@log_dir_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write: .zip has all files of NAME, .png the pictures of one step, .webp one prompt over all steps.",
)
@click.option("--step", type=int, help="For .png: the step; the latest one by default.")
@click.option("--prompt", help="For .webp: the prompt_id or the index of the picture; the first one by default.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def media(
    run: str, name: str | None, log_dir: str, output: Path | None, step: int | None, prompt: str | None, force: bool
) -> None:
    """List the media of a run, or export those of one NAME."""
    history = read(run, log_dir)
    run_media = history.media
    if name is None or output is None:
        if name is not None or output is not None:
            raise click.UsageError("to export media, pass NAME and --output FILE")
        table = new_table("name", "kind", "items", "steps", "dropped", right={"items", "steps", "dropped"})
        for key, entry in run_media.names.items():
            counts = (str(entry.num_items), str(len(entry.steps)), str(entry.num_dropped or ""))
            add_row(table, safe(key, 60), entry.kind, *counts)
        new_console().print(table)
        if lost_media := media_loss(history):
            new_console().print(lost_media)
        return
    if name not in run_media.names:
        known_names = ", ".join(safe(key, 60) for key in list(run_media.names)[:10])
        raise TachographError(f"no media {name!r} in this run; it has {known_names or 'none'}")
    if output.suffix not in _SUFFIXES:
        raise click.UsageError(f"the output must end with one of {', '.join(_SUFFIXES)}, got {str(output)!r}")
    if output.exists() and not force:
        raise TachographError(f"{str(output)!r} exists; pass --force to replace it")
    items = list(run_media.items(name))
    missing = [item for item in items if item.is_missing] if output.suffix == ".zip" else []
    if missing:
        problem = f"{len(missing)} of {plural(len(items), 'item')} of {name!r} not exported: {missing[0].problem}"
        if len(missing) == len(items):
            raise TachographError(problem)
    try:
        num_bytes = _write(output, _export(items, output.suffix, step, prompt))
    except MediaExportError as error:
        raise TachographError(str(error)) from error
    echo(f"wrote {safe(output)}, {plural(num_bytes, 'byte')}")
    if missing:
        raise TachographError(problem)


def _export(items: list[MediaItem], suffix: str, step: int | None, prompt: str | None) -> Iterable[bytes]:
    if suffix == ".zip":
        return zip_media(items)
    if suffix == ".webp":
        wanted = prompt if prompt is not None else items[0].prompt_id
        return [animate_pictures(item for item in items if item.prompt_id == wanted)]
    chosen_step = step if step is not None else max(item.step for item in items)
    return [contact_sheet(item for item in items if item.step == chosen_step)]


def _write(path: Path, pieces: Iterable[bytes]) -> int:
    num_bytes = 0
    with replacing(path, below=path.parent) as descriptor:
        for piece in pieces:
            num_bytes += write_all(descriptor, piece)
    os.close(descriptor)
    return num_bytes
