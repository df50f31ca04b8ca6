"""Training configs: parse YAML, and find the options of telemetry in a config.

Trainers nest their options. AI Toolkit keeps the options of a job below `config.process[0]`, and a program that has
unpacked `config` passes on `process[0]`. So the section is looked for in three places, the outermost first. A section
anywhere else has no effect, which deserves a warning. The search for such sections is bounded, because a config may be
of any size, and may contain itself.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["SECTION_PLACES", "ConfigSection", "fields_of", "find_section", "first_process", "parse_yaml"]

SECTION_PLACES = ("telemetry", "process[0].telemetry", "config.process[0].telemetry")
_KEY = "telemetry"
_MAX_VALUES = 10_000
_MAX_DEPTH = 16
_MAX_UNUSED = 5


def parse_yaml(text: str) -> Any:
    """Return the content of YAML text, without executing anything in it.

    Numbers with an exponent, such as ``1e-4``, are numbers, as in YAML 1.2: PyYAML implements 1.1, in which they are
    strings unless they have a point and a signed exponent.

    Raises:
        yaml.YAMLError: if the text is not valid.
    """
    import yaml

    return yaml.load(text, _yaml_loader())  # noqa: S506 - a subclass of SafeLoader


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class YamlLoader(yaml.SafeLoader):
        pass

    def construct_float(loader: Any, node: Any) -> Any:
        number = yaml.SafeLoader.construct_yaml_float(loader, node)
        # Digits with an "e" that are no number, such as the hash of a commit, are too large for one.
        is_text = math.isinf(number) and "inf" not in node.value.lower()
        return node.value if is_text else number

    with_exponent = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$")
    YamlLoader.add_implicit_resolver("tag:yaml.org,2002:float", with_exponent, list("-+.0123456789"))
    YamlLoader.add_constructor("tag:yaml.org,2002:float", construct_float)
    return YamlLoader


class ConfigSection(NamedTuple):
    """The `telemetry` section of a config."""

    path: str
    """Where it is, such as ``config.process[0].telemetry``."""
    value: Any
    """Its content, usually a mapping; None if the config has no section."""
    unused: tuple[str, ...]
    """The paths of sections in places where they have no effect."""


def find_section(config: Any) -> ConfigSection:
    """Find the `telemetry` section of a config: a mapping, a dataclass or a namespace."""
    owners = {SECTION_PLACES[0]: fields_of(config)}
    for path, owner in (("process[0]", config), ("config.process[0]", fields_of(config).get("config"))):
        owners[f"{path}.{_KEY}"] = _first_of(fields_of(owner).get("process"))
    sections = {path: owner[_KEY] for path, owner in owners.items() if owner.get(_KEY) is not None}
    mappings = [path for path, value in sections.items() if isinstance(value, Mapping)]
    section_path = next(iter(mappings or sections), SECTION_PLACES[0])
    unused_paths = [path for path in sections if path != section_path]
    unused_paths += [path for path in _nested_sections(config) if path not in sections]
    return ConfigSection(section_path, sections.get(section_path), tuple(unused_paths[:_MAX_UNUSED]))


def first_process(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the first process of a job of AI Toolkit; the config itself if it has another layout."""
    return _first_of(fields_of(config.get("config")).get("process")) or _first_of(config.get("process")) or config


def _nested_sections(config: Any) -> Iterator[str]:
    """Iterate over the paths of all sections, the outermost first."""
    queue: deque[tuple[str, Any, int]] = deque([("", config, 0)])
    visited_ids = {id(config)}
    num_left = _MAX_VALUES
    while queue and num_left > 0:
        path, container, depth = queue.popleft()
        for key, value in itertools.islice(_children(container), num_left):
            num_left -= 1
            child = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)
            if key == _KEY and isinstance(value, Mapping):
                yield child
            elif depth < _MAX_DEPTH and id(value) not in visited_ids and (_is_list(value) or fields_of(value)):
                visited_ids.add(id(value))
                queue.append((child, value, depth + 1))


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    return enumerate(value) if _is_list(value) else iter(fields_of(value).items())


def _first_of(processes: Any) -> Mapping[Any, Any]:
    return fields_of(processes[0]) if _is_list(processes) and len(processes) else {}


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def fields_of(value: Any) -> Mapping[Any, Any]:
    """Return the fields of a mapping, a dataclass or a namespace; none for anything else."""
    if isinstance(value, Mapping):
        return value
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name, None) for name in value.__dataclass_fields__}
    return vars(value) if type(value).__name__ in {"Namespace", "SimpleNamespace"} else {}
