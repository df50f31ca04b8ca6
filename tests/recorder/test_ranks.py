"""Processes of a distributed job: who they are, and the light journals of all but the first."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import tachograph as tacho
from tachograph._base import ranks
from tachograph.journal import RunFolder, find_job
from tachograph.reader import read, read_ranks
from tests.conftest import lines_of, wait_for

NOBODY = (0, 1)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, NOBODY),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": " 3 ", "WORLD_SIZE": "8"}, (3, 8)),
        ({"GLOBAL_RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, (5, 6)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        # A script that sbatch runs by itself is alone, however many tasks the job has.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, NOBODY),
        # The place on another node says nothing of the rank.
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"}, NOBODY),
        # Junk counts as nothing, and the next variables are asked.
        ({"RANK": "-1", "WORLD_SIZE": "8"}, NOBODY),
        ({"RANK": "8", "WORLD_SIZE": "8"}, NOBODY),
        ({"RANK": "one", "WORLD_SIZE": "two"}, NOBODY),
        ({"RANK": "", "WORLD_SIZE": ""}, NOBODY),
        ({"RANK": "²", "WORLD_SIZE": "8"}, NOBODY),
        ({"RANK": "1"}, NOBODY),
        ({"RANK": "x", "WORLD_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, (3, 4)),
        # One process under torchrun is no job of several.
        ({"RANK": "0", "WORLD_SIZE": "1"}, NOBODY),
    ],
)
def test_who_we_are(monkeypatch, environment, place):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.world_size()) == place


def test_a_job_has_a_name_that_its_processes_share_and_restarts_do_not(monkeypatch):
    assert ranks.job_id() == ""
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    names = []
    for rank, restarts in ((0, 0), (1, 0), (0, 1)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        names.append(ranks.job_id())
    assert names[0] == names[1] != names[2]


def test_another_rank_writes_beside_the_first(logs, script):
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
        sys.stdin.readline()
        if len(sys.argv) > 2:
            raise RuntimeError("rank 1 is unwell")
        run.finish()
    """
    # The later rank is there first, and waits for nobody.
    second = script(source, logs, "fail", env={**job, "RANK": "1"})
    time.sleep(0.5)
    first = script(source, logs, env={**job, "RANK": "0"})
    wait_for((logs / "job" / "ranks" / "00001.jsonl").exists, what="the other rank's journal")
    running = read_ranks(RunFolder(logs / "job"))
    assert {(view.rank, str(view.state)) for view in running} == {(0, "running"), (1, "running")}
    assert "rank 1 is unwell" in second.process.communicate("\n", timeout=30)[1]
    first.process.communicate("\n", timeout=30)
    history = read("job", logs)
    zero, one = history.ranks
    assert (zero.state, zero.num_iterations, zero.num_errors) == ("finished", 20, 0)
    assert (one.state, one.num_iterations, one.num_errors, one.reason) == ("failed", 20, 1, "RuntimeError")
    assert one.mean_iteration_s is not None and one.mean_iteration_s > 0.001
    light = [json.loads(line) for line in (logs / "job" / "ranks" / "00001.jsonl").read_text().splitlines()]
    assert light[0]["event"] == "start" and light[0]["rank"] == 1 and light[0]["world_size"] == 2
    kinds = {record["event"] for record in light}
    assert {"span_start", "span_stop", "event", "error", "end"} <= kinds
    assert not any("train_loss" in record for record in light)
    assert any(record.get("text") == "hello" for record in light)
    # The first rank's journal is its own.
    assert history.counts["start"] == 1 and len(history.series("train_loss").values) == 20
    assert not list(logs.glob("job-*"))


def test_a_rank_without_a_first_one_writes_nothing_and_does_not_wait(logs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    began_s = time.monotonic()
    run = tacho.init("alone", log_dir=str(logs), console=False)
    run.log({"a": 1.0}, step=0)
    run.log_validation({"loss": 1.0})
    run.finish()
    assert time.monotonic() - began_s < 3
    assert not logs.exists() or not list(logs.iterdir())


def test_the_run_of_another_job_is_not_taken(logs, monkeypatch):
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


def test_each_run_of_a_job_has_its_ranks(logs, script):
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29513"}
    source = """
        import sys, time
        import tachograph as tacho
        for name in ("one", "two"):
            with tacho.init(name, log_dir=sys.argv[1], console=False, flush_interval_s=0.05) as run:
                run.event("note", text=name)
                time.sleep(1.5)
    """
    processes = [script(source, logs, env={**job, "RANK": rank}) for rank in "01"]
    for process in processes:
        process.ok()
    for name in ("one", "two"):
        text = (logs / name / "ranks" / "00001.jsonl").read_text()
        assert f'"text":"{name}"' in text and text.count('"event":"start"') == 1


def test_a_rank_that_finds_nobody_says_that_its_records_are_lost(logs, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = tacho.init("alone", log_dir=str(logs))
    assert not run.finish()
    assert "could not be written" in capsys.readouterr().out


def test_what_a_killed_rank_wrote_is_there(logs, script, monkeypatch):
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29512"}
    source = """
        import sys, time
        import tachograph as tacho
        run = tacho.init("job", log_dir=sys.argv[1], console=False, flush_interval_s=0.05)
        with tacho.timed_span("work"):
            time.sleep(60)
    """
    first = script(source, logs, env={**job, "RANK": "0"})
    second = script(source, logs, env={**job, "RANK": "1"})
    path = logs / "job" / "ranks" / "00001.jsonl"
    wait_for(lambda: path.exists() and "span_start" in path.read_text(), what="the other rank's span")
    second.process.kill()
    second.process.wait()
    assert {(view.rank, str(view.state)) for view in read("job", logs).ranks} == {(0, "running"), (1, "crashed")}
    first.process.kill()
    first.process.wait()
    assert {str(view.state) for view in read("job", logs).ranks} == {"crashed"}
    assert lines_of(logs / "job")[0]["event"] == "start"


def test_two_processes_of_torchrun(tmp_path, logs):
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            import torch.distributed as dist
            rank = os.environ.pop("RANK")  # torch itself tells it as well
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
        )
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(path), str(logs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(view.rank, view.num_iterations) for view in read("job", logs).ranks] == [(0, 10), (1, 10)]
    shown = subprocess.run(
        [sys.executable, "-m", "tachograph", "show", "job", "--log-dir", str(logs)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": str(Path(sys.executable).parent), "COLUMNS": "120"},
    )
    assert "mean iteration" in shown.stdout


def test_a_run_of_one_process_has_no_ranks(logs):
    with tacho.init("one", log_dir=str(logs), console=False):
        pass
    assert read("one", logs).ranks == []
    assert not (logs / "one" / "ranks").exists()
