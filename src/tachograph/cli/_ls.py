"""`tacho ls`: one line per run."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click
from rich.console import Group, RenderableType
from rich.text import Text

from tachograph.cli._format import (
    add_row,
    ago,
    bar,
    duration,
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
from tachograph.cli._options import json_option, log_dirs_of, log_dirs_option
from tachograph.cli._select import parse_columns
from tachograph.cli._terminal import echo, echo_data
from tachograph.journal import RunState
from tachograph.reader import RunOverview

if TYPE_CHECKING:
    from tachograph.catalog import Catalog, RunGroup, RunRow, SavedView

__all__ = ["ls"]

# Columns by terminal width; names are never truncated, so a narrow terminal gets fewer columns.
_WIDE_HEADINGS = ("run", "state", "step", "progress", "result", "time/step", "duration", "started")
_MEDIUM_HEADINGS = ("run", "state", "step", "progress", "result", "started")
_NARROW_HEADINGS = ("run", "state", "result", "step")
_SORTED_HEADINGS = {"name": "run", "steps": "step", "sec_per_step": "time/step"}
"""Headings of fields that have another name there."""
_RESULT_FIELDS = ("result", "result_metric")
_MAX_UNREAD_BYTES = 64 << 20
_READING_S = 2.0
"""If more journals than that were never read, as long as that is spent on them: `tacho ls` answers soon in any case."""
_MAX_CELL_CHARS = 60
_MAX_REASON_CHARS = 50
_ARCHIVED_FILTERS = {"no": False, "only": True, "all": None}


def _complete_view(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the slugs of views that start with the text before the cursor."""
    from tachograph.catalog import list_views

    views = list_views(log_dirs_of(context))
    return [view.slug for view in views if view.slug.startswith(incomplete)]


@click.command()
@click.argument("words", metavar="[EXPR]", nargs=-1)
@log_dirs_option
@json_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(state) for state in RunState]),
    help="Only runs in this state. Can be repeated.",
)
@click.option(
    "--columns", metavar="FIELDS", help="Fields to show, such as config.lr,val_loss.min; config.* is all of the config."
)
@click.option("--sort", metavar="FIELD", help="Sort by a field and show it; -FIELD puts the highest value first.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N runs.")
@click.option(
    "--group",
    metavar="FIELDS",
    help="Group by up to three fields; config is the whole config without seeds, names and paths.",
)
@click.option("--archived", "only_archived", is_flag=True, help="Show only archived runs.")
@click.option("--all", "show_all", is_flag=True, help="Also show archived runs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV; without --columns, with every field.")
@click.option(
    "--view",
    metavar="SLUG",
    shell_complete=_complete_view,
    help="Show a saved view. EXPR narrows it down, and other options override the view.",
)
@click.option("--save-view", metavar="NAME", help="Save EXPR, --columns, --sort and --group as a view with this name.")
def ls(
    words: tuple[str, ...],
    log_dirs: tuple[str, ...],
    as_json: bool,
    states: tuple[str, ...],
    columns: str | None,
    sort: str | None,
    limit: int | None,
    group: str | None,
    only_archived: bool,
    show_all: bool,
    as_csv: bool,
    view: str | None,
    save_view: str | None,
) -> None:
    """List the runs in the log folder, newest first.

    EXPR selects runs, for example: 'state:crashed tag:paper config.lr>=1e-4 loss.min<0.3 started>-14d'. A word
    without a field is searched in names, tags and notes. The documentation of runs lists all fields
    and operators.
    """
    from tachograph.catalog import Catalog, differing_fields, parse_query, result_fields

    if as_csv and (as_json or group):
        raise click.UsageError(f"--csv cannot be combined with {'--json' if as_json else '--group'}")
    query_view = _view_from_options(words, states, columns, sort, group, only_archived, show_all)
    base_view = None if view is None else _load_view(log_dirs, view)
    query_view = query_view if base_view is None else _combine_views(base_view, query_view)
    if save_view is not None:
        parse_query(query_view.filter)
        _save_view(log_dirs, save_view, query_view)
    catalog = Catalog(*log_dirs)
    query_view.columns = _expand_columns(catalog, query_view)
    rows = _select_rows(catalog, query_view, is_saved=base_view is not None, shows_facts=as_csv)[:limit]
    if query_view.only_differing and len(rows) > 1:
        query_view.columns = differing_fields(rows, query_view.columns)
    if as_csv:
        _print_csv(rows, query_view.columns)
    elif query_view.group:
        _print_groups(rows, query_view.group, query_view.columns or result_fields(rows), as_json=as_json)
    elif as_json:
        echo(json_text([_json_row(row, query_view.columns) for row in rows]))
    elif not rows:
        num_hidden = len(catalog.select(query_view.filter, archived=True)) if query_view.archived == "no" else 0
        _print_no_runs(log_dirs, query_view.filter, num_hidden)
    elif query_view.columns:
        sort_fields = [sort_field] if (sort_field := query_view.sort.removeprefix("-")) else []
        new_console().print(_column_table(rows, list(dict.fromkeys([*query_view.columns, *sort_fields]))))
    else:
        new_console().print(_default_table(rows, query_view.sort.removeprefix("-")))
        num_unread = sum(not row.summary.is_full and row.get("result") is None for row in rows)
        if num_unread:
            echo(f"{plural(num_unread, 'journal')} not read yet, see '…'. To continue, run tacho ls again.", err=True)


