"""`tacho check`: whether a run is worse than a baseline, as an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from rich.text import Text

from tachograph.cli._compare import InputError, load_runs, print_report, seed_spread_option
from tachograph.cli._files import write_file
from tachograph.cli._format import json_text, new_console, plural, safe
from tachograph.cli._options import complete_run, log_dir_option, run_argument
from tachograph.exceptions import TachographError

if TYPE_CHECKING:
    from tachograph.comparison import CheckResult, HistoryReport, RunEvidence

__all__ = ["check"]

_MAX_BASELINE = 20
_MAX_HISTORY = 60
_STYLES = {"passed": "bold green", "regressed": "bold red", "unjudged": "bold yellow"}


@click.command()
@run_argument
@click.option("--baseline", metavar="FILE", type=click.Path(dir_okay=False), help="Compare with a baseline file.")
@click.option(
    "--against",
    metavar="RUN",
    multiple=True,
    shell_complete=complete_run,
    help="Compare with this run. Can be repeated. Default without --baseline: earlier runs with the same perf_tag.",
)
@click.option(
    "--metrics",
    metavar="NAMES",
    multiple=True,
    help="Metrics that can fail the check, separated by commas: step_time, device_memory, train_loss, val_loss, "
    "device_memory_reserved, host_memory. Default: the first four, if recorded.",
)
@click.option(
    "--history",
    is_flag=True,
    help="Also find the run at which speed, memory or loss changed, among runs with the same perf_tag.",
)
@seed_spread_option
@click.option("--require-evidence", is_flag=True, help="Exit with 3 if the run cannot be judged.")
@click.option("--junit", metavar="FILE", type=click.Path(dir_okay=False), help="Write a JUnit file.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the report as JSON.")
@click.option("--markdown", metavar="FILE", type=click.Path(dir_okay=False), help="Write the report as Markdown.")
@log_dir_option
def check(
    run: str,
    baseline: str | None,
    against: tuple[str, ...],
    metrics: tuple[str, ...],
    history: bool,
    seed_spread: float | None,
    require_evidence: bool,
    junit: str | None,
    json_file: str | None,
    markdown: str | None,
    log_dir: str,
) -> None:
    """Check whether a run is slower, needs more memory or has a worse loss than a baseline.

    Exits with 0 if nothing is certainly worse, with 1 if something is or the run failed, and with 2 if the run or the
    baseline cannot be read. With --require-evidence, exits with 3 if there is too little evidence: the run is too
    short or not comparable, there is nothing to compare with, or only one run for a loss.
    """
    if baseline is not None and against:
        raise click.UsageError("--baseline and --against cannot be combined")
    names = _metric_names(metrics)
    try:
        result, source = _check(
            run,
            baseline,
            against,
            names,
            log_dir,
            history=history,
            seed_spread=seed_spread,
            requires_evidence=require_evidence,
        )
    except (TachographError, OSError) as error:
        message = str(getattr(error, "strerror", None) or error)
        if junit is not None:
            from tachograph.comparison import junit_error

            _write(junit, junit_error(run, message).decode())
        raise InputError(message) from error
    _print(result, source)
    _write_reports(result, junit, json_file, markdown)
    raise SystemExit(result.exit_code)


def _metric_names(texts: Sequence[str]) -> list[str]:
    from tachograph.comparison import CHECKED_METRICS

    names = list(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in CHECKED_METRICS]
    if unknown:
        raise click.UsageError(
            f"--metrics: unknown {', '.join(map(safe, unknown))}; known are {', '.join(CHECKED_METRICS)}"
        )
    if texts and not names:
        raise click.UsageError("--metrics needs at least one name")
    return names


def _check(
    run: str,
    baseline: str | None,
    against: Sequence[str],
    metrics: list[str],
    log_dir: str,
    *,
    history: bool,
    seed_spread: float | None,
    requires_evidence: bool,
) -> tuple[CheckResult, str]:
    """Return the result, and a description of the runs that the run was compared with."""
    from tachograph.comparison import GATED_METRICS, check_run, judge_history, load_baseline

    file = None if baseline is None else load_baseline(baseline)
    [evidence] = load_runs([run], log_dir)
    earlier = _earlier_runs(evidence, log_dir) if history or (file is None and not against) else []
    if file is not None:
        evidence = file.comparable(evidence)
        references, source = file.evidence(), f"{plural(len(file.evidence()), 'run')} of {safe(baseline)}"
    elif against:
        references, source = load_runs(against, log_dir), plural(len(against), "named run")
    else:
        references, source = _default_baseline(evidence, earlier)
    others = [other for other in references if not other.run_id or other.run_id != evidence.run_id]
    if len(others) < len(references):
        source += ", without the run itself"
    changes: HistoryReport | None = None
    margins = {} if file is None else file.margins
    if history:
        changes = judge_history([*earlier, evidence], metrics or GATED_METRICS, margins)
    result = check_run(
        evidence,
        others,
        metrics=metrics or None,
        margins=margins,
        history=changes,
        seed_spread=seed_spread,
        requires_evidence=requires_evidence,
    )
    if evidence.state in {"running", "stale"}:
        result.warnings.append(f"{evidence.name!r} has not ended; it was judged by its steps so far")
    return result, source


def _earlier_runs(run: RunEvidence, log_dir: str) -> list[RunEvidence]:
    """Return finished runs of the log folder that started before a run and share its perf_tag, oldest first."""
    from tachograph.catalog import Catalog
    from tachograph.comparison import earlier_rows

    if not Path(log_dir).is_dir():
        return []
    runs: list[RunEvidence] = []
    for row in earlier_rows(Catalog(log_dir), run.perf_tags, run.started, _MAX_HISTORY, without=[run]):
        with contextlib.suppress(TachographError):  # one damaged run does not stop a check
            runs += load_runs([row.id], log_dir)
    return runs


def _default_baseline(run: RunEvidence, earlier: Sequence[RunEvidence]) -> tuple[list[RunEvidence], str]:
    if not run.perf_tags:
        return [], "nothing: the run has no perf_tag; use --baseline FILE or --against RUN"
    tag = safe(", ".join(run.perf_tags))
    baseline_runs = [other for other in earlier if other.is_baseline][-_MAX_BASELINE:]
    if baseline_runs:
        return baseline_runs, f"{plural(len(baseline_runs), 'earlier run')} marked as baseline with the perf_tag {tag}"
    latest_runs = list(earlier[-_MAX_BASELINE:])
    if not latest_runs:
        return [], f"nothing: the log folder has no earlier finished run with the perf_tag {tag}"
    return latest_runs, f"{plural(len(latest_runs), 'earlier finished run')} with the perf_tag {tag}"


def _print(result: CheckResult, source: str) -> None:
    console = new_console()
    console.print(Text(f"Compared with {source}.", style="dim"))
    if result.report.metrics:
        print_report(console, result.report, with_headline=False)
        for line in result.report.first:
            if line not in result.reasons:
                console.print(Text(safe(line, 300), style="bold red"))
    history = result.history
    if history is not None:
        console.print(Text(f"History of {plural(history.num_runs, 'run')}:", style="bold"))
        lines = [*(change.text for change in history.changes), *history.missing]
        for line in lines or ["no change"]:
            console.print(Text(f"  {safe(line, 400)}"))
    for line in result.warnings:
        console.print(Text(f"warning: {safe(line, 400)}", style="yellow"))
    for line in result.reasons:
        console.print(Text(safe(line, 400), style=_STYLES[result.status]))
    words = {"passed": "Nothing is worse.", "regressed": "The check failed.", "unjudged": "The run cannot be judged."}
    console.print(Text(words[result.status], style=_STYLES[result.status]))


def _write_reports(result: CheckResult, junit: str | None, json_file: str | None, markdown: str | None) -> None:
    from tachograph.comparison import junit_report, markdown_report

    if junit is not None:
        _write(junit, junit_report(result).decode())
    if json_file is not None:
        _write(json_file, json_text(result.to_builtins()) + "\n")
    if markdown is not None:
        _write(markdown, markdown_report([result.report]))


def _write(path: str, text: str) -> None:
    try:
        write_file(path, text)
    except click.ClickException as error:
        raise InputError(error.message) from error
