"""Name, config and `start` fields of a run, read from the arguments of a Hugging Face trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from transformers import TrainerState, TrainingArguments

from tachograph.integrations._common.integration_run import name_from

__all__ = ["argument_facts", "build_config", "global_batch_size", "run_name"]


def run_name(args: TrainingArguments) -> str | None:
    """Return a name for the run: the trainer's `run_name`, else the name of its output folder."""
    for text in (getattr(args, "run_name", None), os.path.basename(os.path.abspath(args.output_dir or ""))):
        name = name_from(text)
        if name is not None:
            return name
    return None


def build_config(args: TrainingArguments, model: Any) -> dict[str, Any]:
    """Return the config of a run: training arguments, model config and PEFT adapters."""
    config: dict[str, Any] = {"training_arguments": args.to_dict()}
    model_config: Any = getattr(model, "config", None)
    if hasattr(model_config, "to_dict"):
        config["model"] = model_config.to_dict()
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping):
        config["peft"] = {str(name): adapter.to_dict() for name, adapter in adapters.items()}
    return config


def global_batch_size(args: TrainingArguments, state: TrainerState) -> int:
    """Return the number of samples in an optimizer step on all ranks."""
    per_device = int(state.train_batch_size or args.train_batch_size)
    return max(1, per_device * int(args.gradient_accumulation_steps) * int(args.world_size))


def argument_facts(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Return the fields of the `start` record."""
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
    return {
        "batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        # For this process alone: the recorder multiplies it by the number of processes.
        "effective_batch_size": args.train_batch_size * args.gradient_accumulation_steps,
        "learning_rate": args.learning_rate,
        "optimizer": str(getattr(args.optim, "value", args.optim)),
        "scheduler": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "warmup_steps": args.get_warmup_steps(state.max_steps) if state.max_steps > 0 else None,
        "max_steps": state.max_steps if state.max_steps > 0 else None,
        "first_step": 1,
        "num_train_epochs": args.num_train_epochs,
        "dtype": dtype,
        "gradient_checkpointing": args.gradient_checkpointing,
        "seed": args.seed,
    }
