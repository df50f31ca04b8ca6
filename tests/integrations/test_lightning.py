"""The callback and the logger, with real trainers of both Lightning packages."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import sys
import time

import pytest
import torch

import tachograph
from tachograph.exceptions import ConfigError, LogDirError, RunNameError
from tachograph.integrations._common.governor import OverheadGovernor
from tachograph.integrations.lightning import TachographCallback, TachographLogger
from tachograph.journal import RunFolder, write_requests
from tachograph.reader import parents_of, read, read_ranks
from tests.conftest import HANG_S, lines_of

pytestmark = [
    pytest.mark.xdist_group("lightning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*ended before the epoch ended and your dataloader is not resumable"),
]

FAST = {"control_interval_s": 0.05, "flush_interval_s": 0.05, "system_interval_s": 0, "git": False, "console": False}
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]

import lightning.pytorch as L  # noqa: E402 - imported first, as most scripts do


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def module_of(package=L, **options):
    """Return a module with all kinds of steps; it raises at the step ``fails_at``."""

    class Net(package.LightningModule):
        def __init__(self, lr=0.1, fails_at=-1, batch_size=2):
            super().__init__()
            self.save_hyperparameters()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

        def training_step(self, batch, batch_idx):
            if self.trainer.global_step == self.hparams.fails_at:
                raise ValueError("bad batch")
            loss = self.layers(batch).pow(2).mean()
            self.log("noise", loss.detach() * 2, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            loss = self.layers(batch).pow(2).mean()
            self.log_dict({"val_loss": loss, "accuracy": loss.detach() + 1})

        def test_step(self, batch, batch_idx):
            self.log("test/loss", self.layers(batch).pow(2).mean())

        def predict_step(self, batch, batch_idx):
            return self.layers(batch)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    torch.manual_seed(0)
    return Net(**options)


def loader(num_samples=12, batch_size=2):
    data = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(data, batch_size=batch_size)


def trainer_of(tmp_path, *callbacks, package=L, **options):
    given = {
        "callbacks": list(callbacks),
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "log_every_n_steps": 2,
        "default_root_dir": str(tmp_path / "root"),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **options,
    }
    return package.Trainer(**given)


def callback_in(logs, name="grey", **settings):
    return TachographCallback(name, log_dir=str(logs), **{**FAST, **settings})


def of(records, event):
    return [record for record in records if record["event"] == event]


def spans(records, name):
    """Return the records of ended spans of a name."""
    return [record for record in records if record["event"] in {"span_stop", "span"} and record["name"] == name]


def steps(records):
    return [record for record in of(records, "step") if "train_loss" in record]


# A fit ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGES)
def test_fit_with_either_package(tmp_path, logs, name):
    package = importlib.import_module(name)
    callback = callback_in(logs)
    assert isinstance(callback, package.Callback)
    trainer = trainer_of(tmp_path, package=package, callbacks=callback, max_epochs=2, num_sanity_val_steps=2)
    assert callback in trainer.callbacks
    module = module_of(package)
    trainer.fit(module, loader(), loader(4))
    callback.finish()

    records = lines_of(logs / "grey")
    assert [record["global_step"] for record in steps(records)] == list(range(12))
    assert [record["lr"] for record in steps(records)][:3] == [0.1, 0.05, 0.025]  # of this step, not of the next
    assert all(record["train_loss"] > 0 and record["sec_per_step"] > 0 for record in steps(records))
    logged_at = [record["global_step"] for record in steps(records) if "noise_step" in record]
    assert logged_at == [1, 3, 5, 7, 9, 11]  # log_every_n_steps=2
    for record in steps(records):
        if "noise_step" in record:
            assert record["noise_step"] == pytest.approx(2 * record["train_loss"])
    assert [(record["epoch"], record["global_step"]) for record in of(records, "epoch")] == [(0, 5), (1, 11)]
    assert all(
        set(record) == {"event", "time", "epoch", "global_step", "noise_epoch"} for record in of(records, "epoch")
    )

    validations = of(records, "validation")
    assert [(record["epoch"], record["global_step"]) for record in validations] == [(0, 5), (1, 11)]
    assert set(validations[0]) == {"event", "time", "epoch", "global_step", "val_loss", "val_accuracy"}
    marked = [span.get("attributes", {}).get("sanity_check") for span in spans(records, "validation_loop")]
    assert marked == [True, None, None]

    [loop] = spans(records, "training_loop")
    assert loop["attributes"]["train_iterations_start"] == 0
    assert loop["attributes"]["train_iterations_target"] == 12
    update = [event for event in of(records, "event") if event["name"] == "training_metrics_update"][-1]
    assert (update["num_iterations"], update["num_train_samples"]) == (12, 24)
    window = [record for record in of(records, "step") if "window/sec" in record][-1]
    assert {"window/share_data", "window/share_forward", "window/share_backward", "window/share_optimizer"} <= set(
        window
    )
    assert "status" not in spans(records, "application")[0]

    start = records[0]
    assert (start["model_class"], start["trainable_params"], start["total_params"]) == ("Net", 49, 49)
    assert (start["optimizer"], start["scheduler"], start["learning_rate"]) == ("SGD", "StepLR", 0.1)
    assert (start["batch_size"], start["dtype"]) == (2, "32-true")
    assert start["config"]["lr"] == 0.1
    assert start["config"]["trainer"]["package"] == name
    assert start["config"]["trainer"]["max_epochs"] == 2
    [instrumented] = [event for event in of(records, "event") if event["name"] == "instrumented"]
    assert (instrumented["framework"], instrumented["version"]) == ("lightning", package.__version__)
    assert records[-1]["event"] == "end"
    assert records[-1]["status"] == "finished"


def test_phase_shares_match_where_time_is_spent(tmp_path, logs):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            time.sleep(0.01)
            return torch.zeros(4)

    class Lazy(L.Callback):
        def on_train_batch_end(self, *arguments):
            time.sleep(0.02)  # not a wait for data

    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, Lazy(), callback, enable_checkpointing=False)
    trainer.fit(module_of(), torch.utils.data.DataLoader(Slow(), batch_size=2))
    callback.finish()
    # On a slow machine the steps are in several windows.
    windows = [record for record in of(lines_of(logs / "grey"), "step") if "window/sec" in record]
    assert sum(window["window/share_data"] * window["window/sec"] for window in windows) >= 0.02 * 6
    assert sum(window["window/share_other"] * window["window/sec"] for window in windows) >= 0.02 * 5


@pytest.mark.parametrize("num_batches", [6, 7])
def test_accumulated_batches_are_one_step(tmp_path, logs, num_batches):
    seen = []

    class Note(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(outputs["loss"].item() * 3)

    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, Note(), accumulate_grad_batches=3)
    trainer.fit(module_of(), loader(2 * num_batches))
    callback.finish()
    records = lines_of(logs / "grey")
    groups = [seen[:3], seen[3:6], seen[6:]][: trainer.global_step]
    assert [record["global_step"] for record in steps(records)] == list(range(len(groups)))
    means = [sum(group) / len(group) for group in groups]
    assert [record["train_loss"] for record in steps(records)] == pytest.approx(means, rel=1e-5)
    update = [event for event in of(records, "event") if event["name"] == "training_metrics_update"][-1]
    assert update["num_iterations"] == len(groups)
    assert records[0]["effective_batch_size"] == 6
    assert spans(records, "checkpoint_save_sync")[-1]["attributes"]["current_iteration"] == len(groups) - 1


def test_manual_optimization_with_two_optimizers(tmp_path, logs):
    class Gan(L.LightningModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.one, self.two = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            losses = {}
            for place, (optimizer, net) in enumerate(zip(self.optimizers(), (self.one, self.two), strict=True)):
                loss = net(batch).pow(2).mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                if batch_idx % 2:  # accumulates manually
                    optimizer.step()
                losses[f"loss_{place}"] = loss.detach()
            self.log_dict(losses)
            return {"loss": losses["loss_0"]}

        def configure_optimizers(self):
            return [torch.optim.SGD(self.one.parameters(), lr=0.1), torch.optim.SGD(self.two.parameters(), lr=0.2)]

    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, log_every_n_steps=1)
    trainer.fit(Gan(), loader())
    callback.finish()
    records = lines_of(logs / "grey")
    assert trainer.global_step == 6  # the trainer counts the steps of each optimizer
    assert [record["global_step"] for record in steps(records)] == [0, 1, 2]
    assert all((record["lr"], record["lr/1"]) == (0.1, 0.2) for record in steps(records))
    assert all({"loss_0", "loss_1"} <= set(record) for record in steps(records))
    assert "grad_norm" not in steps(records)[0]
    update = [event for event in of(records, "event") if event["name"] == "training_metrics_update"][-1]
    assert update["num_iterations"] == 3
    assert update["window_share_backward"] > 0


def test_gradient_norm_from_clipping_is_recorded(tmp_path, logs):
    norms = []

    class Note(L.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in pl_module.parameters()]).item())

    clip = torch.nn.utils.clip_grad_norm_
    callback = callback_in(logs, grad_norm_every=1)
    trainer_of(tmp_path, callback, Note(), gradient_clip_val=0.01).fit(module_of(), loader())
    callback.finish()
    assert torch.nn.utils.clip_grad_norm_ is clip
    assert [record["grad_norm"] for record in steps(lines_of(logs / "grey"))] == pytest.approx(norms)

    norms.clear()
    callback = callback_in(logs, "every", grad_norm_every=3)
    trainer_of(tmp_path, callback, Note()).fit(module_of(), loader())
    callback.finish()
    found = [record.get("grad_norm") for record in steps(lines_of(logs / "every"))]
    assert found == [None, None, pytest.approx(norms[2]), None, None, pytest.approx(norms[5])]


def test_metrics_logged_by_module_take_precedence(tmp_path, logs):
    class Net(type(module_of())):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", torch.tensor(5.0 + batch_idx), on_step=True)
            self.log("quiet", torch.tensor(1.0), logger=False)
            return loss

        def on_train_batch_end(self, *arguments):
            self.log("late", torch.tensor(float(self.trainer.global_step)), on_step=True)

    callback = callback_in(logs)
    trainer_of(tmp_path, callback, log_every_n_steps=3).fit(Net(), loader())
    callback.finish()
    records = lines_of(logs / "grey")
    assert [record["train_loss"] for record in steps(records)] == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert [record.get("late") for record in steps(records)] == [None, None, 3.0, None, None, 6.0]
    assert not any("quiet" in record for record in records)


def test_weights_are_bit_identical(tmp_path, logs):
    def train(*callbacks, **options):
        trainer = trainer_of(tmp_path, *callbacks, max_epochs=2, gradient_clip_val=0.5, **options)
        module = module_of()
        torch.manual_seed(7)
        trainer.fit(module, loader(), loader(4))
        state = copy.deepcopy(module.state_dict())
        return state, torch.get_rng_state()

    plain, rng = train()
    callback = callback_in(logs, grad_norm_every=1)
    logger = TachographLogger()
    recorded, rng_recorded = train(callback, logger=logger)
    callback.finish()
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)
    assert torch.equal(rng, rng_recorded)
    assert len(steps(lines_of(logs / "grey"))) == 12


# Validation, test, prediction ----------------------------------------------------------------------------------------


def test_validate_test_and_predict_use_same_run(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback)
    module = module_of()
    trainer.fit(module, loader(), loader(4))
    trainer.validate(module, loader(4), verbose=False)
    trainer.test(module, loader(6), verbose=False)
    assert len(trainer.predict(module, loader(6))) == 3
    callback.finish()
    records = lines_of(logs / "grey")
    assert len(of(records, "start")) == 1
    assert len(of(records, "validation")) == 2
    assert of(records, "validation")[1]["global_step"] == 5
    [found] = of(records, "test")
    assert {"test/loss", "global_step"} <= set(found)
    assert [span["name"] for span in records if span["event"] in {"span_stop", "span"} and "loop" in span["name"]] == [
        "validation_loop",
        "training_loop",
        "validation_loop",
        "testing_loop",
        "prediction_loop",
    ]
    *_, update = [event for event in of(records, "event") if event["name"] == "testing_metrics_update"]
    assert update["avg_iteration_time_sec"] > 0


def test_test_without_fit_starts_a_run(tmp_path, logs):
    callback = callback_in(logs)
    trainer_of(tmp_path, callback).test(module_of(), loader(), verbose=False)
    callback.finish()
    records = lines_of(logs / "grey")
    assert "test/loss" in of(records, "test")[0]
    assert "global_step" not in of(records, "test")[0]
    assert records[0]["total_params"] == 49


def test_sanity_check_results_are_dropped(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, num_sanity_val_steps=2, limit_train_batches=0)
    trainer.fit(module_of(), loader(), loader(4))
    callback.finish()
    records = lines_of(logs / "grey")
    assert of(records, "validation") == []
    assert spans(records, "validation_loop")[0]["attributes"] == {"sanity_check": True}


# Checkpoints and resuming --------------------------------------------------------------------------------------------


def test_checkpoints_are_recorded_with_paths(tmp_path, logs):
    best = L.callbacks.ModelCheckpoint(dirpath=tmp_path / "best", monitor="val_loss", save_top_k=-1)
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, best, max_epochs=2)
    trainer.fit(module_of(), loader(), loader(4))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    callback.finish()
    records = lines_of(logs / "grey")
    saved = of(records, "checkpoint")
    assert [record["checkpoint_path"] for record in saved] == [
        *(str(tmp_path / "best" / f"epoch={epoch}-step={6 * (epoch + 1)}.ckpt") for epoch in (0, 1)),
        str(tmp_path / "last.ckpt"),
    ]
    assert [record["global_step"] for record in saved] == [5, 11, 11]
    assert all(record["size_bytes"] > 0 for record in saved)
    assert saved[0]["is_best"]
    assert not saved[2]["is_best"]
    assert len(spans(records, "checkpoint_save_sync")) == 3
    successes = [event for event in of(records, "event") if event["name"] == "save_checkpoint_success"]
    assert [event["productive_train_iterations"] for event in successes] == [6, 12, 12]


def test_failed_save_is_recorded_and_raises(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, enable_checkpointing=False)
    trainer.fit(module_of(), loader())
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, RuntimeError)):
        trainer.save_checkpoint(tmp_path / "file" / "x.ckpt")
    trainer.save_checkpoint(tmp_path / "fine.ckpt")
    callback.finish()
    records = lines_of(logs / "grey")
    assert [span.get("status") for span in spans(records, "checkpoint_save_sync")] == ["error", None]
    assert [record["checkpoint_path"] for record in of(records, "checkpoint")] == [str(tmp_path / "fine.ckpt")]


def test_async_checkpoint_is_recorded_when_written(tmp_path, logs):
    plugin = importlib.import_module("lightning.pytorch.plugins.io").AsyncCheckpointIO()
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, plugins=[plugin])
    trainer.fit(module_of(), loader())
    callback.finish()
    records = lines_of(logs / "grey")
    [span] = spans(records, "checkpoint_save_async")
    [success] = [event for event in of(records, "event") if event["name"] == "save_checkpoint_success"]
    [saved] = of(records, "checkpoint")
    assert (success["checkpoint_strategy"], success["productive_train_iterations"]) == ("async", 6)
    assert success["current_iteration"] == span["attributes"]["current_iteration"] == saved["global_step"] == 5
    assert saved["size_bytes"] > 0


@pytest.mark.parametrize("how", ["same name", "no name", "name was taken"])
def test_resumed_fit_continues_its_run(tmp_path, logs, how):
    name = None if how == "no name" else "grey"
    if how == "name was taken":
        tachograph.init("grey", log_dir=str(logs), **FAST).finish()
    first = callback_in(logs, name)
    trainer = trainer_of(tmp_path, first)
    trainer.fit(module_of(), loader())
    run = first.run
    first.finish()
    path = trainer.checkpoint_callback.best_model_path
    second = callback_in(logs, name)
    trainer = trainer_of(tmp_path, second, max_epochs=2)
    trainer.fit(module_of(), loader(), ckpt_path=path)
    assert second.run is not run
    assert (second.run.name, second.run.id, second.run.resumed) == (run.name, run.id, True)
    second.finish()
    records = lines_of(logs / run.name)
    assert [record["resumed"] for record in of(records, "start")] == [False, True]
    assert [record["global_step"] for record in steps(records)] == list(range(12))
    [load] = spans(records, "checkpoint_load")
    assert load["attributes"]["checkpoint_directory"] == path
    assert [loop["attributes"]["train_iterations_start"] for loop in spans(records, "training_loop")] == [0, 6]
    torch.load(path, weights_only=True)  # it contains plain values only


def test_other_name_or_other_run_id_is_not_resumed(tmp_path, logs):
    first = callback_in(logs)
    trainer = trainer_of(tmp_path, first)
    trainer.fit(module_of(), loader())
    first.finish()
    path = trainer.checkpoint_callback.best_model_path
    other = callback_in(logs, "fine-tuned")
    trainer_of(tmp_path, other, max_epochs=2).fit(module_of(), loader(), ckpt_path=path)
    other.finish()
    assert [record["global_step"] for record in steps(lines_of(logs / "fine-tuned"))] == list(range(6, 12))
    (parent,) = parents_of(tachograph.read("fine-tuned", logs))
    assert (parent.run_name, parent.run_id, parent.checkpoint_path) == ("grey", first.run.id, path)

    (logs / "grey").rename(logs / "elsewhere")
    tachograph.init("grey", log_dir=str(logs), **FAST).finish()  # not the run that saved the checkpoint
    third = callback_in(logs)
    trainer_of(tmp_path, third, max_epochs=2).fit(module_of(), loader(), ckpt_path=path)
    third.finish()
    assert third.run.name == "grey-2"
    assert len(of(lines_of(logs / "grey"), "start")) == 1


def test_second_trainer_of_a_callback_gets_own_run(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback)
    trainer.fit(module_of(), loader())
    callback.finish()
    trainer.test(module_of(), loader(), verbose=False)
    assert callback.run.name == "grey"
    trainer_of(tmp_path, callback).fit(module_of(), loader())
    assert callback.run.name == "grey-2"
    callback.finish()
    assert [len(of(lines_of(logs / "grey"), kind)) for kind in ("start", "test")] == [2, 1]
    assert [record["global_step"] for record in steps(lines_of(logs / "grey-2"))] == list(range(6))


def test_current_run_is_used_and_left_open(tmp_path, logs):
    with tachograph.init("mine", log_dir=str(logs), **FAST) as run:
        trainer_of(tmp_path, TachographCallback()).fit(module_of(), loader())
        assert run.status == "running"
        assert tachograph.current_run() is run
    records = lines_of(logs / "mine")
    assert len(steps(records)) == 6
    [instrumented] = [event for event in of(records, "event") if event["name"] == "instrumented"]
    assert instrumented["total_params"] == 49
    assert [path.name for path in logs.iterdir()] == ["mine"]


# Errors ------------------------------------------------------------------------------------------------------------


def test_exception_is_recorded_in_its_span(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback)
    with pytest.raises(ValueError, match="bad batch"):
        trainer.fit(module_of(fails_at=3), loader())
    assert callback.run.status == "running"  # the caller may handle it and continue
    trainer.fit(module_of(), loader(4))
    callback.finish()
    records = lines_of(logs / "grey")
    [error] = of(records, "error")
    assert (error["error_type"], error["error_message"]) == ("ValueError", "bad batch")
    assert "training_step" in error["traceback"]
    loops = spans(records, "training_loop")
    assert loops[0]["status"] == "error"
    assert "status" not in loops[1]
    assert [record["global_step"] for record in steps(records)][:3] == [0, 1, 2]


@pytest.mark.parametrize("where", ["setup", "validation"])
def test_exception_outside_of_training(tmp_path, logs, where):
    module = module_of()

    def fail(*arguments, **named):
        raise KeyError("lost")

    setattr(module, "setup" if where == "setup" else "validation_step", fail)
    callback = callback_in(logs)
    with pytest.raises(KeyError):
        trainer_of(tmp_path, callback, num_sanity_val_steps=1).fit(module, loader(), loader(4))
    callback.finish()
    [error] = of(lines_of(logs / "grey"), "error")
    assert error["error_type"] == "KeyError"


SCRIPT = """
import sys, time
import lightning.pytorch as L, torch
from tachograph.integrations.lightning import TachographCallback
from tachograph.journal import write_requests
torch.set_num_threads(1)
callback = TachographCallback("grey", system_interval_s=0, control_interval_s=0.05)

