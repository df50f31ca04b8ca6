"""`LMEvalPlugin`: evaluates the model that is trained, every few steps and at the end."""

from __future__ import annotations

import contextlib
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import warn
from tachograph.exceptions import NoRunError
from tachograph.plugins._base import BasePlugin, PluginConfig
from tachograph.plugins.lm_eval._harness import check_model, evaluate, load_model, preserve_state, wrap_model
from tachograph.plugins.lm_eval._options import LMEvalOptions
from tachograph.plugins.lm_eval._tasks import LoadedTasks, find_tasks, load_tasks, parse_tasks
from tachograph.recorder import current_run
from tachograph.spans import validation_loop

__all__ = ["LMEvalPlugin"]


class LMEvalPlugin(BasePlugin):
    """Evaluates the model with tasks of the LM Evaluation Harness."""

    name = "lm_eval"
    Options = LMEvalOptions
    requires = ("lm_eval",)
    extra = "lm-eval"

    options: LMEvalOptions

    def __init__(self) -> None:
        self._tasks: LoadedTasks = []
        self._manager: Any = None
        self._trainer: Any = None
        self._base_model: str | None = None

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config leaves the evaluation to `tacho lm-eval`."""
        is_on = self.options.lm_eval_post_train or self.options.lm_eval_steps
        return "" if is_on else "lm_eval_post_train is false, and lm_eval_steps is not set"

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the tasks, and when they are evaluated."""
        self._find_tasks()
        options = self.options
        if options.lm_eval_model:
            check_model(options.lm_eval_model, cfg.output_dir)
        times = [f"every {options.lm_eval_steps} steps"] if options.lm_eval_steps else []
        times += ["after training"] if options.lm_eval_post_train else []
        model_note = f" of {options.lm_eval_model}" if options.lm_eval_model else ""
        return [f"evaluates {', '.join(options.lm_eval_tasks)}{model_note} {' and '.join(times)}"]

    def pre_model_load(self, cfg: PluginConfig) -> None:
        """Find the tasks and load their data, so that missing ones are reported before training."""
        if self.options.lm_eval_model:
            check_model(self.options.lm_eval_model, cfg.output_dir)
        self._tasks = load_tasks(self._find_tasks(), parse_tasks(self.options.lm_eval_tasks))
        self.report.changed("tasks evaluated", self.options.lm_eval_tasks)

    def _find_tasks(self) -> Any:
        options = self.options
        if options.lm_eval_model and options.lm_eval_steps:
            raise self.error(
                "lm_eval_steps evaluates the model that is trained, but lm_eval_model names another one: remove one of "
                "them"
            )
        if self._manager is None:
            self._manager = find_tasks(
                parse_tasks(options.lm_eval_tasks),
                options.lm_eval_include_path,
                include_defaults=options.lm_eval_include_defaults,
            )
        return self._manager

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that evaluates."""
        self._trainer, self._base_model = trainer, cfg.base_model
        if not self.options.lm_eval_model and not hasattr(getattr(trainer, "processing_class", None), "decode"):
            raise self.error("the trainer has no tokenizer: pass it as processing_class")
        is_sharded = getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False)
        if is_sharded and not self.options.lm_eval_model:
            raise self.error(
                "a model that FSDP or DeepSpeed splits cannot be evaluated during its training: remove the plugin, and "
                "run `tacho lm-eval` with the same config afterwards"
            )
        return [_EvaluationCallback(self, evaluates_at_end=not cfg.output_dir)]

    def evaluate(self, model: Any, output_dir: Path) -> None:
        """Evaluate a model, log the metrics, show the table and write the JSON file.

        All ranks of a distributed training evaluate, because the next step waits for all of them; rank 0 reports.
        """
        trainer, options = self._trainer, self.options
        start_s = perf_counter()
        step = trainer.state.global_step
        name = options.lm_eval_model or f"{output_dir} at step {step}"
        model = trainer.accelerator.unwrap_model(model)
        with _evaluation_span(), preserve_state(model):
            if options.lm_eval_model:
                lm = load_model(options.lm_eval_model, options, self._base_model)
            else:
                lm = wrap_model(model, trainer.processing_class, options)
            result = evaluate(lm, name, options, self._tasks)
        self.report.effect()
        self.report.set("evaluation_s", perf_counter() - start_s)
        if not trainer.is_world_process_zero():
            return
        control = trainer.control
        should_log = control.should_log
        trainer.log(result.metrics())
        control.should_log = should_log  # the trainer believes that the step itself has been logged
        result.save(output_dir, step)
        from rich.console import Console

        Console().print(result.table())

    def is_active(self) -> bool:
        """Return whether the model was evaluated since the last log."""
        return self.report.had_effect()

    def post_train(self, cfg: PluginConfig, model: Any) -> None:
        """Evaluate after training."""
        if self.options.lm_eval_post_train and cfg.output_dir:
            self.evaluate(model, Path(cfg.output_dir))


def _evaluation_span() -> contextlib.AbstractContextManager[Any]:
    """Return a span for an evaluation; nothing if there is no run, because a span would start one."""
    try:
        current_run()
    except NoRunError:
        return contextlib.nullcontext()
    return validation_loop()


class _EvaluationCallback(TrainerCallback):
    """Evaluates every few steps, and at the end of the training if no runner does.

    A failure is logged and does not stop the training, whose model may not be saved yet.
    """

    def __init__(self, plugin: LMEvalPlugin, *, evaluates_at_end: bool) -> None:
        self._plugin = plugin
        self._evaluates_at_end = evaluates_at_end
        self._num_failures = 0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Evaluate if it is time to. The last step is left to the evaluation after training."""
        every = self._plugin.options.lm_eval_steps
        is_last = state.global_step >= state.max_steps or control.should_training_stop
        if every and state.global_step % every == 0 and not (is_last and self._plugin.options.lm_eval_post_train):
            self._evaluate(args, model)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        """Evaluate after training."""
        if self._evaluates_at_end and self._plugin.options.lm_eval_post_train:
            self._evaluate(args, model)

    def _evaluate(self, args: TrainingArguments, model: Any) -> None:
        try:
            self._plugin.evaluate(model, Path(args.output_dir))
        except Exception as error:  # noqa: BLE001 - of the harness, a task or a full disk
            self._num_failures += 1
            self._plugin.report.set("failures", self._num_failures)
            warn("plugin lm_eval: the evaluation failed: %s: %s", type(error).__name__, error, is_error=True)
