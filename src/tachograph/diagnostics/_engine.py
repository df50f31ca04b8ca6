"""The engine: feeds the records of a run to every rule and returns the alert records they cause.

The engine works the same while a run is being recorded (the writer thread calls it) and over a finished journal or the
log of another tool. It reads no clock and no file, so the same records always give the same alerts.

The path of a value. The field names of a record decide which of its values belong to a signal (`_signals.py`). That
lookup is done once per *layout*, the tuple of field names, and cached as a list of handlers. The recorder batches steps
of one layout, so `observe_steps` needs no dict and no lookup per value. A handler is the `add` of the signal's
`SignalStats`, which calls the rules for blocks and outliers, or the `on_value` of a rule that wants every value.

Four things are more than dispatch:

- *Explaining changes.* After a sudden change of the learning rate or batch size, an announced change, or a restart with
  fresh weights, loss and gradients jump for a known reason. The engine pauses outlier detection on both and calls
  `on_change` of every rule. Causes such as `lr` are handled before the other values of a record, so that a change
  explains the loss of the same step. A value that changes all the time explains nothing: see `_ChangeFilter`.
- *Step times.* The step after a validation or checkpoint contains that work, so its duration is not used. A throughput
  is used where there is no step time, as the time per sample or token.
- *Intervals.* If the first steps are recorded singly and the others every few hundred steps, the start of the run says
  nothing about the values after it. The engine pauses outlier detection at such a change: see `_IntervalDetector`.
- *Windows.* A record can summarise several steps. Its mean hides outliers, so the engine uses the maximum of the window
  if that is an outlier, and NaN if a value in it was not finite.

The alerts themselves (ids, life cycle, cooldown) are the job of `_alert_tracker.py`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tachograph.diagnostics._alert_tracker import AlertTracker
from tachograph.diagnostics._config import find_number
from tachograph.diagnostics._context import RunContext
from tachograph.diagnostics._rank_observer import RANK_KINDS, RankObserver
from tachograph.diagnostics._rank_status import RankStatus
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._settings import resolve_rules
from tachograph.diagnostics._signal_stats import (
    BLOCK,
    BlockBatch,
    SignalColumn,
    SignalListener,
    SignalStats,
    add_quiet_blocks,
    no_change,
    skip_quiet_rows,
)
from tachograph.diagnostics._signals import SIGNALS, SignalNames, is_reward, scale_of
from tachograph.diagnostics.rules import RULES
from tachograph.records import METRIC_KINDS, RankMap, finite_or_none, is_number, step_of

__all__ = ["RuleEngine"]

EXPECTED_CHANGE = "expected_change"
"""Name of the event with which training code announces that the values after it will differ."""

_INTERRUPTIONS = frozenset({"validation", "test", "checkpoint", "epoch"})
"""Kinds of records after which the duration of the next step contains more than a step."""

_NOT_PROGRESS = frozenset(
    {
        "system",
        "profile",
        "energy",
        "code",
        "alert",
        "dump",
        "media",
        "histograms",
        "telemetry_error",
        "control_change",
        "end",
    }
)
"""Kinds of records that telemetry writes on its own, also while the training code hangs."""

_MAX_STEPS_NAMES = (
    "max_steps",
    "train_iters",
    "max_train_steps",
    "num_train_steps",
    "total_steps",
    "num_training_steps",
)
_TARGET_KINDS = frozenset({"span_start", "span", "event"})
_NOT_LOGGED = frozenset({"system", "profile"})
_WORK = frozenset({"batch_size", "sequence_length"})
_CAUSES = frozenset({"lr", *_WORK})
_STEP_TIMES = frozenset({"step_s", "throughput"})
_EVALUATION_SET_RANK = len(SIGNALS["val_loss"]) + 2
"""The rank of the loss on one of several evaluation sets."""
_LR_FACTOR = 1.6  # between two values, schedules change the learning rate by far less
_BATCH_FACTOR = 1.15  # token counts vary by several percent from batch to batch
_PAUSE_VALUES = 32  # two blocks, after which the spread is valid at the new level
_NO_METRICS = frozenset({"event", "time", "global_step", "epoch", "window_steps"})
_MAX_OTHER_METRICS = 64
_INTERVAL_FACTOR = 5
_MIN_REGULAR = 32
_NUM_FIRST_STEPS = 64
_OTHER_BANDS = {"loss": (math.inf, 0.0)}
"""The band of a signal whose spread several rules use, if the rule that looks for outliers is turned off."""
_MAX_LAYOUTS = 256  # field names can contain numbers, so their combinations are unbounded

_FIRST_PREVIEW_ROWS = 256
_MAX_PREVIEW_ROWS = 1024
_MIN_PREVIEW_ROWS = 32

_MAX_FREQUENT_CHANGES = 8
_FREQUENT_WITHIN = 512
_SAME_CHANGE_WITHIN = 16
_MAX_CHANGE_VALUES = 64


class _Handler(NamedTuple):
    """Handles one value of a record."""

    column: int
    handle: Callable[[float], None]
    signal: str
    stats: SignalStats | None = None
    """The statistics to which it adds the value, if that is all it does."""
    convert: Callable[[Sequence[float]], Sequence[float] | None] | None = None
    """Converts several values to the unit of the statistics; returns None if not all of them are added."""
    preview: Callable[[Sequence[float]], Callable[[], None] | None] | None = None
    """Like `Rule.preview_values`, for a handler that does not add to statistics."""

    def to_column(self, columns: Sequence[Sequence[float]]) -> SignalColumn | None:
        """Return the values of several records for the statistics; None if they must be handled singly."""
        values = columns[self.column] if self.convert is None else self.convert(columns[self.column])
        return SignalColumn.of(self.stats, values) if self.stats is not None and values is not None else None


class _Layout(NamedTuple):
    """The handlers for all records that have the same field names in the same order."""

    handlers: list[_Handler]
    without_step_time: list[_Handler]
    evaluations: list[_Handler]
    has_loss: bool
    statistics: list[_Handler]
    """All handlers; empty if one of them does more than adding to statistics."""
    can_preview: bool
    """Whether the listeners of all these statistics can judge several blocks together."""
    previews: list[_Handler]
    """Handlers that do not add to statistics and can judge several values together, if there are no others."""
    without_previews: _Layout | None
    """The same without those."""
    other_losses: tuple[int, ...] = ()
    """Columns of losses besides the one that the rules judge."""


class RuleEngine:
    """Observes records in order and returns alert records; see the module docstring.

    Example:
        >>> engine = RuleEngine()
        >>> alerts = [alert for record in records for alert in engine.observe(record)]
    """

    def __init__(
        self,
        rules: Mapping[str, RuleSettings] | None = None,
        *,
        signals: SignalNames | None = None,
        prefix: str = "",
    ) -> None:
        """Create the rules.

        Args:
            rules: thresholds by rule, as `resolve_rules` returns them; by default all rules with their defaults.
            signals: the metric names of the signals, as `resolve_signals` returns them.
            prefix: prefix of alert ids, which tells the attempts of a run apart.
        """
        thresholds_by_rule = resolve_rules(None) if rules is None else rules
        self._context = RunContext()
        self._context.announce_change = self._on_change
        self._tracker = AlertTracker(self._context, prefix)
        self._signals: dict[str, SignalStats] = {}
        self._rules: list[Rule] = [
            RULES[name](thresholds, self._context, self._tracker, self._signals)
            for name, thresholds in thresholds_by_rule.items()
        ]
        # A call that does nothing costs as much as any other.
        self._change_rules = [rule for rule in self._rules if type(rule).on_change is not Rule.on_change]
        self._tick_rules = [rule for rule in self._rules if type(rule).on_tick is not Rule.on_tick]
        self._rank_observer = RankObserver(self._rules, self._context)
        self._by_kind: dict[str, list[Callable[[dict[str, Any]], None]]] = {}
        self._loss_rules = [rule for rule in self._rules if type(rule).on_other_loss is not Rule.on_other_loss]
        self._bad_losses: set[str] = set()
        self._status_rules = [rule for rule in self._rules if type(rule).on_rank_statuses is not Rule.on_rank_statuses]
        for rule in self._rules:
            for kind in rule.record_kinds:
                self._by_kind.setdefault(kind, []).append(rule.on_record)
        self._by_kind.setdefault("dump", []).append(self._explain_alert)
        for kind in RANK_KINDS:
            self._by_kind.setdefault(kind, []).append(partial(self._rank_observer.observe, 0))
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._num_preview_rows = _FIRST_PREVIEW_ROWS
        self._skips_step_time = True  # the first step contains the setup
        self._num_first_steps = 0
        self._do_steps_have_loss = False
        self._interval = _IntervalDetector()
        self._work: dict[str, _WorkChangeDetector] = {}
        self._names = signals or SignalNames()
        self._metrics: dict[str, str] = {}
        self._other_metrics: dict[str, None] = {}

    @property
    def num_open(self) -> tuple[int, int]:
        """Number of open alerts, and how many of them are critical."""
        return self._tracker.num_open

    @property
    def open_alerts(self) -> list[dict[str, Any]]:
        """The open alerts: id, rule, severity and title."""
        alerts = list(self._tracker.alerts.values())
        return [{"id": one.id, "rule": one.rule.name, "severity": one.severity, "title": one.title} for one in alerts]

    @property
    def signals(self) -> dict[str, str]:
        """The signals found so far, each with the name of its metric."""
        return dict(self._metrics)

    @property
    def other_metrics(self) -> list[str]:
        """Some of the metrics that belong to no signal, in the order in which they appeared."""
        return list(self._other_metrics)

    # Input ---------------------------------------------------------------------------------------------------------

    def observe(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Feed a record to the rules; return the alert records it causes."""
        event = record["event"]
        if event == "alert":
            return []
        if event == "start":
            self._start_attempt()
            self._context.max_steps = finite_or_none(record.get("max_steps"))
            if not self._context.max_steps:
                self._context.max_steps = find_number(record.get("config"), _MAX_STEPS_NAMES)
        elif event in _TARGET_KINDS:
            self._read_target(record)
        time_s = finite_or_none(record.get("time"))
        if time_s is not None:
            self._context.time_s = time_s
        if event not in _NOT_PROGRESS:
            self._context.num_progress += 1
        if event in METRIC_KINDS and event not in _NOT_LOGGED:
            self._observe_metrics(record)
        for handle in self._by_kind.get(event, ()):
            handle(record)
        if event in _INTERRUPTIONS:
            self._skips_step_time = True
        if event == "control_change":
            self._on_control_change(record)
        elif event == "event" and record.get("name") == EXPECTED_CHANGE:
            self._on_change("batch")
        if event == "system" and time_s is not None:
            # Offline there is no other clock. Live, it only adds to the ticks of the writer.
            self._tick(time_s)
        return self._drain()

    def observe_rank(self, rank: int, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Feed a record from the journal of another rank to the rules; return the alert records it causes.

        Args:
            rank: the number of the rank. The records of rank 0 go to `observe`.
            record: its `start`, a window of iterations (`rank`), an `error` or its `end`; other kinds are ignored.
        """
        self._rank_observer.observe(rank, record)
        return self._drain()

    def keep_rank_map(self, earlier: RankMap | None) -> None:
        """Keep a map of all ranks over the run from now on, which continues that of an earlier attempt."""
        self._rank_observer.keep_map(earlier)

    def build_rank_map(self) -> RankMap | None:
        """Return the map of all ranks; None if `keep_rank_map` was not called, or ranks were never compared."""
        return self._rank_observer.build_map()

    def observe_steps(self, names: tuple[str, ...], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
        """Feed step records of one layout to the rules; return the alert records they cause.

        Args:
            names: the field of each column; `time` and `global_step` are among them.
            columns: numbers, as many in each column.
        """
        context, tracker = self._context, self._tracker
        times_s, steps = columns[names.index("time")], columns[names.index("global_step")]
        layout = self._add_quiet_values(self._layout_of(names), columns, len(steps))
        handlers = layout.without_step_time if self._skips_step_time or layout.evaluations else layout.handlers
        signal_columns = [handler.to_column(columns) for handler in layout.statistics] if steps else []
        quiet_columns = [column for column in signal_columns if column is not None]
        may_skip = bool(quiet_columns) and len(quiet_columns) == len(signal_columns)
        row = 0
        interval_changes = self._interval.add_many(steps) if layout.has_loss else []
        next_preview = 0
        while row < len(steps):
            if may_skip and not self._skips_step_time and not tracker.num_cooling_down:
                next_change = next((at for at in interval_changes if at >= row), len(steps))
                end = min(row + self._num_preview_rows, next_change)
                if layout.can_preview and row >= next_preview and end - row >= _MIN_PREVIEW_ROWS:
                    is_quiet, quiet_end = add_quiet_blocks(quiet_columns, range(row, end), steps, times_s)
                    is_partly_quiet = not is_quiet and quiet_end > row
                    if is_partly_quiet:
                        end, next_preview = quiet_end, quiet_end + BLOCK
                        is_quiet, _ = add_quiet_blocks(quiet_columns, range(row, end), steps, times_s)
                    # Preview as many rows as there are between two that are not quiet.
                    num_rows = end - row if is_partly_quiet else self._num_preview_rows * (2 if is_quiet else 0.5)
                    self._num_preview_rows = int(min(max(num_rows, _MIN_PREVIEW_ROWS), _MAX_PREVIEW_ROWS))
                    if is_quiet:
                        context.time_s, context.step = times_s[end - 1], steps[end - 1]
                        row = end
                        continue
                    next_preview = row + BLOCK  # first look closer at some rows
                row = skip_quiet_rows(quiet_columns, row, min(next_change, len(steps) - 1))
            if row in interval_changes:
                self._on_interval_change()
            context.time_s, context.step = times_s[row], steps[row]
            for handler in handlers:
                handler.handle(columns[handler.column][row])
            if tracker.num_cooling_down:
                tracker.close_expired()
            if self._skips_step_time and not layout.evaluations:
                self._skips_step_time, handlers = False, layout.handlers
            row += 1
        if layout.other_losses:
            self._observe_other_losses({names[at]: columns[at] for at in layout.other_losses}, times_s, steps)
        self._skips_step_time = self._skips_step_time or bool(times_s and layout.evaluations)
        self._do_steps_have_loss = self._do_steps_have_loss or layout.has_loss
        if self._num_first_steps < _NUM_FIRST_STEPS:
            self._count_first_steps(len(steps))
        context.num_progress += 1
        return self._drain()

    def _add_quiet_values(self, layout: _Layout, columns: Sequence[Sequence[Any]], num_rows: int) -> _Layout:
        """Handle the values that do not go to statistics, if all are quiet; return the layout of the others."""
        if layout.without_previews is None or num_rows < _MIN_PREVIEW_ROWS or self._skips_step_time:
            return layout
        commits = [handler.preview(columns[handler.column]) for handler in layout.previews if handler.preview]
        if None in commits:
            return layout
        for commit in filter(None, commits):
            commit()
        return layout.without_previews

    def on_progress(self) -> None:
        """Note that the training code is running, although it has completed no record yet."""
        self._context.num_progress += 1

    def tick(self, time_s: float) -> list[dict[str, Any]]:
        """Let rules handle the passing of time; return the alert records."""
        self._tick(time_s)
        return self._drain()

    def observe_statuses(self, statuses: Sequence[RankStatus], world_size: int, time_s: float) -> list[dict[str, Any]]:
        """Feed what all ranks are doing to the rules; return the alert records."""
        self._context.time_s, self._context.world_size = time_s, world_size
        for rule in self._status_rules:
            rule.on_rank_statuses(statuses, time_s)
        return self._drain()

    def _tick(self, time_s: float) -> None:
        self._context.time_s = time_s
        for rule in self._tick_rules:
            rule.on_tick(time_s)

    def _drain(self) -> list[dict[str, Any]]:
        return [alert.to_record() for alert in self._tracker.drain()]

    def _start_attempt(self) -> None:
        """Forget everything except the number of alerts: another process continues, perhaps from an earlier step."""
        self._tracker.reset()
        self._signals.clear()
        self._bad_losses.clear()
        self._layouts.clear()  # they hold handlers of the signals
        self._context.step = None
        self._context.is_adversarial = self._context.is_reinforcement = False
        self._skips_step_time = True
        self._num_first_steps = 0
        self._do_steps_have_loss = False
        self._interval = _IntervalDetector()
        self._context.is_work_recorded = False
        self._work.clear()
        for rule in self._rules:
            rule.reset()

    def _read_target(self, record: dict[str, Any]) -> None:
        """Read the number of steps that a training loop announces."""
        attributes = record.get("attributes")
        for fields in (record, attributes if isinstance(attributes, dict) else {}):
            target = finite_or_none(fields.get("train_iterations_target"))
            if target:
                self._context.max_steps = target

    # Signals -------------------------------------------------------------------------------------------------------

    def _observe_metrics(self, record: dict[str, Any]) -> None:
        step = step_of(record)
        if step is not None:
            self._context.step = step
        elif record["event"] == "step":
            self._context.step = 0 if self._context.step is None else self._context.step + 1
        names = tuple(record)
        layout = self._layout_of(names)
        handlers = layout.evaluations
        if record["event"] == "epoch" and not self._do_steps_have_loss:
            handlers = layout.without_step_time  # an epoch repeats the losses of its steps, if they are recorded
        if record["event"] == "step":
            self._do_steps_have_loss = self._do_steps_have_loss or layout.has_loss
            if layout.has_loss and step is not None and self._interval.add(step):
                self._on_interval_change()
            handlers = layout.without_step_time if self._skips_step_time or layout.evaluations else layout.handlers
            self._skips_step_time = bool(layout.evaluations)
        for handler in handlers:
            name = names[handler.column]
            value = record[name]
            if is_number(value):
                handler.handle(self._representative(record, handler.signal, name, value))
        if record["event"] == "step" and self._num_first_steps < _NUM_FIRST_STEPS:
            self._count_first_steps(1)
        for column in layout.other_losses:
            if is_number(record[names[column]]):
                self._observe_other_loss(names[column], record[names[column]])

    def _observe_other_losses(
        self, columns: Mapping[str, Sequence[float]], times_s: Sequence[float], steps: Sequence[int]
    ) -> None:
        if not self._bad_losses and all(abs(sum(values)) < math.inf for values in columns.values()):
            return
        for row in range(len(steps)):
            self._context.time_s, self._context.step = times_s[row], steps[row]
            for name, values in columns.items():
                self._observe_other_loss(name, values[row])

    def _observe_other_loss(self, name: str, value: float) -> None:
        """Check a loss that no statistics are kept of, because the run has another one."""
        is_finite = abs(value) < math.inf
        if is_finite and name not in self._bad_losses:
            return
        (self._bad_losses.discard if is_finite else self._bad_losses.add)(name)
        for rule in self._loss_rules:
            rule.on_other_loss(name, value)

    def _count_first_steps(self, num_steps: int) -> None:
        self._num_first_steps += num_steps
        if self._num_first_steps >= _NUM_FIRST_STEPS:
            for rule in self._rules:
                rule.on_first_steps(self.other_metrics)

    def _representative(self, record: dict[str, Any], signal: str, name: str, value: float) -> float:
        """Return the value that stands for a window of steps: NaN, the maximum if it is an outlier, else the mean."""
        num_not_finite = finite_or_none(record.get(f"{name}/nonfinite"))
        num_steps = finite_or_none(record.get("window_steps"))
        # One gradient that overflows among many is a skipped step; one loss that is not finite is a fault.
        if num_not_finite and (signal != "grad_norm" or 2 * num_not_finite >= (num_steps or 1.0)):
            return math.nan
        highest = finite_or_none(record.get(f"{name}/max"))
        stats = self._signals.get(signal)
        if stats is None or highest is None or signal == "throughput":
            return value
        return highest if scale_of(signal, name) * highest >= stats.outlier_above else value

    def _layout_of(self, names: tuple[str, ...]) -> _Layout:
        layout = self._layouts.get(names)
        if layout is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[names] = self._build_layout(names)
        return layout

    def _build_layout(self, names: tuple[str, ...]) -> _Layout:
        if any(map(is_reward, names)):
            self._context.is_reinforcement = True
        best: dict[tuple[str, str], tuple[int, int]] = {}  # by signal and evaluation set: rank of the name, column
        for column, name in enumerate(names):
            match = self._names.find(name)
            if match is None:
                if name not in _NO_METRICS and len(self._other_metrics) < _MAX_OTHER_METRICS:
                    self._other_metrics[name] = None
                continue
            signal, rank = match
            if signal == "adversarial_loss":
                self._context.is_adversarial = True
            key = (signal, name if signal == "val_loss" and rank >= _EVALUATION_SET_RANK else "")
            if key not in best or rank < best[key][0]:
                best[key] = (rank, column)
        if ("val_loss", "") in best:
            best = {key: match for key, match in best.items() if key[0] != "val_loss" or not key[1]}
        if ("step_s", "") in best or "step_s" in self._signals:
            best.pop(("throughput", ""), None)  # the same measurement, scaled by the number of samples
        # Causes come first, wherever they are in the record.
        order = sorted(best.items(), key=lambda item: item[0][0] not in _CAUSES)
        handlers = [
            handler
            for (signal, _), (_, column) in order
            for handler in self._handlers_for(signal, names[column], column)
        ]
        has_loss = ("loss", "") in best
        judged = self._signals.get("loss")
        matches = ((column, self._names.find(name)) for column, name in enumerate(names))
        losses = [column for column, match in matches if match is not None and match[0] == "loss"]
        other_losses = tuple(column for column in losses if judged is not None and names[column] != judged.metric)
        layout = self._to_layout(handlers, has_loss)._replace(other_losses=other_losses)
        previews = [handler for handler in handlers if handler.preview is not None]
        others = [handler for handler in handlers if handler.preview is None]
        if previews and others and all(handler.stats is not None for handler in others):
            others_layout = self._to_layout(others, has_loss)._replace(other_losses=other_losses)
            return layout._replace(previews=previews, without_previews=others_layout)
        return layout

    def _to_layout(self, handlers: list[_Handler], has_loss: bool) -> _Layout:
        # The signal that is noticed most often comes first.
        statistics = sorted(handlers, key=lambda handler: handler.signal != "loss")
        return _Layout(
            handlers,
            without_step_time=[handler for handler in handlers if handler.signal not in _STEP_TIMES],
            evaluations=[handler for handler in handlers if handler.signal == "val_loss"],
            has_loss=has_loss,
            statistics=statistics if all(handler.stats is not None for handler in handlers) else [],
            can_preview=all(handler.stats.can_preview for handler in handlers if handler.stats is not None),
            previews=[],
            without_previews=None,
        )

    def _handlers_for(self, signal: str, metric: str, column: int) -> list[_Handler]:
        handlers: list[_Handler] = []
        self._metrics.setdefault(signal, metric)
        scale = scale_of(signal, metric)
        if signal in _WORK:
            self._context.is_work_recorded = True
            detector = self._work.setdefault(signal, _WorkChangeDetector(self._on_change))
            handlers.append(_Handler(column, detector.add, signal, preview=detector.preview_values))
        stats = self._stats_of(signal, metric)
        if stats is not None and stats.metric == metric:
            if signal == "throughput":
                handlers.append(_Handler(column, partial(_add_reciprocal, stats), signal, stats, _reciprocals))
            elif scale != 1.0:
                add = partial(_add_scaled, stats.add, scale)
                handlers.append(_Handler(column, add, signal, stats, partial(_scaled, scale)))
            else:
                handlers.append(_Handler(column, stats.add, signal, stats))
        for rule in self._rules:
            if signal in rule.value_signals:
                handle = partial(rule.on_value, signal, metric)
                if scale != 1.0:
                    handlers.append(_Handler(column, partial(_add_scaled, handle, scale), signal))
                elif type(rule).preview_values is not Rule.preview_values:
                    preview = partial(rule.preview_values, signal, metric)
                    handlers.append(_Handler(column, handle, signal, preview=preview))
                else:
                    handlers.append(_Handler(column, handle, signal))
        return handlers

    def _stats_of(self, signal: str, metric: str) -> SignalStats | None:
        """Return the statistics of a signal, created when its first metric appears; None if no rule uses it."""
        listeners: list[SignalListener] = [rule for rule in self._rules if signal in rule.block_signals]
        if signal == "lr":
            listeners.append(_LrChangeDetector(self._on_change))
        if listeners and signal not in self._signals:
            bands = (rule.outlier_band(signal) for rule in self._rules if signal in rule.block_signals)
            stats = self._signals[signal] = SignalStats(signal, next(filter(None, bands), _OTHER_BANDS.get(signal)))
            stats.metric = metric
            for listener in listeners:
                stats.add_listener(listener)
            for rule in self._rules:
                if signal in rule.block_signals:
                    rule.on_signal(stats)
        return self._signals.get(signal)

    # Changes that explain other values -----------------------------------------------------------------------------

    def _on_control_change(self, record: dict[str, Any]) -> None:
        name = str(record.get("name")).lower()
        if "lr" in name or "learning_rate" in name:
            self._on_change("lr")
        elif "batch" in name:
            self._on_change("batch")

    def _explain_alert(self, dump: dict[str, Any]) -> None:
        """Add the cause that a dump names to the alert that caused it."""
        verdict = dump.get("verdict")
        if dump.get("alert_id") is None or not isinstance(verdict, dict) or not verdict.get("text"):
            return
        cause = {name: str(verdict[name]) for name in ("text", "confidence", "kind") if verdict.get(name)}
        rule = str(dump.get("rule") or dump.get("reason"))
        self._tracker.explain(str(dump["alert_id"]), rule, {**cause, "dump": str(dump.get("dump"))})

    def _on_interval_change(self) -> None:
        for signal in ("loss", "grad_norm"):
            if signal in self._signals:
                self._signals[signal].pause(_PAUSE_VALUES)
        for rule in self._rules:
            rule.on_interval_change()

    def _on_change(self, change: str) -> None:
        for signal in ("loss", "grad_norm"):
            if signal in self._signals:
                self._signals[signal].pause(_PAUSE_VALUES)
        for signal in _STEP_TIMES:
            if change == "batch" and signal in self._signals:
                self._signals[signal].reset()
        if change == "restart" and "loss" in self._signals:
            self._signals["loss"].reset()
        for rule in self._change_rules:
            rule.on_change(change)


def _add_reciprocal(stats: SignalStats, value: float) -> None:
    """Add a throughput as the time that one sample or token takes: more is worse, as for the step time."""
    if value > 0:
        stats.add(1.0 / value)


def _reciprocals(values: Sequence[float]) -> Sequence[float] | None:
    return [1.0 / value for value in values] if min(values) > 0 else None


def _add_scaled(handle: Callable[[float], None], scale: float, value: float) -> None:
    """Handle a value that has another unit than its signal."""
    handle(scale * value)


def _scaled(scale: float, values: Sequence[float]) -> Sequence[float]:
    return [scale * value for value in values]


class _IntervalDetector:
    """Detects that losses are recorded every so many steps more, or fewer, than before."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._gap: int | None = None  # usual number of steps between two records
        self._num_usual = 0
        self._other_gap: int | None = None  # the last one, if it was far from usual

    def add(self, step: int) -> bool:
        """Add the step of a record; return whether it is the second one at another distance than 32 or more before."""
        last, self._last = self._last, step
        if last is None or step <= last:
            return False
        gap, usual = step - last, self._gap
        if usual is None or (gap < _INTERVAL_FACTOR * usual and usual < _INTERVAL_FACTOR * gap):
            self._gap, self._other_gap = gap, None
            self._num_usual += 1
            return False
        is_confirmed = self._other_gap is not None and 0.5 * self._other_gap <= gap <= 2 * self._other_gap
        self._other_gap = gap
        if not is_confirmed:
            return False
        # Records at irregular distances have no usual one.
        was_regular, self._num_usual = self._num_usual >= _MIN_REGULAR, 0
        self._gap, self._other_gap = gap, None
        return was_regular

    def add_many(self, steps: Sequence[int]) -> list[int]:
        """Add the steps of several records; return the indices of those for which `add` returns True."""
        last, gap = self._last, self._gap
        if last is not None and gap and steps and self._other_gap is None:
            expected = range(last + gap, last + gap * (len(steps) + 1), gap)
            if [*expected] == [*steps]:
                self._last = steps[-1]
                self._num_usual += len(steps)
                return []
        return [index for index, step in enumerate(steps) if self.add(step)]


class _ChangeFilter:
    """Separates rare changes from a value that changes all the time and therefore explains nothing.

    Changes within 16 values of each other count as one, unless that one lasts for more than 64 values: then the value
    changes all the time, and so do changes within 512 values after it. Eight changes within 512 values are too many.
    """

    def __init__(self) -> None:
        self._change_indices: deque[int] = deque(maxlen=_MAX_FREQUENT_CHANGES)
        self._last_index = -math.inf
        self._is_frequent_until = -math.inf

    def copy(self) -> _ChangeFilter:
        """Return an independent copy."""
        other = _ChangeFilter()
        other._change_indices, other._last_index = self._change_indices.copy(), self._last_index
        other._is_frequent_until = self._is_frequent_until
        return other

    def is_rare(self, value_index: int) -> bool:
        """Add a change at the n-th value; return whether there were few before it."""
        is_same, self._last_index = value_index - self._last_index <= _SAME_CHANGE_WITHIN, value_index
        if not is_same:
            self._change_indices.append(value_index)
        elif value_index - self._change_indices[-1] > _MAX_CHANGE_VALUES:
            self._is_frequent_until = value_index + _FREQUENT_WITHIN
        if value_index <= self._is_frequent_until:
            self._is_frequent_until = value_index + _FREQUENT_WITHIN
            return False
        return (
            len(self._change_indices) < _MAX_FREQUENT_CHANGES
            or value_index - self._change_indices[0] > _FREQUENT_WITHIN
        )


class _WorkChangeDetector:
    """Detects changes of the work in a step: of its batch size, tokens or sequence length."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._last: float | None = None
        self._num_values = 0
        self._changes = _ChangeFilter()

    def add(self, value: float) -> None:
        """Add a value; call `on_change` if it differs from the last one by more than token counts vary."""
        self._num_values += 1
        last = self._last
        if last is not None and value <= _BATCH_FACTOR * last and last <= _BATCH_FACTOR * value:
            return
        self._last = value
        if last is not None and self._changes.is_rare(self._num_values):
            self._on_change("batch")

    def preview_values(self, values: Sequence[float]) -> Callable[[], None] | None:
        """Return a function that counts several values; None if one of them may differ from the last one."""
        last = self._last
        total = sum(values)
        if last is None or total - total != 0:  # one of them is not finite
            return None
        if max(values) > _BATCH_FACTOR * last or last > _BATCH_FACTOR * min(values):
            return None

        def commit() -> None:
            self._num_values += len(values)

        return commit


class _LrChangeDetector(SignalListener):
    """Detects sudden changes of the learning rate. A schedule changes it gradually and is ignored."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._changes = _ChangeFilter()

    def on_block(self, stats: SignalStats) -> None:
        """Centre the band on the current value."""
        self._set_band(stats, stats.last or 0.0)

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        """Do nothing: `preview_outliers` follows the band."""
        return no_change

    def preview_outliers(self, stats: SignalStats, values: Sequence[float]) -> tuple[int, Callable[[], None]] | None:
        """Follow the band up to the next change that is reported."""
        low, high, last = stats.low, stats.high, stats.last
        num_before = stats.num_added
        first_block_end = -num_before % BLOCK or BLOCK  # the block that is being filled ends before this index
        lowest, highest = min(values), max(values)
        if low < lowest and highest < high and lowest * _LR_FACTOR > highest > 0:  # all are close to each other
            num_in_blocks = first_block_end + (len(values) - first_block_end) // BLOCK * BLOCK
            centre = values[num_in_blocks - 1] if len(values) >= first_block_end else None
            return len(values), lambda: None if centre is None else self._set_band(stats, centre)
        centre, changes = None, self._changes.copy()
        for index, value in enumerate(values):
            if not low < value < high and value != last:
                if changes.is_rare(num_before + index):
                    return index, no_change
                centre, low, high = value, value / _LR_FACTOR, value * _LR_FACTOR
            last = value
            if (index + 1 - first_block_end) % BLOCK == 0:
                centre, low, high = value, value / _LR_FACTOR, value * _LR_FACTOR

        def commit() -> None:
            self._changes = changes
            if centre is not None:
                self._set_band(stats, centre)

        return len(values), commit

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        """Report a change."""
        if value != stats.last:
            self._set_band(stats, value)
            if self._changes.is_rare(stats.num_added):
                self._on_change("lr")
        return False

    def _set_band(self, stats: SignalStats, value: float) -> None:
        stats.low = value / _LR_FACTOR
        stats.watch(self, value * _LR_FACTOR)
