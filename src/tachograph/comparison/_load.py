"""Load the series and facts that comparisons use (step time, loss, memory, config) from the columns of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from tachograph.catalog import flatten_config
from tachograph.comparison._evidence import RankLevel, RunEvidence, SeriesPoints, StepClock, no_points
from tachograph.exceptions import RunNotFoundError
from tachograph.journal import RunFolder
from tachograph.reader import Goodput, read_rank_samples
from tachograph.records import finite_or_none, loss_names_in, result_name_in, signal_of
from tachograph.store import SegmentError, StoredRun

__all__ = ["load_earlier", "load_earlier_folders", "load_evidence", "load_folder", "load_folders", "load_step_times"]

_MEMORY = {
    "device_allocated": (("gpu_mem_peak_allocated", "gpu_mem_allocated"), 1 << 30),
    "device_reserved": (("gpu_mem_peak_reserved", "gpu_mem_reserved"), 1 << 30),
    "host": (("cpu_mem_rss_mb",), 1 << 20),
}
"""The metrics of each kind of memory, of which the first counts that a run has, and their unit in bytes."""
_LOSSES = {"loss", "adversarial_loss", "val_loss"}
"""The signals that are judged by themselves, or not at all."""
_MIN_MEMORY_STEPS = 50
_MAX_CONFIG_KEYS = 2_000


def load_folders(folders: Iterable[RunFolder]) -> list[RunEvidence]:
    """Load the evidence of the runs in some folders, several at a time; see `load_folder`."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # numpy works without the interpreter's lock
        return list(pool.map(load_folder, folders))


def load_folder(folder: RunFolder, *, prefers_step_times: bool = False) -> RunEvidence:
    """Load the evidence of the run in a folder.

    Args:
        folder: the folder.
        prefers_step_times: take the clock from the time of each step, if there are more of them than windows: in a
            run of a few seconds, windows are too long to compare.

    Raises:
        RunNotFoundError: if the journal cannot be read.
    """
    try:
        run = StoredRun(folder)
        evidence = load_evidence(run)
        if prefers_step_times:
            clock = StepClock.of(load_step_times(run))
            evidence = replace(evidence, clock=clock) if len(clock.steps) > len(evidence.clock.steps) else evidence
        return evidence
    except (OSError, SegmentError) as error:
        raise RunNotFoundError(f"{folder.journal} cannot be read: {error}") from error


