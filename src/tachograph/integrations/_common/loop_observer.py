"""Translates calls of a plain PyTorch loop into `LoopState` events and records the outputs.

Wrappers around torch's functions (`TorchPatches`) and tracked loaders call the methods here. Each one decides whether
the call belongs to the loop at all, reads the clock, the loss or the learning rate, passes an event to the state
machine and records its outputs: iterations, phases, validations, epochs, metrics. How the loop is recognised is
described in `loop_state`.

If the governor wants only some iterations in detail, the observer skips the ones in between: hooks return at once, and
only the ends of the optimizer steps are kept, which are the ends of the iterations. Anything else (the end of the data,
a batch without gradients, a skipped step, a checkpoint) resumes sampling first.

A call does not belong to the loop if another thread makes it than the one that trains, or if something else, such as
a framework's callback, already marks the iterations of this run.

Everything here runs in the training thread. Nothing may raise or wait.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard, guarded
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.governor import timed_hook
from tachograph.integrations._common.integration_run import IntegrationRun, Names, RunOptions
from tachograph.integrations._common.loop_state import (
    EpochFinished,
    Iteration,
    LoopState,
    Output,
    RunNeeded,
    StepSkipped,
    ValidationBatch,
    ValidationEnded,
    ValidationStarted,
)
from tachograph.integrations._common.manual_spans import is_inside, is_iteration_marked
from tachograph.integrations._common.optimizer_names import optimizer_names
from tachograph.integrations._common.skipped_iterations import SkippedIterations
from tachograph.integrations._common.tensors import gradient_norm, steps_completed, sum_losses, unscaled_loss
from tachograph.recorder import ObservedStep, Run, latest_run
from tachograph.spans import Span, SpanRecorder, checkpoint_save, current_span, recorder_of, validation_loop

__all__ = ["CompiledFlags", "LoopObserver", "active_observer", "set_active_observer"]

_ITERATION = Names.TRAINING_SINGLE_ITERATION
_SAVES = frozenset({Names.CHECKPOINT_SAVE_SYNC, Names.CHECKPOINT_SAVE_ASYNC})
_STEP_METRICS = frozenset({"train_loss", "lr", "grad_norm"})
_EVALUATIONS = frozenset({Names.VALIDATION_LOOP, Names.TESTING_LOOP})

_NO_CONTROL = "`tacho run` observes a plain loop but cannot control it; send the process a signal instead"

_NUM_HOOKS = 4
"""Hooks in an iteration: request for a batch, backward pass, and before and after the step of the optimizer."""

_MAX_SKIP_S = 2.0
"""Iterations are skipped for a quarter of a second. After this time the loop has changed its pace."""

_active: list[LoopObserver] = []

_steps_by_run: weakref.WeakKeyDictionary[Run, int] = weakref.WeakKeyDictionary()
"""The steps counted in each run by observers that were closed: the next observer of the run continues from there."""


def active_observer() -> LoopObserver | None:
    """Return this process's loop observer: made by `tacho run`, or first by `watch` or `track`."""
    return _active[0] if _active else None


def set_active_observer(observer: LoopObserver | None) -> None:
    """Make one the observer of this process's loop, or none."""
    _active[:] = [observer] if observer is not None else []


class CompiledFlags:
    """Flags set by code that torch compiled. Setting an attribute is all it can do without breaking the graph."""

    ran_backward = False
    ran_step = False
    was_seen = False
    """Whether a flag was ever set. Set by the observer."""


