"""Resolves the options of the sink and the standard environment variables to one target per signal.

An option wins over `OTEL_EXPORTER_OTLP_<SIGNAL>_<NAME>`, which wins over `OTEL_EXPORTER_OTLP_<NAME>`. Headers are not
merged. As in other Python programs, the timeout is in seconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["SIGNALS", "OtlpOptions", "OtlpTarget", "check_options", "check_service_name", "resolve_targets"]

SIGNALS = ("traces", "logs", "metrics")
"""In the order in which they are sent."""
_PROTOCOLS = ("http/protobuf", "grpc")
_COMPRESSIONS = ("none", "gzip")
_DEFAULT_ENDPOINTS = {"http/protobuf": "http://localhost:4318", "grpc": "http://localhost:4317"}
_DEFAULT_TIMEOUT_S = 10.0
_MAX_TIMEOUT_S = 300.0


class OtlpOptions(NamedTuple):
    """The options as given; None means that the environment decides."""

    endpoint: Any = None
    protocol: Any = None
    headers: Any = None
    timeout: Any = None
    compression: Any = None
    insecure: Any = None


class OtlpTarget(NamedTuple):
    """Where and how to send one signal."""

    signal: str
    protocol: str
    address: str
    """The URL of the signal for HTTP; host and port for gRPC."""
    headers: dict[str, str]
    timeout_s: float
    compression: str
    is_secure: bool
    certificate: str | None
    client_certificate: str | None
    client_key: str | None


def resolve_targets(options: OtlpOptions, signals: Any = None) -> list[OtlpTarget]:
    """Return the targets of the chosen signals.

    Raises:
        ConfigError: if an option or a variable is invalid.
    """
    return [_resolve(options, signal) for signal in _check_signals(signals)]


def check_options(
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | str | None = None,
    timeout: float | None = None,
    compression: str | None = None,
    insecure: bool | None = None,
    service_name: str | None = None,
    signals: list[str] | None = None,
) -> None:
    """Raise `ConfigError` for an invalid option of `OtlpSink`, without importing the client."""
    resolve_targets(OtlpOptions(endpoint, protocol, headers, timeout, compression, insecure), signals)
    check_service_name(service_name)


def check_service_name(service_name: Any) -> None:
    """Raise `ConfigError` for an invalid name of a service."""
    if service_name is not None and (not isinstance(service_name, str) or not service_name.strip()):
        raise ConfigError(f"service_name must be a non-empty string, got {service_name!r}")


def _check_signals(signals: Any) -> list[str]:
    if signals is None:
        return list(SIGNALS)
    names = list(signals) if isinstance(signals, Iterable) and not isinstance(signals, (str, Mapping)) else []
    for signal in names:
        if signal not in SIGNALS:
            hint = did_you_mean(str(signal), SIGNALS)
            raise ConfigError(f"signals: {signal!r} is not one of {', '.join(SIGNALS)}{hint}")
    if not names:
        raise ConfigError(f"signals must be a list of some of {', '.join(SIGNALS)}, got {signals!r}")
    return [signal for signal in SIGNALS if signal in names]


def _resolve(options: OtlpOptions, signal: str) -> OtlpTarget:
    def find(name: str) -> tuple[Any, str]:
        """Return a value and the name under which it was given."""
        option = getattr(options, name, None)
        if option is not None:
            return option, name
        for variable in (f"OTEL_EXPORTER_OTLP_{signal}_{name}".upper(), f"OTEL_EXPORTER_OTLP_{name}".upper()):
            if os.environ.get(variable, "").strip():
                return os.environ[variable].strip(), variable
        return None, name

    protocol = _choice(*find("protocol"), _PROTOCOLS)
    scheme, address = _parse_endpoint(*find("endpoint"), protocol, signal)
    certificates = {name: find(name) for name in ("certificate", "client_certificate", "client_key")}
    for path, origin in certificates.values():
        if path is not None and not os.path.isfile(path):
            raise ConfigError(f"{origin} must name a file, got {path!r}")
    return OtlpTarget(
        signal,
        protocol,
        address,
        _parse_headers(*find("headers")),
        _parse_timeout(*find("timeout")),
        _choice(*find("compression"), _COMPRESSIONS),
        _is_secure(*find("insecure"), scheme, address),
        **{name: path for name, (path, _) in certificates.items()},
    )


def _choice(value: Any, origin: str, choices: tuple[str, ...]) -> str:
    if value is None:
        return choices[0]
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise ConfigError(f"{origin} must be one of {', '.join(choices)}, got {value!r}{hint}")
    return str(value)


def _parse_endpoint(value: Any, origin: str, protocol: str, signal: str) -> tuple[str, str]:
    """Return the scheme, if any, and the URL for HTTP or host and port for gRPC."""
    default = _DEFAULT_ENDPOINTS[protocol]
    text = default if value is None else value
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"endpoint must be an address such as {default!r}, got {text!r}")
    text = text.strip()
    if protocol == "grpc":
        scheme, _, rest = text.rpartition("://")
        host = rest.rstrip("/")
        if scheme not in {"", "http", "https"} or "/" in host or not host:
            raise ConfigError(
                f"{origin} must be host:port or http(s)://host:port for gRPC, got {_without_secrets(text)!r}"
            )
        return scheme, host
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ConfigError(f"{origin} must start with http:// or https://, got {_without_secrets(text)!r}")
    if origin.endswith(f"_{signal.upper()}_ENDPOINT"):
        return url.scheme, text  # the variable of a signal has the whole URL
    if url.path.rstrip("/").endswith(tuple(f"/v1/{name}" for name in SIGNALS)):
        raise ConfigError(
            f"{origin} must not end with the path of a signal, which is added to it: {_without_secrets(text)!r}"
        )
    return url.scheme, url._replace(path=f"{url.path.rstrip('/')}/v1/{signal}").geturl()


def _without_secrets(endpoint: str) -> str:
    """Return an endpoint without user, password and query, which may be secrets."""
    return endpoint.rpartition("@")[2].partition("?")[0][:200]


def _parse_headers(value: Any, origin: str) -> dict[str, str]:
    """Return the headers. Messages never quote a value: it may be a token."""
    if value is None:
        return {}
    from opentelemetry.util.re import parse_env_headers

    headers = dict(parse_env_headers(value, liberal=True)) if isinstance(value, str) else value
    if not isinstance(headers, Mapping) or (value and not headers):
        raise ConfigError(f"{origin} must be a mapping of names to texts, or a text such as 'api-key=…,tenant=…'")
    for name, text in headers.items():
        if not isinstance(name, str) or not name or not isinstance(text, str):
            raise ConfigError(f"{origin}: the value of {name!r} must be a text, got {type(text).__name__}")
        if not (name + text).isprintable() or not (name + text).isascii():
            raise ConfigError(f"{origin}: {name!r} or its value has characters that a header cannot have")
    return {name.lower(): text for name, text in headers.items()}


def _parse_timeout(value: Any, origin: str) -> float:
    if value is None:
        return _DEFAULT_TIMEOUT_S
    try:
        timeout_s = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        timeout_s = math.nan
    if not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise ConfigError(f"{origin} must be seconds above 0 and up to {_MAX_TIMEOUT_S:g}, got {value!r}")
    return timeout_s


def _is_secure(insecure: Any, origin: str, scheme: str, address: str) -> bool:
    if isinstance(insecure, str):
        insecure = {"true": True, "false": False}.get(insecure.lower(), insecure)
    if insecure is not None and not isinstance(insecure, bool):
        raise ConfigError(f"{origin} must be true or false, got {insecure!r}")
    if not scheme:
        return not insecure
    if origin == "insecure" and insecure is not None and insecure is (scheme == "https"):
        raise ConfigError(
            f"insecure={insecure} contradicts {scheme}:// in the endpoint {_without_secrets(address)!r}; remove one"
        )
    return scheme == "https"
