"""`tacho dump`: list, show and export the evidence that a run captured."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import rich_click as click
from rich.text import Text

from tachograph._base.printable import safe_lines
from tachograph.black_box import Dump
from tachograph.cli._audit import audit_local_change
from tachograph.cli._control import wait_for_acks
from tachograph.cli._files import write_file
from tachograph.cli._format import add_row, format_time, json_text, new_console, new_table, number, safe, size
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError, ControlError
from tachograph.journal import JournalFollower, journal_size
from tachograph.reader import read, request_control

__all__ = ["dump", "find_dump", "verdict_lines"]

_TIME = "%Y-%m-%d %H:%M:%S"
_MAX_LAYERS = 20
_MAX_STEPS = 8
_MAX_LINES = 20


class _DumpGroup(click.RichGroup):
    """A group in which the name of a run stands for the command `request` with that run."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Insert the command `request` before an argument that is no command."""
        if args and self.get_command(context, args[0]) is None and not args[0].startswith("-"):
            args = ["request", *args]
        return super().resolve_command(context, args)


@click.group(cls=_DumpGroup)
def dump() -> None:
    """Show the evidence that a run captured when something went wrong; `tacho dump RUN` captures some now."""


@dump.command("request")
@run_argument
@log_dir_option
@json_option
@click.option(
    "--wait", "wait_s", type=float, default=30.0, show_default=True, help="Seconds to wait until the dump is written."
)
def request_dump(run: str, log_dir: str, as_json: bool, wait_s: float) -> None:
    """Ask a running training for a dump: the last steps, the layers and the memory; short: `tacho dump RUN`.

    A training that does not come to the end of a step within ten seconds gives the stacks of its threads instead of the
    layers.
    """
    history = read(run, log_dir)
    # Follow from the current end of the journal: answers are written after the request.
    follower = JournalFollower(history.folder.journal, journal_size(history.folder.journal))
    ids = request_control(history, {"dump_now": True}, source="cli")
    audit_local_change(history.folder.path.parent, "control", [history.folder.name], old={}, new={"dump_now": True})
    answer = wait_for_acks(follower, ids, wait_s).get("dump_now", {})
    if answer.get("status") == "rejected":
        raise ControlError(f"{safe(run)} makes no dump: {safe(answer.get('reason'), 400)}")
    name = str(answer.get("path") or "").rpartition("/")[2]
    if not name:
        echo(json_text(answer) if as_json else f"Requested; tacho dump list {run} shows the dump when it is written.")
    elif as_json:
        echo(json_text(_summary(find_dump(run, name, log_dir))))
    else:
        for line in verdict_lines(find_dump(run, name, log_dir)):
            new_console().print(line)


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
        num_bytes = sum(file.stat().st_size for file in one.path.iterdir() if file.is_file())
        add_row(table, one.name, number(one.step), format_time(one.time, _TIME), size(num_bytes), safe(text, 400))
    new_console().print(table)


@dump.command("show")
@run_argument
@click.argument("name", required=False)
@log_dir_option
@json_option
def show_dump(run: str, name: str | None, log_dir: str, as_json: bool) -> None:
    """Show a dump of a run, the last one unless NAME is given."""
    one = find_dump(run, name, log_dir)
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
    output = one["output"]
    lines = output.get("lines") if isinstance(output, dict) else None
    if isinstance(lines, list):
        console.print(Text("Last output", style="bold"))
        console.print(Text(safe_lines("\n".join(map(str, lines[-_MAX_LINES:])))))
    for problem in one.problems:
        console.print(Text(f"Missing: {safe(problem, 300)}", style="yellow"))


@dump.command("export")
@run_argument
@click.argument("name", required=False)
@click.option("--output", "-o", metavar="FILE", help="The archive to write; RUN-NAME.tar.gz if not given.")
@log_dir_option
def export_dump(run: str, name: str | None, output: str | None, log_dir: str) -> None:
    """Write a dump of a run, the last one unless NAME is given, to one archive, to share it."""
    one = find_dump(run, name, log_dir)
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


def find_dump(run: str, name: str | None, log_dir: str) -> Dump:
    """Return a dump of a run by its name or number, the last one without a name.

    Raises:
        ConfigError: if there is no such dump.
    """
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
