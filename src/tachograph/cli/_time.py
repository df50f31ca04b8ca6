"""The part of `tacho show` about time: iteration speed, the span table, checkpoints and goodput."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tachograph.cli._format import add_row, duration, format_time, new_table, number, safe, size
from tachograph.journal import RunState
from tachograph.reader import Attempt, Goodput, RunHistory, SpanGroup

__all__ = ["MIN_LEAD_S", "recorded_s", "render_time", "short_time", "summarise_time"]

MIN_LEAD_S = 0.05
"""The shortest time before the first record that is worth a remark."""
_MAX_ROWS = 60
_MAX_INDENT = 12
_PHASE_LABELS = {
    "data": "· waiting for data",
    "forward": "· forward",
    "backward": "· backward",
    "optimizer": "· optimizer",
    "iteration": "· outside phases",
    "failed": "· not completed",
}
"""Phases are summed up inside loops rather than recorded as spans, so they get rows of their own."""
_OPEN_SPAN_LABELS = {RunState.RUNNING: ("still open  ", "green"), RunState.STALE: ("no heartbeat  ", "yellow")}
_OTHER_TIME_LABELS = {
    "start_up_s": "startup",
    "data_s": "waiting for data",
    "checkpoint_s": "checkpoints",
    "validation_s": "validation",
    "testing_s": "testing",
    "stalled_s": "stalled: the run hung",
    "lost_s": "lost: not saved, or failed",
    "down_s": "between attempts",
    "unreported_s": "not reported yet",
    "idle_s": "idle: unexplained",
}


def summarise_time(history: RunHistory) -> dict[str, Any]:
    """Return the part of `tacho show --json` about time."""
    goodput = history.goodput
    return {
        "session_tag": history.session_tag,
        "perf_tag": history.perf_tag,
        "perf_tags": history.perf_tags,
        "spans": msgspec.to_builtins(history.span_groups),
        "phases": history.phases,
        "before_first_record_s": history.before_first_record_s,
        "goodput": None if goodput is None else {"share": goodput.share, **msgspec.to_builtins(goodput)},
        "saved_checkpoints": _checkpoint_saves(history),
        "training": _latest_update(history),
    }


def render_time(history: RunHistory) -> list[RenderableType]:
    """Return the part of `tacho show` about time; empty for a run without spans."""
    parts: list[RenderableType] = []
    update = _latest_update(history)
    if update:
        parts += [Text(), _speed_line(update, len(history.attempts) > 1)]
    if history.span_groups:
        parts += [Text(), _span_table(history)]
    saves = _checkpoint_saves(history)
    if saves and not history.latest("checkpoint"):  # those are listed above
        parts += [Text(), _checkpoint_table(saves)]
    goodput = history.goodput
    return [*parts, Text(), *_goodput_lines(goodput, history.before_first_record_s)] if goodput is not None else parts


def _latest_update(history: RunHistory) -> dict[str, Any]:
    updates = history.latest("event", "training_metrics_update")
    return updates[-1] if updates else {}


def _checkpoint_saves(history: RunHistory) -> list[dict[str, Any]]:
    return history.latest("event", "save_checkpoint_success")


def _speed_line(update: dict[str, Any], has_attempts: bool) -> Text:
    """Return the number of iterations and the speed of the last window."""
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
    for unit, unit_s in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _open_spans_end_s(history: RunHistory) -> float:
    """Return the time at which open spans are considered to end: now, or the last record of a dead run."""
    last = history.attempts[-1].last_time if history.attempts else None
    return time.time() if history.state is RunState.RUNNING or last is None else last


def _span_table(history: RunHistory) -> RenderableType:
    now_s = _open_spans_end_s(history)
    goodput = history.goodput
    # Shares refer to the same total as goodput, which also counts the time between attempts.
    if goodput is not None:
        total_s = goodput.wall_s
    else:
        *earlier, last = history.attempts
        total_s = sum(map(recorded_s, earlier)) + recorded_s(last, now_s)
    numbers = ("count", "total", "of the run", "longest")
    table = new_table("span", *numbers, "", right=numbers)
    num_rows, has_phases = 0, False
    # Phases belong below the training loop; without that span they come first.
    if "training_loop" not in {group.name for _, group in _walk_groups(history.span_groups)}:
        _add_phases(table, history, 0, total_s)
        has_phases = True
    for depth, group in _walk_groups(history.span_groups):
        num_rows += 1
        if num_rows > _MAX_ROWS:
            continue
        seconds = group.seconds(now_s)
        add_row(
            table,
            f"{'  ' * min(depth, _MAX_INDENT)}{safe(group.name, 60)}",
            number(group.count + group.num_open),
            _format_seconds(seconds),
            _format_share(seconds, total_s),
            _format_seconds(group.longest_s) if group.count else "–",
            _span_notes(group, history.state),
        )
        if group.name == "training_loop" and not has_phases:
            has_phases = True
            _add_phases(table, history, depth + 1, total_s)
    if num_rows > _MAX_ROWS:
        more = history.num_spans_not_grouped
        others = f", and {number(more)} spans with other names" if more else ""
        add_row(table, Text(f"… and {num_rows - _MAX_ROWS} more{others}", style="dim"))
    return table


def _add_phases(table: Table, history: RunHistory, depth: int, total_s: float) -> None:
    for phase, label in _PHASE_LABELS.items():
        if phase in history.phases:
            spent_s = history.phases[phase]
            name = Text(f"{'  ' * depth}{label}", style="dim")
            add_row(table, name, "", _format_seconds(spent_s), _format_share(spent_s, total_s), "", "")


def _walk_groups(groups: dict[str, SpanGroup]) -> Iterator[tuple[int, SpanGroup]]:
    for group in groups.values():
        yield group.depth, group
        yield from _walk_groups(group.children)


def _span_notes(group: SpanGroup, state: RunState) -> Text:
    remarks = Text()
    if group.num_open:
        remarks.append(*_OPEN_SPAN_LABELS.get(state, ("open at crash  ", "red")))
    if group.num_errors:
        remarks.append(f"{group.num_errors} failed  ", style="red")
    if group.num_unfinished:
        remarks.append(f"{group.num_unfinished} unfinished", style="yellow")
    return remarks


def _format_share(seconds: float, total_s: float) -> str:
    return f"{seconds / total_s:.1%}" if total_s > 0 else "–"


def _format_seconds(seconds: float) -> str:
    return short_time(seconds) if seconds < 10 else duration(seconds)


def recorded_s(attempt: Attempt, until: float | None = None) -> float:
    """Return how long an attempt was recorded, up to its last record or to `until`."""
    return attempt.duration_s(until) or 0.0


def _checkpoint_table(saves: list[dict[str, Any]]) -> RenderableType:
    table = new_table("checkpoint", "step", "at", "productive iterations", "size", "strategy")
    for record in saves[-5:]:
        num_bytes = record.get("checkpoint_size")
        add_row(
            table,
            safe(record.get("checkpoint_directory", f"#{record.get('save_checkpoint_success_count', '?')}"), 100),
            number(record.get("current_iteration")),
            format_time(record.get("time"), "%H:%M:%S"),
            number(record.get("productive_train_iterations")),
            size(num_bytes) if isinstance(num_bytes, int) and num_bytes >= 0 else "–",
            safe(record.get("checkpoint_strategy", "")),
        )
    return table


def _goodput_lines(goodput: Goodput, lead_s: float) -> list[RenderableType]:
    line = Text(f"{duration(goodput.productive_s)} of productive training in {duration(goodput.wall_s)}")
    if lead_s >= MIN_LEAD_S:  # else the numbers of this run would not add up
        line.append(f", {duration(lead_s)} of them before the first record")
    if goodput.is_meaningful:
        line = Text.assemble(("goodput  ", "dim"), (f"{goodput.share:.1%}  ", "bold"), line)
    table = new_table("other time", "time", "of the run", right=("time", "of the run"))
    rest = {name: getattr(goodput, name) for name in _OTHER_TIME_LABELS}
    for name, seconds in sorted(rest.items(), key=lambda item: -item[1]):
        if seconds > 0:
            add_row(table, _OTHER_TIME_LABELS[name], _format_seconds(seconds), _format_share(seconds, goodput.wall_s))
    return [line, table]
