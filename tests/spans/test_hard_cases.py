"""Things that went wrong once, or were tried to make them go wrong."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

import tachograph
from tachograph import (
    application,
    checkpoint_save,
    forward,
    set_training_config,
    spans,
    timed_span,
    training_iteration,
    training_loop,
)
from tachograph.cli._show import summary
from tachograph.exceptions import ConfigError, TachographError
from tachograph.reader import read
from tachograph.records import to_json
from tachograph.spans import Attributes, Event, TracingTimestamp, get_recorder, recorder_of
from tests.conftest import lines_of

QUICK = {"system_interval_s": 0, "git": False, "console": False}


def updates(records):
    return [record for record in records if record.get("name") == "training_metrics_update"]


def test_a_forked_child_is_not_caught_in_a_lock_of_its_parent(script, tmp_path):
    script(
        """
        import os, threading, tachograph
        from tachograph import timed_span
        tachograph.init("x", log_dir="logs", system_interval_s=0)

        def spin():
            while True:
                with timed_span("busy"):
                    pass

        for _ in range(3):
            threading.Thread(target=spin, daemon=True).start()
        for _ in range(40):
            child = os.fork()
            if not child:
                with timed_span("child"):
                    pass
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        os._exit(0)
        """,
        cwd=tmp_path,
    ).ok(timeout_s=60)


def test_threads_that_begin_together_begin_one_run(script, tmp_path):
    script(
        """
        import sys, threading, tachograph
        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(8)

        def work():
            barrier.wait()
            with tachograph.timed_span("a"):
                pass

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        """,
        cwd=tmp_path,
    ).ok()
    (run,) = (tmp_path / "logs").iterdir()
    assert len(read(run).spans("a")) == 8


def test_a_burst_of_spans_loses_nothing(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK):
        with application():
            for _ in range(30_000):
                with timed_span("tokenize"):
                    pass
    history = read(logs / "x")
    assert history.num_lost_records == 0
    assert history.state == "finished"
    assert history.span_groups["application"].children["tokenize"].count == 30_000


@pytest.mark.swallows
def test_a_fault_costs_one_record_and_nothing_is_counted_twice(logs, tmp_path, monkeypatch):
    from tachograph.spans._aggregator import SpanAggregator

    add_span = SpanAggregator._add_span

    def break_sometimes(self, span, latest):
        if span.name == "poison":
            raise RuntimeError("as planned")
        return add_span(self, span, latest)

    monkeypatch.setattr(SpanAggregator, "_add_span", break_sometimes)
    with tachograph.init("x", log_dir=str(logs), **QUICK):
        with training_loop(0):
            for index in range(300):
                with training_iteration():
                    if index % 50 == 25:
                        with timed_span("poison"):
                            pass
                tachograph.log(train_loss=1.0)
    history = read(logs / "x")
    assert updates(history.records())[-1]["num_iterations"] == 300
    assert [record["global_step"] for record in history.records("step") if "train_loss" in record] == list(range(300))
    assert history.num_lost_records == 12  # start and stop of six
    assert [span.name for span in history.spans()] == ["training_loop"]


def test_a_checkpoint_folder_with_a_link_to_nowhere(tacho_run, tmp_path):
    folder = tmp_path / "ck"
    folder.mkdir()
    (folder / "weights").write_bytes(b"x" * 10)
    (folder / "latest").symlink_to("/nonexistent")
    with checkpoint_save(1, path=folder):
        pass
    (saved,) = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert saved["checkpoint_size"] == 10


@pytest.mark.swallows
@pytest.mark.parametrize(
    "misuse",
    [
        lambda: timed_span("checkpoint_save_sync", {"current_iteration": "abc"}),
        lambda: timed_span("training_loop", {"train_iterations_start": "first"}),
        lambda: timed_span("training_single_iteration", {"num_samples": "many"}),
        lambda: timed_span("x", {"k": [1, "x"]}),
        lambda: timed_span("x", {"k": (1, None)}),
        lambda: checkpoint_save(1, path=object()),
        lambda: checkpoint_save(object()),
        lambda: training_iteration(num_samples="three"),
        lambda: training_loop(0, train_iterations_target_or_fn=lambda: 1 / 0),
    ],
)
def test_misuse_in_a_loop_costs_what_was_misused(tacho_run, misuse):
    with training_loop(0):
        for _ in range(3):
            with training_iteration():
                tacho_run.clock.advance(0.25)
            with misuse():
                tacho_run.clock.advance(0.25)
        with timed_span("later") as later:
            assert later.parent_span is not None and later.parent_span.name == "training_loop"
    tacho_run.finish()
    ends = [record for record in tacho_run.records if record.get("duration_s") is not None]
    assert {"later", "training_loop"} <= {record["name"] for record in ends}
    assert all(record.get("status", "ok") == "ok" for record in ends)


def test_bad_input_at_set_up_raises(tacho_run):
    for make in (
        lambda: timed_span(["a"]),
        lambda: timed_span(None),
        lambda: training_loop(0, train_iterations_target_or_fn=0),
        lambda: training_loop(-1),
    ):
        with pytest.raises(ConfigError):
            make()


def test_an_exception_that_cannot_be_read(tacho_run):
    class Unreadable(Exception):
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(Unreadable), timed_span("x"):
        raise Unreadable
    assert "message unreadable" in str(tacho_run.records)
    with timed_span("y") as after:
        assert after.parent_span is None
    get_recorder().error(after, "m", Unreadable())


def test_an_application_inside_an_application(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @application()
    def inner() -> None:
        pass

    with application("outer"):
        inner()
        with timed_span("afterwards") as span:
            assert span.parent_span is not None and span.parent_span.name == "application"
    history = read(tmp_path / "logs" / "outer")
    assert (history.state, [span.status for span in history.spans()]) == ("finished", ["ok"] * 3)


def test_one_object_in_several_threads(tacho_run):
    shared = timed_span("shared")
    barrier = threading.Barrier(3)
    durations: dict[float, float] = {}

    def work(seconds: float) -> None:
        barrier.wait(5)
        with shared as span:
            time.sleep(seconds)
        assert span.stop_s is not None and span.start_s is not None
        durations[seconds] = seconds

    threads = [threading.Thread(target=work, args=(seconds,)) for seconds in (0.01, 0.05, 0.1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(durations) == 3
    assert len([record for record in tacho_run.records if record["event"] in {"span", "span_stop"}]) == 3


def test_phases_of_iterations_in_other_threads_are_counted(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0):

        def work() -> None:
            with training_iteration(), forward():
                tacho_run.clock.advance(1.0)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    (window,) = [record for record in tacho_run.records if "window/sec" in record]
    assert window["window/share_forward"] == 1.0


def test_many_micro_batches_are_all_counted(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration():
        for _ in range(500):
            with forward():
                tacho_run.clock.advance(0.125)
            tacho_run.clock.advance(0.125)
    (window,) = [record for record in tacho_run.records if "window/sec" in record]
    assert (window["window/share_forward"], window["window/share_iteration"]) == (0.5, 0.5)
    assert window["window/share_other"] == 0.0


def test_the_loss_is_found_among_other_calls(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0):
        for step in range(4):
            with training_iteration():
                tacho_run.log({"train_loss": float(step)}, step=step)
                tacho_run.log({"lr": 0.1}, step=step)
    assert [update["latest_loss"] for update in updates(tacho_run.records)] == [1.0, 3.0]


def test_deep_nesting(tacho_run, tmp_path):
    spans = [timed_span(f"level {index % 3}") for index in range(1500)]
    for span in spans:
        span.__enter__()
    for span in reversed(spans):
        span.__exit__(None, None, None)
    records = [record for record in tacho_run.records if record["event"].startswith("span")]
    assert len({record["span_id"] for record in records}) == 1500
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(to_json(record) + "\n" for record in tacho_run.records))
    history = read(folder)
    assert len(history.spans()) == 1500
    assert to_json(summary(history))


def test_controls_and_checkpoints_are_not_crowded_out(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        set_training_config(log_every_n_train_iterations=1, perf_tag="p")
        run.control("lr", 0.1, min=0.0, max=1.0)
        with training_loop(0):
            for index in range(1500):
                with training_iteration():
                    pass
                if index == 5:
                    with checkpoint_save(index):
                        pass
        run.flush()
        history = read(logs / "x")
        assert "lr" in history.controls
        assert history.perf_tag == "p"
        assert len(history.latest("event", "save_checkpoint_success")) == 1
        assert len(history.latest("event", "training_metrics_update")) == 1000


def test_a_checkpoint_that_was_reported_again_keeps_no_more(tacho_run):
    with training_loop(0):
        for step in range(10):
            with training_iteration():
                pass
            if step == 2:
                with checkpoint_save(2):
                    pass
        spans.on_save_checkpoint_success(2)
        spans.on_save_checkpoint_success(5)  # of which nobody told that it began
    saved = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert [record["productive_train_iterations"] for record in saved] == [3, 3, 3]


def test_samples_over_several_loops(tacho_run):
    set_training_config(global_batch_size=10, flops_per_sample=1e12)
    for _ in range(3):
        with training_loop():
            for _ in range(4):
                with training_iteration():
                    tacho_run.clock.advance(1.0)
            with checkpoint_save():
                pass
    saved = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert [record["productive_train_samples"] for record in saved] == [40, 80, 120]
    assert [record["productive_train_tflops"] for record in saved] == [40.0, 80.0, 120.0]


def test_training_that_begins_anew_is_another_story(tacho_run):
    for num_iterations in (5, 2):
        with training_loop(0):
            for _ in range(num_iterations):
                with training_iteration():
                    pass
            with checkpoint_save(num_iterations - 1):
                pass
    saved = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert [record["productive_train_iterations"] for record in saved] == [5, 2]


def test_what_comes_after_the_last_report_of_a_loop_is_not_idle(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0):
        for _ in range(2):
            with training_iteration():
                tacho_run.clock.advance(1.0)
        with checkpoint_save(1):
            tacho_run.clock.advance(5.0)
    first, rest = [record for record in tacho_run.records if "window/sec" in record]
    assert (rest["window/iterations"], rest["window/sec"], rest["window/share_checkpoint"]) == (0, 5.0, 1.0)
    assert len(updates(tacho_run.records)) == 1
    assert first["window/sec"] == 2.0


def test_times_given_as_objects(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        recorder = recorder_of(run)
        now = TracingTimestamp.now()
        wall_only = TracingTimestamp(now.seconds_since_epoch - 5, 0.0)
        span = recorder.start("x", start_time=wall_only)
        recorder.stop(span, stop_time=now)
        assert span.duration_msec() == pytest.approx(5000, abs=100)
        recorder.event(span if False else recorder.current, Event.create("e", {"a": 1}, wall_only))
    assert [record["a"] for record in lines_of(logs / "x") if record.get("name") == "e"] == [1]


@pytest.mark.swallows
@pytest.mark.parametrize("bad", [5.0, "now", TracingTimestamp(float("nan"), float("nan"))])
def test_times_that_are_none_cost_the_time(logs, bad):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        span = recorder_of(run).start("x", start_time=bad)
        recorder_of(run).stop(span)
    assert span.duration_msec() < 5000
    assert [record["event"] for record in lines_of(logs / "x")].count("telemetry_error") == 1


@pytest.mark.swallows
def test_what_is_said_after_the_end_is_told(tacho_run):
    with timed_span("x") as span:
        pass
    span.add_attribute("late", 1)
    assert "was added after span" in str(
        [record for record in tacho_run.records if record["event"] == "telemetry_error"]
    )


def test_attributes_may_be_a_plain_dict(tacho_run):
    with timed_span("x") as span:
        span.add_attributes({"a": 1})
        span.add_attributes(Attributes({"b": 2}))
        span.add_event(Event.create("e", {"c": 3}))
    (record,) = [record for record in tacho_run.records if record["event"] == "span_stop"]
    assert record["attributes"] == {"a": 1, "b": 2}


def test_propagated_faults_leave_no_span_behind(tacho_run):
    recorder = get_recorder()
    recorder.propagates = True
    with pytest.raises(TachographError), timed_span("x", {"k": [1, "x"]}):
        raise AssertionError("the block is not entered")
    with timed_span("y") as span:
        assert span.parent_span is None


def test_a_closed_generator_is_no_error(tacho_run):
    @timed_span("produce")
    def produce():
        yield 1
        yield 2

    for _ in produce():
        break
    (record,) = [record for record in tacho_run.records if record["event"] in {"span", "span_stop"}]
    assert record["status"] == "left"
    assert not [record for record in tacho_run.records if record["event"] == "error"]


def test_no_phase_of_a_failed_iteration_is_training(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0):
        for index in range(4):
            try:
                with training_iteration(), forward():
                    tacho_run.clock.advance(1.0)
                    if index % 2:
                        raise ValueError("as planned")
            except ValueError:
                pass
    (window,) = [record for record in tacho_run.records if "window/sec" in record and record["window/iterations"]]
    assert window["window/sec"] == 3.0  # up to the second that was completed
    assert window["window/share_forward"] == pytest.approx(2 / 3)
    assert window["window/share_failed"] == pytest.approx(1 / 3)
    assert updates(tacho_run.records)[0]["avg_forward_time_sec"] == 1.0


def test_what_a_checkpoint_kept_is_not_lost_with_the_window(tacho_run, tmp_path):
    set_training_config(log_every_n_train_iterations=100)
    with training_loop(0):
        for step in range(30):
            with training_iteration():
                tacho_run.clock.advance(1.0)
            if step == 19:
                with checkpoint_save(step):
                    tacho_run.clock.advance(2.0)
    killed = [record for record in tacho_run.records if record["time"] <= 1_700_000_022.0]
    folder = tmp_path / "x"
    folder.mkdir()
    start = {"event": "start", "time": 1_700_000_000.0, "run_id": "0" * 16}
    alive = {"event": "system", "time": 1_700_000_030.0}
    lines = [start, *killed, alive]
    (folder / "metrics.jsonl").write_text("".join(to_json(record) + "\n" for record in lines))
    goodput = read(folder).goodput
    assert (goodput.productive_s, goodput.checkpoint_s, goodput.lost_s) == (20.0, 2.0, 8.0)


def test_a_filter_holds_from_when_it_is_chosen(tacho_run):
    from tachograph.spans import ExportCustomizationMode

    with timed_span("before"):
        pass
    get_recorder().customize_export(ExportCustomizationMode.WHITELIST_SPANS, ["kept"])
    for name in ("dropped", "kept"):
        with timed_span(name):
            pass
    assert [record["name"] for record in tacho_run.records if record["event"] == "span"] == ["before", "kept"]


def test_a_run_can_be_read_as_it_was_returned(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK) as run:
        with timed_span("a"):
            pass
    assert tachograph.read(run).spans("a")
    with tachograph.init("y", enabled=False) as run, pytest.raises(FileNotFoundError, match="is not recorded"):
        tachograph.read(run)


@pytest.mark.swallows
def test_a_fault_is_told_in_the_journal(logs):
    with tachograph.init("x", log_dir=str(logs), **QUICK):
        with timed_span("w") as span:
            span.add_event("no event")
        with timed_span("w2", "no attributes"):
            pass
    told = [record["reason"] for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert len(told) == 2
    assert "Event.create" in told[0] and "as a dict" in told[1]


def test_a_decorator_without_parentheses_says_so(tacho_run):
    for decorator in (application, training_loop):
        with pytest.raises(ConfigError, match="with parentheses"):
            decorator(test_deep_nesting)
    with pytest.raises(ConfigError, match="expected a Run"):
        set_training_config(run="x")
    with pytest.raises(ConfigError, match="one of sync, async"):
        set_training_config(save_checkpoint_strategy="asnyc")


def test_interleaved_generators_leave_no_chain(tacho_run):
    def source(count):
        for index in range(count):
            with tachograph.data_loading():
                yield index

    def depth(span):
        levels = 0
        while span is not None:
            span, levels = span._parent, levels + 1
        return levels

    with training_loop(0):
        for _ in zip(source(500), source(500), strict=True):
            with training_iteration() as iteration:
                pass
        assert depth(iteration) < 10


def test_a_disk_that_hangs_bounds_what_waits(logs, monkeypatch):
    release = threading.Event()
    with tachograph.init("x", log_dir=str(logs), buffer_size=4096, csv=False, **QUICK) as run:
        run.flush()
        append = run.backend.files.append
        monkeypatch.setattr(run.backend.files, "append", lambda *given: (release.wait(30), append(*given))[1])
        with training_loop(0):
            for _ in range(20_000):
                with training_iteration(num_samples=3):
                    pass
            for _ in range(5_000):
                with timed_span("x"):
                    pass
            assert len(run.backend.buffer) < 8_000
            release.set()
    history = read(logs / "x")
    assert history.state == "finished"
    kept = len(history.spans("x")) + updates(history.records())[-1]["num_iterations"]
    assert kept + history.num_lost_records == 25_000  # each that was lost is counted, and counted once


def test_data_that_is_fetched_beside_an_iteration_is_not_waited_for(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0):
        beside = contextvars.copy_context()  # as an asyncio task has

        def fetch(edge):
            if edge == "start":
                loading.__enter__()
            else:
                loading.__exit__(None, None, None)

        loading = tachograph.data_loading()
        with training_iteration():
            beside.run(fetch, "start")
            tacho_run.clock.advance(1.0)
            beside.run(fetch, "stop")
            tacho_run.clock.advance(1.0)
    (window,) = [record for record in tacho_run.records if "window/sec" in record]
    assert window["window/share_iteration"] == 1.0


@pytest.mark.swallows
def test_a_fault_in_a_report_counts_no_iteration_twice(logs, monkeypatch):
    from tachograph.spans._progress import LoopProgress

    monkeypatch.setattr(LoopProgress, "report", lambda self, parameters: 1 / 0)
    with tachograph.init("x", log_dir=str(logs), **QUICK):
        set_training_config(log_every_n_train_iterations=100)
        with training_loop(0):
            for _ in range(250):
                with training_iteration(), forward():
                    pass
            with checkpoint_save(249):
                pass
    (saved,) = read(logs / "x").latest("event", "save_checkpoint_success")
    assert saved["productive_train_iterations"] == 250


def test_what_has_ended_is_let_go():
    import gc
    import weakref

    from tachograph.recorder._process import watch
    from tachograph.testing import MemoryRun

    seen = []
    for _ in range(5):
        run = MemoryRun()
        watch(run, hooks=False)
        twice = training_iteration()
        with training_loop(0):
            spans.on_training_single_iteration_start()
            spans.on_training_single_iteration_end()
            with twice, twice:
                pass
        run.finish()
        seen.append(weakref.ref(run))
    with timed_span("elsewhere", run=(last := MemoryRun())):
        pass
    last.finish()
    del run, twice
    gc.collect()
    assert sum(reference() is not None for reference in seen) <= 1  # the latest is still the current one


def test_a_decorated_async_generator_is_the_same_generator(tacho_run):
    import asyncio

    got = []

    @timed_span("agen")
    async def produce():
        try:
            got.append((yield 1))
            yield 2
        except ValueError:
            got.append("thrown")
            yield 3
        finally:
            got.append("closed")

    async def use():
        items = produce()
        assert await items.__anext__() == 1
        assert await items.asend("hello") == 2
        assert await items.athrow(ValueError()) == 3
        await items.aclose()

    asyncio.run(use())
    assert got == ["hello", "thrown", "closed"]


def test_an_application_in_a_thread_closes_only_what_is_in_it(tacho_run):
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with application():
            begun.set()
            ended.wait(5)

    with application():
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(5)
        with training_loop(0) as loop:
            ended.set()
            thread.join()
            assert loop.active
    assert all("status" not in record for record in tacho_run.records if record["event"] == "span_stop")


def test_a_thread_goes_on_in_the_run_that_goes_on():
    from tachograph.recorder._process import watch
    from tachograph.testing import MemoryRun

    first, second = MemoryRun("first"), MemoryRun("second")
    watch(first, hooks=False)
    steps = [threading.Event() for _ in range(2)]

    def work() -> None:
        spans.on_training_single_iteration_start()  # and never its end
        steps[0].set()
        steps[1].wait(5)
        for _ in range(5):
            with training_iteration():
                pass
        with timed_span("here"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    steps[0].wait(5)
    first.finish()
    watch(second, hooks=False)
    steps[1].set()
    thread.join()
    second.finish()
    assert "here" in [record.get("name") for record in second.records]
    assert updates(second.records)[-1]["num_iterations"] == 5


def test_a_child_that_outlives_its_parent_is_grouped_under_it(tacho_run, tmp_path):
    recorder = get_recorder()
    outer, inner = recorder.start("outer"), recorder.start("inner")
    recorder.stop(outer)
    recorder.stop(inner)
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(to_json(record) + "\n" for record in tacho_run.records))
    assert list(read(folder).span_groups["outer"].children) == ["inner"]


def test_the_loss_does_not_depend_on_luck(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration():
        tacho_run.log({"loss": 7.0, "train_loss": 0.5})
    assert updates(tacho_run.records)[0]["latest_loss"] == 0.5


@pytest.mark.swallows
def test_spans_that_are_never_ended_do_not_pile_up(logs):
    with tachograph.init("x", log_dir=str(logs), csv=False, **QUICK) as run:
        recorder = recorder_of(run)
        with application() as app:
            for _ in range(12_000):
                span = recorder.start("forgotten")
            depth, around = 0, span
            while around is not None:
                around, depth = around._parent, depth + 1
            assert depth < 10_100
            assert app.active
    history = read(logs / "x")
    assert history.span_groups["application"].num_unfinished == 0
    told = [record["reason"] for record in history.latest("telemetry_error")]
    assert told == ["more than 10000 spans are open, such as 'forgotten'; stopping the oldest"]
    assert len(history.spans("forgotten")) == 12_000


def test_the_writer_may_meet_a_span_the_moment_it_is_queued(tacho_run, monkeypatch):
    memory = tacho_run._memory

    def put_and_write(entry, *, must=False):
        memory.buffer.append(entry)
        return memory.flush(0)  # as if the writer had only waited for it

    monkeypatch.setattr(memory, "put", put_and_write)
    with training_loop(0), timed_span("a"):
        tacho_run.clock.advance(1.0)
    spans = [(record["event"], record["name"]) for record in tacho_run.records if record["event"].startswith("span")]
    assert spans == [
        ("span_start", "training_loop"), ("span_start", "a"), ("span_stop", "a"), ("span_stop", "training_loop"),
    ]  # fmt: skip
