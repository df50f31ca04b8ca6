"""Aim: the runs of a repository, a folder with `.aim` inside. Aim's own package reads it: the files are a RocksDB.

Aim lists only runs that are in its index, which its server makes later. So every run is read from its own files, and
the index is left alone. Aim returns each sequence of values as a whole. They are merged by time, and values
that follow each other and have the same step become one record.
"""

from __future__ import annotations

import heapq
import importlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.importers import RowSource, RunSource, field_name, read_single_run
from tachograph.media import ImportedFile

__all__ = ["AimImporter"]

_SYSTEM = "__system__"
_EVENTS = ("aim.text", "aim.distribution")
_MEDIA_KINDS = {"aim.image": "image", "aim.audio": "audio"}
_SEPARATE_KINDS = {"event", "media"}
"""Kinds of records that have one value each."""


class AimImporter:
    """Reads the runs of a repository."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is a repository, or its folder `.aim`."""
        return _find_repository(path) is not None

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the values of a run."""
        return read_single_run(self.runs(path), path, "aim")

    def runs(self, path: Path) -> list[RunSource]:
        """Return all runs.

        Raises:
            ConfigError: if the package is missing, or the repository cannot be read.
        """
        folder = _find_repository(path) or path
        try:
            repository = _open_repository(folder)
            hashes = sorted(repository.list_all_runs())
        except ImportError as error:
            raise ConfigError(
                f"importer 'aim' needs a package that is not installed ({error}): pip install 'tachograph[aim]'"
            ) from error
        except Exception as error:
            raise ConfigError(f"cannot read {str(folder)!r}: {type(error).__name__}: {error}") from error
        return [_open_run(folder, repository, run_hash) for run_hash in hashes]


def _aim() -> Any:
    return importlib.import_module("aim")  # when a repository needs it, and without its types, which are incomplete


def _open_repository(folder: Path) -> Any:
    aim = _aim()

    class Repository(aim.Repo):  # type: ignore[misc, name-defined]
        """Reads the files of one run instead of the index."""

        run_hash: str | None = None

        def request_tree(self, name: str, sub: str | None = None, **options: Any) -> Any:
            return super().request_tree(name, sub or self.run_hash, **options)

    return Repository(str(folder))


def _open_run(folder: Path, repository: Any, run_hash: str) -> RunSource:
    aim = _aim()
    left_out: Counter[str] = Counter()
    start: dict[str, Any] = {}
    end: list[dict[str, Any]] = []
    repository.run_hash = run_hash
    try:
        run = aim.Run(run_hash, repo=repository, read_only=True)
        start = _start_fields(run)
        if run.end_time is not None:
            end = [{"event": "end", "time": float(run.end_time), "status": "finished"}]
        problem = None
    except Exception as error:  # noqa: BLE001 - one damaged run must not hide the others
        run, problem = None, error

    def rows() -> Iterator[dict[str, Any]]:
        try:
            if problem is not None:
                raise problem
            repository.run_hash = run_hash
            yield from _read_rows(run, left_out)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"run {run_hash} cannot be read: {type(error).__name__}: {error}") from error

    name = start.get("title") or run_hash
    return RowSource(folder, run_hash, name, rows, [], left_out=left_out, start=start, last=lambda: end)


def _start_fields(run: Any) -> dict[str, Any]:
    name = run.name if run.name and run.name != f"Run: {run.hash}" else None
    try:
        attributes = run[...]
    except KeyError:  # none were set
        attributes = {}
    fields = {
        "time": run.creation_time,
        "title": name,
        "project": run.experiment,
        "notes": run.description,
        "tags": list(run.tags),
        "config": {key: value for key, value in attributes.items() if not str(key).startswith("__")},
    }
    return {name: value for name, value in fields.items() if value}


def _read_rows(run: Any, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield records in the order of time."""
    streams = [_metric_points(sequence) for sequence in run.metrics()]
    for name, context, _ in run.iter_sequence_info_by_type(_EVENTS):
        streams.append(_object_points(run, name, context))
    for dtype, kind in _MEDIA_KINDS.items():
        for name, context, _ in run.iter_sequence_info_by_type(dtype):
            streams.append(_media_points(run, name, context, kind))
    left_out["figure"] += len(list(run.iter_sequence_info_by_type("aim.figure")))
    left_out += Counter()  # removes the zeros
    record: dict[str, Any] = {}
    for time_s, head, values in heapq.merge(*streams, key=lambda point: point[0]):
        is_same = (
            head["event"] not in _SEPARATE_KINDS
            and all(record.get(key) == value for key, value in head.items())
            and not any(name in record and name != "epoch" for name in values)
        )
        if record and not is_same:
            yield record
            record = {}
        record = {**head, **record, **values, "time": time_s}
    if record:
        yield record


