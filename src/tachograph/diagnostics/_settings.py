"""Which rules are on, and with which thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph._base.typed import convert
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics.rules import RULES
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["ThresholdRow", "explain", "looser_setting", "resolve_rules", "threshold_table"]


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
        base = getattr(field.type, "__origin__", field.type)
        # The rule of another package may have a threshold without a description.
        metas = [meta for meta in getattr(field.type, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
        doc = next((meta.description for meta in metas if meta.description), "")
        rows.append(ThresholdRow(field.name, getattr(base, "__name__", str(base)), field.default, doc))
    return rows


def resolve_rules(rules: Mapping[str, Any] | None) -> dict[str, RuleSettings]:
    """Return the thresholds of every rule that is on.

    Args:
        rules: by rule, ``False`` to turn it off, ``True``, or its thresholds, as in ``{"loss_spike": {"sigmas": 8}}``.

    Raises:
        ConfigError: if a rule or threshold is unknown, a value is out of range, or a rule named here cannot be loaded.
            An installed rule that is not named and cannot be loaded is skipped with a warning.
    """
    if rules is not None and not isinstance(rules, Mapping):
        raise ConfigError(f"rules={rules!r}: expected a dict, such as rules={{'plateau': False}}")
    rules = rules or {}
    names = RULES.names()
    for name in rules:
        if name not in names:
            raise ConfigError(f"unknown rule rules.{name}{did_you_mean(str(name), names)}")
    thresholds_by_rule = {}
    for name in names:
        setting = rules.get(name, True)
        if setting is False:
            continue
        try:
            thresholds_by_rule[name] = _resolve_thresholds(RULES.load(name), {} if setting in (True, None) else setting)
        except ConfigError as error:
            if name in rules or RULES.is_built_in(name):
                raise
            RULES.skip(name, error)
    return thresholds_by_rule


def _resolve_thresholds(rule: type[Rule], values: Any) -> RuleSettings:
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"rules.{rule.name}={values!r}: expected true, false or a dict of thresholds, such as {_example(rule)}"
        )
    threshold_names = rule.Thresholds.__struct_fields__
    for name in values:
        if name not in threshold_names:
            raise ConfigError(f"unknown threshold rules.{rule.name}.{name}{did_you_mean(str(name), threshold_names)}")
    for name, value in values.items():
        if isinstance(value, bool):
            raise ConfigError(f"rules.{rule.name}.{name}: expected a number, got {value!r}")
    try:
        return convert(dict(values), rule.Thresholds, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        where = f"rules.{rule.name}.{path.rstrip('`')}".rstrip(".")
        raise ConfigError(f"{where}: {problem[0].lower()}{problem[1:]}") from None


def _example(rule: type[Rule]) -> str:
    rows = threshold_table(rule)
    return f"{{{rows[0].name!r}: {rows[0].default!r}}}" if rows else "true"


def explain(name: str) -> type[Rule]:
    """Return a rule by its name.

    Raises:
        ConfigError: if the rule does not exist or cannot be loaded.
    """
    return RULES.load(name)


_LOOSER: dict[str, tuple[str, float]] = {
    "data_stall": ("share", 1.5),
    "divergence": ("share_of_best", 1.5),
    "entropy_collapse": ("share", 0.5),
    "exploding_gradients": ("factor", 2.0),
    "hang": ("least_s", 2.0),
    "kl_outlier": ("sigmas", 1.5),
    "loss_shift": ("rise", 2.0),
    "loss_spike": ("sigmas", 1.6),
    "low_gpu_utilisation": ("least_pct", 0.6),
    "memory_growth": ("least_growth", 2.0),
    "overfitting": ("rise", 2.0),
    "plateau": ("least_gain", 0.5),
    "reward_drop": ("share", 1.5),
    "slow_communication": ("rise", 2.0),
    "slower_than_baseline": ("rise", 2.0),
    "step_outliers": ("least_share", 2.0),
    "step_time_change": ("rise", 2.0),
    "straggler": ("least_excess", 2.0),
    "throughput_regression": ("rise", 2.0),
    "unequal_work": ("least_cost", 2.0),
    "validation_blow_up": ("factor", 2.0),
    "vanishing_gradients": ("share", 0.1),
}
"""For each rule the threshold that makes it speak less often, and a factor."""


def looser_setting(rule: str) -> str:
    """Return a setting with which a rule speaks less often, such as ``loss_spike.sigmas=8``; empty if there is none."""
    if rule not in _LOOSER:
        return ""
    name, factor = _LOOSER[rule]
    default = next(row.default for row in threshold_table(explain(rule)) if row.name == name)
    return f"{rule}.{name}={default * factor:g}"
