"""Scripts that use Tachograph themselves, under `tacho run`: their own run, with everything counted once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lines_of
from tests.integrations.zero_code.explicit import NUM_STEPS

pytestmark = pytest.mark.xdist_group("torch-explicit")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("explicit")
    command = [
        sys.executable,
        "-m",
        "tachograph",
        "run",
        "--",
        sys.executable,
        str(Path(__file__).parent / "explicit.py"),
    ]
    subprocess.run(command, check=True, cwd=folder)
    return {path.name: lines_of(path) for path in (folder / "logs").iterdir()}


def of(records: list[dict[str, Any]], event: str, name: str | None = None) -> list[dict[str, Any]]:
    return [record for record in records if record["event"] == event and name in (None, record.get("name"))]


def test_each_script_has_exactly_one_run(runs):
    assert set(runs) == {
        "own_log",
        "own_spans",
        "own_callbacks",
        "own_loop_only",
        "own_watch",
        "two_runs",
        "two_runs_again",
        "after_its_run",
    }


@pytest.mark.parametrize(
    "name",
    [
        "own_log",
        "own_spans",
        "own_callbacks",
        "own_loop_only",
        "own_watch",
        "two_runs",
        "two_runs_again",
        "after_its_run",
    ],
)
def test_iterations_are_counted_once(runs, name):
    records = runs[name]
    *_, update = of(records, "event", "training_metrics_update")
    assert update["num_iterations"] == NUM_STEPS
    assert update["current_iteration"] == NUM_STEPS - 1
    assert len(of(records, "event", "instrumented")) == 1
    assert not of(records, "telemetry_error")
    assert len(of(records, "start")) == 1
    assert [end["status"] for end in of(records, "end")][-1] == "finished"


def test_metrics_the_script_logs_are_not_duplicated(runs):
    steps = [step for step in of(runs["own_log"], "step") if "window/iterations" not in step]
    assert [step["global_step"] for step in steps] == list(range(NUM_STEPS))
    assert all(step["mine"] == 1.0 and "train_loss" in step for step in steps)
    assert not of(runs["own_log"], "epoch")


def test_spans_the_script_marks_are_not_duplicated(runs):
    records = runs["own_spans"]
    names = [span["name"] for span in of(records, "span_stop")]
    assert sorted(names) == ["checkpoint_save_sync", "training_loop", "validation_loop"]


def test_explicit_watch_takes_precedence(runs):
    records = runs["own_watch"]
    steps = [step for step in of(records, "step") if "window/iterations" not in step]
    assert [step["global_step"] for step in steps] == list(range(NUM_STEPS))
    assert all("train_loss" in step and step["lr"] == 0.1 for step in steps)
    (instrumented,) = of(records, "event", "instrumented")
    assert instrumented["method"] == "watch"
    assert len(of(records, "epoch")) == 1
