"""All kinds of unmodified loops under `tacho run` compute the same to the last bit and are recorded correctly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import lines_of
from tests.integrations.zero_code.loops import LOOPS
from tests.preloaded import preloaded

pytestmark = pytest.mark.xdist_group("torch-loops")

SCRIPT = Path(__file__).parent / "loops.py"


class LoopResult(NamedTuple):
    """What a loop did, with and without `tacho run`, and the records of it."""

    expected: dict[str, Any]
    without: dict[str, Any]
    records: list[dict[str, Any]] | None

    def of(self, event: str, name: str | None = None) -> list[dict[str, Any]]:
        found = [record for record in self.records or () if record["event"] == event]
        return [record for record in found if name is None or record.get("name") == name]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoopResult]:
    folder = tmp_path_factory.mktemp("loops")
    bare = preloaded("torch").popen([sys.executable, str(SCRIPT), str(folder / "without")])
    command = [sys.executable, "-m", "tachograph", "run", "--log-dir", str(folder / "logs")]
    subprocess.run([*command, "--", sys.executable, str(SCRIPT), str(folder / "with")], check=True)
    assert bare.wait() == 0
    by_time = sorted((folder / "logs").iterdir(), key=lambda run: lines_of(run)[0]["time"])
    runs = iter(by_time)
    found = {}
    for name in LOOPS:
        expected, without = (json.loads((folder / way / f"{name}.json").read_text()) for way in ("with", "without"))
        found[name] = LoopResult(expected, without, None if name == "no_training" else lines_of(next(runs)))
    assert next(runs, None) is None, "one run per loop that trains, and no other"
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_loop_computes_the_same_to_the_bit(results, name):
    """Weights, all intermediate values, and the state of every random generator are the same."""
    assert results[name].expected == results[name].without


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "no_training"])
def test_loop_is_recorded_as_it_ran(results, name):
    loop = results[name]
    expected = loop.expected
    steps = [step for step in loop.of("step") if "window/iterations" not in step]
    num_iterations = expected.get("num_iterations") or len(expected["losses"])
    if expected["losses"] is None:
        assert not any("train_loss" in step for step in steps)
    else:
        assert [step["train_loss"] for step in steps] == pytest.approx(expected["losses"], rel=1e-12)
        assert [step["global_step"] for step in steps] == list(range(num_iterations))
    names = expected.get("optimizer_names", ("0", "1", "2"))
    for name, losses in zip(names, expected.get("losses_by_optimizer", ()), strict=False):
        recorded = {step["global_step"]: step[f"loss/{name}"] for step in steps if f"loss/{name}" in step}
        assert recorded == {number: pytest.approx(loss, rel=1e-12) for number, loss in enumerate(losses) if loss}
    for name, lr in zip(names, expected.get("lrs_by_optimizer", ()), strict=False):
        assert {step[f"lr/{name}"] for step in steps} == {lr}
        assert not any("lr" in step for step in steps)
    if expected["lrs"]:
        assert [step["lr"] for step in steps] == expected["lrs"]
    if expected["norms"]:
        assert [step["grad_norm"] for step in steps] == expected["norms"]
    updates = loop.of("event", "training_metrics_update")
    assert updates[-1]["current_iteration"] + 1 == num_iterations, "iterations according to the spans"
    assert [epoch["epoch"] for epoch in loop.of("epoch")] == list(range(1, expected["epochs"] + 1))
    starts = [span for span in (*loop.of("span_start"), *loop.of("span")) if span["name"] == "validation_loop"]
    assert len(starts) == expected["validations"]
    saves = [span["attributes"] for span in loop.of("span_stop") if span["name"] == "checkpoint_save_sync"]
    saved = {save["current_iteration"]: save["checkpoint_directory"] for save in saves}
    assert saved == {int(step): path for step, path in expected["saved"].items()}
    skipped = loop.of("event", "optimizer_step_skipped")
    assert [event["global_step"] for event in skipped] == expected.get("skipped", [])
    (instrumented,) = loop.of("event", "instrumented")
    assert (instrumented["framework"], instrumented["method"]) == ("pytorch", "inferred")
    assert loop.of("end")[0]["status"] == "finished"
    assert not loop.of("error") and not loop.of("telemetry_error")


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "no_training"])
def test_phases_are_recorded(results, name):
    updates = results[name].of("event", "training_metrics_update")
    # On a slow machine there are several; L-BFGS waits for data only once, so only its first one has all phases.
    update = updates[0 if name == "lbfgs" else -1]
    shares = {part: update.get(f"window_share_{part}", 0.0) for part in ("data", "forward", "backward", "optimizer")}
    has_loader = results[name].expected["epochs"] > 0 or name == "lbfgs"  # which uses one batch for all its steps
    assert (shares.pop("data") > 0) == has_loader
    unseen = {"compiled_optimizer": {"optimizer"}, "all_compiled": {"forward", "backward", "optimizer"}}.get(
        name, set()
    )
    assert {part for part, share in shares.items() if not share} == unseen
    average = sum(update.get(f"avg_{part}_time_sec", 0.0) for part in ("dataloader", "forward", "backward"))
    assert average <= update["avg_iteration_time_sec"] * 1.01


@pytest.mark.parametrize("name", ["plain", "validation_without_no_grad"])
def test_validation_batches_are_recorded(results, name):
    update = results[name].of("event", "validation_metrics_update")[-1]
    assert round(update["total_iteration_time_sec"] / update["avg_iteration_time_sec"]) == 12
