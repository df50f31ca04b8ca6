"""TensorBoard: every number as a scalar, in the run's `tensorboard/` folder."""

from __future__ import annotations

import contextlib
from typing import Any

from tensorboard.summary import Writer

from tachograph.journal import RunFolder
from tachograph.sinks._follower import metrics_of

__all__ = ["TensorBoardSink"]


class TensorBoardSink:
    """Writes event files that `tensorboard --logdir logs` shows."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._writer: Any = None
        self._step = 0

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Begin a new event file; TensorBoard joins those of one folder."""
        del start
        with contextlib.suppress(Exception):  # what a failure left
            self.close()
        self._writer = Writer(str(folder.path / "tensorboard"))

    def write(self, records: list[dict[str, Any]]) -> None:
        """Write scalars; a record without a step gets the latest one."""
        for record in records:
            step = record.get("global_step")
            if isinstance(step, int):
                self._step = step
            for name, value in metrics_of(record).items():
                self._writer.add_scalar(name, value, self._step, wall_time=record.get("time"))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
