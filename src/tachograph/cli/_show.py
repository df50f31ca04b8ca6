"""`tacho show`: everything known about one run, as text or JSON."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import msgspec
import rich_click as click
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tachograph.cli._checkpoints import print_best_checkpoint
from tachograph.cli._doctor import alert_lines
from tachograph.cli._format import (
    Sparkline,
    add_row,
    bar,
    duration,
    format_time,
    grid,
    json_text,
    new_console,
    new_table,
    number,
    plural,
    safe,
    size,
    state_text,
)
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._ranks import print_ranks, render_ranks
from tachograph.cli._recording_problems import recording_problems
from tachograph.cli._terminal import echo
from tachograph.cli._time import MIN_LEAD_S, recorded_s, render_time, summarise_time
from tachograph.journal import (
    RunState,
    is_csv_current,
    rebuild_csv,
    stat_journal,
)
from tachograph.reader import (
    ParentRun,
    PluginUse,
    RunHistory,
    checkpoint_records,
    find_copies,
    parents_of,
    read,
)
from tachograph.reader.captured_code import code_section, last_code
from tachograph.records import flatten, loss_names_in
from tachograph.sinks import read_lags, read_rejections

__all__ = ["show", "summary"]

_CONFIG_FIELDS = (
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
_MAX_RESULTS = 30
_MAX_OUTPUT_LINES = 15


@click.command()
@run_argument
@log_dir_option
@json_option
@click.option("--rebuild-csv", is_flag=True, help="Rebuild metrics.csv from the journal first.")
@click.option(
    "--best-checkpoint",
    metavar="METRIC",
    help="Print only the path of the checkpoint with the best METRIC. METRIC:min or METRIC:max selects the direction.",
)
@click.option(
    "--with-parents",
    is_flag=True,
    help="With --best-checkpoint: also consider parent runs, up to the step at which this run continued from them.",
)
@click.option("--ranks", "only_ranks", is_flag=True, help="Show only the ranks of a distributed job.")
@click.option("--worst", type=click.IntRange(min=1), metavar="N", help="With --ranks: show only the N worst ranks.")
def show(
    run: str,
    log_dir: str,
    as_json: bool,
    rebuild_csv: bool,
    best_checkpoint: str | None,
    with_parents: bool,
    only_ranks: bool,
    worst: int | None,
) -> None:
    """Show a run: state, metrics, attempts, checkpoints, goodput and telemetry faults."""
    if with_parents and best_checkpoint is None:
        raise click.UsageError("--with-parents needs --best-checkpoint METRIC")
    if worst is not None and not only_ranks:
        raise click.UsageError("--worst needs --ranks")
    history = read(run, log_dir)
    if best_checkpoint is not None:
        print_best_checkpoint(history, best_checkpoint, log_dir, with_parents=with_parents, as_json=as_json)
        return
    if rebuild_csv:
        _rebuild_csv(history)
    if only_ranks:
        print_ranks(history, worst, as_json=as_json)
        return
    if as_json:
        echo(json_text(summary(history)))
    else:
        new_console().print(render(history))


def summary(history: RunHistory) -> dict[str, Any]:
    """Return the content of `tacho show --json`."""
    return {
        "name": history.name,
        "path": str(history.folder.path),
        "state": str(history.state),
        "attempts": msgspec.to_builtins(history.attempts),
        "facts": {name: value for name, value in history.facts.items() if name != "config"},
        "summary": history.summary,
        "num_records": history.counts,
        "metrics": {name: msgspec.to_builtins(metric) for name, metric in history.metrics.items()},
        "alerts": msgspec.to_builtins(history.alerts),
        "parents": msgspec.to_builtins(parents_of(history)),
        "checkpoints": checkpoint_records(history),
        "plugins": msgspec.to_builtins(history.plugins),
        "ranks": msgspec.to_builtins(history.ranks),
        **summarise_time(history),
        "controls": msgspec.to_builtins(history.controls),
        "sampling": history.sampling,
        "num_lost_records": history.num_lost_records,
        "num_media_lost": history.num_media_lost,
        "num_bad_lines": history.num_bad_lines,
        "telemetry_errors": history.latest("telemetry_error"),
        # While a run is recorded, its CSV mirror may be a moment behind: that is not worth reporting.
        "sink_lags": [lag._asdict() for lag in read_lags(history.folder)],
        "sink_rejections": read_rejections(history.folder),
        "csv_is_current": is_csv_current(history.folder) if history.state is not RunState.RUNNING else None,
    }


def render(history: RunHistory) -> RenderableType:
    """Return the text of `tacho show`."""
    parts: list[RenderableType] = [_header(history), grid(_run_details(history)), Text()]
    if history.open_alerts:
        parts += [alert_lines(history.open_alerts), Text()]
    loss = next(iter(loss_names_in(history.metrics)), None)
    if loss is not None and history.metrics[loss].count > 1:
        values = history.series(loss).values
        parts += [Sparkline(safe(loss, 60), list(values)), Text()]
    results = [(safe(name, 60), number(value)) for name, value in flatten(history.summary).items()]
    if results:
        parts += [grid(results[:_MAX_RESULTS]), Text()]
    parts.append(_metrics_table(history))
    if len(history.attempts) > 1:
        parts += [Text(), _attempts_table(history)]
    plugins = history.plugins
    if plugins:
        parts += [Text(), _plugins_table(plugins, history)]
    ranks = history.ranks
    if ranks:
        parts += [Text(), render_ranks(history, ranks)]
    checkpoints = checkpoint_records(history)
    if checkpoints:
        parts += [Text(), _checkpoints_table(checkpoints)]
    parts += render_time(history)
    parts += _error_lines(history)
    parts += _last_output(history)
    return Group(*parts)


def _rebuild_csv(history: RunHistory) -> None:
    try:
        num_rows = rebuild_csv(history.folder)
    except OSError as error:
        raise click.ClickException(f"cannot write {history.folder.csv}: {error.strerror}") from error
    if num_rows is None:
        problem = f"{history.name!r} is being recorded and its writer maintains metrics.csv"
        raise click.ClickException(f"{problem}. Rebuild it after the run has ended.")
    echo(f"{safe(history.folder.csv)}: {plural(num_rows, 'row')}", err=True)


def _header(history: RunHistory) -> RenderableType:
    last = history.attempts[-1] if history.attempts else None
    title = Text.assemble((safe(history.name), "bold"), "  ", state_text(history.state))
    reason = (last.end or {}).get("reason") if last else None
    if not reason and history.failure is not None and history.failure.error_type is None:
        reason = history.failure.message
    if reason:
        title.append(f"  {safe(reason)}", style="dim")
    max_steps = last.start.get("max_steps") if last else None
    # `set_training_config` may set or change the target during training.
    for record in history.latest("event", "update_training_telemetry_config"):
        max_steps = record.get("train_iterations_target") or max_steps
    if last is None or last.last_step is None or not isinstance(max_steps, int) or max_steps <= 0:
        return title
    first_step = last.start.get("first_step")
    num_done = min(max_steps, last.last_step + 1 - (first_step if isinstance(first_step, int) else 0))
    share = max(0.0, num_done / max_steps)
    table = Table.grid(padding=(0, 2))
    progress_text = f"{number(num_done)} of {number(max_steps)} steps, {share:.0%}"
    if history.state is RunState.RUNNING and last.first_step is not None and last.last_step > last.first_step:
        pace_s = recorded_s(last) / (last.last_step - last.first_step)  # includes pauses for validation and checkpoints
        progress_text += f", about {duration((max_steps - num_done) * pace_s)} left"
    table.add_row(bar(share, is_live=history.state is RunState.RUNNING), Text(progress_text))
    return Group(title, table)


def _run_details(history: RunHistory) -> list[tuple[str, Any]]:
    if not history.attempts:
        return []
    first, last = history.attempts[0], history.attempts[-1]
    start = last.start
    started_at = first.start.get("time")
    git = start.get("git")
    rows: list[tuple[str, Any]] = [
        ("started", format_time(started_at, "%Y-%m-%d %H:%M:%S")),
        ("run time", _run_time(history)),
        ("energy", safe(history.energy.text) if history.energy else ""),
        ("log_every", number(history.controls["log_every"].value)),
        ("sampling", history.sampling or ""),
        ("name", safe(history.facts.get("display_name") or "", 200)),
        ("tags", _join(history.facts.get("tags"))),
        ("notes", safe(history.facts.get("notes") or "", 1_000)),
        ("imported", _origin_line(start.get("imported_from"))),
        ("session", safe(history.session_tag or "")),
        ("perf_tag", _perf_tag_line(history)),
        ("host", safe(start.get("host", ""))),
        ("gpus", _join(start.get("gpus"))),
        ("git", _git_line(git) if isinstance(git, Mapping) else None),
        ("code", _code_line(history)),
        ("parents", ", ".join(map(_parent_text, parents_of(history)))),
        ("command", _join(start.get("command"), " ")),
    ]
    facts = history.facts
    rows += [(name, number(facts[name])) for name in _CONFIG_FIELDS if facts.get(name) is not None]
    folder = history.folder
    path = folder.journal if folder.journal.exists() else folder.compressed_journal
    rows.append(("journal", f"{safe(path)} ({size(stat_journal(folder.journal).st_size)})"))
    return rows


def _run_time(history: RunHistory) -> str:
    text = duration(history.duration_s)
    if len(history.attempts) > 1:
        text += f", {duration(sum(map(recorded_s, history.attempts)))} of it in {len(history.attempts)} attempts"
    lead_s = history.before_first_record_s
    return text if lead_s < MIN_LEAD_S else f"{text}, and {duration(lead_s)} before the first record"


def _perf_tag_line(history: RunHistory) -> str:
    tag = history.perf_tag
    current = tag if isinstance(tag, list) else [tag] if tag else []
    earlier = [name for name in history.perf_tags if name not in current]
    return _join(current) + (f" (earlier: {_join(earlier)})" if earlier else "")


def _join(items: Any, between: str = ", ") -> str:
    return between.join(map(safe, items)) if isinstance(items, list) else ""


def _origin_line(origin: Any) -> str:
    """Return the format and the path that an imported run comes from."""
    return safe(f"{origin.get('format')}: {origin.get('path')}", 400) if isinstance(origin, Mapping) else ""


def _git_line(git: Mapping[str, Any]) -> str:
    suffix = " + uncommitted changes" if git.get("dirty") else ""
    return f"{safe(str(git.get('commit', ''))[:10])} on {safe(git.get('branch', '?'))}{suffix}"


def _code_line(history: RunHistory) -> str:
    """Return a summary of the captured code; empty if there is none."""
    code = last_code(history)
    if code.get("missing"):
        return f"not captured: {safe(code['missing'])}"
    nouns = {"diff": "changed file", "files": "stored file", "packages": "package"}
    parts = []
    for part, noun in nouns.items():
        section = code_section(code, part)
        count = section.get("num_packages" if part == "packages" else "num_files")
        if section.get("missing"):
            parts.append(f"{part} missing: {safe(section['missing'])}")
        elif isinstance(count, int):
            parts.append(plural(count, noun) + (" with masked secrets" if section.get("masked") else ""))
    return ", ".join(parts)


def _parent_text(parent: ParentRun) -> str:
    name = safe(parent.run_name or parent.checkpoint_path or parent.run_id or "?", 100)
    step = f" at step {parent.global_step}" if parent.global_step is not None else ""
    return f"{name}{step}{f' ({safe(parent.how, 20)})' if parent.how else ''}"


def _metrics_table(history: RunHistory) -> RenderableType:
    if not history.metrics:
        return Text("no metrics logged" + (" yet" if history.state is RunState.RUNNING else ""), style="dim")
    numbers = ("last", "min", "max", "points", "non-finite")
    table = new_table("metric", *numbers, right=numbers)
    # Logged metrics come first, system metrics last. Window metrics are summarised below, next to the spans.
    copies = find_copies(history.metrics)
    rows = [
        (name, metric)
        for name, metric in history.metrics.items()
        if not name.startswith("window/") and name not in copies
    ]
    if not rows:
        return Text("only spans were recorded", style="dim")
    rows.sort(key=lambda item: item[1].kind == "system")
    printed_metrics = history.printed_metrics
    for name, metric in rows[:60]:
        finite = metric.count > metric.num_not_finite
        add_row(
            table,
            Text.assemble(safe(name, 60), (" (printed)", "dim")) if name in printed_metrics else safe(name, 60),
            number(metric.last),
            number(metric.low if finite else None),
            number(metric.high if finite else None),
            number(metric.count),
            Text(str(metric.num_not_finite), style="bold red") if metric.num_not_finite else "",
        )
    if len(rows) > 60:
        add_row(table, Text(f"… and {len(rows) - 60} more", style="dim"))
    return table


def _attempts_table(history: RunHistory) -> RenderableType:
    table = new_table("attempt", "steps", "records", "recorded", "ended")
    for attempt in history.attempts:
        is_last = attempt is history.attempts[-1]
        end = attempt.end or {}
        status = end.get("status") or (str(history.state) if is_last else "crashed")
        steps = f"{number(attempt.first_step)} … {number(attempt.last_step)}"
        length = duration(recorded_s(attempt))
        add_row(table, str(attempt.index + 1), steps, number(attempt.num_records), length, safe(status))
    return table


def _plugins_table(plugins: list[PluginUse], history: RunHistory) -> RenderableType:
    table = new_table("plugin", "active", "changed", wraps=("changed",))
    for plugin in plugins:
        changes = [f"{change.count} {change.what}" for change in plugin.changes]
        active = history.metrics.get(f"plugin/{plugin.name}/active")
        state = "–" if active is None else "yes" if active.last else "no"
        add_row(table, safe(plugin.name, 60), state, safe("; ".join([*changes, *plugin.contributes]), 300))
    return table


def _checkpoints_table(checkpoints: list[dict[str, Any]]) -> RenderableType:
    table = new_table("checkpoint", "step", "size", "")
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
    """Return the last lines of output of a failed run, if `tacho run` recorded them."""
    failure = history.failure
    for stream, text in failure.output.items() if failure else ():
        lines = [safe(line) for line in text.splitlines()[-_MAX_OUTPUT_LINES:]]
        title = Text(f"last lines of {safe(stream)}:", style="dim")
        return [Text(), title, *(Text(f"  {line}") for line in lines)]
    return []


def _error_lines(history: RunHistory) -> list[RenderableType]:
    """Return the errors of the run and the faults of telemetry itself. These are never hidden."""
    lines: list[Text] = []
    errors = [
        f"{safe(record.get('error_type', '?'))}: {safe(record.get('error_message', ''))}"
        for record in history.latest("error")
    ]
    # One exception is recorded twice, by the span it left and by the run: only more than two are repetitions.
    for error, count in list(collections.Counter(errors).items())[-3:]:
        lines.append(Text(f"{error}  ({count} records)" if count > 2 else error, style="red"))
    lines += recording_problems(history)
    return [Text(), Rule(style="dim"), *lines] if lines else []
