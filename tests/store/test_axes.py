"""Computed axes: samples, tokens and training time at each step, with and without resumes, from tail and segments."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tachograph.store._axes import Knots
from tachograph.store._knots_budget import KnotsBudget, compact_knots
from tests.store import END, START, append, opened, points, segments, step, write

CONFIG = {"batch_size": 4, "world_size": 2, "config": {"data": {"seq_len": 8}}}
"""8 samples and 64 tokens per step."""


def places(folder, axis, name="a"):
    """Return the position of each value on an axis, which must be the same from the tail and from segments."""
    found = []
    for size in (32 << 20, 400):
        run = opened(folder, size)
        found.append({y: x for _, _, x, y in points(run.series(name, axis=axis, num_points=10**6)[0])})
    assert segments(folder)
    assert found[0] == found[1]
    exported = [row for block in run.points([name], axis=axis, low=None, high=None) for row in block]
    assert {row[-1]: row[-2] for row in exported} == found[0]
    return found[0]


def rows(numbers, shift=0.0, **values):
    """Return steps whose `a` is their number plus a shift."""
    return [step(i, a=float(i) + shift, **{key: value(i) for key, value in values.items()}) for i in numbers]


@pytest.mark.parametrize("first", [0, 1])
def test_config_states_samples_and_tokens_per_step(tmp_path, first):
    folder = write(tmp_path / "r", [{**START, **CONFIG}, *rows(range(first, 100)), END])
    done = {float(i): i + 1 - first for i in range(first, 100)}
    assert places(folder, "samples") == {i: 8.0 * count for i, count in done.items()}
    assert places(folder, "tokens") == {i: 64.0 * count for i, count in done.items()}


def test_batch_size_of_each_attempt_counts(tmp_path):
    larger = {**START, **CONFIG, "batch_size": 16}
    folder = write(tmp_path / "r", [{**START, **CONFIG}, *rows(range(1, 51)), larger, *rows(range(41, 61), 1000), END])
    found = places(folder, "samples")
    assert [found[40.0], found[50.0]] == [320.0, 400.0]  # as it was, though repeated later
    assert [found[1041.0], found[1060.0]] == [320.0 + 32, 320.0 + 20 * 32]


def test_run_that_starts_late_counts_the_steps_before(tmp_path):
    folder = write(tmp_path / "r", [{**START, **CONFIG}, *rows(range(101, 150)), END])
    assert places(folder, "samples")[101.0] == 808.0


def test_counter_of_tokens_is_used_and_continued(tmp_path):
    counted = rows(range(1, 101), num_tokens=lambda i: 100 * i if i % 10 == 0 else None)
    counted = [{key: value for key, value in record.items() if value is not None} for record in counted]
    folder = write(tmp_path / "r", [{**START, **CONFIG}, *counted[:95]])
    found = places(folder, "tokens")
    assert [found[float(i)] for i in (1, 10, 15, 90, 95)] == [100.0, 1000.0, 1500.0, 9000.0, 9500.0]
    # The resumed run repeats steps from 81 on, and its counter starts again.
    again = rows(range(81, 121), 1000, num_tokens=lambda i: 200 * (i - 80))
    append(folder, [{**START, "resumed": True}, *again, END])
    found = places(folder, "tokens")
    assert [found[95.0], found[1081.0], found[1120.0]] == [9500.0, 8200.0, 16000.0]


def test_tokens_of_each_step_add_up(tmp_path):
    folder = write(tmp_path / "r", [START, *rows(range(1, 101), num_tokens_per_step=lambda i: i), END])
    assert places(folder, "tokens") == {float(i): i * (i + 1) / 2 for i in range(1, 101)}


def test_windows_of_steps_count_all_their_steps(tmp_path):
    records = rows(
        range(10, 110, 10),
        window_steps=lambda i: 10,
        num_tokens_per_step=lambda i: 999,
        **{"num_tokens_per_step/mean": lambda i: 50.0 + i},
        sec_per_step=lambda i: 0.5,
    )
    folder = write(tmp_path / "r", [START, *records, END])
    assert places(folder, "tokens")[30.0] == 10 * (60 + 70 + 80)
    assert places(folder, "training_time")[100.0] == 50.0


def window(at, iterations, sec, **fields):
    named = {f"window/{key}": value for key, value in {"iterations": iterations, "sec": sec, **fields}.items()}
    return step(at, **named)


def test_windows_of_iterations_state_amounts_and_training_time(tmp_path):
    # 10 seconds each, of which 2 for validation: 8 seconds, in which 80 samples of 16 tokens were seen.
    windows = [
        window(at, 10, 10.0, share_validation=0.2, share_forward=0.5, samples_per_sec=10.0, tokens_per_sec=160.0)
        for at in (9, 19, 29)
    ]
    idle = {**window(29, 0, 5.0, share_other=1.0), "time": 1040.0}
    folder = write(tmp_path / "r", [START, *rows(range(30)), *windows, idle, END])
    assert places(folder, "samples") == {float(i): 8.0 * (i + 1) for i in range(30)}
    assert places(folder, "tokens")[29.0] == 3 * 1280.0
    assert places(folder, "training_time") == pytest.approx({float(i): 0.8 * (i + 1) for i in range(30)})


def test_training_time_leaves_out_interruptions_pauses_and_gaps(tmp_path):
    pace = {20: 7.0, 40: 9.0, 60: 500.0, 80: 3.0}
    records = rows(range(1, 101), sec_per_step=lambda i: pace.get(i, 1.0))
    del records[0]["sec_per_step"]  # the first step of a process has none
    validation = {"event": "validation", "time": 1019.5, "global_step": 19, "val_loss": 1.0}
    checkpoint = {"event": "checkpoint", "time": 1039.5, "global_step": 39, "checkpoint_path": "x"}
    records = [*records[:19], validation, *records[19:39], checkpoint, *records[39:]]
    resumed = {**START, "time": 9000.0, "resumed": True}
    again = [{**record, "time": 9000.0 + record["global_step"]} for record in rows(range(91, 111), 1000)]
    for record in again[1:]:
        record["sec_per_step"] = 2.0
    folder = write(tmp_path / "r", [START, *records, resumed, *again, END])
    found = places(folder, "training_time")
    # Step 80 was slow, but nothing interrupted it; the others count as long as the median step.
    assert [found[float(i)] for i in (1, 19, 20, 40, 60, 79, 80, 100)] == [1, 19, 20, 40, 60, 79, 82, 102]
    # The lost work from step 91 on stays part of the time.
    assert [found[1091.0], found[1110.0]] == [104.0, 142.0]
    assert places(folder, "training_time", "val_loss") == {1.0: 19.0}


def test_run_without_the_data_states_what_is_missing(tmp_path):
    run = opened(write(tmp_path / "r", [START, *rows(range(10))]))
    assert run.series("a", axis="tokens") == ([], [])
    assert "num_tokens" in (run.axis_problem("tokens") or "")
    assert "global_batch_size" in (run.axis_problem("samples") or "")
    assert "time per step" in (run.axis_problem("training_time") or "")
    assert run.axis_problem("epoch") is None
    restarted = write(tmp_path / "restarted", [{**START, **CONFIG}, *rows([0, 1, 2, 0, 1, 2])])
    assert "decrease" in (opened(restarted).axis_problem("samples") or "")


def test_wide_view_on_computed_axis_keeps_extremes(tmp_path):
    """More points than are read one by one: the positions of whole chunks are used."""
    values = np.random.default_rng(1).normal(size=40_000)
    values[[5_000, 31_234]] = [77.0, -77.0]
    records = [{**START, **CONFIG}, *(step(i, a=float(value)) for i, value in enumerate(values)), END]
    run = opened(write(tmp_path / "r", records), 1 << 20)
    assert segments(run.folder)
    lines, _ = run.series("a", axis="samples", num_points=100)
    drawn = dict(zip(lines[0].x, lines[0].y, strict=True))
    assert drawn[8.0 * 5_001] == 77.0
    assert drawn[8.0 * 31_235] == -77.0
    assert (lines[0].x[0], lines[0].x[-1]) == (8.0, 320_000.0)
    assert all(values[int(x / 8) - 1] == y for x, y in drawn.items())


def test_kept_knots_follow_the_journal(tmp_path):
    """Positions are computed once for several requests, and again when the journal grows."""
    folder = write(tmp_path / "r", [START, *rows(range(1, 20_001), sec_per_step=lambda i: 0.5 + i % 3)])
    run = opened(folder)

    def asked():
        lines = run.series("a", axis="training_time", num_points=10**6)[0]
        kept = run._cached_knots
        run.release()
        return [x for _, _, x, _ in points(lines)], kept

    first, kept = asked()
    again, kept_again = asked()
    assert first == again and kept_again is kept is not None
    clock = run.training_times()
    assert clock is not None and clock[1][-1] == first[-1]
    append(folder, rows([20_001], sec_per_step=lambda i: 7.0))
    run.refresh()
    later, _ = asked()
    assert later[:-1] == first and later[-1] == first[-1] + 7.0
    assert later == [x for _, _, x, _ in points(opened(folder).series("a", axis="training_time", num_points=10**6)[0])]


def test_knots_of_all_runs_share_one_limit():
    class Run:
        is_dropped = False

        def drop_knots(self):
            self.is_dropped = True

    steps = np.arange(10_000, dtype=np.float64)
    knots = compact_knots({0: Knots(steps, steps / 2)})
    other = compact_knots({0: Knots(steps.copy(), steps / 3)})
    assert knots[0].steps is other[0].steps  # runs of a sweep record the same steps
    runs = [Run() for _ in range(3)]
    budget = KnotsBudget(200_000, recent_s=1e9)
    assert [budget.reserve(run, knots) for run in runs] == [True, True, False]
    assert budget.used_bytes == 160_000
    assert budget.reserve(runs[0], knots) and budget.used_bytes == 160_000
    del runs[0]
    gc.collect()
    assert budget.used_bytes == 80_000 and budget.reserve(runs[1], knots)
    old = KnotsBudget(100_000, recent_s=0.0)
    assert old.reserve(runs[0], knots) and old.reserve(runs[1], knots)
    assert (runs[0].is_dropped, runs[1].is_dropped, old.used_bytes) == (True, False, 80_000)
    assert not old.reserve(runs[0], {0: Knots(np.arange(20_000.0), np.zeros(20_000))})
