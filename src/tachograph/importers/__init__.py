"""Importers: read the logs of other tools as records, and make runs of them.

Built-in importers read CSV, JSON lines, TensorBoard event files, the files of W&B and SwanLab, the stores of MLflow,
trackio and Aim, and the Trainer's `trainer_state.json`; packages add theirs as entry points of the group
`tachograph.importers`. Nothing in a log is executed.
"""

from tachograph.importers._import import ImportReport, import_runs
from tachograph.importers._importer import Importer
from tachograph.importers._read import IMPORTERS, describe, read_log
from tachograph.importers._rows import STEP_NAMES, TIME_NAMES, field_name
from tachograph.importers._source import (
    MAX_DAMAGE,
    Damage,
    Position,
    RowSource,
    RunSource,
    SourceRecord,
    read_single_run,
    source_changed,
)
from tachograph.importers._watch import LogWatcher, WatchedLog

__all__ = [
    "IMPORTERS",
    "STEP_NAMES",
    "TIME_NAMES",
    "Damage",
    "ImportReport",
    "Importer",
    "LogWatcher",
    "MAX_DAMAGE",
    "Position",
    "RowSource",
    "RunSource",
    "SourceRecord",
    "WatchedLog",
    "describe",
    "field_name",
    "import_runs",
    "read_log",
    "read_single_run",
    "source_changed",
]
