"""`tacho serve --workers`: several processes serve one folder, and answer like one."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from tachograph.journal import FIRST_NODE_NUMBER, Heartbeat, RunFolder, this_process
from tachograph.remote import Beat, Connection, RunSender, hash_bytes, parse_server
from tachograph.server.team import KeyRing, keys_path
from tachograph.server.team._metrics import ServerMetrics
from tachograph.server.team._server_group import ServerGroup
from tests.conftest import HANG_S, wait_for
from tests.remote.conftest import make_run, send_all
from tests.store import END, START, append, lines, step

__all__ = ["make_run"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="one process only on Windows"),
]
MakeRun = Callable[..., RunFolder]


class Workers:
    """`tacho serve --workers 3` and clients that use a new connection for each request, so they reach any worker."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.keys = KeyRing(keys_path(data_dir))
        self.tokens: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tachograph", "serve", "--data", str(self.data_dir)]
        command += ["--port", "0", "--workers", "3"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        match = re.search(r"http://127.0.0.1:(\d+)/", self.process.stdout.readline())
        assert match is not None, self.process.communicate(timeout=HANG_S)
        self.port = int(match[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, signal_number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal to the process that started the workers; return its exit code and its messages."""
        processes = psutil.Process(self.process.pid).children()
        self.process.send_signal(signal_number)
        _, messages = self.process.communicate(timeout=HANG_S)
        wait_for(lambda: not any(process.is_running() for process in processes), "the end of all workers")
        return self.process.returncode, messages

    def pids(self) -> list[int]:
        """Return the processes of the workers that run."""
        pids = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # one that was killed, or is a zombie
                if "spawn_main" in " ".join(child.cmdline()):
                    pids.append(child.pid)
        return pids

    def key(self, name: str, scopes: list[str], **limits: Any) -> dict[str, str]:
        """Return the headers of a new key."""
        self.tokens[name] = self.keys.create(name, scopes, **limits)[1]
        return {"Authorization": f"Bearer {self.tokens[name]}"}

    def request(self, method: str, path: str, headers: dict[str, str], **options: Any) -> httpx.Response:
        """Send a request on a connection of its own; once more if its worker was killed meanwhile."""

        def try_to_send() -> httpx.Response | None:
            try:
                return httpx.request(method, self.url + path, headers=headers, timeout=HANG_S, **options)
            except httpx.TransportError:
                return None

        response: httpx.Response = wait_for(try_to_send, "an answer")
        return response

    def sender(self, folder: RunFolder, name: str) -> RunSender:
        token = self.tokens[name]
        return RunSender(folder, Connection(parse_server(self.url), lambda: token), lambda *report: None)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    server = Workers(tmp_path / "data")
    yield server
    if server.process.poll() is None:
        server.stop()


def test_nothing_is_lost_when_workers_are_killed(workers: Workers, make_run: MakeRun):
    headers = workers.key("all", ["write", "read"])
    folder = make_run("run", 5, ends=False)
    killed = set()
    copy = workers.data_dir / "default" / "run" / "metrics.jsonl"

    def send(sender: RunSender) -> bytes:
        sender.poll(flush=True, ignore_pause=True)
        return copy.read_bytes() if copy.exists() else b""

    for number in range(6):
        append(folder, [step(10 + number)])
        sender = workers.sender(folder, "all")  # a new connection: another worker may receive this one
        wait_for(lambda sender=sender: send(sender) == folder.journal.read_bytes())
        sender.close()
        pid = workers.pids()[number % 3 - 1]
        psutil.Process(pid).kill()
        killed.add(pid)
        wait_for(lambda: len(set(workers.pids()) - killed) == 3, "another worker")
    append(folder, [END])
    send_all(workers.sender(folder, "all"))
    assert copy.read_bytes() == folder.journal.read_bytes()
    pages = [workers.request("GET", "/api/v1/runs/default%2Frun", headers).json() for _ in range(10)]
    assert {(page["state"], page["version"]) for page in pages} == {("finished", pages[0]["version"])}
    code, messages = workers.stop()
    assert code == 0
    assert messages.count("was killed by signal 9; starting it again") == 6
    assert "Traceback" not in messages


def test_run_that_all_workers_received_can_be_deleted(workers: Workers, make_run: MakeRun):
    headers = workers.key("all", ["write", "read", "admin", "control"])
    folder = make_run("run", 5)
    send_all(workers.sender(folder, "all"))
    for _ in range(20):  # now probably all workers have the copy open
        send_all(workers.sender(folder, "all"))
    body = {"action": "trash", "runs": ["default/run"]}
    # On a busy machine, a worker may take long to close its copy.
    wait_for(lambda: workers.request("POST", "/api/v1/bulk", headers, json=body).json()["num_failed"] == 0)
    assert not (workers.data_dir / "default" / "run").exists()


def test_limits_of_keys_hold_for_all_workers_and_after_a_restart(workers: Workers, make_run: MakeRun):
    one_run = workers.key("one-run", ["write"], max_open_runs=1)
    slow = workers.key("slow", ["write"], max_bytes_per_s=1)
    small = workers.key("small", ["write"], max_bytes=1_000)

    def register(run_id: str, headers: dict[str, str]) -> int:
        body = {"run_name": run_id, "schema": 1}
        return workers.request("PUT", f"/api/v1/ingest/runs/{run_id}", headers, json=body).status_code

    def send(run_id: str, data: bytes, headers: dict[str, str]) -> int:
        batch_headers = {
            "Tacho-Bytes": str(len(data)),
            "Tacho-Sha256": hash_bytes(data),
            "Tacho-Before": hash_bytes(b""),
        }
        path = f"/api/v1/ingest/runs/{run_id}/journal/0?offset=0"
        return workers.request("PUT", path, {**headers, **batch_headers}, content=data).status_code

    journal = lines([START, *(step(number) for number in range(20))])
    assert len(journal) > 1_000
    for is_restarted in (False, True):
        if is_restarted:
            workers.stop()
            workers.start()
        assert {register("first", one_run) for _ in range(9)} == {200}
        assert {register("second", one_run) for _ in range(9)} == {429}
        assert register("quick", slow) == 200
        answers = {send("quick", journal, slow) for _ in range(9)}
        assert answers == ({429} if is_restarted else {200, 429})
        assert register("big", small) == 200
        assert {send("big", journal, small) for _ in range(9)} == {507}


def test_wrong_keys_are_counted_by_all_workers(workers: Workers):
    wrong = {"Authorization": "Bearer tk_00000000_" + "x" * 43}
    statuses = [workers.request("GET", "/api/v1/runs", wrong).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2


def test_metrics_are_those_of_all_workers(workers: Workers, make_run: MakeRun):
    headers = workers.key("all", ["write", "read"])
    for number in range(12):
        body = {"run_name": f"run-{number}", "schema": 1}
        assert workers.request("PUT", f"/api/v1/ingest/runs/run-{number}", headers, json=body).status_code == 200

    def num_registrations() -> set[str]:
        pages = [workers.request("GET", "/metrics", headers).text for _ in range(9)]
        return {re.search(r"^tachograph_registrations_total (\S+)$", page, re.MULTILINE)[1] for page in pages}  # type: ignore[index]

    wait_for(lambda: num_registrations() == {"12"}, "the sum of the counters")
    workers.stop()
    workers.start()
    wait_for(lambda: num_registrations() == {"12"}, "the sum after the restart")


def test_heartbeats_of_other_machines_reach_rank_0_through_any_worker(workers: Workers):
    headers = workers.key("all", ["write"])
    body = {"run_name": "run", "schema": 1, "job": "job-1"}
    assert workers.request("PUT", "/api/v1/ingest/runs/abc", headers, json=body).status_code == 200
    heartbeat = Heartbeat("abc", this_process(), time=0.0, uptime_s=1.0, job="job-1")
    for first_rank in (8, 16):
        ranks = {str(rank): heartbeat for rank in range(first_rank, first_rank + 8)}
        beat = msgspec.json.encode(Beat(None, ranks, is_node=True))
        assert workers.request("PUT", "/api/v1/ingest/runs/abc/beat", headers, content=beat).status_code == 200
    data = lines([START])
    batch_headers = {"Tacho-Bytes": str(len(data)), "Tacho-Sha256": hash_bytes(data), "Tacho-Before": hash_bytes(b"")}
    path = f"/api/v1/ingest/runs/abc/journal/host-{FIRST_NODE_NUMBER}?offset=0"
    assert workers.request("PUT", path, {**headers, **batch_headers}, content=data).status_code == 200
    for _ in range(9):
        answer = workers.request("PUT", "/api/v1/ingest/runs/abc/beat", headers, content=b"{}").json()
        assert answer["nodes"] == {f"host-{FIRST_NODE_NUMBER}": len(data)}
        assert sorted(answer["ranks"], key=int) == [str(rank) for rank in range(8, 24)]


def test_workers_end_with_the_process_that_started_them(workers: Workers):
    code, _ = workers.stop(signal.SIGKILL)
    assert code == -signal.SIGKILL


def test_reason_why_workers_cannot_start_is_stated(tmp_path: Path):
    def serve(*options: object) -> str:
        command = [sys.executable, "-m", "tachograph", "serve", "--workers", "2", *map(str, options)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert result.returncode in {1, 2}
        assert "Traceback" not in result.stderr
        return " ".join(result.stderr.split())

    (tmp_path / "file").write_text("")
    assert "file" in serve("--data", tmp_path / "file", "--port", 0)
    with socket.create_server(("127.0.0.1", 0)) as other_program:
        port = other_program.getsockname()[1]
        assert f"127.0.0.1:{port}" in serve("--data", tmp_path / "data", "--port", port)
    damaged = tmp_path / "damaged" / ".server"
    damaged.mkdir(parents=True)
    (damaged / "session.key").write_text("short")
    assert "session.key" in serve("--data", tmp_path / "damaged", "--port", 0)


# The group in one process --------------------------------------------------------------------------------------------


class Member:
    """One member of a group, which notes what it was asked for."""

    def __init__(self, root: Path) -> None:
        self.metrics = ServerMetrics()
        self.num_releases = 0
        self.group = ServerGroup(
            root,
            self.metrics,
            close_copies=self._release,
            close_idle_copies=lambda: None,
            count_open_copies=lambda: 2,
        )

    def _release(self) -> None:
        self.num_releases += 1


def test_another_process_becomes_the_leader(tmp_path: Path):
    first, second = Member(tmp_path), Member(tmp_path)
    assert (first.group.is_leader, second.group.is_leader) == (True, False)
    first.group.close()
    wait_for(lambda: second.group.is_leader, "the next leader")
    second.group.close()


def test_request_to_close_copies_reaches_all(tmp_path: Path):
    members = [Member(tmp_path) for _ in range(3)]
    members[1].group.release_copies()
    wait_for(lambda: [member.num_releases for member in members] == [1, 1, 1])
    for member in members:
        member.group.close()


def test_counters_continue_after_a_restart(tmp_path: Path):
    first, second = Member(tmp_path), Member(tmp_path)
    first.metrics.count("registrations", 3)
    second.metrics.count("ingest_requests", 2_000_000, status=200)
    first.group.close()
    assert dict.fromkeys(["registrations"], 3) == {name: value for name, _, value in second.group.counts()}
    again = Member(tmp_path)
    again.metrics.count("registrations")
    again.metrics.others = again.group.counts
    wait_for(lambda: 'tachograph_ingest_requests_total{status="200"} 2000000\n' in again.metrics.text())
    assert "tachograph_registrations_total 4\n" in again.metrics.text()
    second.group.close()
    again.group.close()


def test_counters_without_events_are_zero():
    text = ServerMetrics().text()
    assert "# TYPE tachograph_faults_total counter\ntachograph_faults_total 0\n" in text
    assert "ingest_requests" not in text  # has a label


def test_damaged_state_of_another_process_is_left_out(tmp_path: Path):
    member = Member(tmp_path)
    (tmp_path / ".server" / "processes" / "other-0.json").write_text("{")
    assert member.group.counts() == []
    assert member.group.count_open_copies() == 2
    member.group.close()
