"""Keeps runs in step with the logs of other tools while `tacho ui` runs.

A process of its own imports the logs again and again: a long import must not slow down the dashboard. An import can be
killed at any time, so the process ends at once when its pipe does, that is, with the process that started it. It
pauses at least four times as long as an import took.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tachograph._base.detached import DetachedProcess, ReplyChannel, read_requests
from tachograph._base.threads import TelemetryThread
from tachograph.exceptions import ConfigError
from tachograph.importers._import import import_runs
from tachograph.importers._read import IMPORTERS, describe, has_runs

__all__ = ["LogWatcher", "WatchedLog", "main"]

_INTERVAL_S = 2.0
_PAUSE_FACTOR = 4.0


class WatchedLog(NamedTuple):
    """A log of another tool that may still grow."""

    format: str
    path: str

    @classmethod
    def parse(cls, text: str) -> WatchedLog:
        """Return the log that `FORMAT:PATH` names. Its folder may still be empty.

        Raises:
            ConfigError: if there is no such importer or path, or the path has logs of another format.
        """
        format_name, separator, path = text.partition(":")
        if not separator or not path:
            raise ConfigError(f"{text!r} is not FORMAT:PATH, such as tensorboard:lightning_logs")
        name = format_name.replace("-", "_")
        importer = IMPORTERS.load(name)()
        if not os.path.exists(path):
            raise ConfigError(f"{text!r}: {path!r} does not exist")
        if not has_runs(importer, Path(path)) and (other := describe(path)) is not None:
            raise ConfigError(f"{text!r}: {path!r} is not a {format_name} log but a {other.replace('_', '-')} log")
        return cls(name, os.path.abspath(path))


class LogWatcher:
    """Imports logs into a folder of runs until it is closed.

    Args:
        logs: the logs.
        log_dir: the folder of runs.
        report: called from a thread with each problem, once.

    Raises:
        OSError: if the process cannot be started.
    """

    def __init__(self, logs: list[WatchedLog], log_dir: str, report: Callable[[str], None]) -> None:
        self._report = report
        self._process = DetachedProcess(__name__, "watch", *(log.format for log in logs))
        self._process.send(([tuple(log) for log in logs], os.path.abspath(log_dir)))
        self._thread = TelemetryThread(self._read_replies, name="tachograph-watch")
        self._thread.start()

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.close_requests()
        self._thread.join()

    def _read_replies(self) -> None:
        for line in self._process.replies():
            self._report(line.decode("utf-8", "replace"))


def main(requests: BinaryIO, replies: ReplyChannel) -> None:
    """Import the logs that the first request names until there are no more requests."""
    logs, log_dir = pickle.load(requests)  # noqa: S301 - from the process that started this one
    if hasattr(os, "nice"):
        os.nice(10)
    TelemetryThread(read_requests, name="tachograph-requests", args=(requests, lambda _: os._exit(0))).start()
    reported_problems: set[str] = set()
    while True:
        start_s = time.monotonic()
        for log in logs:
            for problem in _import(WatchedLog(*log), log_dir):
                if problem not in reported_problems:
                    reported_problems.add(problem)
                    replies.write(" ".join(problem.split()).encode() + b"\n")
        time.sleep(max(_INTERVAL_S, _PAUSE_FACTOR * (time.monotonic() - start_s)))


def _import(log: WatchedLog, log_dir: str) -> Iterator[str]:
    """Import new records; yield the problems."""
    try:
        if has_runs(IMPORTERS.load(log.format)(), Path(log.path)):  # otherwise nothing has been logged yet
            for report in import_runs(log.format, [log.path], log_dir):
                if report.error is not None:
                    yield f"{report.source}: {report.error}"
    except Exception as error:  # noqa: BLE001 - an importer of another package may raise anything
        text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        yield f"{log.path}: {text}"
