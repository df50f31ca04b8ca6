"""OTLP: what arrives at real receivers of both protocols, and what happens when they fail."""

from __future__ import annotations

import json
import math
import os
import re
import signal as signals
import socket
import subprocess
import time
from typing import Any

import grpc
import hypothesis
import pytest
from hypothesis import strategies as st

import tachograph
from tachograph.bridges.otlp import OtlpSink
from tachograph.bridges.otlp._encoder import OtlpEncoder
from tachograph.bridges.otlp.sink import _REQUESTS, _encode
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.reader import read
from tachograph.records import KINDS
from tachograph.sinks import SinkDriver, build_sinks, read_lags
from tachograph.spans import Event, get_recorder
from tests.conftest import HANG_S, lines_of, wait_for
from tests.otlp_receiver import Answer, GrpcOtlp, HttpOtlp, attributes_of, value_of


@pytest.fixture(autouse=True)
def no_otel_variables(monkeypatch):
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture(params=[HttpOtlp, GrpcOtlp])
def otlp(request):
    receiver = request.param()
    yield receiver
    receiver.close()


@pytest.fixture
def http_otlp():
    receiver = HttpOtlp()
    yield receiver
    receiver.close()


def record_run(logs, **options: Any) -> Any:
    """Start a run without samples of the system."""
    return tachograph.init(
        "x", log_dir=str(logs), git=False, system_interval_s=0, exit_timeout_s=HANG_S, resume=True, **options
    )


def deliver(logs, sink: OtlpSink, timeout_s: float = HANG_S) -> tuple[bool, list[tuple[str, str, str]]]:
    """Export the rest of a run; return whether the sink accepted everything, and the reports."""
    reports: list[tuple[str, str, str]] = []
    driver = SinkDriver(RunFolder(logs / "x"), sink, lambda *report: reports.append(report))
    driver.start()
    return driver.close(timeout_s), reports


def nanoseconds(record: dict[str, Any]) -> int:
    return int(record["time"] * 1e9)


def test_run_arrives_over_both_protocols(logs, otlp):
    config = {"lr": 0.5, "api_key": "opaque-secret"}
    options = otlp.options(service_name="trainer", headers={"X-Token": "t"}, compression="gzip")
    with record_run(logs, sinks=[{"otlp": options}], config=config, tags=["t"]) as run:
        with tachograph.application(run=run), tachograph.timed_span("load", {"size": 3}):
            get_recorder().event(Event.create("shard", {"index": 7}))
        run.log(train_loss=0.5, count=3, step=5)
        run.log(train_loss=math.nan, step=6)
        run.event("histogram", step=6, tag="weights", counts=[1, 2], edges=[0.0, 1.0, 3.0])
        run.log({"weights": 7.0}, step=7)
    (root,), (application,), (load,) = otlp.spans("run"), otlp.spans("application"), otlp.spans("load")
    assert root.parent_span_id == b"" and application.parent_span_id == root.span_id
    assert load.parent_span_id == application.span_id
    assert root.trace_id == application.trace_id == load.trace_id
    assert root.trace_id.hex().startswith(run.id)
    records = lines_of(logs / "x")
    load_record = next(record for record in records if record.get("name") == "load" and "duration_s" in record)
    assert load.span_id.hex() == load_record["span_id"]
    assert attributes_of(load.attributes)["size"] == 3
    assert load.end_time_unix_nano - load.start_time_unix_nano == pytest.approx(
        load_record["duration_s"] * 1e9, abs=1e3
    )
    assert attributes_of(root.attributes)["tachograph.status"] == "finished"
    (shard,) = otlp.logs("shard")
    assert (shard.trace_id, shard.span_id) == (load.trace_id, load.span_id)
    assert attributes_of(shard.attributes) == {"index": 7}
    assert otlp.points("train_loss")[0].as_double == 0.5
    assert math.isnan(otlp.points("train_loss")[1].as_double)
    assert [point.as_double for point in otlp.points("tachograph.global_step")] == [5.0, 6.0, 7.0]
    assert all(not point.attributes for point in otlp.points("train_loss"))
    assert [point.as_double for point in otlp.points("count")] == [3.0]
    steps = [record for record in records if record["event"] == "step"]
    assert [point.time_unix_nano for point in otlp.points("train_loss")] == [
        nanoseconds(record) for record in steps[:2]
    ]
    assert [point.as_double for point in otlp.points("weights")] == [7.0]  # a number and a histogram of the same name
    (weights,) = [point for metric in otlp.metrics("weights") for point in metric.histogram.data_points]
    assert (list(weights.explicit_bounds), list(weights.bucket_counts)) == ([0.0, 1.0, 3.0], [0, 1, 2, 0])
    assert weights.count == 3 and not weights.HasField("sum")
    start = records[0]
    for kind in ("traces", "logs", "metrics"):
        resource = otlp.resources(kind)[0]
        expected = {
            "service.name": "trainer", "service.instance.id": run.id, "host.name": start["process"]["host"],
            "process.pid": os.getpid(), "telemetry.sdk.name": "tachograph", "telemetry.sdk.language": "python",
            "tachograph.run.name": "x", "tachograph.attempt": 1, "tachograph.tags": ["t"],
        }  # fmt: skip
        assert expected.items() <= resource.items()
    assert all(headers["x-token"] == "t" for headers in otlp.headers)
    (started,) = otlp.logs("tachograph.start")
    assert attributes_of(started.attributes)["tachograph.start.config"] == {"lr": 0.5, "api_key": "[masked]"}
    assert "opaque-secret" not in str(otlp.received)
    assert read(logs / "x").latest("telemetry_error") == []


