"""Turns spans into records and metrics, on the writer thread.

`SpanAggregator` is registered with the writer as the handler of span items. It receives every span in the order of the
buffer, so none of its state needs a lock. Long spans become `span_start`/`span_stop`/`span` records. Iterations and
phases are not recorded one by one: they are added to the `LoopProgress` of their training loop, which reports a window
of them every `log_every` iterations, or after a time, as a `training_metrics_update` event and a `step` record.

There is one way in, `handle`, which takes a batch. Runs of iterations that follow each other in one loop are the common
case and are added in one go; everything else is handled item by item, and a fault costs the item that caused it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tachograph._base import ranks
from tachograph._base.guard import guard
from tachograph.recorder import PendingRecord
from tachograph.records import OMIT, LazyValue, ValueProblem, loss_names_in, to_plain
from tachograph.spans._checkpoints import Checkpoints
from tachograph.spans._filter import SpanFilter
from tachograph.spans._names import StandardSpanName
from tachograph.spans._names import StandardTrainingJobEventName as Events
from tachograph.spans._names import StandardTrainingJobSpanName as Names
from tachograph.spans._parameters import Parameters
from tachograph.spans._progress import DurationStats, JobTotals, LoopProgress
from tachograph.spans._rank_windows import RankWindows
from tachograph.spans._span import ObservedIteration, ShortSpan, Span, ancestors
from tachograph.spans._span_ids import SpanIds
from tachograph.spans._span_records import SpanRecordBuilder

__all__ = ["PAUSES", "PHASE_OF", "AggregatorTask", "SpanAggregator", "overlap_text"]

DEFAULT_LOG_EVERY = 50
"""Iterations between checks whether an update is due, where no interval is set: then updates go by time."""

_MAX_PLANS = 1_000
_ITERATION = Names.TRAINING_SINGLE_ITERATION

PHASE_OF: dict[str, str] = {
    Names.DATA_LOADING: "data",
    Names.MODEL_FORWARD: "forward",
    Names.MODEL_BACKWARD: "backward",
    Names.ZERO_GRAD: "optimizer",
    Names.OPTIMIZER_UPDATE: "optimizer",
    Names.CHECKPOINT_SAVE_SYNC: "checkpoint",
    Names.CHECKPOINT_SAVE_ASYNC: "checkpoint",
    Names.CHECKPOINT_SAVE_FINALIZATION: "checkpoint",
    Names.CHECKPOINT_LOAD: "checkpoint",
    Names.VALIDATION_LOOP: "validation",
    Names.TESTING_LOOP: "testing",
}
"""The phase that spans of a name belong to."""

_EXCLUSIVE_SPANS = {Names.VALIDATION_LOOP, Names.TESTING_LOOP, Names.CHECKPOINT_SAVE_SYNC, Names.CHECKPOINT_SAVE_ASYNC}
"""Spans that own all their time, whatever phases are inside."""

PAUSES = frozenset(name for name, phase in PHASE_OF.items() if phase in {"checkpoint", "validation", "testing"})
"""The names of spans during which training pauses."""

_ITERATION_PHASES = {"data", "forward", "backward", "optimizer"}
"""Phases whose time is training only if their iteration completes."""


CollectiveWait = Callable[[float, float], tuple[float, int] | None]
"""Returns how long the rank waited in collectives between two times, and the number of collectives so far."""


class AggregatorTask:
    """A buffer item: an action of the aggregator that must run in order with the spans around it."""

    __slots__ = ("run",)
    name: ClassVar[None] = None  # the name of an item is checked first

    def __init__(self, run: Callable[[], list[PendingRecord]]) -> None:
        self.run = run


class _Plan(NamedTuple):
    """How to handle the spans of a name."""

    is_recorded: bool
    phase: str | None
    start: Callable[[Span], list[PendingRecord]] | None
    stop: Callable[[Span], list[PendingRecord]] | None


class SpanAggregator:
    """Aggregates the spans of one run.

    Args:
        ids: the ids of the run's spans.
        wall_s: converts readings of the steady clock into wall times.
        log_every: returns the run's current number of steps per record.
        add_loss: counts a lost record, given the reason.
        log_misuse: logs a mistake in the use of spans; returns False if that was done before.
        records_ranks: whether to record the windows of this rank, if the job has several.
        is_main_rank: whether the metrics of the job are recorded here. On other ranks, windows are all there is.
        collective_wait: returns the function that times collectives, if there is one; see `Backend`.
    """

    ITEM_TYPES = (Span, ShortSpan, ObservedIteration, AggregatorTask)

    def __init__(
        self,
        ids: SpanIds,
        *,
        wall_s: Callable[[float], float],
        log_every: Callable[[], int],
        add_loss: Callable[[str], None],
        log_misuse: Callable[[str], bool],
        records_ranks: bool = False,
        is_main_rank: bool = True,
        collective_wait: Callable[[], CollectiveWait | None] = lambda: None,
    ) -> None:
        self._wall_s = wall_s
        self._records_ranks = records_ranks
        self._is_main_rank = is_main_rank
        self._collective_wait = collective_wait
        self._run_log_every = log_every
        self._add_loss = add_loss
        self._log_misuse = log_misuse
        self.records = SpanRecordBuilder(ids)
        self.parameters = self._recorded_parameters = Parameters()
        self._job = JobTotals()
        self._plans: dict[object, _Plan] = {}
        self._loops: dict[Span, LoopProgress] = {}
        self._default_loop: LoopProgress | None = None
        """The loop of iterations that are in no marked loop; its events belong to the application."""
        self._default_owner: Span | None = None
        self._has_overlap = False
        """Whether overlapping iterations were found, which is reported once."""
        self._latest_metrics: Mapping[str, Any] | None = None
        self._checkpoints = Checkpoints()
        self._on_start: dict[str, Callable[[Span], list[PendingRecord]]] = {
            Names.TRAINING_LOOP: self._start_loop,
            Names.CHECKPOINT_SAVE_SYNC: self._start_save,
            Names.CHECKPOINT_SAVE_ASYNC: self._start_save,
        }
        self._on_stop: dict[str, Callable[[Span], list[PendingRecord]]] = {
            StandardSpanName.APPLICATION: self._stop_application,
            Names.TRAINING_SINGLE_ITERATION: self._stop_iteration,
            Names.TRAINING_LOOP: self._stop_loop,
            Names.VALIDATION_SINGLE_ITERATION: self._stop_evaluation_iteration,
            Names.VALIDATION_LOOP: self._stop_validation,
            Names.TESTING_SINGLE_ITERATION: self._stop_evaluation_iteration,
            Names.TESTING_LOOP: self._stop_testing,
            Names.CHECKPOINT_SAVE_SYNC: self._stop_save,
            Names.CHECKPOINT_SAVE_ASYNC: self._stop_save,
        }

    # Items ---------------------------------------------------------------------------------------------------------

    def handle(self, items: Sequence[Any], latest: Sequence[Mapping[str, Any] | None]) -> list[PendingRecord]:
        """Return the records of some items; see `ItemHandler`."""
        records: list[PendingRecord] = []
        phase_parent: Span | None = None
        phase_place: tuple[LoopProgress | None, Span | None] = (None, None)
        index = 0
        while index < len(items):
            item = items[index]
            if item.name is _ITERATION and item._extras is None:
                try:
                    index = self._add_iterations(items, index, latest, records)
                except Exception as fault:  # noqa: BLE001 - a fault costs one item
                    records += self._count_fault(fault)
                    index += 1
                continue
            index += 1
            plan = self._plans.get(item.name)
            if plan is not None and plan.phase is not None and type(item) is ShortSpan and item._extras is None:
                try:
                    if item._parent is not phase_parent:
                        phase_parent, phase_place = item._parent, self._place_of_phase(item)
                    self._add_phase(plan.phase, item, *phase_place)
                except Exception as fault:  # noqa: BLE001
                    records += self._count_fault(fault)
                continue
            records += self._handle_one(item, latest[index - 1])
            phase_parent = None  # loops may have started or stopped
        return records

    def _handle_one(self, item: Any, latest: Mapping[str, Any] | None) -> list[PendingRecord]:
        try:
            if type(item) is AggregatorTask:
                return item.run()
            return self._add_span(item, latest)
        except Exception as fault:  # noqa: BLE001 - a fault costs one item
            return self._count_fault(fault)

    def _count_fault(self, fault: Exception) -> list[PendingRecord]:
        guard.report("recording a span", fault)
        self._add_loss("a fault inside telemetry")
        if guard.strict:
            raise fault
        return []

    def _add_span(self, span: Span, latest: Mapping[str, Any] | None) -> list[PendingRecord]:
        """Return the records of a span, which arrives when it has started and when it has stopped, or only then."""
        self._latest_metrics = latest
        plan = self._plans.get(span.name) or self._make_plan(span)
        extras = span._extras
        if type(span) is ShortSpan and not (plan.is_recorded and extras is not None):
            return self._add_stopped(plan, span)
        assert extras is not None  # noqa: S101 - created when it started
        records: list[PendingRecord] = []
        if not extras.is_started:
            extras.is_started = True
            records += plan.start(span) if plan.start is not None else []
            if extras.is_queued:
                # A span that has stopped by now is written then, in one record if nothing refers to it before.
                return records + (self.records.start(span) if span.stop_s is None else [])
        if not plan.is_recorded:
            return records + self._add_stopped(plan, span)
        records += self.records.start_parent(span)
        stop_records = self._add_stopped(plan, span)
        if stop_records:  # such as the metrics that its stop completes: they follow its start
            records += self.records.start(span)
        return [*records, *stop_records, self.records.stop(span)]

    def _add_iterations(
        self,
        items: Sequence[Any],
        index: int,
        latest: Sequence[Mapping[str, Any] | None],
        records: list[PendingRecord],
    ) -> int:
        """Add consecutive iterations of a loop, up to where a report may be due; return the next index.

        This is all the work that the writer does for an iteration, so everything in the loop is a local.
        """
        parent = items[index]._parent
        loop_span, loop = self._loop_of(items[index])
        if parent is not loop_span and not self._has_overlap:
            records += self._report_overlap(items[index], loop_span)
        last = min(len(items), index + max(1, loop.num_before_check))
        phases: list[tuple[int, dict[str, float]]] = []
        if loop.holds_phases:
            last = index + 1
            phases.append((0, loop.release(items[index])))
        first_s = stop_s = items[index].start_s or 0.0
        deadline_s = loop.deadline_s
        durations: list[float] = []
        starts: list[float] = []
        observed_iterations: list[ObservedIteration] = []
        while index < last:
            span = items[index]
            if span.name is not _ITERATION or span._extras is not None or span._parent is not parent:
                break
            start_s: float = span.start_s
            if start_s < stop_s:
                break
            stop_s = span.stop_s
            durations.append(stop_s - start_s)
            starts.append(start_s)
            if type(span) is ObservedIteration:
                observed_iterations.append(span)
            index += 1
            if stop_s >= deadline_s:
                break
        if not durations:  # it started before the previous one stopped, as in another thread
            span = items[index]
            first_s, stop_s = span.start_s or 0.0, span.stop_s or 0.0
            durations.append(stop_s - first_s)
            starts.append(first_s)
            index += 1
        try:
            loop.add(durations, first_s, stop_s, self.parameters)
            if observed_iterations:
                phases += _add_observed(loop, observed_iterations)
            if loop.rank_windows is not None:
                records += self._add_to_rank_window(loop.rank_windows, starts, durations, phases)
            if (loop.num_before_check <= 0 or stop_s >= deadline_s) and self._is_due(loop, stop_s):
                self._latest_metrics = latest[index - 1]
                records += self._report(loop_span, loop, stop_s)
        except Exception as fault:  # noqa: BLE001 - the iterations are counted; only their report is lost
            records += self._count_fault(fault)
        return index

    def _report_overlap(self, iteration: Span, loop_span: Span | None) -> list[PendingRecord]:
        """Return the report of iterations that are nested in the same loop, once. Both are counted."""
        within = itertools.takewhile(lambda outer: outer is not loop_span, ancestors(iteration._parent))
        if not any(outer.name == _ITERATION for outer in within):
            return []
        self._has_overlap = True
        problem = overlap_text(iteration)
        if not self._log_misuse(problem):
            return []
        fields = {"kind": "span_misused", "field": "", "reason": problem}
        return [PendingRecord(iteration.stop_s or 0.0, "telemetry_error", fields)]

    def _make_plan(self, span: Span) -> _Plan:
        name = span.name_str
        is_recorded = self.records.filter.keeps(name)
        plan = _Plan(is_recorded, PHASE_OF.get(name), self._on_start.get(name), self._on_stop.get(name))
        if len(self._plans) < _MAX_PLANS:
            self._plans[span.name] = plan
        return plan

    def use_filter(self, span_filter: SpanFilter) -> list[PendingRecord]:
        """Change which spans are recorded from now on."""
        self.records.filter = span_filter
        self._plans = {}
        return []

    # Iterations and their phases -----------------------------------------------------------------------------------

    def _add_stopped(self, plan: _Plan, span: Span) -> list[PendingRecord]:
        if plan.phase is not None:
            self._add_phase(plan.phase, span, *self._place_of_phase(span))
        return plan.stop(span) if plan.stop is not None else []

    def _add_phase(self, phase: str, span: Span, loop: LoopProgress | None, iteration: Span | None) -> None:
        start_s, stop_s = span.start_s or 0.0, span.stop_s or 0.0
        if loop is None:
            return
        is_part = phase in _ITERATION_PHASES
        if not is_part and loop.rank_windows is not None:
            loop.rank_windows.leave_out()
        if iteration is None or is_part:
            loop.hold(iteration, phase, start_s, stop_s)
        else:
            loop.phases.add(phase, start_s, stop_s)

    def _place_of_phase(self, span: Span) -> tuple[LoopProgress | None, Span | None]:
        """Return the loop and the iteration that a phase belongs to; none inside a span that owns all its time."""
        iteration: Span | None = None
        for outer in ancestors(span._parent):
            loop = self._loops.get(outer)
            if loop is not None:
                return loop, iteration
            if outer.name in _EXCLUSIVE_SPANS:
                return None, None
            if outer.name == _ITERATION and iteration is None:
                iteration = outer
        if iteration is not None:
            return self._loop_of(span)[1], iteration
        # The work of another thread is not a phase of a loop.
        return None if self._loops else self._default_loop, None

    def _loop_of(self, span: Span) -> tuple[Span | None, LoopProgress]:
        """Return the loop around a span, else the last open one, else an implicit loop."""
        loop_span = self._enclosing_loop(span) or next(reversed(self._loops), None)
        if loop_span is not None:
            return loop_span, self._loops[loop_span]
        if self._default_loop is None:
            outer = (outer for outer in ancestors(span._parent) if outer.name == StandardSpanName.APPLICATION)
            self._default_owner = next(outer, None)
            self._default_loop = LoopProgress(self._job, span.start_s or 0.0)
            self._default_loop.start(self.parameters, None, None)
            self._default_loop.rank_windows = self._new_rank_windows()
        return self._default_owner, self._default_loop

    def _enclosing_loop(self, span: Span) -> Span | None:
        return next((outer for outer in ancestors(span._parent) if outer in self._loops), None)

    def _start_loop(self, span: Span) -> list[PendingRecord]:
        records = self.finish(span.start_s or 0.0)
        # Only the outermost loop, or the first of several concurrent ones, counts steps.
        is_inner = bool(self._loops) or any(outer.name == _ITERATION for outer in ancestors(span._parent))
        loop = LoopProgress(JobTotals() if is_inner else self._job, span.start_s or 0.0)
        first = _int(span, "train_iterations_start")
        if first is not None and first < loop.num_completed:
            self._checkpoints.restart()  # training started over: earlier checkpoints do not count
        loop.start(self.parameters, first, _int(span, "train_samples_start"))
        if loop.job is self._job:
            loop.rank_windows = self._new_rank_windows()
        self._loops[span] = loop
        return records

    def _stop_iteration(self, span: Span) -> list[PendingRecord]:
        loop_span, loop = self._loop_of(span)
        start_s, stop_s = span.start_s or 0.0, span.stop_s or 0.0
        if span._extras is not None and span._extras.status != "ok":
            loop.release(span, has_failed=True)
            loop.phases.add("failed", start_s, stop_s)
            return []
        phases = loop.release(span)
        if span._extras is not None:
            loop.fold(self.parameters)
            loop.add([stop_s - start_s], start_s, stop_s, self.parameters)
            loop.fold(self.parameters, _int(span, "num_samples"), _int(span, "num_tokens"))
        else:
            loop.add([stop_s - start_s], start_s, stop_s, self.parameters)
        records: list[PendingRecord] = []
        if loop.rank_windows is not None:
            records += self._add_to_rank_window(loop.rank_windows, [start_s], [stop_s - start_s], [(0, phases)])
        return records + (self._report(loop_span, loop, stop_s) if self._is_due(loop, stop_s) else [])

    # Windows of this rank ------------------------------------------------------------------------------------------

    def _new_rank_windows(self) -> RankWindows | None:
        """Return the windows of a loop; None in a job of one process."""
        return RankWindows(self._job.num_completed) if self._records_ranks and ranks.world_size() > 1 else None

    def _add_to_rank_window(
        self,
        windows: RankWindows,
        starts: Sequence[float],
        durations: Sequence[float],
        phases: Sequence[tuple[int, Mapping[str, float]]],
    ) -> list[PendingRecord]:
        waits: list[float] | None = None
        collective_wait = self._collective_wait()
        if collective_wait is not None:
            timed_waits = [
                collective_wait(start_s, start_s + duration_s)
                for start_s, duration_s in zip(starts, durations, strict=True)
            ]
            if all(timed_waits):
                waits = [timed_wait[0] for timed_wait in timed_waits if timed_wait is not None]
                windows.num_collectives = max(timed_wait[1] for timed_wait in timed_waits if timed_wait is not None)
        windows.add(durations, phases, waits)
        return _rank_record(windows, starts[-1] + durations[-1]) if windows.is_complete else []

    @property
    def num_iterations(self) -> int | None:
        """Completed iterations of the job, including iterations of earlier attempts; None until one is complete."""
        loops = [loop for loop in (*self._loops.values(), self._default_loop) if loop is not None]
        job = self._job
        if job.first_finish_s is None:
            return None
        return next((loop.num_completed for loop in loops if loop.job is job), job.num_completed)

    @property
    def log_every(self) -> int:
        """The number of iterations per update."""
        log_every = self._run_log_every()
        return self.parameters.log_every_n_train_iterations or (log_every if log_every > 1 else DEFAULT_LOG_EVERY)

    def _is_due(self, loop: LoopProgress, now_s: float) -> bool:
        every = self.log_every
        past = loop.num_completed % every
        loop.check_after(every - past)
        if self.parameters.log_every_n_train_iterations is not None or self._run_log_every() > 1:
            return past == 0
        return now_s >= loop.deadline_s

    def _report(self, loop_span: Span | None, loop: LoopProgress, steady_s: float) -> list[PendingRecord]:
        """Return the records of the iterations since the last report, if there are any."""
        loop.release_all()
        if not loop.num_unreported:
            return self._report_idle(loop, steady_s)
        job, window = loop.report(self.parameters)
        if not self.parameters.is_train_iterations_enabled:
            return []
        loss = _loss_of(self._latest_metrics)
        wall_s = self._wall_s
        attributes = {
            **job,
            "latest_loss": loss,
            "first_logged_train_iterations_finish_timestamp_sec": wall_s(loop.job.first_finish_s or steady_s),
            "last_logged_train_iterations_finish_timestamp_sec": wall_s(loop.job.last_finish_s or steady_s),
        }
        attributes |= {f"window_{name}": value for name, value in window.items()}
        records = self._record_parameters(loop_span, steady_s)
        if not self._is_main_rank:
            return records
        records += self.records.event(loop_span, steady_s, Events.TRAINING_METRICS_UPDATE, attributes)
        if loop.job is not self._job:
            return records  # the outer loop counts the steps
        step: dict[str, Any] = {"global_step": job["current_iteration"]}
        step |= {f"window/{name}": value for name, value in window.items()}
        if loss is not None:
            step["window/latest_loss"] = loss
        return [*records, PendingRecord(steady_s, "step", step)]

    def _report_idle(self, loop: LoopProgress, steady_s: float) -> list[PendingRecord]:
        """Return the phase times since the last report, in which no iteration completed."""
        if not loop.phases.seconds or loop.job is not self._job or not self._is_main_rank:
            return []
        window = loop.report_idle()
        if not self.parameters.is_train_iterations_enabled:
            return []
        fields = {f"window/{name}": value for name, value in window.items()}
        return [PendingRecord(steady_s, "step", {"global_step": max(0, loop.job.num_completed - 1), **fields})]

    def _stop_loop(self, span: Span) -> list[PendingRecord]:
        loop = self._loops.pop(span, None)
        if loop is None:
            return []
        records = self._report(span, loop, span.stop_s or 0.0) + _last_rank_record(loop, span.stop_s or 0.0)
        around = self._enclosing_loop(span)
        if around is not None:  # to the enclosing loop, all of it was work on an iteration
            self._loops[around].phases.add("iteration", span.start_s or 0.0, span.stop_s or 0.0)
        return records

    def finish(self, steady_s: float) -> list[PendingRecord]:
        """Report the iterations outside any loop that were not reported yet: a loop starts, or something ends."""
        loop, self._default_loop = self._default_loop, None
        if loop is None:
            return []
        return self._report(self._default_owner, loop, steady_s) + _last_rank_record(loop, steady_s)

    def _stop_application(self, span: Span) -> list[PendingRecord]:
        return self.finish(span.stop_s or 0.0) if self._default_owner is span else []

    def close(self, steady_s: float) -> list[PendingRecord]:
        """Report the iterations and parameters that were not reported yet: the run ends."""
        return self.finish(steady_s) + self._record_parameters(None, steady_s)

    # Validation and testing ----------------------------------------------------------------------------------------

    def _stop_evaluation_iteration(self, span: Span) -> list[PendingRecord]:
        stats = self._job.validation if span.name == Names.VALIDATION_SINGLE_ITERATION else self._job.testing
        if span._extras is None or span._extras.status == "ok":
            stats.add((span.stop_s or 0.0) - (span.start_s or 0.0))
        return []

    def _stop_validation(self, span: Span) -> list[PendingRecord]:
        job = self._fold_all()
        since, job.num_completed_at_validation = job.num_completed_at_validation, job.num_completed
        if not self.parameters.is_validation_iterations_enabled:
            return []
        attributes = _evaluation_attributes(job, job.validation, since)
        return self.records.event(span, span.stop_s or 0.0, Events.VALIDATION_METRICS_UPDATE, attributes)

    def _stop_testing(self, span: Span) -> list[PendingRecord]:
        job = self._fold_all()
        since, job.num_completed_at_testing = job.num_completed_at_testing, job.num_completed
        if not self.parameters.is_test_iterations_enabled:
            return []
        attributes = _evaluation_attributes(job, job.testing, since)
        return self.records.event(span, span.stop_s or 0.0, Events.TESTING_METRICS_UPDATE, attributes)

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def _fold_all(self) -> JobTotals:
        """Return the totals of the job, including iterations that were not folded yet."""
        for loop in (*self._loops.values(), self._default_loop):
            if loop is not None:
                loop.fold(self.parameters)
        return self._job

    def _start_save(self, span: Span) -> list[PendingRecord]:
        job = self._fold_all()
        step = _int(span, "current_iteration")
        strategy = "async" if span.name == Names.CHECKPOINT_SAVE_ASYNC else "sync"
        self._checkpoints.start(
            max(0, job.num_completed - 1) if step is None else step, strategy, job.checkpoint_progress(self.parameters)
        )
        return []

    def add_checkpoint(
        self, span: Span | None, base: Span, step: int | None, steady_s: float, path: str | None, size: LazyValue | None
    ) -> list[PendingRecord]:
        """Record that a checkpoint is complete on disk."""
        if not self.parameters.is_save_checkpoint_enabled:
            return []
        job = self._fold_all()
        if step is None:
            step = max(0, job.num_completed - 1)
        wall_s = self._wall_s
        strategy = self._checkpoints.strategy_of(step, self.parameters.save_checkpoint_strategy.value)
        attributes = {
            "checkpoint_strategy": strategy,
            "current_iteration": step,
            **self._checkpoints.add_save(step, job.checkpoint_progress(self.parameters), wall_s(steady_s)),
            "checkpoint_size": size.compute() if size is not None else None,
            "checkpoint_directory": path,
            "training_start_timestamp_sec": wall_s(job.loop_start_s) if job.loop_start_s is not None else None,
        }
        owner = base if strategy == "async" or span is None else span
        return self.records.event(owner, steady_s, Events.SAVE_CHECKPOINT_SUCCESS, attributes)

    def _stop_save(self, span: Span) -> list[PendingRecord]:
        if not self.parameters.is_save_checkpoint_enabled:
            return []
        attributes = self._checkpoints.add_wait((span.stop_s or 0.0) - (span.start_s or 0.0))
        return self.records.event(span, span.stop_s or 0.0, Events.SYNC_CHECKPOINT_METRICS_UPDATE, attributes)

    # Parameters ----------------------------------------------------------------------------------------------------

    def set_initial(self, parameters: Parameters) -> list[PendingRecord]:
        """Set the first parameters, which are not recorded because the `start` record has them."""
        self.parameters = self._recorded_parameters = parameters
        return []

    def change(self, parameters: Parameters, owner: Span, steady_s: float, *, record: bool) -> list[PendingRecord]:
        """Use other parameters from now on, and record them if that is asked for and they are new."""
        self._fold_all()
        self.parameters = parameters
        return self._record_parameters(owner, steady_s) if record else []

    def _record_parameters(self, owner: Span | None, steady_s: float) -> list[PendingRecord]:
        """Return the record of the parameters, if they have changed since the last one."""
        if self.parameters == self._recorded_parameters:
            return []
        self._recorded_parameters = self.parameters
        attributes = self.parameters.to_attributes(self.log_every)
        return self.records.event(owner, steady_s, Events.UPDATE_TRAINING_TELEMETRY_CONFIG, attributes)


def overlap_text(iteration: Span) -> str:
    """Return the report of an iteration that overlaps with another one."""
    return f"span {iteration.name_str!r} started while another one is already active in the same loop; end it first"


def _add_observed(loop: LoopProgress, iterations: list[ObservedIteration]) -> list[tuple[int, dict[str, float]]]:
    """Add what integrations observed of the phases; return the index of each iteration with the seconds of its phases.

    Without windows of ranks, nothing is returned.
    """
    phases: list[tuple[int, dict[str, float]]] = []
    for index, iteration in enumerate(iterations):
        if iteration.data_s is None:
            continue
        duration_s = (iteration.stop_s or 0.0) - (iteration.start_s or 0.0)
        loop.add_data_wait(iteration.data_s, duration_s)
        busy_s = duration_s - iteration.data_s
        shares: list[tuple[str, float]] = []
        if iteration.phases is not None and busy_s > 0:
            shares = [(PHASE_OF[name], share) for name, share in iteration.phases.shares(busy_s)]
        if shares:
            loop.add_phase_sample(busy_s, shares)
        if loop.rank_windows is not None:
            seconds = {"data": iteration.data_s}
            for phase, share in shares:
                seconds[phase] = seconds.get(phase, 0.0) + share * busy_s
            phases.append((index, seconds))
    return phases


def _rank_record(windows: RankWindows, steady_s: float, *, is_last: bool = False) -> list[PendingRecord]:
    window = windows.take(is_last=is_last)
    return [] if window is None else [PendingRecord(steady_s, "rank", window.to_fields())]


def _last_rank_record(loop: LoopProgress, steady_s: float) -> list[PendingRecord]:
    """Return the window in which a loop ends."""
    return [] if loop.rank_windows is None else _rank_record(loop.rank_windows, steady_s, is_last=True)


def _evaluation_attributes(job: JobTotals, stats: DurationStats, since: int) -> dict[str, Any]:
    iteration = max(0, job.num_completed - 1)
    return {"current_iteration": iteration, "interval": job.num_completed - since, **stats.fields()}


def _loss_of(metrics: Mapping[str, Any] | None) -> float | None:
    if metrics is None:
        return None
    for name in loss_names_in(metrics):
        problems: list[ValueProblem] = []
        value = to_plain(metrics[name], name, problems)
        if value is not OMIT and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _int(span: Span, name: str) -> int | None:
    """Return the value of an integer attribute, or None."""
    attribute = span.attributes.get(name)
    return attribute.value if attribute is not None and type(attribute.value) is int else None
