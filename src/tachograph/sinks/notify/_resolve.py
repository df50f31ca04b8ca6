"""Resolves the settings of notifications from arguments, environment and config.

No message of this module quotes a value that may be a secret: a user who mixes up two keys may have put one anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from tachograph._base.settings import parse_switch
from tachograph._base.typed import convert
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.records import MASK, mask_text
from tachograph.sinks.notify._milestone import Milestone
from tachograph.sinks.notify._secrets import Secret
from tachograph.sinks.notify._settings import CHANNELS, EVENTS, EmailSettings, NotifySettings, env_name, unwrap_type
from tachograph.sinks.notify._template import parse_template

__all__ = ["resolve_notify", "config_warnings"]

_ADDRESS = re.compile(r"[^@\s<>,;:\"()]+@[^@\s<>,;:\"()]+")
_INVALID_IN_URL = re.compile(r"[^!-~]|[<>|\"\\^`{}]")


class _SourcedValue(NamedTuple):
    """The raw value of a setting, and its source."""

    value: Any
    origin: str


def resolve_notify(
    argument: Mapping[str, Any] | bool | None = None, section: Mapping[str, Any] | bool | None = None
) -> NotifySettings:
    """Resolve every setting of notifications: argument, environment, config section, default.

    Args:
        argument: the value passed as ``notify=``; False turns notifications off.
        section: the `telemetry.notify` section of a config file.

    Raises:
        ConfigError: for an unknown key or an invalid value, naming its source but no secret.
    """
    raw = _flatten_section(section, "telemetry.notify.") | _read_environment() | _flatten_section(argument, "notify.")
    values = _convert_section(NotifySettings, "", raw)
    if values.get("enabled") is False:
        return NotifySettings(enabled=False)
    for channel in CHANNELS:
        channel_values = _convert_section(CHANNELS[channel], f"{channel}.", raw)
        if channel_values:
            values[channel] = _build_channel(channel, channel_values, raw)
    _check_values(values, raw)
    return NotifySettings(**values)


def config_warnings(settings: NotifySettings) -> list[str]:
    """Return a line for each setting that is valid but insecure, with the remedy."""
    lines = []
    for channel in ("lark", "webhook"):
        channel_settings = getattr(settings, channel)
        if channel_settings is not None and channel_settings.secret is None:
            lines.append(
                f"notify.{channel} has no secret, so its messages are not signed: "
                f"set notify.{channel}.secret or {env_name(f'{channel}.secret')}"
            )
    email = settings.email
    if email is not None and email.security == "plain" and email.password is not None:
        lines.append("notify.email sends its password unencrypted: set notify.email.security to starttls or ssl")
    return lines


# Collecting -----------------------------------------------------------------------------------------------------------


def _flatten_section(section: Any, prefix: str) -> dict[str, _SourcedValue]:
    if section is None:
        return {}
    if isinstance(section, bool):
        return {"enabled": _SourcedValue(section, f"{prefix}enabled")}
    where = prefix.rstrip(".")
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: expected a section such as {{'slack': {{'url': …}}}}, or false")
    leaves: dict[str, _SourcedValue] = {}
    for key, value in section.items():
        name = "on" if key is True else str(key)  # YAML parses the bare word `on` as true
        if name not in NotifySettings.__struct_fields__:
            raise ConfigError(
                f"unknown key {prefix}{_quote_key(name)}{did_you_mean(name, NotifySettings.__struct_fields__)}"
            )
        if name in CHANNELS:
            leaves |= _flatten_channel(name, value, prefix)
        elif not _is_blank(value):
            leaves[name] = _SourcedValue(value, f"{prefix}{name}")
    return leaves


def _flatten_channel(channel: str, value: Any, prefix: str) -> dict[str, _SourcedValue]:
    if isinstance(value, str) and "url" in CHANNELS[channel].__struct_fields__:
        value = {"url": value}
    if _is_blank(value):
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{prefix}{channel}: expected a section with {', '.join(CHANNELS[channel].__struct_fields__)}"
        )
    for key in value:
        if key not in CHANNELS[channel].__struct_fields__:
            hint = did_you_mean(str(key), CHANNELS[channel].__struct_fields__)
            raise ConfigError(f"unknown key {prefix}{channel}.{_quote_key(key)}{hint}")
    return {
        f"{channel}.{key}": _SourcedValue(item, f"{prefix}{channel}.{key}")
        for key, item in value.items()
        if not _is_blank(item)
    }


def _quote(value: Any) -> str:
    """Return a value as an error message may quote it."""
    text = repr(value)
    return MASK if "://" in text else mask_text(text)[:60]


def _quote_key(key: Any) -> str:
    return _quote(str(key)).strip("'")


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _read_environment() -> dict[str, _SourcedValue]:
    names = [name for name in NotifySettings.__struct_fields__ if name not in CHANNELS]
    names += [f"{channel}.{name}" for channel in CHANNELS for name in CHANNELS[channel].__struct_fields__]
    variables = {name: os.environ.get(env_name(name), "") for name in names}
    return {
        name: _SourcedValue(value, f"environment variable {env_name(name)}")
        for name, value in variables.items()
        if value.strip()
    }


# Converting ----------------------------------------------------------------------------------------------------------


def _convert_section(section: type[msgspec.Struct], prefix: str, raw: Mapping[str, _SourcedValue]) -> dict[str, Any]:
    fields = [field for field in msgspec.structs.fields(section) if field.name not in CHANNELS]
    return {
        field.name: _convert(field.type, *raw[f"{prefix}{field.name}"])
        for field in fields
        if f"{prefix}{field.name}" in raw
    }


def _convert(type_: Any, value: Any, origin: str) -> Any:
    base = unwrap_type(type_)
    if base is Any:
        return parse_template(value, origin)
    if isinstance(value, Mapping) and set(value) == {"env"}:
        variable = str(value["env"])
        value = os.environ.get(variable)
        if not value:
            raise ConfigError(f"{origin}: the environment variable {variable!r} is not set")
    if base is Secret:
        if not isinstance(value, str):
            raise ConfigError(f"{origin}: expected a string, got {type(value).__name__}")
        return Secret(value.strip())
    if get_origin(base) is tuple:
        return _parse_list(value, origin)
    if get_origin(base) is Literal and value not in get_args(base):
        hint = did_you_mean(str(value), get_args(base))
        raise ConfigError(f"{origin}: expected one of {', '.join(get_args(base))}, got {_quote(value)}{hint}")
    raw_value, value = value, parse_switch(value) if base is bool else value
    try:
        if isinstance(value, bool) and base is not bool:
            raise msgspec.ValidationError(f"Expected `{base.__name__}`")
        return convert(value, type_, strict=False)
    except msgspec.ValidationError as error:
        expectation = str(error).partition(", got ")[0]
        raise ConfigError(f"{origin}: {expectation[0].lower()}{expectation[1:]}, got {_quote(raw_value)}") from None


def _parse_list(value: Any, origin: str) -> tuple[str, ...]:
    items = re.split(r"[,;\n]", value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{origin}: expected a list of strings, got {_quote(value)}")
    return tuple(item.strip() for item in items if item.strip())


# Checking ------------------------------------------------------------------------------------------------------------


def _build_channel(channel: str, values: dict[str, Any], raw: Mapping[str, _SourcedValue]) -> msgspec.Struct:
    required_key = next(name for name in CHANNELS[channel].__struct_fields__ if name in ("url", "host"))
    if required_key not in values:
        others = ", ".join(raw[f"{channel}.{name}"].origin for name in values)
        raise ConfigError(
            f"{others}: has no effect without {channel}.{required_key}; set notify.{channel}.{required_key} or "
            f"{env_name(f'{channel}.{required_key}')}"
        )
    if "url" in values:
        _check_url(values["url"].reveal(), raw[f"{channel}.url"].origin)
    for name in ("secret", "authorization", "password"):
        # Never quoted: a malformed value may still contain the secret.
        if name in values and not values[name].reveal().isprintable():
            raise ConfigError(f"{raw[f'{channel}.{name}'].origin}: contains a line break or another control character")
    if channel == "webhook" and not str(values.get("authorization", Secret("")).reveal()).isascii():
        raise ConfigError(f"{raw['webhook.authorization'].origin}: a header may contain only ASCII characters")
    if channel == "email":
        return _build_email(values, raw)
    return CHANNELS[channel](**values)


def _build_email(values: dict[str, Any], raw: Mapping[str, _SourcedValue]) -> EmailSettings:
    if _INVALID_IN_URL.search(values["host"]) or "/" in values["host"]:
        raise ConfigError(
            f"{raw['email.host'].origin}: expected the host name of a mail server, such as smtp.example.org"
        )
    if not values.get("to"):
        raise ConfigError(f"notify.email has no recipients: set notify.email.to or {env_name('email.to')}")
    if not values.get("sender") and _ADDRESS.fullmatch(values.get("user", "")):
        values["sender"] = values["user"]
    if not values.get("sender"):
        raise ConfigError(f"notify.email has no sender: set notify.email.sender or {env_name('email.sender')}")
    for address in (*values["to"], values["sender"]):
        if not _ADDRESS.fullmatch(address) or not address.isascii() or not address.isprintable():
            raise ConfigError(f"notify.email: {_quote(address)} is not an e-mail address")
    if values.get("user") and "password" not in values:
        raise ConfigError(f"notify.email has a user but no password: set {env_name('email.password')}")
    if "password" in values and not values.get("user"):
        raise ConfigError(f"notify.email has a password but no user: set notify.email.user or {env_name('email.user')}")
    return EmailSettings(**values)


def _check_values(values: dict[str, Any], raw: Mapping[str, _SourcedValue]) -> None:
    for event in values.get("on", ()):
        if event not in EVENTS:
            hint = did_you_mean(event, EVENTS) or f"; available: {', '.join(EVENTS)}"
            raise ConfigError(f"{raw['on'].origin}: unknown event {_quote(event)}{hint}")
    for text in values.get("milestones", ()):
        Milestone(text, raw["milestones"].origin)
    address = values.get("dashboard_url", "")
    if address:
        _check_url(address, raw["dashboard_url"].origin)
        if "?" in address or "#" in address:
            raise ConfigError(
                f"{raw['dashboard_url'].origin}: expected an address without a query (?) or a fragment (#)"
            )
        values["dashboard_url"] = address.rstrip("/")


def _check_url(url: str, origin: str) -> None:
    problem = next(_url_problems(url), None)
    if problem is not None:
        raise ConfigError(f"{origin}: {problem}")


def _url_problems(url: str) -> Iterator[str]:
    if not url.lower().startswith(("https://", "http://")):
        yield "expected an address that starts with https:// (or http://)"
    if _INVALID_IN_URL.search(url):
        yield "contains characters that are invalid in an address; copy it again"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            yield "expected an address with a host name"
        if "@" in parts.netloc:
            yield "a user name or password before the host name is not supported"
    except ValueError:  # whose text quotes the address
        yield "not a valid address; copy it again"
