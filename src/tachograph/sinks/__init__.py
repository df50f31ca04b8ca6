"""Sinks: export the journal of a run to other tools, such as TensorBoard, W&B or a chat channel.

A sink reads the journal file, like any other reader, in a thread of its own. A sink that is slow, down or broken never
affects training or the journal; its cursor lets it catch up later. Sinks never import each other.
"""

from tachograph.sinks._config import SINKS, build_sinks
from tachograph.sinks._driver import SinkDriver
from tachograph.sinks._sink import BackgroundSink, Sink, scalar_metrics

__all__ = ["SINKS", "BackgroundSink", "Sink", "SinkDriver", "build_sinks", "scalar_metrics"]
