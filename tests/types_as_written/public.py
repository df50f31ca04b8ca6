"""Uses of the public API as in user code. mypy checks the types; this file is never executed."""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import tachograph as tacho
from tachograph import Control, Run, RunHistory, RunState, Span
from tachograph.one_logger import Attributes, Exporter, FileExporter, TrainingTelemetryProvider, on_app_start
from tachograph.usage import Count, ListOf, PostHog, Size, TelemetryManager, UsageConfig, send_errors


def record() -> None:
    run = tacho.init("x", config={"lr": 0.1}, log_dir="./logs", log_every=10)
    assert_type(run, Run)
    run.log({"train_loss": 0.5}, step=1)
    run.log(train_loss=0.5, step=1)
    run.log_epoch(1, {"val_loss": 0.7})
    scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
    assert_type(scale, Control[float])
    assert_type(scale.value, float)
    assert_type(run.should_stop, bool)
    assert_type(run.finish(), bool)
    with tacho.init_from_config("train.yaml") as other:
        assert_type(other, Run)
    tacho.log({"a": 1}, step=2)


def read() -> None:
    history = tacho.read("logs/x")
    assert_type(history, RunHistory)
    assert_type(history.state, RunState)
    steps, values, _times, _attempts = history.series("train_loss")
    assert_type(steps, npt.NDArray[np.int64])
    assert_type(values, npt.NDArray[np.float64])


def span_types() -> None:
    with tacho.application() as app, tacho.training_loop(train_iterations_start=0), tacho.training_iteration():
        assert_type(app, Span)
        app.add_attribute("a", [1, 2])
    with tacho.timed_span("x", Attributes({"b": 1})) as span:
        assert_type(span.parent_span, Span | None)
    assert_type(on_app_start(), Span)

    @tacho.timed_span("work")
    def work(number: int) -> str:
        return str(number)

    assert_type(work(3), str)
    assert_type(tacho.read("logs/x").perf_tag, str | list[str] | None)
    assert_type(tacho.read("logs/x").perf_tags, list[str])


def profiling() -> None:
    @tacho.profile_function
    def work(number: int) -> str:
        return str(number)

    @tacho.profile_function(name="x", config=tacho.ProfilingConfig(enabled=True, min_duration_ms=0.5, log_interval=10))
    def other(number: int) -> int:
        return number

    assert_type(work(3), str)
    assert_type(other(3), int)
    with tacho.profile_block("forward", config=tacho.ProfilingConfig()):
        tacho.configure_profiling(tacho.ProfilingConfig(enabled=False))


def one_logger(exporter: Exporter) -> None:
    provider = TrainingTelemetryProvider.instance().with_exporter(exporter).with_exporter(FileExporter("x.jsonl"))
    assert_type(provider, TrainingTelemetryProvider)


def usage() -> None:
    config = UsageConfig(
        app="greyjacket",
        endpoint=PostHog("https://eu.i.posthog.com", "phc_x"),
        organizations=["google"],
        consent="opt-in",
        config_map={"base_model": "model", "num_datasets": lambda config: len(config["datasets"])},
        events={"dataset-packed": {"num_packs": Count("Packs."), "sizes": ListOf("Sizes.", Size("Size."))}},
    )
    manager = TelemetryManager.configure(config, choice="local")
    assert_type(manager, TelemetryManager)
    assert_type(manager.enabled, bool)
    assert_type(manager.decision.mode, Literal["off", "local", "on"])
    manager.send_event("dataset-packed", {"num_packs": 3})
    manager.send_config({"model": "google/gemma-3"})

    @send_errors
    def train(steps: int) -> float:
        return steps / 2

    assert_type(train(3), float)

    @send_errors(app="greyjacket")
    async def evaluate() -> str:
        return "done"

    assert_type(asyncio.run(evaluate()), str)
