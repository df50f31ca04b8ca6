"""`TachographCallback`: the hooks of a Hugging Face callback.

How time is measured: the trainer calls its callbacks late. `on_step_begin` is called after the batches of the step have
been fetched; `on_evaluate` and `on_save` are called after the evaluation and the save. So each hook keeps the time at
which it returned (`_last_event_s`), and the next hook assigns the time in between: `on_step_begin` to data loading,
`on_save` to the checkpoint, the first `on_prediction_step` to the evaluation. Forward and backward pass have no hooks;
the trainer's `accelerator.backward` is wrapped to separate them.

NaN: by default the trainer replaces a loss that is not finite by the mean of the others before it logs it, so a model
that is lost has the loss 0. Its `training_step` is wrapped to see each loss. The trainer reads it next anyway.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph._base.settings import resolve_settings
from tachograph.exceptions import TachographError
from tachograph.integrations._common.governor import OverheadGovernor, timed_callback
from tachograph.integrations._common.integration_run import SYNC_REQUESTS_EVERY, IntegrationRun, Names, RunOptions
from tachograph.integrations._common.models import model_facts
from tachograph.integrations._common.phases import NO_MARKS
from tachograph.integrations.transformers._call_stack import find_trainer, is_called_by
from tachograph.integrations.transformers._facts import argument_facts, build_config, global_batch_size, run_name
from tachograph.integrations.transformers._loggers import time_loggers
from tachograph.integrations.transformers._resume import log_parents, plan_run, read_run_file, write_run_file
from tachograph.recorder import ObservedStep, Run
from tachograph.spans import (
    Span,
    SpanScope,
    checkpoint_load,
    checkpoint_save,
    testing_loop,
    timed_span,
    validation_loop,
)

__all__ = ["TachographCallback"]

_hook = timed_callback("the trainer")


class TachographCallback(TrainerCallback):
    """Records the training of a `Trainer`: ``Trainer(…, callbacks=[TachographCallback()])``.

    Uses the current run if there is one. Otherwise it starts a run named after the trainer's `run_name` or its output
    folder, which ends with the process. Training resumed from a checkpoint continues the run that saved it.

    Args:
        name: the name of the run.
        run: the run to record into; the current run by default.
        completions: whether to record samples of the texts that a TRL trainer generates or compares. This and the next
            two are settings, too. Here they also apply to a run that is already running; a run whose setting
            `completions` is off records no samples.
        completions_every: steps between two records of samples.
        completions_buffer: maximum number of samples in a record.
        config: more of the config to record, such as the training script's; its `telemetry` section applies as
            for `tachograph.init`.
        settings: settings of the run, as for `tachograph.init`.

    Raises:
        ConfigError: if a setting does not exist or a number is invalid.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        run: Run | None = None,
        completions: bool | None = None,
        completions_every: int | None = None,
        completions_buffer: int | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        options = {
            "completions": completions,
            "completions_every": completions_every,
            "completions_buffer": completions_buffer,
        }
        checked_settings = resolve_settings(options)
        self._completions = {
            option: getattr(checked_settings, option) for option, value in options.items() if value is not None
        }
        """The options that were given here. For the others, the settings of the run apply."""
        self._plan = RunOptions(run, name, settings if run is not None else {**settings, **self._completions})
        self._job = IntegrationRun("transformers", self._plan)
        self._capture: Any = None
        self._last_event_s = perf_counter()
        """When the last hook returned: the next hook assigns the time since then."""
        self._marks = NO_MARKS
        self._is_cuda = False
        self._evaluation: Span | None = None
        self._eval_batch_start_s = 0.0
        self._batch_size = 1
        self._log_every: int | None = None
        self._poll_every = 1
        self._is_training = self._has_trained = False
        self._train_patches = Patches()
        self._num_since_log = 0
        self._busy_s = 0.0
        """Time spent in the steps since the trainer last logged, without evaluation and saving."""
        self._bad_loss: float | None = None
        """A loss of the current step that is not finite."""
        self._load: tuple[float, float] | None = None
        self._startup: list[tuple[SpanScope, float, float]] = []
        """Spans from before the run, with the times of their start and stop."""
        self.default_name: str | None = None
        """The name of the run if neither the user nor a checkpoint gives one; by default the output folder's name."""
        self.extra_config: Mapping[str, Any] = dict(config or {})
        """More of the config to record, such as the training script's."""
        self.extra_facts: Mapping[str, Any] = {}
        """Fields to add to the `start` record, or to the event `instrumented` of a run that is already running."""

    @property
    def governor(self) -> OverheadGovernor:
        """Decides which steps are recorded in detail; every hook adds its time to it."""
        return self._job.governor

    @property
    def run(self) -> Run | None:
        """The run, once training or evaluation has started."""
        return self._job.run

    def finish(self, error: BaseException | None = None) -> None:
        """Finish the run now, if this callback started it; otherwise it ends with the process.

        Args:
            error: the exception that ended training; the run has failed with it.
        """
        self._job.finish(error)

    @property
    def is_training(self) -> bool:
        """Whether the trainer is inside its training loop. Stays true if an exception has ended it."""
        return self._is_training

    def add_span(self, scope: SpanScope, start_s: float, stop_s: float) -> None:
        """Record a span between two times on `perf_counter`; before there is a run, when training starts."""
        if self._job.is_open:
            self._job.end_span(self._job.begin_span(scope, start_s), at_s=stop_s)
        else:
            self._startup.append((scope, start_s, stop_s))

    def add_scored_completions(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rewards: Mapping[str, Sequence[float]],
        advantages: Sequence[float],
    ) -> None:
        """Record samples of a TRL trainer that scores its completions in a method of its own, if some are due."""
        if self._capture is not None:
            self._capture.add_scored(prompts, completions, rewards, advantages)

    # Start and end -------------------------------------------------------------------------------------------------

    @_hook
    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the time that creating the trainer took, and observe the trainer."""
        # Starts when the callback is created, usually in the call that creates the trainer.
        self.add_span(timed_span("trainer_initialization"), self._last_event_s, perf_counter())
        trainer = find_trainer(self)
        if trainer is not None:
            self.observe_loading(trainer)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the run and the training loop. Invalid settings raise, because nothing is trained yet."""
        invalid: TachographError | None = None
        with guard("starting to record training"):
            try:
                self._begin_training(args, state, kwargs)
            except TachographError as error:
                invalid = error
        if invalid is not None:
            raise invalid

    def _begin_training(self, args: TrainingArguments, state: TrainerState, kwargs: Mapping[str, Any]) -> None:
        trainer = find_trainer(self)
        if self._has_trained and not state.global_step and self._job.owns_run:
            self._job.finish()  # training from step 0 again is another run
            self._job = IntegrationRun("transformers", self._plan)
        self._is_training = self._has_trained = True
        self._poll_every = min(max(1, int(state.logging_steps or 1)), SYNC_REQUESTS_EVERY)
        run = self._begin_run(args, state, kwargs.get("model"), trainer)
        with guard("finding the parents of a run"):
            log_parents(run, args, state, kwargs.get("model"), trainer)
        job = self._job
        self._batch_size = global_batch_size(args, state)
        job.configure(
            world_size=args.world_size,
            global_batch_size=self._batch_size,
            micro_batch_size=args.per_device_train_batch_size,
            train_iterations_target=state.max_steps if state.max_steps > 0 else None,
        )
        waiting, self._startup = self._startup, []
        for scope, start_s, stop_s in waiting:
            self.add_span(scope, start_s, stop_s)
        if self._load is not None and state.global_step:
            job.end_span(job.begin_span(checkpoint_load(), self._load[0]), at_s=self._load[1])
        self._load = None

        def row_step() -> int | None:
            return ObservedStep(state.global_step) if state.global_step else None

        job.begin_loop(state.global_step, state.max_steps, row_step=row_step)
        self._is_cuda = args.device.type == "cuda"
        self._log_every = run.log_every
        self._num_since_log, self._busy_s = 0, 0.0
        self._observe_training(trainer, run)
        self._last_event_s = perf_counter()
        self._job.begin_iteration(self._last_event_s)

    @_hook
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the training loop and restore the trainer."""
        if self._capture is not None:
            self._capture.close()
            self._capture = None
        self._is_training = False
        self._train_patches.undo()
        self._job.end_loop()
        self._job.finish_if_interactive()

    def _begin_run(self, args: TrainingArguments, state: TrainerState, model: Any, trainer: Any) -> Run:
        if self._job.is_open and self._job.run is not None:
            return self._job.run
        run_file = read_run_file(args, state, trainer) if state.global_step else None
        plan, resume = plan_run(self._plan, self._job, run_file)
        self._job = IntegrationRun("transformers", plan)
        self._job.first_step = 1
        facts = {**argument_facts(args, state), **model_facts(model), **self.extra_facts}
        facts["trainer"] = type(trainer).__name__ if trainer is not None else None
        run = self._job.begin(
            name=self.default_name or run_name(args),
            config={**self.extra_config, **build_config(args, model)},
            facts=facts,
            resume=resume,
            version=transformers.__version__,
        )
        if self.extra_config and not self._job.owns_run:
            run.update_config(self.extra_config)
        return run

    # Patches, where the trainer has no hook --------------------------------------------------------------------------

    def _observe_training(self, trainer: Any, run: Run) -> None:
        """Observe the backward pass, other loggers and the samples of a TRL trainer, until training ends."""
        if trainer is None:
            return
        with guard("timing other loggers"):
            time_loggers(trainer, run, self._train_patches)
        accelerator = getattr(trainer, "accelerator", None)
        if accelerator is not None:
            self._train_patches.wrap(accelerator, "backward", self._timed_backward)
        if getattr(trainer.args, "logging_nan_inf_filter", False):
            self._train_patches.wrap(trainer, "training_step", self._checked_step)
        if not self._completions.get("completions", True) or self._capture is not None:
            return
        with guard("capturing completions"):
            from tachograph.integrations.trl import capture_completions

            self._capture = capture_completions(
                trainer,
                run,
                every=self._completions.get("completions_every"),
                max_buffer=self._completions.get("completions_buffer"),
            )

    def _timed_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._mark(Names.MODEL_FORWARD)
            result = backward(*args, **kwargs)
            self._mark(Names.MODEL_BACKWARD)
            return result

        return wrapper

    def _checked_step(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            loss = training_step(*args, **kwargs)
            with guard("reading a loss"):
                self._check_loss(loss)
            return loss

        return wrapper

    def _check_loss(self, loss: Any) -> None:
        if loss.device.type == "xla":
            return  # there the trainer does not read it
        value = loss.item()
        if not math.isfinite(value):
            self._bad_loss = value

    @_hook
    def _mark(self, phase: Names | None) -> None:
        self._marks.mark(phase)

    def observe_loading(self, trainer: Any) -> None:
        """Time the loading of checkpoints, which happens before the trainer calls any hook."""

        def timed_load(load: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                start_s = perf_counter()
                try:
                    return load(*args, **kwargs)
                finally:
                    self._load = (start_s, perf_counter())

            return wrapper

        # Never undone: no hook is called before the next `train()` loads its checkpoint.
        Patches().wrap(trainer, "_load_from_checkpoint", timed_load)

    # Steps ---------------------------------------------------------------------------------------------------------

    @_hook
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start an iteration. Its batches have been fetched, so the time since the last hook was data loading."""
        now_s = perf_counter()
        self._bad_loss = None
        self._job.begin_iteration(self._last_event_s)
        self._job.add_data_wait(self._last_event_s, now_s)
        self._marks = self._job.new_marks(self._is_cuda)
        self._marks.mark(None)

    @_hook
    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the end of an accumulated batch."""
        self._marks.mark(None)

    @_hook
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the start of the optimizer step: the gradients are computed and clipped."""
        self._marks.mark(None)

    @_hook
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the end of the optimizer step."""
        self._marks.mark(Names.OPTIMIZER_UPDATE)

    @_hook
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the iteration. Logging, evaluation and saving follow."""
        now_s = perf_counter()
        self._num_since_log += 1
        self._busy_s += now_s - self._last_event_s
        self._last_event_s = now_s
        marks, self._marks = self._marks, NO_MARKS
        self._job.end_iteration(now_s, marks=marks)
        if self._capture is not None:
            self._capture.on_step_end(state.global_step)
        if self._bad_loss is not None and self._job.run is not None and not control.should_log:
            self._job.run.log({"train_loss": self._bad_loss}, step=state.global_step)
        self._apply_requests(state, control)

    def _apply_requests(self, state: TrainerState, control: TrainerControl) -> None:
        run = self._job.run
        if run is None:
            return
        if self._job.world_size > 1 and state.global_step % self._poll_every:
            return
        actions = self._job.requested_actions()
        if actions.checkpoint:
            control.should_save = True
        if actions.stop:
            control.should_training_stop = True
        if actions.log_every != self._log_every:
            # All ranks switch at the same step, because the trainer runs a collective when it logs.
            self._log_every = state.logging_steps = actions.log_every

    @_hook
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the metrics of a step, or the summary at the end of training."""
        run, logs = self._job.run, logs or {}
        if run is None or self._evaluation is not None:
            return  # `on_evaluate` receives the same metrics
        if "train_runtime" in logs:
            run.event("training_summary", step=state.global_step, **logs)
            return
        metrics = dict(logs)
        if "loss" in logs and self._bad_loss is not None:
            metrics["loss"] = self._bad_loss
        for theirs, ours in (("loss", "train_loss"), ("learning_rate", "lr")):
            if theirs in metrics:
                metrics[ours] = metrics[theirs]
        if "loss" in logs and self._num_since_log and self._busy_s > 0:
            metrics["sec_per_step"] = self._busy_s / self._num_since_log
            metrics["samples_per_sec"] = self._batch_size * self._num_since_log / self._busy_s
            self._num_since_log, self._busy_s = 0, 0.0
        run.log(metrics, step=state.global_step)
        if self._capture is not None:
            self._capture.on_log(state.global_step)
        self._last_event_s = perf_counter()

    # Evaluation, checkpoints, epochs -------------------------------------------------------------------------------

    @_hook
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record an evaluated batch. There is no hook at the start of an evaluation, so the first batch starts it."""
        now_s = perf_counter()
        if self._evaluation is None:
            if not self._job.is_open and not self._is_training:  # a run that the user has finished stays finished
                self._begin_run(args, state, kwargs.get("model"), find_trainer(self))
            is_test = is_called_by("predict")
            start_s = self._last_event_s if self._job.is_in_loop else now_s
            self._evaluation = self._job.begin_span(testing_loop() if is_test else validation_loop(), start_s)
            self._eval_batch_start_s = start_s
        recorder = self._evaluation.recorder if self._evaluation is not None else None
        if recorder is not None and self._evaluation is not None:
            is_test = self._evaluation.name == Names.TESTING_LOOP
            name = Names.TESTING_SINGLE_ITERATION if is_test else Names.VALIDATION_SINGLE_ITERATION
            recorder.add_finished_span(name, self._eval_batch_start_s, now_s, self._evaluation)
        self._eval_batch_start_s = now_s

    @_hook
    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """End the evaluation and record its metrics."""
        self._end_evaluation()
        run = self._job.run
        if run is not None and metrics:
            results = {name: value for name, value in metrics.items() if name != "epoch"}
            if "eval_loss" in metrics:
                results["val_loss"] = metrics["eval_loss"]
            run.log_validation(results, step=state.global_step, epoch=metrics.get("epoch"), prefix="")

    @_hook
    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """End the prediction and record its metrics."""
        self._end_evaluation()
        if self._job.run is not None and metrics:
            self._job.run.log_test(metrics, step=state.global_step, prefix="")

    def _end_evaluation(self) -> None:
        span, self._evaluation = self._evaluation, None
        self._job.end_span(span)
        self._last_event_s = perf_counter()

    @_hook
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record a saved checkpoint, and write into it which run saved it."""
        run = self._job.run
        if run is None:
            return
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        span = self._job.begin_span(checkpoint_save(state.global_step, path=path), self._last_event_s)
        self._job.end_span(span)
        write_run_file(run, path, self._plan.name, state.global_step)
        self._last_event_s = perf_counter()

    @_hook
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record an epoch. The hook is also called if training stops within an epoch, which is not recorded."""
        if self._job.run is not None and state.epoch and abs(state.epoch - round(state.epoch)) < 1e-6:
            self._job.run.log_epoch(round(state.epoch), step=state.global_step)
