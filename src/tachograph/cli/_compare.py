"""`tacho compare`: whether runs differ in speed, memory, loss and other results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import rich_click as click
from rich.console import Console
from rich.text import Text

from tachograph.cli._files import write_file
from tachograph.cli._format import add_row, json_text, new_console, new_table, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.cli._select import select_runs, where_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import TachographError
from tachograph.reader import find_readable_run

if TYPE_CHECKING:
    from tachograph.comparison import ComparisonReport, RunEvidence

    Pair = tuple[list[RunEvidence], list[RunEvidence]]

__all__ = ["InputError", "compare", "load_runs", "print_report", "seed_spread_option"]

_STYLES = {"good": "green", "bad": "bold red", "open": "yellow", "same": "cyan", "": ""}
_MAX_COMPARISONS = 50
_MAX_LEARN_S = 10.0
"""How long the summaries of earlier runs are read for a comparison; they are stored, so the next one has more."""
_SAME_CONFIG = "config"
_FAILURES = ("worse", "slower", "more", "worse-loss", "different", "unknown")

Command = TypeVar("Command", bound=Callable[..., Any])


class InputError(click.ClickException):
    """Something cannot be read or written; 1 would mean that a run is worse."""

    exit_code = 2


class _CompareCommand(click.RichCommand):
    """Accepts several runs after one `--against`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_repeat_option(args, "--against")))


def _repeat_option(arguments: Iterable[str], option: str) -> Iterable[str]:
    is_inside = is_first = False
    for argument in arguments:
        if argument == option:
            is_inside = is_first = True
            continue
        if argument.startswith("-") and len(argument) > 1:
            if is_first:
                yield option
            is_inside = is_first = False
        if is_inside:
            yield option
            is_first = False
        yield argument
    if is_first:
        yield option


def seed_spread_option(command: Command) -> Command:
    """Add `--seed-spread`, as a share."""
    return click.option(
        "--seed-spread",
        metavar="PERCENT",
        type=click.FloatRange(min=0, min_open=True, max=100),
        callback=lambda _context, _parameter, value: None if value is None else value / 100,
        help="State how much final losses of runs differ that differ only in their seed: the standard deviation in "
        "percent. Without it, the runs themselves and earlier runs with the same config show it.",
    )(command)


def _parse_failures(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    words = [word.strip() for value in values for word in value.split(",")]
    if unknown := [word for word in words if word not in _FAILURES]:
        raise click.BadParameter(f"{', '.join(map(repr, unknown))} is none of {', '.join(_FAILURES)}")
    return words


@click.command(cls=_CompareCommand)
@click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=complete_run, callback=resolve_run)
@click.option(
    "--against",
    metavar="RUN...",
    multiple=True,
    shell_complete=complete_run,
    callback=resolve_run,
    help="Group of repeated runs to compare with; the runs before this option are judged.",
)
@click.option(
    "--group",
    metavar="[FIELD]",
    is_flag=False,
    flag_value=_SAME_CONFIG,
    help="Put runs with the same value of this field, such as config.lr, into one group, and compare the groups. "
    "Without FIELD: runs whose configs differ only in their seeds. Three or more runs are grouped so by default.",
)
@where_option
@seed_spread_option
@click.option(
    "--anyway",
    is_flag=True,
    help="Judge also what is not comparable, such as the speed of different models or losses on different data.",
)
@click.option(
    "--fail-on",
    metavar="VERDICTS",
    multiple=True,
    callback=_parse_failures,
    help="Exit with 1 on one of these, separated by commas: worse (slower, more GPU memory, a worse loss or result, or "
    "a failed run), slower, more, worse-loss, different (also if better); or with 3 on unknown (a quantity has no "
    "verdict).",
)
@log_dir_option
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
@click.option("--html", "html_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write a page with charts.")
def compare(
    runs: tuple[str, ...],
    against: tuple[str, ...],
    group: str | None,
    where: str | None,
    seed_spread: float | None,
    anyway: bool,
    fail_on: list[str],
    log_dir: str,
    as_json: bool,
    as_markdown: bool,
    html_file: str | None,
) -> None:
    """Judge whether a run differs from others in speed, memory, loss, and accuracy or reward.

    The run named first is judged against each of the others, so name the new run first: tacho compare new old. If you
    repeated runs, for example with other seeds, compare them as groups with --against or --group, which detects
    smaller differences, and is needed for verdicts on losses:

    tacho compare new-1 new-2 new-3 --against old-1 old-2 old-3

    With --fail-on, exits with 2 if a run cannot be read.
    """
    try:
        reports = _compare(runs, against, group, where, log_dir, seed_spread, html_file, anyway=anyway)
    except (TachographError, OSError, click.ClickException) as error:
        if not fail_on or isinstance(error, click.UsageError):
            raise
        message = error.message if isinstance(error, click.ClickException) else getattr(error, "strerror", None)
        raise InputError(message or str(error)) from error
    from tachograph.comparison import markdown_report

    if as_json:
        comparisons = [msgspec.to_builtins(report) for report in reports]
        echo(json_text(comparisons[0] if len(comparisons) == 1 else {"schema": 1, "comparisons": comparisons}))
    elif as_markdown:
        echo(markdown_report(reports), nl=False)
    else:
        console = new_console()
        for report in reports:
            print_report(console, report, is_brief=len(reports) > 1)
        if any(metric.verdict == "not_comparable" for report in reports for metric in report.metrics):
            console.print(Text("Add --anyway to judge also what is not comparable.", style="dim"))
        if len(reports) > 1:
            console.print(Text(f"Compare two of them for details: tacho compare {safe(reports[0].b.runs[0])} OTHER"))
    raise SystemExit(_exit_code(reports, fail_on))


