"""The parts of a trainer that carry plugins: mixins for its class, and a recorder of their effects.

The scale of a loss is decided in `PluginTrainerMixin.compute_loss` alone. With gradient accumulation, a trainer either
passes the number of items of the whole step and expects a loss divided by it, or divides a mean by the number of
batches itself. A loss that ignores this is too large by the number of accumulated batches.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guard, warn
from tachograph._base.patching import Patches
from tachograph.exceptions import NoRunError, PluginError
from tachograph.plugins._base import BasePlugin, LossResult
from tachograph.plugins._report import HookTimer
from tachograph.plugins._state import load_states, save_states
from tachograph.recorder import Run, current_run
from tachograph.records import to_plain

__all__ = ["GENERATES", "PluginTrainerMixin", "PluginRecorder", "compose", "naming_plugin", "time_callback"]

_EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
GENERATES = "_generate_and_score_completions"
"""The method of GRPO and RLOO trainers after which completions have rewards and advantages."""
_SHARED_METHODS = {"log", "create_optimizer", "create_scheduler", "compute_loss_context_manager"}
"""Methods that several plugins may extend, because each calls the next one."""


class PluginTrainerMixin:
    """Adds the session's plugins to a trainer class; see `compose`."""

    plugin_session: Any

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of the plugin that computes it, else the trainer's."""
        plugin = self.plugin_session.loss
        if plugin is None:
            return super().compute_loss(  # type: ignore[misc]
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch, **kwargs
            )
        with naming_plugin(plugin, "compute_loss"):
            result = plugin.compute_loss(self, model, inputs)
        plugin.report.effect()
        loss = _scale_loss(self, result, num_items_in_batch if getattr(model, "training", True) else None)
        return (loss, result.outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *arguments: Any, **kwargs: Any) -> None:
        """Add the metrics of the plugins to the log of a step."""
        if "loss" in logs:
            with guard("reading the metrics of plugins"):
                logs.update(self.plugin_session.metrics(self.state.global_step))  # type: ignore[attr-defined]
        super().log(logs, *arguments, **kwargs)  # type: ignore[misc]

    def create_optimizer(self, *arguments: Any, **kwargs: Any) -> Any:
        """Return the optimizer of the plugin that creates it, else the trainer's."""
        if getattr(self, "optimizer", None) is None:
            optimizer = self.plugin_session.create_optimizer(self)
            if optimizer is not None:
                self.optimizer = optimizer
        return super().create_optimizer(*arguments, **kwargs)  # type: ignore[misc]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the scheduler of the plugin that creates it, else the trainer's."""
        if getattr(self, "lr_scheduler", None) is None:
            target_optimizer = optimizer if optimizer is not None else getattr(self, "optimizer", None)
            scheduler = self.plugin_session.create_lr_scheduler(self, target_optimizer, num_training_steps)
            if scheduler is not None:
                self.lr_scheduler = scheduler
        return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        if checkpoint is not None:
            plugins = self.plugin_session.plugins
            new = load_states(plugins, Path(checkpoint), rank=_file_rank(self))
            with_state = [name for name in new if any(p.plugin_name() == name and p.state_dict() for p in plugins)]
            if with_state:
                warn(f"checkpoint {checkpoint} has no state of plugin {', '.join(with_state)}: it starts anew")


class naming_plugin:  # noqa: N801 - used as a function
    """Add the name of a plugin to the exceptions of a block in a training step, whose types must stay.

    Args:
        plugin: the plugin.
        hook: the hook or event.
    """

    def __init__(self, plugin: BasePlugin, hook: str) -> None:
        self._note = f"This was raised by the plugin {plugin.plugin_name()}, in {hook}."

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, PluginError):
            return
        if hasattr(error, "add_note"):
            error.add_note(self._note)
        else:  # Python 3.10
            warn("%s: %s", type(error).__name__, self._note, is_error=True)


