"""Compare any number of runs: config beside results, git, packages, environment and code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from tachograph.catalog._code_diff import ComparedRun
from tachograph.catalog._code_diff_many import FileVersions, ManyComparison, Variation, compare_many, variations
from tachograph.catalog._config_keys import describes_training
from tachograph.catalog._direction import direction_of
from tachograph.catalog._groups import best_row
from tachograph.catalog._results import default_results
from tachograph.catalog._row import RunRow
from tachograph.journal import RunState
from tachograph.reader.captured_code import code_section
from tachograph.store import SegmentError, StoredRun

__all__ = ["DiffKey", "DiffResult", "DiffRun", "RunsDiff", "compare_rows"]

_MAX_REFRESH_S = 0.25
_MAX_CODE_S = 5.0
_MAX_KEYS = 2_000
_MAX_METRICS = 1_000

_Values = Annotated[list[Any], msgspec.Meta(description="The value of each run; null where a run lacks it.")]


class DiffRun(msgspec.Struct):
    """A compared run."""

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


def compare_rows(
    rows: Sequence[RunRow], columns: Sequence[str] = (), *, has_all: bool = False, has_code: bool = True
) -> RunsDiff:
    """Return how runs differ.

    Args:
        rows: full rows of the runs.
        columns: results to return; by default the best losses.
        has_all: also return config keys that are equal, or do not describe the training.
        has_code: also compare git, packages, environment and source files.
    """
    compared, with_patch = _compare_code(rows) if has_code else (ManyComparison([], [], [], [], []), set())
    found = {each.name: each.values for each in variations([row.summary.config for row in rows])}
    names = dict.fromkeys(name for row in rows for name in row.summary.config)
    ignored = {name for name in found if not describes_training(name)}
    shown = [name for name in names if has_all or (name in found and name not in ignored)]
    notes = compared.notes
    if len(shown) > _MAX_KEYS:
        notes = [*notes, f"{len(shown) - _MAX_KEYS} more config keys are not shown"]
    return RunsDiff(
        runs=[
            DiffRun(row.id, row.get("display_name") or row.id, row.summary.overview.state, row.id in with_patch)
            for row in rows
        ],
        config=[
            DiffKey(name, found.get(name) or [_only_value(rows, name)], name in found, name in ignored)
            for name in shown[:_MAX_KEYS]
        ],
        num_equal=len(names) - len(found),
        num_ignored=len(ignored),
        results=[_result(rows, column) for column in list(dict.fromkeys(columns)) or default_results(rows)],
        metrics=list(dict.fromkeys(name for row in rows for name in row.summary.metrics))[:_MAX_METRICS],
        git=compared.git,
        packages=compared.packages,
        environment=compared.environment,
        files=compared.files,
        notes=notes,
    )


def _only_value(rows: Sequence[RunRow], name: str) -> Any:
    return rows[0].summary.config.get(name)


def _result(rows: Sequence[RunRow], field: str) -> DiffResult:
    best = best_row(rows, field) if len(rows) > 1 else None
    return DiffResult(field, direction_of(field), best.id if best else None, [row.get(field) for row in rows])


def _compare_code(rows: Sequence[RunRow]) -> tuple[ManyComparison, set[str]]:
    """Compare what was captured; also return the runs with uncommitted changes. Stops after some seconds."""
    deadline_s = time.monotonic() + _MAX_CODE_S
    runs: list[ComparedRun] = []
    notes: list[str] = []
    for row in rows:
        if runs and time.monotonic() > deadline_s:
            break
        try:
            run = StoredRun(row.folder)  # not one of a `Store`, which would close those that pages are looking at
            run.refresh(_MAX_REFRESH_S)  # code is recorded at the start of an attempt
            runs.append(ComparedRun.of(run.digest)._replace(name=row.id))
        except (OSError, SegmentError) as error:
            runs.append(ComparedRun(row.id, row.folder, {}, {}, {}))
            notes.append(f"{row.id}: cannot read the journal: {getattr(error, 'strerror', None) or error}")
    found = compare_many(runs)
    found.notes[:0] = notes
    if num_missing := len(rows) - len(runs):
        found.notes.append(f"code and environment of {num_missing} runs were not compared: reading them takes too long")
        for part in (found.git, found.packages, found.environment):
            for each in part:
                each.values.extend([None] * num_missing)
        for file in found.files:
            file.versions.extend([None] * num_missing)
    return found, {run.name for run in runs if code_section(run.code, "diff").get("file")}
