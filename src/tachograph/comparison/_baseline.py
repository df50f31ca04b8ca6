"""Keep a few runs as a small file in git, to compare later runs without the journals of these.

The file is JSON with one key per line and one line per run, the newest first, so adding a run adds a line. What all
runs have in common is written once. A run keeps its mean time per step in forty blocks after its first steps and its
mean loss in forty blocks; read again, it is a `RunEvidence` whose clock and loss are these means, so that one and the
same code judges journals and baselines. Whether runs saw the same batches needs losses as they were recorded: a stretch
of the first run is kept, and for other runs whether they rise and fall with it.

An accepted run starts the baseline anew: runs before it stay in the file, but nothing is compared with them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tachograph._base.files import read_small, replace_file
from tachograph._base.typed import decode_json
from tachograph.catalog import describes_training, is_seed
from tachograph.comparison._comparable import COMPARED_FACTS, decides_comparability, describes_model
from tachograph.comparison._compare import compare_groups
from tachograph.comparison._evidence import RankLevel, RunEvidence, SeriesPoints, StepClock, no_points
from tachograph.comparison._loss import block_means, have_same_batches
from tachograph.comparison._report import GATED_METRICS
from tachograph.comparison._speed import TooShort, steady_edges
from tachograph.exceptions import TachographError

__all__ = ["MAX_RUNS", "Baseline", "BaselineError", "BaselineRun", "load_baseline", "save_baseline"]

SCHEMA = 1
MAX_RUNS = 20
_KIND = "tachograph-baseline"
_MAX_BYTES = 20_000
_MAX_READ_BYTES = 1_000_000
_NUM_BLOCKS = 40
_TIME_UNIT = 1e-4
"""The distance of the time of a block from the mean time is kept in this share of it."""
_POINTS_PER_BLOCK = 10
_MIN_POINTS = 200
"""From this number of losses on, the last tenth has enough of them to be compared."""
_NUM_BATCHES = 120
_MAX_GAP = 10
_NUM_VALIDATIONS = 3
_MAX_CONFIG_KEYS = 60
_MAX_TEXT_CHARS = 80
_OWN_FACTS = frozenset({"git.commit"})


class BaselineError(TachographError):
    """A baseline file cannot be read or written, or a run does not belong into it; the message says what to do."""


class BlockTimes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The time of steps in blocks of equal size."""

    first: float
    """The first recorded step."""
    low: float
    high: float
    """The range of the blocks: all recorded steps except the first ones."""
    skipped_s: float
    """The time from the first step to the range."""
    mean_s: Annotated[float, Meta(gt=0)]
    """The mean time per step in the range."""
    blocks: Annotated[list[int], Meta(min_length=1)]
    """How far the mean time per step in each block is from the mean, in 1/10,000 of it."""


