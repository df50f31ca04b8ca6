"""Translates a config to the training arguments of Hugging Face and TRL, and computes the number of steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from tachograph._base import ranks
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.plugins import PluginSession
from tachograph.train._config import TrainConfig
from tachograph.train._model import compute_dtype, is_pure_precision

__all__ = ["Steps", "build_arguments", "count_steps", "trainer_and_arguments"]


class Steps(NamedTuple):
    """How long a training is.

    Attributes:
        per_epoch: optimizer steps per epoch.
        total: optimizer steps of the whole training.
        rows_per_step: rows of all processes in one step.
        num_devices: processes, or GPUs of a single process.
    """

    per_epoch: int
    total: int
    rows_per_step: int
    num_devices: int


def count_steps(config: TrainConfig, num_rows: int) -> Steps:
    """Return the number of steps of a training on a number of rows."""
    import torch

    num_devices = ranks.world_size()
    if num_devices == 1 and torch.cuda.is_available() and not config.use_cpu:
        num_devices = max(1, torch.cuda.device_count())
    per_batch = config.micro_batch_size * num_devices
    num_generations = _num_generations(config) if config.rl == "grpo" else 1
    num_rows *= num_generations
    num_batches = num_rows // per_batch if config.dataloader_drop_last else math.ceil(num_rows / per_batch)
    per_epoch = max(1, math.ceil(num_batches / config.gradient_accumulation_steps))
    total = config.max_steps or math.ceil(config.num_epochs * per_epoch)
    return Steps(per_epoch, total, per_batch * config.gradient_accumulation_steps, num_devices)


def _num_generations(config: TrainConfig) -> int:
    num_generations = config.trl.get("num_generations", 8)
    return num_generations if isinstance(num_generations, int) and num_generations > 0 else 1


def trainer_and_arguments(config: TrainConfig) -> tuple[type, type]:
    """Return the class of the trainer and the class of its arguments."""
    if config.rl is None:
        from transformers import Trainer, TrainingArguments

        return Trainer, TrainingArguments
    if config.rl in ("dpo", "ipo"):
        from trl import DPOConfig, DPOTrainer

        return DPOTrainer, DPOConfig
    if config.rl == "kto":
        from trl import KTOConfig, KTOTrainer

        return KTOTrainer, KTOConfig
    if config.rl == "grpo":
        from trl import GRPOConfig, GRPOTrainer

        return GRPOTrainer, GRPOConfig
    try:
        from trl import ORPOConfig, ORPOTrainer
    except ImportError:  # where newer versions have it
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer
    return ORPOTrainer, ORPOConfig


def build_arguments(config: TrainConfig, session: PluginSession, steps: Steps, *, has_eval: bool) -> Any:
    """Return the training arguments, including the arguments of plugins.

    Raises:
        ConfigError: if a value is invalid.
    """
    _, kind = trainer_and_arguments(config)
    for mixin in session.training_args_mixins():
        kind = dataclasses.dataclass(type(kind.__name__, (mixin, kind), {"__module__": kind.__module__}))
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    _check_choices(config)
    options = {**_common(config, steps, has_eval), **_preference(config, names), **session.training_args()}
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ConfigError(f"{kind.__name__} has no argument {unknown[0]!r}{did_you_mean(unknown[0], names)}")
    try:
        return kind(**options)
    except (ValueError, TypeError, AssertionError, ImportError, KeyError, OSError) as error:
        raise ConfigError(f"the training arguments are rejected: {error}") from error


def _check_choices(config: TrainConfig) -> None:
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    for key, value, choices in (
        ("optimizer", config.optimizer, [entry.value for entry in OptimizerNames]),
        ("lr_scheduler", config.lr_scheduler, [entry.value for entry in SchedulerType]),
    ):
        if value not in choices:
            default = TrainConfig.model_fields[key].default
            is_short = str(default).startswith(value.lower())  # such as `adamw`
            hint = f"; did you mean {default!r}?" if is_short else did_you_mean(value.lower(), choices) or "."
            raise ConfigError(f"{key}={value!r}: unknown{hint} Available: {', '.join(sorted(choices))}")


def _common(config: TrainConfig, steps: Steps, has_eval: bool) -> dict[str, Any]:
    dtype = compute_dtype(config)
    scheduler, scheduler_options = config.lr_scheduler, dict(config.lr_scheduler_kwargs)
    if config.cosine_min_lr_ratio is not None:
        scheduler = "cosine_with_min_lr"
        scheduler_options.setdefault("min_lr_rate", config.cosine_min_lr_ratio)
    options: dict[str, Any] = {
        "output_dir": config.output_dir,
        "run_name": config.name,
        "per_device_train_batch_size": config.micro_batch_size,
        "per_device_eval_batch_size": config.eval_batch_size or config.micro_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "num_train_epochs": config.num_epochs,
        "max_steps": config.max_steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": scheduler,
        "lr_scheduler_kwargs": scheduler_options or None,
        "warmup_steps": _warmup(config),
        "optim": config.optimizer,
        "optim_args": _optim_args(config.optim_args),
        "optim_target_modules": config.optim_target_modules,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": config.adam_epsilon,
        "max_grad_norm": config.max_grad_norm,
        "label_smoothing_factor": config.label_smoothing_factor,
        "neftune_noise_alpha": config.neftune_noise_alpha,
        "bf16": dtype == "bfloat16" and not is_pure_precision(config),
        "bf16_full_eval": config.bf16 == "full" or None,
        "fp16": dtype == "float16" and not is_pure_precision(config),
        "tf32": _tf32(config),
        "gradient_checkpointing": config.gradient_checkpointing,
        "gradient_checkpointing_kwargs": config.gradient_checkpointing_kwargs
        if config.gradient_checkpointing
        else None,
        "torch_compile": _has_gpu(config) if config.torch_compile == "auto" else config.torch_compile,
        "torch_compile_backend": config.torch_compile_backend,
        "torch_compile_mode": config.torch_compile_mode,
        "torch_empty_cache_steps": config.torch_empty_cache_steps,
        "logging_steps": config.logging_steps,
        "logging_first_step": config.logging_first_step,
        "logging_nan_inf_filter": False,  # it shows a loss that is NaN as 0
        "report_to": "none",  # the run has sinks of its own
        "disable_tqdm": True,
        "auto_find_batch_size": config.auto_find_batch_size,
        "save_total_limit": config.save_total_limit,
        "save_only_model": config.save_only_model,
        "seed": config.seed,
        "use_cpu": config.use_cpu or not _has_accelerator(),
        "dataloader_num_workers": config.dataloader_num_workers,
        "dataloader_pin_memory": config.dataloader_pin_memory and _has_gpu(config),
        "dataloader_prefetch_factor": config.dataloader_prefetch_factor,
        "dataloader_drop_last": config.dataloader_drop_last,
        "fsdp": config.fsdp,
        "fsdp_config": _fsdp_config(config),
        "deepspeed": config.deepspeed,
        "accelerator_config": config.accelerator_config,
        "ddp_timeout": config.ddp_timeout,
        "ddp_backend": config.ddp_backend,
        "ddp_bucket_cap_mb": config.ddp_bucket_cap_mb,
        "ddp_broadcast_buffers": config.ddp_broadcast_buffers,
        "ddp_find_unused_parameters": config.ddp_find_unused_parameters,
        "remove_unused_columns": config.remove_unused_columns,
        **_saving(config, steps, has_eval),
    }
    if config.rl is None and config.remove_unused_columns is None:
        options["remove_unused_columns"] = False  # the collator selects columns; a plugin's may take more
    strategy = "group_by_length" if config.group_by_length else "random"
    if not (config.shuffle and config.shuffle_merged_datasets):
        strategy = "sequential"
    if strategy != "random":
        options["train_sampling_strategy"] = strategy
    if config.hub_model_id and config.hub_strategy:
        options |= {"push_to_hub": True, "hub_model_id": config.hub_model_id, "hub_strategy": config.hub_strategy}
        if config.hub_revision:
            options["hub_revision"] = config.hub_revision
    return {name: value for name, value in options.items() if value is not None}


def _saving(config: TrainConfig, steps: Steps, has_eval: bool) -> dict[str, Any]:
    save_strategy, save_steps = config.save_strategy, config.save_steps
    if config.saves_per_epoch is not None:
        save_strategy = "steps" if config.saves_per_epoch else "no"
        save_steps = max(1, round(steps.per_epoch / (config.saves_per_epoch or 1)))
    eval_strategy, eval_steps = config.eval_strategy, config.eval_steps
    if config.evals_per_epoch is not None:
        eval_strategy = "steps" if config.evals_per_epoch else "no"
        eval_steps = max(1, round(steps.per_epoch / (config.evals_per_epoch or 1)))
    needs_best = config.load_best_model_at_end or config.early_stopping_patience
    return {
        "save_strategy": save_strategy or ("steps" if save_steps else "epoch"),
        "save_steps": save_steps,
        "eval_strategy": (eval_strategy or ("steps" if eval_steps else "epoch")) if has_eval else "no",
        "eval_steps": eval_steps,
        "eval_on_start": config.eval_on_start and has_eval,
        "load_best_model_at_end": config.load_best_model_at_end,
        "metric_for_best_model": config.metric_for_best_model or ("loss" if needs_best else None),
        "greater_is_better": config.greater_is_better,
    }


def _warmup(config: TrainConfig) -> float | None:
    """Return the number of warm-up steps; below 1 it is a share of all steps."""
    return config.warmup_steps if config.warmup_steps is not None else config.warmup_ratio


def _optim_args(arguments: str | dict[str, Any] | None) -> str | None:
    if isinstance(arguments, dict):
        return ",".join(f"{name}={value}" for name, value in arguments.items())
    return arguments


def _fsdp_config(config: TrainConfig) -> Any:
    if config.fsdp_version is not None and not isinstance(config.fsdp_config, str):
        return {"version": config.fsdp_version, **(config.fsdp_config or {})}
    return config.fsdp_config


def _has_accelerator() -> bool:
    import torch

    return bool(torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available())


def _has_gpu(config: TrainConfig) -> bool:
    import torch

    return bool(torch.cuda.is_available()) and not config.use_cpu


def _tf32(config: TrainConfig) -> bool | None:
    import torch

    if not _has_gpu(config):
        return None
    if config.tf32 == "auto":
        return True if torch.cuda.get_device_capability()[0] >= 8 else None
    return config.tf32


def _preference(config: TrainConfig, names: set[str]) -> dict[str, Any]:
    """Return the arguments of TRL's trainers."""
    if config.rl is None:
        if config.trl:
            raise ConfigError("the section trl has no effect without `rl`: add `rl: grpo`, or remove the section")
        return {}
    options: dict[str, Any] = {"beta": config.rl_beta}
    if config.rl in ("dpo", "ipo"):
        options |= {
            "loss_type": ["ipo"] if config.rl == "ipo" else config.dpo_loss_type,
            "loss_weights": config.dpo_loss_weights,
            "label_smoothing": config.dpo_label_smoothing,
            "use_weighting": config.dpo_use_weighting,
            "precompute_ref_log_probs": config.precompute_ref_log_probs,
        }
    elif config.rl == "kto":
        options |= {
            "desirable_weight": config.kto_desirable_weight,
            "undesirable_weight": config.kto_undesirable_weight,
            "precompute_ref_log_probs": config.precompute_ref_log_probs,
        }
    elif config.rl == "orpo":
        options["beta"] = config.orpo_alpha if config.orpo_alpha is not None else config.rl_beta
    if config.rl != "grpo":
        options["max_length"] = config.sequence_len
    trl_options = {name: value for name, value in config.trl.items() if name != "reward_funcs"}
    unknown = [name for name in trl_options if name not in names]
    if unknown:
        raise ConfigError(
            f"trl: the trainer of rl: {config.rl} has no option {unknown[0]!r}{did_you_mean(unknown[0], names)}"
        )
    return {name: value for name, value in {**options, **trl_options}.items() if value is not None}
