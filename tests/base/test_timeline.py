"""Attribution of time: every moment counts once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tachograph._base import timeline
from tachograph._base.timeline import Timeline

INTERVALS = st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), max_size=30)


@given(INTERVALS)
def test_claims_count_each_unit_of_time_once(intervals):
    line, claimed = Timeline(0, 30), set()
    for start, stop in intervals:
        units = {unit for unit in range(start, stop) if 0 <= unit < 30}
        assert line.claim(start, stop) == len(units - claimed)
        claimed |= units


def test_claim_between_claims_returns_the_gap():
    line = Timeline()
    assert line.claim(0.0, 1.0) == 1.0
    assert line.claim(2.0, 3.0) == 1.0
    assert line.claim(0.5, 2.5) == 1.0
    assert line.claim(0.0, 3.0) == 0.0


def test_empty_inverted_and_nan_claims_return_zero():
    line = Timeline()
    assert line.claim(1.0, 1.0) == line.claim(2.0, 1.0) == line.claim(float("nan"), float("nan")) == 0.0
    assert line.claim(0.0, 3.0) == 3.0


def test_old_intervals_are_discarded_and_stay_claimed(monkeypatch):
    monkeypatch.setattr(timeline, "_MAX_INTERVALS", 10)
    line = Timeline()
    for number in range(100):
        assert line.claim(2.0 * number, 2.0 * number + 1.0) == 1.0
    assert len(line._starts) <= 10
    assert line.claim(0.0, 100.0) == 0.0
    assert line.claim(198.5, 200.0) == 1.0