def load_earlier_folders(folders: Iterable[RunFolder]) -> list[RunEvidence | None]:
    """Read what the noise is learned from, of several runs at a time; None for one that cannot be read."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(_load_earlier_folder, folders))


def _load_earlier_folder(folder: RunFolder) -> RunEvidence | None:
    try:
        return load_earlier(StoredRun(folder))
    except (OSError, SegmentError):
        return None


def load_earlier(run: StoredRun) -> RunEvidence:
    """Read what the noise is learned from: the speed and the losses of a run, and its config.

    Raises:
        OSError: if the journal cannot be read.
        SegmentError: if its columns are damaged while they are read.
    """
    run.refresh()
    with run.lock:
        digest = run.digest
        loss, val_loss = _losses(run)
        return RunEvidence(
            run.id,
            str(digest.facts.get("run_id") or ""),
            started=run.started_at,
            session_tag=digest.session_tag,
            config=flatten_config(digest.config, _MAX_CONFIG_KEYS),
            clock=_clock(run),
            loss=loss,
            val_loss=val_loss,
        )


def load_evidence(run: StoredRun) -> RunEvidence:
    """Load the evidence of a run.

    Raises:
        OSError: if the journal cannot be read.
        SegmentError: if its columns are damaged while they are read.
    """
    run.refresh()
    with run.lock:
        digest = run.digest
        facts = _facts(digest.facts)
        names = run.metric_names
        loss, val_loss = _losses(run)
        result_name = result_name_in(name for name in names if (signal_of(name) or ("",))[0] not in _LOSSES)
        failure, goodput = digest.failure, digest.goodput
        memory, memory_spread = _memory(run, names)
        num_steps = int(loss.steps[-1]) if len(loss.steps) else digest.counts.get("step", 0)
        return RunEvidence(
            name=run.id,
            run_id=str(digest.facts.get("run_id") or ""),
            started=run.started_at,
            state=str(digest.state),
            failure=None if failure is None else f"{failure.error_type or 'error'}: {failure.message}"[:200],
            perf_tags=tuple(digest.perf_tags[-1:] if isinstance(digest.perf_tag, str) else digest.perf_tag or ()),
            session_tag=digest.session_tag,
            is_baseline=any(
                record.get("is_baseline_run") is True for record in digest.latest("event", "one_logger_initialization")
            ),
            facts=facts,
            config=flatten_config(digest.config, _MAX_CONFIG_KEYS),
            clock=_clock(run),
            loss=loss,
            val_loss=val_loss,
            result_name=result_name or "",
            result=_points(run, result_name) if result_name else no_points(),
            memory=memory,
            memory_spread=memory_spread,
            rank_memory=_rank_memory(run, memory),
            num_steps=num_steps,
            goodput=None if goodput is None or not goodput.is_meaningful else goodput.share,
            uses={} if goodput is None else _uses(goodput),
            phases_s={name: total / num_steps for name, total in digest.phases.items()} if num_steps else {},
        )


def _losses(run: StoredRun) -> tuple[SeriesPoints, SeriesPoints]:
    """Return the training loss and the validation loss."""
    names = loss_names_in(run.metric_names)[:1]
    validation = _first_named(run.metric_names, "val_loss")
    return (
        _points(run, names[0]) if names else no_points(),
        _points(run, validation) if validation else no_points(),
    )


def _uses(goodput: Goodput) -> dict[str, float]:
    seconds = {"data": goodput.data_s, "checkpoint": goodput.checkpoint_s, "validation": goodput.validation_s}
    return {use: each / goodput.wall_s for use, each in seconds.items()} if goodput.wall_s > 0 else {}


def _facts(start_facts: Mapping[str, Any]) -> dict[str, Any]:
    git = start_facts.get("git")
    facts = {name: value for name, value in start_facts.items() if name not in {"config", "git"}}
    if isinstance(git, Mapping):
        facts |= {f"git.{name}": git.get(name) for name in ("commit", "dirty")}
    return facts


def _first_named(names: list[str], signal: str) -> str | None:
    candidates = [
        (signal_and_rank[1], name)
        for name in names
        if (signal_and_rank := signal_of(name)) is not None and signal_and_rank[0] == signal
    ]
    return min(candidates)[1] if candidates else None


def _points(run: StoredRun, name: str) -> SeriesPoints:
    """Return the points of a metric in the order of their steps; of several at one step, the last one."""
    points = run.latest_points(name)
    if points is None:
        return no_points()
    steps, values = points[0].astype(np.float64), points[1]
    if len(steps) > 1 and (np.diff(steps) <= 0).any():
        order = np.argsort(steps, kind="stable")
        is_last = np.append(np.diff(steps[order]) > 0, True)
        steps, values = steps[order][is_last], values[order][is_last]
    return SeriesPoints(steps, values)


def _clock(run: StoredRun) -> StepClock:
    """Return the training time; of a run of another tool, from what that tool recorded per step."""
    training_times = run.training_times()
    if training_times is not None:
        steps, passed_s = training_times
        is_later = np.append(np.diff(steps) > 0, True)
        return StepClock(steps[is_later], passed_s[is_later])
    return StepClock.of(load_step_times(run))


def load_step_times(run: StoredRun) -> SeriesPoints:
    """Read the seconds per step that were recorded; a record covers the steps since the one before.

    Raises:
        OSError: if the journal cannot be read.
        SegmentError: if its columns are damaged while they are read.
    """
    name = _first_named(run.metric_names, "step_s")
    if name is None:
        return no_points()
    times = _points(run, name)
    return SeriesPoints(times.steps, times.values / 1000) if name.endswith("_ms") else times


def _memory(run: StoredRun, names: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the level of each kind of memory, and how far the highest reading is above the usual high ones."""
    memory: dict[str, float] = {}
    spread: dict[str, float] = {}
    for kind, (metric_names, unit) in _MEMORY.items():
        curves = (_points(run, name).finite for name in metric_names if name in names)
        points = next((each for each in curves if _spans_steps(each)), None)
        if points is None:
            continue
        # Resident memory peaks at the start.
        late = points.values[len(points.values) // 2 :]
        value = float(np.median(late) if kind == "host" else points.values.max())
        if value > 0:
            memory[kind] = value * unit
            if kind != "host":
                spread[kind] = 1.0 - float(np.quantile(late, 0.9)) / value
    return memory, spread


def _rank_memory(run: StoredRun, memory: Mapping[str, float]) -> dict[str, RankLevel]:
    """Return the highest level among all ranks of each kind that rank 0 has."""
    samples = read_rank_samples(run.folder) if memory else {}
    end_s = max((attempt.last_time or 0.0 for attempt in run.digest.attempts), default=0.0)
    level_of_kind = {}
    for kind, own_bytes in memory.items():
        names, unit = _MEMORY[kind]
        levels = {0: own_bytes}
        for rank, records in samples.items():
            series = ([_reading(record, name) for record in records if record.get(name)] for name in names)
            readings = next(filter(None, series), None)
            if readings is not None:
                highest = max(value for _, value in readings)
                levels[rank] = unit * (_median_since_half(readings, end_s) if kind == "host" else highest)
        if len(levels) > 1:
            rank = max(levels, key=lambda each: levels[each])
            level_of_kind[kind] = RankLevel(rank, levels[rank], len(levels))
    return level_of_kind


def _reading(record: Mapping[str, Any], name: str) -> tuple[float, float]:
    return finite_or_none(record.get("time")) or 0.0, finite_or_none(record.get(name)) or 0.0


def _median_since_half(readings: list[tuple[float, float]], end_s: float) -> float:
    """Return the median over the second half of the time; ranks record their memory only when it changes."""
    times, values = (np.array(each) for each in zip(*sorted(readings), strict=True))
    sample_times = np.linspace((times[0] + max(end_s, times[-1])) / 2, max(end_s, times[-1]), 101)
    return float(np.median(values[np.searchsorted(times, sample_times, side="right") - 1]))


def _spans_steps(points: SeriesPoints) -> bool:
    return len(points.steps) > 1 and bool(points.steps[-1] - points.steps[0] >= _MIN_MEMORY_STEPS)
