"""Ranks of a distributed job: how they are detected, and the small journals of ranks other than 0."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import tachograph as tacho
from tachograph._base import ranks
from tachograph.cli._main import main
from tachograph.journal import RunFolder, find_job
from tachograph.reader import overview, read, read_ranks
from tests.conftest import HANG_S, wait_for, wait_for_lines, whole_lines

SINGLE_PROCESS = (0, 1)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, SINGLE_PROCESS),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": " 3 ", "WORLD_SIZE": "8"}, (3, 8)),
        ({"GLOBAL_RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, (5, 6)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        # sbatch runs the batch script as one process, however many tasks the job has.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, SINGLE_PROCESS),
        # On other nodes the local rank does not determine the rank.
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"}, SINGLE_PROCESS),
        # Invalid values are ignored and the next variables are tried.
        ({"RANK": "-1", "WORLD_SIZE": "8"}, SINGLE_PROCESS),
        ({"RANK": "8", "WORLD_SIZE": "8"}, SINGLE_PROCESS),
        ({"RANK": "one", "WORLD_SIZE": "two"}, SINGLE_PROCESS),
        ({"RANK": "", "WORLD_SIZE": ""}, SINGLE_PROCESS),
        ({"RANK": "²", "WORLD_SIZE": "8"}, SINGLE_PROCESS),
        ({"RANK": "1"}, SINGLE_PROCESS),
        ({"RANK": "x", "WORLD_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, (3, 4)),
        # A single process under torchrun is not a distributed job.
        ({"RANK": "0", "WORLD_SIZE": "1"}, SINGLE_PROCESS),
    ],
)
def test_rank_and_world_size_come_from_environment(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.world_size()) == expected


def test_job_id_is_shared_by_ranks_but_not_restarts(monkeypatch):
    assert ranks.job_id() == ""
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    names = []
    for rank, restarts in ((0, 0), (1, 0), (0, 1)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        names.append(ranks.job_id())
    assert names[0] == names[1] != names[2]


def test_second_rank_writes_its_own_journal(logs, script):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    source = """
        import sys, time
        import tachograph as tacho
        run = tacho.init("job", log_dir=sys.argv[1], console=False, config={"lr": 0.1}, flush_interval_s=0.05)
        with tacho.training_loop(train_iterations_start=0):
            for step in range(20):
                with tacho.training_iteration():
                    time.sleep(0.002)
                run.log({"train_loss": 1.0}, step=step)
        run.event("note", text="hello")
        print("trained", flush=True)
        sys.stdin.readline()
        if len(sys.argv) > 2:
            raise RuntimeError("rank 1 is unwell")
        run.finish()
    """
    # Rank 1 starts first and must not wait for rank 0.
    second = script(source, logs, "fail", env={**job, "RANK": "1"})
    assert second.process.stdout.readline() == "trained\n"
    first = script(source, logs, env={**job, "RANK": "0"})
    both = {(0, "running"), (1, "running")}
    wait_for((logs / "job" / "ranks" / "00001.jsonl").exists, what="the journal of rank 1")
    wait_for(lambda: {(view.rank, str(view.state)) for view in read_ranks(RunFolder(logs / "job"))} == both)
    assert "rank 1 is unwell" in second.process.communicate("\n", timeout=HANG_S)[1]
    first.process.communicate("\n", timeout=HANG_S)
    history = read("job", logs)
    zero, one = history.ranks
    assert (zero.state, zero.num_iterations, zero.num_errors) == ("finished", 20, 0)
    assert (one.state, one.num_iterations, one.num_errors, one.reason) == ("failed", 20, 1, "RuntimeError")
    assert one.mean_iteration_s is not None and one.mean_iteration_s > 0.001
    result = CliRunner().invoke(main, ["doctor", "job", "--log-dir", str(logs), "--fail-on", "critical"])
    assert result.exit_code == 1
    assert "Rank 1 failed: RuntimeError: rank 1 is unwell." in result.output
    records = [json.loads(line) for line in (logs / "job" / "ranks" / "00001.jsonl").read_text().splitlines()]
    assert records[0]["event"] == "start" and records[0]["rank"] == 1 and records[0]["world_size"] == 2
    kinds = {record["event"] for record in records}
    assert {"span_start", "span_stop", "event", "error", "end"} <= kinds
    assert not any("train_loss" in record for record in records)
    assert any(record.get("text") == "hello" for record in records)
    # The journal of rank 0 holds only its own records.
    assert history.counts["start"] == 1 and len(history.series("train_loss").values) == 20
    assert not list(logs.glob("job-*"))


def test_rank_without_rank_zero_leaves_a_run_of_its_own(logs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("tachograph.recorder._writer._MAX_FOLDER_WAIT_S", 0.5)
    run = tacho.init("alone", log_dir=str(logs), console=False)
    run.log({"a": 1.0}, step=0)
    run.log_error(ValueError("rank 1 is unwell"))
    assert run.finish("failed", reason="ValueError", timeout_s=120)
    (folder,) = logs.iterdir()
    assert folder.name == "alone-rank-1"
    history = read(folder.name, logs)
    assert str(overview(RunFolder(folder)).state) == "failed" and history.counts["error"] == 1


def test_rank_that_fails_before_rank_zero_starts_keeps_its_error(logs, script):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29517"}
    source = """
        import sys, tachograph as tacho
        from tachograph.recorder import _writer
        _writer._MAX_FOLDER_WAIT_S = 120  # on a busy machine, rank 0 may start slowly
        run = tacho.init("job", log_dir=sys.argv[1], console=False, exit_timeout_s=240)
        print("started", flush=True)
        if len(sys.argv) > 2:
            raise RuntimeError("rank 1 is unwell")
        sys.stdin.readline()
    """
    second = script(source, logs, "fail", env={**job, "RANK": "1"})
    assert second.process.stdout.readline() == "started\n"
    first = script(source, logs, env={**job, "RANK": "0"})
    second.process.communicate(timeout=HANG_S)
    first.process.communicate("\n", timeout=HANG_S)
    _, one = read("job", logs).ranks
    assert (one.state, one.num_errors, one.reason) == ("failed", 1, "RuntimeError")
    assert [folder.name for folder in logs.iterdir()] == ["job"]


def test_show_counts_ranks_without_a_journal(logs, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    tacho.init("job", log_dir=str(logs), console=False, git=False).finish()
    folder = RunFolder(logs / "job")
    folder.ranks.mkdir()
    for rank in (1, 2):
        folder.rank_journal(rank).write_text(json.dumps({"event": "start", "time": 1.0, "rank": rank}) + "\n")
    result = CliRunner().invoke(main, ["show", "job", "--log-dir", str(logs)])
    assert "1 of 4 ranks left no journal in this folder" in result.output
    folder.rank_journal(3).write_text('{"event": "start", "time": 1.0, "rank": 3}\n')
    assert "left no journal" not in CliRunner().invoke(main, ["show", "job", "--log-dir", str(logs)]).output


def test_find_job_ignores_runs_of_other_jobs(logs, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_PORT", "1")
    run = tacho.init("theirs", log_dir=str(logs), console=False)
    job = ranks.job_id()
    now_s = time.time()
    found = find_job(str(logs), job, now_s + 60)
    assert found is not None and found.name == "theirs"
    assert find_job(str(logs), job + "0", 0.0) is None
    assert find_job(str(logs), "", 0.0) is None
    run.finish()


def test_each_run_of_a_job_has_rank_journals(logs, script):
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29513"}
    source = """
        import pathlib, sys, time
        import tachograph as tacho
        for name in ("one", "two"):
            other = pathlib.Path(sys.argv[1], name, "ranks", "00001.jsonl")
            with tacho.init(name, log_dir=sys.argv[1], console=False, flush_interval_s=0.05) as run:
                run.event("note", text=name)
                while not (other.exists() and '"note"' in other.read_text()):
                    time.sleep(0.05)
    """
    processes = [script(source, logs, env={**job, "RANK": rank}) for rank in "01"]
    for process in processes:
        process.ok()
    for name in ("one", "two"):
        text = (logs / name / "ranks" / "00001.jsonl").read_text()
        assert f'"text":"{name}"' in text and text.count('"event":"start"') == 1


def test_run_that_ended_before_its_last_heartbeat_is_found(logs, monkeypatch):
    """Rank 0 may still complete its CSV when another rank searches; its heartbeat is the one from its start then."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29513")
    run = tacho.init("job", log_dir=str(logs), console=False)
    first_heartbeat = (logs / "job" / ".tacho" / "heartbeat.json").read_bytes()
    started_s = time.time()
    job = ranks.job_id()
    run.finish()
    (logs / "job" / ".tacho" / "heartbeat.json").write_bytes(first_heartbeat)
    found = find_job(str(logs), job, started_s)
    assert found is not None and found.name == "job"
    assert find_job(str(logs), job, time.time() + 60) is None


