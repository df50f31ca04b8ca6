"""The table of runs over the API: rows, groups, fields, annotations and actions on several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from starlette.responses import Response, StreamingResponse

from tachograph.catalog import (
    AGGREGATES,
    FACTS,
    Catalog,
    Query,
    QueryError,
    RunRow,
    annotate,
    csv_blocks,
    describes_training,
    group_rows,
    inverse_ops,
    is_repeat_key,
    kind_of_value,
    list_trash,
    needs_full,
    parse_query,
    read_annotations,
    restore_run,
    trash_run,
)
from tachograph.exceptions import TachographError
from tachograph.server._copy_fields import copy_fields
from tachograph.server._errors import ApiError
from tachograph.server._table_lines import LineCache, encode_cell
from tachograph.server._table_models import (
    AnnotationChange,
    AnnotationRequest,
    AnnotationResult,
    AnnotationsView,
    BulkRequest,
    BulkResult,
    FieldsPage,
    FieldsQuery,
    FieldView,
    GroupCell,
    GroupQuery,
    MarkView,
    QueryProblem,
    RunResult,
    TableColumn,
    TableCsvQuery,
    TableGroup,
    TableGroupsPage,
    TableLine,
    TablePage,
    TableQuery,
    TrashPage,
)

__all__ = [
    "MAX_AGE_S",
    "act_on_runs",
    "annotate_run",
    "build_annotations",
    "build_fields_page",
    "build_groups_page",
    "build_table_csv",
    "build_table_page",
    "build_trash_page",
]

_MAX_S = 0.25
"""A request computes missing summaries for at most this long."""
MAX_AGE_S = 1.0
"""In a large folder, rows may be this old: the dashboard polls no more often, and asks for many pages in between."""
_ARCHIVED_FILTER = {"no": False, "only": True, "all": None}


def build_table_page(catalog: Catalog, query: TableQuery, line_cache: LineCache) -> TablePage:
    """Return the runs that match."""
    sort_field = query.sort.removeprefix("-")
    columns = list(dict.fromkeys(query.column))
    matching, problems, indexed_share = _select(catalog, query.filter, [*columns, sort_field], query.archived)
    rows = _sort_rows(catalog, matching, query)
    page_rows = rows[query.offset : query.offset + query.limit]
    facts = catalog.column_facts.get(matching, columns)
    return TablePage(
        columns=[
            copy_fields(TableColumn, column_facts, field=column)
            for column, column_facts in zip(columns, facts, strict=True)
        ],
        rows=cast(list[TableLine], line_cache.encode(page_rows, columns, catalog.places())),
        num_matching=len(rows),
        num_runs=catalog.num_runs,
        problems=problems,
        indexed_share=indexed_share,
    )


def build_table_csv(catalog: Catalog, query: TableCsvQuery) -> Response:
    """Return the runs that match as a file."""
    fields = [*query.column, query.sort.removeprefix("-")]
    try:
        parsed_filter = parse_query(query.filter)
        needed_fields = [*parsed_filter.fields, *parsed_filter.tested, *(field for field in fields if field)]
        if not query.column or any(map(needs_full, needed_fields)):
            _complete_summaries(catalog, needed_fields)
        rows = catalog.select(
            parsed_filter, columns=needed_fields, archived=_ARCHIVED_FILTER[query.archived], max_s=_MAX_S
        )
    except QueryError as error:
        raise ApiError(409, "bad_filter", f"{error.reason} (at character {error.position} of the filter)") from None
    rows = _sort_rows(catalog, rows, query)[query.offset : query.offset + query.limit]
    blocks = (block.encode() for block in csv_blocks(rows, query.column))
    headers = {"Content-Disposition": 'attachment; filename="runs.csv"'}
    return StreamingResponse(blocks, 200, headers, "text/csv; charset=utf-8")


def _complete_summaries(catalog: Catalog, fields: Sequence[str]) -> None:
    """Compute all missing summaries: a file cannot be completed later. Other requests get their turn in between."""
    indexed_share = -1.0
    while True:
        catalog.select("", columns=[*fields, "loss"], max_s=_MAX_S)
        before, indexed_share = indexed_share, catalog.indexed_share_for(fields)
        if indexed_share >= 1.0 or indexed_share <= before:  # a journal that cannot be read never gets a summary
            return


def _sort_rows(catalog: Catalog, rows: list[RunRow], query: TableQuery) -> list[RunRow]:
    """Return rows as they are shown: sorted, and pinned ones first."""
    return catalog.in_order(rows, query.sort, query.pin if query.pinned_first else None)


def build_groups_page(catalog: Catalog, query: GroupQuery) -> TableGroupsPage:
    """Return groups of the runs that match."""
    fields, columns = list(dict.fromkeys(query.by)), list(dict.fromkeys(query.column))
    needed_fields = [*columns, *(field for field in fields if field != "config"), "config.*"]
    rows, problems, indexed_share = _select(catalog, query.filter, needed_fields, query.archived)
    if query.run:
        names = set(query.run)
        rows = [row for row in rows if row.id in names]
    groups = group_rows(rows, fields, columns)
    return TableGroupsPage(
        by=list(groups[0].key) if groups else fields,
        columns=columns,
        groups=[
            TableGroup(
                key=[encode_cell(value) for value in group.key.values()],
                runs=group.runs,
                cells=[copy_fields(GroupCell, group.columns[column]) for column in columns],
            )
            for group in groups
        ],
        problems=problems,
        indexed_share=indexed_share,
    )


def build_fields_page(catalog: Catalog, query: FieldsQuery) -> FieldsPage:
    """Return all fields that some of the runs that match have."""
    try:
        fields = catalog.fields(query.filter, max_s=_MAX_S, max_age_s=MAX_AGE_S)
    except QueryError:  # half an expression, while someone types it
        fields = []
    return FieldsPage(
        fields=[
            copy_fields(
                FieldView,
                description,
                kind=FACTS[description.field].kind
                if description.field in FACTS
                else kind_of_value(description.example),
                is_label=_is_label(description.field),
                values=description.texts,
            )
            for description in fields
        ],
        aggregates=list(AGGREGATES),
        indexed_share=catalog.indexed_share,
    )


def _is_label(field: str) -> bool:
    prefix, _, key = field.partition(".")
    return prefix == "config" and (is_repeat_key(key) or not describes_training(key))


def build_trash_page(catalog: Catalog) -> TrashPage:
    """Return the removed runs of all log folders."""
    return TrashPage([run for log_dir in catalog.log_dirs for run in list_trash(log_dir)])


def build_annotations(row: RunRow) -> AnnotationsView:
    """Return the annotations of a run."""
    annotations = read_annotations(row.folder)
    marks = [copy_fields(MarkView, mark) for mark in annotations.marks]
    return AnnotationsView(annotations.values, annotations.merge_tags(row.summary.overview.tags), marks)


def annotate_run(catalog: Catalog, row: RunRow, request: AnnotationRequest, by: str = "") -> AnnotationResult:
    """Change the annotations of a run; `by` is who does, if not the user of this process."""
    undo = _annotate(catalog, row, request.changes, by)
    return AnnotationResult(build_annotations(row), undo)


def act_on_runs(catalog: Catalog, request: BulkRequest, by: str = "") -> BulkResult:
    """Annotate, remove or restore several runs; a failure does not stop the others. For `by` see `annotate_run`."""
    # An empty expression matches every run, which is hardly ever meant.
    if bool(request.runs) == (request.filter is not None) or (
        request.filter is not None and not request.filter.strip()
    ):
        raise ApiError(409, "incomplete", "give either `runs`, or a `filter` that is not empty")
    if request.action == "annotate" and not request.changes:
        raise ApiError(409, "incomplete", "`annotate` needs `changes`")
    if request.filter is not None and request.action == "restore":
        raise ApiError(409, "incomplete", "runs in the trash are restored by name or id: give `runs`")
    names = request.runs if request.filter is None else _matching(catalog, request.filter)
    results = [_act(catalog, request, name, by) for name in dict.fromkeys(names)]
    catalog.outdate()
    return BulkResult(results, sum(result.error is not None for result in results))


def _matching(catalog: Catalog, text: str) -> list[str]:
    # All summaries must be known: an action on a part of the runs that match would be a surprise.
    try:
        return [row.id for row in catalog.select(text, archived=None)]
    except QueryError as error:
        raise ApiError(409, "bad_filter", error.reason) from None


def _act(catalog: Catalog, request: BulkRequest, name: str, by: str) -> RunResult:
    try:
        if request.action == "restore":
            return RunResult(name, name=_restore(catalog, name))
        row = catalog.row(name)
        if request.action == "trash":
            return RunResult(name, name=trash_run(row.log_dir, row.name, is_forced=request.force, by=by).id)
        return RunResult(name, undo=_annotate(catalog, row, request.changes, by))
    except TachographError as error:
        return RunResult(name, error=str(getattr(error, "strerror", None) or error))


def _restore(catalog: Catalog, name: str) -> str:
    """Restore a run from the trash that has it; return its id."""
    homes = [home for home in catalog.log_dirs if any(name in {run.name, run.id} for run in list_trash(home))]
    home = homes[0] if homes else catalog.log_dirs[0]
    return catalog.folders.id_of(home, restore_run(home, name))


def _annotate(catalog: Catalog, row: RunRow, changes: Sequence[AnnotationChange], by: str) -> list[AnnotationChange]:
    """Write changes; return those that undo them."""
    before = read_annotations(row.folder)
    plain_changes = [
        {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
        for change in changes
    ]
    for change in plain_changes:
        if "global_step" in change:  # JSON does not distinguish 3 and 3.0
            change["global_step"] = int(change["global_step"])
    applied_ops = annotate(row.folder, plain_changes, by=by)
    catalog.outdate_row(row)
    return [AnnotationChange(**change) for change in inverse_ops(before, row.summary.overview.tags, applied_ops)]


def _select(
    catalog: Catalog, text: str, columns: Sequence[str], archived: str
) -> tuple[list[RunRow], list[QueryProblem], float]:
    """Return the rows that match, problems with the expression and the columns, and the share of known rows."""
    try:
        query: Query = parse_query(text)
        columns = [column for column in columns if column]
        rows = catalog.select(
            query, columns=columns, archived=_ARCHIVED_FILTER[archived], max_s=_MAX_S, max_age_s=MAX_AGE_S
        )
    except QueryError as error:
        catalog.rows(max_age_s=MAX_AGE_S)
        return [], [QueryProblem(error.reason, error.position)], 1.0
    used_fields = [*query.fields, *query.tested, *columns]
    indexed_share = catalog.indexed_share_for(used_fields) if any(map(needs_full, used_fields)) else 1.0
    if indexed_share < 1.0:  # a field may be in the rest
        return rows, [], indexed_share
    unknown = catalog.unknown_fields(query, [column for column in columns if column != "config.*"])
    problems = [QueryProblem(error.reason, error.position if error.text == text else None) for error in unknown]
    return rows, problems, indexed_share
