"""The address of a column store: `clickhouse://user@host:port/database?cluster=NAME&replicated=1`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["PASSWORD_VARIABLE", "StoreAddress", "check_name", "parse_address"]

PASSWORD_VARIABLE = "TACHO_CLICKHOUSE_PASSWORD"  # noqa: S105 - the name of a variable
_OPTIONS = ("cluster", "compress", "replicated", "secure", "timeout")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")


class StoreAddress(NamedTuple):
    """Where the tables are, and how they are set up."""

    host: str
    port: int
    database: str
    user: str
    is_secure: bool
    """Whether to use HTTPS."""
    cluster: str
    """The cluster that the rows are spread over; empty for one server."""
    is_replicated: bool
    is_compressed: bool
    """Whether to compress rows and answers: costs processor time, saves network."""
    timeout_s: float

    @property
    def text(self) -> str:
        """The address for messages."""
        user = f"{self.user}@" if self.user else ""
        return f"clickhouse://{user}{self.host}:{self.port}/{self.database}"

    @property
    def password(self) -> str:
        """The password, from the environment."""
        return os.environ.get(PASSWORD_VARIABLE, "")


def parse_address(text: str) -> StoreAddress:
    """Return the parts of an address.

    Raises:
        ConfigError: if it is invalid; the message never contains a password.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ConfigError("the address of the store is invalid; use clickhouse://USER@HOST:PORT/DATABASE") from None
    if parts.scheme != "clickhouse" or not parts.hostname:
        address_text = text.rpartition("@")[2]
        raise ConfigError(f"{address_text!r} is no address of a store; use clickhouse://USER@HOST:PORT/DATABASE")
    if parts.password is not None:
        raise ConfigError(f"the address of the store contains a password; set {PASSWORD_VARIABLE} instead")
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    for name in options:
        if name not in _OPTIONS:
            names = ", ".join(_OPTIONS)
            raise ConfigError(
                f"unknown option {name!r} in the address of the store{did_you_mean(name, _OPTIONS)}; known are {names}"
            )
    database = parts.path.strip("/") or "tacho"
    check_name("database", database)
    check_name("cluster", options.get("cluster") or "x")
    is_secure = _is_on(options, "secure", default=False)
    is_local = parts.hostname in {"localhost", "::1"} or parts.hostname.startswith("127.")
    return StoreAddress(
        host=parts.hostname,
        port=port or (8443 if is_secure else 8123),
        database=database,
        user=unquote(parts.username or ""),
        is_secure=is_secure,
        cluster=options.get("cluster", ""),
        is_replicated=_is_on(options, "replicated", default=False),
        is_compressed=_is_on(options, "compress", default=not is_local),
        timeout_s=_timeout_s(options.get("timeout", "60")),
    )


def check_name(label: str, name: str) -> None:
    """Check a name that statements contain without quotes.

    Raises:
        ConfigError: if it is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a {label}: use letters, digits and underscores")


def _is_on(options: dict[str, str], name: str, *, default: bool) -> bool:
    if name not in options:
        return default
    if options[name] not in {"0", "1"}:
        raise ConfigError(f"{name}={options[name]} in the address of the store is invalid; use 0 or 1")
    return options[name] == "1"


def _timeout_s(text: str) -> float:
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < 1e6:
        raise ConfigError(f"timeout={text} in the address of the store is invalid; use a number of seconds")
    return timeout_s
