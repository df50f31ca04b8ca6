"""The interface of an importer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = ["Importer"]


@runtime_checkable
class Importer(Protocol):
    """Reads the logs of one tool or format. Its class is the entry point, and is called without arguments."""

    def detects(self, path: Path) -> bool:
        """Return whether the file or folder at this path is a log of this format.

        Called for paths of any kind: look at names, not at contents, and do not import anything slow.
        """
        ...

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows of a log, in order.

        A row maps names to values, such as ``{"step": 10, "loss": 0.5}``, and becomes a `step` record; see `STEP_NAMES`
        and `TIME_NAMES` for the columns with a meaning. A row that is a record already (with `event` and `time`) is
        passed on unchanged, and so is ``{"event": "start", "max_steps": 500}``. For `tacho import`, the rows of a log
        that has grown must begin with the rows it had before. Raise `ConfigError` with the remedy if the log cannot
        be read.
        """
        ...
