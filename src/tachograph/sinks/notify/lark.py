"""Lark and Feishu: a custom bot of a group.

A message is signed with an HMAC over an empty string, whose key is made of the time and the secret. The HTTP status is
always 200: only the `code` in the body shows whether the message was accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from typing import Any

import msgspec

from tachograph._base.http import DeliveryError, check_response, post
from tachograph.sinks.notify._message import (
    Message,
    format_advice,
    format_subject,
    format_text,
    message_fields,
    truncate,
)
from tachograph.sinks.notify._secrets import Secret, SecretMasker
from tachograph.sinks.notify._settings import LarkSettings

__all__ = ["LarkChannel", "open_channel", "signature"]

_MAX_BYTES = 19_000
"""Lark accepts 20 KB in total."""

_MAX_FIELDS = 14

_RATE_LIMITED = 11_232
_COLOURS = {"start": "blue", "complete": "green", "resolved": "green", "error": "red", "milestone": "turquoise"}
_SEVERITY_COLOURS = {"critical": "red", "warning": "orange"}
_MENTION = re.compile(r"<(?=\s*/?\s*at\b)", re.IGNORECASE)


class LarkChannel:
    """Sends to a bot's webhook."""

    name = "lark"

    def __init__(self, settings: LarkSettings) -> None:
        self._settings = settings
        self.mask_secrets = SecretMasker(settings.url, settings.secret)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message, signed with the current time."""
        layout = _card if self._settings.style == "card" else _text
        for max_chars in (2_000, 1_000, 300):
            body = msgspec.json.encode({**_signature_fields(self._settings.secret), **layout(message, max_chars)})
            if len(body) <= _MAX_BYTES:
                break
        response = post(self._settings.url.reveal, body, {}, timeout_s=timeout_s)
        check_response(response, self.mask_secrets)
        result = response.json()
        code = result.get("code", result.get("StatusCode"))
        if code != 0:
            reason = self.mask_secrets(
                f"Lark returned code {code}: {result.get('msg', '')}" if result else "not a response from Lark"
            )
            raise DeliveryError(reason, may_retry=code == _RATE_LIMITED, wait_s=response.wait_s)


def open_channel(settings: LarkSettings) -> LarkChannel:
    """Return the channel."""
    return LarkChannel(settings)


def signature(time_s: int, secret: str) -> str:
    """Return the signature that Lark expects for a message sent at this time."""
    key = f"{time_s}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


def _signature_fields(secret: Secret | None) -> dict[str, Any]:
    if secret is None:
        return {}
    time_s = int(time.time())
    return {"timestamp": time_s, "sign": signature(time_s, secret.reveal())}


def _text(message: Message, max_chars: int) -> dict[str, Any]:
    return {"msg_type": "text", "content": {"text": _without_mentions(format_text(message), 2 * max_chars)}}


def _card(message: Message, max_chars: int) -> dict[str, Any]:
    fields = [
        {"is_short": True, "text": _plain_text(f"{name}\n{value}", 200)}
        for name, value in message_fields(message)[:_MAX_FIELDS]
    ]
    elements: list[dict[str, Any]] = [{"tag": "div", "fields": fields}]
    for text in (message.reason, format_advice(message)):
        if text:
            elements.append({"tag": "div", "text": _plain_text(text, max_chars)})
    if message.link:
        button = {"tag": "button", "type": "primary", "text": _plain_text("Open the run", 50), "url": message.link}
        elements.append({"tag": "action", "actions": [button]})
    colour = _SEVERITY_COLOURS.get(message.severity) or _COLOURS.get(message.event, "grey")
    header = {"title": _plain_text(format_subject(message), 200), "template": colour}
    return {
        "msg_type": "interactive",
        "card": {"config": {"wide_screen_mode": True}, "header": header, "elements": elements},
    }


def _plain_text(text: str, max_chars: int) -> dict[str, str]:
    """Return a text element in which Lark interprets no markup."""
    return {"tag": "plain_text", "content": _without_mentions(text, max_chars)}


def _without_mentions(text: str, max_chars: int) -> str:
    """Return a text without mentions."""
    return truncate(_MENTION.sub("＜", text), max_chars)
