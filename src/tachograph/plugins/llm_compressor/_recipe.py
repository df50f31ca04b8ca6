"""Recipes: which weights keep their zeros, and in which steps.

A recipe has stages, a stage has groups of modifiers, and a group has modifiers by name:

    finetuning_stage:
      finetuning_modifiers:
        ConstantPruningModifier:
          targets: ['re:.*q_proj.weight']
          start: 0

The suffixes `_stage` and `_modifiers` mark stages and groups; the rest of their names has no meaning. A stage may be
left out. Only `ConstantPruningModifier` keeps zeros; all other modifiers create them or quantise, which is done before
training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tachograph.exceptions import did_you_mean

__all__ = ["ConstantPruning", "Target", "parse_recipe"]

_MODIFIER = "ConstantPruningModifier"
_STAGE_SUFFIX = "_stage"
_GROUP_SUFFIX = "_modifiers"
_STAGE_FIELDS = ("run_type", "args", "metadata")
"""Keys of a stage that are not groups of modifiers. They have no meaning for a training."""
_ARGUMENTS = ("targets", "ignore", "start", "end")
_EXAMPLE = (
    f"{{finetuning_stage: {{finetuning_modifiers: {{{_MODIFIER}: {{targets: ['re:.*q_proj.weight'], start: 0}}}}}}}}"
)


class Target(NamedTuple):
    """The name of parameters or modules, the name of a class of modules, or, after `re:`, a regular expression.

    An expression must match from the start of a name, not up to its end.
    """

    text: str
    expression: re.Pattern[str] | None

    def matches_name(self, name: str) -> bool:
        """Return whether the name of a parameter or a module matches."""
        return self.expression.match(name) is not None if self.expression is not None else self.text == name

    def matches_class(self, kind: type) -> bool:
        """Return whether a class, or one that it inherits from, has this name."""
        return self.expression is None and any(owner.__name__ == self.text for owner in kind.__mro__)


class ConstantPruning(NamedTuple):
    """Weights that keep their zeros from one step to another.

    Args:
        targets: the weights.
        ignore: weights among them that may become dense.
        start: the first step, as a number of steps (an integer) or a fraction of the training (a float up to 1).
        end: the step before which it ends, in the same form; None: the end of the training.
    """

    targets: tuple[Target, ...]
    ignore: tuple[Target, ...] = ()
    start: int | float = 0
    end: int | float | None = None

    def steps(self, num_steps: int) -> range:
        """Return the steps of a training in which the zeros are kept. The first step is 0."""
        end = num_steps if self.end is None else min(_step(self.end, num_steps), num_steps)
        return range(_step(self.start, num_steps), end)


def _step(value: int | float, num_steps: int) -> int:
    return value if isinstance(value, int) else math.ceil(value * num_steps)


def parse_recipe(recipe: Any) -> list[ConstantPruning]:
    """Return the modifiers of a recipe: a mapping, the path of a YAML file, or YAML text.

    Raises:
        ValueError: if it cannot be read, has an unknown modifier, or a modifier has invalid arguments.
    """
    modifiers = [_parse_modifier(name, arguments) for name, arguments in _modifiers(_load_recipe(recipe))]
    if not modifiers:
        raise ValueError(f"the recipe has no modifier: expected {_EXAMPLE}")
    return modifiers


def _load_recipe(recipe: Any) -> Mapping[str, Any]:
    if isinstance(recipe, str):
        text, origin = recipe, "the text"
        if "\n" not in recipe and not recipe.lstrip().startswith("{"):
            path = Path(recipe).expanduser()
            try:
                text, origin = path.read_text(encoding="utf-8"), str(path)
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ValueError(
                    f"cannot read the recipe {recipe!r}: {reason}. Give a YAML file or {_EXAMPLE}"
                ) from None
        try:
            recipe = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{origin} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(recipe, Mapping):
        raise ValueError(f"expected a recipe such as {_EXAMPLE}, got {type(recipe).__name__}")
    return recipe


def _modifiers(recipe: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, content in recipe.items():
        name = str(key)
        if name.endswith(_GROUP_SUFFIX):
            yield from _group(name, content)
        elif name.endswith(_STAGE_SUFFIX):
            if not isinstance(content, Mapping):
                raise ValueError(f"{name}: expected groups of modifiers, such as {_EXAMPLE}")
            for group, entries in content.items():
                if str(group).endswith(_GROUP_SUFFIX):
                    yield from _group(f"{name}.{group}", entries)
                elif group not in _STAGE_FIELDS:
                    raise ValueError(f"{name}.{group}: the name of a group of modifiers ends with {_GROUP_SUFFIX}")
        else:
            raise ValueError(
                f"{name}: the name of a stage ends with {_STAGE_SUFFIX}, the name of a group of modifiers with "
                f"{_GROUP_SUFFIX}: {_EXAMPLE}"
            )


def _group(location: str, content: Any) -> Iterator[tuple[str, Any]]:
    entries = content if isinstance(content, list) else [content]
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise ValueError(
                f"{location}: expected modifiers such as {{{_MODIFIER}: {{targets: [...]}}}}, got {entry!r}"
            )
        for name, arguments in entry.items():
            yield str(name), arguments


def _parse_modifier(name: str, arguments: Any) -> ConstantPruning:
    if name != _MODIFIER:
        raise ValueError(
            f"modifier {name!r} is not supported{did_you_mean(name, [_MODIFIER])} A training only keeps zeros, with "
            f"{_MODIFIER}. Prune or quantise the model before the training, and remove {name} from the recipe."
        )
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{name}: expected arguments such as {{targets: ['re:.*q_proj.weight']}}, got {arguments!r}")
    for key in arguments:
        if key not in _ARGUMENTS:
            hint = did_you_mean(str(key), _ARGUMENTS) or "."
            raise ValueError(f"{name} has no argument {key!r}{hint} Available: {', '.join(_ARGUMENTS)}")
    targets = _targets(name, "targets", arguments.get("targets"))
    if not targets:
        raise ValueError(f"{name}: targets is missing: name weights, such as targets: ['re:.*q_proj.weight']")
    start = _position(name, "start", arguments.get("start"))
    end = _position(name, "end", arguments.get("end"))
    if start is not None and end is not None and type(start) is type(end) and end <= start:
        raise ValueError(f"{name}: end={end} must be after start={start}")
    return ConstantPruning(targets, _targets(name, "ignore", arguments.get("ignore")), start or 0, end)


def _targets(modifier: str, argument: str, value: Any) -> tuple[Target, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{modifier}: {argument} must be a list of names, got {value!r}")
    return tuple(_target(modifier, text) for text in texts)


def _target(modifier: str, text: str) -> Target:
    if not text.startswith("re:"):
        return Target(text, None)
    try:
        return Target(text, re.compile(text.removeprefix("re:")))
    except re.error as error:
        raise ValueError(f"{modifier}: target {text!r} is not a valid regular expression: {error}") from None


def _position(modifier: str, argument: str, value: Any) -> int | float | None:
    """Return a step or a fraction; None for the end of the training, which LLM Compressor also writes as -1."""
    if value is None or (argument == "end" and value == -1):
        return None
    is_step = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if isinstance(value, (int, float)) and (is_step or (isinstance(value, float) and 0 <= value <= 1)):
        return value
    raise ValueError(
        f"{modifier}: {argument}={value!r} must be a number of steps, such as 100, or a fraction of the training, "
        "such as 0.25"
    )
