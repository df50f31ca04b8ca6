"""`tacho demo`: train a small model, in the foreground or behind the dashboard."""

from __future__ import annotations

import signal
import subprocess
import sys

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tachograph.cli._options import log_dir_option
from tachograph.cli._show import render
from tachograph.cli._ui import run_dashboard
from tachograph.reader import read

__all__ = ["demo"]

_NUM_STEPS, _NUM_STEPS_WITH_UI = 2_000, 30_000


@click.command()
@log_dir_option
@click.option("--name", default="demo", show_default=True, help="Name of the run.")
@click.option(
    "--steps", type=click.IntRange(1), help=f"Steps to train; default: {_NUM_STEPS}, or {_NUM_STEPS_WITH_UI} with --ui."
)
@click.option("--log-every", default=1, show_default=True, type=click.IntRange(1), help="Steps per step record.")
@click.option("--seed", default=0, show_default=True, help="Seed for the data and the weights.")
@click.option("--ui", "with_ui", is_flag=True, help="Train in the background and serve the dashboard.")
@click.option("--port", default=8501, show_default=True, type=click.IntRange(0, 65_535), help="Port of the dashboard.")
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard in a browser.")
def demo(
    log_dir: str, name: str, steps: int | None, log_every: int, seed: int, with_ui: bool, port: int, open_browser: bool
) -> None:
    """Train a small model and show the recorded run, or watch it live in the dashboard."""
    if with_ui:
        options = ("--name", name, "--steps", steps or _NUM_STEPS_WITH_UI, "--log-every", log_every, "--seed", seed)
        _train_and_serve(log_dir, [str(option) for option in options], port=port, open_browser=open_browser)
    else:
        _train(log_dir, name, steps or _NUM_STEPS, log_every, seed)


def _train(log_dir: str, name: str, steps: int, log_every: int, seed: int) -> None:
    from tachograph.cli._demo_training import train

    console = Console()
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("training", total=steps, loss="")

        def on_step(step: int, loss: float) -> None:
            progress.update(task, completed=step + 1, loss=f"train_loss {loss:.3f}")

        path = train(name=name, log_dir=log_dir, num_steps=steps, log_every=log_every, seed=seed, on_step=on_step)
    console.print(render(read(path)))


def _train_and_serve(log_dir: str, options: list[str], *, port: int, open_browser: bool) -> None:
    """Serve the dashboard while a child process trains; stop both together."""
    # A separate process: the training loop would otherwise compete with the server for the interpreter lock.
    command = [sys.executable, "-m", "tachograph", "demo", "--log-dir", log_dir, *options]
    trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        run_dashboard([log_dir], port=port, open_browser=open_browser)
    finally:
        # As Ctrl-C in its terminal would: the run ends as interrupted, not as failed.
        trainer.terminate() if sys.platform == "win32" else trainer.send_signal(signal.SIGINT)
        try:
            trainer.wait(timeout=10)
        except subprocess.TimeoutExpired:
            trainer.kill()
