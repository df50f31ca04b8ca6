"""`tacho export`: the metrics of many runs as one table."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import rich_click as click

from tachograph._base.files import check_file, replacing
from tachograph.catalog.export import DEFAULT_KINDS, FORMATS, SUFFIXES, ExportedRun, export_runs, load_format
from tachograph.cli._format import plural, safe
from tachograph.cli._options import complete_run, log_dir_option, resolve_run
from tachograph.cli._terminal import echo
from tachograph.exceptions import TableExportError
from tachograph.journal import RunFolder, list_runs
from tachograph.reader import find_readable_run
from tachograph.records import METRIC_KINDS

__all__ = ["export"]


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run, callback=resolve_run)
@click.option("--all", "all_runs", is_flag=True, help="Export every run in the log folder.")
@log_dir_option
@click.option(
    "--to",
    "format_name",
    type=click.Choice(list(FORMATS)),
    help="Format. Default: the suffix of --output.",
)
@click.option(
    "-o",
    "--output",
    default="-",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="File to write; - is the standard output, which is the default for csv and jsonl.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option(
    "--metrics",
    multiple=True,
    metavar="NAME",
    help="Only this metric; * stands for any text, as in 'val_*'. Can be repeated.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(METRIC_KINDS),
    default=DEFAULT_KINDS,
    show_default=", ".join(DEFAULT_KINDS),
    help="Only records of this kind. Can be repeated.",
)
@click.option("--long", "is_long", is_flag=True, help="Write one row per value instead of one row per record.")
def export(
    runs: tuple[str, ...],
    all_runs: bool,
    log_dir: str,
    format_name: str | None,
    output: str,
    force: bool,
    metrics: tuple[str, ...],
    kinds: tuple[str, ...],
    is_long: bool,
) -> None:
    """Export the metrics of one or more runs as one table, in Parquet, CSV or JSON lines.

    RUN is the name of a run in the log folder, or a path. Exits with status 1 if there is nothing to export.
    """
    if bool(runs) == all_runs:
        raise click.UsageError("name the runs to export, or use --all for every run in the log folder")
    if not output:
        raise click.UsageError("--output needs the name of a file")
    is_file = output != "-"
    format_name = format_name or (SUFFIXES.get(Path(output).suffix.lower()) if is_file else None)
    if format_name is None:
        raise click.UsageError(f"specify a format: --to {', '.join(FORMATS)}")
    if format_name == "parquet" and not is_file:
        raise click.UsageError("a Parquet file needs a name: specify --output FILE.parquet")
    load_format(format_name)  # a missing package is reported before anything is read
    folders = _find_runs(runs, log_dir)
    with _open_file(Path(output), force=force) if is_file else _open_standard_output() as file:
        results = export_runs(folders, file, format_name, metrics=metrics, kinds=kinds, is_long=is_long)
    _report(results, output if is_file else None)


def _find_runs(runs: tuple[str, ...], log_dir: str) -> list[RunFolder]:
    if runs:
        return [find_readable_run(run, log_dir) for run in runs]
    folders = [find_readable_run(folder.path) for folder in list_runs(log_dir)]
    if not folders:
        raise TableExportError(f"nothing to export: there are no runs in {os.fspath(log_dir)!r}")
    return folders


@contextlib.contextmanager
def _open_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Yield a file that gets its name when it is complete."""
    try:
        check_file(path, below=path.parent)
        if not force and path.exists():
            raise FileExistsError(errno.EEXIST, "", str(path))
        new_file = replacing(path, below=path.parent, mode=0o666, must_be_new=not force)
        with new_file as descriptor, open(descriptor, "wb", closefd=False) as file:
            yield file
        os.close(descriptor)
    except FileExistsError as error:
        raise TableExportError(f"{path} exists; use --force to replace it") from error
    except OSError as error:
        raise TableExportError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _open_standard_output() -> Iterator[BinaryIO]:
    stream = sys.stdout.buffer
    yield cast(BinaryIO, _Terminal(stream)) if stream.isatty() else stream
    stream.flush()


class _Terminal:
    """Shows a table in a terminal. Names in a journal are untrusted: control characters are escaped."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        """Write whole lines."""
        lines = (line.split("\t") for line in data.decode().split("\n"))
        text = "\n".join("\t".join(safe(cell, sys.maxsize) for cell in line) for line in lines)
        self._stream.write(text.encode())
        return len(data)


def _report(results: list[ExportedRun], output: str | None) -> None:
    """Print the number of exported rows and runs without any, on standard error, so that the table can be piped."""
    for run in results:
        if run.num_bad_lines:
            echo(f"{safe(run.name)}: skipped {plural(run.num_bad_lines, 'unreadable line')}", err=True)
        if not run.num_rows:
            echo(f"{safe(run.name)}: nothing to export", err=True)
    if output is not None:
        num_rows, num_runs = sum(run.num_rows for run in results), sum(run.num_rows > 0 for run in results)
        echo(f"{safe(output)}: {plural(num_rows, 'row')} of {plural(num_runs, 'run')}", err=True)
