"""`SinkProcess`: runs one sink in a process of its own, so that its client never delays or breaks the training process.

A client library may start threads that Python waits for, register exit handlers that wait for a server, or start
services that it waits for. None of these can be bounded inside the training process; the exit of another process never
delays it. So every sink that is chosen by name is imported, built and driven in a process of its own (`_process_main`),
which follows the journal like any other reader. The training process keeps a pipe to it and one daemon thread, which
reads its replies.

The life of the process:

1. It starts before the run does, builds the sink and replies `ready` or `error`. The training process has checked the
   options of a built-in sink before, and does not wait: importing the package of a tool takes seconds. An error that
   only the package can find, such as an unknown scheme of an address, costs the sink alone. Other sinks are waited for,
   so that a wrong option is an error of `init`, before the run folder exists.
2. It gets the run folder and drives the sink with a `SinkDriver`. Failures are replies, which the training process
   records as `telemetry_error`.
3. When the run ends, it gets a last request. The training process waits for the reply `done`, at most for the rest of
   `exit_timeout_s`, and leaves.
4. The process then continues for `give_up_s` at most, until a timer ends it that no code of the sink can delay. The
   cursor in the run folder shows which records are missing.

If the training process is killed, the pipe ends. The process then exports the rest of the journal and ends the same
way; a sink that saw no `end` record knows that the run crashed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tachograph._base.detached import DetachedProcess
from tachograph._base.guard import faults, suppress, warn
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.records import mask_text
from tachograph.sinks._config import SINKS, check_sink
from tachograph.sinks._driver import create_cursor

__all__ = ["Attach", "Build", "Close", "Move", "Reply", "SinkProcess", "start_sinks"]

_GIVE_UP_S = 120.0
_READY_TIMEOUT_S = 120.0


class Build(msgspec.Struct, frozen=True):
    """The first request: build a sink."""

    name: str
    options: dict[str, Any]
    factory: str = ""
    """The class, as `module:name`, if it is not a registered sink."""


class Attach(msgspec.Struct, frozen=True):
    """Follow a journal."""

    folder: str
    give_up_s: float


class Move(msgspec.Struct, frozen=True):
    """Continue in another folder, to which the journal was moved."""

    folder: str


class Close(msgspec.Struct, frozen=True):
    """Export the rest and end."""


class Reply(msgspec.Struct, omit_defaults=True):
    """A message of the process."""

    ready: str | None = None
    """The name of the sink, which is built."""
    error: str | None = None
    """Why the sink cannot be built."""
    failure: tuple[str, str, str] | None = None
    """The kind, the field and the reason of a failure to record."""
    done: bool | None = None
    """Whether the sink accepted every record."""


class SinkProcess:
    """A follower of the journal that runs a sink in another process."""

    def __init__(
        self, name: str, options: Mapping[str, Any], *, factory: str = "", give_up_s: float = _GIVE_UP_S
    ) -> None:
        """Start the process; `wait_until_ready` tells whether the sink was built.

        Args:
            name: the registered name of the sink.
            options: the arguments of its constructor.
            factory: the class, as `module:name`, if it is not a registered sink.
            give_up_s: how long the process may continue after the end of the run.

        Raises:
            ConfigError: if the process cannot be started or an option cannot be passed to it.
        """
        self.name = name
        self._give_up_s = give_up_s
        self._error: str | None = None
        self._is_complete = False
        self._is_closing = False
        self._folder: RunFolder | None = None
        self._report: Callable[[str, str, str], None] = lambda kind, field, reason: None
        self._ready_event = ReentrantEvent()
        self._finished_event = ReentrantEvent()
        try:
            self._process = DetachedProcess("tachograph.sinks._process_main", "sink", name)
        except faults(OSError) as error:
            raise ConfigError(f"sink {name!r}: its process cannot be started: {error}") from error
        self._thread = TelemetryThread(self._read_replies, name=f"tachograph-{name}")
        self._thread.start()
        try:
            self._process.send(Build(name, dict(options), factory))
        except Exception as error:
            self._process.close_requests()
            raise ConfigError(
                f"sink {name!r}: an option cannot be passed to the process of the sink; use plain values "
                f"({type(error).__name__}: {error})"
            ) from error

    def wait_until_ready(self, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Wait until the sink is built.

        Raises:
            ConfigError: if it cannot be built.
        """
        if not self._ready_event.wait(timeout_s):
            self.cancel()
            raise ConfigError(f"sink {self.name!r} was not ready within {timeout_s:g} s")
        if self._error is not None:
            raise ConfigError(self._error)

    def attach(self, folder: RunFolder, report: Callable[[str, str, str], None]) -> None:
        """Set the run to export.

        Args:
            folder: the run.
            report: called for each failure with its kind, the sink's name and the reason.
        """
        self._folder, self._report = folder, report
        if self._error is not None:
            self._report_build_error(self._error)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def cancel(self) -> None:
        """End the process without exporting anything: the run did not start."""
        self._process.close_requests()

    # The follower of a run -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to follow the journal."""
        assert self._folder is not None  # noqa: S101 - `attach` comes first
        if self.name in SINKS.built_in:  # its process may take longer to get there than the run lasts
            create_cursor(self._folder, self.name)
        self._process.send(Attach(str(self._folder.path), self._give_up_s))

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, to which the journal was moved."""
        self._process.send(Move(str(folder.path)))

    def close(self, timeout_s: float) -> bool:
        """Let the process export the rest and end; wait for it until the timeout.

        Returns:
            Whether the sink accepted every record in time.
        """
        if not self._is_closing:
            self._process.send(Close())  # first: a signal handler that gets here in between sends it again
            self._is_closing = True
        self._finished_event.wait(max(timeout_s, 0.0))
        return self._is_complete

    # The thread ----------------------------------------------------------------------------------------------------

    def _read_replies(self) -> None:
        for line in self._process.replies():
            with suppress(Exception):  # a fault of one reply must not stop the thread
                self._handle(decode_json(line, Reply))
        if not self._ready_event.is_set():
            self._fail_to_build(f"sink {self.name!r}: its process ended while it was starting")
        elif not self._is_closing and self._error is None:
            with suppress(Exception):
                reason = "the process of the sink ended unexpectedly; a resumed run exports the rest"
                self._report("sink_failed", self.name, reason)
        self._finished_event.set()

    def _handle(self, reply: Reply) -> None:
        if reply.ready is not None:
            self.name = reply.ready
            self._ready_event.set()
        elif reply.error is not None:
            self._fail_to_build(reply.error)
        elif reply.failure is not None:
            self._report(*reply.failure)
        elif reply.done is not None:
            self._is_complete = reply.done
            self._finished_event.set()

    def _fail_to_build(self, reason: str) -> None:
        self._error = mask_text(reason)
        self._ready_event.set()
        if self._folder is not None:  # otherwise `wait_until_ready` raises it, or `attach` reports it
            self._report_build_error(self._error)

    def _report_build_error(self, reason: str) -> None:
        with suppress(Exception):
            warn("%s; the run is recorded without this sink", reason)
            self._report("sink_failed", self.name, reason)


def start_sinks(options_by_name: Mapping[str, Mapping[str, Any]]) -> list[SinkProcess]:
    """Check the options of all sinks and start a process for each; wait for sinks that are not built in.

    Args:
        options_by_name: the options of each sink, by its name; `Settings.sinks` has this form.

    Raises:
        ConfigError: if a sink is unknown or broken, its package is missing, or an option is wrong.
    """
    checked_names = {name for name, options in options_by_name.items() if check_sink(name, options)}
    processes: list[SinkProcess] = []
    try:
        for name, options in options_by_name.items():
            processes.append(SinkProcess(name, options))
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        names: dict[str, str] = {}
        for name, process in zip(options_by_name, processes, strict=True):
            if name not in checked_names:
                process.wait_until_ready(max(deadline_s - time.monotonic(), 0.1))
            if process.name in names:
                raise ConfigError(
                    f"sinks: {name!r} and another sink are both named {process.name!r}; remove one of them"
                )
            names[process.name] = name
    except BaseException:
        for process in processes:
            process.cancel()
        raise
    return processes
