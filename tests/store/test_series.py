"""Downsampling: few points, all of them recorded, always including the extremes."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tachograph.journal import RunFolder
from tests.store import END, START, append, fresh_folder, opened, points, segments, step, write

NUM_LONG = 300_000
"""More points than the limit above which queries use summaries."""
FINITE = st.floats(-1e9, 1e9)
VALUES = st.one_of(
    FINITE, FINITE, FINITE, st.integers(-3, 3).map(float), st.sampled_from([math.nan, math.inf, -math.inf])
)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A run of several segments and a tail, with its steps and values; each 1,000th value is NaN."""
    values = np.random.default_rng(7).normal(size=NUM_LONG)
    values[1_234] = 50.0
    values[217_777] = -50.0
    values[500::1_000] = np.nan
    steps = np.cumsum(np.random.default_rng(8).integers(1, 4, NUM_LONG))
    path = tmp_path_factory.mktemp("long") / "r"
    path.mkdir()
    with open(path / "metrics.jsonl", "w") as file:
        file.write('{"event":"start","time":1000.0,"run_name":"r"}\n')
        for at, value in zip(steps.tolist(), values.tolist(), strict=True):
            shown = '"NaN"' if math.isnan(value) else repr(value)
            file.write(
                f'{{"event":"step","time":{1_000.0 + at},"global_step":{at},"epoch":{at / 1_000},"a":{shown}}}\n'
            )
    run = opened(RunFolder(path), 6 << 20)
    assert len(segments(run.folder)) >= 3
    return run, steps.astype(float), values


def the_line(run, **view):
    found, _ = run.series("a", **view)
    assert len(found) == 1
    return found[0]


def check_view(line, x, values, low, high, num_points):
    """Check a line with sorted positions against all recorded points."""
    is_finite = np.isfinite(values)
    seen_x, seen_y, rows = x[is_finite], values[is_finite], np.flatnonzero(is_finite)
    begin = 0 if low is None else int(np.searchsorted(seen_x, low))
    end = len(seen_x) if high is None else int(np.searchsorted(seen_x, high, side="right"))
    first, last = max(0, begin - 1), min(len(seen_x), max(begin, end) + 1)
    wanted_x, wanted_y, wanted_rows = seen_x[first:last], seen_y[first:last], rows[first:last]
    assert line.num_points == len(wanted_x)
    drawn = [(place, value) for place, value in zip(line.x, line.y, strict=True) if value is not None]
    assert set(drawn) <= set(zip(wanted_x.tolist(), wanted_y.tolist(), strict=True))
    assert drawn[0] == (wanted_x[0], wanted_y[0])
    assert drawn[-1] == (wanted_x[-1], wanted_y[-1])
    assert [place for place, _ in drawn] == sorted(place for place, _ in drawn)
    assert len(drawn) <= max(8, num_points) + 2
    if end > begin:
        heights = [value for _, value in drawn]
        assert min(heights) <= seen_y[begin:end].min()
        assert max(heights) >= seen_y[begin:end].max()
    if len(wanted_x) <= num_points:
        assert drawn == list(zip(wanted_x.tolist(), wanted_y.tolist(), strict=True))
        assert line.mean_count == []
    else:
        check_means(line, wanted_y)
    if len(np.unique(x)) == len(x):
        check_gaps(line, dict(zip(wanted_x.tolist(), wanted_rows.tolist(), strict=True)), ~is_finite)


def check_means(line, values):
    assert sum(line.mean_count) == line.num_points == len(values)
    assert all(count > 0 for count in line.mean_count)
    assert len(line.mean_x) == len(line.mean_y) == len(line.mean_count)
    assert line.mean_x == sorted(line.mean_x)
    edges = np.concatenate([[0], np.cumsum(line.mean_count)])
    true = [values[begin:end].mean() for begin, end in itertools.pairwise(edges)]
    scale = max(1.0, float(np.abs(values).max()))
    assert line.mean_y == pytest.approx(true, rel=1e-9, abs=1e-9 * scale)


