"""What a Lightning trainer and its module say about a job before it begins, and once its data is there."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from tachograph.integrations._common.models import adapter_config, model_facts
from tachograph.integrations.lightning._bases import package_of

__all__ = ["config_of", "facts_of", "hparams_of", "job_parameters", "version_of"]

_SETTINGS = (
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "precision",
    "num_devices",
    "num_nodes",
    "log_every_n_steps",
    "val_check_interval",
    "check_val_every_n_epoch",
    "num_sanity_val_steps",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "reload_dataloaders_every_n_epochs",
    "fast_dev_run",
    "default_root_dir",
)


def version_of(trainer: Any) -> str | None:
    """Return the version of the package that a trainer is of."""
    package = package_of(trainer)
    root = sys.modules.get(package.partition(".")[0]) if package is not None else None
    version = getattr(root, "__version__", None)
    return str(version) if version is not None else None


def hparams_of(holder: Any) -> dict[str, Any]:
    """Return the hyperparameters of a module or a datamodule."""
    hparams = getattr(holder, "hparams", None)
    return dict(hparams) if isinstance(hparams, Mapping) else {}


def config_of(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the snapshot of what was configured: hyperparameters, and beside them the trainer's settings."""
    datamodule = getattr(trainer, "datamodule", None)
    config = {**hparams_of(datamodule), **hparams_of(module)}
    if datamodule is not None:
        config.setdefault("datamodule", {"class": type(datamodule).__name__, **hparams_of(datamodule)})
    settings = {name: getattr(trainer, name, None) for name in _SETTINGS}
    settings |= {
        "package": package_of(trainer),
        "accelerator": type(trainer.accelerator).__name__,
        "strategy": type(trainer.strategy).__name__,
        "callbacks": [type(callback).__name__ for callback in trainer.callbacks],
        "loggers": [type(logger).__name__ for logger in trainer.loggers],
    }
    config.setdefault("trainer", {name: value for name, value in settings.items() if value is not None})
    return config


def facts_of(trainer: Any, module: Any) -> dict[str, Any]:
    """Return fields for the `start` record; what nobody says is left out."""
    facts = model_facts(module)
    if module is not None and not any(name.startswith("lora_") for name in facts):
        facts |= _inner_facts(module)
    size, accumulation = _batch_size(trainer, module), int(trainer.accumulate_grad_batches)
    optimizer = trainer.optimizers[0] if getattr(trainer, "optimizers", None) else None
    schedulers = getattr(trainer, "lr_scheduler_configs", None)
    known = {
        "batch_size": size,
        "gradient_accumulation_steps": accumulation,
        # Of this process: the recorder counts the others in.
        "effective_batch_size": size * accumulation if size is not None else None,
        "learning_rate": _number(getattr(optimizer, "defaults", {}).get("lr")) if optimizer is not None else None,
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "scheduler": type(schedulers[0].scheduler).__name__ if schedulers else None,
        "max_steps": trainer.max_steps if trainer.max_steps > 0 else None,
        "max_epochs": trainer.max_epochs,
        "dtype": str(trainer.precision),
        "num_devices": trainer.num_devices,
        "num_nodes": trainer.num_nodes,
        "strategy": type(trainer.strategy).__name__,
    }
    return {**facts, **{name: value for name, value in known.items() if value is not None}}


def job_parameters(trainer: Any) -> dict[str, Any]:
    """Return what `set_training_config` takes, known when the data is there."""
    size = _loader_batch_size(getattr(trainer, "train_dataloader", None))
    replicas = (getattr(trainer, "distributed_sampler_kwargs", None) or {}).get("num_replicas", 1)
    parameters: dict[str, Any] = {"world_size": trainer.world_size, "train_iterations_target": _target(trainer)}
    if size is not None:
        parameters["micro_batch_size"] = size
        parameters["global_batch_size"] = size * int(trainer.accumulate_grad_batches) * replicas
    return {name: value for name, value in parameters.items() if value is not None}


def _target(trainer: Any) -> int | None:
    """Return the number of optimizer steps that training goes up to, if it can be told."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if isinstance(steps, (int, float)) and math.isfinite(steps) and steps > 0 else None


def _inner_facts(module: Any) -> dict[str, Any]:
    """Return what the model inside a module says: of an adapter, and what it was loaded from."""
    facts: dict[str, Any] = {}
    for inner in module.modules():
        if inner is module:
            continue
        name = getattr(getattr(inner, "config", None), "_name_or_path", None)
        if name:
            facts.setdefault("model_name_or_path", str(name))
        if adapter_config(inner) is not None:
            adapter = {key: value for key, value in model_facts(inner).items() if key.startswith("lora_")}
            return {**facts, **adapter}
    return facts


def _batch_size(trainer: Any, module: Any) -> int | None:
    """Return the batch size as far as it can be told before the loaders are made."""
    for holder in (getattr(trainer, "datamodule", None), module):
        for value in (hparams_of(holder).get("batch_size"), getattr(holder, "batch_size", None)):
            if type(value) is int and value > 0:
                return value
    source = getattr(getattr(trainer, "fit_loop", None), "_data_source", None)
    return _loader_batch_size(getattr(source, "instance", None))


def _loader_batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if type(size) is int and size > 0 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
