"""A dashboard for Grafana's ClickHouse data source, built from one table of panels.

In the SQL of a panel, `@name` is a table or one of `_FRAGMENTS`. Grafana expands `$__…` and `${…}`.

A value of a variable can be any text: it comes from a journal, or from a link. Grafana's formats `singlequote` and
`sqlstring` do not escape backslashes, so in ClickHouse a backslash before a quote ends the literal. The SQL here uses
only `percentencode`, which leaves neither quotes nor backslashes, and decodes it in the query. This format joins
several values with commas, so the values of `run`, the only variable with several, are in hexadecimal. `*` is All.

Most panels read without `FINAL`: they use only aggregates that repeated rows do not change, or remove repeats first.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from tachograph.records import SIGNALS
from tachograph.server.columns._address import check_name
from tachograph.server.columns._client import quote
from tachograph.server.columns._schema import SCHEMA_TABLES

__all__ = ["grafana_board"]

_PLUGIN = "grafana-clickhouse-datasource"
_DATASOURCE = {"type": _PLUGIN, "uid": "${datasource}"}
_SCHEMA_VERSION = 39
_COLUMNS = 24
_PLACEHOLDER = re.compile(r"@(\w+)")

_THROUGHPUT = ("window/samples_per_sec", "window/tokens_per_sec", *SIGNALS["throughput"])
_FRAGMENTS = {
    "in_project": "has(['*', project], decodeURLComponent('${project:percentencode}'))",
    "selected": (
        "(SELECT run_id FROM @runs WHERE @in_project AND hasAny(['*', hex(run_id)],"
        " extractAll(decodeURLComponent('${run:percentencode}'), '[0-9A-F*]+')))"
    ),
    "metric": "decodeURLComponent('${metric:percentencode}')",
    "throughput": f"({', '.join(map(quote, _THROUGHPUT))})",
    # `day` is in UTC, and `toDate` uses the time zone of the server.
    "days": "day >= toDate($__fromTime) - 1 AND day <= toDate($__toTime) + 1",
    "bucket": "toDateTime(intDiv(toUInt32(moment), @seconds) * @seconds)",
    "seconds": "greatest(intDiv($__interval_ms, 1000), 1)",
    # Steps for each point of a line: about a thousand points in all.
    "width": (
        "greatest(intDiv((SELECT max(step_max) - min(step_min) FROM @summaries"
        " WHERE metric = @metric AND run_id GLOBAL IN @selected), 1000), 1)"
    ),
    "with_names": (
        "AS found ANY LEFT JOIN (SELECT run_id, argMax(name, version) AS run, argMax(started, version) AS began,"
        " argMax(last_time, version) AS ended FROM @runs GROUP BY run_id) AS named USING (run_id)"
    ),
}


class _Panel(NamedTuple):
    title: str
    kind: str
    """The type of panel in Grafana."""
    unit: str
    width: int
    height: int
    sql: str
    description: str = ""


def _points(condition: str) -> str:
    """Return the SQL of the finite points in the time range. The filter is inside: old servers do not move it there."""
    return (
        "(SELECT run_id, metric, rank, offset, time, value, toDateTime(time) AS moment FROM @points"
        f" WHERE run_id GLOBAL IN @selected AND {condition} AND @days AND isFinite(value) AND $__timeFilter(moment))"
    )


def _events(condition: str) -> str:
    """Return the SQL of the events in the time range."""
    return (
        "(SELECT run_id, rank, offset, severity, step, body, toDateTime(time) AS moment FROM @events"
        f" WHERE {condition} AND run_id GLOBAL IN @selected AND @days AND $__timeFilter(moment))"
    )


def _series(condition: str, label: str = "run") -> str:
    """Return the SQL of lines over time: the last value in each interval."""
    return (
        f"SELECT t, {label} AS series, latest AS value FROM"
        " (SELECT run_id, metric, @bucket AS t, argMax(value, time) AS latest"
        f" FROM {_points(f'rank = 0 AND {condition}')} GROUP BY run_id, metric, t)"
        " @with_names ORDER BY t, series"
    )


_WINDOWS = _points("rank = 0 AND metric LIKE 'window/s%'")
_GPU_POINTS = _points("metric LIKE 'gpu/%/util_pct'")
_ALERTS = _events("kind = 'alert'")
_UPDATES = _events("kind = 'event' AND name = 'training_metrics_update'")

_PANELS = (
    _Panel(
        "Running now",
        "stat",
        "short",
        4,
        8,
        "SELECT countIf(state = 'running' AND last_time > toUnixTimestamp(now()) - 300) AS running"
        " FROM @runs FINAL WHERE run_id GLOBAL IN @selected",
        "Runs without an end that have recorded in the last 5 minutes.",
    ),
    _Panel(
        "Runs",
        "table",
        "",
        20,
        8,
        "SELECT name AS run, project, state, last_step, toDateTime(last_time) AS last_record,"
        " toDateTime(started) AS first_record, host, world_size FROM @runs FINAL"
        " WHERE run_id GLOBAL IN @selected AND last_record >= $__fromTime AND first_record <= $__toTime"
        " ORDER BY state = 'running' DESC, last_time DESC LIMIT 200",
        "Runs in the time range. One that was killed remains in the state running: see its last record.",
    ),
    _Panel("${metric} by time", "timeseries", "", 12, 9, _series("metric = @metric")),
    _Panel(
        "${metric} by step",
        "trend",
        "",
        12,
        9,
        "SELECT at AS step, run, latest AS value FROM"
        " (SELECT run_id, intDiv(step, @width) * @width AS at, argMax(value, time) AS latest FROM"
        # Version 18.16 cannot group a distributed table by an expression with a subquery.
        " (SELECT run_id, step, time, value FROM @points"
        " WHERE run_id GLOBAL IN @selected AND metric = @metric AND rank = 0 AND isFinite(value))"
        " GROUP BY run_id, at) @with_names ORDER BY step, run",
        "Whole runs, whatever the time range.",
    ),
    _Panel("Throughput", "timeseries", "short", 12, 8, _series("metric IN @throughput", "concat(run, ' ', metric)")),
    _Panel("Model FLOPs utilization", "timeseries", "percentunit", 12, 8, _series("metric = 'window/mfu'")),
    _Panel(
        "Goodput",
        "bargauge",
        "percentunit",
        8,
        8,
        "SELECT run, least(training_s / (least(ended, toUnixTimestamp($__toTime))"
        " - greatest(began, toUnixTimestamp($__fromTime))), 1) AS goodput FROM"
        " (SELECT run_id, sum(seconds * share) AS training_s FROM"
        " (SELECT run_id, offset, maxIf(value, metric = 'window/sec') AS seconds,"
        " maxIf(value, metric = 'window/share_forward') + maxIf(value, metric = 'window/share_backward')"
        " + maxIf(value, metric = 'window/share_optimizer') + maxIf(value, metric = 'window/share_iteration') AS share"
        f" FROM {_WINDOWS} GROUP BY run_id, offset)"
        " GROUP BY run_id) @with_names ORDER BY goodput",
        "Share of the wall time in the time range that was spent in training iterations. Unlike `tacho show`, it also"
        " counts iterations that a later attempt repeated.",
    ),
    _Panel(
        "GPU use",
        "timeseries",
        "percent",
        16,
        8,
        "SELECT t, run AS series, use AS value FROM (SELECT run_id, t, avg(latest) AS use FROM"
        " (SELECT run_id, rank, metric, @bucket AS t, argMax(value, time) AS latest"
        f" FROM {_GPU_POINTS} GROUP BY run_id, rank, metric, t) GROUP BY run_id, t)"
        " @with_names ORDER BY t, series",
        "Mean over the GPUs of a run.",
    ),
    _Panel(
        "Alerts",
        "table",
        "",
        24,
        8,
        "SELECT latest AS time, run, level AS severity, state AS status, rule, title, first_step FROM"
        " (SELECT run_id, max(moment) AS latest, argMax(severity, offset) AS level,"
        " argMax(visitParamExtractString(body, 'status'), offset) AS state,"
        " max(visitParamExtractString(body, 'rule')) AS rule, max(visitParamExtractString(body, 'title')) AS title,"
        f" min(step) AS first_step FROM {_ALERTS}"
        " GROUP BY run_id, rank, visitParamExtractString(body, 'id'))"
        " @with_names ORDER BY state = 'resolved', time DESC LIMIT 200",
        "One row for each alert, with its newest state; resolved ones last.",
    ),
    _Panel(
        "Stragglers by rank",
        "table",
        "",
        12,
        8,
        "SELECT run, rank, iteration_s, iteration_s / middle AS times_median FROM"
        " (SELECT run_id, middle, rank, iteration_s FROM (SELECT run_id, quantileExact(0.5)(rank_s) AS middle,"
        " groupArray(rank) AS all_ranks, groupArray(rank_s) AS all_s FROM"
        " (SELECT run_id, rank, quantileExact(0.5)(window_s) AS rank_s FROM (SELECT DISTINCT run_id, rank, offset,"
        " visitParamExtractFloat(body, 'window_iteration_sec_mean') AS window_s"
        f" FROM {_UPDATES}) WHERE window_s > 0 GROUP BY run_id, rank)"
        " GROUP BY run_id HAVING count() > 1) ARRAY JOIN all_ranks AS rank, all_s AS iteration_s)"
        " @with_names ORDER BY times_median DESC LIMIT 50",
        "Seconds per iteration of each rank, and how many times the median rank of its run that is.",
    ),
    _Panel(
        "Ingest lag",
        "table",
        "",
        12,
        8,
        "SELECT run, inserted - ended AS lag_s, toDateTime(ended) AS newest_record, toDateTime(inserted) AS last_insert"
        " FROM (SELECT run_id, max(version) / 1e9 AS inserted FROM @cursors WHERE run_id GLOBAL IN @selected"
        " GROUP BY run_id) @with_names"
        " WHERE newest_record >= $__fromTime ORDER BY lag_s DESC LIMIT 50",
        "Seconds from the newest record of a run to its last insert, by the clocks of both machines.",
    ),
)

_VARIABLES = {
    "project": "SELECT DISTINCT project FROM @runs WHERE project != '' ORDER BY project",
    # The first column is the value, the second the text to show.
    "run": (
        "SELECT hex(run_id) AS value, argMax(name, version) AS label FROM @runs WHERE @in_project"
        " GROUP BY run_id ORDER BY max(last_time) DESC LIMIT 1000"
    ),
    "metric": (
        "SELECT DISTINCT toString(metric) AS name FROM @summaries WHERE rank = 0 AND run_id GLOBAL IN @selected"
        " ORDER BY positionCaseInsensitive(name, 'loss') = 0, name LIMIT 5000"
    ),
}
"""The SQL of each variable. `metric` has losses first: Grafana selects the first value."""


def grafana_board(database: str = "tacho", title: str = "Tachograph") -> dict[str, Any]:
    """Return a dashboard as Grafana imports it.

    Args:
        database: the database with the tables.
        title: the title of the dashboard.

    Raises:
        ConfigError: if the name of the database is invalid.
    """
    check_name("database", database)
    return {
        # The same for each database, so that importing again replaces the dashboard.
        "uid": f"tachograph-{hashlib.sha256(database.encode()).hexdigest()[:12]}",
        "title": title,
        "tags": ["tachograph"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": _variables(database)},
        "panels": _panels(database),
    }


def _expand(sql: str, database: str) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return f"{database}.{name}" if name in SCHEMA_TABLES else _expand(_FRAGMENTS[name], database)

    return _PLACEHOLDER.sub(replace, sql)


def _variables(database: str) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": _PLUGIN, "refresh": 1}
    ]
    for name, sql in _VARIABLES.items():
        is_multi, has_all = name == "run", name != "metric"
        query = _expand(sql, database)
        variable = {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _DATASOURCE,
            "query": query,
            "definition": query,
            "refresh": 2,
            "sort": 0,
            "multi": is_multi,
            "includeAll": has_all,
        }
        if has_all:
            current = {"text": ["All"], "value": ["$__all"]} if is_multi else {"text": "All", "value": "$__all"}
            variable |= {"allValue": "*", "current": current}
        variables.append(variable)
    return variables


def _panels(database: str) -> list[dict[str, Any]]:
    """Return the panels in rows from left to right; the panels of a row are equally high."""
    panels = []
    x = y = 0
    for number, panel in enumerate(_PANELS, 1):
        position = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        panels.append(_panel(panel, number, position, _expand(panel.sql, database)))
        x += panel.width
        if x >= _COLUMNS:
            x, y = 0, y + panel.height
    return panels


def _panel(panel: _Panel, number: int, position: dict[str, int], sql: str) -> dict[str, Any]:
    is_series = panel.kind == "timeseries"
    settings: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit} if panel.unit else {}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": "A",
                "datasource": _DATASOURCE,
                "editorType": "sql",
                "queryType": "timeseries" if is_series else "table",
                "format": 0 if is_series else 1,
                "rawSql": sql,
            }
        ],
    }
    if panel.kind == "trend":
        # One frame with a column for each run.
        settings["options"] = {"xField": "step"}
        settings["transformations"] = [
            {"id": "partitionByValues", "options": {"fields": ["run"], "keepFields": False}},
            {"id": "joinByField", "options": {"byField": "step", "mode": "outer"}},
        ]
    elif panel.kind == "bargauge":
        settings["options"] = {"orientation": "horizontal", "reduceOptions": {"values": True, "calcs": []}}
        settings["fieldConfig"]["defaults"] |= {"min": 0, "max": 1}
    return settings
