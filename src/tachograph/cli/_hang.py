"""`tacho doctor --flight-recorder`: who a hanging job waits for."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tachograph.cli._format import format_time, json_text, new_console, plural, safe
from tachograph.cli._terminal import echo
from tachograph.diagnostics.flight_recorder import HangReport, StuckGroup, find_hang, format_ranks, read_dumps

__all__ = ["print_hang"]

_MAX_GROUPS = 8
_MAX_FILES = 8


def print_hang(folder: str, *, as_json: bool) -> bool:
    """Print what the flight recorder dumps of a folder say, and return whether the job hangs."""
    report = find_hang(read_dumps(folder))
    if as_json:
        groups = [{**msgspec.to_builtins(group), "text": group.text} for group in report.stuck_groups]
        echo(json_text({**msgspec.to_builtins(report), "suspects": report.suspects, "stuck_groups": groups}))
    else:
        new_console().print(_render(report))
    return bool(report.stuck_groups)


def _render(report: HangReport) -> RenderableType:
    causes = [group for group in report.stuck_groups if group.is_cause]
    others = [group for group in report.stuck_groups if not group.is_cause]
    parts: list[RenderableType] = []
    if causes:
        parts.append(Text(_headline(report, causes[0]), style="bold red"))
        parts += [_line(group) for group in causes[:_MAX_GROUPS]]
    else:
        parts.append(Text("No rank waits for another one, and all ranks agree.", style="green"))
    if others:
        parts += [Text(), Text("Because of it:", style="dim"), *(_line(group) for group in others[:_MAX_GROUPS])]
    num_more = max(0, len(causes) - _MAX_GROUPS) + max(0, len(others) - _MAX_GROUPS)
    if num_more:
        parts.append(Text(f"{plural(num_more, 'more group')}; --json prints all of them.", style="dim"))
    parts.append(Text())
    if report.missing_dumps:
        missing = f"No dump of {format_ranks(report.missing_dumps)}: the process died, or was not asked to write one."
        parts.append(Text(missing, style="yellow"))
    parts += [
        Text(f"Ignored {safe(file.path, 200)}: {safe(file.reason, 200)}", style="yellow")
        for file in report.unreadable[:_MAX_FILES]
    ]
    parts.append(Text(f"Read {plural(report.num_dumps, 'dump')}.", style="dim"))
    return Group(*parts)


def _headline(report: HangReport, cause: StuckGroup) -> str:
    if report.is_circular:
        return f"The groups wait for each other: {format_ranks(report.suspects)} call them in different orders."
    if cause.verdict == "mismatch" and not cause.suspects:
        return "The ranks call different collectives, and none of them is in the majority."
    if not report.suspects:
        return "All ranks have arrived, and the communication stands still."
    return f"The job waits for {format_ranks(report.suspects)}."


def _line(group: StuckGroup) -> Text:
    text = safe(group.text, 600)
    since = f" since {format_time(group.since_ns / 1e9, '%H:%M:%S')}" if group.waiting and group.since_ns else ""
    return Text(f"  {text[:1].upper()}{text[1:]}{since}.")
