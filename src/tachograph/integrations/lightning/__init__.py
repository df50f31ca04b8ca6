"""Lightning 2, as `lightning.pytorch` and as `pytorch_lightning`: a callback that records a run, and a logger.

Both work with a trainer of either package: see `_bases` for how.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from tachograph._base.guard import guard, guarded_callback
from tachograph.exceptions import ConfigError, TachographError
from tachograph.integrations._common.job import ASK_EVERY, Asked, Names, Plan, is_interactive
from tachograph.integrations.lightning._bases import Joining
from tachograph.integrations.lightning._facts import job_parameters
from tachograph.integrations.lightning._logger import TachographLogger, named_for
from tachograph.integrations.lightning._session import Session
from tachograph.integrations.lightning._steps import LoggedMetrics, Steps
from tachograph.integrations.lightning._watch import watch_checkpoints, watch_clipping, watch_fetching
from tachograph.recorder import Run
from tachograph.spans import Span, SpanScope, recorder_of, testing_loop, timed_span, validation_loop

__all__ = ["TachographCallback", "TachographLogger"]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _hook(function: _Function) -> _Function:
    """Keep a fault of ours from the trainer, and do nothing where another callback of ours is at work."""
    call = guarded_callback("Lightning")(function)

    @functools.wraps(function)
    def safely(self: TachographCallback, *arguments: Any, **named: Any) -> None:
        if not self._is_idle:
            call(self, *arguments, **named)

    return safely  # type: ignore[return-value]


class _EvaluationHooks(Joining):
    """What is seen of validation, test and prediction."""

    _session: Session
    _metrics: LoggedMetrics
    _is_idle: bool
    _evaluation: Span | None
    _batch_s: float

    def _begin_evaluation(self, trainer: Any, span: SpanScope) -> None:
        self._metrics.pass_over(trainer)
        run = self._session.run
        if run is None or recorder_of(run).find_open(span.name) is not None:  # marked by hand
            return
        self._evaluation = self._session.job.begin_span(span)

    def _end_evaluation(self, trainer: Any, error: BaseException | None = None) -> dict[str, Any]:
        span, self._evaluation = self._evaluation, None
        self._session.job.end_span(span, error=error)
        if self._session.steps is not None and span is not None and span.start_s is not None:
            self._session.steps.pause(span.start_s)
        return self._metrics.take(trainer)

    def _batch_done(self, name: Names) -> None:
        span = self._evaluation
        if span is not None and span.recorder is not None and not span.recorder.is_closed:
            span.recorder.add_finished_span(name, self._batch_s, perf_counter(), span)

    @_hook
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation begins, or the check before training that it works."""
        self._settle(trainer)
        if self._session.run is None:  # else the user may have ended it
            self._begin(trainer, pl_module)
        self._begin_evaluation(trainer, validation_loop())
        if trainer.sanity_checking and self._evaluation is not None:
            self._evaluation.add_attribute("sanity_check", True)

    @_hook
    def on_validation_batch_start(self, *_arguments: Any, **_named: Any) -> None:
        """A batch of a validation begins."""
        self._batch_s = perf_counter()

    @_hook
    def on_validation_batch_end(self, trainer: Any, *_arguments: Any, **_named: Any) -> None:
        """A batch of a validation is done."""
        if not trainer.sanity_checking:
            self._batch_done(Names.VALIDATION_SINGLE_ITERATION)

    @_hook
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """A validation is done, and its results are known."""
        found = self._end_evaluation(trainer)
        session = self._session
        if found and session.run is not None and not trainer.sanity_checking:
            metrics = named_for("val", found)
            session.run.log_validation(metrics, step=session.step, epoch=trainer.current_epoch, prefix="")

    @_hook
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """A test begins."""
        self._begin(trainer, pl_module)
        self._begin_evaluation(trainer, testing_loop())

    @_hook
    def on_test_batch_start(self, *_arguments: Any, **_named: Any) -> None:
        """A batch of a test begins."""
        self._batch_s = perf_counter()

    @_hook
    def on_test_batch_end(self, *_arguments: Any, **_named: Any) -> None:
        """A batch of a test is done."""
        self._batch_done(Names.TESTING_SINGLE_ITERATION)

    @_hook
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """A test is done, and its results are known."""
        found = self._end_evaluation(trainer)
        session = self._session
        if found and session.run is not None:
            session.run.log_test(named_for("test", found), step=session.step, prefix="")

    @_hook
    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """A prediction begins."""
        self._begin(trainer, pl_module)
        self._begin_evaluation(trainer, timed_span("prediction_loop"))

    @_hook
    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """A prediction is done."""
        self._end_evaluation(trainer)

    def _begin(self, trainer: Any, module: Any) -> None:
        raise NotImplementedError

    def _settle(self, trainer: Any) -> None:
        raise NotImplementedError


