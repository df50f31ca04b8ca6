"""The run folder on disk: written by one process, read by many."""

from tachograph.journal._appender import Appender
from tachograph.journal._claim import Claim, claim_run_folder, lock_run_folder, reset_claims_after_fork
from tachograph.journal._control_file import (
    LOG_EVERY_MAX,
    LOG_EVERY_MIN,
    NOT_CONTROLS,
    PROFILE_STEPS_MAX,
    REQUESTS,
    ControlFile,
    ControlFileError,
    Request,
    is_number_of_steps,
    read_requests,
    write_requests,
)
from tachograph.journal._csv import CsvMirror, is_csv_current, rebuild_csv
from tachograph.journal._csv_main import complete_csv_later
from tachograph.journal._destination import Destination, read_destination, remove_destination, write_destination
from tachograph.journal._ends import current_state
from tachograph.journal._files import (
    complete_size,
    compress_journal,
    compressed_path,
    journal_size,
    open_journal,
    restore_journal,
    stat_journal,
)
from tachograph.journal._folder import RunFolder, find_run, list_runs
from tachograph.journal._follower import JournalFollower, count_records, read_records
from tachograph.journal._jobs import find_job
from tachograph.journal._liveness import (
    Heartbeat,
    ProcessIdentity,
    RunState,
    infer_writer_state,
    read_heartbeat,
    state_at_end,
    this_process,
    uptime_s,
)
from tachograph.journal._log_folders import (
    MAX_RUN_DEPTH,
    FoundRun,
    LogFolders,
    find_below,
    find_run_folders,
    is_linked_out,
)
from tachograph.journal._output import (
    OUTPUT_MAX_BYTES,
    OutputSegment,
    OutputWriter,
    list_output_segments,
    output_line,
    partial_output,
)

__all__ = [
    "MAX_RUN_DEPTH",
    "Appender",
    "Claim",
    "ControlFile",
    "ControlFileError",
    "CsvMirror",
    "Destination",
    "FoundRun",
    "Heartbeat",
    "JournalFollower",
    "LOG_EVERY_MAX",
    "LOG_EVERY_MIN",
    "LogFolders",
    "NOT_CONTROLS",
    "OUTPUT_MAX_BYTES",
    "OutputSegment",
    "OutputWriter",
    "PROFILE_STEPS_MAX",
    "ProcessIdentity",
    "REQUESTS",
    "Request",
    "RunFolder",
    "RunState",
    "claim_run_folder",
    "complete_csv_later",
    "complete_size",
    "compress_journal",
    "compressed_path",
    "count_records",
    "current_state",
    "find_below",
    "find_job",
    "find_run",
    "find_run_folders",
    "reset_claims_after_fork",
    "lock_run_folder",
    "infer_writer_state",
    "is_csv_current",
    "is_linked_out",
    "is_number_of_steps",
    "journal_size",
    "list_runs",
    "open_journal",
    "list_output_segments",
    "output_line",
    "partial_output",
    "read_destination",
    "read_heartbeat",
    "read_records",
    "read_requests",
    "rebuild_csv",
    "remove_destination",
    "restore_journal",
    "stat_journal",
    "state_at_end",
    "this_process",
    "uptime_s",
    "write_destination",
    "write_requests",
]
