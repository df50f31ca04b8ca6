"""`PluginSession`: the plugins of one training, from loading to the removal of their patches.

A training calls the methods in the order of this file. Each calls one hook of all plugins, in the order of the config,
and times it. The results of the hooks are combined by these rules:

- a slot (the loss, the optimizer, …) belongs to one plugin; two that claim it are an error;
- mixins and trainer classes are composed into one class, the first plugin first;
- training arguments are merged; two plugins that set one to different values are an error;
- callbacks are concatenated.

When training begins, every plugin must have had an effect: a recorded change, a contribution such as a callback or an
optimizer, or a slot that it claims. Otherwise it is an error, because a plugin that does nothing looks exactly like one
that works. A plugin whose options turn it off is removed at once and listed in `off`.

The errors of a plugin always name it. A plugin that is marked optional is removed with a warning instead, whatever
fails before training, and so are its keys.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.exceptions import ConfigError, PluginError, did_you_mean
from tachograph.plugins._base import BasePlugin, PluginConfig, Slots, TrainingSetup, import_dotted
from tachograph.plugins._config import (
    NO_FOREIGN_KEYS,
    EmptyConfig,
    ForeignKeys,
    check_options,
    keys_of,
    options_of,
    validate_config,
)
from tachograph.plugins._loading import create, find_class, name_of, parse_entries
from tachograph.plugins._observe import LibraryObserver, ModelObserver
from tachograph.plugins._trainer import GENERATES, PluginRecorder, compose, time_callback

__all__ = ["PluginSession"]

_HOOKS_OF_SLOTS = {
    Slots.TRAINER: "get_trainer_cls",
    Slots.OPTIMIZER: "create_optimizer",
    Slots.SCHEDULER: "create_lr_scheduler",
    Slots.COLLATOR: "get_collator_cls_and_kwargs",
    Slots.DATASETS: "load_datasets",
    Slots.ADAPTER: "load_adapter",
    Slots.ROLLOUTS: "rollout_function",
}
"""The hook that fills a slot. A plugin that has the hook must return something; the slot alone is not an effect."""
_LIBRARY_CHANGE = "classes and functions patched"
_LATE_HOOKS = ("create_optimizer", "create_lr_scheduler")
"""Hooks that are called when training begins, after the trainer is complete."""


class PluginSession:
    """The plugins of one training.

    Attributes:
        plugins: the plugins, in the order of the config.
        options: the validated config, without the options of plugins; each plugin has its own.
        cfg: the whole config, as hooks receive it.
        off: plugins that their options turn off, by name, each with the option.
        warnings: messages about optional plugins that were dropped, and about keys without effect.
        loss: the plugin that computes the loss, if any.
        callbacks: the callbacks that plugins have added to the trainer.
    """

    def __init__(self) -> None:
        self.plugins: list[BasePlugin] = []
        self.options: BaseModel = EmptyConfig()
        self.cfg = PluginConfig()
        self.off: dict[str, str] = {}
        self.warnings: list[str] = []
        self.loss: BasePlugin | None = None
        self.callbacks: list[Any] = []
        self._optional: set[BasePlugin] = set()
        self._dropped_plugins: list[BasePlugin] = []
        self._contributions: dict[BasePlugin, list[str]] = {}
        self._argument_owners: dict[str, BasePlugin] = {}
        self._callback_owners: list[tuple[BasePlugin, Any]] = []
        self._trainer: Any = None
        self._trainer_base: type | None = None
        self._trainer_parts: list[tuple[BasePlugin, type]] = []
        self._has_trained = False
        self._is_closed = False
        self._last_step = 0
        self._patches = Patches()

    @classmethod
    def open(
        cls,
        entries: Any,
        config: Mapping[str, Any],
        *,
        base: type[BaseModel] = EmptyConfig,
        origin: str = "config",
        foreign_keys: ForeignKeys = NO_FOREIGN_KEYS,
    ) -> PluginSession:
        """Load plugins, validate the config with all their options, and check their slots.

        Args:
            entries: the list `plugins`.
            config: the config.
            base: the pydantic model of the keys that belong to no plugin.
            origin: where the config comes from, for messages.
            foreign_keys: keys of another program, each with an explanation.

        Raises:
            ConfigError: if a plugin cannot be loaded, the config is invalid, or two plugins claim one slot.
        """
        session = cls()
        try:
            session._open(entries, PluginConfig(config), base, origin, foreign_keys)
        except BaseException:
            with contextlib.suppress(PluginError):
                session.close()
            raise
        return session

    def _open(
        self, entries: Any, raw: PluginConfig, base: type[BaseModel], origin: str, foreign_keys: ForeignKeys
    ) -> None:
        unloaded_paths, load_errors = self._load(entries)
        self._call_all("register", raw)
        for plugin in [plugin for plugin in self.plugins if plugin in self._optional]:
            with self._running(plugin, "get_input_args"):
                others = self.plugins[: self.plugins.index(plugin)]
                others += [other for other in self.plugins if other not in self._optional and other not in others]
                check_options(plugin, others, base, raw)
        self._remove_leftover_keys(raw, base, unloaded_paths, foreign_keys)
        try:
            valid_config = validate_config(raw, self.plugins, base, origin=origin, foreign_keys=foreign_keys)
        except ConfigError as error:
            self._call_all("on_config_validation_error", raw)
            raise _joined([*load_errors, error]) from error
        if load_errors:
            raise _joined(load_errors)
        self.warnings += valid_config.warnings
        self.options = valid_config.base
        self.cfg = PluginConfig(valid_config.values)
        for plugin, options in zip(self.plugins, valid_config.options, strict=True):
            plugin.options = options
        for plugin, reason in self._call_all("off_reason", self.cfg):
            if reason:
                self.plugins.remove(plugin)
                self.off[plugin.plugin_name()] = reason
        self.check_slots()

    def _load(self, entries: Any) -> tuple[list[Any], list[ConfigError]]:
        """Create the plugins; return the entries that cannot be loaded, and the errors of those not optional.

        The errors are raised later, together with those of the config.
        """
        unloaded_paths: list[Any] = []
        errors: list[ConfigError] = []
        for entry in parse_entries(entries):
            try:
                plugin = create(entry.path)
                if any(type(other) is type(plugin) for other in self.plugins):
                    raise PluginError(f"plugin {plugin.plugin_name()} is listed twice")
            except PluginError as error:
                unloaded_paths.append(entry.path)
                if entry.optional:
                    label = repr(entry.path) if isinstance(entry.path, str) else name_of(entry.path)
                    self._warn(f"optional plugin {label} is not used: {error}")
                else:
                    errors.append(error)
                continue
            self.plugins.append(plugin)
            if entry.optional:
                self._optional.add(plugin)
        return unloaded_paths, errors

    def _remove_leftover_keys(
        self, raw: PluginConfig, base: type[BaseModel], unloaded_paths: Sequence[Any], foreign_keys: ForeignKeys
    ) -> None:
        """Remove the options of optional plugins that are not used.

        If such a plugin cannot be imported, its options are not known. Then every unknown key may be one, unless it
        resembles a known key.
        """
        known_keys = keys_of(base).union(*(keys_of(options_of(plugin)) for plugin in self.plugins))
        foreign_names = {name for table in foreign_keys for name in table}
        names = {plugin.plugin_name() for plugin in self._dropped_plugins} | {name_of(path) for path in unloaded_paths}
        leftover_keys: set[str] = set()
        unknown_names = []
        for plugin in self._dropped_plugins:
            try:
                leftover_keys |= keys_of(options_of(plugin))
            except PluginError:
                leftover_keys |= keys_of(plugin.Options)
                unknown_names.append(plugin.plugin_name())
        for path in unloaded_paths:
            try:
                leftover_keys |= keys_of(find_class(path).Options)
            except PluginError:
                unknown_names.append(str(path))
        for key in [key for key in raw if key not in known_keys]:
            if key in leftover_keys or any(key == name or key.startswith(f"{name}_") for name in names):
                del raw[key]
            elif unknown_names and key not in foreign_names and not did_you_mean(key, known_keys):
                self.warnings.append(f"{key} has no effect: it is unknown without the plugin {unknown_names[0]!r}")
                del raw[key]

    def check_slots(self) -> None:
        """Raise an error if two plugins claim one slot."""
        owners: dict[str, BasePlugin] = {}
        for plugin in self._required_first():
            with self._running(plugin, "claims"):
                slots = sorted(self.slots_of(plugin))
                for slot in slots:
                    self._check_owner(slot, plugin, owners)
                owners.update(dict.fromkeys(slots, plugin))
        self.loss = next((plugin for plugin in self.plugins if _computes_loss(plugin)), None)

    def _required_first(self) -> list[BasePlugin]:
        """Return the plugins, the optional ones last: in a conflict, they are dropped."""
        return sorted(self.plugins, key=self._optional.__contains__)

    def slots_of(self, plugin: BasePlugin) -> set[str]:
        """Return the slots that a plugin claims."""
        return {*plugin.claims(self.cfg), *([Slots.LOSS] if _computes_loss(plugin) else [])}

    @staticmethod
    def _check_owner(slot: str, plugin: BasePlugin, owners: Mapping[str, BasePlugin]) -> None:
        other = owners.get(slot, plugin)
        if other is not plugin:
            raise PluginError(
                f"plugins {other.plugin_name()} and {plugin.plugin_name()} cannot be combined: "
                f"both replace the {slot}. Remove one of them from `plugins`."
            )

    def plan(self, model: Any) -> dict[str, list[str]]:
        """Return the changes that each plugin would make, by its name, also for plugins that are off.

        Args:
            model: the model without weights, or None if it is not known.

        Raises:
            PluginError: if a plugin does not work with the config or the model.
        """
        plans = {plugin.plugin_name(): lines for plugin, lines in self._call_all("plan", self.cfg, model)}
        names = {plugin.plugin_name(): plans.get(plugin.plugin_name(), []) for plugin in self.plugins}
        return names | {name: [f"off: {reason}"] for name, reason in self.off.items()}

    def check_setup(self, setup: TrainingSetup) -> list[str]:
        """Return the problems that plugins find before the model is loaded."""
        problems = []
        for plugin in list(self.plugins):
            try:
                with self._running(plugin, "check_setup"):
                    plugin.check_setup(self.cfg, setup)
            except PluginError as error:
                problems.append(str(error))
        return problems

    # Hooks, in the order in which a training calls them ---------------------------------------------------------------

    def training_args_mixins(self) -> list[type]:
        """Return the dataclasses with further training arguments."""
        mixins: list[type] = []
        for plugin, mixin in self._call_all("get_training_args_mixin"):
            if mixin is not None:
                with self._running(plugin, "get_training_args_mixin"):
                    mixins.append(import_dotted(mixin, "its training arguments") if isinstance(mixin, str) else mixin)
        return mixins

    def training_args(self) -> dict[str, Any]:
        """Return the training arguments that plugins set."""
        merged_arguments: dict[str, Any] = {}
        owners: dict[str, BasePlugin] = {}
        for plugin, arguments in self._call_required_first("get_training_args", self.cfg):
            with self._running(plugin, "get_training_args"):
                for name, value in (arguments or {}).items():
                    if name in merged_arguments and merged_arguments[name] != value:
                        raise PluginError(
                            f"plugins {owners[name].plugin_name()} and {plugin.plugin_name()} set the training "
                            f"argument {name!r} to {merged_arguments[name]!r} and {value!r}: remove one of them from "
                            "`plugins`"
                        )
                merged_arguments |= arguments or {}
                owners |= dict.fromkeys(arguments or {}, plugin)
                self._argument_owners.update(dict.fromkeys(arguments or {}, plugin))
                if arguments:
                    self._contribute(plugin, f"training arguments: {', '.join(arguments)}")
        return merged_arguments

    def dropped_arguments(self) -> list[str]:
        """Return the training arguments of plugins that were dropped after `training_args` was called."""
        return [name for name, plugin in self._argument_owners.items() if plugin not in self.plugins]

    def load_datasets(self, preprocess: bool = False) -> Any:
        """Return the datasets of the plugin that loads them, if any."""
        return self._single("load_datasets", Slots.DATASETS, self.cfg, preprocess)

    def pre_model_load(self) -> None:
        """Call the hook of all plugins, and record which classes and functions they patched."""
        for plugin in list(self.plugins):
            if not _overrides(plugin, "pre_model_load"):
                continue
            observer = LibraryObserver()
            with self._running(plugin, "pre_model_load"):
                plugin.pre_model_load(self.cfg)
            patched_names = observer.changes(plugin.patches)
            if patched_names:
                plugin.report.changed(_LIBRARY_CHANGE, patched_names)

    def model_hook(self, hook: str, model: Any) -> None:
        """Call a hook that receives the model, and record its changes.

        Args:
            hook: `post_model_build`, `pre_lora_load`, `post_lora_load` or `post_model_load`.
            model: the model.
        """
        for plugin in list(self.plugins):
            if not _overrides(plugin, hook):
                continue
            observer, library_observer = ModelObserver(model), LibraryObserver()
            with self._running(plugin, hook):
                getattr(plugin, hook)(self.cfg, model)
            changes = observer.changes(model)
            patched_names = library_observer.changes(plugin.patches)
            if patched_names:
                changes[_LIBRARY_CHANGE] = patched_names
            for what, names in changes.items():
                if what not in plugin.report.changes:
                    plugin.report.changed(what, names)

    def lora_config_kwargs(self) -> dict[str, Any]:
        """Return the arguments of the LoRA config that plugins set."""
        merged_arguments: dict[str, Any] = {}
        for plugin, arguments in self._call_all("get_lora_config_kwargs", self.cfg):
            if arguments:
                merged_arguments.update(arguments)
                self._contribute(plugin, f"LoRA arguments: {', '.join(arguments)}")
        return merged_arguments

    def adapters(self) -> dict[str, BasePlugin]:
        """Return the plugin of each adapter that plugins can load."""
        owners: dict[str, BasePlugin] = {}
        for plugin, capabilities in self._call_all("get_adapter_capabilities"):
            with self._running(plugin, "get_adapter_capabilities"):
                for capability in capabilities or []:
                    self._check_owner(capability.name, plugin, owners)
                    owners[capability.name] = plugin
        return owners

    def load_adapter(self, name: str, model: Any) -> Any:
        """Return the model with an adapter that a plugin loads.

        Raises:
            PluginError: if no plugin loads it.
        """
        plugin = self.adapters().get(name)
        adapter_result = None
        if plugin is not None:
            with self._running(plugin, "load_adapter"):
                adapter_result = plugin.load_adapter(model, self.cfg)
                self._contribute(plugin, f"adapter {name}")
        if adapter_result is None:
            raise PluginError(f"adapter={name!r}: no plugin loaded it")
        return adapter_result[0] if isinstance(adapter_result, tuple) else adapter_result

    def trainer_class(self, base: type) -> type:
        """Return a class composed of a trainer class and the mixins of plugins."""
        self._trainer_base = base
        results = self._call_required_first("get_trainer_cls", self.cfg)
        for plugin, part in results:
            if part is None:
                continue
            with self._running(plugin, "get_trainer_cls"):
                parts = [*self._trainer_parts, (plugin, part)]
                compose(base, parts, self)  # raises if it cannot be combined with the others
                self._trainer_parts = sorted(parts, key=lambda entry: self.plugins.index(entry[0]))
                self._contribute(plugin, f"trainer class {part.__name__}")
        if self.loss is not None:
            self._contribute(self.loss, "the loss")
        for plugin in self.plugins:
            if hasattr(base, GENERATES) and _overrides(plugin, "on_rollouts_scored"):
                self._contribute(plugin, "scored completions")
        return compose(base, self._trainer_parts, self)

    def reward_functions(self) -> dict[str, Callable[..., Any]]:
        """Return the reward functions that plugins bring, by name.

        Raises:
            PluginError: if two plugins bring functions of the same name.
        """
        functions: dict[str, Callable[..., Any]] = {}
        owners: dict[str, BasePlugin] = {}
        for plugin, plugin_functions in self._call_required_first("reward_functions", self.cfg):
            with self._running(plugin, "reward_functions"):
                for name in plugin_functions or {}:
                    self._check_owner(f"reward function {name}", plugin, owners)
                    owners[f"reward function {name}"] = plugin
                    self._contribute(plugin, f"reward function {name}")
                functions.update(plugin_functions or {})
        return functions

    def rollout_function(self) -> Callable[..., Any] | None:
        """Return the function of the plugin that generates completions, if any."""
        function: Callable[..., Any] | None = self._single("rollout_function", Slots.ROLLOUTS, self.cfg)
        return function

    def collator(self, is_eval: bool = False) -> tuple[type, dict[str, Any]] | None:
        """Return the class of the collator that a plugin replaces, and its arguments."""
        result = self._single("get_collator_cls_and_kwargs", Slots.COLLATOR, self.cfg, is_eval)
        if result is None:
            return None
        collator, arguments = result
        return collator, dict(arguments or {})

    def callbacks_pre_trainer(self, model: Any) -> list[Any]:
        """Return the callbacks for the trainer that is created next."""
        return self._callbacks("add_callbacks_pre_trainer", model)

    def attach(self, trainer: Any) -> None:
        """Complete a trainer: call the remaining hooks, add callbacks, and check that every plugin has an effect.

        Raises:
            PluginError: if a plugin changed nothing.
        """
        self._trainer = trainer
        for plugin in self._dropped_plugins:
            self._remove_from_trainer(plugin)
        self._call_all("post_trainer_create", self.cfg, trainer)
        for callback in self._callbacks("add_callbacks_post_trainer", trainer):
            trainer.add_callback(callback)
        PluginRecorder(self, trainer).attach(self._patches)
        self._check_effects([plugin for plugin in self.plugins if not _overrides_any(plugin, _LATE_HOOKS)])

    def train_begins(self) -> None:
        """Check that every plugin has an effect; called when the trainer has its optimizer and scheduler.

        Raises:
            PluginError: if a plugin changed nothing.
        """
        self._check_effects(list(self.plugins))

    def create_optimizer(self, trainer: Any) -> Any:
        """Return the optimizer that a plugin creates, if any."""
        return self._single("create_optimizer", Slots.OPTIMIZER, self.cfg, trainer)

    def create_lr_scheduler(self, trainer: Any, optimizer: Any, num_training_steps: int) -> Any:
        """Return the scheduler that a plugin creates, if any."""
        return self._single("create_lr_scheduler", Slots.SCHEDULER, self.cfg, trainer, optimizer, num_training_steps)

    def post_train(self, model: Any) -> None:
        """Call the hook of all plugins, once per training."""
        if not self._has_trained:
            self._has_trained = True
            self._call_all("post_train", self.cfg, model)

    def lora_merged(self, adapter_path: str, output_path: str) -> None:
        """Call the hook of all plugins after an adapter was merged."""
        self._call_all("post_lora_merge", self.cfg, adapter_path, output_path)

    def close(self) -> None:
        """Call the last hook of all plugins and undo all patches, whatever fails. Further calls do nothing.

        Raises:
            PluginError: the first failure of a hook, after everything else is done.
        """
        if self._is_closed:
            return
        self._is_closed = True
        errors: list[PluginError] = []
        undos = [*(plugin.patches.undo for plugin in self.plugins), self._patches.undo]
        with contextlib.ExitStack() as stack:
            for undo in undos:  # called in reverse, and all of them even if one fails
                stack.callback(undo)
            for plugin in [*self.plugins, *self._dropped_plugins]:
                if not _overrides(plugin, "post_train_unload"):
                    continue
                try:
                    with plugin.report.timer("post_train_unload"):
                        plugin.post_train_unload(self.cfg)
                except Exception as error:  # noqa: BLE001 - raised below
                    if plugin in self._optional:
                        self._warn(str(_plugin_error(plugin, "post_train_unload", error)))
                    else:
                        errors.append(_plugin_error(plugin, "post_train_unload", error))
        if errors:
            raise errors[0]

    # Reports ---------------------------------------------------------------------------------------------------------

    def rollouts_scored(
        self, trainer: Any, prompts: list[Any], completions: list[Any], rewards: Any, advantages: list[float]
    ) -> None:
        """Call the hook of all plugins. Its failure is reported and does not stop training."""
        for plugin in self.plugins:
            if _overrides(plugin, "on_rollouts_scored"):
                with guard(f"on_rollouts_scored of plugin {plugin.plugin_name()}"):
                    with plugin.report.timer("on_rollouts_scored"):
                        plugin.on_rollouts_scored(self.cfg, trainer, prompts, completions, rewards, advantages)
                    plugin.report.effect()

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of all plugins since the last call.

        Args:
            step: the current step, for the mean time per step.
        """
        metrics: dict[str, float] = {}
        num_steps, self._last_step = max(1, step - self._last_step), step
        for plugin in self.plugins:
            prefix = f"plugin/{plugin.plugin_name()}/"
            metrics[f"{prefix}active"] = float(plugin.is_active())
            callbacks_s = plugin.report.drain_event_s()
            if callbacks_s:
                metrics[f"{prefix}ms_per_step"] = callbacks_s / num_steps * 1e3
            metrics.update({prefix + name: value for name, value in plugin.report.drain().items()})
        return metrics

    def facts(self) -> list[dict[str, Any]]:
        """Return the recorded facts about each plugin."""
        return [
            {
                "plugin": plugin.plugin_name(),
                "class": f"{type(plugin).__module__}.{type(plugin).__qualname__}",
                "slots": sorted(self.slots_of(plugin)),
                "options": plugin.options.model_dump() if plugin.options is not None else {},
                "changes": plugin.report.changes,
                "contributes": self._contributions.get(plugin, []),
                "hook_ms": {hook: seconds * 1e3 for hook, seconds in plugin.report.hook_s.items()},
            }
            for plugin in self.plugins
        ]

    # Calling hooks ----------------------------------------------------------------------------------------------------

    def _call_all(self, hook: str, *arguments: Any) -> list[tuple[BasePlugin, Any]]:
        results = []
        for plugin in list(self.plugins):
            if not _overrides(plugin, hook):
                continue
            with self._running(plugin, hook):
                results.append((plugin, getattr(plugin, hook)(*arguments)))
        return results

    def _call_required_first(self, hook: str, *arguments: Any) -> list[tuple[BasePlugin, Any]]:
        """Return the results of a hook, of optional plugins last: in a conflict, they are dropped."""
        return sorted(self._call_all(hook, *arguments), key=lambda entry: entry[0] in self._optional)

    def _single(self, hook: str, slot: str, *arguments: Any) -> Any:
        """Return the result of the only plugin whose hook returns something."""
        owners: dict[str, BasePlugin] = {}
        result = None
        for plugin, candidate in self._call_required_first(hook, *arguments):
            if candidate is None or (isinstance(candidate, tuple) and candidate[0] is None):
                continue
            with self._running(plugin, hook):
                self._check_owner(slot, plugin, owners)
                owners[slot] = plugin
                self._contribute(plugin, f"the {slot}")
                result = candidate
        return result

    def _callbacks(self, hook: str, argument: Any) -> list[Any]:
        new_callbacks = []
        for plugin, callbacks in self._call_all(hook, self.cfg, argument):
            with self._running(plugin, hook):
                own_callbacks = [callback for callback in callbacks or [] if callback is not None]
                for callback in own_callbacks:
                    time_callback(callback, plugin)
                    self._contribute(plugin, f"callback {type(callback).__name__.lstrip('_')}")
                self._callback_owners += [(plugin, callback) for callback in own_callbacks]
                new_callbacks += own_callbacks
        self.callbacks += new_callbacks
        return new_callbacks

    @contextlib.contextmanager
    def _running(self, plugin: BasePlugin, hook: str) -> Iterator[None]:
        """Time a hook, and name the plugin in its error. The error of an optional plugin removes the plugin."""
        try:
            with plugin.report.timer(hook):
                yield
        except Exception as error:
            named_error = _plugin_error(plugin, hook, error)
            if plugin in self._optional:
                self._drop(plugin, str(named_error).removeprefix(f"plugin {plugin.plugin_name()}: "))
            elif named_error is error:
                raise
            else:
                raise named_error from error

    def _contribute(self, plugin: BasePlugin, what: str) -> None:
        contributions = self._contributions.setdefault(plugin, [])
        if what not in contributions:
            contributions.append(what)

    def _check_effects(self, plugins: Sequence[BasePlugin]) -> None:
        for plugin in plugins:
            if plugin.report.changes or self._contributions.get(plugin) or self._claims_part(plugin):
                continue
            if _overrides_any(plugin, ("post_train", "post_lora_merge")):
                continue  # it acts after training
            with self._running(plugin, "the check of effects"):
                raise plugin.error(
                    "it changed nothing: no module, parameter, training argument, callback, collator, loss, optimizer "
                    "or scheduler. Check its options and whether it supports this model, or remove it from `plugins`."
                )

    def _claims_part(self, plugin: BasePlugin) -> bool:
        """Return whether a plugin claims a slot that it fills by other means than a hook."""
        return any(
            slot not in _HOOKS_OF_SLOTS or not _overrides(plugin, _HOOKS_OF_SLOTS[slot])
            for slot in self.slots_of(plugin)
        )

    def _drop(self, plugin: BasePlugin, problem: str) -> None:
        plugin.patches.undo()
        if plugin in self.plugins:
            self.plugins.remove(plugin)
            self._dropped_plugins.append(plugin)
        if self.loss is plugin:
            self.loss = None
        self._contributions.pop(plugin, None)
        self._trainer_parts = [entry for entry in self._trainer_parts if entry[0] is not plugin]
        self._remove_from_trainer(plugin)
        self._warn(f"optional plugin {plugin.plugin_name()} is not used: {problem}")

    def _remove_from_trainer(self, plugin: BasePlugin) -> None:
        """Remove the callbacks of a dropped plugin, and its part of the trainer's class."""
        trainer = self._trainer
        if trainer is None:
            return
        for owner, callback in self._callback_owners:
            if owner is plugin and callback in trainer.callback_handler.callbacks:
                trainer.remove_callback(callback)
        if self._trainer_base is not None:
            trainer.__class__ = compose(self._trainer_base, self._trainer_parts, self)

    def _warn(self, message: str) -> None:
        self.warnings.append(message)
        warnings.warn(message, stacklevel=2)


def _plugin_error(plugin: BasePlugin, hook: str, error: Exception) -> PluginError:
    """Return an error that names the plugin, and the place of an unexpected exception."""
    name = plugin.plugin_name()
    if isinstance(error, PluginError) and name in str(error):
        return error
    if isinstance(error, ConfigError):
        return plugin.error(str(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return plugin.error(f"{hook} failed: {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})")


def _joined(errors: Sequence[ConfigError]) -> ConfigError:
    """Return one error for all of them. The last one may be that of the config, which begins with its place."""
    if len(errors) == 1:
        return errors[0]
    return PluginError("; ".join(str(error) for error in [errors[-1], *errors[:-1]]))


def _overrides(plugin: BasePlugin, hook: str) -> bool:
    return getattr(type(plugin), hook, None) is not getattr(BasePlugin, hook, None)


def _overrides_any(plugin: BasePlugin, hooks: Sequence[str]) -> bool:
    return any(_overrides(plugin, hook) for hook in hooks)


def _computes_loss(plugin: BasePlugin) -> bool:
    return _overrides(plugin, "compute_loss")
