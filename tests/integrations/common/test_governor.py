"""The governor: sampling is widened to stay within the limit, and nothing else is dropped."""

from __future__ import annotations

import itertools

import pytest

from tachograph._base.guard import guard
from tachograph.integrations._common.governor import OverheadGovernor, timed_hook


class Loop:
    """Iterations of a given duration, whose hooks take a given time, with and without values."""

    def __init__(self, limit: float = 0.01) -> None:
        self.governor = OverheadGovernor()
        self.changes: list[tuple[int, float]] = []
        self.governor.limit(limit, lambda every, overhead: self.changes.append((every, overhead)))
        self.now_s = 0.0
        self.values: list[int] = []
        self.phases: list[int] = []
        self._numbers = itertools.count()

    def run(self, num: int, *, step_s: float, cost_s: float, base_s: float = 0.0) -> float:
        """Run iterations; return the share of the time that their hooks took."""
        spent_s = 0.0
        for _ in range(num):
            number = next(self._numbers)
            has_values, has_phases = self.governor.start_iteration()
            took_s = base_s + (cost_s if has_values else 0.0)
            if has_values:
                self.governor.values_handled()
            self.values += [number] * has_values
            self.phases += [number] * has_phases
            self.governor.spent_s += took_s
            spent_s += took_s
            self.now_s += step_s
            self.governor.end_iteration(self.now_s)
        return spent_s / (num * step_s)


def test_a_cheap_loop_is_recorded_completely():
    loop = Loop()
    loop.run(1000, step_s=0.01, cost_s=50e-6)
    assert loop.values == list(range(1000)) and loop.changes == []


