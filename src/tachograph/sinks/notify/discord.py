"""Discord: a webhook of a channel. It returns 204, or 429 with the seconds to wait when its rate limit is reached."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph._base.http import HttpResponse, check_response, post
from tachograph.records import finite_or_none
from tachograph.sinks.notify._message import Message, escape_within, format_advice, format_subject, message_fields
from tachograph.sinks.notify._secrets import SecretMasker
from tachograph.sinks.notify._settings import DiscordSettings

__all__ = ["DiscordChannel", "open_channel"]

_MARKUP = frozenset("\\*_~`|[]()<>#@-")
_COLOURS = {"start": 0x3B82F6, "complete": 0x22C55E, "resolved": 0x22C55E, "error": 0xEF4444, "milestone": 0x14B8A6}
_SEVERITY_COLOURS = {"critical": 0xEF4444, "warning": 0xF59E0B}
_GREY = 0x6B7280
_MAX_FIELDS = 14


class DiscordChannel:
    """Sends to a channel's webhook."""

    name = "discord"

    def __init__(self, settings: DiscordSettings) -> None:
        self._url = settings.url
        self.mask_secrets = SecretMasker(settings.url)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message."""
        response = post(self._url.reveal, msgspec.json.encode(_payload(message)), {}, timeout_s=timeout_s)
        check_response(response._replace(wait_s=_wait_s(response)), self.mask_secrets)


def open_channel(settings: DiscordSettings) -> DiscordChannel:
    """Return the channel."""
    return DiscordChannel(settings)


def _wait_s(response: HttpResponse) -> float | None:
    """Return the pause Discord asks for: from the body if possible, because the header has only whole seconds."""
    retry_after_s = finite_or_none(response.json().get("retry_after")) if response.status == 429 else None
    return response.wait_s if retry_after_s is None else min(max(retry_after_s, 0.0), 3_600.0)


def _payload(message: Message) -> dict[str, Any]:
    body = "\n\n".join(part for part in (message.reason, format_advice(message)) if part)
    embed: dict[str, Any] = {
        "title": _escape(format_subject(message), 250),
        "description": _escape(body, 3_000),
        "color": _SEVERITY_COLOURS.get(message.severity) or _COLOURS.get(message.event, _GREY),
        # Discord accepts 6,000 characters in total.
        "fields": [
            {"name": _escape(name, 60), "value": _escape(value, 120), "inline": True}
            for name, value in message_fields(message)[:_MAX_FIELDS]
        ],
    }
    if message.link:
        embed["url"] = message.link
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _escape(text: str, max_chars: int) -> str:
    return escape_within(text, lambda char: f"\\{char}" if char in _MARKUP else char, max_chars)