class RolloutMixin:
    """Passes the completions of a GRPO or RLOO trainer to the plugins."""

    plugin_session: Any

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        result = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        with guard("passing completions to plugins"):
            if self.model.training and self.accelerator.is_main_process:  # type: ignore[attr-defined]
                logs = self._logs  # type: ignore[attr-defined]
                num = len(inputs) * self.accelerator.num_processes  # type: ignore[attr-defined]
                prompts, completions, advantages = (
                    list(logs[name])[-num:] for name in ("prompt", "completion", "advantages")
                )
                rewards = {name: list(values)[-num:] for name, values in logs["rewards"].items()}
                self.plugin_session.rollouts_scored(self, prompts, completions, rewards, advantages)
        return result


def _scale_loss(trainer: Any, result: LossResult, num_items_in_batch: Any) -> Any:
    """Return a loss in the scale that the trainer expects, and declare that scale to the trainer."""
    is_scaled = result.num_items is not None and num_items_in_batch is not None
    if result.num_items is None:
        loss = result.total
    elif num_items_in_batch is None:
        loss = result.total / max(int(result.num_items), 1)
    else:
        loss = result.total / num_items_in_batch
        if trainer.args.average_tokens_across_devices and getattr(trainer, "model_accepts_loss_kwargs", False):
            loss = loss * (trainer.accelerator.num_processes if trainer.args.n_gpu <= 1 else trainer.args.n_gpu)
    if hasattr(type(trainer), "loss_is_scaled_for_ga"):
        trainer.loss_is_scaled_for_ga = is_scaled
    elif not is_scaled and num_items_in_batch is not None and trainer.model_accepts_loss_kwargs:
        loss = loss / trainer.current_gradient_accumulation_steps  # this version divides a mean only without a count
    return loss


def compose(base: type, parts: list[tuple[BasePlugin, type]], session: Any) -> type:
    """Return a class that inherits from the mixins of plugins, the first plugin first, and from a trainer class.

    Raises:
        PluginError: if two plugins replace the same method, or the classes cannot be combined.
    """
    owners: dict[str, BasePlugin] = {}
    for plugin, part in parts:
        for method in _methods_of(part):
            other = owners.setdefault(method, plugin)
            if other is not plugin and method not in _SHARED_METHODS:
                raise PluginError(
                    f"plugins {other.plugin_name()} and {plugin.plugin_name()} cannot be combined: "
                    f"both replace {method} of the trainer. Remove one of them from `plugins`."
                )
    bases: list[type] = [PluginTrainerMixin, RolloutMixin] if hasattr(base, GENERATES) else [PluginTrainerMixin]
    # `Trainer` does not call `super()`, so mixins that are not trainer classes come first.
    for _, part in sorted(parts, key=lambda entry: issubclass(entry[1], Trainer)):
        if part not in bases and not issubclass(base, part):
            bases.append(part)
    if not any(issubclass(entry, base) for entry in bases):
        bases.append(base)
    namespace: dict[str, Any] = {"plugin_session": session, "__module__": base.__module__}
    if session.loss is None and _ignores_num_items(parts):
        namespace["loss_is_scaled_for_ga"] = False
    try:
        return type(base.__name__, tuple(bases), namespace)
    except TypeError as error:
        names = ", ".join(f"{part.__name__} of plugin {plugin.plugin_name()}" for plugin, part in parts)
        raise PluginError(f"{base.__name__} cannot be combined with {names}: {error}") from error


def _methods_of(part: type) -> set[str]:
    """Return the methods of a part that do not come from `Trainer` or its bases."""
    trainer_classes = {Trainer, *Trainer.__mro__}
    owners = [owner for owner in part.__mro__ if owner not in trainer_classes]
    return {
        name for owner in owners for name, value in vars(owner).items() if callable(value) and not name.startswith("__")
    }


