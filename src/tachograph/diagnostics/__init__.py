"""Diagnosis: rules observe the records of a run and report faults as alerts. Depends on `records` only."""

from tachograph.diagnostics._engine import RuleEngine
from tachograph.diagnostics._hang_limits import HangLimits, HangThresholds
from tachograph.diagnostics._rank_observer import is_rank_record
from tachograph.diagnostics._rank_status import RankStatus, list_ranks
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._settings import ThresholdRow, explain, looser_setting, resolve_rules, threshold_table
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._signals import SIGNALS, SignalNames, resolve_signals
from tachograph.diagnostics.rules import RULES

__all__ = [
    "RULES",
    "SIGNALS",
    "HangLimits",
    "HangThresholds",
    "RankStatus",
    "Rule",
    "RuleEngine",
    "RuleSettings",
    "SignalNames",
    "SignalStats",
    "ThresholdRow",
    "explain",
    "is_rank_record",
    "list_ranks",
    "looser_setting",
    "resolve_rules",
    "resolve_signals",
    "threshold_table",
]
