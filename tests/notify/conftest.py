"""A receiver that is real: an HTTP server in a thread that keeps what it is sent and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tachograph.notify import Message
from tests.conftest import wait_for


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes
    time: float

    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = MappingProxyType({})
    delay_s: float = 0.0
    is_dropped: bool = False
    is_endless: bool = False


class Receiver(ThreadingHTTPServer):
    """Gives the replies it was told in order, and the last one for ever."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.replies: list[Reply] = [Reply()]
        self.released = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def reply(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def wait(self, num_requests: int, timeout_s: float = 10.0) -> list[Request]:
        wait_for(lambda: len(self.requests) >= num_requests, timeout_s, f"request {num_requests}: {self.requests}")
        return self.requests

    def events(self) -> list[str]:
        """What a webhook without a template was told."""
        return [request.json()["event"] for request in self.requests]

    def handle_error(self, *_arguments: Any) -> None:
        """A client that is gone is what some tests are about."""

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        server.requests.append(Request(self.path, dict(self.headers), body, time.time()))
        if reply.delay_s:
            server.released.wait(reply.delay_s)
        if reply.is_dropped:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        while reply.is_endless and not server.released.is_set():
            self.wfile.write(b"x" * 65_536)

    do_GET = do_POST

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def make_receiver() -> Iterator[Callable[[], Receiver]]:
    made: list[Receiver] = []

    def make() -> Receiver:
        made.append(Receiver())
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture
def receiver(make_receiver: Callable[[], Receiver]) -> Receiver:
    return make_receiver()


def message(**fields: Any) -> Message:
    given = {
        "key": "alert:7:opened", "event": "alert", "title": "Loss spike", "time": time.time(), "run": "greyjacket",
        "severity": "warning", "reason": "train_loss rose to 4.2", "advice": ("Lower the learning rate.",),
        "meaning": "A bad batch.", "step": 120, "max_steps": 500, "metrics": {"train_loss": 4.2, "lr": "NaN"},
        "duration_s": 754.0, "host": "gpu-box", "project": "jackets", "link": "http://runs/#/run/greyjacket",
    }  # fmt: skip
    return Message(**{**given, **fields})
