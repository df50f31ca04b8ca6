"""Entries in, records out: no files, no threads, no clock but the anchor. Runs in the writer's thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tachograph._base.clock import WallAnchor
from tachograph.recorder._buffer_items import LOSS_NAMES, BufferItem, DeferredRecord, PendingRecord, StepItem
from tachograph.recorder._window import ARRAY_CAME_LATE, StepWindow
from tachograph.records import (
    OMIT,
    RESERVED_FIELDS,
    StepTable,
    ValueProblem,
    is_array,
    is_frozen,
    mask_mapping,
    to_plain,
)

__all__ = ["RecordBuilder"]

Encodable = StepTable | dict[str, Any]

_LOSSES = frozenset(LOSS_NAMES)
_MOST_PROBLEMS = 200
_MOST_STEPS = 1 << 62
_OWN_FIELDS = RESERVED_FIELDS | {"global_step", "sec_per_step", "samples_per_sec", "nan_inf_detected"}


class RecordBuilder:
    """Turns what was logged into records, in order."""

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
        self._told: set[str] = set()
        self._shapes: dict[tuple[str, ...], tuple[str, ...] | None] = {}
        self._latest: Mapping[str, Any] | None = None  # those that say the loss
        self.attach: dict[str, Any] = {}
        """Fields for the next step record, such as the memory in use."""
        self.saw_array = False
        """Whether an array came in that its owner can still change."""

    def process(self, entries: Iterable[BufferItem]) -> list[Encodable]:
        """Return the records of some entries. Nothing is kept back but an unfinished window."""
        pieces: list[Encodable] = []
        rest = iter(entries)
        entry = next(rest, None)
        while entry is not None:
            if type(entry) is tuple and self._window is None:
                entry = self._steps(entry, rest, pieces)
                continue
            if type(entry) is tuple and self._window is not None:
                pieces += self._windowed(self._window, *entry)
            elif type(entry) is PendingRecord:
                pieces += self._noted(entry)
            elif isinstance(entry, DeferredRecord) and entry.goes_beside:
                entry = self._several(entry, rest, pieces)
                continue
            elif isinstance(entry, DeferredRecord):
                pieces += self._hosted(entry.notes(self._latest))
            entry = next(rest, None)
        if self._window is not None and self._window.is_due:
            pieces += self._window_record()
        return pieces

    def finish(self) -> list[Encodable]:
        """Return what an unfinished window holds."""
        return self._window_record()

    def _problem(self, problem: ValueProblem, steady_s: float) -> list[Encodable]:
        """Return a `telemetry_error` record for a problem, the first time it is met."""
        if problem.where in self._told or len(self._told) > _MOST_PROBLEMS:
            return []
        self._told.add(problem.where)
        reason = problem.reason
        if len(self._told) > _MOST_PROBLEMS:
            reason += "; problems with further fields are not listed"
        record = {"event": "telemetry_error", "time": self._anchor.wall_s(steady_s), "kind": "value_not_stored"}
        return [{**record, "field": problem.where, "reason": reason[:2000]}]

    # Steps, the fast way: a table of rows with the same names ------------------------------------------------------

    def _steps(self, first: StepItem, rest: Iterator[BufferItem], pieces: list[Encodable]) -> BufferItem | None:
        """Put a step and those after it that have the same names into a table; return the entry that ends it.

        This loop is most of what the writer does per step: everything in it is a local.
        """
        steady_s, step, metrics = first
        keys = tuple(metrics)
        names = self._names_of(keys)
        last_step, last_s = self._pace_step, self._pace_s
        if names is None or last_step is None or self.attach or not _follows(step, last_step, steady_s, last_s):
            pieces += self._records(steady_s, step, metrics)
            return next(rest, None)
        offset_s, samples = self._anchor.offset_s, self._samples_per_step
        values: list[Any] = []
        append = values.append
        entry: BufferItem | None = first
        beside: list[DeferredRecord] = []
        latest: list[Mapping[str, Any] | None] = []
        says_loss = not _LOSSES.isdisjoint(keys)
        while True:
            num_steps, took_s = step - last_step, steady_s - last_s
            append(offset_s + steady_s)
            append(step)
            values += metrics.values()
            append(took_s / num_steps)
            if samples:
                append(samples * num_steps / took_s)
            last_step, last_s = step, steady_s
            entry = next(rest, None)
            while isinstance(entry, DeferredRecord) and entry.goes_beside:
                beside.append(entry)
                latest.append(metrics if says_loss else self._latest)
                entry = next(rest, None)
            if type(entry) is not tuple:
                break
            steady_s, step, metrics = entry
            if tuple(metrics) != keys or not _follows(step, last_step, steady_s, last_s):
                break
        self._step = self._pace_step = last_step
        self._pace_s = last_s
        self._counts_steps = False
        self._finish_table(names, values, pieces)
        if beside:
            pieces += self._hosted(beside[0].notes_of_all(beside, latest))
        if says_loss:
            self._latest = metrics
        return entry

    def _names_of(self, keys: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the names of a table's columns, or None if records with these keys cannot be in one."""
        if keys not in self._shapes:
            if len(self._shapes) >= 256:
                self._shapes.clear()
            self._shapes[keys] = self._shape(keys)
        return self._shapes[keys]

    def _shape(self, keys: tuple[str, ...]) -> tuple[str, ...] | None:
        if not all(type(key) is str and key.isascii() for key in keys) or not _OWN_FIELDS.isdisjoint(keys):
            return None
        own = ("sec_per_step", "samples_per_sec") if self._samples_per_step else ("sec_per_step",)
        return ("time", "global_step", *keys, *own)

    def _finish_table(self, names: tuple[str, ...], values: list[Any], pieces: list[Encodable]) -> None:
        width = len(names)
        table = StepTable.encode(names, values, len(values) // width)
        if table is not None:
            pieces.append(table)
            return
        for start in range(0, len(values), width):
            row = dict(zip(names, values[start : start + width], strict=True))
            pieces += self._finished({"event": "step", **row}, self._pace_s)

    # Steps, one by one ---------------------------------------------------------------------------------------------

    def _records(self, steady_s: float, step: Any, metrics: dict[str, Any]) -> list[Encodable]:
        pieces: list[Encodable] = []
        if not _LOSSES.isdisjoint(metrics):
            self._latest = metrics
        self._step = number = self._number(step, metrics, steady_s, pieces)
        record: dict[str, Any] = {"event": "step", "time": self._anchor.wall_s(steady_s), "global_step": number}
        record.update((_own_name(name), value) for name, value in metrics.items())
        record["global_step"] = number
        self._add_pace(record, number, steady_s)
        return pieces + self._finished(record, steady_s)

    def _finished(self, record: dict[str, Any], steady_s: float) -> list[Encodable]:
        """Make the values plain, mark what is not finite, attach what waits."""
        problems: list[ValueProblem] = []
        record = self._plain(record, problems)
        if self.attach:
            for name, value in self.attach.items():
                record.setdefault(name, value)
            self.attach = {}
        record.setdefault("nan_inf_detected", any(map(_is_not_finite, record.values())))
        pieces: list[Encodable] = [record]
        for problem in problems:
            pieces += self._problem(problem, steady_s)
        return pieces

    def _plain(self, record: dict[str, Any], problems: list[ValueProblem]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in record.items():
            if not name.isascii():
                name = name.encode("utf-8", "backslashreplace").decode()  # noqa: PLW2901 - lone surrogates are not JSON
            if is_frozen(value):
                result[name] = value
                continue
            if is_array(value):
                # A numpy array that came the fast way: its owner may have changed it since. Missing beats wrong.
                self.saw_array = True
                problems.append(ValueProblem(name, ARRAY_CAME_LATE))
                continue
            converted = to_plain(value, name, problems)
            if converted is not OMIT:
                result[name] = converted
        return result if all(map(is_frozen, result.values())) else mask_mapping(result)

    def _number(self, step: Any, metrics: dict[str, Any], steady_s: float, pieces: list[Encodable]) -> int:
        """Settle the step's number; see `Run.log` for the rule."""
        given = metrics.get("global_step") if step is None else step
        if given is not None:
            try:
                number = given.item() if hasattr(given, "item") else given
                whole = int(number)
                if (whole != number and not isinstance(number, str)) or not -_MOST_STEPS < whole < _MOST_STEPS:
                    raise ValueError(number)
                self._counts_steps = False
                return whole
            except Exception:  # noqa: BLE001 - whatever was given as a step
                reason = f"step={given!r:.80} is not a step; the record got the one that was due instead"
                pieces += self._problem(ValueProblem("global_step", reason), steady_s)
        if self._step is None:
            return 0
        return self._step + 1 if self._counts_steps else self._step

    def _add_pace(self, record: dict[str, Any], step: int, steady_s: float) -> None:
        """Add the time per step since the record before; after a first step or a step back there is none."""
        if self._pace_step is not None and step > self._pace_step and steady_s > self._pace_s:
            sec_per_step = (steady_s - self._pace_s) / (step - self._pace_step)
            record.setdefault("sec_per_step", sec_per_step)
            if self._samples_per_step:
                record.setdefault("samples_per_sec", self._samples_per_step / sec_per_step)
        if step != self._pace_step:
            self._pace_step, self._pace_s = step, steady_s

    # Windows of steps ----------------------------------------------------------------------------------------------

    def _windowed(self, window: StepWindow, steady_s: float, step: Any, metrics: dict[str, Any]) -> list[Encodable]:
        pieces: list[Encodable] = []
        if not _LOSSES.isdisjoint(metrics):
            self._latest = metrics
        self._step = number = self._number(step, metrics, steady_s, pieces)
        if window.must_close_before(number):
            pieces += self._window_record()
        window.add(number, steady_s, metrics)
        return pieces

    def _window_record(self) -> list[Encodable]:
        window = self._window
        if window is None or window.num_logs == 0:
            return []
        step, steady_s = window.last_step, window.last_s
        record: dict[str, Any] = {"event": "step", "time": self._anchor.wall_s(steady_s), "global_step": step}
        record.update((_own_name(name), value) for name, value in window.summary().items())
        record["global_step"] = step
        self._add_pace(record, step, steady_s)
        if window.num_not_finite:
            record["nan_inf_detected"] = True
        self.saw_array = self.saw_array or window.saw_array
        problems = window.problems
        window.clear()
        pieces = self._finished(record, steady_s)
        for problem in problems:
            pieces += self._problem(problem, steady_s)
        return pieces

    # Everything else -----------------------------------------------------------------------------------------------

    def _hosted(self, notes: Iterable[PendingRecord]) -> list[Encodable]:
        return [piece for note in notes for piece in self._noted(note)]

    def _several(self, first: DeferredRecord, rest: Iterator[BufferItem], pieces: list[Encodable]) -> BufferItem | None:
        """Handle guests that come one after the other, all at once; return the entry that ends them."""
        guests = [first]
        entry = next(rest, None)
        while isinstance(entry, DeferredRecord) and entry.goes_beside:
            guests.append(entry)
            entry = next(rest, None)
        pieces += self._hosted(first.notes_of_all(guests, itertools.repeat(self._latest)))
        return entry

    def _noted(self, note: PendingRecord) -> list[Encodable]:
        pieces: list[Encodable] = []
        if note.event == "control_change" and note.fields.get("name") == "log_every":
            pieces += self._window_record()
            log_every = int(note.fields["new"])
            self._window = StepWindow(log_every) if log_every > 1 else None
        elif note.event == "end":
            pieces += self._window_record()
        problems: list[ValueProblem] = []
        record: dict[str, Any] = {"event": note.event, "time": self._anchor.wall_s(note.steady_s)}
        if note.event == "profile" and self._step is not None:
            record["global_step"] = self._step  # which those who collect beside the loop do not know
        record.update((_own_name(name), value) for name, value in note.fields.items())
        pieces.append(self._plain(record, problems))
        for problem in problems:
            pieces += self._problem(problem, note.steady_s)
        return pieces


def _follows(step: Any, last_step: int, steady_s: float, last_s: float) -> bool:
    """Tell whether a step comes after another, so that the time between them is a pace."""
    return type(step) is int and 0 < step - last_step < _MOST_STEPS and steady_s > last_s


def _own_name(name: Any) -> str:
    text = name if isinstance(name, str) else str(name)
    return f"{text}_" if text in RESERVED_FIELDS else text


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_is_not_finite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)
