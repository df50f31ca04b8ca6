"""Columns compared with a simple line reader: all records are present, however they were read."""

from __future__ import annotations

import collections
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tachograph
from tachograph.journal import RunFolder, read_records
from tachograph.records import is_number
from tachograph.store import StoredRun
from tests.store import END, START, append, digest_of, fresh_folder, lines, opened, points, segments, step, write

NUMBERS = st.one_of(
    st.floats(),
    st.floats(-10, 10),
    st.integers(-5, 5),
    st.integers(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 10**200, -(10**299), 10**301, 5e-324, 1.7e308]),
)
VALUES = st.one_of(NUMBERS, NUMBERS, NUMBERS, st.none(), st.booleans(), st.sampled_from(["", "text", "NaN"]))
NAMES = ["a", "b", "deep/c"]
HUGE = 10**30  # too large to be a valid step
KINDS = ["step"] * 3 + ["system"] * 2 + "window validation epoch event span start bad alert".split()


@st.composite
def journals(draw):
    """Draw a journal: kinds may share fields, clocks may go back, the first line may be missing."""
    now, at = 1_000.0, 0
    found = [START] if draw(st.integers(0, 5)) else []
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(KINDS))
        if kind == "start":
            at -= draw(st.integers(0, 10))  # a resumed run may repeat steps
        names = draw(st.lists(st.sampled_from(NAMES), unique=True))
        has_epoch = kind == "step" and draw(st.booleans())
        for _ in range(draw(st.sampled_from([1, 1, 2, 12]))):
            now += draw(st.sampled_from([0.0, 0.5, 1.0, 1.0, -2.0]))
            at += draw(st.sampled_from([0, 1, 1, 1, 5, -3])) if kind in {"step", "window", "validation"} else 0
            values = {name: draw(VALUES) for name in names}
            if has_epoch:
                values["epoch"] = draw(st.sampled_from([0, 0.5, 1, 2, None]))
            huge = draw(st.integers(0, 30)) == 0
            found.append(_record(kind, now, HUGE if huge else at, values, len(found)))
    return [*found, {**END, "time": now}] if draw(st.booleans()) else found


def _record(kind, now, at, values, number):
    match kind:
        case "window":
            extra = {"window/sec": 0.5, "window/iterations": 2, "window/share_forward": 0.5}
            return {"event": "step", "time": now, "global_step": at, **values, **extra}
        case "system":
            return {"event": "system", "time": now, **values}
        case "event":
            return {"event": "event", "time": now, "name": "something", **values}
        case "span":
            whole = {"event": "span", "span_id": f"{number:016x}", "name": "s", "duration_s": 0.25}
            return {**whole, "time": now, **({"parent_id": f"{number - 1:016x}"} if number % 2 else {})}
        case "alert":
            status = ("opened", "updated", "resolved")[number % 3]
            fault = {"id": f"{number % 2}", "rule": "x", "status": status, "occurrence": {"step": at}}
            return {"event": "alert", "time": now, "global_step": at, **fault}
        case "start":
            return {**START, "time": now, "resumed": True}
        case "bad":
            return b'{"event": "step", "time": ' + str(number).encode()
    return {"event": kind, "time": now, "global_step": at, **values}


def read_by_hand(folder):
    """Return attempt, step and value of each point by name, read directly from the lines."""
    found = collections.defaultdict(list)
    attempt, at = -1, 0
    for record in read_records(folder.journal):
        attempt += record["event"] == "start" or attempt < 0
        if record["event"] not in {"step", "validation", "epoch", "system"}:
            continue
        at = at if record.get("global_step") == HUGE else record.get("global_step", at)
        for name, value in record.items():
            if is_number(value) and name not in {"event", "time", "global_step"}:
                found[name].append((attempt, at, float(value)))
    return found


