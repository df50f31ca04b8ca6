"""From objects of training to the fields of events: a config by a map, a model and an adapter by what they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["adapter_facts", "config_facts", "model_facts"]

_Place = str | Callable[[Any], Any]


def config_facts(config: Any, places: Mapping[str, _Place]) -> dict[str, Any]:
    """Return the fields that a map finds in a config. What it does not find is missing."""
    facts = {}
    for name, place in places.items():
        try:
            value = place(config) if callable(place) else _at(config, place)
        except Exception:  # noqa: BLE001, S112 - a config that lacks this, or is of a type that somebody else wrote
            continue
        if value is not None:
            facts[name] = value
    return facts


def model_facts(model: Any) -> dict[str, Any]:
    """Return what is told of a model of transformers, or of any module of torch."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    quantization = getattr(config, "quantization_config", None)
    method = _at(quantization, "quant_method") if quantization is not None else "none"
    facts = {
        "base_model": getattr(config, "_name_or_path", None),
        "model_type": getattr(config, "model_type", None),
        "num_layers": getattr(text, "num_hidden_layers", None),
        "hidden_size": getattr(text, "hidden_size", None),
        "vocab_size": getattr(text, "vocab_size", None),
        "num_experts": getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None),
        "attention": getattr(config, "_attn_implementation", None),
        "quantization": method,
        "dtype": str(getattr(model, "dtype", None) or "").removeprefix("torch.") or None,
    }
    if hasattr(model, "parameters"):
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        facts["num_parameters"] = sum(size for size, _ in sizes)
        facts["num_trainable_parameters"] = sum(size for size, is_trained in sizes if is_trained)
    return {name: value for name, value in facts.items() if value is not None}


def adapter_facts(config: Any) -> dict[str, Any]:
    """Return what is told of a config of PEFT."""
    modules = getattr(config, "target_modules", None)
    facts = {
        "kind": getattr(config, "peft_type", None),
        "task": getattr(config, "task_type", None),
        "rank": getattr(config, "r", None),
        "alpha": getattr(config, "lora_alpha", None),
        "dropout": getattr(config, "lora_dropout", None),
        "bias": getattr(config, "bias", None),
        "num_target_modules": len(modules) if isinstance(modules, (list, set, tuple)) else None,
        "all_linear": modules == "all-linear" if isinstance(modules, str) else None,
        "use_dora": getattr(config, "use_dora", None),
        "use_rslora": getattr(config, "use_rslora", None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _at(values: Any, path: str) -> Any:
    """Return what lies at a dotted path of keys, attributes and positions in lists; None where nothing does."""
    for part in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(part)
        elif isinstance(values, (list, tuple)):
            values = values[int(part)] if part.isdecimal() and int(part) < len(values) else None
        else:
            values = getattr(values, part, None)
        if values is None:
            return None
    return values
