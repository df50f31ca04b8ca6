"""Builds records from buffer items, on the writer thread. No files, no threads, no clock but the wall anchor.

Most items are steps, so they have a fast path: consecutive steps with the same metric names, each later than the one
before, become one `StepTable`, which is encoded column by column instead of record by record. Everything that does not
fit (other names, a step that goes back, values that need conversion) is built one record at a time.

Items of a layer above, such as spans, go to the handler that the layer registered. A handler may declare that its items
can wait until the table around them is complete; otherwise a span per step would cut every table down to one row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tachograph._base.clock import WallAnchor
from tachograph._base.guard import warn
from tachograph.recorder._buffer_items import BufferItem, ItemHandler, ObservedStep, PendingRecord, StepItem
from tachograph.recorder._window import LATE_ARRAY, StepWindow
from tachograph.records import (
    AB_ARM,
    CLOCK_SET,
    OMIT,
    RESERVED_FIELDS,
    Encodable,
    LazyValue,
    MaskingBudget,
    RecordCut,
    StepTable,
    ValueBudget,
    ValueProblem,
    has_device_scalars,
    is_array,
    is_frozen,
    is_loss,
    mask_mapping,
    mask_text,
    to_plain,
)

__all__ = ["RecordBuilder"]

_MAX_PROBLEMS = 200
_MAX_SHAPES = 256
_MAX_STEP = 1 << 62
_MAX_VALUES = 100_000
_MAX_CHARS = 8 << 20
"""Limits of a record on this thread; most records have met narrower ones on the caller's thread."""
_OWN_FIELDS = RESERVED_FIELDS | {"global_step", "sec_per_step", "samples_per_sec", "nan_inf_detected"}


