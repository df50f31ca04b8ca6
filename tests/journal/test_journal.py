"""Recorded runs on disk: files, states and attempts."""

from __future__ import annotations

import json
import math
import os
import sys
import time

import numpy as np
import pandas as pd
import pytest

import tachograph
from tachograph.exceptions import LogDirError, RunNameError, RunNotFoundError
from tachograph.journal import JournalFollower, RunState, list_runs, this_process
from tachograph.reader import overview, read
from tests.conftest import HANG_S, lines_of, wait_for, wait_for_lines


def test_init_writes_files_and_says_where(logs, capsys):
    config = {"lr": 0.1, "hf_token": "hf_abc", "batch_size": 4}
    with tachograph.init("greyjacket", config=config, log_dir=str(logs)) as run:
        for step in range(5):
            run.log({"train_loss": 1.0 / (step + 1), "lr": 0.1}, step=step)
    assert capsys.readouterr().out.splitlines() == [
        "[telemetry] run_name=greyjacket",
        f"[telemetry] Logging to {logs}/greyjacket/metrics.jsonl (and metrics.csv)",
        f"[telemetry] Watch it with: tacho ui --log-dir {logs}",
    ]
    tachograph.init("second", log_dir=str(logs)).finish()
    assert "tacho ui" not in capsys.readouterr().out  # said once
    folder = logs / "greyjacket"
    assert {path.name for path in folder.iterdir()} == {"metrics.jsonl", "metrics.csv", "control.json", ".tacho"}
    records = lines_of(folder)
    assert records[0]["event"] == "start"
    assert records[0]["run_name"] == "greyjacket"
    assert records[0]["config"] == {"lr": 0.1, "hf_token": "[masked]", "batch_size": 4}
    assert records[0]["effective_batch_size"] == 4
    assert "hf_abc" not in (folder / "metrics.jsonl").read_text() + (folder / "metrics.csv").read_text()
    assert records[-1]["status"] == "finished"
    losses = [record["train_loss"] for record in records if record["event"] == "step"]
    assert losses == [1.0 / (step + 1) for step in range(5)]
    assert "samples_per_sec" in [record for record in records if record["event"] == "step"][1]


def test_relative_log_dir_is_printed_as_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tachograph.init("greyjacket", log_dir="./logs").finish()
    assert "[telemetry] Logging to ./logs/greyjacket/metrics.jsonl (and metrics.csv)" in capsys.readouterr().out


