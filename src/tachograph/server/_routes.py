"""The route table of the API. The application and the OpenAPI document are both built from `ROUTES`."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response, StreamingResponse

from tachograph._base.text import csv_text
from tachograph._base.version import __version__
from tachograph.catalog import AnnotationError, Catalog, RunPairDiff, RunRow, ViewError
from tachograph.exceptions import ConfigError, ControlError, RunNotFoundError
from tachograph.journal import (
    RunFolder,
)
from tachograph.server import _views as views
from tachograph.server._alerts import build_alerts_page
from tachograph.server._artifact_models import (
    ArtifactContentQuery,
    ArtifactDetail,
    ArtifactQuery,
    ArtifactsPage,
    ArtifactsQuery,
)
from tachograph.server._artifacts import build_artifact, build_artifacts_page, send_artifact_file
from tachograph.server._change_note import ChangeNote, summarize_changes
from tachograph.server._code import build_pair_diff, download_patch
from tachograph.server._column_series import ColumnStoreOf, read_column_series
from tachograph.server._completions import build_completions_page
from tachograph.server._diff import build_diff_page, build_importance_page
from tachograph.server._diff_models import DiffPage, DiffQuery, ImportancePage, ImportanceQuery
from tachograph.server._dumps import build_dump, build_dumps_page
from tachograph.server._errors import ApiError
from tachograph.server._identity import SCOPES, Identity, Scope
from tachograph.server._lineage import LineagePage, build_lineage
from tachograph.server._media import (
    SHOWN_TYPES,
    build_histograms_page,
    build_items_page,
    build_media_page,
    build_metric_page,
    build_rows_page,
    export_media,
    send_blob,
    send_frame,
)
from tachograph.server._media_models import (
    BlobQuery,
    HistogramQuery,
    HistogramsPage,
    MediaExportQuery,
    MediaItemsPage,
    MediaItemsQuery,
    MediaMetricPage,
    MediaMetricQuery,
    MediaPage,
    TableRowsPage,
    TableRowsQuery,
)
from tachograph.server._models import (
    AlertsPage,
    CompareQuery,
    CompletionQuery,
    CompletionsPage,
    ControlRequest,
    ControlsPage,
    DumpDetail,
    DumpQuery,
    DumpsPage,
    ExportQuery,
    MetricsPage,
    OutputPage,
    OutputQuery,
    RankHeatQuery,
    RankQuery,
    RanksPage,
    RecordQuery,
    RecordsPage,
    RequestIds,
    RunDetail,
    RunsPage,
    SeriesPage,
    SeriesQuery,
    ServerHealth,
    SpanDetail,
    SpanQuery,
    SpanView,
    TracesPage,
    Whoami,
    encode_number,
)
from tachograph.server._output import build_output_page, download_output
from tachograph.server._overlay import build_grouped_series_page, build_overlay_page, build_runs_metrics_page
from tachograph.server._overlay_models import (
    GroupedSeriesPage,
    GroupedSeriesQuery,
    OverlayPage,
    OverlayQuery,
    RunsMetricsPage,
    RunsMetricsQuery,
)
from tachograph.server._ranks import build_ranks_page, download_rank_heat
from tachograph.server._run_list import RunList
from tachograph.server._series_cache import SeriesCache
from tachograph.server._table import (
    act_on_runs,
    annotate_run,
    build_annotations,
    build_fields_page,
    build_groups_page,
    build_table_csv,
    build_table_page,
    build_trash_page,
)
from tachograph.server._table_lines import LineCache
from tachograph.server._table_models import (
    AnnotationRequest,
    AnnotationResult,
    AnnotationsView,
    BulkRequest,
    BulkResult,
    FieldsPage,
    FieldsQuery,
    GroupQuery,
    TableCsvQuery,
    TableGroupsPage,
    TablePage,
    TableQuery,
    TrashPage,
    ViewDetail,
    ViewRequest,
    ViewsPage,
)
from tachograph.server._table_views import build_view, build_views_page, remove_view, store_view
from tachograph.server._traces import build_traces_page, download_trace
from tachograph.store import Store, StoredRun

__all__ = ["HEALTH_PATH", "ROUTES", "RequestContext", "Route", "ServerHooks", "check_scope", "handle_request"]

HEALTH_PATH = "/healthz"

_MAX_REFRESH_S = 0.25
"""A request reads new records for at most this long before it responds."""


class ServerHooks(NamedTuple):
    """Functions that a team's server adds to the dashboard."""

    control_problem: Callable[[RunFolder], str | None] = lambda folder: None
    """Returns why a run accepts no requests, if it does not."""
    column_store: ColumnStoreOf = lambda folder: None
    """Returns the column store, if it has this run and can be reached."""
    release_copies: Callable[[], None] = lambda: None
    """Closes the files of runs that are being received, so that ended ones can be moved."""


