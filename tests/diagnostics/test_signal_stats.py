"""The level and the spread of a signal."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from tachograph.diagnostics._signal_stats import BLOCK, Listener, Now, SignalStats, median


class Ear(Listener):
    """Remembers what it heard."""

    def __init__(self, is_odd: bool = True) -> None:
        self.loud: list[float] = []
        self.not_finite: list[float] = []
        self.blocks: list[list[float]] = []
        self.is_odd = is_odd

    def on_block(self, gauge: SignalStats) -> None:
        self.blocks.append(list(gauge.values))

    def on_loud(self, gauge: SignalStats, value: float) -> bool:
        self.loud.append(value)
        return self.is_odd

    def on_not_finite(self, gauge: SignalStats, value: float) -> None:
        self.not_finite.append(value)


def gauge_with(ear: Ear, band: tuple[float, float] | None = (6.0, 0.0)) -> SignalStats:
    gauge = SignalStats("loss", Now(), band)
    gauge.listeners = [ear]
    return gauge


def calm(gauge: SignalStats, num: int, value: float = 2.0, spread: float = 0.1, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    values = [source.gauss(value, spread) for _ in range(num)]
    for each in values:
        gauge.take(each)
    return values


def test_the_level_is_the_median_of_the_last_block() -> None:
    gauge = gauge_with(Ear())
    values = calm(gauge, 100)
    assert gauge.level == statistics.median(values[80:96]) and gauge.first == statistics.median(values[:16])
    assert gauge.very_first == values[0] and gauge.last == values[-1]
    assert (gauge.num_values, gauge.num_taken) == (96, 100)


@pytest.mark.parametrize("spread", [1e-6, 0.1, 1e5])
def test_the_spread_of_calm_values_is_their_deviation(spread: float) -> None:
    gauge = gauge_with(Ear())
    calm(gauge, 1600, 0.0, spread)
    assert gauge.sigma is not None and 0.8 * spread < gauge.sigma < 1.7 * spread


def test_there_is_no_spread_and_nothing_is_loud_before_two_blocks() -> None:
    ear = Ear()
    gauge = gauge_with(ear)
    for value in (1.0, 1e9, 1.0, 5.0) * 7:
        gauge.take(value)
    assert gauge.sigma is None and ear.loud == []


def test_a_loud_value_is_told_and_does_not_hide_the_next_one() -> None:
    ear = Ear()
    gauge = gauge_with(ear)
    calm(gauge, 160)
    for _ in range(5):
        gauge.take(50.0)
        calm(gauge, 15)
    assert ear.loud == [50.0] * 5 and gauge.sigma is not None and gauge.sigma < 0.2


def test_a_signal_that_jumps_by_habit_has_a_large_spread() -> None:
    ear = Ear()
    gauge = gauge_with(ear)
    source = random.Random(1)
    for _ in range(1600):
        gauge.take(source.choice([2.0, 5.0]) + source.gauss(0, 0.1))
    assert ear.loud == []


def test_values_that_are_not_finite_are_told_and_count_for_nothing() -> None:
    ear = Ear()
    gauge = gauge_with(ear)
    calm(gauge, 32)
    for value in (math.nan, math.inf, -math.inf):
        gauge.take(value)
    assert len(ear.not_finite) == 3 and gauge.num_taken == 32 and ear.loud == []


def test_a_pause_expects_a_new_level() -> None:
    ear = Ear()
    gauge = gauge_with(ear)
    calm(gauge, 160)
    gauge.pause(32)
    calm(gauge, 160, 9.0)
    assert ear.loud == []
    gauge.take(20.0)
    assert ear.loud == [20.0]


def test_a_listener_can_ask_for_less_and_is_alone_in_hearing_it() -> None:
    first, second = Ear(is_odd=False), Ear(is_odd=False)
    gauge = gauge_with(first)
    gauge.listeners.append(second)
    calm(gauge, 160)
    gauge.ask(second, 2.2)
    gauge.take(2.25)
    gauge.take(50.0)
    assert (first.loud, second.loud) == ([50.0], [2.25, 50.0])
    gauge.ask(second, None)
    gauge.take(2.25)
    assert second.loud == [2.25, 50.0]


def test_a_reset_is_a_new_story() -> None:
    gauge = gauge_with(Ear())
    calm(gauge, 160)
    gauge.reset()
    assert (gauge.level, gauge.sigma, gauge.first, gauge.num_taken, gauge.values) == (None, None, None, 0, [])
    calm(gauge, 16, 7.0)
    assert gauge.level == pytest.approx(7.0, abs=0.1)


def test_how_many_were_at_least_so_large() -> None:
    gauge = gauge_with(Ear(is_odd=False))
    values = calm(gauge, 200)
    recent = values[192 - 4 * BLOCK : 192] + values[192:]
    assert gauge.num_above(2.05) == sum(value >= 2.05 for value in recent)


def test_without_a_band_there_is_a_level_but_no_spread() -> None:
    ear = Ear()
    gauge = gauge_with(ear, None)
    calm(gauge, 160)
    gauge.take(1e9)
    assert gauge.level is not None and gauge.sigma is None and ear.loud == []


def test_the_values_of_a_block_are_those_that_came() -> None:
    ear = Ear()
    gauge = gauge_with(ear)
    calm(gauge, 160)
    came = [[50.0, *[2.0] * 15], [2.0] * 16, [*[2.0] * 15, 60.0]]
    for block in came:
        for value in block:
            gauge.take(value)
    assert ear.blocks[-3:] == [sorted(block) for block in came]


def test_the_values_of_a_block_of_zeros_are_zeros() -> None:
    ear = Ear(is_odd=False)
    gauge = gauge_with(ear)
    for _ in range(64):
        gauge.take(0.0)
    assert ear.blocks == [[0.0] * 16] * 4


def test_a_constant_signal_of_which_only_the_spread_is_wanted_has_a_band() -> None:
    gauge = gauge_with(Ear(), (math.inf, 0.0))
    for _ in range(64):
        gauge.take(3.0)
    assert gauge.sigma == 0 and not math.isnan(gauge.loud_above)


@pytest.mark.parametrize(("values", "middle"), [([1.0], 1.0), ([1.0, 3.0], 2.0), ([1.0, 3.0, 50.0], 3.0)])
def test_the_median(values: list[float], middle: float) -> None:
    assert median(values) == middle
