"""Several loggers in one run: the warning, and their measured cost."""

from __future__ import annotations

import argparse
import logging

import pytest

import tachograph
from tachograph.reader import read
from tachograph.recorder import LoggerCosts, loggers_in
from tachograph.recorder.collectors.loggers import _cpu_s
from tests.conftest import HANG_S, wait_for

OPTIONS = {"git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S}


@pytest.fixture
def few_steps(monkeypatch):
    """Report after a few steps."""
    monkeypatch.setattr("tachograph.recorder.collectors.loggers._MIN_STEPS", 5)
    monkeypatch.setattr("tachograph.recorder.collectors.loggers._MIN_S", 0.0)


@pytest.mark.parametrize(
    ("config", "loggers"),
    [
        ({"use_wandb": True, "use_mlflow": True}, {"mlflow", "wandb"}),
        ({"use_wandb": False, "wandb_project": "p", "use_mlflow": None}, set()),
        ({"wandb_project": "p", "comet_api_key": "k", "use_tensorboard": True}, {"comet", "tensorboard", "wandb"}),
        ({"comet_project_name": "p", "use_comet": False, "use_trackio": True}, {"trackio"}),
        ({"training_arguments": {"report_to": ["wandb", "comet_ml", "tachograph", "codecarbon"]}}, {"comet", "wandb"}),
        ({"report_to": "tensorboard", "use_tensorboard": True}, {"tensorboard"}),
        ({"report_to": "none"}, set()),
        (argparse.Namespace(use_wandb=True), {"wandb"}),
        (None, set()),
        ({"report_to": 7, "training_arguments": "x"}, set()),
    ],
)
def test_loggers_are_found_in_a_config(config, loggers):
    assert loggers_in(config) == loggers


@pytest.mark.parametrize(
    ("config", "level", "text"),
    [
        ({"use_wandb": True}, None, ""),
        ({"use_wandb": True, "use_mlflow": True}, logging.WARNING, "2 loggers are active (mlflow, wandb)"),
        (
            {"use_wandb": True, "use_mlflow": True, "use_trackio": True},
            logging.ERROR,
            "3 loggers are active at once (mlflow, trackio, wandb): keep one",
        ),
    ],
)
def test_several_loggers_are_warned_about(logs, caplog, config, level, text):
    with tachograph.init("x", config=config, log_dir=str(logs), **OPTIONS) as run:
        run.log(train_loss=1.0, step=1)
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [found_level for found_level, _ in found] == ([] if level is None else [level])
    assert all(message.startswith(text) for _, message in found)


def test_sink_and_switch_of_one_logger_count_once(logs, caplog):
    with tachograph.init("x", config={"use_tensorboard": True}, log_dir=str(logs), tensorboard=True, **OPTIONS) as run:
        run.log(train_loss=1.0, step=1)
    assert caplog.text == ""


def costs_of(logs):
    return read(logs / "x").latest("event", "logger_costs")


@pytest.mark.slow
def test_cost_of_sinks_is_measured_and_reported_once(logs, few_steps, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path))
    sinks = ["tensorboard", {"swanlab": {"mode": "offline"}}]
    with tachograph.init("x", log_dir=str(logs), sinks=sinks, **OPTIONS) as run:
        steps = iter(range(1_000_000))

        def is_reported():
            run.log(train_loss=1.0, step=next(steps))
            return costs_of(logs)

        wait_for(is_reported)
        for _ in range(200):
            run.log(train_loss=1.0, step=next(steps))
    (event,) = costs_of(logs)
    assert event["loggers"] == ["swanlab", "tensorboard"]
    assert event["num_steps"] >= 5
    for name in ("swanlab", "tensorboard"):  # a process cannot use more than all cores
        assert 0 <= event[f"sink_cpu_s/{name}"] < 64 * event["wall_s"]
    assert event["training_cpu_s"] > 0
    assert not any(name.startswith("callback_s") for name in event)
    lines = [line for line in capsys.readouterr().out.splitlines() if "several loggers" in line]
    assert len(lines) == 1
    assert "the sink tensorboard used" in lines[0] and f"measured over {event['num_steps']} steps" in lines[0]


@pytest.mark.slow
def test_nothing_is_reported_that_cannot_be_measured(logs, few_steps, capsys):
    with tachograph.init("x", config={"use_comet": True, "use_mlflow": True}, log_dir=str(logs), **OPTIONS) as run:
        (costs,) = (one for one in run.collectors if isinstance(one, LoggerCosts))
        steps = iter(range(1_000_000))
        wait_for(lambda: run.log(train_loss=1.0, step=next(steps)) or costs.is_done)
    assert costs_of(logs) == []
    assert "several loggers" not in capsys.readouterr().out


def test_processor_time_includes_grandchildren(script):
    burn = "import time\nwhile time.process_time() < 1: pass\nprint('burnt', flush=True)\ninput()"
    parent = script(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
        child.wait()
        """,
        burn,
        preload="",  # so that it is a child of this process
    )
    assert parent.process.stdout.readline() == "burnt\n"
    assert _cpu_s(parent.process.pid) >= 1
    assert _cpu_s(1) is None  # not ours
