"""Config, `start` fields and job parameters, read from a Lightning trainer and its module."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from tachograph.integrations._common.models import adapter_config, model_facts
from tachograph.integrations.lightning._bases import package_of

__all__ = ["hyperparameters", "job_parameters", "trainer_config", "trainer_facts", "trainer_version"]

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


def trainer_version(trainer: Any) -> str | None:
    """Return the version of the package that defines a trainer's class."""
    package = package_of(trainer)
    root = sys.modules.get(package.partition(".")[0]) if package is not None else None
    version = getattr(root, "__version__", None)
    return str(version) if version is not None else None


def hyperparameters(owner: Any) -> dict[str, Any]:
    """Return the hyperparameters of a module or a datamodule."""
    hparams = getattr(owner, "hparams", None)
    return dict(hparams) if isinstance(hparams, Mapping) else {}


def trainer_config(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the config of a run: the hyperparameters, and the trainer's settings under `trainer`."""
    datamodule = getattr(trainer, "datamodule", None)
    config = {**hyperparameters(datamodule), **hyperparameters(module)}
    if datamodule is not None:
        config.setdefault("datamodule", {"class": type(datamodule).__name__, **hyperparameters(datamodule)})
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


def trainer_facts(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the fields of the `start` record that can be determined."""
    facts = model_facts(module)
    if module is not None and not any(name.startswith("lora_") for name in facts):
        facts |= _submodule_facts(module)
    size, accumulation = _batch_size(trainer, module), int(trainer.accumulate_grad_batches)
    optimizer = trainer.optimizers[0] if getattr(trainer, "optimizers", None) else None
    schedulers = getattr(trainer, "lr_scheduler_configs", None)
    training_facts = {
        "batch_size": size,
        "gradient_accumulation_steps": accumulation,
        # For this process alone: the recorder multiplies it by the number of processes.
        "effective_batch_size": size * accumulation if size is not None else None,
        "learning_rate": _to_float(getattr(optimizer, "defaults", {}).get("lr")) if optimizer is not None else None,
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "scheduler": type(schedulers[0].scheduler).__name__ if schedulers else None,
        "max_steps": trainer.max_steps if trainer.max_steps > 0 else None,
        "max_epochs": trainer.max_epochs,
        "dtype": str(trainer.precision),
        "num_devices": trainer.num_devices,
        "num_nodes": trainer.num_nodes,
        "strategy": type(trainer.strategy).__name__,
    }
    return {**facts, **{name: value for name, value in training_facts.items() if value is not None}}


def job_parameters(trainer: Any) -> dict[str, Any]:
    """Return the arguments of `set_training_config`. They are known once the data loaders exist."""
    size = _loader_batch_size(getattr(trainer, "train_dataloader", None))
    replicas = (getattr(trainer, "distributed_sampler_kwargs", None) or {}).get("num_replicas", 1)
    parameters: dict[str, Any] = {"world_size": trainer.world_size, "train_iterations_target": _target_steps(trainer)}
    if size is not None:
        parameters["micro_batch_size"] = size
        parameters["global_batch_size"] = size * int(trainer.accumulate_grad_batches) * replicas
    return {name: value for name, value in parameters.items() if value is not None}


def _target_steps(trainer: Any) -> int | None:
    """Return the number of optimizer steps to train for, if it is finite."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if isinstance(steps, (int, float)) and math.isfinite(steps) and steps > 0 else None


def _submodule_facts(module: Any) -> dict[str, Any]:
    """Return the adapter and the origin of the model inside a module."""
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
    """Return the batch size, if it can be determined before the data loaders exist."""
    for owner in (getattr(trainer, "datamodule", None), module):
        for value in (hyperparameters(owner).get("batch_size"), getattr(owner, "batch_size", None)):
            if type(value) is int and value > 0:
                return value
    # Private: the loader passed to `fit`, which `trainer.train_dataloader` returns only after setup.
    source = getattr(getattr(trainer, "fit_loop", None), "_data_source", None)
    return _loader_batch_size(getattr(source, "instance", None))


def _loader_batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if type(size) is int and size > 0 else None


def _to_float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
