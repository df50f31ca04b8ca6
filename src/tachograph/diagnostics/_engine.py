"""The doctor: shows the records of a run to every rule, and returns the alerts they raise. The same while a run is
recorded as over a journal or a log of another tool afterwards."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tachograph.diagnostics._alert_tracker import AlertTracker
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._settings import resolve_rules
from tachograph.diagnostics._signal_stats import Listener, Now, SignalStats
from tachograph.diagnostics._signals import is_reward, signal_of
from tachograph.diagnostics.rules import RULES
from tachograph.records import METRIC_KINDS, finite_or_none, is_number, step_of

__all__ = ["RuleEngine"]

EXPECTED_CHANGE = "expected_change"
"""An event by which the training code says that what follows is not like what was before."""

_PAUSES = frozenset({"validation", "test", "checkpoint", "epoch"})
"""Records after which the next step is not one like the others: its time holds what they took."""

_NOT_PROGRESS = frozenset({"system", "profile", "alert", "telemetry_error", "control_change", "end"})
_NOT_LOGGED = frozenset({"system", "profile"})
_LR_FACTOR = 1.6
_BATCH_FACTOR = 1.15
_PAUSE_VALUES = 32
_HABIT = 8
_MOST_SHAPES = 256
_EXPLAINS = frozenset({"lr", "batch_size"})

Take = Callable[[float], None]


class _Item(NamedTuple):
    """A value of a record that is of interest."""

    place: int
    take: Take
    signal: str


class _Plan(NamedTuple):
    """What is of interest in records that have the same names."""

    items: list[_Item]
    without_pace: list[_Item]
    """Those but for the time per step, where that holds more than a step."""
    evaluations: list[_Item]


class RuleEngine:
    """Takes records in order; see the module.

    Example:
        >>> doctor = Doctor()
        >>> alerts = [alert for record in records for alert in doctor.take(record)]
    """

    def __init__(self, rules: Mapping[str, RuleSettings] | None = None, *, prefix: str = "") -> None:
        """Get ready.

        Args:
            rules: thresholds by rule, as `resolve_rules` gives them; all rules with their defaults if not given.
            prefix: stands before the ids of alerts, to tell those of several attempts apart.
        """
        chosen = resolve_rules(None) if rules is None else rules
        self._now = Now()
        self._desk = AlertTracker(self._now, prefix)
        self._desk.change = self._changed
        self._gauges: dict[str, SignalStats] = {}
        self._rules: list[Rule] = [
            RULES[name](thresholds, self._desk, self._gauges) for name, thresholds in chosen.items()
        ]
        self._by_kind: dict[str, list[Rule]] = {}
        for rule in self._rules:
            for kind in rule.kinds:
                self._by_kind.setdefault(kind, []).append(rule)
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._skips_pace = True  # the first step holds what came before it
        self._batch: float | None = None
        self._num_batches = 0
        self._batch_changes = _Changes()
        self._metrics: dict[str, str] = {}

    @property
    def num_open(self) -> tuple[int, int]:
        """How many alerts are open, and how many of these are critical."""
        return self._desk.num_open

    @property
    def signals(self) -> dict[str, str]:
        """What there was to look at so far: each signal with the name of its metric."""
        return dict(self._metrics)

    # Records -------------------------------------------------------------------------------------------------------

    def take(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Take a record; return the alert records that it gives rise to."""
        event = record["event"]
        if event == "alert":
            return []
        if event == "start":
            self._start_over()
        time_s = finite_or_none(record.get("time"))
        if time_s is not None:
            self._now.time_s = time_s
        if event not in _NOT_PROGRESS:
            self._now.num_seen += 1
        if event in METRIC_KINDS and event not in _NOT_LOGGED:
            self._take_metrics(record)
        for rule in self._by_kind.get(event, ()):
            rule.on_record(record)
        if event in _PAUSES:
            self._skips_pace = True
        if event == "control_change":
            self._take_change(record)
        elif event == "event" and record.get("name") == EXPECTED_CHANGE:
            self._changed("batch")
        if event == "system" and time_s is not None:
            self._tick(time_s)
        return self._told()

    def take_steps(self, names: tuple[str, ...], values: list[Any]) -> list[dict[str, Any]]:
        """Take step records of one shape, their values laid end to end; return the alert records.

        Args:
            names: what each value of a row is; `time` and `global_step` are among them.
            values: numbers, as many rows as there are.
        """
        plan = self._plan(names)
        now, desk, width = self._now, self._desk, len(names)
        time_at, step_at = names.index("time"), names.index("global_step")
        items = plan.without_pace if self._skips_pace or plan.evaluations else plan.items
        for row in range(0, len(values), width):
            now.time_s = values[row + time_at]
            now.step = values[row + step_at]
            for place, take, _ in items:
                take(values[row + place])
            if desk.num_lingering:
                desk.settle()
            if self._skips_pace and not plan.evaluations:
                self._skips_pace, items = False, plan.items
        self._skips_pace = self._skips_pace or bool(values and plan.evaluations)
        now.num_seen += 1
        return self._told()

    def see_progress(self) -> None:
        """Hear that the training code goes on, though there is nothing to take yet."""
        self._now.num_seen += 1

    def tick(self, time_s: float) -> list[dict[str, Any]]:
        """Hear that it is later; return the alert records."""
        self._tick(time_s)
        return self._told()

    def _tick(self, time_s: float) -> None:
        self._now.time_s = time_s
        for rule in self._rules:
            rule.on_tick(time_s)

    def _told(self) -> list[dict[str, Any]]:
        self._desk.settle()
        told, self._desk.outbox = self._desk.outbox, []
        return told

    def _start_over(self) -> None:
        """Forget everything but how many alerts there were: another process goes on, perhaps from an earlier step."""
        self._desk.clear()
        self._gauges.clear()
        self._plans.clear()
        self._now.step = None
        self._skips_pace = True
        self._batch = None
        self._batch_changes = _Changes()
        for rule in self._rules:
            rule.reset()

    # Signals -------------------------------------------------------------------------------------------------------

    def _take_metrics(self, record: dict[str, Any]) -> None:
        step = step_of(record)
        if step is not None:
            self._now.step = step
        elif record["event"] == "step":
            self._now.step = 0 if self._now.step is None else self._now.step + 1
        names = tuple(record)
        plan = self._plan(names)
        items = plan.evaluations
        if record["event"] == "step":
            items = plan.without_pace if self._skips_pace or plan.evaluations else plan.items
            self._skips_pace = bool(plan.evaluations)
        for place, take, signal in items:
            value = record[names[place]]
            if is_number(value):
                take(self._of_window(record, signal, names[place], value))

    def _of_window(self, record: dict[str, Any], signal: str, name: str, value: float) -> float:
        """Return what to take of a metric: of a window of steps, what is most remarkable."""
        num_not_finite, num_steps = (
            finite_or_none(record.get(f"{name}/nonfinite")),
            finite_or_none(record.get("window_steps")),
        )
        # One gradient that overflowed among many is a skipped step; one loss is a fault.
        if num_not_finite and (signal != "grad_norm" or 2 * num_not_finite >= (num_steps or 1.0)):
            return math.nan
        highest = finite_or_none(record.get(f"{name}/max"))
        gauge = self._gauges.get(signal)
        if gauge is not None and highest is not None and highest >= gauge.loud_above:
            return highest
        return value

    def _plan(self, names: tuple[str, ...]) -> _Plan:
        plan = self._plans.get(names)
        if plan is None:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            if any(map(is_reward, names)):
                self._desk.is_reinforcement = True
            best: dict[str, tuple[int, int]] = {}
            for place, name in enumerate(names):
                found = signal_of(name)
                if found is not None and (found[0] not in best or found[1] < best[found[0]][0]):
                    best[found[0]] = (found[1], place)
            # What explains the others comes first, wherever it stands in the record.
            order = sorted(best.items(), key=lambda item: item[0] not in _EXPLAINS)
            items = [
                _Item(place, take, signal)
                for signal, (_, place) in order
                for take in self._takers(signal, names[place])
            ]
            without_pace = [item for item in items if item.signal != "step_s"]
            plan = _Plan(items, without_pace, [item for item in items if item.signal == "val_loss"])
            self._plans[names] = plan
        return plan

    def _takers(self, signal: str, metric: str) -> list[Take]:
        takers: list[Take] = []
        self._metrics.setdefault(signal, metric)
        if signal == "batch_size":
            takers.append(self._take_batch)
        gauge = self._gauge(signal, metric)
        if gauge is not None and gauge.metric == metric:
            takers.append(gauge.take)
        for rule in self._rules:
            if signal in rule.hears_each:
                takers.append(partial(rule.on_value, signal, metric))
        return takers

    def _gauge(self, signal: str, metric: str) -> SignalStats | None:
        """Return the gauge of a signal, made when its first metric appears; None if no rule listens."""
        listeners: list[Listener] = [rule for rule in self._rules if signal in rule.hears]
        if signal == "lr":
            listeners.append(_LrWatch(self._changed))
        if listeners and signal not in self._gauges:
            band = next(filter(None, (rule.band(signal) for rule in self._rules if signal in rule.hears)), None)
            gauge = self._gauges[signal] = SignalStats(signal, self._now, band)
            gauge.metric = metric
            gauge.listeners = list(listeners)
        return self._gauges.get(signal)

    # Changes that explain others -----------------------------------------------------------------------------------

    def _take_batch(self, value: float) -> None:
        last = self._batch
        self._num_batches += 1
        if last is None or (value <= _BATCH_FACTOR * last and last <= _BATCH_FACTOR * value):
            self._batch = value if last is None else last
            return
        self._batch = value
        if self._batch_changes.is_rare(self._num_batches):
            self._changed("batch")

    def _take_change(self, record: dict[str, Any]) -> None:
        name = str(record.get("name")).lower()
        if "lr" in name or "learning_rate" in name:
            self._changed("lr")
        elif "batch" in name:
            self._changed("batch")

    def _changed(self, what: str) -> None:
        for signal in ("loss", "grad_norm"):
            if signal in self._gauges:
                self._gauges[signal].pause(_PAUSE_VALUES)
        if what == "batch" and "step_s" in self._gauges:
            self._gauges["step_s"].reset()
        if what == "restart" and "loss" in self._gauges:
            self._gauges["loss"].reset()
        for rule in self._rules:
            rule.on_change(what)


class _Changes:
    """Tells changes from a habit: what changes again and again explains nothing."""

    def __init__(self) -> None:
        self._places: deque[int] = deque(maxlen=_HABIT)
        self._last = -math.inf

    def is_rare(self, place: int) -> bool:
        """Take a change at a place; tell whether there were few before. Those close together are one."""
        is_same, self._last = place - self._last <= 16, place
        if not is_same:
            self._places.append(place)
        elif place - self._places[-1] > 64:
            return False
        return len(self._places) < _HABIT or place - self._places[0] > 512


class _LrWatch(Listener):
    """Tells of sudden changes of the learning rate; a schedule changes it little by little."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._changes = _Changes()

    def on_block(self, gauge: SignalStats) -> None:
        """Watch around where it is now."""
        self._watch(gauge, gauge.last or 0.0)

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        """Tell of a change."""
        if value != gauge.last:
            self._watch(gauge, value)
            if self._changes.is_rare(gauge.num_taken):
                self._changed("lr")
        return False

    def _watch(self, gauge: SignalStats, value: float) -> None:
        gauge.low = value / _LR_FACTOR
        gauge.ask(self, value * _LR_FACTOR)
