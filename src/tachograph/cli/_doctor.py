"""`tacho doctor`."""

from __future__ import annotations

from typing import Any

import msgspec
import rich_click as click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tachograph._base.settings import Settings, parse_switch
from tachograph.catalog import (
    JUDGEMENTS,
    SIGNAL_ANNOTATION,
    annotate,
    count_judgements,
    export_cases,
    judgement_field,
)
from tachograph.catalog.diagnosis import Diagnosis, diagnose
from tachograph.cli._dump import verdict_lines
from tachograph.cli._files import write_file
from tachograph.cli._format import add_row, duration, grid, json_text, new_console, new_table, number, plural, safe
from tachograph.cli._hang import print_hang
from tachograph.cli._ops import print_imbalance
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.cli._recording_problems import recording_problems
from tachograph.cli._terminal import echo
from tachograph.diagnostics import RULES, explain, looser_setting, resolve_signals, threshold_table
from tachograph.exceptions import ConfigError, RunNotFoundError
from tachograph.journal import RunState, find_run, list_runs
from tachograph.reader import Alert, read
from tachograph.records import SEVERITIES, severity_rank

__all__ = ["alert_lines", "doctor"]

_MAX_OTHER_METRICS = 12
_MAX_RANKS = 4
_MAX_DUMPS = 3
_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}


@click.command()
@click.argument("run", required=False, shell_complete=complete_run, callback=resolve_run)
@log_dir_option
@json_option
@click.option(
    "--explain", "rule", metavar="RULE", help="Explain how a rule works, and how to fix the problem that it finds."
)
@click.option("--rules", "lists_rules", is_flag=True, help="List the rules.")
@click.option(
    "--set",
    "settings",
    metavar="RULE.THRESHOLD=NUMBER",
    multiple=True,
    help="Set a threshold of a rule; RULE=off turns the rule off.",
)
@click.option(
    "--signal",
    "signals",
    metavar="SIGNAL=METRIC",
    multiple=True,
    help="Name the metric that rules read as a signal, such as loss=my/objective.",
)
@click.option(
    "--map",
    "mapped_signals",
    metavar="SIGNAL=METRIC",
    multiple=True,
    help="Like --signal, and remember it as an annotation of the run, which the runs table uses too.",
)
@click.option(
    "--judge",
    "judgements",
    metavar="RULE[@STEP]=right|wrong",
    multiple=True,
    help="Say whether an alert of the run is right or wrong; STEP is the step at which it was opened.",
)
@click.option(
    "--feedback",
    type=click.Path(dir_okay=False),
    help="Write the judged alerts of RUN, or of all runs, to a file that you may share: numbers only, no names.",
)
@click.option(
    "--flight-recorder",
    "dump_folder",
    metavar="DIR",
    help="Say which rank a hanging job waits for, from the flight recorder dumps of PyTorch in this folder.",
)
@click.option(
    "--ops",
    "op_trace",
    metavar="TABLE",
    help="Say what unequal work costs a job, from a CSV or Parquet table of the operations of its ranks.",
)
@click.option(
    "--require-signals", is_flag=True, help="Exit with status 1 if the run has no metric that a rule can check."
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with status 1 on an alert of this severity or higher, a failed run, or no known signal.",
)
def doctor(
    run: str | None,
    log_dir: str,
    as_json: bool,
    rule: str | None,
    lists_rules: bool,
    settings: tuple[str, ...],
    signals: tuple[str, ...],
    mapped_signals: tuple[str, ...],
    judgements: tuple[str, ...],
    feedback: str | None,
    dump_folder: str | None,
    op_trace: str | None,
    require_signals: bool,
    fail_on: str | None,
) -> None:
    """Diagnose a run, or the log of another tool.

    RUN is a run, a CSV or JSON-lines file, TensorBoard event files, or a trainer_state.json. The rules check everything
    that was recorded, from the beginning.
    """
    if rule is not None:
        new_console().print(_render_rule(rule))
        return
    if lists_rules:
        new_console().print(_render_rules())
        return
    if dump_folder is not None or op_trace is not None:
        is_faulty = (
            print_hang(dump_folder, as_json=as_json)
            if dump_folder is not None
            else print_imbalance(str(op_trace), as_json=as_json)
        )
        if is_faulty and fail_on is not None:
            raise SystemExit(1)
        return
    if feedback is not None:
        _write_feedback(feedback, run, log_dir)
        return
    if run is None:
        raise click.UsageError(
            "specify a run or a log file, or use --explain RULE, --rules, --feedback FILE,"
            " --flight-recorder DIR or --ops TABLE"
        )
    if judgements:
        _judge(run, log_dir, judgements)
    _remember_signals(run, log_dir, _parse_signals(mapped_signals, "--map"))
    signal_names = _parse_signals(signals, "--signal")
    diagnosis = diagnose(run, log_dir, rules=_parse_settings(settings), signals=signal_names)
    _print_diagnosis(diagnosis, run, log_dir, as_json=as_json)
    if (require_signals and not diagnosis.signals) or (fail_on is not None and _is_faulty(diagnosis, fail_on)):
        raise SystemExit(1)


