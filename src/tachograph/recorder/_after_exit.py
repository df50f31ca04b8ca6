"""What is added to a run after the process that recorded it has ended, by whoever started that process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tachograph.journal import Appender, CsvMirror, RunFolder, hold_run_folder
from tachograph.records import ValueProblem, encode, to_plain

__all__ = ["append_after_exit"]

_MIRROR_BUDGET_S = 5.0


def append_after_exit(folder: RunFolder, notes: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Append records to a run that nobody records any more; return False if somebody does.

    Args:
        folder: the run's.
        notes: the kind and the fields of each record.

    Raises:
        OSError: if the journal cannot be written.
    """
    with hold_run_folder(folder) as is_ours:
        if not is_ours:
            return False
        problems: list[ValueProblem] = []
        now_s = time.time()
        records = [{"event": event, "time": now_s, **to_plain(fields, event, problems)} for event, fields in notes]
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
