"""Runs of many machines on one server: access keys, addresses and credentials."""

from tachograph.collector._address import ServerAddress, parse_server
from tachograph.collector._credentials import (
    API_KEY_VARIABLE,
    Credential,
    check_token,
    credentials_path,
    find_credential,
    remove_token,
    store_token,
    stored_servers,
)
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
    "API_KEY_VARIABLE",
    "SCOPES",
    "TOKEN_FORMAT",
    "AccessKey",
    "Credential",
    "FailureLimiter",
    "KeyFileError",
    "KeyRing",
    "Scope",
    "ServerAddress",
    "check_token",
    "credentials_path",
    "find_credential",
    "keys_path",
    "parse_server",
    "remove_token",
    "store_token",
    "stored_servers",
]