def _print_diagnosis(diagnosis: Diagnosis, run: str, log_dir: str, *, as_json: bool) -> None:
    history = read(run, log_dir) if diagnosis.state is not None else None
    problems = recording_problems(history) if history is not None else []
    dumps = history.dumps if history is not None else []
    if as_json:
        content = msgspec.to_builtins(diagnosis)
        if diagnosis.state is not None:
            content["recording_problems"] = [line.plain for line in problems]
            content["dumps"] = [
                {"name": dump.name, "path": str(dump.path), "cause": dump.verdict and dump.verdict.text}
                for dump in dumps
            ]
        echo(json_text(content))
        return
    for dump in dumps[-_MAX_DUMPS:]:
        new_console().print(Text(f"Captured at step {number(dump.step)}: {safe(dump.reason)}", style="bold"))
        for line in verdict_lines(dump):
            new_console().print(line)
    where = "" if log_dir == Settings().log_dir else f" --log-dir {log_dir}"
    new_console().print(_render_diagnosis(diagnosis, f"tacho show {run}{where}", problems))
    _print_judged_rules(log_dir)


def _is_faulty(diagnosis: Diagnosis, severity: str) -> bool:
    worst = max((severity_rank(alert.severity) for alert in diagnosis.alerts), default=-1)
    return diagnosis.has_failed or not diagnosis.signals or worst >= severity_rank(severity)


