"""`tacho ls`: one line per run."""

from __future__ import annotations

import os

import msgspec
import rich_click as click
from rich.console import Console, RenderableType
from rich.text import Text

from tachograph.cli._format import add_row, ago, bar, duration, json_text, new_table, number, plural, safe, state_text
from tachograph.cli._options import json_option, log_dir_option
from tachograph.journal import RunState, list_runs
from tachograph.reader import RunOverview, overview

__all__ = ["ls"]

# Columns by terminal width; names are never truncated, so a narrow terminal gets fewer columns.
_WIDE_HEADINGS = ("run", "state", "step", "progress", "loss", "time/step", "duration", "started")
_MEDIUM_HEADINGS = ("run", "state", "step", "progress", "loss", "started")
_NARROW_HEADINGS = ("run", "state", "step", "loss")


@click.command()
@log_dir_option
@json_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(state) for state in RunState]),
    help="Only runs in this state; repeatable.",
)
def ls(log_dir: str, as_json: bool, states: tuple[str, ...]) -> None:
    """List the runs in the log folder, newest first."""
    runs = [overview(folder) for folder in list_runs(log_dir)]
    runs = [run for run in runs if not states or str(run.state) in states]
    runs.sort(key=lambda run: run.started or 0.0, reverse=True)
    if as_json:
        click.echo(json_text([msgspec.to_builtins(run) for run in runs]))
        return
    console = Console()
    if not runs:
        console.print(Text(f"No runs in {os.fspath(log_dir)!r}. Start one with tachograph.init(), or try: tacho demo"))
        return
    headings = _WIDE_HEADINGS if console.width >= 110 else _MEDIUM_HEADINGS if console.width >= 78 else _NARROW_HEADINGS
    table = new_table(*headings, right={"step", "loss", "time/step"})
    for run in runs:
        cells = _row_cells(run)
        add_row(table, *(cells[heading] for heading in headings))
    console.print(table)


def _row_cells(run: RunOverview) -> dict[str, RenderableType]:
    progress = run.progress
    lost = f" ({run.num_dropped} lost)" if run.num_dropped else ""
    is_live = run.state is RunState.RUNNING
    return {
        "run": Text(safe(run.name, 60), style="bold"),
        "state": state_text(run.state) + Text(lost, style="yellow") + _alert_count(run),
        "step": number(run.step),
        "progress": "–" if progress is None else bar(progress, is_live=is_live, width=8),
        "loss": number(run.train_loss),
        "time/step": duration(run.sec_per_step)
        if (run.sec_per_step or 0) >= 1
        else _format_milliseconds(run.sec_per_step),
        "duration": duration(run.duration_s),
        "started": ago(run.started),
    }


def _alert_count(run: RunOverview) -> Text:
    if not run.num_open_alerts:
        return Text()
    return Text(f" {plural(run.num_open_alerts, 'alert')}", style="bold red" if run.num_critical_alerts else "yellow")


def _format_milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.3g} ms"
