"""Notifications: people are told what happens to a run, from its journal and off the training path.

Follows the journal like a sink, keeps what was not sent yet in the run folder, and never lets one channel wait for
another. A secret is never printed, logged or recorded here.
"""

from tachograph._base.http import DeliveryError
from tachograph.sinks.notify._channel import Channel, open_channels
from tachograph.sinks.notify._follower import NotifyFollower
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._resolve import resolve_notify, warnings_of
from tachograph.sinks.notify._sample import sample_message
from tachograph.sinks.notify._settings import CHANNELS, EVENTS, NotifyRow, NotifySettings, env_name, notify_table
from tachograph.sinks.notify._template import PLACEHOLDERS

__all__ = [
    "CHANNELS",
    "EVENTS",
    "PLACEHOLDERS",
    "Channel",
    "Message",
    "NotifyFollower",
    "NotifyRow",
    "NotifySettings",
    "DeliveryError",
    "env_name",
    "notify_table",
    "open_channels",
    "resolve_notify",
    "sample_message",
    "warnings_of",
]