def _ignores_num_items(parts: list[tuple[BasePlugin, type]]) -> bool:
    """Return whether a part computes a loss without the number of items, that is, a mean over one batch."""
    for _, part in parts:
        function = next((vars(owner)["compute_loss"] for owner in part.__mro__ if "compute_loss" in vars(owner)), None)
        if function is None or function is Trainer.compute_loss or not inspect.isfunction(function):
            continue
        takes_kwargs = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values()
        )
        reads_num_items = any(
            instruction.argval == "num_items_in_batch" and instruction.opname.startswith("LOAD")
            for instruction in dis.get_instructions(function)
        )
        return not (takes_kwargs or reads_num_items)
    return False


def time_callback(callback: Any, plugin: BasePlugin) -> None:
    """Time the events of a callback, on the instance."""
    # Built-in callbacks report their effects; each call of another callback counts as one.
    is_effect = not type(plugin).__module__.startswith("tachograph.plugins.")
    for event in _EVENTS:
        method = getattr(callback, event, None)
        if method is not None and getattr(type(callback), event, None) is not getattr(TrainerCallback, event):
            timer = plugin.report.timer(event, is_effect=is_effect)
            setattr(callback, event, _time_method(method, timer, naming_plugin(plugin, event)))


def _time_method(method: Callable[..., Any], timer: HookTimer, naming: naming_plugin) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        start_s = perf_counter()
        try:
            with naming:
                return method(args, state, control, **kwargs)
        finally:
            timer.seconds += perf_counter() - start_s
            timer.num_calls += 1

    return wrapper


class PluginRecorder:
    """Records the effects of the plugins of a session, and keeps their state in checkpoints.

    It wraps methods of the trainer's callback handler that are called rarely. A callback would cost time in every step.
    """

    def __init__(self, session: Any, trainer: Any) -> None:
        self._session = session
        self._trainer = trainer
        self._run: Run | None = None

    def attach(self, patches: Patches) -> None:
        """Wrap the callback handler, until the patches are undone."""
        handler = self._trainer.callback_handler
        for event in ("on_train_begin", "on_train_end", "on_save"):
            patches.replace(handler, event, self._call_after(getattr(handler, event), getattr(self, f"_{event}")))

    @staticmethod
    def _call_after(event: Callable[..., Any], follow: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(event)
        def wrapper(args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
            result = event(args, state, control, **kwargs)
            follow(args, state)
            return result

        return wrapper

    def _on_train_begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Record the plugins in the current run, which a callback may just have started."""
        self._session.train_begins()
        with guard("recording the plugins"):
            try:
                self._run = current_run()
            except NoRunError:
                self._run = None
                return
            for facts in self._session.facts():
                self._add_event("plugin", state.global_step, facts)

    def _on_train_end(self, args: TrainingArguments, state: TrainerState) -> None:
        """Record the time of the hooks, and how often each plugin had an effect."""
        with guard("recording the plugins"):
            for facts, plugin in zip(self._session.facts(), self._session.plugins, strict=True):
                summary = {name: facts[name] for name in ("plugin", "hook_ms")}
                self._add_event("plugin_summary", state.global_step, {**summary, "effects": plugin.report.num_effects})

    def _add_event(self, name: str, step: int, facts: dict[str, Any]) -> None:
        """Add an event whose dicts stay nested."""
        if self._run is not None and self._run.status == "running":
            plain = to_plain(facts, name, [])
            self._run.add_record("event", {"name": name, "global_step": step, **plain})

    def _on_save(self, args: TrainingArguments, state: TrainerState) -> None:
        """Save the state of the plugins. A failure raises: resuming without it would silently change the training."""
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        rank = _file_rank(self._trainer)
        if state.is_world_process_zero or rank:
            save_states(self._session.plugins, checkpoint, rank=rank)


def _file_rank(trainer: Any) -> int:
    """Return the rank whose file holds the state: each rank's own if parameters are sharded, else rank 0."""
    is_sharded = bool(getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False))
    return int(trainer.args.process_index) if is_sharded else 0
