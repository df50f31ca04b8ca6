"""Compare runs and judge whether their differences are real."""

from tachograph.comparison._comparable import Comparability, ConfigChange, check_comparable
from tachograph.comparison._compare import (
    GATED,
    ComparedGroup,
    ComparisonReport,
    MetricVerdict,
    Verdict,
    compare_groups,
)
from tachograph.comparison._evidence import Points, RunEvidence, StepClock
from tachograph.comparison._judge import Judgement, Noise, judge
from tachograph.comparison._load import load_evidence
from tachograph.comparison._loss import agree, have_same_batches, measure_final, measure_loss
from tachograph.comparison._speed import TooShort, measure_speed
from tachograph.comparison._student import student_quantile

__all__ = [
    "GATED",
    "Comparability",
    "ComparedGroup",
    "ComparisonReport",
    "ConfigChange",
    "Judgement",
    "MetricVerdict",
    "Noise",
    "Points",
    "RunEvidence",
    "StepClock",
    "TooShort",
    "Verdict",
    "agree",
    "check_comparable",
    "compare_groups",
    "have_same_batches",
    "judge",
    "load_evidence",
    "measure_final",
    "measure_loss",
    "measure_speed",
    "student_quantile",
]
