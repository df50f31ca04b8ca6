"""Large jobs: one journal and one heartbeat per host, whose ranks are the same to every reader.

The limit of 64 ranks is set to three, and two hosts are two names of one machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tachograph import diagnose
from tachograph._base.clock import SystemClock
from tachograph.journal import Heartbeat, RankHeartbeats, RunFolder, mark_rank, this_process
from tachograph.reader import read_rank_heat, read_ranks, read_stacks
from tachograph.recorder import _host_files
from tachograph.recorder._host_files import HostChannel, HostFile, HostLostError
from tests.conftest import Script, wait_for, whole_lines
from tests.ranks.test_survival import Job
from tests.ranks.written_job import NUM_RANKS, write_job

JOB = "job-1"


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path: the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def job(script: Callable[..., Script], logs: Path, tmp_path: Path) -> Job:
    return Job(script, logs, tmp_path / "notes")


def start_hosts(job: Job, sockets: Path, **options: Any) -> None:
    """Start six ranks, three on each of two hosts."""
    for rank in range(6):
        host = {"hostname": f"node{rank // 3}", "env": {"LOCAL_RANK": str(rank % 3), "MASTER_ADDR": "node0"}}
        job.start([rank], 6, max_rank_files=3, sockets=str(sockets), **host, **options)


def names(job: Job) -> list[str]:
    return sorted(path.name for path in job.folder.ranks.glob("*.jsonl"))


def ticks_of_host(job: Job, number: int) -> dict[int, list[int]]:
    ticks: dict[int, list[int]] = {}
    for record in whole_lines(job.folder.host_journal(number)):
        if record.get("name") == "tick":
            ticks.setdefault(record["from_rank"], []).append(record["number"])
    return ticks


def test_large_job_has_one_file_per_host(job: Job, sockets: Path) -> None:
    start_hosts(job, sockets)
    wait_for(lambda: [str(view.state) for view in read_ranks(job.folder)] == ["running"] * 6, "the ranks")
    wait_for(lambda: any(view.location for view in read_ranks(job.folder)[3:]), "their activities")
    assert len(list(sockets.glob("*/*.sock"))) == 2
    job.train(40)
    num_events = job.stop()
    assert names(job) == ["host-00000.jsonl", "host-00003.jsonl"]
    ticks = {**ticks_of_host(job, 0), **ticks_of_host(job, 3)}
    assert ticks == {rank: list(range(num_events[rank])) for rank in range(1, 6)}
    heartbeats = {path.name for path in (job.folder.private / "ranks").glob("*.json") if path != job.folder.rank_map}
    assert heartbeats == {"host-00000.json", "host-00003.json"}
    views = read_ranks(job.folder)
    assert [(view.rank, str(view.state), view.local_rank) for view in views[1:]] == [
        (rank, "finished", rank % 3) for rank in range(1, 6)
    ]
    assert {view.host for view in views} == {"node0", "node1"}
    heat = read_rank_heat(job.folder)
    assert heat is not None and heat.ranks == [*range(6)]
    assert not diagnose("job", log_dir=job.logs).failed_ranks
    assert not list(sockets.glob("*/*.sock"))


@pytest.mark.parametrize("stuck", [3, 4])  # the rank that writes the file of its host, and another one
def test_hang_is_judged_by_the_files_of_hosts(job: Job, sockets: Path, stuck: int) -> None:
    # Longer than the seconds that the activity of a rank takes to reach rank 0.
    limits = {"least_s": 5.0, "first_step_s": 600.0, "times_longest": 1.5}
    start_hosts(job, sockets, meets=True, stuck_at=[stuck, 30], rules={"rank_hang": limits})

    alert = wait_for(lambda: job.hang_alert(30), "the alert")
    assert alert["title"].startswith(f"Rank {stuck} (node1) has not arrived: "), alert["title"]
    assert alert["title"].endswith("; 5 ranks wait in backward")
    assert alert["evidence"]["ranks"] == [stuck]

    def stacks() -> dict[int, str]:  # the program of each rank is another file
        return {rank: "".join(group.lines) for group in read_stacks(job.folder) for rank in group.ranks}

    wait_for(lambda: len(stacks()) == 6 and "time.sleep(0.05)" in stacks()[stuck], "the stacks of all ranks")
    wait_for(lambda: sum("in wait_for_all" in text for text in stacks().values()) == 5, "the stacks of waiting ranks")
    view = read_ranks(job.folder)[stuck]
    assert (str(view.state), view.num_iterations) == ("running", 30)
    assert view.phase_since is not None and view.location is not None
    assert names(job) == ["host-00000.jsonl", "host-00003.jsonl"]
    job.stop()


def test_ranks_outlive_the_one_that_writes_their_file(job: Job, sockets: Path) -> None:
    start_hosts(job, sockets)
    wait_for(lambda: len(ticks_of_host(job, 3)) == 3 if job.folder.host_journal(3).exists() else False, "the file")
    os.kill(job.programs[3].process.pid, signal.SIGKILL)
    job.programs.pop(3).process.wait()
    wait_for(lambda: names(job)[:2] == ["00004.jsonl", "00005.jsonl"], "files of their own")
    job.train()
    num_events = job.stop()
    in_host = ticks_of_host(job, 3)
    for rank in (4, 5):
        first, *_ = whole_lines(job.folder.rank_journal(rank))
        assert (first["event"], first["rank"]) == ("start", rank)
        ticks = [*in_host[rank], *job.ticks(rank)]
        assert ticks == sorted(ticks) and ticks[-1] == num_events[rank] - 1
        assert len(ticks) >= num_events[rank] - 200  # the killed process had not written them yet
    states = {view.rank: str(view.state) for view in read_ranks(job.folder)}
    assert states.pop(3) == "crashed"
    assert states == dict.fromkeys((0, 1, 2, 4, 5), "finished")
    assert len(read_ranks(job.folder)) == 6


def test_stopped_writer_of_a_host_does_not_stop_the_others(job: Job, sockets: Path) -> None:
    start_hosts(job, sockets)
    wait_for(lambda: len(ticks_of_host(job, 3)) == 3 if job.folder.host_journal(3).exists() else False, "the file")
    (job.notes / "impatient").touch()
    os.kill(job.programs[3].process.pid, signal.SIGSTOP)
    wait_for(lambda: names(job)[:2] == ["00004.jsonl", "00005.jsonl"], "files of their own")
    job.train(0)
    os.kill(job.programs[3].process.pid, signal.SIGCONT)
    num_events = job.stop()
    for rank in (4, 5):
        ticks = [*ticks_of_host(job, 3)[rank], *job.ticks(rank)]
        lost = sum(
            record["num_records"]
            for record in [*whole_lines(job.folder.rank_journal(rank)), *whole_lines(job.folder.host_journal(3))]
            if record.get("kind") == "records_lost" and record.get("from_rank", rank) == rank
        )
        assert len(set(ticks)) + lost >= num_events[rank]
        assert ticks[-1] == num_events[rank] - 1


def test_forked_worker_does_not_keep_the_socket(job: Job, sockets: Path) -> None:
    for rank in range(4):
        job.start([rank], 4, max_rank_files=3, sockets=str(sockets), env={"LOCAL_RANK": str(rank)}, fork=rank == 1)
    wait_for(lambda: len(ticks_of_host(job, 0)) == 3, "all ranks in the file")
    job.train(40)
    num_events = job.stop()
    assert names(job) == ["host-00000.jsonl"]
    assert ticks_of_host(job, 0) == {rank: list(range(num_events[rank])) for rank in (1, 2, 3)}


# One process --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def host(folder: RunFolder) -> Iterator[HostFile]:
    host = HostFile(folder, 8, JOB, 16)
    yield host
    with contextlib.suppress(OSError):
        host.close()


def beat(job: str = JOB) -> Heartbeat:
    return Heartbeat(run_id="", process=this_process(), time=SystemClock().wall_s(), uptime_s=1.0, job=job)


def line(number: int, size: int = 0) -> bytes:
    return b'{"event":"event","time":1.0,"number":%d,"text":"%s"}\n' % (number, b"x" * size)


def send(folder: RunFolder, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, _host_files._socket_path(folder, JOB))


def test_invalid_messages_are_ignored(folder: RunFolder, host: HostFile) -> None:
    def message(rank: int, lines: bytes, heartbeat: Heartbeat | None = None) -> bytes:
        return msgspec.json.encode({"rank": rank, "heartbeat": heartbeat}) + b"\n" + lines

    for data in (
        b"\xff\x00",
        b"[" * 50_000,
        message(9, mark_rank(line(1), 9)),  # nothing is known about it yet
        message(9, b"", beat("another job")),
        message(16, b"", beat()),
        message(-1, b"", beat()),
        message(9, mark_rank(line(2), 10), beat()),
        message(9, line(3)),
        message(9, mark_rank(line(4), 9)[:-1]),
        message(9, mark_rank(line(5, 100_000), 9)),
    ):
        send(folder, data)
    send(folder, message(9, mark_rank(line(6), 9)))
    num_dropped = 0

    def has_last() -> bool:
        nonlocal num_dropped
        num_dropped += host.append()
        return b'"number":6' in folder.host_journal(8).read_bytes()

    wait_for(has_last, "the last line")
    assert [record["number"] for record in whole_lines(folder.host_journal(8))] == [6]
    assert num_dropped == 2  # whole lines of a rank that was known
    host.append()
    assert RankHeartbeats(folder).ranks == [9]


def test_attempts_in_both_kinds_of_files_are_one_rank(tmp_path: Path) -> None:
    write_job(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = read_ranks(folder)
    first = folder.rank_journal(4).read_bytes()
    second = first.replace(b'"time":', b'"time":1').replace(b"finished", b"failed")  # later
    lines = [mark_rank(second.replace(b'"rank":4', b'"rank":%d' % rank), rank) for rank in (4, 5)]
    folder.host_journal(4).write_bytes(b"".join(lines) + b'{"event":"rank","from_rank":9,"torn')
    views = read_ranks(folder)
    assert [view.rank for view in views] == [view.rank for view in before] == [*range(NUM_RANKS)]
    assert [str(view.state) for view in views[4:]] == ["failed", "failed"]
    heat = read_rank_heat(folder)
    assert heat is not None and heat.ranks == [*range(NUM_RANKS)]
    folder.rank_journal(5).unlink()
    folder.rank_journal(4).unlink()
    assert [view.rank for view in read_ranks(folder)] == [*range(NUM_RANKS)]


def test_full_socket_drops_and_counts(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host_files, "_MAX_UNSENT_BYTES", 10_000)
    monkeypatch.setattr(_host_files._Receiver, "_receive", lambda self, listener: time.sleep(0))
    host = HostFile(folder, 8, JOB, 16)
    channel = HostChannel(folder, 9, JOB)
    channel.beat(beat())
    num_dropped = sum(channel.append(line(number, 1_000)) for number in range(2_000))
    assert num_dropped > 1_000
    assert 0 < len(channel.pending) <= 10_000
    host.close()
    with pytest.raises(HostLostError):
        channel.append(line(3_000))
    unsent = channel.unsent_lines
    assert b"from_rank" not in unsent and unsent.endswith(line(3_000))
    channel.abandon()


def test_channel_without_news_is_not_lost(folder: RunFolder, host: HostFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host_files, "_STALLED_S", 0.0)
    channel = HostChannel(folder, 9, JOB)
    channel.beat(beat())
    time.sleep(0.01)  # such as a rank that is compiled or stopped meanwhile
    channel.check()
    channel.close()


def test_long_line_goes_to_a_file_of_its_own(folder: RunFolder, host: HostFile) -> None:
    channel = HostChannel(folder, 9, JOB)
    channel.beat(beat())
    with pytest.raises(HostLostError):
        channel.append(line(1, 10_000_000))
    assert channel.unsent_lines == line(1, 10_000_000)
    channel.abandon()


def test_socket_is_private_and_left_by_nobody(
    folder: RunFolder, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_host_files, "_SOCKETS", str(sockets))
    private = sockets / f"tachograph-{os.geteuid()}"
    host = HostFile(folder, 8, JOB, 16)
    assert private.stat().st_mode & 0o777 == 0o700
    child = os.fork()
    if child == 0:
        host.abandon()
        time.sleep(60)
        os._exit(0)
    channel = HostChannel(folder, 9, JOB)
    second = HostFile(folder, 12, JOB, 16)  # another host by its ranks, but on this machine: it has no socket
    second.close()
    assert len(list(private.iterdir())) == 1
    host.close()
    with pytest.raises(HostLostError):
        channel.beat(beat())
    channel.abandon()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not list(private.iterdir())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(private / "killed.sock"))
    HostFile(folder, 8, JOB, 16).close()
    assert not list(private.iterdir())
    private.chmod(0o755)
    with pytest.raises(OSError, match="private"):
        HostChannel(folder, 9, JOB)
    HostFile(folder, 8, JOB, 16).close()
    assert not list(private.iterdir())
