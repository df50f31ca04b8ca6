"""Journals written by hand, and what a stored run answers, in a form that can be compared."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tachograph.journal import RunFolder
from tachograph.reader import MetricSummary, RunHistory
from tachograph.records import encode
from tachograph.store import Line, StoredRun
from tests.conftest import Script

START: dict[str, Any] = {"event": "start", "time": 1_000.0, "run_name": "r", "run_id": "0123", "log_every": 1}
END: dict[str, Any] = {"event": "end", "time": 1e6, "status": "finished"}


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"event": "step", "time": 1_000.0 + number, "global_step": number, **values}


def lines(records: Iterable[dict[str, Any] | bytes]) -> bytes:
    """Return lines as the recorder would write them; bytes as they are."""
    return b"".join((item if isinstance(item, bytes) else encode(item)) + b"\n" for item in records)


def write(folder: Path, records: Iterable[dict[str, Any] | bytes]) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_bytes(lines(records))
    return RunFolder(folder)


def append(folder: RunFolder, records: Iterable[dict[str, Any] | bytes]) -> None:
    with open(folder.journal, "ab") as file:
        file.write(lines(records))


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder for one example of a property; `tmp_path` would be the same for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "r"


def opened(folder: RunFolder, segment_bytes: int = 32 << 20) -> StoredRun:
    run = StoredRun(folder, segment_bytes=segment_bytes)
    run.refresh()
    return run


def segments(folder: RunFolder) -> list[str]:
    return sorted(os.listdir(folder.cache)) if folder.cache.exists() else []


def points(found: Iterable[Line]) -> list[tuple[str, int, float, float]]:
    """Return stream, attempt, place and value of each point that is drawn, in order."""
    return [
        (line.stream, line.attempt, x, y)
        for line in found
        for x, y in zip(line.x, line.y, strict=True)
        if y is not None
    ]


def digest_of(run: RunHistory | StoredRun) -> dict[str, Any]:
    """Return what is known of a run but for its points; texts, so that NaN is equal to itself."""
    digest = run if isinstance(run, RunHistory) else run.digest
    metrics = run.metrics if isinstance(run, RunHistory) else run.metrics()
    kinds = ["event", "validation", "epoch", "checkpoint", "control_change", "alert", "end", "start"]
    found = {
        "alerts": (digest.alerts, digest.num_alerts),
        "attempts": digest.attempts,
        "counts": digest.counts,
        "controls": digest.controls,
        "latest": {kind: digest.latest(kind) for kind in kinds},
        "span_groups": digest.span_groups,
        "open_spans": digest.open_spans(),
        "goodput": digest.goodput,
        "phases": digest.phases,
        "num_lost_records": digest.num_lost_records,
        "perf_tag": digest.perf_tag,
        "metrics": sorted((name, _summary(item)) for name, item in metrics.items()),
    }
    return {name: repr(value) for name, value in found.items()}


def _summary(item: MetricSummary) -> tuple[Any, ...]:
    extremes = (0.0 + item.low, 0.0 + item.high)  # as floats, and no zero below zero
    return item.kind, item.count, float(item.last), extremes, item.num_not_finite


def answers(run: StoredRun) -> dict[str, Any]:
    """Return all that a stored run says."""
    found: dict[str, Any] = digest_of(run)
    for name, axis in itertools.product(run.metric_names, ("step", "time", "epoch")):
        found[f"{name} by {axis}"] = repr(run.series(name, axis=axis, num_points=100_000))
        found[f"{name} by {axis}, coarsely"] = repr(run.series(name, axis=axis, num_points=16))
    found["points"] = repr(
        sorted(map(repr, itertools.chain(*run.points(run.metric_names, axis="step", low=None, high=None))))
    )
    found["spans"] = repr(run.spans(None, None, num_points=100, most=50))
    found["kept"] = repr(list(run.kept_records()))
    return found


def hears(script: Script, text: str) -> None:
    """Wait until a program says something on a line of its own."""
    assert script.process.stdout is not None
    said = []
    for line in script.process.stdout:
        if line == f"{text}\n":
            return
        said.append(line)
    raise AssertionError(f"it never said {text!r}, only {said}")
