"""Keras 3 with the torch backend: `fit`, `evaluate` and `predict` of a real model."""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np
import pytest
import torch

# Keras chooses its backend when it is imported, and stores the choice in its home folder.
os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("KERAS_HOME", tempfile.mkdtemp(prefix="keras-home-"))
import keras

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.integrations.keras import TachographCallback
from tachograph.journal import RunFolder, write_requests
from tests.conftest import lines_of, wait_for

pytestmark = [
    pytest.mark.xdist_group("keras"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

FAST = {"control_interval_s": 0.05, "flush_interval_s": 0.05, "system_interval_s": 0, "git": False, "console": False}
INPUTS = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
TARGETS = INPUTS.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def one_thread():
    assert keras.backend.backend() == "torch"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def callback(logs):
    callback = TachographCallback("grey", log_dir=str(logs), batch_size=8, **FAST)
    yield callback
    callback.finish()


def make_model(**optimizer):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers], name="tiny")
    rate = optimizer.pop("rate", 0.125)
    model.compile(optimizer=keras.optimizers.Adam(rate, **optimizer), loss="mse", metrics=["mae"])
    return model


def fit(model, *callbacks, **options):
    options = {"batch_size": 8, "epochs": 2, "verbose": 0, **options}
    return model.fit(INPUTS, TARGETS, callbacks=list(callbacks), **options)


def of_kind(records, event, **fields):
    return [r for r in records if r["event"] == event and all(r.get(name) == value for name, value in fields.items())]


def metric_steps(records):
    return [r for r in of_kind(records, "step") if "window/iterations" not in r]


def test_fit_records_steps_validation_and_checkpoints(logs, callback, tmp_path):
    rate = keras.optimizers.schedules.ExponentialDecay(0.125, 5, 0.5, staircase=True)
    saving = keras.callbacks.ModelCheckpoint(str(tmp_path / "best-{epoch}.keras"))
    model = make_model(rate=rate)
    history = fit(model, callback, saving, validation_data=(INPUTS[:16], TARGETS[:16]))
    assert not {"save", "save_weights"} & vars(model).keys()
    callback.finish()
    records = lines_of(logs / "grey")

    (start,) = of_kind(records, "start")
    assert start["config"]["model"] == {"name": "tiny", "class_name": "Sequential", "num_layers": 3, "loss": "mse"}
    assert start["config"]["optimizer"]["class_name"] == "Adam"
    assert start["config"]["optimizer"]["beta_2"] == 0.999
    assert start["config"]["fit"] == {"verbose": 0, "epochs": 2, "steps": 5}
    assert (start["total_params"], start["trainable_params"]) == (49, 49)

    steps = metric_steps(records)
    assert [step["global_step"] for step in steps] == list(range(1, 11))
    assert [step["lr"] for step in steps] == [0.125] * 5 + [0.0625] * 5, "the rate used for the step"
    assert steps[4]["loss"] == steps[4]["train_loss"] == history.history["loss"][0]
    assert [round(step["epoch"], 3) for step in steps[:6]] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    epochs = of_kind(records, "epoch")
    assert [(epoch["epoch"], epoch["global_step"]) for epoch in epochs] == [(1, 5), (2, 10)]
    assert [epoch["mae"] for epoch in epochs] == history.history["mae"]
    assert not any("val_loss" in epoch for epoch in epochs), "only in the validation record"
    validations = of_kind(records, "validation")
    assert [validation["val_loss"] for validation in validations] == history.history["val_loss"]
    assert [validation["global_step"] for validation in validations] == [5, 10]

    *_, update = of_kind(records, "event", name="training_metrics_update")
    assert (update["num_iterations"], update["num_train_samples"]) == (10, 80)
    assert update["avg_dataloader_time_sec"] > 0
    saved = of_kind(records, "event", name="save_checkpoint_success")
    assert [os.path.basename(one["checkpoint_directory"]) for one in saved] == ["best-1.keras", "best-2.keras"]
    assert all(one["checkpoint_size"] == os.path.getsize(one["checkpoint_directory"]) for one in saved)
    spans = [r["name"] for r in records if r["event"] in ("span_start", "span")]
    assert spans == ["application", "training_loop", *["validation_loop", "checkpoint_save_sync"] * 2]


