"""The way from `log` to the buffer: the hot path, and the long way that does what the hot path leaves out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from gc import is_tracked
from time import perf_counter
from typing import Any, Literal

from tachograph._base.clock import Clock, SystemClock
from tachograph._base.guard import guard, warn
from tachograph.recorder._backend import Backend
from tachograph.recorder._buffer_items import BACKPRESSURE_SIZE
from tachograph.recorder._control import ControlPanel
from tachograph.records import freeze, is_array
from tachograph.settings import Settings

__all__ = ["Intake"]

_CAREFUL_CALLS = 64
_YIELD_S = 0.0005
_STUCK_AFTER_S = 0.25


class _SlowPath:
    """Stands in for the buffer and is always full, so that `log` takes the long way."""

    def __len__(self) -> int:
        return sys.maxsize

    def append(self, _entry: object) -> None:
        """Never reached: nothing is appended to a full buffer."""


_SLOW_PATH = _SlowPath()


class Intake:
    """What takes the entries of a run; `Run` is made of it."""

    __slots__ = (
        "_buffer",
        "_careful_calls",
        "_clock",
        "_is_forked",
        "_is_told",
        "_panel",
        "_settings",
        "_writer",
        "name",
        "status",
    )

    def __init__(self, name: str, settings: Settings, writer: Backend | None, clock: Clock) -> None:
        self.name = name
        self.status: Literal["running", "finished", "failed"] = "running"
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._careful_calls = _CAREFUL_CALLS
        self._is_forked = False
        self._is_told = False
        self._buffer: Any = _SLOW_PATH
        self._panel = ControlPanel(
            gap_s=settings.control_gap_s,
            steady_s=self._clock.steady_s,
            note=self._add_record,
            call_trainer=self._take_detour,
        )
        self._panel.add_log_every(settings.log_every)

    def log(
        self, metrics: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, step: Any = None, **named: Any
    ) -> None:
        """Record metrics of a training step. Costs well under a microsecond, never waits and never raises.

        Args:
            metrics: names and values: numbers, bools, strings, numpy scalars, 0-d tensors, nested dicts of these.
            step: the global step. Without it, calls are counted from 0; once a step was given, a call without one
                belongs to that step.
            named: metrics as keyword arguments.

        Example:
            >>> run.log({"train_loss": loss, "lr": lr}, step=step)
            >>> run.log(train_loss=loss, step=step)
        """
        # The hot path. `named |= metrics` is the copy that keeps a dict the caller reuses from changing under us. A
        # dict the garbage collector does not track holds only numbers and texts: nothing that can change, and no
        # tensor that would hold on to a graph. (Where that is not known, as on PyPy, the long way is taken.)
        try:
            named |= metrics
            buffer = self._buffer
            # 4096 is PRESSURE: a constant is faster to load than a name.
            if len(buffer) > 4096 or is_tracked(named) or (step is not None and type(step) is not int):
                self._log_slowly(named, step)
            else:
                buffer.append((perf_counter(), step, named))
        except Exception as fault:  # noqa: BLE001 - whatever was passed, training goes on
            self._refuse(fault, metrics)

    def _add_record(self, event: str, fields: dict[str, Any]) -> None:
        if self._writer is None:
            return
        if self.status != "running" or self._is_forked:
            self._tell_once()
            return
        self._writer.add_record(event, fields)

    def _log_slowly(self, metrics: dict[str, Any], step: Any) -> None:
        """Log with everything that the fast way leaves out; see `_choose_way` for when it is open."""
        writer = self._writer
        if writer is None:
            return
        if self.status != "running" or self._is_forked:
            self._tell_once()
            return
        if self._panel.has_ready:
            self._panel.apply()
        if self._careful_calls or writer.saw_array or is_tracked(metrics):
            if self._careful_calls:
                # Whoever logs arrays usually does so from the start: then every call is looked at, for good.
                self._careful_calls -= not any(map(is_array, metrics.values()))
            metrics = freeze(metrics)
        if step is not None and type(step) is not int:
            step = freeze({"global_step": step}).get("global_step", step)
        if len(writer.buffer) > BACKPRESSURE_SIZE:
            self._make_room(writer)
        if len(writer.buffer) >= self._settings.buffer_size:
            writer.losses.add("the buffer was full")
        else:
            writer.buffer.append((self._clock.steady_s(), step, metrics))
        self._choose_way()

    def _make_room(self, writer: Backend) -> None:
        """Let a writer that is at work have the interpreter; never wait for one that is stuck.

        Only a loop that does nothing but log comes here: it fills the buffer faster than any disk can take it, and
        would rather go at the disk's pace than lose records.
        """
        writer.wake()
        time.sleep(0)
        while len(writer.buffer) >= self._settings.buffer_size and time.monotonic() < writer.drained_s + _STUCK_AFTER_S:
            time.sleep(_YIELD_S)

    def _choose_way(self) -> None:
        """Open the fast way unless something needs the long one for every call."""
        writer = self._writer
        is_fast = (
            self.status == "running"
            and not self._is_forked
            and not self._careful_calls
            and not (writer is not None and writer.saw_array)
            and not self._panel.has_ready
            and self._settings.buffer_size >= BACKPRESSURE_SIZE
            and type(self._clock) is SystemClock
        )
        self._buffer = writer.buffer if writer is not None and is_fast else _SLOW_PATH

    def _take_detour(self) -> None:
        """Make the next `log` take the long way. Called by the writer's thread."""
        self._buffer = _SLOW_PATH

    def _refuse(self, fault: Exception, metrics: object) -> None:
        writer = self._writer
        if isinstance(fault, (TypeError, ValueError)) and not isinstance(metrics, Mapping):
            reason = f"log() takes a dict of metrics, got {type(metrics).__name__}; the record is lost"
            if writer is not None:
                writer.losses.add(reason)
            return
        guard.report("logging a step", fault)
        if writer is not None:
            writer.losses.add("a fault inside telemetry")
        if guard.strict:
            raise fault

    def _tell_once(self) -> None:
        if self._is_told:
            return
        self._is_told = True
        why = "was forked from the process that records it" if self._is_forked else f"has {self.status}"
        warn(
            "run %r %s: what is logged to it from here on is not recorded; call tachograph.init() for a run of its own",
            self.name,
            why,
        )