def check(run: StoredRun, folder: RunFolder) -> None:
    history = tachograph.read(folder.path)
    assert digest_of(run) == digest_of(history)
    expected = read_by_hand(folder)
    assert set(run.metric_names) == set(expected) == set(history.metrics)
    exported = collections.defaultdict(list)
    for block in run.points(run.metric_names, axis="step", low=None, high=None):
        for name, attempt, at, _time, _epoch, value in block:
            exported[name].append((attempt, at, value))
    for name, wanted in expected.items():
        series = history.series(name)
        by_history = list(zip(series.attempts.tolist(), series.steps.tolist(), series.values.tolist(), strict=True))
        assert repr(by_history) == repr(wanted)
        found, marks = run.series(name, num_points=10**6)
        drawn = [(attempt, int(x), y) for _, attempt, x, y in points(found)]
        assert run.metrics()[name].last_step == history.metrics[name].last_step
        finite = [item for item in wanted if math.isfinite(item[-1])]
        assert sorted(drawn) == sorted(finite)
        assert sorted(map(repr, exported[name])) == sorted(map(repr, wanted))
        assert sum(line.num_points for line in found) == len(finite)
        kinds = collections.Counter({"NaN": 0, "Infinity": 0, "-Infinity": 0})
        for mark in marks:
            kinds[mark.kind] += mark.count
        values = [item[-1] for item in wanted]
        counts = {
            "NaN": sum(map(math.isnan, values)),
            "Infinity": values.count(math.inf),
            "-Infinity": values.count(-math.inf),
        }
        assert kinds == counts


@settings(max_examples=2 * settings.default.max_examples)
@given(journals())
def test_columns_match_the_lines_of_any_journal(journal):
    with fresh_folder() as path:
        folder = write(path, journal)
        check(opened(folder), folder)


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)
@given(journals(), st.randoms(use_true_random=False), st.sampled_from([1, 200, 1_000]))
def test_columns_match_when_read_in_parts_and_segments(journal, chance, segment_bytes):
    data = lines(journal)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(6))  # anywhere, also inside lines
    with fresh_folder() as path:
        folder = write(path, [])
        run = StoredRun(folder, segment_bytes=segment_bytes)
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            with open(folder.journal, "ab") as file:
                file.write(data[begin:end])
            if chance.random() < 0.3:
                run = StoredRun(folder, segment_bytes=segment_bytes)
            run.refresh()
        check(run, folder)
        check(opened(folder, segment_bytes), folder)


