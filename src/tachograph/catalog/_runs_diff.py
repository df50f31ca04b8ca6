"""List what differs between any number of runs: config beside results, git, packages, environment and code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from tachograph.catalog._captured_diff import (
    CapturedDiff,
    CapturedRun,
    Variation,
    diff_captured,
    diff_values,
    group_notes,
)
from tachograph.catalog._config_keys import describes_training
from tachograph.catalog._direction import direction_of
from tachograph.catalog._groups import best_row
from tachograph.catalog._results import default_results
from tachograph.catalog._row import RunRow
from tachograph.journal import RunState
from tachograph.reader.captured_code import code_section
from tachograph.records import to_json
from tachograph.store import SegmentError, StoredRun

__all__ = ["DiffKey", "DiffResult", "DiffRun", "FileVersions", "RunsDiff", "diff_rows"]

_MAX_REFRESH_S = 0.25
_MAX_CODE_S = 5.0
_MAX_KEYS = 2_000
_MAX_METRICS = 1_000
_MAX_NAMES = 500
_MAX_VALUE_CHARS = 500

_Values = Annotated[list[Any], msgspec.Meta(description="The value of each run; null where a run lacks it.")]


class DiffRun(msgspec.Struct):
    """One of the runs of a diff."""

    name: str
    title: str
    """The name that people gave it, or else the same name."""
    state: RunState
    has_patch: bool
    """Whether uncommitted changes were captured; only known if code was compared."""


class DiffKey(msgspec.Struct):
    """A config key; nested keys are joined by dots."""

    name: str
    values: _Values
    """The value of each run, or a single value if all runs have the same."""
    differs: bool
    is_ignored: bool
    """Whether it differs, but does not describe the training: run names, output paths, times, ports and the like."""


class DiffResult(msgspec.Struct):
    """A result of each run."""

    field: str
    direction: int
    """-1 if lower is better, 1 if higher is better, 0 if unknown."""
    best: str | None
    """The run with the best finite value; null if the direction is unknown or there is only one run."""
    values: _Values


class FileVersions(msgspec.Struct):
    """A source file that differs between runs."""

    path: str
    versions: list[int | None]
    """For each run the number of its version, in the order of appearance from 1; null where a run lacks the file."""


class RunsDiff(msgspec.Struct, kw_only=True):
    """How runs differ, beside their results."""

    runs: list[DiffRun]
    config: list[DiffKey]
    num_equal: int
    """The number of config keys in which all runs agree."""
    num_ignored: int
    """The number of config keys that differ, but do not describe the training."""
    results: list[DiffResult]
    metrics: list[str]
    """The metrics that some run has."""
    git: list[Variation]
    packages: list[Variation]
    environment: list[Variation]
    files: list[FileVersions]
    notes: list[str]
    """What could not be compared, and why."""


def diff_rows(
    rows: Sequence[RunRow], columns: Sequence[str] = (), *, has_all: bool = False, has_code: bool = True
) -> RunsDiff:
    """Return how runs differ.

    Args:
        rows: full rows of the runs.
        columns: results to return; by default the best losses.
        has_all: also return config keys that are equal, or do not describe the training.
        has_code: also return differences of git, packages, environment and source files.
    """
    captured_runs, notes = _read_captured(rows) if has_code else ([], [])
    captured_diff = diff_captured(captured_runs)
    notes += group_notes(captured_diff.missing)
    sections = _fill(_limit(captured_diff, notes), len(rows))
    if num_unread := len(rows) - len(captured_runs) if has_code else 0:
        notes.append(f"code and environment of {num_unread} runs were not compared: reading them takes too long")
    differing = {each.name: each.values for each in diff_values([row.summary.config for row in rows])}
    names = dict.fromkeys(name for row in rows for name in row.summary.config)
    ignored_names = {name for name in differing if not describes_training(name)}
    listed_names = [name for name in names if has_all or (name in differing and name not in ignored_names)]
    if len(listed_names) > _MAX_KEYS:
        notes.append(f"{len(listed_names) - _MAX_KEYS} more config keys are not shown")
    with_patch = {run.name for run in captured_runs if code_section(run.code, "diff").get("file")}
    return RunsDiff(
        runs=[
            DiffRun(row.id, row.get("display_name") or row.id, row.summary.overview.state, row.id in with_patch)
            for row in rows
        ],
        config=[
            DiffKey(name, differing.get(name) or [_only_value(rows, name)], name in differing, name in ignored_names)
            for name in listed_names[:_MAX_KEYS]
        ],
        num_equal=len(names) - len(differing),
        num_ignored=len(ignored_names),
        results=[_result(rows, column) for column in list(dict.fromkeys(columns)) or default_results(rows)],
        metrics=list(dict.fromkeys(name for row in rows for name in row.summary.metrics))[:_MAX_METRICS],
        git=[_shorten(each) for each in sections.git],
        packages=[_shorten(each) for each in sections.packages],
        environment=[_shorten(each) for each in sections.environment],
        files=[FileVersions(each.name, _number_versions(each.values)) for each in sections.files],
        notes=notes,
    )


def _only_value(rows: Sequence[RunRow], name: str) -> Any:
    return rows[0].summary.config.get(name)


def _result(rows: Sequence[RunRow], field: str) -> DiffResult:
    best = best_row(rows, field) if len(rows) > 1 else None
    return DiffResult(field, direction_of(field), best.id if best else None, [row.get(field) for row in rows])


def _read_captured(rows: Sequence[RunRow]) -> tuple[list[CapturedRun], list[str]]:
    """Read the captured parts of the first runs, for some seconds, and notes about journals that cannot be read."""
    deadline_s = time.monotonic() + _MAX_CODE_S
    runs: list[CapturedRun] = []
    notes: list[str] = []
    for row in rows:
        if runs and time.monotonic() > deadline_s:
            break
        try:
            run = StoredRun(row.folder)  # a `Store` would close runs that pages show
            run.refresh(_MAX_REFRESH_S)  # code is recorded at the start of an attempt
            runs.append(CapturedRun.of(run.digest)._replace(name=row.id))
        except (OSError, SegmentError) as error:
            runs.append(CapturedRun(row.id, row.folder, {}, {}, {}))
            notes.append(f"{row.id}: cannot read the journal: {getattr(error, 'strerror', None) or error}")
    return runs, notes


def _limit(diff: CapturedDiff, notes: list[str]) -> CapturedDiff:
    """Return the first differences of each section, and note how many more there are."""
    for title, variations in (
        ("source files", diff.files),
        ("packages", diff.packages),
        ("variables", diff.environment),
    ):
        if len(variations) > _MAX_NAMES:
            notes.append(f"{len(variations) - _MAX_NAMES} more {title} differ")
    return diff._replace(
        files=diff.files[:_MAX_NAMES],
        packages=diff.packages[:_MAX_NAMES],
        environment=diff.environment[:_MAX_NAMES],
    )


def _fill(diff: CapturedDiff, num_runs: int) -> CapturedDiff:
    """Add missing values for the last runs, which were not read."""
    for section in (diff.git, diff.packages, diff.environment, diff.files):
        for each in section:
            each.values.extend([None] * (num_runs - len(each.values)))
    return diff


def _number_versions(file_names: Sequence[str | None]) -> list[int | None]:
    numbers: dict[str, int] = {}
    return [None if name is None else numbers.setdefault(name, len(numbers) + 1) for name in file_names]


def _shorten(variation: Variation) -> Variation:
    return Variation(variation.name, [_short_value(value) for value in variation.values])


def _short_value(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        value = " ".join(map(str, value)) if isinstance(value, list) else to_json(value)
    if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        return value[: _MAX_VALUE_CHARS - 1] + "…"
    return value