def test_open_span_is_announced_before_it_ends(logs, otlp):
    with record_run(logs, sinks=[{"otlp": otlp.options()}], flush_interval_s=0.05) as run:
        with tachograph.application(run=run) as application, tachograph.timed_span("long", {"shard": 1}):
            application.add_event(Event.create("inside"))
            run.event("inside the run")
            wait_for(lambda: any(value_of(log.body) == "long started" for log in otlp.logs()))
            announced = {value_of(log.body): log for log in otlp.logs("tachograph.span_start")}
            assert not otlp.spans("long") and not otlp.spans("application") and not otlp.spans("run")
    for name in ("run", "application", "long"):
        (span,) = otlp.spans(name)
        log = announced[f"{name} started"]
        assert (log.trace_id, log.span_id) == (span.trace_id, span.span_id)
        assert log.time_unix_nano == span.start_time_unix_nano
    attributes = attributes_of(announced["long started"].attributes)
    assert attributes["tachograph.span.parent_id"] == otlp.spans("application")[0].span_id.hex()
    assert attributes["shard"] == 1


def record_intervals(logs) -> None:
    """Record a run with three checkpoints inside a training loop; the second one has two records."""
    with record_run(logs) as run, tachograph.application(run=run), tachograph.training_loop(train_iterations_start=0):
        for step in range(3):
            with tachograph.timed_span(f"work {step}"), tachograph.timed_span(f"inner {step}"):
                run.event("before", step=step)
            with tachograph.checkpoint_save(step):
                pass
            if step == 1:
                run.log_checkpoint("/somewhere", step=step)
        with tachograph.timed_span("work 3"):
            run.event("tail")


def test_each_checkpoint_starts_a_new_linked_trace(logs, http_otlp):
    record_intervals(logs)
    assert deliver(logs, OtlpSink(**http_otlp.options())) == (True, [])
    spans = {span.name: span for span in http_otlp.spans()}
    session = spans["run"]
    assert {spans[name].trace_id for name in ("application", "training_loop", "work 0")} == {session.trace_id}
    assert spans["work 0"].parent_span_id == spans["training_loop"].span_id
    intervals = {span.trace_id: span for span in http_otlp.spans("checkpoint_interval")}
    assert len(intervals) == 3
    assert len({session.trace_id, *intervals}) == 4
    for step in (1, 2, 3):
        work = spans[f"work {step}"]
        root = intervals[work.trace_id]
        assert attributes_of(root.attributes)["tachograph.checkpoint_interval"] == step
        assert root.parent_span_id == b"" and work.parent_span_id == root.span_id
        (link,) = root.links
        assert (link.trace_id, link.span_id) == (session.trace_id, session.span_id)
        (parent,) = work.links
        assert (parent.trace_id, parent.span_id) == (session.trace_id, spans["training_loop"].span_id)
        assert root.start_time_unix_nano <= work.start_time_unix_nano <= root.end_time_unix_nano
    inner = spans["inner 2"]
    assert (inner.trace_id, inner.parent_span_id) == (spans["work 2"].trace_id, spans["work 2"].span_id)
    assert not inner.links
    (tail,) = http_otlp.logs("tail")
    assert tail.trace_id == spans["work 3"].trace_id


