"""Follows a plain PyTorch loop by what it calls: the loader for a batch, `backward`, the optimizer's `step`.

Nothing but these boundaries is looked at, for hooks in every module would cost more than they tell. Between the arrival
of a batch and `backward` lies the forward pass; an iteration ends with the last step of an optimizer before the next
batch is asked for, or before an optimizer steps a second time. So accumulated batches are one iteration, and so are the
steps that the two optimizers of a GAN take on a batch. Batches that are asked for while gradients are off are those of
a validation, and so is all that a loader gives without a `backward` while training goes on.

All of it is called by the training thread, and none of it may raise or wait.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard, guarded
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.iteration import (
    Compiled,
    Iteration,
    gradient_norm,
    loss_of,
    number_of,
    steps_before,
    total_of,
)
from tachograph.integrations._common.job import Job, Names, Plan
from tachograph.integrations._common.manual_spans import is_inside, is_marked_by_hand
from tachograph.integrations._common.validation import Validation
from tachograph.recorder import Run, latest_run
from tachograph.spans import Span, TrainingRecorder, checkpoint_save, current_span

__all__ = ["Observer", "share", "shared"]

_ITERATION = Names.TRAINING_SINGLE_ITERATION
_SAVES = frozenset({Names.CHECKPOINT_SAVE_SYNC, Names.CHECKPOINT_SAVE_ASYNC})

_shared: list[Observer] = []

_steps_seen: weakref.WeakKeyDictionary[Run, int] = weakref.WeakKeyDictionary()
"""Of each run, the steps that were seen by one that looks no more: the next goes on there."""


def shared() -> Observer | None:
    """Return what follows this process's loop: that of `tacho run`, or the first that `watch` or `track` made."""
    return _shared[0] if _shared else None


def share(observer: Observer | None) -> None:
    """Let one follow this process's loop, or none."""
    _shared[:] = [observer] if observer is not None else []


