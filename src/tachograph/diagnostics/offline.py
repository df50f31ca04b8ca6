"""`tachograph.diagnose`: what the rules say of a run, or of a log of another tool, after the fact."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tachograph.diagnostics import RuleEngine, resolve_rules
from tachograph.exceptions import RunNotFoundError
from tachograph.importers import describe, read_log
from tachograph.journal import RunFolder, RunState, find_run, read_records
from tachograph.reader import Alert, AlertHistory, overview, worst_first

__all__ = ["Diagnosis", "diagnose"]


class Diagnosis(msgspec.Struct):
    """What the rules found."""

    name: str
    alerts: list[Alert]
    """Each fault once, oldest first."""
    signals: dict[str, str]
    """What there was to look at: each signal with the name under which it is recorded."""
    num_records: int
    num_alerts: int
    """How many alerts there were; of very many only the last are in `alerts`."""
    state: RunState | None = None
    """What became of the run; None if it is a log of another tool, or records."""
    reason: str | None = None
    """Why it ended, if it did not just finish."""

    @property
    def open_alerts(self) -> list[Alert]:
        """Alerts that were not resolved when the records ended, the worst first."""
        return worst_first(alert for alert in self.alerts if alert.is_open)

    @property
    def has_failed(self) -> bool:
        """Whether the run itself ended badly, whatever the rules say of its training."""
        return self.state in {RunState.FAILED, RunState.CRASHED}


def diagnose(
    source: str | os.PathLike[str] | Iterable[dict[str, Any]],
    log_dir: str | os.PathLike[str] | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Let the rules look at everything that was recorded, as they would have while it was.

    Args:
        source: a run (its folder or, with `log_dir`, its name); a CSV, JSON-lines or TensorBoard file or a
            `trainer_state.json` of another tool; or records.
        log_dir: the folder that holds the runs.
        rules: which rules to use and with which thresholds, as for `init`.

    Raises:
        RunNotFoundError: if there is neither a run nor a log.
        ConfigError: if a log cannot be read, or `rules` is wrong.

    Example:
        >>> for alert in tachograph.diagnose("logs/greyjacket").alerts:
        ...     print(alert.severity, alert.title)
    """
    thresholds = resolve_rules(rules)
    name, records, folder = _records(source, log_dir)
    doctor, book, num_records = RuleEngine(thresholds), AlertHistory(), 0
    has_recorded_hang = False
    for record in records:
        num_records += 1
        if record["event"] == "start":
            book.take(record)
        if record["event"] == "alert" and record.get("rule") == "hang" and "hang" in thresholds:
            has_recorded_hang = True
            book.take(record)  # only who was there can tell that nothing happened
        for alert in doctor.take(record):
            if alert["rule"] != "hang" or not has_recorded_hang:
                book.take(alert)
    diagnosis = Diagnosis(name, book.alerts(), doctor.signals, num_records, book.num_opened)
    if folder is not None:
        run = overview(folder)
        diagnosis.state, diagnosis.reason = run.state, run.reason
    return diagnosis


def _records(
    source: str | os.PathLike[str] | Iterable[dict[str, Any]], log_dir: str | os.PathLike[str] | None
) -> tuple[str, Iterator[dict[str, Any]], RunFolder | None]:
    if not isinstance(source, (str, os.PathLike)):
        return "records", iter(source), None
    try:
        folder = find_run(source, log_dir)
        return folder.name, read_records(folder.journal), folder
    except RunNotFoundError:
        if not os.path.exists(source):
            raise
        if describe(source) is None and os.path.isdir(source):
            raise
        return os.path.basename(os.fspath(source).rstrip(os.sep)), read_log(source), None
