"""Usage telemetry against a receiver that is real: an HTTP server on this machine that keeps every byte it is sent."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tachograph.usage import TelemetryManager, UsageConfig, _consent
from tests.conftest import wait_for

_RANKS = ("RANK", "GLOBAL_RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def usage_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own, nobody who has said anything, and nothing left behind."""
    known = {*_consent._AUTOMATIC, *_consent._OFFLINE, *_RANKS, *_PROXIES, *(name.upper() for name in _PROXIES)}
    for name in list(os.environ):
        if name in known or name.endswith(("DO_NOT_TRACK", "_USAGE_RUN_ID", "_USAGE_DEBUG")):
            monkeypatch.delenv(name)
    folder = tmp_path / "usage"
    monkeypatch.setenv("TACHO_USAGE_DIR", str(folder))
    yield folder
    TelemetryManager.reset()
    for thread in threading.enumerate():
        if thread.name == "tachograph-usage":
            thread.join(5)
            assert not thread.is_alive(), "the receiver is gone, but the sender still waits for it"


class Request(NamedTuple):
    """What came over the wire."""

    raw: bytes
    """All of it: the line, the headers, the body."""
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body)


class Reply(NamedTuple):
    """What it is answered."""

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    delay_s: float = 0.0
    is_silent: bool = False
    """Accepts and never answers."""
    drip_s: float = 0.0
    """Answers with headers that never end, one byte after another."""


class Receiver(ThreadingHTTPServer):
    """Takes batches of PostHog as it would: what has another shape is refused and remembered.

    It gives the replies it was told in order, and the last one for ever.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.requests: list[Request] = []
        self.problems: list[str] = []
        self.replies: list[Reply] = [Reply()]
        self.released = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def reply(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def wait(self, num_requests: int = 1, timeout_s: float = 15.0) -> list[Request]:
        wait_for(lambda: len(self.requests) >= num_requests, timeout_s, f"request {num_requests}")
        return self.requests

    def events(self) -> list[dict[str, Any]]:
        """Every event of PostHog that came, those that were refused too."""
        return [event for request in list(self.requests) for event in request.json()["batch"]]

    def wait_for_events(self, num_events: int, timeout_s: float = 15.0) -> list[dict[str, Any]]:
        wait_for(lambda: len(self.events()) >= num_events, timeout_s, f"event {num_events}")
        return self.events()

    @property
    def raw(self) -> bytes:
        return b"\n".join(request.raw for request in list(self.requests))

    def handle_error(self, *_arguments: Any) -> None:
        """A client that is gone is what some tests are about."""

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


class _Tee:
    """A stream of which all that is read is kept."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.seen = b""

    def read(self, *size: int) -> bytes:
        return self._kept(self._stream.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._kept(self._stream.readline(*size))

    def close(self) -> None:
        self._stream.close()

    def _kept(self, data: bytes) -> bytes:
        self.seen += data
        return data


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Tee(self.rfile)

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.rfile.seen, self.path, dict(self.headers), body)
        reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        problem = problem_of(request) if self.command == "POST" and not self.path.endswith("/v1/logs") else None
        if problem is not None:
            server.problems.append(problem)
            reply = Reply(400)
        server.requests.append(request)
        if reply.delay_s or reply.is_silent:
            server.released.wait(reply.delay_s or None)
        if reply.is_silent:
            self.close_connection = True
            return
        if reply.drip_s:
            self._drip(reply.drip_s)
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b'{"status":"Ok"}')

    do_GET = do_POST

    def _drip(self, drip_s: float) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self.server.released.wait(drip_s):
            self.wfile.write(b"x")

    def log_message(self, *_arguments: Any) -> None:
        pass


def problem_of(request: Request) -> str | None:
    """Say what is wrong with a batch of PostHog, None if nothing is."""
    try:
        assert request.path == "/batch/", f"path {request.path}"
        assert request.headers["Content-Type"].startswith("application/json"), "content type"
        batch = request.json()
        assert isinstance(batch, dict), "no object"
        assert isinstance(batch["api_key"], str) and batch["api_key"], "api_key"
        assert isinstance(batch["batch"], list) and batch["batch"], "no batch, or an empty one"
        for event in batch["batch"]:
            assert isinstance(event["event"], str) and event["event"], "event"
            assert isinstance(event["distinct_id"], str) and event["distinct_id"], "distinct_id"
            assert isinstance(event["properties"], dict), "properties"
            uuid.UUID(event["uuid"])
            when = datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00"))
            assert when.tzinfo is not None, "a timestamp without a zone"
    except (AssertionError, KeyError, ValueError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error} in {request.body[:200]!r}"
    return None


@pytest.fixture
def make_receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(port: int = 0) -> Receiver:
        made.append(Receiver(port))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()
    assert [receiver.problems for receiver in made if receiver.problems] == []


@pytest.fixture
def receiver(make_receiver: Callable[[], Receiver]) -> Receiver:
    return make_receiver()


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address at which nobody listens. It is held, so that nobody begins to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class Absent:
    """An address at which nobody listens yet."""

    def __init__(self, make_receiver: Callable[..., Receiver]) -> None:
        self._make_receiver = make_receiver
        self._held = socket.socket()
        self._held.bind(("127.0.0.1", 0))
        self.port = self._held.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"

    def comes(self) -> Receiver:
        self._held.close()
        return self._make_receiver(self.port)


@pytest.fixture
def absent(make_receiver: Callable[..., Receiver]) -> Iterator[Absent]:
    made = Absent(make_receiver)
    yield made
    made._held.close()


@pytest.fixture
def configure(receiver: Receiver) -> Callable[..., TelemetryManager]:
    """Return what configures the app "greyjacket" of a user who has agreed: ``configure(version="1.2", choice=…)``."""

    def make(*, choice: Any = "on", **overrides: Any) -> TelemetryManager:
        given: dict[str, Any] = {
            "app": "greyjacket",
            "endpoint": receiver.address,
            "api_key": "phc_greyjacket",
            "organizations": ["google"],
            "consent": "opt-out",
        }
        if not isinstance(overrides.get("endpoint", ""), str):
            del given["api_key"]
        return TelemetryManager.configure(UsageConfig(**{**given, **overrides}), choice=choice)

    return make


def spooled(folder: Path) -> list[dict[str, Any]]:
    """Every event that lies in the files of an app, oldest first, by the strictest reader there is."""

    def refuse(text: str) -> None:
        raise AssertionError(f"not valid JSON: {text}")

    lines = [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    return [json.loads(line, parse_constant=refuse) for line in lines]


def wait_until_sent(folder: Path, timeout_s: float = 15.0) -> None:
    """Wait until all that lies in the files of an app is marked as arrived."""

    def is_sent() -> bool:
        paths = list(folder.rglob("*.on.jsonl"))
        return bool(paths) and all(
            path.with_suffix(".sent").exists()
            and path.with_suffix(".sent").read_text("ascii").startswith(f'{{"done": {path.stat().st_size},')
            for path in paths
        )

    wait_for(is_sent, timeout_s, "the mark that all was sent")