def _exit_code(reports: Sequence[ComparisonReport], fail_on: Sequence[str]) -> int:
    from tachograph.comparison import GATED_METRICS

    metrics = [metric for report in reports for metric in report.metrics if metric.name in GATED_METRICS]
    has_failed = any(report.has_failed for report in reports)
    verdicts = {metric.verdict for metric in metrics}
    is_worse = has_failed or any(metric.is_regression for metric in metrics)
    outcomes = {
        "worse": is_worse,
        "slower": "slower" in verdicts,
        "more": "more" in verdicts,
        "worse-loss": "worse" in verdicts,
        "different": is_worse or any(metric.is_different for metric in metrics),
    }
    if any(outcomes.get(word) for word in fail_on):
        return 1
    return 3 if "unknown" in fail_on and not all(metric.is_settled for metric in metrics) else 0


def _compare(
    runs: Sequence[str],
    against: Sequence[str],
    group: str | None,
    where: str | None,
    log_dir: str,
    seed_spread: float | None,
    html_file: str | None,
    *,
    anyway: bool,
) -> list[ComparisonReport]:
    pairs = _make_pairs(runs, against, group, where, log_dir)
    from tachograph.comparison import compare_groups, html_report

    similar, has_all = _similar_runs(pairs, log_dir)
    reports = [
        compare_groups(first, second, earlier=earlier, seed_spread=seed_spread, ignores_refusals=anyway)
        for (first, second), earlier in zip(pairs, similar, strict=True)
    ]
    if not has_all:
        for report in reports:
            report.warnings.append(
                "the summaries of some earlier runs were not read yet: the noise may change when you repeat this"
            )
    if not against and group is None:
        for (references, judged_runs), report in zip(pairs, reports, strict=True):
            reference, judged = references[0], judged_runs[0]
            if len(references) == len(judged_runs) == 1 and judged.started < reference.started:
                report.warnings.append(
                    f"{judged.name!r} is judged because it is named first, but started before {reference.name!r}"
                )
    if html_file is not None:
        write_file(html_file, html_report(reports, pairs))
    return reports


def _make_pairs(
    runs: Sequence[str], against: Sequence[str], group: str | None, where: str | None, log_dir: str
) -> list[Pair]:
    """Return the two groups of runs of each comparison: those to compare with, and those to judge."""
    if against:
        if group is not None or where is not None:
            raise click.UsageError("--against names both groups; it cannot be combined with --group or --where")
        if not runs:
            raise click.UsageError("name the runs to judge before --against")
        return [(load_runs(against, log_dir), load_runs(runs, log_dir))]
    if group is not None:
        return _grouped_pairs(runs, where, group, log_dir)
    names = [row.id for row in select_runs(log_dir, (), where, archived=False)] if where is not None else list(runs)
    if where is not None and runs:
        raise click.UsageError("name the runs, or select them with --where EXPR")
    if len(names) < 2:
        raise click.UsageError("name at least two runs: the one to judge, then those to compare with")
    if len(names) > _MAX_COMPARISONS:
        raise click.UsageError(f"{len(names)} runs; compare at most {_MAX_COMPARISONS} at once, or use --group FIELD")
    if len(names) > 2 and (pairs := _repeats_as_pairs(names, log_dir)):
        return pairs
    judged, *others = load_runs(names, log_dir)
    return [([other], [judged]) for other in others]


def _repeats_as_pairs(names: Sequence[str], log_dir: str) -> list[Pair]:
    """Return the pairs of groups if some of the runs are repeats of each other, and others are not."""
    from tachograph.comparison import training_key

    members: dict[Any, list[RunEvidence]] = {}
    for run in load_runs(names, log_dir):
        members.setdefault(training_key(run.config), []).append(run)
    judged, *others = members.values()
    return [(other, judged) for other in others] if len(members) < len(names) else []


