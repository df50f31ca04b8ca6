"""`TachographCallback`: the hooks of a Lightning callback for setup, training and checkpoints.

A step is recorded one hook late: when `on_train_batch_end` is called, Lightning has not computed the metrics that the
module logged for the batch. So the metrics of a step stay in `_pending` until the next batch is fetched, or an epoch,
a validation or the fit ends; `_flush_pending` then adds the logged metrics and writes the record.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.exceptions import ConfigError, TachographError
from tachograph.integrations._common.integration_run import (
    SYNC_REQUESTS_EVERY,
    RequestedActions,
    RunOptions,
    is_interactive,
)
from tachograph.integrations.lightning._evaluation import EvaluationHooks, guarded_hook
from tachograph.integrations.lightning._facts import job_parameters
from tachograph.integrations.lightning._logger import TachographLogger
from tachograph.integrations.lightning._metrics import LoggedMetrics
from tachograph.integrations.lightning._patches import observe_checkpoints, observe_clipping, observe_fetching
from tachograph.integrations.lightning._step_timer import StepTimer
from tachograph.integrations.lightning._trainer_run import TrainerRun
from tachograph.recorder import Run
from tachograph.spans import Span

__all__ = ["TachographCallback"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MAX_SKIPPED_STEPS = 1_000
"""Maximum number of steps that are only counted, where the trainer logs nothing."""


def _step_hook(function: _Function) -> _Function:
    """Guard a hook within a step, and skip it if the step is only counted."""
    call = guarded_hook(function)

    @functools.wraps(function)
    def hook(self: TachographCallback, *args: Any, **kwargs: Any) -> None:
        timer = self._trainer_run.timer
        if timer is not None and timer.skipped_iterations is None:
            call(self, *args, **kwargs)

    return hook  # type: ignore[return-value]


class TachographCallback(EvaluationHooks):
    """Records the training of a `Trainer`: ``Trainer(callbacks=[TachographCallback("greyjacket")])``.

    Uses the current run if there is one. Otherwise it starts a run, which ends with the process. A fit resumed from a
    checkpoint continues the run that saved it.

    Args:
        name: the name of the run.
        run: the run to record into; the current run by default.
        grad_norm_every: compute the gradient norm every N steps if gradients are not clipped; 0 never computes it.
            Computing it reads all gradients, which takes time on the device. If gradients are clipped, the norm that
            clipping computes is always recorded.
        settings: settings of the run, as for `tachograph.init`.

    Raises:
        ConfigError: if a setting does not exist, or Lightning is not installed.
        RunNameError: if the name is not a valid folder name.
    """

    _lightning_path = "Callback"

    def __init__(
        self, name: str | None = None, *, run: Run | None = None, grad_norm_every: int = 0, **settings: Any
    ) -> None:
        super().__init__()
        if not isinstance(grad_norm_every, int) or grad_norm_every < 0:
            raise ConfigError(f"grad_norm_every={grad_norm_every!r}: expected an integer of at least 0 (0: never)")
        self._trainer_run = TrainerRun(RunOptions(run, name, settings))
        self._grad_norm_every = grad_norm_every
        self._reset()

    def _reset(self) -> None:
        self._is_inactive = False
        self._metrics = LoggedMetrics()
        self._pending: dict[str, Any] | None = None
        self._epoch: int | None = None
        self._is_epoch_pending = False
        self._epoch_end_s: float | None = None
        self._evaluation: Span | None = None
        self._batch_start_s = 0.0
        self._fit_patches = Patches()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that a spawned process needs. The run itself stays in this process."""
        return {"_trainer_run": self._trainer_run, "_grad_norm_every": self._grad_norm_every}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    @property
    def run(self) -> Run | None:
        """The run, once it is started."""
        return self._trainer_run.run

    @property
    def default_name(self) -> str | None:
        """The name of the run if the user chose none."""
        return self._trainer_run.default_name

    @default_name.setter
    def default_name(self, name: str | None) -> None:
        self._trainer_run.default_name = name

    def finish(self) -> None:
        """Finish the run now, if this callback started it; otherwise it ends with the process."""
        self._trainer_run.job.finish()

    # Start and end -------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Observe the trainer. Start the run, except for a fit, which may resume the run of a checkpoint."""
        ours = [one for one in trainer.callbacks if isinstance(one, TachographCallback)]
        self._is_inactive = bool(ours) and ours[0] is not self  # the first one records everything
        if self._is_inactive:
            return
        is_fit = _enum_value(stage) == "fit"
        with guard("setting up"):
            _move_to_front(trainer, self)
            self._share_run_with_logger(trainer)
            self._trainer_run.use(trainer, is_fit=is_fit)
            observe_checkpoints(trainer, self._trainer_run)
        if not is_fit:
            self._begin_run(trainer, pl_module)

    def _share_run_with_logger(self, trainer: Any) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, TachographLogger):
                self._trainer_run = logger._trainer_run = self._trainer_run.merge(logger._trainer_run)
        self._trainer_run.has_callback = True

    def _begin_run(self, trainer: Any, module: Any) -> None:
        """Start or find the run. Invalid settings raise, because nothing is trained yet; other faults are guarded."""
        invalid: TachographError | None = None
        with guard("starting a run"):
            try:
                self._trainer_run.begin(trainer, module)
            except TachographError as error:
                invalid = error
        if invalid is not None:
            raise invalid

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the run: the checkpoint is loaded, except with strategies that load it later."""
        if not self._is_inactive and not getattr(trainer.strategy, "restore_checkpoint_after_setup", False):
            self._begin_run(trainer, pl_module)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the run, if `on_fit_start` has not."""
        if not self._is_inactive:
            self._begin_run(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the training loop."""
        if not self._is_inactive:
            self._begin_run(trainer, pl_module)
            self._begin_training(trainer, pl_module)

    @guarded_hook
    def _begin_training(self, trainer: Any, module: Any) -> None:
        trainer_run, job = self._trainer_run, self._trainer_run.job
        self._pending, self._is_epoch_pending, self._epoch_end_s = None, False, None
        num_done = trainer_run.pop_resumed_steps()
        # With manual optimization `global_step` counts the steps of all optimizers, so our own count is used.
        if module.automatic_optimization or (num_done is None and trainer_run.num_steps == 0):
            num_done = trainer.global_step
        trainer_run.num_steps = trainer_run.num_steps if num_done is None else num_done
        parameters = self._job_parameters(trainer)
        job.configure(**parameters)
        target = parameters.get("train_iterations_target")
        job.begin_loop(trainer_run.num_steps, target, row_step=lambda: trainer_run.row_step)
        trainer_run.timer = timer = StepTimer(
            job,
            is_cuda=trainer.strategy.root_device.type == "cuda",
            global_step=trainer.global_step,
            batch_size=parameters.get("global_batch_size"),
            grad_norm_every=self._grad_norm_every,
        )
        self._fit_patches.undo()  # a fit that was aborted may not have undone them
        observe_fetching(self._fit_patches, trainer, timer, lambda: self._flush_pending(trainer))
        observe_clipping(self._fit_patches, trainer, timer)
        self._metrics.skip(trainer)

    def _job_parameters(self, trainer: Any) -> dict[str, Any]:
        return job_parameters(trainer)

    @guarded_hook
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the training loop."""
        self._end_training(trainer, None)

    def _end_training(self, trainer: Any, error: BaseException | None) -> None:
        self._flush_pending(trainer)
        self._fit_patches.undo()
        self._trainer_run.timer = None
        self._trainer_run.job.end_loop(error)

    @guarded_hook
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Finish the run in an interactive session. Elsewhere it ends with the process, because a test may follow."""
        self._trainer_run.job.finish_if_interactive()

    @guarded_hook
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record an exception and close the open spans. The caller of the trainer may handle it and continue."""
        is_ours = isinstance(exception, TachographError) and not self._trainer_run.is_open
        if is_ours or self._trainer_run.trainer is not trainer:
            return  # raised before anything was started
        self._begin_run(trainer, pl_module)
        job, run = self._trainer_run.job, self._trainer_run.run
        has_open_span = self._evaluation is not None or job.is_in_loop
        if self._evaluation is not None:
            self._end_evaluation(trainer, exception)
        self._end_training(trainer, exception)
        if run is not None and not has_open_span and isinstance(exception, Exception):
            run.log_error(exception, where=f"trainer.{_enum_value(trainer.state.fn)}")
        # After Ctrl-C Lightning exits the process with status 1, and a prompt survives any exception. In both cases
        # nothing else would record how the run ended.
        if isinstance(exception, KeyboardInterrupt) or is_interactive():
            job.finish(exception)

    # Epochs and steps ----------------------------------------------------------------------------------------------

    @guarded_hook
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the previous epoch and start a new one."""
        self._flush_pending(trainer)
        self._epoch = trainer.current_epoch
        timer = self._trainer_run.timer
        if timer is not None:
            timer.discard_iteration()
            if self._epoch_end_s is not None:
                timer.pause(self._epoch_end_s)

    @guarded_hook
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Prepare the epoch record. Lightning computes the means of the epoch after this hook."""
        self._flush_pending(trainer)
        self._metrics.skip(trainer)
        self._epoch, self._is_epoch_pending, self._epoch_end_s = trainer.current_epoch, True, perf_counter()

    @_step_hook
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start timing a batch, which is on its device."""
        if self._pending is not None:
            self._flush_pending(trainer)
        if self._trainer_run.timer is not None:
            self._trainer_run.timer.batch_started()

    @_step_hook
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Start timing the backward pass."""
        if self._trainer_run.timer is not None:
            self._trainer_run.timer.backward_started()

    @_step_hook
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """End timing the backward pass."""
        if self._trainer_run.timer is not None:
            self._trainer_run.timer.backward_ended()

    @_step_hook
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Start timing an optimizer step."""
        if self._trainer_run.timer is not None:
            optimizers = trainer.optimizers
            index = next((index for index, one in enumerate(optimizers) if one is optimizer), 0)
            self._trainer_run.timer.step_started(optimizer, index, is_single=len(optimizers) == 1)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any = None, batch_idx: int = 0
    ) -> None:
        """End a batch, and the step if the batch completes one."""
        trainer_run, timer = self._trainer_run, self._trainer_run.timer
        if self._is_inactive or timer is None:
            return
        before = trainer_run.num_steps
        if timer.skipped_iterations is not None:
            with guard("counting a step"):
                trainer_run.num_steps += timer.count_batch(timer.skipped_iterations, trainer.global_step)
            if trainer_run.num_steps != before:
                self._apply_requests(trainer)
            return
        with trainer_run.job.governor.hook("ending a batch"):
            accumulation = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            metrics = timer.batch_ended(outputs, trainer.global_step, accumulation)
            if metrics is not None:
                trainer_run.num_steps += 1
                self._pending = metrics
                if not metrics and not self._is_due(trainer):
                    self._pending = None
                    # At certain steps the metrics of the module are recorded, so these steps are not skipped.
                    every = trainer.log_every_n_steps
                    timer.start_skipping(every - 1 - trainer_run.num_steps % every if every > 0 else _MAX_SKIPPED_STEPS)
        if trainer_run.num_steps != before:
            self._apply_requests(trainer)

    def _is_due(self, trainer: Any) -> bool:
        """Return whether the trainer passes the module's metrics of the last step to its loggers."""
        every = trainer.log_every_n_steps
        is_logged = every > 0 and self._trainer_run.num_steps % every == 0
        return bool(trainer.fast_dev_run or trainer.should_stop or is_logged)

    def _flush_pending(self, trainer: Any) -> None:
        """Record the last step and the last epoch, now that everything logged for them is known."""
        if self._trainer_run.timer is not None:
            self._trainer_run.timer.resume_sampling()
        pending, self._pending = self._pending, None
        trainer_run, run = self._trainer_run, self._trainer_run.run
        if pending is not None and run is not None:
            # A module's own `train_loss`, `lr` or `grad_norm` always replaces ours, also between two logged steps.
            module_metrics = (
                self._metrics.read_new(trainer)
                if self._is_due(trainer)
                else self._metrics.read_new_named(trainer, pending)
            )
            if pending or module_metrics:
                self.governor.values_handled()
                run.log({**pending, **module_metrics, "epoch": self._epoch}, step=trainer_run.step)
        if self._is_epoch_pending and run is not None and pending is None:
            self._is_epoch_pending = False
            run.log_epoch(self._epoch or 0, self._metrics.read_new(trainer), step=trainer_run.step)

    # Requests and checkpoints --------------------------------------------------------------------------------------

    def _apply_requests(self, trainer: Any) -> None:
        """Apply the requests of readers. All ranks do so at the same step, even if a rank failed to record it."""
        trainer_run, run = self._trainer_run, self._trainer_run.run
        actions = RequestedActions(stop=False, checkpoint=False)
        with guard("reading requests"):
            if trainer.world_size > 1:
                every = min(trainer.log_every_n_steps or SYNC_REQUESTS_EVERY, SYNC_REQUESTS_EVERY)
                if trainer_run.num_steps % every == 0:
                    actions = trainer_run.job.requested_actions()
            elif run is not None:
                actions = RequestedActions(run.should_stop, run.should_checkpoint)
        if actions.checkpoint:
            with guard("saving a requested checkpoint"):
                trainer.save_checkpoint(_requested_checkpoint_path(trainer))
        if actions.stop:
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Store the run's identity in a checkpoint."""
        if not self._is_inactive:
            with guard("adding the run to a checkpoint"):
                self._trainer_run.add_to_checkpoint(checkpoint)


def _move_to_front(trainer: Any, callback: TachographCallback) -> None:
    """Make the callback the first one.

    The work of other callbacks is then not part of a step, and a step is complete before a `ModelCheckpoint` saves it.
    """
    if trainer.callbacks[0] is not callback:
        others = [one for one in trainer.callbacks if one is not callback]
        trainer.callbacks = [callback, *others]  # a new list, because the trainer is iterating over the old one


def _requested_checkpoint_path(trainer: Any) -> str:
    """Return where to save a requested checkpoint: next to the others, else below the trainer's root folder."""
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    folder = folder or os.path.join(trainer.default_root_dir, "checkpoints")
    return os.path.join(folder, f"asked-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")


def _enum_value(name: Any) -> str:
    """Return the text of a Lightning enum; some versions pass a plain string."""
    return str(getattr(name, "value", name))