class SendsRequest(L.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 3 and trainer.is_global_zero:
            run = callback.run
            write_requests(run.folder, {"stop": True, "checkpoint_now": True}, source="test")
            while not (run.control_panel.stop and run.control_panel.checkpoint):
                time.sleep(0.01)

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        if batch_idx == 2 and sys.argv[1] == "raise":
            raise ValueError("bad batch")
        if batch_idx == 2 and sys.argv[1] == "interrupt":
            raise KeyboardInterrupt
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[callback, *([SendsRequest()] if sys.argv[1] == "ddp" else [])],
        **(dict(strategy="ddp", devices=2, log_every_n_steps=2) if sys.argv[1] == "ddp" else {}),
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=1))
    if sys.argv[1] == "exit":
        sys.exit(3)
"""


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("raise", "failed", "ValueError"),
        ("interrupt", "failed", "KeyboardInterrupt"),
        ("exit", "failed", "exit code 3"),
    ],
)
def test_run_ends_with_status_of_process(script, tmp_path, how, status, reason):
    code, _, err = script(SCRIPT, how, cwd=tmp_path, preload="frameworks").wait()
    assert code != 0, err
    records = lines_of(tmp_path / "logs" / "grey")
    assert (records[-1]["event"], records[-1]["status"], records[-1]["reason"]) == ("end", status, reason)
    [application] = spans(records, "application")
    assert application.get("status") == {"raise": "left_open", "interrupt": "error"}.get(how)
    if how == "raise":
        fatal = [error for error in of(records, "error") if error["fatal"]]
        assert "training_step" in fatal[0]["traceback"]
    assert len(steps(records)) == (2 if how in {"raise", "interrupt"} else 12)


def test_two_ranks_are_recorded_and_stop_together(script, tmp_path):
    script(SCRIPT, "ddp", cwd=tmp_path, preload="frameworks").ok()
    assert (tmp_path / "checkpoints" / "asked-epoch=0-step=4.ckpt").exists()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["grey"]
    folder = tmp_path / "logs" / "grey"
    records = lines_of(folder)
    assert records[0]["world_size"] == 2
    assert [record["global_step"] for record in steps(records)] == [0, 1, 2, 3]  # stopped after four of six
    assert (records[-1]["event"], records[-1]["status"]) == ("end", "finished")
    other = [json.loads(line) for line in (folder / "ranks" / "00001.jsonl").read_text().splitlines()]
    assert other[0]["rank"] == 1
    assert not [record for record in other if "train_loss" in record]
    assert [view.num_iterations for view in read_ranks(RunFolder(folder))] == [4, 4]


# Requests ------------------------------------------------------------------------------------------------------------


class Requester:
    """Sends a request to the run at a step, and waits until the run has received it."""

    def __init__(self, at, **requests):
        self.at, self.requests, self.received_at = at, requests, []

    def make(self, callback):
        requester = self

        class SendsRequest(L.Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                if trainer.global_step != requester.at or requester.received_at:
                    return
                run = callback.run
                write_requests(run.folder, requester.requests, source="test")
                deadline = time.monotonic() + HANG_S
                panel = run.control_panel
                while not (panel.stop or panel.checkpoint) and time.monotonic() < deadline:
                    time.sleep(0.01)
                requester.received_at.append(trainer.global_step)

        return SendsRequest()


def test_stop_and_checkpoint_requests(tmp_path, logs):
    callback = callback_in(logs)
    requester = Requester(3, checkpoint_now=True)
    trainer = trainer_of(tmp_path, callback, requester.make(callback), enable_checkpointing=False)
    trainer.fit(module_of(), loader())
    assert trainer.global_step == 6
    saved = tmp_path / "root" / "checkpoints" / "asked-epoch=0-step=4.ckpt"
    assert torch.load(saved, weights_only=True)["global_step"] == 4
    callback.finish()
    assert [record["checkpoint_path"] for record in of(lines_of(logs / "grey"), "checkpoint")] == [str(saved)]

    callback = callback_in(logs, "stopped")
    requester = Requester(2, stop=True)
    trainer = trainer_of(tmp_path, callback, requester.make(callback), max_epochs=5)
    trainer.fit(module_of(), loader())
    assert trainer.global_step == 3
    callback.finish()
    acks = [e for e in of(lines_of(logs / "stopped"), "event") if e["name"] == "control_ack"]
    assert [(ack["control"], ack["status"]) for ack in acks] == [("stop", "pending"), ("stop", "applied")]


def test_requested_checkpoint_can_be_resumed(tmp_path, logs):
    callback = callback_in(logs)
    requester = Requester(3, checkpoint_now=True)
    trainer = trainer_of(tmp_path, callback, requester.make(callback), enable_checkpointing=False)
    trainer.fit(module_of(), loader())
    callback.finish()
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, enable_checkpointing=False)
    trainer.fit(module_of(), loader(), ckpt_path=tmp_path / "root" / "checkpoints" / "asked-epoch=0-step=4.ckpt")
    callback.finish()
    records = lines_of(logs / "grey")
    assert [record["global_step"] for record in steps(records)] == [0, 1, 2, 3, 4, 5, 4, 5]


# Patches -------------------------------------------------------------------------------------------------------------


def test_fit_restores_patched_hooks_and_can_be_repeated(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, gradient_clip_val=1.0)
    loop, precision = trainer.fit_loop.epoch_loop, trainer.precision_plugin
    for epochs in (1, 2):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module_of(), loader())
        assert not {"_on_before_fetch", "_on_after_fetch"} & vars(loop).keys()
        assert "clip_grad_by_norm" not in vars(precision)
    callback.finish()
    recorded = steps(lines_of(logs / "grey"))
    assert [record["global_step"] for record in recorded] == list(range(12))
    assert all(record["grad_norm"] > 0 for record in recorded)


def test_wrapper_of_other_library_is_kept(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, gradient_clip_val=1.0)

    class Wraps(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 0:
                inner = trainer.precision_plugin.clip_grad_by_norm
                self.wrapper = lambda *given, **named: inner(*given, **named)  # noqa: PLW0108 - another function object
                trainer.precision_plugin.clip_grad_by_norm = self.wrapper

    trainer.callbacks.append(wraps := Wraps())
    trainer.fit(module_of(), loader())
    callback.finish()
    assert trainer.precision_plugin.clip_grad_by_norm is wraps.wrapper
    assert all(record["grad_norm"] > 0 for record in steps(lines_of(logs / "grey")))


def test_new_callback_of_a_trainer_records_its_checkpoints(tmp_path, logs):
    first, second = callback_in(logs, "first"), callback_in(logs, "second")
    trainer = trainer_of(tmp_path, first, enable_checkpointing=False)
    trainer.fit(module_of(), loader())
    first.finish()
    trainer.callbacks = [second]
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module_of(), loader())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    second.finish()
    assert [len(of(lines_of(logs / name), "checkpoint")) for name in ("first", "second")] == [0, 1]


# The logger ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGES)
def test_logger_without_callback(tmp_path, logs, name):
    package = importlib.import_module(name)
    logger = TachographLogger("grey", log_dir=str(logs), **FAST)
    assert isinstance(logger, importlib.import_module(f"{name}.loggers").Logger)
    trainer = trainer_of(tmp_path, package=package, logger=logger, max_epochs=2)
    module = module_of(package)
    trainer.fit(module, loader(), loader(4))
    trainer.test(module, loader(4), verbose=False)
    assert (logger.name, logger.version, logger.save_dir) == ("grey", "", str(logs))
    assert logger.experiment.status == "running"
    logger.experiment.event("mine")
    logger.finish()
    records = lines_of(logs / "grey")
    assert records[0]["config"]["lr"] == 0.1
    assert [record["global_step"] for record in of(records, "step") if "noise_step" in record] == [1, 3, 5, 7, 9, 11]
    assert [record["val_loss"] > 0 for record in of(records, "validation")] == [True, True]
    assert "test/loss" in of(records, "test")[0]
    [*_, last] = of(records, "checkpoint")
    assert last["checkpoint_path"] == str(logs / "grey" / "checkpoints" / "epoch=1-step=12.ckpt")
    assert os.path.exists(last["checkpoint_path"])
    assert not spans(records, "training_loop")


@pytest.mark.parametrize("first", ["logger", "callback"])
def test_callback_and_logger_share_run_without_duplicates(tmp_path, logs, first):
    from lightning.pytorch.callbacks import LearningRateMonitor

    settings = {"log_dir": str(logs), **FAST}
    logger = TachographLogger("grey", **settings) if first == "logger" else TachographLogger()
    callback = TachographCallback("grey", **settings) if first == "callback" else TachographCallback()
    trainer = trainer_of(tmp_path, callback, LearningRateMonitor(), logger=logger, max_epochs=2)

    class Net(type(module_of())):
        def on_train_epoch_start(self):
            self.logger.log_metrics({"by_hand": 1.0}, step=self.global_step)

    trainer.fit(Net(), loader(), loader(4))
    assert logger.experiment == callback.run
    logger.log_hyperparams({"lr": 0.1, "extra": 5})
    callback.finish()
    assert [path.name for path in logs.iterdir()] == ["grey"]
    records = lines_of(logs / "grey")
    for metric, number in (("noise_step", 6), ("train_loss", 12), ("lr-SGD", 6), ("by_hand", 2)):
        assert len([record for record in of(records, "step") if metric in record]) == number, metric
    assert len([record for record in records if "val_loss" in record]) == 2
    assert len([record for record in records if "noise_epoch" in record]) == 2
    assert len(of(records, "checkpoint")) == len(spans(records, "checkpoint_save_sync")) == 2
    [more] = [event for event in of(records, "event") if event["name"] == "hyperparameters"]
    assert {name: value for name, value in more.items() if "/" in name} == {"hyperparameters/extra": 5}
    assert (logs / "grey" / "checkpoints").is_dir()


def test_logger_starts_run_on_first_use(tmp_path, logs):
    logger = TachographLogger("grey", log_dir=str(logs), **FAST)
    experiment = logger.experiment
    assert "not started yet" in repr(experiment)
    assert not logs.exists()
    assert logger.log_dir is None
    experiment.log({"a": 1.0}, step=0)
    assert logger.log_dir == str(logs / "grey")
    logger.log_graph(None)
    logger.finalize("failed")
    assert logger.experiment.status == "running"
    logger.finish()
    assert of(lines_of(logs / "grey"), "step")[0]["a"] == 1.0


def media_by_name(folder):
    return {record["name"]: record for record in of(lines_of(folder), "media")}


def test_experiment_has_methods_of_tensorboard_and_wandb(logs):
    import numpy as np
    import wandb

    import tachograph.wandb as facade
    from tachograph.recorder import Run

    logger = TachographLogger("grey", log_dir=str(logs), **FAST)
    experiment = logger.experiment
    experiment.define_metric("val/acc", summary="max")
    logger.watch(torch.nn.Linear(1, 1), log="all", log_freq=10)
    assert not logs.exists() and isinstance(experiment, Run)
    assert hasattr(experiment, "add_image") and not hasattr(experiment, "add_picture")
    experiment.add_image("tb/image", torch.rand(3, 9, 9), 4)
    experiment.add_images("tb/images", np.zeros((2, 9, 9, 3), np.uint8), 4, dataformats="NHWC")
    experiment.add_audio("tb/audio", torch.zeros(1, 100), 4, sample_rate=100)
    experiment.add_video("tb/video", torch.rand(1, 4, 3, 16, 16), 4, fps=4)
    experiment.add_pr_curve("tb/curve", torch.tensor([0, 1]), torch.tensor([0.1, 0.9]), 4)
    experiment.add_histogram("tb/histogram", torch.rand(9), 4)
    experiment.add_text("tb/text", "hi", 4)
    experiment.add_scalar("tb/scalar", 1.0, 4)
    experiment.add_scalars("tb/scalars", {"a": 1.0}, 4)
    experiment.add_graph(torch.nn.Linear(1, 1))
    picture = np.full((8, 8, 3), 255, np.uint8)
    pictures = {"bare": wandb.Image(picture, caption="b"), "list": [wandb.Image(picture), facade.Image(picture)]}
    table = wandb.Table(columns=["picture", "list"], data=[[wandb.Image(picture), [wandb.Image(picture)]]])
    experiment.log({"loss": 0.5, "wb": {**pictures, "table": table, "lr": 0.1}}, step=5, commit=True)
    experiment.log({"wb": {"facade": facade.Image(picture), "molecule": facade.Molecule(None)}}, step=5)
    artifact = wandb.Artifact("net", type="model")
    with artifact.new_file("a.txt") as file:
        file.write("a")
    experiment.log_artifact(artifact).wait()
    experiment.log_artifact("table", {"b.txt": b"b"}, type="dataset").wait()
    experiment.notes = "a note"
    experiment.summary["best"] = 1.0
    logger.log_video("clip", [np.zeros((4, 3, 16, 16), np.uint8)], step=6)
    logger.log_image("mixed", [wandb.Image(picture), picture], step=6)
    logger.log_table("rows", columns=["picture"], data=[[facade.Image(picture)]], step=6)
    assert experiment.path == str(logs / "grey") and experiment.name == "grey"
    logger.finish()
    records, media = lines_of(logs / "grey"), media_by_name(logs / "grey")
    problems = {name: item for name, record in media.items() for item in record["items"] if item.get("problem")}
    assert not problems and not of(records, "telemetry_error")
    kinds = {name: (record["kind"], record["global_step"], len(record["items"])) for name, record in media.items()}
    assert kinds == {
        "tb/image": ("image", 4, 1),
        "tb/images": ("image", 4, 2),
        "tb/audio": ("audio", 4, 1),
        "tb/video": ("video", 4, 1),
        "tb/curve": ("pr_curve", 4, 1),
        "wb/bare": ("image", 5, 1),
        "wb/list": ("image", 5, 2),
        "wb/facade": ("image", 5, 1),
        "wb/table": ("table", 5, 1),
        "clip": ("video", 6, 1),
        "mixed": ("image", 6, 2),
        "rows": ("table", 6, 1),
    }
    assert media["wb/bare"]["items"][0]["caption"] == "b" and media["clip"]["items"][0]["num_frames"] == 4
    for name in ("wb/table", "rows"):
        assert media[name]["items"][0]["rows"][0]["picture"]["media"] == "image"
    metrics = {name: record[name] for record in of(records, "step") for name in record}
    names = ("tb/scalar", "tb/scalars/a", "loss", "wb/lr")
    assert [metrics[name] for name in names] == [1.0, 1.0, 0.5, 0.1] and "commit" not in metrics
    events = {event["name"]: event for event in of(records, "event")}
    assert events["histogram"]["tag"] == "tb/histogram" and events["text"]["text"] == "hi"
    assert "list of media" in media["wb/table"]["items"][0]["rows"][0]["list"]
    artifacts = [event["artifact"] for event in of(records, "event") if event["name"] == "artifact"]
    assert artifacts == ["net", "table"]
    counts = [event for event in of(records, "event") if event["name"] == "not_recorded"]
    assert {name for event in counts for name in event} >= {"add_graph", "Molecule"}


# Setup ---------------------------------------------------------------------------------------------------------------


def test_invalid_options_raise_at_construction(tmp_path):
    for kind in (TachographCallback, TachographLogger):
        with pytest.raises(ConfigError, match="did you mean 'log_every'"):
            kind("grey", log_evry=3)
        with pytest.raises(RunNameError):
            kind("../grey")
        with pytest.raises(ConfigError, match=r"run='grey': .*\bRun\b"):
            kind(run="grey")
    with pytest.raises(ConfigError, match="grad_norm_every"):
        TachographCallback(grad_norm_every=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(LogDirError):
        trainer_of(tmp_path, TachographCallback(log_dir=str(tmp_path / "file"))).fit(module_of(), loader())


def test_second_callback_of_a_trainer_is_inactive(tmp_path, logs):
    callback, other = callback_in(logs), callback_in(logs, "other")
    trainer_of(tmp_path, callback, other).fit(module_of(), loader())
    callback.finish()
    assert [path.name for path in logs.iterdir()] == ["grey"]
    assert len(steps(lines_of(logs / "grey"))) == 6


def test_appended_callback_moves_to_front(tmp_path, logs):
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path)
    trainer.callbacks.append(callback)
    trainer.fit(module_of(), loader(), loader(4))
    callback.finish()
    records = lines_of(logs / "grey")
    assert of(records, "checkpoint")[0]["global_step"] == 5
    assert trainer.callbacks[0] is callback
    [validation] = spans(records, "validation_loop")
    assert validation["time"] <= spans(records, "checkpoint_save_sync")[0]["time"]


def test_callback_and_logger_can_be_pickled(logs):
    for kind in (TachographCallback, TachographLogger):
        one = kind("grey", log_dir=str(logs))
        two = pickle.loads(pickle.dumps(one))
        assert type(two) is type(one)
        assert two._trainer_run.plan.name == "grey"
        assert copy.deepcopy(one)._trainer_run.plan.settings == {"log_dir": str(logs)}


def test_callback_can_be_subclassed(tmp_path, logs):
    class Mine(TachographCallback):
        def on_train_start(self, trainer, pl_module):
            super().on_train_start(trainer, pl_module)
            self.run.event("mine")

    callback = Mine("grey", log_dir=str(logs), **FAST)
    trainer_of(tmp_path, callback).fit(module_of(), loader())
    callback.finish()
    assert type(callback).__name__ == "Mine"
    assert [event for event in of(lines_of(logs / "grey"), "event") if event["name"] == "mine"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_other_package_is_not_imported(script, name):
    other = {PACKAGES[0]: PACKAGES[1], PACKAGES[1]: PACKAGES[0]}[name]
    script(
        """
        import sys
        from tachograph.integrations.lightning import TachographCallback, TachographLogger
        assert not any(part in sys.modules for part in ("torch", "lightning", "pytorch_lightning"))
        """
    ).ok()
    out = script(
        f"""
        import sys
        from tachograph.integrations.lightning import TachographCallback, TachographLogger
        assert not any(part in sys.modules for part in ("lightning", "pytorch_lightning"))
        import {name} as package
        trainer = package.Trainer(callbacks=TachographCallback("grey"), logger=TachographLogger(), accelerator="cpu")
        assert any(type(callback).__name__ == "TachographCallback" for callback in trainer.callbacks)
        print([name for name in ({name!r}, {other!r}) if name in sys.modules])
        """,
        preload="torch",
    ).ok()
    assert out.splitlines()[-1] == str([name])


@pytest.mark.skipif(sys.platform == "win32", reason="spawns")
def test_reader_shows_goodput_and_validation(tmp_path, logs):
    callback = callback_in(logs)
    trainer_of(tmp_path, callback, max_epochs=2).fit(module_of(), loader(), loader(4))
    callback.finish()
    history = read(logs / "grey")
    assert history.goodput is not None
    assert list(history.series("val_loss").steps) == [5, 11]


def test_steps_are_counted_while_skipping(tmp_path, logs, monkeypatch):
    original = OverheadGovernor.__init__

    def init(self):
        original(self)
        self.every, self._step_s, self._is_starting = 4, 1e-4, False
        self._end_window = lambda _now_s: None

    monkeypatch.setattr(OverheadGovernor, "__init__", init)
    callback = callback_in(logs)
    trainer = trainer_of(tmp_path, callback, max_epochs=8, log_every_n_steps=10, enable_checkpointing=True)
    trainer.fit(module_of(), loader(), loader())
    callback.finish()
    history = read(logs / "grey")
    assert trainer.global_step == 48
    assert sum(history.series("window/iterations").values) == 48
    assert [int(step) for step in history.series("train_loss").steps] == sorted(
        {int(step) for step in history.series("train_loss").steps}
    )
    assert 8 <= len(history.series("train_loss").steps) <= 30
    records = lines_of(logs / "grey")
    assert [epoch["global_step"] for epoch in of(records, "epoch")] == [6 * (epoch + 1) - 1 for epoch in range(8)]
    assert len(of(records, "validation")) == 8
    assert not of(records, "telemetry_error")


def test_logger_records_media(logs):
    logger = TachographLogger("media", log_dir=str(logs), console=False)
    logger.log_image("samples", [torch.zeros(3, 4, 4), torch.ones(3, 4, 4)], 3, caption=["a", "b"])
    logger.log_table("answers", columns=["x"], data=[[1], [2]], step=3)
    logger.log_audio("sound", [torch.zeros(100)], 3, sample_rate=[8000])
    logger.finish()
    records = {line["name"]: line for line in lines_of(logs / "media") if line["event"] == "media"}
    assert [item["caption"] for item in records["samples"]["items"]] == ["a", "b"]
    assert records["answers"]["items"][0]["num_rows"] == 2
    assert (records["sound"]["kind"], records["sound"]["global_step"]) == ("audio", 3)
