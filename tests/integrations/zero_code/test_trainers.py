"""Frameworks in unmodified scripts under `tacho run`: recorded once by their callbacks, with unchanged results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lines_of
from tests.preloaded import preloaded

pytest.importorskip("transformers")
pytest.importorskip("trl")
pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")

pytestmark = pytest.mark.xdist_group("injected-trainers")

SCRIPT = Path(__file__).parent / "trainers.py"

KINDS = {
    "hugging_face": ("transformers", "callback", 4, 2),
    "sft": ("transformers", "callback", 3, 1),
    "private": ("transformers", "callback", 3, 1),
    "accelerated": ("pytorch", "inferred", 4, 1),
    "saved_pretrained": ("pytorch", "inferred", 3, 1),
    "own_callback": ("transformers", "callback", 4, 2),
    "own_callback_added": ("transformers", "callback", 4, 2),
    "own_run": ("transformers", "callback", 4, 2),
    "lightning": ("lightning", "callback", 4, 2),
    "pytorch_lightning": ("lightning", "callback", 4, 2),
    "own_lightning_callback": ("lightning", "callback", 4, 2),
}
"""Framework, method, iterations and checkpoints of each script."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainers")
    names = [name for name in KINDS if not name.startswith("own")]
    bare = preloaded("frameworks").popen([sys.executable, str(SCRIPT), "without", *names], cwd=folder)
    command = [sys.executable, "-m", "tachograph", "run", "--", sys.executable, str(SCRIPT), "with", *KINDS]
    subprocess.run(command, check=True, cwd=folder)
    assert bare.wait() == 0
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of each script. Its run is identified by its start time."""
    found = sorted((lines_of(path) for path in (folder / "logs").iterdir()), key=lambda records: records[0]["time"])
    assert len(found) == len(KINDS), "one run per script"
    return dict(zip(KINDS, found, strict=True))


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("own")])
def test_trainer_trains_the_same_to_the_bit(folder, name):
    """Weights and the state of all random generators are the same to the last bit."""
    with_it, without = (json.loads((folder / way / f"{name}.json").read_text()) for way in ("with", "without"))
    assert with_it == without


@pytest.mark.parametrize("name", KINDS)
def test_trainer_is_recorded_once(runs, name):
    records = runs[name]
    framework, method, num_iterations, num_saves = KINDS[name]
    (instrumented,) = [record for record in records if record.get("name") == "instrumented"]
    assert (instrumented["framework"], instrumented["method"]) == (framework, method)
    updates = [record for record in records if record.get("name") == "training_metrics_update"]
    assert sum(update["interval"] for update in updates) == num_iterations
    steps = [record for record in records if record["event"] == "step" and "train_loss" in record]
    assert len({step["global_step"] for step in steps}) == len(steps) == num_iterations
    saves = [record for record in records if record.get("name") == "checkpoint_save_sync"]
    assert len([save for save in saves if save["event"] == "span_stop"]) == num_saves
    assert not [record for record in records if record["event"] in {"error", "telemetry_error"}]
    assert [record for record in records if record["event"] == "end"][-1]["status"] == "finished"
    name_of_run = records[0]["run_name"]
    assert name_of_run == name if name.startswith("own") else name_of_run.startswith("trainers")


def test_prompts_and_answers_can_be_kept_out(runs):
    assert any(record["event"] == "completions" for record in runs["sft"])
    assert any(record["event"] == "step" for record in runs["private"])
    assert not [record for record in runs["private"] if record["event"] == "completions"]
