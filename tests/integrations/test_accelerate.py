"""Accelerate: a tracker that records logged metrics, and an attached tracker that observes typical loops."""

from __future__ import annotations

import json
import os
import pickle
import time

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import ProjectConfiguration
from torch.nn.functional import mse_loss

import tachograph
from tachograph._base.patching import Patches
from tachograph.exceptions import ConfigError, RunNameError
from tachograph.integrations.accelerate import TachographTracker
from tachograph.journal import RunFolder, write_requests
from tests.conftest import lines_of, wait_for

pytestmark = pytest.mark.xdist_group("accelerate")

FAST = {"control_interval_s": 0.05, "flush_interval_s": 0.05, "system_interval_s": 0, "git": False, "console": False}
WRAPPED = {"prepare", "init_trackers", "backward", "save_state", "load_state"}


def reset_state():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch):
    """Reset the singletons and environment variables in which Accelerate keeps the state of the process."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    reset_state()  # also that of trainers in the same process
    yield
    torch.set_num_threads(threads)
    reset_state()


def tracker_for(logs, **settings):
    return TachographTracker("grey", log_dir=str(logs), **FAST, **settings)


def parts(num_samples=40, batch_size=4):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(num_samples, 4), torch.randn(num_samples, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)
    return model, optimizer, loader


def train(accelerator, model, optimizer, loader, scheduler=None):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({"loss": loss.item()})


def of_kind(records, event, **fields):
    return [r for r in records if r["event"] == event and all(r.get(name) == value for name, value in fields.items())]


def metric_steps(records):
    return [r for r in of_kind(records, "step") if "window/iterations" not in r]


# A tracker ------------------------------------------------------------------------------------------------------------


def test_metrics_get_standard_names(logs):
    accelerator = Accelerator(cpu=True, log_with=tracker_for(logs), gradient_accumulation_steps=2)
    accelerator.init_trackers("project", config={"batch_size": 4, "api_key": "hunter2-hunter2"})
    accelerator.log({"loss": 2.0, "learning_rate": 0.5, "acc": torch.tensor(0.25)}, step=7)
    accelerator.log({"train_loss": 1.5, "loss": 9.0, "train/loss": 8.0, "epoch": 1}, step=8)
    accelerator.log({"eval/loss": 3.0, "eval/acc": 0.5, "epoch": 1}, step=8)
    accelerator.log({"test_acc": 0.75}, step=8)
    accelerator.end_training()
    records = lines_of(logs / "grey")
    (start,) = of_kind(records, "start")
    assert start["config"]["batch_size"] == 4
    assert "hunter2" not in json.dumps(start["config"])
    assert (start["gradient_accumulation_steps"], start["effective_batch_size"]) == (2, 8)
    assert start["mixed_precision"] == "no"
    first, second = of_kind(records, "step")
    assert first["global_step"] == 7
    assert (first["loss"], first["train_loss"]) == (2.0, 2.0)
    assert (first["learning_rate"], first["lr"], first["acc"]) == (0.5, 0.5, 0.25)
    assert second["train_loss"] == 1.5, "a standard name that the user logs is kept"
    (validation,) = of_kind(records, "validation")
    assert (validation["eval/loss"], validation["val_loss"], validation["epoch"]) == (3.0, 3.0, 1)
    (test,) = of_kind(records, "test")
    assert test["test_acc"] == 0.75
    assert records[-1]["event"] == "end"
    assert records[-1]["status"] == "finished"


def test_log_with_tachograph_by_name(logs):
    accelerator = Accelerator(cpu=True, log_with="tachograph")
    accelerator.init_trackers("greyjacket", init_kwargs={"tachograph": {"log_dir": str(logs), **FAST}})
    accelerator.log({"loss": 1.0}, step=0)
    run = accelerator.get_tracker("tachograph", unwrap=True)
    assert run == tachograph.current_run()
    assert run.name == "greyjacket"
    accelerator.end_training()
    assert of_kind(lines_of(logs / "greyjacket"), "step")[0]["train_loss"] == 1.0


def test_current_run_is_used_and_left_open(logs):
    with tachograph.init("mine", log_dir=str(logs), **FAST) as run:
        accelerator = Accelerator(cpu=True, log_with=TachographTracker())
        accelerator.init_trackers("project", config={"token": "hunter2-hunter2", "step": 3})
        accelerator.log({"loss": 1.0}, step=0)
        accelerator.end_training()
        assert run.status == "running"
    records = lines_of(logs / "mine")
    (event,) = of_kind(records, "event", name="config")
    assert event["config/step"] == 3
    assert "hunter2" not in json.dumps(event)
    assert of_kind(records, "step")[0]["train_loss"] == 1.0


def test_training_twice_gives_two_runs(logs):
    tracker = tracker_for(logs)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project", config={"trial": 1})
    accelerator.log({"loss": 1.0}, step=0)
    accelerator.end_training()
    first = tracker.tracker
    assert first.status == "finished", "reading `tracker` starts no run after the end"
    accelerator.trackers.clear()
    accelerator.init_trackers("project", config={"trial": 2})
    accelerator.log({"loss": 2.0}, step=0)
    assert tracker.tracker is not first
    accelerator.end_training()
    assert len(list(logs.iterdir())) == 2


def test_tables_and_images(logs):
    tracker = tracker_for(logs)
    tracker.start()
    tracker.log_table("answers", columns=["prompt", "answer"], data=[["a", "b"], ["c", "d"]], step=5)
    pandas = pytest.importorskip("pandas")
    tracker.log_table("frame", dataframe=pandas.DataFrame({"x": range(1200)}), step=6)
    pictures = [torch.zeros(3, 4, 4), torch.ones(3, 4, 4)]
    tracker.log_images({"samples": pictures, "batch": torch.zeros(2, 4, 4, 3)}, 6, caption=["a"], dataformats="NHWC")
    tracker.finish()
    records = lines_of(logs / "grey")
    answers, frame = of_kind(records, "completions")
    assert (answers["table"], answers["global_step"]) == ("answers", 5)
    assert [row["answer"] for row in answers["rows"]] == ["b", "d"]
    assert len(frame["rows"]) == 1000
    assert frame["rows"][-1]["x"] == 1199
    assert frame["num_dropped"] == 200
    samples, batch = of_kind(records, "media")
    assert (samples["name"], samples["global_step"], len(samples["items"])) == ("samples", 6, 2)
    assert (samples["items"][0]["caption"], len(batch["items"])) == ("a", 2)
    assert not of_kind(records, "telemetry_error")


def test_invalid_arguments_raise(logs):
    with pytest.raises(ConfigError, match="log_evry.*log_every"):
        TachographTracker("grey", log_evry=5)
    with pytest.raises(RunNameError):
        TachographTracker("../grey")
    tracker = tracker_for(logs)
    with pytest.raises(ConfigError, match="expected an Accelerator"):
        tracker.attach(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="attach"):
        tracker.step = 3
    accelerator = Accelerator(cpu=True)
    assert tracker.attach(accelerator) is tracker.attach(accelerator)
    with pytest.raises(ConfigError, match="one tracker"):
        TachographTracker().attach(accelerator)
    tracker.finish()
    assert not logs.exists(), "nothing was recorded, so there is no run"


# An attached tracker --------------------------------------------------------------------------------------------------


def run_loop(logs, *, is_tracked):
    tracker = tracker_for(logs) if is_tracked else None
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, log_with=tracker)
    if tracker is not None:
        tracker.attach(accelerator, target=8)
        accelerator.init_trackers("project", config={"batch_size": 4})
    model, optimizer, loader = parts()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    held_out = torch.utils.data.DataLoader(loader.dataset, batch_size=1)
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)
    for epoch in range(2):
        model.train()
        train(accelerator, model, optimizer, loader, scheduler)
        model.eval()
        with torch.no_grad():
            losses = [mse_loss(model(inputs), targets).item() for inputs, targets in held_out]
        accelerator.log({"eval_loss": sum(losses) / len(losses), "epoch": epoch})
    accelerator.end_training()
    random = torch.rand(3)
    return [parameter.detach().clone() for parameter in model.parameters()], random


def test_optimizer_steps_are_counted(logs):
    run_loop(logs, is_tracked=True)
    records = lines_of(logs / "grey")
    # Ten batches, three per step; the last one of an epoch is a step of its own. So four steps per epoch.
    *_, update = of_kind(records, "event", name="training_metrics_update")
    assert update["num_iterations"] == 8
    assert update["num_train_samples"] == 8 * 12
    steps = metric_steps(records)
    assert [step["global_step"] for step in steps] == list(range(1, 9))
    assert [step["lr"] for step in steps] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125], (
        "the rate used for the step"
    )
    assert [v["global_step"] for v in of_kind(records, "validation")] == [4, 8]
    *_, window = [r for r in of_kind(records, "step") if "window/iterations" in r]
    shares = {name: window[f"window/share_{name}"] for name in ("data", "forward", "backward", "optimizer")}
    assert all(share > 0 for share in shares.values())
    assert sum(shares.values()) < 1
    (start,) = of_kind(records, "start")
    assert start["config"] == {"batch_size": 4}
    (loop,) = of_kind(records, "span_start", name="training_loop")
    assert loop["attributes"]["train_iterations_target"] == 8


def test_weights_and_random_state_are_bit_identical(logs):
    weights, random = run_loop(logs, is_tracked=True)
    expected_weights, expected_random = run_loop(logs, is_tracked=False)
    assert all(torch.equal(*pair) for pair in zip(weights, expected_weights, strict=True))
    assert torch.equal(random, expected_random)


def test_time_between_steps_belongs_to_no_iteration(logs):
    """Such as an evaluation, or anything else before the next batch is requested."""
    tracker = tracker_for(logs)
    accelerator = Accelerator(cpu=True)
    tracker.attach(accelerator)
    model, optimizer, loader = accelerator.prepare(*parts(num_samples=12))
    start_s = time.perf_counter()
    for inputs, targets in loader:
        accelerator.backward(mse_loss(model(inputs), targets))
        optimizer.step()
        time.sleep(0.2)
    took_s = time.perf_counter() - start_s
    accelerator.end_training()
    *_, update = of_kind(lines_of(logs / "grey"), "event", name="training_metrics_update")
    assert update["num_iterations"] == 3
    assert update["total_iteration_time_sec"] <= took_s - 3 * 0.2


def test_detach_restores_everything(logs):
    tracker = tracker_for(logs)
    accelerator, other = Accelerator(cpu=True), Accelerator(cpu=True)
    tracker.attach(accelerator)
    model, optimizer, loader = accelerator.prepare(*parts())
    assert vars(accelerator).keys() >= WRAPPED
    assert not vars(other).keys() & WRAPPED, "other accelerators, such as that of a Trainer, are not patched"
    train(accelerator, model, optimizer, loader)
    pickle.loads(pickle.dumps(optimizer))
    accelerator.end_training()
    assert not vars(accelerator).keys() & WRAPPED
    assert "__iter__" not in vars(loader.base_dataloader)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not optimizer.optimizer._optimizer_step_post_hooks
    train(accelerator, model, optimizer, loader)
    assert len(metric_steps(lines_of(logs / "grey"))) == 10


def test_save_state_patched_in_class_is_still_recorded(logs, tmp_path):
    """Zero-code instrumentation wraps the method of the class with the same helper."""

    def make(save):
        def wrapper(*arguments, **named):
            return save(*arguments, **named)

        return wrapper

    with Patches() as patches:
        patches.wrap(Accelerator, "save_state", make)
        tracker_for(logs).attach(accelerator := Accelerator(cpu=True))
        train(accelerator, *accelerator.prepare(*parts()))
        accelerator.save_state(str(tmp_path / "saved"))
        accelerator.end_training()
    assert (tmp_path / "saved" / "tachograph.json").exists()


def test_skipped_step_is_not_counted(logs):
    tracker = tracker_for(logs)
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu")
    model, optimizer, loader = accelerator.prepare(*parts())
    tracker.attach(accelerator)
    for place, (inputs, targets) in enumerate(loader):
        loss = mse_loss(model(inputs), targets)
        accelerator.backward(loss * float("inf") if place in (2, 3) else loss)
        optimizer.step()
        assert optimizer.step_was_skipped == (place in (2, 3))
        optimizer.zero_grad()
    assert tracker.step == 8
    accelerator.end_training()
    *_, update = of_kind(lines_of(logs / "grey"), "event", name="training_metrics_update")
    assert update["num_iterations"] == 8


def test_only_first_optimizer_is_counted(logs):
    tracker = tracker_for(logs).attach(accelerator := Accelerator(cpu=True))
    model, optimizer, loader = parts()
    second = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer, second, loader = accelerator.prepare(model, optimizer, second, loader)
    for inputs, targets in loader:
        accelerator.backward(mse_loss(model(inputs), targets))
        second.step()
        optimizer.step()
    assert tracker.step == 10
    accelerator.end_training()


@pytest.mark.parametrize("is_prepared", [True, False])
def test_loop_without_backward_or_prepared_optimizer(logs, is_prepared):
    """A step without `Accelerator.backward`, and an optimizer that was never prepared."""
    tracker = tracker_for(logs).attach(accelerator := Accelerator(cpu=True, gradient_accumulation_steps=2))
    model, optimizer, loader = parts()
    model, loader = accelerator.prepare(model, loader)
    if is_prepared:
        optimizer = accelerator.prepare_optimizer(optimizer)
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = mse_loss(model(inputs), targets)
            if is_prepared:
                loss.backward()
                optimizer.step()
            else:
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    optimizer.step()
    assert tracker.step == 5
    accelerator.end_training()


def test_loading_checkpoint_restores_step(logs, tmp_path):
    tracker = tracker_for(logs)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    tracker.attach(accelerator)
    accelerator.init_trackers("project")
    prepared = accelerator.prepare(*parts())
    train(accelerator, *prepared)
    accelerator.save_state(str(tmp_path / "saved"))
    train(accelerator, *prepared)
    assert tracker.step == 20
    accelerator.load_state(str(tmp_path / "saved"))
    assert tracker.step == 10
    train(accelerator, *prepared)
    accelerator.end_training()
    records = lines_of(logs / "grey")
    (saved,) = of_kind(records, "event", name="save_checkpoint_success")
    assert saved["current_iteration"] == 10
    assert saved["checkpoint_directory"] == str(tmp_path / "saved")
    spans = [r["name"] for r in records if r["event"] in ("span_start", "span")]
    assert spans == ["application", "training_loop", "checkpoint_save_sync", "checkpoint_load", "training_loop"]
    loops = of_kind(records, "span_start", name="training_loop")
    assert [loop["attributes"]["train_iterations_start"] for loop in loops] == [0, 10]
    assert of_kind(records, "event", name="parent") == []  # the run itself
    tracker = tracker_for(logs)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    tracker.attach(accelerator)
    accelerator.init_trackers("project")
    accelerator.prepare(*parts())
    accelerator.load_state(str(tmp_path / "saved"))
    accelerator.end_training()
    (parent,) = of_kind(lines_of(logs / "grey-2"), "event", name="parent")
    assert (parent["run_name"], parent["global_step"], parent["how"]) == ("grey", 10, "resume")


def test_automatically_named_checkpoints(logs, tmp_path):
    project = ProjectConfiguration(project_dir=str(tmp_path / "project"), automatic_checkpoint_naming=True)
    tracker = tracker_for(logs).attach(accelerator := Accelerator(cpu=True, project_config=project))
    prepared = accelerator.prepare(*parts())
    for _ in range(2):
        train(accelerator, *prepared)
        accelerator.save_state()
    tracker.step = 99
    accelerator.load_state()
    assert tracker.step == 20
    accelerator.end_training()
    saved = of_kind(lines_of(logs / "grey"), "event", name="save_checkpoint_success")
    places = [os.path.relpath(one["checkpoint_directory"], tmp_path) for one in saved]
    assert places == ["project/checkpoints/checkpoint_0", "project/checkpoints/checkpoint_1"]
    assert all(one["checkpoint_size"] > 100 for one in saved)


def test_failed_checkpoint_is_recorded_and_raises(logs, tmp_path):
    tracker_for(logs).attach(accelerator := Accelerator(cpu=True))
    prepared = accelerator.prepare(*parts())
    train(accelerator, *prepared)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FileExistsError):
        accelerator.save_state(str(tmp_path / "file"))
    with pytest.raises(ValueError, match="does not exist"):
        accelerator.load_state(str(tmp_path / "nowhere"))
    accelerator.end_training()
    records = lines_of(logs / "grey")
    assert not of_kind(records, "event", name="save_checkpoint_success")
    stops = {r["name"]: r for r in records if r["event"] in ("span_stop", "span")}
    assert "FileExistsError" in stops["checkpoint_save_sync"]["attributes"]["error"]
    assert "ValueError" in stops["checkpoint_load"]["attributes"]["error"]


def test_poll_requests_returns_stop_and_checkpoint(logs, tmp_path):
    tracker = tracker_for(logs, control_gap_s=0)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    tracker.attach(accelerator)
    accelerator.init_trackers("project")
    model, optimizer, loader = accelerator.prepare(*parts())
    write_requests(RunFolder(logs / "grey"), {"checkpoint_now": True}, source="test")
    num_saved = 0
    for _ in range(10_000):
        train(accelerator, model, optimizer, loader)
        requested = tracker.poll_requests()
        if requested.checkpoint:
            num_saved += 1
            accelerator.save_state(str(tmp_path / "requested"))
            write_requests(RunFolder(logs / "grey"), {"stop": True}, source="test")
        if requested.stop:
            break
        time.sleep(0.01)
    else:
        pytest.fail("the loop was not stopped")
    assert num_saved == 1
    accelerator.end_training()


# Several processes ----------------------------------------------------------------------------------------------------

DISTRIBUTED = """
    import sys, time, torch
    from accelerate import Accelerator
    from tachograph.integrations.accelerate import TachographTracker

    logs, stop_file = sys.argv[1:]
    tracker = TachographTracker("grey", log_dir=logs, control_interval_s=0.05, system_interval_s=0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=tracker)
    tracker.attach(accelerator)
    accelerator.init_trackers("project", config={"batch_size": 2})
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    epoch = 0
    while True:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.log({"loss": loss.item()})
        epoch += 1
        if accelerator.is_main_process:
            open(stop_file, "w").close()
        if tracker.poll_requests().stop:
            break
        time.sleep(0.02)
    accelerator.save_state(logs + "/saved")
    assert tracker.step == 4 * epoch
    accelerator.end_training()
