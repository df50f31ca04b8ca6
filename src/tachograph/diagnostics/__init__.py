"""Diagnosis: rules that look at the records of a run and tell, once and with evidence, what is wrong. Knows only
records.
"""

from tachograph.diagnostics._engine import RuleEngine
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._settings import ThresholdRow, explain, resolve_rules, threshold_table
from tachograph.diagnostics._signals import SIGNALS
from tachograph.diagnostics.rules import RULES

__all__ = [
    "RULES",
    "SIGNALS",
    "RuleEngine",
    "Rule",
    "RuleSettings",
    "ThresholdRow",
    "explain",
    "resolve_rules",
    "threshold_table",
]
