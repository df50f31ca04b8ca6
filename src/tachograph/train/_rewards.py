"""Finds the reward functions of GRPO, before the model is loaded."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from tachograph.exceptions import PluginError
from tachograph.plugins import import_dotted
from tachograph.train._config import TrainConfig
from tachograph.train._problems import Problems

__all__ = ["find_rewards"]


def find_rewards(config: TrainConfig, problems: Problems) -> list[Any]:
    """Return the reward functions, and the folders of reward models. Errors are added to the problems."""
    paths = config.trl.get("reward_funcs")
    if not paths:
        problems.add("trl.reward_funcs is missing: name a function, such as `trl: {reward_funcs: [rewards.brevity]}`")
        return []
    if isinstance(paths, str):
        paths = [paths]
    rewards: list[Any] = []
    for number, path in enumerate(paths):
        key = f"trl.reward_funcs[{number}]"
        if not isinstance(path, str):
            problems.add(f"{key}={path!r}: expected the dotted path of a function, such as rewards.brevity")
        elif Path(path).is_dir():
            rewards.append(path)
        else:
            try:
                function = import_dotted(path, key)
            except PluginError as error:
                problems.add(f"{error}; it is looked up in the working directory, too")
                continue
            problem = _problem(function)
            if problem:
                problems.add(f"{key}={path!r}: {problem}")
            rewards.append(function)
    weights = config.trl.get("reward_weights")
    if weights is not None and (not isinstance(weights, list) or len(weights) != len(paths)):
        problems.add(f"trl.reward_weights={weights!r}: expected one number for each of {len(paths)} reward_funcs")
    return rewards


def _problem(function: Any) -> str:
    if not callable(function):
        return f"it is {function!r:.60}, not a function"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    names = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if not takes_any and "completions" not in names:
        return "it must take `completions` and **kwargs, and return a list of numbers"
    if not takes_any:
        return "it must take **kwargs, because it is called with all columns of the data"
    return ""
