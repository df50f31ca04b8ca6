"""The settings of notifications in one table: the fields of these structs.

Each value comes from ``init(notify={...})``, else the environment variable, else the ``telemetry.notify`` section of a
config file, else the default. The table feeds the documentation, the error messages and `tacho notify settings`.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from tachograph.sinks.notify._secrets import Secret

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
    "unwrap_type",
]

EVENTS: dict[str, str] = {
    "start": "training started or was resumed",
    "complete": "training finished normally",
    "error": "training ended with an exception, a signal or an exit code",
    "alert": "an alert opened, or became critical",
    "resolved": "an alert was resolved",
    "milestone": "a metric met a condition for the first time",
}


class LarkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A custom bot of a Lark or Feishu group."""

    url: Annotated[Secret, Meta(description="Address of the bot's webhook.")]
    secret: Annotated[Secret | None, Meta(description="The bot's signing secret; if set, messages are signed.")] = None
    style: Annotated[Literal["card", "text"], Meta(description="Layout of a message.")] = "card"


class SlackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An incoming webhook of Slack."""

    url: Annotated[Secret, Meta(description="Address of the incoming webhook.")]


class DiscordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook of a Discord channel."""

    url: Annotated[Secret, Meta(description="Address of the channel's webhook.")]


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Any receiver of JSON over HTTP."""

    url: Annotated[Secret, Meta(description="Address to post the JSON to.")]
    secret: Annotated[
        Secret | None, Meta(description="Signs each message, so that the receiver can verify the sender.")
    ] = None
    authorization: Annotated[
        Secret | None,
        Meta(description="Value of the `Authorization` header, such as `Bearer …`, if the receiver needs one."),
    ] = None
    template: Annotated[
        Any, Meta(description="The JSON to send, with placeholders such as `{run}`; all values if not given.")
    ] = None


class EmailSettings(msgspec.Struct, frozen=True, kw_only=True):
    """E-mail through an SMTP server."""

    host: Annotated[str, Meta(description="Host name of the mail server.", min_length=1)]
    to: Annotated[tuple[str, ...], Meta(description="Addresses of the recipients.")] = ()
    port: Annotated[
        int, Meta(description="Port; 0 selects the usual one for `security` (587, 465 or 25).", ge=0, le=65_535)
    ] = 0
    security: Annotated[
        Literal["starttls", "ssl", "plain"],
        Meta(description="How the connection is encrypted; `plain` means not at all."),
    ] = "starttls"
    user: Annotated[str, Meta(description="User name to log in with; empty means no login.")] = ""
    password: Annotated[Secret | None, Meta(description="Password to log in with.")] = None
    sender: Annotated[str, Meta(description="Address of the sender; `user` if not given.")] = ""


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The events, metrics, limits and channels of notifications."""

    enabled: Annotated[bool, Meta(description="Send notifications.")] = True
    on: Annotated[tuple[str, ...], Meta(description=f"Events to send: any of {', '.join(EVENTS)}.")] = tuple(EVENTS)
    milestones: Annotated[
        tuple[str, ...], Meta(description="Conditions to report once, such as `train_loss < 0.5` or `step >= 1000`.")
    ] = ()
    min_severity: Annotated[
        Literal["info", "warning", "critical"], Meta(description="Lowest severity of the alerts to send.")
    ] = "warning"
    metrics: Annotated[tuple[str, ...], Meta(description="Metrics whose latest values each message includes.")] = (
        "train_loss",
        "val_loss",
        "lr",
        "grad_norm",
    )
    project: Annotated[
        str, Meta(description="Name of the project; the project of the run or its config if not given.")
    ] = ""
    dashboard_url: Annotated[str, Meta(description="Address of the dashboard, for a link to the run.")] = ""
    timeout_s: Annotated[float, Meta(description="Maximum time of one attempt to send.", ge=0.1, le=60)] = 10.0
    burst: Annotated[
        int, Meta(description="Messages a channel may receive at once before the rate limit applies.", ge=1)
    ] = 10
    per_minute: Annotated[
        float,
        Meta(
            description="Rate limit after the burst, in messages per minute; messages over it are summarised in one.",
            gt=0,
        ),
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


def _type_name(type_: Any) -> str:
    """Return the name of a type in the documentation."""
    base = unwrap_type(type_)
    if get_origin(base) is Literal:
        return ", ".join(get_args(base))
    if get_origin(base) is tuple:
        return "list"
    return {Secret: "secret", Any: "JSON"}.get(base) or str(base.__name__)


def unwrap_type(type_: Any) -> Any:
    """Return a type without its annotation, and without None."""
    base = type_.__origin__ if get_origin(type_) is Annotated else type_
    if get_origin(base) in (Union, types.UnionType):
        return next(kind for kind in get_args(base) if kind is not type(None))
    return base


def _default_text(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(default)
    return "" if default is None else str(default)