def _expand_columns(catalog: Catalog, view: SavedView) -> list[str]:
    """Return the columns of a view with patterns such as `config.*` replaced by the fields of its runs.

    Raises:
        click.UsageError: if no run has a field that matches a pattern.
    """
    from tachograph.catalog import FACTS

    if not any(_is_pattern(column) for column in view.columns):
        return view.columns
    names = list(dict.fromkeys([*FACTS, *(known.field for known in catalog.fields())]))
    rows = catalog.select(view.filter, columns=names, archived=_ARCHIVED_FILTERS[view.archived])
    metrics = dict.fromkeys(metric for row in rows for metric in row.summary.metrics)
    names += [f"{metric}.{statistic}" for metric in metrics for statistic in ("last", "min", "max")]
    fields = [name for name in dict.fromkeys(names) if any(row.get(name) is not None for row in rows)]
    columns: list[str] = []
    for column in view.columns:
        matches = [name for name in fields if fnmatch.fnmatchcase(name, column)] if _is_pattern(column) else [column]
        if not matches and rows:
            raise click.UsageError(f"--columns {column!r}: no run has a field that matches")
        columns += matches
    return list(dict.fromkeys(columns))


def _is_pattern(column: str) -> bool:
    return any(character in column for character in "*?[")


def _select_rows(catalog: Catalog, view: SavedView, *, is_saved: bool, shows_facts: bool) -> list[RunRow]:
    """Return the runs of a view in its order. Fields that no run has are an error, in a saved view a warning."""
    from tachograph.catalog import FACTS, parse_query, pinned_first, sort_rows

    query = parse_query(view.filter)
    sort_field = view.sort.removeprefix("-")
    fields = [*view.columns, *view.group, *([sort_field] if sort_field else [])]
    archived = _ARCHIVED_FILTERS[view.archived]
    if view.columns or view.group or shows_facts or sort_field:
        facts = FACTS if shows_facts and not view.columns else _RESULT_FIELDS
        rows = catalog.select(query, columns=[*fields, *facts], archived=archived)
    else:
        unread_rows = [row for row in catalog.select(query, archived=archived) if not row.summary.is_full]
        is_little = sum(row.summary.overview.size_bytes for row in unread_rows) <= _MAX_UNREAD_BYTES
        rows = catalog.select(query, columns=_RESULT_FIELDS, archived=archived, max_s=None if is_little else _READING_S)
    for error in catalog.unknown_fields(query, [field for field in fields if field != "config"]):
        if not is_saved:
            raise error
        echo(f"view {view.slug}: {safe(error.reason, 1_000)}", err=True)
    if sort_field:
        rows = sort_rows(rows, sort_field, is_descending=view.sort.startswith("-"))
    # A script that sorts without a view expects the first one first.
    return pinned_first(rows, view.pinned_runs) if is_saved or not sort_field else rows