def _require(identity: Identity | None, scope: Scope) -> None:
    if identity is not None and not identity.allows(scope):
        raise ApiError(403, "not_allowed", f"{identity.name!r} lacks the scope `{scope}`")


class RequestContext(NamedTuple):
    """A parsed and validated request."""

    store: Store
    catalog: Catalog
    run_list: RunList
    series_cache: SeriesCache
    line_cache: LineCache
    path: dict[str, str]
    query: Any
    body: Any
    data: bytes = b""
    """The body as it was sent, for keys that its model does not have."""
    identity: Identity | None = None
    """Who makes the request; None on a private dashboard."""
    hooks: ServerHooks = ServerHooks()
    change: ChangeNote = ChangeNote()
    """For the audit log."""

    @property
    def author(self) -> str:
        """The name to store with annotations and removed runs; empty for the user of a private dashboard."""
        return self.identity.name if self.identity is not None else ""

    def require(self, scope: Scope) -> None:
        """Raise `ApiError` unless the request may be made; on a private dashboard, every one may."""
        _require(self.identity, scope)

    def run(self, parameter: str = "run") -> StoredRun:
        """Open the run named in the path and refresh it.

        A long journal is read in slices: the response then covers the part read so far, given by `indexed`.
        """
        return self.open_run(self.path[parameter])

    def open_run(self, name: str) -> StoredRun:
        """Open a run and refresh it; see `run`."""
        try:
            run = self.store.open(name)
            run.refresh(_MAX_REFRESH_S)
        except RunNotFoundError as error:
            raise ApiError(404, "no_such_run", str(error)) from error
        except OSError as error:
            raise ApiError(503, "unreadable", f"cannot read the journal: {error.strerror or error}") from error
        return run

    def folder(self) -> RunFolder:
        """Return the folder of the run named in the path, without reading its journal."""
        try:
            return self.store.open(self.path["run"]).folder
        except RunNotFoundError as error:
            raise ApiError(404, "no_such_run", str(error)) from error

    def row(self) -> RunRow:
        """Return the run named in the path as a row of the table."""
        try:
            return self.catalog.row(self.path["run"])
        except RunNotFoundError as error:
            raise ApiError(404, "no_such_run", str(error)) from error


