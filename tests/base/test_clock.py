"""Conversion of steady readings to wall times."""

from __future__ import annotations

from tachograph._base.clock import WallAnchor
from tachograph.testing import FakeClock


def test_anchor_converts_steady_to_wall_time():
    clock = FakeClock(wall_s=5_000.0, steady_s=10.0)
    anchor = WallAnchor(clock)
    clock.advance(2.5)
    assert anchor.wall_s(clock.steady_s()) == clock.wall_s() == 5_002.5


def test_follow_applies_small_corrections_silently():
    clock = FakeClock(wall_s=5_000.0)
    anchor = WallAnchor(clock)
    clock.set_wall(5_000.5)
    assert anchor.follow() is None
    assert anchor.wall_s(clock.steady_s()) == 5_000.5


def test_follow_returns_a_jump_once():
    clock = FakeClock(wall_s=5_000.0)
    anchor = WallAnchor(clock)
    clock.set_wall(1_400.0)
    assert anchor.follow() == -3_600.0
    assert anchor.follow() is None
    assert anchor.wall_s(clock.steady_s()) == 1_400.0
