"""One Logger's Lightning integration under its own names, as its documentation describes it."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as L
import pytest
import torch

import tachograph.one_logger as one_logger
from tachograph.exceptions import ConfigError
from tachograph.one_logger import (
    FileExporter,
    OneLoggerConfig,
    TimeEventCallback,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    hook_trainer_cls,
)
from tests.conftest import HANG_S
from tests.preloaded import preloaded

pytestmark = [
    pytest.mark.xdist_group("lightning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
]

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 1,
    "max_epochs": 1,
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("CONSOLE", "0"), ("SYSTEM_INTERVAL_S", "0"), ("GIT", "0")):
        monkeypatch.setenv(f"TACHO_{name}", value)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def provider():
    """The provider, configured as in One Logger's documentation."""
    TrainingTelemetryProvider.instance().reset()
    config = OneLoggerConfig(
        application_name="app",
        session_tag_or_fn="session",
        world_size_or_fn=1,
        telemetry_config=TrainingTelemetryConfig(
            perf_tag_or_fn="perf", global_batch_size_or_fn=32, log_every_n_train_iterations=2
        ),
    )
    provider = TrainingTelemetryProvider.instance().with_base_config(config)
    provider.with_exporter(FileExporter(file_path=Path("out.jsonl"))).configure_provider()
    yield provider
    TrainingTelemetryProvider.instance().reset()


def net(package=L):
    class Net(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch).pow(2).mean()

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.layer(batch).pow(2).mean())

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self.layer(batch).pow(2).mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net()


def loader(num_samples=8):
    return torch.utils.data.DataLoader(torch.randn(num_samples, 4), batch_size=1)


def exported():
    return [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]


