"""Durations of a run during which someone set the wall clock. Its journal has a `clock_set` event."""

from __future__ import annotations

import time

import pytest

import tachograph
from tachograph.cli._time import recorded_s
from tachograph.journal import RunFolder
from tachograph.reader import overview
from tachograph.records import clock_jump_s
from tachograph.server._views import build_run_detail
from tachograph.sinks.notify._builder import BuilderState, MessageBuilder
from tachograph.sinks.notify._settings import NotifySettings
from tests.store import END, START, opened, step, write

JUMPS = [-3_600.0, 3_600.0]
"""An hour back, and an hour forward."""


def clock_set(time_s, jump_s, **more):
    return {"event": "event", "time": time_s, "name": "clock_set", "jump_s": jump_s, **more}


def journal(jump_s, *, num_steps=20, **more):
    """Return records of a run of `num_steps` seconds whose clock is set after half of them."""
    half = num_steps // 2
    late = 1_000.0 + jump_s
    loop = {"event": "span_start", "span_id": "0a", "name": "training_loop"}
    window = {"event": "step", "global_step": half, "window/sec": 1.0, "window/iterations": 1}
    return [
        START,
        {**loop, "time": 1_000.0},
        {"event": "alert", "time": 1_001.0, "id": "a", "rule": "hang", "status": "opened", "severity": "warning"},
        *(step(number, a=1.0) for number in range(half)),
        {**window, "time": 1_000.0 + half},
        clock_set(late + half, jump_s, **more),
        {"event": "alert", "time": late + half + 1, "id": "a", "rule": "hang", "status": "resolved"},
        *({**step(number, a=1.0), "time": late + number} for number in range(half, num_steps)),
        {**window, "time": late + num_steps, "global_step": num_steps},
    ]


@pytest.mark.parametrize("jump_s", JUMPS)
@pytest.mark.parametrize("status", ["finished", None], ids=["finished", "crashed"])
def test_durations_ignore_a_clock_change(tmp_path, jump_s, status):
    end = [{**END, "time": 1_020.0 + jump_s}] if status else []
    folder = write(tmp_path / "r", [*journal(jump_s), *end])
    row = overview(folder)
    assert row.duration_s == pytest.approx(20.0)
    assert row.pace_s == pytest.approx(1.0, rel=0.2)
    assert row.recent_pace_s == pytest.approx(1.0, rel=0.2)
    for run in (tachograph.read(folder.path), opened(folder, 1).digest, opened(folder, 1 << 30).digest):
        (attempt,) = run.attempts
        assert attempt.duration_s() == recorded_s(attempt) == pytest.approx(20.0)
        assert attempt.last_time == pytest.approx(1_020.0 + jump_s)
        assert run.goodput.wall_s == pytest.approx(20.0)
        (alert,) = run.alerts
        assert alert.resolved_time - alert.opened_time == pytest.approx(10.0)
    if status:  # the loop never ended
        assert [span.duration_s for span in tachograph.read(folder.path).spans("training_loop")] == [20.0]
        (died,) = opened(folder, 1)._unfinished_spans()
        assert died.duration_s == pytest.approx(20.0)
    assert build_run_detail(opened(folder)).attempts[0].duration_s == pytest.approx(20.0)


@pytest.mark.parametrize("jump_s", JUMPS)
@pytest.mark.parametrize("last", ["heartbeat", "end"])
def test_long_journal_is_not_read_for_a_clock_change(tmp_path, jump_s, last):
    """The event is far from both ends of the journal, so the total comes from the heartbeat or the last record."""
    run = tachograph.init("x", log_dir=str(tmp_path), console=False, system_interval_s=0, git=False)
    run.finish()
    folder = RunFolder(run.folder.path)
    start = next(tachograph.read(folder.path).records("start"))
    records = [start, *journal(jump_s, num_steps=4_000)[1:]]
    if last == "end":
        records.append({**END, "time": 5_000.0 + jump_s, "clock_jumps_s": jump_s})
    else:
        heartbeat = folder.heartbeat.read_bytes()
        assert b'"clock_jumps_s":0.0' in heartbeat
        folder.heartbeat.write_bytes(heartbeat.replace(b'"clock_jumps_s":0.0', f'"clock_jumps_s":{jump_s}'.encode()))
    for record in records:
        record["time"] += start["time"] - 1_000.0 if record is not start else 0.0
    write(folder.path, records)
    assert overview(folder).duration_s == pytest.approx(4_000.0)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_notification_gives_the_true_duration(jump_s):
    builder = MessageBuilder("r", NotifySettings(), BuilderState())
    records = [*journal(jump_s), {**END, "time": 1_020.0 + jump_s, "status": "failed"}]
    messages = [message for record in records for message in builder.handle(record)]
    assert messages[-1].duration_s == pytest.approx(20.0)


def test_recorder_marks_the_clock_change_exactly(tmp_path, monkeypatch):
    """Every record before the event has the old time, every later one the new; a resumed run continues the total."""
    real = time.time
    for resume in (False, True):
        run = tachograph.init("x", log_dir=str(tmp_path), resume=resume, flush_interval_s=0.01, system_interval_s=0)
        monkeypatch.setattr(time, "time", lambda: real() + 7_200)
        deadline_s = time.monotonic() + 60
        while run.backend.wall_s(time.perf_counter()) < real() + 3_600 and time.monotonic() < deadline_s:
            run.log(a=1.0)
            time.sleep(0.0005)
        run.log(a=1.0)
        run.finish()
        monkeypatch.undo()
    total_s, kinds = 0.0, []
    records = list(tachograph.read(tmp_path / "x").records())
    began_s = records[0]["time"]
    for record in records:
        if record["event"] == "start":
            offset_s = 0.0  # the clock of the machine was not really changed
        offset_s += clock_jump_s(record)
        total_s += clock_jump_s(record)
        assert -1 <= record["time"] - offset_s - began_s < 120, record
        if "clock_jumps_s" in record:
            kinds.append((record["event"], round(record["clock_jumps_s"] / 7_200)))
            assert record["clock_jumps_s"] == pytest.approx(total_s, abs=0.01)
    assert kinds == [("event", 1), ("end", 1), ("start", 1), ("event", 2), ("end", 2)]
