"""Jobs whose files or ranks fail: training continues, and what was lost is counted.

The ranks are real recorder processes that train until the file `stop` exists, without torch. Each states its progress
in a file outside the log folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph import diagnose
from tachograph.journal import RunFolder
from tachograph.reader import read, read_rank_heat, read_ranks, read_stacks
from tests.conftest import HANG_S, Script, reserve_port, wait_for, whole_lines
from tests.ranks.written_job import NUM_RANKS, write_job

pytestmark = pytest.mark.long  # seconds of waiting each, for heartbeats that stop and limits that pass

PROGRAM = """
    import json, os, pathlib, sys, time

    folder, notes, options = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
    rank = int(os.environ["RANK"])
    if "clock_s" in options and rank == 1:  # of the whole process, before it is recorded
        wall_time = time.time
        time.time = lambda: wall_time() * (1 + 50e-6) + options["clock_s"]

    if "hostname" in options:
        import socket
        socket.gethostname = lambda: options["hostname"]

    import tachograph as tacho

    if "max_rank_files" in options:
        from tachograph.recorder import _host_files, _rank_files
        _host_files.MAX_RANK_FILES = options["max_rank_files"]
        _host_files._SOCKETS = options["sockets"]
        _host_files._MIN_BEAT_S = 0.2
        # Ranks of a host that start, work or end much later than the one that writes their file.
        _rank_files._HOST_WAIT_S = _host_files._STALLED_S = 240.0
        usual = _host_files._LAST_WAIT_S, _host_files._RUNNING_S
        _host_files._LAST_WAIT_S, _host_files._RUNNING_S = 120.0, 30.0

    def note(step):
        if (notes / "impatient").exists():
            _host_files._STALLED_S = 1.0
            _host_files._LAST_WAIT_S, _host_files._RUNNING_S = usual
        (notes / f"next-{rank}").write_text(str(step))
        os.replace(notes / f"next-{rank}", notes / f"step-{rank}")

    def has_arrived(other):
        path = notes / f"step-{other}"
        return path.exists() and int(path.read_text()) >= step

    def wait_for_all():  # as a collective does; others may have seen the end of the job before this step
        while not ((notes / "stop").exists() or all(map(has_arrived, range(int(os.environ["WORLD_SIZE"]))))):
            time.sleep(0.01)

    run = tacho.init(options.get("name", "job"), log_dir=folder, flush_interval_s=0.05, console=False,
                     system_interval_s=0, exit_timeout_s=120, rules=options.get("rules"))
    if options.get("fork") and rank == 1:
        child = os.fork()
        if child == 0:
            run.event("tick", number=-1)
            time.sleep(3600)
    num_events, step = 0, 0
    with tacho.training_loop(train_iterations_start=0):
        while not (notes / "stop").exists():
            with tacho.training_iteration():
                with tacho.data_loading():
                    while [rank, step] == options.get("stuck_at") and not (notes / "stop").exists():
                        time.sleep(0.05)
                with tacho.forward():
                    time.sleep(0.01)
                note(step)
                if options.get("meets"):
                    with tacho.backward():
                        wait_for_all()
            run.event("tick", number=num_events)
            num_events += 1
            step += 1
            if rank == options.get("leaves_at", [-1, 0])[0] and step == options["leaves_at"][1]:
                break
    if options.get("leaves_at") and not (notes / "stop").exists():
        while not (notes / "stop").exists():  # it waits elsewhere, as if its data had ended
            time.sleep(0.05)
    run.finish()
    if options.get("fork") and rank == 1:
        os.kill(child, 9)
    print(num_events, flush=True)
