"""Event properties from objects of training: a config by a map, a model and an adapter by their attributes.

The objects are of types that others wrote, and every attribute may raise. A property that cannot be read is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler

__all__ = ["adapter_properties", "config_properties", "model_properties"]


def config_properties(config: Any, config_map: Mapping[str, str | Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the fields that a map finds in a config."""
    return _read_all(
        {
            name: functools.partial(path, config) if callable(path) else functools.partial(_at_path, config, path)
            for name, path in config_map.items()
        }
    )


def model_properties(model: Any) -> dict[str, Any]:
    """Return the properties of a transformers model, or of any torch module."""
    config = _call_or_none(lambda: model.config)
    text = _call_or_none(lambda: config.get_text_config()) or config  # noqa: PLW0108 - the method may not exist
    readers: dict[str, Callable[[], Any]] = {
        "base_model": lambda: config._name_or_path,
        "model_type": lambda: config.model_type,
        "num_layers": lambda: text.num_hidden_layers,
        "hidden_size": lambda: text.hidden_size,
        "vocab_size": lambda: text.vocab_size,
        "num_experts": lambda: getattr(text, "num_local_experts", None) or text.num_experts,
        "attention": lambda: config._attn_implementation,
        "quantization": lambda: (
            None if config is None else _at_path(config, "quantization_config.quant_method") or "none"
        ),
        "dtype": lambda: model.dtype,
        "num_parameters": lambda: sum(map(_num_values, model.parameters())),
        "num_trainable_parameters": lambda: sum(
            _num_values(parameter) for parameter in model.parameters() if parameter.requires_grad
        ),
    }
    return _read_all(readers)


def adapter_properties(config: Any) -> dict[str, Any]:
    """Return the properties of a PEFT config."""
    modules = _call_or_none(lambda: config.target_modules)
    readers: dict[str, Callable[[], Any]] = {
        "kind": lambda: config.peft_type,
        "task": lambda: config.task_type,
        "rank": lambda: config.r,
        "alpha": lambda: config.lora_alpha,
        "dropout": lambda: config.lora_dropout,
        "bias": lambda: config.bias,
        "num_target_modules": lambda: len(modules) if isinstance(modules, (list, set, tuple)) else None,
        "all_linear": lambda: modules == "all-linear" if isinstance(modules, str) else None,
        "use_dora": lambda: config.use_dora,
        "use_rslora": lambda: config.use_rslora,
    }
    return _read_all(readers)


def _num_values(parameter: Any) -> int:
    """Return the size of a parameter, including the partitions that DeepSpeed keeps in other processes."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _read_all(readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    values = {name: _call_or_none(reader) for name, reader in readers.items()}
    return {name: value for name, value in values.items() if value is not None}


def _call_or_none(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:  # noqa: BLE001
        reraise_from_signal_handler(error)
        return None


def _at_path(values: Any, path: str) -> Any:
    """Return the value at a dotted path of keys, attributes and list positions; None if there is none."""
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
