"""Sinks: readers of the journal that hand it on to other tools. Each has a cursor, so none loses anything.

A sink follows the journal file like any other reader, in a thread of its own. One that is slow, down or broken never
touches the training loop or the journal; it catches up later. Sinks never import each other.
"""

from tachograph.sinks._follower import Sink, SinkFollower
from tachograph.sinks._load import SINKS, load_sink

__all__ = ["SINKS", "Sink", "SinkFollower", "load_sink"]
