"""`tacho ab`: real programs that take turns, and a run whose loop switches."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.cli._main import main
from tests.conftest import HANG_S, lines_of, wait_for

PROGRAM = """
import os, sys, time
import tachograph

arm = os.environ["TACHO_AB_ARM"]
number = len(os.listdir(os.environ["TACHO_LOG_DIR"])) if os.path.isdir(os.environ["TACHO_LOG_DIR"]) else 0
print(f"training {arm}", flush=True)
if "--fail" in sys.argv:
    sys.exit("out of luck")
if "--wait" in sys.argv and number == 2:
    open("ready", "w").close()
    time.sleep(1_000)
step_s = 0.12 if "--slow" in sys.argv else 0.1
with tachograph.init("train", config={"arm": arm}) as run:
    for step in range(80):
        run.log({"sec_per_step": step_s + 0.0001 * ((step + number) % 5), "train_loss": 1 / (step + 1)}, step=step)
"""


@pytest.fixture
def start(tmp_path):
    """Start `tacho ab` with the program above, ``start("", "--slow")``, and return the process."""
    (tmp_path / "train.py").write_text(PROGRAM)
    started = []

    def begin(first, second, *options):
        program = f"{shlex.quote(sys.executable)} train.py"
        arms = ["--arms", f"plain={program} {first}", f"change={program} {second}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tachograph", "ab", *arms, "--pairs", "3", "--name", "test", *options],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "120", "TACHO_LOG_DIR": "logs"},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_commands_take_turns_and_are_compared(start, tmp_path):
    process = start("", "--slow", "--json")
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    order = [line.split()[1] for line in errors.splitlines() if line.startswith("[")]
    assert order == ["plain:", "change:", "change:", "plain:", "plain:", "change:"]
    report = json.loads(output)
    metrics = {metric["name"]: metric for metric in report["metrics"]}
    assert metrics["step_time"]["verdict"] == "slower"
    assert metrics["step_time"]["effect"] == pytest.approx(0.2, abs=0.01)
    assert {"wall_time", "overall_time", "tail_ratio", "train_loss"} <= metrics.keys()
    assert report["headline"].startswith("change compared with plain: slower by 20.0 %")
    assert "training" not in errors
    starts = {name: lines_of(tmp_path / "logs" / name)[0] for name in report["a"]["runs"] + report["b"]["runs"]}
    assert len(starts) == 6
    assert {fields["group"] for fields in starts.values()} == {"test"}
    assert [starts[name]["config"]["arm"] for name in report["a"]["runs"]] == ["plain"] * 3
    found = CliRunner().invoke(main, ["ls", "--log-dir", str(tmp_path / "logs"), "tags:arm-change", "--json"])
    assert {row["name"] for row in json.loads(found.output)} == set(report["b"]["runs"])


def test_failing_command_stops_with_its_output(start, tmp_path):
    process = start("", "--fail")
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert output == ""
    assert "out of luck" in errors
    assert "run 2 of 6 (arm change) failed with exit code 1" in " ".join(errors.replace("│", " ").split())
    assert "[3/6]" not in errors


@pytest.mark.slow
def test_ctrl_c_reports_complete_pairs(start, tmp_path):
    process = start("", "--wait")
    wait_for((tmp_path / "ready").exists, "the third program")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, errors
    assert "stopped in run 3 of 6" in errors
    assert "1 pair; 3 are needed" in " ".join(output.split())


def test_report_of_a_run_with_arms(logs, tmp_path):
    with tachograph.init("greyjacket", log_dir=logs) as run:
        for step in range(400):
            use_fused = bool(tachograph.ab("fused"))
            run.log({"sec_per_step": (0.09 if use_fused else 0.1) + 0.0001 * (step % 7)}, step=step)
    page = tmp_path / "report.html"
    arguments = ["ab", "greyjacket", "--log-dir", str(logs), "--html", str(page)]
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "10 quads A B B A of blocks of 10 steps" in result.output
    assert result.output.rstrip().splitlines()[-1].startswith("fused compared with off: faster by 10")
    assert "<svg" in page.read_text()
    result = CliRunner().invoke(main, [*arguments[:4], "--markdown"])
    assert "| step time | 100.3 ms | 90.3 ms |" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give two commands with --arms"),
        (["run", "--arms", "A=x", "B=y"], "give two commands with --arms"),
        (["--arms", "python train.py", "B=y"], "expected NAME=COMMAND"),
        (["--arms", "A=python", "A=python -V"], "both arms are called 'A'"),
        (["--arms", "A=python 'x", "B=y"], "No closing quotation"),
        (["--arms", "A=", "B=y"], "arm 'A' has no command"),
        (["--arms", "A=no-such-program", "B=y"], "'no-such-program' is not an executable program"),
        (["nothing"], "nothing"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path):
    result = CliRunner().invoke(main, ["ab", "--log-dir", str(tmp_path), *arguments], env={"COLUMNS": "200"})
    assert result.exit_code
    assert message in " ".join(result.output.replace("│", " ").split())
