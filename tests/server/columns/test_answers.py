"""Files and ClickHouse give the same answers: extremes, attempts, NaN marks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tachograph
from tachograph.exceptions import ColumnStoreError
from tachograph.journal import RunFolder
from tachograph.server.columns import ColumnStore, MetricLines, SeriesRequest, verify_run
from tachograph.store import Mark, MetricAggregates, SeriesSource, StoredRun, View
from tests.server.columns.conftest import ENGINES, address, fill
from tests.store import END, START, append, opened, points, step, write

ODD_NAMES = ["it's", 'a"b', "back\\slash", "tab\tnew\nline", "nul\0", "größe/σ", "a;DROP TABLE points", "%s{x}", "-- "]


def journal_of_odd_things() -> list[Any]:
    """Resumed, with NaN, several streams, unordered steps, windows, odd names, lines that are no records."""
    rng = random.Random(3)
    records: list[Any] = [step(0, before_start=1.0), START]
    records += [step(at, a=rng.gauss(0, 1), b=rng.choice([1, 2.5, math.nan, math.inf])) for at in range(300)]
    records += [
        b"no record",
        b'{"event":"step","time":1',
        b"",
        {"event": "validation", "time": 1_100.5, "val_loss": 0.5},
    ]
    records += [{"event": "epoch", "time": 1_101.0, "global_step": 300, "epoch": 1, "val_loss": 0.25}]
    records += [{"event": "system", "cpu": 0.5}, {"event": "step", "a": -7.0}, {"event": "log", "time": 1_200.0}]
    records += [step(at, **dict.fromkeys(ODD_NAMES, float(at))) for at in range(301, 320)]
    records += [{**START, "time": 5_000.0, "resumed": True}]
    records += [
        {**step(at, a=math.nan if at % 7 == 0 else at / 10, c=True, d="text"), "time": 5_000.0 + at}
        for at in range(200, 420)
    ]
    records += [{**START, "time": 9_000.0, "resumed": True}]
    records += [{**step(at % 50, a=float(at)), "time": 9_000.0 + at % 30} for at in range(150)]
    windows = {"window_steps": 10, "w": 1.0, "w/min": -3.0, "w/max": 5.0}
    records += [
        {**step(at, **windows), "w": at / 7, "w/max": at / 3, "time": 9_500.0 + at} for at in range(500, 900, 10)
    ]
    return [*records, END]


def views() -> list[dict[str, Any]]:
    rng = random.Random(5)
    found: list[dict[str, Any]] = [{}, {"num_points": 20}, {"axis": "time"}, {"low": -5.0, "high": -1.0}]
    for _ in range(8):
        low = rng.uniform(-10, 400)
        found.append({"low": low, "high": low + rng.choice([0.0, 3.0, 100.0]), "num_points": rng.choice([16, 2_000])})
        start = rng.choice([1_000, 5_000, 9_000]) + rng.uniform(0, 300)
        found.append({"axis": "time", "low": start, "high": start + 50.0})
    return [*found, {"low": 250.0}, {"high": 3.5}]


def comparable(found: dict[str, MetricAggregates]) -> dict[str, Any]:
    """Return aggregates as ClickHouse has them, as text so that NaN equals itself; means are compared by ratio."""
    texts: dict[str, Any] = {}
    for name, each in found.items():
        mean = None if each.mean is None else pytest.approx(each.mean, rel=1e-12, abs=1e-300)
        texts[name] = repr(msgspec.structs.replace(each, mean=None, median=None, tail=None)), mean
    return texts


def check_equal(store: ColumnStore, folder: RunFolder, some_views: list[dict[str, Any]]) -> None:
    files, tables = opened(folder), store.run(folder, folder.name)
    assert sorted(tables.metric_names) == sorted(files.metric_names)
    for name in files.metric_names:
        for view in some_views if name in {"a", "b", "w", "val_loss"} else some_views[:3]:
            assert repr(tables.series(name, **view)) == repr(files.series(name, **view)), (name, view)
    assert comparable(tables.aggregates()) == comparable(files.aggregates())
    assert verify_run(store.schema, folder, folder.name) == []


def test_lines_have_recorded_extremes(open_run, tmp_path):
    values = [math.sin(at) for at in range(5_000)]
    values[1_234], values[4_321] = 50.0, -50.0
    write(tmp_path / "logs" / "r", [START, *(step(at, a=value) for at, value in enumerate(values)), END])
    run: SeriesSource = open_run(tmp_path / "logs" / "r")
    (line,), marks = run.series("a", num_points=100)
    assert marks == []
    assert len(line.x) < 250
    assert {(1_234.0, 50.0), (4_321.0, -50.0), (0.0, values[0]), (4_999.0, values[-1])} <= set(
        zip(line.x, line.y, strict=True)
    )
    assert all(values[int(x)] == y for x, y in zip(line.x, line.y, strict=True))
    assert line.num_points == 5_000


def test_attempts_are_separate_lines(open_run, tmp_path):
    first = [START, *(step(at, a=float(at)) for at in range(10))]
    second = [{**START, "resumed": True}, *(step(at, a=-float(at)) for at in range(5, 8))]
    write(tmp_path / "logs" / "r", [*first, *second])
    run: SeriesSource = open_run(tmp_path / "logs" / "r")
    assert points(run.series("a")[0]) == [
        *(("step", 0, float(at), float(at)) for at in range(10)),
        *(("step", 1, float(at), -float(at)) for at in range(5, 8)),
    ]
    found = run.aggregates()["a"]
    assert (found.num_points, found.first, found.last) == (8, 0.0, -7.0)
    assert (found.min, found.at_min, found.max, found.at_max) == (-7.0, 7, 4.0, 4)


def test_nan_and_infinities_are_marks(open_run, tmp_path):
    values = [1.0, math.nan, 2.0, math.inf, -math.inf, 3.0, math.nan]
    write(tmp_path / "logs" / "r", [START, *(step(at, a=value) for at, value in enumerate(values))])
    run: SeriesSource = open_run(tmp_path / "logs" / "r")
    (line,), marks = run.series("a")
    assert marks == [Mark(1.0, "NaN", 1), Mark(6.0, "NaN", 1), Mark(3.0, "Infinity", 1), Mark(4.0, "-Infinity", 1)]
    assert line.y == [1.0, None, 2.0, None, 3.0]
    found = run.aggregates()["a"]
    assert (found.num_points, found.nonfinite, found.min, found.max, found.mean) == (7, 4, 1.0, 3.0, 2.0)
    assert math.isnan(found.last)


def test_unknown_metric_has_no_lines(open_run, tmp_path):
    write(tmp_path / "logs" / "r", [START, step(1, a=1.0)])
    assert open_run(tmp_path / "logs" / "r").series("b") == ([], [])


def test_extremes_of_windows_are_drawn(open_run, tmp_path):
    records = [step(at, window_steps=10, a=0.5, **{"a/min": -at, "a/max": 2.0 * at}) for at in (10, 20)]
    write(tmp_path / "logs" / "r", [START, *records])
    run: SeriesSource = open_run(tmp_path / "logs" / "r")
    (line,), _ = run.series("a")
    assert line.y == [0.5, -10.0, 20.0, 0.5, 0.5, -20.0, 40.0, 0.5]
    assert run.aggregates()["a"].max == 40.0


def test_odd_journal_gives_equal_answers(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", journal_of_odd_things())
    fill(store, folder)
    check_equal(store, folder, views())


def test_growing_journal_gives_equal_answers(store, tmp_path):
    records = journal_of_odd_things()
    folder = write(tmp_path / "logs" / "r", records[:2])
    cuts = sorted(random.Random(9).sample(range(3, len(records)), 12))
    inserter = store.inserter(str(tmp_path / "logs"))
    for number, (begin, end) in enumerate(zip([2, *cuts], [*cuts, len(records)], strict=True)):
        append(folder, records[begin:end])
        if number % 3 == 0:  # as after a restart: the state comes from the cursor
            inserter = store.inserter(str(tmp_path / "logs"))
        inserter.insert_all()
    check_equal(store, folder, views()[::4])  # all of them: `test_odd_journal_gives_equal_answers`


def test_recorded_run_gives_equal_answers(store, logs):
    with tachograph.init("demo", log_dir=str(logs), config={"lr": 0.1}, console=False) as run:
        for at in range(400):
            run.log(loss=1 / (at + 1), step=at)
            if at % 100 == 99:
                run.log_validation({"loss": 0.5})
    folder = RunFolder(logs / "demo")
    fill(store, folder)
    check_equal(store, folder, [{}, {"axis": "time"}, {"low": 10.5, "high": 20.0}])
    found = store.schema.client.execute(f"SELECT name, state, config FROM {store.schema.table('runs')} FINAL")
    assert found == b'demo\tfinished\t{"lr":0.1}\n'


def test_journals_of_ranks_are_inserted(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, step(1, a=1.0)])
    rank = folder.rank_journal(7)
    write(rank.parent, [START, step(1, a=2.0), step(2, a=5.0)]).journal.rename(rank)
    fill(store, folder)
    (line,), _ = store.run(folder, "r", rank=7).series("a")
    assert (line.x, line.y) == ([1.0, 2.0], [2.0, 5.0])
    assert verify_run(store.schema, folder, "r") == []


@pytest.fixture(scope="module")
def long_journal(tmp_path_factory) -> tuple[RunFolder, Any]:
    """A series with more points than are read one by one; each 10,007th is NaN."""
    number = 400_000
    values = np.random.default_rng(7).normal(size=number)
    values[123_456], values[300_001] = 50.0, -50.0
    values[5::10_007] = np.nan
    path: Path = tmp_path_factory.mktemp("long") / "logs" / "r"
    path.mkdir(parents=True)
    with open(path / "metrics.jsonl", "w") as file:
        file.write('{"event":"start","time":1000.0,"run_name":"r","run_id":"long"}\n')
        for at, value in enumerate(values.tolist()):
            shown = '"NaN"' if math.isnan(value) else repr(value)
            file.write(f'{{"event":"step","time":{1_000.0 + at / 4},"global_step":{at},"a":{shown}}}\n')
    return RunFolder(path), values


@pytest.fixture(scope="module", params=ENGINES)
def long_store(request, long_journal) -> Iterator[ColumnStore]:
    """A column store with this series, on each engine."""
    server = request.getfixturevalue("old_server" if request.param == "18.16" else "new_server")
    with ColumnStore(address(server)) as store:
        store.schema.migrate()
        fill(store, long_journal[0])
        yield store


@pytest.mark.parametrize("view", [{}, {"axis": "time"}, {"low": 20_000.5, "high": 390_000}, {"low": 1_030.5}])
def test_long_series_has_exact_extremes_and_breaks(long_store, long_journal, view):
    folder, values = long_journal
    tables, files = long_store.run(folder, "r"), opened(folder)
    (line,), marks = tables.series("a", **view)
    (expected,), expected_marks = files.series("a", **view)
    assert marks == expected_marks
    assert (line.num_points, sum(line.mean_count)) == (expected.num_points, expected.num_points)
    assert (line.x[0], line.y[0], line.x[-1], line.y[-1]) == (
        expected.x[0],
        expected.y[0],
        expected.x[-1],
        expected.y[-1],
    )
    drawn, all_drawn = ([each[3:1:-1] for each in points([found])] for found in (line, expected))
    assert (min(drawn), max(drawn)) == (min(all_drawn), max(all_drawn))
    to_step = (lambda x: round((x - 1_000) * 4)) if view.get("axis") == "time" else int
    assert all(values[to_step(x)] == y for y, x in drawn)
    # The line is interrupted exactly where a mark lies between two of its points.
    between = np.searchsorted([x for _, x in drawn], [mark.x for mark in marks])
    assert line.y.count(None) == len(set(between.tolist()) - {0, len(drawn)})


def test_zoom_into_long_series_equals_files(long_store, long_journal):
    folder, _ = long_journal
    check_equal(long_store, folder, [{"low": low, "high": low + 2_000.0} for low in (0.0, 123_000.5, 399_000.0)])


def test_lines_of_many_runs_are_drawn_from_tiles(long_store, long_journal):
    folder, values = long_journal
    view = View("step", 100_000.0, 200_000.0)
    (raw,) = long_store.series([SeriesRequest("long", ("a", "b"), view)], usual_points=math.inf, max_points=math.inf)
    assert raw.keys() == {"a"}
    (expected,), expected_marks = opened(folder).series("a", low=view.low, high=view.high)
    assert repr(raw["a"]) == repr(MetricLines([expected], expected_marks, float(values[-1])))
    # Many series in one request: each may read few points, so those at the edges of the view, and the tiles in between.
    requests = [SeriesRequest("long", ("a",), view), SeriesRequest("gone", ("a",), view)]
    (tiled, gone) = long_store.series(requests, usual_points=0, max_points=6_000)
    assert gone == {}
    (line,) = tiled["a"].lines
    assert tiled["a"].marks == expected_marks
    assert (line.num_points, line.x[0], line.x[-1]) == (expected.num_points, expected.x[0], expected.x[-1])
    drawn = [(y, x) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    assert all(values[int(x)] == y for y, x in drawn)
    assert max(drawn) == (50.0, 123_456.0)
    assert min(drawn) == min((values[at], at) for at in range(100_000, 200_001) if not math.isnan(values[at]))


def test_aggregates_of_many_runs(store, tmp_path):
    for number in range(5):
        values = [float(number * at) for at in range(1, 20)]
        records = [step(at, loss=value, acc=-value) for at, value in enumerate(values)]
        write(tmp_path / "logs" / f"r{number}", [{**START, "run_id": f"id{number}"}, *records])
    store.inserter(str(tmp_path / "logs")).insert_all()
    found = store.aggregates(["loss", "acc"], [f"id{number}" for number in range(4)])
    assert sorted(found) == ["id0", "id1", "id2", "id3"]
    for number in range(4):
        run = StoredRun(RunFolder(tmp_path / "logs" / f"r{number}"))
        run.refresh()
        assert comparable(found[f"id{number}"]) == comparable(run.aggregates())
    assert store.aggregates([]) == store.aggregates(["loss"], []) == {}


def test_computed_axes_are_refused(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, step(1, a=1.0)])
    fill(store, folder)
    with pytest.raises(ColumnStoreError, match="axis 'epoch' is computed from the journal"):
        store.run(folder, "r").series("a", axis="epoch")


def test_sums_that_overflow_have_no_mean(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, *(step(at, a=1.7e308) for at in range(3))])
    fill(store, folder)
    found = store.run(folder, "r").aggregates()["a"]
    assert (found.max, found.mean) == (1.7e308, None)
