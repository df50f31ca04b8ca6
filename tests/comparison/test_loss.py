"""Judging loss curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tachograph.comparison import SeriesPoints, compare_groups, have_same_batches
from tests.comparison.evidence import make_run, training_curve


def run_with(curve, name="run", **fields):
    return make_run(name, loss=curve, **fields)


def judged(first, second, **options):
    comparison = compare_groups(
        [run_with(curve, f"a{number}") for number, curve in enumerate(first)],
        [run_with(curve, f"b{number}") for number, curve in enumerate(second)],
        **options,
    )
    return comparison, comparison.metric("train_loss")


def changed(curve, at, factor):
    values = curve.values.copy()
    values[at] *= factor
    return SeriesPoints(curve.steps, values)


def test_identical_curves():
    curve = training_curve(1)
    comparison, metric = judged([curve], [curve])
    assert (metric.verdict, metric.effect) == ("identical", 0.0)
    assert not any(each.is_regression for each in comparison.metrics)


def test_one_bit_at_a_step():
    curve = training_curve(1)
    values = curve.values.copy()
    values[700] = np.nextafter(values[700], 10)
    _, metric = judged([curve], [SeriesPoints(curve.steps, values)])
    assert (metric.verdict, metric.onset_step) == ("identical_until", 700)


def test_rounding_only():
    curve = training_curve(1)
    _, metric = judged([curve], [SeriesPoints(curve.steps, curve.values * (1 + 1e-7))])
    assert metric.verdict == "rounding"


def test_curves_that_part_are_judged_by_their_end():
    curve = training_curve(1)
    _, metric = judged([curve], [changed(curve, slice(1_000, None), 1.05)])
    assert (metric.verdict, metric.reason) == ("unknown", "the spread between seeds is not known")
    assert "identical until step 1,000" in metric.notes[0]
    for at, factor, verdict in ((1_000, 1.05, "worse"), (1_000, 0.95, "better"), (100, 1.05, "worse")):
        _, metric = judged([curve], [changed(curve, slice(at, None), factor)], seed_spread=0.005)
        assert metric.verdict == verdict
        assert metric.onset_step == pytest.approx(at, abs=40)
        assert f"identical until step {at:,}" in metric.notes[0]


def test_same_batches_are_recognised():
    assert have_same_batches([training_curve(seed) for seed in range(4)])
    assert not have_same_batches([training_curve(1), training_curve(2, batches=1)])
    sparse = [SeriesPoints(curve.steps[::50], curve.values[::50]) for curve in map(training_curve, range(2))]
    assert not have_same_batches(sparse)


def test_seeds_do_not_count_as_a_difference():
    comparison, metric = judged([training_curve(1)], [training_curve(2, level=1.2)])
    assert (metric.verdict, metric.low) == ("unknown", None)
    assert metric.effect == pytest.approx(0.2, abs=0.01)
    assert sum("--seed-spread" in warning for warning in comparison.warnings) == 1
    first = [training_curve(seed) for seed in range(5)]
    _, metric = judged(first, [training_curve(10 + seed) for seed in range(5)])
    assert metric.verdict == "equal"
    _, metric = judged(first, [training_curve(10 + seed, level=1.01) for seed in range(5)])
    assert metric.verdict == "worse"


def seeds(level=1.0, start=0, count=3, spread=0.0008):
    """Make runs with other orders of the data, whose final losses differ by a spread."""
    levels = level * np.exp(spread * np.linspace(-1, 1, count))
    curves = [training_curve(start + number, 4_000, batches=start + number) for number in range(count)]
    for number, curve in enumerate(curves):
        curve.values[:] *= 2.05 * levels[number] / curve.values[-400:].mean()
    return curves


def test_spread_of_the_runs_decides_between_groups_of_three():
    cases = [
        (1.02, 3, 0.0008, "worse"),
        (0.98, 3, 0.0008, "better"),
        (1.0, 3, 0.0008, "equal"),
        (1.02, 3, 0.02, "unknown"),
        (1.0, 3, 0.02, "unknown"),
        (1.02, 2, 0.0001, "unknown"),  # two seeds may be close together by chance
        (1.02, 1, 0.0001, "unknown"),
        (1.2, 2, 0.005, "worse"),
    ]
    for level, count, spread, verdict in cases:
        _, metric = judged(seeds(count=count, spread=spread), seeds(level, 20, count, spread))
        assert metric.verdict == verdict, (level, count, spread)


def test_one_run_in_a_group_of_close_ones_may_be_a_seed_far_off():
    _, metric = judged(seeds(count=5, spread=0.0002), seeds(1.02, 20, 1))
    assert metric.verdict == "unknown"
    _, metric = judged(seeds(count=5, spread=0.0002), seeds(1.1, 20, 1))
    assert metric.verdict == "worse"


def test_spread_between_seeds_is_stated_or_known_from_earlier_runs():
    first, second = seeds(count=1), seeds(1.08, 20, 1)
    assert judged(first, second, seed_spread=0.01)[1].verdict == "worse"
    assert judged(first, second, seed_spread=0.05)[1].verdict == "unknown"
    earlier = [
        run_with(curve, f"e{number}", started=float(number), config={"seed": number})
        for number, curve in enumerate(seeds(start=40, count=8, spread=0.005))
    ]
    _, metric = judged(first, second, earlier=earlier)
    assert (metric.verdict, metric.noise_source) == ("worse", "8 earlier runs")
    # Repeats of another training, or of one seed, do not show how much seeds differ.
    others = [replace(run, config={"lr": 0.1}) for run in earlier]
    assert judged(first, second, earlier=others)[1].reason
    sides = ([run_with(first[0], "a", config={"seed": 1})], [run_with(second[0], "b", config={"seed": 2})])
    same_seed = [replace(run, config={"seed": 1}) for run in earlier]
    assert compare_groups(*sides, earlier=same_seed).metric("train_loss").reason
    assert compare_groups(*sides, earlier=earlier).metric("train_loss").verdict == "worse"


def test_repeats_with_one_seed_count_once():
    groups = [
        [run_with(curve, f"{name}{number}", config={"seed": seed}) for number, curve in enumerate(curves)]
        for name, seed, curves in (("a", 1, seeds()), ("b", 2, seeds(1.02, 20)))
    ]
    metric = compare_groups(*groups).metric("train_loss")
    assert (metric.verdict, metric.runs_a, metric.runs_b) == ("unknown", 1, 1)
    groups = [[replace(run, config={"seed": 1}) for run in runs] for runs in groups]
    assert compare_groups(*groups).metric("train_loss").verdict == "worse"


def test_losses_below_zero_are_compared_by_difference():
    first = [SeriesPoints(curve.steps, -curve.values) for curve in (training_curve(seed) for seed in range(3))]
    second = [
        SeriesPoints(curve.steps, -1.2 * curve.values) for curve in (training_curve(9 + seed) for seed in range(3))
    ]
    _, metric = judged(first, second)
    assert not metric.is_relative
    assert metric.verdict == "better"


def test_nan_comes_first():
    curve = training_curve(1)
    broken = changed(curve, slice(1_500, None), np.nan)
    comparison, metric = judged([curve], [broken])
    assert metric.verdict == "worse"
    assert "1,500" in comparison.first[0]
    assert comparison.headline.startswith("'b0' has a loss that is not finite")


def test_failed_run_comes_first():
    run = replace(run_with(training_curve(1), "b"), state="failed", failure="RuntimeError: out of memory")
    comparison = compare_groups([run_with(training_curve(1), "a")], [run])
    assert comparison.has_failed
    assert "out of memory" in comparison.headline


def test_other_data_are_not_comparable():
    first = run_with(training_curve(1), "a", config={"dataset": "c4", "lr": 0.1, "output_dir": "x", "seed": 1})
    second = run_with(training_curve(2), "b", config={"dataset": "pile", "lr": 0.2, "output_dir": "y", "seed": 2})
    comparison = compare_groups([first], [second])
    metric = comparison.metric("train_loss")
    assert metric.verdict == "not_comparable"
    assert "config.dataset" in metric.reason
    assert [change.name for change in comparison.config_diff] == ["dataset", "lr"]
    moved = replace(second, config={**first.config, "dataset": "/data/c4", "seed": 2})
    same = compare_groups([replace(first, config={**first.config, "dataset": "/mnt/c4"})], [moved])
    assert same.metric("train_loss").verdict != "not_comparable"


def test_batch_sizes_that_differ_are_compared_at_equal_samples():
    small = run_with(training_curve(1, 2_000), "a", facts={"batch_size": 8})
    large = run_with(training_curve(1, 1_000, level=1.2), "b", facts={"batch_size": 16})
    comparison = compare_groups([small], [large], seed_spread=0.01)
    assert any("equal numbers of samples" in note for note in comparison.metric("train_loss").notes)
    assert comparison.metric("train_loss").verdict == "worse"


def test_validation_that_disagrees_gives_no_headline():
    steps = np.arange(100.0, 2_001.0, 100.0)
    runs = {
        name: [
            make_run(
                f"{name}{seed}",
                loss=training_curve(seed, level=level),
                val_loss=SeriesPoints(steps, other * (2 + 100 / steps)),
            )
            for seed in range(start, start + 3)
        ]
        for name, start, level, other in (("a", 0, 1.0, 1.0), ("b", 10, 1.05, 0.9))
    }
    comparison = compare_groups(runs["a"], runs["b"])
    assert (comparison.metric("train_loss").verdict, comparison.metric("val_loss").verdict) == ("worse", "better")
    assert "disagree" in comparison.headline


def test_what_is_judged_decides_what_is_comparable():
    cases = {  # a config key: the quantities that another value makes incomparable
        "width": {"step_time"},
        "model.n_layer": {"step_time"},
        "lr": set(),
        "weight_decay": set(),
        "data_workers": set(),
        "dataset": {"train_loss", "val_loss"},
        "dataset_name": {"train_loss", "val_loss"},
        "data.path": {"train_loss", "val_loss"},
        "train_file": {"train_loss"},
        "val_data": {"val_loss"},
        "eval.dataset.name": {"val_loss"},
        "tokenizer_name": {"train_loss", "val_loss"},
        "vocab_size": {"step_time", "train_loss", "val_loss"},
        "loss_fn": {"train_loss", "val_loss"},
        "loss.reduction": {"train_loss", "val_loss"},
        "label_smoothing": {"train_loss", "val_loss"},
    }
    for key, expected in cases.items():
        sides = [
            [
                make_run(f"{value}{seed}", seed=seed, config={key: value}, **_both_losses(seed))
                for seed in (first, first + 1)
            ]
            for value, first in (("a", 1), ("b", 3))
        ]
        verdicts = {metric.name: metric for metric in compare_groups(*sides).metrics if metric.verdict}
        refused = {name for name, metric in verdicts.items() if metric.verdict == "not_comparable"}
        assert refused == expected, key
        assert all(verdicts[name].reason == f"different config.{key}" for name in refused)
        forced = compare_groups(*sides, ignores_refusals=True)
        assert "not_comparable" not in {metric.verdict for metric in forced.metrics}
        assert len([line for line in forced.warnings if f"config.{key}" in line]) >= bool(expected)


def _both_losses(seed):
    steps = np.arange(0.0, 1_000.0, 100.0)
    return {"loss": training_curve(seed, 1_000), "val_loss": SeriesPoints(steps, 2.0 + 1e-3 * np.sin(steps + seed))}


def test_padded_vocabulary_of_one_tokenizer_is_comparable():
    sides = [
        [make_run(str(size), seed=size, config={"vocab_size": size, "tokenizer": "gpt2"}, loss=training_curve(size))]
        for size in (50257, 50304)
    ]
    metric = compare_groups(*sides).metric("train_loss")
    assert metric.verdict != "not_comparable"


def test_better_model_is_found_with_three_seeds_each():
    sides = [
        [
            make_run(f"{width}-{seed}", seed=width + seed, config={"width": width, "seed": seed}, loss=curve)
            for seed in range(3)
            for curve in [training_curve(width + seed, level=level, batches=width + seed)]
        ]
        for width, level in ((64, 1.0), (128, 0.95))
    ]
    report = compare_groups(*sides)
    assert report.metric("train_loss").verdict == "better"
    assert report.metric("step_time").verdict == "not_comparable"
    assert report.headline.startswith("Better training loss (")
    one_each = compare_groups(sides[0][:1], sides[1][:1])
    assert one_each.metric("train_loss").verdict == "unknown"
    assert one_each.headline.endswith("not comparable: step time")


def test_spread_of_one_training_says_nothing_about_another():
    def run(width, seed, level):
        curve = training_curve(seed, level=level, batches=seed)
        return make_run(
            f"{width}-{seed}", seed=seed, config={"width": width, "seed": seed}, loss=curve, started=float(seed)
        )

    quiet = [run(64, seed, 1.0) for seed in range(8)]
    first, earlier = quiet[:3], quiet[3:]
    one = [run(128, 20, 0.97)]
    metric = compare_groups(first, one, earlier=earlier).metric("train_loss")
    assert metric.verdict == "unknown"
    assert metric.noise_source == "assumed: fewer than three seeds"
    # With its own earlier seeds, which are as quiet, one run is enough; the models do not count as noise.
    others = [run(128, seed, 0.97) for seed in range(21, 26)]
    metric = compare_groups(first, one, earlier=[*earlier, *others]).metric("train_loss")
    assert (metric.verdict, metric.noise_source) == ("better", "10 earlier runs")
    # Earlier seeds that differ by much leave it open.
    others = [run(128, seed, level) for seed, level in zip(range(21, 26), (0.9, 1.0, 1.1, 0.95, 1.05), strict=True)]
    assert compare_groups(first, one, earlier=[*earlier, *others]).metric("train_loss").verdict == "unknown"
