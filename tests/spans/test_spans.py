"""Spans: how they open, nest and close, and which records they produce."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import gc
import threading
import weakref

import pytest

import tachograph
from tachograph import (
    application,
    backward,
    checkpoint_finalization,
    checkpoint_load,
    checkpoint_save,
    data_loading,
    dataloader_init,
    distributed_init,
    forward,
    model_init,
    optimizer_init,
    optimizer_update,
    testing_iteration,
    testing_loop,
    timed_span,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)
from tachograph.exceptions import ConfigError, TachographError
from tachograph.reader import read
from tachograph.recorder._process import watch
from tachograph.spans import (
    Attributes,
    Event,
    ExportCustomizationMode,
    Span,
    TracingTimestamp,
    get_recorder,
    recorder_of,
)
from tachograph.testing import MemoryRun
from tests.conftest import HANG_S, lines_of

SETTINGS = {"system_interval_s": 0, "git": False, "console": False}


def finished_spans(run: MemoryRun) -> dict[str, dict]:
    """Return the last record of each finished span by name."""
    return {record["name"]: record for record in run.records if record["event"] in {"span", "span_stop"}}


def records_of(run: MemoryRun, event: str) -> list[dict]:
    """Return the records of one kind."""
    return [record for record in run.records if record["event"] == event]


LONG = {
    distributed_init: "distributed_code_initialization",
    model_init: "model_initialization",
    dataloader_init: "data_loader_initialization",
    optimizer_init: "optimizer_initialization",
    training_loop: "training_loop",
    validation_loop: "validation_loop",
    testing_loop: "testing_loop",
    checkpoint_load: "checkpoint_load",
    checkpoint_save: "checkpoint_save_sync",
    checkpoint_finalization: "checkpoint_save_finalization",
    application: "application",
}
SHORT = {
    training_iteration: "training_single_iteration",
    validation_iteration: "validation_single_iteration",
    testing_iteration: "TESTING_SINGLE_ITERATION",
    data_loading: "data_loading",
    forward: "model_forward",
    zero_grad: "zero_grad",
    backward: "model_backward",
    optimizer_update: "optimizer_update",
}


@pytest.mark.parametrize(("make", "name"), LONG.items())
def test_long_spans_are_recorded(tacho_run, make, name):
    with make() as span:
        tacho_run.clock.advance(0.5)
        assert span.active
    assert not span.active
    assert finished_spans(tacho_run)[name]["duration_s"] == 0.5
    assert span.name == name == span.name_str
    assert span.duration_msec() == 500


@pytest.mark.parametrize(("make", "name"), SHORT.items())
def test_short_spans_are_recorded_only_on_request(tacho_run, make, name):
    with make():
        tacho_run.clock.advance(0.5)
    assert name not in finished_spans(tacho_run)
    get_recorder().customize_export(ExportCustomizationMode.EXPORT_ALL_SPANS)
    with make():
        tacho_run.clock.advance(0.25)
    assert finished_spans(tacho_run)[name]["duration_s"] == 0.25


def test_nested_spans_record_their_parents(tacho_run):
    with application() as app, training_loop(0) as loop, training_iteration() as iteration:
        with timed_span("augment") as augment:
            pass
    assert augment.parent_span is iteration
    assert iteration.parent_span is loop
    assert loop.parent_span is app
    assert app.parent_span is None
    # The iteration is not recorded, so its child has the loop as parent in the journal.
    assert finished_spans(tacho_run)["augment"]["parent_id"] == finished_spans(tacho_run)["training_loop"]["span_id"]
    starts = {record["name"]: record for record in records_of(tacho_run, "span_start")}
    assert starts["training_loop"]["parent_id"] == starts["application"]["span_id"]


def test_open_span_is_recorded(tacho_run):
    with timed_span("download"):
        assert tacho_run.records[-1]["event"] == "span_start"
        assert tacho_run.records[-1]["name"] == "download"
    assert tacho_run.records[-1]["event"] == "span_stop"


def test_span_without_children_is_one_record(tacho_run):
    with timed_span("quick", {"size": 3}) as span:
        span.add_attribute("kept", 2)
        tacho_run.clock.advance(0.25)
    (record,) = tacho_run.records
    assert record == {
        "event": "span",
        "time": record["time"],
        "span_id": "0000000000000001",
        "name": "quick",
        "duration_s": 0.25,
        "attributes": {"size": 3, "kept": 2},
    }


def test_attributes_and_events_are_recorded(tacho_run):
    with timed_span("stage", Attributes({"index": 1}), Attributes({"why": "begin"})) as span:
        span.add_attribute("loss", 0.5)
        span.add_attributes(Attributes({"a": [1, 2]}))
        span.add_event(Event.create("halfway", Attributes({"share": 0.5})))
        get_recorder().event(Event.create("here"))  # in the current span
        get_recorder().event(span, Event.create("there"))
    span_id = finished_spans(tacho_run)["stage"]["span_id"]
    assert [(record["name"], record["span_id"]) for record in records_of(tacho_run, "event")] == [
        ("halfway", span_id), ("here", span_id), ("there", span_id),
    ]  # fmt: skip
    assert records_of(tacho_run, "event")[0]["share"] == 0.5
    assert records_of(tacho_run, "span_start")[0]["start_attributes"] == {"why": "begin"}
    assert finished_spans(tacho_run)["stage"]["attributes"] == {"index": 1, "loss": 0.5, "a": [1, 2]}
    assert [event.name_str for event in span.events] == ["span_start", "halfway", "here", "there", "span_stop"]
    assert span.attributes.to_json() == {"index": 1, "loss": 0.5, "a": [1, 2]}


def test_attribute_values_are_copied(tacho_run):
    numpy = pytest.importorskip("numpy")
    values, array = [1, 2], numpy.float32(0.5)
    with timed_span("x") as span:
        span.add_attribute("values", values)
        span.add_attribute("number", array)
        span.add_attribute("shape", (3, 4))
        values.append(3)
    assert finished_spans(tacho_run)["x"]["attributes"] == {"values": [1, 2], "number": 0.5, "shape": [3, 4]}


# Exceptions ----------------------------------------------------------------------------------------------------------


def test_exception_is_recorded_once_and_propagates(tacho_run):
    error = ValueError("bad batch")
    with pytest.raises(ValueError) as raised, application(), training_loop(0), training_iteration():
        raise error
    assert raised.value is error
    (record,) = records_of(tacho_run, "error")
    assert (record["error_type"], record["error_message"], record["fatal"]) == ("ValueError", "bad batch", False)
    assert "test_spans.py" in record["traceback"]
    assert record["where"] == "span training_single_iteration"
    assert record["span_id"] == finished_spans(tacho_run)["training_loop"]["span_id"]  # the nearest recorded ancestor
    assert finished_spans(tacho_run)["training_loop"]["status"] == "error"
    assert finished_spans(tacho_run)["application"]["status"] == "error"
    assert finished_spans(tacho_run)["application"]["attributes"]["error"] == "ValueError: bad batch"


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), "error"), (SystemExit(3), "error"), (SystemExit(0), "left"), (GeneratorExit(), "left")],
)
def test_exit_exceptions_are_not_recorded_as_errors(tacho_run, error, status):
    with pytest.raises(type(error)), timed_span("x"):
        raise error
    assert records_of(tacho_run, "error") == []
    assert finished_spans(tacho_run)["x"]["status"] == status  # the block was still interrupted


def test_secrets_in_errors_are_masked_in_records(tacho_run):
    with pytest.raises(RuntimeError), timed_span("x"):
        raise RuntimeError("no access with api_key=sk-proj-aaaaaaaaaaaaaaaaaaaaaaaa")
    assert "sk-proj-aaaa" not in str(tacho_run.records)


# Decorators ----------------------------------------------------------------------------------------------------------


def test_decorator_records_span_per_call(tacho_run):
    @timed_span("work", {"kind": "test"})
    def work(number: int) -> int:
        """Double."""
        tacho_run.clock.advance(0.25)
        return 2 * number

    assert [work(1), work(2)] == [2, 4]
    assert work.__name__ == "work" and work.__doc__ == "Double."
    assert [record["duration_s"] for record in records_of(tacho_run, "span")] == [0.25, 0.25]


def test_decorated_function_may_recurse(tacho_run):
    @timed_span("deep")
    def down(levels: int) -> None:
        if levels:
            down(levels - 1)

    down(3)
    stopped = [record for record in tacho_run.records if record["event"] in {"span", "span_stop"}]
    assert len(stopped) == 4


def test_decorated_coroutine_is_timed_until_done(tacho_run):
    @timed_span("fetch")
    async def fetch() -> str:
        await asyncio.sleep(0)
        tacho_run.clock.advance(0.5)
        return "done"

    assert asyncio.run(fetch()) == "done"
    assert finished_spans(tacho_run)["fetch"]["duration_s"] == 0.5


def test_decorated_generator_is_timed_until_exhausted(tacho_run):
    @timed_span("produce")
    def produce():
        yield 1
        tacho_run.clock.advance(0.5)
        yield 2

    assert list(produce()) == [1, 2]
    assert finished_spans(tacho_run)["produce"]["duration_s"] == 0.5


def test_reused_span_scope_opens_new_span_each_time(tacho_run):
    scope = timed_span("again")
    iteration = training_iteration()
    with training_loop(0):
        for _ in range(3):
            with scope, iteration:
                tacho_run.clock.advance(0.25)
    assert [record["duration_s"] for record in records_of(tacho_run, "span")] == [0.25] * 3
    update = next(record for record in records_of(tacho_run, "event") if record["name"] == "training_metrics_update")
    assert update["num_iterations"] == 3


# Threads, tasks, order -----------------------------------------------------------------------------------------------


def test_threads_have_separate_current_spans(tacho_run):
    parents: dict[str, Span | None] = {}
    barrier = threading.Barrier(2)

    def work(name: str) -> None:
        with timed_span(name):
            barrier.wait(HANG_S)
            with timed_span(f"inside {name}") as inner:
                parents[name] = inner.parent_span
                barrier.wait(HANG_S)

    with application() as app:
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {name: parent.name for name, parent in parents.items()} == {"a": "a", "b": "b"}
    starts = {record["name"]: record for record in tacho_run.records if record["event"] in {"span", "span_start"}}
    # A span in a new thread has the application as parent.
    assert starts["a"]["parent_id"] == starts["application"]["span_id"]
    assert app.active is False


def test_asyncio_tasks_have_separate_current_spans(tacho_run):
    async def work(name: str) -> None:
        with timed_span(name):
            await asyncio.sleep(0)
            with timed_span(f"inside {name}") as inner:
                await asyncio.sleep(0)
                assert inner.parent_span is not None and inner.parent_span.name == name
            await asyncio.sleep(0)

    async def main() -> None:
        with timed_span("main"):
            await asyncio.gather(*(work(str(index)) for index in range(5)))

    asyncio.run(main())
    starts = {record["name"]: record for record in tacho_run.records if record["event"] in {"span", "span_start"}}
    assert {starts[str(index)]["parent_id"] for index in range(5)} == {starts["main"]["span_id"]}


def test_spans_may_stop_out_of_order(tacho_run):
    recorder = get_recorder()
    outer = timed_span("outer").start()
    inner = timed_span("inner").start()
    recorder.close_span(outer)
    with timed_span("next") as after:
        assert after.parent_span is inner  # still open
    recorder.close_span(inner)
    with timed_span("last") as last:
        assert last.parent_span is None
    assert {name: record.get("status", "ok") for name, record in finished_spans(tacho_run).items()} == {
        "outer": "ok", "inner": "ok", "next": "ok", "last": "ok",
    }  # fmt: skip


def test_finish_closes_open_spans(tacho_run):
    timed_span("outer").start()
    timed_span("inner").start()
    tacho_run.clock.advance(2)
    tacho_run.finish()
    stopped = finished_spans(tacho_run)
    assert [(name, record["status"], record["duration_s"]) for name, record in stopped.items()] == [
        ("inner", "left_open", 2.0), ("outer", "left_open", 2.0),
    ]  # fmt: skip
    assert tacho_run.records[-1]["event"] == "end"


def test_application_end_closes_only_inner_spans(tacho_run):
    with timed_span("around"):
        with application():
            timed_span("inside").start()
        assert finished_spans(tacho_run)["inside"]["status"] == "left_open"
        assert "around" not in finished_spans(tacho_run)
    assert "status" not in finished_spans(tacho_run)["around"]


@pytest.mark.expects_faults
def test_misuse_is_reported_once(tacho_run, caplog):
    recorder = get_recorder()
    span = timed_span("x").start()
    recorder.close_span(span)
    for _ in range(3):
        recorder.close_span(span)
    (error,) = records_of(tacho_run, "telemetry_error")
    assert error["reason"] == "Span 'x' not found: it has already stopped"
    assert caplog.text.count("has already stopped") == 1


def test_misuse_raises_with_propagation(tacho_run):
    recorder = get_recorder()
    recorder.propagate_exceptions = True
    span = timed_span("x").start()
    recorder.close_span(span)
    with pytest.raises(TachographError, match="has already stopped"):
        recorder.close_span(span)


# Target run ----------------------------------------------------------------------------------------------------------


def test_spans_follow_enclosing_or_current_run():
    first, second = MemoryRun("first"), MemoryRun("second")
    for run in (first, second):
        watch(run, hooks=False)
    with timed_span("a", run=first):
        with timed_span("b"):  # recorded in the run of the enclosing span
            pass
        with timed_span("c", run=second) as span:
            assert span.parent_span is None
    with timed_span("d"):  # recorded in the current run
        pass
    assert [record["name"] for record in first.records if record["event"] in {"span", "span_stop"}] == ["b", "a"]
    assert [record["name"] for record in second.records if record["event"] in {"span", "span_stop"}] == ["c", "d"]
    first.finish()
    second.finish()


def test_threads_record_to_separate_runs():
    runs = [MemoryRun(str(index)) for index in range(3)]

    def train(run: MemoryRun) -> None:
        with application(run=run), training_loop(0, run=run):
            for _ in range(10):
                with training_iteration():
                    run.clock.advance(0.25)

    threads = [threading.Thread(target=train, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        update = [record for record in run.records if record.get("name") == "training_metrics_update"][-1]
        assert (update["num_iterations"], update["total_iteration_time_sec"]) == (10, 2.5)
        run.finish()


def test_iteration_after_finish_goes_to_next_run():
    for index in range(3):
        run = MemoryRun(str(index))
        watch(run, hooks=False)
        recorder_of(run)
        with training_iteration():
            run.clock.advance(0.25)
        timed_span("left open").start()
        run.finish()
        update = [record for record in run.records if record.get("name") == "training_metrics_update"]
        assert [record["num_iterations"] for record in update] == [1]


def test_application_starts_and_finishes_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):

        @application(name)
        def main() -> None:
            with training_loop(0):
                for _ in range(3):
                    with training_iteration():
                        tachograph.log(train_loss=1.0)

        main()
        assert tachograph.read(f"logs/{name}").state == "finished"
        assert len(list(tachograph.read(f"logs/{name}").spans())) == 2
    assert "run_name=one" in capsys.readouterr().out


def test_application_failure_marks_run_failed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @application("bad")
    def main() -> None:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        main()
    history = tachograph.read("logs/bad")
    assert history.state == "failed"
    assert [(record["fatal"], record["error_type"]) for record in history.latest("error")] == [
        (False, "ZeroDivisionError"), (True, "ZeroDivisionError"),
    ]  # fmt: skip


def test_environment_disables_spans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACHO_ENABLED", "0")
    with application() as app, training_loop(0) as loop, training_iteration(), timed_span("x") as span:
        app.add_attribute("a", 1)
        loop.add_event(Event.create("b"))
        span.add_attribute("c", 2)
        assert span.active and span.parent_span is not None
    assert span.duration_msec() >= 0
    assert list(tmp_path.iterdir()) == []


def test_spans_of_other_ranks_go_to_a_journal_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("tachograph.recorder._writer._MAX_FOLDER_WAIT_S", 1.0)
    with application(), training_loop(0) as span:
        span.add_attribute("a", 1)
        for _ in range(10_000):
            with training_iteration():
                pass
        assert list(tmp_path.iterdir()) == []  # until the end: it belongs into the folder of rank 0
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.endswith("-rank-1") and (folder / "metrics.jsonl").exists()


def test_worker_processes_start_no_runs(script, tmp_path):
    out = script(
        """
        import multiprocessing, os, tachograph

        def work(_):
            with tachograph.timed_span("load") as span:
                span.add_attribute("a", 1)
            with tachograph.training_iteration():
                pass
            return os.getpid()

        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    pool.map(work, range(4))
            print(os.path.exists("logs"))
        """,
        cwd=tmp_path,
    ).ok()
    assert out.splitlines()[-1] == "False"


def test_forked_child_records_only_in_its_own_run(script, tmp_path):
    script(
        """
        import os, tachograph
        from tachograph import timed_span, training_iteration
        tachograph.init("parent", log_dir="logs", system_interval_s=0)
        with timed_span("outer"), training_iteration():
            child = os.fork()
            if not child:
                with timed_span("lost"):
                    pass
                with tachograph.init("child", log_dir="logs", system_interval_s=0):
                    with timed_span("kept"), training_iteration():
                        pass
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        """,
        cwd=tmp_path,
    ).ok()
    names = {run: [span.name for span in read(tmp_path / "logs" / run).spans()] for run in ("parent", "child")}
    assert names == {"parent": ["outer"], "child": ["kept"]}


# Filters -------------------------------------------------------------------------------------------------------------


def test_whitelist_keeps_only_named_spans(tacho_run):
    get_recorder().customize_export(ExportCustomizationMode.WHITELIST_SPANS, ["application", "inner"])
    with application(), training_loop(0), timed_span("outer"), timed_span("inner"):
        pass
    kept = {record["name"]: record for record in tacho_run.records if record["event"].startswith("span")}
    assert set(kept) == {"application", "inner"}
    starts = [record for record in tacho_run.records if record["event"] in {"span", "span_start"}]
    assert starts[1]["parent_id"] == starts[0]["span_id"]  # the nearest recorded ancestor


def test_event_in_filtered_span_moves_to_parent(tacho_run):
    get_recorder().customize_export(ExportCustomizationMode.BLACKLIST_SPANS, ["secret"])
    with timed_span("open") as outer, timed_span("secret") as span:
        span.add_event(Event.create("happened"))
    (record,) = records_of(tacho_run, "event")
    assert record["span_id"] == get_recorder().ids.text_of(outer)


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (ExportCustomizationMode.EXPORT_ALL_SPANS, ["x"]),
        (ExportCustomizationMode.WHITELIST_SPANS, None),
        (ExportCustomizationMode.BLACKLIST_SPANS, []),
        (ExportCustomizationMode.BLACKLIST_SPANS, "application"),
        ("all", None),
    ],
)
def test_invalid_span_filters_raise(tacho_run, mode, names):
    with pytest.raises(ConfigError, match="span_name_filter|export_customization_mode"):
        get_recorder().customize_export(mode, names)


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a" * 10_000, "line\nbreak", "ünïcode \ud800", 'quo"te'])
def test_any_non_empty_name_is_accepted(tacho_run, name):
    if not name:
        with pytest.raises(ConfigError, match="expected a name"):
            timed_span(name)
        return
    with timed_span(name):
        pass
    assert len(records_of(tacho_run, "span")) == 1


def test_enum_name_uses_its_value(tacho_run):
    class Stage(enum.Enum):
        WARMUP = "warm-up"

    with timed_span(Stage.WARMUP) as span:
        assert span.name is Stage.WARMUP
    assert span.name_str == "warm-up"
    assert list(finished_spans(tacho_run)) == ["warm-up"]


@pytest.mark.parametrize("value", [-1, 1.5, "three", object()])
def test_invalid_loop_start_raises(tacho_run, value):
    with pytest.raises(ConfigError, match="train_iterations_start="):
        training_loop(train_iterations_start=value)


@pytest.mark.expects_faults
def test_invalid_checkpoint_step_is_reported(tacho_run):
    with checkpoint_save("abc"):
        pass
    assert "'abc' is not an integer" in records_of(tacho_run, "telemetry_error")[0]["reason"]
    assert "checkpoint_save_sync" in finished_spans(tacho_run)


def test_unsupported_attribute_is_dropped_and_reported(tacho_run):
    with timed_span("x") as span:
        span.add_attribute("good", 1)
        span.add_attribute("bad", object())
    assert finished_spans(tacho_run)["x"]["attributes"] == {"good": 1}
    assert "bad" in records_of(tacho_run, "telemetry_error")[0]["field"]


# Memory --------------------------------------------------------------------------------------------------------------


def test_finished_spans_are_garbage_collected(tacho_run):
    class Tracked(Span, eq=False, weakref=True):
        pass

    recorder = get_recorder()
    tacho_run.backend.add_handler([Tracked], recorder.aggregator)
    with training_loop(0):
        references = []
        for _ in range(100):
            span = Tracked("x")
            recorder.open_span(span)
            recorder.close_span(span)
            references.append(weakref.ref(span))
        del span
    assert len(tacho_run.records) > 100
    with timed_span("other"):
        pass
    gc.collect()
    assert sum(reference() is not None for reference in references) == 0


def test_iterations_do_not_grow_memory(tacho_run):
    with training_loop(0) as loop:
        for _ in range(20_000):
            with training_iteration():
                pass
        assert len(tacho_run._memory_writer.buffer) <= 4097  # the buffer is flushed when it is full
        assert len(loop.events) == 1  # only the start event: no list grows with the iterations


def test_copied_context_skips_finished_span(tacho_run):
    with timed_span("outer") as outer:
        context = contextvars.copy_context()
    with timed_span("other"):

        def inside() -> Span | None:
            with timed_span("inner") as inner:
                return inner.parent_span

        assert context.run(inside) is None  # `outer` was current in that context but has stopped
    assert outer.parent_span is None


# Timestamps ----------------------------------------------------------------------------------------------------------


def test_span_events_carry_timestamps(tacho_run):
    with timed_span("x") as span:
        tacho_run.clock.advance(1.5)
    assert span.start_event.timestamp.seconds_since_epoch == 1_700_000_000.0
    assert span.stop_event is not None
    assert span.stop_event.timestamp.seconds_since_epoch == 1_700_000_001.5
    assert span.start_event.attributes["timestamp_msec"].value == 1_700_000_000_000


def test_standalone_span_round_trips_through_json(tmp_path):
    parent = Span.create("parent")
    span = Span.create("child", parent, Attributes({"a": 1}), start_time=TracingTimestamp.for_timestamp(1.7e9, 5.0))
    span.add_event(Event.create("e"))
    span.stop(stop_time=TracingTimestamp.for_timestamp(1.7e9 + 2, 7.0))
    span.stop()
    assert span.parent_span is parent
    assert span.duration_msec() == 2000 == span.attributes["duration_msec"].value
    with pytest.raises(TachographError, match="not running"):
        span.add_event(Event.create("late"))
    restored = Span.from_json(span.to_json())
    assert restored.to_json() == span.to_json()
    assert restored.id == span.id


def test_span_ids_are_unique_across_attempts(logs):
    ids = []
    for _ in range(3):
        with tachograph.init("x", log_dir=str(logs), resume=True, **SETTINGS), timed_span("a") as span:
            ids.append(span.id)
    recorded = [record["span_id"] for record in lines_of(logs / "x") if record["event"] in {"span", "span_start"}]
    assert len(set(ids)) == len(set(recorded)) == 3
    assert {str(identity)[:18] for identity in ids} == {str(ids[0])[:18]}  # ids start with the run's prefix