def test_repeated_delivery_has_the_same_ids(logs, http_otlp):
    record_intervals(logs)
    deliver(logs, OtlpSink(**http_otlp.options()))
    first = list(http_otlp.received)
    http_otlp.received.clear()
    (logs / "x" / ".tacho" / "sink-otlp.json").unlink()
    deliver(logs, OtlpSink(**http_otlp.options()))
    assert http_otlp.received == first


def test_process_that_starts_midway_gives_the_same_spans(logs, http_otlp):
    record_intervals(logs)
    deliver(logs, OtlpSink(**http_otlp.options()))
    whole = [*http_otlp.spans(), *http_otlp.logs()]
    text = (logs / "x" / "metrics.jsonl").read_bytes()
    cursor = logs / "x" / ".tacho" / "sink-otlp.json"
    for offset in [match.end() for match in re.finditer(rb"\n", text)][::5]:
        http_otlp.received.clear()
        cursor.write_text(json.dumps({"journal_bytes": offset}))
        assert deliver(logs, OtlpSink(**http_otlp.options())) == (True, [])
        found = [*http_otlp.spans(), *http_otlp.logs()]
        assert all(message in whole for message in found)
        assert offset == len(text) or found[-1] == whole[-1]


def test_attempts_are_linked(logs, script, http_otlp):
    child = script(
        """
        import sys, time, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], git=False, system_interval_s=0, flush_interval_s=0.05)
        with tachograph.application(run=run):
            run.event("inside")
            run.flush()
            print("ready", flush=True)
            time.sleep(900)
        """,
        logs,
    )
    assert child.process.stdout.readline()
    wait_for(lambda: "inside" in (logs / "x" / "metrics.jsonl").read_text())
    child.process.send_signal(signals.SIGKILL)
    child.wait()
    for _ in range(2):
        with record_run(logs), tachograph.timed_span("again"):
            pass
    assert deliver(logs, OtlpSink(**http_otlp.options())) == (True, [])
    first, second, third = http_otlp.spans("run")
    assert len({span.trace_id for span in (first, second, third)}) == 3
    assert not first.links
    for earlier, later in ((first, second), (second, third)):
        (link,) = later.links
        assert (link.trace_id, link.span_id) == (earlier.trace_id, earlier.span_id)
        assert attributes_of(link.attributes) == {"tachograph.link": "previous_attempt"}
    (killed,) = http_otlp.spans("application")
    for span in (killed, first):
        assert (span.status.code, span.status.message) == (2, "died")
    assert killed.parent_span_id == first.span_id
    assert second.status.code == 0
    assert [resource["tachograph.attempt"] for resource in http_otlp.resources()] == [1, 2, 3]
    assert http_otlp.resources()[0]["process.pid"] == child.process.pid


