"""A server that the trainer cannot trust: whatever it answers, the sender stays small, quiet and alive."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tachograph.journal import RunFolder, read_requests
from tachograph.remote import Connection, RunSender, parse_server
from tests.store import append, step

MakeRun = Callable[..., RunFolder]
KEY = f"tk_00000000_{'k' * 43}"
REGISTERED: dict[str, Any] = {"run": "default/run", "have": {}}


class HostileServer:
    """Answers each request with what `answers` returns for its path: a status and a body."""

    def __init__(self) -> None:
        self.answers: Callable[[str], tuple[int, Any]] = lambda path: (200, REGISTERED)
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, int]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                size = len(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, size))
                status, body = outer.answers(self.path)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**outer.headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.connections: list[Connection] = []

    def sender(self, folder: RunFolder, **options: Any) -> RunSender:
        url = f"http://127.0.0.1:{self.server.server_port}"
        self.connections.append(Connection(parse_server(url), lambda: KEY))
        reports: list[tuple[str, str, str]] = []
        sender = RunSender(folder, self.connections[-1], lambda *report: reports.append(report), **options)
        sender.reports = reports  # type: ignore[attr-defined]
        return sender


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    server = HostileServer()
    yield server
    for connection in server.connections:
        connection.close()
    server.server.shutdown()
    server.thread.join()
    server.server.server_close()


def is_registration(path: str) -> bool:
    return path.count("/") == 5


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"error":' + b"[" * 100_000, b'"\\ud800"', b"x" * (5 << 20)),
        *({"run": 1, "have": {}}, {"run": "x", "have": {"0": "a"}}, {"run": "x", "have": {"0": 1e99}}),
        *({"error": {"message": "\x1b[2J" * 1_000}}, {"error": "x"}, {"error": {"message": 5}}, {}),
    ],
    ids=lambda body: repr(body)[:20],
)
@pytest.mark.parametrize("status", [200, 302, 400, 403, 409, 412, 413, 429, 500, 503, 507])
def test_any_answer_is_survived(hostile: HostileServer, make_run: MakeRun, body: Any, status: int):
    folder = make_run()
    before = folder.journal.read_bytes()
    sender = hostile.sender(folder, remote_control=True)
    hostile.answers = lambda path: (status, body)
    assert sender.poll(flush=True) > 0
    hostile.answers = lambda path: (200, REGISTERED) if is_registration(path) else (status, body)
    assert sender.poll(flush=True, ignore_pause=True) > 0
    assert len(hostile.requests) <= 12  # 413 halves the batch a few times
    assert not sender.is_complete
    assert folder.journal.read_bytes() == before
    assert "\x1b" not in sender.state.error
    assert len(sender.state.error) < 1_000
    assert not folder.control.exists()


@pytest.mark.parametrize("have", [-1, -(10**15), 10**15])
def test_impossible_positions_are_survived(hostile: HostileServer, make_run: MakeRun, have: int):
    folder = make_run(num_steps=100)
    (folder.path / "output").mkdir()
    (folder.path / "output" / "000000000000.log").write_bytes(b"x\n" * 1_000)
    sender = hostile.sender(folder)
    registered = {**REGISTERED, "have": {"0": have, "x": 1, "99": 5}, "files": {"output/000000000000.log": have}}
    for status in (200, 409):
        hostile.answers = lambda path, status=status: (
            (200, registered) if is_registration(path) else (status, {"have": have})
        )
        for _ in range(20):
            sender.poll(flush=True, ignore_pause=True)
    assert not any("offset=-" in path for path, _ in hostile.requests)
    assert set(sender.state.have) <= {"0"}


def test_answer_without_progress_is_a_failure(hostile: HostileServer, make_run: MakeRun):
    folder = make_run(num_steps=20_000)
    (folder.path / "output").mkdir()
    (folder.path / "output" / "000000000000.log").write_bytes(b"x\n" * 1_000)
    sender = hostile.sender(folder)
    hostile.answers = lambda path: (200, REGISTERED) if is_registration(path) else (200, {"have": 0})
    pauses = [sender.poll(flush=True, ignore_pause=True) for _ in range(10)]
    assert min(pauses) >= 0.4
    assert pauses[-1] > 40
    size = folder.journal.stat().st_size
    hostile.answers = lambda path: (200, {"have": size if "/journal/" in path else 0})
    hostile.requests.clear()
    assert sender.poll(flush=True, ignore_pause=True) > 0
    assert len(hostile.requests) == 2  # a batch, and one part of the other file


def test_limits_of_the_server_are_bounded(hostile: HostileServer, make_run: MakeRun):
    folder = make_run(num_steps=1_000)
    size = folder.journal.stat().st_size
    sender = hostile.sender(folder)
    limits = {"batch_bytes": 1 << 60, "max_batch_bytes": 1 << 60, "flush_interval_s": -1.0, "beat_interval_s": 0.0}
    hostile.answers = lambda path: (200, {**REGISTERED, "limits": limits})
    sender.poll()
    assert sender._max_batch_bytes == 16 << 20
    hostile.answers = lambda path: (200, {"have": size})
    assert sender.poll(ignore_pause=True) > 0
    small = hostile.sender(folder)
    hostile.answers = lambda path: (200, {**REGISTERED, "limits": {"batch_bytes": -5, "max_batch_bytes": 0}})
    small.poll()
    assert small._max_batch_bytes == 1_024


def test_second_copies_are_not_requested_without_end(hostile: HostileServer, make_run: MakeRun):
    sender = hostile.sender(make_run())
    hostile.answers = lambda path: (200, REGISTERED) if is_registration(path) else (412, {})
    pauses = [sender.poll(flush=True, ignore_pause=True) for _ in range(12)]
    assert pauses[-1] > 40  # so a minute has one report at most
    sender.state.generation = 1_000
    sender.reports.clear()  # type: ignore[attr-defined]
    sender.poll(flush=True, ignore_pause=True)
    assert [report[0] for report in sender.reports] == ["server_failed"]  # type: ignore[attr-defined]
    assert sender.state.generation == 1_000


@pytest.mark.parametrize("version", ["x\r\nTacho-Evil: 1", "ж", "x" * 10_000, "a b", "\0"])
def test_version_of_the_server_is_not_sent_back_unchecked(hostile: HostileServer, make_run: MakeRun, version: str):
    folder = make_run(ends=False)
    sender = hostile.sender(folder)
    size = folder.journal.stat().st_size
    hostile.answers = lambda path: (
        (200, {**REGISTERED, "control_version": version})
        if is_registration(path)
        else (200, {"have": size, "control_version": version})
    )
    sender.poll(flush=True)
    assert sender.state.error == ""
    assert sender._control_version == ""


@pytest.mark.parametrize("remote_control", [False, True])
def test_requests_of_the_server(hostile: HostileServer, make_run: MakeRun, remote_control: bool):
    """Without `remote_control` none reaches the trainer, whatever the server answers; with it, a bounded number."""
    folder = make_run(ends=False)
    sender = hostile.sender(folder, remote_control=remote_control)
    requests = [[f"knob{number}", 1, f"id-{number}", "x" * 1_000] for number in range(1_000)]
    hostile.answers = lambda path: (
        (200, REGISTERED) if is_registration(path) else (200, {"have": 1 << 40, "control": requests})
    )
    sender.poll(flush=True)
    append(folder, [step(50)])
    if remote_control:
        found = read_requests(folder)
        assert 0 < len(found) <= 100
        assert all(request.source.startswith("server:") and len(request.source) <= 100 for request in found)
    else:
        assert not folder.control.exists()


def test_redirect_is_not_followed(hostile: HostileServer, make_run: MakeRun):
    """It could take the key to another host."""
    other = HostileServer()
    try:
        hostile.headers = {"Location": f"http://127.0.0.1:{other.server.server_port}/"}
        hostile.answers = lambda path: (307, {})
        sender = hostile.sender(make_run())
        assert sender.poll(flush=True) > 0
        assert other.requests == []
    finally:
        other.server.shutdown()
        other.thread.join()
        other.server.server_close()
