"""Goodput: which part of the time a run has taken was training that counts, and where the rest went.

Known only where iterations were marked: their windows say how the time inside training loops was spent. Training counts
if its result was kept: iterations that a later attempt had to do again are lost, and so are those after the last
checkpoint of a run that ended badly.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.journal._liveness import RunState
from tachograph.journal._spans import Span
from tachograph.records import is_number

__all__ = ["Goodput", "GoodputMeter"]

_TRAINING = ("forward", "backward", "optimizer", "iteration")
_MOST_WINDOWS = 20_000
_OUTSIDE = {
    "checkpoint_load": "checkpoint_s",
    "checkpoint_save_sync": "checkpoint_s",
    "checkpoint_save_async": "checkpoint_s",
    "checkpoint_save_finalization": "checkpoint_s",
    "validation_loop": "validation_s",
    "testing_loop": "testing_s",
}


class Goodput(msgspec.Struct, kw_only=True):
    """Where the time of a run went, in seconds that add up to `wall_s`."""

    wall_s: float = 0.0
    productive_s: float = 0.0
    start_up_s: float = 0.0
    """Until the first training loop of each attempt."""
    data_s: float = 0.0
    """Waiting for data."""
    checkpoint_s: float = 0.0
    validation_s: float = 0.0
    testing_s: float = 0.0
    lost_s: float = 0.0
    """Training whose result was not kept."""
    down_s: float = 0.0
    """Between attempts."""
    idle_s: float = 0.0
    """What nothing explains: between iterations, after the loop, since the last report."""

    @property
    def share(self) -> float:
        """Productive time by wall time."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else 0.0


class _Window(msgspec.Struct):
    step: int
    num_iterations: int
    training_s: float


class _Attempt(msgspec.Struct):
    start: float
    last: float = 0.0
    is_ended: bool = False
    first_loop: float | None = None
    last_window: float | None = None
    first_step: int | None = None
    windows: list[_Window] = []
    spent: dict[str, float] = {}


