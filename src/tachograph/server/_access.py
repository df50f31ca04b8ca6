"""The access gate: every request passes these checks before any other code handles it.

1. **Host.** The `Host` header must be `localhost`, an IP address or a configured name. Otherwise a page on another site
   could point its own domain at this server (DNS rebinding) and read responses as same-origin. An IP address is safe
   because no name was resolved; without a token only loopback addresses are accepted.
2. **Size and type.** A body has a size limit, and a `POST` must be JSON, which a cross-site HTML form cannot send.
   A form can send neither `PUT` nor `DELETE`.
3. **Origin.** A request that changes state must come from this server's own pages (`Origin` equals `Host`) or from a
   program that sends no `Origin` at all.
4. **User.** `/api/` requires the token, as a bearer header or a cookie, unless the connection comes from a process of
   the owner (see `_peer`): every user of a machine can connect to a port on 127.0.0.1. A request that a proxy forwarded
   needs the token in any case, because the proxy runs as the owner for every sender.

The printed URL carries the token in its fragment, `/#token=…`, which browsers do not send. The page exchanges it for
the cookie and removes it from the address.

The gate also adds the security headers to every response.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tachograph.server._errors import ApiError, error_response
from tachograph.server._models import LoginForm
from tachograph.server._peer import PEER_UID

__all__ = ["OPEN_PATHS", "Access", "AccessGate", "check_json", "is_loopback"]

MAX_BODY_BYTES = 64 << 10
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
OPEN_PATHS = ("/healthz", "/api/v1/login", "/api/v1/logout", "/api/v1/openapi.json")
_PROXY_HEADERS = {"forwarded", "x-real-ip", "via"}
_SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self'; "
        "connect-src 'self'; font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """The access policy: the token, the accepted host names and the cookie.

    Args:
        token: Required for every API request; None allows every request, for an application that checks access itself.
        hosts: Accepted `Host` names besides `localhost`.
        port: The server's port.
        owner_uid: The user whose own processes need no token; only for a server that listens on loopback.
        token_path: The file that holds the token; its path is shown to local users.
    """

    login_form = LoginForm("token")

    def __init__(
        self,
        token: str | None = None,
        hosts: tuple[str, ...] = (),
        port: int = 0,
        *,
        owner_uid: int | None = None,
        token_path: str | None = None,
    ) -> None:
        self.token = token
        self.owner_uid = owner_uid
        self.token_path = token_path
        # Cookies ignore ports: with one name, two servers on a machine would overwrite each other's cookie. For the
        # same reason a browser sends the cookie to every server on this host, so its value must not be the token.
        self.cookie = f"tacho_token_{port}"
        self.cookie_value = hmac.new((token or "").encode(), self.cookie.encode(), hashlib.sha256).hexdigest()
        self._is_local = token is None or owner_uid is not None
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        if not self._is_local:  # other machines can only connect when everyone needs the token
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allows_host(self, header: str) -> bool:
        """Return whether a `Host` header names this server."""
        host = _parse_host(header)
        if host is None:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host in self._hosts
        # A local server listens on loopback only, so any other address is not ours.
        return address.is_loopback or not self._is_local or host in self._hosts

    def check_request(self, scope: Scope, headers: Headers) -> None:
        """Raise `ApiError` for a request that no user may make."""

    def matches_token(self, candidate: str | None) -> bool:
        """Compare a token in constant time, so that response times reveal nothing about it."""
        return self.token is None or (candidate is not None and _is_equal(candidate, self.token))

    def check_user(self, scope: Scope, headers: Headers) -> None:
        """Raise `ApiError` unless a request comes from the owner's own process or carries the token or the cookie."""
        if self.token is None or self._has_token(headers):
            return
        peer_uid = scope.get("state", {}).get(PEER_UID)
        is_forwarded = any(name in _PROXY_HEADERS or name.startswith("x-forwarded-") for name in headers)
        if self.owner_uid is None:
            raise ApiError(401, "no_token", "token required: use the URL that the server printed at startup")
        where = f"the token in {self.token_path}" if self.token_path else "the URL that the server printed at startup"
        if is_forwarded:
            raise ApiError(401, "no_token", f"token required behind a proxy: use {where}")
        if peer_uid is None:
            raise ApiError(401, "no_token", f"token required, because your user could not be determined: use {where}")
        if peer_uid != self.owner_uid:
            hint = "to see your own runs, start your own with `tacho ui --port 0`"
            message = f"this dashboard belongs to another user of this machine, {_user_name(self.owner_uid)}; {hint}"
            raise ApiError(401, "other_user", f"{message}; only its owner can log in here, with {where}")

    def log_in(self, scope: Scope, headers: Headers, token: str, response: Response) -> None:
        """Exchange the token for a cookie that scripts cannot read and other sites cannot send.

        Raises:
            ApiError: if the token is wrong.
        """
        if not self.matches_token(token):
            raise ApiError(401, "wrong_token", "wrong token; use the one of the user who started the server")
        response.set_cookie(
            self.cookie, self.cookie_value, max_age=30 * 86_400, httponly=True, samesite="strict", path="/"
        )

    def log_out(self, response: Response) -> None:
        """Remove the cookie from the browser."""
        response.delete_cookie(self.cookie, httponly=True, samesite="strict", path="/")

    def _has_token(self, headers: Headers) -> bool:
        """Return whether a request carries the token in its `Authorization` header, or the cookie."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.matches_token(bearer.strip()):
            return True
        return _is_equal(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""), self.cookie_value)


def _is_equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode())


def _user_name(uid: int) -> str:
    try:
        import pwd  # not on Windows

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


class AccessGate:
    """ASGI middleware that applies an `Access` policy. It must be the outermost layer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on; otherwise send the error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, _limit_body(receive), send_with_headers)
        except ApiError as error:
            await error_response(error)(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        """Raise `ApiError` for a rejected request."""
        headers = Headers(scope=scope)
        if not self._access.allows_host(headers.get("host", "")):
            hint = "use an IP address, or start the server with --allow-host NAME"
            raise ApiError(421, "unknown_host", f"unknown host {headers.get('host', '')[:100]!r}; {hint}")
        self._access.check_request(scope, headers)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MAX_BODY_BYTES:
            raise _body_too_large()
        if scope["method"] not in _SAFE_METHODS:
            _check_origin(headers)
        if scope["method"] == "POST":
            check_json(headers)
        if scope["path"].startswith("/api/") and scope["path"] not in OPEN_PATHS:
            self._access.check_user(scope, headers)


def check_json(headers: Headers) -> None:
    """Raise `ApiError` if a body is not declared to be JSON."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(415, "not_json", "send the body as JSON, with Content-Type: application/json")


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.partition("://")
        if scheme not in {"http", "https"} or host.lower() != headers.get("host", "").lower():
            raise ApiError(403, "wrong_origin", f"rejected: a page from {origin[:100]!r} cannot change anything here")
    elif headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise ApiError(403, "wrong_origin", "rejected: a page from another site cannot change anything here")


def _parse_host(header: str) -> str | None:
    """Return the host of a `Host` header, without port and brackets; None if the header is invalid."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\\\s]+)(?::\d{1,5})?", header)
    return match[1].strip("[]").lower() if match else None


def _limit_body(receive: Receive) -> Receive:
    """Reject a body that grows beyond the limit; a chunked request has no `Content-Length` to check up front."""
    num_bytes = 0

    async def limited_receive() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise _body_too_large()
        return message

    return limited_receive


def _body_too_large() -> ApiError:
    return ApiError(413, "too_large", f"the body exceeds {MAX_BODY_BYTES} bytes")
