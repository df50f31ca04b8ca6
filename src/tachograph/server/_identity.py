"""The person or machine behind a request to a team's server, with its scopes and its project."""

from __future__ import annotations

from typing import Literal, NamedTuple

from starlette.types import Scope as RequestScope

__all__ = ["IDENTITY", "SCOPES", "Identity", "Scope", "identity_of"]

Scope = Literal["write", "read", "control", "admin"]
SCOPES: dict[Scope, str] = {
    "write": "send runs",
    "read": "see runs",
    "control": "control runs that allow it",
    "admin": "do everything, also delete runs",
}
"""What each scope allows."""

IDENTITY = "tachograph.identity"
"""The key in the state of a request."""


class Identity(NamedTuple):
    """An access key, or a user whom a proxy has authenticated."""

    name: str
    scopes: frozenset[Scope]
    project: str | None = None
    """The only project that it gives access to; None for all."""
    key_id: str = ""
    expires: float | None = None

    def allows(self, scope: Scope) -> bool:
        """Return whether the scope is among the granted ones; `admin` includes all."""
        return scope in self.scopes or "admin" in self.scopes


def identity_of(scope: RequestScope) -> Identity | None:
    """Return the identity behind a request; None on a private dashboard, which has one user."""
    identity = scope.get("state", {}).get(IDENTITY)
    return identity if isinstance(identity, Identity) else None
