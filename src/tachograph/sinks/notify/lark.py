"""Lark and Feishu: a custom bot of a group.

A message is signed by a key made of the time and the secret, over nothing. The answer is HTTP 200 whatever happened:
only its `code` tells.
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
from tachograph.sinks.notify._message import Message, advice_of, cut, fields_of, subject_of, text_of
from tachograph.sinks.notify._secret import Cleaner, Secret
from tachograph.sinks.notify._settings import LarkSettings

__all__ = ["LarkChannel", "open_channel", "signature"]

_MOST_BYTES = 19_000
"""Lark takes 20 KB in all."""

_MOST_FIELDS = 14

_TOO_MANY = 11_232
_COLOURS = {"start": "blue", "complete": "green", "resolved": "green", "error": "red", "milestone": "turquoise"}
_SEVERITY_COLOURS = {"critical": "red", "warning": "orange"}
_MENTION = re.compile(r"<(?=\s*/?\s*at\b)", re.IGNORECASE)


class LarkChannel:
    """Sends to a bot's webhook."""

    name = "lark"

    def __init__(self, settings: LarkSettings) -> None:
        self._settings = settings
        self.clean = Cleaner(settings.url, settings.secret)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message, signed for this very moment."""
        lay_out = _card if self._settings.style == "card" else _text
        for most_chars in (2_000, 1_000, 300):
            body = msgspec.json.encode({**_signed(self._settings.secret), **lay_out(message, most_chars)})
            if len(body) <= _MOST_BYTES:
                break
        answer = post(self._settings.url.reveal, body, {}, timeout_s=timeout_s)
        check_response(answer, self.clean)
        said = answer.json()
        code = said.get("code", said.get("StatusCode"))
        if code != 0:
            reason = self.clean(
                f"Lark answers code {code}: {said.get('msg', '')}" if said else "the answer is not Lark's"
            )
            raise DeliveryError(reason, may_retry=code == _TOO_MANY, wait_s=answer.wait_s)


def open_channel(settings: LarkSettings) -> LarkChannel:
    """Return the channel."""
    return LarkChannel(settings)


def signature(time_s: int, secret: str) -> str:
    """Return what proves to Lark that a message of this time is from someone who knows the secret."""
    key = f"{time_s}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


def _signed(secret: Secret | None) -> dict[str, Any]:
    if secret is None:
        return {}
    time_s = int(time.time())
    return {"timestamp": time_s, "sign": signature(time_s, secret.reveal())}


def _text(message: Message, most_chars: int) -> dict[str, Any]:
    return {"msg_type": "text", "content": {"text": _literal(text_of(message), 2 * most_chars)}}


def _card(message: Message, most_chars: int) -> dict[str, Any]:
    fields = [
        {"is_short": True, "text": _plain(f"{name}\n{value}", 200)} for name, value in fields_of(message)[:_MOST_FIELDS]
    ]
    elements: list[dict[str, Any]] = [{"tag": "div", "fields": fields}]
    for text in (message.reason, advice_of(message)):
        if text:
            elements.append({"tag": "div", "text": _plain(text, most_chars)})
    if message.link:
        button = {"tag": "button", "type": "primary", "text": _plain("Open the run", 50), "url": message.link}
        elements.append({"tag": "action", "actions": [button]})
    colour = _SEVERITY_COLOURS.get(message.severity) or _COLOURS.get(message.event, "grey")
    header = {"title": _plain(subject_of(message), 200), "template": colour}
    return {
        "msg_type": "interactive",
        "card": {"config": {"wide_screen_mode": True}, "header": header, "elements": elements},
    }


def _plain(text: str, most_chars: int) -> dict[str, str]:
    """Return a text that is shown as it is: no markup is read in it."""
    return {"tag": "plain_text", "content": _literal(text, most_chars)}


def _literal(text: str, most_chars: int) -> str:
    """Return a text that mentions nobody."""
    return cut(_MENTION.sub("＜", text), most_chars)