class RecordBuilder:
    """Turns buffer items into records, in order."""

    def __init__(
        self,
        anchor: WallAnchor,
        *,
        log_every: int = 1,
        samples_per_step: float | None = None,
        last_step: int | None = None,
    ) -> None:
        self._anchor = anchor
        self._samples_per_step = samples_per_step
        self._window = StepWindow(log_every) if log_every > 1 else None
        self._step = last_step
        self._counts_steps = True
        self._pace_step: int | None = None
        self._pace_s = 0.0
        self._reported_fields: set[str] = set()
        self._has_warned = False
        self._has_warned_of_lists = False
        self._columns: dict[tuple[str, ...], tuple[str, ...] | None] = {}
        self._latest: Mapping[str, Any] | None = None  # the last metrics that contain the loss
        self._handlers: dict[type, ItemHandler] = {}
        self._deferrable: set[type] = set()
        self.memory: dict[str, float] = {}
        """The memory in use, which every step record contains. The writer updates it about once a second."""
        self.saw_array = False
        """Whether an array arrived that its owner can still change."""

    @property
    def last_step(self) -> int | None:
        """The latest step; None before the first one."""
        return self._step

    def add_handler(self, types: Iterable[type], handler: ItemHandler, *, deferrable: Iterable[type] = ()) -> None:
        """Pass items of some types to a handler.

        Args:
            types: the types, matched exactly.
            handler: builds their records.
            deferrable: the types whose items may be handled after the steps that follow them.
        """
        self._handlers.update(dict.fromkeys(types, handler))
        self._deferrable.update(deferrable)

    def process(self, items: Iterable[BufferItem]) -> list[Encodable]:
        """Return the records of some items. Only an unfinished window is kept back."""
        records: list[Encodable] = []
        if has_device_scalars():
            items = list(items)
            _read_device_scalars(items)
        remaining = iter(items)
        item = next(remaining, None)
        while item is not None:
            kind = type(item)
            if kind is tuple and self._window is None:
                item = self._build_table(item, remaining, records)
                continue
            if kind in self._handlers:
                item = self._handle_group(item, remaining, records)
                continue
            if kind is tuple and self._window is not None:
                records += self._add_to_window(self._window, *item)
            elif kind is PendingRecord:
                records += self._build_pending(item)
            item = next(remaining, None)
        if self._window is not None and self._window.is_due:
            records += self._close_window()
        return records

    def finish(self) -> list[Encodable]:
        """Return the record of an unfinished window."""
        return self._close_window()

    def _report_lists(self, record: dict[str, Any], steady_s: float) -> list[Encodable]:
        """Return a `telemetry_error` record for each metric that is a list, which charts cannot show, once."""
        records: list[Encodable] = []
        for name, value in record.items():
            if type(value) is not list or name in self._reported_fields:
                continue
            reason = (
                f"a list of {len(value)} values is recorded, but charts show numbers: log its mean, or each element"
            )
            if not self._has_warned_of_lists:
                self._has_warned_of_lists = True
                warn("metric %r: %s; the dashboard names all such metrics", name, reason)
            records += self._report_problem(ValueProblem(name, reason), steady_s, kind="value_not_charted")
        return records

    def _report_problem(
        self, problem: ValueProblem, steady_s: float, kind: str = "value_not_stored"
    ) -> list[Encodable]:
        """Return a `telemetry_error` record for the first problem with a field."""
        if problem.where in self._reported_fields or len(self._reported_fields) > _MAX_PROBLEMS:
            return []
        self._reported_fields.add(problem.where)
        reason = problem.reason
        if isinstance(problem, RecordCut) and not self._has_warned:
            self._has_warned = True
            warn("a record was too large and was cut at %r: %s; the journal lists all such fields", *problem)
        if len(self._reported_fields) > _MAX_PROBLEMS:
            reason += "; problems with further fields are not listed"
        record = {"event": "telemetry_error", "time": self._anchor.wall_s(steady_s), "kind": kind}
        return [{**record, "field": problem.where, "reason": mask_text(reason)[:2000]}]

    # Steps as a table ----------------------------------------------------------------------------------------------

    def _build_table(
        self, first: StepItem, remaining: Iterator[BufferItem], records: list[Encodable]
    ) -> BufferItem | None:
        """Build a table of a step and the steps after it with the same names; return the item that ends it.

        This loop is most of the writer's work per step, so everything in it is a local.
        """
        steady_s, step, metrics = first
        keys = tuple(metrics)
        columns = self._columns_for(keys)
        last_step, last_s = self._pace_step, self._pace_s
        if columns is None or last_step is None or not _follows(step, last_step, steady_s, last_s):
            records += self._build_step(steady_s, step, metrics)
            return next(remaining, None)
        offset_s, samples = self._anchor.offset_s, self._samples_per_step
        memory = {name: value for name, value in self.memory.items() if name not in keys}
        constants = tuple(memory.values())
        values: list[Any] = []
        append = values.append
        item: BufferItem | None = first
        deferred_items: list[BufferItem] = []
        latest: list[Mapping[str, Any] | None] = []
        deferrable = self._deferrable
        has_loss = any(map(is_loss, keys))
        while True:
            num_steps, took_s = step - last_step, steady_s - last_s
            append(offset_s + steady_s)
            append(step)
            values += metrics.values()
            append(took_s / num_steps)
            if samples:
                append(samples * num_steps / took_s)
            values += constants
            last_step, last_s = step, steady_s
            item = next(remaining, None)
            while type(item) in deferrable:
                deferred_items.append(item)
                latest.append(metrics if has_loss else self._latest)
                item = next(remaining, None)
            if type(item) is not tuple:
                break
            next_s, next_step, next_metrics = item
            if tuple(next_metrics) != keys or not _follows(next_step, last_step, next_s, last_s):
                break
            steady_s, step, metrics = next_s, next_step, next_metrics
        self._step = self._pace_step = last_step
        self._pace_s = last_s
        self._counts_steps = False
        self._finish_table((*columns, *memory), values, records)
        if deferred_items:
            records += self._handle(deferred_items, latest)
        if has_loss:
            self._latest = metrics
        return item

    def _columns_for(self, keys: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the column names of a table, or None if steps with these metrics cannot be in one."""
        if keys not in self._columns:
            if len(self._columns) >= _MAX_SHAPES:
                self._columns.clear()
            self._columns[keys] = self._make_columns(keys)
        return self._columns[keys]

    def _make_columns(self, keys: tuple[str, ...]) -> tuple[str, ...] | None:
        if not all(type(key) is str and key.isascii() for key in keys) or not _OWN_FIELDS.isdisjoint(keys):
            return None
        rate_columns = ("sec_per_step", "samples_per_sec") if self._samples_per_step else ("sec_per_step",)
        return ("time", "global_step", *keys, *rate_columns)

    def _finish_table(self, columns: tuple[str, ...], values: list[Any], records: list[Encodable]) -> None:
        width = len(columns)
        table = StepTable.encode(columns, values, len(values) // width)
        if table is not None:
            records.append(table)
            return
        for start in range(0, len(values), width):
            row = dict(zip(columns, values[start : start + width], strict=True))
            records += self._finish_step({"event": "step", **row}, self._pace_s)

    # Steps one by one ----------------------------------------------------------------------------------------------

    def _build_step(self, steady_s: float, step: Any, metrics: dict[str, Any]) -> list[Encodable]:
        records: list[Encodable] = []
        if any(map(is_loss, metrics)):
            self._latest = metrics
        self._step = number = self._resolve_step(step, metrics, steady_s, records)
        record: dict[str, Any] = {"event": "step", "time": self._anchor.wall_s(steady_s), "global_step": number}
        record.update((_escape_reserved(name), value) for name, value in metrics.items())
        record["global_step"] = number
        if type(step) is not ObservedStep:
            self._add_pace(record, number, steady_s)
        return records + self._finish_step(record, steady_s)

    def _finish_step(self, record: dict[str, Any], steady_s: float) -> list[Encodable]:
        """Convert the values, add the memory in use, and mark the record if a value is not finite."""
        problems: list[ValueProblem] = []
        with MaskingBudget():
            record = self._convert(record, problems)
        self._add_memory(record)
        record.setdefault("nan_inf_detected", any(map(_is_not_finite, record.values())))
        records: list[Encodable] = [record]
        if list in map(type, record.values()):
            records += self._report_lists(record, steady_s)
        for problem in problems:
            records += self._report_problem(problem, steady_s)
        return records

    def _add_memory(self, record: dict[str, Any]) -> None:
        for name, value in self.memory.items():
            record.setdefault(name, value)  # the training code may log fields of these names itself

    def _convert(self, record: dict[str, Any], problems: list[ValueProblem]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        budget: ValueBudget | None = None
        for name, value in record.items():
            if not name.isascii():
                name = name.encode("utf-8", "backslashreplace").decode()  # noqa: PLW2901 - lone surrogates are not JSON
            if is_frozen(value):
                result[name] = value
                continue
            if is_array(value):
                # A numpy array that took the fast path: its owner may have changed it since. Missing beats wrong.
                self.saw_array = True
                problems.append(ValueProblem(name, LATE_ARRAY))
                continue
            if budget is None:
                budget = ValueBudget(_MAX_VALUES, _MAX_CHARS)
            plain_value = to_plain(value, name, problems, budget)
            if plain_value is not OMIT:
                result[name] = plain_value
        return result if all(map(is_frozen, result.values())) else mask_mapping(result)

    def _resolve_step(self, step: Any, metrics: dict[str, Any], steady_s: float, records: list[Encodable]) -> int:
        """Return the number of a step; see `Run.log` for the rule."""
        requested_step = metrics.get("global_step") if step is None else step
        if requested_step is not None:
            try:
                number = requested_step.item() if hasattr(requested_step, "item") else requested_step
                step_number = int(number)
                if (step_number != number and not isinstance(number, str)) or not -_MAX_STEP < step_number < _MAX_STEP:
                    raise ValueError(number)
                self._counts_steps = False
                return step_number
            except Exception:  # noqa: BLE001 - the caller may pass any object as a step
                reason = f"step={requested_step!r:.80} is not an integer; the record got the next step number instead"
                records += self._report_problem(ValueProblem("global_step", reason), steady_s)
        if self._step is None:
            return 0
        return self._step + 1 if self._counts_steps else self._step

    def _add_pace(self, record: dict[str, Any], step: int, steady_s: float) -> None:
        """Add the time per step since the previous record; a first step and a step back have none."""
        if self._pace_step is not None and step > self._pace_step and steady_s > self._pace_s:
            sec_per_step = record.setdefault("sec_per_step", (steady_s - self._pace_s) / (step - self._pace_step))
            if self._samples_per_step and type(sec_per_step) is float and sec_per_step > 0:
                record.setdefault("samples_per_sec", self._samples_per_step / sec_per_step)
        if step != self._pace_step:
            self._pace_step, self._pace_s = step, steady_s

    # Windows of steps ----------------------------------------------------------------------------------------------

    def _add_to_window(
        self, window: StepWindow, steady_s: float, step: Any, metrics: dict[str, Any]
    ) -> list[Encodable]:
        records: list[Encodable] = []
        if any(map(is_loss, metrics)):
            self._latest = metrics
        self._step = number = self._resolve_step(step, metrics, steady_s, records)
        if window.must_close_before(number):
            records += self._close_window()
        window.add(number, steady_s, metrics)
        return records

    def _close_window(self) -> list[Encodable]:
        window = self._window
        if window is None or window.num_logs == 0:
            return []
        step, steady_s = window.last_step, window.last_s
        record: dict[str, Any] = {"event": "step", "time": self._anchor.wall_s(steady_s), "global_step": step}
        record.update((_escape_reserved(name), value) for name, value in window.summary().items())
        record["global_step"] = step
        self._add_pace(record, step, steady_s)
        if window.num_not_finite:
            record["nan_inf_detected"] = True
        self.saw_array = self.saw_array or window.saw_array
        problems = window.problems
        window.clear()
        records = self._finish_step(record, steady_s)
        for problem in problems:
            records += self._report_problem(problem, steady_s)
        return records

    # Other items ---------------------------------------------------------------------------------------------------

    def _handle_group(
        self, first: BufferItem, remaining: Iterator[BufferItem], records: list[Encodable]
    ) -> BufferItem | None:
        """Pass an item and those after it that have a handler to their handlers; return the item after them."""
        items = [first]
        item = next(remaining, None)
        while type(item) in self._handlers:
            items.append(item)
            item = next(remaining, None)
        records += self._handle(items, [self._latest] * len(items))
        return item

    def _handle(self, items: Sequence[BufferItem], latest: Sequence[Mapping[str, Any] | None]) -> list[Encodable]:
        handlers = {self._handlers[kind] for kind in set(map(type, items))}
        if len(handlers) == 1:
            pending_records = handlers.pop().handle(items, latest)
        else:  # keep the order: pass on groups of items with the same handler
            pending_records = []
            start = 0
            for handler, group in itertools.groupby(map(self._handlers.__getitem__, map(type, items))):
                stop = start + len(list(group))
                pending_records += handler.handle(items[start:stop], latest[start:stop])
                start = stop
        return [record for pending in pending_records for record in self._build_pending(pending)]

    def clock_set(self, jump_s: float, steady_s: float) -> dict[str, Any]:
        """Return the record of a wall clock that was set. Write it at once, before any record with the new time."""
        jumps = {"jump_s": round(jump_s, 3), "clock_jumps_s": round(self._anchor.jumps_s, 3)}
        return {"event": "event", "time": self._anchor.wall_s(steady_s), "name": CLOCK_SET, **jumps}

    def _build_pending(self, pending: PendingRecord) -> list[Encodable]:
        records: list[Encodable] = []
        if pending.event == "control_change" and pending.fields.get("name") == "log_every":
            records += self._close_window()
            log_every = int(pending.fields["new"])
            self._window = StepWindow(log_every) if log_every > 1 else None
        elif pending.event == "end":
            records += self._close_window()
        problems: list[ValueProblem] = []
        record: dict[str, Any] = {"event": pending.event, "time": self._anchor.wall_s(pending.steady_s)}
        if self._step is not None and (pending.event == "profile" or pending.fields.get("name") == AB_ARM):
            record["global_step"] = self._step  # collectors run alongside the loop and do not know the step
        record.update((_escape_reserved(name), value) for name, value in pending.fields.items())
        if pending.event == "step":
            self._add_memory(record)
        if pending.event in {"start", "end"} and self._anchor.jumps_s:
            record["clock_jumps_s"] = round(self._anchor.jumps_s, 3)
        with MaskingBudget():
            records.append(self._convert(record, problems))
        for problem in problems:
            records += self._report_problem(problem, pending.steady_s)
        return records


def _follows(step: Any, last_step: int, steady_s: float, last_s: float) -> bool:
    """Return whether a step comes after another, so that the time between them is a pace."""
    return type(step) is int and 0 < step - last_step < _MAX_STEP and steady_s > last_s


def _read_device_scalars(items: Iterable[BufferItem]) -> None:
    """Replace values on a device by numbers, because only numbers can be in a table."""
    for item in items:
        if type(item) is not tuple:
            continue
        metrics = item[2]
        for name, value in metrics.items():
            if isinstance(value, LazyValue):
                problems: list[ValueProblem] = []
                plain = to_plain(value, name, problems)
                metrics[name] = problems[0] if plain is OMIT else plain


def _escape_reserved(name: Any) -> str:
    text = name if isinstance(name, str) else str(name)
    return f"{text}_" if text in RESERVED_FIELDS else text


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_is_not_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)