def _metric_points(sequence: Any) -> Iterator[tuple[float, dict[str, Any], dict[str, Any]]]:
    """Yield the time, the head (kind of record and step) and the value of each point of a metric."""
    import numpy as np

    steps, (values, epochs, times) = sequence.data.view(("val", "epoch", "time")).numpy()
    context = dict(sequence.context.to_dict())
    is_system = sequence.name.startswith(_SYSTEM)
    name = _metric_name(sequence.name, context)
    for index in np.argsort(times, kind="stable").tolist():
        # The steps of Aim's system metrics count samples, not steps of the training.
        head = {"event": "system"} if is_system else {"event": "step", "global_step": int(steps[index])}
        epoch = {} if is_system or math.isnan(epochs[index]) else {"epoch": float(epochs[index])}
        yield float(times[index]), head, {**epoch, name: float(values[index])}


def _metric_name(name: str, context: dict[str, Any]) -> str:
    """Return one name for a metric and its context: `train/loss` for the subset `train`."""
    if name.startswith(_SYSTEM):
        gpu = context.get("gpu")
        return field_name(f"{'' if gpu is None else f'gpu{gpu}_'}{name.removeprefix(_SYSTEM)}")
    subset = context.pop("subset", None)
    rest = ", ".join(f"{key}={value}" for key, value in sorted(context.items()))
    return field_name(f"{'' if subset is None else f'{subset}/'}{name}{f' [{rest}]' if rest else ''}")


def _object_points(run: Any, name: str, context: Any) -> Iterator[tuple[float, dict[str, Any], dict[str, Any]]]:
    """Yield texts and distributions as events."""
    aim = _aim()
    sequence = run.get_text_sequence(name, context) or run.get_distribution_sequence(name, context)
    tag = _metric_name(name, dict(context.to_dict()))
    for step, (values, _, time_s) in sequence.data.view(("val", "epoch", "time")).items():
        for value in values if isinstance(values, list) else [values]:
            head = {"event": "event", "global_step": int(step), "tag": tag}
            if isinstance(value, aim.Text):
                yield float(time_s), {**head, "name": "text"}, {"text": value.data}
            elif isinstance(value, aim.Distribution):
                counts, edges = value.to_np_histogram()
                fields = {"counts": counts.tolist(), "edges": edges.tolist()}
                yield float(time_s), {**head, "name": "histogram"}, fields


def _media_points(
    run: Any, name: str, context: Any, kind: str
) -> Iterator[tuple[float, dict[str, Any], dict[str, Any]]]:
    """Yield the pictures or sounds of a step as one record."""
    sequence = run.get_image_sequence(name, context) if kind == "image" else run.get_audio_sequence(name, context)
    head = {"event": "media", "name": _metric_name(name, dict(context.to_dict())), "kind": kind}
    for step, (values, _, time_s) in sequence.data.view(("val", "epoch", "time")).items():
        items = []
        for value in values if isinstance(values, list) else [values]:
            caption = value.json().get("caption")
            file = ImportedFile(data=bytes(value.storage["data"]))
            items.append({"file": file, **({"caption": caption} if caption else {})})
        yield float(time_s), {**head, "global_step": int(step)}, {"items": items}


def _find_repository(path: Path) -> Path | None:
    folder = path.parent if path.name == ".aim" else path
    return folder if (folder / ".aim" / "meta").is_dir() else None
