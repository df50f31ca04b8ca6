"""One POST to one address: bounded in time and size, and never led elsewhere."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from tachograph._version import __version__

__all__ = ["HttpResponse", "DeliveryError", "check_response", "post"]

_MOST_ANSWER_BYTES = 64 << 10
_LONGEST_WAIT_S = 3_600.0
_WORTH_ANOTHER_TRY = {408, 425, 429}


class DeliveryError(Exception):
    """A message did not arrive. Its text holds no secret.

    Attributes:
        may_retry: whether the same message may arrive later.
        wait_s: how long the receiver asks us to wait, if it does.
    """

    def __init__(self, reason: str, *, may_retry: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.may_retry = may_retry
        self.wait_s = wait_s


class HttpResponse(NamedTuple):
    """What the receiver said."""

    status: int
    text: str
    wait_s: float | None

    def json(self) -> dict[str, Any]:
        """Return the answer as an object, empty if it is none."""
        try:
            values = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A message is meant for one address: whoever answers for it cannot send it on to another."""

    def redirect_request(self, *_arguments: Any) -> None:
        """Follow none."""


class _UnwantedError(Exception):
    """Whoever wanted a message to be sent does so no longer."""


class _Asking:
    """A connection that asks, once it stands, whether the message is still wanted."""

    is_wanted: Callable[[], bool]

    def connect(self) -> None:
        super().connect()  # type: ignore[misc] # there is one beside
        if not self.is_wanted():
            raise _UnwantedError


class _Connection(_Asking, http.client.HTTPConnection):
    pass


class _SecureConnection(_Asking, http.client.HTTPSConnection):
    pass


class _Request(urllib.request.Request):
    is_wanted: Callable[[], bool]


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: Any) -> Any:
        return self.do_open(functools.partial(_asking, _Connection, request.is_wanted), request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: Any) -> Any:
        connect = functools.partial(_asking, _SecureConnection, request.is_wanted, context=_context())
        return self.do_open(connect, request)


def _asking(kind: type[Any], is_wanted: Callable[[], bool], host: str, **options: Any) -> Any:
    connection = kind(host, **options)
    connection.is_wanted = is_wanted
    return connection


def post(
    address: Callable[[], str],
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> HttpResponse:
    """Send a body and return the answer, whatever its status. Proxies of the environment are used.

    Args:
        address: returns where to; asked at the last moment, so that a secret one is in no traceback.
        body: what to send.
        headers: those beside the usual ones.
        timeout_s: longest wait for the connection, and for each part of the answer.
        is_wanted: tells whether to send it still, once there is a connection, which may have taken long.

    Raises:
        DeliveryError: if there was no answer.
    """
    deadline_s = time.monotonic() + timeout_s
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"tachograph/{__version__}", **headers}
    try:
        request = _Request(address(), body, headers, method="POST")  # checked at set-up
        request.is_wanted = is_wanted  # here: an opener and its handlers hold each other, and would hold it
        opener = urllib.request.build_opener(
            _NoRedirects,
            _Http,
            _Https(context=_context()),
            *_proxies(urllib.parse.urlsplit(request.full_url).hostname or ""),
        )
        try:
            response = opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return HttpResponse(response.status or 0, _text(response, deadline_s), _wait_s(response.headers))
    except Exception as error:  # noqa: BLE001 - many of them quote the address
        failure = _undelivered(error, timeout_s)
    try:
        raise failure  # here, where the error that may quote the address is no longer its context
    finally:
        del failure  # or it and this frame would hold each other, and all that the callers hold


def _proxies(host: str) -> list[urllib.request.ProxyHandler]:
    """Return what keeps a message for this machine on it, instead of showing it to a proxy."""
    is_here = host in {"localhost", "::1"} or host.startswith("127.")
    return [urllib.request.ProxyHandler({})] if is_here else []


@functools.cache
def _context() -> ssl.SSLContext:
    """Return what checks certificates; reading all that are trusted takes tens of milliseconds."""
    return ssl.create_default_context()


def check_response(answer: HttpResponse, clean: Callable[[str, int], str]) -> None:
    """Raise `DeliveryError` unless the status says that the message was taken."""
    status = answer.status
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise DeliveryError(
            f"HTTP {status}: it leads to another address, which is not followed; set that one if it is right"
        )
    said = clean(answer.text, 200)
    may_retry = status >= 500 or status in _WORTH_ANOTHER_TRY
    raise DeliveryError(f"HTTP {status}{': ' if said else ''}{said}", may_retry=may_retry, wait_s=answer.wait_s)


def _text(response: Any, deadline_s: float) -> str:
    pieces: list[bytes] = []
    left = _MOST_ANSWER_BYTES
    while left > 0 and time.monotonic() < deadline_s:
        piece = response.read1(left)
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces).decode("utf-8", "replace")


def _wait_s(headers: Any) -> float | None:
    given = headers.get("Retry-After", "").strip()
    try:
        wait_s = (
            float(given)
            if given.replace(".", "", 1).isdigit()
            else parsedate_to_datetime(given).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait_s, 0.0), _LONGEST_WAIT_S)


def _undelivered(error: Exception, timeout_s: float) -> DeliveryError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, _UnwantedError):
        return DeliveryError("it is no longer wanted", may_retry=True)
    if isinstance(reason, TimeoutError):
        return DeliveryError(f"no answer within {timeout_s:g} s", may_retry=True)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DeliveryError(f"its certificate is not trusted: {reason.verify_message}")
    if isinstance(reason, http.client.InvalidURL) or not isinstance(reason, (OSError, http.client.HTTPException)):
        return DeliveryError(f"it cannot be sent: {type(reason).__name__}")
    # Their own texts may quote the address; the system's words for an error number do not.
    words = reason.strerror if isinstance(reason, OSError) and isinstance(reason.strerror, str) else ""
    return DeliveryError(f"it cannot be reached: {words or type(reason).__name__}", may_retry=True)