def test_rank_without_rank_zero_reports_lost_records(logs, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    logs.write_text("not a folder")
    run = tacho.init("alone", log_dir=str(logs), exit_timeout_s=0.5)
    assert not run.finish()
    assert "could not be written" in capsys.readouterr().err


def test_killed_rank_keeps_written_records(logs, script, monkeypatch):
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29512"}
    source = """
        import sys, time
        import tachograph as tacho
        run = tacho.init("job", log_dir=sys.argv[1], console=False, flush_interval_s=0.05)
        with tacho.timed_span("work"):
            time.sleep(3600)
    """
    first = script(source, logs, env={**job, "RANK": "0"})
    second = script(source, logs, env={**job, "RANK": "1"})
    path = logs / "job" / "ranks" / "00001.jsonl"
    wait_for(lambda: path.exists() and "span_start" in path.read_text(), what="the span of rank 1")
    wait_for_lines(logs / "job")  # rank 0 has a thread of its own, which may be later
    second.process.kill()
    second.process.wait()
    one_is_gone = {(0, "running"), (1, "crashed")}
    wait_for(lambda: {(view.rank, str(view.state)) for view in read("job", logs).ranks} == one_is_gone)
    first.process.kill()
    first.process.wait()
    assert {str(view.state) for view in read("job", logs).ranks} == {"crashed"}
    assert whole_lines(logs / "job" / "metrics.jsonl")[0]["event"] == "start"


@pytest.mark.xdist_group("torch")
def test_ranks_of_a_process_group_are_recorded(script, ranks, logs):
    source = """
        import os, sys, time
        import torch.distributed as dist
        rank = os.environ.pop("RANK")  # torch.distributed also provides the rank
        os.environ["RANK"] = rank
        dist.init_process_group("gloo")
        for name in ("RANK", "LOCAL_RANK"):
            del os.environ[name]
        import tachograph as tacho
        run = tacho.init("job", log_dir=sys.argv[1], console=False)
        with tacho.training_loop(train_iterations_start=0):
            for step in range(10):
                with tacho.training_iteration():
                    dist.barrier()
        run.finish()
        dist.destroy_process_group()
        """
    for program in [script(source, logs, env=environment, preload="torch") for environment in ranks]:
        program.ok()
    assert [(view.rank, view.num_iterations) for view in read("job", logs).ranks] == [(0, 10), (1, 10)]
    shown = subprocess.run(
        [sys.executable, "-m", "tachograph", "show", "job", "--log-dir", str(logs)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": str(Path(sys.executable).parent), "COLUMNS": "120"},
    )
    assert "wait" in shown.stdout


def test_single_process_run_has_no_ranks(logs):
    with tacho.init("one", log_dir=str(logs), console=False):
        pass
    assert read("one", logs).ranks == []
    assert not (logs / "one" / "ranks").exists()
