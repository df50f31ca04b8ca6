"""`export_runs`: find the metrics of all runs, then write one table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from tachograph.catalog.export._formats import load_format
from tachograph.catalog.export._rows import JournalSnapshot
from tachograph.exceptions import ConfigError, TableExportError, did_you_mean
from tachograph.journal import RunFolder
from tachograph.records import METRIC_KINDS

__all__ = ["DEFAULT_KINDS", "ExportedRun", "export_runs"]

DEFAULT_KINDS = tuple(kind for kind in METRIC_KINDS if kind not in {"system", "profile"})


class ExportedRun(NamedTuple):
    """The exported part of a run."""

    name: str
    """The run in the table: its name, or its path if several runs have this name."""
    num_rows: int
    num_bad_lines: int


def export_runs(
    folders: Sequence[RunFolder],
    file: BinaryIO,
    format: str,  # noqa: A002 - the word that users know
    *,
    metrics: Sequence[str] = (),
    kinds: Sequence[str] = DEFAULT_KINDS,
    is_long: bool = False,
) -> list[ExportedRun]:
    """Write the metrics of some runs as one table.

    Args:
        folders: the runs.
        file: receives the table.
        format: a name in `FORMATS`.
        metrics: names, in which `*` stands for any text; all metrics by default. If one of them has another metric as
            its x axis, the rows have this one too.
        kinds: the kinds of records.
        is_long: write a row for each value instead of one for each record.

    Raises:
        ConfigError: if no run has one of the metrics.
        TableExportError: if there are no rows, or a journal was replaced meanwhile.
    """
    create_writer = load_format(format)
    folders = list({folder.path.resolve(): folder for folder in folders}.values())
    journals = [JournalSnapshot(folder) for folder in folders]
    kinds_of: dict[str, set[str]] = {}
    for journal in journals:
        for name, metric_kinds in journal.metric_kinds().items():
            kinds_of.setdefault(name, set()).update(metric_kinds)
    selected_metrics = _select(metrics, kinds_of, kinds)
    step_metrics = {
        axis for journal in journals for name, axis in journal.step_metrics.items() if name in selected_metrics
    }
    axes = [name for name in kinds_of if name in step_metrics and name not in selected_metrics]
    if not selected_metrics:
        num_bad_lines = sum(journal.num_bad_lines for journal in journals)
        bad_lines_note = f"; unreadable lines: {num_bad_lines}" if num_bad_lines else ""
        raise TableExportError(
            f"nothing to export: no metrics in records of these kinds: {', '.join(kinds)}{bad_lines_note}"
        )
    writer = create_writer(file, [*selected_metrics, *axes], is_long=is_long)
    exported_runs: list[ExportedRun] = []
    for name, journal in zip(_labels(folders), journals, strict=True):
        num_rows = sum(writer.add(name, batch) for batch in journal.rows(selected_metrics, kinds, axes))
        exported_runs.append(ExportedRun(name, num_rows, journal.num_bad_lines))
    writer.close()
    return exported_runs


def _select(patterns: Sequence[str], kinds_of: dict[str, set[str]], kinds: Sequence[str]) -> dict[str, None]:
    """Return the metrics that match a pattern, in order of appearance."""
    available = [name for name, metric_kinds in kinds_of.items() if not metric_kinds.isdisjoint(kinds)]
    if not patterns:
        return dict.fromkeys(available)
    selected_names: set[str] = set()
    for pattern in patterns:
        # Not `fnmatch`: names may contain brackets.
        matches = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch
        metric_kinds = set(filter(matches, available))
        if not metric_kinds:
            elsewhere = sorted({kind for name in filter(matches, kinds_of) for kind in kinds_of[name]})
            if elsewhere:
                hint = f"; it is in records of the kind {elsewhere[0]}: add --kind {elsewhere[0]}"
            else:
                hint = did_you_mean(pattern, available)
            raise ConfigError(f"no run has a metric {pattern!r}{hint}")
        selected_names |= metric_kinds
    return dict.fromkeys(name for name in available if name in selected_names)


def _labels(folders: Sequence[RunFolder]) -> list[str]:
    counts = Counter(folder.name for folder in folders)
    return [folder.name if counts[folder.name] == 1 else str(folder.path) for folder in folders]
