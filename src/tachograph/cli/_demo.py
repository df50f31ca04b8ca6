"""`tacho demo`."""

from __future__ import annotations

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tachograph.cli._options import log_dir_option
from tachograph.cli._show import render
from tachograph.journal import read

__all__ = ["demo"]


@click.command()
@log_dir_option
@click.option("--name", default="demo", show_default=True, help="Name of the run.")
@click.option("--steps", default=2000, show_default=True, type=click.IntRange(1), help="Steps to train.")
@click.option("--log-every", default=1, show_default=True, type=click.IntRange(1), help="Steps per step record.")
@click.option("--seed", default=0, show_default=True, help="Seed of the data and the weights.")
def demo(log_dir: str, name: str, steps: int, log_every: int, seed: int) -> None:
    """Train a small real model with telemetry on, then show the run."""
    from tachograph.demo import train

    console = Console()
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("training", total=steps, loss="")

        def on_step(step: int, loss: float) -> None:
            progress.update(task, completed=step + 1, loss=f"train_loss {loss:.3f}")

        path = train(name=name, log_dir=log_dir, num_steps=steps, log_every=log_every, seed=seed, on_step=on_step)
    console.print(render(read(path)))
