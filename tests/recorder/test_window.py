"""`log_every`: fewer records, and each says over which steps its numbers are."""

from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from tachograph.testing import MemoryRun


def steps(run: MemoryRun) -> list[dict]:
    return [record for record in run.records if record["event"] == "step"]


def test_every_tenth_step_with_what_lay_between():
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
    assert "lr/mean" not in records[1]  # it did not vary
    assert "train_loss/mean" not in records[0]  # one value is its own mean


def test_the_tail_is_written_at_the_end():
    run = MemoryRun(log_every=100)
    for step in range(130):
        run.log(loss=1.0, step=step)
    run.finish()
    assert [(record["global_step"], record["window_steps"]) for record in steps(run)] == [(0, 1), (100, 100), (129, 29)]


def test_all_that_is_logged_for_the_due_step_is_in_its_record():
    run = MemoryRun(log_every=5)
    for step in range(6):
        run.log(a=float(step), step=step)
        run.log(b=float(step), step=step)
    run.finish()
    assert [(record["global_step"], record["a"], record["b"]) for record in steps(run)] == [(0, 0, 0), (5, 5, 5)]
    assert steps(run)[1]["window_steps"] == 5


def test_a_due_step_that_was_written_in_two_parts_is_counted_once():
    run = MemoryRun(log_every=10)
    for step in range(21):
        run.log(a=1.0, step=step)
        assert run.records is not None  # the writer looks between the two
        run.log(b=2.0, step=step)
    run.finish()
    assert sum(record["window_steps"] for record in steps(run)) == 21


def test_a_loop_that_logs_more_rarely_loses_nothing():
    run = MemoryRun(log_every=5)
    for step in range(0, 50, 10):
        run.log(loss=1.0, step=step)
    run.finish()
    assert [record["global_step"] for record in steps(run)] == [0, 10, 20, 30, 40]


def test_steps_without_numbers_are_counted():
    run = MemoryRun(log_every=4)
    for _ in range(9):
        run.log(loss=1.0)
    run.finish()
    assert [record["global_step"] for record in steps(run)] == [0, 4, 8]


def test_going_back_begins_a_new_window():
    run = MemoryRun(log_every=10)
    for step in [*range(26), *range(10, 31)]:
        run.log(loss=float(step), step=step)
    run.finish()
    assert [record["global_step"] for record in steps(run)] == [0, 10, 20, 25, 10, 20, 30]


def test_a_nan_inside_a_window_is_counted_and_marked():
    run = MemoryRun(log_every=10)
    for step in range(11):
        run.log(loss=math.nan if step == 5 else 1.0 + step, step=step)
    run.finish()
    record = steps(run)[1]
    assert record["loss/nonfinite"] == 1
    assert record["loss/mean"] == statistics.mean(1.0 + step for step in range(1, 11) if step != 5)
    assert record["nan_inf_detected"] is True
    assert steps(run)[0]["nan_inf_detected"] is False


def test_texts_and_bad_values_in_a_window():
    run = MemoryRun(log_every=5)
    for step in range(6):
        run.log({"phase": f"p{step}", "bad": object(), "loss": 1.0, "flag": True}, step=step)
    run.finish()
    record = steps(run)[1]
    assert (record["phase"], record["flag"], record["loss"]) == ("p5", True, 1.0)
    assert "bad" not in record
    assert [error["field"] for error in run.records if error["event"] == "telemetry_error"] == ["bad"]


def test_the_control_really_changes_it():
    run = MemoryRun()
    for step in range(10):
        run.log(loss=1.0, step=step)
    run.ask(log_every=10)
    for step in range(10, 51):
        run.log(loss=1.0, step=step)
    run.clock.advance(31)
    run.ask(log_every=20)
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
