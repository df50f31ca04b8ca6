"""Regression tests and adversarial cases: threads, forks, faults, misuse and odd timing."""

from __future__ import annotations

import contextvars
import os
import threading
import time

import pytest

import tachograph
from tachograph import (
    application,
    checkpoint_save,
    forward,
    one_logger,
    set_training_config,
    timed_span,
    training_iteration,
    training_loop,
)
from tachograph.cli._show import summary
from tachograph.exceptions import ConfigError, TachographError
from tachograph.reader import read
from tachograph.records import to_json
from tachograph.spans import Attributes, Event, get_recorder
from tests.conftest import HANG_S, lines_of

SETTINGS = {"system_interval_s": 0, "git": False, "console": False}


def updates(records):
    """Return the training metrics events among records."""
    return [record for record in records if record.get("name") == "training_metrics_update"]


def test_forked_child_ignores_parent_lock(script, tmp_path):
    """A recording thread may hold a lock during the fork; the child must not wait for it."""
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
    ).ok()


def test_concurrent_first_spans_start_one_run(script, tmp_path):
    """The first span of a program starts its run, even if several threads open one at once."""
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


@pytest.mark.slow
def test_burst_of_spans_loses_no_record(logs):
    with tachograph.init("x", log_dir=str(logs), **SETTINGS):
        with application():
            for _ in range(30_000):
                with timed_span("tokenize"):
                    pass
    history = read(logs / "x")
    assert history.num_lost_records == 0
    assert history.state == "finished"
    assert history.span_groups["application"].children["tokenize"].count == 30_000


@pytest.mark.expects_faults
def test_fault_in_handler_costs_one_record(logs, monkeypatch):
    from tachograph.spans._aggregator import SpanAggregator

    add_span = SpanAggregator._add_span

    def fail_on_poison(self, span, latest):
        if span.name == "poison":
            raise RuntimeError("as planned")
        return add_span(self, span, latest)

    monkeypatch.setattr(SpanAggregator, "_add_span", fail_on_poison)
    with tachograph.init("x", log_dir=str(logs), **SETTINGS):
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
    assert history.num_lost_records == 12  # the start and stop records of six spans
    assert [span.name for span in history.spans()] == ["training_loop"]


def test_checkpoint_size_ignores_dangling_link(tacho_run, tmp_path):
    folder = tmp_path / "ck"
    folder.mkdir()
    (folder / "weights").write_bytes(b"x" * 10)
    (folder / "latest").symlink_to("/nonexistent")
    with checkpoint_save(1, path=folder):
        pass
    (saved,) = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert saved["checkpoint_size"] == 10


@pytest.mark.slow
def test_checkpoint_removed_while_it_is_recorded_is_no_fault(tacho_run, tmp_path, monkeypatch):
    """Trainers remove their last checkpoint when they save a better one, perhaps between two looks at it."""
    monkeypatch.setattr(os.path, "isfile", lambda path: True)
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    with checkpoint_save(1, path=tmp_path / "gone.ckpt"):
        pass
    (saved,) = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert saved.get("checkpoint_size") is None


@pytest.mark.expects_faults
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
def test_misuse_in_loop_does_not_affect_other_spans(tacho_run, misuse):
    with training_loop(0):
        for _ in range(3):
            with training_iteration():
                tacho_run.clock.advance(0.25)
            with misuse():
                tacho_run.clock.advance(0.25)
        with timed_span("later") as later:
            assert later.parent_span is not None and later.parent_span.name == "training_loop"
    tacho_run.finish()
    stopped = [record for record in tacho_run.records if record.get("duration_s") is not None]
    assert {"later", "training_loop"} <= {record["name"] for record in stopped}
    assert all(record.get("status", "ok") == "ok" for record in stopped)


def test_invalid_span_arguments_raise(tacho_run):
    for make in (
        lambda: timed_span(["a"]),
        lambda: timed_span(None),
        lambda: training_loop(0, train_iterations_target_or_fn=0),
        lambda: training_loop(-1),
    ):
        with pytest.raises(ConfigError):
            make()


def test_exception_without_readable_message_is_recorded(tacho_run):
    class Unreadable(Exception):
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(Unreadable), timed_span("x"):
        raise Unreadable
    assert "message unreadable" in str(tacho_run.records)
    with timed_span("y") as after:
        assert after.parent_span is None
    one_logger.get_recorder().error(after, "m", Unreadable())


def test_nested_application_stays_in_outer_run(tmp_path, monkeypatch):
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


