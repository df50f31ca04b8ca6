"""The routes of the API: one table. The application and the OpenAPI document are made of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response, StreamingResponse

from tachograph._version import __version__
from tachograph.exceptions import ConfigError, ControlError, RunNotFoundError
from tachograph.server import _views as views
from tachograph.server._alerts import alerts
from tachograph.server._completions import completions
from tachograph.server._faults import ApiError
from tachograph.server._models import (
    Alerts,
    CompletionQuery,
    Completions,
    ControlRequest,
    Controls,
    Export,
    Health,
    Metrics,
    RecordQuery,
    Records,
    Requested,
    RunDetail,
    Runs,
    SeriesQuery,
    SpanDetail,
    SpanQuery,
    SpanView,
    Traces,
    Views,
    number,
)
from tachograph.server._traces import trace, traces
from tachograph.store import Store, StoredRun

__all__ = ["ROUTES", "Call", "Route", "answer"]

_LONGEST_REFRESH_S = 0.25


class Call(NamedTuple):
    """A request, read and checked."""

    store: Store
    path: dict[str, str]
    query: Any
    body: Any

    def run(self) -> StoredRun:
        """Return the run that the path names, up to date, or nearly so if there is much to read."""
        try:
            run = self.store.open(self.path["run"])
            run.refresh(_LONGEST_REFRESH_S)
        except RunNotFoundError as error:
            raise ApiError(404, "no_such_run", str(error)) from error
        except OSError as error:
            raise ApiError(503, "unreadable", f"the journal cannot be read: {error.strerror or error}") from error
        return run


class Route(NamedTuple):
    """One thing that can be asked."""

    method: str
    path: str
    summary: str
    answer: Callable[[Call], Any]
    answers: type | None
    """The class of the answer, None for a file."""
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200
    files: tuple[str, ...] = ("text/csv", "application/x-ndjson")
    """The types that a file may have."""


def answer(route: Route, call: Call) -> Response | msgspec.Struct:
    """Ask a route, and turn our own errors into answers."""
    try:
        result: Response | msgspec.Struct = route.answer(call)
        return result
    except ControlError as error:
        raise ApiError(409, "not_steerable", str(error)) from error
    except ConfigError as error:
        raise ApiError(400, "bad_query", str(error)) from error


def _span(call: Call) -> SpanDetail:
    found = views.span(call.run(), call.path["span"])
    if found is None:
        raise ApiError(404, "no_such_span", f"no span {call.path['span'][:64]!r} in this run")
    return found


def _export(call: Call) -> Response:
    run, query = call.run(), call.query
    axis, low, high, _ = views.view_range(run, query)
    unknown = [name for name in query.name if name not in run.metric_names]
    if unknown:
        raise ApiError(404, "no_such_metric", f"this run has no metric {unknown[0]!r}")
    points = run.points(list(dict.fromkeys(query.name)), axis=axis, low=low, high=high)
    what = re.sub(r"[^A-Za-z0-9.]+", "_", f"{call.path['run']}-{query.name[0]}").strip("._")[:100] or "points"
    file_name = f"{what}.{'csv' if query.format == 'csv' else 'jsonl'}"
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    kind = "text/csv; charset=utf-8" if query.format == "csv" else "application/x-ndjson"
    return StreamingResponse(_csv(points) if query.format == "csv" else _ndjson(points), 200, headers, kind)


_COLUMNS = ("name", "attempt", "step", "time", "epoch", "value")


def _csv(points: Iterator[list[tuple[Any, ...]]]) -> Iterator[bytes]:
    yield (",".join(_COLUMNS) + "\n").encode()
    for block in points:
        rows = (
            f"{_cell(name)},{attempt},{step},{time!r},{_known(epoch)},{value!r}\n"
            for name, attempt, step, time, epoch, value in block
        )
        yield "".join(rows).encode()


def _cell(name: str) -> str:
    """Return a name as a cell that no spreadsheet takes for a formula or for two cells."""
    name = f"'{name}" if name[:1] in "=+-@" else name
    return '"' + name.replace('"', '""') + '"' if any(character in name for character in ',"\r\n') else name


def _known(epoch: float) -> str:
    return "" if math.isnan(epoch) else repr(epoch)


def _ndjson(points: Iterator[list[tuple[Any, ...]]]) -> Iterator[bytes]:
    for block in points:
        rows = [
            {
                **dict(zip(_COLUMNS, row, strict=True)),
                "value": number(row[5]),
                "epoch": None if math.isnan(row[4]) else row[4],
            }
            for row in block
        ]
        yield msgspec.json.Encoder().encode_lines(rows)


ROUTES = [
    Route("GET", "/healthz", "Tell that the server is up.", lambda call: Health("ok", __version__), Health),
    Route("GET", "/api/v1/runs", "List the runs, the newest first.", lambda call: views.runs(call.store), Runs),
    Route(
        "GET",
        "/api/v1/runs/{run}",
        "Tell all of a run but its points.",
        lambda call: views.detail(call.run()),
        RunDetail,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/metrics",
        "List the metrics of a run.",
        lambda call: views.metrics(call.run()),
        Metrics,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/series",
        "Return the points of metrics in a view, with every extreme among them.",
        lambda call: views.series(call.run(), call.query),
        Views,
        SeriesQuery,
    ),
    Route("GET", "/api/v1/runs/{run}/export", "Return every point of metrics as a file.", _export, None, Export),
    Route(
        "GET",
        "/api/v1/runs/{run}/spans",
        "Return the spans of a stretch of time.",
        lambda call: views.spans(call.run(), call.query),
        SpanView,
        SpanQuery,
    ),
    Route("GET", "/api/v1/runs/{run}/spans/{span}", "Return what was recorded of a span.", _span, SpanDetail),
    Route(
        "GET",
        "/api/v1/runs/{run}/records",
        "Return the latest records that are no points: events, alerts, errors, checkpoints, and so on.",
        lambda call: views.records(call.run(), call.query),
        Records,
        RecordQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/alerts",
        "Tell what rules found wrong with a run: each fault once, from opened to resolved.",
        lambda call: alerts(call.run()),
        Alerts,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/completions",
        "Return samples of what the model was given and what came of it, the newest first.",
        lambda call: completions(call.run(), call.query),
        Completions,
        CompletionQuery,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/controls",
        "Tell what can be steered, and what the trainer answered.",
        lambda call: views.controls(call.run()),
        Controls,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/traces",
        "List the traces of torch's profiler that are stored, the newest first.",
        lambda call: traces(call.run()),
        Traces,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/traces/{trace}",
        "Return a trace as a file that ui.perfetto.dev can open.",
        lambda call: trace(call.run(), call.path["trace"]),
        None,
        files=("application/gzip",),
    ),
    Route(
        "POST",
        "/api/v1/runs/{run}/controls",
        "Ask the trainer for new values, a checkpoint, a trace or a stop.",
        lambda call: views.request_controls(call.run(), call.body),
        Requested,
        body=ControlRequest,
        status=202,
    ),
]
