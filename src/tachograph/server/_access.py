"""The access gate: every request passes these checks before any other code handles it.

1. **Host.** The `Host` header must be `localhost`, an IP address or a configured name. Otherwise a page on another site
   could point its own domain at this server (DNS rebinding) and read responses as same-origin. An IP address is safe
   because no name was resolved; without a token only loopback addresses are accepted.
2. **Size and type.** A body has a size limit, and a `POST` must be JSON, which a cross-site HTML form cannot send.
3. **Origin.** A request that changes state must come from this server's own pages (`Origin` equals `Host`) or from a
   program that sends no `Origin` at all.
4. **Token.** If the server has a token, `/api/` requires it as a bearer header or a cookie. Opening the printed URL,
   `/?token=…`, sets the cookie and redirects, so that the token does not stay in the address bar.

The gate also adds the security headers to every response.
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

from tachograph.server._errors import ApiError, error_response

__all__ = ["Access", "AccessGate", "is_loopback", "set_token_cookie"]

MAX_BODY_BYTES = 64 << 10
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_OPEN_PATHS = ("/healthz", "/api/v1/login", "/api/v1/openapi.json")
_SECURITY_HEADERS = {
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
    """Return whether only this machine can reach a server that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """The access policy: the token, the accepted host names and the cookie name.

    Args:
        token: Required for every API request; None allows every local request.
        hosts: Accepted `Host` names besides `localhost`.
        port: The server's port.
    """

    def __init__(self, token: str | None = None, hosts: tuple[str, ...] = (), port: int = 0) -> None:
        self.token = token
        # Cookies ignore ports: with one name, two servers on a machine would overwrite each other's cookie.
        self.cookie = f"tacho_token_{port}"
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        if token is not None:  # other machines can only connect when there is a token
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
        # Without a token the server listens on loopback only, so any other address is not ours.
        return address.is_loopback or self.token is not None or host in self._hosts

    def matches_token(self, given: str | None) -> bool:
        """Compare a token in constant time, so that response times reveal nothing about it."""
        if self.token is None:
            return True
        return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def has_token(self, headers: Headers) -> bool:
        """Return whether a request carries the token in its `Authorization` header or cookie."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.matches_token(bearer.strip()):
            return True
        return self.matches_token(cookie_parser(headers.get("cookie", "")).get(self.cookie))


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
            redirect = self._check(scope)
            if redirect is not None:
                await redirect(scope, receive, send_with_headers)
                return
            await self._app(scope, _limit_body(receive), send_with_headers)
        except ApiError as error:
            await error_response(error)(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> RedirectResponse | None:
        """Raise `ApiError` for a rejected request; return a redirect if the address carries the token."""
        headers = Headers(scope=scope)
        if not self._access.allows_host(headers.get("host", "")):
            hint = "use an IP address, or start the server with --allow-host NAME"
            raise ApiError(421, "unknown_host", f"unknown host {headers.get('host', '')[:100]!r}; {hint}")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > MAX_BODY_BYTES:
            raise _body_too_large()
        if scope["method"] not in _SAFE_METHODS:
            _check_origin(headers)
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and media_type != "application/json":
            raise ApiError(415, "not_json", "send the body as JSON, with Content-Type: application/json")
        if self._access.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if scope["path"] == "/" and given is not None and self._access.matches_token(given):
            return self._redirect_with_cookie(urlencode([item for item in query if item[0] != "token"]))
        needs_token = scope["path"].startswith("/api/") and scope["path"] not in _OPEN_PATHS
        if needs_token and not self._access.has_token(headers):
            raise ApiError(401, "no_token", "token required: send the token that the server printed at startup")
        return None

    def _redirect_with_cookie(self, query: str) -> RedirectResponse:
        """Move the token from the printed address into a cookie."""
        response = RedirectResponse(f"/?{query}" if query else "/", status_code=303)
        set_token_cookie(response, self._access)
        return response


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.partition("://")
        if scheme not in {"http", "https"} or host.lower() != headers.get("host", "").lower():
            raise ApiError(403, "wrong_origin", f"rejected: a page from {origin[:100]!r} cannot change anything here")
    elif headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise ApiError(403, "wrong_origin", "rejected: a page from another site cannot change anything here")


def set_token_cookie(response: Response, access: Access) -> None:
    """Store the token in a cookie that scripts cannot read and other sites cannot send."""
    if access.token is not None:
        response.set_cookie(
            access.cookie, access.token, max_age=30 * 86_400, httponly=True, samesite="strict", path="/"
        )


def _parse_host(header: str) -> str | None:
    """Return the host of a `Host` header, without port and brackets; None if the header is invalid."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/\\\s]+)(?::\d{1,5})?", header)
    return found[1].strip("[]").lower() if found else None


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
