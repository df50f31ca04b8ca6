"""HTTP: single requests, and connections that stay open. Redirects are never followed.

`post` and `get` send one request to one address. Three properties matter to their callers:

* **Deadline.** ``timeout_s`` limits the connection and every single read. The body is read until one overall deadline,
  so that a response without end costs no more than ``timeout_s``.
* **Hook.** ``before_send`` runs when the connection is established (name resolution, proxy and TLS are done) and before
  the first byte of the request is written. A caller that must re-check something at the last moment does it there and
  raises `DeliveryError` to cancel.
* **No secrets in errors.** Webhook addresses contain tokens. An error carries no text and no exception context that
  could quote the address.

`HttpConnection` sends many requests to one server. A request must be repeatable, because the server may close an idle
connection at the moment at which the next request is sent.
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
import os
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from tachograph._base.guard import faults, suppress
from tachograph._base.tls import enter_tls, leave_tls, tls_section
from tachograph._base.version import __version__

__all__ = [
    "DeliveryError",
    "HttpConnection",
    "HttpResponse",
    "check_response",
    "get",
    "is_local",
    "post",
    "retry_after_s",
]

_MAX_RESPONSE_BYTES = 64 << 10
_MAX_WAIT_S = 3_600.0
_RETRYABLE_STATUSES = {408, 425, 429}


class DeliveryError(Exception):
    """A message was not delivered. The text contains no secret.

    Attributes:
        may_retry: whether the same message may be delivered later.
        wait_s: the delay that the receiver asks for, if any.
    """

    def __init__(self, reason: str, *, may_retry: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.may_retry = may_retry
        self.wait_s = wait_s


class HttpResponse(NamedTuple):
    """Status, body, requested wait and `Content-Encoding` of a response; `post` and `get` read 64 KiB of the body."""

    status: int
    body: bytes
    wait_s: float | None
    encoding: str = ""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; empty if it is anything else."""
        try:
            values = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}


class _TlsConnection(http.client.HTTPSConnection):
    """A connection whose handshake ends when the process exits; see `tachograph._base.tls`."""

    _context: ssl.SSLContext
    _tunnel_host: str | None

    def connect(self) -> None:
        """Connect, then do the handshake on a socket that the exit handler knows."""
        http.client.HTTPConnection.connect(self)
        enter_tls()
        name = self._tunnel_host or self.host
        self.sock = self._context.wrap_socket(self.sock, server_hostname=name, do_handshake_on_connect=False)
        enter_tls(self.sock)
        self.sock.do_handshake()


def post(
    address: Callable[[], str],
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    before_send: Callable[[], None] = lambda: None,
    tls: ssl.SSLContext | None = None,
) -> HttpResponse:
    """Send a body and return the response, whatever its status. Proxy settings of the environment apply.

    Args:
        address: returns the URL. Called at the last moment, so that a secret URL appears in no traceback.
        body: bytes to send.
        headers: added to the default ones.
        timeout_s: limit for the connection, for each read and for reading the whole body.
        before_send: called once the connection is established, before anything is sent. May raise `DeliveryError`.
        tls: certificates to use instead of the trust store of the system.

    Raises:
        DeliveryError: if there was no response, or `before_send` raised it.
    """
    headers = {"Content-Type": "application/json; charset=utf-8", **headers}
    return _exchange("POST", address, body, headers, timeout_s, before_send, tls)


def get(url: str, headers: Mapping[str, str], *, timeout_s: float) -> HttpResponse:
    """Ask for a resource and return the response, whatever its status; see `post`.

    Raises:
        DeliveryError: if there was no response.
    """
    return _exchange("GET", lambda: url, None, headers, timeout_s, lambda: None, None)


