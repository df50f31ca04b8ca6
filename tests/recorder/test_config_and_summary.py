"""`Run.update_config` and `Run.log_summary`, and what readers make of them."""

from __future__ import annotations

import json
import math

import numpy
import pytest
from starlette.testclient import TestClient

import tachograph
from tachograph.server import create_app
from tests.cli.test_cli import tacho
from tests.conftest import lines_of

OPTIONS = {"git": False, "system_interval_s": 0, "console": False}


def test_config_is_merged_and_masked(logs):
    with tachograph.init("x", log_dir=str(logs), config={"lr": 1.0, "model": {"depth": 2}}, **OPTIONS) as run:
        run.update_config(
            {"lr": numpy.float32(0.5), "token": "hf_abcdefghijklmnopqrstuvwxyz0123456789", "dims": (1, 2)}
        )
        run.update_config({"model": {"width": 8}})
        run.update_config({})
    history = tachograph.read(logs / "x")
    assert history.config == {"lr": 0.5, "model": {"width": 8}, "token": "[masked]", "dims": [1, 2]}
    assert len(history.latest("event", "config_changed")) == 2
    assert "hf_abc" not in (logs / "x" / "metrics.jsonl").read_text()


def test_next_attempt_starts_from_its_own_config(logs):
    with tachograph.init("x", log_dir=str(logs), config={"lr": 1.0}, **OPTIONS) as run:
        run.update_config({"lr": 0.5, "extra": True})
        run.log_summary({"best": 1.0, "kept": "yes"})
    with tachograph.init("x", log_dir=str(logs), config={"lr": 2.0}, resume=True, **OPTIONS) as run:
        run.log_summary({"best": 0.5})
    history = tachograph.read(logs / "x")
    assert (history.config, history.summary) == ({"lr": 2.0}, {"best": 0.5, "kept": "yes"})


@pytest.mark.parametrize("values", [5, "text", [1], None])
def test_wrong_values_are_reported(logs, values):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS) as run:
        run.update_config(values)
        run.log_summary({"odd": object(), "good": 1})
    errors = [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert [error["field"] for error in errors] == ["config", "summary.odd"]
    assert f"expected a dict, got {type(values).__name__}" in errors[0]["reason"]
    assert tachograph.read(logs / "x").summary == {"good": 1}


def test_command_and_server_show_them(logs):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS) as run:
        run.update_config({"lr": 0.5})
        run.log_summary({"best_accuracy": 0.9125, "worst": math.nan, "loss": {"min": 0.5}})
    shown = tacho("show", "x", "--log-dir", logs)
    assert "best_accuracy" in shown
    assert "0.9125" in shown
    assert "loss/min" in shown
    found = json.loads(tacho("show", "x", "--log-dir", logs, "--json"))
    summary = {"best_accuracy": 0.9125, "worst": "NaN", "loss": {"min": 0.5}}
    assert found["summary"] == summary
    with TestClient(create_app(logs), base_url="http://127.0.0.1") as client:
        detail = client.get("/api/v1/runs/x").json()
    assert (detail["config"], detail["summary"]) == ({"lr": 0.5}, summary)
