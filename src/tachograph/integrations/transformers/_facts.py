"""What a Hugging Face trainer can be asked: who it is, what it was configured with, which run it goes on with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from transformers import TrainerState, TrainingArguments

from tachograph.integrations._common.job import RUN_FILE, name_from

__all__ = [
    "argument_facts",
    "config_of",
    "global_batch_size",
    "is_inside",
    "run_name",
    "saved_run",
    "trainer_of",
]


def trainer_of(callback: Any) -> Any:
    """Return the trainer whose method is calling us; it does not pass itself to its callbacks."""
    frame: FrameType | None = sys._getframe()
    for _ in range(20):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            return None
        holder = frame.f_locals.get("self")
        handler = getattr(holder, "callback_handler", None) if holder is not callback else None
        if handler is not None and any(one is callback for one in getattr(handler, "callbacks", ())):
            return holder
    return None


def is_inside(function: str) -> bool:
    """Tell whether a method of the trainer of that name is being called."""
    frame: FrameType | None = sys._getframe()
    for _ in range(20):
        if frame is None:
            return False
        if frame.f_code.co_name == function and hasattr(frame.f_locals.get("self"), "callback_handler"):
            return True
        frame = frame.f_back
    return False


def saved_run(args: TrainingArguments, state: TrainerState, trainer: Any) -> dict[str, str]:
    """Return which run saved the checkpoint that training goes on from, as far as the checkpoint says."""
    places = [os.path.join(args.output_dir or ".", f"checkpoint-{state.global_step}")]
    if isinstance(args.resume_from_checkpoint, str):
        places.insert(0, args.resume_from_checkpoint)
    frame: FrameType | None = sys._getframe()
    for _ in range(20):
        if frame is None:
            break
        given = frame.f_locals.get("resume_from_checkpoint") if frame.f_locals.get("self") is trainer else None
        if isinstance(given, str):
            places.insert(0, given)
        frame = frame.f_back
    for place in places:
        try:
            with open(os.path.join(place, RUN_FILE), encoding="utf-8") as file:
                said = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(said, dict):
            known = {str(name): str(value) for name, value in said.items()}
            return {**known, "log_dir": os.path.normpath(os.path.join(place, known.get("log_dir", "")))}
    return {}


def run_name(args: TrainingArguments) -> str | None:
    """Return a name for the run: the trainer's own, else that of its output folder."""
    for text in (getattr(args, "run_name", None), os.path.basename(os.path.abspath(args.output_dir or ""))):
        name = name_from(text)
        if name is not None:
            return name
    return None


def config_of(args: TrainingArguments, model: Any) -> dict[str, Any]:
    """Return the snapshot of what was configured."""
    config: dict[str, Any] = {"training_arguments": args.to_dict()}
    model_config: Any = getattr(model, "config", None)
    if hasattr(model_config, "to_dict"):
        config["model"] = model_config.to_dict()
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping):
        config["peft"] = {str(name): adapter.to_dict() for name, adapter in adapters.items()}
    return config


def global_batch_size(args: TrainingArguments, state: TrainerState) -> int:
    per_device = int(state.train_batch_size or args.train_batch_size)
    return max(1, per_device * int(args.gradient_accumulation_steps) * int(args.world_size))


def argument_facts(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
    return {
        "batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        # Of this process: the recorder counts the others in.
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
