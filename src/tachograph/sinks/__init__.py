"""Sinks: export the journal of a run to other tools, such as TensorBoard, W&B or a chat channel.

A sink reads the journal file, like any other reader. A sink that is chosen by name runs in a process of its own; an
object runs in a thread of its own. One that is slow, down or broken never affects training or the journal; its cursor
lets it catch up later. Sinks never import each other.
"""

from tachograph.sinks._config import SINKS, build_sinks
from tachograph.sinks._driver import SinkDriver, SinkLag, lock_export, read_lags, read_rejections
from tachograph.sinks._process import SinkProcess, start_sinks
from tachograph.sinks._sink import BackgroundSink, RejectingSink, ReplayingSink, Sink, scalar_metrics
from tachograph.sinks._tool_options import ToolOptions, read_tool_options

__all__ = [
    "SINKS",
    "BackgroundSink",
    "RejectingSink",
    "ReplayingSink",
    "Sink",
    "SinkDriver",
    "SinkLag",
    "SinkProcess",
    "ToolOptions",
    "build_sinks",
    "lock_export",
    "read_lags",
    "read_rejections",
    "read_tool_options",
    "scalar_metrics",
    "start_sinks",
]