def _grouped_pairs(runs: Sequence[str], where: str | None, field: str, log_dir: str) -> list[Pair]:
    from tachograph.catalog import Catalog, group_rows, parse_query

    catalog = Catalog(log_dir)
    query = parse_query(where or "")
    rows = catalog.select(query, columns=[field], archived=None if runs else False)
    if runs:
        positions = {catalog.row(name.rstrip("/")).id: number for number, name in enumerate(runs)}
        rows = sorted((row for row in rows if row.id in positions), key=lambda row: positions[row.id])
    for error in catalog.unknown_fields(query, [] if field == "config" else [field]):
        raise error
    if not rows:
        raise click.ClickException(f"no run in {log_dir!r} matches")
    groups = group_rows(rows, [field], [])
    first_run = rows[0].id
    groups.sort(key=lambda run_group: first_run not in run_group.runs)
    if len(groups) < 2:
        raise click.ClickException(f"all {len(rows)} runs agree in {field!r}; there is nothing to compare")
    if len(groups) > _MAX_COMPARISONS:
        raise click.ClickException(f"{field!r} has {len(groups)} values; group by a field with fewer")
    members = [load_runs(run_group.runs, log_dir) for run_group in groups]
    return [(other, members[0]) for other in members[1:]]


def _similar_runs(pairs: Sequence[Pair], log_dir: str) -> tuple[list[list[RunEvidence]], bool]:
    """Return, for each comparison, earlier runs like these, and whether there was time to look at all runs."""
    from tachograph.catalog import Catalog
    from tachograph.comparison import load_earlier_folders, similar_rows

    if not Path(log_dir).is_dir():
        return [[] for _ in pairs], True
    catalog = Catalog(log_dir)
    rows_by_pair = [similar_rows(catalog, [*first, *second], max_s=_MAX_LEARN_S) for first, second in pairs]
    folders = {str(each.row.folder.path): each.row.folder for rows in rows_by_pair for each in rows}
    runs_by_path = dict(zip(folders, load_earlier_folders(folders.values()), strict=True))
    similar = [
        [
            run if each.is_as_fast else run.without_clock()
            for each in rows
            if (run := runs_by_path[str(each.row.folder.path)]) is not None
        ]
        for rows in rows_by_pair
    ]
    return similar, catalog.indexed_share_for(()) == 1.0


def load_runs(names: Iterable[str], log_dir: str) -> list[RunEvidence]:
    """Load the numbers of runs that comparisons use, by name or path.

    Raises:
        TachographError: if there is no such run, or it cannot be read.
    """
    from tachograph.comparison import load_folders

    names = list(names)
    runs = load_folders([find_readable_run(name, log_dir) for name in names])
    return [replace(run, name=name.rstrip("/")) for run, name in zip(runs, names, strict=True)]


def print_report(
    console: Console, report: ComparisonReport, *, is_brief: bool = False, with_headline: bool = True
) -> None:
    """Print a comparison; a brief one has only the headline and the quantities with a verdict."""
    from tachograph.comparison import lines_before_headline, noise_line, runs_text, verdict_rows

    console.print(Text(f"{safe(report.direction, 300)}: {runs_text(report)}"))
    rows = [row for row in verdict_rows(report) if row.sign or not is_brief]
    sides = [safe(group.name, 60) for group in (report.a, report.b)] if report.a.name else ["before", "after"]
    table = new_table("", *sides, "difference", "verdict", right=set(sides), wraps={"verdict"})
    table.columns[0].min_width = max(len(row.title) for row in rows)
    table.columns[-1].min_width = 13  # else a narrow terminal hides it
    for row in rows:
        verdict = Text(safe(row.verdict, 300), style=_STYLES[row.sign])
        add_row(table, row.title, row.a, row.b, row.effect, verdict)
    console.print(table)
    if not is_brief:
        notes = [noise_line(report), *(f"{row.title}: {note}" for row in rows for note in row.notes)]
        _print_details(console, report, notes)
    if with_headline:
        for line in lines_before_headline(report):
            console.print(Text(safe(line, 300), style="bold red"))
        console.print(Text(safe(report.headline, 500), style="bold"), Text())


def _print_details(console: Console, report: ComparisonReport, notes: list[str]) -> None:
    from tachograph.comparison import change_texts

    if report.config_diff:
        table = new_table("config", "before", "after", wraps={"before", "after"})
        for change in report.config_diff:
            add_row(table, safe(change.name, 80), *(safe(text) for text in change_texts(change)))
        console.print(Text(), table)
        if report.num_more_changes:
            console.print(Text(f"{report.num_more_changes} more keys differ: tacho diff shows all", style="dim"))
    console.print(Text())
    for line in filter(None, (report.comparable, *notes)):
        console.print(Text(safe(line, 1_000), style="dim"))
    for warning in report.warnings:
        console.print(Text(f"note: {safe(warning, 300)}", style="yellow"))
    console.print(Text())