def test_errors_and_alerts_have_severities(logs, http_otlp):
    alert = {"id": "a", "rule": "user", "severity": "critical", "title": "T", "message": "M"}
    with pytest.raises(ValueError), record_run(logs) as run:
        run.add_record("alert", {**alert, "status": "opened"})
        run.add_record("alert", {**alert, "status": "resolved"})
        run.event("plain")
        with tachograph.timed_span("broken", run=run):
            raise ValueError("bad data")
    deliver(logs, OtlpSink(**http_otlp.options()))
    opened, resolved = http_otlp.logs("tachograph.alert")
    assert (opened.severity_text, value_of(opened.body)) == ("ERROR", "T M")
    assert resolved.severity_text == "INFO"
    assert attributes_of(opened.attributes)["tachograph.alert.rule"] == "user"
    (broken,) = http_otlp.spans("broken")
    inside, fatal = http_otlp.logs("tachograph.error")
    assert (inside.severity_text, fatal.severity_text) == ("ERROR", "FATAL")
    assert (inside.trace_id, inside.span_id) == (broken.trace_id, broken.span_id)
    attributes = attributes_of(inside.attributes)
    assert (attributes["exception.type"], attributes["exception.message"]) == ("ValueError", "bad data")
    assert "bad data" in attributes["exception.stacktrace"]
    assert (broken.status.code, broken.status.message) == (2, "ValueError: bad data")
    assert [log.severity_text for log in http_otlp.logs("plain")] == ["INFO"]
    (root,) = http_otlp.spans("run")
    assert root.status.code == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"counts": [1, 2], "edges": [0.0]},
        {"counts": [1], "edges": [1.0, 1.0]},
        {"counts": [-1], "edges": [0.0, 1.0]},
        {"counts": ["a"], "edges": [0.0, 1.0]},
        {"counts": [1.0], "edges": [0.0, math.nan]},
    ],
)
def test_invalid_histogram_arrives_as_event(logs, http_otlp, fields):
    with record_run(logs) as run:
        run.event("histogram", tag="broken", **fields)
    deliver(logs, OtlpSink(**http_otlp.options()))
    assert len(http_otlp.logs("histogram")) == 1
    assert not http_otlp.metrics("broken")


def test_odd_values_arrive(logs, http_otlp):
    values = {"big": 2**70, "half": "\ud800x", "none": None, "list": [1, {"b": True}], "inf": math.inf}
    with record_run(logs) as run:
        run.event("odd", **values)
    assert deliver(logs, OtlpSink(**http_otlp.options())) == (True, [])
    found = attributes_of(http_otlp.logs("odd")[0].attributes)
    assert (found["list"], found["inf"]) == ([1, {"b": True}], math.inf)
    assert {"big", "half"} <= set(found) and "none" not in found


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**400) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    "time", "global_step", "span_id", "parent_id", "name", "duration_s", "status", "attributes", "config", "counts",
    "edges", "process", "git", "error_type", "error_message", "fatal", "severity", "run_id", "tag",
)  # fmt: skip
RECORDS = st.builds(
    lambda event, fields: {**fields, "event": event},
    st.sampled_from([*KINDS, "unknown"]),
    st.dictionaries(st.sampled_from(FIELDS), ANY | st.sampled_from(["histogram", "a", "0" * 16, "f" * 16])),
)


@pytest.mark.slow
@hypothesis.given(st.lists(RECORDS, max_size=12), st.integers(0, 12))
def test_any_record_can_be_encoded(records, cut):
    encoder = OtlpEncoder("0123456789abcdef", {})
    outputs = _encode(encoder, records, {0, cut})
    for build in _REQUESTS.values():
        num_items, request = build([output for _, output in outputs])
        assert type(request).FromString(request.SerializeToString()) == request or "nan" in str(request)
        assert num_items >= 0


# Failures ------------------------------------------------------------------------------------------------------------


def a_run(logs) -> None:
    with record_run(logs) as run, tachograph.timed_span("work", run=run):
        for step in range(10):
            run.log(train_loss=1.0, step=step)


