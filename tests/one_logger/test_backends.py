"""`OTelExporter` and the W&B exporters, with a real OTLP receiver and the real W&B, offline."""

from __future__ import annotations

import json
import os
import signal as signals
import socket
from typing import Any

import psutil
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tachograph.one_logger import (
    Config,
    Event,
    ExportError,
    FlatMetricNamingStrategy,
    MetricNamingStrategy,
    OneLoggerError,
    OTelExporter,
    TrainingTelemetryConfig,
    WandBExporterAsync,
    WandBExporterSync,
    application,
    get_recorder,
    timed_span,
    training_iteration,
    training_loop,
)
from tests.conftest import wait_for
from tests.one_logger.conftest import journal
from tests.otlp_receiver import Answer, GrpcOtlp, HttpOtlp, attributes_of
from tests.sinks.test_sinks import wandb_records


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("OTEL_", "WANDB_")):
            monkeypatch.delenv(name)


@pytest.fixture(params=[HttpOtlp, GrpcOtlp])
def otlp(request):
    receiver = request.param()
    yield receiver
    receiver.close()


def losses() -> list[dict[str, Any]]:
    return [record for record in journal() if "telemetry_data" in str(record.get("kind"))]


def work() -> None:
    """Record an application with a nested span, an event and an error."""
    with pytest.raises(ValueError), application():
        with timed_span("outer", {"size": 3, "parts": [1, 2], "deep": {"a": 1}}), timed_span("inner"):
            get_recorder().event(Event.create("shard", {"index": 7}))
        with timed_span("broken"):
            raise ValueError("bad data")


def check_spans(spans: dict[str, Any]) -> None:
    """Check the spans of `work`, as messages by name."""
    app, outer, inner = spans["application"], spans["outer"], spans["inner"]
    assert app.parent_span_id == b""
    assert (outer.parent_span_id, inner.parent_span_id) == (app.span_id, outer.span_id)
    assert len({span.trace_id for span in spans.values()}) == 1
    attributes = attributes_of(outer.attributes)
    assert (attributes["size"], attributes["parts"], json.loads(attributes["deep"])) == (3, [1, 2], {"a": 1})
    assert attributes["one_logger_span_id"].replace("-", "").endswith(outer.span_id.hex())
    shard = spans["shard_event_for_inner"]
    assert shard.parent_span_id == inner.span_id
    assert shard.start_time_unix_nano == shard.end_time_unix_nano
    assert attributes_of(shard.attributes)["index"] == 7
    assert [event.name for event in inner.events] == ["span_start", "shard", "span_stop"]
    assert spans["span_start_event_for_outer"].parent_span_id == outer.span_id
    assert spans["span_stop_event_for_outer"].start_time_unix_nano == outer.end_time_unix_nano
    assert spans["broken"].status.code == spans["error_for_broken"].status.code == 2
    assert attributes_of(spans["error_for_broken"].attributes)["exception_message"] == "bad data"
    assert outer.status.code == 0


def test_otel_exporter_sends_spans_over_both_protocols(configure, otlp):
    configure(OTelExporter(**otlp.options(service_name="trainer")))
    work()
    assert otlp.resources()[0]["service.name"] == "trainer"
    check_spans({span.name: span for span in otlp.spans()})
    assert losses() == []


def test_otel_exporter_uses_a_given_exporter(configure, otlp):
    if otlp.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter

        given = GrpcSpanExporter(otlp.endpoint, insecure=True)
    else:
        given = OTLPSpanExporter(f"{otlp.endpoint}/v1/traces")
    configure(OTelExporter(given))
    work()
    check_spans({span.name: span for span in otlp.spans()})
    assert otlp.resources()[0]["service.name"] == "tachograph"
    given.shutdown()


def test_start_is_announced_before_the_span_ends(configure, otlp):
    configure(OTelExporter(**otlp.options()))
    with application():
        get_recorder().event(Event.create("inside"))
        announced = wait_for(lambda: otlp.spans("span_start_event_for_application"))
        assert not otlp.spans("application")
    assert announced[0].parent_span_id == otlp.spans("application")[0].span_id


def test_spans_inside_filtered_iterations_keep_a_parent(configure):
    exporter = InMemorySpanExporter()
    configure(OTelExporter(exporter))
    with application(), training_loop(train_iterations_start=0):
        for _ in range(4):
            with training_iteration(), timed_span("augment"):
                pass
    spans = [span for span in exporter.get_finished_spans() if span.name in {"augment", "training_loop"}]
    *inner, loop = spans
    assert [span.name for span in inner] == ["augment"] * 4
    assert {span.parent.span_id for span in inner} == {loop.context.span_id}


def test_exporter_works_for_a_second_run(configure):
    exporter = InMemorySpanExporter()
    otel = OTelExporter(exporter)
    for _ in range(2):
        configure(otel)
        with application():
            pass
    assert [span.name for span in exporter.get_finished_spans()].count("application") == 2


