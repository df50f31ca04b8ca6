"""`tacho show`."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import msgspec
import rich_click as click
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tachograph.cli._doctor import alert_lines
from tachograph.cli._format import (
    add_row,
    bar,
    duration,
    grid,
    json_text,
    listing,
    moment,
    number,
    safe,
    size,
    sparkline,
    state_text,
)
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._time import length_s, render_time, short_time, summarise_time
from tachograph.journal import RunState, hold_run_folder, is_csv_current, rebuild_csv
from tachograph.reader import RankView, RunHistory, read

__all__ = ["show", "summary"]

_FACTS = (
    "model_name_or_path",
    "lora_type",
    "lora_rank",
    "lora_alpha",
    "trainable_params",
    "total_params",
    "optimizer",
    "learning_rate",
    "scheduler",
    "effective_batch_size",
    "dtype",
)
_MOST_RANKS = 64
_MOST_LINES = 15


@click.command()
@run_argument
@log_dir_option
@json_option
@click.option("--rebuild-csv", is_flag=True, help="Make metrics.csv anew from the journal first.")
def show(run: str, log_dir: str, as_json: bool, rebuild_csv: bool) -> None:
    """Show a run: state, metrics, attempts, checkpoints, where its time went, and what telemetry itself lost."""
    history = read(run, log_dir)
    if rebuild_csv:
        _rebuild(history)
    if as_json:
        click.echo(json_text(summary(history)))
    else:
        Console().print(render(history))


def summary(history: RunHistory) -> dict[str, Any]:
    """Return what `tacho show --json` prints."""
    return {
        "name": history.name,
        "path": str(history.folder.path),
        "state": str(history.state),
        "attempts": msgspec.to_builtins(history.attempts),
        "num_records": history.counts,
        "metrics": {name: msgspec.to_builtins(metric) for name, metric in history.metrics.items()},
        "alerts": msgspec.to_builtins(history.alerts),
        "checkpoints": history.latest("checkpoint"),
        "ranks": msgspec.to_builtins(history.ranks),
        **summarise_time(history),
        "controls": msgspec.to_builtins(history.controls),
        "num_lost_records": history.num_lost_records,
        "num_bad_lines": history.num_bad_lines,
        "telemetry_errors": history.latest("telemetry_error"),
        "csv_is_current": is_csv_current(history.folder) if history.state is not RunState.RUNNING else None,
    }


def render(history: RunHistory) -> RenderableType:
    """Return what a person sees."""
    parts: list[RenderableType] = [_headline(history), grid(_facts(history)), Text()]
    if history.open_alerts:
        parts += [alert_lines(history.open_alerts), Text()]
    losses = history.metrics.get("train_loss")
    if losses is not None and losses.count > 1:
        values = history.series("train_loss").values
        parts += [Text.assemble(("train_loss  ", "dim"), (sparkline(list(values)), "green")), Text()]
    parts.append(_metrics(history))
    if len(history.attempts) > 1:
        parts += [Text(), _attempts(history)]
    ranks = history.ranks
    if ranks:
        parts += [Text(), _ranks(ranks)]
    checkpoints = history.latest("checkpoint")
    if checkpoints:
        parts += [Text(), _checkpoints(checkpoints)]
    parts += render_time(history)
    parts += _troubles(history)
    parts += _last_output(history)
    return Group(*parts)


def _rebuild(history: RunHistory) -> None:
    try:
        with hold_run_folder(history.folder) as is_ours:
            if not is_ours:
                what = f"{history.name!r} is being recorded: its writer keeps metrics.csv itself"
                raise click.ClickException(f"{what}. Wait until the run has ended.")
            num_rows = rebuild_csv(history.folder)
    except OSError as error:
        raise click.ClickException(f"cannot write {history.folder.csv}: {error.strerror}") from error
    click.echo(f"{safe(history.folder.csv)}: {num_rows} rows", err=True)


def _headline(history: RunHistory) -> RenderableType:
    last = history.attempts[-1] if history.attempts else None
    title = Text.assemble((safe(history.name), "bold"), "  ", state_text(history.state))
    reason = (last.end or {}).get("reason") if last else None
    if reason:
        title.append(f"  {safe(reason)}", style="dim")
    max_steps = last.start.get("max_steps") if last else None
    for record in history.latest("event", "update_training_telemetry_config"):
        max_steps = record.get("train_iterations_target") or max_steps
    if last is None or last.last_step is None or not isinstance(max_steps, int) or max_steps <= 0:
        return title
    first_step = last.start.get("first_step")
    num_done = min(max_steps, last.last_step + 1 - (first_step if isinstance(first_step, int) else 0))
    share = max(0.0, num_done / max_steps)
    table = Table.grid(padding=(0, 2))
    left = f"{number(num_done)} of {number(max_steps)} steps, {share:.0%}"
    if history.state is RunState.RUNNING and last.first_step is not None and last.last_step > last.first_step:
        pace_s = length_s(last) / (last.last_step - last.first_step)  # with the pauses for validation and checkpoints
        left += f", about {duration((max_steps - num_done) * pace_s)} to go"
    table.add_row(bar(share, is_live=history.state is RunState.RUNNING), Text(left))
    return Group(title, table)


def _facts(history: RunHistory) -> list[tuple[str, Any]]:
    if not history.attempts:
        return []
    first, last = history.attempts[0], history.attempts[-1]
    start = last.start
    began = first.start.get("time")
    git = start.get("git")
    rows: list[tuple[str, Any]] = [
        ("started", moment(began, "%Y-%m-%d %H:%M:%S")),
        ("recorded", duration(sum(length_s(attempt) for attempt in history.attempts))),
        ("log_every", number(history.controls["log_every"].value)),
        ("tags", _joined(start.get("tags"))),
        ("session", safe(history.session_tag or "")),
        ("perf_tag", safe(_joined(tag) if isinstance(tag := history.perf_tag, list) else tag or "")),
        ("host", safe(start.get("host", ""))),
        ("gpus", _joined(start.get("gpus"))),
        ("git", _git_line(git) if isinstance(git, Mapping) else None),
        ("command", _joined(start.get("command"), " ")),
    ]
    rows += [(name, number(start[name])) for name in _FACTS if start.get(name) is not None]
    rows.append(("journal", f"{safe(history.folder.journal)} ({size(history.folder.journal.stat().st_size)})"))
    return rows


def _joined(items: Any, between: str = ", ") -> str:
    return between.join(map(safe, items)) if isinstance(items, list) else ""


def _git_line(git: Mapping[str, Any]) -> str:
    changed = " + uncommitted changes" if git.get("dirty") else ""
    return f"{safe(str(git.get('commit', ''))[:10])} on {safe(git.get('branch', '?'))}{changed}"


def _metrics(history: RunHistory) -> RenderableType:
    if not history.metrics:
        return Text("nothing was logged" + (" yet" if history.state is RunState.RUNNING else ""), style="dim")
    numbers = ("last", "lowest", "highest", "points", "not finite")
    table = listing("metric", *numbers, right=numbers)
    # What was logged comes first; what is known of windows of iterations is told below, in words.
    shown = [(name, metric) for name, metric in history.metrics.items() if not name.startswith("window/")]
    if not shown:
        return Text("nothing but spans was recorded", style="dim")
    shown.sort(key=lambda item: item[1].kind == "system")
    for name, metric in shown[:60]:
        finite = metric.count > metric.num_not_finite
        add_row(
            table,
            safe(name, 60),
            number(metric.last),
            number(metric.low if finite else None),
            number(metric.high if finite else None),
            number(metric.count),
            Text(str(metric.num_not_finite), style="bold red") if metric.num_not_finite else "",
        )
    if len(shown) > 60:
        add_row(table, Text(f"… and {len(shown) - 60} more", style="dim"))
    return table


def _attempts(history: RunHistory) -> RenderableType:
    table = listing("attempt", "steps", "records", "recorded", "ended")
    for attempt in history.attempts:
        is_last = attempt is history.attempts[-1]
        end = attempt.end or {}
        how = end.get("status") or (str(history.state) if is_last else "crashed")
        steps = f"{number(attempt.first_step)} … {number(attempt.last_step)}"
        length = duration(length_s(attempt))
        add_row(table, str(attempt.index + 1), steps, number(attempt.num_records), length, safe(how))
    return table


def _ranks(ranks: list[RankView]) -> RenderableType:
    numbers = ("iterations", "mean iteration", "errors")
    table = listing("rank", "host", "pid", "state", *numbers, "", right=numbers, wraps=("",))
    for view in ranks[:_MOST_RANKS]:
        add_row(
            table,
            str(view.rank),
            safe(view.host or "–"),
            str(view.pid or "–"),
            state_text(view.state),
            number(view.num_iterations),
            short_time(view.mean_iteration_s),
            Text(str(view.num_errors), style="bold red") if view.num_errors else "",
            safe(view.error or view.reason or "", 300),
        )
    if len(ranks) > _MOST_RANKS:
        add_row(table, Text(f"… and {len(ranks) - _MOST_RANKS} more", style="dim"))
    return table


def _checkpoints(checkpoints: list[dict[str, Any]]) -> RenderableType:
    table = listing("checkpoint", "step", "size", "")
    for record in checkpoints[-5:]:
        num_bytes = record.get("size_bytes")
        add_row(
            table,
            safe(record.get("checkpoint_path", "?"), 100),
            number(record.get("global_step")),
            size(num_bytes) if isinstance(num_bytes, int) else "–",
            Text("best", style="green") if record.get("is_best") else "",
        )
    return table


def _last_output(history: RunHistory) -> list[RenderableType]:
    """Return what the program printed last, if it failed and its launcher has kept it."""
    logs = history.latest("log")
    if history.state is not RunState.FAILED or not logs:
        return []
    streams = {str(record.get("stream")): str(record.get("text", "")) for record in logs}
    name = next((name for name in ("stderr", "output") if streams.get(name)), "stdout")
    lines = [safe(line) for line in streams.get(name, "").splitlines()[-_MOST_LINES:]]
    return [Text(), Text(f"the last of {name}:", style="dim"), *(Text(f"  {line}") for line in lines)] if lines else []


def _troubles(history: RunHistory) -> list[RenderableType]:
    """Return the errors of the run, and what telemetry itself lost: never left out, never coloured away."""
    lines: list[Text] = []
    errors = [
        f"{safe(record.get('error_type', '?'))}: {safe(record.get('error_message', ''))}"
        for record in history.latest("error")
    ]
    for what, times in list(collections.Counter(errors).items())[-3:]:  # the span it left and the run tell the same
        lines.append(Text(f"{what}  ({times} records)" if times > 2 else what, style="red"))
    if history.num_lost_records:
        lines.append(Text(f"{history.num_lost_records} records were lost:", style="bold yellow"))
    if history.num_bad_lines:
        lines.append(
            Text(f"{history.num_bad_lines} lines of the journal cannot be read and were skipped", style="yellow")
        )
    for record in history.latest("telemetry_error")[-10:]:
        where = f" {safe(record['field'])}:" if record.get("field") else ""
        number_lost = f" {record['num_records']} records:" if record.get("num_records") else ""
        what = safe(record.get("reason", ""), 300)
        lines.append(Text(f"telemetry: {safe(record.get('kind', '?'))}{where}{number_lost} {what}", style="yellow"))
    is_csv_behind = history.folder.csv.exists() and not is_csv_current(history.folder)
    if history.state is not RunState.RUNNING and is_csv_behind:
        hint = f"tacho show {safe(history.name)} --rebuild-csv"
        lines.append(Text(f"metrics.csv does not hold the whole journal; make it anew with: {hint}", style="yellow"))
    return [Text(), Rule(style="dim"), *lines] if lines else []
