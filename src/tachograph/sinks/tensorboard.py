"""TensorBoard: every number as a scalar, in the run's `tensorboard/` folder or below `log_dir`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from tensorboard.summary import Writer

from tachograph._base.files import make_folder
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.sinks._sink import scalar_metrics

__all__ = ["TensorBoardSink"]


class TensorBoardSink:
    """Writes event files that `tensorboard --logdir logs` shows.

    Args:
        log_dir: folder that gets one folder per run; the run folder's `tensorboard/` if not given.
    """

    name = "tensorboard"

    def __init__(self, log_dir: str | os.PathLike[str] | None = None) -> None:
        if log_dir is not None and (not isinstance(log_dir, (str, os.PathLike)) or not os.fspath(log_dir)):
            raise ConfigError(f"log_dir must be a path, got {log_dir!r}")
        # Resolved now, because training code may change the working directory.
        self._log_dir = None if log_dir is None else os.path.abspath(log_dir)
        self._writer: Any = None
        self._step = 0

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Create a new event file; TensorBoard merges the files of one folder."""
        del start
        with contextlib.suppress(Exception):  # a writer that failed may also fail to close
            self.close()
        path = folder.path / "tensorboard"
        if self._log_dir is None:
            make_folder(path, below=folder.path)  # the writer would follow a link
        else:
            path = Path(self._log_dir, folder.name)
        self._writer = Writer(str(path))

    def write(self, records: list[dict[str, Any]]) -> None:
        """Write scalars; a record without a step is plotted at the latest one."""
        for record in records:
            step = record.get("global_step")
            if isinstance(step, int):
                self._step = step
            for name, value in scalar_metrics(record).items():
                self._writer.add_scalar(name, value, self._step, wall_time=record.get("time"))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
