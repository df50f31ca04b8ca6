"""Notifications: a sink that sends messages about a run to Lark, Slack, Discord, a webhook or e-mail.

Unsent messages are kept in the run folder, and no channel waits for another. Secrets are never printed, logged or
recorded.
"""

from tachograph._base.http import DeliveryError
from tachograph.sinks.notify._channel import Channel, open_channels
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._resolve import config_warnings, resolve_notify
from tachograph.sinks.notify._sample import sample_message
from tachograph.sinks.notify._settings import CHANNELS, EVENTS, NotifyRow, NotifySettings, env_name, notify_table
from tachograph.sinks.notify._sink import NotifySink
from tachograph.sinks.notify._template import PLACEHOLDERS

__all__ = [
    "CHANNELS",
    "EVENTS",
    "PLACEHOLDERS",
    "Channel",
    "DeliveryError",
    "Message",
    "NotifyRow",
    "NotifySettings",
    "NotifySink",
    "config_warnings",
    "env_name",
    "notify_table",
    "open_channels",
    "resolve_notify",
    "sample_message",
]
