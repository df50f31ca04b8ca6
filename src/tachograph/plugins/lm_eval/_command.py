"""`evaluate_config`: evaluate a model without training it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tachograph.plugins._config import validate_config
from tachograph.plugins._loading import load_class
from tachograph.plugins.lm_eval._harness import choose_model, evaluate, load_model
from tachograph.plugins.lm_eval._options import LMEvalOptions
from tachograph.plugins.lm_eval._plugin import LMEvalPlugin
from tachograph.plugins.lm_eval._results import EvaluationResult
from tachograph.plugins.lm_eval._tasks import find_tasks, load_tasks, parse_tasks

__all__ = ["evaluate_config"]

_PREFIX = "lm_eval_"


def evaluate_config(config: Mapping[str, Any], *, origin: str = "config") -> tuple[EvaluationResult, Path]:
    """Evaluate the model of a training config, and write the results to `lm_eval_results` in its `output_dir`.

    Args:
        config: the config. Keys are used that start with `lm_eval_`, and `base_model`, `hub_model_id`, `output_dir`.
        origin: where the config comes from, for messages.

    Returns:
        The results, and the JSON file.

    Raises:
        ConfigError: if an option is invalid, a task or the model does not exist, or the harness is not installed.
    """
    load_class(LMEvalPlugin)  # raises if the harness is not installed
    option_values = {key: value for key, value in config.items() if str(key).startswith(_PREFIX)}
    options = cast(LMEvalOptions, validate_config(option_values, [], LMEvalOptions, origin=origin).base)
    model = choose_model(options, config)
    groups = parse_tasks(options.lm_eval_tasks)
    manager = find_tasks(groups, options.lm_eval_include_path, include_defaults=options.lm_eval_include_defaults)
    tasks = load_tasks(manager, groups)
    result = evaluate(load_model(model, options, config.get("base_model")), model, options, tasks)
    return result, result.save(Path(config.get("output_dir") or "."))
