"""Logs of other tools as records: CSV, JSON lines, TensorBoard event files, and the Trainer's `trainer_state.json`.

Nothing in a file is executed. What cannot be read as a number is left out.
"""

from tachograph.importers._detect import describe, read_log
from tachograph.importers._rows import STEP_NAMES, TIME_NAMES

__all__ = ["STEP_NAMES", "TIME_NAMES", "describe", "read_log"]
