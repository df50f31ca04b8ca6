"""The provider: configuration as in One Logger, and the resulting runs and exports."""

from __future__ import annotations

import json
import logging
import time

import pytest

import tachograph
from tachograph.one_logger import (
    ApplicationType,
    Attributes,
    CheckPointStrategy,
    DefaultRecorder,
    Event,
    ExportCustomizationMode,
    FileExporter,
    LoggerConfig,
    OneLoggerConfig,
    OneLoggerError,
    OneLoggerErrorHandlingStrategy,
    OneLoggerProvider,
    Span,
    StandardTrainingJobSpanName,
    TelemetryConfig,
    TelemetryDataError,
    TracingTimestamp,
    TrainingRecorder,
    TrainingTelemetryAttributes,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    get_recorder,
    on_app_end,
    on_app_start,
    on_model_init_end,
    on_model_init_start,
    on_save_checkpoint_success,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    timed_span,
    training_iteration,
    training_loop,
)
from tachograph.spans import recorder_of
from tests.cli.test_cli import tacho
from tests.conftest import lines_of
from tests.one_logger.conftest import exported, journal

TRAINING = {"perf_tag_or_fn": "perf", "global_batch_size_or_fn": 32}


def events(name: str) -> list[dict]:
    """Return the attributes of all exported events with a name."""
    exported_events = [record["event"] for record in exported() if record["type"] == "event"]
    return [event["attributes"] for event in exported_events if event["name"] == name]


def test_context_managers_accept_late_training_config(configure):
    provider = configure(world_size_or_fn=5)
    config = TrainingTelemetryConfig(
        world_size_or_fn=5,
        is_log_throughput_enabled_or_fn=True,
        flops_per_sample_or_fn=100,
        log_every_n_train_iterations=10,
        **TRAINING,
    )

    @application()
    def main() -> None:
        provider.set_training_telemetry_config(config)
        with training_loop(train_iterations_start=0):
            for _ in range(25):
                with training_iteration():
                    pass

    main()
    assert [update["current_iteration"] for update in events("training_metrics_update")] == [9, 19, 24]
    (update,) = events("update_training_telemetry_config")
    assert (update["perf_tag"], update["flops_per_sample"], update["world_size"]) == ("perf", 100, 5)
    (start,) = events("one_logger_initialization")
    assert (start["session_tag"], start["application_name"], start["world_size"]) == ("session", "app", 5)
    assert tachograph.read("logs/app-session").state == "finished"
    assert tachograph.read("logs/app-session").perf_tag == "perf"


def test_callbacks_report_training_metrics(configure):
    provider = configure()
    on_app_start()
    provider.set_training_telemetry_config(TrainingTelemetryConfig(**TRAINING))
    on_train_start(train_iterations_start=0)
    for _ in range(3):
        on_training_single_iteration_start()
        on_training_single_iteration_end()
    on_train_end()
    on_app_end()
    assert events("training_metrics_update")[-1]["num_train_samples"] == 96


def test_custom_spans_events_and_attributes_are_exported(configure, provider):
    provider.with_export_customization(
        export_customization_mode=ExportCustomizationMode.BLACKLIST_SPANS,
        span_name_filter=[StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION],
    )
    configure()
    with application(), training_loop(train_iterations_start=0) as loop:
        loop.add_attribute("mine", "value")
        with timed_span("custom", span_attributes=Attributes({"mine": "value"})):
            TrainingTelemetryProvider.instance().recorder.event(Event.create("fired"))
    assert events("fired") != []
    loop_end = next(record for record in exported() if record["type"] == "stop" and record["name"] == "training_loop")
    assert loop_end["attributes"]["mine"] == "value"


def test_jobs_of_a_session_are_attempts_of_one_run(configure):
    for first in (0, 3):
        configure()
        with application(), training_loop(first):
            for _ in range(3):
                with training_iteration():
                    pass
    history = tachograph.read("logs/app-session")
    assert (len(history.attempts), history.session_tag) == (2, "session")
    configure(session_tag_or_fn=lambda: "another")
    with application():
        pass
    assert tachograph.read("logs/app-another").session_tag == "another"


