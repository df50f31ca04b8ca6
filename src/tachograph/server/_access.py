"""Who may ask: checked before anything else is done with a request.

- The `Host` must be one that this server goes by, or a page elsewhere could reach it under a name of its own (DNS
  rebinding). An address in digits is always fine: no name was looked up.
- Whoever is not on this machine needs the token, in a header or a cookie.
- What changes something must come from this server's own pages or from no page at all, and bear JSON.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tachograph.server._faults import ApiError, fault_response

__all__ = ["Access", "Gate", "is_loopback"]

MAX_BODY_BYTES = 64 << 10
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_OPEN_PATHS = ("/healthz", "/api/v1/login", "/api/v1/openapi.json")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """The token, the names the server goes by, and the name of its cookie."""

    def __init__(self, token: str | None = None, hosts: tuple[str, ...] = (), port: int = 0) -> None:
        self.token = token
        self.cookie = f"tacho_token_{port}"  # cookies know no ports: two servers must not undo each other's
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        if token is not None:  # only then can others reach it, by the name of the machine
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def knows_host(self, header: str) -> bool:
        """Tell whether a `Host` header names this server."""
        host = _host_name(header)
        if host is None:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host in self._hosts
        # Without a token the server is on this machine only, and so must be the address.
        return address.is_loopback or self.token is not None or host in self._hosts

    def is_token(self, given: str | None) -> bool:
        """Tell whether this is the token; takes as long for a wrong one."""
        if self.token is None:
            return True
        return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def has_token(self, headers: Headers) -> bool:
        """Tell whether a request bears the token."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(bearer.strip()):
            return True
        return self.is_token(cookie_parser(headers.get("cookie", "")).get(self.cookie))


class Gate:
    """The outermost layer of the server."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            entrance = self._check(scope)
            if entrance is not None:
                await entrance(scope, receive, send_safely)
                return
            await self._app(scope, _limited(receive), send_safely)
        except ApiError as error:
            await fault_response(error)(scope, receive, send_safely)

    def _check(self, scope: Scope) -> RedirectResponse | None:
        headers = Headers(scope=scope)
        if not self._access.knows_host(headers.get("host", "")):
            hint = "use an address in digits, or start the server with --allow-host NAME"
            raise ApiError(
                421, "unknown_host", f"this server does not go by the name {headers.get('host', '')[:100]!r}; {hint}"
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MAX_BODY_BYTES:
            raise ApiError(413, "too_large", f"a body may have at most {MAX_BODY_BYTES} bytes")
        if scope["method"] not in _SAFE_METHODS:
            _check_origin(headers)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            raise ApiError(415, "not_json", "the body must be sent as application/json")
        if self._access.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if scope["path"] == "/" and given is not None and self._access.is_token(given):
            return self._enter(urlencode([item for item in query if item[0] != "token"]))
        needs_token = scope["path"].startswith("/api/") and scope["path"] not in _OPEN_PATHS
        if needs_token and not self._access.has_token(headers):
            raise ApiError(401, "no_token", "give the token that the server printed when it started")
        return None

    def _enter(self, query: str) -> RedirectResponse:
        """Put the token from the printed address into a cookie, and take it out of the address."""
        response = RedirectResponse(f"/?{query}" if query else "/", status_code=303)
        set_cookie(response, self._access)
        return response


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.partition("://")
        if scheme not in {"http", "https"} or host.lower() != headers.get("host", "").lower():
            raise ApiError(403, "wrong_origin", f"a page of {origin[:100]!r} may not change anything here")
    elif headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise ApiError(403, "wrong_origin", "a page of another site may not change anything here")


def set_cookie(response: Response, access: Access) -> None:
    """Let the browser keep the token where no script can read it."""
    if access.token is not None:
        response.set_cookie(
            access.cookie, access.token, max_age=30 * 86_400, httponly=True, samesite="strict", path="/"
        )


def _host_name(header: str) -> str | None:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\\\s]+)(?::\d{1,5})?", header)
    return found[1].strip("[]").lower() if found else None


def _limited(receive: Receive) -> Receive:
    num_bytes = 0

    async def limited() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise ApiError(413, "too_large", f"a body may have at most {MAX_BODY_BYTES} bytes")
        return message

    return limited
