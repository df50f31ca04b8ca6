"""Any address that takes JSON: all that is known, or what a template makes of it, signed if there is a secret.

The signature is the HMAC-SHA256, under the secret, of the timestamp, a dot and the body, all as bytes: a receiver that
refuses old timestamps cannot be sent a message a second time by someone who overheard it.
"""

from __future__ import annotations

import hashlib
import hmac
import time

import msgspec

from tachograph._base.http import check_response, post
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._secret import Cleaner
from tachograph.sinks.notify._settings import WebhookSettings
from tachograph.sinks.notify._template import filled

__all__ = ["WebhookChannel", "open_channel", "signature"]


class WebhookChannel:
    """Sends JSON to an address."""

    name = "webhook"

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self.clean = Cleaner(settings.url, settings.secret, settings.authorization)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message, signed for this very moment."""
        settings = self._settings
        values = message.values()
        body = msgspec.json.encode(values if settings.template is None else filled(settings.template, values))
        headers = {"X-Tachograph-Event": message.event, "X-Tachograph-Id": message.id}
        if settings.authorization is not None:
            headers["Authorization"] = settings.authorization.reveal()
        if settings.secret is not None:
            timestamp = str(int(time.time()))
            headers["X-Tachograph-Timestamp"] = timestamp
            headers["X-Tachograph-Signature"] = f"sha256={signature(timestamp, body, settings.secret.reveal())}"
        check_response(post(settings.url.reveal, body, headers, timeout_s=timeout_s), self.clean)


def open_channel(settings: WebhookSettings) -> WebhookChannel:
    """Return the channel."""
    return WebhookChannel(settings)


def signature(timestamp: str, body: bytes, secret: str) -> str:
    """Return the signature of a body, in hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