class Observer:
    """What is known of the loop at the moment.

    Args:
        plan: what to begin a run with, where none goes on.
        method: how training is observed: what the run says of it.
        logs_into_any: whether loss, learning rate and gradient norm are logged also into a run that the script began
            itself, which then may log them, too.
    """

    def __init__(self, plan: Plan, *, method: str, logs_into_any: bool) -> None:
        self.method = method
        self.logs_into_any = logs_into_any
        self._plan = plan
        self._job = Job("pytorch", plan)
        self._cannot_begin = False
        self._thread: int | None = None
        """The one that trains; the last that was heard of, as long as none does."""
        self._trainer: threading.Thread | None = None
        self._trains = False
        self._is_cuda = False
        self._now = Iteration(None, is_cuda=False)
        self._after: Iteration | None = None
        """What came after its last step: of the next one, unless another optimizer steps first."""
        self._validation = Validation()
        self._stepping: int | None = None
        """The optimizer whose step goes on."""
        self._is_waiting = False
        self._is_saving = False
        self._is_backward = False
        self._has_learnt = False
        """Whether there was a backward pass: before, a step of an optimizer is no training."""
        self._taken: list[list[Any]] = []
        """Where the loss of the backward pass that goes on was put."""
        self._num_epochs = 0
        self._epoch_step = 0
        """The step at which the epoch began."""
        self._num_batches = 0
        """Batches of the present pass over the data."""
        self._num_idle = 0
        """Those of them that came since the last backward pass."""
        self.compiled = Compiled()
        self.sees_steps = False
        """Whether steps of optimizers are told; without them an iteration is a batch."""
        self.watched: set[int] | None = None
        """The optimizers that are watched, by their ids; None: all."""
        self.facts: dict[str, Any] = {}
        """What is known of the model."""
        self.norm_every = 0
        self.num_steps = 0
        """Iterations seen."""
        self.num_optimizer_steps = 0
        """Steps of optimizers seen, whichever they were."""

    @property
    def has_begun(self) -> bool:
        """Whether it has found or begun its run."""
        return self._job.run is not None

    def use(self, run: Run) -> None:
        """Record into a run from now on.

        Raises:
            ConfigError: if it already records into another one that goes on.
        """
        if self._job.is_open and self._job.run is not run:
            assert self._job.run is not None  # noqa: S101 - it is open
            raise ConfigError(
                f"run={run.name!r}: the loop is recorded into {self._job.run.name!r}, which goes on; "
                "finish that first, or close what watches it"
            )
        if self._job.run is not run:
            self._plan = Plan(run, None, {})
            self._job = Job("pytorch", self._plan)
            self._num_epochs = self._epoch_step = self.num_steps = 0

    # Whether to look -----------------------------------------------------------------------------------------------

    def _is_other_thread(self) -> bool:
        """Tell whether this is another thread than the one that trains: the first whose optimizer steps."""
        here = threading.get_ident()
        if here == self._thread:
            return False
        if self._trains and self._trainer is not None and self._trainer.is_alive():
            return True
        if self._thread is not None:  # it has ended, or has learnt nothing: what was seen of it is not of this one
            self._now, self._after = Iteration(None, self._is_cuda), None
        self._thread, self._trainer, self._trains = here, threading.current_thread(), False
        return False

    def _is_elsewhere(self) -> bool:
        """Tell whether this is another thread than the one that trains, or something else marks the iterations."""
        return self._is_other_thread() or self._is_driven()

    def _is_driven(self) -> bool:
        """Tell whether something else marks the iterations."""
        run = self._job.run
        if run is None or run.status != "running":
            run = latest_run()
        recorder = run.span_recorder if run is not None else None
        return isinstance(recorder, TrainingRecorder) and recorder.driver not in {None, "pytorch"}

    def _part(self) -> Iteration:
        return self._after if self._after is not None else self._now

    def _restart(self, began_s: float | None = None) -> None:
        """Forget what came since the last iteration, for it was something else; gradients are kept in mind."""
        if not self._now.losses:
            self._now = Iteration(began_s, self._is_cuda)
            if began_s is not None:
                self._now.marks.mark(None)

    # Batches -------------------------------------------------------------------------------------------------------

    def fetch(self, get: Callable[[], Any]) -> Any:
        """Get a batch and time it. What `get` raises passes; `StopIteration` ends an epoch, or a validation."""
        if self._is_waiting or self._is_elsewhere():
            return get()
        self._is_waiting = True
        start_s = perf_counter()
        self._batch_asked(start_s)
        try:
            batch = get()
        except StopIteration:
            self._loader_ended()
            raise
        finally:
            self._is_waiting = False
        self._batch_came(start_s, perf_counter())
        return batch

    @guarded("seeing a batch asked for")
    def _batch_asked(self, now_s: float) -> None:
        self._hear_compiled()
        if self._now.step_s is not None:
            self._end_iteration()
        self._stepping = None
        if not sys.modules["torch"].is_grad_enabled():
            if self._validation.is_open:
                self._validation.batch_done(now_s)
            else:
                self._validation.begin(self._job, now_s)
        elif self._validation.is_open:
            self._validation.batch_done(now_s)
            self._end_validation(now_s)
        elif not self.sees_steps:
            self._end_batch(now_s)

    @guarded("seeing a batch")
    def _batch_came(self, start_s: float, now_s: float) -> None:
        if self._validation.is_open or not sys.modules["torch"].is_grad_enabled():
            return
        now = self._now
        if now.began_s is None:
            now.began_s = start_s
        self._num_batches += 1
        self._num_idle += 1
        now.wait(start_s, now_s)
        now.marks.mark(None)
        if not self.sees_steps and not self._job.is_open:
            self._begin()

    @guarded("seeing the end of the data")
    def _loader_ended(self) -> None:
        now_s = perf_counter()
        if self._validation.is_open:
            self._end_validation(now_s)
            return
        if not sys.modules["torch"].is_grad_enabled():
            return
        num_batches, self._num_batches = self._num_batches, 0
        num_idle, self._num_idle = self._num_idle, 0
        if self.sees_steps and num_batches and num_idle == num_batches:
            starts = [start_s for start_s, _ in self._now.waits[-num_idle:]]
            self._validation.begin(self._job, starts[0])
            for next_s in (*starts[1:], now_s):
                self._validation.batch_done(next_s)
            self._end_validation(now_s)
        elif self.num_steps > self._epoch_step:
            self._num_epochs += 1
            self._epoch_step = self.num_steps
            if self._job.run is not None and (self._job.owns_run or self.logs_into_any):
                self._job.run.log_epoch(self._num_epochs, step=self.num_steps - 1)
        self._restart()

    def _end_batch(self, now_s: float) -> None:
        """End the iteration that a batch is where nobody tells of steps."""
        if self._now.began_s is not None and self._now.waits:
            latest = current_span.get()  # stays what it is when it ends
            since_s = latest.start_s if latest is not None and latest.name is _ITERATION else None
            is_recent = since_s is not None and since_s >= self._now.began_s
            self._now.is_by_hand = is_recent or is_marked_by_hand(self._job.run)
            self._now.step_s = now_s
            self._end_iteration()

    def _end_validation(self, now_s: float) -> None:
        if self._validation.is_open:
            self._validation.end(self._job, now_s)
            self._restart()

    # Backward ------------------------------------------------------------------------------------------------------

    def backward(self, run_backward: Callable[[], Any], loss: Any) -> Any:
        """Run the backward pass and time it. Those inside another, as of recomputed activations, are a part of it."""
        if self._is_backward or self._is_elsewhere():
            return run_backward()
        self._is_backward = True
        self._taken.clear()
        self._backward_begins(loss)
        try:
            result = run_backward()
        except BaseException:
            for losses in self._taken:
                losses.pop()  # it may be tried again
            raise
        finally:
            self._is_backward = False
            self._backward_ended()
        return result

    @guarded("seeing the backward pass")
    def _backward_begins(self, loss: Any) -> None:
        self._hear_compiled()
        if not self._has_learnt:
            self._has_learnt = True
            first = loss[0] if isinstance(loss, (list, tuple)) and loss else loss
            self._is_cuda = getattr(getattr(first, "device", None), "type", "cpu") == "cuda"
            self._now.mark_on(is_cuda=self._is_cuda)
        part = self._part()
        if part.began_s is None:
            part.began_s = perf_counter()
        self._num_idle = 0
        part.marks.mark(Names.MODEL_FORWARD)
        # An optimizer that evaluates the loss several times in a step takes the step for the first of them.
        if self._stepping is None or not part.losses:
            self._taken += part.lose(loss_of(loss, is_scaled=part.is_scaled))

    @guarded("seeing the end of the backward pass")
    def _backward_ended(self) -> None:
        self._part().marks.mark(Names.MODEL_BACKWARD)

    def _begin(self, optimizer: Any = None) -> None:
        """Find the run, or begin it, with the first thing that only training does."""
        if self._cannot_begin:
            return
        if self._job.run is not None:  # it has ended: only another that goes on is taken, and none begun in its place
            live = latest_run()
            if self._plan.run is not None or live is None or live.status != "running" or live._is_forked:
                return
            self._num_epochs = self._epoch_step = self.num_steps = 0
        self._cannot_begin = True  # until it has: what failed is not tried again at every step
        is_known = optimizer is not None and optimizer is not self.compiled
        facts = {"optimizer": type(optimizer).__name__ if is_known else None, **self.facts}
        run = self._job.begin(method=self.method, version=sys.modules["torch"].__version__, facts=facts)
        self._cannot_begin = False
        self._job.before_end(self.close)
        if self.num_steps == 0:
            self.num_steps = self._epoch_step = _steps_seen.get(run, 0)
        if run.resumed:
            self.num_steps = self._epoch_step = steps_before(run, optimizer)

    # The optimizer -------------------------------------------------------------------------------------------------

    @guarded("seeing an optimizer begin a step")
    def step_begins(self, optimizer: Any) -> None:
        """Hear that an optimizer is about to step."""
        # One that is taken inside the backward pass may be in a thread of the device's.
        if (not self._is_backward and self._is_other_thread()) or self._is_driven():
            return
        self._place_step(optimizer)
        if self._stepping is None:
            self._stepping = id(optimizer)
        now = self._now
        now.marks.mark(None)
        groups = optimizer.param_groups
        now.lr = number_of(groups[0].get("lr")) if groups else None
        is_due = self.norm_every and now.norm is None and self.num_steps % self.norm_every == 0
        if is_due and getattr(optimizer, "grad_scale", None) is None:  # else it unscales the gradients itself, later
            now.norm = number_of(gradient_norm(groups))

    @guarded("seeing an optimizer step")
    def step_ended(self, optimizer: Any) -> None:
        """Hear that an optimizer has stepped."""
        if self._stepping is None or (not self._is_backward and threading.get_ident() != self._thread):
            return  # its beginning was not heard
        if self._stepping == id(optimizer):
            self._stepping = None
        self.num_optimizer_steps += 1
        if not self._has_learnt:
            return
        self._now.marks.mark(Names.OPTIMIZER_UPDATE)
        self._stepped(optimizer)

    def _place_step(self, optimizer: Any) -> None:
        """Find out to which iteration a step belongs: a second one of the same optimizer is of the next."""
        if self._after is None:
            return
        if id(optimizer) in self._now.stepped:
            self._end_iteration()
        else:
            self._now.join(self._after)
            self._after = None

    def _hear_compiled(self) -> None:
        """Take what could not be told when it was done."""
        compiled = self.compiled
        if compiled.has_learnt:
            compiled.has_learnt = False
            self._has_learnt, self._num_idle = True, 0
        if compiled.has_stepped:
            compiled.has_stepped = False
            if self._has_learnt and not self._is_driven():
                self._place_step(compiled)
                self._stepped(compiled)

    def _stepped(self, optimizer: Any) -> None:
        self._trains = True
        now = self._now
        now.stepped.add(id(optimizer))
        now.step_s = after_s = perf_counter()
        now.is_by_hand = now.is_by_hand or is_marked_by_hand(self._job.run)
        if not self._job.is_open:
            self._begin(optimizer)
            after_s = perf_counter()  # what it takes to begin is no part of the next iteration
        self._after = Iteration(after_s, self._is_cuda)
        self._after.marks.mark(None)

    @guarded("seeing a gradient norm")
    def norm_known(self, norm: Any) -> None:
        """Hear of the norm of all gradients, from who has clipped them."""
        if not self._is_elsewhere() and self._part().norm is None:
            self._part().norm = number_of(norm)

    @guarded("seeing a loss scaled")
    def loss_scaled(self) -> None:
        """Hear that a loss was scaled, so that what is scaled and cannot be told from it is not taken for it."""
        if not self._is_elsewhere():
            self._part().is_scaled = True

    @guarded("seeing a skipped step")
    def step_skipped(self, optimizer: Any) -> None:
        """Hear that the gradients were not finite, and no step was taken because of it: an iteration all the same."""
        is_ours = self.watched is None or id(optimizer) in self.watched
        if not is_ours or self.compiled.has_stepped or not self._has_learnt or self._is_elsewhere():
            return
        self._place_step(optimizer)
        step = self.num_steps
        self._stepped(optimizer)
        if self._job.run is not None and self._job.is_open:
            self._job.run.event("optimizer_step_skipped", step=step, reason="gradients are not finite")

    def _end_iteration(self) -> None:
        now = self._now
        self._now, self._after = self._after or Iteration(now.step_s, self._is_cuda), None
        run = self._job.run
        if run is None or not self._job.is_open or now.step_s is None:
            return
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if not now.is_by_hand:
            began_s = now.step_s if now.began_s is None else now.began_s
            if not self._job.is_in_loop:
                self._job.begin_loop(step, start_s=began_s)
            self._job.begin_iteration(began_s)
            for start, stop in now.waits:
                self._job.phase(Names.DATA_LOADING, start, stop)
            self._job.end_iteration(now.step_s, marks=now.marks)
        known = {"train_loss": total_of(now.losses), "lr": now.lr, "grad_norm": now.norm}
        known = {name: value for name, value in known.items() if value is not None}
        if known and (self._job.owns_run or self.logs_into_any):
            run.log(known, step=step)
        if self._job.owns_run and self.method == "inferred":
            run.reject_requests(
                "nothing in this script looks at it: a plain loop is only watched; send it a signal instead"
            )

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, write: Callable[[], Any], path: Any) -> Any:
        """Let something be saved; the outermost save since training began is a checkpoint."""
        has_stepped = self.num_steps > 0 or self._now.step_s is not None
        if not has_stepped or self._is_saving or not self._job.is_open or self._is_elsewhere() or is_inside(_SAVES):
            return write()
        self._is_saving = True
        span: Span | None = None
        error: BaseException | None = None
        with guard("seeing a checkpoint"):
            self._hear_compiled()
            if self._now.step_s is not None:
                self._end_iteration()
            where = path if isinstance(path, (str, os.PathLike)) else getattr(path, "name", None)
            where = where if isinstance(where, (str, os.PathLike)) else None
            span = self._job.begin_span(checkpoint_save(max(0, self.num_steps - 1), path=where))
        try:
            return write()
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._is_saving = False
            with guard("seeing the end of a checkpoint"):
                self._job.end_span(span, error=error)
                self._restart(perf_counter())

    # The end -------------------------------------------------------------------------------------------------------

    @guarded("ending what was observed")
    def close(self) -> None:
        """Record what is left; the run goes on."""
        self._hear_compiled()
        self._end_validation(perf_counter())
        if self._now.step_s is not None:
            self._end_iteration()
        elif not self.sees_steps:
            self._end_batch(perf_counter())
        self._job.end_loop()
        self._job.let_go(self.close)
        if self._job.run is not None:
            _steps_seen[self._job.run] = self.num_steps
