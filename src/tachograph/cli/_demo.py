"""`tacho demo`: train a small model with three learning rates, in the foreground or behind the dashboard."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import rich_click as click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tachograph.cli._format import new_console
from tachograph.cli._options import log_dir_option
from tachograph.cli._show import render
from tachograph.cli._ui import run_dashboard
from tachograph.reader import find_readable_run, read

__all__ = ["demo"]

_NUM_STEPS, _NUM_STEPS_WITH_UI = 1_500, 3_000
_STEP_S = 0.04
"""The time of a step in the run that is watched live, so that there is something to watch for two minutes."""
_NOTES = {
    "": "Learns two spirals. Compare it with the runs that have a lower and a higher learning rate.",
    "-low-lr": "The learning rate is too low: the loss falls, but slowly.",
    "-high-lr": "The learning rate is far too high: see the health page.",
}


@click.command()
@log_dir_option
@click.option(
    "--name", default="demo", show_default=True, help="Name of the first run; the names of the others start with it."
)
@click.option(
    "--steps", type=click.IntRange(1), help=f"Steps per run; default: {_NUM_STEPS}, or {_NUM_STEPS_WITH_UI} with --ui."
)
@click.option("--log-every", default=1, show_default=True, type=click.IntRange(1), help="Record every Nth step.")
@click.option("--seed", default=0, show_default=True, help="Seed for the data and the weights.")
@click.option("--ui", "with_ui", is_flag=True, help="Train in the background and serve the dashboard.")
@click.option("--port", default=8501, show_default=True, type=click.IntRange(0, 65_535), help="Port of the dashboard.")
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard in a browser.")
@click.option("--live", is_flag=True, hidden=True)
def demo(
    log_dir: str,
    name: str,
    steps: int | None,
    log_every: int,
    seed: int,
    with_ui: bool,
    port: int,
    open_browser: bool,
    live: bool,
) -> None:
    """Train a small model with three learning rates and show the recorded runs, or watch one live in the dashboard."""
    for library in ("OPENBLAS", "OMP", "MKL"):  # threads only delay matrices as small as these
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if with_ui:
        options = ("--name", name, "--steps", steps or _NUM_STEPS_WITH_UI, "--log-every", log_every, "--seed", seed)
        _train_and_serve(log_dir, [str(option) for option in options], port=port, open_browser=open_browser)
    else:
        _train_all(name, live=live, log_dir=log_dir, num_steps=steps or _NUM_STEPS, log_every=log_every, seed=seed)


def _train_all(name: str, *, live: bool, log_dir: str, num_steps: int, **options: Any) -> None:
    """Train the model three times: the run of this name first, or last if it is watched live."""
    from tachograph.cli._demo_training import HIGH, LOW, Schedule

    console = new_console()
    schedules = {"": Schedule(), "-low-lr": LOW, "-high-lr": HIGH}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    first_path = ""
    with Progress(*columns, console=console, transient=True) as progress:
        for suffix in ("-low-lr", "-high-lr", "") if live else schedules:
            task = progress.add_task(f"training {name}{suffix}", total=num_steps, loss="")
            run_options: dict[str, Any] = {
                "schedule": schedules[suffix],
                "console": not suffix,
                "log_dir": log_dir,
                "num_steps": num_steps,
            }
            pause_s = _STEP_S if live and not suffix else 0.0
            if pause_s:  # its speed says nothing about the others
                run_options["perf_tag"] = "demo-numpy-paced"
            run_path = _train(f"{name}{suffix}", _report(progress, task, pause_s), {**options, **run_options})
            first_path = run_path if not suffix else first_path
            _write_note(run_path, _NOTES[suffix])
            progress.remove_task(task)
    console.print(render(read(first_path)))
    folder = f" --log-dir {log_dir}" if log_dir != "logs" else ""
    console.print(Text(f"\nCompare the three runs:  tacho ls --columns config.learning_rate,val_loss.min{folder}"))
    console.print(Text(f"Watch them:              tacho ui{folder}"))


def _report(progress: Progress, task: Any, pause_s: float) -> Callable[[int, float], None]:
    def on_step(step: int, loss: float) -> None:
        progress.update(task, completed=step + 1, loss=f"train_loss {loss:.3f}")
        if pause_s:
            time.sleep(pause_s)

    return on_step


def _train(name: str, on_step: Callable[[int, float], None], options: dict[str, Any]) -> str:
    from tachograph.cli._demo_training import train

    return train(name=name, on_step=on_step, **options)


def _write_note(path: str, note: str) -> None:
    from tachograph.catalog import AnnotationError, annotate

    with contextlib.suppress(AnnotationError, OSError):  # the home folder may be read-only
        annotate(find_readable_run(path), [{"op": "set", "field": "note", "value": note}])


def _train_and_serve(log_dir: str, options: list[str], *, port: int, open_browser: bool) -> None:
    """Serve the dashboard while a child process trains; stop both together."""
    # The dashboard repeats a signal that has ended it: without a handler, this process would end before its child.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    # A separate process: the training loop would otherwise compete with the server for the interpreter lock.
    command = [sys.executable, "-m", "tachograph", "demo", "--live", "--log-dir", log_dir, *options]
    trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        run_dashboard([log_dir], port=port, open_browser=open_browser)
    finally:
        # As Ctrl-C in its terminal would: the run ends as interrupted, not as failed. A shell makes the jobs that a
        # script starts in the background ignore that.
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        trainer.terminate() if sys.platform == "win32" or is_ignored else trainer.send_signal(signal.SIGINT)
        try:
            trainer.wait(timeout=30)
        except subprocess.TimeoutExpired:
            trainer.kill()
