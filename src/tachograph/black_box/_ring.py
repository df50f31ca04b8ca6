"""The last steps of a run, kept in memory for the case that something happens. Bounded; numbers only, no tensors.

Two threads fill it, each its own part, so the training thread does little:

- The training thread appends events to a list: a batch, or the time when an optimizer has stepped. Shapes, types and
  the list of sample numbers exist anyway; the ring only keeps a reference to them. Every 16th step has the state of the
  random generators and counts the tokens of a batch whose mask is on the CPU. Then the events so far become entries: a
  step with the batches that were delivered since the last one. Between two steps the caches of the processor are cold,
  so that each line of code costs several times more than in a loop; sixteen steps at once share that cost.
- The writer thread keeps the step records that it writes: loss, gradient norm, learning rate, phase times.

`describe_ring` joins them by time when a dump is written: an entry gets the values of the first record after it.
"""

from __future__ import annotations

import base64
import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tachograph.records import Encodable, StepTable

__all__ = [
    "MAX_EVENTS",
    "MAX_INDICES",
    "DeliveredBatch",
    "LoggedSteps",
    "RingEntry",
    "StepRing",
    "describe_ring",
    "plain_indices",
    "steps_around",
    "tensors_in",
]

NUM_STEPS = 128
"""Steps of a dump."""

STATE_EVERY = 16
_MAX_STEPS = 1024
"""Steps in memory: a loop on a GPU makes hundreds of short steps until a fault is seen."""

MAX_INDICES = 512
"""Sample numbers that are kept of a batch."""

_MAX_SAMPLES = NUM_STEPS * MAX_INDICES
"""Sample numbers in memory: with large batches, fewer steps than `_MAX_STEPS` are kept."""

_MAX_TENSORS = 8
_MAX_BATCHES = 4
"""Batches of one step of which the ring keeps the shapes; of accumulated gradients there may be many."""

MAX_EVENTS = 64
"""Events that wait to become entries: without an optimizer that steps there are batches only."""

_MAX_FIELDS = 64
_NUM_AFTER = 16


class DeliveredBatch(NamedTuple):
    """A batch that a loader has delivered."""

    source: int
    """Identifies the pass over the data."""
    position: int
    """Its place in the pass, from 0."""
    tensors: list[tuple[Any, Any, Any, Any]]
    """Name, shape, type and weak reference of its first tensors. Instead of the reference there may be None."""
    indices: Any
    """The sample numbers, if the loader has a batch sampler."""
    num_tokens: int | None


class IndexRange(NamedTuple):
    """The sample numbers of a batch that has too many to keep."""

    first: int
    last: int
    num_samples: int


class RingEntry(NamedTuple):
    """A step of an optimizer."""

    number: int
    at_s: float
    """When it ended, on the clock of the run."""
    batches: list[DeliveredBatch]
    num_batches: int
    data_pass: int
    """Which pass over the data, from 1."""
    generators: Any
    """The state of the random generators when it ended, every now and then."""


class _Pending(NamedTuple):
    """The state of the ring before the first event of a list."""

    num_steps: int = 0
    data_pass: int = 0
    source: int = 0
    """The pass of the last batch that a step has used."""
    batches: tuple[tuple[Any, ...], ...] = ()
    """The batches since the last step."""
    num_batches: int = 0
    last_batch: tuple[Any, ...] | None = None