def _parse_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``loss_spike.sigmas=8`` and ``plateau=off``."""
    rules: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        rule, dot, threshold = name.strip().partition(".")
        switch = parse_switch(value)
        if not equals or (not dot and not isinstance(switch, bool)):
            raise ConfigError(f"--set {text}: expected RULE.THRESHOLD=NUMBER or RULE=off, as in loss_spike.sigmas=8")
        if not dot:
            rules[rule] = switch
        elif not isinstance(rules.get(rule), bool):
            rules.setdefault(rule, {})[threshold] = value.strip()
    return rules


def _remember_signals(run: str, log_dir: str, new_names: dict[str, list[str]]) -> None:
    """Write the metrics that the user names as signals of a run to its annotations, which `diagnose` reads."""
    if not new_names:
        return
    resolve_signals(new_names)
    try:
        folder = find_run(run, log_dir)
    except RunNotFoundError:
        raise ConfigError(f"--map: {run} is no run, so nothing can be remembered; use --signal") from None
    fields = ((f"{SIGNAL_ANNOTATION}{signal}", metrics[0]) for signal, metrics in new_names.items())
    annotate(folder, [{"op": "set", "field": field, "value": metric} for field, metric in fields])


def _parse_signals(texts: tuple[str, ...], option: str) -> dict[str, list[str]]:
    """Parse ``loss=my/objective``."""
    signals: dict[str, list[str]] = {}
    for text in texts:
        signal, equals, metric = text.partition("=")
        if not equals or not metric.strip():
            raise ConfigError(f"{option} {text}: expected SIGNAL=METRIC, as in loss=my/objective")
        signals.setdefault(signal.strip(), []).append(metric.strip())
    return signals


def _judge(run: str, log_dir: str, judgements: tuple[str, ...]) -> None:
    """Remember which alerts of a run are right or wrong."""
    folder = find_run(run, log_dir)
    alerts = read(folder.path).alerts
    changes = []
    for text in judgements:
        alert_name, _, judgement = text.rpartition("=")
        rule, at, step = alert_name.partition("@")
        if judgement not in JUDGEMENTS or (at and not step.isdecimal()):
            raise ConfigError(f"--judge {text}: expected RULE=wrong or RULE@STEP=right, as in loss_spike@120=wrong")
        matches = [alert for alert in alerts if alert.rule == rule and (not at or alert.opened_step == int(step))]
        if len(matches) != 1:
            names = ", ".join(f"{alert.rule}@{alert.opened_step}" for alert in matches or alerts) or "none"
            problem = "several alerts match; they are" if matches else "no such alert; the run has"
            raise ConfigError(f"--judge {text}: {problem}: {safe(names, 400)}")
        field = judgement_field(rule, matches[0].opened_step)
        changes.append({"op": "set", "field": field, "value": judgement})
    annotate(folder, changes)


def _write_feedback(path: str, run: str | None, log_dir: str) -> None:
    """Write the judged alerts of a run, or of all runs, as JSON lines."""
    folders = list_runs(log_dir) if run is None else [find_run(run, log_dir)]
    cases = list(export_cases(folders))
    if not cases:
        raise ConfigError(
            "--feedback: no alert was judged; do it in the dashboard, or with tacho doctor RUN --judge RULE=wrong"
        )
    write_file(path, "".join(msgspec.json.encode(case).decode() + "\n" for case in cases))
    num_wrong = sum(case["judgement"] == "wrong" for case in cases)
    echo(f"{plural(len(cases), 'alert')} written to {path}, {num_wrong} of them wrong. The file has numbers only.")


def _print_judged_rules(log_dir: str) -> None:
    """Name the rules whose alerts people found mostly wrong in this folder, with a looser setting."""
    for judged in count_judgements(log_dir):
        if judged.is_mostly_wrong:
            num_judged = judged.num_right + judged.num_wrong
            looser = looser_setting(judged.rule)
            advice = f"--set {looser}, or " if looser else ""
            summary = f"{judged.num_wrong} of {num_judged} judged alerts of {judged.rule} were wrong"
            new_console().print(Text(f"{summary}: {advice}--set {judged.rule}=off", style="yellow"))


def _render_diagnosis(diagnosis: Diagnosis, show_command: str, recording: list[Text]) -> RenderableType:
    parts: list[RenderableType] = []
    failures = []
    if diagnosis.state is not None and diagnosis.state.is_failure:
        failures.append(_failure("The run", diagnosis.state, diagnosis.reason))
    ranks = diagnosis.failed_ranks
    failures += [_failure(f"Rank {view.rank}", view.state, view.error or view.reason) for view in ranks[:_MAX_RANKS]]
    if len(ranks) > _MAX_RANKS:
        failures.append(f"{len(ranks) - _MAX_RANKS} more ranks failed.")
    if failures:
        details = (f" Details: {safe(show_command, 400)}", "dim")
        parts += [Text.assemble(("\n".join(failures), "bold red"), details), Text()]
    closed_alerts = [alert for alert in diagnosis.alerts if not alert.is_open]
    for alert in diagnosis.open_alerts:
        parts += [_render_alert(alert), Text()]
    if closed_alerts:
        parts += [Text("Resolved or abandoned:", style="dim"), *(_summary(alert) for alert in closed_alerts), Text()]
    if not diagnosis.alerts and diagnosis.signals:
        scope = " in its training metrics" if diagnosis.has_failed or recording else ""
        parts += [Text(f"No problems found{scope}.", style="green"), Text()]
    elif not diagnosis.alerts:
        parts += [Text("Nothing to diagnose: no known signal was recorded.", style="yellow"), Text()]
    if recording:
        parts += [Text("Recording and exporting:", style="bold yellow"), *recording, Text()]
    signals = ", ".join(f"{signal} ({safe(metric)})" for signal, metric in diagnosis.signals.items()) or "none"
    records = "1 record" if diagnosis.num_records == 1 else f"{diagnosis.num_records} records"
    parts.append(Text(f"Checked {records}. Signals: {signals}.", style="dim"))
    if "loss" not in diagnosis.signals:
        missing = "No training loss found. Most rules need one; record it as train_loss, for example."
        parts.append(Text(missing, style="yellow"))
        if diagnosis.other_metrics:
            names = ", ".join(safe(name) for name in diagnosis.other_metrics[:_MAX_OTHER_METRICS])
            parts.append(
                Text(f"Metrics that are no signals: {names}. Name one of them with --map loss=NAME.", style="dim")
            )
    return Group(*parts)


def _failure(what: str, state: RunState | None, reason: str | None) -> str:
    return f"{what} {state}: {safe(reason, 400)}." if reason else f"{what} {state}."


def _headline(alert: Alert) -> Text:
    return Text.assemble((f"{alert.severity:9}", _STYLES.get(alert.severity, "")), (safe(alert.title, 400), "bold"))


def _render_alert(alert: Alert) -> RenderableType:
    lines: list[RenderableType] = [_headline(alert)]
    body: list[RenderableType] = []
    if alert.message:
        body.append(Text(safe(alert.message, 1000)))
    body += _cause_lines(alert)
    evidence = {name: value for name, value in alert.evidence.items() if name != "metric"}
    facts = {safe(name): safe(_format_evidence(name, value), 200) for name, value in evidence.items()}
    body += [grid(list(facts.items())), Text.assemble(("Meaning  ", "dim"), safe(alert.meaning, 2000))]
    for index, line in enumerate(alert.advice):
        body.append(Text.assemble(("Advice   " if index == 0 else "         ", "dim"), f"- {safe(line, 500)}"))
    body.append(Text(f"tacho doctor --explain {safe(alert.rule)}", style="dim"))
    return Group(*lines, Padding(Group(*body), (0, 0, 0, 9)))


def _cause_lines(alert: Alert) -> list[Text]:
    if not alert.cause:
        return []
    confidence = safe(str(alert.cause.get("confidence") or ""), 40)
    text = Text.assemble(
        ("Cause    ", "dim"), safe(str(alert.cause.get("text")), 1000), f" ({confidence})" * bool(confidence)
    )
    return [text]


def _summary(alert: Alert) -> Text:
    steps = duration_text = ""
    if alert.resolved_step is not None:
        steps = f"steps {number(alert.opened_step)} to {number(alert.resolved_step)}"
    if alert.resolved_time is not None and alert.opened_time is not None:
        duration_text = f" ({duration(alert.resolved_time - alert.opened_time)})"
    return _headline(alert) + Text(f"  {steps}{duration_text}  {safe(alert.outcome, 200)}", style="dim")


def alert_lines(alerts: list[Alert]) -> Table:
    """Return a table of alerts, for other commands."""
    table = new_table("alert", "what", "since step", right={"since step"}, wraps={"what"})
    for alert in alerts:
        severity = Text(alert.severity, style=_STYLES.get(alert.severity, ""))
        add_row(table, severity, safe(alert.title, 200), number(alert.opened_step))
    return table


def _format_evidence(name: str, value: Any) -> str:
    if name != "expected" or not isinstance(value, list) or len(value) != 2:
        return _format_value(value)
    low, high = value
    if low is None or high is None:
        return f"at most {_format_value(high)}" if low is None else f"at least {_format_value(low)}"
    return f"{_format_value(low)} to {_format_value(high)}"


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return ", ".join(map(_format_value, value)) if isinstance(value, list) else str(value)


def _render_rule(name: str) -> RenderableType:
    rule = explain(name)
    import inspect

    thresholds = new_table("threshold", "default", "meaning", right={"default"}, wraps={"meaning"})
    for row in threshold_table(rule):
        add_row(thresholds, f"{name}.{row.name}", str(row.default), row.doc)
    parts: list[RenderableType] = [
        Text.assemble((name, "bold"), "  ", (rule.severity, _STYLES[rule.severity])),
        Text(),
        *_paragraphs(inspect.cleandoc(rule.__doc__ or "")),
        Text("What it usually means", style="bold"),
        Text(rule.meaning),
        Text(),
        Text("What to do about it", style="bold"),
        *(Text(f"- {line}") for line in rule.advice),
    ]
    return Group(*parts, Text(), thresholds) if threshold_table(rule) else Group(*parts)


def _paragraphs(text: str) -> list[RenderableType]:
    """Return paragraphs that wrap at the width of the terminal."""
    return [Text(" ".join(paragraph.split()) + "\n") for paragraph in text.split("\n\n")]


def _render_rules() -> Table:
    table = new_table("rule", "severity", "finds", wraps={"finds"})
    for name, rule in RULES.items():
        first = (rule.__doc__ or "").strip().partition("\n\n")[0]
        add_row(table, name, Text(rule.severity, style=_STYLES[rule.severity]), " ".join(first.split()))
    return table