def test_changing_the_working_directory_is_harmless(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with tachograph.init("x", log_dir="logs") as run:
        run.log(a=1.0, step=0)
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.log(a=2.0, step=1)
    assert tachograph.read(tmp_path / "logs" / "x").series("a").values.tolist() == [1.0, 2.0]
    assert not (tmp_path / "elsewhere" / "logs").exists()
    assert len(pd.read_csv(tmp_path / "logs" / "x" / "metrics.csv")) == len(lines_of(tmp_path / "logs" / "x"))


def test_records_are_readable_while_running(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        run.log(train_loss=0.5, step=1)
        wait_for_lines(logs / "x", 2)
        history = tachograph.read(logs / "x")
        assert history.state is RunState.RUNNING
        assert overview(history.folder).state is RunState.RUNNING
    assert history.refresh() >= 1
    assert history.state is RunState.FINISHED


def test_read_returns_what_was_logged(logs):
    with tachograph.init("x", log_dir=str(logs), tags=["a"], config={"max_steps": 10}) as run:
        for step in range(10):
            run.log(train_loss=math.nan if step == 3 else float(step), step=step)
        run.log_validation({"loss": 0.5}, step=9)
    history = tachograph.read("x", log_dir=logs)
    series = history.series("train_loss")
    assert series.steps.tolist() == list(range(10))
    assert series.values.dtype == np.float64
    assert math.isnan(series.values[3])
    assert series.values[4] == 4.0
    assert history.series("val_loss").values.tolist() == [0.5]
    assert history.config == {"max_steps": 10}
    assert history.metrics["train_loss"].num_not_finite == 1
    assert history.metrics["train_loss"].high == 9.0
    frame = history.to_pandas("step")
    assert isinstance(frame, pd.DataFrame)
    assert frame["train_loss"].isna().sum() == 1
    assert len(history.to_pandas()) == sum(history.counts.values())
    assert len(list(history.records("step"))) == 10
    with pytest.raises(KeyError, match="did you mean 'train_loss'"):
        history.series("train_los")
    info = overview(history.folder)
    assert (info.step, info.max_steps, info.progress, info.tags) == (9, 10, 1.0, ["a"])


def test_metric_summaries_match_the_records(logs):
    odd = {7: math.nan, 77: math.inf, 78: -math.inf}
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(500):
            run.log({"a": odd.get(step, math.sin(step)), "n": step, "flag": step % 2 == 0}, step=step)
    history = read(logs / "x")
    records = list(history.records("step"))
    assert history.counts["step"] == len(records) == 500
    for name in ("a", "n", "sec_per_step"):
        values = [record[name] for record in records if name in record]
        finite = [value for value in values if math.isfinite(value)]
        summary = history.metrics[name]
        assert (summary.count, summary.num_not_finite) == (len(values), len(values) - len(finite))
        assert (summary.low, summary.high, summary.last) == (min(finite), max(finite), values[-1])
        assert summary.last_step == 499
    assert "flag" not in history.metrics
    assert (history.attempts[0].first_step, history.attempts[0].last_step) == (0, 499)


def test_resume_appends_to_same_journal(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        first_id = run.id
        for step in range(10):
            run.log(train_loss=1.0, step=step)
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        assert (run.name, run.resumed, run.id) == ("x", True, first_id)
        for step in range(5, 15):
            run.log(train_loss=2.0, step=step)
    history = tachograph.read(logs / "x")
    assert [(attempt.first_step, attempt.last_step) for attempt in history.attempts] == [(0, 9), (5, 14)]
    every = history.series("train_loss")
    assert len(every.values) == 20
    assert every.attempts.tolist() == [0] * 10 + [1] * 10
    joined = history.series("train_loss", overlap="latest")
    assert joined.steps.tolist() == list(range(15))
    assert joined.values.tolist() == [1.0] * 5 + [2.0] * 10
    rows = pd.read_csv(logs / "x" / "metrics.csv")
    assert (rows["event"] == "step").sum() == 20
    assert len(rows) == len(lines_of(logs / "x"))


def test_resume_continues_implicit_step_numbers(logs):
    for _ in range(2):
        with tachograph.init("x", log_dir=str(logs), resume=True) as run:
            for _ in range(3):
                run.log(a=1.0)
    assert tachograph.read(logs / "x").series("a").steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_name_in_use_gets_a_number_and_a_note(logs, capsys):
    with tachograph.init("x", log_dir=str(logs)) as one, tachograph.init("x", log_dir=str(logs)) as two:
        assert (one.name, two.name) == ("x", "x-2")
        one.log(a=1.0)
        two.log(a=2.0)
    assert "'x' is being recorded by this process; recording as 'x-2'" in capsys.readouterr().out
    with tachograph.init("x", log_dir=str(logs)) as three:
        assert three.name == "x-3"
    assert "run 'x' already exists (pass resume=True to continue it); recording as 'x-3'" in capsys.readouterr().out
    assert tachograph.read(logs / "x").series("a").values.tolist() == [1.0]
    assert tachograph.read(logs / "x-2").series("a").values.tolist() == [2.0]


HOLD = """
    import sys, tachograph
    run = tachograph.init("x", log_dir=sys.argv[1], resume="resume" in sys.argv)
    run.log(pid=1.0)
    print("name", run.name, flush=True)
    sys.stdin.readline()
    run.finish()
"""


def test_two_processes_never_share_a_folder(logs, script):
    first = script(HOLD, logs)
    assert wait_for_lines(logs / "x")
    for arguments in ([], ["resume"]):
        other = script(HOLD, logs, *arguments)
        code, out, err = *(other.process.communicate("\n", timeout=HANG_S)), ""
        assert "name x-2" in code or "name x-3" in code, (code, out, err)
        assert "is being recorded by process" in code
    first.process.communicate("\n", timeout=HANG_S)
    assert read(logs / "x").state is RunState.FINISHED


def test_concurrent_processes_get_different_folders(logs, script):
    source = """
        import sys, tachograph
        with tachograph.init("x", log_dir=sys.argv[1], system_interval_s=0) as run:
            for step in range(50):
                run.log(who=float(sys.argv[2]), step=step)
        print(run.name)
    """
    started = [script(source, logs, number) for number in range(6)]
    names = {one.ok().split()[-1] for one in started}
    assert len(names) == 6
    for name in names:
        values = tachograph.read(logs / name).series("who").values
        assert len(values) == 50
        assert len(set(values)) == 1


@pytest.mark.parametrize("name", ["../out", "/tmp/x", "..", "a/b", "x\0"])
def test_run_name_cannot_leave_the_log_dir(logs, name):
    with pytest.raises(RunNameError):
        tachograph.init(name, log_dir=str(logs))
    assert not logs.exists()


def test_link_out_of_the_log_dir_is_rejected(logs, tmp_path):
    logs.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (logs / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunNameError, match="points outside"):
        tachograph.init("x", log_dir=str(logs))


def test_log_dir_may_be_a_link(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "scratch")
    tachograph.init("x", log_dir=str(tmp_path / "logs")).finish()
    assert (tmp_path / "scratch" / "x" / "metrics.jsonl").exists()


def test_log_dir_that_is_a_file_is_rejected(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(LogDirError, match="pass log_dir="):
        tachograph.init("x", log_dir=str(tmp_path / "logs"))


def test_missing_run_raises_with_a_suggestion(logs):
    with pytest.raises(RunNotFoundError, match=r"no metrics\.jsonl"):
        tachograph.read(logs / "nothing")
    tachograph.init("greyjacket", log_dir=str(logs)).finish()
    with pytest.raises(RunNotFoundError, match="did you mean 'greyjacket'"):
        tachograph.read("greyjaket", log_dir=logs)


def test_list_runs_skips_other_files_and_folders(logs):
    for name in ("b", "a"):
        tachograph.init(name, log_dir=str(logs)).finish()
    (logs / "empty").mkdir()
    (logs / "file").write_text("")
    assert [folder.name for folder in list_runs(logs)] == ["a", "b"]
    assert list(list_runs(logs / "missing")) == []


# Reading damaged journals -------------------------------------------------------------------------------------------


def record_some(logs, num_steps=10):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(num_steps):
            run.log(a=float(step), step=step)
    return logs / "x" / "metrics.jsonl"


def test_invalid_lines_are_counted_and_skipped(logs):
    path = record_some(logs)
    lines = path.read_bytes().splitlines(keepends=True)
    bad = [
        b"{not json}\n",
        b"\xff\xfe\n",
        b"\n",
        b'"text"\n',
        b'{"a":1}\n',
        b"[" * 5000 + b"\n",
        b'{"event":"step","a":1e999}\n',
    ]
    path.write_bytes(b"".join([*lines[:5], *bad, *lines[5:]]))
    history = read(path)
    assert history.series("a").values.tolist() == [float(step) for step in range(10)]
    assert history.num_bad_lines == len(bad) - 1  # empty lines are not counted


def test_journal_truncated_at_any_byte_can_be_read(logs):
    path = record_some(logs, 3)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        history = read(path)
        assert sum(history.counts.values()) == whole[:size].count(b"\n")
        assert history.num_bad_lines == 0


def test_resume_terminates_a_torn_line(logs):
    path = record_some(logs, 3)
    path.write_bytes(path.read_bytes()[:-10])
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        run.log(a=99.0, step=3)
    history = read(path)
    assert len(history.attempts) == 2
    assert history.num_bad_lines == 1
    assert history.series("a").values[-1] == 99.0
    assert len(pd.read_csv(logs / "x" / "metrics.csv")) == sum(history.counts.values())


def test_follower_reads_a_file_growing_byte_by_byte(logs, tmp_path):
    whole = record_some(logs, 5).read_bytes()
    path = tmp_path / "growing.jsonl"
    follower = JournalFollower(path, block_bytes=16)
    assert follower.poll() == []
    seen = []
    with open(path, "wb", buffering=0) as file:
        for index in range(len(whole)):
            file.write(whole[index : index + 1])
            seen += follower.poll()
    assert seen == [json.loads(line) for line in whole.splitlines()]


def test_refresh_after_replacement_starts_over(logs, tmp_path):
    path = record_some(logs, 5)
    history = read(path)
    (tmp_path / "other").write_text('{"event":"start","time":1.0,"run_id":"new"}\n')
    os.replace(tmp_path / "other", path)
    history.refresh()
    assert history.counts == {"start": 1}


def test_read_only_folder_can_be_read(open_folder, script):
    logs = open_folder / "logs"
    record_some(logs)
    for path in (logs / "x" / ".tacho", logs / "x", logs):
        path.chmod(0o555)
    before = sorted(path.name for path in (logs / "x").rglob("*"))
    out = script(
        """
        import os, sys
        import tachograph, tachograph.reader, numpy
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        history = tachograph.read(sys.argv[1])
        print(history.state, len(history.series("a").values))
        """,
        logs / "x",
    ).ok()
    assert out.split() == ["finished", "10"]
    assert sorted(path.name for path in (logs / "x").rglob("*")) == before


def test_state_is_known_without_the_private_folder(logs, script):
    import shutil
    import signal

    running = script(HOLD, logs)
    wait_for_lines(logs / "x", 2)
    wait_for(lambda: shutil.rmtree(logs / "x" / ".tacho", ignore_errors=True) or not (logs / "x" / ".tacho").exists())
    assert read(logs / "x").state is RunState.RUNNING
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    assert read(logs / "x").state is RunState.CRASHED


def test_deleted_private_folder_is_recreated_and_locked(logs, script):
    import shutil

    running = script(HOLD, logs)
    wait_for_lines(logs / "x", 2)
    wait_for(lambda: shutil.rmtree(logs / "x" / ".tacho", ignore_errors=True) or not (logs / "x" / ".tacho").exists())
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:  # the start record shows the writer
        assert run.name == "x-2"
    wait_for((logs / "x" / ".tacho" / "heartbeat.json").exists)
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        assert run.name == "x-3"  # x-2 is another run and is not resumed
    running.process.communicate("\n", timeout=HANG_S)
    assert read(logs / "x").state is RunState.FINISHED


def test_suspended_process_is_stale_not_crashed(logs, script, monkeypatch):
    import signal

    from tachograph.journal import _liveness

    running = script(HOLD, logs)
    wait_for_lines(logs / "x", 2)
    running.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(_liveness, "STALE_AFTER_S", 0.5)
    assert wait_for(lambda: read(logs / "x").state is RunState.STALE)
    heartbeat = logs / "x" / ".tacho" / "heartbeat.json"
    before = heartbeat.read_bytes()
    running.process.send_signal(signal.SIGCONT)
    wait_for(lambda: heartbeat.read_bytes() != before)
    monkeypatch.setattr(_liveness, "STALE_AFTER_S", HANG_S)
    assert read(logs / "x").state is RunState.RUNNING


def without_end(path, **process):
    """Remove the end record of a journal and change its process; return the start record."""
    first, *rest = path.read_bytes().splitlines(keepends=True)[:-1]
    start = json.loads(first)
    start["process"].update(process)
    path.write_bytes(json.dumps(start).encode() + b"\n" + b"".join(rest))
    return start


def test_remote_run_with_old_heartbeat_is_stale(logs):
    start = without_end(record_some(logs), host="elsewhere", boot_id="another")
    beat = json.loads((logs / "x" / ".tacho" / "heartbeat.json").read_bytes())
    for age_s, state in ((3600, RunState.STALE), (1, RunState.RUNNING)):
        beat.update(process=start["process"], time=time.time() - age_s)
        (logs / "x" / ".tacho" / "heartbeat.json").write_text(json.dumps(beat))
        assert read(logs / "x").state is state
    (logs / "x" / ".tacho" / "heartbeat.json").unlink()
    assert read(logs / "x").state is RunState.STALE


def test_run_before_a_reboot_has_crashed(logs):
    without_end(record_some(logs), boot_id="an earlier boot")
    (logs / "x" / ".tacho" / "heartbeat.json").unlink()
    assert read(logs / "x").state is RunState.CRASHED


def test_reused_pid_is_not_mistaken_for_the_writer(logs):
    without_end(record_some(logs), pid_started=this_process().pid_started + 1)
    (logs / "x" / ".tacho" / "heartbeat.json").unlink()
    assert read(logs / "x").state is RunState.CRASHED


def test_git_commit_is_recorded(logs, tmp_path, script):
    import subprocess

    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]
    subprocess.run([*git, "init", "-q", "-b", "trunk"], cwd=repository, check=True)
    (repository / "a").write_text("1")
    subprocess.run([*git, "add", "."], cwd=repository, check=True)
    subprocess.run([*git, "commit", "-qm", "x"], cwd=repository, check=True)
    subprocess.run([*git, "remote", "add", "origin", "https://me:secret@host/x.git"], cwd=repository, check=True)
    (repository / "a").write_text("2")
    program = """
        import sys, tachograph, tachograph.recorder._facts as facts
        facts._GIT_TIMEOUT_S = 60.0  # on a busy machine
        tachograph.init("x", log_dir=sys.argv[1]).finish()
    """
    script(program, logs, cwd=repository, env={"TACHO_GIT": ""}).ok()
    git_facts = lines_of(logs / "x")[0]["git"]
    assert (git_facts["branch"], git_facts["dirty"]) == ("trunk", True)
    assert len(git_facts["commit"]) == 40
    assert git_facts["remote"] == "https://[masked]@host/x.git"


def test_command_line_is_recorded_without_secrets(logs, script):
    script(
        "import sys, tachograph; tachograph.init('x', log_dir=sys.argv[1]).finish()", logs, "--hf_token", "opaque"
    ).ok()
    assert lines_of(logs / "x")[0]["command"][-2:] == ["--hf_token", "[masked]"]
    assert sys.executable not in lines_of(logs / "x")[0]["command"]


@pytest.mark.slow
def test_two_threads_never_share_a_folder(logs):
    import threading

    names, barrier = [], threading.Barrier(4)

    def work():
        barrier.wait()
        with tachograph.init("t", log_dir=str(logs), console=False, git=False, system_interval_s=0) as run:
            names.append(run.name)

    for _ in range(20):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(names)) == len(names) == 80


def test_latest_overlap_drops_superseded_points(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(100):
            run.log(a=1.0, step=step)
            if step in {40, 55, 95}:
                run.log_validation({"loss": float(step)}, step=step)
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        for step in range(50, 120):
            run.log(a=2.0, step=step)
            if step == 90:
                run.log_validation({"loss": 900.0}, step=step)
    series = read(logs / "x").series("val_loss", overlap="latest")
    assert series.values.tolist() == [40.0, 900.0]


def test_resume_finds_last_step_before_a_long_record(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for _ in range(3):
            run.log(a=1.0)
        run.event("report", **{f"text{number}": "x" * 60_000 for number in range(5)})
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        run.log(a=1.0)
    assert read(logs / "x").series("a").steps.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("lines", [b'{"event":"a"}{"event":"b"}\n', b'{"event":\n"a"}\n'])
def test_records_that_share_or_span_lines_are_invalid(logs, lines):
    path = record_some(logs)
    num_records = sum(read(path).counts.values())
    path.write_bytes(path.read_bytes() + lines)
    history = read(path)
    assert sum(history.counts.values()) == num_records
    assert history.num_bad_lines == lines.count(b"\n")


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="holes of files cannot be found on this system")
@pytest.mark.parametrize("ends_with_record", [False, True])
def test_hole_of_a_terabyte_is_not_read(logs, ends_with_record):
    path = record_some(logs)
    num_records = sum(read(path).counts.values())
    with path.open("r+b") as file:
        last_line = file.readlines()[-1]
        file.truncate(1 << 40)  # to read the zeros would take half an hour
        if ends_with_record:
            file.seek(0, os.SEEK_END)
            file.write(b"\n" + last_line)
    history = read(path)
    assert sum(history.counts.values()) == num_records + ends_with_record
    assert history.num_bad_lines >= 1
    complete_bytes = (1 << 40) + 1 + len(last_line)
    assert (JournalFollower.complete_bytes(path) == complete_bytes) == ends_with_record
    assert JournalFollower.from_end(path, 1 << 39).poll() == ([json.loads(last_line)] if ends_with_record else [])


def test_unexpected_field_types_do_not_break_readers(logs):
    from tachograph.cli._show import render

    path = record_some(logs)
    odd = [
        {"event": "start", "time": 1e30, "tags": 5, "gpus": "x", "command": 7, "git": [1], "max_steps": "many"},
        {"event": "step", "global_step": "[/red]", "train_loss": 10**400, "time": "now"},
        {"event": "checkpoint", "checkpoint_path": ["x"], "size_bytes": "big", "global_step": "[/x]"},
        {"event": "event", "name": "control_ack", "control": "[/x]", "status": "\x1b[31m"},
        {"event": "telemetry_error", "kind": 5, "num_records": "x", "reason": None, "field": {}},
        {"event": "end", "status": 5, "reason": "\x1b[31m"},
    ]
    path.write_bytes(path.read_bytes() + b"".join(json.dumps(record).encode() + b"\n" for record in odd))
    history = read(path)
    from rich.console import Console

    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, width=200, record=True)
        console.print(render(history))
    assert "\x1b" not in console.export_text()
    assert overview(history.folder).state is RunState.FAILED
