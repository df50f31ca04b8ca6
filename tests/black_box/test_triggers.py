"""What starts a dump besides alerts and exceptions: signals, and requests from outside the process."""

from __future__ import annotations

import json
import signal

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.black_box import BlackBox, DumpWriter
from tachograph.cli._main import main
from tachograph.journal import OutputWriter, RunFolder, output_line
from tests.conftest import HANG_S, lines_of, wait_for, wait_for_lines

LOOP = """
    import itertools, signal, time, tachograph
    {before}
    with tachograph.init("x", log_dir={logs!r}, console=False, system_interval_s=0, flush_interval_s=0.05,
                         control_interval_s=0.05) as run:
        for step in range(9):
            run.log(train_loss=1.0, step=step)
            {checkpoint}
        print("ready", flush=True)
        {wait}
"""
USER_HANDLER = 'signal.signal(signal.SIGTERM, lambda *_: open({flag!r}, "w").close())'
FOREVER = "while True: signal.pause()"


def start_loop(script, logs, *, before="", checkpoint="pass", wait=FOREVER):
    process = script(LOOP.format(logs=str(logs), before=before, checkpoint=checkpoint, wait=wait), preload="tachograph")
    assert process.process.stdout.readline() == "ready\n"
    return process.process


@pytest.mark.parametrize(
    ("name", "checkpoint", "cause"),
    [
        (
            "SIGTERM",
            "step == 5 and run.log_checkpoint('model.pt', step=5)",
            "SIGTERM was sent to the process after step 8. The last checkpoint is of step 5: 3 steps are lost without "
            "another one.",
        ),
        (
            "SIGUSR1",
            "pass",
            "SIGUSR1 was sent to the process after step 8. No checkpoint was recorded since it started: 8 steps are "
            "lost without one.",
        ),
    ],
)
def test_signal_that_ends_a_run_says_what_is_lost(script, logs, name, checkpoint, cause):
    process = start_loop(script, logs, checkpoint=checkpoint)
    process.send_signal(getattr(signal, name))
    process.wait()
    history = tachograph.read(str(logs / "x"))
    (dump,) = history.dumps
    assert (dump.reason, dump.step, dump.verdict.text) == ("signal", 8, cause)
    assert [row["global_step"] for row in dump["steps"]["steps"]][-1] == 8
    assert history.failure.cause == cause
    kinds = [record["event"] for record in lines_of(logs / "x")]
    assert kinds.index("dump") < kinds.index("end")


def test_signal_with_a_handler_of_the_program_is_captured(script, logs, tmp_path):
    flag = tmp_path / "flag"
    process = start_loop(script, logs, before=USER_HANDLER.format(flag=str(flag)))
    process.send_signal(signal.SIGTERM)
    wait_for(flag.exists, "the handler of the program")
    wait_for(lambda: "signal" in [dump.reason for dump in tachograph.read(str(logs / "x")).dumps], "the dump")
    assert not any(record["event"] == "end" for record in wait_for_lines(logs / "x"))


def test_signal_in_the_middle_of_a_dump_ends_the_run(script, logs):
    before = "parts = []"
    wait = (
        "run.dump_writer.add_part('slow', lambda context: parts.append(1) or signal.raise_signal(signal.SIGTERM)); "
        "run.dump()"
    )
    process = start_loop(script, logs, before=before, wait=wait)
    process.wait()
    assert process.returncode == -signal.SIGTERM
    records = lines_of(logs / "x")
    assert records[-1]["event"] == "end"
    assert any(record.get("signal") == "SIGTERM" for record in records)


def test_dump_is_requested_from_a_running_training(script, logs):
    wait = "[run.log(train_loss=1.0, step=step) or time.sleep(0.01) for step in itertools.count(9)]"
    process = start_loop(script, logs, wait=wait)
    options = ("--log-dir", str(logs), "--wait", str(HANG_S))
    result = CliRunner().invoke(main, ["dump", "x", *options])
    assert result.exit_code == 0, result.output
    assert "1-request" in result.output.replace("\n", "")
    result = CliRunner().invoke(main, ["dump", "request", "x", *options])
    assert result.exit_code == 1
    assert "less than 60 s old" in result.output
    process.kill()
    process.wait()
    (dump,) = tachograph.read(str(logs / "x")).dumps
    assert dump.verdict is None
    assert dump["steps"]["steps"]


def test_request_without_black_box_is_rejected(script, logs):
    process = start_loop(script, logs, before="import os; os.environ['TACHO_BLACK_BOX'] = '0'")
    result = CliRunner().invoke(main, ["dump", "x", "--log-dir", str(logs), "--wait", str(HANG_S)])
    assert "the black box of this run is off" in result.output
    process.kill()


def test_dump_has_the_last_output_and_open_alerts(tmp_path):
    folder = RunFolder(tmp_path)
    output = OutputWriter(folder)
    output.append(output_line(number, "stderr", f"line {number}") for number in range(500))
    output.close()
    writer = DumpWriter(lambda: folder, lambda *_: None)
    box = BlackBox(writer, lambda steady_s: steady_s, lambda: 7)
    box.open_alerts = lambda: [{"id": "a-1", "rule": "loss_spike", "severity": "warning", "title": "Spike"}]
    assert writer.write("request", step=7) is not None
    parts = json.loads((tmp_path / "dumps" / "1-request" / "dump.json").read_text())["parts"]
    lines = parts["output"]["lines"]
    assert len(lines) == 200
    assert lines[-1] == "499.000 stderr line 499"
    assert parts["open_alerts"]["alerts"][0]["rule"] == "loss_spike"
