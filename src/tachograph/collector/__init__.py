"""Runs of many machines on one server: access keys, addresses and credentials."""

from tachograph.collector._address import ServerAddress, parse_server
from tachograph.collector._failure_limiter import FailureLimiter
from tachograph.collector._keys import (
    SCOPES,
    TOKEN_FORMAT,
    AccessKey,
    KeyFileError,
    KeyRing,
    Scope,
    keys_path,
)

__all__ = [
    "SCOPES",
    "TOKEN_FORMAT",
    "AccessKey",
    "FailureLimiter",
    "KeyFileError",
    "KeyRing",
    "Scope",
    "ServerAddress",
    "keys_path",
    "parse_server",
]
