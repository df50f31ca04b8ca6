"""Discord: a webhook of a channel. It answers 204, and 429 with the seconds to wait when there is too much."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph._base.http import HttpResponse, check_response, post
from tachograph.records import finite_or_none
from tachograph.sinks.notify._message import Message, advice_of, fields_of, fitted, subject_of
from tachograph.sinks.notify._secret import Cleaner
from tachograph.sinks.notify._settings import DiscordSettings

__all__ = ["DiscordChannel", "open_channel"]

_MARKUP = frozenset("\\*_~`|[]()<>#@-")
_COLOURS = {"start": 0x3B82F6, "complete": 0x22C55E, "resolved": 0x22C55E, "error": 0xEF4444, "milestone": 0x14B8A6}
_SEVERITY_COLOURS = {"critical": 0xEF4444, "warning": 0xF59E0B}
_GREY = 0x6B7280
_MOST_FIELDS = 14


class DiscordChannel:
    """Sends to a channel's webhook."""

    name = "discord"

    def __init__(self, settings: DiscordSettings) -> None:
        self._url = settings.url
        self.clean = Cleaner(settings.url)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message."""
        answer = post(self._url.reveal, msgspec.json.encode(_payload(message)), {}, timeout_s=timeout_s)
        check_response(answer._replace(wait_s=_wait_s(answer)), self.clean)


def open_channel(settings: DiscordSettings) -> DiscordChannel:
    """Return the channel."""
    return DiscordChannel(settings)


def _wait_s(answer: HttpResponse) -> float | None:
    """Return the finer of the two ways in which Discord says how long to wait."""
    given = finite_or_none(answer.json().get("retry_after")) if answer.status == 429 else None
    return answer.wait_s if given is None else min(max(given, 0.0), 3_600.0)


def _payload(message: Message) -> dict[str, Any]:
    body = "\n\n".join(part for part in (message.reason, advice_of(message)) if part)
    embed: dict[str, Any] = {
        "title": _escaped(subject_of(message), 250),
        "description": _escaped(body, 3_000),
        "color": _SEVERITY_COLOURS.get(message.severity) or _COLOURS.get(message.event, _GREY),
        # Discord takes 6,000 characters in all.
        "fields": [
            {"name": _escaped(name, 60), "value": _escaped(value, 120), "inline": True}
            for name, value in fields_of(message)[:_MOST_FIELDS]
        ],
    }
    if message.link:
        embed["url"] = message.link
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _escaped(text: str, most_chars: int) -> str:
    return fitted(text, lambda mark: f"\\{mark}" if mark in _MARKUP else mark, most_chars)
