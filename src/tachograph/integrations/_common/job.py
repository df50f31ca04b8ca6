"""What every integration does: find or begin the run, mark loops and iterations in it, and hear what is asked of it."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

from tachograph._base import ranks
from tachograph._base.guard import guard
from tachograph._init import init
from tachograph.exceptions import ConfigError, TachographError, did_you_mean
from tachograph.integrations._common.phases import Marks
from tachograph.integrations._common.tracer import StepTracer
from tachograph.journal import RunFolder, read_records
from tachograph.recorder import Run, current_run, latest_run
from tachograph.records import check_run_name
from tachograph.settings import Settings, resolve_settings
from tachograph.spans import (
    Span,
    SpanScope,
    StandardTrainingJobSpanName,
    TrainingRecorder,
    application,
    recorder_of,
    stop_application,
    training_loop,
)

__all__ = [
    "ASK_EVERY",
    "RUN_FILE",
    "Asked",
    "Job",
    "Names",
    "Plan",
    "forgive_mistakes",
    "is_interactive",
    "is_run",
    "name_from",
]

Names = StandardTrainingJobSpanName

_ITERATION = Names.TRAINING_SINGLE_ITERATION
_LONGEST_START_S = 3600.0

ASK_EVERY = 50
"""Most steps between two times that the ranks of a job agree on what was asked of it."""

RUN_FILE = "tachograph.json"
"""Where a checkpoint that is a folder says which run saved it."""

_owners: list[Job] = []
"""The job that began a run of its own, until it ends: a process that trains twice has two runs, one after the other."""


_forgives: list[bool] = []


def forgive_mistakes() -> None:
    """Record nothing, rather than raise, where a run cannot be begun: for programs that did not ask to be recorded."""
    _forgives[:] = [True]


class Asked(NamedTuple):
    """What a reader asked of the run."""

    stop: bool
    checkpoint: bool
    log_every: int = 1
    """Steps per step record, as it is now."""


class Plan:
    """What to begin a run with where none goes on; checked when it is made, which is when a mistake can still be told.

    Args:
        run: the run to record into, if it is not to be found or begun.
        name: the name of a run that is begun.
        settings: settings of a run that is begun, as `tachograph.init` takes them.
        default_name: the name of a run that is begun, if neither the user nor a checkpoint gives one.
    """

    def __init__(
        self, run: Run | None, name: str | None, settings: Mapping[str, Any], default_name: str | None = None
    ) -> None:
        if run is not None and not isinstance(run, Run):
            raise ConfigError(f"run={run!r:.80}: a Run is expected, as tachograph.init(...) returns it")
        if run is not None and (name is not None or settings):
            given = ["name"] * (name is not None) + list(settings)
            raise ConfigError(
                f"run= is given, and {', '.join(given)} too: these are for a run that is begun; leave out one"
            )
        _check(name, settings)
        self.run = run
        self.name = name
        self.default_name = default_name
        self.settings = dict(settings)


class Job:
    """One training job as an integration sees it.

    Attributes:
        run: the run it is recorded in, once it has begun.
        owns_run: whether it was begun for this job and ends with it.
        first_step: what the first step is called: 1 where steps are counted when they are done.
        world_size: how many processes train together, as of when the run or the loop began.
    """

    def __init__(self, framework: str, plan: Plan) -> None:
        self._framework = framework
        self._plan = plan
        self._recorder: TrainingRecorder | None = None
        self._application: Span | None = None
        self._loop: Span | None = None
        self._iteration: Span | None = None
        self._tracer: StepTracer | None = None
        self.run: Run | None = None
        self.owns_run = False
        self.world_size = 1
        self._num_done = 0
        self.first_step = 0

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
    ) -> Run:
        """Find the run to record into, or begin one. The second time, and while that run goes on, it only returns it.

        Args:
            name: of a run that is begun, if the user chose none.
            config: the config of a run that is begun.
            facts: fields for its `start` record; where the run goes on already, they are told in an event.
            resume: continue the run of that name, if there is one.
            method: how training is observed.
            version: that of the framework.
        """
        if self.run is not None and self.run.status == "running":
            return self.run
        facts = {key: value for key, value in (facts or {}).items() if value is not None}
        live = self._plan.run or _live_run()
        owner = _owners[-1] if _owners and _owners[-1].run is live and _owners[-1] is not self else None
        # What another trainer does while one trains is a part of that training.
        if live is None or (owner is not None and not owner.is_in_loop):
            for other in list(_owners):
                other.finish()
            live = self._begin_own(name, config, facts, resume)
            facts = {}
        self.run = live
        self.world_size = ranks.world_size()
        self._recorder = recorder_of(live)
        if self.owns_run:
            self._application = application(run=live).start_at(_process_start_msec())
            atexit.register(self._close_application)
        known = {"framework": self._framework, "method": method, "version": version, **facts}
        live.event("instrumented", **{key: value for key, value in known.items() if value is not None})
        self._tracer = StepTracer(live)
        return live

    def _begin_own(self, name: str | None, config: Any, facts: Mapping[str, Any], resume: bool) -> Run:
        given = dict(self._plan.settings)
        resume = given.pop("resume", False) or resume
        name = self._plan.name or name or self._plan.default_name
        try:
            run = init(name, config=config, facts=facts, resume=resume, **given)
        except TachographError as mistake:
            if not _forgives:
                raise
            guard.report("beginning a run", mistake)
            run = init(enabled=False)
        self.owns_run = True
        _owners.append(self)
        return run

    def configure(self, **parameters: Any) -> None:
        """Say what is known of the job, as `set_training_config` takes it; what makes no sense is left out."""
        if self._recorder is None:
            return
        for name, value in parameters.items():
            try:
                self._recorder.configure({name: value}, record="later")
            except ConfigError as error:
                self._recorder.report_misuse(str(error))

    def finish(self, error: BaseException | None = None) -> None:
        """End the run, if it was begun for this job."""
        self._hear_last_words()
        self.end_loop(error)
        self._close_tracer()
        if self in _owners:
            _owners.remove(self)
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
        """End the run at a prompt or in a notebook, where the process goes on; elsewhere it ends with the process."""
        if is_interactive():
            self.finish()

    def _close_application(self) -> None:
        """End the span of the program before the run ends with the process, which tells how."""
        with guard("ending the application"):
            self._hear_last_words()
            self.end_loop()
            self._close_tracer()
            if self._application is not None and self._application.active and self.is_open:
                stop_application(self._application)

    def before_end(self, tell: Callable[[], None]) -> None:
        """Have something called before the run ends, however it does, as long as records can still be made."""
        if self._recorder is not None:
            self._recorder.before_close.append(tell)

    def _hear_last_words(self) -> None:
        if self._recorder is not None:
            self._recorder.run_before_close()

    def let_go(self, tell: Callable[[], None]) -> None:
        """Look at the run no more, which goes on; what was to be called before it ends is not."""
        self._close_tracer()
        if self._recorder is not None and tell in self._recorder.before_close:
            self._recorder.before_close.remove(tell)

    def _close_tracer(self) -> None:
        if self._tracer is not None:
            self._tracer.close()

    # Loops, iterations, phases -------------------------------------------------------------------------------------

    def begin_loop(self, step: int = 0, target: int | None = None, *, start_s: float | None = None) -> None:
        """Begin the training loop at a step, now or at a time of `perf_counter`; one that is still open is ended."""
        if self.run is None:
            return
        self.end_loop()
        self.world_size = ranks.world_size()
        self._num_done = step
        scope = training_loop(
            train_iterations_start=step,
            train_iterations_target_or_fn=target if target is not None and target > 0 else None,
            run=self.run,
        )
        recorder = recorder_of(self.run)
        self._loop = scope.start(recorder, start_s)
        recorder.driver = self._framework

    def end_loop(self, error: BaseException | None = None) -> None:
        """End the training loop, if one is open; an iteration that was not completed is none."""
        loop, self._loop, self._iteration = self._loop, None, None
        if self._recorder is not None and self._recorder.driver == self._framework:
            self._recorder.driver = None
        if loop is not None and loop.active and loop.recorder is not None:
            loop.recorder.close_span(loop, error=error)

    @property
    def is_in_loop(self) -> bool:
        """Whether a training loop is open."""
        return self._loop is not None and self._loop.active

    def begin_iteration(self, start_s: float | None = None) -> None:
        """Note that an iteration begins, now or at a time of `perf_counter`; one that did not end does not count."""
        if self._loop is not None and self._recorder is not None:
            at_s = perf_counter() if start_s is None else start_s
            self._iteration = self._recorder.start_iteration(_ITERATION, at_s, self._loop)

    def phase(self, name: Names, start_s: float, stop_s: float) -> None:
        """Record a phase of the present iteration, between two times of `perf_counter`."""
        parent = self._iteration or self._loop
        if parent is not None and self._recorder is not None and not self._recorder.is_closed:
            self._recorder.add_finished_span(name, start_s, stop_s, parent)

    def end_iteration(
        self, stop_s: float | None = None, *, begins_next: bool = False, marks: Marks | None = None
    ) -> None:
        """Record that the present iteration is completed.

        Args:
            stop_s: when, on `perf_counter`; now if not given.
            begins_next: whether the next begins at the same moment.
            marks: its phases, where they were marked rather than told by `phase`.
        """
        at_s = perf_counter() if stop_s is None else stop_s
        iteration, self._iteration = self._iteration, None
        if iteration is not None and self._recorder is not None and not self._recorder.is_closed:
            if marks is not None and len(marks):
                marks.submit(self._recorder, iteration, at_s)
            else:
                self._recorder.finish_span(iteration, at_s)
        self._num_done += 1
        self._between_steps()
        if begins_next:
            self.begin_iteration(at_s)

    def _between_steps(self) -> None:
        if self._tracer is not None:
            self._tracer.step(self._num_done - 1 + self.first_step)
        run = self.run
        if run is not None and run._panel.has_ready:  # a loop that logs seldom is steered all the same
            run._panel.apply()

    # Other spans ---------------------------------------------------------------------------------------------------

    def begin_span(self, scope: SpanScope, start_s: float | None = None) -> Span | None:
        """Begin any span inside the run: ``job.begin_span(validation_loop())``, now or at a time of `perf_counter`."""
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
        """End a span that `begin_span` returned, now or at a time of `perf_counter`."""
        if span is not None and span.active and span.recorder is not None:
            if attributes:
                span.add_attributes(attributes)
            span.recorder.close_span(span, at_s, error=error)

    # What is asked of it -------------------------------------------------------------------------------------------

    def asked(self) -> Asked:
        """Return what is asked of the run. In a distributed job all ranks must call it at the same step.

        Rank 0 alone hears of it and tells the others, so there it is a collective operation: call it where the
        framework has one anyway, such as where it logs.
        """
        stop = self.run is not None and self.run.should_stop
        checkpoint = self.run is not None and self.run.should_checkpoint
        asked = Asked(stop, checkpoint, self.run.log_every if self.run is not None else 1)
        return _told_by_first(asked) if self.world_size > 1 else asked


def name_from(text: Any) -> str | None:
    """Return a name for a run made of what a framework calls it, None if nothing is left of that."""
    kept = "".join(letter if letter.isalnum() or letter in "._+=@-" else "-" for letter in str(text or ""))
    return kept.strip(".- ")[:80] or None


def is_interactive() -> bool:
    """Tell whether somebody sits at a prompt or in a notebook, whose process goes on when training has ended."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def is_run(log_dir: str, name: str, run_id: Any) -> bool:
    """Tell whether the run of that name is the one that a checkpoint speaks of, and not a later one."""
    folder = RunFolder(os.path.join(log_dir, name))
    if not run_id or not folder.exists():
        return False
    start = next((record for record in read_records(folder.journal) if record["event"] == "start"), {})
    return bool(start.get("run_id") == run_id)


