"""Finds the reward functions of GRPO, before the model is loaded."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tachograph.exceptions import PluginError
from tachograph.plugins import import_dotted
from tachograph.train._config import TrainConfig
from tachograph.train._problems import Problems

__all__ = ["find_rewards"]

_PLUGIN_PACKAGES = ("axolotl.integrations.", "tachograph.plugins.")


def find_rewards(config: TrainConfig, plugin_functions: Mapping[str, Any], problems: Problems) -> list[Any]:
    """Return the reward functions, and the folders of reward models. Errors are added to the problems.

    Args:
        config: the config.
        plugin_functions: the functions that plugins bring; those that the config does not name come last.
        problems: collects the errors.
    """
    paths = config.trl.get("reward_funcs") or []
    if not paths and not plugin_functions:
        problems.add("trl.reward_funcs is missing: name a function, such as `trl: {reward_funcs: [rewards.brevity]}`")
        return []
    if isinstance(paths, str):
        paths = [paths]
    rewards: list[Any] = []
    unnamed_functions = dict(plugin_functions)
    for number, path in enumerate(paths):
        key = f"trl.reward_funcs[{number}]"
        if not isinstance(path, str):
            problems.add(f"{key}={path!r}: expected the dotted path of a function, such as rewards.brevity")
        elif path.startswith(_PLUGIN_PACKAGES) and path.rpartition(".")[2] in unnamed_functions:
            rewards.append(unnamed_functions.pop(path.rpartition(".")[2]))
        elif path.startswith(_PLUGIN_PACKAGES) and importlib.util.find_spec("axolotl") is None:
            names = ", ".join(unnamed_functions) or "no further reward function"
            problems.add(
                f"{key}={path!r}: the plugins of this config bring {names}: name that one, or add the plugin to "
                "`plugins` and set its options"
            )
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
    num_rewards = len(paths) + len(unnamed_functions)
    if weights is not None and (not isinstance(weights, list) or len(weights) != num_rewards):
        last_names = f", the last for {', '.join(unnamed_functions)} of a plugin" if unnamed_functions else ""
        problems.add(
            f"trl.reward_weights={weights!r}: expected one number for each of {num_rewards} reward_funcs{last_names}"
        )
    return [*rewards, *unnamed_functions.values()]


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
