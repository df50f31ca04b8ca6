"""The settings of notifications in one table: the fields of these structs.

A value is taken from ``init(notify={...})``, else the environment variable, else the ``telemetry.notify`` section of a
config file, else the default. The table feeds the documentation, the error messages and the command's help.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from tachograph.sinks.notify._secret import Secret

__all__ = [
    "CHANNELS",
    "EVENTS",
    "EmailSettings",
    "NotifyRow",
    "NotifySettings",
    "SlackSettings",
    "DiscordSettings",
    "LarkSettings",
    "WebhookSettings",
    "env_name",
    "notify_table",
    "plain_type",
]

EVENTS: dict[str, str] = {
    "start": "training began, or was resumed",
    "complete": "training ended as it should",
    "error": "training ended with an exception, a signal or an exit code",
    "alert": "a rule found a fault, or a fault became critical",
    "resolved": "a fault is over",
    "milestone": "a metric passed a threshold for the first time",
}


class LarkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A custom bot of a Lark or Feishu group."""

    url: Annotated[Secret, Meta(description="Address of the bot's webhook.")]
    secret: Annotated[Secret | None, Meta(description="The bot's signing secret; messages are signed with it.")] = None
    style: Annotated[Literal["card", "text"], Meta(description="How a message looks.")] = "card"


class SlackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An incoming webhook of Slack."""

    url: Annotated[Secret, Meta(description="Address of the incoming webhook.")]


class DiscordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook of a Discord channel."""

    url: Annotated[Secret, Meta(description="Address of the channel's webhook.")]


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Anything that takes JSON over HTTP."""

    url: Annotated[Secret, Meta(description="Where to send the JSON.")]
    secret: Annotated[
        Secret | None, Meta(description="Signs each message, so that the receiver can tell it is from you.")
    ] = None
    authorization: Annotated[
        Secret | None, Meta(description="An `Authorization` header, such as `Bearer …`, if the receiver wants one.")
    ] = None
    template: Annotated[
        Any, Meta(description="The JSON to send, with placeholders such as `{run}`; all that is known if not given.")
    ] = None


class EmailSettings(msgspec.Struct, frozen=True, kw_only=True):
    """E-mail by a mail server."""

    host: Annotated[str, Meta(description="Name of the mail server.", min_length=1)]
    to: Annotated[tuple[str, ...], Meta(description="Addresses of those who get the mail.")] = ()
    port: Annotated[
        int, Meta(description="Port; 0: what is usual for `security` (587, 465 or 25).", ge=0, le=65_535)
    ] = 0
    security: Annotated[
        Literal["starttls", "ssl", "plain"], Meta(description="How the connection is protected; `plain`: not at all.")
    ] = "starttls"
    user: Annotated[str, Meta(description="Name to log in with; empty: no log-in.")] = ""
    password: Annotated[Secret | None, Meta(description="Password to log in with.")] = None
    sender: Annotated[str, Meta(description="Address the mail is from; `user` if not given.")] = ""


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is told, and to whom."""

    enabled: Annotated[bool, Meta(description="Notify at all.")] = True
    on: Annotated[tuple[str, ...], Meta(description=f"What to tell of: any of {', '.join(EVENTS)}.")] = tuple(EVENTS)
    milestones: Annotated[
        tuple[str, ...], Meta(description="Conditions told of once, such as `train_loss < 0.5` or `step >= 1000`.")
    ] = ()
    min_severity: Annotated[
        Literal["info", "warning", "critical"], Meta(description="The least severity of an alert that is told.")
    ] = "warning"
    metrics: Annotated[tuple[str, ...], Meta(description="Metrics whose latest values are in each message.")] = (
        "train_loss",
        "val_loss",
        "lr",
        "grad_norm",
    )
    project: Annotated[str, Meta(description="Name of the project; from the config's `project` if not given.")] = ""
    dashboard_url: Annotated[
        str, Meta(description="Where the readers of a message reach the dashboard, for a link to the run.")
    ] = ""
    timeout_s: Annotated[float, Meta(description="Longest time one attempt to send may take.", ge=0.1, le=60)] = 10.0
    burst: Annotated[int, Meta(description="Messages a channel may get at once before they are rationed.", ge=1)] = 10
    per_minute: Annotated[
        float, Meta(description="Messages a minute after that; what is held back is summed up in one.", gt=0)
    ] = 1.0
    lark: LarkSettings | None = None
    slack: SlackSettings | None = None
    discord: DiscordSettings | None = None
    webhook: WebhookSettings | None = None
    email: EmailSettings | None = None


CHANNELS: dict[str, type[msgspec.Struct]] = {
    "lark": LarkSettings,
    "slack": SlackSettings,
    "discord": DiscordSettings,
    "webhook": WebhookSettings,
    "email": EmailSettings,
}


class NotifyRow(NamedTuple):
    """One row of the table, as the documentation shows it."""

    name: str
    env: str
    type: str
    default: str
    doc: str
    is_secret: bool


def notify_table() -> list[NotifyRow]:
    """Return every setting of notifications with its environment variable, type, default and meaning."""
    rows = list(_rows("", NotifySettings))
    for name, section in CHANNELS.items():
        rows += _rows(f"{name}.", section)
    return rows


def _rows(prefix: str, section: type[msgspec.Struct]) -> Iterator[NotifyRow]:
    for field in msgspec.structs.fields(section):
        if field.name in CHANNELS:
            continue
        name = f"{prefix}{field.name}"
        doc = field.type.__metadata__[0].description
        default = "" if field.required else _default_text(field.default)
        kind = _type_name(field.type)
        yield NotifyRow(name, env_name(name), kind, default, doc, kind == "secret")


def env_name(name: str) -> str:
    """Return the environment variable of a setting: ``TACHO_NOTIFY_SLACK_URL`` of ``slack.url``."""
    return f"TACHO_NOTIFY_{name.replace('.', '_').upper()}"


def _type_name(wanted: Any) -> str:
    """Return a type as the documentation calls it."""
    base = plain_type(wanted)
    if get_origin(base) is Literal:
        return ", ".join(get_args(base))
    if get_origin(base) is tuple:
        return "list"
    return {Secret: "secret", Any: "JSON"}.get(base) or str(base.__name__)


def plain_type(wanted: Any) -> Any:
    """Return a type without its annotation, and without None."""
    base = wanted.__origin__ if get_origin(wanted) is Annotated else wanted
    if get_origin(base) in (Union, types.UnionType):
        return next(kind for kind in get_args(base) if kind is not type(None))
    return base


def _default_text(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(default)
    return "" if default is None else str(default)
