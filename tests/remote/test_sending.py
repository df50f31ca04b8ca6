"""A sender and a server: what arrives is what was written, through every kind of trouble."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tachograph.journal import (
    RunFolder,
    compress_journal,
    lock_run_folder,
    mark_rank,
    read_heartbeat,
    read_requests,
    write_requests,
)
from tachograph.reader import read_ranks
from tachograph.remote import hash_bytes, read_send_state
from tachograph.server.team import KeyUsage
from tests.conftest import HANG_S, Script, reserve_port, wait_for, whole_lines
from tests.remote.conftest import Team, send_all
from tests.store import append, lines, step

MakeRun = Callable[..., RunFolder]


def test_run_arrives_byte_for_byte(team: Team, make_run: MakeRun):
    folder = make_run(num_steps=20_000)
    folder.ranks.mkdir()
    folder.rank_journal(3).write_bytes(lines([step(1), step(2)]))
    sender = team.sender(folder)
    send_all(sender)
    copy = team.copy_of(sender)
    assert copy.journal.read_bytes() == folder.journal.read_bytes()
    assert copy.rank_journal(3).read_bytes() == folder.rank_journal(3).read_bytes()
    assert sender.state.run == "default/run"
    assert sender.reports == []
    table = team.client.get("/api/v1/runs", headers=team.headers("read")).json()
    assert [run["name"] for run in table["runs"]] == ["default/run"]


def test_journals_of_hosts_arrive_with_their_ranks(team: Team, make_run: MakeRun):
    folder = make_run()
    folder.ranks.mkdir()
    start = b'{"event":"start","time":1.0,"rank":%d}\n'
    folder.host_journal(4).write_bytes(b"".join(mark_rank(start % rank, rank) for rank in (4, 5)))
    folder.rank_journal(4).write_bytes(start % 4)
    sender = team.sender(folder)
    send_all(sender)
    copy = team.copy_of(sender)
    assert copy.host_journal(4).read_bytes() == folder.host_journal(4).read_bytes()
    assert copy.rank_journal(4).read_bytes() == folder.rank_journal(4).read_bytes()
    assert [view.rank for view in read_ranks(copy)] == [0, 4, 5]
    send_all(team.sender(folder))  # another client
    assert sender.state.have["host-4"] == folder.host_journal(4).stat().st_size


def test_journal_of_rank_0_is_the_one_of_the_run(team: Team, make_run: MakeRun):
    folder = make_run()
    folder.ranks.mkdir()
    folder.rank_journal(0).write_bytes(lines([step(1)]))  # not a file that a recorder writes
    sender = team.sender(folder)
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()


def test_ranks_that_run_are_running_on_the_server(team: Team, logs: Path, script: Callable[..., Script]):
    source = """
        import sys, time
        import tachograph as tacho
        run = tacho.init("job", log_dir=sys.argv[1], console=False, flush_interval_s=0.05)
        run.log({"loss": 1.0}, step=0)
        print("started", flush=True)
        sys.stdin.readline()
    """
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(reserve_port())}
    programs = [script(source, logs, env={**job, "RANK": str(rank)}, preload="tachograph") for rank in range(3)]
    folder = RunFolder(logs / "job")
    wait_for(lambda: [view.state for view in read_ranks(folder)] == ["running"] * 3)
    wait_for(lambda: whole_lines(folder.rank_journal(2)))  # its heartbeat comes before its first record
    programs[2].process.kill()
    programs[2].process.wait(HANG_S)
    sender = team.sender(folder)
    send_all(sender)
    copy = team.copy_of(sender)
    wait_for(lambda: sender.poll(flush=True) is not None and len(read_ranks(copy)) == 3)
    sender._send_beat()
    views = read_ranks(copy)
    # Here the server runs on the same machine; elsewhere it only knows that it receives nothing from a rank.
    assert [str(view.state) for view in views] == ["running", "running", "crashed"]
    heartbeats = [read_heartbeat(copy.rank_heartbeat(rank)) for rank in (1, 2)]
    assert [heartbeat is None for heartbeat in heartbeats] == [False, True]
    assert views[1].host == read_ranks(folder)[1].host
    page = team.client.get("/api/v1/runs/default%2Fjob/ranks", headers=team.headers("read")).json()
    assert page["num_by_state"] == {"running": 2, "crashed": 1}
    for program in programs[:2]:
        program.process.communicate("\n", timeout=HANG_S)
    sender.close()


def test_sent_state_tells_what_is_left(team: Team, make_run: MakeRun):
    folder = make_run()
    send_all(team.sender(folder))
    state = read_send_state(folder)
    assert state is not None
    assert (state.run, state.error, state.server) == ("default/run", "", team.url)
    assert state.have == {"0": folder.journal.stat().st_size}


def test_growing_run_is_continued(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    sender = team.sender(folder)
    for number in range(10, 20):
        append(folder, [step(number)])
        send_all(sender)
    with open(folder.journal, "ab") as file:
        file.write(b'{"event": "st')
    send_all(sender)
    assert folder.journal.read_bytes() == team.copy_of(sender).journal.read_bytes() + b'{"event": "st'


def test_compressed_journal_is_sent(team: Team, make_run: MakeRun):
    folder = make_run(num_steps=20_000)
    data = folder.journal.read_bytes()
    compress_journal(folder.journal, below=folder.path, publishing=lambda: lock_run_folder(folder))
    sender = team.sender(folder)
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == data


def test_second_client_sends_nothing_twice(team: Team, make_run: MakeRun):
    folder = make_run(num_steps=5_000)
    send_all(team.sender(folder))
    shutil.rmtree(folder.private)
    sender = team.sender(folder)
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()
    metrics = team.client.get("/metrics", headers=team.headers("read")).text
    assert f"tachograph_ingest_bytes_total {folder.journal.stat().st_size}" in metrics


def test_server_that_lost_bytes_gets_them_again(team: Team, make_run: MakeRun):
    folder = make_run(num_steps=5_000, ends=False)
    sender = team.sender(folder)
    send_all(sender)
    copy = team.copy_of(sender)
    team.stop()
    data = copy.journal.read_bytes()
    copy.journal.write_bytes(data[: data.index(b"\n", len(data) // 2) + 1])
    team.start()
    append(folder, [step(6_000)])
    send_all(sender)
    assert copy.journal.read_bytes() == folder.journal.read_bytes()


def test_replaced_journal_becomes_a_second_run(team: Team, make_run: MakeRun):
    folder = make_run(num_steps=100)
    sender = team.sender(folder)
    send_all(sender)
    first = folder.journal.read_bytes()
    make_run(num_steps=50)
    send_all(sender)
    second = folder.journal.read_bytes()
    assert (team.data_dir / "default" / "run" / "metrics.jsonl").read_bytes() == first
    assert (team.data_dir / "default" / "run-2" / "metrics.jsonl").read_bytes() == second
    assert [report[0] for report in sender.reports] == ["server_diverged"]
    again = team.sender(folder)  # a new client continues the second one
    send_all(again)
    assert sorted(path.name for path in (team.data_dir / "default").iterdir()) == ["run", "run-2"]


def test_two_trainers_with_one_id_are_both_kept(team: Team, make_run: MakeRun):
    one, two = make_run("one", 100), make_run("two", 120)
    senders = [team.sender(one), team.sender(two)]
    for sender in senders:
        send_all(sender)
    kept = {path.read_bytes() for path in team.data_dir.glob("default/*/metrics.jsonl")}
    assert kept == {one.journal.read_bytes(), two.journal.read_bytes()}


def test_equal_names_of_two_trainers_get_numbers(team: Team, make_run: MakeRun, tmp_path: Path):
    one = make_run("run", run_id="a" * 16)
    two = RunFolder(shutil.copytree(make_run("other", run_id="b" * 16).path, tmp_path / "elsewhere" / "run"))
    names = []
    for folder in (one, two):
        sender = team.sender(folder)
        send_all(sender)
        names.append(sender.state.run)
    assert names == ["default/run", "default/run-2"]


def test_outage_is_reported_once_and_survived(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    sender = team.sender(folder)
    send_all(sender)
    team.stop()
    append(folder, [step(100)])
    pauses = [sender.poll(flush=True, ignore_pause=True) for _ in range(12)]
    assert all(pause > 0 for pause in pauses)
    assert 48 <= pauses[-1] <= 72
    assert [report[0] for report in sender.reports] == ["server_failed"]
    assert "cannot reach" in sender.reports[0][2]
    team.start()
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()


def test_wrong_key_is_reported_at_once(team: Team, make_run: MakeRun):
    sender = team.sender(make_run(), "tk_00000000_" + "x" * 43)
    assert sender.poll(flush=True) > 30
    assert "wrong, expired or revoked" in sender.reports[0][2]
    assert not sender.is_complete


def test_revoked_key_stops_and_a_new_one_continues(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    tokens = [team.token("write", name="ci")]
    sender = team.sender(folder, tokens[0])
    sender._connection._key = lambda: tokens[-1]  # a person logs in again
    send_all(sender)
    team.app.keys.revoke("ci")
    append(folder, [step(100)])
    sender.poll(flush=True)
    assert "revoked" in sender.state.error
    tokens.append(team.app.keys.create("ci", ["write"])[1])
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()


def test_deleted_run_is_not_sent_again(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    sender = team.sender(folder)
    send_all(sender)
    body = {"action": "trash", "runs": ["default/run"], "force": True}
    answer = team.client.post("/api/v1/bulk", json=body, headers=team.headers("admin"))
    assert answer.status_code == 200, answer.text
    append(folder, [step(100)])
    sender.poll(flush=True)
    assert sender.state.is_gone
    assert "deleted on the server" in sender.reports[0][2]
    assert not (team.data_dir / "default" / "run").exists()


def test_long_line_is_sent_whole(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    append(folder, [{"event": "event", "name": "big", "time": 1.0, "text": "x" * (3 << 20)}, step(5)])
    sender = team.sender(folder)
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()


# Other files ---------------------------------------------------------------------------------------------------------


def test_output_code_and_annotations_are_sent(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    files = {
        "output/000000000000.log": b"1.000 stdout hello\n" * 100_000,
        "code/" + "0" * 40 + ".patch": b"diff",
        "annotations/3f9a1c20.jsonl": b'{"op": "set"}\n',
        "traces/step-000001-3.json.gz": b"\x1f\x8b",
    }
    ignored = {"output/partial.log": b"x", "code/../../x": b"", "annotations/.x.jsonl": b"x", "media/x": b"x"}
    for path, data in {**files, **ignored}.items():
        target = folder.path / path
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_bytes(data)
    (folder.path / "code" / ("1" * 40)).symlink_to("/etc/passwd")
    sender = team.sender(folder)
    send_all(sender)
    copy = team.copy_of(sender)
    assert {path: (copy.path / path).read_bytes() for path in files} == files
    assert not [path for path in ignored if (copy.path / path).exists()]
    assert not (copy.path / "code" / ("1" * 40)).exists()
    with open(folder.path / "output/000000000000.log", "ab") as file:
        file.write(b"2.000 stdout more\n")
    send_all(team.sender(folder))
    assert (copy.path / "output/000000000000.log").read_bytes().endswith(b"more\n")


@pytest.mark.parametrize(
    "path",
    [
        *("metrics.jsonl", "output/../metrics.jsonl", "output/x.log", "ranks/00001.jsonl", "code/x", ".tacho/lock"),
        *("output/000000000000.log%00", "annotations/..%2f..%2fx.jsonl", "traces/.x"),
    ],
)
def test_other_files_cannot_be_written(team: Team, registered: str, path: str):
    body, headers = batch(b"x\n")
    target = registered.replace("journal/0", f"files/{path}")
    answer = team.client.put(target, content=body, headers={**headers, **team.headers("write")})
    assert answer.status_code in {400, 404}
    (copy,) = team.data_dir.glob("default/*")
    assert sorted(found.name for found in copy.rglob("*")) == [".tacho", "append.lock", "copy.json", "lock"]


# Blobs ---------------------------------------------------------------------------------------------------------------


def test_blob_is_stored_once_for_each_project(team: Team):
    data = b"\x89PNG" * 1000
    target = f"/api/v1/ingest/blobs/{hash_bytes(data)}"
    one, two = team.headers("write"), team.headers("write", name="nlp", project="nlp")
    assert team.client.head(target, headers=one).status_code == 404
    assert [team.client.put(target, content=data, headers=one).status_code for _ in range(2)] == [201, 200]
    assert team.client.head(target, headers=one).status_code == 200
    assert team.client.head(target, headers=two).status_code == 404, "other projects do not learn of it"
    assert team.client.put(target, content=data, headers=two).status_code == 201
    stored = [path for path in (team.data_dir / ".server" / "blobs").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in stored] == [data, data]


@pytest.mark.parametrize("name", ["0" * 64, "0" * 63, "A" * 64, "%2e%2e", "x%2f..%2f..%2fkeys.json"])
def test_blob_needs_the_hash_of_its_content(team: Team, name: str):
    answer = team.client.put(f"/api/v1/ingest/blobs/{name}", content=b"data", headers=team.headers("write"))
    assert answer.status_code in {400, 404}
    assert not (team.data_dir / ".server" / "blobs").exists()


# Requests back to the trainer ----------------------------------------------------------------------------------------


def test_requests_reach_the_trainer_once(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    sender = team.sender(folder, remote_control=True)
    write_requests(RunFolder(make_dir(team)), {"stop": True}, source="earlier")  # before the run was sent
    send_all(sender)
    copy = team.copy_of(sender)
    ids = write_requests(copy, {"log_every": 50}, source="mia")
    append(folder, [step(10)])
    send_all(sender)
    found = [request for request in read_requests(folder) if request.name == "log_every"]
    assert [(request.value, request.source, request.id) for request in found] == [(50, "server:mia", ids["log_every"])]
    folder.control.unlink()
    append(folder, [step(11)])
    send_all(sender)
    assert not folder.control.exists()


def make_dir(team: Team) -> Path:
    path = team.data_dir / "elsewhere"
    path.mkdir()
    return path


def test_requests_from_before_the_start_are_not_handed_over(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    send_all(team.sender(folder, remote_control=True))
    write_requests(RunFolder(team.data_dir / "default" / "run"), {"stop": True}, source="mia")
    sender = team.sender(folder, remote_control=True)
    append(folder, [step(11)])
    send_all(sender)
    assert not folder.control.exists()


def test_run_without_remote_control_ignores_requests(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    sender = team.sender(folder)
    send_all(sender)
    write_requests(team.copy_of(sender), {"stop": True}, source="mia")
    append(folder, [step(11)])
    send_all(sender)
    assert not folder.control.exists()


# The server's checks -------------------------------------------------------------------------------------------------


def batch(data: bytes, **changes: str) -> tuple[bytes, dict[str, str]]:
    headers = {
        "Content-Encoding": "gzip",
        "Tacho-Bytes": str(len(data)),
        "Tacho-Sha256": hash_bytes(data),
        "Tacho-Before": hash_bytes(b""),
    }
    return gzip.compress(data), {**headers, **changes}


@pytest.fixture
def registered(team: Team) -> str:
    answer = team.client.put(
        "/api/v1/ingest/runs/abc", json={"run_name": "x", "schema": 1}, headers=team.headers("write")
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["have"] == {}
    return "/api/v1/ingest/runs/abc/journal/0?offset=0"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"Tacho-Sha256": "0" * 64}, 400),
        ({"Tacho-Bytes": "5"}, 400),
        ({"Tacho-Bytes": "500"}, 400),
        ({"Tacho-Bytes": str(1 << 40)}, 413),
        ({"Tacho-Bytes": "-1"}, 413),
        ({"Tacho-Bytes": "000000000001" + "9" * 12}, 413),
        ({"Tacho-Bytes": "²"}, 413),
        ({"Tacho-Bytes": "0" * 11 + "1" + "0" * 12}, 413),
        ({"Tacho-Bytes": "1" * 5_000}, 413),
        ({"Tacho-Before": "0" * 64}, 412),
        ({"Content-Encoding": "br"}, 415),
        ({"Content-Encoding": "identity"}, 400),
    ],
)
def test_headers_of_a_batch_are_checked(team: Team, registered: str, changes: dict[str, str], status: int):
    body, headers = batch(lines([step(1)]), **changes)
    raw = [(name.encode(), value.encode("utf-8")) for name, value in {**headers, **team.headers("write")}.items()]
    answer = team.client.put(registered, content=body, headers=raw)
    assert answer.status_code == status
    journal = team.data_dir / "default" / "x" / "metrics.jsonl"
    assert (journal.read_bytes() if journal.exists() else b"") == (lines([step(1)]) if status == 200 else b"")


@pytest.mark.slow
def test_gzip_bomb_is_rejected_without_inflating_it(team: Team, registered: str):
    bomb = gzip.compress(b"0" * (256 << 20), 9)
    for size, status in (("1000", 400), (str(16 << 20), 400), (f"{1:012}{0:012}", 413)):
        headers = {**batch(b"x\n")[1], **team.headers("write"), "Tacho-Bytes": size}
        answer = team.client.put(registered, content=bomb, headers=headers)
        assert answer.status_code == status


@pytest.mark.parametrize(
    "query", ["", "?offset=-1", "?offset=x", "?offset=0&offset=0", "?offset=0&x=1", "?" + "x&" * 50]
)
def test_offset_is_checked(team: Team, registered: str, query: str):
    body, headers = batch(lines([step(1)]))
    target = registered.partition("?")[0] + query
    assert team.client.put(target, content=body, headers={**headers, **team.headers("write")}).status_code == 400


@pytest.mark.parametrize("rank", ["-1", "100000", "x", "0x1", "1e1", "%2e%2e", "0%2f..%2f..%2fx"])
def test_rank_is_checked(team: Team, registered: str, rank: str):
    body, headers = batch(lines([step(1)]))
    target = f"/api/v1/ingest/runs/abc/journal/{rank}?offset=0"
    answer = team.client.put(target, content=body, headers={**headers, **team.headers("write")})
    assert answer.status_code in {400, 404}


def test_answer_out_of_order_tells_where_to_continue(team: Team, registered: str):
    body, headers = batch(lines([step(1)]))
    answer = team.client.put(
        registered.replace("=0", "=10"), content=body, headers={**headers, **team.headers("write")}
    )
    assert (answer.status_code, answer.json()["have"]) == (409, 0)


def test_fast_key_is_slowed_down(team: Team, make_run: MakeRun):
    folder = make_run(num_steps=2_000)
    team.app.copies.usage = KeyUsage(team.data_dir, clock=lambda: 0.0)  # no time passes, however slow the machine is
    token = team.token("write", name="slow", max_bytes_per_s=20_000)
    answers = []
    sender = team.sender(folder, token)
    sender._max_batch_bytes = 1000
    send = sender._connection.request
    sender._connection.request = lambda *args, **options: answers.append(send(*args, **options)) or answers[-1]  # type: ignore[method-assign]
    limits = msgspec.json.decode(
        team.client.put(
            "/api/v1/ingest/runs/slow", json={"run_name": "x"}, headers={"Authorization": f"Bearer {token}"}
        ).content
    )["limits"]
    assert limits["bytes_per_s"] == 20_000
    sender.poll(flush=True)
    append(folder, [step(number) for number in range(3_000, 6_000)])
    sender.poll(flush=True)
    sender.poll(flush=True)
    limited = [answer for answer in answers if answer.status == 429]
    assert limited
    assert limited[0].wait_s > 0
    assert not [report for report in sender.reports if "20000" not in report[2]]
