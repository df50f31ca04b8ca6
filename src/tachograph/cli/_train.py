"""`tacho train`."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import rich_click as click

from tachograph._base import ranks
from tachograph.cli._format import add_row, grid, new_console, new_table, number, safe
from tachograph.cli._terminal import echo
from tachograph.cli._train_ab import PluginTest
from tachograph.exceptions import TachographError

if TYPE_CHECKING:
    from tachograph.train import TrainPlan, TrainResult

__all__ = ["train"]

_MAX_WAIT_S = 60


@click.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the config, such as learning_rate=1e-4 or datasets.0.path=other.jsonl. Can be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Check the config and the data, and print what would happen.")
@click.option(
    "--without",
    multiple=True,
    metavar="PLUGIN",
    help="Leave out a plugin of the config, with its options. Can be repeated.",
)
@click.option(
    "--ab",
    metavar="PLUGIN",
    help="Train with and without a plugin of the config in turns, and compare speed, memory, loss and gradients.",
)
@click.option(
    "--pairs", default=3, show_default=True, type=click.IntRange(min=1), help="With --ab: how often to train each way."
)
@click.option("--name", help="With --ab: name of the test. Its runs are NAME-with-NUMBER and NAME-without-NUMBER.")
@click.option(
    "--html",
    "html_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="With --ab: where to write the page; by default NAME.html in the log folder.",
)
@click.option("--json", "as_json", is_flag=True, help="With --ab: print JSON.")
def train(
    config: str,
    overrides: tuple[str, ...],
    dry_run: bool,
    without: tuple[str, ...],
    ab: str | None,
    pairs: int,
    name: str | None,
    html_file: str | None,
    as_json: bool,
) -> None:
    """Train a language model from a config file, with plugins, and record the run.

    Pre-training, SFT, DPO, KTO, ORPO and GRPO; full, LoRA and QLoRA. Uses the config keys of Axolotl. Config and data
    are checked before the model is loaded. For several processes, run `torchrun -m tachograph train CONFIG` or
    `accelerate launch -m tachograph train CONFIG`. Needs `pip install 'tachograph[train]'`.
    """
    try:
        from tachograph.train import load
    except ImportError as error:
        raise click.ClickException(
            f"training needs a package that is not installed ({error}): pip install 'tachograph[train]'"
        ) from error
    if ab is not None:
        _compare_plugin(
            PluginTest(config, overrides, without, ab, num_pairs=pairs, name=name), dry_run, html_file, as_json
        )
        return
    if name is not None or html_file is not None or as_json:
        raise click.UsageError("--name, --html and --json belong to --ab PLUGIN")
    is_first = ranks.rank() == 0
    if not is_first:
        _silence_libraries()
    try:
        with load(config, overrides, without=without) as job:
            if dry_run:
                plan = job.plan()
                if is_first:
                    _print_plan(plan)
                return
            if is_first:
                echo("[train] checking the config and the data", err=True)
            checks = job.check()
            if is_first:
                for note in (*job.warnings, *checks.data.notes):
                    echo(f"[train] {safe(note, 1000)}", err=True)
            result = job.run()
    except TachographError:
        if not is_first:
            # Rank 0 finds the same and prints it. The launcher ends all ranks when the first one exits.
            time.sleep(_MAX_WAIT_S)
        raise
    if is_first:
        _print_result(result)


def _compare_plugin(test: PluginTest, dry_run: bool, html_file: str | None, as_json: bool) -> None:
    if dry_run:
        echo(test.check())
        echo("nothing was trained (--dry-run)")
        return
    is_stopped = test.run()
    test.print(as_json=as_json, html_file=html_file)
    if is_stopped:
        raise SystemExit(128 + signal.SIGINT)


def _silence_libraries() -> None:
    """Let only rank 0 print warnings and progress bars."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def _print_plan(plan: TrainPlan) -> None:
    console = new_console()
    console.print(grid([(name, safe(value, 400)) for name, value in plan.rows]))
    if plan.plugins:
        table = new_table("plugin", "would do", wraps=("would do",))
        for name, lines in plan.plugins.items():
            for line in lines or ["–"]:
                add_row(table, safe(name), safe(line, 1000))
        console.print()
        console.print(table)
    for note in plan.notes:
        echo(f"note: {safe(note, 1000)}")
    echo("nothing was trained (--dry-run)")


def _print_result(result: TrainResult) -> None:
    losses = [
        f"{name} {number(result.metrics[name])}" for name in ("train_loss", "eval_loss") if name in result.metrics
    ]
    where = f", recorded in {os.path.relpath(result.run_dir)}" if result.run_dir is not None else ""
    echo(f"[train] {result.num_steps} steps, {', '.join(losses)}; saved in {safe(result.output_dir)}{where}", err=True)
