"""Rules about the gradient norm, relative to its usual value in the run."""

from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics import SEEDS, alerts_of_rule, diagnose, level, only_alert, series, statuses


@pytest.fixture(params=SEEDS)
def source(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def around(source: random.Random, num: int, value: float) -> list[float]:
    """Return realistic norms: of one order of magnitude, with a tail."""
    return [value * source.lognormvariate(0, 0.4) for _ in range(num)]


@pytest.mark.parametrize("usual", [1e-4, 1.0, 300.0])
def test_exploding_gradients_are_relative_to_the_run(source: random.Random, usual: float) -> None:
    norms = [*around(source, 1008, usual), *around(source, 500, 50 * usual)]
    (opened,) = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")
    assert opened["severity"] == "warning" and 1008 < opened["global_step"] < 1060
    evidence = opened["evidence"]
    assert evidence["usual"] == pytest.approx(usual, rel=0.2) and evidence["level"] == pytest.approx(
        50 * usual, rel=0.5
    )
    assert usual < evidence["largest_lately"] < 3 * usual and evidence["window_values"] == 16
    assert opened["title"].startswith("Gradients explode: norm ") and opened["title"].endswith("times the usual")


def test_doubling_gradients_alert(source: random.Random) -> None:
    norms = [norm * 2.0 ** (max(0, at - 1000) / 16) for at, norm in enumerate(around(source, 1200, 1.0))]
    opened = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")[0]
    assert opened["global_step"] < 1120


def test_exploding_gradients_resolve_without_flapping(source: random.Random) -> None:
    edge = around(source, 1000, 9.0)  # around the threshold
    norms = [*around(source, 1008, 1.0), *around(source, 300, 50.0), *edge, *around(source, 300, 1.0)]
    history = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")
    assert statuses(history) == ["opened", "resolved"] and history[-1]["global_step"] > 2300
    assert history[-1]["evidence"]["level"] < 5 * history[-1]["evidence"]["usual"]


def test_single_large_norms_and_slow_growth_are_ignored(source: random.Random) -> None:
    norms = [norm * (1 + at / 500) for at, norm in enumerate(around(source, 6000, 1.0))]
    for at in range(100, 6000, 40):
        norms[at] *= 100
    assert diagnose(series("grad_norm", norms)) == []


def test_large_gradient_norms_at_start_are_ignored(source: random.Random) -> None:
    norms = [norm * (1 + 50 * math.exp(-at / 30)) for at, norm in enumerate(around(source, 2000, 1.0))]
    assert diagnose(series("grad_norm", norms)) == []


def test_explosion_factor_is_configurable(source: random.Random) -> None:
    norms = [*around(source, 1008, 1.0), *around(source, 500, 6.0)]
    assert diagnose(series("grad_norm", norms)) == []
    assert only_alert(
        diagnose(series("grad_norm", norms), {"exploding_gradients": {"factor": 3, "factor_of_largest": 1}}),
        "exploding_gradients",
    )


def test_zero_gradients_alert_after_the_first_block() -> None:
    (opened,) = only_alert(diagnose(series("grad_norm", [0.0] * 3000)), "vanishing_gradients")
    assert (opened["severity"], opened["global_step"]) == ("critical", 15)
    assert opened["title"] == "Gradients have been zero for 16 values, up to step 15"


def test_vanishing_gradients_alert(source: random.Random) -> None:
    norms = [*around(source, 1008, 1.0), *around(source, 500, 1e-5)]
    (opened,) = only_alert(diagnose(series("grad_norm", norms)), "vanishing_gradients")
    assert opened["global_step"] == 1023 and opened["evidence"]["usual"] == pytest.approx(1.0, rel=0.2)
    assert 1e-5 < opened["evidence"]["largest"] < 1e-4


def test_vanishing_gradients_resolve_when_back(source: random.Random) -> None:
    norms = [*around(source, 1008, 1.0), *[0.0, 1e-9] * 100, *around(source, 300, 1.0)]
    history = only_alert(diagnose(series("grad_norm", norms)), "vanishing_gradients")
    assert statuses(history) == ["opened", "resolved"] and 1208 < history[-1]["global_step"] <= 1240


def test_shrinking_or_sparse_gradients_are_ignored(source: random.Random) -> None:
    norms = [norm * math.exp(-at / 3000) for at, norm in enumerate(around(source, 20_000, 1.0))]
    for at in range(0, 20_000, 3):
        norms[at] = 0.0
    assert diagnose(series("grad_norm", norms)) == []


def test_vanishing_share_is_configurable(source: random.Random) -> None:
    norms = [*level(source, 1008, 1.0, 0.1), *level(source, 500, 0.01, 0.1)]
    assert diagnose(series("grad_norm", norms)) == []
    assert only_alert(
        diagnose(series("grad_norm", norms), {"vanishing_gradients": {"share": 0.1}}), "vanishing_gradients"
    )


def test_divergence_absorbs_exploding_gradients(source: random.Random) -> None:
    losses = [*level(source, 1000, 2.0, 0.02), *(2.0 + index / 20 for index in range(400))]
    norms = [*around(source, 1000, 1.0), *(norm * 60 for norm in around(source, 400, 1.0))]
    alerts = diagnose(series("loss", losses, grad_norm=lambda at: norms[at]))
    assert len(alerts_of_rule(alerts, "divergence")) == 1
    for history in (*alerts_of_rule(alerts, "exploding_gradients"), *alerts_of_rule(alerts, "loss_spike")):
        assert history[-1]["outcome"] == "absorbed by divergence"
