"""Which rules look at a run, and with which thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics.rules import RULES
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["ThresholdRow", "explain", "resolve_rules", "threshold_table"]


class ThresholdRow(msgspec.Struct, frozen=True):
    """One threshold of a rule, as the documentation shows it."""

    name: str
    type: str
    default: Any
    doc: str


def threshold_table(rule: type[Rule]) -> list[ThresholdRow]:
    """Return the thresholds of a rule."""
    rows = []
    for field in msgspec.structs.fields(rule.Thresholds):
        base, meta = field.type.__origin__, field.type.__metadata__[0]
        rows.append(ThresholdRow(field.name, base.__name__, field.default, meta.description))
    return rows


def resolve_rules(given: Mapping[str, Any] | None) -> dict[str, RuleSettings]:
    """Settle the thresholds of every rule that is on.

    Args:
        given: by rule, ``False`` to turn it off, ``True``, or its thresholds, as in ``{"loss_spike": {"sigmas": 8}}``.

    Raises:
        ConfigError: for a rule or threshold that does not exist, or a value that is out of its range.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"rules={given!r}: a dict is expected, such as rules={{'plateau': False}}")
    given = given or {}
    for name in given:
        if name not in RULES:
            raise ConfigError(f"unknown rule rules.{name}{did_you_mean(str(name), RULES)}")
    chosen = {}
    for name, rule in RULES.items():
        wanted = given.get(name, True)
        if wanted is False:
            continue
        chosen[name] = _thresholds(rule, {} if wanted in (True, None) else wanted)
    return chosen


def _thresholds(rule: type[Rule], values: Any) -> RuleSettings:
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"rules.{rule.name}={values!r}: true, false or thresholds are expected, such as {_example(rule)}"
        )
    known = rule.Thresholds.__struct_fields__
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown threshold rules.{rule.name}.{name}{did_you_mean(str(name), known)}")
    for name, value in values.items():
        if isinstance(value, bool):
            raise ConfigError(f"rules.{rule.name}.{name}: a number is expected, got {value!r}")
    try:
        return msgspec.convert(dict(values), rule.Thresholds, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"rules.{rule.name}.{where.rstrip('`')}: {what[0].lower()}{what[1:]}") from None


def _example(rule: type[Rule]) -> str:
    rows = threshold_table(rule)
    return f"{{{rows[0].name!r}: {rows[0].default!r}}}" if rows else "true"


def explain(name: str) -> type[Rule]:
    """Return a rule by its name.

    Raises:
        ConfigError: if there is none.
    """
    if name not in RULES:
        raise ConfigError(f"there is no rule {name!r}{did_you_mean(name, RULES)}; the rules are: {', '.join(RULES)}")
    return RULES[name]
