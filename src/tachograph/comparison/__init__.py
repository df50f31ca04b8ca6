"""Compare runs and judge whether their differences are real."""

from tachograph.comparison._ab import ArmSwitch, QuadLevels, judge_differences, measure_quads
from tachograph.comparison._ab_report import MIN_PAIRS, ArmCommand, ArmRun, report_arms, report_pairs
from tachograph.comparison._baseline import (
    Baseline,
    BaselineError,
    BaselineRun,
    load_baseline,
    save_baseline,
)
from tachograph.comparison._changes import find_changes
from tachograph.comparison._comparable import Comparability, ConfigChange, check_comparable
from tachograph.comparison._compare import compare_groups
from tachograph.comparison._earlier import earlier_rows, similar_rows
from tachograph.comparison._equal_weights import EqualWeightsLevel, add_equal_weights, judge_equal_weights
from tachograph.comparison._evidence import RunEvidence, SeriesPoints, StepClock
from tachograph.comparison._gate import CHECKED_METRICS, CheckResult, check_run, junit_error, junit_report
from tachograph.comparison._groups import training_key
from tachograph.comparison._history import HistoryChange, HistoryReport, judge_history
from tachograph.comparison._html import html_report
from tachograph.comparison._judge import Judgement, Noise, judge
from tachograph.comparison._load import (
    load_earlier,
    load_earlier_folders,
    load_evidence,
    load_folder,
    load_folders,
)
from tachograph.comparison._loss import agree, have_same_batches, judge_losses, measure_final, measure_loss
from tachograph.comparison._markdown import MARKER, markdown_report
from tachograph.comparison._report import (
    GATED_METRICS,
    ComparedGroup,
    ComparisonReport,
    MetricVerdict,
    Verdict,
    group_name,
)
from tachograph.comparison._speed import TooShort, measure_speed
from tachograph.comparison._student import student_quantile
from tachograph.comparison._words import (
    VerdictRow,
    change_texts,
    lines_before_headline,
    noise_line,
    runs_text,
    verdict_rows,
    verdict_text,
)

__all__ = [
    "CHECKED_METRICS",
    "GATED_METRICS",
    "MARKER",
    "MIN_PAIRS",
    "ArmCommand",
    "ArmRun",
    "ArmSwitch",
    "Baseline",
    "BaselineError",
    "BaselineRun",
    "CheckResult",
    "Comparability",
    "ComparedGroup",
    "ComparisonReport",
    "ConfigChange",
    "EqualWeightsLevel",
    "HistoryChange",
    "HistoryReport",
    "Judgement",
    "MetricVerdict",
    "Noise",
    "SeriesPoints",
    "QuadLevels",
    "RunEvidence",
    "StepClock",
    "TooShort",
    "Verdict",
    "VerdictRow",
    "add_equal_weights",
    "agree",
    "change_texts",
    "check_comparable",
    "check_run",
    "compare_groups",
    "earlier_rows",
    "find_changes",
    "group_name",
    "have_same_batches",
    "html_report",
    "judge",
    "judge_differences",
    "judge_equal_weights",
    "judge_history",
    "judge_losses",
    "junit_error",
    "junit_report",
    "lines_before_headline",
    "load_baseline",
    "load_earlier",
    "load_earlier_folders",
    "load_evidence",
    "load_folder",
    "load_folders",
    "markdown_report",
    "measure_final",
    "measure_loss",
    "measure_quads",
    "measure_speed",
    "noise_line",
    "report_arms",
    "report_pairs",
    "runs_text",
    "save_baseline",
    "similar_rows",
    "student_quantile",
    "training_key",
    "verdict_rows",
    "verdict_text",
]
