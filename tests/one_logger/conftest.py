"""Fixtures and readers for the One Logger tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.one_logger import Exporter, FileExporter, OneLoggerConfig, TrainingTelemetryProvider
from tests.conftest import whole_lines


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in its own working directory, so that default runs write to its ./logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACHO_CONSOLE", "0")
    monkeypatch.setenv("TACHO_SYSTEM_INTERVAL_S", "0")
    monkeypatch.setenv("TACHO_GIT", "0")


@pytest.fixture
def provider() -> Iterator[TrainingTelemetryProvider]:
    """The provider, reset to the state of a new process."""
    TrainingTelemetryProvider.instance().reset()
    yield TrainingTelemetryProvider.instance()
    TrainingTelemetryProvider.instance().reset()


@pytest.fixture
def configure(provider: TrainingTelemetryProvider) -> Callable[..., TrainingTelemetryProvider]:
    """Configure the provider with exporters and with config fields that override the defaults."""

    def configure(*exporters: Exporter, **fields: Any) -> TrainingTelemetryProvider:
        config = {"application_name": "app", "session_tag_or_fn": "session", "world_size_or_fn": 1, **fields}
        provider.with_base_config(OneLoggerConfig(**config))
        for exporter in exporters or (FileExporter("out.jsonl"),):
            provider.with_exporter(exporter)
        provider.configure_provider()
        return provider

    return configure


def exported(path: str = "out.jsonl") -> list[dict[str, Any]]:
    """Return the records that a `FileExporter` wrote."""
    return whole_lines(Path(path))


def journal(run: str = "app-session") -> list[dict[str, Any]]:
    """Return the records in the journal of a run."""
    text = Path("logs", run, "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
