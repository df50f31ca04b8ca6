"""Judging accuracies and rewards."""

from __future__ import annotations

import numpy as np
import pytest

import tachograph as tacho
from tachograph.comparison import SeriesPoints, compare_groups
from tests.cli.test_cli import tacho as command
from tests.comparison.evidence import make_run

RANDOM = np.random.default_rng(0)


def validations(level, num=10):
    steps = np.arange(num) * 100.0
    return SeriesPoints(steps, level * (1.0 - 0.5 * np.exp(-steps / 200.0)))


def episodes(level, num=1_000):
    """Returns of episodes, which end at other steps in each run, and differ a lot from one to the next."""
    steps = np.sort(RANDOM.choice(20_000, num, replace=False)).astype(float)
    return SeriesPoints(steps, level * (1.0 - np.exp(-steps / 3_000.0)) + 5.0 * RANDOM.standard_normal(num))


def group(name, levels, *, metric="val_acc", points=validations, **config):
    return [
        make_run(f"{name}{seed}", seed=seed, result_name=metric, result=points(level), config={"seed": seed, **config})
        for seed, level in enumerate(levels)
    ]


def judged(first, second, **options):
    report = compare_groups(first, second, **options)
    return report, report.metric("result")


@pytest.mark.parametrize(
    ("metric", "points", "verdict"),
    [
        ("val_acc", validations, "better"),
        ("val_rmse", validations, "worse"),
        ("episodic_return", episodes, "better"),
        ("eval_wer", validations, "worse"),
    ],
)
def test_higher_or_lower_is_better(metric, points, verdict):
    first = group("a", (50.0, 50.5, 51.0), metric=metric, points=points, lr=1)
    second = group("b", (70.0, 70.5, 71.0), metric=metric, points=points, lr=2)
    report, result = judged(first, second)
    assert (result.title, result.verdict) == (metric, verdict)
    assert result.effect == pytest.approx(0.4, abs=0.06) and result.low < result.effect < result.high
    assert f"{verdict} {metric} (" in report.headline.lower()
    assert judged(second, first)[1].verdict == {"better": "worse", "worse": "better"}[verdict]


def test_fewer_than_three_seeds_give_no_verdict():
    _, result = judged(group("a", (0.5, 0.51)), group("b", (0.9, 0.91, 0.92)))
    assert (result.verdict, result.runs_needed) == ("unknown", 3)
    assert result.a == pytest.approx(0.5, abs=0.01)
    assert judged(group("a", (0.5, 0.5, 0.5)), group("b", (0.9, 0.9, 0.9)))[1].verdict == "better"


@pytest.mark.parametrize("points", [validations, episodes])
def test_seeds_that_differ_a_lot_are_no_difference(points):
    verdicts = []
    for _ in range(60):
        levels = 100.0 * (1.0 + 0.2 * RANDOM.standard_normal((2, 3)))
        sides = [group(name, side, points=points, lr=name) for name, side in zip("ab", levels, strict=True)]
        verdicts.append(judged(*sides)[1].verdict)
    assert sum(verdict in {"better", "worse"} for verdict in verdicts) <= 6  # of 60, at a confidence of 99 %


@pytest.mark.parametrize(
    ("key", "values", "is_comparable"),
    [
        ("env_id", ("CartPole-v1", "Acrobot-v1"), False),
        ("eval.dataset", ("a", "b"), False),
        ("loss_fn", ("mse", "huber"), True),
        ("model", ("r18", "r50"), True),
        ("env_wrappers", (1, 2), True),
    ],
)
def test_what_was_trained_on_decides_whether_results_are_comparable(key, values, is_comparable):
    first, second = (group(value, (0.5, 0.51, 0.52), **{key: value}) for value in map(str, values))
    assert (judged(first, second)[1].verdict != "not_comparable") is is_comparable
    report, result = judged(first, second, ignores_refusals=True)
    assert result.verdict != "not_comparable"
    assert any("accuracy or reward" in warning for warning in report.warnings) is not is_comparable


def test_runs_with_different_results_are_not_judged_by_them():
    assert judged(group("a", (0.5,) * 3), group("b", (0.5,) * 3, metric="val_f1"))[1] is None
    assert judged([make_run("a")], [make_run("b")])[1] is None


def test_the_command_judges_an_accuracy(tmp_path):
    names = {}
    for arch, level in (("r18", 0.5), ("r50", 0.7)):
        for seed in range(3):
            name = f"{arch}-{seed}"
            names.setdefault(arch, []).append(name)
            config = {"arch": arch, "seed": seed}
            with tacho.init(name, log_dir=tmp_path, console=False, config=config) as run:
                for step in range(60):
                    run.log({"train_loss": 2.0 - step / 100 + 0.01 * seed, "lr": 0.1}, step=step)
                    if step % 10 == 0:
                        run.log({"val_acc": level + 0.003 * seed}, step=step)
    out = command("compare", *names["r50"], "--against", *names["r18"], "--log-dir", tmp_path)
    assert "Better val_acc (39.8 %)" in out
