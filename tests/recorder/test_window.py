"""`log_every`: one record per window of steps, with statistics over that window."""

from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from tachograph.testing import MemoryRun


def steps(run: MemoryRun) -> list[dict]:
    """Return the step records of a run."""
    return [record for record in run.records if record["event"] == "step"]


def test_log_every_summarises_steps_between_records():
    run = MemoryRun(log_every=10)
    for step in range(31):
        run.log(train_loss=float(step), lr=0.1, step=step)
        run.clock.advance(0.5)
    run.finish()
    records = steps(run)
    assert [record["global_step"] for record in records] == [0, 10, 20, 30]
    assert [record["window_steps"] for record in records] == [1, 10, 10, 10]
    assert records[1]["train_loss"] == 10.0
    assert (records[1]["train_loss/mean"], records[1]["train_loss/min"], records[1]["train_loss/max"]) == (5.5, 1, 10)
    assert records[1]["sec_per_step"] == 0.5
    assert "lr/mean" not in records[1]  # constant values get no statistics
    assert "train_loss/mean" not in records[0]  # a window of one step gets no statistics


def test_finish_writes_partial_window():
    run = MemoryRun(log_every=100)
    for step in range(130):
        run.log(loss=1.0, step=step)
    run.finish()
    assert [(record["global_step"], record["window_steps"]) for record in steps(run)] == [(0, 1), (100, 100), (129, 29)]


def test_due_step_record_merges_its_log_calls():
    run = MemoryRun(log_every=5)
    for step in range(6):
        run.log(a=float(step), step=step)
        run.log(b=float(step), step=step)
    run.finish()
    assert [(record["global_step"], record["a"], record["b"]) for record in steps(run)] == [(0, 0, 0), (5, 5, 5)]
    assert steps(run)[1]["window_steps"] == 5


def test_due_step_written_in_two_parts_counts_once():
    run = MemoryRun(log_every=10)
    for step in range(21):
        run.log(a=1.0, step=step)
        assert run.records is not None  # reading the records flushes between the two calls
        run.log(b=2.0, step=step)
    run.finish()
    assert sum(record["window_steps"] for record in steps(run)) == 21


def test_sparse_logging_keeps_every_step():
    run = MemoryRun(log_every=5)
    for step in range(0, 50, 10):
        run.log(loss=1.0, step=step)
    run.finish()
    assert [record["global_step"] for record in steps(run)] == [0, 10, 20, 30, 40]


def test_implicit_steps_form_windows():
    run = MemoryRun(log_every=4)
    for _ in range(9):
        run.log(loss=1.0)
    run.finish()
    assert [record["global_step"] for record in steps(run)] == [0, 4, 8]


def test_decreasing_step_starts_new_window():
    run = MemoryRun(log_every=10)
    for step in [*range(26), *range(10, 31)]:
        run.log(loss=float(step), step=step)
    run.finish()
    assert [record["global_step"] for record in steps(run)] == [0, 10, 20, 25, 10, 20, 30]


def test_nan_in_window_is_counted_and_flagged():
    run = MemoryRun(log_every=10)
    for step in range(11):
        run.log(loss=math.nan if step == 5 else 1.0 + step, step=step)
    run.finish()
    record = steps(run)[1]
    assert record["loss/nonfinite"] == 1
    assert record["loss/mean"] == statistics.mean(1.0 + step for step in range(1, 11) if step != 5)
    assert record["nan_inf_detected"] is True
    assert steps(run)[0]["nan_inf_detected"] is False


def test_window_keeps_last_text_and_drops_bad_value():
    run = MemoryRun(log_every=5)
    for step in range(6):
        run.log({"phase": f"p{step}", "bad": object(), "loss": 1.0, "flag": True}, step=step)
    run.finish()
    record = steps(run)[1]
    assert (record["phase"], record["flag"], record["loss"]) == ("p5", True, 1.0)
    assert "bad" not in record
    assert [error["field"] for error in run.records if error["event"] == "telemetry_error"] == ["bad"]


def test_log_every_request_changes_window_length():
    run = MemoryRun()
    for step in range(10):
        run.log(loss=1.0, step=step)
    run.request(log_every=10)
    for step in range(10, 51):
        run.log(loss=1.0, step=step)
    run.clock.advance(31)
    run.request(log_every=20)
    for step in range(51, 101):
        run.log(loss=1.0, step=step)
    run.finish()
    numbers = [record["global_step"] for record in steps(run)]
    assert numbers[:10] == list(range(10))
    assert numbers[10:15] == [10, 20, 30, 40, 50]
    assert numbers[-2:] == [80, 100]


@given(
    st.integers(2, 7),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=700),
)
def test_windows_account_for_every_step(log_every, values):
    run = MemoryRun(log_every=log_every)
    for step, value in enumerate(values):
        run.log(x=value, step=step)
    run.finish()
    records = steps(run)
    assert sum(record["window_steps"] for record in records) == len(values)
    position = 0
    for record in records:
        part = values[position : position + record["window_steps"]]
        position += record["window_steps"]
        assert record["global_step"] == position - 1
        finite = [value for value in part if math.isfinite(value)]
        assert record.get("x/nonfinite", 0) == len(part) - len(finite)
        assert record["nan_inf_detected"] == (len(finite) < len(part))
        if "x/mean" in record:
            assert record["x/min"] == min(finite)
            assert record["x/max"] == max(finite)
            assert math.isclose(
                record["x/mean"], statistics.fmean(finite), rel_tol=1e-9, abs_tol=1e-9 * max(map(abs, finite))
            )
        else:
            assert len(set(finite)) <= 1
