"""`tacho replay`: repeat the steps before a NaN of a `tacho train` run, and print the operation with which it began."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from tachograph.cli._dump import find_dump
from tachograph.cli._format import json_text, number, plural, safe
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError
from tachograph.records import loss_names_in

if TYPE_CHECKING:
    from tachograph.train import Replay

__all__ = ["replay"]


@click.command()
@run_argument
@click.argument("name", required=False, metavar="[DUMP]")
@click.option(
    "--config",
    "config",
    required=True,
    type=click.Path(dir_okay=False),
    help="The config that the run was trained with. Nothing that the run folder names is executed.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A change of the config, as of tacho train."
)
@click.option(
    "--checkpoint", metavar="DIR", help="Start from this checkpoint instead of the last one before the fault."
)
@log_dir_option
@json_option
def replay(
    run: str,
    name: str | None,
    config: str,
    overrides: tuple[str, ...],
    checkpoint: str | None,
    log_dir: str,
    as_json: bool,
) -> None:
    """Repeat the steps of a `tacho train` run before a NaN, and print the first operation that returns one.

    The training starts again from the last checkpoint before the fault in `output_dir` of the config, or from the
    beginning, with the same data and random numbers. Nothing is recorded or saved. Exits with status 1 if the fault
    does not happen again.
    """
    dump = find_dump(run, name, log_dir)
    part = dump["steps"]
    rows = part.get("steps") if isinstance(part, dict) else None
    losses = _losses(rows if isinstance(rows, list) else [])
    first_bad = min((step for step, loss in losses.items() if not math.isfinite(loss)), default=dump.step)
    if first_bad is None:
        raise ConfigError(f"the dump {dump.name} has no step, so it cannot be repeated")
    last_good = max((step for step, loss in losses.items() if step < first_bad), default=None)
    if last_good is None:
        last_good = first_bad
    try:
        from tachograph.train import replay as replay_training
    except ImportError as error:
        raise click.ClickException(f"a replay needs pip install 'tachograph[train]' ({error})") from error
    result = replay_training(
        config,
        overrides,
        first_checked=max(last_good, 1),
        last_step=first_bad + 1,
        recorded_losses=losses,
        checkpoint=checkpoint,
    )
    if as_json:
        echo(json_text(msgspec.to_builtins(result)))
    else:
        _print(result)
    if result.operation is None:
        raise SystemExit(1)


def _losses(rows: list[Any]) -> dict[int, float]:
    """Return the recorded losses by step."""
    losses = {}
    for row in rows:
        names = loss_names_in(row) if isinstance(row, dict) else ()
        if names and isinstance(row.get("global_step"), int):
            losses[row["global_step"]] = float(row[names[0]])
    return losses


def _print(result: Replay) -> None:
    start = "the beginning" if result.checkpoint is None else safe(result.checkpoint)
    num_steps = plural(len(result.steps), "step")
    echo(f"Repeated {num_steps} from {start}, {number(result.num_operations)} operations checked.")
    compared = [one for one in result.steps if one.recorded_loss is not None and math.isfinite(one.recorded_loss)]
    if compared:
        largest = max(abs(one.loss - (one.recorded_loss or 0.0)) for one in compared)
        num_equal = sum(one.loss == one.recorded_loss for one in compared)
        equal = f"{num_equal} of {len(compared)} are equal to the recorded ones"
        echo(f"Losses   {equal}; largest difference {number(largest)}")
    if result.bad_weights:
        names = ", ".join(map(safe, result.bad_weights[:3]))
        echo(f"The weights were not finite before the first checked step: {names}. Give an earlier --checkpoint.")
    if result.operation is None:
        echo("The fault did not happen again.")
        return
    echo(f"Fault    step {number(result.fault_step)}: {safe(result.operation.describe(), 400)}")
    for line in result.operation.lines:
        echo(f"         {safe(line, 200)}")
    if result.first_nan is not None and result.first_nan != result.operation:
        echo(f"NaN      {safe(result.first_nan.describe(), 400)}")
