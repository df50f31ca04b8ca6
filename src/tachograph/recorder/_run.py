"""`Run`: what a training loop talks to."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

from tachograph._base.clock import Clock, SystemClock
from tachograph._base.guard import guard
from tachograph.journal import RunFolder
from tachograph.recorder._backend import Backend, Collector, Follower, SpanRecorder
from tachograph.recorder._completion_rows import completion_fields, completion_row
from tachograph.recorder._control import Control, Number
from tachograph.recorder._errors import error_fields
from tachograph.recorder._intake import Intake
from tachograph.recorder._system import SystemSampler
from tachograph.records import LazyValue, ValueProblem, freeze
from tachograph.settings import Settings

__all__ = ["DisabledRun", "RankRun", "Run"]


class Run(Intake):
    """A run being recorded. Made by `tachograph.init`; ends with `finish`, or as a context manager.

    Attributes:
        name: the run's name, which is that of its folder.
        id: the same for all attempts of a resumed run.
        folder: where each file of the run lies, or None if the run is not recorded.
        resumed: whether earlier attempts are in the same journal.
        facts: what the `start` record says.
        companion: what records spans into the run, once there are any.
        sources: what else collects for the run, and is asked about every second and at its end.
    """

    __slots__ = (
        "__weakref__",
        "_followers",
        "_on_finish",
        "_sampler",
        "collectors",
        "facts",
        "folder",
        "id",
        "resumed",
        "span_recorder",
    )

    def __init__(
        self,
        name: str,
        *,
        settings: Settings,
        writer: Backend | None,
        run_id: str = "",
        folder: RunFolder | None = None,
        resumed: bool = False,
        clock: Clock | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, settings, writer, clock or SystemClock())
        self.facts = facts or {}
        self.span_recorder: SpanRecorder | None = None
        self.collectors: list[Collector] = []
        self.id = run_id
        self.folder = folder
        self.resumed = resumed
        self._sampler: SystemSampler | None = None
        self._on_finish: Any = None
        self._followers: list[Follower] = []

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.status if self.enabled else 'disabled'}, {self.path!r})"

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._writer is not None

    @property
    def path(self) -> str | None:
        """The run's folder as a text, or None if the run is not recorded."""
        return None if self.folder is None else str(self.folder.path)

    @property
    def log_every(self) -> int:
        """Steps per step record, as it is now."""
        return self._panel.log_every

    # Logging -------------------------------------------------------------------------------------------------------

    def log_epoch(self, epoch: int, metrics: Mapping[str, Any] | None = None, *, step: int | None = None) -> None:
        """Record the end of an epoch, with its metrics."""
        with guard("logging an epoch"):
            self._add_metrics("epoch", {"epoch": epoch}, metrics, step)

    def log_validation(
        self, metrics: Mapping[str, Any], *, step: int | None = None, epoch: int | None = None, prefix: str = "val_"
    ) -> None:
        """Record results on held-out data; ``{"loss": …}`` becomes ``val_loss``."""
        with guard("logging a validation"):
            self._add_metrics("validation", {"epoch": epoch}, _prefixed(metrics, prefix), step)

    def log_test(
        self, metrics: Mapping[str, Any], *, step: int | None = None, epoch: int | None = None, prefix: str = "test_"
    ) -> None:
        """Record results on test data; ``{"loss": …}`` becomes ``test_loss``."""
        with guard("logging a test"):
            self._add_metrics("test", {"epoch": epoch}, _prefixed(metrics, prefix), step)

    def log_checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        is_best: bool = False,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Record that a checkpoint was saved, with its size if the file is there."""
        with guard("logging a checkpoint"):
            place = os.path.abspath(path)  # looked at later, when the loop may have changed its folder
            size_bytes = LazyValue(lambda: os.path.getsize(place) if os.path.isfile(place) else None)
            fields = {"checkpoint_path": os.fspath(path), "is_best": is_best, "size_bytes": size_bytes}
            self._add_metrics("checkpoint", fields, metrics, step)

    def event(self, name: str, /, *, step: int | None = None, **attributes: Any) -> None:
        """Record that something happened: ``run.event("curriculum_switch", stage=2)``."""
        with guard("logging an event"):
            self._add_metrics("event", {"name": name}, attributes, step)

    def log_completions(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        step: int | None = None,
        table: str = "completions",
        num_dropped: int = 0,
    ) -> None:
        """Record samples as rows of a table, such as ``[{"prompt": …, "completion": …, "reward": 0.5}]``.

        Texts are cut at 8,000 characters and a record holds about a megabyte, the newest rows; what does not fit is
        counted in it. `tachograph.Completions` calls this every so many steps.
        """
        with guard("logging completions"):
            if self._writer is not None:
                settled = [completion_row(row) for row in rows]
                if settled or num_dropped:
                    self._add_record("completions", completion_fields(settled, step, table, num_dropped))

    def log_error(self, error: BaseException, *, fatal: bool = False, where: str | None = None) -> None:
        """Record an exception of the training code with its traceback."""
        with guard("logging an error"):
            self._add_record("error", error_fields(error, fatal=fatal, where=where))

    # Control -------------------------------------------------------------------------------------------------------

    def control(
        self,
        name: str,
        value: Number,
        *,
        min: Number | None = None,  # noqa: A002
        max: Number | None = None,  # noqa: A002
    ) -> Control[Number]:
        """Register a value that a reader may change within bounds while the run goes on.

        Raises:
            ControlError: if the name is taken or the value is not within its bounds.

        Example:
            >>> lr_scale = run.control("lr_scale", 1.0, min=0.1, max=10)
            >>> lr = base_lr * lr_scale.value
        """
        return self._panel.register(name, value, min, max)

    @property
    def should_stop(self) -> bool:
        """Whether a reader asked the run to stop; stays true.

        In a distributed job only rank 0 hears of it: pass it on to the others before you act on it.
        """
        return self._panel.stop is not None and self._panel.take_stop()

    @property
    def should_checkpoint(self) -> bool:
        """Whether a reader asked for a checkpoint: true once for each request, on rank 0 alone."""
        return self._panel.checkpoint is not None and self._panel.take_checkpoint()

    def refuse(self, reason: str) -> None:
        """Answer a request to stop or to save with a no, on behalf of a loop that cannot hear of it."""
        if self._panel.stop is not None or self._panel.checkpoint is not None:
            self._panel.refuse(reason)

    # The end -------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until what was logged is in the file; return whether it is within the time given."""
        writer = self._writer
        if writer is None or self._is_forked or self.status != "running":
            return True
        return writer.flush(self._settings.exit_timeout_s if timeout_s is None else timeout_s)

    def finish(
        self,
        status: Literal["finished", "failed"] = "finished",
        *,
        reason: str | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """End the run: write what waits, within a deadline; return whether all of it was written.

        Calling it again only waits for what a first call is still writing, as a signal handler does.
        """
        timeout_s = self._settings.exit_timeout_s if timeout_s is None else timeout_s
        if self.status != "running" or self._is_forked:
            return self._is_forked or self._writer is None or self._writer.close(timeout_s)
        if self._sampler is not None:
            self._sampler.stop()
        if self.span_recorder is not None:
            with guard("closing spans"):
                self.span_recorder.close()
        for source in list(self.collectors):
            with guard("recording what was collected"):
                source.close()
        deadline_s = time.monotonic() + timeout_s
        fields = {"status": status, "reason": reason}
        self._add_record("end", {name: value for name, value in fields.items() if value is not None})
        self.status = status
        self._take_detour()
        written = True
        if self._writer is not None:
            written = self._writer.close(timeout_s)
            if not written:
                how = f" within {timeout_s:g} s" if time.monotonic() >= deadline_s else ""
                self.print_line(f"the last records of {self.name!r} could not be written{how}")
        for follower in self._followers:
            follower.close(0)  # all of them first, so that one that hangs takes no time from the others
        for follower in self._followers:
            if not follower.close(deadline_s - time.monotonic()):
                self.print_line(f"{follower.name} did not take all records of {self.name!r}; they are in the journal")
        if self._on_finish is not None:
            with guard("taking back hooks"):
                self._on_finish(self)
        return written

    def collect(self) -> None:
        """Record what was collected since the last time. Called by the writer's thread."""
        for source in list(self.collectors):
            source.collect()

    def add_follower(self, follower: Follower) -> None:
        """Start something that follows the journal until the run ends, and stop it then, within the deadline."""
        self._followers.append(follower)
        follower.start()

    def remove_follower(self, follower: Follower) -> None:
        """Stop something that follows the journal, within the deadline."""
        if follower in self._followers:
            self._followers.remove(follower)
            follower.close(self._settings.exit_timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.finish()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Record an exception that ends the run."""
        self.log_error(error, fatal=True)
        self.finish("failed", reason=type(error).__name__)

    # Inside --------------------------------------------------------------------------------------------------------

    def _add_metrics(self, event: str, fields: dict[str, Any], metrics: Any, step: int | None) -> None:
        if self._writer is None:
            return
        if metrics is not None and not isinstance(metrics, Mapping):
            metrics = {"metrics": ValueProblem("metrics", f"a dict was expected, got {type(metrics).__name__}")}
        given = {name: value for name, value in {**fields, "global_step": step}.items() if value is not None}
        theirs = {f"{name}_" if name in given else name: value for name, value in (metrics or {}).items()}
        self._add_record(event, freeze({**given, **theirs}))

    def _moved(self, folder: RunFolder, reason: str) -> None:
        self.folder, self.name = folder, folder.name
        for follower in self._followers:
            follower.move(folder)
        self.print_line(reason)

    def _take_sample(self, sample: dict[str, Any]) -> None:
        if self.status == "running" and self._writer is not None:
            self._writer.add_record("system", sample)

    def report_error(self, kind: str, field: str, reason: str) -> None:
        """Record a fault of telemetry itself."""
        if self.status == "running":
            self._add_record("telemetry_error", {"kind": kind, "field": field, "reason": reason})

    def print_line(self, line: str) -> None:
        """Print a line for the person who watches the run."""
        if not self._settings.console:
            return
        # A closed pipe or a terminal that knows only ASCII is no reason to stop a training run.
        with contextlib.suppress(OSError, ValueError):
            encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
            text = line.encode(encoding, "backslashreplace").decode(encoding)
            print(f"[telemetry] {text}", flush=True)  # noqa: T201 - the lines users know

    def _forget_parent(self) -> None:
        """In a forked child: this run is the parent's."""
        self._is_forked = True
        self._take_detour()
        self._sampler = None
        self._followers = []
        if self.span_recorder is not None:
            self.span_recorder.forget()
        for source in list(self.collectors):
            source.forget()
        if self._writer is not None:
            self._writer.abandon()


class DisabledRun(Run):
    """A run that takes everything and records nothing, at next to no cost."""

    __slots__ = ()

    def log(self, metrics: Any = (), /, step: Any = None, **named: Any) -> None:
        """Do nothing."""


class RankRun(Run):
    """The run as a rank other than the first sees it: spans, events and errors go into a journal of its own.

    Metrics are rank 0's, for they are the same for all ranks or were reduced over them.
    """

    __slots__ = ()

    def log(self, metrics: Any = (), /, step: Any = None, **named: Any) -> None:
        """Do nothing."""

    def log_completions(self, rows: Any, **options: Any) -> None:
        """Do nothing."""

    def _add_metrics(self, event: str, fields: dict[str, Any], metrics: Any, step: int | None) -> None:
        if event == "event":
            super()._add_metrics(event, fields, metrics, step)


def _prefixed(metrics: Any, prefix: str) -> Any:
    """Give each name the prefix unless it has one; ``val/loss`` counts as having ``val_``."""
    if not isinstance(metrics, Mapping):
        return metrics
    own = (prefix, f"{prefix.rstrip('_/')}/")
    return {name if str(name).startswith(own) else f"{prefix}{name}": value for name, value in metrics.items()}
