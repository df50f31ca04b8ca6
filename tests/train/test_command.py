"""The command `tacho train`, in one process and under torchrun."""

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
from tests.train.conftest import BASE


def write_config(**changes):
    Path("config.yaml").write_text(yaml.safe_dump({**BASE, **changes}))


def run_command(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=HANG_S, env=environment, check=False
    )


def test_command_trains_in_a_process_of_its_own(workspace):
    write_config(telemetry={"log_dir": "./logs"}, val_set_size=4)
    done = run_command("-m", "tachograph", "train", "config.yaml", "--set", "max_steps=3", "--set", "name=greyjacket")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[train] step 1/3: loss" in done.stderr
    assert "[train] step 3/3: eval_loss" in done.stderr
    assert "[train] 3 steps, train_loss" in done.stderr
    assert "saved in ./out, recorded in logs/greyjacket" in done.stderr
    run = read("logs/greyjacket")
    assert run.state == "finished"
    assert list(run.series("train_loss").steps) == [1, 2, 3]


def test_torchrun_trains_with_two_processes(workspace):
    write_config(name="two", telemetry={"log_dir": "./logs"}, save_strategy="steps", save_steps=2, use_cpu=True)
    done = run_command(
        "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "tachograph", "train", "config.yaml"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("[train] 2 steps") == 1  # only rank 0 prints
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
