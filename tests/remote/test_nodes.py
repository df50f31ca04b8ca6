"""Machines without rank 0: how the server finds the run of their job, and what it lets them read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tachograph._base.files import replace_file
from tachograph.journal import (
    Heartbeat,
    NodeFacts,
    RankHeartbeats,
    RunFolder,
    node_file_number,
    open_node_folder,
    this_process,
    uptime_s,
)
from tachograph.remote import Connection, NodeSender, parse_server
from tests.conftest import wait_for
from tests.remote.conftest import Team, send_all

MakeRun = Callable[..., RunFolder]
JOB = "torchrun:node1:29500"


def beat_of(job: str = JOB) -> Heartbeat:
    return Heartbeat("", this_process(), time.time(), uptime_s(), job=job, iteration=7, phase="forward")


def start_rank_0(team: Team, folder: RunFolder, job: str = JOB) -> None:
    """Register a run that rank 0 of a job records."""
    folder.private.mkdir(exist_ok=True)
    heartbeat = msgspec.structs.replace(beat_of(job), run_id="0123456789abcdef")
    replace_file(folder.heartbeat, msgspec.json.encode(heartbeat), below=folder.path)
    send_all(team.sender(folder))


@pytest.fixture
def make_node(team: Team, tmp_path: Path) -> Callable[..., NodeSender]:
    """Return a function that writes the file of rank 2 on another machine, and returns its sender."""

    def make(name: str = "run", job: str = JOB, started_at: float | None = None, token: str = "") -> NodeSender:
        now_s = time.time()
        folder = open_node_folder(str(tmp_path / "node"), NodeFacts(job, name, started_at or now_s - 1.0))
        folder.ranks.mkdir(exist_ok=True)
        path = folder.host_journal(node_file_number(job, this_process(), 2))
        path.write_text('{"event":"start","from_rank":2,"time":1.0,"rank":2}\n')
        folder.rank_heartbeat(2).parent.mkdir(exist_ok=True)
        replace_file(folder.rank_heartbeat(2), msgspec.json.encode(beat_of(job)), below=folder.path)
        key = token or team.token("write")
        connection = Connection(parse_server(team.url), lambda: key)
        team.connections.append(connection)
        return NodeSender(folder, connection, lambda *report: None)

    return make


def test_ranks_of_other_machine_reach_server_and_rank_0(team: Team, make_run: MakeRun, make_node) -> None:
    folder = make_run(ends=False)
    node = make_node()
    node.poll(flush=True)  # before rank 0 has registered the run
    assert "no run of the job" in node.state.error
    start_rank_0(team, folder)
    send_all(node)
    assert node.state.run == "default/run"
    (path,) = (team.data_dir / "default" / "run" / "ranks").iterdir()
    assert path.read_bytes() == (node.folder.ranks / path.name).read_bytes()
    sender = team.sender(folder)
    send_all(sender)
    assert (folder.ranks / path.name).read_bytes() == path.read_bytes()
    heartbeat = RankHeartbeats(folder).get(2)
    assert heartbeat is not None
    assert heartbeat.process.at_home == this_process() != heartbeat.process
    assert (heartbeat.iteration, heartbeat.phase, heartbeat.is_gone) == (7, "forward", False)
    # Nothing goes back: the server has one copy, and the heartbeat does not seem to come from this machine.
    assert sender._running_ranks() == {}
    assert sender.state.have.keys() == {"0"}
    # Heartbeats that came long ago say nothing about the ranks.
    assert RankHeartbeats(folder, max_relayed_age_s=-1.0).ranks == []


@pytest.mark.parametrize(
    ("name", "job", "token", "expected"),
    [
        ("run", "another job", "", "no run of the job"),
        ("other", JOB, "", "no run of the job"),
        ("", JOB, "", ""),
        ("run", JOB, "stranger", "no run of the job"),
    ],
)
def test_run_is_found_by_job_name_and_key(
    team: Team, make_run: MakeRun, make_node, name: str, job: str, token: str, expected: str
) -> None:
    start_rank_0(team, make_run(ends=False))
    node = make_node(name, job, token=team.token("write", name=token) if token else "")
    node.poll(flush=True)
    assert expected in node.state.error
    assert bool(node.state.error) is bool(expected)


def test_run_that_ended_before_is_not_joined(team: Team, make_run: MakeRun, make_node) -> None:
    start_rank_0(team, make_run())
    node = make_node(started_at=time.time() + 3_600)  # so it has started after the last beat
    time_of_beat = time.time()
    wait_for(lambda: time.time() > time_of_beat)
    node.poll(flush=True)
    assert "no run of the job" in node.state.error


def test_two_running_jobs_with_one_id_are_ambiguous(team: Team, make_run: MakeRun, make_node) -> None:
    for number in (1, 2):
        folder = make_run(f"run-{number}", run_id=f"{number}123456789abcdef", ends=False)
        folder.private.mkdir(exist_ok=True)
        heartbeat = msgspec.structs.replace(beat_of(), run_id=f"{number}123456789abcdef")
        replace_file(folder.heartbeat, msgspec.json.encode(heartbeat), below=folder.path)
        send_all(team.sender(folder))
    node = make_node("run")
    node.poll(flush=True)
    assert "2 runs belong to jobs with the same id" in node.state.error
    (node.folder.private / "node.json").write_bytes(msgspec.json.encode(NodeFacts(JOB, "run-2", time.time() - 1.0)))
    send_all(node)
    assert node.state.run == "default/run-2"


def test_key_reads_only_journals_of_other_machines(team: Team, make_run: MakeRun, make_node) -> None:
    start_rank_0(team, make_run(ends=False))
    node = make_node()
    send_all(node)
    (path,) = node.folder.ranks.iterdir()
    url = "/api/v1/ingest/runs/0123456789abcdef/journal"
    number = path.stem.removeprefix("host-")
    answers = {
        key: team.client.get(f"{url}/{key}?offset=0", headers=team.headers("write", name=name))
        for key, name in ((f"host-{number}", "write"), ("0", "write"), ("1", "write"), (f"host-{number} ", "write"))
    }
    assert [answer.status_code for answer in answers.values()] == [200, 400, 400, 400]
    assert answers[f"host-{number}"].content == path.read_bytes()
    stranger = team.client.get(f"{url}/host-{number}?offset=0", headers=team.headers("write", name="stranger"))
    assert stranger.status_code == 403
    missing = team.client.get(f"{url}/host-999999999?offset=0", headers=team.headers("write"))
    assert (missing.status_code, missing.content) == (200, b"")
    assert [file.name for file in (team.data_dir / "default" / "run" / "ranks").iterdir()] == [path.name]
