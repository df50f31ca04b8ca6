"""Insert, draw and list runs in ClickHouse: ``python -m benchmarks.clickhouse [--points N] [--runs N]``.

Measured on Debian's server 18.16 and on chDB, a recent ClickHouse; see `tests/server/columns/servers.py`. Each subject
alternates with its baseline on the same server.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from tests.server.columns.servers import ChdbServer, ClickHouseServer, missing_chdb, missing_server

from benchmarks.child import temporary_folder
from benchmarks.dashboard.overlay_data import METRIC, make_runs, run_names
from benchmarks.measure import Spread, make_rows
from benchmarks.report import Report, time_text
from tachograph.catalog import Catalog, annotate
from tachograph.journal import RunFolder
from tachograph.server._column_series import ColumnStoreOf
from tachograph.server._overlay import build_overlay_page
from tachograph.server._overlay_models import OverlayPage, OverlayQuery, RunSeries
from tachograph.server._series_cache import SeriesCache
from tachograph.server._table import build_table_page
from tachograph.server._table_lines import LineCache
from tachograph.server._table_models import TableQuery
from tachograph.server.columns import ColumnStore
from tachograph.server.columns._schema import SCHEMA_TABLES
from tachograph.store import Store

_NUM_INSERTS = 3
_NUM_ROUNDS = 15
_POST_ROWS = 100_000
_NUM_BUCKETS = 1_500
_NUM_METRICS = 20
_ZOOM_STEPS = 2_000
_OVERLAY_POINTS = 100_000
_ENGINES: dict[str, tuple[Callable[[], str], type[Any]]] = {
    "ClickHouse 18.16": (missing_server, ClickHouseServer),
    "chDB": (missing_chdb, ChdbServer),
}


def _time_s(subject: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    subject()
    return time.perf_counter() - start_s


def _write_run(folder: Path, run_id: str, rows: list[dict[str, float]]) -> None:
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        file.write(f'{{"event":"start","time":1700000000.0,"run_name":"{folder.name}","run_id":"{run_id}"}}\n')
        for step, row in enumerate(rows):
            values = ",".join(f'"{name}":{value!r}' for name, value in row.items())
            file.write(f'{{"event":"step","time":{1.7e9 + step / 10},"global_step":{step},{values}}}\n')


def _posts(store: ColumnStore) -> list[bytes]:
    """Return the points of a store as tab-separated text, in the order of their key."""
    columns = ", ".join(SCHEMA_TABLES["points"].columns)
    text = store.schema.client.execute(
        f"SELECT {columns} FROM {store.schema.table('points')} FINAL"
        " ORDER BY run_id, metric, stream, rank, attempt, step, offset FORMAT TabSeparated"
    )
    lines = text.splitlines(keepends=True)
    return [b"".join(lines[at : at + _POST_ROWS]) for at in range(0, len(lines), _POST_ROWS)]


def _measure_inserting(report: Report, engine: str, url: str, folder: Path, num_points: int) -> None:
    report.add_section(f"{engine}: insert {num_points:,} points of ten metrics, with tiles and summaries")
    _write_run(folder / "inserted" / "r", "inserted", make_rows(num_points // 10))
    ours, theirs, ratios = [], [], []
    with ColumnStore(f"{url}/inserted") as store, ColumnStore(f"{url}/text") as text:
        posts: list[bytes] = []

        def post_text() -> None:
            for post in posts:
                parameters = {"query": f"INSERT INTO {text.schema.table('points')} FORMAT TabSeparated"}
                text.schema.client._post(parameters, post)

        for _ in range(_NUM_INSERTS):
            for each in (store, text):
                each.schema.drop()
                each.schema.migrate()
            ours.append(_time_s(store.inserter(str(folder / "inserted")).insert_all))
            posts = posts or _posts(store)
            theirs.append(_time_s(post_text))
            ratios.append(theirs[-1] / ours[-1])
        speed = Spread.of(ratios)
        budget = report.check_budget(f"{engine}: speed of inserting", speed.median, 0.5, "×", at_least=True)
        report.add_row("tab-separated text, 100,000 rows per post", time_text(1e9 * Spread.of(theirs).median))
        report.add_row(
            "journal to tables", time_text(1e9 * Spread.of(ours).median), speed, "speed of text", budget=budget
        )
        store.schema.client.execute(f"OPTIMIZE TABLE {store.schema.table('points')} FINAL")
        size = float(
            store.schema.client.execute(
                "SELECT sum(bytes_on_disk) / sum(rows) FROM system.parts"
                " WHERE active AND database = 'inserted' AND table = 'points'"
            )
        )
        report.add_row(
            "disk per point", f"{size:.1f} B", budget=report.check_budget(f"{engine}: disk", size, 25, " B per point")
        )


def _compare(
    report: Report, title: str, subject: Callable[[], object], baseline: Callable[[], object], named: str, limit: float
) -> None:
    times, ratios = [], []
    subject()
    baseline()
    for _ in range(_NUM_ROUNDS):
        baseline_s = _time_s(baseline)
        times.append(_time_s(subject))
        ratios.append(times[-1] / baseline_s)
    ratio = Spread.of(ratios)
    budget = report.check_budget(title, ratio.median, limit, "×")
    report.add_row(title.partition(": ")[2], time_text(1e9 * Spread.of(times).median), ratio, named, budget=budget)


def _measure_charts(report: Report, engine: str, url: str, folder: Path, num_points: int) -> None:
    report.add_section(f"{engine}: chart of a series with {num_points:,} points")
    source = random.Random(1)
    _write_run(folder / "charts" / "r", "charts", [{"loss": source.gauss(0, 1)} for _ in range(num_points)])
    with ColumnStore(f"{url}/charts") as store:
        store.schema.migrate()
        store.inserter(str(folder / "charts")).insert_all()
        run = store.run(RunFolder(folder / "charts" / "r"), "r")
        width = max(1, num_points // _NUM_BUCKETS)
        sql = (
            f"SELECT intDiv(step, {width}) AS bucket, argMin(step, value) AS low_step, min(value) AS low,"
            f" argMax(step, value) AS high_step, max(value) AS high FROM {store.schema.table('points')}"
            " WHERE run_id = 'charts' AND metric = 'loss' AND isFinite(value) GROUP BY bucket ORDER BY bucket"
        )
        kinds = {"low_step": "Int64", "low": "Float64", "high_step": "Int64", "high": "Float64"}
        middle = num_points // 2

        def from_tiles() -> object:
            return run.series("loss", num_points=2 * _NUM_BUCKETS)

        def from_points() -> object:
            return store.schema.client.columns(sql, kinds)

        def extremes_of_tiles() -> object:
            # Other names than those of the columns: an old server takes an alias for the column of that name.
            return store.schema.client.columns(
                f"SELECT intDiv(step_first, {width}) AS bucket, argMin(low_step, low) AS at_low, min(low) AS lowest,"
                " argMax(high_step, high) AS at_high, max(high) AS highest"
                f" FROM {store.schema.table('tiles')} WHERE run_id = 'charts' AND metric = 'loss'"
                " GROUP BY bucket ORDER BY bucket",
                {"at_low": "Int64", "lowest": "Float64", "at_high": "Int64", "highest": "Float64"},
            )

        def zoom() -> object:
            return run.series("loss", low=middle, high=middle + _ZOOM_STEPS, num_points=2 * _NUM_BUCKETS)

        in_sql = "buckets of points in SQL"
        _compare(report, f"{engine}: buckets of tiles in SQL", extremes_of_tiles, from_points, in_sql, 0.1)
        _compare(report, f"{engine}: whole run, from tiles", from_tiles, from_points, in_sql, 0.1)
        _compare(report, f"{engine}: zoom to 2,000 steps", zoom, from_tiles, "whole run, from tiles", 3)


def _measure_lists(report: Report, engine: str, url: str, folder: Path, num_runs: int) -> None:
    report.add_section(f"{engine}: list {num_runs:,} runs with aggregates of {_NUM_METRICS} metrics")
    source = random.Random(2)
    names = [f"metric{number}" for number in range(_NUM_METRICS)]
    for number in range(num_runs):
        rows = [{name: source.random() for name in names} for _ in range(10)]
        _write_run(folder / "lists" / f"r{number:05}", f"id{number}", rows)
    with ColumnStore(f"{url}/lists") as store:
        store.schema.migrate()
        store.inserter(str(folder / "lists")).insert_all()

        def list_runs() -> object:
            return store.aggregates(names)

        def only_sql() -> object:
            listed = ", ".join(f"'{name}'" for name in names)
            return store.schema.client.execute(
                f"SELECT run_id, metric, last, low FROM {store.schema.table('summaries')} FINAL"
                f" WHERE metric IN ({listed}) FORMAT RowBinary"
            )

        def select_1() -> object:
            return store.schema.client.execute("SELECT 1")

        _compare(report, f"{engine}: last, lowest, highest, mean …", list_runs, select_1, "SELECT 1", 5)
        _compare(report, f"{engine}: of that, last and lowest as bytes", only_sql, select_1, "SELECT 1", 5)
        # What the dashboard shows: the server keeps summaries, and lines that did not change.
        catalog, cache = Catalog(folder / "lists"), LineCache()
        query = TableQuery(column=[f"{name}.min" for name in names], limit=num_runs)
        catalog.rows(is_full=True)

        def table() -> object:
            return msgspec.json.encode(build_table_page(catalog, query, cache))

        def changed_table() -> object:
            annotate(RunFolder(folder / "lists" / "r00000"), [{"field": "note", "value": str(time.time_ns())}])
            catalog.outdate()
            return table()

        _compare(report, f"{engine}: table of the dashboard", table, select_1, "SELECT 1", 10)
        _compare(report, f"{engine}: the same, one run has changed", changed_table, select_1, "SELECT 1", 10)


def _is_whole(run: RunSeries) -> bool:
    lines = run.series[0].lines if run.series else []
    return bool(lines) and lines[0].x[-1] == _OVERLAY_POINTS - 1


def _measure_overlay(report: Report, engine: str, url: str, folder: Path, num_runs: int) -> None:
    report.add_section(
        f"{engine}: first chart of {num_runs} runs with {_OVERLAY_POINTS:,} points, journals not read yet"
    )
    logs = folder / "overlay" / "logs"
    logs.parent.mkdir()
    make_runs("tachograph", logs.parent, num_runs, _OVERLAY_POINTS)
    query = OverlayQuery(run=run_names(num_runs), name=[METRIC])
    with ColumnStore(f"{url}/overlay") as store:
        store.schema.migrate()
        store.inserter(str(logs)).insert_all()

        def chart(column_store: ColumnStoreOf) -> float:
            """Return after how many seconds the page has every line to its end."""
            shutil.rmtree(logs / ".tacho", ignore_errors=True)
            for name in run_names(num_runs):
                shutil.rmtree(logs / name / ".tacho", ignore_errors=True)
            opened, cache = Store(logs), SeriesCache()
            began_s = time.perf_counter()
            while True:
                page = build_overlay_page(opened, query, cache, column_store)
                runs = msgspec.json.decode(msgspec.json.encode(page), type=OverlayPage).runs
                if all(_is_whole(run) for run in runs):
                    return time.perf_counter() - began_s

        tables_s, files_s, ratios = [], [], []
        for _ in range(_NUM_INSERTS):
            files_s.append(chart(lambda folder: None))
            tables_s.append(chart(lambda folder: store))
            ratios.append(tables_s[-1] / files_s[-1])
        report.add_row("by reading the journals", time_text(1e9 * Spread.of(files_s).median))
        report.add_row("from tiles", time_text(1e9 * Spread.of(tables_s).median), Spread.of(ratios), "reading")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clickhouse")
    parser.add_argument("--points", type=int, default=1_000_000, metavar="N", help="number of points")
    parser.add_argument("--runs", type=int, default=1_000, metavar="N", help="number of runs in the list")
    parser.add_argument("--overlaid", type=int, default=40, metavar="N", help="number of runs in one chart")
    given = parser.parse_args()
    report = Report()
    for engine, (missing, start) in _ENGINES.items():
        if missing():
            report.add_unmeasured(engine, missing())
            continue
        with temporary_folder() as name:
            folder = Path(name)
            server = start(folder / "server")
            try:
                _measure_inserting(report, engine, server.url, folder, given.points)
                _measure_charts(report, engine, server.url, folder, given.points)
                _measure_lists(report, engine, server.url, folder, given.runs)
                _measure_overlay(report, engine, server.url, folder, given.overlaid)
            finally:
                server.close()
    report.print(Console())


if __name__ == "__main__":
    _main()
