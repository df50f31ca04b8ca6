"""The address of a server, as a person writes it."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from tachograph.exceptions import ConfigError
from tachograph.records import mask_text

__all__ = ["ServerAddress", "parse_server"]

_EXAMPLE = "https://tacho.example.org"
_MAX_CHARS = 2_000
_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>\[[^\]]*\]|[^/:]*)(?::(?P<port>[^/]*))?(?P<prefix>/.*)?"
)
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/*")
_PORTS = {"http": 80, "https": 443}


class ServerAddress(NamedTuple):
    """A valid address in its normal form: two texts that mean the same server give equal addresses."""

    scheme: str
    host: str
    """In lower case; an IPv6 address is without brackets."""
    port: int
    prefix: str
    """Path under which a proxy serves the server: empty, or with a slash at its start and none at its end."""

    @property
    def url(self) -> str:
        """The address as text, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}"

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return _is_loopback(self.host)

    def __str__(self) -> str:
        return self.url


def parse_server(text: str, *, allow_plain_http: bool = False) -> ServerAddress:
    """Return the address of a server: ``https://host[:port][/prefix]``.

    Args:
        text: as given by a person.
        allow_plain_http: accept ``http://`` also for other machines, where anyone on the way can read keys and runs.

    Raises:
        ConfigError: if the text is no such address. The message contains no password or key of it.
    """
    text = text.strip()
    if not text or len(text) > _MAX_CHARS:
        raise ConfigError(f"the address of the server is empty or too long; expected one like {_EXAMPLE}")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise _invalid(
            text, "contains a space, a backslash, a control character or a letter that is not ASCII; write an "
            "international host name in its ASCII form (xn--…)"
        )  # fmt: skip
    if "@" in text:
        raise ConfigError(
            "the address of the server contains a user name or a password (the part before @), which would end up in "
            f"logs: pass an address like {_EXAMPLE}, and the key with tacho login or TACHO_API_KEY"
        )
    for mark, part in (("?", "query"), ("#", "fragment")):
        if mark in text:
            # Not shown: some tools put keys there.
            raise ConfigError(f"the address of the server has a {part} (the part after {mark}); remove it")
    parts = _ADDRESS.fullmatch(text)
    if parts is None:
        raise _invalid(text, f"is not complete; expected one like {_EXAMPLE}")
    scheme = parts["scheme"].lower()
    if scheme not in _PORTS:
        raise _invalid(text, f"starts with {scheme}://; expected https://")
    host = _host(text, parts["host"])
    port = _port(text, parts["port"]) if parts["port"] is not None else _PORTS[scheme]
    prefix = parts["prefix"] or ""
    if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
        raise _invalid(text, f"has an invalid path; expected one like {_EXAMPLE}/training")
    address = ServerAddress(scheme, host, port, prefix.rstrip("/"))
    if scheme == "http" and not address.is_loopback and not allow_plain_http:
        raise _invalid(
            text,
            "is not encrypted, so anyone on the way could read keys and runs: use https://. In a network that you "
            "trust, allow_plain_http=True or TACHO_ALLOW_PLAIN_HTTP=1 accepts it",
        )
    return address


def _host(text: str, host: str) -> str:
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise _invalid(text, "has an invalid IPv6 address") from None
        if address.scope_id is not None:
            raise _invalid(text, "has an invalid IPv6 address: the name of an interface (after %) is not supported")
        return str(address)
    if len(host) > 253 or not all(map(_LABEL.fullmatch, host.split("."))):
        raise _invalid(text, f"has an invalid host name; expected an address like {_EXAMPLE}")
    return host.lower()


def _port(text: str, port: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
        raise _invalid(text, "has an invalid port; expected a number from 1 to 65535")
    return int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _invalid(text: str, reason: str) -> ConfigError:
    return ConfigError(f"the address of the server, {mask_text(text[:200])!r}, {reason}")