class TachographCallback(_EvaluationHooks):
    """Records what a `Trainer` does: ``Trainer(callbacks=[TachographCallback("greyjacket")])``.

    A run that goes on is used; else one is begun, and ends with the process. A fit that goes on from a checkpoint
    continues the run that saved it.

    Args:
        name: the name of the run.
        run: the run to record into, if it is not the current one.
        grad_norm_every: work out the gradient norm every so many steps where nothing is clipped; 0: never. It reads
            all gradients, which takes the device time. The norm that clipping works out is recorded anyway.
        settings: settings of the run, as `tachograph.init` takes them.

    Raises:
        ConfigError: for a setting that does not exist, or if Lightning is not installed.
        RunNameError: for a name that cannot be a folder.
    """

    _lightning_path = "Callback"

    def __init__(
        self, name: str | None = None, *, run: Run | None = None, grad_norm_every: int = 0, **settings: Any
    ) -> None:
        super().__init__()
        if not isinstance(grad_norm_every, int) or grad_norm_every < 0:
            raise ConfigError(f"grad_norm_every={grad_norm_every!r}: a whole number of steps is expected, 0 for never")
        self._session = Session(Plan(run, name, settings))
        self._grad_norm_every = grad_norm_every
        self._reset()

    def _reset(self) -> None:
        self._is_idle = False
        self._metrics = LoggedMetrics()
        self._pending: dict[str, Any] | None = None
        self._epoch: int | None = None
        self._is_epoch_over = False
        self._epoch_end_s: float | None = None
        self._evaluation: Span | None = None
        self._batch_s = 0.0
        self._stop_fetching: Callable[[], None] = _nothing

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, as with a strategy that spawns: the run stays here."""
        return {"_session": self._session, "_grad_norm_every": self._grad_norm_every}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    @property
    def run(self) -> Run | None:
        """The run that is recorded into, once it has begun."""
        return self._session.run

    @property
    def default_name(self) -> str | None:
        """The name of the run if the user chose none."""
        return self._session.default_name

    @default_name.setter
    def default_name(self, name: str | None) -> None:
        self._session.default_name = name

    def finish(self) -> None:
        """End the run now, if it was begun by this callback; otherwise it ends with the process."""
        self._session.job.finish()

    # Beginning and end ---------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The trainer begins to fit, validate, test or predict."""
        others = [one for one in trainer.callbacks if isinstance(one, TachographCallback)]
        self._is_idle = bool(others) and others[0] is not self  # the first sees everything
        if self._is_idle:
            return
        with guard("setting up"):
            _put_first(trainer, self)
            self._join_logger(trainer)
            self._session.use(trainer, fits=_value(stage) == "fit")
            watch_checkpoints(trainer, self._session)
        if _value(stage) != "fit":  # a fit may continue a run, which its checkpoint tells later
            self._begin(trainer, pl_module)

    def _join_logger(self, trainer: Any) -> None:
        """Share one session with the trainer's logger of ours, if it has one."""
        for logger in trainer.loggers:
            if isinstance(logger, TachographLogger):
                self._session = logger._session = self._session.join(logger._session)
        self._session.has_callback = True

    def _begin(self, trainer: Any, module: Any) -> None:
        """Begin the run, or find it. A mistake in its settings is raised: nothing was trained yet."""
        mistake: TachographError | None = None
        with guard("beginning a run"):
            try:
                self._session.begin(trainer, module)
            except TachographError as error:
                mistake = error
        if mistake is not None:
            raise mistake

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """A fit begins; a checkpoint is loaded, except with strategies that do so later."""
        if not self._is_idle and not getattr(trainer.strategy, "restore_checkpoint_after_setup", False):
            self._begin(trainer, pl_module)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Whether validation works is about to be tried."""
        if not self._is_idle:
            self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins, or goes on."""
        if not self._is_idle:
            self._begin(trainer, pl_module)
            self._begin_training(trainer, pl_module)

    @_hook
    def _begin_training(self, trainer: Any, module: Any) -> None:
        session, job = self._session, self._session.job
        self._pending, self._is_epoch_over, self._epoch_end_s = None, False, None
        done = session.take_steps_loaded()
        if module.automatic_optimization or (done is None and session.num_steps == 0):
            done = trainer.global_step
        session.num_steps = session.num_steps if done is None else done
        parameters = self._job_parameters(trainer)
        job.configure(**parameters)
        job.begin_loop(session.num_steps, parameters.get("train_iterations_target"))
        session.steps = steps = Steps(
            job,
            is_cuda=trainer.strategy.root_device.type == "cuda",
            global_step=trainer.global_step,
            batch_size=parameters.get("global_batch_size"),
            grad_norm_every=self._grad_norm_every,
        )
        self._stop_fetching()
        self._stop_fetching = watch_fetching(trainer, steps, lambda: self._settle(trainer))
        watch_clipping(trainer, steps)
        self._metrics.pass_over(trainer)

    def _job_parameters(self, trainer: Any) -> dict[str, Any]:
        return job_parameters(trainer)

    @_hook
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        self._end_training(trainer, None)

    def _end_training(self, trainer: Any, error: BaseException | None) -> None:
        self._settle(trainer)
        self._stop_fetching()
        self._stop_fetching, self._session.steps = _nothing, None
        self._session.job.end_loop(error)

    @_hook
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """What the trainer was asked to do is done."""
        self._session.job.finish_if_interactive()

    @_hook
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Something raised, and the trainer gives up; whoever called it may yet go on."""
        is_ours = isinstance(exception, TachographError) and not self._session.is_open
        if is_ours or self._session.trainer is not trainer:
            return  # it gave up before anything began
        self._begin(trainer, pl_module)
        job, run = self._session.job, self._session.run
        was_inside = self._evaluation is not None or job.is_in_loop
        if self._evaluation is not None:
            self._end_evaluation(trainer, exception)
        self._end_training(trainer, exception)
        if run is not None and not was_inside and isinstance(exception, Exception):
            run.log_error(exception, where=f"trainer.{_value(trainer.state.fn)}")
        if isinstance(exception, KeyboardInterrupt) or is_interactive():
            job.finish(exception)  # the trainer exits after the one, and nobody else hears of the others

    # Epochs and steps ----------------------------------------------------------------------------------------------

    @_hook
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An epoch begins."""
        self._settle(trainer)
        self._epoch = trainer.current_epoch
        steps = self._session.steps
        if steps is not None:
            steps.begin_epoch()
            if self._epoch_end_s is not None:
                steps.pause(self._epoch_end_s)

    @_hook
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch is done; its means are worked out after this."""
        self._settle(trainer)
        self._metrics.pass_over(trainer)
        self._epoch, self._is_epoch_over, self._epoch_end_s = trainer.current_epoch, True, perf_counter()

    @_hook
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch is on its device."""
        if self._pending is not None:
            self._settle(trainer)
        if self._session.steps is not None:
            self._session.steps.batch_begins()

    @_hook
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The loss is there."""
        if self._session.steps is not None:
            self._session.steps.backward_begins()

    @_hook
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The gradients are there."""
        if self._session.steps is not None:
            self._session.steps.backward_ended()

    @_hook
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if self._session.steps is not None:
            optimizers = trainer.optimizers
            place = next((place for place, one in enumerate(optimizers) if one is optimizer), 0)
            self._session.steps.step_begins(optimizer, place, is_single=len(optimizers) == 1)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any = None, batch_idx: int = 0
    ) -> None:
        """A batch is done, and perhaps a step."""
        session, steps = self._session, self._session.steps
        if self._is_idle or steps is None:
            return
        before = session.num_steps
        with guard("a batch is done"):
            accumulation = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            known = steps.batch_ended(outputs, trainer.global_step, accumulation)
            if known is not None:
                session.num_steps += 1
                self._pending = known
        if session.num_steps != before:
            self._steer(trainer)

    def _settle(self, trainer: Any) -> None:
        """Record the last step, and the last epoch, now that all that was logged of it is there."""
        pending, self._pending = self._pending, None
        session, run = self._session, self._session.run
        if pending is not None and run is not None:
            every = trainer.log_every_n_steps
            is_due = trainer.fast_dev_run or trainer.should_stop or (every > 0 and session.num_steps % every == 0)
            theirs = self._metrics.take(trainer) if is_due else self._metrics.take_named(trainer, pending)
            run.log({**pending, **theirs, "epoch": self._epoch}, step=session.step)
        if self._is_epoch_over and run is not None and pending is None:
            self._is_epoch_over = False
            run.log_epoch(self._epoch or 0, self._metrics.take(trainer), step=session.step)

    # What is asked of it -------------------------------------------------------------------------------------------

    def _steer(self, trainer: Any) -> None:
        """Do what was asked: all ranks at the same step, whatever a rank could not record."""
        session, run = self._session, self._session.run
        asked = Asked(stop=False, checkpoint=False)
        with guard("hearing what is asked"):
            if trainer.world_size > 1:
                every = min(trainer.log_every_n_steps or ASK_EVERY, ASK_EVERY)
                if session.num_steps % every == 0:
                    asked = session.job.asked()
            elif run is not None:
                asked = Asked(run.should_stop, run.should_checkpoint)
        if asked.checkpoint:
            with guard("saving the checkpoint that was asked for"):
                trainer.save_checkpoint(_place_for(trainer))
        if asked.stop:
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is put together."""
        if not self._is_idle:
            with guard("marking a checkpoint"):
                self._session.mark_checkpoint(checkpoint)


def _put_first(trainer: Any, callback: TachographCallback) -> None:
    """Put it before all other callbacks: what they do is then no part of a step, and a step that is saved is done."""
    if trainer.callbacks[0] is not callback:
        others = [one for one in trainer.callbacks if one is not callback]
        trainer.callbacks = [callback, *others]  # a new list: somebody is going through the old one


def _place_for(trainer: Any) -> str:
    """Return where to save a checkpoint that was asked for: beside the others, else where the trainer keeps things."""
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    folder = folder or os.path.join(trainer.default_root_dir, "checkpoints")
    return os.path.join(folder, f"asked-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")


def _value(name: Any) -> str:
    return str(getattr(name, "value", name))


def _nothing() -> None:
    """Do nothing."""
