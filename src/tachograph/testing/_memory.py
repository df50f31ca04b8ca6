"""A run recorded in memory, by the same code that records to disk."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tachograph._base.clock import WallAnchor
from tachograph._base.settings import resolve_settings
from tachograph.journal import Request
from tachograph.recorder import (
    BACKPRESSURE_SIZE,
    BufferItem,
    ItemHandler,
    LossCounter,
    PendingRecord,
    RecordBuilder,
    Run,
)
from tachograph.records import StepTable, decode, encode
from tachograph.testing._clock import FakeClock

__all__ = ["MemoryRun"]


class MemoryRun(Run):
    """A run that records to a list, without files or threads; time passes only on its `clock`.

    Args:
        name: the name of the run.
        clock: the clock of the run; a new `FakeClock` by default.
        settings: any setting, such as `log_every`.
    """

    __slots__ = ("_memory_writer", "_request_ids", "clock")

    def __init__(self, name: str = "test", *, clock: FakeClock | None = None, **settings: Any) -> None:
        self.clock = clock or FakeClock()
        resolved_settings = resolve_settings({"console": False, **settings})
        self._memory_writer = _MemoryWriter(self.clock, resolved_settings.log_every)
        self._request_ids = itertools.count(1)
        super().__init__(
            name, settings=resolved_settings, backend=self._memory_writer, run_id="memory-run", clock=self.clock
        )

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records so far, as a reader of the journal gets them."""
        if self.status == "running":
            self.collect()  # a real run does this about every second
        self._memory_writer.flush(0)
        return self._memory_writer.records

    def request(self, **values: Any) -> None:
        """Request new values of controls, as a reader of a real run does through `control.json`.

        They take effect at the next `log` after `control_gap_s`.
        """
        for name, value in values.items():
            self.control_panel._handle(Request(name, value, f"request-{next(self._request_ids)}", "test"))
        self.control_panel._release()

    def _log_slow(self, metrics: dict[str, Any], step: Any) -> None:
        if self.status == "running":
            self.control_panel._release()  # a real run does this every few seconds
        super()._log_slow(metrics, step)


class _MemoryWriter:
    """The writer of a `MemoryRun`: the interface of the real writer, without a thread or files."""

    def __init__(self, clock: FakeClock, log_every: int) -> None:
        self._clock = clock
        self._anchor = WallAnchor(clock)
        self._builder = RecordBuilder(self._anchor, log_every=log_every)
        self.buffer: deque[BufferItem] = deque()
        self.losses = LossCounter()
        self.records: list[dict[str, Any]] = []
        self._has_ended = False
        self.loop_position: Callable[[], tuple[int | None, str]] = lambda: (None, "")
        self.collective_wait: Callable[[float, float], tuple[float, int] | None] | None = None

    @property
    def is_late(self) -> bool:
        return False

    @property
    def saw_array(self) -> bool:
        return self._builder.saw_array

    @property
    def last_step(self) -> int | None:
        return self._builder.last_step

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        self.put(PendingRecord(self._clock.steady_s(), event, fields))

    def add_handler(self, types: Iterable[type], handler: ItemHandler, *, deferrable: Iterable[type] = ()) -> None:
        self._builder.add_handler(types, handler, deferrable=deferrable)

    def put(self, item: BufferItem, *, num_bytes: int = 0, force: bool = False) -> bool:
        if len(self.buffer) > BACKPRESSURE_SIZE:
            self.flush(0)
        self.buffer.append(item)
        return True

    def wall_s(self, steady_s: float) -> float:
        return self._anchor.wall_s(steady_s)

    def wake(self) -> None:
        self.flush(0)

    def flush(self, timeout_s: float) -> bool:
        self._anchor.follow()
        items = [self.buffer.popleft() for _ in range(len(self.buffer))]
        for item in self._builder.process(items):
            lines = item.lines if isinstance(item, StepTable) else encode(item)
            self.records += [decode(line) for line in lines.splitlines()]
        for reason, num_records in self.losses.drain().items():
            self.add_record("telemetry_error", {"kind": "records_lost", "num_records": num_records, "reason": reason})
        return self.flush(timeout_s) if self.buffer else True

    def close(self, timeout_s: float, end: dict[str, Any] | None = None) -> bool:
        if end is not None and not self._has_ended:
            self._has_ended = True
            self.add_record("end", end)
        return self.flush(timeout_s)

    def abandon(self) -> None:
        self.buffer.clear()
