"""The recorder: the `Run` that a training loop logs to, and the writer thread."""

from tachograph.recorder._after_exit import append_after_exit
from tachograph.recorder._buffer_items import BACKPRESSURE_SIZE, BufferItem, ItemHandler, ObservedStep, PendingRecord
from tachograph.recorder._control import Control
from tachograph.recorder._errors import error_fields, error_message, error_type, traceback_of
from tachograph.recorder._losses import LossCounter
from tachograph.recorder._process import latest_run, on_run_start, process_state, watch
from tachograph.recorder._record_builder import RecordBuilder
from tachograph.recorder._run import DisabledRun, RankRun, Run
from tachograph.recorder._start import current_run, log, start_run, worker_run
from tachograph.recorder.collectors.ab import ab
from tachograph.recorder.collectors.completion_rows import completion_row, text_of
from tachograph.recorder.collectors.completions import Completions
from tachograph.recorder.collectors.loggers import LoggerCosts, logger_name, loggers_in, watch_loggers

__all__ = [
    "BACKPRESSURE_SIZE",
    "BufferItem",
    "Completions",
    "Control",
    "DisabledRun",
    "ItemHandler",
    "LoggerCosts",
    "LossCounter",
    "ObservedStep",
    "PendingRecord",
    "RankRun",
    "RecordBuilder",
    "Run",
    "ab",
    "append_after_exit",
    "completion_row",
    "current_run",
    "error_fields",
    "error_message",
    "error_type",
    "latest_run",
    "log",
    "on_run_start",
    "logger_name",
    "loggers_in",
    "process_state",
    "start_run",
    "text_of",
    "traceback_of",
    "watch",
    "watch_loggers",
    "worker_run",
]