def _check(name: str | None, settings: Mapping[str, Any]) -> None:
    """Refuse a name or a setting that cannot be, when an integration is made and not when training begins."""
    if name is not None:
        check_run_name(name)
    known = {*Settings.__struct_fields__, "tags", "notify", "rules", "resume", "any_rank"}
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"unknown setting {setting!r}{did_you_mean(setting, known)}")
    resolve_settings({key: value for key, value in settings.items() if key in Settings.__struct_fields__})


def _live_run() -> Run | None:
    run = latest_run()
    if run is None or run.status != "running" or run._is_forked:
        return None
    return current_run()


def _process_start_msec() -> float | None:
    """Return when the process began, so that its imports are counted; None at a prompt, which is no part of a job."""
    if is_interactive():
        return None
    import psutil

    began_s = psutil.Process().create_time()
    return began_s * 1000 if 0 < time.time() - began_s < _LONGEST_START_S else None


def _told_by_first(asked: Asked) -> Asked:
    """Return what rank 0 says, on all ranks of torch's process group."""
    torch: Any = sys.modules.get("torch")
    distributed: Any = sys.modules.get("torch.distributed")
    if torch is None or distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return asked
    device = "cuda" if "nccl" in str(distributed.get_backend()) else "cpu"
    told = torch.tensor(list(map(int, asked)), dtype=torch.int64, device=device)
    distributed.broadcast(told, src=0)
    stop, checkpoint, log_every = told.tolist()
    return Asked(bool(stop), bool(checkpoint), log_every)