def check_gaps(line, row_of, is_bad):
    bad_before = np.concatenate([[0], np.cumsum(is_bad)])
    previous, is_broken = None, False
    for place, value in zip(line.x, line.y, strict=True):
        if value is None:
            assert previous is not None
            assert not is_broken
            is_broken = True
            continue
        if previous is not None:
            assert is_broken == bool(bad_before[row_of[place]] - bad_before[row_of[previous]])
        previous, is_broken = place, False
    assert not is_broken


@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 1_000, 0]), VALUES), min_size=1, max_size=400),
    st.sampled_from([16, 17, 40, 500]),
    st.sampled_from([1, 3_000, 1 << 20]),
    st.floats(-0.1, 1.1),
    st.floats(-0.1, 1.1),
)
@example([(1, 1.0)], 16, 1, 0.0, 0.0)
@example([(1, 1.0), (1, math.nan), (1, 2.0)], 16, 1, 0.0, 1.0)
@example([(0, float(i)) for i in range(400)], 16, 1, 0.0, 1.0)
@example([(1, 0.0)] * 17, 17, 1, 0.0, 1.0)
def test_view_has_extremes_ends_and_only_recorded_points(items, num_points, size, low, high):
    x = np.cumsum([gap for gap, _ in items]).astype(float)
    values = np.array([value for _, value in items])
    assume(np.isfinite(values).any())
    low, high = sorted((x[0] + low * (x[-1] - x[0]), x[0] + high * (x[-1] - x[0])))
    with fresh_folder() as path:
        folder = write(path, [START])
        run = opened(folder, size)
        for begin in range(0, len(items), 90):
            append(
                folder,
                [
                    step(int(at), a=value)
                    for at, value in zip(
                        x[begin : begin + 90].tolist(), values[begin : begin + 90].tolist(), strict=True
                    )
                ],
            )
            run.refresh()
        for view in ((None, None), (low, high), (low, None), (None, high)):
            line = the_line(run, low=view[0], high=view[1], num_points=num_points)
            check_view(line, x, values, *view, num_points)


@pytest.mark.slow
@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([16, 100, 2_000]), st.sampled_from(["step", "time", "epoch"]))
@example(0.0, 1.0, 2_000, "step")
@example(0.0, 1.0, 16, "time")
@example(0.0, 1.0, 100, "epoch")
@example(0.0, 0.99, 100, "step")
@example(0.01, 1.0, 100, "step")
def test_any_view_of_a_long_run_has_its_extremes(long_run, first, second, num_points, axis):
    run, steps, values = long_run
    x = {"step": steps, "time": steps + 1_000.0, "epoch": steps / 1_000}[axis]
    low, high = sorted((x[0] + first * (x[-1] - x[0]), x[0] + second * (x[-1] - x[0])))
    check_view(the_line(run, axis=axis, low=low, high=high, num_points=num_points), x, values, low, high, num_points)


def test_full_view_of_a_long_run_is_deterministic(long_run):
    run, steps, values = long_run
    line = the_line(run, num_points=1_000)
    check_view(line, steps, values, None, None, 1_000)
    assert {50.0, -50.0} <= set(line.y)
    assert the_line(run, num_points=1_000) == line
    assert the_line(opened(run.folder, 6 << 20), num_points=1_000) == line


def test_zooming_in_reveals_every_point(long_run):
    run, steps, values = long_run
    previous = 0.0
    for width in (NUM_LONG, 60_000, 10_000, 400):
        low, high = steps[1_000], steps[min(NUM_LONG - 1, 1_000 + width)]
        line = the_line(run, low=low, high=high, num_points=500)
        density = len(line.x) / (high - low)
        assert density > previous
        previous = density
    inside = np.isfinite(values[1_000:1_401])
    assert [y for y in line.y[1:-1] if y is not None] == values[1_000:1_401][inside].tolist()


