"""Ray Train: a real trainer with two workers. Skipped unless Ray is installed, which is too large to require."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.conftest import lines_of

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'ray[train]'"
    ),
]

TRAIN = """
    import os, sys, tempfile
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray, ray.train
    import tachograph
    from ray.train import Checkpoint, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from tachograph.exceptions import ConfigError
    from tachograph.integrations.ray import TachographCallback

    for invalid in ({"log_evry": 1}, {"run": None}):
        try:
            TachographCallback(**invalid)
        except ConfigError:
            continue
        raise AssertionError(invalid)

    def loop(config):
        rank = ray.train.get_context().get_world_rank()
        with tachograph.init("inside", log_dir=config["log_dir"], system_interval_s=0) as run:
            for step in range(3):
                run.log(train_loss=1.0, step=step)
                with tempfile.TemporaryDirectory() as folder, tachograph.timed_span("work"):
                    is_saved = step == 1 and rank == 0
                    report = {"loss": 1.0 / (step + 1) + 10 * rank, "step": step * 10, "lr": 0.1}
                    ray.train.report(report, checkpoint=Checkpoint.from_directory(folder) if is_saved else None)
            ray.train.report({"val_loss": 0.5, "epoch": 1, "step": 30})
        if config["fails"]:
            raise ValueError("the worker's own")

    fails = sys.argv[2] == "fails"
    folder = sys.argv[1]
    os.chdir(folder)
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"fails": fails, "log_dir": folder + "/logs", "api_key": "hunter2-hunter2"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="trial", storage_path=folder + "/storage", callbacks=[TachographCallback("grey", log_dir="logs")]
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError:
        assert fails
    else:
        assert not fails
"""


def of_kind(records, event):
    return [record for record in records if record["event"] == event]


@pytest.mark.parametrize("outcome", ["finishes", "fails"])
def test_worker_reports_and_exceptions_are_recorded(tmp_path, logs, script, outcome):
    script(TRAIN, tmp_path, outcome).ok()
    records = lines_of(logs / "grey")
    (start,) = of_kind(records, "start")
    assert start["num_workers"] == 2
    assert "hunter2" not in json.dumps(start["config"])
    steps = of_kind(records, "step")
    assert [(step["global_step"], step["lr"]) for step in steps] == [(0, 0.1), (10, 0.1), (20, 0.1)]
    assert [step["train_loss"] for step in steps] == [1.0, 0.5, 1 / 3], "those of the first worker"
    (validation,) = of_kind(records, "validation")
    assert (validation["val_loss"], validation["global_step"]) == (0.5, 30)
    (checkpoint,) = of_kind(records, "checkpoint")
    assert checkpoint["checkpoint_path"].startswith(str(tmp_path / "storage"))
    assert records[-1]["event"] == "end"
    errors = of_kind(records, "error")
    if outcome == "fails":
        assert records[-1]["status"] == "failed"
        assert {error["where"] for error in errors} <= {"worker 0", "worker 1"}
        assert all(error["error_message"] == "the worker's own" for error in errors)
        assert errors
    else:
        assert records[-1]["status"] == "finished"
        assert not errors

    # Each worker also records its own journal.
    inside = lines_of(logs / "inside")
    assert [record["train_loss"] for record in of_kind(inside, "step")] == [1.0] * 3
    other = [json.loads(line) for line in (logs / "inside" / "ranks" / "00001.jsonl").read_text().splitlines()]
    assert other[0]["rank"] == 1
    assert [r["name"] for r in other if r["event"] in ("span", "span_stop")].count("work") == 3
