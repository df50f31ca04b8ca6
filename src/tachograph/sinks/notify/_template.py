"""Templates for the JSON of a webhook: placeholders in its strings are replaced by values; nothing is executed.

The template is parsed as JSON before it is filled, so that no value can break out of the string that contains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["PLACEHOLDERS", "fill_template", "parse_template"]

PLACEHOLDERS: dict[str, str] = {
    "event": "one of the events above, or `more` for a summary of messages over the rate limit",
    "title": "the message in a few words, such as `Training complete`",
    "text": "the whole message as plain text of several lines",
    "reason": "the exception, the alert's message, or the value that met a condition",
    "meaning": "the usual meaning of an alert",
    "advice": "suggested actions, as a list",
    "severity": "`info`, `warning` or `critical`",
    "rule": "the rule that opened the alert",
    "run": "the run's name",
    "run_id": "the same for all attempts of a run",
    "project": "the project",
    "state": "`running`, `finished` or `failed`",
    "step": "the latest step",
    "max_steps": "the planned number of steps",
    "metrics": "the latest values, by name",
    "duration_s": "seconds since this attempt started",
    "host": "the machine's host name",
    "time": "time of the event, in seconds since 1970",
    "link": "the run's page in the dashboard",
    "id": "identifies the message; the same for every attempt to send it, so that a receiver can ignore a repetition",
}

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_MAX_DEPTH = 20


def parse_template(template: Any, origin: str) -> Any:
    """Return a template as JSON values.

    Raises:
        ConfigError: if it is a string that is not JSON, or contains an unknown placeholder.
    """
    if isinstance(template, str):
        try:
            template = decode_json(template, Any)
        except msgspec.MsgspecError:
            raise ConfigError(f'{origin}: not valid JSON; try \'{{"text": "{{title}}"}}\'') from None
    for text in _strings(template, origin):
        for match in _PLACEHOLDER.finditer(text):
            if match[1] is not None and match[1] not in PLACEHOLDERS:
                hint = did_you_mean(match[1], PLACEHOLDERS) or f"; available: {', '.join(PLACEHOLDERS)}."
                raise ConfigError(f"{origin}: unknown placeholder {{{match[1]:.40}}}{hint} Write a literal brace twice")
    return template


def fill_template(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its placeholders replaced; a string that is only a placeholder keeps the value's type."""
    if isinstance(template, Mapping):
        return {name: fill_template(item, values) for name, item in template.items()}
    if isinstance(template, (list, tuple)):
        return [fill_template(item, values) for item in template]
    if not isinstance(template, str):
        return template
    whole_match = _PLACEHOLDER.fullmatch(template)
    if whole_match is not None and whole_match[1] is not None:
        return values.get(whole_match[1])
    return _PLACEHOLDER.sub(lambda match: match[0][0] if match[1] is None else _text(values.get(match[1])), template)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(_text, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _strings(template: Any, origin: str, depth: int = 0) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{origin}: nested more than {_MAX_DEPTH} levels deep")
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        for name, item in template.items():
            if not isinstance(name, str):
                raise ConfigError(f"{origin}: keys must be strings, got {type(name).__name__}")
            yield from _strings(item, origin, depth + 1)
    elif isinstance(template, (list, tuple)):
        for item in template:
            yield from _strings(item, origin, depth + 1)
    elif not (template is None or isinstance(template, (bool, int, float))):
        raise ConfigError(f"{origin}: expected JSON values, got {type(template).__name__}")
