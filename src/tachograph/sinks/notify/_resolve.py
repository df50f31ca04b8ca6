"""From arguments, environment and config to settled settings. No message of this module quotes a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.records import MASK, mask_text
from tachograph.settings import parse_switch
from tachograph.sinks.notify._milestone import Milestone
from tachograph.sinks.notify._secret import Secret
from tachograph.sinks.notify._settings import CHANNELS, EVENTS, EmailSettings, NotifySettings, env_name, plain_type
from tachograph.sinks.notify._template import parse_template

__all__ = ["resolve_notify", "warnings_of"]

_ADDRESS = re.compile(r"[^@\s<>,;:\"()]+@[^@\s<>,;:\"()]+")
_NOT_IN_ADDRESSES = re.compile(r"[^!-~]|[<>|\"\\^`{}]")


class _Given(NamedTuple):
    value: Any
    origin: str


def resolve_notify(
    argument: Mapping[str, Any] | bool | None = None, section: Mapping[str, Any] | bool | None = None
) -> NotifySettings:
    """Settle every setting of notifications: argument, environment, config section, default.

    Args:
        argument: what was passed as ``notify=``; False turns notifications off.
        section: the `telemetry.notify` section of a config file.

    Raises:
        ConfigError: for a key that does not exist or a wrong value, naming where it came from but no secret.
    """
    given = _leaves(section, "telemetry.notify.") | _environment() | _leaves(argument, "notify.")
    values = _converted(NotifySettings, "", given)
    if values.get("enabled") is False:
        return NotifySettings(enabled=False)
    for channel in CHANNELS:
        found = _converted(CHANNELS[channel], f"{channel}.", given)
        if found:
            values[channel] = _channel(channel, found, given)
    _check(values, given)
    return NotifySettings(**values)


def warnings_of(settings: NotifySettings) -> list[str]:
    """Return what is allowed but unwise, each in one line with the remedy."""
    lines = []
    for channel in ("lark", "webhook"):
        chosen = getattr(settings, channel)
        if chosen is not None and chosen.secret is None:
            lines.append(
                f"notify.{channel} has no secret, so its messages are not signed: "
                f"set notify.{channel}.secret or {env_name(f'{channel}.secret')}"
            )
    email = settings.email
    if email is not None and email.security == "plain" and email.password is not None:
        lines.append("notify.email sends its password unprotected: set notify.email.security to starttls or ssl")
    return lines


# Gathering -----------------------------------------------------------------------------------------------------------


def _leaves(section: Any, prefix: str) -> dict[str, _Given]:
    if section is None:
        return {}
    if isinstance(section, bool):
        return {"enabled": _Given(section, f"{prefix}enabled")}
    where = prefix.rstrip(".")
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}: a section such as {{'slack': {{'url': …}}}} is expected, or false")
    leaves: dict[str, _Given] = {}
    for key, value in section.items():
        name = "on" if key is True else str(key)  # YAML takes the bare word `on` for true
        if name not in NotifySettings.__struct_fields__:
            raise ConfigError(
                f"unknown key {prefix}{_shown_key(name)}{did_you_mean(name, NotifySettings.__struct_fields__)}"
            )
        if name in CHANNELS:
            leaves |= _channel_leaves(name, value, prefix)
        elif not _is_nothing(value):
            leaves[name] = _Given(value, f"{prefix}{name}")
    return leaves


def _channel_leaves(channel: str, value: Any, prefix: str) -> dict[str, _Given]:
    if isinstance(value, str) and "url" in CHANNELS[channel].__struct_fields__:
        value = {"url": value}
    if _is_nothing(value):
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{prefix}{channel}: a section with {', '.join(CHANNELS[channel].__struct_fields__)} is expected"
        )
    for key in value:
        if key not in CHANNELS[channel].__struct_fields__:
            hint = did_you_mean(str(key), CHANNELS[channel].__struct_fields__)
            raise ConfigError(f"unknown key {prefix}{channel}.{_shown_key(key)}{hint}")
    return {
        f"{channel}.{key}": _Given(item, f"{prefix}{channel}.{key}")
        for key, item in value.items()
        if not _is_nothing(item)
    }


def _shown(value: Any) -> str:
    """Return a value as an error may quote it: whoever mixed up two keys may have put a secret here."""
    text = repr(value)
    return MASK if "://" in text else mask_text(text)[:60]


def _shown_key(key: Any) -> str:
    return _shown(str(key)).strip("'")


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _environment() -> dict[str, _Given]:
    names = [name for name in NotifySettings.__struct_fields__ if name not in CHANNELS]
    names += [f"{channel}.{name}" for channel in CHANNELS for name in CHANNELS[channel].__struct_fields__]
    found = {name: os.environ.get(env_name(name), "") for name in names}
    return {
        name: _Given(value, f"environment variable {env_name(name)}") for name, value in found.items() if value.strip()
    }


# Converting ----------------------------------------------------------------------------------------------------------


def _converted(section: type[msgspec.Struct], prefix: str, given: Mapping[str, _Given]) -> dict[str, Any]:
    fields = [field for field in msgspec.structs.fields(section) if field.name not in CHANNELS]
    return {
        field.name: _value(field.type, *given[f"{prefix}{field.name}"])
        for field in fields
        if f"{prefix}{field.name}" in given
    }


def _value(wanted: Any, value: Any, origin: str) -> Any:
    base = plain_type(wanted)
    if base is Any:
        return parse_template(value, origin)
    if isinstance(value, Mapping) and set(value) == {"env"}:
        variable = str(value["env"])
        value = os.environ.get(variable)
        if not value:
            raise ConfigError(f"{origin}: the environment variable {variable!r} is not set")
    if base is Secret:
        if not isinstance(value, str):
            raise ConfigError(f"{origin}: a text is expected, got {type(value).__name__}")
        return Secret(value.strip())
    if get_origin(base) is tuple:
        return _list(value, origin)
    if get_origin(base) is Literal and value not in get_args(base):
        hint = did_you_mean(str(value), get_args(base))
        raise ConfigError(f"{origin}: one of {', '.join(get_args(base))} is expected, got {_shown(value)}{hint}")
    given, value = value, parse_switch(value) if base is bool else value
    try:
        if isinstance(value, bool) and base is not bool:
            raise msgspec.ValidationError(f"Expected `{base.__name__}`")
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError as error:
        wanted_text = str(error).partition(", got ")[0]
        raise ConfigError(f"{origin}: {wanted_text[0].lower()}{wanted_text[1:]}, got {_shown(given)}") from None


def _list(value: Any, origin: str) -> tuple[str, ...]:
    items = re.split(r"[,;\n]", value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{origin}: a list of texts is expected, got {_shown(value)}")
    return tuple(item.strip() for item in items if item.strip())


# Checking ------------------------------------------------------------------------------------------------------------


def _channel(channel: str, values: dict[str, Any], given: Mapping[str, _Given]) -> msgspec.Struct:
    first = next(name for name in CHANNELS[channel].__struct_fields__ if name in ("url", "host"))
    if first not in values:
        others = ", ".join(given[f"{channel}.{name}"].origin for name in values)
        raise ConfigError(
            f"{others}: it is of no use without {channel}.{first}; set notify.{channel}.{first} or "
            f"{env_name(f'{channel}.{first}')}"
        )
    if "url" in values:
        _check_url(values["url"].reveal(), given[f"{channel}.url"].origin)
    for name in ("secret", "authorization", "password"):
        # Quoted nowhere: a text that is none of its kind may still be a secret.
        if name in values and not values[name].reveal().isprintable():
            raise ConfigError(
                f"{given[f'{channel}.{name}'].origin}: it holds a line break or another control character"
            )
    if channel == "webhook" and not str(values.get("authorization", Secret("")).reveal()).isascii():
        raise ConfigError(f"{given['webhook.authorization'].origin}: only ASCII can be in a header")
    if channel == "email":
        return _email(values, given)
    return CHANNELS[channel](**values)


def _email(values: dict[str, Any], given: Mapping[str, _Given]) -> EmailSettings:
    if _NOT_IN_ADDRESSES.search(values["host"]) or "/" in values["host"]:
        raise ConfigError(
            f"{given['email.host'].origin}: the name of a mail server is expected, such as smtp.example.org"
        )
    if not values.get("to"):
        raise ConfigError(f"notify.email has no recipients: set notify.email.to or {env_name('email.to')}")
    if not values.get("sender") and _ADDRESS.fullmatch(values.get("user", "")):
        values["sender"] = values["user"]
    if not values.get("sender"):
        raise ConfigError(f"notify.email has no sender: set notify.email.sender or {env_name('email.sender')}")
    for address in (*values["to"], values["sender"]):
        if not _ADDRESS.fullmatch(address) or not address.isascii() or not address.isprintable():
            raise ConfigError(f"notify.email: {_shown(address)} is no e-mail address")
    if values.get("user") and "password" not in values:
        raise ConfigError(f"notify.email has a user and no password: set {env_name('email.password')}")
    if "password" in values and not values.get("user"):
        raise ConfigError(f"notify.email has a password and no user: set notify.email.user or {env_name('email.user')}")
    return EmailSettings(**values)


def _check(values: dict[str, Any], given: Mapping[str, _Given]) -> None:
    for event in values.get("on", ()):
        if event not in EVENTS:
            hint = did_you_mean(event, EVENTS) or f"; known are {', '.join(EVENTS)}"
            raise ConfigError(f"{given['on'].origin}: there is no event {_shown(event)}{hint}")
    for text in values.get("milestones", ()):
        Milestone(text, given["milestones"].origin)
    address = values.get("dashboard_url", "")
    if address:
        _check_url(address, given["dashboard_url"].origin)
        if "?" in address or "#" in address:
            raise ConfigError(
                f"{given['dashboard_url'].origin}: the address alone is expected, without what follows ? or #"
            )
        values["dashboard_url"] = address.rstrip("/")


def _check_url(url: str, origin: str) -> None:
    wrong = list(_wrong_with(url))
    if wrong:
        raise ConfigError(f"{origin}: {wrong[0]}")


def _wrong_with(url: str) -> Iterator[str]:
    if not url.lower().startswith(("https://", "http://")):
        yield "an address that begins with https:// (or http://) is expected"
    if _NOT_IN_ADDRESSES.search(url):
        yield "it holds characters that cannot be in an address; copy it again"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            yield "an address with the name of a server is expected"
        if "@" in parts.netloc:
            yield "a name or password before the server's name is not supported"
    except ValueError:  # its text would quote the address
        yield "this is no valid address; copy it again"
