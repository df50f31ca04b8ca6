"""Goodput over attempts, crashes and resumes, checked against hand-computed values."""

from __future__ import annotations

import io
import signal
import time

import pytest
from rich.console import Console

import tachograph
from tachograph.cli._show import render, summary
from tachograph.reader import RunHistory
from tachograph.records import encode
from tests.conftest import wait_for

T0 = 1_700_000_000.0


def journal(tmp_path, *records: dict) -> RunHistory:
    """Write a journal with the records and read it; `at` is in seconds since the start."""
    folder = tmp_path / "x"
    folder.mkdir()
    lines = [encode({"event": record.pop("event"), "time": T0 + record.pop("at"), **record}) for record in records]
    (folder / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return tachograph.read(folder)


def start(at, **fields):
    """Return the start record of an attempt."""
    return {"event": "start", "at": at, "run_id": "0" * 16, **fields}


def loop(at, first):
    """Return the start record of a training loop."""
    attributes = {"train_iterations_start": first}
    return {"event": "span_start", "at": at, "span_id": f"loop{at}", "name": "training_loop", "attributes": attributes}


def window(at, step, iterations, sec, **shares):
    """Return a step record for a window, with the share of each phase."""
    fields = {f"window/share_{name}": share for name, share in shares.items()}
    return {
        "event": "step", "at": at, "global_step": step, "window/iterations": iterations, "window/sec": sec, **fields,
    }  # fmt: skip


def saved(at, iterations):
    """Return the event of a successful checkpoint that covers a number of iterations."""
    return {"event": "event", "at": at, "name": "save_checkpoint_success", "productive_train_iterations": iterations}


def nonzero_fields(history: RunHistory) -> dict[str, float]:
    """Return the non-zero fields of the goodput."""
    goodput = history.goodput
    assert goodput is not None
    return {name: pytest.approx(value) for name, value in goodput_fields(goodput).items() if value}


def goodput_fields(goodput) -> dict[str, float]:
    """Return all fields of the goodput."""
    return {name: getattr(goodput, name) for name in goodput.__struct_fields__}


def test_goodput_accounts_for_all_time_of_finished_run(tmp_path):
    history = journal(
        tmp_path,
        start(0),
        {"event": "span", "at": 8, "span_id": "a", "name": "checkpoint_load", "duration_s": 4},  # counts as startup
        loop(10, 0),
        window(60, 49, 50, 50, iteration=0.5, data=0.2, checkpoint=0.1, validation=0.1, other=0.1),
        {"event": "span_stop", "at": 60, "span_id": "loop10", "name": "training_loop", "duration_s": 50},
        {"event": "span_start", "at": 60, "span_id": "v", "name": "validation_loop"},
        {"event": "span", "at": 65, "span_id": "c", "parent_id": "v", "name": "checkpoint_save_sync", "duration_s": 3},
        {"event": "span_stop", "at": 70, "span_id": "v", "name": "validation_loop", "duration_s": 10},
        {"event": "span", "at": 90, "span_id": "t", "name": "testing_loop", "duration_s": 20},
        {"event": "end", "at": 100, "status": "finished"},
    )
    assert goodput_fields(history.goodput) == {
        "wall_s": 100.0, "productive_s": 25.0, "start_up_s": 10.0, "data_s": 10.0, "checkpoint_s": 8.0,
        "validation_s": 12.0, "testing_s": 20.0, "stalled_s": 0.0, "lost_s": 0.0, "down_s": 0.0, "unreported_s": 0.0,
        "idle_s": 15.0,
    }  # fmt: skip
    assert history.goodput.share == 0.25


def test_crash_loses_iterations_since_checkpoint(tmp_path):
    history = journal(
        tmp_path,
        start(0),
        loop(10, 0),
        window(30, 19, 20, 20, iteration=1.0),
        saved(30, 20),
        window(50, 39, 20, 20, iteration=1.0),
        {"event": "system", "at": 55, "cpu_pct": 1.0},  # the last record before the crash
        start(100, resumed=True),
        loop(120, 20),
        window(140, 39, 20, 20, iteration=1.0),
        {"event": "end", "at": 150, "status": "finished"},
    )
    assert goodput_fields(history.goodput) == {
        "wall_s": 150.0, "productive_s": 40.0, "start_up_s": 30.0, "data_s": 0.0, "checkpoint_s": 0.0,
        "validation_s": 0.0, "testing_s": 0.0, "stalled_s": 0.0, "lost_s": 25.0, "down_s": 45.0, "unreported_s": 0.0,
        "idle_s": 10.0,
    }  # fmt: skip


def test_resume_inside_window_loses_part_of_it(tmp_path):
    history = journal(
        tmp_path,
        start(0),
        loop(0, 0),
        window(40, 39, 40, 40, iteration=1.0),
        start(40, resumed=True),
        loop(40, 30),
        window(50, 39, 10, 10, iteration=1.0),
        {"event": "end", "at": 50, "status": "finished"},
    )
    assert nonzero_fields(history) == {"wall_s": 50.0, "productive_s": 40.0, "lost_s": 10.0}


@pytest.mark.parametrize(("checkpoints", "productive_s"), [([saved(30, 20)], 20.0), ([], 0.0)])
def test_failed_run_keeps_iterations_in_checkpoint(tmp_path, checkpoints, productive_s):
    history = journal(
        tmp_path,
        start(0),
        loop(0, 0),
        window(30, 29, 30, 30, iteration=1.0),
        *checkpoints,
        {"event": "end", "at": 30, "status": "failed"},
    )
    assert history.goodput.productive_s == pytest.approx(productive_s)
    assert history.goodput.lost_s == pytest.approx(30.0 - productive_s)


def test_logged_checkpoint_counts_as_saved(tmp_path):
    history = journal(
        tmp_path,
        start(0),
        loop(0, 0),
        window(30, 29, 30, 30, iteration=1.0),
        {"event": "checkpoint", "at": 30, "global_step": 9, "checkpoint_path": "x"},
        {"event": "end", "at": 30, "status": "failed"},
    )
    assert nonzero_fields(history) == {"wall_s": 30.0, "productive_s": 10.0, "lost_s": 20.0}


def test_application_start_time_extends_start_up(tmp_path):
    history = journal(
        tmp_path,
        start(100),
        {"event": "span_start", "at": 0, "span_id": "a", "name": "application"},
        loop(110, 0),
        window(150, 39, 40, 40, iteration=1.0),
        {"event": "end", "at": 150, "status": "finished"},
    )
    assert nonzero_fields(history) == {"wall_s": 150.0, "productive_s": 40.0, "start_up_s": 110.0}


def test_goodput_without_iterations_is_none(tmp_path):
    history = journal(tmp_path, start(0), {"event": "step", "at": 5, "global_step": 1, "train_loss": 1.0})
    assert history.goodput is None
    assert summary(history)["goodput"] is None


def show(history: RunHistory, width: int = 100) -> str:
    """Return the output of `tacho show`."""
    console = Console(width=width, file=io.StringIO())
    console.print(render(history))
    return console.file.getvalue()


LOOP = """
import os, sys, time
import tachograph as tacho

with tacho.init("x", log_dir=sys.argv[1], resume=True, system_interval_s=0, git=False, flush_interval_s=0.05):
    tacho.set_training_config(log_every_n_train_iterations=5, global_batch_size=4)
    first = int(sys.argv[2])
    with tacho.application(), tacho.training_loop(first):
        for step in range(first, 20):
            with tacho.training_iteration():
                with tacho.forward():
                    time.sleep(0.01)
            if step % 10 == 9:
                with tacho.checkpoint_save(step):
                    time.sleep(0.02)
            if step == int(sys.argv[3]):
                with tacho.timed_span("stuck"):
                    print("stuck", flush=True)
                    time.sleep(3600)
"""


def test_long_spans_are_visible_while_open_and_after_sigkill(script, logs):
    child = script(LOOP, logs, 0, 16)
    assert child.process.stdout is not None
    while child.process.stdout.readline() != "stuck\n":
        pass

    def open_spans() -> list[str]:
        return [span.name for span in tachograph.read(logs / "x").spans() if span.status == "open"]

    wait_for(lambda: open_spans() == ["application", "training_loop", "stuck"], what="the open spans")
    live = tachograph.read(logs / "x")
    assert live.span_groups["application"].seconds(time.time()) > 0.1
    assert "still open" in show(live)
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    crashed = tachograph.read(logs / "x")
    assert {span.name: span.status for span in crashed.spans()} == {
        "application": "died", "training_loop": "died", "stuck": "died", "checkpoint_save_sync": "ok",
    }  # fmt: skip
    assert "open at crash" in show(crashed)
    assert crashed.goodput.lost_s > 0.04  # of 17 iterations, those after the checkpoint at step 9
    script(LOOP, logs, 10, 99).ok()
    resumed = tachograph.read(logs / "x")
    assert len(resumed.attempts) == 2
    assert resumed.session_tag == crashed.session_tag  # a resume belongs to the same session
    statuses = [(span.attempt, span.name, span.status) for span in resumed.spans()]
    assert (0, "stuck", "died") in statuses and (1, "training_loop", "ok") in statuses
    assert 20 * 0.01 <= resumed.goodput.productive_s < resumed.goodput.wall_s
    assert 0.0 < resumed.goodput.share < 1.0


def test_show_prints_spans_progress_and_goodput(tmp_path):
    history = journal(
        tmp_path,
        start(0, session_tag="job-7"),
        {"event": "span_start", "at": 0, "span_id": "app", "name": "application"},
        loop(10, 0) | {"parent_id": "app"},
        window(60, 49, 50, 50, forward=0.25, backward=0.25, data=0.25, other=0.25),
        {
            "event": "event", "at": 60, "name": "training_metrics_update", "num_iterations": 50,
            "avg_iteration_time_sec": 0.5, "window_iterations": 50, "window_iteration_sec_p50": 0.5,
            "window_iteration_sec_p95": 0.75, "window_samples_per_sec": 64.0, "window_mfu": 0.4,
        },
        saved(60, 50) | {"current_iteration": 49, "checkpoint_directory": "out/step49", "checkpoint_size": 2_000_000},
        {"event": "span_stop", "at": 60, "span_id": "loop10", "name": "training_loop", "duration_s": 50},
        {"event": "span_stop", "at": 70, "span_id": "app", "name": "application", "duration_s": 70},
        {"event": "end", "at": 70, "status": "finished"},
    )  # fmt: skip
    text = show(history)
    for expected in (
        "job-7", "50 iterations, 500 ms on average; last 50: p50 500 ms, p95 750 ms; 64 samples/s; MFU 40.0%",
        "application", "  training_loop", "· waiting for data", "out/step49", "2.0 MB",
        "goodput  35.7%  25 s of productive training in 1 min 10 s", "startup", "waiting for data",
    ):  # fmt: skip
        assert expected in text, text
    assert show(history, width=60)
    assert "before the first record" not in text


def test_run_time_and_goodput_add_up_for_a_launched_run(tmp_path):
    history = journal(
        tmp_path,
        start(30),
        {"event": "span_start", "at": 0, "span_id": "app", "name": "application"},
        loop(30, 0),
        window(80, 49, 50, 50, forward=1.0),
        {"event": "span_stop", "at": 80, "span_id": "app", "name": "application", "duration_s": 80},
        {"event": "end", "at": 80, "status": "finished"},
        start(100, resumed=True),
        {"event": "span_start", "at": 95, "span_id": "app2", "name": "application"},
        {"event": "end", "at": 110, "status": "finished"},
    )
    assert history.before_first_record_s == 30.0
    assert history.goodput.wall_s == history.duration_s + history.before_first_record_s == 110.0
    text = " ".join(show(history, width=200).split())
    assert "run time 1 min 20 s, 1 min 00 s of it in 2 attempts, and 30 s before the first record" in text
    assert "50 s of productive training in 1 min 50 s, 30 s of them before the first record" in text
    assert summary(history)["before_first_record_s"] == 30.0


HOSTILE = [
    {"event": "span_stop", "at": 1, "span_id": "never-started", "name": "x", "duration_s": 1},
    {"event": "span_start", "at": 1, "span_id": 7, "name": "x"},
    {"event": "span_start", "at": 1, "span_id": "a", "parent_id": "b", "name": "a"},
    {"event": "span_start", "at": 1, "span_id": "b", "parent_id": "a", "name": "b"},
    {"event": "span_start", "at": 1, "span_id": "a", "name": "a"},
    {"event": "span", "at": 1, "span_id": "c", "parent_id": "c", "name": "c", "duration_s": -5},
    {"event": "span", "at": 1, "span_id": "d", "name": "d", "duration_s": float("nan")},
    {"event": "span", "at": 1, "span_id": "e", "name": "e", "duration_s": "long"},
    {"event": "span", "at": 1, "span_id": "f", "name": {"a": 1}, "attributes": "none", "duration_s": 1},
    {"event": "span", "at": 1, "span_id": "g", "name": "\x1b[31mred", "duration_s": 10**300},
    {"event": "span_start", "at": 1, "span_id": "h", "name": "training_loop", "attributes": [1]},
    {"event": "step", "at": 2, "global_step": "x", "window/sec": 3, "window/iterations": 1},
    {"event": "step", "at": 2, "global_step": 3, "window/sec": float("inf"), "window/iterations": -1},
    {"event": "step", "at": 2, "global_step": 3, "window/sec": 1.0, "window/iterations": 0, "window/share_data": "x"},
    {"event": "event", "at": 2, "name": "save_checkpoint_success", "productive_train_iterations": "all"},
    {"event": "event", "at": 2, "name": "training_metrics_update", "num_iterations": None},
]


def test_show_tolerates_inconsistent_journal(tmp_path):
    history = journal(tmp_path, start(0), *[dict(record) for record in HOSTILE])
    assert isinstance(history.spans(), list)
    text = show(history)
    assert "\x1b[31m" not in text
    assert summary(history)["spans"] is not None


def hang(at, status, alert="1", rule="rank_hang", **evidence):
    """Return a record of an alert about a run that hangs."""
    return {"event": "alert", "at": at, "id": alert, "rule": rule, "status": status, "evidence": evidence}


def test_time_of_a_hang_is_stalled_and_not_training(tmp_path):
    history = journal(
        tmp_path,
        start(0),
        loop(0, 0),
        window(100, 99, 100, 100, backward=1.0),
        hang(200, "opened", waited_s=100),
        hang(300, "resolved"),
        window(400, 199, 100, 300, backward=1.0),  # contains the hang
        {"event": "span_stop", "at": 400, "span_id": "loop0", "name": "training_loop", "duration_s": 400},
        {"event": "end", "at": 400, "status": "finished"},
    )
    assert nonzero_fields(history) == {"wall_s": 400.0, "productive_s": 200.0, "stalled_s": 200.0}
    assert history.goodput.share == pytest.approx(0.5)


def test_job_that_ends_while_it_hangs_is_stalled_until_then(tmp_path):
    history = journal(
        tmp_path,
        start(0),
        loop(0, 0),
        window(100, 99, 100, 100, iteration=1.0),
        saved(100, 100),
        hang(160, "opened", waited_s=60),
        hang(170, "resolved"),
        hang(170, "opened", alert="2", rule="rank_gone"),
        {"event": "end", "at": 700, "status": "failed", "reason": "SIGTERM"},
    )
    assert nonzero_fields(history) == {"wall_s": 700.0, "productive_s": 100.0, "stalled_s": 600.0}