RETRIES = [
    Answer(429, grpc.StatusCode.UNAVAILABLE, "busy", retry_after_s=1),
    Answer(503, grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", retry_after_s=1),
    Answer(502, grpc.StatusCode.ABORTED, "busy"),
    Answer(504, grpc.StatusCode.DEADLINE_EXCEEDED, "busy"),
    Answer(500, grpc.StatusCode.INTERNAL, "broken"),
    Answer(401, grpc.StatusCode.UNAUTHENTICATED, "who are you"),
]


@pytest.mark.parametrize("answer", RETRIES, ids=[f"{answer.status}-{answer.code.name}" for answer in RETRIES])
def test_receiver_that_recovers_gets_everything_once(logs, otlp, answer):
    a_run(logs)
    otlp.answer(answer, Answer(), signal="logs")
    start_s = time.monotonic()
    is_done, reports = deliver(logs, OtlpSink(**otlp.options()))
    assert is_done
    assert otlp.signals() == ["traces", "logs", "metrics"]  # the traces are not sent again
    ((kind, name, reason),) = reports
    assert (kind, name) == ("sink_failed", "otlp")
    assert answer.text in reason and reason.endswith("; will be retried")
    assert str(answer.status if otlp.protocol != "grpc" else answer.code.name) in reason
    assert time.monotonic() - start_s >= (answer.retry_after_s or 0)


def test_block_that_grew_is_not_sent_twice(logs, http_otlp):
    http_otlp.answer(Answer(503), signal="metrics")
    with record_run(logs, flush_interval_s=0.05) as run:
        driver = SinkDriver(run.folder, OtlpSink(**http_otlp.options()), run.report_follower_error)
        run.add_follower(driver)
        run.event("one")
        run.log(train_loss=1.0, step=1)
        wait_for(lambda: http_otlp.logs("one"))
        run.event("two")
        run.log(train_loss=0.5, step=2)
        run.flush()
        http_otlp.answer(Answer())
    assert [value_of(log.body) for log in http_otlp.logs() if log.event_name in {"one", "two"}] == ["one", "two"]
    assert len(http_otlp.spans("run")) == 1
    assert [point.as_double for point in http_otlp.points("train_loss")] == [1.0, 0.5]


def test_driver_waits_as_long_as_the_receiver_asks(logs, http_otlp):
    a_run(logs)
    http_otlp.answer(Answer(429, retry_after_s=3_000))
    start_s = time.monotonic()
    is_done, _ = deliver(logs, OtlpSink(**http_otlp.options()))
    assert not is_done and time.monotonic() - start_s < HANG_S / 2
    assert len(http_otlp.headers) == 1  # the receiver was left alone, even at the end
    (lag,) = read_lags(RunFolder(logs / "x"))
    assert "HTTP 429" in lag.error and lag.num_records == len(lines_of(logs / "x"))


@pytest.mark.parametrize("signal", ["traces", "logs", "metrics"])
def test_partial_success_is_reported_and_not_repeated(logs, otlp, signal):
    with record_run(logs, sinks=[{"otlp": otlp.options()}]) as run:
        otlp.answer(Answer(num_rejected=2, text="too old"), signal=signal)
        with tachograph.timed_span("work", run=run):
            run.log(train_loss=1.0, step=1)
    assert len(otlp.signals()) == len(otlp.headers)
    reports = read(logs / "x").latest("telemetry_error")
    words = {"traces": "spans", "logs": "log records", "metrics": "data points"}
    assert [(record["kind"], record["field"]) for record in reports][:1] == [("sink_rejected", "otlp")]
    assert f"rejected 2 {words[signal]} for good: too old" in reports[0]["reason"]
    assert sum(lag.num_records for lag in read_lags(RunFolder(logs / "x"))) <= len(reports)  # the reports themselves


def test_refused_batch_is_dropped_and_counted(logs, otlp):
    a_run(logs)
    otlp.answer(Answer(400, grpc.StatusCode.INVALID_ARGUMENT, "bad metric"), signal="metrics")
    is_done, reports = deliver(logs, OtlpSink(**otlp.options()))
    assert is_done
    assert otlp.signals() == ["traces", "logs"]
    ((kind, _, reason),) = reports
    assert kind == "sink_rejected"
    num_points = sum(
        len([value for name, value in record.items() if name != "time" and type(value) in (int, float)])
        for record in lines_of(logs / "x")
        if record["event"] == "step"
    )
    assert f"rejected {num_points} data points for good" in reason and "bad metric" in reason


def test_later_rejections_are_counted_in_the_end(logs, http_otlp):
    http_otlp.answer(Answer(num_rejected=1, text="too old"), signal="logs")
    reports: list[tuple[str, str, str]] = []
    with record_run(logs, flush_interval_s=0.05) as run:
        sink = OtlpSink(**http_otlp.options())
        run.add_follower(SinkDriver(run.folder, sink, lambda *report: reports.append(report)))
        for number in range(3):
            run.event("one")
            run.flush()
            wait_for(lambda number=number: http_otlp.signals().count("logs") > number)
    first, last = (reason for _, _, reason in reports)
    assert "rejected 1 log records" in first
    assert f"rejected {http_otlp.signals().count('logs')} log records" in last


def test_exhausted_without_delay_is_not_repeated(logs):
    receiver = GrpcOtlp()
    try:
        a_run(logs)
        receiver.answer(Answer(code=grpc.StatusCode.RESOURCE_EXHAUSTED, text="larger than max"), signal="logs")
        is_done, reports = deliver(logs, OtlpSink(**receiver.options()))
        assert is_done and [kind for kind, _, _ in reports] == ["sink_rejected"]
    finally:
        receiver.close()


@pytest.mark.parametrize(("status", "code"), [(404, grpc.StatusCode.UNIMPLEMENTED)])
def test_missing_signal_names_the_remedy(logs, otlp, status, code):
    a_run(logs)
    otlp.answer(Answer(status, code), signal="metrics")
    is_done, reports = deliver(logs, OtlpSink(**otlp.options()))
    assert not is_done
    assert "leave metrics out of the option signals" in reports[0][2]
    assert deliver(logs, OtlpSink(**otlp.options(signals=["logs", "traces"]))) == (True, [])
    assert "metrics" not in otlp.signals()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_unreachable_receiver_leaves_the_cursor(logs, protocol):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        a_run(logs)
        sink = OtlpSink(endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}", protocol=protocol)
        is_done, reports = deliver(logs, sink)
    assert not is_done and reports[0][0] == "sink_failed"
    (lag,) = read_lags(RunFolder(logs / "x"))
    assert lag.num_records == len(lines_of(logs / "x"))


def test_hanging_receiver_costs_one_timeout_per_attempt(logs, otlp):
    a_run(logs)
    otlp.answer(Answer(is_silent=True))
    start_s = time.monotonic()
    is_done, reports = deliver(logs, OtlpSink(**otlp.options(timeout=0.5)))
    assert not is_done and time.monotonic() - start_s < HANG_S / 2
    assert "no response within 0.5 s" in reports[0][2] or "DEADLINE_EXCEEDED" in reports[0][2]
    otlp.released.set()
    otlp.answer(Answer())
    assert deliver(logs, OtlpSink(**otlp.options())) == (True, [])
    assert len(otlp.spans("work")) == 1


def test_connection_that_never_answers_does_not_delay_exit(logs, script):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        out = script(
            """
            import sys, tachograph
            logs, port = sys.argv[1:]
            sinks = [{"otlp": {"endpoint": f"http://127.0.0.1:{port}", "timeout": 300}}]
            with tachograph.init("x", log_dir=logs, sinks=sinks, git=False, exit_timeout_s=0.5) as run:
                run.log(train_loss=1.0, step=1)
            """,
            logs,
            listener.getsockname()[1],
        ).ok()
    assert "otlp did not receive all records" in out


def test_sync_delivers_a_run_later(logs, otlp, script):
    a_run(logs)
    sink = json.dumps({"otlp": otlp.options()})
    command = "from tachograph.cli import main; main()"
    out = script(command, "sync", "x", "--log-dir", logs, "--sink", sink).ok()
    assert f"x: otlp received {len(lines_of(logs / 'x'))} records" in out
    assert len(otlp.spans("work")) == 1 and len(otlp.points("train_loss")) == 10
    num_requests = len(otlp.received)
    assert "received 0 records" in script(command, "sync", "x", "--log-dir", logs, "--sink", sink).ok()
    assert len(otlp.received) == num_requests


def test_sync_tells_what_was_rejected(logs, http_otlp, script):
    a_run(logs)
    http_otlp.answer(Answer(400, text="bad metric"), signal="metrics")
    sink = json.dumps({"otlp": http_otlp.options()})
    command = "from tachograph.cli import main; main()"
    code, _, err = script(command, "sync", "x", "--log-dir", logs, "--sink", sink).wait()
    assert code == 1 and "data points for good" in err and "bad metric" in err


# Options -------------------------------------------------------------------------------------------------------------


def test_environment_configures_the_sink(logs, http_otlp, monkeypatch):
    a_run(logs)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1/base/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b,tenant=t")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,service.name=weak")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "strong")
    for signal in ("TRACES", "LOGS", "METRICS"):
        path = f"{http_otlp.endpoint}/own/{signal.lower()}"
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", path)
    assert deliver(logs, OtlpSink()) == (True, [])
    assert {request.path for request in http_otlp.server.requests} == {"/own/traces", "/own/logs", "/own/metrics"}
    for headers in http_otlp.headers:
        assert (headers["api-key"], headers["tenant"], headers["content-encoding"]) == ("a b", "t", "gzip")
    resource = http_otlp.resources()[0]
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("strong", "lab")


