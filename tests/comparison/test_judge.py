"""The statistics, compared with published quantiles and with simulated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tachograph.comparison import Noise, judge, student_quantile

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
    found = judge([0.0], [math.log(1.05)], ASSUMED, 0.01)
    assert found.direction == "higher"
    half = 4.604094871 * 0.005 * math.sqrt(2)
    assert found.low == pytest.approx(math.log(1.05) - half)
    assert found.high == pytest.approx(math.log(1.05) + half)


def test_too_little_evidence_names_the_runs_that_would_settle_it():
    found = judge([0.0], [math.log(1.02)], ASSUMED, 0.01)
    assert (found.direction, found.runs_needed) == ("unknown", 3)
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


def test_certain_difference_below_the_margin_is_equal():
    found = judge([0.0] * 20, [0.006] * 20, Noise(0.001, ""), 0.01)
    assert found.direction == "equal"
    assert found.is_certain


def test_restless_runs_outweigh_the_assumption():
    random = np.random.default_rng(3)
    first, second = random.normal(0, 0.07, 5), random.normal(math.log(1.1), 0.07, 5)
    assert judge(first.tolist(), second.tolist(), ASSUMED, 0.01).direction == "unknown"


def test_false_alarms_and_power():
    random = np.random.default_rng(5)
    noise = Noise(0.01, "")
    wrong = sum(
        judge(random.normal(0, 0.01, 3).tolist(), random.normal(0, 0.01, 3).tolist(), noise, 0.01).direction
        in {"higher", "lower"}
        for _ in range(1_000)
    )
    found = sum(
        judge(random.normal(0, 0.01, 8).tolist(), random.normal(0.02, 0.01, 8).tolist(), noise, 0.01).direction
        == "higher"
        for _ in range(200)
    )
    assert wrong <= 10
    assert found >= 150
