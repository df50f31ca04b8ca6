"""`tacho dump`: list, show and export the evidence that a run captured."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import rich_click as click
from rich.text import Text

from tachograph.black_box import Dump
from tachograph.cli._files import write_file
from tachograph.cli._format import add_row, format_time, json_text, new_console, new_table, number, safe, size
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError
from tachograph.reader import read

__all__ = ["dump", "verdict_lines"]

_TIME = "%Y-%m-%d %H:%M:%S"
_MAX_LAYERS = 20
_MAX_STEPS = 8


@click.group()
def dump() -> None:
    """Show the evidence that a run captured when something went wrong."""


@dump.command("list")
@run_argument
@log_dir_option
@json_option
def list_dumps(run: str, log_dir: str, as_json: bool) -> None:
    """List the dumps of a run."""
    dumps = read(run, log_dir).dumps
    if as_json:
        echo(json_text([_summary(one) for one in dumps]))
        return
    if not dumps:
        echo("No dumps: nothing went wrong, or the black box is off.")
        return
    table = new_table("dump", "step", "time", "size", "cause", right={"step", "size"}, wraps={"cause"})
    for one in dumps:
        text = "" if one.verdict is None else one.verdict.text
        num_bytes = sum(file.size_bytes for file in one.files)
        add_row(table, one.name, number(one.step), format_time(one.time, _TIME), size(num_bytes), safe(text, 400))
    new_console().print(table)


@dump.command("show")
@run_argument
@click.argument("name", required=False)
@log_dir_option
@json_option
def show_dump(run: str, name: str | None, log_dir: str, as_json: bool) -> None:
    """Show a dump of a run, the last one unless NAME is given."""
    one = _find(run, name, log_dir)
    if as_json:
        echo(json_text({**_summary(one), "parts": {part: one[part] for part in one.parts}}))
        return
    console = new_console()
    console.print(Text(f"{one.name}  step {number(one.step)}  {format_time(one.time, _TIME)}", style="bold"))
    for line in verdict_lines(one):
        console.print(line)
    layers = one["layers"]
    if isinstance(layers, dict) and isinstance(layers.get("layers"), list):
        console.print(_render_layers(layers["layers"]))
    steps = one["steps"]
    if isinstance(steps, dict) and isinstance(steps.get("steps"), list):
        console.print(_render_steps(steps["steps"][-_MAX_STEPS:]))
    stacks = one["stacks"]
    for stack in stacks.get("threads", []) if isinstance(stacks, dict) else []:
        console.print(Text(f"Thread {safe(stack.get('thread'))}, seen {stack.get('times_seen')} times", style="bold"))
        console.print(Text(safe(stack.get("stack"), 4000)))
    for problem in one.problems:
        console.print(Text(f"Missing: {safe(problem, 300)}", style="yellow"))


@dump.command("export")
@run_argument
@click.argument("name", required=False)
@click.option("--output", "-o", metavar="FILE", help="The archive to write; RUN-NAME.tar.gz if not given.")
@log_dir_option
def export_dump(run: str, name: str | None, output: str | None, log_dir: str) -> None:
    """Write a dump of a run, the last one unless NAME is given, to one archive, to share it."""
    one = _find(run, name, log_dir)
    target = output or f"{read(run, log_dir).name}-{one.name}.tar.gz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(one.path.iterdir()):
            archive.add(path, f"{one.name}/{path.name}", recursive=False)
    write_file(target, buffer.getvalue())
    echo(f"Wrote {target}")


def verdict_lines(one: Dump) -> list[Text]:
    """Return the cause, its confidence and the place of a dump, for a person."""
    lines = []
    if one.verdict is not None:
        lines.append(Text.assemble(("Cause    ", "dim"), safe(one.verdict.text, 1000)))
        lines.append(Text.assemble(("Sure     ", "dim"), one.verdict.confidence))
    lines.append(Text.assemble(("Dump     ", "dim"), safe(str(one.path), 400)))
    return lines


def _find(run: str, name: str | None, log_dir: str) -> Dump:
    dumps = read(run, log_dir).dumps
    matches = [one for one in dumps if name is None or one.name == name or one.name.partition("-")[0] == name]
    if not matches:
        names = ", ".join(one.name for one in dumps) or "none"
        raise ConfigError(f"{safe(run)} has no dump {safe(name or '')}; it has: {names}")
    return matches[-1]


def _summary(one: Dump) -> dict[str, Any]:
    verdict = one.verdict
    return {
        "name": one.name,
        "reason": one.reason,
        "step": one.step,
        "time": one.time,
        "rank": one.rank,
        "alert_id": one.alert_id,
        "verdict": None
        if verdict is None
        else {"kind": verdict.kind, "text": verdict.text, "confidence": verdict.confidence, "details": verdict.details},
        "path": str(one.path),
        "files": [{"name": file.name, "size_bytes": file.size_bytes} for file in one.files],
        "problems": one.problems,
    }


def _render_layers(layers: list[Any]) -> Any:
    """Return the layers with the largest gradients; those with values that are not finite first."""
    rows = [row for row in layers if isinstance(row, dict)]
    rows.sort(key=lambda row: (-_num_bad(row), -_value(row, "gradient", "rms")))
    columns = ("layer", "weight rms", "weight max", "gradient rms", "gradient max", "update", "not finite")
    table = new_table(*columns, right=set(columns[1:]))
    for row in rows[:_MAX_LAYERS]:
        cells = [number(_cell(row, group, name)) for group in ("weight", "gradient") for name in ("rms", "absmax")]
        ratio = row.get("update_ratio")
        update = f"{ratio:.2%}" if isinstance(ratio, float) else ""
        add_row(table, safe(row.get("name"), 80), *cells, update, number(_num_bad(row)) if _num_bad(row) else "")
    return table


def _render_steps(steps: list[Any]) -> Any:
    table = new_table("step", "loss", "lr", "grad norm", "samples", right={"step", "loss", "lr", "grad norm"})
    for row in (row for row in steps if isinstance(row, dict)):
        batches = row.get("batches") or [None]
        indices = batches[0].get("indices") if isinstance(batches[0], dict) else None
        text = ", ".join(map(str, indices[:8])) + (" …" if len(indices) > 8 else "") if indices else ""
        loss = row.get("train_loss", row.get("loss"))
        cells = (row.get("global_step"), loss, row.get("lr"), row.get("grad_norm"))
        add_row(table, *map(number, cells), text)
    return table


def _cell(row: dict[str, Any], group: str, name: str) -> Any:
    cell = row.get(group)
    return cell.get(name) if isinstance(cell, dict) else None


def _value(row: dict[str, Any], group: str, name: str) -> float:
    value = _cell(row, group, name)
    return float(value) if isinstance(value, (int, float)) and value == value else 0.0  # noqa: PLR0124


def _num_bad(row: dict[str, Any]) -> int:
    return sum(int(_cell(row, group, "non_finite") or 0) for group in ("weight", "gradient", "state"))