@pytest.mark.parametrize("cost_us", [50, 200, 900])
def test_cost_is_brought_below_the_limit(cost_us):
    loop = Loop()
    loop.run(8000, step_s=0.004, cost_s=cost_us * 1e-6)
    assert loop.run(8000, step_s=0.004, cost_s=cost_us * 1e-6) <= 0.01
    every = loop.governor.every
    groups = [number // every for number in loop.values[-10:]]
    assert groups == list(range(groups[0], groups[0] + 10))  # one of each group, at random
    assert loop.changes[-1][0] == every and loop.changes[0][1] > 0.01


def test_sampling_settles():
    loop = Loop()
    loop.run(20_000, step_s=0.004, cost_s=0.0003, base_s=10e-6)
    assert len(loop.changes) <= 5


def test_sampling_that_saves_nothing_is_taken_back():
    loop = Loop()
    loop.run(20_000, step_s=0.001, cost_s=1e-6, base_s=50e-6)
    assert loop.governor.every == 1 and [every for every, _ in loop.changes] == [8, 1]
    loop.run(20_000, step_s=0.001, cost_s=100e-6, base_s=50e-6)  # now it saves a lot
    assert loop.governor.every > 4


def test_short_runs_are_recorded_completely():
    expensive, cheap = Loop(), Loop()
    expensive.run(16, step_s=0.0001, cost_s=0.001)
    assert expensive.values == list(range(16))
    cheap.run(100, step_s=0.0001, cost_s=30e-6)
    assert cheap.values == list(range(100))
    slow = Loop()
    slow.run(128, step_s=0.02, cost_s=350e-6)
    assert slow.values == list(range(128))
    slow.run(1000, step_s=0.02, cost_s=350e-6)
    assert slow.governor.every > 1


@pytest.mark.parametrize("cost_us", [45, 130, 350, 900])
def test_first_second_stays_near_the_limit(cost_us):
    loop = Loop()
    share = loop.run(250, step_s=0.004, cost_s=cost_us * 1e-6, base_s=3e-6)
    assert share < max(0.012, (16 * cost_us + 8_000) * 1e-6)  # the first 16 iterations are recorded whatever they cost
    assert len(loop.changes) <= 1
    assert loop.run(250, step_s=0.004, cost_s=cost_us * 1e-6, base_s=3e-6) < 0.01


def test_slow_first_launches_do_not_count():
    loop = Loop()
    for _ in range(3):
        loop.run(1, step_s=0.5, cost_s=0.05)
    loop.run(2000, step_s=0.004, cost_s=20e-6)
    assert loop.values == list(range(2003))


def test_sampling_returns_when_steps_get_longer():
    loop = Loop()
    loop.run(4000, step_s=0.002, cost_s=100e-6)
    assert loop.governor.every > 1
    loop.run(2000, step_s=0.2, cost_s=100e-6)
    assert loop.governor.every == 1 and loop.changes[-1][0] == 1


def test_without_a_limit_everything_is_recorded():
    loop = Loop(limit=1.0)
    loop.run(1000, step_s=0.001, cost_s=0.0005)
    assert len(loop.values) == 1000


def test_a_few_slow_hooks_change_nothing():
    loop = Loop()
    for _ in range(50):
        loop.run(20, step_s=0.01, cost_s=10e-6)
        loop.run(1, step_s=0.01, cost_s=0.005)  # another thread had the interpreter
    assert loop.governor.every == 1


def test_waiting_for_a_full_queue_does_not_count(monkeypatch):
    times = iter([0.0, 10e-6] + [step for launch in range(1, 400) for step in (launch, launch + 0.004)])
    monkeypatch.setattr("tachograph.integrations._common.governor.perf_counter", lambda: next(times))
    governor = OverheadGovernor()
    governor.limit(0.01, lambda every, overhead: None)
    assert governor.read_device(lambda value: value, 7) == 7
    for number in range(300):
        governor.start_iteration()
        governor.read_device(lambda value: value, 7)
        governor.add_hook(0.004)  # the hook around the launch
        governor.end_iteration(float(number))
    assert governor.every == 1


def test_phases_are_sampled_a_few_times_per_second():
    loop = Loop()
    loop.run(5, step_s=0.004, cost_s=0.0)
    num_before = len(loop.phases)
    assert num_before == 5  # the duration of a step is not known yet
    loop.run(10_000, step_s=0.004, cost_s=0.0)
    assert 1.5 <= (len(loop.phases) - num_before) / 40 <= 3  # per second
    gaps = {later - earlier for earlier, later in itertools.pairwise(loop.phases[num_before + 1 :])}
    assert len(gaps) > 10  # no fixed rhythm, which could coincide with one of the loop


def test_phases_of_slow_steps_are_all_sampled():
    loop = Loop()
    loop.run(300, step_s=0.5, cost_s=0.0)
    assert len(loop.phases) == 300


@pytest.mark.parametrize("wait_s", [0.0, 0.005])
def test_skipped_iterations_count(wait_s):
    """Also if another thread takes the interpreter lock in one of a hundred, which is not the price of counting."""
    governor = Loop().governor
    governor.limit(0.01, lambda every, overhead: None)
    now_s, num_iterations, num_values = 0.0, 0, 0
    while num_iterations < 10_000:
        has_values, _ = governor.start_iteration()
        if has_values or governor.num_skippable <= 0:
            num_values += has_values
            governor.spent_s += 0.0002
            governor.values_handled()
            now_s += 0.004
            governor.end_iteration(now_s)
            num_iterations += 1
        else:
            num_skipped = 1 + governor.num_skippable
            numbers = range(num_iterations, num_iterations + num_skipped)
            governor.skip([0.004] * num_skipped, [5e-6 + wait_s * (number % 100 == 0) for number in numbers])
            now_s += num_skipped * 0.004
            num_iterations += num_skipped
    assert governor.every == 8  # 200 µs every 32 ms, and 5 µs in each of the other iterations
    assert 10_000 / 8 < num_values < 10_000 / 5


def test_rest_is_limited_in_time():
    loop = Loop()
    loop.run(20_000, step_s=0.1, cost_s=0.09)
    assert loop.governor.every == 128 and loop.governor.num_skippable <= 2


def test_phases_are_sampled_together_with_values():
    loop = Loop()
    loop.run(4000, step_s=0.004, cost_s=0.0003)
    assert loop.governor.every > 1 and set(loop.phases) <= set(loop.values)


def test_random_numbers_of_the_script_are_untouched():
    import random

    random.seed(7)
    expected = random.random()
    random.seed(7)
    Loop().run(500, step_s=0.004, cost_s=0.0)
    assert random.random() == expected


class Hooked:
    def __init__(self) -> None:
        self.governor = OverheadGovernor()

    @timed_hook("testing a hook")
    def work(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("broken")


def test_hooks_add_their_time():
    hooked = Hooked()
    hooked.work()
    spent_s = hooked.governor.spent_s
    assert spent_s > 0
    with hooked.governor.hook("testing a block"):
        pass
    assert hooked.governor.spent_s > spent_s


@pytest.mark.expects_faults
def test_hooks_guard_against_faults(monkeypatch):
    monkeypatch.setattr(guard, "strict", False)
    hooked = Hooked()
    hooked.work(fails=True)
    with hooked.governor.hook("testing a block"):
        raise ValueError("broken")
    assert [place for place, _ in guard.faults[-2:]] == ["testing a hook", "testing a block"]
    with pytest.raises(KeyboardInterrupt), hooked.governor.hook("testing a block"):
        raise KeyboardInterrupt
