"""Templates for the JSON of a webhook: placeholders in its texts are replaced, and nothing is ever executed.

The template is JSON first and filled second, so that no value can break out of the text it stands in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["PLACEHOLDERS", "filled", "parse_template"]

PLACEHOLDERS: dict[str, str] = {
    "event": "what it is about: one of the events above, or `more` for what was held back",
    "title": "the message in a few words",
    "text": "the whole message as a plain text of several lines",
    "reason": "what happened: the exception, the alert's message, the value that passed a threshold",
    "meaning": "what an alert usually means",
    "advice": "what people do about an alert, as a list",
    "severity": "`info`, `warning` or `critical`",
    "rule": "the rule that found a fault",
    "run": "the run's name",
    "run_id": "the same for all attempts of a run",
    "project": "the project",
    "state": "`running`, `finished` or `failed`",
    "step": "the latest step",
    "max_steps": "how many steps there will be",
    "metrics": "the latest values, by name",
    "duration_s": "seconds since this attempt began",
    "host": "the machine",
    "time": "when it happened, in seconds since 1970",
    "link": "the run's page in the dashboard",
    "id": "the same for every attempt to send this message, so that a receiver can tell a repetition",
}

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_DEEPEST = 20


def parse_template(template: Any, origin: str) -> Any:
    """Return a template as JSON values.

    Raises:
        ConfigError: if it is a text that is no JSON, or has a placeholder that nothing is known for.
    """
    if isinstance(template, str):
        try:
            template = msgspec.json.decode(template)
        except msgspec.MsgspecError:
            raise ConfigError(f'{origin}: this is not JSON; try \'{{"text": "{{title}}"}}\'') from None
    for text in _texts(template, origin):
        for place in _PLACE.finditer(text):
            if place[1] is not None and place[1] not in PLACEHOLDERS:
                hint = did_you_mean(place[1], PLACEHOLDERS) or f"; known are {', '.join(PLACEHOLDERS)}"
                raise ConfigError(
                    f"{origin}: nothing is known for {{{place[1]:.40}}}{hint}. For a brace write it twice"
                )
    return template


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its placeholders replaced; one that stands alone keeps the kind of its value."""
    if isinstance(template, Mapping):
        return {name: filled(item, values) for name, item in template.items()}
    if isinstance(template, (list, tuple)):
        return [filled(item, values) for item in template]
    if not isinstance(template, str):
        return template
    alone = _PLACE.fullmatch(template)
    if alone is not None and alone[1] is not None:
        return values.get(alone[1])
    return _PLACE.sub(lambda place: place[0][0] if place[1] is None else _text(values.get(place[1])), template)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(_text, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _texts(template: Any, origin: str, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ConfigError(f"{origin}: it is nested more than {_DEEPEST} deep")
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        for name, item in template.items():
            if not isinstance(name, str):
                raise ConfigError(f"{origin}: names must be texts, got {type(name).__name__}")
            yield from _texts(item, origin, depth + 1)
    elif isinstance(template, (list, tuple)):
        for item in template:
            yield from _texts(item, origin, depth + 1)
    elif not (template is None or isinstance(template, (bool, int, float))):
        raise ConfigError(f"{origin}: only what JSON knows can be sent, got {type(template).__name__}")
