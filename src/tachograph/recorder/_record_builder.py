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
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter, sub, truediv
from typing import Any, NamedTuple

from tachograph._base.clock import WallAnchor
from tachograph._base.guard import warn
from tachograph.recorder._buffer_items import (
    BufferItem,
    ItemHandler,
    ObservedStep,
    PendingRecord,
    StepItem,
    StepLookup,
)
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


class _TableLayout(NamedTuple):
    """How steps with the same metrics become a table."""

    columns: tuple[str, ...]
    get_values: Callable[[dict[str, Any]], tuple[Any, ...]]
    """Returns the values of the metrics of a step. Raises a KeyError if one is missing."""
    num_metrics: int
    has_loss: bool


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
        self._layouts: dict[tuple[str, ...], _TableLayout | None] = {}
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
        items = list(items)
        if has_device_scalars():
            _read_device_scalars(items)
        if self._window is None and self._build_one_table(items, records):
            return records
        position = 0
        while position < len(items):
            item = items[position]
            kind = type(item)
            if kind is tuple and self._window is None:
                position = self._build_next_table(items, position, records)
                continue
            if kind in self._handlers:
                position = self._handle_group(items, position, records)
                continue
            if kind is tuple and self._window is not None:
                records += self._add_to_window(self._window, *item)
            elif kind is PendingRecord:
                records += self._build_pending(item)
            elif kind is StepLookup:
                records += self._look_up_step(item)
            position += 1
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

    def _build_one_table(self, items: list[BufferItem], records: list[Encodable]) -> bool:
        """Build one table of all items; return False, and do nothing, if they do not fit into one.

        Most chunks do, so this is most of the writer's work per step. Whatever is done here for each step is one call
        for all of them.
        """
        if self._pace_step is None or set(map(type, items)) != {tuple}:
            return False
        times_s, steps, metrics = zip(*items, strict=True)
        layout = self._layout_of(tuple(metrics[0]))
        if layout is None or set(map(len, metrics)) != {layout.num_metrics} or set(map(type, steps)) != {int}:
            return False
        try:
            rows = list(map(layout.get_values, metrics))
        except KeyError:  # other names
            return False
        took_s, num_steps = self._differences(times_s, steps)
        is_in_order = num_steps.count(1) == len(steps) or (min(num_steps) > 0 and max(num_steps) < _MAX_STEP)
        if not is_in_order or min(took_s) <= 0:
            return False
        if layout.has_loss:
            self._latest = metrics[-1]
        self._add_table(layout, times_s, steps, rows, took_s, num_steps, records)
        return True

    def _build_next_table(self, items: list[BufferItem], start: int, records: list[Encodable]) -> int:
        """Build a table of a step and the steps after it with the same names; return the position of the next item."""
        steady_s, step, metrics = items[start]
        keys = tuple(metrics)
        layout = self._layout_of(keys)
        last_step, last_s = self._pace_step, self._pace_s
        if layout is None or last_step is None or not _follows(step, last_step, steady_s, last_s):
            records += self._build_step(steady_s, step, metrics)
            return start + 1
        table_items: list[StepItem] = []
        deferred_items: list[BufferItem] = []
        latest: list[Mapping[str, Any] | None] = []
        deferrable = self._deferrable
        position = start
        while position < len(items):
            item = items[position]
            if type(item) in deferrable:
                deferred_items.append(item)
                latest.append(metrics if layout.has_loss else self._latest)
            elif type(item) is not tuple:
                break
            else:
                next_s, next_step, next_metrics = item
                if tuple(next_metrics) != keys or not _follows(next_step, last_step, next_s, last_s):
                    break
                last_s, last_step, metrics = item
                table_items.append(item)
            position += 1
        times_s, steps, all_metrics = zip(*table_items, strict=True)
        rows = list(map(layout.get_values, all_metrics))
        self._add_table(layout, times_s, steps, rows, *self._differences(times_s, steps), records)
        if deferred_items:
            records += self._handle(deferred_items, latest)
        if layout.has_loss:
            self._latest = metrics
        return position

    def _add_table(
        self,
        layout: _TableLayout,
        times_s: tuple[float, ...],
        steps: tuple[int, ...],
        rows: list[tuple[Any, ...]],
        took_s: list[float],
        num_steps: list[int],
        records: list[Encodable],
    ) -> None:
        sec_per_step = took_s if num_steps.count(1) == len(steps) else list(map(truediv, took_s, num_steps))
        offset_s, samples = self._anchor.offset_s, self._samples_per_step
        columns = [[offset_s + time_s for time_s in times_s], steps, *zip(*rows, strict=True), sec_per_step]
        if samples:
            columns.append([samples / seconds for seconds in sec_per_step])
        names = layout.columns
        for name, value in self.memory.items():
            if name not in names:
                names = (*names, name)
                columns.append([value] * len(steps))
        self._step = self._pace_step = steps[-1]
        self._pace_s = times_s[-1]
        self._counts_steps = False
        table = StepTable.encode(names, columns)
        if table is not None:
            records.append(table)
            return
        for row in zip(*columns, strict=True):
            records += self._finish_step({"event": "step", **dict(zip(names, row, strict=True))}, self._pace_s)

    def _differences(self, times_s: tuple[float, ...], steps: tuple[int, ...]) -> tuple[list[float], list[int]]:
        """Return the seconds and the number of steps between each step and the one before it."""
        took_s = list(map(sub, times_s, (self._pace_s, *times_s)))
        return took_s, list(map(sub, steps, (self._pace_step or 0, *steps)))

    def _layout_of(self, keys: tuple[str, ...]) -> _TableLayout | None:
        """Return how a table of steps with these metrics is built, or None if they cannot be in one."""
        if keys not in self._layouts:
            if len(self._layouts) >= _MAX_SHAPES:
                self._layouts.clear()
            self._layouts[keys] = self._make_layout(keys)
        return self._layouts[keys]

    def _make_layout(self, keys: tuple[str, ...]) -> _TableLayout | None:
        if not all(type(key) is str and key.isascii() for key in keys) or not _OWN_FIELDS.isdisjoint(keys):
            return None
        rate_columns = ("sec_per_step", "samples_per_sec") if self._samples_per_step else ("sec_per_step",)
        get_values: Callable[[dict[str, Any]], tuple[Any, ...]]
        # With a single key an itemgetter returns no tuple, and without one it cannot be made.
        get_values = itemgetter(*keys) if len(keys) > 1 else lambda metrics: tuple(metrics[key] for key in keys)
        columns = ("time", "global_step", *keys, *rate_columns)
        return _TableLayout(columns, get_values, len(keys), has_loss=any(map(is_loss, keys)))

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

    def _look_up_step(self, lookup: StepLookup) -> list[Encodable]:
        """Set the step of a lookup: the requested one, or the latest. A lookup without a step is no step of its own."""
        records: list[Encodable] = []
        if lookup.requested_step is not None:
            self._step = self._resolve_step(lookup.requested_step, {}, lookup.queued_at, records)
        lookup.step = 0 if self._step is None else self._step
        return records

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

    def _handle_group(self, items: list[BufferItem], start: int, records: list[Encodable]) -> int:
        """Pass an item and those after it that have a handler to their handlers; return the next position."""
        end = start + 1
        while end < len(items) and type(items[end]) in self._handlers:
            end += 1
        records += self._handle(items[start:end], [self._latest] * (end - start))
        return end

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
