"""Scalars of TensorBoard event files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError

__all__ = ["TensorBoardImporter"]

_SPLITS = frozenset({"train", "validation", "val", "eval", "test"})
"""Names of folders that hold one split of the same run, as Keras writes them."""


class TensorBoardImporter:
    """Reads an event file, or the event files of one run's folder."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is an event file or a folder that holds one."""
        if path.is_dir():
            return next(path.rglob("*.tfevents.*"), None) is not None
        return ".tfevents." in path.name.lower()

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield a row per step with all scalars of that step; those of a subfolder have its name as a prefix."""
        try:
            from tensorboard.backend.event_processing import event_accumulator
            from tensorboard.util import tensor_util
        except ImportError as error:
            raise ConfigError(
                "reading TensorBoard files needs the package tensorboard: pip install 'tachograph[tensorboard]'"
            ) from error
        folders = sorted({file.parent for file in path.rglob("*.tfevents.*")}) if path.is_dir() else [path]
        runs = [folder for folder in folders if folder != path and folder.name not in _SPLITS]
        if len(runs) > 1:
            names = ", ".join(folder.relative_to(path).as_posix() for folder in runs[:10])
            raise ConfigError(f"{str(path)!r} holds several runs: name one of {names}")
        rows: dict[int, dict[str, Any]] = defaultdict(dict)
        for folder in folders:
            prefix = f"{folder.relative_to(path).as_posix()}/" if len(folders) > 1 and folder != path else ""
            events = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
            events.Reload()
            points = {
                tag: [(e.wall_time, e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
            }
            for tag in events.Tags()["tensors"]:  # newer writers store a scalar as a tensor with one element
                arrays = [(e.wall_time, e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
                points[tag] = [(wall_s, step, array.item()) for wall_s, step, array in arrays if array.size == 1]
            for tag, values in points.items():
                for wall_s, step, value in values:
                    row = rows[step]
                    row[f"{prefix}{tag}"] = value
                    row["time"] = max(wall_s, row.get("time", 0.0))
        for step in sorted(rows):
            yield {"global_step": step, **rows[step]}
