"""A real HTTP server in a thread. It records every byte and sends the replies that a test configures."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.conftest import wait_for


class Request(NamedTuple):
    """A received request."""

    raw: bytes
    """The request line, the headers and the body."""
    path: str
    headers: dict[str, str]
    body: bytes
    time: float

    def json(self) -> Any:
        return json.loads(gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body)


class Reply(NamedTuple):
    """A configured reply."""

    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = MappingProxyType({})
    delay_s: float = 0.0
    is_dropped: bool = False
    """Closes the connection without a response."""
    is_silent: bool = False
    """Accepts the request and never responds."""
    is_endless: bool = False
    """Sends a body without end."""
    drip_s: float = 0.0
    """Sends headers without end, one byte at a time."""


class Receiver(ThreadingHTTPServer):
    """Sends the configured replies in order, and repeats the last one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.requests: list[Request] = []
        self.replies: list[Reply] = [Reply()]
        self.released = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def reply(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def reply_to(self, request: Request) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def wait(self, num_requests: int = 1) -> list[Request]:
        wait_for(lambda: len(self.requests) >= num_requests, f"request {num_requests}")
        return self.requests

    @property
    def raw(self) -> bytes:
        return b"\n".join(request.raw for request in list(self.requests))

    def handle_error(self, *_arguments: Any) -> None:
        """Ignore clients that close the connection: some tests do that."""

    def close(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


class _Tee:
    """A stream that records everything read from it."""

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
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.rfile.seen, self.path, dict(self.headers), body, time.time())
        released, reply = self.server.released, self.server.reply_to(request)
        self.server.requests.append(request)
        if reply.delay_s or reply.is_silent:
            released.wait(reply.delay_s or None)
        if reply.is_silent or reply.is_dropped:
            self.close_connection = True
            return
        if reply.drip_s:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not released.wait(reply.drip_s):
                self.wfile.write(b"x")
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        while reply.is_endless and not released.is_set():
            self.wfile.write(b"x" * 65_536)

    do_GET = do_POST

    def log_message(self, *_arguments: Any) -> None:
        pass
