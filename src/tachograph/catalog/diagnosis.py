"""`tachograph.diagnose`: run the rules over a recorded run or the log of another tool."""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tachograph.catalog import SIGNAL_ANNOTATION, read_annotations
from tachograph.diagnostics import SIGNALS, RuleEngine, is_rank_record, resolve_rules, resolve_signals
from tachograph.exceptions import ConfigError, RunNotFoundError
from tachograph.importers import describe, read_log
from tachograph.journal import RunFolder, RunState, find_run, list_rank_journals, read_rank_map, read_records
from tachograph.reader import Alert, AlertHistory, RankView, crash_reason, overview, read_ranks, worst_first
from tachograph.records import METRIC_KINDS, STALL_RULES, finite_or_none, freeze, is_frozen, plain_name, to_plain

__all__ = ["Diagnosis", "diagnose"]


class Diagnosis(msgspec.Struct):
    """The findings of the rules."""

    name: str
    alerts: list[Alert]
    """One alert per fault, oldest first."""
    signals: dict[str, str]
    """The signals that were found, each with the name of its metric."""
    num_records: int
    num_alerts: int
    """Number of all alerts; if there are very many, `alerts` contains only the last ones."""
    other_metrics: list[str] = []
    """Some of the metrics that belong to no signal."""
    state: RunState | None = None
    """The state of the run; None for records and for the log of another tool."""
    reason: str | None = None
    """Why the run ended, unless it finished normally."""
    failed_ranks: list[RankView] = []
    """The processes of a distributed job that failed or crashed, other than rank 0, whose state is that of the run."""

    @property
    def open_alerts(self) -> list[Alert]:
        """Alerts that were still open at the last record, the worst first."""
        return worst_first(alert for alert in self.alerts if alert.is_open)

    @property
    def has_failed(self) -> bool:
        """Whether the run itself or one of its ranks failed or crashed, whatever the rules found."""
        return bool(self.failed_ranks) or (self.state is not None and self.state.is_failure)