def journal():
    lines = Path("logs", "app-session", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def events(records, name):
    found = [record["event"]["attributes"] for record in records if record["type"] == "event"]
    named = [record["event"]["name"] for record in records if record["type"] == "event"]
    return [attributes for attributes, its in zip(found, named, strict=True) if its == name]


def ended(records):
    return [record["name"] for record in records if record["type"] in {"stop", "complete"}]


def test_trainer_from_config(provider):
    config = {**QUIET, "accumulate_grad_batches": 2, "callbacks": [L.callbacks.ModelCheckpoint()]}
    given = {**config, "callbacks": list(config["callbacks"])}
    trainer = one_logger.OneLoggerPTLTrainer(config, provider)
    assert config == given  # the given dict is not modified
    assert isinstance(trainer, L.Trainer)
    callback = trainer.nv_one_logger_callback
    assert isinstance(callback, TimeEventCallback)
    assert callback in trainer.callbacks

    callback.on_model_init_start()
    module = net()
    callback.on_model_init_end()
    trainer.fit(module, loader(), loader(2))
    trainer.test(module, loader(2), verbose=False)
    callback.on_app_end()

    records = exported()
    assert ended(records) == [
        "model_initialization",
        "validation_loop",  # the sanity check
        "validation_loop",
        "checkpoint_save_sync",
        "training_loop",
        "testing_loop",
        "application",
    ]
    loops = [record for record in records if record.get("name") == "validation_loop" and record["type"] != "start"]
    assert [loop["attributes"].get("sanity_check") for loop in loops] == [True, None]
    last = events(records, "training_metrics_update")[-1]
    assert (last["num_iterations"], last["num_train_samples"]) == (4, 128)  # batch size of the config, times steps
    [saved] = events(records, "save_checkpoint_success")
    assert (saved["current_iteration"], saved["productive_train_iterations"]) == (4, 4)
    assert len([record for record in journal() if "train_loss" in record]) == 4


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_hooked_trainer_class(provider, name):
    package = importlib.import_module(name)
    own_init, own_save = package.Trainer.__init__, package.Trainer.save_checkpoint
    result = hook_trainer_cls(package.Trainer, provider)
    hooked, callback = result
    assert package.Trainer.__init__ is own_init
    assert package.Trainer.save_checkpoint is own_save
    assert issubclass(hooked, package.Trainer)
    assert inspect.signature(hooked) == inspect.signature(package.Trainer)
    theirs = [package.Callback()]
    trainer = hooked(**QUIET, callbacks=theirs)
    assert trainer.nv_one_logger_callback is callback
    assert len(theirs) == 1
    assert theirs[0] in trainer.callbacks
    trainer.fit(net(package), loader(), loader(2))
    trainer.save_checkpoint("x.ckpt")
    callback.on_app_end()
    assert ended(exported()).count("checkpoint_save_sync") == 2
    assert events(exported(), "training_metrics_update")[-1]["num_iterations"] == 8


def test_given_callback_is_used_once(provider):
    callback = TimeEventCallback(provider, call_on_app_start=False)
    assert ended(exported() if Path("out.jsonl").exists() else []) == []
    callback.on_app_start()
    hooked, same = hook_trainer_cls(L.Trainer, provider, telemetry_callback=callback)
    assert same is callback
    hooked(**QUIET, callbacks=L.callbacks.Timer()).fit(net(), loader(), loader(2))
    callback.on_testing_start()
    hooked(**QUIET).test(net(), loader(2), verbose=False)
    callback.on_testing_end()
    callback.on_app_end()
    assert ended(exported()).count("testing_loop") == 1  # the user's own span is not doubled


def test_failed_save_closes_span_and_is_not_retried(provider, monkeypatch):
    trainer = one_logger.OneLoggerPTLTrainer({**QUIET, "enable_checkpointing": False}, provider)
    trainer.fit(net(), loader(), loader(2))
    calls = []

    def fail(*arguments, **named):
        calls.append(arguments)
        raise TypeError("cannot be saved")

    with monkeypatch.context() as patched:
        patched.setattr(trainer.strategy, "save_checkpoint", fail)
        with pytest.raises(TypeError, match="cannot be saved"):
            trainer.save_checkpoint("x.ckpt")
    assert len(calls) == 1
    trainer.save_checkpoint("y.ckpt", weights_only=True)
    trainer.nv_one_logger_callback.on_app_end()
    assert ended(exported()).count("checkpoint_save_sync") == 2
    assert len(events(exported(), "save_checkpoint_success")) == 1
    errors = [record["event"]["attributes"] for record in exported() if record["type"] == "application_error"]
    assert [error["exception_message"] for error in errors] == ["cannot be saved"]


def test_training_exception_is_recorded(provider):
    trainer = one_logger.OneLoggerPTLTrainer({**QUIET, "num_sanity_val_steps": 0}, provider)
    module = net()

    def fail(batch, batch_idx):
        raise ValueError("bad batch")

    module.training_step = fail
    with pytest.raises(ValueError, match="bad batch"):
        trainer.fit(module, loader(), loader(2))
    trainer.nv_one_logger_callback.on_app_end()
    errors = [record["event"]["attributes"] for record in exported() if record["type"] == "application_error"]
    assert [error["exception_type"] for error in errors] == ["ValueError"]
    assert events(exported(), "training_metrics_update") == []


def test_new_application_after_on_app_end(provider):
    trainer = one_logger.OneLoggerPTLTrainer(QUIET, provider)
    trainer.fit(net(), loader(), loader(2))
    trainer.nv_one_logger_callback.on_app_end()
    trainer.test(net(), loader(2), verbose=False)
    trainer.nv_one_logger_callback.on_app_end()
    assert ended(exported()).count("application") == 2
    assert ended(exported())[-2:] == ["testing_loop", "application"]


def test_application_ends_with_process(script, tmp_path):
    code, _, err = script(
        """
        import sys, torch
        import lightning.pytorch as L
        from tachograph.one_logger import (
            OneLoggerConfig, OneLoggerPTLTrainer, TrainingTelemetryConfig, TrainingTelemetryProvider
        )
        config = OneLoggerConfig(application_name="app", session_tag_or_fn="session", world_size_or_fn=1)
        TrainingTelemetryProvider.instance().with_base_config(config).configure_provider()
        trainer = OneLoggerPTLTrainer({"accelerator": "cpu", "logger": False}, TrainingTelemetryProvider.instance())
        sys.exit(3)
        """,
        cwd=tmp_path,
        preload="frameworks",
    ).wait()
    assert code == 3, err
    records = journal()
    [application] = [record for record in records if record["event"] in {"span_stop", "span"}]
    assert application["name"] == "application"
    assert "status" not in application
    assert (records[-1]["status"], records[-1]["reason"]) == ("failed", "exit code 3")


def test_invalid_arguments_raise(provider):
    with pytest.raises(ConfigError, match="expected a dict of Trainer's arguments"):
        one_logger.OneLoggerPTLTrainer(provider, QUIET)
    with pytest.raises(ConfigError, match="expected a trainer class"):
        hook_trainer_cls("Trainer", provider)
    with pytest.raises(ConfigError, match="expected a TrainingTelemetryProvider"):
        TimeEventCallback(QUIET)
    provider.reset()
    with pytest.raises(ConfigError, match="call configure_provider"):
        TimeEventCallback(provider)


@pytest.mark.slow
def test_lightning_is_imported_lazily():
    code = (
        "import sys, tachograph.one_logger as o\n"
        "from tachograph.one_logger import *\n"
        "print(sorted({'torch', 'lightning', 'pytorch_lightning'} & set(sys.modules)))\n"
        "o.TimeEventCallback, o.hook_trainer_cls\n"
        "print(sorted({'torch', 'lightning', 'pytorch_lightning'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
    code = (
        "import sys, tachograph.one_logger as o, pytorch_lightning\n"
        "print(issubclass(o.OneLoggerPTLTrainer, pytorch_lightning.Trainer), 'lightning' in sys.modules)\n"
    )
    done = preloaded("torch").run([sys.executable, "-c", code], text=True, timeout=HANG_S)
    assert done.stdout.splitlines() == ["True False"], done.stderr