def test_weights_and_random_state_are_bit_identical(callback):
    model = make_model()
    fit(model, callback, validation_split=0.2)
    random, torch_random = np.random.random(3), torch.rand(3)
    expected = make_model()
    fit(expected, validation_split=0.2)
    for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        assert np.array_equal(weight, other)
    assert np.array_equal(random, np.random.random(3))
    assert torch.equal(torch_random, torch.rand(3))


def test_gradient_accumulation_counts_optimizer_steps(logs, callback):
    model = make_model(gradient_accumulation_steps=2)
    fit(model, callback, epochs=3)
    assert int(model.optimizer.iterations) == 7
    callback.finish()
    records = lines_of(logs / "grey")
    assert [step["global_step"] for step in metric_steps(records)] == list(range(1, 8))
    *_, update = of_kind(records, "event", name="training_metrics_update")
    assert (update["num_iterations"], update["num_train_samples"]) == (7, 7 * 16)


def test_second_fit_continues_step_count(logs, callback):
    model = make_model()
    fit(model, callback)
    fit(model, callback, initial_epoch=2, epochs=3)
    callback.finish()
    records = lines_of(logs / "grey")
    assert len(of_kind(records, "start")) == 1
    loops = [loop["attributes"] for loop in of_kind(records, "span_start", name="training_loop")]
    assert [(loop["train_iterations_start"], loop["train_iterations_target"]) for loop in loops] == [(0, 10), (10, 15)]
    assert [step["global_step"] for step in metric_steps(records)] == list(range(1, 16))


def test_evaluate_is_recorded_as_test_and_predict_as_span(logs, callback):
    model = make_model()
    fit(model, callback)
    loss, _ = model.evaluate(INPUTS, TARGETS, batch_size=8, verbose=0, callbacks=[callback])
    model.predict(INPUTS, batch_size=8, verbose=0, callbacks=[callback])
    callback.finish()
    records = lines_of(logs / "grey")
    (test,) = of_kind(records, "test")
    assert (test["test_loss"], test["global_step"]) == (loss, 10)
    assert not of_kind(records, "validation")
    *_, update = of_kind(records, "event", name="testing_metrics_update")
    assert update["total_iteration_time_sec"] > 0
    (predicted,) = [r for r in records if r["event"] in ("span_stop", "span") and r["name"] == "predict"]
    assert predicted["attributes"]["num_batches"] == 5


def test_evaluate_without_fit_starts_a_run(logs, callback):
    make_model().evaluate(INPUTS, TARGETS, verbose=0, callbacks=[callback])
    callback.finish()
    (test,) = of_kind(lines_of(logs / "grey"), "test")
    assert "test_loss" in test
    assert "global_step" not in test


def test_steps_per_execution_splits_time_equally(logs, callback):
    """The torch backend does not support it, so the test drives a `CallbackList` as custom loops do."""
    model = make_model()
    listed = keras.callbacks.CallbackList([callback], model=model, epochs=1, steps=10)
    listed.on_train_begin()
    listed.on_epoch_begin(0)
    per_batch_s = []
    for first in (0, 4, 8):
        start_s = time.perf_counter()
        listed.on_train_batch_begin(first)
        time.sleep(0.02)
        listed.on_train_batch_end(first + 3, {"loss": 1.0})  # the last execution has two batches left
        per_batch_s.append((time.perf_counter() - start_s) / min(4, 10 - first))
    listed.on_epoch_end(0, {"loss": 1.0})
    listed.on_train_end()
    callback.finish()
    records = lines_of(logs / "grey")
    assert [step["global_step"] for step in metric_steps(records)] == [4, 8, 10]
    *_, update = of_kind(records, "event", name="training_metrics_update")
    assert update["num_iterations"] == 10
    assert 0.005 <= update["min_iteration_time_sec"] <= update["max_iteration_time_sec"] <= max(per_batch_s)