def _print_csv(rows: Sequence[RunRow], columns: Sequence[str]) -> None:
    from tachograph.catalog import csv_blocks

    for block in csv_blocks(rows, columns):
        echo_data(block)


# Views ---------------------------------------------------------------------------------------------------------------


def _view_from_options(
    words: Sequence[str],
    states: Sequence[str],
    columns: str | None,
    sort: str | None,
    group: str | None,
    only_archived: bool,
    show_all: bool,
) -> SavedView:
    """Return the options as a view without a name."""
    from tachograph.catalog import SavedView

    parts = [" ".join(words)] if words else []
    parts = [f"({parts[0]})" if parts and states else "".join(parts)]
    if states:
        parts.append(f"state in ({', '.join(states)})")
    return SavedView(
        slug="",
        filter=" ".join(part for part in parts if part),
        columns=parse_columns(columns or ""),
        sort=(sort or "").replace("`", ""),
        group=parse_columns(group or ""),
        archived="all" if show_all else "only" if only_archived else "no",
    )


def _load_view(log_dirs: Sequence[str], slug: str) -> SavedView:
    from tachograph.catalog import load_view

    stored_view = load_view(log_dirs, slug)
    for problem in stored_view.problems:
        echo(f"view {stored_view.slug}: {safe(problem, 1_000)}", err=True)
    return stored_view


def _combine_views(base_view: SavedView, query_view: SavedView) -> SavedView:
    """Return a saved view with other options: both expressions must match, other options override the view."""
    expressions = [text for text in (base_view.filter, query_view.filter) if text.strip()]
    return msgspec.structs.replace(
        base_view,
        filter=" ".join(f"({text})" for text in expressions) if len(expressions) > 1 else "".join(expressions),
        columns=query_view.columns or base_view.columns,
        sort=query_view.sort or base_view.sort,
        group=query_view.group or base_view.group,
        archived=query_view.archived if query_view.archived != "no" else base_view.archived,
    )


def _save_view(log_dirs: Sequence[str], name: str, query_view: SavedView) -> None:
    """Save a view; one that exists keeps what these options do not describe, such as its charts."""
    from tachograph.catalog import ViewError, load_view, save_view, slug_of

    slug = slug_of(name)
    try:
        stored_view = load_view(log_dirs, slug)
    except ViewError:
        stored_view = query_view
    changes = {
        key: getattr(query_view, key) for key in ("filter", "columns", "sort", "group", "archived", "pinned_runs")
    }
    is_new = save_view(log_dirs, msgspec.structs.replace(stored_view, slug=slug, name=name, **changes))
    echo(f"{'Saved' if is_new else 'Replaced'} the view; show it with: tacho ls --view {slug}", err=True)


def _print_no_runs(log_dirs: Sequence[str], expression: str, num_hidden: int) -> None:
    folders = ", ".join(repr(os.fspath(log_dir)) for log_dir in log_dirs)
    if num_hidden:
        text = f"No runs, except {num_hidden} archived: tacho ls --archived"
    elif expression:
        text = f"No run in {folders} matches."
    else:
        text = f"No runs in {folders}. Start one with tachograph.init(), or try: tacho demo"
    new_console().print(Text(text))


def _json_row(row: RunRow, columns: Sequence[str]) -> dict[str, Any]:
    if columns:
        return {"name": row.id, **{column: row.get(column) for column in columns}}
    facts = {field: row.get(field) for field in (*_RESULT_FIELDS, "display_name", "note", "tags", "archived")}
    return {**msgspec.to_builtins(row.summary.overview), "name": row.id, **facts}


# The usual columns ---------------------------------------------------------------------------------------------------