class BlockLosses(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A loss as means over blocks of steps of equal size."""

    first: float
    last: float
    num_points: int
    blocks: Annotated[list[float | None], Meta(min_length=1)]


class BatchLosses(msgspec.Struct, kw_only=True):
    """Losses of consecutive records."""

    first: float
    every: float
    values: list[float]


class BaselineRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run in a baseline file."""

    id: str
    name: str
    date: str
    """When it started, in UTC."""
    steps: int = 0
    commit: str | None = None
    accepted: str | None = None
    """Why a run that differs from those before was accepted."""
    state: str = "finished"
    session_tag: str | None = None
    facts: dict[str, Any] = {}
    config: dict[str, Any] = {}
    """Facts and config keys that differ from the common ones in the file."""
    times: BlockTimes | None = None
    loss: BlockLosses | None = None
    has_same_batches: bool = False
    """Whether its losses rise and fall with `batches` of the file."""
    val_loss: list[tuple[float, float]] = []
    """The steps and values of the last validations."""
    memory: dict[str, Annotated[int, Meta(gt=0)]] = {}
    rank_memory: dict[str, tuple[int, Annotated[int, Meta(gt=0)], int]] = {}
    """The rank with the highest level of each kind, its bytes, and the number of ranks."""


class MetricRule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a quantity is judged."""

    better: Literal["lower"] = "lower"
    margin: Annotated[float, Meta(ge=0, le=10)] | None = None
    """The relative difference that matters; null means the usual one."""


class Baseline(msgspec.Struct, kw_only=True):
    """The runs to compare with."""

    kind: Literal["tachograph-baseline"] = "tachograph-baseline"
    schema: int = SCHEMA
    perf_tags: list[str] = []
    facts: dict[str, Any] = {}
    config: dict[str, Any] = {}
    has_whole_config: bool = True
    """Whether all config keys of the first run are here; otherwise only the most important ones."""
    batches: BatchLosses | None = None
    metrics: dict[str, MetricRule] = {}
    runs: list[BaselineRun] = []
    """The newest run first."""

    @property
    def margins(self) -> dict[str, float]:
        """The relative differences that matter, where they are not the usual ones."""
        return {name: rule.margin for name, rule in self.metrics.items() if rule.margin is not None}

    def evidence(self) -> list[RunEvidence]:
        """Return the runs to compare with: the newest ones back to the last one that was accepted as different."""
        first_accepted = next(
            (number for number, run in enumerate(self.runs) if run.accepted is not None), len(self.runs)
        )
        return [_to_evidence(self, run) for run in self.runs[: first_accepted + 1]]

    def comparable(self, run: RunEvidence) -> RunEvidence:
        """Return a run without the config keys that the file may have left out."""
        if self.has_whole_config or not self.runs:
            return run
        config_keys = {name for entry in self.runs for name in entry.config} | set(self.config)
        return replace(run, config={name: value for name, value in run.config.items() if name in config_keys})

    def add(self, run: RunEvidence, *, accepted: str | None = None, max_runs: int = MAX_RUNS) -> list[str]:
        """Add a run, and remove the oldest ones if the file becomes too large; return what could not be kept of it.

        Raises:
            BaselineError: if the file has the run already, the run has another `perf_tag`, or it differs from the runs
                of the file and no reason to accept it is given.
        """
        if any(entry.id == run.run_id and run.run_id for entry in self.runs):
            raise BaselineError(f"run {run.name!r} is in the baseline already; remove it with tacho baseline drop")
        if run.state in {"running", "stale"}:
            raise BaselineError(f"run {run.name!r} has not ended; add it when it has")
        if not self.runs:
            self._start(run)
        elif set(self.perf_tags) != set(run.perf_tags) and not set(self.perf_tags) & set(run.perf_tags):
            tags = [", ".join(sorted(each)) or "none" for each in (self.perf_tags, run.perf_tags)]
            raise BaselineError(
                f"the runs of this baseline have the perf_tag {tags[0]}, run {run.name!r} has {tags[1]}; "
                "use another file for runs of another speed"
            )
        differences = self._differences(run)
        if differences and not accepted:
            raise BaselineError(
                f"run {run.name!r} differs from the baseline: {'; '.join(differences)}. "
                'If that is intended, say why with --accept "reason"'
            )
        entry, missing = _to_entry(self, run)
        if differences and not entry.has_same_batches:
            self.batches = _stretch(run.loss)
            entry.has_same_batches = self.batches is not None
            for earlier in self.runs:
                earlier.has_same_batches = False
        entry.accepted = accepted[: _MAX_TEXT_CHARS * 2] if differences and accepted else None
        self.runs = [entry, *self.runs][:max_runs]
        while len(self.runs) > 1 and len(encode_baseline(self)) > _MAX_BYTES:
            self.runs.pop()
        return missing

    def _start(self, run: RunEvidence) -> None:
        self.perf_tags = sorted(run.perf_tags)
        self.facts = _kept_facts(run)
        self.config, self.has_whole_config = _kept_config(run)
        self.batches = _stretch(run.loss)
        self.metrics = self.metrics or {name: MetricRule() for name in GATED_METRICS}

    def _differences(self, run: RunEvidence) -> list[str]:
        """Return in which quantities a run differs from the runs of the file."""
        failures = [f"it {run.state}" + (f" ({run.failure})" if run.failure else "")] if run.has_failed else []
        if not self.runs:
            return failures
        report = compare_groups(self.evidence(), [self.comparable(run)], margins=self.margins)
        if models := [change.name for change in report.config_diff if describes_model(change.name)]:
            failures.append(f"it has another model ({', '.join(f'config.{name}' for name in models[:3])})")
        return failures + [
            f"{metric.title} {metric.verdict.replace('_', ' ')}"
            + (f" ({metric.reason})" if metric.reason else f" ({metric.effect:+.1%})" if metric.effect else "")
            for metric in report.metrics
            if metric.name in GATED_METRICS and (metric.verdict == "not_comparable" or metric.is_different)
        ]

    def drop(self, name: str) -> BaselineRun:
        """Remove a run by its name or id.

        Raises:
            BaselineError: if the file has no such run.
        """
        matching_runs = [run for run in self.runs if name in {run.name, run.id}]
        if not matching_runs:
            names = ", ".join(repr(run.name) for run in self.runs[:MAX_RUNS]) or "none"
            raise BaselineError(f"the baseline has no run {name!r}; it has {names}")
        self.runs = [run for run in self.runs if run is not matching_runs[0]]
        return matching_runs[0]


# Files ---------------------------------------------------------------------------------------------------------------


def load_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Read a baseline file.

    Raises:
        BaselineError: if it does not exist, is not a baseline file or was written by a newer version.
    """
    real_path = Path(os.path.realpath(path))
    try:
        data = read_small(real_path, _MAX_READ_BYTES)
    except FileNotFoundError as error:
        raise BaselineError(
            f"there is no baseline file {os.fspath(path)!r}; make one with tacho baseline add RUN --baseline FILE"
        ) from error
    except OSError as error:
        raise BaselineError(f"cannot read {os.fspath(path)!r}: {error.strerror or error}") from error
    try:
        content = decode_json(data, dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = "; it has conflict markers of git" if b"<<<<<<<" in data else ""
        raise BaselineError(f"{os.fspath(path)!r} is not a baseline file: {error}{hint}") from error
    if content.get("kind") != _KIND:
        raise BaselineError(f"{os.fspath(path)!r} is not a baseline file: its kind is not {_KIND!r}")
    schema = content.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise BaselineError(
            f"{os.fspath(path)!r} was written by a newer version of Tachograph (schema {schema}); update Tachograph"
        )
    try:
        baseline = decode_json(data, Baseline)
        baseline.evidence()
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise BaselineError(f"{os.fspath(path)!r} is damaged: {error}") from error
    return baseline


def save_baseline(path: str | os.PathLike[str], baseline: Baseline) -> None:
    """Write a baseline file; a reader sees the old one or the new one, never a part.

    Raises:
        BaselineError: if it would be too large for git, or cannot be written.
    """
    data = encode_baseline(baseline)
    if len(data) > _MAX_BYTES:
        raise BaselineError(
            f"{os.fspath(path)!r} would have {len(data) / 1000:.1f} kB; {_MAX_BYTES // 1000} kB are allowed"
        )
    real_path = Path(os.path.realpath(path))
    try:
        replace_file(real_path, data, below=real_path.parent)
    except OSError as error:
        raise BaselineError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def encode_baseline(baseline: Baseline) -> bytes:
    """Return the content of a file: one line for each key, and for each run."""
    plain = msgspec.to_builtins(baseline, order="sorted")
    runs = b",\n".join(map(_one_line, plain.pop("runs")))
    lines = [_one_line(name) + b": " + _one_line(value) for name, value in sorted(plain.items())]
    lines.append(b'"runs": [\n' + runs + b"\n]" if runs else b'"runs": []')
    return b"{\n" + b",\n".join(sorted(lines)) + b"\n}\n"


def _one_line(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


# From runs and back --------------------------------------------------------------------------------------------------


def _to_entry(baseline: Baseline, run: RunEvidence) -> tuple[BaselineRun, list[str]]:
    missing = []
    times = None
    try:
        times = _block_times(run)
    except TooShort as reason:
        missing.append(f"speed: {reason}")
    loss = _block_losses(run.loss)
    if loss is None or loss.num_points < _MIN_POINTS:
        missing.append(f"training loss: {len(run.loss.steps)} values; {_MIN_POINTS} are needed")
    facts = _kept_facts(run)
    config, _ = _kept_config(run)
    window = _points(baseline.batches)
    entry = BaselineRun(
        id=run.run_id,
        name=run.name,
        date=datetime.fromtimestamp(run.started, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        steps=run.num_steps,
        commit=run.facts.get("git.commit"),
        state=run.state,
        session_tag=None if run.run_id and run.run_id in str(run.session_tag) else run.session_tag,
        facts=_overrides(facts, baseline.facts),
        config=_overrides(config, baseline.config),
        times=times,
        loss=loss,
        has_same_batches=len(window.steps) > 0 and have_same_batches([window, run.loss]),
        val_loss=[
            (step, _short(value))
            for step, value in zip(
                run.val_loss.finite.steps[-_NUM_VALIDATIONS:].tolist(),
                run.val_loss.finite.values[-_NUM_VALIDATIONS:].tolist(),
                strict=True,
            )
        ],
        memory={kind: round(value) for kind, value in run.memory.items()},
        rank_memory={
            kind: (level.rank, round(level.bytes), level.num_ranks) for kind, level in run.rank_memory.items()
        },
    )
    return entry, missing


def _to_evidence(baseline: Baseline, run: BaselineRun) -> RunEvidence:
    """Return a run of the file as it is compared."""
    facts = {**baseline.facts, **run.facts, "git.commit": run.commit}
    config = {**baseline.config, **run.config}
    window = _points(baseline.batches) if run.has_same_batches else no_points()
    validations = np.array(run.val_loss, dtype=np.float64).reshape(-1, 2)
    return RunEvidence(
        run.name,
        run.id,
        started=datetime.strptime(run.date, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp(),
        state=run.state,
        perf_tags=tuple(baseline.perf_tags),
        session_tag=run.session_tag,
        facts={name: value for name, value in facts.items() if value is not None},
        config={name: value for name, value in config.items() if value is not None},
        clock=StepClock(np.empty(0), np.empty(0)) if run.times is None else _clock(run.times),
        loss=no_points() if run.loss is None else _curve(run.loss),
        val_loss=SeriesPoints(validations[:, 0], validations[:, 1]),
        batches=window,
        memory=run.memory,
        rank_memory={kind: RankLevel(*level) for kind, level in run.rank_memory.items()},
        num_steps=run.steps,
    )


def _block_times(run: RunEvidence) -> BlockTimes:
    """Return the times of a run.

    Raises:
        TooShort: if there are not enough for a comparison.
    """
    steady = steady_edges([run])
    edges = np.linspace(steady[0], steady[-1], _NUM_BLOCKS + 1)
    first = float(run.clock.steps[0])
    passed_s = run.clock.at(edges)
    size = (edges[-1] - edges[0]) / _NUM_BLOCKS
    mean = float((passed_s[-1] - passed_s[0]) / (edges[-1] - edges[0]))
    return BlockTimes(
        first=first,
        low=float(edges[0]),
        high=float(edges[-1]),
        skipped_s=_short(float(passed_s[0] - run.clock.at(np.array([first]))[0])),
        mean_s=float(f"{mean:.9g}"),
        blocks=np.round((np.diff(passed_s) / size / mean - 1) / _TIME_UNIT).astype(int).tolist(),
    )


def _clock(times: BlockTimes) -> StepClock:
    edges = np.linspace(times.low, times.high, len(times.blocks) + 1)
    each = np.maximum(1 + np.array(times.blocks, dtype=np.float64) * _TIME_UNIT, _TIME_UNIT) * times.mean_s
    passed_s = times.skipped_s + np.concatenate([[0.0], np.cumsum(each * np.diff(edges))])
    return StepClock(np.concatenate([[times.first], edges]), np.concatenate([[0.0], passed_s]))


def _block_losses(curve: SeriesPoints) -> BlockLosses | None:
    finite_points = curve.finite
    if len(finite_points.steps) < 2:
        return None
    first, last = float(finite_points.steps[0]), float(finite_points.steps[-1])
    means = block_means(finite_points, np.linspace(first, last, _NUM_BLOCKS + 1))
    blocks = [None if np.isnan(mean) else _short(mean) for mean in means.tolist()]
    return BlockLosses(first=first, last=last, num_points=len(finite_points.steps), blocks=blocks)


def _curve(loss: BlockLosses) -> SeriesPoints:
    """Return as many points in each block as a comparison needs, if the run had enough of them."""
    each = _POINTS_PER_BLOCK if loss.num_points >= _MIN_POINTS else max(1, loss.num_points // len(loss.blocks))
    means = np.array([np.nan if mean is None else mean for mean in loss.blocks], dtype=np.float64)
    values = np.repeat(means, each)
    return SeriesPoints(np.linspace(loss.first, loss.last, len(values)), values).finite


def _stretch(loss: SeriesPoints) -> BatchLosses | None:
    """Return losses that tell whether other runs see the same batches: consecutive ones after the first fall."""
    finite_points = loss.finite
    start = len(finite_points.steps) // 5
    steps, values = (
        finite_points.steps[start : start + _NUM_BATCHES],
        finite_points.values[start : start + _NUM_BATCHES],
    )
    gaps = np.diff(steps)
    if len(steps) < _NUM_BATCHES or gaps[0] > _MAX_GAP or (gaps != gaps[0]).any():
        return None
    return BatchLosses(first=float(steps[0]), every=float(gaps[0]), values=list(map(_short, values.tolist())))


def _points(losses: BatchLosses | None) -> SeriesPoints:
    if losses is None:
        return no_points()
    values = np.array(losses.values, dtype=np.float64)
    return SeriesPoints(losses.first + losses.every * np.arange(len(values), dtype=np.float64), values)


def _short(value: float) -> float:
    """Return a number with the digits that a comparison needs."""
    return float(f"{value:.5g}")


def _kept_facts(run: RunEvidence) -> dict[str, Any]:
    return {
        name: value
        for name in sorted(COMPARED_FACTS - _OWN_FACTS)
        if (value := run.facts.get(name)) is not None and _is_small(value)
    }


def _kept_config(run: RunEvidence) -> tuple[dict[str, Any], bool]:
    """Return the config keys to store, first the ones that decide about comparisons, and whether these are all."""
    names = [name for name in run.config if describes_training(name) and not is_seed(name)]
    names.sort(key=lambda name: (not decides_comparability(name), name))
    kept_keys = [name for name in names[:_MAX_CONFIG_KEYS] if _is_small(run.config[name])]
    return {name: run.config[name] for name in sorted(kept_keys)}, len(kept_keys) == len(names)


def _is_small(value: Any) -> bool:
    return len(_one_line(value)) <= (2 if isinstance(value, str) else 8) * _MAX_TEXT_CHARS


def _overrides(values: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the common values; None is missing here."""
    names = sorted({*values, *common})
    return {name: values.get(name) for name in names if values.get(name) != common.get(name)}
