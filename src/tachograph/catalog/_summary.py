"""The summary of a run: everything that a table of runs shows, in one small file.

A summary belongs to the size and time of the journal that it was computed from, and is valid as long as these are the
same. It is kept in ``.tacho/summary.json`` by readers that have computed it. A *brief* summary is read from the two
ends of the journal; a full one also has the config, the aggregates of every metric and the goodput.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph._base.files import make_folder, read_small, replace_file
from tachograph._base.typed import convert, decode_json
from tachograph.journal import (
    Heartbeat,
    RunFolder,
    read_heartbeat,
    stat_journal,
)
from tachograph.reader import (
    ParentRun,
    RankTotals,
    RunOverview,
    SavedCheckpoint,
    overview_with_heartbeat,
    parents_of,
    read_ranks,
    saved_checkpoints,
    summarise_ranks,
)
from tachograph.records import flatten, restore_non_finite, to_json
from tachograph.store import MetricAggregates, StoredRun

__all__ = ["JournalKey", "CatalogSummary", "brief_summary", "full_summary", "load_summary", "save_summary"]

_VERSION = 4
"""Raised with each change of `CatalogSummary`: summaries of other versions are made again."""
_MAX_SUMMARY_BYTES = 16 << 20
_MAX_METRICS = 2_000
_MAX_CONFIG_KEYS = 2_000
_MAX_TEXT_CHARS = 1_000
_MAX_PARENTS = 20
_MAX_CHECKPOINTS = 200
_RANK_END_S = 600.0
"""How long after the end of rank 0 the ends of other ranks are waited for."""

JournalKey = tuple[int, int]
"""Size and modification time in nanoseconds of a journal."""


class CatalogSummary(msgspec.Struct, kw_only=True):
    """The facts and aggregates of a run that a table shows."""

    version: int = _VERSION
    journal: JournalKey
    is_full: bool = False
    has_end: bool = False
    """Whether the run has ended; else its state depends on its process."""
    overview: RunOverview
    run_id: str | None = None
    project: str | None = None
    group: str | None = None
    job_type: str | None = None
    display_name: str | None = None
    """The name that the training code gave later."""
    note: str | None = None
    """A note that the training code gave, such as `notes` of `wandb.init`."""
    perf_tag: str | None = None
    host: str | None = None
    gpus: list[str] = []
    world_size: int | None = None
    ranks: RankTotals | None = None
    """The ranks of a distributed run; None for a run of one process."""
    git: dict[str, Any] = {}
    command: str | None = None
    config: Mapping[str, Any] = {}
    """The flattened config: names are joined by dots."""
    results: dict[str, Any] = {}
    """The flattened results that the training code stated with `log_summary`."""
    metrics: Mapping[str, MetricAggregates] = {}
    step_values: dict[str, float | None] = {}
    """Values at steps that somebody asked for, such as ``loss@1000``; None before the first step with a value."""
    step_time_s: float | None = None
    """The median time of a step."""
    goodput: float | None = None
    """The share of productive time, or None if no iterations were marked."""
    energy_kwh: float | None = None
    """The energy of GPUs and processors, as far as it was measured."""
    num_alerts: int | None = None
    num_checkpoints: int | None = None
    num_attempts: int | None = None
    parents: list[ParentRun] = []
    checkpoints: list[SavedCheckpoint] = []
    """The latest checkpoints."""

    @property
    def was_full(self) -> bool:
        """Whether it has the values of a full summary, perhaps of an earlier state of the journal."""
        return self.num_attempts is not None


def journal_key(file_status: os.stat_result) -> JournalKey:
    """Return the key of a journal."""
    return file_status.st_size, file_status.st_mtime_ns


def brief_summary(folder: RunFolder, key: JournalKey, heartbeat: Heartbeat | None) -> CatalogSummary:
    """Return a summary from the two ends of the journal."""
    overview = overview_with_heartbeat(folder, heartbeat)
    return CatalogSummary(
        journal=key,
        overview=overview,
        has_end=overview.state in {"finished", "failed", "interrupted"},
        display_name=_text(overview.display_name),
        note=_text(overview.note),
    )


def full_summary(folder: RunFolder, run: StoredRun, brief: CatalogSummary | None = None) -> CatalogSummary:
    """Return a full summary; reads the journal, as far as it is not cached as columns.

    Args:
        folder: the run.
        run: the same run as columns.
        brief: an earlier summary, which is used if the journal has not changed.

    Raises:
        OSError: if the journal cannot be read.
    """
    key = journal_key(stat_journal(folder.journal))
    run.refresh_in_slices()
    is_known = brief is not None and brief.journal == key
    summary = brief if brief and is_known else brief_summary(folder, key, read_heartbeat(folder.heartbeat))
    ranks = summarise_ranks(read_ranks(folder))
    is_recent = time.time() - (summary.overview.updated or 0.0) < _RANK_END_S
    may_ranks_end = summary.has_end and ranks is not None and not ranks.is_final and is_recent
    with run.lock:
        digest = run.digest
        facts, metrics = digest.facts, run.aggregates()
        goodput = digest.goodput
        tag = digest.perf_tag
        world_size = facts["world_size"] if type(facts.get("world_size")) is int else None
        checkpoints = saved_checkpoints(digest)
        tags = facts.get("tags")
        labeled_overview = msgspec.structs.replace(
            summary.overview, tags=[str(each) for each in tags] if isinstance(tags, list) else []
        )
        return msgspec.structs.replace(
            summary,
            is_full=not may_ranks_end,
            overview=labeled_overview,
            display_name=_text(facts.get("display_name")),
            run_id=_text(facts.get("run_id")),
            project=_text(facts.get("project")),
            group=_text(facts.get("group")),
            job_type=_text(facts.get("job_type")),
            note=_text(facts.get("notes")),
            perf_tag=_text(", ".join(tag) if isinstance(tag, list) else tag),
            host=_text(facts.get("host")),
            gpus=[str(name) for name in facts["gpus"]] if isinstance(facts.get("gpus"), list) else [],
            world_size=world_size,
            ranks=ranks,
            git=_git(facts.get("git")),
            command=_command(facts.get("command")),
            config=flatten_config(digest.config, _MAX_CONFIG_KEYS),
            results=flatten_config(digest.summary, _MAX_CONFIG_KEYS),
            metrics=dict(list(metrics.items())[:_MAX_METRICS]),
            step_time_s=_step_time_s(metrics),
            goodput=None if goodput is None else round(goodput.share, 6),
            energy_kwh=None if digest.energy is None else round(digest.energy.kwh, 6),
            num_alerts=digest.num_alerts,
            num_checkpoints=digest.counts.get("checkpoint", 0) or len(checkpoints),
            num_attempts=len(digest.attempts),
            parents=parents_of(digest)[-_MAX_PARENTS:],
            checkpoints=checkpoints[-_MAX_CHECKPOINTS:],
        )


def flatten_config(values: Mapping[str, Any], max_keys: int) -> dict[str, Any]:
    """Return nested values as one dict with dotted names; lists become texts."""
    flat: dict[str, Any] = {}
    for name, value in flatten(values).items():
        if len(flat) >= max_keys:
            break
        dotted_name = name.replace("/", ".")
        if value is None or isinstance(value, (bool, int, float)):
            flat[dotted_name] = value
        else:
            flat[dotted_name] = value[:_MAX_TEXT_CHARS] if isinstance(value, str) else to_json(value)[:_MAX_TEXT_CHARS]
    return {name: value for name, value in flat.items() if value is not None}


def _step_time_s(metrics: Mapping[str, MetricAggregates]) -> float | None:
    """Return the typical time of a step; the first steps and pauses hardly change it."""
    for name in ("sec_per_step", "window/iteration_sec_mean"):
        if name in metrics:
            return metrics[name].median
    return None


def _git(facts: Any) -> dict[str, Any]:
    if not isinstance(facts, Mapping):
        return {}
    return {name: facts[name] for name in ("commit", "branch", "dirty") if isinstance(facts.get(name), (str, bool))}


def _command(command: Any) -> str | None:
    return _text(" ".join(map(str, command)) if isinstance(command, list) else command)


def _text(value: Any) -> str | None:
    return str(value)[:_MAX_TEXT_CHARS] if value not in (None, "") else None


# On disk -------------------------------------------------------------------------------------------------------------


def load_summary(folder: RunFolder, key: JournalKey) -> CatalogSummary | None:
    """Return the stored summary of a run, or None if there is none for this journal."""
    try:
        data = read_small(folder.private / "summary.json", _MAX_SUMMARY_BYTES, below=folder.path)
        if b'NaN"' in data or b'Infinity"' in data:
            summary = convert(restore_non_finite(decode_json(data, Any)), CatalogSummary)
        else:
            summary = decode_json(data, CatalogSummary)
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    is_same_run = summary.overview.name == folder.name  # a copied folder has another name
    return summary if summary.version == _VERSION and summary.journal == key and is_same_run else None


def save_summary(folder: RunFolder, summary: CatalogSummary) -> bool:
    """Store the summary of a run; return False if the folder cannot be written."""
    try:
        make_folder(folder.private, below=folder.path)
        # The mappings of a run from the index are no dicts.
        plain = msgspec.structs.replace(summary, config=dict(summary.config), metrics=dict(summary.metrics))
        data = to_json(msgspec.to_builtins(plain)).encode()
        replace_file(folder.private / "summary.json", data, below=folder.path)
    except OSError:
        return False
    return True