def _exchange(
    method: str,
    address: Callable[[], str],
    body: bytes | None,
    headers: Mapping[str, str],
    timeout_s: float,
    before_send: Callable[[], None],
    tls: ssl.SSLContext | None,
) -> HttpResponse:
    deadline_s = time.monotonic() + timeout_s
    headers = {"User-Agent": f"tachograph/{__version__}", "Connection": "close", **headers}
    connection: HttpConnection | None = None
    try:
        url = urllib.parse.urlsplit(address())  # the scheme was validated at setup
        connection = HttpConnection(
            url.hostname or "",
            url.port or (443 if url.scheme == "https" else 80),
            is_secure=url.scheme == "https",
            timeout_s=timeout_s,
            uses_proxy=not is_local(url.hostname or ""),
            before_send=before_send,
            tls=tls,
        )
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return connection.exchange(method, target, body, headers, lambda response: _read_body(response, deadline_s))
    except Exception as error:  # noqa: BLE001 - many of them quote the address
        failure = _delivery_error(error, timeout_s)
    finally:
        if connection is not None:
            connection.close()
    try:
        raise failure  # outside of the handler above, so that the original error is not its context
    finally:
        del failure  # breaks the cycle of exception, traceback and this frame


def is_local(host: str) -> bool:
    """Return whether a host is this machine: a local message must not be shown to a proxy."""
    return host in {"localhost", "::1"} or host.startswith("127.")


@functools.lru_cache(maxsize=4)
def _tls_context(_variables: tuple[str | None, ...] = ()) -> ssl.SSLContext:
    """Return the context that verifies certificates. Cached: loading the trust store takes tens of milliseconds.

    Args:
        _variables: the values of the variables that name other certificates.
    """
    with tls_section():
        return ssl.create_default_context()


def check_response(response: HttpResponse, clean: Callable[[str, int], str]) -> None:
    """Raise `DeliveryError` unless the status is a success.

    Args:
        response: as returned by `post` or `get`.
        clean: returns the body, shortened to a number of characters, as it may be shown to people.
    """
    status = response.status
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise DeliveryError(
            f"HTTP {status}: redirected to another address; redirects are not followed, so configure that address "
            "if it is correct"
        )
    text = clean(response.text, 200)
    may_retry = status >= 500 or status in _RETRYABLE_STATUSES
    raise DeliveryError(f"HTTP {status}{': ' if text else ''}{text}", may_retry=may_retry, wait_s=response.wait_s)


def _read_body(response: Any, deadline_s: float) -> bytes:
    chunks: list[bytes] = []
    num_left = _MAX_RESPONSE_BYTES
    while num_left > 0 and time.monotonic() < deadline_s:
        chunk = response.read1(num_left)
        if not chunk:
            break
        chunks.append(chunk)
        num_left -= len(chunk)
    return b"".join(chunks)


def retry_after_s(headers: Any) -> float | None:
    """Return the wait that the header `Retry-After` of a response requests, in seconds or as a date."""
    value = headers.get("Retry-After", "").strip()
    try:
        wait_s = (
            float(value)
            if value.replace(".", "", 1).isdigit()
            else parsedate_to_datetime(value).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait_s, 0.0), _MAX_WAIT_S)


