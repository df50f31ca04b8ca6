"""The level and the spread of a signal."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from tachograph.diagnostics._signal_stats import BLOCK, SignalListener, SignalStats, median


class RecordingListener(SignalListener):
    """Remembers what it heard."""

    def __init__(self, is_abnormal: bool = True) -> None:
        self.outliers: list[float] = []
        self.not_finite: list[float] = []
        self.blocks: list[list[float]] = []
        self.is_abnormal = is_abnormal

    def on_block(self, stats: SignalStats) -> None:
        self.blocks.append(list(stats.values))

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        self.outliers.append(value)
        return self.is_abnormal

    def on_not_finite(self, stats: SignalStats, value: float) -> None:
        self.not_finite.append(value)


def stats_with(listener: RecordingListener, band: tuple[float, float] | None = (6.0, 0.0)) -> SignalStats:
    stats = SignalStats("loss", band)
    stats.listeners = [listener]
    return stats


def calm(stats: SignalStats, num: int, value: float = 2.0, spread: float = 0.1, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    values = [source.gauss(value, spread) for _ in range(num)]
    for each in values:
        stats.add(each)
    return values


def test_the_level_is_the_median_of_the_last_block() -> None:
    stats = stats_with(RecordingListener())
    values = calm(stats, 100)
    assert stats.level == statistics.median(values[80:96]) and stats.first_level == statistics.median(values[:16])
    assert stats.first_value == values[0] and stats.last == values[-1]
    assert (stats.num_in_blocks, stats.num_added) == (96, 100)


@pytest.mark.parametrize("spread", [1e-6, 0.1, 1e5])
def test_the_spread_of_calm_values_is_their_deviation(spread: float) -> None:
    stats = stats_with(RecordingListener())
    calm(stats, 1600, 0.0, spread)
    assert stats.sigma is not None and 0.8 * spread < stats.sigma < 1.7 * spread


def test_there_is_no_spread_and_nothing_is_loud_before_two_blocks() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    for value in (1.0, 1e9, 1.0, 5.0) * 7:
        stats.add(value)
    assert stats.sigma is None and listener.outliers == []


def test_a_loud_value_is_told_and_does_not_hide_the_next_one() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 160)
    for _ in range(5):
        stats.add(50.0)
        calm(stats, 15)
    assert listener.outliers == [50.0] * 5 and stats.sigma is not None and stats.sigma < 0.2


def test_a_signal_that_jumps_by_habit_has_a_large_spread() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    source = random.Random(1)
    for _ in range(1600):
        stats.add(source.choice([2.0, 5.0]) + source.gauss(0, 0.1))
    assert listener.outliers == []


def test_values_that_are_not_finite_are_told_and_count_for_nothing() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 32)
    for value in (math.nan, math.inf, -math.inf):
        stats.add(value)
    assert len(listener.not_finite) == 3 and stats.num_added == 32 and listener.outliers == []


def test_a_pause_expects_a_new_level() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 160)
    stats.pause(32)
    calm(stats, 160, 9.0)
    assert listener.outliers == []
    stats.add(20.0)
    assert listener.outliers == [20.0]


def test_a_listener_can_ask_for_less_and_is_alone_in_hearing_it() -> None:
    first, second = RecordingListener(is_abnormal=False), RecordingListener(is_abnormal=False)
    stats = stats_with(first)
    stats.listeners.append(second)
    calm(stats, 160)
    stats.watch(second, 2.2)
    stats.add(2.25)
    stats.add(50.0)
    assert (first.outliers, second.outliers) == ([50.0], [2.25, 50.0])
    stats.watch(second, None)
    stats.add(2.25)
    assert second.outliers == [2.25, 50.0]


def test_a_reset_is_a_new_story() -> None:
    stats = stats_with(RecordingListener())
    calm(stats, 160)
    stats.reset()
    assert (stats.level, stats.sigma, stats.first_level, stats.num_added, stats.values) == (None, None, None, 0, [])
    calm(stats, 16, 7.0)
    assert stats.level == pytest.approx(7.0, abs=0.1)


def test_how_many_were_at_least_so_large() -> None:
    stats = stats_with(RecordingListener(is_abnormal=False))
    values = calm(stats, 200)
    recent = values[192 - 4 * BLOCK : 192] + values[192:]
    assert stats.num_above(2.05) == sum(value >= 2.05 for value in recent)


def test_without_a_band_there_is_a_level_but_no_spread() -> None:
    listener = RecordingListener()
    stats = stats_with(listener, None)
    calm(stats, 160)
    stats.add(1e9)
    assert stats.level is not None and stats.sigma is None and listener.outliers == []


def test_the_values_of_a_block_are_those_that_came() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 160)
    came = [[50.0, *[2.0] * 15], [2.0] * 16, [*[2.0] * 15, 60.0]]
    for block in came:
        for value in block:
            stats.add(value)
    assert listener.blocks[-3:] == [sorted(block) for block in came]


def test_the_values_of_a_block_of_zeros_are_zeros() -> None:
    listener = RecordingListener(is_abnormal=False)
    stats = stats_with(listener)
    for _ in range(64):
        stats.add(0.0)
    assert listener.blocks == [[0.0] * 16] * 4


def test_a_constant_signal_of_which_only_the_spread_is_wanted_has_a_band() -> None:
    stats = stats_with(RecordingListener(), (math.inf, 0.0))
    for _ in range(64):
        stats.add(3.0)
    assert stats.sigma == 0 and not math.isnan(stats.outlier_above)


@pytest.mark.parametrize(("values", "middle"), [([1.0], 1.0), ([1.0, 3.0], 2.0), ([1.0, 3.0, 50.0], 3.0)])
def test_the_median(values: list[float], middle: float) -> None:
    assert median(values) == middle