"""


def test_two_ranks_write_journals_and_stop_together(script, ranks, logs, tmp_path):
    programs = [
        script(DISTRIBUTED, logs, tmp_path / "began", env=environment, preload="torch") for environment in ranks
    ]
    first = programs[0].process
    wait_for(lambda: (tmp_path / "began").exists() or first.poll() is not None, "the first epoch")
    if first.poll() is None:
        write_requests(RunFolder(logs / "grey"), {"stop": True}, source="test")
    for program in programs:
        program.ok()
    records = lines_of(logs / "grey")
    (start,) = of_kind(records, "start")
    assert start["world_size"] == 2
    assert metric_steps(records)
    light = [json.loads(line) for line in (logs / "grey" / "ranks" / "00001.jsonl").read_text().splitlines()]
    assert light[0]["rank"] == 1
    assert not metric_steps(light), "only rank 0 records metrics"
    updates = of_kind(records, "event", name="training_metrics_update")
    num_iterations = sum(update["interval"] for update in updates)
    assert num_iterations % 4 == 0
    assert updates[-1]["num_train_samples"] == 8 * updates[-1]["num_iterations"]
    assert of_kind(light, "rank")[-1]["last"] == num_iterations - 1
    for one in (records, light):
        assert of_kind(one, "event", name="save_checkpoint_success")
        assert one[-1]["status"] == "finished"


def test_tracker_records_media_of_diffusers_scripts(logs):
    import numpy as np
    import wandb
    from PIL import Image

    import tachograph.wandb as facade

    picture = Image.new("RGB", (9, 9))
    accelerator = Accelerator(cpu=True, log_with=tracker_for(logs))
    accelerator.init_trackers("project")
    batch = np.zeros((2, 9, 9, 3), np.uint8)
    for tracker in accelerator.trackers:
        tracker.writer.add_images("validation", batch, 3, dataformats="NHWC")
        tracker.log({"test": [wandb.Image(picture, caption="a fox")], "val_loss": 0.5}, step=4)
        tracker.log({"facade": {"list": [facade.Image(picture)]}}, step=4)
        tracker.log_images({"images": [facade.Image(picture), picture]}, step=4)
        tracker.log_table("cells", columns=["picture", "n"], data=[[wandb.Image(picture), 1]], step=4)
        tracker.log_table("rows", columns=["n"], data=[[1]], step=4)
    accelerator.get_tracker("tachograph", unwrap=True).log({"unwrapped": wandb.Image(picture)}, step=5)
    assert accelerator.get_tracker("tachograph", unwrap=True).status == "running"
    accelerator.end_training()
    records = lines_of(logs / "grey")
    assert not of_kind(records, "telemetry_error")
    media = {record["name"]: record for record in of_kind(records, "media")}
    assert {name: (record["kind"], record["global_step"], len(record["items"])) for name, record in media.items()} == {
        "validation": ("image", 3, 2),
        "test": ("image", 4, 1),
        "facade/list": ("image", 4, 1),
        "images": ("image", 4, 2),
        "cells": ("table", 4, 1),
        "unwrapped": ("image", 5, 1),
    }
    assert not any(item.get("problem") for record in media.values() for item in record["items"])
    assert media["test"]["items"][0]["caption"] == "a fox"
    assert media["cells"]["items"][0]["rows"][0]["picture"]["media"] == "image"
    assert [record["table"] for record in of_kind(records, "completions")] == ["rows"]
    assert of_kind(records, "validation")[0]["val_loss"] == 0.5
