"""Compute goodput: the share of a run's wall time spent on training whose result was kept.

Goodput is known only if iterations were marked, because window records state how the time inside training loops was
spent. For each attempt, `_add_attempt` assigns the time in this order: hangs that a rule reported, windows by phase,
startup before the first loop, spans of checkpoints and evaluation (inner ones first), training since the last window
that a checkpoint reported, and finally the unreported part of an open loop. Each claims its interval on a `Timeline`,
which returns only the time not claimed before, so overlapping spans never count twice and the parts add up to the wall
time. The rest is idle.

Training is productive if its result was kept. Iterations are lost if a later attempt repeated them, or if they came
after the last checkpoint of a run that failed or crashed. A window that straddles this limit is split by iterations.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tachograph._base.timeline import Timeline
from tachograph.journal import RunState
from tachograph.reader._spans import RecordedSpan
from tachograph.records import STALL_RULES, finite_or_none

__all__ = ["Goodput", "GoodputMeter"]

_TRAINING_PHASES = ("forward", "backward", "optimizer", "iteration")
_OTHER_PHASES = ("data", "checkpoint", "validation", "testing")
_FIELD_OF_SPAN = {
    "checkpoint_load": "checkpoint_s",
    "checkpoint_save_sync": "checkpoint_s",
    "checkpoint_save_async": "checkpoint_s",
    "checkpoint_save_finalization": "checkpoint_s",
    "validation_loop": "validation_s",
    "testing_loop": "testing_s",
}
_MIN_WALL_S = 60.0
"""In a shorter run, most of the time is startup, whatever the training does."""
_MAX_WINDOWS = 20_000
_MAX_SPANS = 20_000
_UNSUCCESSFUL_STATES = {RunState.FAILED, RunState.CRASHED, RunState.INTERRUPTED}


class Goodput(msgspec.Struct, kw_only=True):
    """The wall time of a run by use, in seconds that add up to `wall_s`."""

    wall_s: float = 0.0
    productive_s: float = 0.0
    start_up_s: float = 0.0
    """Before the first training loop of each attempt."""
    data_s: float = 0.0
    """Waiting for data."""
    checkpoint_s: float = 0.0
    validation_s: float = 0.0
    testing_s: float = 0.0
    stalled_s: float = 0.0
    """The run hung, or a rank of its job was missing."""
    lost_s: float = 0.0
    """Training whose result was not kept, and iterations that raised an exception."""
    down_s: float = 0.0
    """Between attempts."""
    unreported_s: float = 0.0
    """In a running loop, since its last window record."""
    idle_s: float = 0.0
    """Not explained by anything else, such as time between iterations or after the loop."""

    @property
    def share(self) -> float:
        """Productive time divided by the reported wall time."""
        known_s = self.wall_s - self.unreported_s
        return self.productive_s / known_s if known_s > 0 else 0.0

    @property
    def is_meaningful(self) -> bool:
        """Whether the run is long enough for its share to say something about the training."""
        return self.wall_s >= _MIN_WALL_S


class _Window(msgspec.Struct):
    start: float
    end: float
    step: int
    num_iterations: int
    seconds: dict[str, float]


class _AttemptTimes(msgspec.Struct):
    start: float
    recorded: float
    """The time of its first record; `start` may be earlier."""
    last: float = 0.0
    status: str | None = None
    first_loop: float | None = None
    first_step: int | None = None
    """The first iteration of its first loop."""
    kept_steps: int = 0
    """When it ended, a checkpoint contained the steps before this one."""
    windows: list[_Window] = []
    spans: list[tuple[float, float, str]] = []
    open_loops: set[str] = set()
    stalls: list[tuple[float, float]] = []
    open_stalls: dict[str, float] = {}
    """Since when the run has hung, by alert."""
    reported_s: float = 0.0
    """Seconds of iterations in the latest `training_metrics_update`."""
    unreported_save: _Window | None = None
    """Training saved in a checkpoint after the last window record."""

    def set_clock(self, jump_s: float) -> None:
        self.start += jump_s
        self.recorded += jump_s
        self.last += jump_s
        if self.first_loop is not None:
            self.first_loop += jump_s
        self.spans = [(start + jump_s, stop + jump_s, field) for start, stop, field in self.spans]
        self.stalls = [(start + jump_s, stop + jump_s) for start, stop in self.stalls]
        self.open_stalls = {alert: since + jump_s for alert, since in self.open_stalls.items()}
        for window in [*self.windows, *([self.unreported_save] if self.unreported_save else [])]:
            window.start += jump_s
            window.end += jump_s


class GoodputMeter:
    """Adds up the time of a run by use, from records added in order."""

    def __init__(self) -> None:
        self._attempts: list[_AttemptTimes] = []
        self._starts_attempt = True
        self._kept_steps = 0
        self.phase_s: dict[str, float] = {}
        """Seconds of training loops by phase, over all attempts."""

    def add(self, record: dict[str, Any]) -> None:
        """Add a record of any kind; steps without a window may be skipped."""
        event: str = record["event"]
        # A `start` without a valid time does not open an attempt yet; the next record with a time does.
        self._starts_attempt = self._starts_attempt or event == "start"
        time_s = finite_or_none(record.get("time"))
        if time_s is None:
            return
        if self._starts_attempt:
            self._starts_attempt = False
            self._attempts.append(_AttemptTimes(time_s, time_s, time_s))
        attempt = self._attempts[-1]
        attempt.last = max(attempt.last, time_s)
        if event == "end":
            attempt.status = str(record.get("status"))
        elif event == "step" and "window/sec" in record:
            self._add_window(attempt, record, time_s)
        elif event == "span_start":
            _add_span_start(attempt, record, time_s)
        elif event == "alert" and record.get("rule") in STALL_RULES:
            _add_stall(attempt, record, time_s)
        elif event == "event" and record.get("name") == "save_checkpoint_success":
            self._add_checkpoint_save(attempt, record, time_s)
        elif event == "event" and record.get("name") == "training_metrics_update":
            attempt.reported_s = finite_or_none(record.get("total_iteration_time_sec")) or 0.0
        elif event == "checkpoint" and type(record.get("global_step")) is int:
            self._kept_steps = max(self._kept_steps, record["global_step"] + 1)
        # Kept per attempt: a checkpoint of a later attempt does not rescue the steps that this one lost.
        attempt.kept_steps = self._kept_steps

    def set_clock(self, jump_s: float) -> None:
        """Shift all times, because the wall clock was set."""
        for attempt in self._attempts:
            attempt.set_clock(jump_s)

    @property
    def lead_s(self) -> float:
        """Seconds from the start of the program, if the `application` span states it, to the first record."""
        return self._attempts[0].recorded - self._attempts[0].start if self._attempts else 0.0

    def extend_to(self, time_s: float) -> None:
        """Record that the current attempt was still running at a time."""
        if self._attempts and math.isfinite(time_s):
            self._attempts[-1].last = max(self._attempts[-1].last, time_s)

    def add_span(self, span: RecordedSpan) -> None:
        """Add a span that has ended or in which the process died."""
        if not self._attempts:
            return
        attempt = self._attempts[-1]
        if span.status != "died":  # a loop that the process died in stays open: its unreported time is lost
            attempt.open_loops.discard(span.id)
        if span.name in _FIELD_OF_SPAN and len(attempt.spans) < _MAX_SPANS:
            attempt.spans.append((span.start, span.start + (span.duration_s or 0.0), _FIELD_OF_SPAN[span.name]))

    def _add_checkpoint_save(self, attempt: _AttemptTimes, record: dict[str, Any], time_s: float) -> None:
        num_saved_iterations = record.get("productive_train_iterations")
        if type(num_saved_iterations) is not int:
            return
        self._kept_steps = max(self._kept_steps, num_saved_iterations)
        # Windows are reported every `log_every` iterations, so a save may cover iterations without a window yet. If the
        # process dies before the next window, this is the only report of that training.
        last_window = attempt.windows[-1] if attempt.windows else None
        num_unreported = num_saved_iterations - (last_window.step + 1 if last_window else attempt.first_step or 0)
        unreported_s = (finite_or_none(record.get("productive_train_iterations_sec")) or 0.0) - attempt.reported_s
        begin = last_window.end if last_window else attempt.first_loop
        if num_unreported > 0 and unreported_s > 0 and begin is not None:
            seconds = {"iteration": min(unreported_s, time_s - begin)}
            attempt.unreported_save = _Window(begin, time_s, num_saved_iterations - 1, num_unreported, seconds)

    def _add_window(self, attempt: _AttemptTimes, record: dict[str, Any], time_s: float) -> None:
        sec, step, count = (
            finite_or_none(record["window/sec"]),
            record.get("global_step"),
            record.get("window/iterations"),
        )
        if sec is None or sec < 0 or type(step) is not int or type(count) is not int:
            return
        shares = {
            phase: finite_or_none(record.get(f"window/share_{phase}"))
            for phase in (*_TRAINING_PHASES, *_OTHER_PHASES, "failed")
        }
        seconds = {phase: sec * min(1.0, max(0.0, share)) for phase, share in shares.items() if share is not None}
        for phase, spent_s in seconds.items():
            self.phase_s[phase] = self.phase_s.get(phase, 0.0) + spent_s
        if attempt.first_loop is None:
            attempt.first_loop = time_s - sec
        attempt.unreported_save = None  # this window includes it
        attempt.windows.append(_Window(time_s - sec, time_s, step, max(0, count), seconds))
        if len(attempt.windows) > _MAX_WINDOWS:
            attempt.windows = _merge_pairs(attempt.windows)

    def goodput(self, state: RunState, now_s: float | None = None) -> Goodput | None:
        """Return the goodput so far, or None if no iteration was marked."""
        attempts = self._attempts
        if not any(attempt.windows or attempt.unreported_save for attempt in attempts):
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
        accounted_s = sum(
            getattr(result, field) for field in Goodput.__struct_fields__ if field not in {"wall_s", "idle_s"}
        )
        result.idle_s = max(0.0, result.wall_s - accounted_s)
        return result

    def _kept_until(self, index: int, state: RunState) -> int | None:
        """Return the first step of an attempt whose result was not kept, or None if all were kept."""
        attempt = self._attempts[index]
        later = [other.first_step for other in self._attempts[index + 1 :] if other.first_step is not None]
        if later:  # a later attempt repeated everything from its first step
            return min(later)
        was_unsuccessful = (
            state in _UNSUCCESSFUL_STATES if index == len(self._attempts) - 1 else attempt.status != "finished"
        )
        return attempt.kept_steps if was_unsuccessful else None


def _add_span_start(attempt: _AttemptTimes, record: dict[str, Any], time_s: float) -> None:
    if record.get("name") == "application":
        attempt.start = min(attempt.start, time_s)  # a launcher may pass its own start time
    if record.get("name") != "training_loop":
        return
    attempt.open_loops.add(str(record.get("span_id")))
    if attempt.first_loop is None:
        attempt.first_loop = time_s
    attributes = record.get("attributes")
    step = attributes.get("train_iterations_start") if isinstance(attributes, dict) else None
    if attempt.first_step is None and type(step) is int:
        attempt.first_step = step


def _add_stall(attempt: _AttemptTimes, record: dict[str, Any], time_s: float) -> None:
    """Add that the run began to hang, or no longer hangs."""
    alert = str(record.get("id"))
    if record.get("status") == "opened":
        evidence = record.get("evidence")
        waited_s = finite_or_none(evidence.get("waited_s")) if isinstance(evidence, dict) else None
        attempt.open_stalls[alert] = time_s - max(0.0, waited_s or 0.0)
    elif record.get("status") == "resolved" and alert in attempt.open_stalls:
        since = attempt.open_stalls.pop(alert)
        if len(attempt.stalls) < _MAX_SPANS:
            attempt.stalls.append((since, time_s))


def _add_attempt(result: Goodput, attempt: _AttemptTimes, end: float, kept_until: int | None, is_running: bool) -> None:
    line = Timeline(attempt.start, end)
    # First: the window in which a run continued after a hang contains the hang.
    for start, stop in [*attempt.stalls, *((since, end) for since in attempt.open_stalls.values())]:
        result.stalled_s += line.claim(start, stop)
    for window in attempt.windows:
        # Windows may overlap. Scale the phases to the part that was not claimed before.
        length_s = window.end - window.start
        share = line.claim(window.start, window.end) / length_s if length_s > 0 else 0.0
        training_s = share * sum(window.seconds.get(phase, 0.0) for phase in _TRAINING_PHASES)
        productive_share = _kept_share(window, kept_until)
        result.productive_s += productive_share * training_s
        result.lost_s += (1.0 - productive_share) * training_s + share * window.seconds.get("failed", 0.0)
        for phase in _OTHER_PHASES:
            field = f"{phase}_s"
            setattr(result, field, getattr(result, field) + share * window.seconds.get(phase, 0.0))
    result.start_up_s += line.claim(attempt.start, attempt.first_loop if attempt.first_loop is not None else end)
    for start, stop, field in sorted(attempt.spans, key=lambda span: span[1] - span[0]):  # inner spans first
        setattr(result, field, getattr(result, field) + line.claim(start, stop))
    if attempt.unreported_save is not None:  # claims only the time that spans left
        free_s = line.claim(attempt.unreported_save.start, attempt.unreported_save.end)
        training_s = min(free_s, attempt.unreported_save.seconds["iteration"])
        productive_share = _kept_share(attempt.unreported_save, kept_until)
        result.productive_s += productive_share * training_s
        result.lost_s += (1.0 - productive_share) * training_s
    is_in_loop = bool(attempt.open_loops) and (is_running or attempt.status != "finished")
    if is_in_loop and attempt.first_loop is not None:
        since = attempt.windows[-1].end if attempt.windows else attempt.first_loop
        if is_running:
            result.unreported_s += line.claim(since, end)
        elif attempt.status is None:
            result.lost_s += line.claim(since, end)  # the process died inside the loop


def _kept_share(window: _Window, kept_until: int | None) -> float:
    """Return the share of a window's iterations whose result was kept."""
    if kept_until is None or window.num_iterations == 0:
        return 1.0
    first = window.step - window.num_iterations + 1
    return min(1.0, max(0.0, (kept_until - first) / window.num_iterations))


def _merge_pairs(windows: list[_Window]) -> list[_Window]:
    """Merge pairs of neighbouring windows, to bound memory for a journal of any length."""
    merged_pairs = []
    for first, second in zip(windows[::2], windows[1::2], strict=False):
        phases = {*first.seconds, *second.seconds}
        seconds = {phase: first.seconds.get(phase, 0.0) + second.seconds.get(phase, 0.0) for phase in phases}
        num_iterations = first.num_iterations + second.num_iterations
        merged_pairs.append(_Window(first.start, second.end, second.step, num_iterations, seconds))
    return merged_pairs + (windows[-1:] if len(windows) % 2 else [])
