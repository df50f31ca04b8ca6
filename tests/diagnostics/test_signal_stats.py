"""Level, spread and outliers of a signal."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from tachograph.diagnostics._signal_stats import (
    BLOCK,
    BlockBatch,
    SignalColumn,
    SignalListener,
    SignalStats,
    add_quiet_blocks,
    median,
    no_change,
)


class RecordingListener(SignalListener):
    """Records all calls."""

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
    stats.add_listener(listener)
    return stats


def calm(stats: SignalStats, num: int, value: float = 2.0, spread: float = 0.1, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    values = [source.gauss(value, spread) for _ in range(num)]
    for each in values:
        stats.add(each)
    return values


def test_level_is_the_median_of_the_last_block() -> None:
    stats = stats_with(RecordingListener())
    values = calm(stats, 100)
    assert stats.level == statistics.median(values[80:96]) and stats.first_level == statistics.median(values[:16])
    assert stats.first_value == values[0] and stats.last == values[-1]
    assert (stats.num_in_blocks, stats.num_added) == (96, 100)


@pytest.mark.parametrize("spread", [1e-6, 0.1, 1e5])
def test_spread_of_gaussian_noise_is_its_deviation(spread: float) -> None:
    stats = stats_with(RecordingListener())
    calm(stats, 1600, 0.0, spread)
    assert stats.sigma is not None and 0.8 * spread < stats.sigma < 1.7 * spread


def test_no_spread_and_no_outliers_before_two_blocks() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    for value in (1.0, 1e9, 1.0, 5.0) * 7:
        stats.add(value)
    assert stats.sigma is None and listener.outliers == []


def test_outlier_is_reported_and_does_not_hide_the_next() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 160)
    for _ in range(5):
        stats.add(50.0)
        calm(stats, 15)
    assert listener.outliers == [50.0] * 5 and stats.sigma is not None and stats.sigma < 0.2


def test_bimodal_signal_has_a_large_spread() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    source = random.Random(1)
    for _ in range(1600):
        stats.add(source.choice([2.0, 5.0]) + source.gauss(0, 0.1))
    assert listener.outliers == []


def test_trend_does_not_widen_the_spread() -> None:
    source, stats = random.Random(2), stats_with(RecordingListener())
    for at in range(112):
        stats.add(2 + 8 * math.exp(-at / 40) + source.gauss(0, 0.05))
    assert stats.sigma is not None and stats.sigma < 0.12


def test_slow_return_of_the_level_does_not_widen_the_spread() -> None:
    source, stats = random.Random(3), stats_with(RecordingListener(is_abnormal=False))
    for at in range(288):
        bump = 3 * math.exp(-(at - 200) / 16) if at >= 200 else 0.0
        stats.add(2 + bump + source.gauss(0, 0.05))
    assert stats.sigma is not None and stats.sigma < 0.12


def test_consecutive_high_values_are_one_rise() -> None:
    stats = stats_with(RecordingListener(is_abnormal=False))
    calm(stats, 160)
    for value in (9.0, 9.0, 9.0, 2.0, 2.0, 9.0):
        stats.add(value)
    assert stats.num_rises(5.0) == 2


def test_non_finite_values_are_reported_but_not_added() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 32)
    for value in (math.nan, math.inf, -math.inf):
        stats.add(value)
    assert len(listener.not_finite) == 3 and stats.num_added == 32 and listener.outliers == []


def test_pause_accepts_a_new_level() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 160)
    stats.pause(32)
    calm(stats, 160, 9.0)
    assert listener.outliers == []
    stats.add(20.0)
    assert listener.outliers == [20.0]


def test_watch_reports_lower_values_to_one_listener_only() -> None:
    first, second = RecordingListener(is_abnormal=False), RecordingListener(is_abnormal=False)
    stats = stats_with(first)
    stats.add_listener(second)
    calm(stats, 160)
    stats.watch(second, 2.2)
    stats.add(2.25)
    stats.add(50.0)
    assert (first.outliers, second.outliers) == ([50.0], [2.25, 50.0])
    stats.watch(second, None)
    stats.add(2.25)
    assert second.outliers == [2.25, 50.0]


def test_reset_forgets_all_values() -> None:
    stats = stats_with(RecordingListener())
    calm(stats, 160)
    stats.reset()
    assert (stats.level, stats.sigma, stats.first_level, stats.num_added, stats.values) == (None, None, None, 0, [])
    calm(stats, 16, 7.0)
    assert stats.level == pytest.approx(7.0, abs=0.1)


def test_num_above_counts_recent_values() -> None:
    stats = stats_with(RecordingListener(is_abnormal=False))
    values = calm(stats, 200)
    recent = values[192 - 4 * BLOCK : 192] + values[192:]
    assert stats.num_above(2.05) == sum(value >= 2.05 for value in recent)


def test_without_a_band_no_spread_is_measured() -> None:
    listener = RecordingListener()
    stats = stats_with(listener, None)
    calm(stats, 160)
    stats.add(1e9)
    assert stats.level is not None and stats.sigma is None and listener.outliers == []


def test_block_values_are_not_clipped() -> None:
    listener = RecordingListener()
    stats = stats_with(listener)
    calm(stats, 160)
    came = [[50.0, *[2.0] * 15], [2.0] * 16, [*[2.0] * 15, 60.0]]
    for block in came:
        for value in block:
            stats.add(value)
    assert listener.blocks[-3:] == [sorted(block) for block in came]


def test_block_of_zeros_keeps_its_values() -> None:
    listener = RecordingListener(is_abnormal=False)
    stats = stats_with(listener)
    for _ in range(64):
        stats.add(0.0)
    assert listener.blocks == [[0.0] * 16] * 4


def test_constant_signal_with_infinite_band_has_no_nan() -> None:
    stats = stats_with(RecordingListener(), (math.inf, 0.0))
    for _ in range(64):
        stats.add(3.0)
    assert stats.sigma == 0 and not math.isnan(stats.outlier_above)


@pytest.mark.parametrize(("values", "middle"), [([1.0], 1.0), ([1.0, 3.0], 2.0), ([1.0, 3.0, 50.0], 3.0)])
def test_median(values: list[float], middle: float) -> None:
    assert median(values) == middle


class QuietListener(SignalListener):
    """Agrees to all blocks except one, and follows all outliers."""

    def __init__(self, refused_block: int | None = None) -> None:
        self.refused_block = refused_block

    def on_block(self, stats: SignalStats) -> None:
        pass  # or it would receive no blocks

    def on_outlier(self, stats: SignalStats, value: float) -> bool:
        return False

    def preview_blocks(self, stats: SignalStats, batch: BlockBatch) -> Callable[[], None] | None:
        if self.refused_block is None or self.refused_block >= len(batch.blocks):
            return no_change
        batch.num_quiet = self.refused_block
        return None

    def preview_outliers(self, stats: SignalStats, values: Sequence[float]) -> tuple[int, Callable[[], None]] | None:
        return len(values), no_change


@pytest.mark.parametrize("num_blocks", [1, 5])
def test_blocks_before_one_that_is_not_quiet_are_added_together(num_blocks: int) -> None:
    signals = [SignalStats("lr", None), SignalStats("loss", (6.0, 0.0))]
    signals[0].add_listener(QuietListener())
    signals[1].add_listener(QuietListener(num_blocks))
    for stats in signals:
        values = calm(stats, 8 * BLOCK)
    rows = list(range(8 * BLOCK))
    columns = [SignalColumn(stats, values) for stats in signals]
    is_quiet, end = add_quiet_blocks(columns, range(len(rows)), rows, rows)
    assert not is_quiet and end == BLOCK * num_blocks
    assert add_quiet_blocks(columns, range(end), rows, rows)[0]
    assert [stats.num_added for stats in signals] == [(8 + num_blocks) * BLOCK] * 2
