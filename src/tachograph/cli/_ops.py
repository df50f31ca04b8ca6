"""`tacho doctor --ops`: what unequal work costs a job."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tachograph.cli._format import add_row, duration, json_text, new_console, new_table, plural, safe
from tachograph.cli._terminal import echo
from tachograph.diagnostics.op_trace import Imbalance, find_imbalance, read_ops

__all__ = ["print_imbalance"]

_MIN_GAIN_SHARE = 0.01
_TITLES = {"workers": "Slow workers", "stages": "Unequal stages", "micro_batches": "Unequal micro-batches"}


def print_imbalance(path: str, *, as_json: bool) -> bool:
    """Print what unequal work costs a job, and return whether it matters."""
    imbalance = find_imbalance(read_ops(path))
    if as_json:
        echo(json_text({**msgspec.to_builtins(imbalance), "slowdown": imbalance.slowdown}))
    else:
        new_console().print(_render(imbalance))
    return not imbalance.is_balanced


def _render(imbalance: Imbalance) -> RenderableType:
    lost_s = imbalance.step_s - imbalance.ideal_step_s
    parts: list[RenderableType] = []
    if imbalance.is_balanced:
        parts.append(Text(f"The work is balanced: {100 * (imbalance.slowdown - 1):.1f} % are lost.", style="green"))
    else:
        cause = safe(imbalance.losses[0].text, 600)
        parts.append(Text(f"{cause[:1].upper()}{cause[1:]}.", style="bold red"))
        parts.append(
            Text(
                f"A step takes {imbalance.slowdown:.2f} times as long as with equal work: {duration(lost_s)} are lost."
            )
        )
    table = new_table("lost to", "per step", "share", "cause", right={"per step", "share"}, wraps={"cause"})
    for loss in imbalance.losses:
        share = loss.seconds_per_step / lost_s if lost_s > 0 else 0.0
        add_row(table, _TITLES[loss.cause], _milliseconds(loss.seconds_per_step), f"{100 * share:.0f} %", loss.text)
    gains = new_table("if it took the usual time", "gain per step", right={"gain per step"})
    by_name = {f"rank {rank}": seconds for rank, seconds in imbalance.by_worker.items()}
    by_name |= {f"stage {stage}": seconds for stage, seconds in imbalance.by_stage.items()} | imbalance.by_kind
    for name, seconds in by_name.items():
        if seconds >= _MIN_GAIN_SHARE * imbalance.step_s:
            add_row(gains, name, _milliseconds(seconds))
    dropped = (
        f"; left out {plural(imbalance.num_dropped_steps, 'incomplete step')}" if imbalance.num_dropped_steps else ""
    )
    read_text = f"Replayed {plural(imbalance.num_steps, 'step')} of {plural(imbalance.num_workers, 'worker')}{dropped}."
    tables: list[RenderableType] = [] if imbalance.is_balanced else [Text(), table, Text(), gains]
    return Group(*parts, *tables, Text(), Text(read_text, style="dim"))


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
