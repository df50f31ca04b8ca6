"""The timeline: the longest spans individually, the rest in clusters, none lost."""

from __future__ import annotations

import random

import pytest

import tachograph
from tachograph.journal import RunFolder
from tests.conftest import wait_for
from tests.store import END, START, append, hears, opened, write


def span(number, start, seconds, *, name="work", parent=None, **fields):
    """Return a span as one record, with the time of its end."""
    found = {"event": "span", "time": start + seconds, "span_id": f"{number:016x}", "name": name, "duration_s": seconds}
    return {**found, **({} if parent is None else {"parent_id": f"{parent:016x}"}), **fields}


def begun(number, start, **fields):
    return {"event": "span_start", "time": start, "span_id": f"{number:016x}", "name": "open", **fields}


def view(run, low=None, high=None, *, num_points=1_000, most=20_000):
    return run.spans(low, high, num_points=num_points, max_spans=most)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Return two readers of 5,000 spans of three depths, and the expected spans."""
    chance = random.Random(5)
    records, truth = [], []
    now = 2_000.0
    for number in range(3, 5_003):
        seconds = chance.choice([0.001, 0.01, 0.5])
        parent = number - 1 if number % 3 else None
        records.append(
            span(
                number,
                now,
                seconds,
                name=f"name {number % 7}",
                parent=parent,
                status="error" if number % 50 == 0 else "ok",
            )
        )
        truth.append((now, seconds, number % 3))
        now += chance.random()
    folder = write(tmp_path_factory.mktemp("many") / "r", [START, *records, END])
    return opened(folder, 1), opened(folder, 1), truth


def test_all_spans_are_returned_individually(many):
    for run in many[:2]:
        found = view(run)
        assert found.heaps == []
        assert found.num_spans == len(found.id) == 5_000
        assert found.start == pytest.approx([start for start, _, _ in many[2]])
        assert found.duration_s == pytest.approx([seconds for _, seconds, _ in many[2]])
        assert found.depth == [depth for _, _, depth in many[2]]
        assert [found.names[index] for index in found.name[:3]] == ["name 3", "name 4", "name 5"]
        assert found.status.count("error") == 100
        assert all(parent == (index - 1 if index % 3 else -1) for index, parent in enumerate(found.parent))
        assert {
            len(column)
            for column in (
                found.name,
                found.parent,
                found.start,
                found.duration_s,
                found.depth,
                found.status,
                found.attempt,
            )
        } == {5_000}


@pytest.mark.parametrize("most", [1, 10, 100, 4_999])
@pytest.mark.parametrize("num_points", [16, 1_000])
def test_clusters_and_spans_add_up(many, most, num_points):
    truth = many[2]
    found = view(many[1], most=most, num_points=num_points)
    assert len(found.id) == most
    assert found.num_spans == 5_000
    assert most + sum(heap.count for heap in found.heaps) == 5_000
    total_s = sum(found.duration_s) + sum(heap.total_s for heap in found.heaps)
    assert total_s == pytest.approx(sum(seconds for _, seconds, _ in truth))
    for depth in range(3):
        count = found.depth.count(depth) + sum(heap.count for heap in found.heaps if heap.depth == depth)
        assert count == sum(item[2] == depth for item in truth)
    assert min(found.duration_s) >= max((heap.total_s / heap.count for heap in found.heaps), default=0.0) - 1e-9
    assert len(found.heaps) <= 3 * (num_points + 2)
    assert all(heap.end >= heap.start and heap.name.startswith("name ") for heap in found.heaps)
    assert view(many[1], most=most, num_points=num_points) == found


def test_clusters_cover_the_spans_of_their_depth(many):
    starts = {depth: [start for start, _, at in many[2] if at == depth] for depth in range(3)}
    for heap in view(many[0], most=1, num_points=64).heaps:
        inside = [start for start in starts[heap.depth] if heap.start - 1e-9 <= start <= heap.end + 1e-9]
        assert len(inside) >= heap.count


def test_view_has_the_spans_that_overlap_it(many):
    truth = many[2]
    low, high = truth[1_000][0], truth[1_200][0]
    found = view(many[0], low, high)
    expected = [start for start, seconds, _ in truth if start <= high and start + seconds >= low]
    assert found.num_spans == len(expected)
    assert found.start == pytest.approx(expected)
    assert view(many[0], 10.0, 20.0).num_spans == 0


def test_span_is_open_until_it_stops(tmp_path, script):
    trainer = script(
        """
        import sys, tachograph
        run = tachograph.init("r", log_dir=sys.argv[1], git=False, system_interval_s=0, flush_interval_s=0.01)
        with tachograph.timed_span("outer"):
            with tachograph.timed_span("inner"):
                run.event("inside")
                run.flush()
                print("open", flush=True)
                sys.stdin.readline()
            run.flush()
            print("closed", flush=True)
            sys.stdin.readline()
        """,
        tmp_path,
    )
    hears(trainer, "open")
    run = opened(RunFolder(tmp_path / "r"))
    found = view(run)
    assert [found.names[index] for index in found.name] == ["outer", "inner"]
    assert found.status == ["open", "open"]
    assert found.duration_s == [None, None]
    assert found.parent == [-1, 0]
    trainer.process.stdin.write("\n")
    trainer.process.stdin.flush()
    hears(trainer, "closed")
    run.refresh()
    found = view(run)
    by_name = {
        found.names[name]: (status, parent)
        for name, status, parent in zip(found.name, found.status, found.parent, strict=True)
    }
    assert by_name["inner"] == ("ok", found.name.index(found.names.index("outer")))
    assert by_name["outer"][0] == "open"
    trainer.process.kill()
    trainer.process.wait()
    wait_for(lambda: "died" in view(run).status, what="the death of the trainer")
    found = view(run)
    assert found.duration_s[found.status.index("died")] >= 0.0


def test_readers_agree_on_spans_of_a_dead_attempt(tmp_path):
    records = [
        START,
        begun(1, 1_001.0),
        begun(2, 1_002.0, parent_id=f"{1:016x}"),
        {"event": "event", "time": 1_010.0, "name": "last"},
    ]
    folder = write(
        tmp_path / "r",
        [*records, {**START, "time": 1_100.0, "resumed": True}, span(3, 1_101.0, 1.0), {**END, "time": 1_200.0}],
    )
    expected = sorted(
        (item.name, item.start, item.duration_s, item.status, item.attempt)
        for item in tachograph.read(folder.path).spans()
    )
    for run in (opened(folder, 1), opened(folder, 1)):
        found = view(run)
        names = [found.names[index] for index in found.name]
        assert sorted(zip(names, found.start, found.duration_s, found.status, found.attempt, strict=True)) == expected
        assert found.status.count("died") == 2


def test_open_spans_after_the_view_are_excluded(tmp_path):
    folder = write(tmp_path / "r", [START, begun(1, 1_000.0), begun(2, 5_000.0)])
    found = view(opened(folder), 2_000.0, 3_000.0)
    assert found.start == [1_000.0]
    assert found.num_spans == 1


def test_interrupted_spans_before_the_view_are_excluded(tmp_path):
    folder = write(tmp_path / "r", [START, begun(1, 1_000.0), {**END, "time": 1_010.0}])
    assert view(opened(folder), 2_000.0, 3_000.0).num_spans == 0


@pytest.mark.parametrize("name", ["short", "F" * 16, "0x1234567890abcd", "ключ"])
def test_span_with_an_unusual_id_is_found(tmp_path, name):
    whole = {**span(1, 1_000.0, 1.0), "span_id": name}
    child = {**span(2, 1_000.0, 0.5), "parent_id": name}
    folder = write(tmp_path / "r", [START, whole, child, begun(3, 1_000.5, parent_id=name)])
    run = opened(folder)
    found = view(run)
    assert name in found.id
    assert found.parent.count(found.id.index(name)) == 2
    assert [record for record in run.kept_records() if record.get("span_id") == found.id[found.id.index(name)]] == [
        whole
    ]


def test_open_spans_are_read_incrementally(tmp_path):
    folder = write(tmp_path / "r", [START])
    run = opened(folder, 1)
    for number in range(1, 40):
        append(folder, [begun(number, 1_000.0 + number)])
        run.refresh()
        stop = {"event": "span_stop", "time": 1_001.0 + number, "span_id": f"{number:016x}", "duration_s": 1.0}
        append(folder, [stop] if number % 2 else [])
        run.refresh()
    for reader in (run, opened(folder, 1)):
        found = view(reader)
        assert (found.num_spans, found.status.count("open"), found.status.count("ok")) == (39, 19, 20)


@pytest.mark.parametrize("seconds", [None, "long", -5.0, float("nan"), 1e300])
def test_invalid_duration_is_harmless(tmp_path, seconds):
    folder = write(tmp_path / "r", [START, {**span(1, 1_000.0, 1.0), "duration_s": seconds}, span(2, 1_000.0, 1.0)])
    for run in (opened(folder, 1), opened(folder, 1)):
        assert view(run).num_spans == 2
        assert view(run, most=1, num_points=16).num_spans == 2