class LoopObserver:
    """Observes the loop of one process and records it.

    Args:
        options: the options of a run that has to be started because none is running.
        method: how training is observed, as recorded in the `instrumented` event.
        logs_into_any: whether loss, learning rate and gradient norm are also logged into a run that the script
            started itself. The script may log them, too.
        integration: the run that others share with it; one of its own if not given.
    """

    def __init__(
        self, options: RunOptions, *, method: str, logs_into_any: bool, integration: IntegrationRun | None = None
    ) -> None:
        self.method = method
        self.logs_into_any = logs_into_any
        self._options = options
        self._use(integration or IntegrationRun("pytorch", options))
        self.is_script_run: Callable[[Run], bool] = lambda run: False
        """Returns whether a run that is not ours records a script written for other trackers: it is logged into."""
        self.logged_by_script: Collection[str] = ()
        """Names of metrics that the script passes to other trackers, which are not logged again."""
        self._names_of_others: set[str] = set()
        """Names of metrics of a step that the script has passed to `log`: they are its own from then on."""
        self._own_row_at = 0.0
        """When the last row was logged here."""
        self.state = LoopState(self._sample)
        self.compiled_flags = CompiledFlags()
        self.watched_ids: set[int] | None = None
        """The ids of the watched optimizers; None if all are watched."""
        self.names: dict[int, str] = {}
        """The names of optimizers, by their ids, where they are known."""
        self._optimizer_order: dict[int, int] = {}
        """The optimizers in the order of their first steps."""
        self._variable_names: dict[int, str] = {}
        """The names of optimizers without one, from the variables that hold them."""
        self._has_several_losses = False
        """Whether several optimizers have stepped in one iteration, each on a loss of its own."""
        self.facts: dict[str, Any] = {}
        """Facts about the model for the `instrumented` event."""
        self.norm_every = 0
        """Compute the gradient norm every this many steps if the script does not; 0: never."""
        self.on_compiled_step: list[Callable[[], None]] = []
        """Called when a step of an optimizer was part of compiled code."""
        self._cannot_start = False
        self._thread_id: int | None = None
        """The thread that trains. Until an optimizer steps, the last thread that made an observed call."""
        self._thread: threading.Thread | None = None  # noqa: TID251 - of the program
        self._thread_trains = False
        self._is_fetching = False
        self._is_saving = False
        self._is_in_backward = False
        self._validation: Span | None = None
        self.skipped_iterations: SkippedIterations | None = None
        """The iterations that are only counted at present; the wrappers of torch's functions check it first."""
        self._last_logged: tuple[int, float] | None = None
        """The number and the end of the last step that was logged."""
        self._is_closing = False
        self._last_optimizer: int | None = None
        """The optimizer that stepped last in the last iteration; each of its steps ends one."""

    def _use(self, integration: IntegrationRun) -> None:
        self._integration = integration
        self.governor = integration.governor
        """Decides which iterations are recorded in detail. Every hook adds its time to it."""

    def _sample(self) -> tuple[bool, bool]:
        return self.governor.start_iteration()

    @property
    def has_started(self) -> bool:
        """Whether it has found or started its run."""
        return self._integration.run is not None

    @property
    def run(self) -> Run | None:
        """The run that the loop is recorded into; None if there is none yet, or it has ended."""
        return self._integration.run if self._integration.is_open else None

    @property
    def num_optimizer_steps(self) -> int:
        """Steps of any optimizer so far."""
        return self.state.num_optimizer_steps

    @property
    def row_step(self) -> int | None:
        """The step of the loop that is being recorded, for a row that the script logs now; None if there is none."""
        if not self.state.is_recording or not self._integration.is_open:
            return None
        skipped = self.skipped_iterations
        step = self.state.row_step
        if skipped is not None and skipped.stops_s:
            step = self.state.num_steps + skipped.num_begun - 1
        if step < 0:
            return None
        return ObservedStep(step) if self._logs_values else step

    def expect_steps(self) -> None:
        """Use optimizer steps to find iterations: from now on they are reported."""
        self.state.observes_steps = True

    def record_into(self, run: Run) -> None:
        """Record into a run from now on.

        Raises:
            ConfigError: if it records into another run that is still running.
        """
        current_run = self._integration.run
        if current_run is run:
            return
        self.resume_sampling()
        if current_run is not None and self._integration.is_open:
            raise ConfigError(
                f"run={run.name!r}: the loop is recorded into {current_run.name!r}, which is still running; "
                "finish that run first, or close its watch"
            )
        self._options = RunOptions(run, None, {})
        self._use(IntegrationRun("pytorch", self._options))
        self.state.recording_stopped(resets_count=True)

    # Which calls belong to the loop --------------------------------------------------------------------------------

    def _is_ignored(self) -> bool:
        """Return whether a call made now does not belong to the loop."""
        if threading.get_ident() != self._thread_id and self._is_other_thread():
            return True
        return self._is_marked_elsewhere()

    def _is_other_thread(self) -> bool:
        """Return whether another thread trains: the first whose optimizer stepped, as long as it is alive.

        Call it only from a thread other than `_thread_id`. If none trains, this thread takes its place.
        """
        if self._thread_trains and self._thread is not None and self._thread.is_alive():
            return True
        if self._thread_id is not None:
            self.state.thread_changed()
        self._thread = threading.current_thread()
        self._thread_id, self._thread_trains = threading.get_ident(), False
        return False

    def _is_marked_elsewhere(self) -> bool:
        """Return whether something else marks the iterations of the run."""
        run = self._integration.run
        if run is None or run.status != "running":
            if self.state.is_recording:
                self.state.recording_stopped()
            run = latest_run()
        recorder = run.span_recorder if run is not None else None
        return isinstance(recorder, SpanRecorder) and recorder.iteration_marker not in {None, "pytorch"}

    # Batches -------------------------------------------------------------------------------------------------------

    def fetch(self, get: Callable[[], Any]) -> Any:
        """Call `get` for the next batch and time it. Exceptions propagate; `StopIteration` means no more data."""
        if self.skipped_iterations is not None:
            return self._fetch_while_skipping(self.skipped_iterations, get)
        if self._is_fetching or self._is_ignored():
            return get()
        self._is_fetching = True
        start_s = perf_counter()
        self._batch_requested(start_s)
        try:
            batch = get()
        except StopIteration:
            self._data_exhausted()
            raise
        finally:
            self._is_fetching = False
        self._batch_received(start_s)
        return batch

    def _fetch_while_skipping(self, iterations: SkippedIterations, get: Callable[[], Any]) -> Any:
        if not sys.modules["torch"].is_grad_enabled() or perf_counter() > iterations.start_s + _MAX_SKIP_S:
            self.resume_sampling()
            return self.fetch(get)
        try:
            batch = get()
            iterations.has_batch = True
            return batch
        except StopIteration:
            if self.skipped_iterations is not None:  # not a nested loader that has resumed sampling
                self.resume_sampling()
                self._data_exhausted()
            raise

    @timed_hook("observing the request for a batch")
    def _batch_requested(self, now_s: float) -> None:
        state, flags = self.state, self.compiled_flags
        if flags.ran_step or flags.ran_backward:
            self._apply_compiled()
        if not sys.modules["torch"].is_grad_enabled():
            outputs = state.batch_requested(now_s, False, is_manual_validation=is_inside(_EVALUATIONS))
        elif state.observes_steps:
            outputs = state.batch_requested(now_s, True)
        else:
            outputs = state.batch_requested(now_s, True, is_manual=self._is_batch_marked())
        if outputs:
            self._record(outputs)

    @timed_hook("observing a batch")
    def _batch_received(self, start_s: float) -> None:
        outputs = self.state.batch_received(start_s, perf_counter(), sys.modules["torch"].is_grad_enabled())
        if outputs:
            self._record(outputs)

    @guarded("observing the end of the data")
    def _data_exhausted(self) -> None:
        grad_enabled = sys.modules["torch"].is_grad_enabled()
        self._record(
            self.state.data_exhausted(perf_counter(), grad_enabled, is_manual_validation=is_inside(_EVALUATIONS))
        )

    def _is_batch_marked(self) -> bool:
        """Return whether the script itself marked an iteration since the current batch was requested."""
        began_s = self.state.current.began_s
        latest = current_span.get()  # the context variable keeps a span that has ended
        start_s = latest.start_s if latest is not None and latest.name is _ITERATION else None
        if start_s is not None and began_s is not None and start_s >= began_s:
            return True
        return is_iteration_marked(self._integration.run)

    # Backward ------------------------------------------------------------------------------------------------------

    def backward(self, run_backward: Callable[[], Any], loss: Any) -> Any:
        """Run the backward pass and time it. A nested one, as of recomputed activations, is part of the outer one."""
        if self._is_in_backward or self._is_ignored():
            return run_backward()
        self._is_in_backward = True
        self._backward_started(loss)
        try:
            result = run_backward()
        except BaseException:
            with guard("observing a failed backward pass"):
                self.state.backward_failed()
            raise
        finally:
            self._is_in_backward = False
            self._backward_finished()
        return result

    @timed_hook("observing the backward pass")
    def _backward_started(self, loss: Any) -> None:
        state, flags = self.state, self.compiled_flags
        if flags.ran_step or flags.ran_backward:
            self._apply_compiled()
        if not state.has_seen_backward:
            first = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
            if getattr(getattr(first, "device", None), "type", "cpu") == "cuda":
                state.cuda_detected()
        if state.backward_started(perf_counter()):
            state.add_loss(self._integration.read_scalar(unscaled_loss(loss, is_scaled=state.latest.is_scaled)))

    @timed_hook("observing the end of the backward pass")
    def _backward_finished(self) -> None:
        self.state.backward_finished(perf_counter())

    @timed_hook("observing a gradient norm")
    def gradients_clipped(self, norm: Any) -> None:
        """Handle the norm of all gradients, as returned by clipping."""
        latest = self.state.latest
        if latest.records_values and latest.norm is None and not self._is_ignored():
            self.state.norm_computed(self._integration.read_scalar(norm))

    @timed_hook("observing a scaled loss")
    def loss_scaled(self) -> None:
        """Handle that a loss was scaled."""
        if not self._is_ignored():
            self.state.loss_scaled()

    # Optimizers ----------------------------------------------------------------------------------------------------

    @timed_hook("observing the start of an optimizer step")
    def step_started(self, optimizer: Any) -> None:
        """Handle that an optimizer is about to step."""
        # A step taken inside the backward pass may run in a thread of the autograd engine.
        if not self._is_in_backward and threading.get_ident() != self._thread_id and self._is_other_thread():
            return
        if self._is_marked_elsewhere():
            return
        state = self.state
        outputs = state.step_started(id(optimizer))
        if outputs:
            self._record(outputs)
        now_s = perf_counter()
        groups, current = optimizer.param_groups, state.current
        has_lr = current.records_values and groups
        state.update_started(now_s, self._integration.read_scalar(groups[0].get("lr")) if has_lr else None)
        is_norm_due = self.norm_every and current.norm is None and state.num_steps % self.norm_every == 0
        # With `grad_scale` the optimizer unscales the gradients itself, later.
        if is_norm_due and getattr(optimizer, "grad_scale", None) is None:
            state.norm_computed(self._integration.read_scalar(gradient_norm(groups)))

    @timed_hook("observing an optimizer step")
    def step_finished(self, optimizer: Any) -> None:
        """Handle that an optimizer has stepped."""
        state = self.state
        if state.stepping is None or (not self._is_in_backward and threading.get_ident() != self._thread_id):
            return  # its start was not observed
        now_s = perf_counter()
        self._last_optimizer = id(optimizer)
        outputs = state.step_finished(self._last_optimizer, now_s, is_iteration_marked(self._integration.run))
        self._thread_trains = state.has_seen_backward
        if outputs:
            self._record(outputs, optimizer)

    def count_step(self, iterations: SkippedIterations, optimizer: Any) -> None:
        """Count the step of an optimizer in a skipped iteration."""
        now_s = perf_counter()
        self.state.num_optimizer_steps += 1
        if id(optimizer) == self._last_optimizer:
            if iterations.count(now_s):
                self.resume_sampling(is_between_steps=True)
        elif now_s > iterations.start_s + _MAX_SKIP_S:  # the script uses another optimizer now
            self.resume_sampling()

    @guarded("skipping iterations")
    def _start_skipping(self) -> None:
        """Only count the iterations, from the current one to the last before the next that is recorded in detail."""
        state, flags = self.state, self.compiled_flags
        num_skippable = self.governor.num_skippable
        if num_skippable > 0 and state.can_skip and self._integration.can_skip and not flags.was_seen:
            start_s = state.current.began_s if state.current.began_s is not None else perf_counter()
            self.skipped_iterations = SkippedIterations(
                start_s, 1 + num_skippable, _NUM_HOOKS
            )  # the governor has counted the current one already

    @timed_hook("resuming sampling")
    def resume_sampling(self, *, is_between_steps: bool = False) -> None:
        """Record the iterations that were only counted, and observe again.

        Args:
            is_between_steps: whether the step of an optimizer has just ended an iteration.
        """
        iterations, self.skipped_iterations = self.skipped_iterations, None
        if iterations is None:
            return
        self._integration.add_iterations(iterations)
        stops_s = iterations.stops_s
        self.state.iterations_skipped(
            len(stops_s), stops_s[-1] if stops_s else iterations.start_s, is_between_steps=is_between_steps
        )

    @guarded("observing a skipped step")
    def step_skipped(self, optimizer: Any) -> None:
        """Handle that a step was skipped because gradients were not finite."""
        self.resume_sampling()
        is_watched = self.watched_ids is None or id(optimizer) in self.watched_ids
        if not is_watched or self.compiled_flags.ran_step or not self.state.has_seen_backward or self._is_ignored():
            return
        self._thread_trains = True
        is_manual = is_iteration_marked(self._integration.run)
        self._record(self.state.step_skipped(id(optimizer), perf_counter(), is_manual), optimizer)

    def _apply_compiled(self) -> None:
        """Pass on the flags that compiled code has set since the last event."""
        flags = self.compiled_flags
        flags.was_seen = flags.was_seen or flags.ran_backward or flags.ran_step
        if flags.ran_backward:
            flags.ran_backward = False
            self.state.compiled_backward_seen()
        if flags.ran_step:
            flags.ran_step = False
            for notify in self.on_compiled_step:
                notify()
            if self.state.has_seen_backward and not self._is_marked_elsewhere():
                self._thread_trains = True
                is_manual = is_iteration_marked(self._integration.run)
                self._record(self.state.compiled_step_seen(id(flags), perf_counter(), is_manual))

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, write: Callable[[], Any], path: Any) -> Any:
        """Call `write` and record it as a checkpoint, if it is the outermost save and training has begun."""
        self.resume_sampling()
        if (
            not self.state.has_stepped
            or self._is_saving
            or not self._integration.is_open
            or self._is_ignored()
            or is_inside(_SAVES)
        ):
            return write()
        self._is_saving = True
        span: Span | None = None
        error: BaseException | None = None
        with guard("observing a checkpoint"):
            self._apply_compiled()
            self._record(self.state.checkpoint_started())
            where = path if isinstance(path, (str, os.PathLike)) else getattr(path, "name", None)
            where = where if isinstance(where, (str, os.PathLike)) else None
            span = self._integration.begin_span(checkpoint_save(max(0, self.state.num_steps - 1), path=where))
        try:
            return write()
        except BaseException as exception:
            error = exception
            raise
        finally:
            self._is_saving = False
            with guard("observing the end of a checkpoint"):
                self._integration.end_span(span, error=error)
                self.state.checkpoint_finished(perf_counter())

    # Recording -----------------------------------------------------------------------------------------------------

    def _record(self, outputs: Sequence[Output], optimizer: Any = None) -> None:
        for output in outputs:
            match output:
                case Iteration():
                    self._record_iteration(output)
                case RunNeeded():
                    self._start_run(optimizer)
                case StepSkipped(step):
                    if self._integration.run is not None and self._integration.is_open:
                        reason = "gradients are not finite"
                        self._integration.run.event("optimizer_step_skipped", step=step, reason=reason)
                case EpochFinished(epoch, last_step):
                    if self._integration.run is not None and self._logs_values:
                        self._integration.run.log_epoch(epoch, step=last_step)
                case ValidationStarted(start_s):
                    self._validation = self._integration.begin_span(validation_loop(), start_s)
                case ValidationBatch(start_s, stop_s):
                    span = self._validation
                    if span is not None and span.recorder is not None and not span.recorder.is_closed:
                        name = Names.VALIDATION_SINGLE_ITERATION
                        span.recorder.add_finished_span(name, start_s, stop_s, span)
                case ValidationEnded(stop_s):
                    span, self._validation = self._validation, None
                    self._integration.end_span(span, at_s=stop_s)

    def _record_iteration(self, iteration: Iteration) -> None:
        integration = self._integration
        run = integration.run
        if run is None or iteration.step_s is None:
            return
        if not iteration.is_manual:
            began_s = iteration.step_s if iteration.began_s is None else iteration.began_s
            if not integration.is_in_loop:
                integration.begin_loop(iteration.step, start_s=began_s)
            integration.open_iteration(began_s)
            for start_s, stop_s in iteration.waits:
                integration.add_data_wait(start_s, stop_s)
            integration.end_iteration(iteration.step_s, marks=iteration.marks)
        if self._logs_values:
            values = self._values_of(iteration)
            if values or (self.logged_by_script and iteration.records_values):
                before, self._last_logged = self._last_logged, (iteration.step, iteration.step_s)
                # Without a loader, a step is logged when the next one starts, and the last one when the run ends.
                # A script that logs all values itself logs them at any moment of a step: the pace is ours to log.
                if (self._is_closing or not values) and before is not None and iteration.step > before[0]:
                    values["sec_per_step"] = (iteration.step_s - before[1]) / (iteration.step - before[0])
            if values:
                run.log(values, step=iteration.step)
                self._own_row_at = perf_counter()
                self.governor.values_handled()
        if self._controls_run and self.method == "inferred":
            run.reject_requests(_NO_CONTROL)
        if not iteration.is_manual and len(iteration.stepped) > 0:
            self._start_skipping()

    @property
    def _controls_run(self) -> bool:
        """Whether the run is ours, or one of a script that does not know of us."""
        integration = self._integration
        return integration.owns_run or (integration.run is not None and self.is_script_run(integration.run))

    @property
    def _logs_values(self) -> bool:
        return self._controls_run or self.logs_into_any

    def _values_of(self, iteration: Iteration) -> dict[str, Any]:
        """Return the metrics of an iteration that the script does not log itself."""
        values: dict[str, Any] = {}
        parts = iteration.parts
        if len(parts) > 1 or (parts and (self._has_several_losses or len(self.names) > 1)):
            values = self._values_of_optimizers(iteration)
        else:
            if iteration.records_values and (loss := sum_losses(iteration.losses)) is not None:
                values["train_loss"] = loss
            if iteration.lr is not None:
                values["lr"] = iteration.lr
        if iteration.norm is not None:
            values["grad_norm"] = iteration.norm
        if self._integration.run is not None:
            self._names_of_others |= _STEP_METRICS & self._integration.run.names_logged_since(self._own_row_at)
        if self.logged_by_script or self._names_of_others:
            values = {name: value for name, value in values.items() if not self._is_logged_by_script(name)}
        return values

    def _is_logged_by_script(self, name: str) -> bool:
        general = {"loss": "train_loss", "lr": "lr"}.get(name.partition("/")[0], name)
        return general in self.logged_by_script or general in self._names_of_others

    def _values_of_optimizers(self, iteration: Iteration) -> dict[str, Any]:
        """Return the loss and the learning rate of each optimizer: `loss/0`, or `loss/generator` if it has a name.

        Optimizers that step on the same loss, such as one for matrices and one for the rest, have one `train_loss`.
        """
        values: dict[str, Any] = {}
        losses_by_name: dict[str, list[Any]] = {}
        optimizers = {part.optimizer for part in iteration.parts}
        if not self.names and len(optimizers) > 1 and optimizers.isdisjoint(self._optimizer_order):
            self._optimizer_order |= {part.optimizer: index for index, part in enumerate(iteration.parts)}
            self._variable_names |= optimizer_names(sys._getframe(1), optimizers)
        start = 0
        for part in iteration.parts:
            name = self.names.get(part.optimizer) or self._variable_names.get(part.optimizer)
            if name is None:
                name = str(self._optimizer_order.setdefault(part.optimizer, len(self._optimizer_order)))
            losses_by_name[name] = iteration.losses[start : part.num_losses]
            start = part.num_losses
            if part.lr is not None:
                values[f"lr/{name}"] = part.lr
        if not iteration.records_values:
            return values
        if (
            1
            <= len(iteration.waits)
            < len(iteration.losses)
            == len(losses_by_name)
            == len(next(iter(losses_by_name.values())))
        ):
            # All backward passes came first, several on one batch: these are not accumulated but different losses.
            losses_by_name = {name: [loss] for name, loss in zip(losses_by_name, iteration.losses, strict=True)}
        num_with_loss = sum(1 for losses in losses_by_name.values() if losses)
        self._has_several_losses = self._has_several_losses or num_with_loss > 1
        if self._has_several_losses or (len(losses_by_name) < len(self.names)):
            for name, losses in losses_by_name.items():
                if (loss := sum_losses(losses)) is not None:
                    values[f"loss/{name}"] = loss
        elif (loss := sum_losses(iteration.losses)) is not None:
            values["train_loss"] = loss
        return values

    def _start_run(self, optimizer: Any = None) -> None:
        """Find the run, or start one."""
        if self._cannot_start:
            return
        integration = self._integration
        if integration.run is not None and not integration.is_open:
            # It has ended: follow another run that is live, but do not start one.
            live = latest_run()
            if self._options.run is not None or live is None or live.status != "running" or live._is_forked:
                return
        self._cannot_start = True  # until it has started: do not retry at every step
        facts = {"optimizer": type(optimizer).__name__ if optimizer is not None else None, **self.facts}
        run = integration.begin(method=self.method, version=sys.modules["torch"].__version__, facts=facts)
        self._cannot_start = False
        recorder_of(run).row_step = lambda: self.row_step
        integration.call_before_end(self.close)
        first_step = _steps_by_run.get(run, 0)
        if run.resumed:
            with guard("counting the steps before the run was resumed"):
                first_step = steps_completed(run, optimizer)
        self.state.recording_started(first_step, perf_counter())

    @guarded("closing the observer of the loop")
    def close(self) -> None:
        """Record the iterations not recorded yet. The run is still running afterwards."""
        self.resume_sampling()
        if not self._integration.is_open and self.state.is_recording:
            self.state.recording_stopped()
        self._apply_compiled()
        is_manual = not self.state.observes_steps and self._is_batch_marked()
        self._is_closing = True
        self._record(self.state.loop_ended(perf_counter(), is_manual=is_manual))
        self._is_closing = False
        self._integration.end_loop()
        self._integration.detach(self.close)
        if self._integration.run is not None:
            _steps_by_run[self._integration.run] = self.state.num_steps
