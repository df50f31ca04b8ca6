"""`tacho baseline`: the runs that later ones are checked against, in a file for git."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import rich_click as click
from rich.text import Text

from tachograph.cli._compare import load_runs
from tachograph.cli._format import add_row, json_text, new_console, new_table, number, plural, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.cli._terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Command = TypeVar("Command", bound=Callable[..., Any])

__all__ = ["baseline"]


_OLD_PATH = "tachograph.baseline_file"


def _file_option(command: Command) -> Command:
    """Add `--baseline`, and `--file`, its name in 0.2, which is going to be removed."""
    option = click.option(
        "--baseline",
        "path",
        metavar="FILE",
        default="baseline.json",
        show_default=True,
        type=click.Path(dir_okay=False),
        callback=lambda context, _parameter, value: context.meta.get(_OLD_PATH, value),
        help="The baseline file.",
    )
    old_option = click.option(
        "--file",
        hidden=True,
        is_eager=True,
        expose_value=False,
        type=click.Path(dir_okay=False),
        callback=_remember_old_path,
    )
    return option(old_option(command))


def _remember_old_path(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_OLD_PATH] = value
        echo("warning: --file is now --baseline; the next version no longer accepts --file", err=True)


@click.group()
def baseline() -> None:
    """Keep the numbers of good runs in a small file for git; `tacho check` compares later runs with it."""


@baseline.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run, callback=resolve_run)
@_file_option
@click.option(
    "--drop-older",
    "max_runs",
    type=click.IntRange(min=1, max=100),
    default=20,
    show_default=True,
    metavar="N",
    help="Keep only the N newest runs in the file.",
)
@click.option(
    "--accept", metavar="REASON", help="Add a run although it differs; later checks ignore the runs before it."
)
@log_dir_option
def add(runs: tuple[str, ...], path: str, max_runs: int, accept: str | None, log_dir: str) -> None:
    """Add runs to the baseline, and create the file if it does not exist.

    Several runs are added in the order in which they started, all or none. A run that failed or differs from the
    baseline is rejected, unless you give the reason with --accept. The reason is stored in the file.
    """
    from tachograph.comparison import Baseline, load_baseline, save_baseline

    if accept is not None and not accept.strip():
        raise click.UsageError("--accept needs a reason")
    stored_baseline = load_baseline(path) if os.path.lexists(path) else Baseline()
    sorted_runs = sorted(load_runs(runs, log_dir), key=lambda run: run.started)
    uncomparable = [
        (run.name, line) for run in sorted_runs for line in stored_baseline.add(run, accepted=accept, max_runs=max_runs)
    ]
    save_baseline(path, stored_baseline)
    echo(f"{safe(path)}: {plural(len(stored_baseline.runs), 'run')}, the newest is {safe(sorted_runs[-1].name)}")
    for name, line in uncomparable:
        echo(f"warning: {safe(name)}: not enough to compare the {safe(line)}", err=True)


@baseline.command()
@_file_option
@json_option
def show(path: str, as_json: bool) -> None:
    """Show the runs of the baseline, the newest first."""
    from tachograph.comparison import load_baseline

    stored_baseline = load_baseline(path)
    if as_json:
        echo(json_text(msgspec.to_builtins(stored_baseline)))
        return
    console = new_console()
    num_used = len(stored_baseline.evidence())
    tags = ", ".join(stored_baseline.perf_tags) or "none"
    console.print(
        Text(f"{safe(path)}: {plural(len(stored_baseline.runs), 'run')}, perf_tag: {safe(tags)}", style="bold")
    )
    table = new_table("run", "started", "commit", "steps", "time/step", "loss", "note", right={"steps", "time/step"})
    for position, run in enumerate(stored_baseline.runs):
        note = f"accepted: {run.accepted}" if run.accepted else "" if position < num_used else "not used any more"
        last_losses = [] if run.loss is None else [value for value in run.loss.blocks[-4:] if value is not None]
        add_row(
            table,
            safe(run.name, 60),
            safe(run.date[:16].replace("T", " ")),
            safe((run.commit or "–")[:12]),
            number(run.steps),
            "–" if run.times is None else f"{1000 * run.times.mean_s:.4g} ms",
            number(sum(last_losses) / len(last_losses) if last_losses else None),
            safe(note, 100),
        )
    if stored_baseline.runs:
        console.print(table)


@baseline.command()
@click.argument("run")
@_file_option
def drop(run: str, path: str) -> None:
    """Remove a run from the baseline, by name or id."""
    from tachograph.comparison import load_baseline, save_baseline

    stored_baseline = load_baseline(path)
    removed_run = stored_baseline.drop(run)
    save_baseline(path, stored_baseline)
    echo(f"{safe(path)}: dropped {safe(removed_run.name)}, {plural(len(stored_baseline.runs), 'run')} left")
