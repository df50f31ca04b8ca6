"""Slack: an incoming webhook. It answers `ok`, or says in a word what is wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph._base.http import DeliveryError, check_response, post
from tachograph.sinks.notify._message import Message, advice_of, fields_of, fitted, subject_of
from tachograph.sinks.notify._secret import Cleaner
from tachograph.sinks.notify._settings import SlackSettings

__all__ = ["SlackChannel", "open_channel"]

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MOST_FIELDS = 10
"""Slack's limit for one section, as are the lengths below."""


class SlackChannel:
    """Sends to an incoming webhook."""

    name = "slack"

    def __init__(self, settings: SlackSettings) -> None:
        self._url = settings.url
        self.clean = Cleaner(settings.url)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message."""
        answer = post(self._url.reveal, msgspec.json.encode(_payload(message)), {}, timeout_s=timeout_s)
        check_response(answer, self.clean)
        if answer.text.strip() != "ok":
            raise DeliveryError(f"Slack answers {self.clean(answer.text, 100)!r} instead of ok")


def open_channel(settings: SlackSettings) -> SlackChannel:
    """Return the channel."""
    return SlackChannel(settings)


def _payload(message: Message) -> dict[str, Any]:
    blocks = [_section(f"*{_escaped(subject_of(message), 2_900)}*")]
    fields = [f"*{_escaped(name, 200)}*\n{_escaped(value, 1_500)}" for name, value in fields_of(message)]
    for first in range(0, len(fields), _MOST_FIELDS):
        blocks.append({"type": "section", "fields": list(map(_mrkdwn, fields[first : first + _MOST_FIELDS]))})
    blocks += [_section(_escaped(text, 2_900)) for text in (message.reason, advice_of(message)) if text]
    if message.link:
        blocks.append(_section(f"<{message.link}|Open the run>"))
    return {"text": _escaped(f"{subject_of(message)}\n{message.reason}".strip(), 3_000), "blocks": blocks[:50]}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _mrkdwn(text)}


def _mrkdwn(text: str) -> dict[str, Any]:
    # verbatim: a name that looks like a channel or an address is not made a link or a mention.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _escaped(text: str, most_chars: int) -> str:
    return fitted(text, lambda mark: _ENTITIES.get(mark, mark), most_chars)
