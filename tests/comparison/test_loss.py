"""Judging loss curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tachograph.comparison import Points, compare_groups, have_same_batches
from tests.comparison.evidence import make_run, training_curve


def run_with(curve, name="run", **fields):
    return make_run(name, loss=curve, **fields)


def judged(first, second):
    found = compare_groups(
        [run_with(curve, f"a{number}") for number, curve in enumerate(first)],
        [run_with(curve, f"b{number}") for number, curve in enumerate(second)],
    )
    return found, found.metric("train_loss")


def changed(curve, at, factor):
    values = curve.values.copy()
    values[at] *= factor
    return Points(curve.steps, values)


def test_identical_curves():
    curve = training_curve(1)
    found, metric = judged([curve], [curve])
    assert (metric.verdict, metric.effect) == ("identical", 0.0)
    assert not any(each.is_regression for each in found.metrics)


def test_one_bit_at_a_step():
    curve = training_curve(1)
    values = curve.values.copy()
    values[700] = np.nextafter(values[700], 10)
    _, metric = judged([curve], [Points(curve.steps, values)])
    assert (metric.verdict, metric.onset_step) == ("identical_until", 700)


def test_rounding_only():
    curve = training_curve(1)
    _, metric = judged([curve], [Points(curve.steps, curve.values * (1 + 1e-7))])
    assert metric.verdict == "rounding"


def test_curves_that_part_are_judged_by_their_end():
    curve = training_curve(1)
    _, metric = judged([curve], [changed(curve, slice(1_000, None), 1.05)])
    assert metric.verdict == "worse"
    assert metric.onset_step == pytest.approx(1_000, abs=40)
    assert "identical until step 1,000" in metric.notes[0]
    _, metric = judged([curve], [changed(curve, slice(1_000, None), 0.95)])
    assert metric.verdict == "better"


def test_same_batches_are_recognised():
    assert have_same_batches([training_curve(seed) for seed in range(4)])
    assert not have_same_batches([training_curve(1), training_curve(2, batches=1)])
    sparse = [Points(curve.steps[::50], curve.values[::50]) for curve in map(training_curve, range(2))]
    assert not have_same_batches(sparse)


def test_seeds_do_not_count_as_a_difference():
    _, metric = judged([training_curve(1)], [training_curve(2, level=1.002)])
    assert metric.verdict == "unknown"
    assert metric.noise_source == "assumed: same batches"
    first = [training_curve(seed) for seed in range(5)]
    _, metric = judged(first, [training_curve(10 + seed) for seed in range(5)])
    assert metric.verdict == "equal"
    _, metric = judged(first, [training_curve(10 + seed, level=1.01) for seed in range(5)])
    assert metric.verdict == "worse"


def test_other_order_of_the_data_needs_more():
    _, metric = judged([training_curve(1)], [training_curve(2, batches=1, level=1.03)])
    assert metric.verdict == "unknown"
    assert "order" in metric.noise_source


def test_losses_below_zero_are_compared_by_difference():
    first = [Points(curve.steps, -curve.values) for curve in (training_curve(seed) for seed in range(3))]
    second = [Points(curve.steps, -1.2 * curve.values) for curve in (training_curve(9 + seed) for seed in range(3))]
    _, metric = judged(first, second)
    assert not metric.is_relative
    assert metric.verdict == "better"


def test_nan_comes_first():
    curve = training_curve(1)
    broken = changed(curve, slice(1_500, None), np.nan)
    found, metric = judged([curve], [broken])
    assert metric.verdict == "worse"
    assert "1,500" in found.first[0]
    assert found.headline.startswith("'b0' has a loss that is not finite")


def test_failed_run_comes_first():
    run = replace(run_with(training_curve(1), "b"), state="failed", failure="RuntimeError: out of memory")
    found = compare_groups([run_with(training_curve(1), "a")], [run])
    assert found.has_failed
    assert "out of memory" in found.headline


def test_other_data_are_not_comparable():
    first = run_with(training_curve(1), "a", config={"dataset": "c4", "lr": 0.1, "output_dir": "x", "seed": 1})
    second = run_with(training_curve(2), "b", config={"dataset": "pile", "lr": 0.2, "output_dir": "y", "seed": 2})
    found = compare_groups([first], [second])
    metric = found.metric("train_loss")
    assert metric.verdict == "not_comparable"
    assert "config.dataset" in metric.reason
    assert [change.name for change in found.config_diff] == ["dataset", "lr"]
    moved = replace(second, config={**first.config, "dataset": "/data/c4", "seed": 2})
    same = compare_groups([replace(first, config={**first.config, "dataset": "/mnt/c4"})], [moved])
    assert same.metric("train_loss").verdict != "not_comparable"


def test_batch_sizes_that_differ_are_compared_at_equal_samples():
    small = run_with(training_curve(1, 2_000), "a", facts={"batch_size": 8})
    large = run_with(training_curve(1, 1_000, level=1.2), "b", facts={"batch_size": 16})
    found = compare_groups([small], [large])
    assert any("equal numbers of samples" in note for note in found.metric("train_loss").notes)
    assert found.metric("train_loss").verdict == "worse"


def test_validation_that_disagrees_gives_no_headline():
    steps = np.arange(100.0, 2_001.0, 100.0)
    runs = {
        name: [
            make_run(
                f"{name}{seed}",
                loss=training_curve(seed, level=level),
                val_loss=Points(steps, other * (2 + 100 / steps)),
            )
            for seed in range(start, start + 3)
        ]
        for name, start, level, other in (("a", 0, 1.0, 1.0), ("b", 10, 1.05, 0.9))
    }
    found = compare_groups(runs["a"], runs["b"])
    assert (found.metric("train_loss").verdict, found.metric("val_loss").verdict) == ("worse", "better")
    assert "disagree" in found.headline
