"""Appending to a run after its process has exited: the launcher adds the exit code and the last output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.journal import Appender, CsvMirror, RunFolder, lock_run_folder
from tachograph.records import ValueProblem, encode, to_plain

__all__ = ["append_after_exit"]

_MIRROR_BUDGET_S = 5.0


def append_after_exit(folder: RunFolder, events: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Append records to a run that is no longer recorded; return False if a process still records it.

    Args:
        folder: the folder of the run.
        events: the kind and the fields of each record.

    Raises:
        OSError: if the journal cannot be written.
    """
    with lock_run_folder(folder) as is_ours:
        if not is_ours:
            return False
        problems: list[ValueProblem] = []
        now_s = time.time()
        records = [{"event": event, "time": now_s, **to_plain(fields, event, problems)} for event, fields in events]
        mirror = CsvMirror(folder) if folder.csv.exists() else None
        if mirror is not None:
            mirror.load()
        appender = Appender(folder.journal)
        try:
            fault = appender.append(b"".join(encode(record) + b"\n" for record in records))
            if fault is not None:
                raise fault
            if mirror is not None:
                mirror.catch_up(appender.size_bytes, budget_s=_MIRROR_BUDGET_S, force=True)
                mirror.close()
            appender.sync()
        finally:
            appender.close()
        return True
