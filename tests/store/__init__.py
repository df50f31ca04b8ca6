"""Helpers that write journals directly and return everything a stored run reports, for comparison."""

from __future__ import annotations

import functools
import itertools
import os
import sys
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
    """Return records as the recorder writes them; bytes are written unchanged."""
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
    """Yield a new folder for one hypothesis example; `tmp_path` is shared by all examples."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "r"


def opened(folder: RunFolder, segment_bytes: int = 32 << 20) -> StoredRun:
    run = StoredRun(folder, segment_bytes=segment_bytes)
    run.refresh()
    return run


def segments(folder: RunFolder) -> list[str]:
    return sorted(os.listdir(folder.cache)) if folder.cache.exists() else []


def points(found: Iterable[Line]) -> list[tuple[str, int, float, float]]:
    """Return stream, attempt, position and value of each drawn point, in order."""
    return [
        (line.stream, line.attempt, x, y)
        for line in found
        for x, y in zip(line.x, line.y, strict=True)
        if y is not None
    ]


def digest_of(run: RunHistory | StoredRun) -> dict[str, Any]:
    """Return everything about a run except its points, as text so that NaN equals itself."""
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
        "tags": (digest.session_tag, digest.perf_tag, digest.perf_tags),
        "metrics": sorted((name, _summary(item)) for name, item in metrics.items()),
    }
    return {name: repr(value) for name, value in found.items()}


def _summary(item: MetricSummary) -> tuple[Any, ...]:
    extremes = (0.0 + item.low, 0.0 + item.high)  # as floats, without negative zero
    return item.kind, item.count, float(item.last), extremes, item.num_not_finite


def answers(run: StoredRun) -> dict[str, Any]:
    """Return the results of all queries of a stored run."""
    found: dict[str, Any] = digest_of(run)
    for name, axis in itertools.product(run.metric_names, ("step", "time", "epoch")):
        found[f"{name} by {axis}"] = repr(run.series(name, axis=axis, num_points=100_000))
        found[f"{name} by {axis}, coarsely"] = repr(run.series(name, axis=axis, num_points=16))
    found["points"] = repr(
        sorted(map(repr, itertools.chain(*run.points(run.metric_names, axis="step", low=None, high=None))))
    )
    found["spans"] = repr(run.spans(None, None, num_points=100, max_spans=50))
    found["kept"] = repr(list(run.kept_records()))
    return found


_all_opened: list[str] = []


@functools.cache
def _note_opened_files() -> None:
    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            _all_opened.append(os.fsdecode(arguments[0]))

    sys.addaudithook(note)  # cannot be removed


@contextmanager
def files_opened(folder: Path) -> Iterator[list[str]]:
    """Collect the files inside a folder that this process opens."""
    _note_opened_files()
    first, found = len(_all_opened), list[str]()
    yield found
    found += [path for path in _all_opened[first:] if path.startswith(os.fspath(folder))]


def hears(script: Script, text: str) -> None:
    """Wait until a program prints a line."""
    assert script.process.stdout is not None
    printed = []
    for line in script.process.stdout:
        if line == f"{text}\n":
            return
        printed.append(line)
    raise AssertionError(f"the program never printed {text!r}, only {printed}")
