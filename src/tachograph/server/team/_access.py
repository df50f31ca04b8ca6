"""Who may do what on a team's server.

A request is made by a key, a browser or a user whom a proxy has authenticated:

- **Key.** `Authorization: Bearer tk_…`, for programs. A key in an address is never accepted: addresses end up in logs.
- **Browser.** A page exchanges a key for a cookie, which has the id of the key, an expiry date and a signature, and not
  the key. The cookie stops working when the key does. Other sites cannot send it, and scripts cannot read it.
- **Proxy.** With `--auth-header`, the name of the user is in that header. It counts only on a connection from an
  address of `--trusted-proxy`, because anyone else could send the header, too.

Wrong keys are counted by client address; after ten within a minute, further ones are answered with 429. Right keys are
always accepted, because a whole cluster may have one address.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote_plus

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope as RequestScope

from tachograph._base.files import add_file, make_folder, read_small
from tachograph.exceptions import ConfigError
from tachograph.server._access import Access
from tachograph.server._errors import ApiError
from tachograph.server._identity import IDENTITY, Identity, Scope
from tachograph.server._models import LoginForm
from tachograph.server.team._failure_limiter import FailureLimiter
from tachograph.server.team._keys import AccessKey, KeyFileError, KeyRing
from tachograph.server.team._metrics import ServerMetrics

__all__ = ["ProxyTrust", "TeamAccess"]

_SESSION_S = 30 * 86_400.0
_KEY_IN_TEXT = re.compile(r"tk_[0-9a-f]{8}_[A-Za-z0-9_-]{20}", re.IGNORECASE)
_USER_NAME = re.compile(r"[\x21-\x7e]{1,200}")


class ProxyTrust:
    """The proxies in front of the server, and the headers that they add to a request.

    Args:
        networks: addresses or networks of proxies, such as ``10.0.0.0/8``.
        auth_header: the header that has the name of an authenticated user; None if the proxy authenticates nobody.
        scopes: the scopes of such a user.

    Raises:
        ConfigError: if an address is invalid, or a header is trusted without a proxy.
    """

    def __init__(
        self,
        networks: Sequence[str] = (),
        auth_header: str | None = None,
        scopes: frozenset[Scope] = frozenset({"read"}),
    ) -> None:
        try:
            self._networks = [ipaddress.ip_network(text.strip(), strict=False) for text in networks]
        except ValueError as error:
            raise ConfigError(f"--trusted-proxy: {error}") from None
        if auth_header and not self._networks:
            raise ConfigError("--auth-header needs --trusted-proxy: anyone could send the header otherwise")
        if auth_header and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", auth_header):
            raise ConfigError(f"--auth-header {auth_header!r}: expected the name of a header, such as X-Remote-User")
        self._header = auth_header.lower() if auth_header else None
        self._scopes = scopes

    def is_proxy(self, address: str) -> bool:
        """Return whether a connection comes from a trusted proxy."""
        try:
            client = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        ipv4_client = client.ipv4_mapped if isinstance(client, ipaddress.IPv6Address) else None
        return any((ipv4_client or client) in network for network in self._networks)

    def client_of(self, scope: RequestScope, headers: Headers) -> str:
        """Return the address of the client: the last one in `X-Forwarded-For` that is not a trusted proxy."""
        address = (scope.get("client") or ("unknown", 0))[0]
        if self.is_proxy(address):
            # Some proxies add a header of their own after the one of the client.
            for hop in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
                if hop.strip():
                    address = hop.strip()[:100]
                    if not self.is_proxy(address):
                        break
        return str(address)

    def is_encrypted(self, scope: RequestScope, headers: Headers) -> bool:
        """Return whether the client uses TLS, to us or to the proxy."""
        peer_address = (scope.get("client") or ("unknown", 0))[0]
        if self.is_proxy(peer_address) and "x-forwarded-proto" in headers:
            return headers.getlist("x-forwarded-proto")[-1].rpartition(",")[2].strip().lower() == "https"
        return bool(scope.get("scheme") == "https")

    def user_of(self, scope: RequestScope, headers: Headers) -> Identity | None:
        """Return the user whom the proxy has authenticated, if any."""
        peer_address = (scope.get("client") or ("unknown", 0))[0]
        if self._header is None or not self.is_proxy(peer_address):
            return None
        names = headers.getlist(self._header)
        if len(names) != 1 or not _USER_NAME.fullmatch(names[0]):
            return None
        return Identity(names[0], self._scopes)


class TeamAccess(Access):
    """The access policy of a team's server; see the module.

    Args:
        keys: the access keys.
        data_dir: the folder of the server, which also has the secret that signs cookies.
        hosts: accepted names of this server.
        proxy: the proxies in front of it.
        metrics: counts rejected requests.
    """

    login_form = LoginForm("access_key")

    def __init__(
        self,
        keys: KeyRing,
        data_dir: Path,
        hosts: tuple[str, ...] = (),
        *,
        proxy: ProxyTrust | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        super().__init__("unused", hosts)  # a token means: every request needs one
        self.cookie = "tacho_session"
        self.keys = keys
        self.proxy = proxy or ProxyTrust()
        self.metrics = metrics or ServerMetrics()
        self._secret = _load_secret(data_dir)
        self._limiter = FailureLimiter(data_dir)

    def check_request(self, scope: RequestScope, headers: Headers) -> None:
        """Raise `ApiError` for a key in the address, and for a body whose end is ambiguous.

        Addresses end up in histories and in the logs of proxies, so the key is no longer secret. A proxy that reads the
        other of two lengths would take the rest of a body for the next request.
        """
        query = unquote_plus(scope.get("query_string", b"").decode("latin-1"))
        if _KEY_IN_TEXT.search(scope["path"]) or _KEY_IN_TEXT.search(query):
            advice = "send it in the header Authorization: Bearer; others may have seen this one, so revoke it"
            raise self._count_rejection(
                ApiError(400, "key_in_address", f"an access key must not be in an address: {advice}")
            )
        if "transfer-encoding" in headers and "content-length" in headers:
            close = {"Connection": "close"}
            raise ApiError(400, "two_lengths", "send Content-Length or Transfer-Encoding, not both", close)

    # The dashboard and its API -------------------------------------------------------------------------------------

    def check_user(self, scope: RequestScope, headers: Headers) -> None:
        """Raise `ApiError` unless a request comes with a key, a cookie or an authenticated user."""
        identity = self.identify(scope, headers)
        if identity is None:
            raise ApiError(
                401, "no_token", "log in with an access key; an administrator creates one: tacho keys create"
            )
        scope.setdefault("state", {})[IDENTITY] = identity  # first: the audit log names it also if it is rejected
        if scope["path"] != "/api/v1/whoami" and not identity.allows("read"):
            raise ApiError(403, "not_allowed", f"the key {identity.name!r} lacks the scope `read`")

    def identify(self, scope: RequestScope, headers: Headers) -> Identity | None:
        """Return who makes a request; None if that is unknown.

        Raises:
            ApiError: if a key is wrong or its address has to wait.
        """
        if _bearer(headers) is not None:
            return _identity(self._check_key(scope, headers, _bearer(headers) or ""))
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie)
        if session:
            key = self._check_session(session)
            if key is not None:
                return _identity(key)
        return self.proxy.user_of(scope, headers)

    def log_in(self, scope: RequestScope, headers: Headers, token: str, response: Response) -> None:
        """Exchange a key for a cookie.

        Raises:
            ApiError: if the key is wrong, or lacks the scope `read`.
        """
        key = self._check_key(scope, headers, token)
        if not key.allows("read"):
            raise ApiError(403, "not_allowed", f"the key {key.name!r} lacks the scope `read`, so it cannot log in")
        expires = time.time() + _SESSION_S
        if key.expires is not None:
            expires = min(expires, key.expires)
        content = f"{key.id}.{int(expires)}"
        response.set_cookie(
            self.cookie,
            f"{content}.{self._sign(content)}",
            max_age=max(0, int(expires - time.time())),
            httponly=True,
            samesite="strict",
            secure=self.proxy.is_encrypted(scope, headers),
            path="/",
        )

    # Sending runs --------------------------------------------------------------------------------------------------

    def authenticate_key(self, scope: RequestScope, headers: Headers, required_scope: Scope) -> AccessKey:
        """Return the key of a request to send runs.

        Raises:
            ApiError: if there is none, it is wrong, or it lacks a scope.
        """
        token = _bearer(headers)
        if token is None:
            raise self._count_rejection(
                ApiError(401, "no_token", "send the access key in the header Authorization: Bearer")
            )
        key = self._check_key(scope, headers, token)
        if not key.allows(required_scope):
            raise self._count_rejection(
                ApiError(403, "not_allowed", f"the key {key.name!r} lacks the scope `{required_scope}`")
            )
        return key

    # Keys and cookies ----------------------------------------------------------------------------------------------

    def _check_key(self, scope: RequestScope, headers: Headers, token: str) -> AccessKey:
        try:
            key = self.keys.check(token)
        except KeyFileError as error:
            self.metrics.add_fault("cannot read the access keys", error)
            raise ApiError(503, "no_keys", "the server cannot read its access keys", {"Retry-After": "30"}) from None
        if key is not None:
            return key  # whatever others at the same address do: a whole cluster may have one
        client = self.proxy.client_of(scope, headers)
        wait_s = 0.0
        try:
            wait_s = self._limiter.wait_s(client)
            if wait_s == 0:
                self._limiter.add_failure(client)
        except OSError as error:
            self.metrics.add_fault("cannot count wrong keys", error)
        if wait_s > 0:
            retry = {"Retry-After": str(int(wait_s) + 1)}
            raise self._count_rejection(
                ApiError(429, "too_many_failures", "too many wrong keys from this address", retry)
            )
        raise self._count_rejection(ApiError(401, "wrong_token", "wrong, expired or revoked access key"))

    def _count_rejection(self, error: ApiError) -> ApiError:
        self.metrics.count("rejected_keys", status=error.status)
        return error

    def _check_session(self, value: str) -> AccessKey | None:
        content, _, signature = value.rpartition(".")
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(content).encode()):
            return None
        key_id, _, expires = content.partition(".")
        if not expires.isdecimal() or int(expires) < time.time():
            return None
        with contextlib.suppress(KeyFileError):
            return self.keys.find(key_id)
        return None

    def _sign(self, content: str) -> str:
        return hmac.new(self._secret, f"session:{content}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _identity(key: AccessKey) -> Identity:
    return Identity(key.name, key.scopes, key.project, key.id, key.expires)


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip()[:200] if scheme.lower() == "bearer" else None


def _load_secret(data_dir: Path) -> bytes:
    """Return the secret that signs cookies; create it if there is none."""
    folder = data_dir / ".server"
    make_folder(folder, below=data_dir, mode=0o700)
    add_file(folder / "session.key", os.urandom(32), below=data_dir, mode=0o600)
    secret = read_small(folder / "session.key", 64, below=data_dir)
    if len(secret) != 32:
        raise ConfigError(f"{folder / 'session.key'} is damaged: delete it, and everyone has to log in again")
    return secret