class StepRing:
    """The part of the training thread. Other threads may read it.

    The hooks append most events themselves, which saves the call of a Python function.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[Any, ...]] = deque()
        """Each `RingEntry` and `DeliveredBatch` as a plain tuple: to create one takes a third of the time."""
        self._num_samples: deque[tuple[int, int]] = deque()
        """Entries and sample numbers of each group."""
        self.num_steps = 0
        self.events: list[Any] = []
        """The events since the last group: the time of a step, the fields of a `DeliveredBatch` as a plain tuple, or
        the state of the generators at the next step. `add_step` takes every 16th step and the one after it, and
        `add_batch` a batch after `MAX_EVENTS`."""
        self._group = (self.events, _Pending())
        """These events, and the state before them. One attribute, so that other threads see both."""

    def add_batch(self, batch: tuple[Any, ...]) -> None:
        """Add a batch. Batches of another pass, such as a validation between two steps, replace the earlier ones."""
        if len(self.events) >= MAX_EVENTS:
            self._close_group()
        self.events.append(batch)

    def add_step(self, at_s: float, generators: Any) -> None:
        """Add an entry: an optimizer has stepped."""
        if generators is not None:
            self.events.append(generators)
        self.events.append(at_s)
        self.num_steps += 1
        if self.num_steps % STATE_EVERY == 0:
            self._close_group()

    def _close_group(self) -> None:
        """Make entries of the events so far."""
        entries, pending = self._read_group(self._group)
        self._entries.extend(entries)
        if entries:
            self._limit_memory(len(entries))
        # The entries first: another thread that reads both in between sees the same steps twice, and skips one of them.
        self.events = []
        self._group = (self.events, pending)
        self.num_steps = pending.num_steps

    def _read_group(self, group: tuple[list[Any], _Pending]) -> tuple[list[tuple[Any, ...]], _Pending]:
        """Return the entries of the events of a group, and the state after them."""
        events, (number, data_pass, source, earlier_batches, num_batches, last_batch) = group
        entries: list[tuple[Any, ...]] = []
        batches, generators = list(earlier_batches), None
        for event in list(events):
            if type(event) is float:
                number += 1
                if batches and batches[-1][0] != source:
                    source = batches[-1][0]
                    data_pass += 1
                entries.append((number, event, batches, num_batches, data_pass, generators))
                batches, num_batches, generators = [], 0, None
            elif type(event) is dict:
                generators = event
            else:
                last_batch = event
                if batches and batches[-1][0] != event[0]:
                    batches.clear()
                    num_batches = 0
                num_batches += 1
                if len(batches) < _MAX_BATCHES:
                    batches.append(event)
        return entries, _Pending(number, data_pass, source, tuple(batches), num_batches, last_batch)

    def _limit_memory(self, num_new: int) -> None:
        """Forget the oldest steps, and the sample numbers of batches that have too many."""
        entries, num_samples = self._entries, 0
        for entry in itertools.islice(reversed(entries), num_new):
            batches = entry[2]
            for position, batch in enumerate(batches):
                indices = batch[3]
                if isinstance(indices, (list, tuple)):
                    if len(indices) > MAX_INDICES:
                        batches[position] = (*batch[:3], _index_range(indices), batch[4])
                    else:
                        num_samples += len(indices)
        self._num_samples.append((num_new, num_samples))
        while len(entries) > _MAX_STEPS or (
            sum(number for _, number in self._num_samples) > _MAX_SAMPLES and len(entries) > NUM_STEPS
        ):
            for _ in range(self._num_samples.popleft()[0]):
                entries.popleft()

    @property
    def entries(self) -> list[RingEntry]:
        """The last steps, oldest first."""
        group = self._group
        entries = list(self._entries)
        last_number = entries[-1][0] if entries else 0
        entries += [entry for entry in self._read_group(group)[0] if entry[0] > last_number]
        return [
            RingEntry(number, at_s, [_delivered_batch(batch) for batch in batches], *others)
            for number, at_s, batches, *others in entries
        ]

    @property
    def last_batch(self) -> DeliveredBatch | None:
        """The batch that was delivered last."""
        batch = self._read_group(self._group)[1].last_batch
        return None if batch is None else _delivered_batch(batch)


def _delivered_batch(fields: tuple[Any, ...]) -> DeliveredBatch:
    batch = DeliveredBatch._make(fields)
    return batch if isinstance(batch.indices, (list, tuple)) else batch._replace(indices=None)


class LoggedSteps:
    """The part of the writer thread: the last step records."""

    def __init__(self) -> None:
        self._records: deque[StepTable | Mapping[str, Any]] = deque()
        self._num_rows = 0

    def add(self, records: Iterable[Encodable]) -> None:
        """Add the step records among some records."""
        for record in records:
            if isinstance(record, StepTable):
                self._append(record, record.num_rows)
            elif isinstance(record, Mapping) and record.get("event") == "step":
                self._append(record, 1)

    def _append(self, record: Any, num_rows: int) -> None:
        self._records.append(record)
        self._num_rows += num_rows
        while self._num_rows - _num_rows(self._records[0]) >= _MAX_STEPS:
            self._num_rows -= _num_rows(self._records.popleft())

    def rows(self) -> list[dict[str, Any]]:
        """Return the last steps, oldest first."""
        rows: list[dict[str, Any]] = []
        for record in list(self._records):
            if isinstance(record, StepTable):
                rows += [dict(zip(record.names, values, strict=True)) for values in zip(*record.columns, strict=True)]
            else:
                rows.append({name: value for name, value in record.items() if name != "event"})
        return [dict(itertools.islice(row.items(), _MAX_FIELDS)) for row in rows]


def _num_rows(record: Any) -> int:
    return record.num_rows if isinstance(record, StepTable) else 1


def describe_ring(
    entries: Sequence[RingEntry], rows: list[dict[str, Any]], wall_s: Callable[[float], float]
) -> list[dict[str, Any]]:
    """Return the last steps as plain values: of each the logged values, and the batches of the training thread."""
    if not entries:
        return [_numbers(row) for row in rows]
    times = [wall_s(entry.at_s) for entry in entries]
    values_by_entry: dict[int, dict[str, Any]] = {}
    steps = []
    for row in rows:
        position = bisect.bisect_right(times, row.get("time") or 0.0) - 1
        if position >= 0 and position not in values_by_entry:
            values_by_entry[position] = row
        elif position < 0 or (position == len(times) - 1 and position in values_by_entry):
            steps.append(_numbers(row))
    for position, (entry, time_s) in enumerate(zip(entries, times, strict=True)):
        step = _numbers(values_by_entry.get(position, {}))
        step |= {"time": step.get("time", time_s), "optimizer_step": entry.number, "data_pass": entry.data_pass}
        if entry.batches:
            step["batches"] = [_describe_batch(batch) for batch in entry.batches]
            step["num_batches"] = entry.num_batches
        if entry.generators is not None:
            step["generators"] = _describe_generators(entry.generators)
        steps.append(step)
    return sorted(steps, key=lambda step: float(step.get("time") or 0.0))


def steps_around(steps: list[dict[str, Any]], step: int | None) -> list[dict[str, Any]]:
    """Return 128 steps, of which most are before a step: the one of a fault."""
    position = next((index for index, row in enumerate(steps) if row.get("global_step") == step), len(steps))
    stop = min(position + _NUM_AFTER, len(steps))
    return steps[max(0, stop - NUM_STEPS) : stop]


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a step: a text that the loop logs is none of them."""
    return {name: value for name, value in row.items() if isinstance(value, (bool, int, float))}


