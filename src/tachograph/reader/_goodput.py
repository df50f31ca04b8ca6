"""Goodput: which part of the time a run has taken was training that counts, and where the rest went.

Known only where iterations were marked: their windows say how the time inside training loops was spent. Training counts
if its result was kept: iterations that a later attempt had to do again are lost, and so are those after the last
checkpoint of a run that ended badly. Each moment is counted once, whatever overlaps.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tachograph._base.timeline import Timeline
from tachograph.journal._liveness import RunState
from tachograph.reader._spans import RecordedSpan
from tachograph.records import finite_or_none

__all__ = ["Goodput", "GoodputMeter"]

_TRAINING = ("forward", "backward", "optimizer", "iteration")
_BESIDE = ("data", "checkpoint", "validation", "testing")
_SPANS = {
    "checkpoint_load": "checkpoint_s",
    "checkpoint_save_sync": "checkpoint_s",
    "checkpoint_save_async": "checkpoint_s",
    "checkpoint_save_finalization": "checkpoint_s",
    "validation_loop": "validation_s",
    "testing_loop": "testing_s",
}
_MOST_WINDOWS = 20_000
_MOST_SPANS = 20_000
_ENDED_BADLY = {RunState.FAILED, RunState.CRASHED}


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
    """Training whose result was not kept, and iterations that raised."""
    down_s: float = 0.0
    """Between attempts."""
    unreported_s: float = 0.0
    """Of a loop that goes on: since its last report."""
    idle_s: float = 0.0
    """What nothing explains: between iterations, after the loop."""

    @property
    def share(self) -> float:
        """Productive time by wall time, as far as that was reported."""
        known_s = self.wall_s - self.unreported_s
        return self.productive_s / known_s if known_s > 0 else 0.0


class _Window(msgspec.Struct):
    start: float
    end: float
    step: int
    num_iterations: int
    seconds: dict[str, float]


class _Attempt(msgspec.Struct):
    start: float
    last: float = 0.0
    status: str | None = None
    first_loop: float | None = None
    first_step: int | None = None
    """Where its first loop said that it starts."""
    kept_steps: int = 0
    """Steps before this one were in a checkpoint when it ended."""
    windows: list[_Window] = []
    spans: list[tuple[float, float, str]] = []
    open_loops: set[str] = set()
    reported_s: float = 0.0
    """Seconds of iterations that were reported."""
    saved: _Window | None = None
    """What a checkpoint kept since the last report."""


class GoodputMeter:
    """Takes the records of a journal, in order, and adds up where the time went."""

    def __init__(self) -> None:
        self._attempts: list[_Attempt] = []
        self._begins = True
        self._kept_steps = 0
        self.phase_s: dict[str, float] = {}
        """How the time of training loops was spent, by phase, in all attempts."""

    def take(self, record: dict[str, Any]) -> None:
        """Take any record but a step without a window."""
        event: str = record["event"]
        self._begins = self._begins or event == "start"
        time_s = finite_or_none(record.get("time"))
        if time_s is None:
            return
        if self._begins:
            self._begins = False
            self._attempts.append(_Attempt(time_s, time_s, windows=[], spans=[], open_loops=set()))
        attempt = self._attempts[-1]
        attempt.last = max(attempt.last, time_s)
        if event == "end":
            attempt.status = str(record.get("status"))
        elif event == "step" and "window/sec" in record:
            self._take_window(attempt, record, time_s)
        elif event == "span_start":
            _take_start(attempt, record, time_s)
        elif event == "event" and record.get("name") == "save_checkpoint_success":
            self._take_save(attempt, record, time_s)
        elif event == "event" and record.get("name") == "training_metrics_update":
            attempt.reported_s = finite_or_none(record.get("total_iteration_time_sec")) or 0.0
        elif event == "checkpoint" and type(record.get("global_step")) is int:
            self._kept_steps = max(self._kept_steps, record["global_step"] + 1)
        attempt.kept_steps = self._kept_steps

    def see(self, time_s: float) -> None:
        """Take it that the attempt was alive at a time."""
        if self._attempts and math.isfinite(time_s):
            self._attempts[-1].last = max(self._attempts[-1].last, time_s)

    def take_span(self, span: RecordedSpan) -> None:
        """Take a span that has ended, or in which the process died."""
        if not self._attempts:
            return
        attempt = self._attempts[-1]
        if span.status != "died":
            attempt.open_loops.discard(span.id)
        if span.name in _SPANS and len(attempt.spans) < _MOST_SPANS:
            attempt.spans.append((span.start, span.start + (span.duration_s or 0.0), _SPANS[span.name]))

    def _take_save(self, attempt: _Attempt, record: dict[str, Any], time_s: float) -> None:
        kept = record.get("productive_train_iterations")
        if type(kept) is not int:
            return
        self._kept_steps = max(self._kept_steps, kept)
        told = attempt.windows[-1] if attempt.windows else None
        num_untold = kept - (told.step + 1 if told else attempt.first_step or 0)
        untold_s = (finite_or_none(record.get("productive_train_iterations_sec")) or 0.0) - attempt.reported_s
        begin = told.end if told else attempt.first_loop
        if num_untold > 0 and untold_s > 0 and begin is not None:
            attempt.saved = _Window(begin, time_s, kept - 1, num_untold, {"iteration": min(untold_s, time_s - begin)})

    def _take_window(self, attempt: _Attempt, record: dict[str, Any], time_s: float) -> None:
        sec, step, count = (
            finite_or_none(record["window/sec"]),
            record.get("global_step"),
            record.get("window/iterations"),
        )
        if sec is None or sec < 0 or type(step) is not int or type(count) is not int:
            return
        shares = {
            phase: finite_or_none(record.get(f"window/share_{phase}")) for phase in (*_TRAINING, *_BESIDE, "failed")
        }
        seconds = {phase: sec * min(1.0, max(0.0, share)) for phase, share in shares.items() if share is not None}
        for phase, spent_s in seconds.items():
            self.phase_s[phase] = self.phase_s.get(phase, 0.0) + spent_s
        if attempt.first_loop is None:
            attempt.first_loop = time_s - sec
        attempt.saved = None
        attempt.windows.append(_Window(time_s - sec, time_s, step, max(0, count), seconds))
        if len(attempt.windows) > _MOST_WINDOWS:
            attempt.windows = _halved(attempt.windows)

    def goodput(self, state: RunState, now_s: float | None = None) -> Goodput | None:
        """Return where the time went so far, or None if no iteration was marked."""
        attempts = self._attempts
        if not any(attempt.windows or attempt.saved for attempt in attempts):
            return None
        result = Goodput()
        for index, attempt in enumerate(attempts):
            is_running = index == len(attempts) - 1 and state is RunState.RUNNING
            end = max(attempt.last, now_s) if is_running and now_s is not None else attempt.last
            result.wall_s += max(0.0, end - attempt.start)
            if index < len(attempts) - 1:
                down_s = max(0.0, attempts[index + 1].start - end)
                result.down_s += down_s
                result.wall_s += down_s
            kept_until = self._kept_until(index, state)
            _add_attempt(result, attempt, end, kept_until, is_running)
        named = sum(getattr(result, field) for field in Goodput.__struct_fields__ if field not in {"wall_s", "idle_s"})
        result.idle_s = max(0.0, result.wall_s - named)
        return result

    def _kept_until(self, index: int, state: RunState) -> int | None:
        """Return the first step of an attempt whose result was not kept, or None if all was."""
        attempt = self._attempts[index]
        later = [other.first_step for other in self._attempts[index + 1 :] if other.first_step is not None]
        if later:
            return min(later)
        ended_badly = state in _ENDED_BADLY if index == len(self._attempts) - 1 else attempt.status != "finished"
        return attempt.kept_steps if ended_badly else None


def _take_start(attempt: _Attempt, record: dict[str, Any], time_s: float) -> None:
    if record.get("name") == "application":
        attempt.start = min(attempt.start, time_s)  # a launcher may tell when it really began
    if record.get("name") != "training_loop":
        return
    attempt.open_loops.add(str(record.get("span_id")))
    if attempt.first_loop is None:
        attempt.first_loop = time_s
    attributes = record.get("attributes")
    step = attributes.get("train_iterations_start") if isinstance(attributes, dict) else None
    if attempt.first_step is None and type(step) is int:
        attempt.first_step = step


def _add_attempt(result: Goodput, attempt: _Attempt, end: float, kept_until: int | None, is_running: bool) -> None:
    line = Timeline(attempt.start, end)
    for window in attempt.windows:
        length_s = window.end - window.start
        share = line.claim(window.start, window.end) / length_s if length_s > 0 else 0.0
        training_s = share * sum(window.seconds.get(phase, 0.0) for phase in _TRAINING)
        kept = _kept(window, kept_until)
        result.productive_s += kept * training_s
        result.lost_s += (1.0 - kept) * training_s + share * window.seconds.get("failed", 0.0)
        for phase in _BESIDE:
            field = f"{phase}_s"
            setattr(result, field, getattr(result, field) + share * window.seconds.get(phase, 0.0))
    result.start_up_s += line.claim(attempt.start, attempt.first_loop if attempt.first_loop is not None else end)
    for start, stop, field in sorted(attempt.spans, key=lambda span: span[1] - span[0]):  # the inner ones first
        setattr(result, field, getattr(result, field) + line.claim(start, stop))
    if attempt.saved is not None:  # after the spans: what they leave of the time since the last report
        free_s = line.claim(attempt.saved.start, attempt.saved.end)
        training_s, kept = min(free_s, attempt.saved.seconds["iteration"]), _kept(attempt.saved, kept_until)
        result.productive_s += kept * training_s
        result.lost_s += (1.0 - kept) * training_s
    is_at_work = bool(attempt.open_loops) and (is_running or attempt.status != "finished")
    if is_at_work and attempt.first_loop is not None:
        since = attempt.windows[-1].end if attempt.windows else attempt.first_loop
        if is_running:
            result.unreported_s += line.claim(since, end)
        elif attempt.status is None:
            result.lost_s += line.claim(since, end)  # it died at work


def _kept(window: _Window, kept_until: int | None) -> float:
    """Return the share of a window's iterations whose result was kept."""
    if kept_until is None or window.num_iterations == 0:
        return 1.0
    first = window.step - window.num_iterations + 1
    return min(1.0, max(0.0, (kept_until - first) / window.num_iterations))


def _halved(windows: list[_Window]) -> list[_Window]:
    """Join neighbours, so that a journal of any length can be read."""
    joined = []
    for first, second in zip(windows[::2], windows[1::2], strict=False):
        phases = {*first.seconds, *second.seconds}
        seconds = {phase: first.seconds.get(phase, 0.0) + second.seconds.get(phase, 0.0) for phase in phases}
        num_iterations = first.num_iterations + second.num_iterations
        joined.append(_Window(first.start, second.end, second.step, num_iterations, seconds))
    return joined + (windows[-1:] if len(windows) % 2 else [])
