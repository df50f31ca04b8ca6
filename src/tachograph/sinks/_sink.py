"""The interface between a sink and its driver, and the helper that most sinks need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from tachograph.journal import RunFolder
from tachograph.records import METRIC_KINDS

__all__ = [
    "BackgroundSink",
    "FollowingSink",
    "RejectingSink",
    "ReplayingSink",
    "Sink",
    "SinkFollower",
    "scalar_metrics",
]


@runtime_checkable
class Sink(Protocol):
    """Exports the records of one run to another tool.

    `SinkDriver` calls every method from one thread of its own, never from the training thread; a sink that is chosen by
    name is even in another process. A method may block and may raise: after an exception the driver backs off, calls
    `open` again and repeats `write` with the same records. If the exception has a number `wait_s`, as `DeliveryError`
    has, the driver waits at least so many seconds.
    """

    name: str
    """Identifies the sink's cursor in the run folder; must not change between two attempts of a run."""

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Prepare to export a run.

        Called before the first `write`, and again, without a `close`, after a failure.

        Args:
            folder: the run's folder.
            start: the run's first `start` record, or an empty dict if the journal has none.
        """
        ...

    def write(self, records: list[dict[str, Any]]) -> None:
        """Export records, in journal order."""
        ...

    def close(self) -> None:
        """Release resources. Called once, after the last `write`."""
        ...


@runtime_checkable
class BackgroundSink(Sink, Protocol):
    """A sink that only queues in `write` and delivers from threads of its own.

    Such a sink stores the cursor together with its queue, so that one atomic write keeps both consistent. Use the
    plain `Sink` unless a delivery may take so long that reading the journal must not wait for it.
    """

    poll_interval_s: float
    """Seconds between two reads of the journal."""

    def load_cursor(self, folder: RunFolder) -> int | None:
        """Load the state that an earlier attempt saved; return its cursor, or None if the run is new to the sink."""
        ...

    def start(self) -> None:
        """Start the delivery threads. Python cannot start threads while it exits, so `write` is too late for that."""
        ...

    def save_cursor(self, journal_bytes: int) -> None:
        """Record that everything before this offset was written. Called after each `write`."""
        ...

    def poll(self) -> None:
        """Do periodic work. Called after each read of the journal, with or without new records."""
        ...

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, because the journal was moved there. Called from any thread."""
        ...

    def flush(self, deadline_s: float) -> None:
        """Wait until everything is delivered, at most until this time on `time.monotonic`.

        Called by the thread that ends the run, while the driver's thread still writes the last records; `close`
        signals that there are no more.
        """
        ...


@runtime_checkable
class ReplayingSink(Sink, Protocol):
    """A sink whose output depends on earlier records, such as the start of a span that stops now."""

    def replay(self, records: Iterable[dict[str, Any]]) -> None:
        """Process all records that were exported before, without exporting them.

        Called after the first `open`, also if there are none. If it raises, it is called again from the start.
        """
        ...


@runtime_checkable
class RejectingSink(Sink, Protocol):
    """A sink whose receiver may refuse some records for good. It reports them and continues."""

    on_rejected: Callable[[int, str, str], None]
    """Set by the driver. Call it with the number of refused items, the word for them, and the reason."""


class SinkFollower(Protocol):
    """Follows a run and exports it."""

    def start(self) -> None:
        """Start to follow the run."""
        ...

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, to which the journal was moved."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Export the rest; wait for it until the timeout. Return whether everything was exported."""
        ...


@runtime_checkable
class FollowingSink(Protocol):
    """A sink that reads the files of a run itself, so that it needs no `SinkDriver`."""

    name: str

    def follow(self, folder: RunFolder, report: Callable[[str, str, str], None]) -> SinkFollower:
        """Return what follows a run.

        Args:
            folder: the run.
            report: called for each failure with its kind, the sink's name and the reason.
        """
        ...


def scalar_metrics(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a record under the names that other tools should show, such as `system/gpu0_util_pct`.

    Records that hold no metrics return an empty dict.
    """
    if record["event"] not in METRIC_KINDS:
        return {}
    prefix = "system/" if record["event"] == "system" else ""
    return {
        f"{prefix}{name}": value
        for name, value in record.items()
        if name not in {"time", "global_step"} and (type(value) is float or type(value) is int)
    }