class GoodputMeter:
    """Takes the records of a journal, in order, and adds up where the time went."""

    def __init__(self) -> None:
        self._attempts: list[_Attempt] = []
        self._kept_steps = 0
        """Steps before this one are in a checkpoint."""
        self._in_loop: set[str] = set()
        self.phase_s: dict[str, float] = {}
        """How the time of training loops was spent, by phase, in all attempts."""

    def take(self, record: dict[str, Any]) -> None:
        """Take any record but a step without a window."""
        event: str = record["event"]
        time_s: Any = record.get("time")
        if not is_number(time_s):
            return
        if event == "start" or not self._attempts:
            self._attempts.append(_Attempt(start=float(time_s), windows=[], spent={}))
            self._in_loop = set()
        attempt = self._attempts[-1]
        attempt.last = max(attempt.last, float(time_s))
        if event == "end":
            attempt.is_ended = True
        elif event == "step" and "window/sec" in record:
            self._take_window(attempt, record)
        elif event == "span_start":
            self._take_start(attempt, record)
        elif event == "event" and record.get("name") == "save_checkpoint_success":
            kept = record.get("productive_train_iterations")
            self._kept_steps = max(self._kept_steps, kept if type(kept) is int else 0)
        elif event == "checkpoint" and type(record.get("global_step")) is int:
            self._kept_steps = max(self._kept_steps, record["global_step"] + 1)

    def see(self, time_s: float) -> None:
        """Take it that the attempt was alive at a time."""
        if self._attempts:
            self._attempts[-1].last = max(self._attempts[-1].last, time_s)

    def take_span(self, span: Span) -> None:
        """Take a span that has ended. Those inside training loops are in the windows, those before are start-up."""
        is_in_loop = span.parent_id in self._in_loop
        self._in_loop.discard(span.id)
        field = _OUTSIDE.get(span.name)
        if field is None or is_in_loop or span.attempt >= len(self._attempts):
            return
        attempt = self._attempts[span.attempt]
        if attempt.first_loop is not None:
            attempt.spent[field] = attempt.spent.get(field, 0.0) + (span.duration_s or 0.0)

    def _take_start(self, attempt: _Attempt, record: dict[str, Any]) -> None:
        is_loop = record.get("name") == "training_loop"
        if is_loop or record.get("parent_id") in self._in_loop:
            self._in_loop.add(str(record.get("span_id")))
        if not is_loop:
            return
        if attempt.first_loop is None:
            attempt.first_loop = float(record["time"])
        attributes = record.get("attributes")
        step = attributes.get("train_iterations_start") if isinstance(attributes, dict) else None
        if attempt.first_step is None and type(step) is int:
            attempt.first_step = step

    def _take_window(self, attempt: _Attempt, record: dict[str, Any]) -> None:
        sec, step, count = record["window/sec"], record.get("global_step"), record.get("window/iterations")
        if not is_number(sec) or type(step) is not int or type(count) is not int:
            return
        if attempt.first_loop is None:
            attempt.first_loop = float(record["time"]) - sec
        attempt.last_window = float(record["time"])
        seconds = {
            phase: sec * record[f"window/share_{phase}"]
            for phase in (*_TRAINING, "data", "checkpoint", "validation")
            if is_number(record.get(f"window/share_{phase}"))
        }
        for phase, spent_s in seconds.items():
            self.phase_s[phase] = self.phase_s.get(phase, 0.0) + spent_s
        training_s = sum(seconds.get(phase, 0.0) for phase in _TRAINING)
        attempt.windows.append(_Window(step, count, training_s))
        if len(attempt.windows) > _MOST_WINDOWS:
            attempt.windows = [
                _joined(*pair) for pair in zip(attempt.windows[::2], attempt.windows[1::2], strict=False)
            ]
        if attempt.first_step is None:
            attempt.first_step = step - count + 1
        for phase in ("data", "checkpoint", "validation"):
            attempt.spent[f"{phase}_s"] = attempt.spent.get(f"{phase}_s", 0.0) + seconds.get(phase, 0.0)

    def goodput(self, state: RunState, now_s: float | None = None) -> Goodput | None:
        """Return where the time went so far, or None if no iteration was marked."""
        attempts = self._attempts
        if not any(attempt.windows for attempt in attempts):
            return None
        result = Goodput()
        for index, attempt in enumerate(attempts):
            is_last = index == len(attempts) - 1
            end = max(attempt.last, now_s) if is_last and state is RunState.RUNNING and now_s else attempt.last
            result.wall_s += max(0.0, end - attempt.start)
            if not is_last:
                down_s = max(0.0, attempts[index + 1].start - end)
                result.down_s += down_s
                result.wall_s += down_s
            result.start_up_s += max(0.0, (attempt.first_loop or end) - attempt.start)
            for field in ("data_s", "checkpoint_s", "validation_s", "testing_s"):
                setattr(result, field, getattr(result, field) + attempt.spent.get(field, 0.0))
            self._add_training(result, index, state)
            if not attempt.is_ended and not (is_last and state is RunState.RUNNING) and attempt.last_window is not None:
                result.lost_s += max(0.0, attempt.last - attempt.last_window)  # it died at work
        named = sum(getattr(result, field) for field in Goodput.__struct_fields__ if field not in {"wall_s", "idle_s"})
        result.idle_s = max(0.0, result.wall_s - named)
        return result

    def _add_training(self, result: Goodput, index: int, state: RunState) -> None:
        later = [attempt.first_step for attempt in self._attempts[index + 1 :] if attempt.first_step is not None]
        kept_until = min(later) if later else None
        if kept_until is None and (index < len(self._attempts) - 1 or state in _ENDED_BADLY):
            kept_until = self._kept_steps
        for window in self._attempts[index].windows:
            kept = 1.0
            if kept_until is not None and window.num_iterations > 0:
                first = window.step - window.num_iterations + 1
                kept = min(1.0, max(0.0, (kept_until - first) / window.num_iterations))
            result.productive_s += kept * window.training_s
            result.lost_s += (1.0 - kept) * window.training_s


def _joined(first: _Window, second: _Window) -> _Window:
    num_iterations = first.num_iterations + second.num_iterations
    return _Window(second.step, num_iterations, first.training_s + second.training_s)


_ENDED_BADLY = {RunState.FAILED, RunState.CRASHED}