def test_process_may_run_several_applications(configure):
    provider = configure()
    for _ in range(3):
        on_app_start()
        on_app_end()
    assert len({record["id"] for record in exported() if record.get("name") == "application"}) == 3
    assert len(tachograph.read("logs/app-session").attempts) == 3
    assert provider.one_logger_ready


def test_provider_attaches_to_active_run(configure, logs):
    with tachograph.init("mine", log_dir=str(logs)) as run:
        configure()
        with application():
            run.log(train_loss=1.0)
        assert run.status == "running"  # the provider does not finish a run it did not start
    assert {"application", "one_logger_initialization"} <= {record.get("name") for record in lines_of(logs / "mine")}


def test_provider_rejects_new_config_while_run_is_active(configure, provider):
    configure()
    with application():
        with pytest.raises(OneLoggerError, match="can be called only before configure_provider is called"):
            provider.with_base_config(OneLoggerConfig(application_name="b", session_tag_or_fn="s", world_size_or_fn=1))
    configure(application_name="b")
    assert provider.config.application_name == "b"


def test_config_overrides_replace_fields(provider, tmp_path):
    base = OneLoggerConfig(
        application_name="app",
        session_tag_or_fn=lambda: "asked",
        world_size_or_fn=lambda: 4,
        telemetry_config=TrainingTelemetryConfig(**TRAINING),
    )
    (tmp_path / "more.json").write_text(json.dumps({"custom_metadata": {"team": "x"}}))
    provider.with_base_config(base).with_config_override(
        {"application_name": "other", "telemetry_config": {"global_batch_size_or_fn": 8}}
    ).with_config_override_from_json_file(tmp_path / "more.json").with_exporter(FileExporter("out.jsonl"))
    provider.configure_provider()
    with application():
        pass
    assert provider.config.application_name == "other"
    assert provider.config.telemetry_config.global_batch_size == 8
    assert provider.config.world_size == 4
    (start,) = events("one_logger_initialization")
    assert (start["custom_metadata"], start["session_tag"]) == (["team:x"], "asked")
    (update,) = events("update_training_telemetry_config")
    assert (update["perf_tag"], update["global_batch_size"]) == ("perf", 8)
    with pytest.raises(OneLoggerError, match="never fetches a config over the network"):
        provider.with_config_override_from_config_server("http://x")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (OneLoggerConfig, {"application_name": "a"}, "needs session_tag_or_fn, world_size_or_fn"),
        (OneLoggerConfig, {"aplication_name": "a"}, "did you mean 'application_name'"),
        (
            OneLoggerConfig,
            {"application_name": " ", "session_tag_or_fn": "s", "world_size_or_fn": 1},
            "application_name=' '",
        ),
        (
            OneLoggerConfig,
            {"application_name": "a", "session_tag_or_fn": "s", "world_size_or_fn": 0},
            "world_size_or_fn=0",
        ),
        (TrainingTelemetryConfig, {"perf_tag_or_fn": "p"}, "needs global_batch_size_or_fn"),
        (TrainingTelemetryConfig, {**TRAINING, "global_batch_size_or_fn": 0}, "global_batch_size_or_fn=0"),
        (TrainingTelemetryConfig, {**TRAINING, "flops_per_sample_or_fn": "abc"}, "flops_per_sample_or_fn='abc'"),
        (TrainingTelemetryConfig, {**TRAINING, "save_checkpoint_strategy": "banana"}, "'banana'"),
        (
            TrainingTelemetryConfig,
            {**TRAINING, "is_log_throughput_enabled_or_fn": True},
            "flops_per_sample must be set",
        ),
        (LoggerConfig, {"log_level": "LOUD"}, "log_level='LOUD'"),
    ],
)
def test_invalid_config_raises(kind, fields, message):
    with pytest.raises(OneLoggerError, match=message):
        kind(**fields)