def test_checkpoint_and_stop_requests(logs, tmp_path):
    path = tmp_path / "requested-{step}.keras"
    callback = TachographCallback("grey", log_dir=str(logs), checkpoint_path=path, control_gap_s=0, **FAST)
    stops_at = []

    class Reader(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.005)

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                write_requests(RunFolder(callback.run.folder.path), {"checkpoint_now": True}, source="test")
            elif not stops_at and list(tmp_path.glob("requested-*.keras")):
                stops_at.append(epoch)
                write_requests(RunFolder(callback.run.folder.path), {"stop": True}, source="test")

    model = make_model()
    history = fit(model, callback, Reader(), epochs=500)
    callback.finish()
    assert stops_at
    assert len(history.epoch) < 500
    records = lines_of(logs / "grey")
    (saved,) = of_kind(records, "event", name="save_checkpoint_success")
    assert saved["checkpoint_directory"] == str(tmp_path / f"requested-{saved['current_iteration']}.keras")


def test_checkpoint_request_without_path_is_rejected(logs):
    callback = TachographCallback("grey", log_dir=str(logs), control_gap_s=0, **FAST)

    class Reader(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                write_requests(RunFolder(callback.run.folder.path), {"checkpoint_now": True}, source="test")
                wait_for(lambda: callback.run.control_panel.checkpoint)

    fit(make_model(), callback, Reader(), epochs=2)
    callback.finish()
    (refused,) = of_kind(lines_of(logs / "grey"), "event", name="checkpoint_not_saved")
    assert "checkpoint_path" in refused["reason"]


def test_next_fit_works_after_exception(logs, callback, tmp_path):
    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise ZeroDivisionError("the user's own")

    model = make_model()
    with pytest.raises(ZeroDivisionError):
        fit(model, callback, Breaks())
    fit(model, callback, keras.callbacks.ModelCheckpoint(str(tmp_path / "last.keras")), epochs=1)
    assert not {"save", "save_weights"} & vars(model).keys()
    callback.finish()
    records = lines_of(logs / "grey")
    assert [step["global_step"] for step in metric_steps(records)] == list(range(1, 9))
    assert len(of_kind(records, "event", name="save_checkpoint_success")) == 1
    assert len(of_kind(records, "span_stop", name="training_loop")) == 2


def test_failed_save_is_recorded_and_raises(logs, callback, tmp_path):
    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save(str(tmp_path / "model.unknown"))

    with pytest.raises(ValueError, match="Invalid filepath"):
        fit(make_model(), callback, Saves())
    callback.finish()
    records = lines_of(logs / "grey")
    assert not of_kind(records, "event", name="save_checkpoint_success")
    (stop,) = [r for r in records if r["event"] in ("span_stop", "span") and r["name"] == "checkpoint_save_sync"]
    assert "ValueError" in stop["attributes"]["error"]


def test_current_run_is_used_and_left_open(logs):
    with tachograph.init("mine", log_dir=str(logs), **FAST) as run:
        callback = TachographCallback()
        fit(make_model(), callback)
        callback.finish()
        assert callback.run is run
        assert run.status == "running"
    assert len(metric_steps(lines_of(logs / "mine"))) == 10


def test_invalid_options_raise():
    with pytest.raises(ConfigError, match="log_evry.*log_every"):
        TachographCallback(log_evry=5)
    with pytest.raises(ConfigError, match="batch_size"):
        TachographCallback(batch_size=0)
    with pytest.raises(ConfigError, match="only {step}"):
        TachographCallback(checkpoint_path="model-{epoch}.keras")