class Route(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    summary: str
    handler: Callable[[RequestContext], Any]
    response: type | str | None
    """The model of the response; None for a file. A model that takes long to import is given as ``module:name``."""
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200
    media_types: tuple[str, ...] = ("text/csv", "application/x-ndjson")
    """The media types of a file."""
    scope: Scope = "read"
    """The scope that a key needs on a team's server."""
    is_slow: bool = False
    """Whether requests may take long, so that only a few are handled at once and leave threads for other routes."""
    action: str = ""
    """The name of a change in the audit log; every route that changes something has one."""

    @property
    def response_model(self) -> type | None:
        """The model of the response, imported if necessary."""
        if not isinstance(self.response, str):
            return self.response
        module, _, name = self.response.partition(":")
        model: type = getattr(import_module(module), name)
        return model


def check_scope(route: Route, identity: Identity | None) -> None:
    """Raise `ApiError` unless an identity may use a route; on a private dashboard, which has no identities, all may."""
    if route.handler is not _whoami:  # for a key that may only send runs, too
        _require(identity, route.scope)


def handle_request(route: Route, context: RequestContext) -> Response | msgspec.Struct:
    """Call a route's handler, and turn Tachograph's own exceptions into API errors."""
    try:
        result: Response | msgspec.Struct = route.handler(context)
        return result
    except AnnotationError as error:
        raise ApiError(409, "not_annotated", str(error)) from error
    except ViewError as error:
        raise ApiError(409, "not_saved", str(error)) from error
    except ControlError as error:
        raise ApiError(409, "not_steerable", str(error)) from error
    except ConfigError as error:
        raise ApiError(400, "bad_query", str(error)) from error


def _get_series(context: RequestContext) -> SeriesPage:
    """Return series from files or, while a long journal is being read for the first time, from the column store."""
    run = context.run()
    page = views.build_series_page(run, context.query)
    query = context.query
    series = read_column_series([run], query, query.points, context.hooks.column_store).get(run.id)
    if series is not None:
        page.series, page.is_whole = series, True
    return page


def _get_span(context: RequestContext) -> SpanDetail:
    span = views.build_span_detail(context.run(), context.path["span"])
    if span is None:
        raise ApiError(404, "no_such_span", f"no span {context.path['span'][:64]!r} in this run")
    return span


def _export_points(context: RequestContext) -> Response:
    run, query = context.run(), context.query
    axis, low, high, _ = views.resolve_range(run, query)
    unknown = [name for name in query.name if name not in run.metric_names]
    if unknown:
        raise ApiError(404, "no_such_metric", f"no metric {unknown[0]!r} in this run")
    problem = run.axis_problem(axis)
    if problem is not None:
        raise ApiError(409, "no_such_axis", problem)
    points = run.points(list(dict.fromkeys(query.name)), axis=axis, low=low, high=high)
    # The file name goes into a header: keep only characters that need no quoting.
    stem = re.sub(r"[^A-Za-z0-9.]+", "_", f"{context.path['run']}-{query.name[0]}").strip("._")[:100] or "points"
    file_name = f"{stem}.{'csv' if query.format == 'csv' else 'jsonl'}"
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    media_type = "text/csv; charset=utf-8" if query.format == "csv" else "application/x-ndjson"
    columns = [*_COLUMNS[:-1], *([axis] if axis in _COMPUTED_AXES else []), "value"]
    lines = _csv_lines(columns, points) if query.format == "csv" else _json_lines(columns, points)
    return StreamingResponse(lines, 200, headers, media_type)


def _compare_runs(context: RequestContext) -> msgspec.Struct:
    from tachograph.server._compare import build_comparison_page  # needs many modules, and most pages do not

    return build_comparison_page(context.store, context.catalog, context.open_run, context.query)


def _list_controls(context: RequestContext) -> ControlsPage:
    run = context.run()
    return views.build_controls_page(run, context.hooks.control_problem(run.folder))


def _request_controls(context: RequestContext) -> RequestIds:
    run = context.run()
    problem = context.hooks.control_problem(run.folder)
    if problem is not None:
        raise ControlError(problem)
    with run.lock:
        controls = run.digest.controls
    context.change.old = {name: controls[name].value for name in context.body.values if name in controls}
    context.change.new = context.body.values
    return views.request_controls(run, context.body, context.identity.name if context.identity else "dashboard")


def _annotate_run(context: RequestContext) -> AnnotationResult:
    row = context.row()
    context.change.new = summarize_changes(context.body.changes)
    result = annotate_run(context.catalog, row, context.body, context.author)
    context.change.old = summarize_changes(result.undo, only_values=True)
    return result


def _store_view(context: RequestContext) -> dict[str, Any]:
    slug = context.path["slug"]
    with contextlib.suppress(ApiError, ViewError):
        context.change.old = _view_summary(build_view(context.catalog, slug))
    view = store_view(context.catalog, slug, context.data)
    context.change.new = _view_summary(view)
    return view


def _remove_view(context: RequestContext) -> dict[str, Any]:
    view = remove_view(context.catalog, context.path["slug"])
    context.change.old = _view_summary(view)
    return view


def _view_summary(view: dict[str, Any]) -> dict[str, Any]:
    return {name: view.get(name) for name in ("slug", "name", "filter")}


def _whoami(context: RequestContext) -> Whoami:
    identity = context.identity
    if identity is None:
        return Whoami("", "", sorted(SCOPES), None, None, __version__)
    return Whoami(
        identity.name, identity.key_id, sorted(identity.scopes), identity.project, identity.expires, __version__
    )


def _act_on_runs(context: RequestContext) -> BulkResult:
    context.change.action, context.change.runs = context.body.action, context.body.runs
    if context.body.action == "annotate":
        context.change.new = summarize_changes(context.body.changes)
    else:
        context.require("admin")
        context.hooks.release_copies()
    result = act_on_runs(context.catalog, context.body, context.author)
    context.change.add_bulk_result(context.body, result)
    return result


_COLUMNS = ("name", "attempt", "step", "time", "epoch", "value")
_COMPUTED_AXES = ("samples", "tokens", "training_time")
"""Axes whose positions no other column has."""


def _csv_lines(columns: list[str], points: Iterator[list[tuple[Any, ...]]]) -> Iterator[bytes]:
    yield (",".join(columns) + "\n").encode()
    for block in points:
        rows = (
            f"{csv_text(name)},{attempt},{step},{time!r},{_csv_epoch(epoch)},{','.join(map(repr, rest))}\n"
            for name, attempt, step, time, epoch, *rest in block
        )
        yield "".join(rows).encode()


def _csv_epoch(epoch: float) -> str:
    return "" if math.isnan(epoch) else repr(epoch)


def _json_lines(columns: list[str], points: Iterator[list[tuple[Any, ...]]]) -> Iterator[bytes]:
    for block in points:
        rows = [
            {
                **dict(zip(columns, row, strict=True)),
                "value": encode_number(row[-1]),
                "epoch": None if math.isnan(row[4]) else row[4],
            }
            for row in block
        ]
        yield msgspec.json.Encoder().encode_lines(rows)


ROUTES = [
    Route(
        "GET",
        HEALTH_PATH,
        "Check that the server is up.",
        lambda context: ServerHealth("ok", __version__),
        ServerHealth,
    ),
    Route(
        "GET",
        "/api/v1/runs",
        "List the runs, newest first.",
        lambda context: context.run_list.build_page(),
        RunsPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}",
        "Return a run's config, attempts, goodput and environment.",
        lambda context: views.build_run_detail(context.run()),
        RunDetail,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/lineage",
        "Return the runs that a run started from, and the runs that started from it.",
        lambda context: build_lineage(context.catalog, context.row()),
        LineagePage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/metrics",
        "List a run's metrics with their last, lowest and highest values.",
        lambda context: views.build_metrics_page(context.run()),
        MetricsPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/series",
        "Return the points of one or more metrics, downsampled so that every extreme is kept.",
        _get_series,
        SeriesPage,
        SeriesQuery,
    ),
    Route(
        "GET",
        "/api/v1/metrics",
        "List the metrics of several runs, without their values.",
        lambda context: build_runs_metrics_page(context.store, context.query, context.hooks.column_store),
        RunsMetricsPage,
        RunsMetricsQuery,
    ),
    Route(
        "GET",
        "/api/v1/series",
        "Return the points of one or more metrics of several runs; a run that has none states why.",
        lambda context: build_overlay_page(
            context.store, context.query, context.series_cache, context.hooks.column_store
        ),
        OverlayPage,
        OverlayQuery,
    ),
    Route(
        "GET",
        "/api/v1/series/groups",
        "Group runs; return mean and range of a metric in each group.",
        lambda context: build_grouped_series_page(context.store, context.catalog, context.query),
        GroupedSeriesPage,
        GroupedSeriesQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/export",
        "Download every point of one or more metrics.",
        _export_points,
        None,
        ExportQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/spans",
        "Return the spans in a time range.",
        lambda context: views.build_spans(context.run(), context.query),
        SpanView,
        SpanQuery,
    ),
    Route("GET", "/api/v1/runs/{run}/spans/{span}", "Return the records of one span.", _get_span, SpanDetail),
    Route(
        "GET",
        "/api/v1/runs/{run}/records",
        "Return the latest records of each kind: events, alerts, errors, checkpoints and so on.",
        lambda context: views.build_records_page(context.run(), context.query),
        RecordsPage,
        RecordQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/alerts",
        "List the run's alerts; each appears once, with its whole life from opened to resolved.",
        lambda context: build_alerts_page(context.run()),
        AlertsPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/dumps",
        "List the evidence that the run captured when something went wrong, oldest first.",
        lambda context: build_dumps_page(context.run()),
        DumpsPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/dumps/{dump}",
        "Return one dump: the last steps, the layers, the batch, stacks and so on.",
        lambda context: build_dump(context.run(), context.path["dump"], context.query.rank),
        DumpDetail,
        DumpQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/completions",
        "Return sampled prompts and completions, newest first.",
        lambda context: build_completions_page(context.run(), context.query),
        CompletionsPage,
        CompletionQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/controls",
        "List the run's controls and the answers to earlier requests.",
        _list_controls,
        ControlsPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/diff/{other}",
        "List the differences between two runs: config, git, packages, environment and code.",
        lambda context: build_pair_diff(context.run(), context.run("other")),
        RunPairDiff,
    ),
    Route(
        "GET",
        "/api/v1/compare",
        "Judge whether runs differ from others in speed, memory and loss.",
        _compare_runs,
        "tachograph.server._compare:ComparisonPage",
        CompareQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/patch",
        "Download the uncommitted changes of the run's repository as a patch.",
        lambda context: download_patch(context.run()),
        None,
        media_types=("text/x-diff",),
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/ranks",
        "Return the worst ranks of a distributed run, and where ranks hung.",
        lambda context: build_ranks_page(context.run(), context.query),
        RanksPage,
        RankQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/ranks/heat",
        "Return how much longer each rank took than the others, over time: a line of JSON, then a byte per cell.",
        lambda context: download_rank_heat(context.run(), context.query),
        None,
        RankHeatQuery,
        media_types=("application/octet-stream",),
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/traces",
        "List the stored traces of the PyTorch profiler, newest first.",
        lambda context: build_traces_page(context.run()),
        TracesPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/traces/{trace}",
        "Download a trace; ui.perfetto.dev opens it.",
        lambda context: download_trace(context.run(), context.path["trace"]),
        None,
        media_types=("application/gzip",),
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media",
        "List the names of a run's media and histograms, with their steps and counts.",
        lambda context: build_media_page(context.run()),
        MediaPage,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/items",
        "Return pictures, tables, text and other media of one name, newest first.",
        lambda context: build_items_page(context.run(), context.query),
        MediaItemsPage,
        MediaItemsQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/metric",
        "Return a metric at the steps with media of one name, and the step at which it is best.",
        lambda context: build_metric_page(context.run(), context.query),
        MediaMetricPage,
        MediaMetricQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/export",
        "Download the media of one name: all files, the pictures of a step as a sheet, or a prompt as an animation.",
        lambda context: export_media(context.run(), context.query),
        None,
        MediaExportQuery,
        media_types=("application/zip", "image/png", "image/webp"),
        is_slow=True,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/histograms",
        "Return a histogram at each step, or at steps that are evenly spaced.",
        lambda context: build_histograms_page(context.run(), context.query),
        HistogramsPage,
        HistogramQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/tables/{sha256}",
        "Return rows of a large table, which is stored in a file.",
        lambda context: build_rows_page(context.run(), context.path["sha256"], context.query),
        TableRowsPage,
        TableRowsQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/blobs/{sha256}",
        "Return a stored file; pictures also scaled down. Only pictures, audio and video are shown by browsers.",
        lambda context: send_blob(context.run(), context.path["sha256"], context.query),
        None,
        BlobQuery,
        media_types=("application/octet-stream", *SHOWN_TYPES),
        is_slow=True,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/media/frames/{sha256}",
        "Return logged HTML or a plotly figure as a page for a sandboxed frame.",
        lambda context: send_frame(context.run(), context.path["sha256"]),
        None,
        media_types=("text/html",),
        is_slow=True,
    ),
    Route(
        "GET",
        "/api/v1/artifacts",
        "List the versions of artifacts.",
        lambda context: build_artifacts_page(context.catalog.log_dirs, context.query, context.identity),
        ArtifactsPage,
        ArtifactsQuery,
        is_slow=True,
    ),
    Route(
        "GET",
        "/api/v1/artifacts/{name}",
        "Return a version of an artifact with its files.",
        lambda context: build_artifact(context.catalog.log_dirs, context.path["name"], context.query, context.identity),
        ArtifactDetail,
        ArtifactQuery,
        is_slow=True,
    ),
    Route(
        "GET",
        "/api/v1/artifacts/{name}/files/{sha256}",
        "Download a file of an artifact by the hash of its content.",
        lambda context: send_artifact_file(
            context.catalog.log_dirs, context.path["name"], context.path["sha256"], context.query, context.identity
        ),
        None,
        ArtifactContentQuery,
        media_types=("application/octet-stream",),
        is_slow=True,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/output",
        "Return lines of the console output of a program under `tacho run`, and search it.",
        lambda context: build_output_page(context.folder(), context.query),
        OutputPage,
        OutputQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/output/text",
        "Download the console output.",
        lambda context: download_output(context.folder(), context.path["run"]),
        None,
        media_types=("text/plain",),
    ),
    Route(
        "POST",
        "/api/v1/runs/{run}/controls",
        "Request new control values, a checkpoint, a trace or a stop.",
        _request_controls,
        RequestIds,
        body=ControlRequest,
        status=202,
        scope="control",
        action="control",
    ),
    Route(
        "GET",
        "/api/v1/table",
        "Return the runs that match an expression, with any of their fields, sorted.",
        lambda context: build_table_page(context.catalog, context.query, context.line_cache),
        TablePage,
        TableQuery,
    ),
    Route(
        "GET",
        "/api/v1/table.csv",
        "Download the same as CSV: the name of each run, then its columns, or without columns all facts.",
        lambda context: build_table_csv(context.catalog, context.query),
        None,
        TableCsvQuery,
        media_types=("text/csv",),
    ),
    Route(
        "GET",
        "/api/v1/table/groups",
        "Group the runs that match an expression; return mean, spread and best of fields.",
        lambda context: build_groups_page(context.catalog, context.query),
        TableGroupsPage,
        GroupQuery,
    ),
    Route(
        "GET",
        "/api/v1/table/fields",
        "List the fields of the runs that match an expression; without one, of all runs.",
        lambda context: build_fields_page(context.catalog, context.query),
        FieldsPage,
        FieldsQuery,
    ),
    Route(
        "GET",
        "/api/v1/diff",
        "List the differences between runs: config beside results, git, packages, environment and code.",
        lambda context: build_diff_page(context.catalog, context.query),
        DiffPage,
        DiffQuery,
    ),
    Route(
        "GET",
        "/api/v1/importance",
        "Rank the config keys that vary between runs by their rank correlation with a result.",
        lambda context: build_importance_page(context.catalog, context.query),
        ImportancePage,
        ImportanceQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/annotations",
        "Return the name, note, tags and remarks that people gave a run.",
        lambda context: build_annotations(context.row()),
        AnnotationsView,
    ),
    Route(
        "POST",
        "/api/v1/runs/{run}/annotations",
        "Change the annotations of a run.",
        _annotate_run,
        AnnotationResult,
        body=AnnotationRequest,
        scope="control",
        action="annotate",
    ),
    Route(
        "POST",
        "/api/v1/bulk",
        "Annotate several runs, move them to the trash, or restore them.",
        _act_on_runs,
        BulkResult,
        body=BulkRequest,
        scope="control",
        action="annotate",
    ),
    Route(
        "GET",
        "/api/v1/views",
        "List the saved views of the table.",
        lambda context: build_views_page(context.catalog),
        ViewsPage,
    ),
    Route(
        "GET",
        "/api/v1/views/{slug}",
        "Return a saved view.",
        lambda context: build_view(context.catalog, context.path["slug"]),
        ViewDetail,
    ),
    Route(
        "PUT",
        "/api/v1/views/{slug}",
        "Save a view, in place of the one with this slug if there is one.",
        _store_view,
        ViewDetail,
        body=ViewRequest,
        scope="control",
        action="save_view",
    ),
    Route(
        "DELETE",
        "/api/v1/views/{slug}",
        "Delete a view and return it.",
        _remove_view,
        ViewDetail,
        scope="control",
        action="delete_view",
    ),
    Route(
        "GET",
        "/api/v1/whoami",
        "Return the identity behind the request, and its scopes.",
        _whoami,
        Whoami,
    ),
    Route("GET", "/api/v1/trash", "List removed runs.", lambda context: build_trash_page(context.catalog), TrashPage),
]
