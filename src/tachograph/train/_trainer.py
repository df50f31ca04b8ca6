"""Builds the trainer: its class composed with the plugins, its data, its collator and its callbacks."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from tachograph.plugins import PluginSession
from tachograph.train._arguments import trainer_and_arguments
from tachograph.train._config import TrainConfig
from tachograph.train._progress import ProgressPrinter
from tachograph.train._rows import PaddingCollator

__all__ = ["build_trainer"]


def build_trainer(config: TrainConfig, session: PluginSession, checked_job: Any, model: Any, callback: Any) -> Any:
    """Return the trainer of a checked job.

    Args:
        config: the config.
        session: the plugins; `attach` is still to be called.
        checked_job: the parts that the check has prepared.
        model: the model, with its adapter.
        callback: records the run.
    """
    from transformers import EarlyStoppingCallback, PrinterCallback

    kind, _ = trainer_and_arguments(config)
    callbacks = [callback, *session.callbacks_pre_trainer(model)]
    if config.early_stopping_patience:
        callbacks.append(EarlyStoppingCallback(config.early_stopping_patience))
    options: dict[str, Any] = {
        "model": model,
        "args": checked_job.arguments,
        "train_dataset": checked_job.data.train,
        "eval_dataset": checked_job.data.eval,
        "processing_class": checked_job.tokenizer,
        "callbacks": callbacks,
    }
    collator = _collator(config, session, checked_job.tokenizer)
    if collator is not None:
        options["data_collator"] = collator
    if config.rl == "grpo":
        options["reward_funcs"] = list(checked_job.rewards)
        rollout_function = session.rollout_function()
        if rollout_function is not None:
            options["rollout_func"] = rollout_function
    elif config.rl in ("dpo", "ipo", "kto") and config.adapter is None:
        # TRL would load the reference from the path of the model, without added tokens or random weights.
        options["ref_model"] = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")  # experimental in TRL
        trainer = session.trainer_class(kind)(**options)
    trainer.remove_callback(PrinterCallback)
    if config.telemetry.get("console", True):
        trainer.add_callback(ProgressPrinter())
    return trainer


def _collator(config: TrainConfig, session: PluginSession, tokenizer: Any) -> Any:
    plugin_collator = session.collator()
    if plugin_collator is not None:
        kind, arguments = plugin_collator
        return kind(**{"tokenizer": tokenizer, **arguments})
    if config.rl is not None:
        return None  # TRL's own
    return PaddingCollator(tokenizer, config.sequence_len if config.pad_to_sequence_len else None)