def test_invalid_provider_setup_raises(provider):
    with pytest.raises(OneLoggerError, match=r"No configuration was provided\. Please provide a base config"):
        provider.configure_provider()
    with pytest.raises(OneLoggerError, match="expects a OneLoggerConfig, got dict"):
        provider.with_base_config({})
    with pytest.raises(OneLoggerError, match="expects an Exporter, got str"):
        provider.with_exporter("file")
    with pytest.raises(OneLoggerError, match="before accessing the config"):
        _ = provider.config
    with pytest.raises(OneLoggerError, match="before accessing the recorder"):
        _ = provider.recorder
    with pytest.raises(OneLoggerError, match="before setting the training config"):
        provider.set_training_telemetry_config(TrainingTelemetryConfig(**TRAINING))


def test_config_has_one_logger_defaults(provider):
    config = OneLoggerConfig(application_name="a", session_tag_or_fn="s", world_size_or_fn=1)
    assert config.logger_config.log_level == "INFO"
    assert (config.is_baseline_run, config.summary_data_schema_version) == (False, "1.0.0")
    training = TrainingTelemetryConfig(**TRAINING)
    assert (training.log_every_n_train_iterations, training.perf_tag) == (50, "perf")
    assert training.save_checkpoint_strategy is CheckPointStrategy.SYNC
    assert training.is_save_checkpoint_enabled is True


def test_disabled_rank_logs_critical_errors_only_unless_told_otherwise(configure, provider):
    strict = OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
    for fields, level in (
        ({}, "CRITICAL"),
        ({"logger_config": {"log_format": "x"}}, "CRITICAL"),
        ({"logger_config": {"log_level": "DEBUG"}}, "DEBUG"),
        ({"logger_config": LoggerConfig(log_level="DEBUG")}, "DEBUG"),
        ({"error_handling_strategy": strict}, "INFO"),
    ):
        config = OneLoggerConfig(
            application_name="a", session_tag_or_fn="s", world_size_or_fn=1, enable_for_current_rank=False, **fields
        )
        assert config.logger_config.log_level == level, fields
    with pytest.raises(OneLoggerError, match="expected a LoggerConfig"):
        OneLoggerConfig(application_name="a", session_tag_or_fn="s", world_size_or_fn=1, logger_config="INFO")
    logger = logging.getLogger("tachograph")
    level_before = logger.level
    configure(enable_for_current_rank=False)
    assert logger.level == logging.CRITICAL
    provider.reset()
    assert logger.level == level_before


def test_provider_returns_one_recorder(configure, provider):
    configure()
    assert provider.recorder is provider.recorder
    provider.reset()
    config = OneLoggerConfig(application_name="a", session_tag_or_fn="s", world_size_or_fn=1)
    recorder = TrainingRecorder(config)
    provider.configure(config, recorder)
    assert provider.recorder is recorder


def test_closed_recorder_raises_in_strict_mode(provider):
    strict = OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
    config = OneLoggerConfig(
        application_name="a", session_tag_or_fn="s", world_size_or_fn=1, error_handling_strategy=strict
    )
    recorder = DefaultRecorder([FileExporter("out.jsonl")])
    provider.configure(config, recorder)
    span = recorder.start("x")
    recorder.close()
    for use in (
        lambda: recorder.start("y"),
        lambda: recorder.stop(span),
        lambda: recorder.event(span, Event.create("e")),
        lambda: recorder.error(span, "bad"),
        lambda: recorder.telemetry_data_error("bad"),
    ):
        with pytest.raises(OneLoggerError, match="has ended"):
            use()


