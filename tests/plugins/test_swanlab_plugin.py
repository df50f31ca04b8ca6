"""The plugin `swanlab` with the real package, offline: which run gets the sink, and errors before training."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import tachograph
from tachograph.exceptions import ConfigError, PluginError
from tachograph.integrations.transformers import TachographCallback
from tachograph.plugins import PluginSession, apply
from tests.bridges.test_swanlab_config import lark  # noqa: F401
from tests.bridges.test_swanlab_sink import messages, scalars, swanlab_files, swanlab_home  # noqa: F401
from tests.conftest import HANG_S
from tests.plugins.conftest import logged

pytestmark = pytest.mark.skipif(find_spec("swanlab") is None, reason="needs swanlab, which takes a second to import")

OFFLINE = {"swanlab_project": "proj", "swanlab_mode": "offline"}
OPTIONS = {"git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S}


def sent(logs, name="x"):
    """Return the steps of the loss that SwanLab has stored."""
    (file,) = swanlab_files(logs / name)
    assert dict(messages(file))["start"].project == "proj"
    return [step for step, _ in scalars(file)["train_loss"]]


def test_open_run_is_sent_from_its_start(make_trainer, logs):
    key = "k7Qz2LpXw9sTfV4b"
    with tachograph.init("x", log_dir=str(logs), **OPTIONS) as run:
        run.log(train_loss=9.0, step=0)
        trainer = make_trainer(callbacks=[TachographCallback()])
        applied = apply(trainer, ["swanlab"], {**OFFLINE, "swanlab_experiment_name": "first", "swanlab_api_key": key})
        trainer.train()
    assert key not in (logs / "x" / "metrics.jsonl").read_text()
    assert sent(logs) == [0, 1, 2, 3, 4]
    assert dict(messages(swanlab_files(logs / "x")[0]))["start"].name == "first"
    assert logged(trainer, "plugin/swanlab/active") == [1.0] * 4
    assert applied.session.plugins[0].report.changes["run sent to SwanLab"]["names"] == ["project proj"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_run_that_the_callback_starts_is_sent(make_trainer, logs, order):
    callback = TachographCallback("x", log_dir=str(logs), **OPTIONS)
    trainer = make_trainer(callbacks=[callback] if order == "before" else [])
    apply(trainer, ["swanlab"], OFFLINE)
    if order == "after":
        trainer.add_callback(callback)
    trainer.train()
    callback.finish()
    assert sent(logs) == [1, 2, 3, 4]


def test_run_started_with_the_options_is_sent_once(make_trainer, logs):
    """As in `tacho train`, where the run gets the whole config."""
    with tachograph.init("x", config=OFFLINE, log_dir=str(logs), **OPTIONS):
        trainer = make_trainer(callbacks=[TachographCallback()])
        apply(trainer, ["swanlab"], OFFLINE)
        trainer.train()
    assert sent(logs) == [1, 2, 3, 4]
    assert logged(trainer, "plugin/swanlab/active") == [1.0] * 4


def test_run_that_starts_with_the_sink_later_is_sent_once(make_trainer, logs):
    trainer = make_trainer(callbacks=[TachographCallback()])
    apply(trainer, ["swanlab"], OFFLINE)
    with tachograph.init("x", config=OFFLINE, log_dir=str(logs), **OPTIONS):
        trainer.train()
    assert sent(logs) == [1, 2, 3, 4]


def test_training_without_a_run_is_an_error(make_trainer, logs):
    trainer = make_trainer()
    applied = apply(trainer, ["swanlab"], OFFLINE)
    with pytest.raises(PluginError, match="nothing is recorded.*tachograph.init.*TachographCallback"):
        trainer.train()
    assert trainer.state.global_step == 0
    applied.undo()


def test_disabled_recording_is_an_error(make_trainer, logs):
    callback = TachographCallback("x", log_dir=str(logs), enabled=False)
    trainer = make_trainer(callbacks=[callback])
    with apply(trainer, ["swanlab"], OFFLINE):
        with pytest.raises(PluginError, match="nothing is recorded"):
            trainer.train()
    callback.finish()


def test_swanlab_that_is_turned_off_sends_nothing(make_trainer, logs):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        trainer = make_trainer(callbacks=[TachographCallback()])
        with apply(trainer, ["swanlab"], {**OFFLINE, "use_swanlab": False}):
            trainer.train()
    assert swanlab_files(logs) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "use_swanlab is true, but swanlab_project is missing"),
        ({"swanlab_project": ""}, "swanlab_project: expected a text that is not empty"),
        ({**OFFLINE, "swanlab_mode": "offlin"}, "swanlab_mode='offlin'.*did you mean 'offline'"),
        ({**OFFLINE, "swanlab_completion_max_buffer": 0}, "swanlab_completion_max_buffer=0: expected an integer"),
        ({**OFFLINE, "swanlab_api_key": 12345678}, "swanlab_api_key: expected a text"),
        ({**OFFLINE, "swanlab_projet": "x"}, "unknown key 'swanlab_projet'; did you mean 'swanlab_project'"),
        ({"swanlab_project": "p"}, "plugin swanlab: sink 'swanlab': mode 'cloud' needs an API key"),
        ({"swanlab_project": "p", "swanlab_mode": "local"}, "mode 'local' needs SwanLab's dashboard"),
    ],
)
def test_wrong_options_are_errors_before_training(make_trainer, given, message):
    with pytest.raises(ConfigError, match=message) as raised:
        apply(make_trainer(), ["swanlab"], given)
    assert "12345678" not in str(raised.value)


def test_missing_package_is_an_error(monkeypatch):
    session = PluginSession.open(["swanlab"], OFFLINE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    with pytest.raises(PluginError, match="swanlab is not installed: pip install 'tachograph\\[swanlab\\]'"):
        session.pre_model_load()


def test_lark_is_notified_of_a_run_that_was_open(make_trainer, logs, lark):  # noqa: F811
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        trainer = make_trainer(callbacks=[TachographCallback()])
        apply(trainer, ["swanlab"], {**OFFLINE, "swanlab_lark_webhook_url": f"{lark.address}/hook"})
        trainer.train()
    assert len(lark.requests) == 2  # the start and the end
    assert sent(logs) == [1, 2, 3, 4]


def test_option_that_an_open_run_cannot_take_is_an_error(make_trainer, logs):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS):
        with pytest.raises(PluginError, match="swanlab_completion_log_interval has no effect.*tachograph.init"):
            apply(make_trainer(), ["swanlab"], {**OFFLINE, "swanlab_completion_log_interval": 5})


def test_plan_names_project_and_mode():
    session = PluginSession.open(["axolotl.integrations.swanlab.SwanLabPlugin"], OFFLINE)
    assert session.plugins[0].plan(session.cfg, None) == ["sends the run to SwanLab: project proj, mode offline"]
