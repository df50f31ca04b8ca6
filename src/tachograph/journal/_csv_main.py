"""The background process that completes `metrics.csv` after the run ended; started by `complete_csv_later`."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import BinaryIO

from tachograph._base.detached import DetachedProcess, ReplyChannel
from tachograph.journal._csv import rebuild_csv
from tachograph.journal._folder import RunFolder

__all__ = ["complete_csv_later", "main"]

_WAIT_S = 30.0
"""The writer that starts the process releases the run a moment later."""


def complete_csv_later(folder: RunFolder) -> None:
    """Complete `metrics.csv` in a process that outlives this one.

    Raises:
        OSError: if the process cannot be started.
    """
    process = DetachedProcess(__name__, "csv", folder.name)
    process.send(str(folder.path))
    process.leave()


def main(requests: BinaryIO, replies: ReplyChannel) -> None:
    """Rebuild the CSV of the run that the first request names."""
    del replies
    path = pickle.load(requests)  # noqa: S301 - from the process that started this one
    if hasattr(os, "nice"):
        os.nice(10)  # no process waits for it
    with contextlib.suppress(OSError):  # such as a full disk; `tacho show` tells that the file is incomplete
        rebuild_csv(RunFolder(path), wait_s=_WAIT_S)
