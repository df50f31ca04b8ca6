"""The interface of a channel. Each channel is one module, which is imported only if it is configured."""

from __future__ import annotations

from typing import Protocol

from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._secrets import SecretMasker
from tachograph.sinks.notify._settings import CHANNELS, NotifySettings

__all__ = ["Channel", "open_channels"]


class Channel(Protocol):
    """A destination for messages, such as a Slack channel or a mail server."""

    name: str
    mask_secrets: SecretMasker
    """Masks this channel's secrets in a text."""

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message.

        Raises:
            DeliveryError: if the receiver did not accept it.
        """
        ...


def open_channels(settings: NotifySettings) -> list[Channel]:
    """Import and return the configured channels."""
    if not settings.enabled:
        return []
    return [_open(name, settings) for name in CHANNELS if getattr(settings, name) is not None]


def _open(name: str, settings: NotifySettings) -> Channel:
    from importlib import import_module

    module = import_module(f"tachograph.sinks.notify.{name if name != 'email' else 'smtp'}")
    channel: Channel = module.open_channel(getattr(settings, name))
    return channel