"""


class Job:
    """The processes of a job."""

    def __init__(self, script: Callable[..., Script], logs: Path, notes: Path) -> None:
        self._script, self.logs, self.notes = script, logs, notes
        self.programs: dict[int, Script] = {}
        self.folder = RunFolder(logs / "job")
        self._environment: dict[str, str] = {}
        notes.mkdir(exist_ok=True)

    def start(self, ranks: range | list[int], world_size: int, **options: Any) -> None:
        """Start some ranks; the first call decides about the address of the job."""
        self._environment = self._environment or {"MASTER_ADDR": "localhost", "MASTER_PORT": str(reserve_port())}
        for rank in ranks:
            env = {**self._environment, "WORLD_SIZE": str(world_size), "RANK": str(rank), **options.get("env", {})}
            self.programs[rank] = self._script(PROGRAM, self.logs, self.notes, json.dumps(options), env=env)

    def step(self, rank: int) -> int:
        try:
            return int((self.notes / f"step-{rank}").read_text())
        except FileNotFoundError:
            return -1

    def train(self, num_steps: int = 20) -> None:
        """Wait until all ranks have trained so many more steps."""
        before = {rank: self.step(rank) for rank in self.programs}
        wait_for(lambda: all(self.step(rank) >= step + num_steps for rank, step in before.items()), "the steps")

    def stop(self) -> dict[int, int]:
        """Let all ranks end; return the number of events that each one has recorded."""
        (self.notes / "stop").touch()
        return {rank: int(program.ok()) for rank, program in self.programs.items()}

    def describe(self) -> str:
        """Return what is known about each rank, for the message of a failure."""
        states = [f"rank {rank}: {program.process.poll()}" for rank, program in self.programs.items()]
        others = [record for record in self.journal(0) if record.get("name") != "tick"][-8:]
        beats = [path.read_text() for path in sorted(self.folder.path.rglob("*heartbeat*.json"))]
        return "\n".join([*states, *beats, *map(str, read_ranks(self.folder)), *map(str, others)])

    def journal(self, rank: int) -> list[dict[str, Any]]:
        path = self.folder.rank_journal(rank) if rank else self.folder.journal
        return whole_lines(path) if path.exists() else []

    def ticks(self, rank: int) -> list[int]:
        return [record["number"] for record in self.journal(rank) if record.get("name") == "tick"]

    def wait_for_journals(self, ranks: range | list[int]) -> None:
        wait_for(lambda: all(self.ticks(rank) for rank in ranks), "the journals of all ranks")

    def alerts(self, rule: str) -> list[dict[str, Any]]:
        return [record for record in self.journal(0) if record["event"] == "alert" and record["rule"] == rule]

    def hang_alert(self, step: int) -> dict[str, Any] | None:
        """Return the alert about the step in which the job hangs for good.

        A busy machine may also stop the job before that, for longer than the limit; then it continues.
        """
        alerts = self.alerts("rank_hang")
        is_last = bool(alerts) and alerts[-1]["status"] == "opened" and alerts[-1]["evidence"]["step"] == step
        return alerts[-1] if is_last else None


@pytest.fixture
def job(script: Callable[..., Script], logs: Path, tmp_path: Path) -> Job:
    return Job(script, logs, tmp_path / "notes")


def mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk_job(script: Callable[..., Script], tmp_path: Path) -> Iterator[Job]:
    """A job whose log folder is a file system of its own, of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", folder)
    yield Job(script, folder, tmp_path / "notes")
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_job_survives_a_folder_that_is_read_only_full_or_lost(disk_job: Job) -> None:
    job = disk_job
    job.start([0], 3)
    wait_for(job.folder.journal.exists, "the run")
    job.folder.ranks.mkdir()
    mount("--bind", job.folder.ranks, job.folder.ranks)
    mount("-o", "remount,bind,ro", job.folder.ranks)
    job.start([1, 2], 3)
    job.train()
    assert not list(job.folder.ranks.iterdir())
    subprocess.run(["umount", str(job.folder.ranks)], check=True)
    job.wait_for_journals([0, 1, 2])
    # Full.
    ballast = job.logs / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    job.train(100)
    ballast.unlink()
    # One file is deleted, then the folder of all ranks.
    last_ticks = [job.ticks(rank)[-1] for rank in range(3)]
    job.folder.rank_journal(2).unlink()
    wait_for(lambda: job.ticks(2) and job.ticks(2)[-1] > last_ticks[2] + 50, "the restored journal")
    shutil.rmtree(job.folder.ranks)
    job.train()
    num_events = job.stop()
    for rank in range(3):
        lost = sum(record["num_records"] for record in job.journal(rank) if record.get("kind") == "records_lost")
        assert len(job.ticks(rank)) + lost >= num_events[rank]
        assert job.ticks(rank)[-1] == num_events[rank] - 1
    assert [str(view.state) for view in read_ranks(job.folder)] == ["finished"] * 3


def test_job_survives_a_log_folder_that_is_gone_and_back(disk_job: Job) -> None:
    job = disk_job
    job.start(range(2), 2)
    job.wait_for_journals([0, 1])
    mount("-t", "tmpfs", "-o", "size=1m,mode=000", "tmpfs", job.logs)  # as a mount that was lost
    job.train(100)
    subprocess.run(["umount", "-l", str(job.logs)], check=True)
    num_back = {rank: job.step(rank) for rank in range(2)}
    wait_for(lambda: all((job.ticks(rank) or [0])[-1] > num_back[rank] for rank in range(2)), "the journals")
    num_events = job.stop()
    assert [job.ticks(rank)[-1] + 1 for rank in range(2)] == [num_events[0], num_events[1]]
    assert [str(view.state) for view in read_ranks(job.folder)] == ["finished"] * 2


def test_missing_late_forked_and_wrongly_timed_ranks(job: Job) -> None:
    """Of five ranks, one is not recorded, one starts late, one forks, and the clock of one is wrong."""
    job.start(range(3), 5, clock_s=3600.0, fork=True)
    job.wait_for_journals([0, 1, 2])
    job.train(50)
    job.start([3], 5)
    job.wait_for_journals([3])
    job.train(50)
    num_events = job.stop()
    # Nothing that the forked child did reaches the journal of its parent.
    assert [job.ticks(rank) for rank in range(4)] == [list(range(num_events[rank])) for rank in range(4)]
    views = read_ranks(job.folder)
    assert [(view.rank, str(view.state)) for view in views] == [(rank, "finished") for rank in range(4)]
    serious = {alert.rule for alert in diagnose("job", log_dir=job.logs).alerts if alert.severity != "info"}
    assert not serious & {"straggler", "rank_gone", "rank_hang", "slow_communication"}, serious


