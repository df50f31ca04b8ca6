"""Importers: read the logs of other tools as records.

Built-in importers read CSV, JSON lines, TensorBoard event files and the Trainer's `trainer_state.json`; packages add
theirs as entry points of the group `tachograph.importers`. Nothing in a log is executed, and values that are not
numbers are ignored.
"""

from tachograph.importers._importer import Importer
from tachograph.importers._read import IMPORTERS, describe, read_log
from tachograph.importers._rows import STEP_NAMES, TIME_NAMES

__all__ = ["IMPORTERS", "STEP_NAMES", "TIME_NAMES", "Importer", "describe", "read_log"]
