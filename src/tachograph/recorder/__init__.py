"""The recorder: what the training loop talks to, and the thread that writes for it. Never blocks training."""

from tachograph.recorder._after_exit import add_epilogue
from tachograph.recorder._buffer_items import LOSSES, PRESSURE, Entry, Guest, Note
from tachograph.recorder._completion_rows import completion_row, text_of
from tachograph.recorder._completions import Completions
from tachograph.recorder._control import Control
from tachograph.recorder._errors import error_fields, error_message, error_type, traceback_of
from tachograph.recorder._process import latest_run
from tachograph.recorder._run import DisabledRun, LightRun, Run
from tachograph.recorder._start import begin_run, current_run, log, worker_run

__all__ = [
    "Completions",
    "Control",
    "DisabledRun",
    "Entry",
    "Guest",
    "LOSSES",
    "LightRun",
    "Note",
    "PRESSURE",
    "Run",
    "add_epilogue",
    "begin_run",
    "completion_row",
    "current_run",
    "error_fields",
    "error_message",
    "error_type",
    "latest_run",
    "log",
    "text_of",
    "traceback_of",
    "worker_run",
]
