"""What the writer's thread makes of spans: records of their start and end, and the events with the metrics.

Everything comes here in the order in which it happened, so none of this state needs a lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tachograph._base.guard import guard
from tachograph.recorder import LOSS_NAMES, DeferredRecord, PendingRecord
from tachograph.records import OMIT, LazyValue, ValueProblem, to_plain
from tachograph.spans._attribute_sets import (
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
    TestingMetricsUpdateAttributes,
    TrainingMetricsUpdateAttributes,
    ValidationMetricsUpdateAttributes,
)
from tachograph.spans._checkpoints import Checkpoints
from tachograph.spans._filter import SpanFilter
from tachograph.spans._names import StandardTrainingJobEventName as Events
from tachograph.spans._names import StandardTrainingJobSpanName as Names
from tachograph.spans._parameters import Parameters
from tachograph.spans._progress import Job, Loop, Stats
from tachograph.spans._span import ShortSpan, Span, outward
from tachograph.spans._span_records import SpanRecords

if TYPE_CHECKING:
    from tachograph.spans._recorder import TrainingRecorder

__all__ = ["DEFAULT_EVERY", "Call", "SpanAggregator"]

DEFAULT_EVERY = 50
"""Iterations between looks whether an update is due, where nobody says after how many it is: then it goes by time."""

_MOST_PLANS = 1_000
_ITERATION = Names.TRAINING_SINGLE_ITERATION

_PHASE_OF: dict[str, str] = {
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
_WHOLE = {Names.VALIDATION_LOOP, Names.TESTING_LOOP, Names.CHECKPOINT_SAVE_SYNC, Names.CHECKPOINT_SAVE_ASYNC}
"""Spans whose time is theirs, whatever phases are inside."""

_OF_ITERATIONS = {"data", "forward", "backward", "optimizer"}
"""Phases whose time is training only if their iteration is completed."""


class _Plan(NamedTuple):
    """What to do about spans of a name."""

    keeps: bool
    phase: str | None
    start: Callable[[Span], list[PendingRecord]] | None
    stop: Callable[[Span], list[PendingRecord]] | None


class Call(DeferredRecord):
    """Something for the ledger to do when everything before it is done."""

    __slots__ = ("_act", "_ledger")

    def __init__(self, ledger: SpanAggregator, act: Callable[[], list[PendingRecord]]) -> None:
        self._ledger = ledger
        self._act = act

    def notes(self, latest: Mapping[str, Any] | None) -> list[PendingRecord]:
        """Do it."""
        try:
            return self._act()
        except Exception as fault:  # noqa: BLE001 - as for a span
            return self._ledger._lost(fault)


class SpanAggregator:
    """Keeps the books of one run's spans."""

    def __init__(self, recorder: TrainingRecorder) -> None:
        self._recorder = recorder
        self.notes = SpanRecords(recorder)
        self.parameters = self._told = Parameters()
        self._job = Job()
        self._plans: dict[object, _Plan] = {}
        self._loops: dict[Span, Loop] = {}
        self._default_loop: Loop | None = None
        self._latest: Mapping[str, Any] | None = None
        self._checkpoints = Checkpoints()
        self._starts: dict[str, Callable[[Span], list[PendingRecord]]] = {
            Names.TRAINING_LOOP: self._loop_began,
            Names.CHECKPOINT_SAVE_SYNC: self._save_began,
            Names.CHECKPOINT_SAVE_ASYNC: self._save_began,
        }
        self._stops: dict[str, Callable[[Span], list[PendingRecord]]] = {
            Names.TRAINING_SINGLE_ITERATION: self._iteration_ended,
            Names.TRAINING_LOOP: self._loop_ended,
            Names.VALIDATION_SINGLE_ITERATION: self._held_out_iteration_ended,
            Names.VALIDATION_LOOP: self._validation_ended,
            Names.TESTING_SINGLE_ITERATION: self._held_out_iteration_ended,
            Names.TESTING_LOOP: self._testing_ended,
            Names.CHECKPOINT_SAVE_SYNC: self._save_ended,
            Names.CHECKPOINT_SAVE_ASYNC: self._save_ended,
        }

    # Spans as records ----------------------------------------------------------------------------------------------

    def take(self, span: Span, latest: Mapping[str, Any] | None) -> list[PendingRecord]:
        """Return what to record of a span, which comes when it has begun and when it has ended, or only then."""
        try:
            return self._take(span, latest)
        except Exception as fault:  # noqa: BLE001 - a fault costs what is known of one span
            return self._lost(fault)

    def _lost(self, fault: Exception) -> list[PendingRecord]:
        guard.report("recording a span", fault)
        self._recorder.count_loss("a fault inside telemetry")
        if guard.strict:
            raise fault
        return []

    def _take(self, span: Span, latest: Mapping[str, Any] | None) -> list[PendingRecord]:
        self._latest = latest
        plan = self._plans.get(span.name) or self._plan(span)
        more = span._more
        if isinstance(span, ShortSpan) and not (plan.keeps and more is not None):
            return self._ended(plan, span)
        assert more is not None  # noqa: S101 - made when it began
        notes: list[PendingRecord] = []
        if not more.is_started:
            more.is_started = True
            notes += plan.start(span) if plan.start is not None else []
            if more.is_queued:
                # One that has ended by now is written then, in one record if nothing happens inside.
                return notes + (self.notes.start(span) if span.stop_s is None else [])
        notes += self._ended(plan, span)
        if plan.keeps:
            notes += self.notes.end(span)
        return notes

    def take_all(self, spans: Sequence[Span], latest: Iterable[Mapping[str, Any] | None]) -> list[PendingRecord]:
        """Return what to record of short spans that ended one after the other: most are iterations and phases."""
        notes: list[PendingRecord] = []
        metrics = list(itertools.islice(latest, len(spans)))
        phase_parent: Span | None = None
        place_of_phase: tuple[Loop | None, Span | None] = (None, None)
        place = 0
        while place < len(spans):
            span = spans[place]
            if span.name is _ITERATION and span._more is None:
                place = self._iterations(spans, place, metrics, notes)
                continue
            place += 1
            plan = self._plans.get(span.name)
            if plan is None or span._more is not None or plan.phase is None:
                notes += self.take(span, metrics[place - 1])
                continue
            if span._parent is not phase_parent:
                phase_parent, place_of_phase = span._parent, self._place_of_phase(span)
            self._add_phase(plan.phase, span, *place_of_phase)
        return notes

    def _iterations(
        self, spans: Sequence[Span], place: int, metrics: Sequence[Mapping[str, Any] | None], notes: list[PendingRecord]
    ) -> int:
        """Take iterations of a loop that follow each other, up to where a report may be due; return the next place.

        This is all that the writer does for an iteration, so everything in the loop is a local.
        """
        parent = spans[place]._parent
        loop_span, loop = self._loop_of(spans[place])
        last = min(len(spans), place + max(1, loop.num_before_check))
        if loop.holds_phases:
            last = place + 1
            loop.release(spans[place])
        first_s = stop_s = spans[place].start_s or 0.0
        deadline_s = loop.deadline_s
        durations: list[float] = []
        while place < last:
            span = spans[place]
            start_s: float = span.start_s  # type: ignore[assignment] # it has begun and ended
            if span.name is not _ITERATION or span._more is not None or span._parent is not parent or start_s < stop_s:
                break
            stop_s = span.stop_s  # type: ignore[assignment]
            durations.append(stop_s - start_s)
            place += 1
            if stop_s >= deadline_s:
                break
        if not durations:  # it began before the one ahead of it ended, as in another thread
            span = spans[place]
            first_s, stop_s = span.start_s or 0.0, span.stop_s or 0.0
            durations.append(stop_s - first_s)
            place += 1
        try:
            loop.add(durations, first_s, stop_s, self.parameters)
            if (loop.num_before_check <= 0 or stop_s >= deadline_s) and self._is_due(loop, stop_s):
                self._latest = metrics[place - 1]
                notes += self._report(loop_span, loop, stop_s)
        except Exception as fault:  # noqa: BLE001 - these are counted; what was to be told of them is lost
            notes += self._lost(fault)
        return place

    def _plan(self, span: Span) -> _Plan:
        name = span.name_str
        keeps = self.notes.filter.keeps(name)
        plan = _Plan(keeps, _PHASE_OF.get(name), self._starts.get(name), self._stops.get(name))
        if len(self._plans) < _MOST_PLANS:
            self._plans[span.name] = plan
        return plan

    def use_filter(self, chosen: SpanFilter) -> list[PendingRecord]:
        """Record other spans from now on."""
        self.notes.filter = chosen
        self._plans = {}
        return []

    # Iterations and their phases -----------------------------------------------------------------------------------

    def _ended(self, plan: _Plan, span: Span) -> list[PendingRecord]:
        if plan.phase is not None:
            self._add_phase(plan.phase, span, *self._place_of_phase(span))
        return plan.stop(span) if plan.stop is not None else []

    def _add_phase(self, phase: str, span: Span, loop: Loop | None, iteration: Span | None) -> None:
        start_s, stop_s = span.start_s or 0.0, span.stop_s or 0.0
        if loop is None:
            return
        if iteration is None or phase in _OF_ITERATIONS:
            loop.hold(iteration, phase, start_s, stop_s)
        else:
            loop.shares.add(phase, start_s, stop_s)

    def _place_of_phase(self, span: Span) -> tuple[Loop | None, Span | None]:
        """Return the loop and the iteration whose phase a span is, unless it is part of what counts as a whole."""
        iteration: Span | None = None
        for outer in outward(span._parent):
            loop = self._loops.get(outer)
            if loop is not None:
                return loop, iteration
            if outer.name in _WHOLE:
                return None, None
            if outer.name == _ITERATION and iteration is None:
                iteration = outer
        if iteration is not None:
            return self._loop_of(span)[1], iteration
        # What another thread does besides is no phase of a loop.
        return None if self._loops else self._default_loop, None

    def _loop_of(self, span: Span) -> tuple[Span | None, Loop]:
        """Return the loop around a span, else the latest that is open, else one that nobody began."""
        loop_span = self._loop_around(span) or next(reversed(self._loops), None)
        if loop_span is not None:
            return loop_span, self._loops[loop_span]
        if self._default_loop is None:
            self._default_loop = Loop(self._job, span.start_s or 0.0)
            self._default_loop.begin(self.parameters, None, None)
        return None, self._default_loop

    def _loop_around(self, span: Span) -> Span | None:
        return next((outer for outer in outward(span._parent) if outer in self._loops), None)

    def _loop_began(self, span: Span) -> list[PendingRecord]:
        notes = self.finish(span.start_s or 0.0)
        # Steps are those of the outermost loop, or of the first of several at a time.
        is_inner = bool(self._loops) or any(outer.name == _ITERATION for outer in outward(span._parent))
        loop = Loop(Job() if is_inner else self._job, span.start_s or 0.0)
        first = _int(span, "train_iterations_start")
        if first is not None and first < loop.completed:
            self._checkpoints.restart()  # training began anew: what was kept before is another story
        loop.begin(self.parameters, first, _int(span, "train_samples_start"))
        self._loops[span] = loop
        return notes

    def _iteration_ended(self, span: Span) -> list[PendingRecord]:
        loop_span, loop = self._loop_of(span)
        start_s, stop_s = span.start_s or 0.0, span.stop_s or 0.0
        if span._more is not None and span._more.status != "ok":
            loop.release(span, failed=True)
            loop.shares.add("failed", start_s, stop_s)
            return []
        loop.release(span)
        if span._more is not None:
            own = [_int(span, name) for name in ("num_samples", "num_tokens")]
            loop.fold(self.parameters)
            loop.add([stop_s - start_s], start_s, stop_s, self.parameters)
            loop.fold(self.parameters, *own)
        else:
            loop.add([stop_s - start_s], start_s, stop_s, self.parameters)
        return self._report(loop_span, loop, stop_s) if self._is_due(loop, stop_s) else []

    @property
    def log_every(self) -> int:
        """Iterations per update."""
        log_every = self._recorder.run.log_every
        return self.parameters.log_every_n_train_iterations or (log_every if log_every > 1 else DEFAULT_EVERY)

    def _is_due(self, loop: Loop, now_s: float) -> bool:
        every = self.log_every
        past = loop.completed % every
        loop.look_again(every - past)
        if self.parameters.log_every_n_train_iterations is not None or self._recorder.run.log_every > 1:
            return past == 0
        return now_s >= loop.deadline_s

    def _report(self, loop_span: Span | None, loop: Loop, steady_s: float) -> list[PendingRecord]:
        """Return what there is to say of the iterations since the last report, if there are any."""
        loop.release_all()
        if not loop.num_waiting:
            return self._rest(loop, steady_s)
        job, window = loop.report(self.parameters)
        if not self.parameters.is_train_iterations_enabled:
            return []
        loss = _loss(self._latest)
        wall_s = self._recorder.times.wall_s
        fields = {
            **job,
            "latest_loss": loss,
            "first_logged_train_iterations_finish_timestamp_sec": wall_s(loop.job.first_finish_s or steady_s),
            "last_logged_train_iterations_finish_timestamp_sec": wall_s(loop.job.last_finish_s or steady_s),
        }
        known = TrainingMetricsUpdateAttributes.create(**fields).to_json()
        known |= {f"window_{name}": value for name, value in window.items()}
        notes = self.notes.event(loop_span, steady_s, Events.TRAINING_METRICS_UPDATE, known)
        if loop.job is not self._job:
            return notes  # steps are those of the outer loop
        step: dict[str, Any] = {"global_step": job["current_iteration"]}
        step |= {f"window/{name}": value for name, value in window.items()}
        if loss is not None:
            step["window/latest_loss"] = loss
        return [*notes, PendingRecord(steady_s, "step", step)]

    def _rest(self, loop: Loop, steady_s: float) -> list[PendingRecord]:
        """Return where the time went since the last report, in which no iteration was completed."""
        if not loop.shares.seconds or loop.job is not self._job:
            return []
        window = loop.report_rest()
        if not self.parameters.is_train_iterations_enabled:
            return []
        fields = {f"window/{name}": value for name, value in window.items()}
        return [PendingRecord(steady_s, "step", {"global_step": max(0, loop.job.completed - 1), **fields})]

    def _loop_ended(self, span: Span) -> list[PendingRecord]:
        loop = self._loops.pop(span, None)
        if loop is None:
            return []
        notes = self._report(span, loop, span.stop_s or 0.0)
        around = self._loop_around(span)
        if around is not None:  # to the loop around it, all of it was work on an iteration
            self._loops[around].shares.add("iteration", span.start_s or 0.0, span.stop_s or 0.0)
        return notes

    def finish(self, steady_s: float) -> list[PendingRecord]:
        """Report iterations outside of any loop that were not reported yet: a loop begins, or the run ends."""
        loop, self._default_loop = self._default_loop, None
        return self._report(None, loop, steady_s) if loop is not None else []

    # Validation and testing ----------------------------------------------------------------------------------------

    def _held_out_iteration_ended(self, span: Span) -> list[PendingRecord]:
        stats = self._job.validation if span.name == Names.VALIDATION_SINGLE_ITERATION else self._job.testing
        if span._more is None or span._more.status == "ok":
            stats.add((span.stop_s or 0.0) - (span.start_s or 0.0))
        return []

    def _validation_ended(self, span: Span) -> list[PendingRecord]:
        job = self._settle()
        since, job.validated_at = job.validated_at, job.completed
        if not self.parameters.is_validation_iterations_enabled:
            return []
        known = ValidationMetricsUpdateAttributes.create(**_held_out(job, job.validation, since))
        return self.notes.event(span, span.stop_s or 0.0, Events.VALIDATION_METRICS_UPDATE, known.to_json())

    def _testing_ended(self, span: Span) -> list[PendingRecord]:
        job = self._settle()
        since, job.tested_at = job.tested_at, job.completed
        if not self.parameters.is_test_iterations_enabled:
            return []
        known = TestingMetricsUpdateAttributes.create(**_held_out(job, job.testing, since))
        return self.notes.event(span, span.stop_s or 0.0, Events.TESTING_METRICS_UPDATE, known.to_json())

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def _settle(self) -> Job:
        """Return the job with all iterations that are done."""
        for loop in (*self._loops.values(), self._default_loop):
            if loop is not None:
                loop.fold(self.parameters)
        return self._job

    def _save_began(self, span: Span) -> list[PendingRecord]:
        job = self._settle()
        step = _int(span, "current_iteration")
        strategy = "async" if span.name == Names.CHECKPOINT_SAVE_ASYNC else "sync"
        self._checkpoints.begin(max(0, job.completed - 1) if step is None else step, strategy, job.productive())
        return []

    def saved(
        self, span: Span | None, base: Span, step: int | None, steady_s: float, path: str | None, size: LazyValue | None
    ) -> list[PendingRecord]:
        """Take it that a checkpoint is safe, and return what to record."""
        if not self.parameters.is_save_checkpoint_enabled:
            return []
        job = self._settle()
        if step is None:
            step = max(0, job.completed - 1)
        wall_s = self._recorder.times.wall_s
        strategy = self._checkpoints.strategy_of(step, self.parameters.save_checkpoint_strategy.value)
        attributes = SaveCheckpointSuccessEventAttributes.create(
            checkpoint_strategy=strategy,
            current_iteration=step,
            **self._checkpoints.saved(step, job.productive(), wall_s(steady_s)),
            checkpoint_size=size.find() if size is not None else None,
            checkpoint_directory=path,
            training_start_timestamp_sec=wall_s(job.loop_start_s) if job.loop_start_s is not None else None,
        )
        owner = base if strategy == "async" or span is None else span
        return self.notes.event(owner, steady_s, Events.SAVE_CHECKPOINT_SUCCESS, attributes.to_json())

    def _save_ended(self, span: Span) -> list[PendingRecord]:
        if not self.parameters.is_save_checkpoint_enabled:
            return []
        waited = self._checkpoints.waited((span.stop_s or 0.0) - (span.start_s or 0.0))
        attributes = SyncCheckpointMetricsUpdateAttributes.create(**waited).to_json()
        return self.notes.event(span, span.stop_s or 0.0, Events.SYNC_CHECKPOINT_METRICS_UPDATE, attributes)

    # Parameters ----------------------------------------------------------------------------------------------------

    def begin_with(self, parameters: Parameters) -> list[PendingRecord]:
        """Use values that nobody has to be told: they are what the run's own facts say."""
        self.parameters = self._told = parameters
        return []

    def change(self, parameters: Parameters, base: Span, steady_s: float, *, tells: bool) -> list[PendingRecord]:
        """Use other values from now on, and return what to record of them."""
        self._settle()
        self.parameters = parameters
        if not tells or parameters == self._told:
            return []
        self._told = parameters
        attributes = parameters.to_attributes(self.log_every).to_json()
        return self.notes.event(base, steady_s, Events.UPDATE_TRAINING_TELEMETRY_CONFIG, attributes)


def _held_out(job: Job, stats: Stats, since: int) -> dict[str, Any]:
    iteration = max(0, job.completed - 1)
    return {"current_iteration": iteration, "interval": job.completed - since, **stats.fields()}


def _loss(metrics: Mapping[str, Any] | None) -> float | None:
    if metrics is None:
        return None
    for name in LOSS_NAMES:
        if name not in metrics:
            continue
        problems: list[ValueProblem] = []
        value = to_plain(metrics[name], name, problems)
        if value is not OMIT and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _int(span: Span, name: str) -> int | None:
    """Return an attribute that ought to be a whole number, if it is one."""
    attribute = span.attributes.get(name)
    return attribute.value if attribute is not None and type(attribute.value) is int else None
