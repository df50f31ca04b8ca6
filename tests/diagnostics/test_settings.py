"""The catalogue of rules, their documentation, and how thresholds are set."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tachograph.diagnostics import RULES, Rule, explain, resolve_rules, rules, threshold_table
from tachograph.diagnostics._alert_tracker import SEVERITIES
from tachograph.diagnostics._signals import SIGNALS
from tachograph.exceptions import ConfigError
from tachograph.records import KINDS

ALL = list(RULES.values())


@pytest.mark.parametrize("rule", ALL, ids=list(RULES))
def test_rules_have_docstring_meaning_and_advice(rule: type[Rule]) -> None:
    assert rule.__doc__ and len(rule.__doc__.splitlines()[0]) > 20
    assert rule.meaning.endswith(".") and len(rule.meaning) > 60
    assert rule.advice and all(line.endswith((".", "?")) and len(line) > 15 for line in rule.advice)
    assert rule.severity in SEVERITIES


@pytest.mark.parametrize("rule", ALL, ids=list(RULES))
def test_rules_observe_existing_signals_and_kinds(rule: type[Rule]) -> None:
    assert set(rule.block_signals) | set(rule.value_signals) <= set(SIGNALS)
    assert set(rule.record_kinds) <= set(KINDS)
    assert set(rule.absorbs) <= set(RULES) - {rule.name}
    hooks = ("on_tick", "on_rank_window", "on_rank_record", "on_rank_statuses")
    has_hook = any(getattr(rule, hook) is not getattr(Rule, hook) for hook in hooks)
    assert rule.block_signals or rule.value_signals or rule.record_kinds or has_hook


@pytest.mark.parametrize("rule", ALL, ids=list(RULES))
def test_thresholds_have_descriptions_and_valid_defaults(rule: type[Rule]) -> None:
    rows = threshold_table(rule)
    assert rows
    for row in rows:
        assert row.doc.endswith(".") and row.type in ("int", "float") and type(row.default).__name__ == row.type
    defaults = {row.name: row.default for row in rows}
    assert resolve_rules({rule.name: defaults})[rule.name] == msgspec.convert(defaults, rule.Thresholds)


@pytest.mark.parametrize("rule", ALL, ids=list(RULES))
def test_thresholds_have_a_range(rule: type[Rule]) -> None:
    for row in threshold_table(rule):
        with pytest.raises(ConfigError, match=f"rules.{rule.name}.{row.name}"):
            resolve_rules({rule.name: {row.name: -1e9}})


def test_each_rule_is_in_a_file_of_its_name() -> None:
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(RULES) == {rule.__module__.rpartition(".")[2] for rule in ALL}
    for rule in ALL:
        assert rule.__name__.lower() == rule.name.replace("_", "")


def test_all_rules_are_on_by_default() -> None:
    assert list(resolve_rules(None)) == list(resolve_rules({})) == list(RULES)
    assert set(RULES) - set(resolve_rules({"plateau": False, "hang": True, "near_oom": None})) == {"plateau"}


def test_thresholds_accept_numeric_strings() -> None:
    chosen = resolve_rules({"loss_spike": {"sigmas": "8", "most_peers": "3"}})["loss_spike"]
    assert (chosen.sigmas, chosen.most_peers) == (8.0, 3)
    assert chosen.least_share == RULES["loss_spike"].Thresholds().least_share


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"los_spike": True}, "unknown rule rules.los_spike.*loss_spike"),
        ({"loss_spike": {"sigma": 8}}, "unknown threshold rules.loss_spike.sigma.*sigmas"),
        ({"loss_spike": {"sigmas": 1}}, "rules.loss_spike.sigmas: expected `float` >= 2"),
        ({"loss_spike": {"sigmas": True}}, "rules.loss_spike.sigmas: expected a number, got True"),
        ({"loss_spike": {"sigmas": "many"}}, "rules.loss_spike.sigmas"),
        ({"loss_spike": {"sigmas": None}}, "rules.loss_spike.sigmas"),
        ({"loss_spike": {"most_peers": 2.5}}, "rules.loss_spike.most_peers"),
        ({"loss_spike": 8}, "rules.loss_spike=8: expected true, false or a dict of thresholds"),
        ({"loss_spike": "off"}, "rules.loss_spike='off'"),
        (["loss_spike"], "expected a dict"),
        ("loss_spike", "expected a dict"),
        ({3: True}, "unknown rule rules.3"),
    ],
)
def test_invalid_rule_settings_are_named_in_the_error(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_rules(given)


def test_nan_threshold_is_rejected() -> None:
    with pytest.raises(ConfigError, match="sigmas"):
        resolve_rules({"loss_spike": {"sigmas": math.nan}})


def test_explain_returns_a_rule() -> None:
    assert explain("hang") is RULES["hang"]
    with pytest.raises(ConfigError, match="unknown rule 'hangs'.*did you mean 'hang'.*Available: not_finite, "):
        explain("hangs")
