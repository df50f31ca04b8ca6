"""Facts about a torch model: its number of parameters and its LoRA settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["adapter_config", "model_facts"]


def model_facts(model: Any) -> dict[str, Any]:
    """Return fields for the `start` record, without those the model does not provide."""
    if model is None or not hasattr(model, "parameters"):
        return {}
    total = trainable = 0
    for parameter in model.parameters():
        # With DeepSpeed ZeRO-3 a rank holds only a shard; `ds_numel` is the size of the whole parameter.
        count = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
        total += count
        trainable += count if parameter.requires_grad else 0
    facts: dict[str, Any] = {"model_class": type(model).__name__, "total_params": total, "trainable_params": trainable}
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    if name:
        facts["model_name_or_path"] = str(name)
    adapter = adapter_config(model)
    if adapter is not None:
        targets = getattr(adapter, "target_modules", None)
        facts |= {
            "lora_type": str(getattr(getattr(adapter, "peft_type", None), "value", "")).lower() or None,
            "lora_rank": getattr(adapter, "r", None),
            "lora_alpha": getattr(adapter, "lora_alpha", None),
            "lora_dropout": getattr(adapter, "lora_dropout", None),
            "lora_target_modules": sorted(targets) if isinstance(targets, (set, list, tuple)) else targets,
        }
    return {name: value for name, value in facts.items() if value is not None}


def adapter_config(model: Any) -> Any:
    """Return the config of the active PEFT adapter, or None if the model has none."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, Mapping) or not configs:
        return None
    active = getattr(model, "active_adapter", None)
    return configs.get(active) if isinstance(active, str) and active in configs else next(iter(configs.values()))
