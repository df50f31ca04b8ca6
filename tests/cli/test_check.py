"""`tacho check` and `tacho baseline`: a gate for continuous integration."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import tachograph
from tachograph.cli._main import main
from tests.conftest import wait_for, whole_lines
from tests.store import END, START, step, write

NUM_STEPS = 600


def record(logs, name, *, seed=0, factor=1.0, level=1.0, start=None, events=(), num_steps=NUM_STEPS, status="finished"):
    """Write a run with steps of about 0.2 s and a loss that depends on the batch and a little on the seed."""
    random = np.random.default_rng(seed)
    times = 0.2 * factor * np.exp(random.normal(0.0, 0.01, num_steps))
    batches = np.random.default_rng(99).normal(0.0, 0.1, num_steps)
    losses = level * (2 + 3 * np.exp(-np.arange(num_steps) / 100) + batches + random.normal(0.0, 0.004, num_steps))
    facts = {"host": "node1", "gpus": ["H100"], "world_size": 1, "perf_tag": "bf16", "config": {"lr": 0.1}}
    records = [
        step(i, loss=float(losses[i]), sec_per_step=float(times[i]), gpu_mem_allocated=10.0) for i in range(num_steps)
    ]
    started = 1_000.0 + seed
    git = {"git": {"commit": f"{seed:040x}"}}
    first = {**START, "run_id": f"id-{name}", "time": started, **facts, **git, **(start or {})}
    write(logs / name, [first, *events, *records, {**END, "status": status}])


@pytest.fixture
def folder(logs, tmp_path, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    monkeypatch.chdir(tmp_path)
    return logs


def tacho(*arguments, code=0):
    result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "150"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def verdicts(path="report.json"):
    with open(path) as file:
        return {metric["name"]: metric["verdict"] for metric in json.load(file)["metrics"]}


def test_baseline_file_replaces_the_journals(folder, tmp_path):
    for number in range(3):
        record(folder, f"base-{number}", seed=number)
    tacho("baseline", "add", "base-2", "base-0", "base-1")
    with open("baseline.json") as file:
        assert [run["name"] for run in json.load(file)["runs"]] == ["base-2", "base-1", "base-0"]
    record(folder, "slow", seed=7, factor=1.05)
    record(folder, "worse", seed=8, level=1.03)
    record(folder, "same", seed=9)
    for name, code in {"slow": 1, "worse": 1, "same": 0}.items():
        found = []
        for arguments in (("--baseline", "baseline.json"), *[[f"--against=base-{number}" for number in range(3)]]):
            tacho("check", name, *arguments, "--json", "report.json", code=code)
            found.append(verdicts())
            with open("report.json") as file:
                report = json.load(file)
            assert report["check"]["exit_code"] == code
            metrics = {metric["name"]: metric for metric in report["metrics"]}
            assert metrics["step_time"]["confidence"] == pytest.approx(1 - 0.01 / 3)
            if name == "slow":
                assert metrics["step_time"]["effect"] == pytest.approx(0.05, abs=0.003)
            if name == "worse":
                assert metrics["train_loss"]["effect"] == pytest.approx(0.03, abs=0.002)
                assert metrics["train_loss"]["noise"] < 0.004  # the batches are recognised as the same
        gated = ("step_time", "device_memory", "train_loss")
        assert [found[0][metric] for metric in gated] == [found[1][metric] for metric in gated]
    assert (tmp_path / "baseline.json").stat().st_size <= 20_000


def test_adding_a_run_adds_one_line(folder, tmp_path):
    path = tmp_path / "baseline.json"
    for number in range(6):
        record(folder, f"base-{number}", seed=number)
        before = path.read_text().splitlines() if path.exists() else []
        tacho("baseline", "add", f"base-{number}", "--drop-older", "4")
        after = path.read_text().splitlines()
        if 0 < number < 4:
            position = after.index('"runs": [') + 1
            assert before == [*after[:position], *after[position + 1 :]]
    content = json.loads(path.read_text())
    assert [run["name"] for run in content["runs"]] == [f"base-{number}" for number in range(5, 1, -1)]
    assert list(content) == sorted(content)
    out = tacho("baseline", "show")
    assert "4 runs" in out
    assert "bf16" in out
    assert "already" in tacho("baseline", "add", "base-5", code=1)
    tacho("baseline", "drop", "base-5")
    assert "no run 'base-5'" in " ".join(tacho("baseline", "drop", "base-5", code=1).split())


def test_different_run_needs_a_reason(folder, tmp_path):
    for number in range(2):
        record(folder, f"base-{number}", seed=number)
        tacho("baseline", "add", f"base-{number}")
    before = (tmp_path / "baseline.json").read_bytes()
    record(folder, "slow", seed=5, factor=1.1)
    record(folder, "slow-2", seed=6, factor=1.1)
    out = " ".join(tacho("baseline", "add", "base-1", "slow", "--baseline", "new.json", code=1).split())
    assert "slower" in out
    assert not (tmp_path / "new.json").exists()  # all or none
    out = " ".join(tacho("baseline", "add", "slow", code=1).split())
    assert "step time slower (+10" in out
    assert "--accept" in out
    assert (tmp_path / "baseline.json").read_bytes() == before
    tacho("baseline", "add", "slow", "--accept", "longer sequences")
    assert "accepted: longer sequences" in tacho("baseline", "show")
    tacho("check", "slow-2", "--baseline", "baseline.json")  # only the accepted run counts from now on
    record(folder, "other", seed=4, start={"perf_tag": "fp32"})
    assert "another file" in " ".join(tacho("baseline", "add", "other", code=1).replace("│", " ").split())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no baseline file"),
        ("", "is not a baseline file"),
        ("[1]", "is not a baseline file"),
        ('{"schema": 1}', "is not a baseline file"),
        ("<<<<<<< HEAD\n{}", "conflict markers"),
        ('{"kind": "tachograph-baseline", "schema": 99, "runs": 7}', "newer version"),
        ('{"kind": "tachograph-baseline", "schema": 1, "runs": [{"id": 1}]}', "is damaged"),
        ('{"kind": "tachograph-baseline", "schema": 1, "metrics": {"step_time": {"margin": -2}}}', "is damaged"),
        ('{"kind": "tachograph-baseline", "schema": 1, "runs": [{"id":"a","name":"b","date":"x"}]}', "is damaged"),
    ],
)
def test_unreadable_baseline_is_an_error(folder, tmp_path, content, expected):
    record(folder, "new")
    path = tmp_path / "foreign.json"
    if content is not None:
        path.write_text(content)
    out = tacho("check", "new", "--baseline", "foreign.json", "--junit", "junit.xml", code=2)
    assert expected in " ".join(out.replace("│", " ").split())
    error = ET.parse(tmp_path / "junit.xml").find("testsuite/testcase/error")
    assert error is not None
    assert expected in error.get("message", "")
    if content is not None:
        tacho("baseline", "add", "new", "--file", "foreign.json", code=1)  # the name of the option in 0.2
        assert path.read_text() == content


def test_usage_errors_exit_with_2(folder):
    record(folder, "new")
    assert "no run 'nothing'" in " ".join(tacho("check", "nothing", code=2).replace("│", " ").split())
    tacho("check", "new", "--metrics", "speed", code=2)
    tacho("check", "new", "--baseline", "x.json", "--against", "new", code=2)
    tacho("check", "new", "--junit", "no/such/folder/x.xml", code=2)


def test_runs_with_the_same_tag_are_the_default_baseline(folder):
    record(folder, "alone", seed=0)
    assert "no earlier finished run" in tacho("check", "alone")
    tacho("check", "alone", "--require-evidence", code=3)
    marked = {"event": "event", "name": "one_logger_initialization", "time": 1_000.0, "is_baseline_run": True}
    record(folder, "base-1", seed=1)
    record(folder, "base-2", seed=2)
    record(folder, "slow", seed=5, factor=1.1)
    assert "3 earlier finished runs" in tacho("check", "slow", code=1)
    record(folder, "marked", seed=3, events=[marked], factor=1.1)
    assert "1 earlier run marked as baseline" in tacho("check", "slow")
    record(folder, "untagged", seed=6, start={"perf_tag": ""})
    assert "no perf_tag" in tacho("check", "untagged")


def test_run_that_cannot_be_judged_exits_with_3_on_request(folder, tmp_path):
    untagged = {"perf_tag": ""}
    record(folder, "base", seed=1, start=untagged)
    record(folder, "ranks", seed=2, start={**untagged, "world_size": 2})
    record(folder, "short", seed=3, start=untagged, num_steps=60)
    record(folder, "same", seed=4, start=untagged)
    for name, reason in {"ranks": "world sizes", "short": "steps in common"}.items():
        out = tacho("check", name, "--against", "base")
        assert "warning:" in out
        assert reason in out
        out = tacho("check", name, "--against", "base", "--require-evidence", "--junit", "junit.xml", code=3)
        assert reason in out
        skipped = ET.parse(tmp_path / "junit.xml").find("testsuite/testcase[@name='step_time']/skipped")
        assert skipped is not None
    # One run each does not prove that they are equally fast, but it is judged; losses of one run each are not.
    tacho("check", "same", "--against", "base", "--require-evidence", code=3)
    out = tacho("check", "same", "--against", "base", "--require-evidence", "--seed-spread", "0.5")
    assert "not enough evidence" in out
    out = tacho("check", "same", "--against", "base", "--metrics", "val_loss", "--require-evidence", code=3)
    assert "val_loss: the runs do not have it" in out


def test_failed_run_fails_the_check(folder, tmp_path):
    record(folder, "base", seed=1)
    record(folder, "failed", seed=2, status="failed")
    tacho("check", "failed", "--against", "base", "--junit", "junit.xml", code=1)
    assert ET.parse(tmp_path / "junit.xml").find("testsuite/testcase[@name='run']/failure") is not None
    tacho("baseline", "add", "failed", code=1)


def test_reports_name_the_regression(folder, tmp_path):
    record(folder, "base", seed=1)
    record(folder, "sl\x1bow", seed=2, factor=1.1)
    files = ("--junit", "junit.xml", "--json", "report.json", "--markdown", "report.md")
    out = tacho("check", "sl\x1bow", "--against", "base", *files, code=1)
    assert "\x1b" not in out
    suite = ET.parse(tmp_path / "junit.xml").find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    cases = {case.get("name"): case for case in suite}
    assert {"run", "step_time", "device_memory", "train_loss"} <= set(cases)
    failure = cases["step_time"].find("failure")
    assert failure is not None
    assert "Slower by" in failure.get("message", "")
    assert "200" in (failure.text or "")
    assert verdicts()["step_time"] == "slower"
    assert "Slower by" in (tmp_path / "report.md").read_text()
    # Only named quantities can fail.
    tacho("check", "sl\x1bow", "--against", "base", "--metrics", "train_loss,device_memory")


def test_history_names_the_first_run_after_a_change(folder):
    for number in range(14):
        record(folder, f"night-{number:02}", seed=number, factor=1.0 if number < 11 else 1.04)
    out = " ".join(tacho("check", "night-13", "--history", "--against", "night-12", code=1).split())
    assert "slower by 4" in out
    assert "since 'night-11' (before: 'night-10')" in out
    assert f"commits {10:040x}"[:20] in out
    out = tacho("check", "night-12", "--history", "--against", "night-11")
    assert "no change" in out
    record(folder, "night-14", seed=14, factor=1.04)
    # Found with the run before, so only that one fails.
    assert "found with 'night-13'" in tacho("check", "night-14", "--history", "--against", "night-13")


def test_commands_of_the_page_exist():
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ tacho (.+?)$|(?:run:|- ) tacho (.+)$|`tacho ([^`]+)`", page, re.MULTILINE)
    commands = [shlex.split(next(filter(None, found)).replace(" }}", "").replace("{{ ", "")) for found in lines]
    assert len(commands) >= 9
    for name, *words in commands:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        if words:
            command.make_context("tacho", words)


def test_new_run_knows_the_speed_of_earlier_ones(folder):
    record(folder, "base-0")
    tacho("ls", "--columns", "step_time")  # stores summaries; without them, parts of the journals are read
    for number in range(1, 3):
        record(folder, f"base-{number}", seed=number, num_steps=NUM_STEPS * 10 * (number - 1) or NUM_STEPS)
    record(folder, "failed", seed=3, status="failed")
    record(folder, "other", seed=4, factor=2.0, start={"perf_tag": ["fp32", "slow"]})
    (folder / "planted").mkdir()
    (folder / "planted" / "metrics.jsonl").symlink_to(folder.parent / "elsewhere.jsonl")
    (folder.parent / "elsewhere.jsonl").write_bytes((folder / "base-1" / "metrics.jsonl").read_bytes())
    journal = folder / "new" / "metrics.jsonl"

    def events():
        return [record for record in whole_lines(journal) if record.get("name") == "baseline_speed"]

    with tachograph.init("new", log_dir=folder, perf_tag="bf16"):
        wait_for(events)
        tachograph.set_training_config(perf_tag=["slow"])
        wait_for(lambda: len(events()) == 2)
        tachograph.set_training_config(perf_tag="unknown")
        wait_for(lambda: len(events()) == 3)
    first, second, third = events()
    assert sorted(first["runs"]) == ["base-0", "base-1", "base-2"]
    assert first["step_times_s"] == pytest.approx([0.2] * 3, rel=0.01)
    assert (second["perf_tag"], second["runs"]) == ("slow", ["other"])
    assert second["step_times_s"] == pytest.approx([0.4], rel=0.01)
    assert third["runs"] == []
    off = {"slower_than_baseline": False, "step_time_change": False}
    with tachograph.init("off", log_dir=folder, perf_tag="bf16", rules=off):
        pass
    assert "baseline_speed" not in (folder / "off" / "metrics.jsonl").read_text()


def test_new_run_knows_at_which_steps_earlier_ones_changed(folder):
    alert = {"event": "alert", "time": 2.0, "rule": "step_time_change", "severity": "info", "id": "a1", "title": "t"}
    evidence = {"from_step": 400, "before_s": 0.2, "after_s": 0.5}
    opened = {**alert, "status": "opened", "evidence": evidence}
    events = [opened, {**alert, "status": "resolved"}, {**opened, "evidence": {"from_step": "x"}}]
    record(folder, "base-0", events=events)
    record(folder, "base-1", seed=1, events=[{"event": "log", "time": 1.0, "line": "x" * 990}] * 2000)
    with open(folder / "base-1" / "metrics.jsonl", "a") as file:  # in a later piece of the journal
        file.writelines(json.dumps(line) + "\n" for line in ({**opened, "evidence": {**evidence, "after_s": 1.0}}, END))
    journal = folder / "new" / "metrics.jsonl"

    def baselines():
        return [record for record in whole_lines(journal) if record.get("name") == "baseline_speed"]

    with tachograph.init("new", log_dir=folder, perf_tag="bf16"):
        wait_for(baselines)
    (baseline,) = baselines()
    changes = baseline["step_time_changes"]
    assert {change["step"] for change in changes} == {400}
    assert {round(change["factor"], 6) for change in changes} == {2.5, 5.0}


def test_killed_add_leaves_a_whole_file(folder, tmp_path):
    record(folder, "base-0")
    tacho("baseline", "add", "base-0")
    path = tmp_path / "baseline.json"
    script = """
import sys
from tachograph.comparison import load_baseline, save_baseline
baseline = load_baseline(sys.argv[1])
first = baseline.runs[0]
print("ready", flush=True)
while True:
    for count in (1, 15):
        baseline.runs = [first] * count
        save_baseline(sys.argv[1], baseline)
"""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            for _ in range(50):
                assert len(json.loads(path.read_text())["runs"]) in {1, 15}
            os.kill(child.pid, signal.SIGKILL)
        assert len(json.loads(path.read_text())["runs"]) in {1, 15}
    assert "base-0" in tacho("baseline", "show")
