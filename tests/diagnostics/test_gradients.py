"""Rules about the gradient norm, relative to its usual value in the run."""

from __future__ import annotations

import math
import random

import pytest

from tachograph.diagnostics import RuleEngine
from tests.diagnostics import START, alerts_of_rule, diagnose, level, only_alert, series, statuses, step


def around(source: random.Random, num: int, value: float) -> list[float]:
    """Return realistic norms: of one order of magnitude, with a tail."""
    return [value * source.lognormvariate(0, 0.4) for _ in range(num)]


@pytest.mark.parametrize("usual", [1e-4, 1.0, 300.0])
def test_exploding_gradients_are_relative_to_the_run(source: random.Random, usual: float) -> None:
    norms = [*around(source, 1008, usual), *around(source, 500, 50 * usual)]
    (opened,) = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")
    assert opened["severity"] == "warning" and 1008 < opened["global_step"] < 1020
    evidence = opened["evidence"]
    assert evidence["usual"] == pytest.approx(usual, rel=0.35) and evidence["level"] == pytest.approx(
        50 * usual, rel=0.5
    )
    assert 0.5 * usual < evidence["largest_lately"] < 3 * usual and evidence["window_values"] == 4
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
    assert history[-1]["evidence"]["level"] < 5 * history[0]["evidence"]["usual"]


def test_single_large_norms_and_slow_growth_are_ignored(source: random.Random) -> None:
    norms = [norm * (1 + at / 500) for at, norm in enumerate(around(source, 6000, 1.0))]
    for at in range(100, 6000, 40):
        norms[at] *= 100
    assert diagnose(series("grad_norm", norms)) == []


def test_large_gradient_norms_at_start_are_ignored(source: random.Random) -> None:
    norms = [norm * (1 + 50 * math.exp(-at / 30)) for at, norm in enumerate(around(source, 2000, 1.0))]
    assert diagnose(series("grad_norm", norms)) == []


@pytest.mark.parametrize("num", [10, 20, 50, 100, 800])
def test_explosions_are_found_in_runs_with_few_values(source: random.Random, num: int) -> None:
    """A LoRA run of 1,000 to 4,000 steps that logs every 5 to 100 steps."""
    norms = [0.4 * math.exp(-0.5 * at / num) * source.lognormvariate(0, 0.3) for at in range(num)]
    for at in range(num // 2, num):
        norms[at] *= 40
    (opened,) = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")
    assert num // 2 < opened["global_step"] <= num // 2 + 4


def test_burst_of_large_norms_opens_and_resolves(source: random.Random) -> None:
    norms = [value * source.lognormvariate(0, 0.2) for value in [*[1.0] * 200, *[25.0] * 5, *[1.0] * 200]]
    opened, resolved = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")
    assert 200 < opened["global_step"] < 205 and resolved["global_step"] < 240


def test_explosion_in_the_first_values_is_not_learned(source: random.Random) -> None:
    norms = [*around(source, 24, 1.0), *around(source, 400, 60.0)]
    history = only_alert(diagnose(series("grad_norm", norms)), "exploding_gradients")
    assert statuses(history) == ["opened"] and 24 <= history[0]["global_step"] < 32


@pytest.mark.parametrize("num", [10, 800])
def test_absurd_norm_from_the_first_step_alerts(source: random.Random, num: int) -> None:
    (opened,) = only_alert(diagnose(series("grad_norm", around(source, num, 1e5))), "exploding_gradients")
    assert opened["global_step"] == 7 and "from the start" in opened["title"]


def test_limit_of_first_norms_follows_the_clipping(source: random.Random) -> None:
    norms = around(source, 50, 700.0)
    assert diagnose(series("grad_norm", norms)) == []
    start = {"event": "start", "time": 1.0, "config": {"config": {"process": [{"train": {"max_grad_norm": 1.0}}]}}}
    assert only_alert(diagnose([start, *series("grad_norm", norms)]), "exploding_gradients")


def test_healthy_norms_of_many_shapes_are_ignored(source: random.Random) -> None:
    num = 800
    shapes = {
        "falls from a large start": [1 + 150 * math.exp(-at / 4) for at in range(num)],
        "clipped": [1.0] * num,
        "decays": [math.exp(-4 * at / num) for at in range(num)],
        "rises in the warm-up": [0.05 + min(1.0, at / 200) for at in range(num)],
        "grows all the time": [0.1 * 8 ** (at / num) for at in range(num)],
        "falls from an absurd start": [1e5 * math.exp(-at / 3) + 1 for at in range(num)],
    }
    for what, shape in shapes.items():
        for every in (1, 5, 20, 80):
            norms = [value * source.lognormvariate(0, 0.3) for value in shape[::every]]
            assert diagnose(series("grad_norm", norms)) == [], (what, every)


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


def test_change_of_the_log_interval_is_no_explosion(source: random.Random) -> None:
    """The first steps are recorded singly, the others every 500 steps, when the norm has long been another one."""
    records = []
    for at in (*range(100), *range(500, 60_000, 500)):
        norm = (0.05 if at < 100 else 0.9) * source.lognormvariate(0, 0.2)
        records.append(step(at, train_loss=2 + 9 * math.exp(-at / 40) + source.gauss(0, 0.03), grad_norm=norm))
    assert not alerts_of_rule(diagnose(records), "exploding_gradients")
    records[-20:] = [{**record, "grad_norm": 30.0} for record in records[-20:]]
    assert alerts_of_rule(diagnose(records), "exploding_gradients")


def test_interval_changes_are_the_same_in_batches(source: random.Random) -> None:
    steps = [*range(100), *range(500, 20_000, 500), *range(20_000, 20_100)]
    losses = [2 + 9 * math.exp(-at / 40) + source.gauss(0, 0.03) for at in steps]
    losses[50] = losses[130] = losses[-10] = 40.0
    names = ("time", "global_step", "train_loss")
    one, many = RuleEngine(), RuleEngine()
    rows = [(1000.0 + at, at, loss) for at, loss in zip(steps, losses, strict=True)]
    single = [alert for row in rows for alert in one.observe({"event": "step", **dict(zip(names, row, strict=True))})]
    batches = [rows[begin : begin + 37] for begin in range(0, len(rows), 37)]
    batched = [alert for batch in batches for alert in many.observe_steps(names, list(zip(*batch, strict=True)))]
    assert single == batched and len(single) >= 3


def test_norms_in_proportion_to_a_huge_loss_are_not_absurd(source: random.Random) -> None:
    records = [START, *(step(n, train_loss=1e6 * source.gauss(1, 0.1), grad_norm=1e6) for n in range(100))]
    assert alerts_of_rule(diagnose(records), "exploding_gradients") == []
