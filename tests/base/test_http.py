"""Connections that stay open: reuse, repetition, limits and proxies."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tachograph._base.http import HttpConnection, _tls_context


class RawServer:
    """Answers each connection with a function of it, and counts connections and requests."""

    def __init__(self, serve: Callable[[RawServer, socket.socket], None]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.num_connections = 0
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.num_connections += 1
            with client:
                self._serve(self, client)

    def receive(self, client: socket.socket) -> bool:
        """Read the head of a request without a body; return False at the end of the connection."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = client.recv(65536)
            if not data:
                return False
            head += data
        self.requests.append(head)
        return True


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answer_all(server: RawServer, client: socket.socket) -> None:
    while server.receive(client):
        client.sendall(OK)


def answer_one(server: RawServer, client: socket.socket) -> None:
    """Answer one request and close the connection, as a server does with one that was idle."""
    if server.receive(client):
        client.sendall(OK)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[RawServer, socket.socket], None]], RawServer]]:
    servers: list[RawServer] = []

    def start(function: Callable[[RawServer, socket.socket], None]) -> RawServer:
        servers.append(RawServer(function))
        return servers[-1]

    yield start
    for server in servers:
        server.listener.close()


def connect(server: RawServer, timeout_s: float = 30, max_response_bytes: int | None = None) -> HttpConnection:
    return HttpConnection(
        "127.0.0.1", server.port, is_secure=False, timeout_s=timeout_s, max_response_bytes=max_response_bytes
    )


def test_requests_share_a_connection(serve):
    server = serve(answer_all)
    connection = connect(server)
    assert [connection.request("GET", "/x", b"", {}).body for _ in range(3)] == [b"ok"] * 3
    assert server.num_connections == 1
    connection.close()
    assert connection.request("GET", "/x", b"", {}).status == 200
    assert server.num_connections == 2
    connection.close()


def test_request_over_an_idle_connection_is_repeated(serve):
    server = serve(answer_one)
    connection = connect(server)
    assert [connection.request("GET", "/x", b"", {}).body for _ in range(3)] == [b"ok"] * 3
    assert server.num_connections == 3
    connection.close()


def test_first_request_is_not_repeated(serve):
    server = serve(lambda server, client: server.receive(client))
    with pytest.raises(http.client.RemoteDisconnected):
        connect(server).request("GET", "/x", b"", {})
    assert len(server.requests) == 1


def test_request_that_timed_out_is_not_repeated(serve):
    def answer_first(server: RawServer, client: socket.socket) -> None:
        server.receive(client)
        client.sendall(OK)
        server.receive(client)
        server.receive(client)  # until the client closes the connection

    server = serve(answer_first)
    connection = connect(server)
    assert connection.request("GET", "/1", b"", {}).status == 200
    connection._connection.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.request("GET", "/2", b"", {})
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"Content-Length: 11\r\n\r\n" + b"x" * 11, "too long"),
        (b"Content-Length: 9\r\n\r\nxxx", "IncompleteRead"),
    ],
)
def test_long_or_incomplete_response_is_an_error(serve, head, error):
    def answer(server: RawServer, client: socket.socket) -> None:
        server.receive(client)
        client.sendall(b"HTTP/1.1 200 OK\r\n" + head)

    with pytest.raises(http.client.HTTPException, match=error):
        connect(serve(answer), max_response_bytes=10).request("GET", "/x", b"", {})


def test_failed_read_closes_the_socket(serve):
    """After `Connection: close` the response owns the socket, and closing the connection leaves it open."""
    responses = []

    def answer_and_close(server: RawServer, client: socket.socket) -> None:
        server.receive(client)
        client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nok")
        server.receive(client)  # until the client closes the connection

    def fail(response: http.client.HTTPResponse) -> bytes:
        responses.append(response)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        connect(serve(answer_and_close)).exchange("GET", "/x", None, {}, fail)
    assert responses[0].isclosed()


def test_redirect_is_not_followed(serve):
    def redirect(server: RawServer, client: socket.socket) -> None:
        server.receive(client)
        client.sendall(
            f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{server.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        )

    server = serve(redirect)
    connection = connect(server)
    assert connection.request("GET", "/x", b"", {"Authorization": "Bearer x"}).status == 302
    assert len(server.requests) == 1
    connection.close()


@pytest.mark.parametrize("is_secure", [True, False])
def test_proxy_receives_its_password(serve, monkeypatch, is_secure):
    """A tunnel for TLS, which gets no header of the request; other requests are forwarded."""

    def refuse_tunnels(server: RawServer, client: socket.socket) -> None:
        if is_secure:
            server.receive(client)
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        else:
            answer_all(server, client)

    server = serve(refuse_tunnels)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy" if is_secure else "http_proxy", f"http://user:pass%40@127.0.0.1:{server.port}")
    connection = HttpConnection("host.example", 80, is_secure=is_secure, timeout_s=30, uses_proxy=True)
    if is_secure:
        with pytest.raises(OSError, match="403"):
            connection.request("GET", "/x", b"", {"Authorization": "Bearer x"})
    else:
        assert connection.request("GET", "/x", b"", {"Authorization": "Bearer x"}).body == b"ok"
    (to_proxy,) = server.requests
    assert to_proxy.startswith(b"CONNECT host.example:80 " if is_secure else b"GET http://host.example/x ")
    assert b"Proxy-Authorization: Basic dXNlcjpwYXNzQA==" in to_proxy
    assert (b"Bearer" in to_proxy) is not is_secure
    connection.close()


def test_trust_store_is_loaded_once_per_process(serve, monkeypatch):
    _tls_context.cache_clear()
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    for folder in ("/", "/", "/usr", "/usr"):
        monkeypatch.setenv("SSL_CERT_DIR", folder)
        connection = HttpConnection("127.0.0.1", serve(lambda server, client: None).port, is_secure=True, timeout_s=30)
        with pytest.raises(OSError):
            connection.request("GET", "/", b"", {})
    assert _tls_context.cache_info().misses == 2
