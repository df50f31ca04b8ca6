"""Where the time of a run went: for `tacho show`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tachograph.cli._format import add_row, duration, listing, moment, number, safe, size
from tachograph.journal import RunState
from tachograph.reader import Attempt, Goodput, RunHistory, SpanGroup

__all__ = ["length_s", "render_time", "short_time", "summarise_time"]

_MOST_ROWS = 60
_DEEPEST_INDENT = 12
_PHASES = {
    "data": "· waiting for data",
    "forward": "· forward",
    "backward": "· backward",
    "optimizer": "· optimizer",
    "iteration": "· outside phases",
    "failed": "· not completed",
}
"""What was measured inside loops without being recorded one by one; the others are spans."""
_OPEN = {RunState.RUNNING: ("going on  ", "green"), RunState.STALE: ("not heard of  ", "yellow")}
_REST = {
    "start_up_s": "start-up",
    "data_s": "waiting for data",
    "checkpoint_s": "checkpoints",
    "validation_s": "validation",
    "testing_s": "testing",
    "lost_s": "lost: training that was not kept",
    "down_s": "between attempts",
    "unreported_s": "since the last report",
    "idle_s": "idle: nothing explains it",
}


def summarise_time(history: RunHistory) -> dict[str, Any]:
    """Return what `tacho show --json` prints of it."""
    goodput = history.goodput
    return {
        "session_tag": history.session_tag,
        "perf_tag": history.perf_tag,
        "spans": msgspec.to_builtins(history.span_groups),
        "phases": history.phases,
        "goodput": None if goodput is None else {"share": goodput.share, **msgspec.to_builtins(goodput)},
        "saved_checkpoints": _saves(history),
        "training": _latest_update(history),
    }


def render_time(history: RunHistory) -> list[RenderableType]:
    """Return what a person sees of it; nothing for a run without spans."""
    parts: list[RenderableType] = []
    update = _latest_update(history)
    if update:
        parts += [Text(), _pace(update, len(history.attempts) > 1)]
    if history.span_groups:
        parts += [Text(), _tree(history)]
    saves = _saves(history)
    if saves and not history.latest("checkpoint"):  # which are shown already
        parts += [Text(), _saved(saves)]
    goodput = history.goodput
    return [*parts, Text(), *_goodput(goodput)] if goodput is not None else parts


def _latest_update(history: RunHistory) -> dict[str, Any]:
    updates = history.latest("event", "training_metrics_update")
    return updates[-1] if updates else {}


def _saves(history: RunHistory) -> list[dict[str, Any]]:
    return history.latest("event", "save_checkpoint_success")


def _pace(update: dict[str, Any], has_attempts: bool) -> Text:
    """Return the iterations so far and the speed of the last window."""
    count = f"{number(update.get('num_iterations'))} iterations{' in the last attempt' if has_attempts else ''}"
    parts = [
        f"{count}, {short_time(update.get('avg_iteration_time_sec'))} on average",
        f"last {number(update.get('window_iterations'))}: p50 {short_time(update.get('window_iteration_sec_p50'))}, "
        f"p95 {short_time(update.get('window_iteration_sec_p95'))}",
    ]
    for name, unit in (("samples_per_sec", "samples/s"), ("tokens_per_sec", "tokens/s")):
        if update.get(f"window_{name}") is not None:
            parts.append(f"{number(update[f'window_{name}'])} {unit}")
    if update.get("window_tflops_per_gpu") is not None:
        parts.append(f"{number(update['window_tflops_per_gpu'])} TFLOP/s per GPU")
    if isinstance(update.get("window_mfu"), float):
        parts.append(f"MFU {update['window_mfu']:.1%}")
    return Text("; ".join(parts))


def short_time(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return "–"
    for unit, length_s in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _now(history: RunHistory) -> float:
    """Return the time up to which open spans are counted."""
    last = history.attempts[-1].last_time if history.attempts else None
    return time.time() if history.state is RunState.RUNNING or last is None else last


def _tree(history: RunHistory) -> RenderableType:
    now_s = _now(history)
    goodput = history.goodput
    if goodput is not None:
        whole_s = goodput.wall_s
    else:
        *earlier, last = history.attempts
        whole_s = sum(map(length_s, earlier)) + length_s(last, now_s)
    numbers = ("times", "total", "of the run", "longest")
    table = listing("span", *numbers, "", right=numbers)
    num_rows, has_phases = 0, False
    if "training_loop" not in {group.name for _, group in _walk(history.span_groups)}:
        _add_phases(table, history, 0, whole_s)
        has_phases = True
    for depth, group in _walk(history.span_groups):
        num_rows += 1
        if num_rows > _MOST_ROWS:
            continue
        seconds = group.seconds(now_s)
        add_row(
            table,
            f"{'  ' * min(depth, _DEEPEST_INDENT)}{safe(group.name, 60)}",
            number(group.count + group.num_open),
            _length(seconds),
            _share(seconds, whole_s),
            _length(group.longest_s) if group.count else "–",
            _remarks(group, history.state),
        )
        if group.name == "training_loop" and not has_phases:
            has_phases = True
            _add_phases(table, history, depth + 1, whole_s)
    if num_rows > _MOST_ROWS:
        more = history.num_spans_not_grouped
        others = f", and {number(more)} spans of still other names" if more else ""
        add_row(table, Text(f"… and {num_rows - _MOST_ROWS} more{others}", style="dim"))
    return table


def _add_phases(table: Table, history: RunHistory, depth: int, whole_s: float) -> None:
    for phase, label in _PHASES.items():
        if phase in history.phases:
            spent_s = history.phases[phase]
            name = Text(f"{'  ' * depth}{label}", style="dim")
            add_row(table, name, "", _length(spent_s), _share(spent_s, whole_s), "", "")


def _walk(groups: dict[str, SpanGroup]) -> Iterator[tuple[int, SpanGroup]]:
    for group in groups.values():
        yield group.depth, group
        yield from _walk(group.children)


def _remarks(group: SpanGroup, state: RunState) -> Text:
    remarks = Text()
    if group.num_open:
        remarks.append(*_OPEN.get(state, ("died in it  ", "red")))
    if group.num_errors:
        remarks.append(f"{group.num_errors} raised  ", style="red")
    if group.num_unfinished:
        remarks.append(f"{group.num_unfinished} never ended", style="yellow")
    return remarks


def _share(seconds: float, whole_s: float) -> str:
    return f"{seconds / whole_s:.1%}" if whole_s > 0 else "–"


def _length(seconds: float) -> str:
    return short_time(seconds) if seconds < 10 else duration(seconds)


def length_s(attempt: Attempt, until: float | None = None) -> float:
    """Return how long an attempt was recorded, or has been until a moment."""
    began = attempt.start.get("time")
    end = attempt.last_time if until is None else until
    return max(0.0, end - began) if end and isinstance(began, (int, float)) else 0.0


def _saved(saves: list[dict[str, Any]]) -> RenderableType:
    table = listing("checkpoint", "step", "at", "iterations kept", "size", "how")
    for record in saves[-5:]:
        num_bytes = record.get("checkpoint_size")
        add_row(
            table,
            safe(record.get("checkpoint_directory", f"#{record.get('save_checkpoint_success_count', '?')}"), 100),
            number(record.get("current_iteration")),
            moment(record.get("time"), "%H:%M:%S"),
            number(record.get("productive_train_iterations")),
            size(num_bytes) if isinstance(num_bytes, int) and num_bytes >= 0 else "–",
            safe(record.get("checkpoint_strategy", "")),
        )
    return table


def _goodput(goodput: Goodput) -> list[RenderableType]:
    line = Text.assemble(
        ("goodput  ", "dim"),
        (f"{goodput.share:.1%}", "bold"),
        f"  {duration(goodput.productive_s)} of training that counts in {duration(goodput.wall_s)}",
    )
    table = listing("where the rest went", "time", "of the run", right=("time", "of the run"))
    rest = {name: getattr(goodput, name) for name in _REST}
    for name, seconds in sorted(rest.items(), key=lambda item: -item[1]):
        if seconds > 0:
            add_row(table, _REST[name], _length(seconds), _share(seconds, goodput.wall_s))
    return [line, table]
