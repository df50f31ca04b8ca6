"""Slack: an incoming webhook. It returns `ok`, or an error code such as `invalid_token`."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph._base.http import DeliveryError, check_response, post
from tachograph.sinks.notify._message import Message, escape_within, format_advice, format_subject, message_fields
from tachograph.sinks.notify._secrets import SecretMasker
from tachograph.sinks.notify._settings import SlackSettings

__all__ = ["SlackChannel", "open_channel"]

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MAX_FIELDS = 10
"""Slack's limit for one section. The lengths below are limits of Slack, too."""


class SlackChannel:
    """Sends to an incoming webhook."""

    name = "slack"

    def __init__(self, settings: SlackSettings) -> None:
        self._url = settings.url
        self.mask_secrets = SecretMasker(settings.url)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message."""
        response = post(self._url.reveal, msgspec.json.encode(_payload(message)), {}, timeout_s=timeout_s)
        check_response(response, self.mask_secrets)
        if response.text.strip() != "ok":
            raise DeliveryError(f"Slack returned {self.mask_secrets(response.text, 100)!r} instead of 'ok'")


def open_channel(settings: SlackSettings) -> SlackChannel:
    """Return the channel."""
    return SlackChannel(settings)


def _payload(message: Message) -> dict[str, Any]:
    blocks = [_section(f"*{_escape(format_subject(message), 2_900)}*")]
    fields = [f"*{_escape(name, 200)}*\n{_escape(value, 1_500)}" for name, value in message_fields(message)]
    for first in range(0, len(fields), _MAX_FIELDS):
        blocks.append({"type": "section", "fields": list(map(_mrkdwn, fields[first : first + _MAX_FIELDS]))})
    blocks += [_section(_escape(text, 2_900)) for text in (message.reason, format_advice(message)) if text]
    if message.link:
        blocks.append(_section(f"<{message.link}|Open the run>"))
    return {"text": _escape(f"{format_subject(message)}\n{message.reason}".strip(), 3_000), "blocks": blocks[:50]}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _mrkdwn(text)}


def _mrkdwn(text: str) -> dict[str, Any]:
    # verbatim: Slack must not turn a name that looks like a channel or an address into a mention or a link.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _escape(text: str, max_chars: int) -> str:
    return escape_within(text, lambda char: _ENTITIES.get(char, char), max_chars)