def _default_table(rows: Sequence[RunRow], sort_field: str = "") -> RenderableType:
    extra = [] if not sort_field or _SORTED_HEADINGS.get(sort_field, sort_field) in _NARROW_HEADINGS else [sort_field]
    width = new_console().width - sum(max(len(field), 8) + 2 for field in extra)
    headings = _WIDE_HEADINGS if width >= 110 else _MEDIUM_HEADINGS if width >= 78 else _NARROW_HEADINGS
    if width >= 78 and any(row.summary.ranks is not None for row in rows):
        headings = (*headings[:2], "ranks", *headings[2:])
    extra = [field for field in extra if _SORTED_HEADINGS.get(field, field) not in headings]
    metrics = {row.get("result_metric") for row in rows} - {None}
    result_title = _result_title(next(iter(metrics))) if len(metrics) == 1 else "result"
    titles = [result_title if heading == "result" else heading for heading in headings]
    table = new_table(*titles, *map(safe, extra), right={"ranks", "step", result_title, "time/step", *map(safe, extra)})
    for row in rows:
        cells = _row_cells(row, names_result=len(metrics) > 1)
        add_row(table, *(cells[heading] for heading in headings), *(_cell(row, field) for field in extra))
    return table


def _row_cells(row: RunRow, *, names_result: bool) -> dict[str, RenderableType]:
    run = row.summary.overview
    progress = run.progress
    lost_text = f" ({run.num_dropped} lost)" if run.num_dropped else ""
    is_live = run.state is RunState.RUNNING
    return {
        "run": _title(row),
        "state": state_text(run.state) + _reason(run) + Text(lost_text, style="yellow") + _alert_count(run),
        "ranks": _rank_count(row),
        "step": number(run.step),
        "progress": "–" if progress is None else bar(progress, is_live=is_live, width=8),
        "result": _result_text(row, names_metric=names_result),
        "time/step": duration(run.sec_per_step)
        if (run.sec_per_step or 0) >= 1
        else _format_milliseconds(run.sec_per_step),
        "duration": duration(run.duration_s),
        "started": ago(run.started),
    }


def _result_title(metric: str) -> str:
    from tachograph.catalog import result_direction

    return f"{'best' if result_direction(metric) else 'last'} {safe(metric, 40)}"


def _result_text(row: RunRow, *, names_metric: bool) -> Text:
    """Return the best value of the run's main metric; "…" if its journal was not read yet."""
    value = row.get("result")
    text = Text("…" if value is None and not row.summary.is_full else number(value))
    return (
        Text(f"{safe(row.get('result_metric'), 40)} ", style="dim") + text
        if names_metric and value is not None
        else text
    )


def _title(row: RunRow) -> Text:
    """Return the name of a run, which other commands understand, with its display name and tags."""
    title = Text(safe(row.id, 60), style="bold")
    if row.get("display_name"):
        title += Text(f" {safe(row.get('display_name'), _MAX_CELL_CHARS)}", style="default")
    if row.annotations.tags:
        title += Text(f" [{safe(', '.join(row.get('tags')), _MAX_CELL_CHARS)}]", style="dim")
    return title


def _reason(run: RunOverview) -> Text:
    """Return why a run failed: an exception, a signal or an exit code."""
    if not run.state.is_failure or not run.reason:
        return Text()
    reason = re.sub(r" \([^()]*\)", "", run.reason.partition(";")[0])  # such as the host of a rank
    return Text(f" {safe(reason.partition(' (')[0], _MAX_REASON_CHARS)}", style="dim")


def _alert_count(run: RunOverview) -> Text:
    if not run.num_open_alerts:
        return Text()
    return Text(f" {plural(run.num_open_alerts, 'alert')}", style="bold red" if run.num_critical_alerts else "yellow")


def _rank_count(row: RunRow) -> Text:
    """Return the number of ranks of a distributed run, and how many of them are dead."""
    ranks = row.summary.ranks
    if ranks is None:
        return Text()
    dead_text = Text(f", {ranks.num_dead} dead", style="bold red") if ranks.num_dead else Text()
    return Text(str(row.summary.world_size or ranks.num_ranks)) + dead_text


def _format_milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.3g} ms"


# Chosen columns ------------------------------------------------------------------------------------------------------