def test_empty_view_has_its_neighbouring_points(long_run):
    run, steps, _ = long_run
    gap = int(np.flatnonzero(np.diff(steps[2_000:2_100]) == 3)[0]) + 2_000
    line = the_line(run, low=steps[gap] + 1, high=steps[gap] + 2)
    assert line.x == [steps[gap], steps[gap + 1]]
    assert the_line(run, low=-10.0, high=-5.0).x == [steps[0]]
    assert the_line(run, low=steps[-1] + 5.0, high=steps[-1] + 9.0).x == [steps[-1]]


def test_view_between_two_segments_has_both_neighbours(tmp_path):
    folder = write(tmp_path / "r", [START])
    run = opened(folder, 1)
    for number in range(0, 50, 10):
        append(folder, [step(number, a=float(number))])
        run.refresh()
    assert len(segments(folder)) == 6
    assert the_line(run, low=11.0, high=19.0).x == [10.0, 20.0]
    assert the_line(run, low=10.0, high=20.0).x == [0.0, 10.0, 20.0, 30.0]


def test_inverted_view_has_at_most_two_points(long_run):
    run, _, _ = long_run
    assert len(run.series("a", low=5_000.0, high=100.0)[0][0].x) <= 2


@given(
    st.lists(st.tuples(st.integers(-20, 20), VALUES), min_size=2, max_size=300),
    st.sampled_from([16, 100]),
    st.sampled_from([1, 1 << 20]),
    st.tuples(st.integers(-25, 25), st.integers(-25, 25)).map(sorted),
)
def test_unsorted_steps_keep_their_extremes(items, num_points, size, view):
    with fresh_folder() as path:
        folder = write(path, [START, step(0, a=0.0)])
        run = opened(folder, size)
        append(folder, [step(at, a=value) for at, value in items])
        run.refresh()
        recorded = [(0.0, 0.0)] + [(float(at), value) for at, value in items if math.isfinite(value)]
        for low, high in ((None, None), view):
            found, _ = run.series("a", low=low, high=high, num_points=num_points)
            drawn = [(x, y) for _, _, x, y in points(found)]
            seen = [item for item in recorded if low is None or low <= item[0] <= high]
            assert set(drawn) <= set(recorded)
            assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
            assert len(drawn) <= num_points + 2
            if seen:
                assert {min(y for _, y in seen), max(y for _, y in seen)} <= {y for _, y in drawn}
                assert len(drawn) >= min(len(seen), 2)
            for line in found:
                if line.mean_count:
                    assert sum(line.mean_count) == line.num_points
                    total = sum(mean * count for mean, count in zip(line.mean_y, line.mean_count, strict=True))
                    assert total == pytest.approx(sum(y for _, y in seen), abs=1.0)


def test_nan_breaks_an_unsorted_line(tmp_path):
    records = [step(0, a=1.0), step(1, a=2.0), step(2, a=math.nan), step(3, a=4.0), step(-1, a=5.0)]
    found, marks = opened(write(tmp_path / "r", [START, *records])).series("a")
    assert [(mark.x, mark.kind, mark.count) for mark in marks] == [(2.0, "NaN", 1)]
    assert found[0].y == [5.0, 1.0, 2.0, None, 4.0]


def test_marks_have_kind_and_count(tmp_path):
    kinds = [math.nan, math.inf, -math.inf, 1.0]
    records = [step(i // 2, a=kinds[i % 4]) for i in range(8)]
    run = opened(write(tmp_path / "r", [START, *records]))
    _, marks = run.series("a")
    found = sorted((mark.x, mark.kind, mark.count) for mark in marks)
    assert found == [
        (0.0, "Infinity", 1),
        (0.0, "NaN", 1),
        (1.0, "-Infinity", 1),
        (2.0, "Infinity", 1),
        (2.0, "NaN", 1),
        (3.0, "-Infinity", 1),
    ]
    _, marks = run.series("a", low=1.0, high=2.0)
    assert sorted(mark.x for mark in marks) == [1.0, 2.0, 2.0]


def test_series_of_only_nan_has_marks_and_no_line(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i, a=math.nan) for i in range(3_000)), END])
    for run in (opened(folder, 1), opened(folder, 1)):
        found, marks = run.series("a")
        assert found == []
        assert 0 < len(marks) <= 500
        assert sum(mark.count for mark in marks) == 3_000
        assert run.metrics()["a"].num_not_finite == 3_000


