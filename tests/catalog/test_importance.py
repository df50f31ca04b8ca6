"""The share of a result that config keys explain, for functions with known shares."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.compare.functions import FUNCTIONS

from tachograph.catalog import explain_results


def explain(title, num_runs, seed=0):
    columns, results, expected = FUNCTIONS[title](np.random.default_rng(seed), num_runs)
    ranking = explain_results(columns, results)
    return ranking, {key.key: key for key in ranking.keys}, expected


@pytest.mark.slow
def test_shares_of_known_functions():
    for title, num_runs, tolerance in (
        ("Ishigami", 200, 0.1),
        ("Branin", 200, 0.12),
        ("sum and product", 200, 0.06),
        ("optimum in the middle", 60, 0.1),
        ("optimum in the middle", 20, 0.2),
    ):
        ranking, keys, expected = explain(title, num_runs)
        assert ranking.reason is None, title
        for name, share in expected.items():
            assert keys[name].share == pytest.approx(share, abs=tolerance), (title, name)
            assert 0.0 <= keys[name].low <= keys[name].high <= 1.0


def test_optimum_in_the_middle_comes_first():
    ranking, keys, _ = explain("optimum in the middle", 60)
    assert ranking.keys[0].key == "lr"
    assert keys["lr"].low > 0.8
    assert keys["width"].share < 0.05
    assert ranking.explained_share > 0.9


def test_pairs_are_found():
    _, keys, _ = explain("Ishigami", 200)
    assert keys["x2"].pairs[0].key == "x0"
    assert keys["x2"].alone < 0.03 < keys["x2"].low
    assert keys["x3"].low == 0.0


@pytest.mark.slow
def test_noise_has_no_ranking():
    for num_runs in (8, 20, 60):
        answers = [explain("noise", num_runs, seed)[0] for seed in range(10)]
        assert sum(ranking.reason is None for ranking in answers) <= 1
        assert all("do not predict" in ranking.reason for ranking in answers if ranking.reason)


def test_keys_that_vary_together_share():
    random = np.random.default_rng(1)
    lr = 10 ** random.uniform(-4, -2, 40)
    columns = {
        "lr": lr.tolist(),
        "warmup": (1000 * lr).tolist(),
        "width": random.integers(1, 5, 40).tolist(),
        "schedule": ["a" if value > 1e-3 else "b" for value in lr],
        "model": random.choice(["s", "l"], 40).tolist(),
        "model_name": [],
    }
    columns["model_name"] = [f"net-{size}" for size in columns["model"]]
    ranking = explain_results(columns, np.log10(lr) + 0.5 * (np.array(columns["model"]) == "l"))
    together = {key.key: key.together for key in ranking.keys}
    assert together["lr"][:1] == ["warmup"]
    assert together["model"] == ["model_name"]
    assert together["width"] == []


def test_missing_values_are_a_category():
    random = np.random.default_rng(2)
    dropout = [None if number % 2 else float(value) for number, value in enumerate(random.uniform(0, 0.5, 40))]
    results = np.array([1.0 if value is None else 0.2 for value in dropout]) + random.normal(0, 0.05, 40)
    ranking = explain_results({"dropout": dropout, "width": random.integers(1, 9, 40).tolist()}, results)
    assert ranking.keys[0].key == "dropout"
    assert ranking.keys[0].share > 0.8
