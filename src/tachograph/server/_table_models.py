"""The JSON models of the table of runs, of annotations and of the trash; see `_models` for the rules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tachograph.catalog import FactKind, TrashedRun
from tachograph.journal import RunState
from tachograph.server._models import Name

__all__ = [
    "AnnotationChange",
    "AnnotationRequest",
    "AnnotationResult",
    "AnnotationsView",
    "BulkRequest",
    "BulkResult",
    "FieldView",
    "FieldsPage",
    "MarkView",
    "QueryProblem",
    "RunResult",
    "TableColumn",
    "TableCsvQuery",
    "TableGroup",
    "TableGroupsPage",
    "TableLine",
    "TablePage",
    "TableQuery",
    "TrashPage",
    "GroupQuery",
    "GroupCell",
    "ViewDetail",
    "ViewRequest",
    "ViewsPage",
]

Field = Annotated[str, Meta(min_length=1, max_length=512)]
Expression = Annotated[str, Meta(max_length=4_000)]
Archived = Literal["no", "only", "all"]
CellValue = Annotated[Any, Meta(description="A number, text, bool, list of texts, or null if the run lacks the field.")]


class TableQuery(msgspec.Struct):
    """Which runs and columns of the table to return."""

    filter: Expression = ""
    """An expression that selects runs, such as `state:crashed config.lr>=1e-4`."""
    column: Annotated[list[Field], Meta(max_length=500)] = []
    """A field to return; can be repeated."""
    sort: Annotated[str, Meta(max_length=513)] = ""
    """A field to sort by; a minus in front means highest first. Default: newest first."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """Maximum number of runs."""
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Number of runs to skip, in the order of the table."""
    archived: Archived = "no"
    """Whether archived runs are left out, returned alone, or returned with the others."""
    pinned_first: bool = True
    """Whether pinned runs come before the others, in any order."""
    pin: Annotated[list[Field], Meta(max_length=100)] = []
    """A run to treat as pinned, as the pinned runs of a view; can be repeated."""


class TableCsvQuery(TableQuery):
    """Which runs and columns of the table to download."""

    limit: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000_000
    """Maximum number of runs."""


class GroupQuery(msgspec.Struct):
    """How to group the runs of the table."""

    by: Annotated[list[Field], Meta(min_length=1, max_length=3)]
    """A field to group by; can be repeated. `config` stands for the whole config except seeds, names and paths."""
    filter: Expression = ""
    """An expression that selects runs."""
    run: Annotated[list[Name], Meta(max_length=1_000)] = []
    """A run to group; can be repeated. Default: all that match."""
    column: Annotated[list[Field], Meta(max_length=100)] = []
    """A field of which mean, spread and best are returned; can be repeated."""
    archived: Archived = "no"
    """Whether archived runs are left out, grouped alone, or grouped with the others."""


class FieldsQuery(msgspec.Struct):
    """Which runs to list the fields of."""

    filter: Expression = ""
    """An expression that selects runs. No run matches an invalid one."""


class QueryProblem(msgspec.Struct):
    """Something wrong with the expression or a column."""

    message: str
    """What was expected, or which names are similar to an unknown one."""
    position: int | None = None
    """The offset in the expression; null if it is about a column."""


class TableColumn(msgspec.Struct):
    """A column of the table."""

    field: str
    kind: FactKind
    direction: int
    """-1 if lower values are better, 1 if higher ones are, 0 if unknown."""
    best: str | None
    """The run with the best value, among all that match."""
    differs: bool
    """Whether runs that match differ in this field."""
    low: float | None
    """The lowest finite number, among all runs that match."""
    high: float | None


class TableLine(msgspec.Struct):
    """A run of the table."""

    name: str
    state: RunState
    values: list[CellValue]
    """One value per column. NaN and infinities are strings, as in the journal."""
    place: int
    """How many runs of all were started before this one; charts choose its colour by it."""


class TablePage(msgspec.Struct):
    """The runs that match, in order, from `offset` on."""

    columns: list[TableColumn]
    rows: list[TableLine]
    num_matching: int
    num_runs: int
    """The number of all runs, also archived ones."""
    problems: list[QueryProblem]
    """If the expression is invalid there are no rows; an unknown field is reported here, too."""
    indexed_share: float = msgspec.field(name="indexed")
    """The share of runs whose fields are all known; ask again while it is below 1."""


class GroupCell(msgspec.Struct):
    """The values of a column over the runs of a group."""

    num_values: int
    mean: float | None
    spread: float | None
    """The standard deviation between runs; null for fewer than two."""
    best: float | None
    best_run: str | None


class TableGroup(msgspec.Struct):
    """Runs that agree in some fields."""

    key: list[CellValue]
    """One value per field."""
    runs: list[str]
    cells: list[GroupCell]
    """One per column."""


class TableGroupsPage(msgspec.Struct):
    """The groups, the largest first."""

    by: list[str]
    """The fields that the groups differ in."""
    columns: list[str]
    groups: list[TableGroup]
    problems: list[QueryProblem]
    indexed_share: float = msgspec.field(name="indexed")


