"""Hugging Face `Trainer`: one callback that records the run, its spans and metrics, and lets it be steered.

The trainer tells its callbacks of a step when its batches are fetched already, and of an evaluation or a save when it
is over. So every callback marks a moment, and what lies between two of them is what the second one says.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from tachograph._base.guard import guard, guarded_callback
from tachograph.exceptions import ConfigError, TachographError
from tachograph.integrations._common.job import ASK_EVERY, RUN_FILE, Job, Names, Plan, is_run
from tachograph.integrations._common.models import model_facts
from tachograph.integrations._common.phases import Marks
from tachograph.integrations.transformers._facts import (
    argument_facts,
    config_of,
    global_batch_size,
    is_inside,
    run_name,
    saved_run,
    trainer_of,
)
from tachograph.recorder import Run
from tachograph.spans import Span, checkpoint_load, checkpoint_save, testing_loop, timed_span, validation_loop

__all__ = ["TachographCallback"]


_guarded = guarded_callback("the trainer")


class TachographCallback(TrainerCallback):
    """Records what a `Trainer` does: ``Trainer(…, callbacks=[TachographCallback()])``.

    A run that goes on is used; else one is begun, named like the trainer's run or its output folder. It ends with the
    process. Training that is resumed from a checkpoint continues the run that saved it.

    Args:
        name: the name of the run.
        run: the run to record into, if it is not the current one.
        completions: whether samples of what a TRL trainer generates or compares are recorded.
        completions_every: steps between two records of samples.
        completions_buffer: most samples in a record.
        settings: settings of the run, as `tachograph.init` takes them.

    Raises:
        ConfigError: for a setting that does not exist.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        run: Run | None = None,
        completions: bool = True,
        completions_every: int = 100,
        completions_buffer: int = 128,
        **settings: Any,
    ) -> None:
        for what, value in (("completions_every", completions_every), ("completions_buffer", completions_buffer)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{what}={value!r}: a whole number of at least 1 is expected")
        self._plan = Plan(run, name, settings)
        self._job = Job("transformers", self._plan)
        self._completions = (completions_every, completions_buffer) if completions else None
        self._capture: Any = None
        self._mark_s = perf_counter()
        """When the trainer last told us something: what follows begins there."""
        self._marks = Marks(is_cuda=False)
        self._is_cuda = False
        self._evaluation: Span | None = None
        self._batch_s = 0.0
        self._batch_size = 1
        self._log_every: int | None = None
        self._ask_every = 1
        self._is_training = self._has_trained = False
        self._accelerator: Any = None
        self._num_since_log = 0
        self._busy_s = 0.0
        self._init: tuple[float, float] | None = None
        self._load: tuple[float, float] | None = None
        self.default_name: str | None = None
        """The name of a run if neither the user nor a checkpoint gives one; without it, that of the output folder."""

    @property
    def run(self) -> Run | None:
        """The run that is recorded into, once training or evaluation has begun."""
        return self._job.run

    def finish(self) -> None:
        """End the run now, if it was begun by this callback; otherwise it ends with the process."""
        self._job.finish()

    # Beginning and end ---------------------------------------------------------------------------------------------

    @_guarded
    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The trainer is made."""
        self._init = (self._mark_s, perf_counter())
        trainer = trainer_of(self)
        if trainer is not None:
            self.see(trainer)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or goes on from a checkpoint. A run that cannot be begun is told: nothing is trained yet."""
        mistake: TachographError | None = None
        with guard("beginning to train"):
            try:
                self._begin_training(args, state, kwargs)
            except TachographError as error:
                mistake = error
        if mistake is not None:
            raise mistake

    def _begin_training(self, args: TrainingArguments, state: TrainerState, kwargs: Mapping[str, Any]) -> None:
        trainer = trainer_of(self)
        if self._has_trained and not state.global_step and self._job.owns_run:
            self._job.finish()  # training from the start again is another run
            self._job = Job("transformers", self._plan)
        self._is_training = self._has_trained = True
        self._ask_every = min(max(1, int(state.logging_steps or 1)), ASK_EVERY)
        run = self._begin(args, state, kwargs.get("model"), trainer)
        job = self._job
        self._batch_size = global_batch_size(args, state)
        job.configure(
            world_size=args.world_size,
            global_batch_size=self._batch_size,
            micro_batch_size=args.per_device_train_batch_size,
            train_iterations_target=state.max_steps if state.max_steps > 0 else None,
        )
        if self._init is not None:  # from when the callback was made, which most do in the call of the trainer
            job.end_span(job.begin_span(timed_span("trainer_initialization"), self._init[0]), at_s=self._init[1])
        if self._load is not None and state.global_step:
            job.end_span(job.begin_span(checkpoint_load(), self._load[0]), at_s=self._load[1])
        self._init = self._load = None
        job.begin_loop(state.global_step, state.max_steps)
        self._is_cuda = args.device.type == "cuda"
        self._log_every = run.log_every
        self._num_since_log, self._busy_s = 0, 0.0
        self._attach(trainer, run)
        self._mark_s = perf_counter()
        self._job.begin_iteration(self._mark_s)

    @_guarded
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training is over."""
        if self._capture is not None:
            self._capture.close()
            self._capture = None
        self._is_training = False
        self._detach()
        self._job.end_loop()
        self._job.finish_if_interactive()

    def _begin(self, args: TrainingArguments, state: TrainerState, model: Any, trainer: Any) -> Run:
        if self._job.is_open and self._job.run is not None:
            return self._job.run
        plan, resume = self._plan_to_go_on(saved_run(args, state, trainer) if state.global_step else None)
        self._job = Job("transformers", plan)
        self._job.first_step = 1
        facts = {**argument_facts(args, state), **model_facts(model)}
        facts["trainer"] = type(trainer).__name__ if trainer is not None else None
        return self._job.begin(
            name=self.default_name or run_name(args),
            config=config_of(args, model),
            facts=facts,
            resume=resume,
            version=transformers.__version__,
        )

    def _plan_to_go_on(self, saved: Mapping[str, str] | None) -> tuple[Plan, bool]:
        """Return the plan for a run, and whether it continues one: our own from before, or that of a checkpoint.

        Args:
            saved: what the checkpoint says of the run that saved it; None if training does not go on from one.
        """
        plan, before = self._plan, self._job.run
        if plan.run is not None:
            return plan, False
        if before is not None and self._job.owns_run and before.folder is not None:
            settings = {**plan.settings, "log_dir": str(before.folder.path.parent)}
            return Plan(None, before.folder.name, settings), True
        if saved is None:
            return plan, False
        name = saved.get("run_name", "")
        log_dir = str(plan.settings.get("log_dir") or saved.get("log_dir"))
        is_asked_for = plan.name in {None, name, saved.get("asked_name")}
        if is_asked_for and is_run(log_dir, name, saved.get("run_id")):
            return Plan(None, name, {**plan.settings, "log_dir": log_dir}), True
        # A checkpoint without word of a run may be of one that was recorded in another way.
        return plan, not saved

    def _attach(self, trainer: Any, run: Run) -> None:
        """Look where callbacks do not reach: at the backward pass, and at what a TRL trainer generates."""
        if trainer is None:
            return
        accelerator = getattr(trainer, "accelerator", None)
        if accelerator is not None and not hasattr(accelerator.backward, "_tachograph"):
            accelerator.backward = self._marking_backward(accelerator.backward)
            self._accelerator = accelerator
        if self._completions is None or self._capture is not None:
            return
        with guard("capturing completions"):
            from tachograph.integrations.trl import capture_completions

            every, most = self._completions
            self._capture = capture_completions(trainer, run, every=every, max_buffer=most)

    def _marking_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def marked(*arguments: Any, **named: Any) -> Any:
            self._mark(Names.MODEL_FORWARD)
            result = backward(*arguments, **named)
            self._mark(Names.MODEL_BACKWARD)
            return result

        marked._tachograph = True  # type: ignore[attr-defined]
        return marked

    @_guarded
    def _mark(self, ended: Names) -> None:
        if len(self._marks):
            self._marks.mark(ended)

    def _detach(self) -> None:
        accelerator, self._accelerator = self._accelerator, None
        if accelerator is not None and hasattr(vars(accelerator).get("backward"), "_tachograph"):
            del accelerator.backward

    def see(self, trainer: Any) -> None:
        """Time the loading of a checkpoint, which happens before the trainer tells its callbacks anything."""
        load = getattr(trainer, "_load_from_checkpoint", None)
        if load is None or hasattr(load, "_tachograph"):
            return

        @functools.wraps(load)
        def timed(*arguments: Any, **named: Any) -> Any:
            start_s = perf_counter()
            try:
                return load(*arguments, **named)
            finally:
                self._load = (start_s, perf_counter())

        timed._tachograph = True  # type: ignore[attr-defined]
        trainer._load_from_checkpoint = timed

    # Steps ---------------------------------------------------------------------------------------------------------

    @_guarded
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The batches of a step are there."""
        now_s = perf_counter()
        self._job.begin_iteration(self._mark_s)
        self._job.phase(Names.DATA_LOADING, self._mark_s, now_s)
        self._marks = Marks(self._is_cuda)
        self._marks.mark(None)

    @_guarded
    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A part of a step's batch is done."""
        if len(self._marks):
            self._marks.mark(None)

    @_guarded
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The gradients are there, and clipped."""
        if len(self._marks):
            self._marks.mark(None)

    @_guarded
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer has stepped."""
        if len(self._marks):
            self._marks.mark(Names.OPTIMIZER_UPDATE)

    @_guarded
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step is done; logging, evaluation and saving follow."""
        now_s = perf_counter()
        self._num_since_log += 1
        self._busy_s += now_s - self._mark_s
        self._mark_s = now_s
        marks, self._marks = self._marks, Marks(self._is_cuda)
        self._job.end_iteration(now_s, marks=marks)
        if self._capture is not None:
            self._capture.on_step_end(state.global_step)
        self._steer(args, state, control)

    def _steer(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        run = self._job.run
        if run is None:
            return
        if self._job.world_size > 1 and state.global_step % self._ask_every:
            return
        asked = self._job.asked()
        if asked.checkpoint:
            control.should_save = True
        if asked.stop:
            control.should_training_stop = True
        if asked.log_every != self._log_every:  # of all ranks at the same step, for the trainer gathers where it logs
            self._log_every = state.logging_steps = asked.log_every

    # What the trainer tells afterwards -----------------------------------------------------------------------------

    @_guarded
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """The trainer logs: a step, what an evaluation found, or what all of training came to."""
        run, logs = self._job.run, logs or {}
        if run is None or self._evaluation is not None:
            return  # `on_evaluate` brings the same
        if "train_runtime" in logs:
            run.event("training_summary", step=state.global_step, **logs)
            return
        metrics = dict(logs)
        for theirs, ours in (("loss", "train_loss"), ("learning_rate", "lr")):
            if theirs in logs:
                metrics[ours] = logs[theirs]
        if "loss" in logs and self._num_since_log and self._busy_s > 0:
            metrics["sec_per_step"] = self._busy_s / self._num_since_log
            metrics["samples_per_sec"] = self._batch_size * self._num_since_log / self._busy_s
            self._num_since_log, self._busy_s = 0, 0.0
        run.log(metrics, step=state.global_step)
        if self._capture is not None:
            self._capture.on_log(state.global_step)
        self._mark_s = perf_counter()

    @_guarded
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A batch was evaluated; the first of them tells that an evaluation goes on."""
        now_s = perf_counter()
        if self._evaluation is None:
            if not self._job.is_open and not self._is_training:  # else the user has ended the run meanwhile
                self._begin(args, state, kwargs.get("model"), trainer_of(self))
            is_test = is_inside("predict")
            began_s = self._mark_s if self._job.is_in_loop else now_s
            self._evaluation = self._job.begin_span(testing_loop() if is_test else validation_loop(), began_s)
            self._batch_s = began_s
        recorder = self._evaluation.recorder if self._evaluation is not None else None
        if recorder is not None and self._evaluation is not None:
            is_test = self._evaluation.name == Names.TESTING_LOOP
            name = Names.TESTING_SINGLE_ITERATION if is_test else Names.VALIDATION_SINGLE_ITERATION
            recorder.add_finished_span(name, self._batch_s, now_s, self._evaluation)
        self._batch_s = now_s

    @_guarded
    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """An evaluation is done."""
        self._end_evaluation()
        run = self._job.run
        if run is not None and metrics:
            found = {name: value for name, value in metrics.items() if name != "epoch"}
            if "eval_loss" in metrics:
                found["val_loss"] = metrics["eval_loss"]
            run.log_validation(found, step=state.global_step, epoch=metrics.get("epoch"), prefix="")

    @_guarded
    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A prediction is done."""
        self._end_evaluation()
        if self._job.run is not None and metrics:
            self._job.run.log_test(metrics, step=state.global_step, prefix="")

    def _end_evaluation(self) -> None:
        span, self._evaluation = self._evaluation, None
        self._job.end_span(span)
        self._mark_s = perf_counter()

    @_guarded
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint is saved."""
        run = self._job.run
        if run is None:
            return
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        span = self._job.begin_span(checkpoint_save(state.global_step, path=path), self._mark_s)
        self._job.end_span(span)
        if run.folder is not None and os.path.isdir(path):
            where = {
                "run_name": run.name,
                "run_id": run.id,
                "asked_name": self._plan.name or "",
                "log_dir": os.path.relpath(run.folder.path.parent, path),
            }
            with open(os.path.join(path, RUN_FILE), "w", encoding="utf-8") as file:
                json.dump(where, file)
        self._mark_s = perf_counter()

    @_guarded
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch is done."""
        if self._job.run is not None and state.epoch and abs(state.epoch - round(state.epoch)) < 1e-6:
            self._job.run.log_epoch(round(state.epoch), step=state.global_step)  # else training ends in the midst of it


# So that `TrainingArguments(report_to="tachograph")` is enough once this module is imported.
INTEGRATION_TO_CALLBACK.setdefault("tachograph", TachographCallback)
