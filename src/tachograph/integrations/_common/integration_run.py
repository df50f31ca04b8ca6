"""The part that all integrations share: find or start the run, mark loops and iterations, and read requests.

An integration creates an `IntegrationRun` when the user sets it up, so that invalid options raise where the user can
see them. The run itself is found or started later, when training begins.

Which run: the one passed in, else the one that is running, else a new one. A process that trains twice with a
framework gets two runs, one after the other. A trainer that starts while another one is inside its loop, such as an
inner evaluation, records into the outer run.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

from tachograph._base import ranks
from tachograph._base.guard import guard
from tachograph._base.settings import Settings, resolve_settings
from tachograph._init import init
from tachograph.exceptions import ConfigError, TachographError, did_you_mean
from tachograph.integrations._common.governor import RANK_PHASE_INTERVAL_S, OverheadGovernor
from tachograph.integrations._common.phases import PhaseMarks
from tachograph.integrations._common.skipped_iterations import SkippedIterations
from tachograph.integrations._common.tensors import number_from
from tachograph.integrations._common.tracer import StepTracer
from tachograph.journal import RunFolder, read_records
from tachograph.recorder import Run, current_run, latest_run
from tachograph.records import check_run_name
from tachograph.spans import (
    ObservedIteration,
    Span,
    SpanRecorder,
    SpanScope,
    StandardTrainingJobSpanName,
    application,
    recorder_of,
    stop_application,
    training_loop,
)

__all__ = [
    "SYNC_REQUESTS_EVERY",
    "IntegrationRun",
    "LaunchHooks",
    "Names",
    "RequestedActions",
    "RunOptions",
    "is_interactive",
    "is_run",
    "name_from",
    "set_launch_hooks",
]

Names = StandardTrainingJobSpanName

_ITERATION = Names.TRAINING_SINGLE_ITERATION
_MAX_STARTUP_S = 3600.0

SYNC_REQUESTS_EVERY = 50
"""Maximum number of steps between two times at which the ranks of a job synchronise requests."""

_run_owners: list[IntegrationRun] = []
"""The integrations that started a run themselves and have not ended it."""

_launch_hooks: list[LaunchHooks] = []


class LaunchHooks(NamedTuple):
    """Functions of `tacho run` that extend the runs that integrations start."""

    get_config: Callable[[], dict[str, Any]]
    """Returns the config that the script has stated so far."""
    run_started: Callable[[Run], None]


def set_launch_hooks(hooks: LaunchHooks) -> None:
    """Call hooks for each run that an integration starts.

    If a run cannot be started, nothing is recorded and nothing raises: the program did not ask to be recorded.
    """
    _launch_hooks[:] = [hooks]


class RequestedActions(NamedTuple):
    """The actions that readers have requested of the run."""

    stop: bool
    checkpoint: bool
    log_every: int = 1
    """The current number of steps per step record."""


class RunOptions:
    """The options of a run that may have to be started. They are validated immediately.

    Args:
        run: the run to record into, instead of finding or starting one.
        name: the name of a run that is started.
        settings: settings of a run that is started, as for `tachograph.init`.
        default_name: the name of a run that is started, if neither the user nor a checkpoint provides one.
    """

    def __init__(
        self, run: Run | None, name: str | None, settings: Mapping[str, Any], default_name: str | None = None
    ) -> None:
        if run is not None and not isinstance(run, Run):
            raise ConfigError(f"run={run!r:.80}: expected a Run, as returned by tachograph.init(...)")
        if run is not None and (name is not None or settings):
            names = ["name"] * (name is not None) + list(settings)
            raise ConfigError(
                f"run= cannot be combined with {', '.join(names)}, which apply only to a new run; remove one of them"
            )
        _validate(name, settings)
        self.run = run
        self.name = name
        self.default_name = default_name
        self.settings = dict(settings)


class IntegrationRun:
    """The run of one training job, as an integration uses it.

    Attributes:
        run: the run, once it was found or started.
        owns_run: whether it was started for this job, and ends with it.
        governor: decides which iterations are recorded in detail; hooks add their time to it.
        first_step: the number of the first step: 1 for frameworks that count completed steps.
        world_size: the number of processes that train together, as of the start of the run or the loop.
    """

    def __init__(self, framework: str, options: RunOptions) -> None:
        self._framework = framework
        self._options = options
        self._recorder: SpanRecorder | None = None
        self._application: Span | None = None
        self._loop: Span | None = None
        self._iteration: ObservedIteration | None = None
        self.governor = OverheadGovernor()
        self.records_values = True
        """Whether to record the values of the current iteration."""
        self._samples_phases = True
        self._tracer: StepTracer | None = None
        self.run: Run | None = None
        self.owns_run = False
        self.world_size = 1
        self._num_steps = 0
        self.first_step = 0
        self._methods: set[tuple[str, str]] = set()

    # The run -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether there is a run to record into."""
        return self.run is not None and self.run.status == "running"

    def begin(
        self,
        *,
        name: str | None = None,
        config: Any = None,
        facts: Mapping[str, Any] | None = None,
        resume: bool = False,
        method: str = "callback",
        version: str | None = None,
        framework: str | None = None,
    ) -> Run:
        """Find the run to record into, or start one. Return the same run as long as it is running.

        Args:
            name: the name of a run that is started, if the user chose none.
            config: the config of a run that is started.
            facts: fields for its `start` record, or for the `instrumented` event of a run that is already running.
            resume: continue the run of that name, if there is one.
            method: how training is observed.
            version: the version of the framework.
            framework: the framework, or the tool, that detected the training, if it is not the one of this integration.
        """
        facts = {key: value for key, value in (facts or {}).items() if value is not None}
        if self.run is not None and self.run.status == "running":
            self._record_method(self.run, framework, method, version, facts)
            return self.run
        live = self._options.run or _live_run()
        newest = _run_owners[-1] if _run_owners else None
        owner = newest if newest is not None and newest.run is live and newest is not self else None
        # A trainer that starts inside the loop of another one is part of that training.
        if live is None or (owner is not None and not owner.is_in_loop):
            for other in list(_run_owners):
                other.finish()
            live = self._start_run(name, config, facts, resume)
            facts = {}
        self.run = live
        if live.black_box is not None:
            live.black_box.attach()
        self._methods.clear()
        self.world_size = ranks.world_size()
        self._recorder = recorder_of(live)
        self._recorder.row_step = None
        self.governor.limit(live.settings.max_overhead, self._record_sampling)
        if self.owns_run:
            self._application = application(run=live).start_at(_process_start_msec())
            atexit.register(self._close_application)
        self._record_method(live, framework, method, version, facts)
        self._tracer = StepTracer(live)
        return live

    def _record_method(
        self, run: Run, framework: str | None, method: str, version: str | None, facts: Mapping[str, Any]
    ) -> None:
        """Record how training is observed, once for each way."""
        framework = framework or self._framework
        if (framework, method) not in self._methods:
            self._methods.add((framework, method))
            fields: dict[str, Any] = {"framework": framework, "method": method, "version": version, **facts}
            run.event("instrumented", **{key: value for key, value in fields.items() if value is not None})

    def _start_run(self, name: str | None, config: Any, facts: Mapping[str, Any], resume: bool) -> Run:
        settings = dict(self._options.settings)
        resume = settings.pop("resume", False) or resume
        name = self._options.name or name or self._options.default_name
        hooks = _launch_hooks[0] if _launch_hooks else None
        if hooks is not None and (config is None or isinstance(config, Mapping)):
            config = {**hooks.get_config(), **(config or {})} or None
        try:
            run = init(name, config=config, facts=facts, resume=resume, **settings)
        except TachographError as error:
            if hooks is None:
                raise
            guard.report("starting a run", error)
            run = init(enabled=False)
        self.owns_run = True
        _run_owners.append(self)
        if hooks is not None:
            with guard("recording values that the script passed to other tools"):
                hooks.run_started(run)
        return run

    def configure(self, **parameters: Any) -> None:
        """Set parameters of the job, as for `set_training_config`. Invalid ones are reported and dropped."""
        if self._recorder is None:
            return
        for name, value in parameters.items():
            try:
                self._recorder.configure({name: value}, record="later")
            except ConfigError as error:
                self._recorder.report_misuse(str(error))

    def finish(self, error: BaseException | None = None) -> None:
        """End the run, if it was started for this job."""
        self._run_before_close()
        self.end_loop(error)
        self._close_tracer()
        if self in _run_owners:
            _run_owners.remove(self)
        atexit.unregister(self._close_application)
        run = self.run
        if not self.owns_run or run is None or run.status != "running":
            return
        if self._application is not None and self._application.active:
            stop_application(self._application, error=error)
        if error is None:
            run.finish()
        else:
            run._fail(error)

    def finish_if_interactive(self) -> None:
        """End the run in an interactive session, which outlives training; elsewhere the run ends with the process."""
        if is_interactive():
            self.finish()

    def _close_application(self) -> None:
        """End the application span at exit, before the run itself ends with the process."""
        with guard("ending the application"):
            self._run_before_close()
            self.end_loop()
            self._close_tracer()
            if self._application is not None and self._application.active and self.is_open:
                stop_application(self._application)

    def call_before_end(self, function: Callable[[], None]) -> None:
        """Call a function before the run ends, for whatever reason, while records can still be added."""
        if self._recorder is not None:
            self._recorder.before_close.append(function)

    def _run_before_close(self) -> None:
        if self._recorder is not None:
            self._recorder.run_before_close()

    def detach(self, function: Callable[[], None]) -> None:
        """Stop observing the run, which keeps running. A function passed to `call_before_end` is not called."""
        self._close_tracer()
        if self._recorder is not None and function in self._recorder.before_close:
            self._recorder.before_close.remove(function)

    def _close_tracer(self) -> None:
        if self._tracer is not None:
            self._tracer.close()

    # Loops, iterations, phases -------------------------------------------------------------------------------------

    def begin_loop(
        self,
        step: int = 0,
        target: int | None = None,
        *,
        start_s: float | None = None,
        row_step: Callable[[], int | None] | None = None,
    ) -> None:
        """Start the training loop. End one that is still open.

        Args:
            step: the number of steps before it.
            target: the number of steps at which training ends.
            start_s: its start on `perf_counter`; now if not given.
            row_step: returns the step to which a row belongs that the script logs with another tracker.
        """
        if self.run is None:
            return
        self.end_loop()
        self.world_size = ranks.world_size()
        if self.world_size > 1 and self.run.settings.ranks != "off":
            self.governor.phase_interval_s = RANK_PHASE_INTERVAL_S
        self._num_steps = step
        scope = training_loop(
            train_iterations_start=step,
            train_iterations_target_or_fn=target if target is not None and target > 0 else None,
            run=self.run,
        )
        recorder = recorder_of(self.run)
        self._loop = scope.start(recorder, start_s)
        recorder.iteration_marker = self._framework
        recorder.row_step = row_step or recorder.row_step

    def end_loop(self, error: BaseException | None = None) -> None:
        """End the training loop, if one is open. An unfinished iteration is discarded."""
        loop, self._loop, self._iteration = self._loop, None, None
        if self._recorder is not None and self._recorder.iteration_marker == self._framework:
            self._recorder.iteration_marker = None
        if loop is not None and loop.active and loop.recorder is not None:
            loop.recorder.close_span(loop, error=error)

    @property
    def is_in_loop(self) -> bool:
        """Whether a training loop is open."""
        return self._loop is not None and self._loop.active

    def begin_iteration(self, start_s: float | None = None) -> None:
        """Start an iteration, now or at a time on `perf_counter`. An unfinished one is discarded."""
        self.records_values, self._samples_phases = self.governor.start_iteration()
        self.open_iteration(perf_counter() if start_s is None else start_s)

    def open_iteration(self, start_s: float) -> None:
        """Start an iteration whose sampling the caller has decided itself, by asking the governor."""
        if self._loop is not None and self._recorder is not None:
            self._iteration = ObservedIteration(_ITERATION, self._recorder, start_s, None, self._loop)

    def new_marks(self, is_cuda: bool) -> PhaseMarks:
        """Return marks for the phases of the current iteration, which do nothing if it is not sampled."""
        return PhaseMarks(is_cuda, self._samples_phases)

    def add_data_wait(self, start_s: float, stop_s: float) -> None:
        """Add a wait for data to the current iteration, between two times on `perf_counter`."""
        iteration = self._iteration
        if iteration is not None and iteration.data_s is not None:
            iteration.data_s += max(0.0, stop_s - max(start_s, iteration.start_s or 0.0))

    def end_iteration(
        self, stop_s: float | None = None, *, begins_next: bool = False, marks: PhaseMarks | None = None
    ) -> None:
        """Record that the current iteration is complete.

        Args:
            stop_s: its end on `perf_counter`; now if not given.
            begins_next: whether the next iteration starts at the same time.
            marks: its phases, if they were sampled.
        """
        at_s = perf_counter() if stop_s is None else stop_s
        iteration, self._iteration = self._iteration, None
        if iteration is not None and self._recorder is not None and not self._recorder.is_closed:
            iteration.stop_s = at_s
            if marks is not None and marks.is_complete:
                iteration.phases = marks
            self._recorder.add_short_span(iteration)
        self.governor.end_iteration(at_s)
        self._num_steps += 1
        self._handle_requests()
        if begins_next:
            self.begin_iteration(at_s)

    @property
    def can_skip(self) -> bool:
        """Whether iterations may be counted without being observed: no trace of the next steps is requested."""
        return self._tracer is None or self._tracer.is_idle

    def add_iterations(self, iterations: SkippedIterations) -> None:
        """Record iterations that were only counted, if there are any. The governor was asked for the first one."""
        if not iterations.stops_s:
            return
        times_s = list(itertools.pairwise([iterations.start_s, *iterations.stops_s]))
        self.governor.skip([stop_s - start_s for start_s, stop_s in times_s], iterations.costs_s)
        recorder, loop = self._recorder, self._loop
        if recorder is not None and loop is not None and not recorder.is_closed:
            for start_s, stop_s in times_s:
                recorder.add_short_span(ObservedIteration(_ITERATION, recorder, start_s, stop_s, loop, data_s=None))
        self._num_steps += len(times_s)
        self._handle_requests()

    def read_scalar(self, value: Any) -> Any:
        """Return a number or a scalar tensor as `number_from` does, and count no more than its launch."""
        self.governor.values_handled()
        if value is None or type(value) is float or type(value) is int:
            return value
        return self.governor.read_device(number_from, value)

    def _record_sampling(self, every: int, overhead: float) -> None:
        """Record that the values and phases of fewer or more iterations are recorded from now on."""
        if self.run is not None and self.is_open:
            limit = self.run.settings.max_overhead
            self.run.event("sampling_changed", values_every=every, max_overhead=limit, overhead=round(overhead, 4))

    def _handle_requests(self) -> None:
        if self._tracer is not None:
            self._tracer.step(self._num_steps - 1 + self.first_step)
        run = self.run
        if run is not None and run.control_panel.has_ready:  # `log` applies them, too, but some loops rarely call it
            run.control_panel.apply()

    # Other spans ---------------------------------------------------------------------------------------------------

    def begin_span(self, scope: SpanScope, start_s: float | None = None) -> Span | None:
        """Start any span in the run, such as `validation_loop()`, now or at a time on `perf_counter`."""
        recorder = self._recorder
        if recorder is None or not self.is_open:
            return None
        parent = self._loop if self._loop is not None and self._loop.active else None
        return scope.start(recorder, start_s, parent)

    def end_span(
        self,
        span: Span | None,
        *,
        at_s: float | None = None,
        error: BaseException | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End a span that `begin_span` returned, now or at a time on `perf_counter`."""
        if span is not None and span.active and span.recorder is not None:
            if attributes:
                span.add_attributes(attributes)
            span.recorder.close_span(span, at_s, error=error)

    # Requests -----------------------------------------------------------------------------------------------------

    def requested_actions(self) -> RequestedActions:
        """Return the requested actions. In a distributed job, all ranks must call this at the same step.

        Only rank 0 receives requests and broadcasts them, so this is a collective operation. Call it where the
        framework synchronises anyway, such as where it logs.
        """
        stop = self.run is not None and self.run.should_stop
        checkpoint = self.run is not None and self.run.should_checkpoint
        actions = RequestedActions(stop, checkpoint, self.run.log_every if self.run is not None else 1)
        return _broadcast(actions) if self.world_size > 1 else actions


def name_from(text: Any) -> str | None:
    """Return a valid run name made from a framework's name for it, or None if no character is usable."""
    name = "".join(char if char.isalnum() or char in "._+=@-" else "-" for char in str(text or ""))
    return name.strip(".- ")[:80] or None


def is_interactive() -> bool:
    """Return whether this is a prompt or a notebook, whose process outlives training."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def is_run(log_dir: str, name: str, run_id: Any) -> bool:
    """Return whether the run of that name is the one a checkpoint refers to, and not a later one."""
    folder = RunFolder(os.path.join(log_dir, name))
    if not run_id or not folder.exists():
        return False
    start = next((record for record in read_records(folder.journal) if record["event"] == "start"), {})
    return bool(start.get("run_id") == run_id)


def _validate(name: str | None, settings: Mapping[str, Any]) -> None:
    """Raise for an invalid name or setting when the integration is created, not when training begins."""
    if name is not None:
        check_run_name(name)
    valid_names = {*Settings.__struct_fields__, "tags", "notify", "rules", "signals", "resume", "any_rank"}
    for setting in settings:
        if setting not in valid_names:
            raise ConfigError(f"unknown setting {setting!r}{did_you_mean(setting, valid_names)}")
    resolve_settings({key: value for key, value in settings.items() if key in Settings.__struct_fields__})


def _live_run() -> Run | None:
    run = latest_run()
    if run is None or run.status != "running" or run._is_forked:
        return None
    return current_run()


def _process_start_msec() -> float | None:
    """Return when the process started, so that imports count as part of the job; None in an interactive session."""
    if is_interactive():
        return None
    import psutil

    start_s = psutil.Process().create_time()
    return start_s * 1000 if 0 < time.time() - start_s < _MAX_STARTUP_S else None


def _broadcast(actions: RequestedActions) -> RequestedActions:
    """Return the actions of rank 0 on all ranks of torch's process group."""
    torch: Any = sys.modules.get("torch")
    torch_distributed: Any = sys.modules.get("torch.distributed")
    if (
        torch is None
        or torch_distributed is None
        or not (torch_distributed.is_available() and torch_distributed.is_initialized())
    ):
        return actions
    device = "cuda" if "nccl" in str(torch_distributed.get_backend()) else "cpu"
    values = torch.tensor(list(map(int, actions)), dtype=torch.int64, device=device)
    torch_distributed.broadcast(values, src=0)
    stop, checkpoint, log_every = values.tolist()
    return RequestedActions(bool(stop), bool(checkpoint), log_every)
