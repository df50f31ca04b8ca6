"""Any receiver of JSON: all values, or a filled template, signed if there is a secret.

The signature is the HMAC-SHA256, with the secret as the key, of the timestamp, a dot and the body, all as bytes. The
timestamp prevents replays: a receiver that rejects old timestamps does not accept an intercepted message again.
"""

from __future__ import annotations

import hashlib
import hmac
import time

import msgspec

from tachograph._base.http import check_response, post
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._secrets import SecretMasker
from tachograph.sinks.notify._settings import WebhookSettings
from tachograph.sinks.notify._template import fill_template

__all__ = ["WebhookChannel", "open_channel", "signature"]


class WebhookChannel:
    """Posts JSON to an address."""

    name = "webhook"

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self.mask_secrets = SecretMasker(settings.url, settings.secret, settings.authorization)

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message, signed with the current time."""
        settings = self._settings
        values = message.values()
        body = msgspec.json.encode(values if settings.template is None else fill_template(settings.template, values))
        headers = {"X-Tachograph-Event": message.event, "X-Tachograph-Id": message.id}
        if settings.authorization is not None:
            headers["Authorization"] = settings.authorization.reveal()
        if settings.secret is not None:
            timestamp = str(int(time.time()))
            headers["X-Tachograph-Timestamp"] = timestamp
            headers["X-Tachograph-Signature"] = f"sha256={signature(timestamp, body, settings.secret.reveal())}"
        check_response(post(settings.url.reveal, body, headers, timeout_s=timeout_s), self.mask_secrets)


def open_channel(settings: WebhookSettings) -> WebhookChannel:
    """Return the channel."""
    return WebhookChannel(settings)


def signature(timestamp: str, body: bytes, secret: str) -> str:
    """Return the signature of a body as hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