def diagnose(
    source: str | os.PathLike[str] | Iterable[dict[str, Any]],
    log_dir: str | os.PathLike[str] | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
    signals: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Run the rules over everything that was recorded, as they would have run at the time.

    If old windows of ranks were merged (`tacho prune --do merge_ranks`), the recorded alerts are returned instead; with
    `rules`, these run without the windows of other ranks.

    Args:
        source: a run (its folder or, with `log_dir`, its name); a CSV, JSON-lines or TensorBoard file or a
            `trainer_state.json` of another tool; or records, whose values are converted as `Run.log` does.
        log_dir: the folder that contains the runs.
        rules: the rules to use and their thresholds, as for `init`. They take precedence over those that the run was
            started with.
        signals: more metric names by signal, as for `init`. For a run, metrics named with `tacho doctor --map` are
            used too.

    Raises:
        RunNotFoundError: if there is neither a run nor a log.
        ConfigError: if a log cannot be read, or `rules` or `signals` is invalid.

    Example:
        >>> for alert in tachograph.diagnose("logs/greyjacket").alerts:
        ...     print(alert.severity, alert.title)
    """
    thresholds, signal_names = resolve_rules(rules), resolve_signals(signals)
    name, records, folder = _open_source(source, log_dir)
    if folder is not None:
        thresholds = resolve_rules({**_rules_of_run(folder), **(rules or {})})
        signal_names = resolve_signals(_with_remembered(signals or {}, folder))
    engine, history = RuleEngine(thresholds, signals=signal_names), AlertHistory()
    has_merged_windows = _has_merged_windows(folder)
    all_records = _with_other_ranks(records, folder, with_windows=not has_merged_windows)
    if has_merged_windows and not rules:
        num_records = _add_recorded_alerts(all_records, engine, history)
    else:
        num_records = _judge(all_records, engine, history, thresholds)
    diagnosis = Diagnosis(
        name, history.alerts(), engine.signals, num_records, history.num_opened, other_metrics=engine.other_metrics
    )
    if folder is not None:
        run = overview(folder)
        diagnosis.state, diagnosis.reason = run.state, run.reason
        if run.state is RunState.CRASHED and not run.reason:
            diagnosis.reason = crash_reason(folder) or None
        diagnosis.failed_ranks = [view for view in read_ranks(folder)[1:] if view.state.is_failure]
    return diagnosis


def _judge(
    records: Iterable[tuple[int, dict[str, Any]]],
    engine: RuleEngine,
    history: AlertHistory,
    thresholds: Mapping[str, Any],
) -> int:
    """Run the rules over the records of all ranks; return their number."""
    num_records = 0
    has_recorded_hang = False
    for rank, record in records:
        num_records += 1
        if rank:
            for alert in engine.observe_rank(rank, record):
                history.add(alert)
            continue
        if record["event"] == "start":
            history.add(record)
        if record["event"] == "alert" and record.get("rule") in STALL_RULES and record["rule"] in thresholds:
            # A journal has no ticks, so only the process that recorded it could notice that nothing happened.
            has_recorded_hang = has_recorded_hang or record["rule"] == "hang"
            history.add(record)
        for alert in engine.observe(record):
            if alert["rule"] != "hang" or not has_recorded_hang:
                history.add(alert)
    return num_records


def _add_recorded_alerts(
    records: Iterable[tuple[int, dict[str, Any]]], engine: RuleEngine, history: AlertHistory
) -> int:
    """Add the alerts that rank 0 has recorded, and find the signals; return the number of records.

    Rules would judge merged windows in another way, and a straggler explains alerts of other rules.
    """
    num_records = 0
    for rank, record in records:
        num_records += 1
        if not rank:
            engine.observe(record)
            if record["event"] in {"start", "alert"}:
                history.add(record)
    return num_records


def _open_source(
    source: str | os.PathLike[str] | Iterable[dict[str, Any]], log_dir: str | os.PathLike[str] | None
) -> tuple[str, Iterator[dict[str, Any]], RunFolder | None]:
    if not isinstance(source, (str, os.PathLike)):
        return "records", map(_to_plain_record, source), None
    try:
        folder = find_run(source, log_dir)
        return folder.name, read_records(folder.journal), folder
    except RunNotFoundError:
        if not os.path.exists(source):
            raise
        if describe(source) is None and os.path.isdir(source):
            raise
        return os.path.basename(os.fspath(source).rstrip(os.sep)), read_log(source), None


def _has_merged_windows(folder: RunFolder | None) -> bool:
    rank_map = read_rank_map(folder) if folder is not None else None
    return rank_map is not None and rank_map.has_merged_windows


def _with_other_ranks(
    records: Iterable[dict[str, Any]], folder: RunFolder | None, *, with_windows: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of all ranks in the order of their times, each with its rank; see `is_rank_record`."""
    journals = list_rank_journals(folder) if folder is not None else []
    if not journals:
        yield from ((0, record) for record in records)
        return
    streams = [_timed(0, records)]
    for journal in journals:
        rank = None if journal.is_host else journal.number
        rank_records = filter(is_rank_record, read_records(journal.path))
        streams.append(_timed(rank, (each for each in rank_records if with_windows or each["event"] != "rank")))
    for _, rank, record in heapq.merge(*streams, key=lambda item: item[0]):
        yield rank, record


def _timed(rank: int | None, records: Iterable[dict[str, Any]]) -> Iterator[tuple[float, int, dict[str, Any]]]:
    """Yield records with their time; a record that is older than the one before it keeps its place.

    Args:
        rank: the rank; None if each record states its own.
        records: the records of a file.
    """
    time_s = 0.0
    for record in records:
        time_s = max(time_s, finite_or_none(record.get("time")) or 0.0)
        record_rank = record.get("from_rank") if rank is None else rank
        if type(record_rank) is int:
            yield time_s, record_rank, record


def _rules_of_run(folder: RunFolder) -> dict[str, Any]:
    """Return the rules that `init` got, without those that this installation does not know or cannot use."""
    start = next((record for record in read_records(folder.journal) if record["event"] == "start"), {})
    rules = start.get("rules")
    usable_rules = {}
    for name, setting in rules.items() if isinstance(rules, Mapping) else ():
        with contextlib.suppress(ConfigError):
            resolve_rules({name: setting})
            usable_rules[name] = setting
    return usable_rules


def _with_remembered(signals: Mapping[str, Any], folder: RunFolder) -> dict[str, list[str]]:
    """Add the metrics that a user named as signals of a run, with `tacho doctor --map` or in the dashboard."""
    annotations = read_annotations(folder).values
    names_by_signal = {signal: [names] if isinstance(names, str) else [*names] for signal, names in signals.items()}
    plain_names = {plain_name(name) for names in names_by_signal.values() for name in names}
    for signal in SIGNALS:
        name = annotations.get(f"{SIGNAL_ANNOTATION}{signal}")
        if isinstance(name, str) and name and plain_name(name) not in plain_names:
            plain_names.add(plain_name(name))
            names_by_signal.setdefault(signal, []).append(name)
    return names_by_signal


def _to_plain_record(record: dict[str, Any]) -> dict[str, Any]:
    """Convert the values of a record as `Run.log` does: numpy scalars, tensors and nested metrics become numbers."""
    if all(type(value) is str or is_frozen(value) for value in record.values()):
        return record
    fields = freeze(record) if record.get("event") in METRIC_KINDS else record
    plain: dict[str, Any] = to_plain(fields, "", [])
    return plain
