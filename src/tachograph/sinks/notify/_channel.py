"""What a channel is."""

from __future__ import annotations

from typing import Protocol

from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._secret import Cleaner
from tachograph.sinks.notify._settings import CHANNELS, NotifySettings

__all__ = ["Channel", "open_channels"]


class Channel(Protocol):
    """One way to people."""

    name: str
    clean: Cleaner
    """Takes this channel's secrets out of a text."""

    def send(self, message: Message, timeout_s: float) -> None:
        """Send a message.

        Raises:
            DeliveryError: if it did not arrive.
        """
        ...


def open_channels(settings: NotifySettings) -> list[Channel]:
    """Return the channels that are configured. Only they are imported."""
    if not settings.enabled:
        return []
    return [_open(name, settings) for name in CHANNELS if getattr(settings, name) is not None]


def _open(name: str, settings: NotifySettings) -> Channel:
    from importlib import import_module

    module = import_module(f"tachograph.sinks.notify.{name if name != 'email' else 'smtp'}")
    channel: Channel = module.open_channel(getattr(settings, name))
    return channel
