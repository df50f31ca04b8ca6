"""One kept-alive HTTP connection to a team's server.

The key travels only in the header `Authorization`, never in an address. Redirects are not followed, because they could
take the key to another host. Proxy settings of the environment apply, except for this machine itself. The variables
`SSL_CERT_FILE` and `SSL_CERT_DIR` name certificates to trust, as for other programs.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from tachograph._base.http import retry_after_s
from tachograph._base.typed import decode_json
from tachograph._base.version import __version__
from tachograph.remote._address import ServerAddress

__all__ = ["Connection", "ConnectionFailedError", "ServerResponse", "printable"]

_MAX_ANSWER_BYTES = 4 << 20


class ConnectionFailedError(Exception):
    """There was no answer; the text contains no secret."""


class ServerResponse(NamedTuple):
    """Status, body and requested wait of an answer."""

    status: int
    body: bytes
    wait_s: float | None

    @property
    def reason(self) -> str:
        """The message of the server, for people."""
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            found = decode_json(self.body, dict[str, Any]).get("error")
            if isinstance(found, dict) and isinstance(found.get("message"), str):
                return f"HTTP {self.status}: {printable(found['message'], 300)}"
        return f"HTTP {self.status}"


class Connection:
    """Sends requests one after the other, over one connection as long as the server keeps it open."""

    def __init__(self, address: ServerAddress, key: Callable[[], str | None], *, timeout_s: float = 30.0) -> None:
        """Prepare a connection, which is opened by the first request.

        Args:
            address: the server.
            key: returns the key; called for each request, because the key may have been replaced.
            timeout_s: limit for connecting and for each read.
        """
        self.address = address
        self._key = key
        self._timeout_s = timeout_s
        self._open: http.client.HTTPConnection | None = None

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> ServerResponse:
        """Send a request and return the answer, whatever its status.

        Raises:
            ConnectionFailedError: if there was no complete answer.
        """
        key = self._key()
        given = {
            "Content-Type": "application/json",
            "User-Agent": f"tachograph/{__version__}",
            **({"Authorization": f"Bearer {key}"} if key else {}),
            **(headers or {}),
        }
        is_reused = self._open is not None
        try:
            return self._send(method, path, body, given)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # The server closes a connection that was idle for too long. All requests can be repeated.
            if not is_reused or isinstance(error, TimeoutError):
                raise ConnectionFailedError(_describe(error, self._timeout_s)) from None
        try:
            return self._send(method, path, body, given)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ConnectionFailedError(_describe(error, self._timeout_s)) from None

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open.close()
            self._open = None

    def _send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ServerResponse:
        if self._open is None:
            self._open = _connect(self.address, self._timeout_s)
        self._open.request(method, self.address.prefix + path, body, dict(headers))
        answer = self._open.getresponse()
        data = answer.read(_MAX_ANSWER_BYTES + 1)
        if len(data) > _MAX_ANSWER_BYTES:
            raise http.client.HTTPException("the answer is too long")
        if answer.length:  # `read` does not raise if it is given a size
            raise http.client.IncompleteRead(data, answer.length)
        response = ServerResponse(answer.status, data, retry_after_s(answer.headers))
        if answer.will_close:
            self.close()
        return response


def printable(text: str, max_chars: int) -> str:
    """Return text of a server without characters that could control a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:max_chars])


def _connect(address: ServerAddress, timeout_s: float) -> http.client.HTTPConnection:
    is_tls = address.scheme == "https"
    proxy = _proxy_of(address)
    if proxy is None:
        return _new_connection(is_tls, address.host, address.port, timeout_s)
    # To the proxy itself in plain HTTP, as usual; TLS to the server goes through its tunnel.
    headers = {}
    if proxy.username:
        credentials = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
    connection = _new_connection(is_tls, proxy.hostname or "", proxy.port or 80, timeout_s)
    connection.set_tunnel(address.host, address.port, headers)
    return connection


def _new_connection(is_tls: bool, host: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
    if is_tls:
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _proxy_of(address: ServerAddress) -> urllib.parse.SplitResult | None:
    if address.is_loopback or urllib.request.proxy_bypass(address.host):
        return None
    proxies = urllib.request.getproxies()
    text = proxies.get(address.scheme) or proxies.get("all")
    if not text:
        return None
    return urllib.parse.urlsplit(text if "://" in text else f"http://{text}")


def _describe(error: BaseException, timeout_s: float) -> str:
    """Return a text that quotes no address with a secret: those of proxies may contain one."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return error.strerror if isinstance(error.strerror, str) and error.strerror else type(error).__name__
    return f"the answer was cut off ({type(error).__name__})"
