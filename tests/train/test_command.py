"""The command `tacho train`, in one process and in two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.reader import read
from tests.conftest import HANG_S
from tests.preloaded import preloaded
from tests.train.conftest import BASE

pytestmark = pytest.mark.xdist_group("transformers")  # whose tests start programs like these


def write_config(**changes):
    Path("config.yaml").write_text(yaml.safe_dump({**BASE, **changes}))


def start_command(*arguments, env=()):
    """Start `tacho train` in a process of its own, with the packages already imported."""
    return preloaded("frameworks").popen(
        [sys.executable, "-m", "tachograph", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **dict(env)},
    )


def stderr_of(process):
    """Wait for a process to succeed; return what it wrote to standard error."""
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, out + err
    return err


def test_command_trains_in_a_process_of_its_own(workspace):
    write_config(telemetry={"log_dir": "./logs"}, val_set_size=4)
    written = stderr_of(start_command("config.yaml", "--set", "max_steps=3", "--set", "name=greyjacket"))
    assert "[train] step 1/3: loss" in written
    assert "[train] step 3/3: eval_loss" in written
    assert "[train] 3 steps, train_loss" in written
    assert "saved in ./out, recorded in logs/greyjacket" in written
    run = read("logs/greyjacket")
    assert run.state == "finished"
    assert list(run.series("train_loss").steps) == [1, 2, 3]


def test_two_ranks_train_together(workspace, ranks):
    write_config(name="two", telemetry={"log_dir": "./logs"}, save_strategy="steps", save_steps=2, use_cpu=True)
    processes = [start_command("config.yaml", env=environment) for environment in ranks]
    assert [stderr_of(process).count("[train] 2 steps") for process in processes] == [1, 0]  # only rank 0 prints
    run = read("logs/two")
    assert run.state == "finished"
    state = json.loads(Path("out/checkpoint-2/trainer_state.json").read_text())
    assert state["epoch"] == 0.5  # both trained on their own rows: 2 steps of 2 processes with 2 of 16 rows
    assert "| devices | 2 |" in Path("out/README.md").read_text()
    assert [path.name for path in Path("logs").iterdir() if path.is_dir()] == ["two"]


def test_dry_run_prints_the_plan(workspace):
    write_config(plugins=["grokfast"], local_rank=0)
    result = CliRunner().invoke(main, ["train", "config.yaml", "--dry-run"])
    assert result.exit_code == 0, result.output
    for text in (
        "trained parameters",
        "2 (8 per epoch)",
        "GiB and activations",
        "filters the gradients of 21 parameters",
    ):
        assert text in result.output
    assert "note: local_rank has no effect: the rank is read from the environment" in result.output
    assert result.output.endswith("nothing was trained (--dry-run)\n")
    assert not Path("out").exists() and not Path("logs").exists()


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["train", "dry run"])
def test_error_is_one_message_without_traceback(workspace, dry_run):
    write_config(learning_rat=1)
    result = CliRunner().invoke(main, ["train", "config.yaml", *dry_run])
    assert result.exit_code == 1
    assert "unknown key 'learning_rat'; did you mean 'learning_rate'?" in " ".join(result.output.split())
    assert "Traceback" not in result.output