def _describe_batch(batch: DeliveredBatch) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "position": batch.position,
        "tensors": [
            {"name": str(name), "shape": [int(size) for size in shape], "dtype": str(dtype).removeprefix("torch.")}
            for name, shape, dtype, _ in batch.tensors
        ],
    }
    if batch.num_tokens is not None:
        fields["num_tokens"] = batch.num_tokens
    if isinstance(batch.indices, IndexRange):
        first, last, fields["num_samples"] = batch.indices
        fields |= {"first_index": first, "last_index": last}
        return fields
    indices = plain_indices(batch.indices)
    if indices is not None:
        fields |= {"num_samples": len(indices), "indices": indices}
    return fields


def _index_range(indices: Sequence[Any]) -> IndexRange | None:
    ends = plain_indices((indices[0], indices[-1]))
    return None if ends is None else IndexRange(ends[0], ends[1], len(indices))


def plain_indices(indices: Any) -> list[int] | None:
    """Return the sample numbers of a batch as integers; None if they are not numbers."""
    try:
        return [int(index) for index in indices]
    except (TypeError, ValueError):
        return None


def _describe_generators(states: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, state in states.items():
        described[name] = state if isinstance(state, dict) else base64.b64encode(bytes(state.tolist())).decode()
    return described


def tensors_in(batch: Any, tensor_type: type, max_tensors: int = _MAX_TENSORS) -> list[tuple[str, Any]]:
    """Return the first tensors of a batch with their names: the keys of a dict or the positions in a list."""
    if isinstance(batch, tensor_type):
        return [("", batch)]
    tensors: list[tuple[str, Any]] = []
    items: Any = ()
    if isinstance(batch, Mapping):
        items = batch.items()
    elif isinstance(batch, (list, tuple)):
        items = enumerate(batch[: 4 * max_tensors])
    for name, value in items:
        if isinstance(value, tensor_type):
            tensors.append((str(name), value))
        elif isinstance(value, (Mapping, list, tuple)):
            tensors += [(f"{name}.{inner}".rstrip("."), item) for inner, item in tensors_in(value, tensor_type, 4)]
        if len(tensors) >= max_tensors:
            break
    return tensors[:max_tensors]
