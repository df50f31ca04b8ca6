"""Clients that stall: half a request, a response that is not read, and too many connections."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path

import httpx
import pytest

from tachograph.server._protocol import LimitedProtocol
from tests.conftest import wait_for
from tests.foreign import connect_as_nobody
from tests.server.conftest import write_run
from tests.store import START, append, step, write

TIMEOUT_S = 1.0
"""The deadlines of the server in these tests; a client whose request is complete must be faster."""
PATIENCE_S = 60.0
HEAD = "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALVES = {
    "nothing": "",
    "request line": "GET /api/v1/ru",
    "headers": "GET /api/v1/runs HTTP/1.1\r\nHost: local",
    "end of headers": "GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n",
    "body": f'{HEAD}Content-Length: 50\r\n\r\n{{"token"',
    "chunked body": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\n{{",
}
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def server(logs, serve, monkeypatch):
    monkeypatch.setattr(LimitedProtocol, "request_timeout_s", TIMEOUT_S)
    monkeypatch.setattr(LimitedProtocol, "silence_timeout_s", TIMEOUT_S)
    monkeypatch.setattr(LimitedProtocol, "response_timeout_s", TIMEOUT_S)
    write_run(logs)
    return serve(logs)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def is_closed(connection):
    """Wait until the server closes a connection."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


def check_health(connection):
    connection.sendall(GET)
    answer = b""
    while b'"ok"' not in answer:
        block = connection.recv(65_536)
        assert block, answer
        answer += block


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_half_request_is_disconnected(server, half):
    with connect(server) as connection:
        connection.sendall(half.encode())
        assert is_closed(connection)
    wait_for(lambda: not server.server.server_state.connections)
    wait_for(lambda: not server.server.server_state.tasks)


@pytest.mark.parametrize(
    "half", [GET[:-2] + b"X: ", f"{HEAD}Content-Length: 60000\r\n\r\n".encode()], ids=["head", "body"]
)
def test_slow_request_cannot_extend_its_deadline(server, half):
    with connect(server) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(half)
        for _ in range(int(PATIENCE_S / 0.02)):
            connection.sendall(b"x")
            time.sleep(0.02)


def test_rest_of_rejected_body_has_a_deadline(server):
    """The body of a request that was rejected early arrives later, and then nothing more."""
    with connect(server) as connection:
        connection.sendall(b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n")
        assert b" 415 " in connection.recv(65_536)
        connection.sendall(b"rest")
        assert is_closed(connection)


def test_complete_requests_have_no_deadline(server, listen, logs):
    folder = write(logs / "live", [START, step(0, a=1.0)])
    events = listen(f"{server.url}/api/v1/live", run="live")
    events.wait(lambda event, data: event == "changed")
    with connect(server) as connection:
        for _ in range(2):  # the second one after a pause between two requests
            check_health(connection)
            time.sleep(2.5 * TIMEOUT_S)
    append(folder, [step(1, a=1.0)])
    events.wait(lambda event, data: event == "changed" and data["line"]["step"] == 1)


def test_number_of_connections_is_limited(server, monkeypatch):
    monkeypatch.setattr(LimitedProtocol, "request_timeout_s", PATIENCE_S)
    monkeypatch.setattr(LimitedProtocol, "max_connections", 8)
    monkeypatch.setattr(LimitedProtocol, "max_foreign_connections", 8)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connect(server)) for _ in range(8)]
        wait_for(lambda: len(server.server.server_state.connections) == 8)
        for _ in range(20):
            assert is_closed(stack.enter_context(connect(server)))
        check_health(opened[0])
    wait_for(lambda: not server.server.server_state.connections)
    assert server.client.get("/healthz").status_code == 200


def test_other_users_cannot_take_all_connections(server, monkeypatch):
    monkeypatch.setattr(LimitedProtocol, "request_timeout_s", PATIENCE_S)
    monkeypatch.setattr(LimitedProtocol, "max_connections", 8)
    monkeypatch.setattr(LimitedProtocol, "max_foreign_connections", 4)
    with connect_as_nobody(server.port) as port, contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        wait_for(lambda: len(server.server.server_state.connections) == 4)
        assert server.client.get("/healthz").status_code == 200


def write_long_run(logs, num_steps):
    plain = b'{"event":"step","time":%d.5,"global_step":%d,"a":%d.25}'
    write(logs / "long", [START, *(plain % (number, number, number) for number in range(num_steps))])


def wait_until_indexed(url):
    def is_indexed():
        with contextlib.suppress(httpx.TransportError):  # this process took too long to send the request
            return httpx.get(f"{url}/api/v1/runs/long/series?name=a", timeout=PATIENCE_S).json()["indexed"] == 1

    wait_for(is_indexed)


def request_export(connection):
    connection.sendall(b"GET /api/v1/runs/long/export?name=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_client_that_stops_reading_is_disconnected(server, logs):
    write_long_run(logs, 200_000)  # more than the buffers of the kernel hold
    wait_until_indexed(server.url)
    with connect(server) as connection:
        request_export(connection)
        wait_for(lambda: not server.server.server_state.connections)
        wait_for(lambda: not server.server.server_state.tasks)


@pytest.mark.slow
def test_pausing_client_gets_everything(logs, serve):
    write_long_run(logs, 200_000)
    server = serve(logs)
    wait_until_indexed(server.url)
    whole = server.client.get("/api/v1/runs/long/export?name=a").content
    assert whole.count(b"\n") == 200_001
    received = b""
    with server.client.stream("GET", "/api/v1/runs/long/export?name=a") as answer:
        for number, block in enumerate(answer.iter_raw()):
            received += block
            if number == 3:
                time.sleep(1)
    assert received == whole


def test_stalled_exports_hold_little_memory(logs, dashboard):
    write_long_run(logs, 300_000)
    running = dashboard()
    url = f"http://127.0.0.1:{running.port}"
    wait_until_indexed(url)
    num_stalled = 8

    def anonymous_bytes():
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])

    with contextlib.ExitStack() as stack:
        # The first export loads code and fills caches.
        assert httpx.get(f"{url}/api/v1/runs/long/export?name=a", timeout=PATIENCE_S).status_code == 200
        before = anonymous_bytes()
        for _ in range(num_stalled):
            connection = stack.enter_context(connect(running))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request_export(connection)
        time.sleep(2)
        assert anonymous_bytes() - before < num_stalled << 20
