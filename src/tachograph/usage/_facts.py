"""From objects of training to the fields of events: a config by a map, a model and an adapter by what they have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["adapter_facts", "config_facts", "model_facts"]

_Place = str | Callable[[Any], Any]


def config_facts(config: Any, places: Mapping[str, _Place]) -> dict[str, Any]:
    """Return the fields that a map finds in a config. What it does not find is missing."""
    return _answers(
        {
            name: functools.partial(place, config) if callable(place) else functools.partial(_at, config, place)
            for name, place in places.items()
        }
    )


def model_facts(model: Any) -> dict[str, Any]:
    """Return what is told of a model of transformers, or of any module of torch."""
    config = _asked(lambda: model.config)
    text = _asked(lambda: config.get_text_config()) or config  # noqa: PLW0108 - it may have none
    places: dict[str, Callable[[], Any]] = {
        "base_model": lambda: config._name_or_path,
        "model_type": lambda: config.model_type,
        "num_layers": lambda: text.num_hidden_layers,
        "hidden_size": lambda: text.hidden_size,
        "vocab_size": lambda: text.vocab_size,
        "num_experts": lambda: getattr(text, "num_local_experts", None) or text.num_experts,
        "attention": lambda: config._attn_implementation,
        "quantization": lambda: None if config is None else _at(config, "quantization_config.quant_method") or "none",
        "dtype": lambda: model.dtype,
        "num_parameters": lambda: sum(map(_num_values, model.parameters())),
        "num_trainable_parameters": lambda: sum(
            _num_values(parameter) for parameter in model.parameters() if parameter.requires_grad
        ),
    }
    return _answers(places)


def adapter_facts(config: Any) -> dict[str, Any]:
    """Return what is told of a config of PEFT."""
    modules = _asked(lambda: config.target_modules)
    places: dict[str, Callable[[], Any]] = {
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
    return _answers(places)


def _num_values(parameter: Any) -> int:
    """Return how many numbers a parameter has, where DeepSpeed has spread it over processes, too."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _answers(questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    answers = {name: _asked(question) for name, question in questions.items()}
    return {name: answer for name, answer in answers.items() if answer is not None}


def _asked(question: Callable[[], Any]) -> Any:
    """Return an answer, None if there is none: objects of training are of types that somebody else wrote."""
    try:
        return question()
    except Exception:  # noqa: BLE001
        return None


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