def test_recorder_of_the_provider_raises_after_close_in_strict_mode(provider):
    strict = OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
    with tachograph.init("outer"):  # a run that goes on
        config = OneLoggerConfig(
            application_name="a", session_tag_or_fn="s", world_size_or_fn=1, error_handling_strategy=strict
        )
        provider.configure(config)
        recorder = provider.recorder
        recorder.close()
        with pytest.raises(OneLoggerError, match="Recorder is already closed"):
            recorder.start("x")
        with pytest.raises(OneLoggerError, match="Recorder is already closed"):
            recorder.telemetry_data_error("bad")
        assert provider.recorder is not None


def test_logger_config_sets_log_file(configure, provider, tmp_path):
    logger_config = LoggerConfig(log_level="WARNING", log_file_path_for_info=str(tmp_path / "info.log"))
    configure(logger_config=logger_config)
    logging.getLogger("tachograph").warning("hello")
    provider.reset()
    logging.getLogger("tachograph").setLevel(logging.NOTSET)
    assert "hello" in (tmp_path / "info.log").read_text()


def test_force_disable_logging_stops_recording(configure, provider):
    configure()
    with application():
        provider.force_disable_logging()
        with timed_span("unseen") as span:
            span.add_attribute("a", 1)
        assert not provider.one_logger_enabled
    assert "unseen" not in str(journal())


def test_error_handling_strategy_raises_or_reports(configure, provider):
    configure(error_handling_strategy=OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS)
    with application():
        with pytest.raises(OneLoggerError, match="span named training_loop but found 0"):
            on_train_end()
    provider.reset()
    configure(session_tag_or_fn="quiet")
    with application():
        on_train_end()
        on_train_end()
    reasons = [record["reason"] for record in journal("app-quiet") if record["event"] == "telemetry_error"]
    assert reasons == ["Expected to have one and only one span named training_loop but found 0: call its start first"]


def test_reset_detaches_from_foreign_run(configure, provider, logs):
    with tachograph.init("foreign", log_dir=str(logs)):
        for name in ("one", "two"):
            configure(error_handling_strategy=OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS)
            with timed_span(name):
                pass
            recorder = provider.recorder
            provider.reset()
            assert not recorder.span_recorder.propagate_exceptions
    assert [record["name"] for record in exported() if record["type"] == "complete"] == ["one", "two"]


def test_failed_configuration_can_be_retried(configure, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OneLoggerError):
        configure(FileExporter(tmp_path / "file" / "inside"))
    configure(FileExporter("good.jsonl"))
    with application():
        pass
    assert exported("good.jsonl")


def test_similar_session_tags_get_different_runs(configure):
    names = set()
    for app, session in (("app", "a/b"), ("app", "a-b"), ("app-a", "b"), ("app", "a_b")):
        provider = configure(application_name=app, session_tag_or_fn=session)
        names.add(provider.recorder.run.name)
        with application():
            pass
    assert len(names) == 4