def test_option_wins_over_environment(logs, http_otlp, monkeypatch):
    a_run(logs)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "weak")
    assert deliver(logs, OtlpSink(**http_otlp.options(service_name="strong", signals=["traces"]))) == (True, [])
    assert {request.path for request in http_otlp.server.requests} == {"/v1/traces"}
    assert http_otlp.resources()[0]["service.name"] == "strong"


WRONG = [
    ({"endpoint": 7}, "endpoint must be an address such as 'http://localhost:4318', got 7"),
    ({"endpoint": "collector:4318"}, "endpoint must start with http:// or https://, got 'collector:4318'"),
    ({"endpoint": "http://c/v1/traces"}, "endpoint must not end with the path of a signal, which is added to it"),
    ({"endpoint": "http://c/x", "protocol": "grpc"}, "endpoint must be host:port or http(s)://host:port for gRPC"),
    ({"protocol": "grcp"}, "protocol must be one of http/protobuf, grpc, got 'grcp'; did you mean 'grpc'?"),
    ({"headers": 5}, "headers must be a mapping of names to texts"),
    ({"headers": {"a": 5}}, "headers: the value of 'a' must be a text, got int"),
    ({"headers": {"a": "s3cret\n"}}, "headers: 'a' or its value has characters that a header cannot have"),
    ({"timeout": 0}, "timeout must be seconds above 0 and up to 300, got 0"),
    ({"timeout": "soon"}, "timeout must be seconds above 0 and up to 300, got 'soon'"),
    ({"compression": "zip"}, "compression must be one of none, gzip, got 'zip'; did you mean 'gzip'?"),
    ({"insecure": "yes"}, "insecure must be true or false, got 'yes'"),
    ({"insecure": True, "endpoint": "https://c"}, "insecure=True contradicts https:// in the endpoint"),
    ({"service_name": ""}, "service_name must be a non-empty string, got ''"),
    ({"signals": ["trace"]}, "signals: 'trace' is not one of traces, logs, metrics; did you mean 'traces'?"),
    ({"signals": "traces"}, "signals must be a list of some of traces, logs, metrics, got 'traces'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_name_option_and_remedy(options, message):
    with pytest.raises(ConfigError, match=re.escape(f"sink 'otlp': {message}")) as error:
        build_sinks({"otlp": options})
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "must be one of http/protobuf, grpc, got 'http/json'"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "never", "must be seconds above 0"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "must name a file, got '/no/such/file'"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://user:s3cret@c", "must start with http:// or https://, got 'c'"),
    ],
)
def test_wrong_variable_is_named(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=re.escape(f"{variable} {message}")):
        OtlpSink()


@pytest.mark.parametrize("kind", [HttpOtlp, GrpcOtlp])
def test_certificates_of_the_environment_are_used(logs, tmp_path, monkeypatch, kind):
    a_run(logs)
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:TRUE"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    receiver = kind((certificate, key))
    try:
        is_done, _ = deliver(logs, OtlpSink(**receiver.options()))
        assert not is_done and receiver.received == []  # neither side trusts the other
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificate))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(key))
        assert deliver(logs, OtlpSink(**receiver.options())) == (True, [])
        assert len(receiver.spans("work")) == 1
    finally:
        receiver.close()


def test_unusable_certificate_fails_at_setup(monkeypatch, tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match="a certificate or key cannot be used"):
        OtlpSink(endpoint="https://c")
