"""Judging speed and memory of runs with known times."""

from __future__ import annotations

import numpy as np
import pytest

from tachograph.comparison import compare_groups
from tests.comparison.evidence import make_run


def judged(first, second, name="step_time", **options):
    comparison = compare_groups(first, second, **options)
    metric = comparison.metric(name)
    assert metric is not None, comparison
    return metric


def test_five_percent_show_between_single_runs():
    metric = judged([make_run("a")], [make_run("b", seed=1, factor=1.05)])
    assert metric.verdict == "slower"
    assert metric.effect == pytest.approx(0.05, abs=0.003)
    assert metric.low < metric.effect < metric.high
    assert judged([make_run("a")], [make_run("b", seed=1, factor=0.9)]).verdict == "faster"


def test_two_percent_need_three_runs():
    metric = judged([make_run("a")], [make_run("b", seed=1, factor=1.02)])
    assert (metric.verdict, metric.runs_needed) == ("unknown", 3)
    first = [make_run(f"a{number}", seed=number) for number in range(3)]
    second = [make_run(f"b{number}", seed=10 + number, factor=1.02) for number in range(3)]
    assert judged(first, second).verdict == "slower"
    equal = [make_run(f"b{number}", seed=10 + number) for number in range(3)]
    assert judged(first, equal).verdict == "equal"


def test_restless_machine_gives_no_verdict():
    def restless(name, seed, factor=1.0):
        wander = np.repeat(np.random.default_rng(seed).normal(0.0, 0.07, 20), 50)
        return make_run(name, seed=seed, factor=factor * np.exp(wander))

    metric = judged([restless("a", 1)], [restless("b", 2, 1.1)])
    assert metric.verdict == "unknown"
    assert "unrest" in metric.noise_source


def test_schedule_of_both_groups_is_no_difference():
    schedule = np.where(np.arange(1_000) < 500, 1.0, 2.0)
    first = [make_run(f"a{number}", seed=number, factor=schedule) for number in range(3)]
    second = [make_run(f"b{number}", seed=9 + number, factor=schedule) for number in range(3)]
    assert judged(first, second).verdict == "equal"


def test_slow_from_a_step_on():
    slow_later = np.where(np.arange(1_000) < 600, 1.0, 1.1)
    metric = judged([make_run("a")], [make_run("b", seed=1, factor=slow_later)])
    assert metric.verdict == "slower"
    assert metric.onset_step == pytest.approx(600, abs=50)
    assert "from step" in metric.notes[0]
    slow_early = np.where(np.arange(1_000) < 98, 1.0, 1.1)
    metric = judged([make_run("a")], [make_run("b", seed=1, factor=slow_early)])
    assert metric.onset_step == pytest.approx(98, abs=10)


def test_stalls_are_told_apart_from_the_typical_step():
    stalls = np.ones(3_000)
    stalls[np.random.default_rng(0).choice(3_000, 30, replace=False)] += 5 / 0.2
    first = [make_run(f"a{number}", seed=number, num_steps=3_000) for number in range(3)]
    # Blocks have 142 steps; stalls in fewer than half of the blocks do not change the median.
    few = np.where(np.arange(3_000) < 1_200, stalls, 1.0)
    second = [make_run(f"b{number}", seed=9 + number, num_steps=3_000, factor=few) for number in range(3)]
    comparison = compare_groups(first, second)
    typical, overall = comparison.metric("step_time"), comparison.metric("overall_time")
    assert typical.verdict == "equal"
    assert overall.effect > 0.05
    assert any("stalls cost a further" in note for note in typical.notes)


def test_too_short():
    metric = judged([make_run("a", num_steps=100)], [make_run("b", num_steps=100)])
    assert metric.verdict == "unknown"
    assert "100 are needed" in metric.reason
    metric = judged([make_run("a", step_s=0.01)], [make_run("b", step_s=0.01)])
    assert "30 s are needed" in metric.reason