class Refusing(InMemorySpanExporter):
    """Refuses spans with one name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def export(self, spans):
        return SpanExportResult.FAILURE if spans[0].name == self.name else super().export(spans)


@pytest.mark.parametrize("name", ["shard_event_for_inner", "application"])
def test_refused_span_is_reported(configure, name):
    exporter = Refusing(name)
    configure(OTelExporter(exporter))
    work()
    (loss,) = losses()
    assert "dropped a" in loss["reason"] and "1 lost so far" in loss["reason"]
    assert f"Refusing could not export {name!r}" in loss["reason"]
    finished = [span.name for span in exporter.get_finished_spans()]
    assert "span_for_telemetry_data_error" in finished


def test_rejected_span_is_sent_once_and_reported(configure, otlp):
    configure(OTelExporter(**otlp.options()))
    otlp.answer(Answer(num_rejected=1, text="too old"), Answer())
    work()
    (loss,) = losses()
    assert "dropped a span_start record" in loss["reason"] and "rejected 1 of 1 spans: too old" in loss["reason"]
    assert len(otlp.spans("span_start_event_for_application")) == 1
    (error,) = otlp.spans("span_for_telemetry_data_error")
    assert "records not exported so far: 1" in str(attributes_of(error.attributes))


def test_otel_exporter_checks_its_arguments():
    with pytest.raises(OneLoggerError, match="otel_span_exporter must be a SpanExporter of OpenTelemetry, got str"):
        OTelExporter("http://localhost")
    with pytest.raises(OneLoggerError, match="set either otel_span_exporter or the options"):
        OTelExporter(InMemorySpanExporter(), endpoint="http://localhost")
    with pytest.raises(OneLoggerError, match="endpoint must start with http:// or https://"):
        OTelExporter(endpoint="localhost")
    with pytest.raises(ExportError, match="not initialized"):
        OTelExporter().export_telemetry_data_error(Event.create("x"))


# W&B -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch):
    """Keep W&B offline. It reads its environment once per process, unless it is torn down."""
    import wandb

    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


def rows_of(tmp_path) -> list[dict[str, Any]]:
    """Return what W&B has in its history."""
    (path,) = tmp_path.rglob("*.wandb")
    wait_for(lambda: any(record.WhichOneof("record_type") == "exit" for record in wandb_records(path)))
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def exit_codes(tmp_path) -> list[int]:
    (path,) = tmp_path.rglob("*.wandb")
    return [record.exit.exit_code for record in wandb_records(path) if record.WhichOneof("record_type") == "exit"]


BOTH = pytest.mark.parametrize("exporter_class", [WandBExporterSync, WandBExporterAsync])


@BOTH
def test_wandb_exporter_logs_attributes(configure, offline, tmp_path, exporter_class):
    config = Config(entity="us", project="p", run_name="r", save_dir=str(tmp_path / "saved"), tags=["t"])
    configure(
        exporter_class(config),
        telemetry_config=TrainingTelemetryConfig(
            perf_tag_or_fn="p", global_batch_size_or_fn=4, log_every_n_train_iterations=1
        ),
    )
    work()
    rows = rows_of(tmp_path / "saved")
    values = {name: value for row in rows for name, value in row.items()}
    assert values["inner.shard.index"] == 7
    assert values["outer.size"] == 3 and "outer.duration_msec" in values
    assert values["application.update_training_telemetry_config.perf_tag"] == "p"
    assert values["broken.error.exception_message"] == "bad data"
    assert all("app_last_log_time" in row for row in rows)
    assert exit_codes(tmp_path / "saved") == [1]
    (path,) = (tmp_path / "saved").rglob("*.wandb")
    (run,) = [record.run for record in wandb_records(path) if record.WhichOneof("record_type") == "run"][:1]
    assert (run.entity, run.project, run.display_name, list(run.tags)) == ("us", "p", "r", ["t"])
    assert losses() == []


def test_wandb_run_of_success_ends_well(configure, offline, tmp_path):
    configure(WandBExporterSync({"save_dir": str(tmp_path / "saved")}, FlatMetricNamingStrategy()))
    with application(), timed_span("x", {"size": 3}):
        pass
    assert {"size", "duration_msec"} <= {name for row in rows_of(tmp_path / "saved") for name in row}
    assert exit_codes(tmp_path / "saved") == [0]


class Unserializable(MetricNamingStrategy):
    """Names a metric so that W&B refuses it: names must be texts."""

    def from_span_attribute(self, span, attribute):
        return f"{span.name_str}.{attribute.name}"

    def from_event_attribute(self, span, event, attribute):
        return 5 if event.name_str == "shard" else f"{event.name_str}.{attribute.name}"


@BOTH
def test_refused_wandb_record_is_reported(configure, offline, tmp_path, exporter_class):
    configure(exporter_class({"save_dir": str(tmp_path / "saved")}, Unserializable()))
    work()
    (loss,) = losses()
    assert "dropped a event record" in loss["reason"] and "1 lost so far" in loss["reason"]
    rows = rows_of(tmp_path / "saved")
    assert any("telemetry_data_error.error_message" in row for row in rows)
    assert any("outer.size" in row for row in rows)


def test_killed_wandb_process_is_reported(configure, offline, tmp_path):
    exporter = WandBExporterAsync({"save_dir": str(tmp_path / "saved")})
    configure(exporter)
    with application():
        get_recorder().event(Event.create("inside"))
        os.killpg(exporter._client._process.pid, signals.SIGKILL)
    assert "the process of the W&B exporter has ended" in losses()[-1]["reason"]


@BOTH
def test_unusable_wandb_config_fails_at_configuration(script, tmp_path, exporter_class):
    # In a process of its own, because wandb reads its environment once per process.
    code, _, err = script(
        """
        import sys
        from tachograph.one_logger import *
        exporter = globals()[sys.argv[1]](Config(host="http://127.0.0.1:1", api_key="s3cret", save_dir=sys.argv[2]))
        config = OneLoggerConfig(application_name="app", session_tag_or_fn="session", world_size_or_fn=1)
        TrainingTelemetryProvider.instance().with_base_config(config).with_exporter(exporter).configure_provider()
        """,
        exporter_class.__name__,
        tmp_path / "saved",
        env={"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")},
        cwd=tmp_path,
    ).wait()
    last = err.strip().splitlines()[-1]
    assert code == 1 and "ExportError" in err and "s3cret" not in last
    assert not (tmp_path / "logs").exists()  # no run was started
    assert "s3cret" not in repr(Config(api_key="s3cret"))


def test_dead_wandb_server_delays_neither_setup_nor_exit(script, tmp_path):
    source = """
        import sys
        from tachograph.one_logger import *
        exporter = globals()[sys.argv[1]](Config(host=sys.argv[2], api_key="0123456789" * 4, save_dir="saved"))
        config = OneLoggerConfig(application_name="app", session_tag_or_fn=sys.argv[3], world_size_or_fn=1)
        TrainingTelemetryProvider.instance().with_base_config(config).with_exporter(exporter).configure_provider()
        print(exporter._client._process.pid, flush=True)
        from tachograph import current_run
        with application():
            with timed_span("work"):
                pass
            current_run().flush(120)
    """
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        servers = {
            "silent": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "refused": "http://127.0.0.1:9",
            "unresolvable": "http://no-such-host.invalid",
        }
        classes = (WandBExporterAsync, WandBExporterSync, WandBExporterAsync)
        env = {"TACHO_EXIT_TIMEOUT_S": "1", "WANDB_MODE": "online", "TACHO_CONSOLE": "1"}
        programs = [
            script(source, exporter_class.__name__, url, name, env=env, cwd=tmp_path)
            for exporter_class, (name, url) in zip(classes, servers.items(), strict=True)
        ]
        for name, program in zip(servers, programs, strict=True):
            out = program.process.stdout.read()
            assert program.process.wait(60) == 0, program.process.stderr.read()  # W&B itself waits 90 s
            assert "did not receive all records" in out
            assert "work" in [record.get("name") for record in journal(f"app-{name}")]
            (pid,) = [int(line) for line in out.splitlines() if line.isdigit()]
            wait_for(lambda pid=pid: not psutil.pid_exists(pid))


def test_missing_wandb_names_the_remedy(script, tmp_path):
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError('as if it were not installed')")
    for exporter in ("WandBExporterSync", "WandBExporterAsync"):
        code, _, err = script(
            f"from tachograph.one_logger import {exporter}\n{exporter}().initialize()",
            env={"PYTHONPATH": str(tmp_path)},
        ).wait()
        assert code == 1 and "pip install 'tachograph[wandb]'" in err.strip().splitlines()[-1]


def test_missing_opentelemetry_names_the_remedy(script, tmp_path):
    (tmp_path / "opentelemetry.py").write_text("raise ModuleNotFoundError('as if it were not installed')")
    code, _, err = script("from tachograph.one_logger import OTelExporter", env={"PYTHONPATH": str(tmp_path)}).wait()
    assert code == 1 and "pip install 'tachograph[otlp]'" in err.strip().splitlines()[-1]


def test_wandb_config_is_checked():
    with pytest.raises(OneLoggerError, match="config must be a Config or a dict with the fields entity, host"):
        WandBExporterSync({"projct": "x"})
    with pytest.raises(OneLoggerError, match="metric_naming_strategy must be a MetricNamingStrategy, got str"):
        WandBExporterSync(Config(), "flat")
    assert Config().run_name != Config().run_name
