"""`apply`: add plugins to a trainer that exists already."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tachograph.exceptions import PluginError
from tachograph.plugins._session import PluginSession

__all__ = ["AppliedPlugins", "apply"]


class AppliedPlugins:
    """The plugins of a trainer. `undo` removes them; as a context manager, the end of the block does.

    Attributes:
        session: the session of the plugins, with their reports.
    """

    def __init__(self, session: PluginSession, trainer: Any, before: Mapping[str, Any]) -> None:
        self.session = session
        self._trainer = trainer
        self._before = dict(before)

    def undo(self) -> None:
        """Restore the trainer and its model. Trained weights stay as they are."""
        trainer, before = self._trainer, self._before
        if trainer is None:
            return
        self._trainer = None
        try:
            self.session.close()
        finally:
            trainer.__class__ = before["class"]
            trainer.data_collator = before["data_collator"]
            plugin_callback_ids = set(map(id, self.session.callbacks))  # later callbacks of the trainer stay
            handler = trainer.callback_handler
            handler.callbacks = [callback for callback in handler.callbacks if id(callback) not in plugin_callback_ids]
            for name, value in before["args"].items():
                setattr(trainer.args, name, value)
            if "loss_is_scaled_for_ga" in vars(trainer):
                del trainer.loss_is_scaled_for_ga

    def __enter__(self) -> AppliedPlugins:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def apply(trainer: Any, plugins: Any, config: Mapping[str, Any] | None = None) -> AppliedPlugins:
    """Add plugins to a Hugging Face or TRL trainer, before `trainer.train()`.

    Args:
        trainer: the trainer. Its class is replaced by one composed with the plugins, for this instance only.
        plugins: names, dotted paths or classes of plugins; ``{"name": …, "optional": True}`` for an optional one.
        config: the options of the plugins.

    Returns:
        The applied plugins, with `undo`. They also work as a context manager.

    Raises:
        PluginError: if a plugin cannot be loaded, conflicts with another one, does not fit the trainer, or changes
            nothing.
        ConfigError: if an option is unknown or invalid.

    Example:
        >>> apply(trainer, ["grokfast"], {"grokfast_alpha": 0.98})
        >>> trainer.train()
    """
    if hasattr(trainer, "plugin_session"):
        raise PluginError("this trainer has plugins already: list all of them in one call of apply, or undo that call")
    if getattr(trainer, "optimizer", None) is not None and trainer.state.global_step:
        raise PluginError("this trainer has trained already: create a new one and call apply before train")
    session = PluginSession.open(plugins, config or {})
    before = {
        "class": type(trainer),
        "data_collator": trainer.data_collator,
        "args": {},
    }
    applied_plugins = AppliedPlugins(session, trainer, before)
    try:
        _apply(session, trainer, before["args"])
    except BaseException:
        with contextlib.suppress(PluginError):  # the first error is the cause
            applied_plugins.undo()
        raise
    return applied_plugins


def _apply(session: PluginSession, trainer: Any, args_before: dict[str, Any]) -> None:
    if session.load_datasets() is not None:
        raise PluginError("a plugin loads datasets, but this trainer has one already: pass it to the trainer instead")
    session.pre_model_load()
    model = trainer.accelerator.unwrap_model(trainer.model)
    for hook in ("post_model_build", "pre_lora_load", "post_lora_load", "post_model_load"):
        session.model_hook(hook, model)
    for name, value in session.training_args().items():
        if not hasattr(trainer.args, name):
            raise PluginError(f"{type(trainer.args).__name__} has no training argument {name!r}, which a plugin sets")
        args_before[name] = getattr(trainer.args, name)
        setattr(trainer.args, name, value)
    for callback in session.callbacks_pre_trainer(model):
        trainer.add_callback(callback)
    collator = session.collator()
    if collator is not None:
        kind, arguments = collator
        trainer.data_collator = kind(**_collator_arguments(trainer, arguments))
    trainer.__class__ = session.trainer_class(type(trainer))
    session.attach(trainer)
    for name in session.dropped_arguments():
        setattr(trainer.args, name, args_before.pop(name))


def _collator_arguments(trainer: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a collator with the trainer's tokenizer, which the plugin does not have."""
    tokenizer = getattr(trainer, "processing_class", None)
    return {"tokenizer": tokenizer, **arguments} if tokenizer is not None else arguments