def test_each_attempt_is_a_separate_line(tmp_path):
    records = [step(i, a=float(i)) for i in range(10)]
    folder = write(tmp_path / "r", [START, *records, {**START, "resumed": True}, *records[5:]])
    for run in (opened(folder, 1), opened(folder, 1)):
        found, _ = run.series("a")
        assert [(line.attempt, line.x) for line in found] == [
            (0, [*map(float, range(10))]),
            (1, [*map(float, range(5, 10))]),
        ]


def test_means_of_very_large_numbers_do_not_overflow(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i, a=1.7e308) for i in range(1_000))])
    line = the_line(opened(folder, 1), num_points=16)
    assert line.mean_y == pytest.approx([1.7e308] * len(line.mean_y))


def test_unknown_metric_is_empty(long_run):
    assert long_run[0].series("no such thing") == ([], [])


def test_export_is_consistent_while_the_run_grows(tmp_path, script):
    """One thread exports all points while others refresh the run."""
    folder = write(tmp_path / "r", [START])
    source = """
        import itertools, sys, threading, time
        from tests.store import *
        sys.setswitchinterval(1e-6)
        folder = RunFolder(sys.argv[1])
        run, done, faults, end = opened(folder), threading.Event(), [], time.monotonic() + 4
        def export():
            try:
                while not done.is_set():
                    rows = list(itertools.chain(*run.points(["a"], axis="step", low=None, high=None)))
                    assert [row[2] for row in rows] == [row[5] for row in rows] == list(range(len(rows)))
            except Exception as error:
                faults.append(error)
        exporters = [threading.Thread(target=export) for _ in range(3)]
        for exporter in exporters:
            exporter.start()
        try:
            for number in itertools.count(step=200):
                append(folder, [step(i, a=float(i)) for i in range(number, number + 200)])
                run.refresh()
                if faults or time.monotonic() > end:
                    break
        except Exception as error:
            faults.append(error)
        done.set()
        for exporter in exporters:
            exporter.join()
        print(faults)
        """
    assert script(source, folder.path, env={"PYTHONPATH": os.getcwd()}).ok().strip() == "[]"


def test_line_goes_through_the_extremes_of_windows(tmp_path):
    window = {"window_steps": 10, "loss/mean": 2.0, "loss/min": -9.0, "loss/max": 7.0}
    records = [
        *(step(i, loss=1.0, **{"acc/max": 5.0}) for i in range(3)),
        step(10, loss=2.0, acc=0.5, **window),
        step(20, loss=math.nan, **window),
        step(30, loss=3.0, window_steps=10),
    ]
    run = opened(write(tmp_path / "r", [START, *records]))
    (line,), (mark,) = run.series("loss")
    expected = [(0, 1), (1, 1), (2, 1), (10, 2), (10, -9), (10, 7), (10, 2), (20, -9), (20, 7), (25, None), (30, 3)]
    assert list(zip(line.x, line.y, strict=True)) == expected
    assert (mark.x, mark.kind) == (20, "NaN")
    # The extremes count neither as points nor in means.
    assert line.num_points == 5
    assert list(zip(line.mean_x, line.mean_y, line.mean_count, strict=True)) == [
        (x, y, 1) for x, y in [(0, 1), (1, 1), (2, 1), (10, 2), (30, 3)]
    ]
    assert run.aggregates()["loss"].mean == pytest.approx(8 / 5)
    assert points(run.series("acc")[0]) == [("step", 0, 10.0, 0.5)]
    # Of many windows, some are left out, but no extreme.
    many = [step(i, loss=1.0, **(window | {"loss/max": float(i == 777) * 50 + 3})) for i in range(5_000)]
    (line,), _ = opened(write(tmp_path / "many", [START, *many])).series("loss", num_points=100)
    assert max(y for y in line.y if y is not None) == 53.0
    assert len(line.x) <= 102
    assert sum(line.mean_count) == line.num_points == 5_000
