"""Unmodified loops of all kinds under `tacho run`: they compute the same to the last bit, and are told as they were."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import lines_of
from tests.integrations.zero_code.loops import LOOPS

pytestmark = pytest.mark.xdist_group("torch-loops")

SCRIPT = Path(__file__).parent / "loops.py"


class Told(NamedTuple):
    """What a loop knows of itself, and what was recorded of it."""

    known: dict[str, Any]
    without: dict[str, Any]
    records: list[dict[str, Any]] | None

    def of(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        found = [record for record in self.records or () if record["event"] == event]
        return [record for record in found if name is None or record.get("name") == name]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    folder = tmp_path_factory.mktemp("loops")
    bare = subprocess.Popen([sys.executable, str(SCRIPT), str(folder / "without")])
    command = [sys.executable, "-m", "tachograph", "run", "--log-dir", str(folder / "logs")]
    subprocess.run([*command, "--", sys.executable, str(SCRIPT), str(folder / "with")], check=True)
    assert bare.wait() == 0
    by_time = sorted((folder / "logs").iterdir(), key=lambda run: lines_of(run)[0]["time"])
    runs = iter(by_time)
    found = {}
    for name in LOOPS:
        known, without = (json.loads((folder / way / f"{name}.json").read_text()) for way in ("with", "without"))
        found[name] = Told(known, without, None if name == "no_training" else lines_of(next(runs)))
    assert next(runs, None) is None, "there is a run for each loop that learns, and no other"
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_loop_computes_the_same_to_the_bit(told, name):
    """Weights, all that was computed on the way, and the state of every random generator afterwards."""
    assert told[name].known == told[name].without


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "no_training"])
def test_loop_is_recorded_as_it_ran(told, name):
    loop = told[name]
    known = loop.known
    steps = [step for step in loop.of("step") if "window/iterations" not in step]
    num_iterations = known.get("num_iterations") or len(known["losses"])
    if known["losses"] is None:
        assert not any("train_loss" in step for step in steps)
    else:
        assert [step["train_loss"] for step in steps] == pytest.approx(known["losses"], rel=1e-12)
        assert [step["global_step"] for step in steps] == list(range(num_iterations))
    if known["lrs"]:
        assert [step["lr"] for step in steps] == known["lrs"]
    if known["norms"]:
        assert [step["grad_norm"] for step in steps] == known["norms"]
    updates = loop.of("event", "training_metrics_update")
    assert updates[-1]["current_iteration"] + 1 == num_iterations, "iterations as the spans tell them"
    assert [epoch["epoch"] for epoch in loop.of("epoch")] == list(range(1, known["epochs"] + 1))
    starts = [span for span in (*loop.of("span_start"), *loop.of("span")) if span["name"] == "validation_loop"]
    assert len(starts) == known["validations"]
    saves = [span["attributes"] for span in loop.of("span_stop") if span["name"] == "checkpoint_save_sync"]
    saved = {save["current_iteration"]: save["checkpoint_directory"] for save in saves}
    assert saved == {int(step): path for step, path in known["saved"].items()}
    skipped = loop.of("event", "optimizer_step_skipped")
    assert [event["global_step"] for event in skipped] == known.get("skipped", [])
    (instrumented,) = loop.of("event", "instrumented")
    assert (instrumented["framework"], instrumented["method"]) == ("pytorch", "inferred")
    assert loop.of("end")[0]["status"] == "finished"
    assert not loop.of("error") and not loop.of("telemetry_error")


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "no_training"])
def test_phases_are_recorded(told, name):
    update = told[name].of("event", "training_metrics_update")[-1]
    shares = {part: update.get(f"window_share_{part}", 0.0) for part in ("data", "forward", "backward", "optimizer")}
    has_loader = told[name].known["epochs"] > 0 or name == "lbfgs"  # which takes one batch for all its steps
    assert (shares.pop("data") > 0) == has_loader
    unseen = {"compiled_optimizer": {"optimizer"}, "all_compiled": {"forward", "backward", "optimizer"}}.get(
        name, set()
    )
    assert {part for part, share in shares.items() if not share} == unseen
    average = sum(update.get(f"avg_{part}_time_sec", 0.0) for part in ("dataloader", "forward", "backward"))
    assert average <= update["avg_iteration_time_sec"] * 1.01


@pytest.mark.parametrize("name", ["plain", "validation_without_no_grad"])
def test_validation_batches_are_recorded(told, name):
    update = told[name].of("event", "validation_metrics_update")[-1]
    assert round(update["total_iteration_time_sec"] / update["avg_iteration_time_sec"]) == 12
