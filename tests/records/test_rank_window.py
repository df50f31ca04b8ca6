"""The `rank` record: small, exact enough, and safe to read whatever wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.records import PhaseTime, RankWindow, decode, encode

WINDOW = RankWindow(
    last_iteration=1_234_559,
    num_iterations=16,
    own=PhaseTime(0.123456, 0.000412),
    wait=PhaseTime(0.025, 0.00052),
    data=PhaseTime(0.0051234, 0.0001),
    forward=PhaseTime(0.0312, 0.00022),
    backward=PhaseTime(0.04532, 0.0003),
    optimizer=PhaseTime(0.005123, 0.0001),
    longest_own_s=0.2931,
    longest_iteration=1_234_551,
    collective=12_345_678,
)


def test_record_is_small_and_keeps_four_digits() -> None:
    line = encode({"event": "rank", "time": 1763450000.123, **WINDOW.to_fields()})
    assert len(line) <= 170
    window = RankWindow.from_record(decode(line))
    assert window is not None
    assert window.time == 1763450000.123
    assert window.own.median_s == pytest.approx(0.1235)
    assert window.optimizer is not None
    assert window.optimizer.median_s == pytest.approx(0.005123)
    assert (window.last_iteration, window.num_iterations) == (1_234_559, 16)
    assert window.longest_own_s == pytest.approx(0.2931)
    assert window.longest_iteration == 1_234_551
    assert window.collective == 12_345_678


def test_unmeasured_times_stay_unknown() -> None:
    window = RankWindow(last_iteration=15, num_iterations=16, own=PhaseTime(0.1, 0.0))
    copy = RankWindow.from_record(decode(encode({"event": "rank", "time": 1.0, **window.to_fields()})))
    assert copy is not None
    assert (copy.wait, copy.data, copy.longest_own_s, copy.collective) == (None, None, None, None)


def test_records_without_usable_times_are_ignored() -> None:
    fields = WINDOW.to_fields()
    broken: list[dict[str, Any]] = [
        {},
        {**fields, "ms": None},
        {**fields, "ms": []},
        {**fields, "ms": ["NaN", 0.1]},
        {**fields, "ms": [-1.0, 0.1]},
        {**fields, "last": "15"},
        {**fields, "last": -1},
        {**fields, "n": 0},
    ]
    assert [RankWindow.from_record(record) for record in broken] == [None] * len(broken)
    for longest in (None, 3, [1], ["x", 2], [1.0, "y"]):
        window = RankWindow.from_record({**fields, "max": longest})
        assert window is not None
        assert window.longest_own_s is None