def test_restart_that_renumbers_ranks_continues_their_files(job: Job) -> None:
    job.start(range(3), 3, env={"TORCHELASTIC_RESTART_COUNT": "0"})
    job.wait_for_journals([0, 1, 2])
    for program in job.programs.values():
        os.kill(program.process.pid, signal.SIGKILL)
        program.process.wait(HANG_S)
    # The processes have other numbers, and there is one less.
    job.start(range(2), 2, env={"TORCHELASTIC_RESTART_COUNT": "1"}, name="again")
    del job.programs[2]
    job.folder = RunFolder(job.logs / "again")
    job.wait_for_journals([0, 1])
    job.stop()
    assert [str(view.state) for view in read_ranks(job.folder)] == ["finished"] * 2
    assert [str(view.state) for view in read("job", job.logs).ranks] == ["crashed"] * 3


def test_two_jobs_in_one_folder_are_kept_apart(script: Callable[..., Script], logs: Path, tmp_path: Path) -> None:
    jobs = [Job(script, logs, tmp_path / name) for name in ("one", "two")]
    for job, name in zip(jobs, ("one", "two"), strict=True):
        job.folder = RunFolder(logs / name)
        job.start(range(2), 2, name=name)
    for job in jobs:
        job.wait_for_journals([0, 1])
    num_events = [job.stop() for job in jobs]
    assert [len(job.ticks(1)) for job in jobs] == [events[1] for events in num_events]
    assert sorted(path.name for path in logs.iterdir() if not path.name.startswith(".")) == ["one", "two"]


def test_rank_that_leaves_the_loop_is_the_one_that_has_not_arrived(job: Job) -> None:
    # Longer than the two seconds between heartbeats, which state what each rank does.
    limits = {"least_s": 6.0, "first_step_s": 600, "times_longest": 1.5}
    job.start(range(3), 3, meets=True, leaves_at=[2, 30], rules={"rank_hang": limits})
    wait_for(lambda: job.step(1) == 30, "the last step")
    try:
        alert = wait_for(lambda: job.hang_alert(30), "the alert")
    except AssertionError:
        raise AssertionError(job.describe()) from None
    assert alert["title"].startswith("Rank 2 "), alert["title"]
    assert "2 ranks wait in backward" in alert["title"], alert["title"]
    wait_for(lambda: sum(len(group.ranks) for group in read_stacks(job.folder)) == 3, "the stacks of all ranks")
    for program in job.programs.values():
        program.process.kill()


def test_stopped_rank_has_fallen_silent(job: Job) -> None:
    job.start(range(3), 3, meets=True)
    job.wait_for_journals([0, 1, 2])
    job.train(20)
    os.kill(job.programs[1].process.pid, signal.SIGSTOP)
    (alert,) = wait_for(
        lambda: [alert for alert in job.alerts("rank_gone") if alert["status"] == "opened"], "the alert"
    )
    assert alert["title"].startswith("Rank 1 (")
    assert "has fallen silent" in alert["title"]
    # Heartbeats stopped at most 20 s before, so it is named within 30 s, whatever the speed of this machine.
    os.kill(job.programs[1].process.pid, signal.SIGCONT)
    resolved = wait_for(
        lambda: [alert for alert in job.alerts("rank_gone") if alert["status"] == "resolved"], "its end"
    )
    assert resolved[0]["outcome"] == "all ranks are back"
    job.train(20)
    job.stop()


def test_torn_empty_and_missing_files_of_ranks_are_read(tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    folder = RunFolder(tmp_path / "job")
    num_windows = len(whole_lines(folder.rank_journal(1))) - 2
    torn = folder.rank_journal(1).read_bytes()
    folder.rank_journal(1).write_bytes(torn[: torn.rindex(b'{"event":"end"') + 9])
    folder.rank_journal(2).write_bytes(b"")
    folder.rank_journal(3).unlink()
    folder.rank_journal(5).write_bytes(b"\x00\xff garbage\n" + folder.rank_journal(5).read_bytes())
    views = {view.rank: view for view in read_ranks(folder)}
    assert sorted(views) == [0, 1, 2, 4, 5]
    assert (str(views[1].state), views[1].num_iterations) == ("stale", 16 * num_windows)
    assert (str(views[2].state), views[2].num_iterations) == ("stale", None)
    assert str(views[5].state) == "finished"
    heat = read_rank_heat(folder)
    assert heat is not None and heat.ranks == [0, 1, 2, 4, 5]
    assert diagnose(folder.path).num_records > 0
    assert len(views) < NUM_RANKS
