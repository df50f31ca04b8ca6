"""Windows of iterations: where they are cut, what counts as a rank's own work, and what is left out."""

from __future__ import annotations

import itertools

import pytest

from tachograph.records import RankWindow
from tachograph.spans._rank_windows import RankWindows

PHASES = {"data": 0.005, "forward": 0.03, "backward": 0.045, "optimizer": 0.005}


def add(windows: RankWindows, count: int, duration_s: float = 0.1, every: int = 1) -> list[RankWindow]:
    """Add iterations one by one, of which one in `every` has phases; return the windows that end."""
    complete = []
    for index in range(count):
        windows.add([duration_s], [(0, PHASES)] if index % every == 0 else [])
        if windows.is_complete:
            window = windows.take()
            if window is not None:
                complete.append(window)
    return complete


def test_windows_end_at_multiples_of_their_length() -> None:
    windows = RankWindows(37)  # resumed
    complete = add(windows, 64)
    assert [window.last_iteration for window in complete] == [47, 63, 79, 95]
    # The first iterations of a loop load kernels and allocate memory.
    assert [window.num_iterations for window in complete] == [6, 16, 16, 16]
    last = windows.take(is_last=True)
    assert last is not None
    assert (last.last_iteration, last.num_iterations) == (100, 5)


def test_loop_that_ends_early_still_counts_its_iterations() -> None:
    windows = RankWindows(0)
    assert windows.take(is_last=True) is None
    assert add(windows, 3) == []
    window = windows.take(is_last=True)
    assert window is not None
    assert (window.last_iteration, window.num_iterations, window.wait) == (2, 3, None)
    assert window.own.median_s == pytest.approx(0.1)


def test_own_and_wait_add_up_to_the_iteration() -> None:
    (window,) = add(RankWindows(0), 16)
    assert window.own.median_s == pytest.approx(0.04)
    assert window.wait is not None
    assert window.wait.median_s == pytest.approx(0.06)
    assert window.backward is not None
    assert window.backward.median_s == pytest.approx(0.045)
    assert window.longest_own_s == pytest.approx(0.04)


def test_length_doubles_until_a_window_takes_ten_seconds() -> None:
    complete = add(RankWindows(0), 4096)
    ends = [window.last_iteration + 1 for window in complete]
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert lengths[:16] == [16] * 16
    assert sorted(set(lengths)) == [16, 32, 64, 128]
    assert all(end % length == 0 for end, length in zip(ends, lengths, strict=True))
    slow = add(RankWindows(0), 512, duration_s=1.0)
    assert {second.last_iteration - first.last_iteration for first, second in itertools.pairwise(slow)} == {16}


def test_window_continues_until_enough_iterations_are_measured() -> None:
    complete = add(RankWindows(0), 512, every=64)
    assert all(window.wait is not None for window in complete)
    assert [window.last_iteration for window in complete][:2] == [255, 511]


def test_loop_without_phases_has_no_wait() -> None:
    windows = RankWindows(0)
    for _ in range(16):
        windows.add([0.1], [])
    window = windows.take()
    assert window is not None
    assert window.wait is None
    assert window.own.median_s == pytest.approx(0.1)


def test_iterations_next_to_a_checkpoint_are_left_out() -> None:
    windows = RankWindows(0)
    add(windows, 8)
    windows.leave_out()
    windows.add([9.0], [(0, {**PHASES, "forward": 8.0})])
    (window,) = add(windows, 7)
    assert window.num_iterations == 10
    assert window.longest_own_s == pytest.approx(0.04)


def test_data_that_is_fetched_between_iterations_counts() -> None:
    windows = RankWindows(0)
    for _ in range(16):
        windows.add_outer_data(0.02)
        windows.add([0.1], [(0, {"forward": 0.03, "backward": 0.05})])
    window = windows.take()
    assert window is not None
    assert window.own.median_s == pytest.approx(0.05)
    assert window.data is not None
    assert window.data.median_s == pytest.approx(0.02)
    assert window.wait is not None
    assert window.wait.median_s == pytest.approx(0.07)


def test_state_is_bounded() -> None:
    windows = RankWindows(0)
    windows._length = 1 << 20
    for _ in range(4000):
        windows.add([0.1], [(0, PHASES)], [0.05])
    own = (windows._outside_backward.own, windows._outside_collectives.own)
    assert max(len(sample) for sample in (windows._durations, *own, *windows._by_phase.values())) <= 512


def test_timed_collectives_separate_own_from_wait() -> None:
    windows = RankWindows(0)
    windows.num_collectives = 32
    windows.add([0.1] * 16, [(index, PHASES) for index in range(16)], [0.03] * 16)
    window = windows.take()
    assert window is not None and window.wait is not None
    assert (round(window.own.median_s, 6), round(window.wait.median_s, 6), window.collective) == (0.07, 0.03, 32)
    # A loop without phases has them, too.
    windows.add([0.1] * 16, [], [0.03] * 16)
    window = windows.take()
    assert window is not None and window.wait is not None and round(window.own.median_s, 6) == 0.07
    # Without the waits of some iterations, the phases count.
    windows.add([0.1] * 8, [(index, PHASES) for index in range(8)], [0.03] * 8)
    windows.add([0.1] * 8, [(index, PHASES) for index in range(8)])
    window = windows.take()
    assert window is not None and window.collective is None
