"""`tacho import`: make runs from the logs of other tools."""

from __future__ import annotations

import msgspec
import rich_click as click
from rich.console import Console
from rich.text import Text

from tachograph.cli._format import add_row, json_text, new_console, new_table, number, safe
from tachograph.cli._options import json_option, log_dir_option
from tachograph.cli._terminal import echo
from tachograph.importers import ImportReport, import_runs

__all__ = ["import_"]

_STYLES = {"created": "green", "updated": "green", "failed": "bold red", "empty": "yellow"}
_MAX_WARNINGS = 20


@click.command("import")
@click.argument("format")
@click.argument("path", nargs=-1, required=True)
@log_dir_option
@click.option("--name", help="Name of the run, if PATH contains only one.")
@click.option("--dry-run", is_flag=True, help="Print what would be imported and write nothing.")
@json_option
def import_(format: str, path: tuple[str, ...], log_dir: str, name: str | None, dry_run: bool, as_json: bool) -> None:  # noqa: A002
    """Convert the logs of other tools into runs.

    FORMAT is tensorboard, wandb, swanlab, mlflow, trackio, aim, csv, jsonl, trainer-state, or an installed importer.

    PATH is a file, or a folder with one or more runs. Importing again adds only new records. Exits with status 1 if a
    run could not be imported, or if there was nothing to import.
    """
    reports = import_runs(format.replace("-", "_"), path, log_dir, name=name, dry_run=dry_run)
    if as_json:
        echo(json_text([msgspec.to_builtins(report) for report in reports]))
    else:
        _print_reports(reports, dry_run=dry_run)
    if any(report.outcome == "failed" for report in reports) or all(report.outcome == "empty" for report in reports):
        raise SystemExit(1)


def _print_reports(reports: list[ImportReport], *, dry_run: bool) -> None:
    console = new_console()
    table = new_table("run", "", "rows", "metrics", "steps", "source", right={"rows", "metrics"}, wraps={"source"})
    for report in reports:
        outcome = f"would be {report.outcome}" if dry_run and report.num_records else report.outcome
        steps = "" if report.first_step is None else f"{number(report.first_step)} … {number(report.last_step)}"
        add_row(
            table,
            safe(report.run),
            Text(outcome, style=_STYLES.get(report.outcome, "dim")),
            number(report.num_rows),
            number(len(report.metrics)),
            steps,
            safe(report.source, 400),
        )
    console.print(table)
    for report in reports:
        _print_details(console, report, dry_run=dry_run)


def _print_details(console: Console, report: ImportReport, *, dry_run: bool) -> None:
    lines: list[tuple[str, str]] = []
    if report.error:
        lines.append((report.error, "red"))
    if report.outcome == "empty":
        lines.append(("nothing to import was found", "yellow"))
    damage = [f"damaged at {item.where} of {item.path}: {item.reason}" for item in report.damage]
    lines += [(line, "yellow") for line in damage[:_MAX_WARNINGS]]
    if len(damage) > _MAX_WARNINGS:
        lines.append((f"and {len(damage) - _MAX_WARNINGS} more places", "yellow"))
    lines += [(note, "dim") for note in report.notes]
    if report.left_out:
        kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(report.left_out.items()))
        lines.append((f"not imported: {kinds}", "dim"))
    if dry_run and report.metrics:
        lines.append((f"metrics: {', '.join(report.metrics)}", "dim"))
    for line, style in lines:
        where = safe(report.run or report.source, 400)
        console.print(Text.assemble((f"{where}: ", "bold"), (safe(line, 2_000), style)))
