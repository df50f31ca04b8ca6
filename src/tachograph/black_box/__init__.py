"""The black box: evidence about the last steps, written to the run folder when something goes wrong."""

from tachograph.black_box._box import ALERT_REASONS, BlackBox
from tachograph.black_box._dump_writer import DumpContext, DumpPart, DumpWriter
from tachograph.black_box._dumps import Dump, read_dumps, resume_skipping
from tachograph.black_box._format import (
    DumpDocument,
    DumpFile,
    Verdict,
    dump_names,
    dumps_folder,
    is_dump_name,
    reason_word,
)
from tachograph.black_box._gpu_errors import GpuErrors
from tachograph.black_box._killed import explain_kill, find_kill, write_kill_dump
from tachograph.black_box._memory_group import MemoryGroup, child_memory_fields
from tachograph.black_box._memory_observer import MemoryReporter
from tachograph.black_box._operation_trace import FailedOperation, OperationTrace, trace_operations

__all__ = [
    "ALERT_REASONS",
    "BlackBox",
    "Dump",
    "DumpContext",
    "DumpDocument",
    "DumpFile",
    "DumpPart",
    "DumpWriter",
    "FailedOperation",
    "GpuErrors",
    "MemoryGroup",
    "MemoryReporter",
    "OperationTrace",
    "Verdict",
    "child_memory_fields",
    "dump_names",
    "dumps_folder",
    "explain_kill",
    "find_kill",
    "is_dump_name",
    "read_dumps",
    "reason_word",
    "resume_skipping",
    "trace_operations",
    "write_kill_dump",
]