def test_span_scope_is_shared_between_threads(tacho_run):
    shared = timed_span("shared")
    barrier = threading.Barrier(3)
    durations: dict[float, float] = {}

    def work(seconds: float) -> None:
        barrier.wait(HANG_S)
        with shared as span:
            time.sleep(seconds)
        assert span.stop_s is not None and span.start_s is not None
        durations[seconds] = span.stop_s - span.start_s

    threads = [threading.Thread(target=work, args=(seconds,)) for seconds in (0.01, 0.05, 0.1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(durations) == 3
    assert all(duration_s >= 0 for duration_s in durations.values())
    assert len([record for record in tacho_run.records if record["event"] in {"span", "span_stop"}]) == 3


def test_phases_in_other_threads_are_counted(tacho_run):
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


def test_phases_of_many_micro_batches_are_counted(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration():
        for _ in range(500):
            with forward():
                tacho_run.clock.advance(0.125)
            tacho_run.clock.advance(0.125)
    (window,) = [record for record in tacho_run.records if "window/sec" in record]
    assert (window["window/share_forward"], window["window/share_iteration"]) == (0.5, 0.5)
    assert window["window/share_other"] == 0.0


def test_latest_loss_survives_other_log_calls(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0):
        for step in range(4):
            with training_iteration():
                tacho_run.log({"train_loss": float(step)}, step=step)
                tacho_run.log({"lr": 0.1}, step=step)
    assert [update["latest_loss"] for update in updates(tacho_run.records)] == [1.0, 3.0]


def test_deeply_nested_spans_are_recorded(tacho_run, tmp_path):
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


def test_frequent_events_do_not_evict_checkpoints(logs):
    """The reader keeps the latest events per name, so frequent events do not displace rare ones."""
    with tachograph.init("x", log_dir=str(logs), **SETTINGS) as run:
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


def test_repeated_checkpoint_report_adds_no_progress(tacho_run):
    """A checkpoint covers the progress at the start of its save, here three iterations."""
    with training_loop(0):
        for step in range(10):
            with training_iteration():
                pass
            if step == 2:
                with checkpoint_save(2):
                    pass
        one_logger.on_save_checkpoint_success(2)
        one_logger.on_save_checkpoint_success(5)  # without a start callback
    saved = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert [record["productive_train_iterations"] for record in saved] == [3, 3, 3]


def test_checkpointed_samples_add_up_over_loops(tacho_run):
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


def test_restarted_loop_resets_productive_iterations(tacho_run):
    for num_iterations in (5, 2):
        with training_loop(0):
            for _ in range(num_iterations):
                with training_iteration():
                    pass
            with checkpoint_save(num_iterations - 1):
                pass
    saved = [record for record in tacho_run.records if record.get("name") == "save_checkpoint_success"]
    assert [record["productive_train_iterations"] for record in saved] == [5, 2]


def test_checkpoint_after_last_window_is_reported(tacho_run):
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


@pytest.mark.expects_faults
def test_attribute_added_after_stop_is_reported(tacho_run):
    with timed_span("x") as span:
        pass
    span.add_attribute("late", 1)
    assert "was added after span" in str(
        [record for record in tacho_run.records if record["event"] == "telemetry_error"]
    )


def test_add_attributes_accepts_dict(tacho_run):
    with timed_span("x") as span:
        span.add_attributes({"a": 1})
        span.add_attributes(Attributes({"b": 2}))
        span.add_event(Event.create("e", {"c": 3}))
    (record,) = [record for record in tacho_run.records if record["event"] == "span_stop"]
    assert record["attributes"] == {"a": 1, "b": 2}


def test_propagated_fault_leaves_no_open_span(tacho_run):
    recorder = get_recorder()
    recorder.propagate_exceptions = True
    with pytest.raises(TachographError), timed_span("x", {"k": [1, "x"]}):
        raise AssertionError("the block is not entered")
    with timed_span("y") as span:
        assert span.parent_span is None


def test_closed_generator_is_not_an_error(tacho_run):
    @timed_span("produce")
    def produce():
        yield 1
        yield 2

    for _ in produce():
        break
    (record,) = [record for record in tacho_run.records if record["event"] in {"span", "span_stop"}]
    assert record["status"] == "left"
    assert not [record for record in tacho_run.records if record["event"] == "error"]


def test_phases_of_failed_iteration_count_as_failed(tacho_run):
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
    assert window["window/sec"] == 3.0  # up to the end of the second completed iteration
    assert window["window/share_forward"] == pytest.approx(2 / 3)
    assert window["window/share_failed"] == pytest.approx(1 / 3)
    assert updates(tacho_run.records)[0]["avg_forward_time_sec"] == 1.0


def test_checkpointed_iterations_survive_open_window(tacho_run, tmp_path):
    set_training_config(log_every_n_train_iterations=100)
    with training_loop(0):
        for step in range(30):
            with training_iteration():
                tacho_run.clock.advance(1.0)
            if step == 19:
                with checkpoint_save(step):
                    tacho_run.clock.advance(2.0)
    written_before_kill = [record for record in tacho_run.records if record["time"] <= 1_700_000_022.0]
    folder = tmp_path / "x"
    folder.mkdir()
    start = {"event": "start", "time": 1_700_000_000.0, "run_id": "0" * 16}
    last_record = {"event": "system", "time": 1_700_000_030.0}
    lines = [start, *written_before_kill, last_record]
    (folder / "metrics.jsonl").write_text("".join(to_json(record) + "\n" for record in lines))
    goodput = read(folder).goodput
    assert (goodput.productive_s, goodput.checkpoint_s, goodput.lost_s) == (20.0, 2.0, 8.0)


def test_span_filter_applies_to_later_spans(tacho_run):
    from tachograph.spans import ExportCustomizationMode

    with timed_span("before"):
        pass
    get_recorder().customize_export(ExportCustomizationMode.WHITELIST_SPANS, ["kept"])
    for name in ("dropped", "kept"):
        with timed_span(name):
            pass
    assert [record["name"] for record in tacho_run.records if record["event"] == "span"] == ["before", "kept"]


def test_read_accepts_run_object(logs):
    with tachograph.init("x", log_dir=str(logs), **SETTINGS) as run:
        with timed_span("a"):
            pass
    assert tachograph.read(run).spans("a")
    with tachograph.init("y", enabled=False) as run, pytest.raises(FileNotFoundError, match="is not recorded"):
        tachograph.read(run)


@pytest.mark.expects_faults
def test_wrong_argument_types_are_reported_in_journal(logs):
    with tachograph.init("x", log_dir=str(logs), **SETTINGS):
        with timed_span("w") as span:
            span.add_event("no event")
        with timed_span("w2", "no attributes"):
            pass
    reasons = [record["reason"] for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert len(reasons) == 2
    assert "Event.create" in reasons[0] and "as a dict" in reasons[1]


def test_decorator_without_parentheses_raises(tacho_run):
    for decorator in (application, training_loop):
        with pytest.raises(ConfigError, match="with parentheses"):
            decorator(test_deeply_nested_spans_are_recorded)
    with pytest.raises(ConfigError, match="expected a Run"):
        set_training_config(run="x")
    with pytest.raises(ConfigError, match="one of sync, async"):
        set_training_config(save_checkpoint_strategy="asnyc")


def test_interleaved_generators_keep_parents_shallow(tacho_run):
    """Stopped spans of suspended generators must not form an ever longer chain of parents."""

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


@pytest.mark.slow
def test_hanging_disk_bounds_buffer(logs, monkeypatch):
    release = threading.Event()
    with tachograph.init("x", log_dir=str(logs), buffer_size=4096, csv=False, **SETTINGS) as run:
        run.flush()
        append = run.backend.files.append
        monkeypatch.setattr(run.backend.files, "append", lambda *args: (release.wait(HANG_S), append(*args))[1])
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
    assert kept + history.num_lost_records == 25_000  # every lost record is counted exactly once


def test_concurrent_data_loading_is_not_waiting_time(tacho_run):
    """Data loaded in another context during an iteration does not delay the iteration."""
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0):
        context = contextvars.copy_context()  # like the context of an asyncio task

        def fetch(action):
            if action == "start":
                loading.__enter__()
            else:
                loading.__exit__(None, None, None)

        loading = tachograph.data_loading()
        with training_iteration():
            context.run(fetch, "start")
            tacho_run.clock.advance(1.0)
            context.run(fetch, "stop")
            tacho_run.clock.advance(1.0)
    (window,) = [record for record in tacho_run.records if "window/sec" in record]
    assert window["window/share_iteration"] == 1.0


@pytest.mark.expects_faults
def test_fault_in_report_counts_iterations_once(logs, monkeypatch):
    from tachograph.spans._progress import LoopProgress

    monkeypatch.setattr(LoopProgress, "report", lambda self, parameters: 1 / 0)
    with tachograph.init("x", log_dir=str(logs), **SETTINGS):
        set_training_config(log_every_n_train_iterations=100)
        with training_loop(0):
            for _ in range(250):
                with training_iteration(), forward():
                    pass
            with checkpoint_save(249):
                pass
    (saved,) = read(logs / "x").latest("event", "save_checkpoint_success")
    assert saved["productive_train_iterations"] == 250


def test_finished_runs_are_garbage_collected():
    import gc
    import weakref

    from tachograph.recorder._process import watch
    from tachograph.testing import MemoryRun

    references = []
    for _ in range(5):
        run = MemoryRun()
        watch(run, hooks=False)
        iteration = training_iteration()
        with training_loop(0):
            one_logger.on_training_single_iteration_start()
            one_logger.on_training_single_iteration_end()
            with iteration, iteration:
                pass
        run.finish()
        references.append(weakref.ref(run))
    with timed_span("elsewhere", run=(last := MemoryRun())):
        pass
    last.finish()
    del run, iteration
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 1  # the latest is still the current run


def test_decorated_async_generator_keeps_protocol(tacho_run):
    import asyncio

    events = []

    @timed_span("agen")
    async def produce():
        try:
            events.append((yield 1))
            yield 2
        except ValueError:
            events.append("thrown")
            yield 3
        finally:
            events.append("closed")

    async def use():
        items = produce()
        assert await items.__anext__() == 1
        assert await items.asend("hello") == 2
        assert await items.athrow(ValueError()) == 3
        await items.aclose()

    asyncio.run(use())
    assert events == ["hello", "thrown", "closed"]


def test_application_in_thread_closes_only_its_spans(tacho_run):
    entered, finish = threading.Event(), threading.Event()

    def work() -> None:
        with application():
            entered.set()
            finish.wait(HANG_S)

    with application():
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(HANG_S)
        with training_loop(0) as loop:
            finish.set()
            thread.join()
            assert loop.active
    assert all("status" not in record for record in tacho_run.records if record["event"] == "span_stop")


def test_thread_switches_to_new_current_run():
    from tachograph.recorder._process import watch
    from tachograph.testing import MemoryRun

    first, second = MemoryRun("first"), MemoryRun("second")
    watch(first, hooks=False)
    iteration_open, run_switched = threading.Event(), threading.Event()

    def work() -> None:
        one_logger.on_training_single_iteration_start()  # deliberately without its end callback
        iteration_open.set()
        run_switched.wait(HANG_S)
        for _ in range(5):
            with training_iteration():
                pass
        with timed_span("here"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    iteration_open.wait(HANG_S)
    first.finish()
    watch(second, hooks=False)
    run_switched.set()
    thread.join()
    second.finish()
    assert "here" in [record.get("name") for record in second.records]
    assert updates(second.records)[-1]["num_iterations"] == 5


def test_child_stopped_after_parent_is_grouped_under_it(tacho_run, tmp_path):
    recorder = get_recorder()
    outer, inner = timed_span("outer").start(), timed_span("inner").start()
    recorder.close_span(outer)
    recorder.close_span(inner)
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(to_json(record) + "\n" for record in tacho_run.records))
    assert list(read(folder).span_groups["outer"].children) == ["inner"]


def test_train_loss_takes_precedence_over_loss(tacho_run):
    """The reported loss must not depend on the order of the fields."""
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration():
        tacho_run.log({"loss": 7.0, "train_loss": 0.5})
    assert updates(tacho_run.records)[0]["latest_loss"] == 0.5


@pytest.mark.slow
@pytest.mark.expects_faults
def test_unstopped_spans_are_bounded(logs):
    """A program that never stops its spans must not leak memory."""
    with tachograph.init("x", log_dir=str(logs), csv=False, **SETTINGS):
        with application() as app:
            for _ in range(12_000):
                span = timed_span("forgotten").start()
            depth, ancestor = 0, span
            while ancestor is not None:
                ancestor, depth = ancestor._parent, depth + 1
            assert depth < 10_100
            assert app.active
    history = read(logs / "x")
    assert history.span_groups["application"].num_unfinished == 0
    reasons = [record["reason"] for record in history.latest("telemetry_error")]
    assert reasons == ["more than 10000 spans are open, such as 'forgotten'; stopping the oldest"]
    assert len(history.spans("forgotten")) == 12_000


def test_span_written_immediately_is_recorded_in_order(tacho_run, monkeypatch):
    """The writer may handle a span as soon as it is queued, before the caller continues."""
    memory = tacho_run._memory_writer

    def put_and_write(item, *, force=False):
        memory.buffer.append(item)
        return memory.flush(0)  # as if the writer thread ran at this moment

    monkeypatch.setattr(memory, "put", put_and_write)
    with training_loop(0), timed_span("a"):
        tacho_run.clock.advance(1.0)
    spans = [(record["event"], record["name"]) for record in tacho_run.records if record["event"].startswith("span")]
    assert spans == [
        ("span_start", "training_loop"), ("span_start", "a"), ("span_stop", "a"), ("span_stop", "training_loop"),
    ]  # fmt: skip