def _delivery_error(error: Exception, timeout_s: float) -> DeliveryError:
    if isinstance(error, DeliveryError):
        return DeliveryError(str(error), may_retry=error.may_retry, wait_s=error.wait_s)  # without its traceback
    if isinstance(error, TimeoutError):
        return DeliveryError(f"no response within {timeout_s:g} s", may_retry=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        return DeliveryError(f"the receiver's certificate is not trusted: {error.verify_message}")
    if isinstance(error, http.client.InvalidURL) or not isinstance(error, (OSError, http.client.HTTPException)):
        return DeliveryError(f"it cannot be sent: {type(error).__name__}")
    # The text of such an error may quote the address; the system's text for an error number does not.
    text = error.strerror if isinstance(error, OSError) and isinstance(error.strerror, str) else ""
    return DeliveryError(f"cannot connect: {text or type(error).__name__}", may_retry=True)


# Connections that stay open ------------------------------------------------------------------------------------------


class HttpConnection:
    """Sends requests one after the other, over one connection as long as the server keeps it open.

    Not thread-safe, except for `close`. The variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name certificates to trust, as
    for other programs.

    Args:
        host: the server.
        port: its port.
        is_secure: whether to use TLS.
        timeout_s: limit for connecting and for each read.
        uses_proxy: whether proxy settings of the environment apply.
        max_response_bytes: the maximum size of a response; unlimited by default.
        before_send: called whenever a connection is established, before anything is sent over it.
        tls: certificates to use instead of the trust store of the system.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        is_secure: bool,
        timeout_s: float,
        uses_proxy: bool = False,
        max_response_bytes: int | None = None,
        before_send: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._is_secure = is_secure
        self._timeout_s = timeout_s
        self._uses_proxy = uses_proxy
        self._max_response_bytes = max_response_bytes
        self._before_send = before_send
        self._tls = tls
        self._connection: http.client.HTTPConnection | None = None
        self._proxy_headers: dict[str, str] = {}
        self._target_prefix = ""
        """The beginning of each target, for a proxy that forwards requests."""

    def request(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
        """Send a request and return the complete response, whatever its status.

        A request over a connection that was open before is repeated once, unless it timed out.

        Raises:
            OSError: if the server cannot be reached.
            http.client.HTTPException: if the response is invalid, incomplete or too long.
        """
        is_reused = self._connection is not None
        try:
            return self.exchange(method, target, body, headers, self._read_all)
        except faults(OSError, http.client.HTTPException) as error:
            if not is_reused or isinstance(error, TimeoutError):
                raise
        return self.exchange(method, target, body, headers, self._read_all)

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def exchange(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        read: Callable[[http.client.HTTPResponse], bytes],
    ) -> HttpResponse:
        """Send a request once and return the response; `read` returns its body, or the part of it that is needed.

        Raises:
            OSError: if the server cannot be reached.
            http.client.HTTPException: if the response is invalid.
        """
        connection = self._connection
        response = None
        try:
            if connection is None:
                connection = self._connection = self._connect()
                connection.connect()
                self._before_send()
            elif self._is_secure and connection.sock is not None:
                enter_tls(connection.sock)
            connection.request(method, self._target_prefix + target, body, {**headers, **self._proxy_headers})
            response = connection.getresponse()
            data = read(response)
        except BaseException:
            if response is not None:
                response.close()  # after `Connection: close` it owns the socket
            self.close()
            raise
        finally:
            leave_tls()
        if response.will_close:
            self.close()
        encoding = response.headers.get("Content-Encoding", "")
        return HttpResponse(response.status, data, retry_after_s(response.headers), encoding)

    def _read_all(self, response: http.client.HTTPResponse) -> bytes:
        max_bytes = self._max_response_bytes
        if max_bytes is None:
            return response.read()
        data = response.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise http.client.HTTPException("the response is too long")
        if response.length:  # `read` does not raise if it has a size
            raise http.client.IncompleteRead(data, response.length)
        return data

    def _connect(self) -> http.client.HTTPConnection:
        self._target_prefix, self._proxy_headers = "", {}
        proxy = _proxy_of("https" if self._is_secure else "http", self._host) if self._uses_proxy else None
        if proxy is None:
            return self._new_connection(self._host, self._port)
        # To the proxy itself in plain HTTP, as usual. TLS to the server goes through a tunnel; other requests are
        # forwarded, because many proxies allow tunnels to port 443 only.
        headers = {}
        if proxy.username:
            credentials = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
            headers["Proxy-Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
        connection = self._new_connection(proxy.hostname or "", proxy.port or 80)
        if self._is_secure:
            connection.set_tunnel(self._host, self._port, headers)
        else:
            host = f"[{self._host}]" if ":" in self._host else self._host
            port = "" if self._port == http.client.HTTP_PORT else f":{self._port}"
            self._target_prefix, self._proxy_headers = f"http://{host}{port}", headers
        return connection

    def _new_connection(self, host: str, port: int) -> http.client.HTTPConnection:
        if self._is_secure:
            variables = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
            context = self._tls or _tls_context(variables)
            return _TlsConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


def _proxy_of(scheme: str, host: str) -> urllib.parse.SplitResult | None:
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    text = proxies.get(scheme) or proxies.get("all")
    if not text:
        return None
    return urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