class FieldView(msgspec.Struct):
    """A field that can be a column or part of an expression."""

    field: str
    kind: FactKind
    num_runs: int
    """The number of runs that have it."""
    differs: bool
    """Whether runs differ in it; a missing value differs from any other."""
    varies: bool
    """Whether runs that have it differ in it."""
    is_label: bool
    """Whether it is a config key that only tells runs apart: a name, a path, a port, a time, a seed or a device."""
    values: list[str]
    """Its texts, the most frequent first, if there are at most 20 different ones; of a list, its items."""


class FieldsPage(msgspec.Struct):
    """All fields that some of the runs have: facts, then config and results, then metrics with their aggregates."""

    fields: list[FieldView]
    aggregates: list[str]
    """The aggregates of a metric; `fields` has each metric with `last` only. `METRIC@STEP` is its value at a step."""
    indexed_share: float = msgspec.field(name="indexed")


class MarkView(msgspec.Struct):
    """A remark about a step."""

    id: str
    global_step: int
    text: str
    by: str
    time: float


class AnnotationsView(msgspec.Struct):
    """What people said about a run, next to its journal."""

    values: dict[str, Any]
    """Fields that are set: `display_name`, `note`, `archived`, `group`, `project`, `rating`, `color`, `pinned`,
    `custom.*`, and `alert.*` with judgements of alerts."""
    tags: list[str]
    """The tags of the training code and those added later, without those removed."""
    marks: list[MarkView]


class AnnotationChange(msgspec.Struct, forbid_unknown_fields=True):
    """One change of the annotations of a run."""

    op: Literal["set", "add", "remove", "mark", "unmark"] = "set"
    """Set a field; add or remove a tag; add a remark about a step, or remove it by its id."""
    field: Annotated[str, Meta(max_length=512)] = ""
    value: Any = None
    """The value, the tag, or the id of the remark to remove; null resets a field."""
    global_step: Annotated[float, Meta(ge=0, le=2**53, multiple_of=1)] | None = None
    text: Annotated[str, Meta(max_length=1_000)] = ""
    id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Repeating a change with the same id has no further effect."""


class AnnotationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of the annotations of a run."""

    changes: Annotated[list[AnnotationChange], Meta(min_length=1, max_length=100)]


class AnnotationResult(msgspec.Struct):
    """The annotations after the changes."""

    annotations: AnnotationsView
    undo: list[AnnotationChange]
    """Changes that undo this one."""


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An action on several runs, given by name or by an expression."""

    action: Literal["annotate", "trash", "restore"] = "annotate"
    runs: Annotated[list[Field], Meta(max_length=500)] = []
    """At most 500, because a body has at most 64 KiB; ask again for the rest, or use `filter`."""
    filter: Annotated[str, Meta(max_length=2_000)] | None = None
    """Instead of `runs`: all runs that match, also archived ones. Not for `restore`."""
    changes: Annotated[list[AnnotationChange], Meta(max_length=100)] = []
    """For `annotate`."""
    force: bool = False
    """For `trash`: also runs that may still be recorded on another machine."""


class RunResult(msgspec.Struct):
    """What happened to one run."""

    run: str
    error: str | None = None
    """Why it failed; null if it succeeded."""
    name: str | None = None
    """The name of a restored run, or the id in the trash of a removed one."""
    undo: list[AnnotationChange] = []


class BulkResult(msgspec.Struct):
    """The result for each run; a failure does not stop the others."""

    results: list[RunResult]
    num_failed: int


class TrashPage(msgspec.Struct):
    """The removed runs, latest first."""

    runs: list[TrashedRun]


class ViewRequest(msgspec.Struct):
    """A view to save. Other keys are stored, too."""

    name: Annotated[str, Meta(max_length=200)] = ""
    """The name to show; by default the slug."""
    filter: Expression = ""
    """The expression that selects runs."""
    columns: Annotated[list[Field], Meta(max_length=500)] = []
    sort: Annotated[str, Meta(max_length=513)] = ""
    """A field to sort by; a minus in front means highest first."""
    group: Annotated[list[Field], Meta(max_length=3)] = []
    """The fields to group by."""
    archived: Archived = "no"
    only_differing: bool = False
    """Whether columns in which all runs agree are left out."""
    pinned_columns: Annotated[list[Field], Meta(max_length=500)] = []
    pinned_runs: Annotated[list[Field], Meta(max_length=500)] = []
    charts: list[Any] = []
    """The charts of the view, in the form that the dashboard gives them."""
    colors: dict[str, Any] = {}
    """The colors of the view, in the form that the dashboard gives them."""
    x: Annotated[str, Meta(max_length=200)] = ""
    """The axis of the charts."""


class ViewDetail(msgspec.Struct):
    """A saved view, and all other keys that its file has."""

    slug: str
    name: str
    filter: str
    columns: list[str]
    sort: str
    group: list[str]
    archived: Archived
    only_differing: bool
    """Whether columns in which all runs agree are left out."""
    pinned_columns: list[str]
    pinned_runs: list[str]
    charts: list[Any]
    colors: dict[str, Any]
    x: str
    problems: list[str]
    """Keys that are unknown to this version or have wrong values; the rest of the view works."""


class ViewsPage(msgspec.Struct):
    """The saved views, by name."""

    views: list[ViewDetail]
