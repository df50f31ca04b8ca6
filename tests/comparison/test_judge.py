"""The statistics, compared with published quantiles and with simulated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tachograph.comparison import Noise, judge, student_quantile
from tachograph.comparison._spread import measure_spread

ASSUMED = Noise(0.005, "assumed")


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.7062047362),
        (0.995, 4, 4.6040948713),
        (0.995, 8, 3.3553873313),
        (0.995, 12, 3.0545395894),
        (0.95, 2.5, 2.5582186141),
        (0.9995, 3, 12.9239786367),
        (0.975, 1e6, 1.9599663566),
        (0.5, 7, 0.0),
        (0.025, 1, -12.7062047362),
    ],
)
def test_quantiles(probability, degrees, expected):
    assert student_quantile(probability, degrees) == pytest.approx(expected, abs=1e-9)


def test_single_runs_rely_on_the_assumed_noise():
    verdict = judge([0.0], [math.log(1.05)], ASSUMED, 0.01)
    assert verdict.direction == "higher"
    half = 4.604094871 * 0.005 * math.sqrt(2)
    assert verdict.low == pytest.approx(math.log(1.05) - half)
    assert verdict.high == pytest.approx(math.log(1.05) + half)


def test_too_little_evidence_names_the_runs_that_would_settle_it():
    verdict = judge([0.0], [math.log(1.02)], ASSUMED, 0.01)
    assert (verdict.direction, verdict.runs_needed) == ("unknown", 3)
    assert judge([0.0], [math.log(1.05)], Noise(0.01, ""), 0.01).runs_needed == 2
    assert judge([0.0], [math.log(1.02)], Noise(0.01, ""), 0.01).runs_needed == 8
    # No difference: how many runs would show that they are equal?
    equal = judge([0.0], [0.0], ASSUMED, 0.01)
    assert equal.direction == "unknown"
    assert equal.runs_needed is not None
    settled = judge([0.0] * equal.runs_needed, [0.0] * equal.runs_needed, ASSUMED, 0.01)
    assert settled.direction == "equal"


def test_no_difference_is_not_equality():
    assert judge([0.0], [0.0], Noise(0.05, ""), 0.01).direction == "unknown"
    assert judge([0.0] * 5, [0.0] * 5, ASSUMED, 0.01).direction == "equal"


def test_groups_without_assumed_noise_are_judged_by_their_own_spread():
    own = Noise(0.0, "", 0.0)
    verdict = judge([0.0, 0.001, -0.001], [0.02, 0.021, 0.019], own, 0.01)
    assert verdict.direction == "higher"
    half = 4.6040948713 * 0.001 * math.sqrt(2 / 3)  # Welch's test with four degrees of freedom
    assert (verdict.low, verdict.high) == (pytest.approx(0.02 - half), pytest.approx(0.02 + half))
    # Only the spread of the first group is known.
    half = 9.9248432009 * 0.001 * math.sqrt(4 / 3)
    assert judge([0.0, 0.001, -0.001], [0.02], own, 0.01).high == pytest.approx(0.02 + half)
    assert judge([0.0, 0.01, -0.01], [0.02, 0.01, 0.03], own, 0.01).direction == "unknown"
    # All values were rounded to the same one.
    rounded = Noise(0.0, "", 0.0, resolution=0.01)
    assert judge([0.0] * 3, [0.02] * 3, rounded, 0.01).direction == "unknown"


def test_difference_that_may_exceed_the_margin_is_not_equal():
    assert judge([0.0] * 3, [0.009] * 3, Noise(0.002, "", 20), 0.01).direction == "unknown"


def test_few_runs_far_off_do_not_hide_a_difference():
    usual = [0.001 * number for number in (-2, -1, 0, 0, 1, 2, 1, -1)]
    spread = measure_spread([*usual, 0.1, 0.11])
    assert (spread.num_runs, spread.max_deviation) == (8, pytest.approx(0.11, abs=0.001))
    assert spread.mean == pytest.approx(0.0, abs=0.001)
    assert measure_spread([0.0, 0.0, 0.1, 0.1]).num_runs == 4  # too few to tell which ones are usual
    verdict = judge([*usual, 0.1, 0.1], [0.18], ASSUMED, 0.01)
    assert verdict.direction == "higher"
    assert judge([*usual, 0.1, 0.1], [0.1], ASSUMED, 0.01).direction == "unknown"
    random = np.random.default_rng(1)
    assert sum(measure_spread(random.normal(size=10).tolist()).max_deviation > 0 for _ in range(500)) <= 5


def test_certain_difference_below_the_margin_is_equal():
    verdict = judge([0.0] * 20, [0.006] * 20, Noise(0.001, ""), 0.01)
    assert verdict.direction == "equal"
    assert verdict.is_certain


def test_restless_runs_outweigh_the_assumption():
    random = np.random.default_rng(3)
    first, second = random.normal(0, 0.07, 5), random.normal(math.log(1.1), 0.07, 5)
    assert judge(first.tolist(), second.tolist(), ASSUMED, 0.01).direction == "unknown"


@pytest.mark.slow
def test_false_alarms_and_power():
    random = np.random.default_rng(5)
    noise = Noise(0.01, "")
    wrong = sum(
        judge(random.normal(0, 0.01, 3).tolist(), random.normal(0, 0.01, 3).tolist(), noise, 0.01).direction
        in {"higher", "lower"}
        for _ in range(1_000)
    )
    num_detected = sum(
        judge(random.normal(0, 0.01, 8).tolist(), random.normal(0.02, 0.01, 8).tolist(), noise, 0.01).direction
        == "higher"
        for _ in range(200)
    )
    assert wrong <= 10
    assert num_detected >= 150
