"""Facts for the `start` record: the machine, the commit, and the model, LoRA and training facts in the config."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from tachograph._base.config import first_process
from tachograph._base.git import git_command, git_environment
from tachograph._base.guard import faults, suppress
from tachograph._base.nvml import GpuProbe
from tachograph._base.version import __version__
from tachograph.black_box import MemoryGroup
from tachograph.records import mask_arguments, mask_text

__all__ = ["config_facts", "git_facts", "samples_per_step", "system_facts"]

_GIT_TIMEOUT_S = 1.0


def system_facts() -> dict[str, Any]:
    """Return the machine, the interpreter and the command line."""
    group = MemoryGroup.of_this_process()
    return {
        "command": mask_arguments(sys.argv),
        "cwd": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "tachograph": __version__,
        "num_cpus": os.cpu_count(),
        "host_mem_total_gb": round(psutil.virtual_memory().total / (1 << 30), 1),
        "gpus": GpuProbe().names(),
        "memory_cgroup": None if group is None else {"path": str(group.folder), "inode": group.inode},
        "torch": getattr(sys.modules.get("torch"), "__version__", None),
    }


def git_facts() -> dict[str, Any] | None:
    """Return the commit, the branch and whether files are modified; None outside a repository or without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git("status", "--porcelain", "--untracked-files=no")
    remote = _git("config", "--get", "remote.origin.url")
    return {
        "commit": commit,
        "branch": _git("rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if status is None else bool(status),
        "remote": mask_text(remote) if remote else None,
    }


def _git(*arguments: str) -> str | None:
    try:
        process = subprocess.run(  # noqa: S603
            git_command(*arguments),
            capture_output=True,
            check=False,
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except faults(OSError, subprocess.SubprocessError, ValueError):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def config_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return model, LoRA and training facts from a config, under the established field names of `start` records.

    Supports the layout of AI Toolkit (``config.process[0].{network,model,train}``, with or without the outer `config`)
    and flat configs with common names.
    A fact that is not in the config is left out, never guessed.
    """
    process = first_process(config)
    network, model, train = (_section(process, name) for name in ("network", "model", "train"))
    network_kwargs = _section(network, "network_kwargs")
    facts: dict[str, Any] = {
        "config_name": _first_value(_section(config, "config"), config, names=("name",)),
        "process_type": process.get("type"),
        "lora_type": network.get("type"),
        "lora_rank": _first_value(network, names=("linear", "rank"))
        or _first_value(config, names=("lora_rank", "lora_r")),
        "lora_alpha": _first_value(network, names=("linear_alpha", "alpha"))
        or _first_value(config, names=("lora_alpha",)),
        "lora_conv_rank": network.get("conv"),
        "lora_conv_alpha": network.get("conv_alpha"),
        "lora_dropout": _first_value(network, names=("dropout",)) or _first_value(config, names=("lora_dropout",)),
        "lora_target_modules": _first_value(network_kwargs, config, names=("only_if_contains", "lora_target_modules")),
        "lora_ignore_modules": network_kwargs.get("ignore_if_contains"),
        "model_name_or_path": _first_value(
            model, config, names=("name_or_path", "model_name_or_path", "base_model", "model_name")
        ),
        **{name: model.get(name) for name in ("is_flux", "is_sdxl", "is_v2", "quantize", "low_vram")},
        "batch_size": _first_value(
            train, config, names=("batch_size", "per_device_train_batch_size", "micro_batch_size", "train_batch_size")
        ),
        "gradient_accumulation_steps": _first_value(
            train, config, names=("gradient_accumulation_steps", "gradient_accumulation")
        ),
        "learning_rate": _number(_first_value(train, config, names=("lr", "learning_rate"))),
        "optimizer": _first_value(train, config, names=("optimizer", "optim")),
        "scheduler": _first_value(train, config, names=("lr_scheduler", "scheduler", "lr_scheduler_type")),
        "warmup_steps": _first_value(train, config, names=("warmup_steps",)),
        "max_steps": _first_value(train, names=("steps",))
        or _first_value(train, config, names=("max_steps", "total_steps")),
        "dtype": _first_value(train, config, names=("dtype", "torch_dtype")),
        "gradient_checkpointing": _first_value(train, config, names=("gradient_checkpointing",)),
        "noise_scheduler": train.get("noise_scheduler"),
    }
    batch_size, accumulation = facts["batch_size"], facts["gradient_accumulation_steps"]
    if _is_count(batch_size):
        facts["effective_batch_size"] = batch_size * (accumulation if _is_count(accumulation) else 1)
    return {name: value for name, value in facts.items() if value is not None and not isinstance(value, dict)}


def samples_per_step(facts: Mapping[str, Any]) -> float | None:
    """Return the number of samples per step in this process, if the facts contain it."""
    size = facts.get("effective_batch_size", facts.get("batch_size"))
    return float(size) if _is_count(size) else None


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _first_value(*sections: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for section in sections:
        for name in names:
            if section.get(name) is not None:
                return section[name]
    return None


def _number(value: Any) -> Any:
    """Return a number that is written as text, as PyYAML returns ``1e-4``; any other value as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
