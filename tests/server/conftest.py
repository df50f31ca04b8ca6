"""Fixtures: a real server on a free port, and runs to serve."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from tachograph.server import Access, create_server
from tests.conftest import HANG_S, wait_for
from tests.preloaded import preloaded
from tests.store import END, START, step, write

TOKEN = "a-token-that-is-hard-to-guess"


def _is_complete(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])


class Served:
    """A server in a thread."""

    def __init__(self, log_dir: Path, access: Access | None = None, **options: Any) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(128)
        self.port = self.listener.getsockname()[1]
        self.server = create_server(log_dir, access or Access(), **options)
        self.server.config.lifespan = "off"
        # Quiet: Python 3.11 crashes when the server and a failing test print tracebacks at the same time.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=HANG_S)
        wait_for(lambda: self.server.started)

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()

    def raw(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send raw bytes; return status, headers and body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S) as connection:
            connection.sendall(request)
            data = b""
            with contextlib.suppress(ConnectionResetError):
                while not _is_complete(data) and (block := connection.recv(65_536)):
                    data += block
        head, _, body = data.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        return int(first.split()[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in rest)}, body

    def get_raw(self, target: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        """Request a target without the normalisation of an HTTP client."""
        lines = [f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close", *headers, "", ""]
        return self.raw("\r\n".join(lines).encode("utf-8"))


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serve a log folder until the end of the test: ``serve(logs, Access(…))``."""
    started: list[Served] = []

    def start(log_dir: Path, access: Access | None = None, **options: Any) -> Served:
        started.append(Served(log_dir, access, **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


def write_run(logs: Path) -> None:
    write(logs / "r", [START, *(step(i, loss=1 / (i + 1), epoch=i / 10) for i in range(20)), END])


@pytest.fixture(scope="session")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that read-only tests share; its run `r` never changes."""
    logs = tmp_path_factory.mktemp("shared")
    write_run(logs)
    server = Served(logs)
    yield server.client
    server.close()


@pytest.fixture
def server(logs: Path, serve: Callable[..., Served]) -> Served:
    """A server for a log folder with one small finished run, `r`."""
    write_run(logs)
    return serve(logs)


@pytest.fixture
def client(server: Served) -> httpx.Client:
    return server.client


def check_error(response: httpx.Response, status: int, code: str | None = None) -> str:
    """Check the status and the error body of a response; return its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message"}
    assert body["error"]["message"]
    assert code in (None, body["error"]["code"])
    return str(body["error"]["message"])


class Events:
    """Server-sent events, read in the background."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, **params: Any) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.alive: list[tuple[str, dict[str, Any]]] = []
        """Events that only say that the stream works: a slow machine gets more of them."""
        self._client = httpx.Client(timeout=HANG_S, headers=headers)
        self._stream = self._client.stream("GET", url, params=params)
        self.response = self._stream.__enter__()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        name = ""
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError, RuntimeError, OSError):
            for line in self.response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found = self.alive if name == "alive" else self.found
                    found.append((name, json.loads(line.removeprefix("data: "))))

    def wait(self, condition: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first event that meets the condition."""
        found = wait_for(lambda: [data for name, data in list(self.found) if condition(name, data)], "the event")
        event: dict[str, Any] = found[0]
        return event

    @property
    def is_over(self) -> bool:
        """Whether the server ended the stream."""
        return not self._thread.is_alive()

    def close(self) -> None:
        # Close the socket, not the response, to wake the reader that blocks on it.
        stream = self.response.extensions["network_stream"]
        with contextlib.suppress(OSError):
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(HANG_S)
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            self._stream.__exit__(None, None, None)
        self._client.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Events]]:
    opened: list[Events] = []

    def start(url: str, **params: Any) -> Events:
        opened.append(Events(url, **params))
        return opened[-1]

    yield start
    for events in opened:
        events.close()


class Dashboard:
    """`tacho ui` as a process."""

    def __init__(
        self, log_dir: Path, *options: str, env: dict[str, str] | None = None, stdin: str | None = None
    ) -> None:
        self.process = preloaded("dashboard").popen(
            [sys.executable, "-m", "tachograph", "ui", "--log-dir", str(log_dir), "--port", "0", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if stdin is not None:
            self.process.stdin.write(stdin)
        self.process.stdin.close()
        self.process.stdin = None
        self.first_line = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.first_line)
        assert found, (self.first_line, self.process.communicate(timeout=HANG_S))
        self.url = found[0]
        self.port = int(re.search(r":(\d+)/", self.url)[1])  # type: ignore[index]
        self.token = unquote(self.url.partition("#token=")[2])
        wait_for(self._answers, what="the server")

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200
        return False

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal; return the exit code, stdout and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, self.first_line + out, err


@pytest.fixture
def dashboard(logs: Path) -> Iterator[Callable[..., Dashboard]]:
    started: list[Dashboard] = []

    def start(*options: str, **keywords: Any) -> Dashboard:
        started.append(Dashboard(logs, *options, **keywords))
        return started[-1]

    yield start
    for item in started:
        if item.process.poll() is None:
            item.process.kill()
        item.process.communicate()