def test_other_devices_are_not_comparable_unless_a_tag_says_so():
    facts = {"host": "node2", "gpus": ["H100", "H100"], "world_size": 2}
    comparison = compare_groups([make_run("a")], [make_run("b", factor=0.5, facts=facts)])
    metric = comparison.metric("step_time")
    assert metric.verdict == "not_comparable"
    assert "world sizes (1 and 2)" in metric.reason
    tagged = compare_groups(
        [make_run("a", perf_tags=("fast", "other"))], [make_run("b", factor=1.1, facts=facts, perf_tags=("fast",))]
    )
    assert tagged.metric("step_time").verdict == "slower"
    assert "'fast'" in tagged.comparable
    other = compare_groups([make_run("a", perf_tags=("v1",))], [make_run("b", factor=1.1, perf_tags=("v2",))])
    assert "expected to differ" in other.comparable


def test_noise_is_learned_from_earlier_runs():
    earlier = [make_run(f"e{number}", seed=50 + number) for number in range(8)]
    metric = judged([make_run("a")], [make_run("b", seed=1, factor=1.02)], earlier=earlier)
    assert metric.verdict == "slower"
    assert metric.noise_source == "8 earlier runs"


def test_earlier_runs_that_were_slow_do_not_hide_the_next_slow_run():
    def earlier(slow):
        return [
            make_run(f"e{number}", seed=50 + number, started=float(number), factor=1.1 if number in slow else 1.0)
            for number in range(10)
        ]

    for slow in ({3, 7}, {8, 9}, {0}, {2, 5, 8}, {6, 7, 8, 9}):
        for factor, verdict in ((1.0, {"unknown", "equal"}), (1.2, {"slower"})):
            metric = judged([make_run("a")], [make_run("b", seed=1, factor=factor)], earlier=earlier(slow))
            assert metric.verdict in verdict, (slow, factor)
            assert metric.noise < 0.005
    # Single runs were 10 % off, so one more is no evidence; runs that became slower for good are.
    assert judged([make_run("a")], [make_run("b", factor=1.1)], earlier=earlier({3, 7})).verdict == "unknown"
    metric = judged([make_run("a")], [make_run("b", factor=1.1)], earlier=earlier({6, 7, 8, 9}))
    assert metric.verdict == "slower"


def test_different_machines_are_assumed_to_be_noisier():
    elsewhere = make_run("b", seed=1, factor=1.05, facts={"host": "node2", "gpus": ["H100"], "world_size": 1})
    comparison = compare_groups([make_run("a")], [elsewhere])
    assert comparison.metric("step_time").verdict == "unknown"
    assert any("host differs" in warning for warning in comparison.warnings)


def test_copies_and_parts_of_a_session_count_once():
    run = make_run("a", seed=1)
    comparison = compare_groups([run, run], [make_run("b", seed=2, factor=1.02)])
    assert comparison.metric("step_time").runs_a == 1
    assert any("copy" in warning for warning in comparison.warnings)
    parts = [make_run(f"p{number}", seed=number, session_tag="job", started=float(number)) for number in range(2)]
    comparison = compare_groups([make_run("a")], parts)
    assert comparison.metric("step_time").runs_b == 1
    assert any("session_tag" in warning for warning in comparison.warnings)


def test_memory():
    gib = float(1 << 30)
    first, second = ({"device_allocated": size, "device_reserved": size, "host": size} for size in (gib, 1.02 * gib))
    comparison = compare_groups([make_run("a", memory=first)], [make_run("b", memory=second)])
    verdicts = {metric.name: metric.verdict for metric in comparison.metrics if metric.unit == "bytes"}
    assert verdicts == {"device_memory": "more", "device_memory_reserved": "unknown", "host_memory": "unknown"}
    second = {"device_allocated": gib, "device_reserved": 1.2 * gib, "host": 1.1 * gib}
    comparison = compare_groups([make_run("a", memory=first)], [make_run("b", memory=second)])
    reserved = comparison.metric("device_memory_reserved")
    assert (comparison.metric("device_memory").verdict, reserved.verdict) == ("equal", "more")
    assert "fragmentation" in reserved.notes[0]
    assert comparison.metric("host_memory").verdict == "more"


def test_memory_that_varies_within_a_run_is_not_judged_by_its_highest_reading():
    first = make_run("a", memory={"device_allocated": 1.40e9}, memory_spread={"device_allocated": 0.045})
    second = make_run("b", memory={"device_allocated": 1.34e9}, memory_spread={"device_allocated": 0.0})
    metric = judged([first], [second], "device_memory")
    assert metric.verdict == "unknown"
    assert "readings" in metric.noise_source
