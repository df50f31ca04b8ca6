"""`PluginSession`: the plugins of one training, from loading to the removal of their patches.

A training calls the methods in the order of this file. Each calls one hook of all plugins, in the order of the config,
and times it. The results of the hooks are combined by these rules:

- a slot (the loss, the optimizer, …) belongs to one plugin; two that claim it are an error;
- mixins and trainer classes are composed into one class, the first plugin first;
- training arguments are merged; two plugins that set one to different values are an error;
- callbacks are concatenated.

Before training, every plugin must have had an effect: a recorded change, or a contribution such as a callback.
Otherwise it is an error, because a plugin that does nothing looks exactly like one that works. A plugin that is marked
optional is dropped with a warning instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins._base import BasePlugin, PluginConfig, Slots
from tachograph.plugins._config import EmptyConfig, import_dotted, validate_config
from tachograph.plugins._loading import load_class, name_of, parse_entries
from tachograph.plugins._observe import LibraryObserver, ModelObserver
from tachograph.plugins._trainer import GENERATES, PluginRecorder, compose, time_callback

__all__ = ["PluginSession"]


class PluginSession:
    """The plugins of one training.

    Attributes:
        plugins: the plugins, in the order of the config.
        options: the validated config, without the options of plugins; each plugin has its own.
        cfg: the whole config, as hooks receive it.
        warnings: messages about optional plugins that were dropped.
        loss: the plugin that computes the loss, if any.
        callbacks: the callbacks that plugins have added to the trainer.
    """

    def __init__(self) -> None:
        self.plugins: list[BasePlugin] = []
        self.options: BaseModel = EmptyConfig()
        self.cfg = PluginConfig()
        self.warnings: list[str] = []
        self.loss: BasePlugin | None = None
        self.callbacks: list[Any] = []
        self._optional: set[BasePlugin] = set()
        self._contributions: dict[BasePlugin, list[str]] = {}
        self._has_trained = False
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
        unsupported_keys: Mapping[str, str] = {},
    ) -> PluginSession:
        """Load plugins, validate the config with all their options, and check their slots.

        Args:
            entries: the list `plugins`.
            config: the config.
            base: the pydantic model of the keys that belong to no plugin.
            origin: where the config comes from, for messages.
            unsupported_keys: keys that are known but not supported, each with an explanation.

        Raises:
            ConfigError: if a plugin cannot be loaded, the config is invalid, or two plugins claim one slot.
        """
        session = cls()
        dropped_names: set[str] = set()
        for entry in parse_entries(entries):
            try:
                plugin = load_class(entry.path)()
            except PluginError as error:
                if not entry.optional:
                    raise
                session._warn(f"optional plugin {entry.path!r} is not used: {error}")
                dropped_names.add(name_of(entry.path))
                continue
            if any(type(other) is type(plugin) for other in session.plugins):
                raise PluginError(f"plugin {plugin.plugin_name()} is listed twice")
            session.plugins.append(plugin)
            if entry.optional:
                session._optional.add(plugin)
        raw = PluginConfig(config)
        loaded_plugins = list(session.plugins)
        session._call_all("register", raw)
        dropped_names |= {plugin.plugin_name() for plugin in loaded_plugins if plugin not in session.plugins}
        for key in [key for key in raw if any(key == name or key.startswith(f"{name}_") for name in dropped_names)]:
            del raw[key]  # an option of an optional plugin that is not used
        try:
            valid_config = validate_config(raw, session.plugins, base, origin=origin, unsupported_keys=unsupported_keys)
        except ConfigError:
            session._call_all("on_config_validation_error", raw)
            raise
        session.options = valid_config.base
        session.cfg = PluginConfig(valid_config.values)
        for plugin, options in zip(session.plugins, valid_config.options, strict=True):
            plugin.options = options
        session.check_slots()
        return session

    def check_slots(self) -> None:
        """Raise an error if two plugins claim one slot."""
        owners: dict[str, BasePlugin] = {}
        for plugin in self.plugins:
            for slot in sorted(self.slots_of(plugin)):
                self._claim(slot, plugin, owners)
        self.loss = next((plugin for plugin in self.plugins if _computes_loss(plugin)), None)

    def slots_of(self, plugin: BasePlugin) -> set[str]:
        """Return the slots that a plugin claims."""
        return {*plugin.claims(self.cfg), *([Slots.LOSS] if _computes_loss(plugin) else [])}

    @staticmethod
    def _claim(slot: str, plugin: BasePlugin, owners: dict[str, BasePlugin]) -> None:
        other = owners.setdefault(slot, plugin)
        if other is not plugin:
            raise PluginError(
                f"plugins {other.plugin_name()} and {plugin.plugin_name()} cannot be combined: "
                f"both replace the {slot}. Remove one of them from `plugins`."
            )

    # Hooks, in the order in which a training calls them ---------------------------------------------------------------

    def training_args_mixins(self) -> list[type]:
        """Return the dataclasses with further training arguments."""
        mixins = self._call_all("get_training_args_mixin")
        return [
            import_dotted(mixin, f"the training arguments of plugin {plugin.plugin_name()}")
            if isinstance(mixin, str)
            else mixin
            for plugin, mixin in mixins
            if mixin is not None
        ]

    def training_args(self) -> dict[str, Any]:
        """Return the training arguments that plugins set."""
        merged_arguments: dict[str, Any] = {}
        owners: dict[str, BasePlugin] = {}
        for plugin, arguments in self._call_all("get_training_args", self.cfg):
            for name, value in (arguments or {}).items():
                if name in merged_arguments and merged_arguments[name] != value:
                    other = owners[name].plugin_name()
                    raise PluginError(
                        f"plugins {other} and {plugin.plugin_name()} set the training argument {name!r} to "
                        f"{merged_arguments[name]!r} and {value!r}: remove one of them from `plugins`"
                    )
                merged_arguments[name], owners[name] = value, plugin
            if arguments:
                self._contribute(plugin, f"training arguments: {', '.join(arguments)}")
        return merged_arguments

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
                plugin.report.changed("classes and functions patched", patched_names)

    def model_hook(self, hook: str, model: Any) -> None:
        """Call a hook that receives the model, and record its changes.

        Args:
            hook: `post_model_build`, `pre_lora_load`, `post_lora_load` or `post_model_load`.
            model: the model.
        """
        for plugin in list(self.plugins):
            if not _overrides(plugin, hook):
                continue
            observer = ModelObserver(model)
            with self._running(plugin, hook):
                getattr(plugin, hook)(self.cfg, model)
            for what, names in observer.changes(model).items():
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
            for capability in capabilities or []:
                self._claim(capability.name, plugin, owners)
        return owners

    def trainer_class(self, base: type) -> type:
        """Return a class composed of a trainer class and the mixins of plugins."""
        parts = []
        for plugin, part in self._call_all("get_trainer_cls", self.cfg):
            if part is not None:
                parts.append((plugin, part))
                self._contribute(plugin, f"trainer class {part.__name__}")
        if self.loss is not None:
            self._contribute(self.loss, "the loss")
        for plugin in self.plugins:
            if hasattr(base, GENERATES) and _overrides(plugin, "on_rollouts_scored"):
                self._contribute(plugin, "scored completions")
        return compose(base, parts, self)

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
        self._call_all("post_trainer_create", self.cfg, trainer)
        for callback in self._callbacks("add_callbacks_post_trainer", trainer):
            trainer.add_callback(callback)
        PluginRecorder(self, trainer).attach(self._patches)
        self._check_effects()

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

    def close(self) -> None:
        """Call the last hook and undo all patches, the last plugin first."""
        try:
            self._call_all("post_train_unload", self.cfg)
        finally:
            self._patches.undo()
            for plugin in reversed(self.plugins):
                plugin.patches.undo()

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

    def _single(self, hook: str, slot: str, *arguments: Any) -> Any:
        """Return the result of the only plugin whose hook returns something."""
        owners: dict[str, BasePlugin] = {}
        result = None
        for plugin, candidate in self._call_all(hook, *arguments):
            if candidate is None or (isinstance(candidate, tuple) and candidate[0] is None):
                continue
            self._claim(slot, plugin, owners)
            self._contribute(plugin, f"the {slot}")
            result = candidate
        return result

    def _callbacks(self, hook: str, argument: Any) -> list[Any]:
        new_callbacks = []
        for plugin, callbacks in self._call_all(hook, self.cfg, argument):
            for callback in callbacks or []:
                if callback is None:
                    continue
                time_callback(callback, plugin)
                self._contribute(plugin, f"callback {type(callback).__name__.lstrip('_')}")
                new_callbacks.append(callback)
        self.callbacks += new_callbacks
        return new_callbacks

    @contextmanager
    def _running(self, plugin: BasePlugin, hook: str) -> Iterator[None]:
        """Time a hook. The error of an optional plugin is a warning, and removes the plugin."""
        try:
            with plugin.report.timer(hook):
                yield
        except Exception as error:
            if plugin not in self._optional:
                raise
            self._drop(plugin, f"{hook} failed: {type(error).__name__}: {error}")

    def _contribute(self, plugin: BasePlugin, what: str) -> None:
        contributions = self._contributions.setdefault(plugin, [])
        if what not in contributions:
            contributions.append(what)

    def _check_effects(self) -> None:
        for plugin in list(self.plugins):
            if plugin.report.changes or self._contributions.get(plugin):
                continue
            problem = (
                "it changed nothing: no module, parameter, training argument, callback, collator, loss or optimizer. "
                "Check its options and whether it supports this model, or remove it from `plugins`."
            )
            if plugin not in self._optional:
                raise plugin.error(problem)
            self._drop(plugin, problem)

    def _drop(self, plugin: BasePlugin, problem: str) -> None:
        plugin.patches.undo()
        self.plugins.remove(plugin)
        self._warn(f"optional plugin {plugin.plugin_name()} is not used: {problem}")

    def _warn(self, message: str) -> None:
        self.warnings.append(message)
        warnings.warn(message, stacklevel=2)


def _overrides(plugin: BasePlugin, hook: str) -> bool:
    return getattr(type(plugin), hook, None) is not getattr(BasePlugin, hook, None)


def _computes_loss(plugin: BasePlugin) -> bool:
    return _overrides(plugin, "compute_loss")