def _column_table(rows: Sequence[RunRow], columns: Sequence[str]) -> RenderableType:
    from tachograph.catalog import best_row

    best_ids = {column: best.id for column in columns if len(rows) > 1 and (best := best_row(rows, column)) is not None}
    texts = [[_cell(row, column, is_best=best_ids.get(column) == row.id) for column in columns] for row in rows]
    widths = [max(len(column), *(len(cells[index]) for cells in texts)) for index, column in enumerate(columns)]
    title_width = max(len(_title(row)) for row in rows)
    if sum(widths) + 2 * len(columns) + min(title_width, 30) > new_console().width:
        # Too wide for a table: a block per run.
        return Group(*(part for row, cells in zip(rows, texts, strict=True) for part in _block(row, columns, cells)))
    table = new_table("run", *map(safe, columns), right=set(map(safe, columns)))
    for row, cells in zip(rows, texts, strict=True):
        add_row(table, _title(row), *cells)
    return table


def _block(row: RunRow, columns: Sequence[str], cells: Sequence[Text]) -> list[RenderableType]:
    pairs = zip(columns, cells, strict=True)
    return [
        _title(row),
        grid([(f"  {safe(column, 30)}", cell) for column, cell in pairs if row.get(column) is not None]),
    ]


def _cell(row: RunRow, column: str, *, is_best: bool = False) -> Text:
    value = row.get(column)
    if column == "state":
        return state_text(row.summary.overview.state)
    return Text(format_field(column, value), style="bold green" if is_best else "")


def format_field(column: str, value: Any) -> str:
    """Return the value of a field as a person reads it."""
    if value is None:
        return "–"
    from tachograph.catalog import FACTS

    kind = FACTS[column].kind if column in FACTS else "number"
    if kind == "time":
        return ago(value)
    if kind == "duration":
        return duration(value)
    if kind == "bytes":
        return size(value)
    if kind == "share":
        return f"{100 * value:.0f} %"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return safe(", ".join(map(str, value)), _MAX_CELL_CHARS)
    return number(value) if isinstance(value, (int, float)) else safe(" ".join(str(value).split()), _MAX_CELL_CHARS)


# Groups --------------------------------------------------------------------------------------------------------------


def _print_groups(rows: Sequence[RunRow], fields: Sequence[str], columns: Sequence[str], *, as_json: bool) -> None:
    from tachograph.catalog import group_rows

    groups = group_rows(rows, fields, columns)
    if as_json:
        echo(json_text(msgspec.to_builtins(groups)))
        return
    if not groups:
        new_console().print(Text("No runs."))
        return
    keys = list(dict.fromkeys(field for group in groups for field in group.key))
    headings = [*map(safe, keys), "runs", *(safe(column) for column in columns)]
    lines = [
        [
            *(format_field(field, group.key.get(field)) for field in keys),
            str(len(group.runs)),
            *(_spread(group, column) for column in columns),
        ]
        for group in groups
    ]
    widths = [max(map(len, cells)) for cells in zip(headings, *lines, strict=True)]
    if sum(widths) + 2 * len(widths) <= new_console().width:
        table = new_table(*headings, right={"runs"})
        for cells in lines:
            add_row(table, *cells)
        new_console().print(table)
        return
    for cells in lines:  # too wide for a table: a block per group
        key = ", ".join(f"{field}={cell}" for field, cell in zip(keys, cells, strict=False))
        facts = [(f"  {heading[:30]}", cell) for heading, cell in zip(headings, cells, strict=True)][len(keys) :]
        new_console().print(Text(safe(key or "all runs", 1_000), style="bold"), grid(facts))


def _spread(group: RunGroup, column: str) -> str:
    statistics = group.columns[column]
    if statistics.mean is None:
        return "–"
    text = format_field(column, statistics.mean)
    if statistics.spread is not None:
        text += f" ± {format_field(column, statistics.spread)}"
    if statistics.best is not None and len(group.runs) > 1:
        text += f", best {format_field(column, statistics.best)} ({safe(statistics.best_run, 1_000)})"
    return text