def test_ranks_write_to_their_own_runs(configure, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0", "1"):
        monkeypatch.setenv("RANK", rank)
        configure(enable_for_current_rank=True)
        with application():
            pass
    attempts = {name: len(tachograph.read(f"logs/{name}").attempts) for name in ("app-session", "app-session-rank1")}
    assert attempts == {"app-session": 1, "app-session-rank1": 2}


@pytest.mark.parametrize("tag", ["fast", ["fast", "fp8"], lambda: "fast"], ids=["text", "list", "function"])
def test_start_record_has_the_tags(configure, tag):
    configure(telemetry_config=TrainingTelemetryConfig(**{**TRAINING, "perf_tag_or_fn": tag}))
    start = journal()[0]
    assert (start["session_tag"], start["perf_tag"]) == ("session", tag if isinstance(tag, list) else "fast")


def test_unknown_perf_tag_does_not_stop_configuration(configure):
    configure(telemetry_config=TrainingTelemetryConfig(**{**TRAINING, "perf_tag_or_fn": lambda: {}["later"]}))
    assert "perf_tag" not in journal()[0]


def test_later_perf_tag_keeps_the_earlier_ones(configure):
    for tag in ("first", ["second", "fp8"], "third", None):
        config = TrainingTelemetryConfig(**{**TRAINING, "perf_tag_or_fn": tag}) if tag else None
        provider = configure(telemetry_config=config if tag != "third" else None)
        if tag == "third":
            provider.set_training_telemetry_config(config)
        with application():
            pass
    history = tachograph.read("logs/app-session")
    assert (history.perf_tag, history.perf_tags) == ("third", ["first", "second", "fp8", "third"])
    assert "third (earlier: first, second, fp8)" in tacho("show", "logs/app-session")
    shown = json.loads(tacho("show", "logs/app-session", "--json"))
    assert (shown["perf_tag"], shown["perf_tags"]) == ("third", history.perf_tags)


def test_session_tag_of_attached_provider_is_read(configure, logs):
    with tachograph.init("mine", log_dir=str(logs)):
        configure()
        with application():
            pass
    assert tachograph.read(logs / "mine").session_tag == "session"


def test_metadata_is_kept_as_given(configure):
    given = {"team": "x", "sizes": [1, 2], "try": 1}
    provider = configure(
        custom_metadata=given, telemetry_config=TrainingTelemetryConfig(**TRAINING, custom_metadata=given)
    )
    with application():
        pass
    assert provider.config.custom_metadata == provider.config.telemetry_config.custom_metadata == given
    assert journal()[0]["config"] == given
    flat = ["team:x", "sizes:[1, 2]", "try:1"]
    for name in ("one_logger_initialization", "update_training_telemetry_config"):
        assert events(name)[0]["custom_metadata"] == flat
    attributes = TrainingTelemetryAttributes.create("perf", 4, log_every_n_train_iterations=1, custom_metadata=given)
    assert attributes.custom_metadata == flat
    assert Attributes({"metadata": {"team": "x"}})["metadata"].value == {"team": "x"}


def test_strategies_may_be_texts(provider, tmp_path):
    strategies = {
        "error_handling_strategy": "propagate_exceptions",
        "telemetry_config": {**TRAINING, "save_checkpoint_strategy": "async"},
    }
    (tmp_path / "strategies.json").write_text(json.dumps(strategies))
    provider.with_base_config(OneLoggerConfig(application_name="app", session_tag_or_fn="s", world_size_or_fn=1))
    provider.with_config_override_from_json_file(tmp_path / "strategies.json").configure_provider()
    assert provider.config.error_handling_strategy is OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
    assert provider.config.telemetry_config.save_checkpoint_strategy is CheckPointStrategy.ASYNC


def test_overrides_alone_are_a_config(provider):
    provider.with_config_override({"application_name": "app", "session_tag_or_fn": "s"})
    training = {**TRAINING, "app_type_or_fn": ApplicationType.TRAINING}
    provider.with_config_override({"world_size_or_fn": 8, "telemetry_config": training})
    provider.configure_provider()
    assert (provider.config.world_size, provider.config.telemetry_config.global_batch_size) == (8, 32)
    provider.reset()
    with pytest.raises(OneLoggerError, match="needs application_name, session_tag_or_fn"):
        provider.with_config_override({"world_size_or_fn": 8}).configure_provider()


def test_parts_that_are_set_once_raise_the_second_time(provider):
    config = OneLoggerConfig(application_name="a", session_tag_or_fn="s", world_size_or_fn=1)
    with pytest.raises(OneLoggerError, match="You can only call with_base_config once"):
        provider.with_base_config(config).with_base_config(config)
    names = (ExportCustomizationMode.BLACKLIST_SPANS, ["x"])
    with pytest.raises(OneLoggerError, match="You can only call with_export_customization once"):
        provider.with_export_customization(*names).with_export_customization(*names)
    with pytest.raises(TypeError, match="cannot be instantiated directly"):
        TrainingTelemetryProvider()


def test_configure_takes_config_and_recorder(provider):
    config = OneLoggerConfig(application_name="app", session_tag_or_fn="session", world_size_or_fn=1)
    recorder = DefaultRecorder([FileExporter("out.jsonl")], ExportCustomizationMode.WHITELIST_SPANS, ["kept"])
    assert OneLoggerProvider.instance().configure(config, recorder) is None
    with pytest.raises(OneLoggerError, match="OneLoggerProvider already configured! You must call configure"):
        OneLoggerProvider.instance().configure(config, recorder)
    span = recorder.start("kept")
    with timed_span("skipped"):
        recorder.event(span, Event.create("fired"))
    recorder.stop(span)
    recorder.close()
    assert provider.config == config
    assert [record.get("name") for record in exported()] == ["kept", None, "kept"]
    with pytest.raises(OneLoggerError, match="expects a DefaultRecorder, got str"):
        provider.configure(config, "recorder")
    for _ in range(2):  # a failed attempt leaves nothing behind
        with pytest.raises(OneLoggerError, match="expects an Exporter, got str"):
            provider.configure(config, DefaultRecorder(["file"]))


def test_configure_attaches_to_the_run_of_a_recorder(provider, logs):
    config = OneLoggerConfig(application_name="app", session_tag_or_fn="session", world_size_or_fn=1)
    with tachograph.init("one", log_dir=str(logs)) as one, tachograph.init("two", log_dir=str(logs)):
        provider.configure(config, recorder_of(one))
        assert recorder_of(one).application_attributes["session_tag"] == "session"
        provider.reset()


def test_configs_behave_like_pydantic_models():
    config = OneLoggerConfig(
        application_name="app",
        session_tag_or_fn="s",
        world_size_or_fn=lambda: 4,
        custom_metadata={"a": [1]},
        telemetry_config=TrainingTelemetryConfig(**TRAINING),
    )
    dumped = config.model_dump()
    assert dumped["telemetry_config"]["log_every_n_train_iterations"] == 50
    assert dumped["logger_config"]["log_level"] == "INFO"
    assert set(config.model_dump(exclude_unset=True)) == config.model_fields_set
    assert TrainingTelemetryConfig.model_validate(dumped["telemetry_config"]) == config.telemetry_config
    shallow, deep = config.model_copy(update={"application_name": "other"}), config.model_copy(deep=True)
    assert (shallow.application_name, config.application_name) == ("other", "app")
    assert shallow != config and deep == config
    assert deep.custom_metadata is not config.custom_metadata and shallow.custom_metadata is config.custom_metadata
    shallow.enable_for_current_rank = False
    assert config.enable_for_current_rank and shallow.is_set("enable_for_current_rank")
    with pytest.raises(OneLoggerError, match="did you mean 'application_name'"):
        config.aplication_name = "x"
    assert isinstance(config.telemetry_config, TelemetryConfig) and not isinstance(config, TelemetryConfig)


def test_assigned_fields_are_used(provider):
    config = OneLoggerConfig(application_name="app", session_tag_or_fn="s", world_size_or_fn=1)
    config.summary_data_schema_version = "2.0.0"
    provider.with_base_config(config).configure_provider()
    assert provider.config.summary_data_schema_version == "2.0.0"


def test_telemetry_data_error_has_type_and_message(configure):
    error = TelemetryDataError.create(TelemetryDataError.ErrorType.NO_TELEMETRY_DATA, "disk full", Attributes({"a": 1}))
    assert (error.error_type, error.error_message) == (TelemetryDataError.ErrorType.NO_TELEMETRY_DATA, "disk full")
    again = Event.from_json(error.to_json())
    assert again == error and isinstance(again, TelemetryDataError)
    recorder = configure().recorder
    with application():
        recorder.telemetry_data_error("no loss", Attributes({"step": 5}))
    (data_error,) = [record["error"] for record in exported() if record["type"] == "telemetry_data_error"]
    assert (data_error["attributes"]["error_message"], data_error["attributes"]["step"]) == ("no loss", 5)


def overlap_iterations() -> None:
    on_training_single_iteration_start()
    on_training_single_iteration_start()


def nest_iterations() -> None:
    with training_iteration(), timed_span("between"), training_iteration():
        pass


def start_twice() -> None:
    on_model_init_start()
    on_model_init_start()


def start_application_twice() -> None:
    on_app_start()  # inside of `application()`


def complete_unknown_save() -> None:
    on_save_checkpoint_success(1)


def stop_nothing() -> None:
    get_recorder().stop(None)


def stop_foreign_span() -> None:
    get_recorder().stop(Span.create("foreign"))


def add_event_to_nothing() -> None:
    get_recorder().event(None, Event.create("e"))


def add_error_to_nothing() -> None:
    get_recorder().error(None, "bad")


def restart_loop() -> None:
    on_train_start(0)
    on_train_start(0)


MISUSES = {
    overlap_iterations: "'training_single_iteration' started while another one is already active",
    nest_iterations: "'training_single_iteration' started while another one is already active",
    start_twice: "Cannot start span model_initialization while one with the same name is already active",
    start_application_twice: "Cannot start span application while one with the same name is already active",
    restart_loop: "on_train_start was called again before on_train_end",
    on_model_init_end: "one and only one span named model_initialization but found 0",
    complete_unknown_save: "one and only one span named checkpoint_save_sync but found 0",
    stop_nothing: "No span to stop",
    stop_foreign_span: "Span 'foreign' not found",
    add_event_to_nothing: "No span to add event to",
    add_error_to_nothing: "No span to add error to",
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_recorded_once_and_training_continues(configure, caplog, misuse):
    configure()
    with application(), training_loop(0):
        for _ in range(3):
            misuse()
            with training_iteration():
                pass
    reasons = [record["reason"] for record in journal() if record["event"] == "telemetry_error"]
    assert len([reason for reason in reasons if MISUSES[misuse] in reason]) == 1
    assert caplog.text.count(MISUSES[misuse]) == 1


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_raises_in_strict_mode(configure, misuse):
    configure(error_handling_strategy=OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS)
    with application(), training_loop(0), pytest.raises(OneLoggerError, match=MISUSES[misuse]):
        misuse()
    messages = [record["error"]["attributes"]["error_message"] for record in exported() if "error" in record]
    assert any(MISUSES[misuse] in message for message in messages)


def test_fault_in_strict_mode_is_exported_and_raised(configure):
    class Broken(Event):
        def to_record(self):
            raise RuntimeError("no record")

    configure(error_handling_strategy=OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS)
    with application() as span, pytest.raises(RuntimeError, match="no record"):
        span.add_event(Broken("x", TracingTimestamp.now()))
    messages = [record["error"]["attributes"]["error_message"] for record in exported() if "error" in record]
    assert any("RuntimeError while recording an event: no record" in message for message in messages)


def test_strict_mode_accepts_correct_use(configure):
    configure(error_handling_strategy=OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS)
    with application(), training_loop(0):
        for _ in range(3):
            with training_iteration(), training_loop(0), training_iteration():  # a loop of its own, inside an iteration
                pass
            on_training_single_iteration_start(start_time_msec=time.time() * 1000)
            on_train_start(0)
            on_training_single_iteration_start(start_time_msec=time.time() * 1000)
            on_training_single_iteration_end()
            on_train_end()
            on_training_single_iteration_end()
    assert events("training_metrics_update")[-1]["num_iterations"] == 6
    assert [record for record in journal() if record["event"] == "telemetry_error"] == []


def train_after_the_end() -> None:
    on_app_start()
    on_app_end()
    with training_loop(0):
        for _ in range(3):
            with training_iteration():
                pass


def test_training_after_the_end_is_reported_once(configure, provider, caplog):
    configure()
    train_after_the_end()
    assert caplog.text.count("run 'app-session' has ended") == 1
    configure(error_handling_strategy=OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS)
    with pytest.raises(OneLoggerError, match="has ended"):
        train_after_the_end()
    configure(enable_for_current_rank=False)
    train_after_the_end()
    assert caplog.text.count("has ended") == 1