@st.composite
def long_journals(draw):
    """Draw a journal that is mostly plain steps, whose names come and go, and whose values are sometimes odd."""
    chance = draw(st.randoms(use_true_random=False))
    ordinary = draw(st.sampled_from([["a"], ["a", "b", "deep/c"], ["a", "epoch", "flag", "text"]]))
    found = [START] if draw(st.booleans()) else []
    at = 0
    for _ in range(draw(st.integers(1, 4))):
        rare = draw(st.sampled_from(["", "", "b", "epoch", 'é \\ "', "late"]))
        odd = draw(
            st.sampled_from([None, None, math.nan, -math.inf, 7, 10**30, 10**301, "text", "NaN", True, None, [1]])
        )
        for _ in range(chance.choice([3, 9, 40])):
            at += chance.choice([1, 1, 1, 2, 0])
            values = {"a": at / 7, "b": -at, "deep/c": 1e-9 * at, "epoch": at // 10, "flag": at % 2 == 0, "text": "x"}
            record = step(at, **{name: values[name] for name in ordinary})
            if rare and chance.random() < 0.2:
                record[rare] = float(at)
            if odd is not None and chance.random() < 0.1:
                record[chance.choice([*ordinary, "time"])] = odd
            if odd == 7 and chance.random() < 0.05:
                record["global_step"] = HUGE
            found.append(record)
        kinds = draw(st.lists(st.sampled_from(["system", "window", "start", "bad", "event"]), max_size=2))
        found += [_record(kind, 1_000.0 + at, at, {"a": 0.5}, len(found)) for kind in kinds]
    return found


@settings(max_examples=2 * settings.default.max_examples)
@given(long_journals())
def test_steps_are_the_same_however_they_are_decoded(journal):
    compact = lines(journal)
    with fresh_folder() as path, fresh_folder() as other:
        folder = write(path, compact.split(b"\n")[:-1])
        check(opened(folder), folder)
        # Only lines as the recorder writes them are decoded as columns.
        spaced = write(other, compact.replace(b'{"event":"step",', b'{"event": "step",').split(b"\n")[:-1])
        found, expected = opened(folder), opened(spaced)
        assert repr(found.metrics()) == repr(expected.metrics())
        assert all_points(found) == all_points(expected)


def all_points(run):
    blocks = run.points(run.metric_names, axis="time", low=None, high=None)
    return [repr(point) for block in blocks for point in block]


@pytest.mark.slow
def test_long_journal_is_split_into_segments(tmp_path):
    chance = random.Random(1)
    values = [chance.choice([chance.gauss(0, 1), math.nan, 3]) for _ in range(20_000)]
    folder = write(tmp_path / "r", [START, *(step(i, a=value, b=1.0) for i, value in enumerate(values)), END])
    first = opened(folder, segment_bytes=1 << 18)
    assert len(segments(folder)) >= 2
    second = opened(folder, segment_bytes=1 << 18)
    check(first, folder)
    check(second, folder)
    x = [place for _, _, place, _ in points(second.series("a", num_points=10**6)[0])]
    assert x == [float(i) for i, value in enumerate(values) if not math.isnan(value)]


def test_points_keep_their_order_when_steps_repeat(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i // 3, a=float(i)) for i in range(60))])
    found = points(opened(folder).series("a")[0])
    assert [y for *_, y in found] == [float(i) for i in range(60)]


def test_time_and_epoch_axes_match_the_records(tmp_path):
    records = [
        START,
        step(0, a=1.0),
        step(1, a=2.0, epoch=0.5),
        step(2, a=3.0),
        {**START, "resumed": True},
        step(3, a=4.0),
        step(4, a=5.0, epoch=7),
    ]
    folder = write(tmp_path / "r", records)
    for run in (opened(folder), opened(folder, 1), opened(folder, 1)):
        assert points(run.series("a", axis="time")[0]) == [
            ("step", attempt, 1_000.0 + i, i + 1.0) for i, attempt in enumerate([0, 0, 0, 1, 1])
        ]
        found = points(run.series("a", axis="epoch")[0])
        assert [(attempt, y) for _, attempt, _, y in found] == [(0, 1.0), (0, 2.0), (0, 3.0), (1, 4.0), (1, 5.0)]
        assert [x for _, _, x, _ in found] == pytest.approx([0.0, 0.5, 0.5 + 6.5 / 3, 0.5 + 13 / 3, 7.0])


def epoch_positions(folder, name="a"):
    """Return the position of each step on the epoch axis, from the tail and from segments."""
    found = [
        {y: x for _, _, x, y in points(run.series(name, axis="epoch", num_points=10**6)[0])}
        for run in (opened(folder), opened(folder, 1), opened(folder, 1))
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize("first", [0, 1])
def test_steps_are_spread_over_their_epoch(tmp_path, first):
    records = [START, *(step(i, a=float(i), epoch=first + i // 100) for i in range(250))]
    found = epoch_positions(write(tmp_path / "r", records))
    assert [found[i] - first for i in (0, 49, 99, 100, 199, 249)] == pytest.approx([0.01, 0.5, 1.0, 1.01, 2.0, 2.5])
    one = epoch_positions(write(tmp_path / "one", records[:101]))
    assert [one[i] - first for i in (0, 99)] == pytest.approx([0.01, 1.0])


@pytest.mark.parametrize("first", [0, 1])
def test_epoch_records_place_the_steps_before_them(tmp_path, first):
    records = [START]
    for i in range(300):
        records.append(step(i, a=float(i)))
        if i % 100 == 99:
            records.append({**step(i, epoch=first + i // 100, b=float(i)), "event": "epoch"})
    folder = write(tmp_path / "r", records)
    found = epoch_positions(folder)
    assert [found[i] for i in (0, 49, 99, 199, 299)] == pytest.approx([0.01, 0.5, 1.0, 2.0, 3.0])
    assert list(epoch_positions(folder, "b").values()) == pytest.approx([1.0, 2.0, 3.0])


def test_epoch_axis_continues_in_a_resumed_run(tmp_path):
    before = [step(i, a=float(i), epoch=i // 100) for i in range(150)]
    after = [step(i, a=1000.0 + i, epoch=i // 100) for i in range(120, 300)]
    found = epoch_positions(write(tmp_path / "r", [START, *before, {**START, "resumed": True}, *after]))
    assert found[130.0] == found[1130.0] == pytest.approx(1.31)
    assert found[1299.0] == pytest.approx(3.0)


def test_epochs_stay_as_recorded_where_steps_restart(tmp_path):
    records = [START, *(step(i % 100, a=float(i), epoch=i // 100) for i in range(300))]
    found = epoch_positions(write(tmp_path / "r", records))
    assert [found[i] for i in (0, 99, 100, 299)] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    "odd", [None, "soon", math.nan, math.inf, True, [], 10**400, -1e300], ids=lambda odd: repr(odd)[:9]
)
def test_invalid_time_affects_only_the_time_axis(tmp_path, odd):
    folder = write(tmp_path / "r", [START, step(0, a=1.0), {**step(1, a=2.0), "time": odd}, step(2, a=3.0)])
    for run in (opened(folder, 1), opened(folder, 1)):
        assert points(run.series("a")[0]) == [("step", 0, float(i), i + 1.0) for i in range(3)]
        assert {y for *_, y in points(run.series("a", axis="time")[0])} >= {1.0, 3.0}


def test_record_without_a_time_keeps_its_step(tmp_path):
    folder = write(tmp_path / "r", [START, {"event": "step", "global_step": 1, "a": 1.0}, step(2, a=2.0)])
    run = opened(folder)
    assert points(run.series("a")[0]) == [("step", 0, 1.0, 1.0), ("step", 0, 2.0, 2.0)]
    assert points(run.series("a", axis="time")[0]) == [("step", 0, 1_002.0, 2.0)]


@pytest.mark.parametrize(
    "huge", [2**53, 2**55, 2**63, 10**30, -(10**30), 10**400], ids=lambda huge: f"{len(str(huge))} digits"
)
def test_step_too_large_for_a_chart_affects_no_other_point(tmp_path, huge):
    folder = write(tmp_path / "r", [START, step(0, a=1.0), {**step(1, a=2.0), "global_step": huge}])
    run = opened(folder, 1)
    append(folder, [step(2, a=3.0)])
    run.refresh()
    for reader in (run, opened(folder, 1)):
        found = points(reader.series("a")[0])
        assert [(x, y) for _, _, x, y in found if y != 2.0] == [(0.0, 1.0), (2.0, 3.0)]


def test_kinds_with_the_same_fields_are_kept_apart(tmp_path):
    same_fields = [step(1, a=1.0), {**step(2, a=2.0), "event": "validation"}, {**step(3, a=3.0), "event": "checkpoint"}]
    folder = write(tmp_path / "r", [START, *same_fields, step(4, a=4.0)])
    expected = digest_of(tachograph.read(folder.path))
    assert digest_of(opened(folder, 1)) == expected
    assert digest_of(opened(folder, 1)) == expected


@pytest.mark.parametrize("kinds", [("step", "validation", "step"), ("validation", "step", "epoch", "validation")])
def test_last_value_is_the_latest_across_kinds(tmp_path, kinds):
    records = [{**step(i, epoch=float(i)), "event": kind, f"of_{kind}": None} for i, kind in enumerate(kinds)]
    folder = write(tmp_path / "r", [START, *records])
    for run in (opened(folder, 1), opened(folder, 1)):
        assert run.metrics() == tachograph.read(folder.path).metrics
        assert run.metrics()["epoch"].last == len(kinds) - 1


def test_metric_in_steps_and_windows_has_two_lines(tmp_path):
    window = {**step(2, loss=2.0), "window/sec": 1.0, "window/iterations": 2}
    folder = write(tmp_path / "r", [START, step(1, loss=1.0), window, step(3, loss=3.0)])
    run = opened(folder)
    found, _ = run.series("loss")
    assert [(line.stream, line.x, line.y) for line in found] == [
        ("step", [1.0, 3.0], [1.0, 3.0]),
        ("window", [2.0], [2.0]),
    ]
    assert run.metrics()["loss"] == tachograph.read(folder.path).metrics["loss"]


def test_start_with_the_fields_of_a_step_opens_an_attempt(tmp_path):
    bare = [{"event": "start", "time": 1.0, "a": 0}, {"event": "step", "time": 2.0, "a": 1.0}]
    folder = write(
        tmp_path / "r", [*bare, {"event": "start", "time": 3.0, "a": 0}, {"event": "step", "time": 4.0, "a": 2.0}]
    )
    for run in (opened(folder, 1), opened(folder, 1)):
        assert len(run.digest.attempts) == 2
        assert [(attempt, y) for _, attempt, _, y in points(run.series("a")[0])] == [(0, 1.0), (1, 2.0)]


def test_journal_without_its_first_line_is_read(tmp_path):
    folder = write(tmp_path / "r", [b"\0\0\0", *(step(i, a=float(i)) for i in range(20))])
    expected = digest_of(tachograph.read(folder.path))
    assert digest_of(opened(folder, 1)) == expected
    assert digest_of(opened(folder, 1)) == expected


def test_readers_agree_on_an_attempt_without_a_start(tmp_path):
    folder = write(tmp_path / "r", [step(0, a=1.0), START, step(1, a=2.0)])
    series = tachograph.read(folder.path).series("a")
    assert [attempt for _, attempt, _, _ in points(opened(folder).series("a")[0])] == series.attempts.tolist()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="before any step"),
        pytest.param([step(5, a=1.0)], id="after a step"),
        pytest.param([step(5, a=1.0), {**START, "resumed": True}], id="before the first step of a later attempt"),
        pytest.param(
            [step(5, a=1.0), {"event": "validation", "time": 1_006.0, "global_step": 9, "v": 1.0}],
            id="after a validation",
        ),
        pytest.param(
            [step(5, a=1.0), {**step(3), "window/sec": 1.0, "window/iterations": 2}], id="after a late window"
        ),
    ],
)
def test_readers_agree_on_samples_without_a_step(tmp_path, before):
    folder = write(tmp_path / "r", [START, *before, {"event": "system", "time": 1_010.0, "cpu": 50.0}])
    history = tachograph.read(folder.path)
    run = opened(folder)
    assert [x for _, _, x, _ in points(run.series("cpu")[0])] == history.series("cpu").steps.tolist()
    assert run.metrics()["cpu"].last_step == history.metrics["cpu"].last_step


def test_last_time_does_not_depend_on_batching(tmp_path):
    times = [1_001.0, 1_050.0, *(1_002.0 + i for i in range(20))]  # a clock that was set back
    records = [START, *({"event": "step", "time": time, "global_step": i, "a": 1.0} for i, time in enumerate(times))]
    whole = opened(write(tmp_path / "whole", records))
    folder = write(tmp_path / "bits", [])
    bits = opened(folder)
    for record in records:
        append(folder, [record])
        bits.refresh()
    assert whole.digest.attempts[0].last_time == bits.digest.attempts[0].last_time == 1_050.0


def test_last_time_is_restored_from_segments(tmp_path):
    span = {"event": "span_start", "time": 1_001.0, "span_id": "00000000000000ab", "name": "loop"}
    late = {"event": "event", "time": 1_005.0, "name": "late"}  # a record may have an earlier time
    folder = write(
        tmp_path / "r", [START, span, *(step(i, a=1.0) for i in range(20, 40)), late, {**START, "time": 2_000.0}]
    )
    first, second = opened(folder, 1), opened(folder, 1)
    died = [run.spans(None, None, num_points=100, max_spans=10).duration_s for run in (first, second)]
    assert died == [[38.0], [38.0]]
    assert digest_of(first) == digest_of(second) == digest_of(tachograph.read(folder.path))


def test_numpy_and_python_numbers_round_trip(tmp_path):
    with tachograph.init("r", log_dir=str(tmp_path), git=False, system_interval_s=0) as run:
        for number in range(50):
            run.log(a=np.float32(number) / 3, b=number, step=number)
    folder = RunFolder(tmp_path / "r")
    check(opened(folder, 1), folder)
    check(opened(folder, 1), folder)


def test_long_line_is_read(tmp_path):
    folder = RunFolder(tmp_path / "r")
    write(
        folder.path,
        [START, {"event": "event", "time": 2_000.0, "name": "long", "text": "x" * 3_000_000}, step(1, a=1.0), END],
    )
    for run in (opened(folder), opened(folder)):
        assert run.metrics()["a"].count == 1
        assert len(run.digest.latest("event")[0]["text"]) == 3_000_000
