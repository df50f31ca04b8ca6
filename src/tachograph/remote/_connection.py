"""One kept-alive HTTP connection to a team's server.

The key travels only in the header `Authorization`, never in an address. Redirects are not followed, because they could
take the key to another host. Proxy settings of the environment apply, except for this machine itself. The variables
`SSL_CERT_FILE` and `SSL_CERT_DIR` name certificates to trust, as for other programs.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from tachograph._base.http import HttpConnection
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
            error = decode_json(self.body, dict[str, Any]).get("error")
            if isinstance(error, dict) and isinstance(error.get("message"), str):
                return f"HTTP {self.status}: {printable(error['message'], 300)}"
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
        self._connection = HttpConnection(
            address.host,
            address.port,
            is_secure=address.scheme == "https",
            timeout_s=timeout_s,
            uses_proxy=not address.is_loopback,
            max_response_bytes=_MAX_ANSWER_BYTES,
        )

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> ServerResponse:
        """Send a request and return the answer, whatever its status.

        Raises:
            ConnectionFailedError: if there was no complete answer.
        """
        key = self._key()
        all_headers = {
            "Content-Type": "application/json",
            "User-Agent": f"tachograph/{__version__}",
            **({"Authorization": f"Bearer {key}"} if key else {}),
            **(headers or {}),
        }
        try:
            response = self._connection.request(method, self.address.prefix + path, body, all_headers)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailedError(_describe(error, self._timeout_s)) from None
        return ServerResponse(response.status, response.body, response.wait_s)

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._connection.close()


def printable(text: str, max_chars: int) -> str:
    """Return text of a server without characters that could control a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:max_chars])


def _describe(error: BaseException, timeout_s: float) -> str:
    """Return a text that quotes no address: the address of a proxy may contain a secret."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return error.strerror if isinstance(error.strerror, str) and error.strerror else type(error).__name__
    return f"the answer was cut off ({type(error).__name__})"
