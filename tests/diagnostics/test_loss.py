"""Rules about the loss: not finite, spike, reset, divergence, plateau, overfitting, dead learning rate, loss scale."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.diagnostics import (
    START,
    Record,
    alerts_of_rule,
    brief,
    cosine,
    diagnose,
    falling,
    level,
    only_alert,
    series,
    statuses,
    step,
)


def with_bump(losses: list[float], at: int, *bump: float) -> list[float]:
    """Return losses with a bump added from a step on."""
    changed = list(losses)
    for index, more in enumerate(bump, at):
        changed[index] += more
    return changed


# Not finite --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_loss_is_reported_at_once_and_only_once(source: random.Random, value: float) -> None:
    losses = falling(source, 500)
    alerts = diagnose(series("train_loss", [*losses, *[value] * 1000]))
    (opened,) = only_alert(alerts, "not_finite")
    assert (opened["severity"], opened["global_step"]) == ("critical", 500)
    evidence = opened["evidence"]
    assert str(evidence["value"]) == str(value) and evidence["metric"] == "train_loss" and evidence["step"] == 500
    assert evidence["level_before"] == pytest.approx(sorted(losses[480:496])[8], abs=0.05)
    assert opened["title"].startswith("train_loss is ")


def test_nan_resolves_after_enough_finite_values(source: random.Random) -> None:
    losses = level(source, 1000, 2.0)
    for at in (500, 520, 540):  # recurs before the alert is resolved
        losses[at] = math.nan
    opened, resolved = only_alert(diagnose(series("loss", losses)), "not_finite")
    assert opened["global_step"] == 500
    assert resolved["status"] == "resolved" and 540 + 32 <= resolved["global_step"] <= 540 + 48


def test_occasional_fp16_overflows_are_ignored(source: random.Random) -> None:
    norms = level(source, 4000, 1.0, 0.2)
    for at in range(150, 4000, 200):
        norms[at : at + 2] = [math.inf, math.nan]
    assert diagnose(series("grad_norm", norms)) == []


def test_three_consecutive_non_finite_gradients_alert(source: random.Random) -> None:
    norms = level(source, 1000, 1.0, 0.2)
    norms[700:703] = [math.inf] * 3
    opened, resolved = only_alert(diagnose(series("grad_norm", norms)), "not_finite")
    assert opened["global_step"] == 702 and opened["evidence"]["in_a_row"] == 3
    assert opened["message"].startswith("grad_norm was inf 3 times in a row; its level before was ")
    assert resolved["status"] == "resolved"


def test_one_bad_gradient_alerts_while_the_loss_spikes(source: random.Random) -> None:
    losses = with_bump(level(source, 600, 2.0, 0.02), 500, *[2.0] * 100)
    alerts = diagnose(series("loss", losses, grad_norm=lambda at: math.inf if at == 505 else 1.0))
    (not_finite,) = [history[0] for history in alerts_of_rule(alerts, "not_finite")]
    assert not_finite["global_step"] == 505
    spike = alerts_of_rule(alerts, "loss_spike")[0]
    assert statuses(spike) == ["opened", "resolved"] and spike[-1]["outcome"] == "absorbed by not_finite"


def test_gradient_streak_is_configurable(source: random.Random) -> None:
    norms = level(source, 400, 1.0, 0.2)
    norms[200] = math.inf
    rules = {"not_finite": {"gradient_streak": 1, "values_to_resolve": 100}}
    opened, resolved = only_alert(diagnose(series("grad_norm", norms), rules), "not_finite")
    assert opened["global_step"] == 200 and resolved["global_step"] >= 300


def test_nan_validation_loss_resolves_when_finite() -> None:
    values = [2.0, 1.9, math.nan, math.nan, 1.8]
    records = [
        {"event": "validation", "time": 1.0 * at, "global_step": at, "val_loss": v} for at, v in enumerate(values)
    ]
    opened, resolved = only_alert(diagnose(records), "not_finite")
    assert (opened["global_step"], resolved["global_step"]) == (2, 4)
    assert opened["title"].startswith("val_loss is NaN")


def test_nan_inside_a_window_is_detected(source: random.Random) -> None:
    records = list(series("train_loss", level(source, 100, 2.0)))
    records[60] |= {"window_steps": 50, "train_loss/nonfinite": 1}
    opened = only_alert(diagnose(records), "not_finite")[0]
    assert opened["global_step"] == 60


def test_one_overflow_per_long_window_is_ignored(source: random.Random) -> None:
    records = [{**record, "window_steps": 1000} for record in series("grad_norm", level(source, 100, 1.0))]
    for record in records[50:60]:
        record["grad_norm/nonfinite"] = 1
    assert diagnose(records) == []


# Spikes ------------------------------------------------------------------------------------------------------------


def test_loss_of_zero_from_the_start_is_no_spike() -> None:
    alerts = diagnose(series("loss", [0.0] * 200))
    assert not alerts_of_rule(alerts, "loss_spike"), brief(alerts)


def test_recovering_spike_is_one_alert_with_evidence(source: random.Random) -> None:
    losses = with_bump(falling(source, 1500), 1000, 3.0, 2.0, 1.0)
    before = sorted(losses[976:992])
    opened, updated, resolved = only_alert(diagnose(series("train_loss", losses)), "loss_spike")
    assert (opened["severity"], opened["global_step"], opened["evidence"]["class"]) == ("warning", 1000, "open")
    evidence = updated["evidence"]
    assert evidence["class"] == "recovering" and evidence["recovery_values"] == 3 and evidence["recovery_steps"] == 4
    assert evidence["value"] == evidence["peak"] == losses[1000] and evidence["step"] == 1000
    assert evidence["level_before"] == 0.5 * (before[7] + before[8])
    assert evidence["sigmas"] > 20 and evidence["level_after"] == losses[1004] and evidence["num_spikes"] == 1
    assert opened["title"].startswith("Loss spike at step 1000: ")
    assert resolved["outcome"] == "no spike in the last 128 values" and 1132 <= resolved["global_step"] <= 1148
    assert opened["occurrence"]["step"] == updated["occurrence"]["step"] == 1000


def test_slow_recovery_is_classified_as_slow(source: random.Random) -> None:
    bump = [1.5 * math.exp(-index / 20) for index in range(300)]
    opened, updated, resolved = only_alert(
        diagnose(series("loss", with_bump(falling(source, 2000), 1000, *bump))), "loss_spike"
    )
    assert updated["evidence"]["class"] == "slow" and 17 <= updated["evidence"]["recovery_values"] < 128
    assert (opened["severity"], updated["severity"], resolved["severity"]) == ("warning",) * 3


def test_unrecovered_spike_is_critical_and_resolves_late(source: random.Random) -> None:
    losses = with_bump(falling(source, 3000), 1000, *[0.6] * 600)
    opened, updated, resolved = only_alert(diagnose(series("loss", losses)), "loss_spike")
    assert opened["global_step"] == 1000
    assert (updated["severity"], updated["evidence"]["class"]) == ("critical", "not recovering")
    assert updated["global_step"] == 1000 + 128
    assert "stays at 2.8" in updated["message"] or "stays at 2.9" in updated["message"]
    assert resolved["global_step"] >= 1600 + 128 and resolved["severity"] == "critical"


def test_repeated_spikes_share_one_alert(source: random.Random) -> None:
    losses = level(source, 1500, 2.0, 0.02)
    for at in (600, 700, 800):
        losses[at] = 5.0
    history = only_alert(diagnose(series("loss", losses)), "loss_spike")
    assert statuses(history) == ["opened", *["updated"] * 5, "resolved"]
    assert history[-2]["title"].startswith("3 loss spikes, most recently at step 800: 5, from ")
    assert history[-1]["evidence"] == {"num_spikes": 3}


def test_spike_after_resolution_opens_a_new_alert(source: random.Random) -> None:
    losses = level(source, 2000, 2.0, 0.02)
    losses[600] = losses[1200] = 5.0
    first, second = alerts_of_rule(diagnose(series("loss", losses)), "loss_spike")
    assert first[0]["title"].startswith("Loss spike at step 600") and second[0]["title"].startswith(
        "Loss spike at step 1200"
    )


def test_spike_in_the_steep_start_is_found(source: random.Random) -> None:
    losses = [2 + 8 * math.exp(-at / 25) + source.gauss(0, 0.04) for at in range(400)]
    losses[100] += 1.2
    alerts = diagnose(series("loss", losses))
    assert [spike["evidence"]["step"] for spike, *_ in alerts_of_rule(alerts, "loss_spike")] == [100], brief(alerts)


def test_spike_after_a_slow_one_is_found(source: random.Random) -> None:
    losses = with_bump(level(source, 600, 2.0, 0.02), 300, *(2.5 * math.exp(-index / 12) for index in range(40)))
    losses[352] += 0.7
    steps = [
        alert["occurrence"]["step"]
        for alert in diagnose(series("loss", losses))
        if alert["rule"] == "loss_spike" and "occurrence" in alert
    ]
    assert 352 in steps


def test_loss_of_reinforcement_learning_does_not_spike(source: random.Random) -> None:
    losses = with_bump(level(source, 600, 0.02, 0.1), 400, 0.5)
    assert alerts_of_rule(diagnose(series("loss", losses)), "loss_spike")
    assert diagnose(series("loss", losses, reward=lambda at: 0.5 + at / 6000)) == []


def test_spike_evidence_contains_gradient_norms(source: random.Random) -> None:
    losses = with_bump(falling(source, 1200), 1000, 3.0)
    norms = level(source, 1200, 1.0, 0.1)
    norms[999] = 40.0
    alerts = diagnose(series("loss", losses, grad_norm=lambda at: norms[at]))
    evidence = only_alert(alerts, "loss_spike")[0]["evidence"]
    assert evidence["grad_norm"] == 40.0 and evidence["grad_norm_before"] == pytest.approx(1.0, abs=0.2)


def test_healthy_run_has_no_alerts(source: random.Random) -> None:
    records = series("loss", falling(source, 4000), lr=cosine(4000), grad_norm=lambda at: 1 + abs(source.gauss(0, 0.3)))
    assert diagnose([START | {"max_steps": 4000}, *records]) == []


def test_bimodal_loss_does_not_spike_or_diverge() -> None:
    """As with mixup: about half of the batches are much harder."""
    for seed in range(12):
        source = random.Random(seed)
        losses = [loss + (2.0 if source.random() < 0.5 else 0.0) for loss in falling(source, 3000, 0.2)]
        fired = {alert["rule"] for alert in diagnose(series("loss", losses))}
        assert not fired & {"loss_spike", "divergence", "loss_reset"}, f"seed {seed}: {fired}"


def test_spike_thresholds_are_configurable(source: random.Random) -> None:
    losses = level(source, 1200, 2.0, 0.02)
    losses[1000] = 2.5
    assert [
        history[0]["global_step"] for history in alerts_of_rule(diagnose(series("loss", losses)), "loss_spike")
    ] == [1000]
    assert diagnose(series("loss", losses), {"loss_spike": {"sigmas": 50}}) == []
    assert diagnose(series("loss", losses), {"loss_spike": {"least_share": 0.5}}) == []
    assert diagnose(series("loss", losses), {"loss_spike": False}) == []
    quick = diagnose(series("loss", losses), {"loss_spike": {"quiet_values": 16}})
    assert only_alert(quick, "loss_spike")[-1]["global_step"] <= 1036


def test_lr_or_batch_change_explains_a_jump(source: random.Random) -> None:
    losses = [*level(source, 1000, 2.0, 0.02), *level(source, 600, 2.6, 0.02)]
    fired = {alert["rule"] for alert in diagnose(series("loss", losses))}
    assert "loss_spike" in fired
    assert diagnose(series("loss", losses, lr=lambda at: 1e-3 if at < 999 else 1e-2)) == []
    assert diagnose(series("loss", losses, batch_size=lambda at: 64 if at < 999 else 256)) == []
    change = {"event": "control_change", "time": 1999.5, "name": "learning_rate", "value": 0.01}
    records = list(series("loss", losses))
    assert diagnose([*records[:1000], change, *records[1000:]]) == []


@pytest.mark.parametrize("name", ["lr", "batch_size"])
def test_change_explains_loss_of_same_step_in_any_field_order(name: str) -> None:
    losses = [*level(random.Random(1), 1000, 2.0, 0.02), *level(random.Random(2), 600, 2.6, 0.02)]
    assert diagnose(series("loss", losses, **{name: lambda at: 1 if at < 1000 else 4})) == []


def test_rounded_losses_near_zero_do_not_spike() -> None:
    """A trainer rounds to four places, and the loss starts at zero, as in GRPO."""
    source = random.Random(4)
    losses = [round(max(0.0, source.gauss(0, 0.00004)), 4) for _ in range(3000)]
    assert 0.0001 in losses
    fired = {alert["rule"] for alert in diagnose(series("loss", [0.0001, *losses]))}
    assert not fired & {"divergence", "loss_reset", "dead_learning_rate"}
    assert "loss_spike" not in fired


# Shift -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_lasting_rise_by_15_percent_is_a_shift(source: random.Random, noise: float) -> None:
    losses = [
        (1 + 2 * math.exp(-at / 500)) * (1.15 if at >= 1200 else 1) * (1 + source.gauss(0, noise)) for at in range(2000)
    ]
    alerts = diagnose(series("loss", losses, lr=lambda at: 1e-3))
    found = [alert for alert in alerts if alert["rule"] in ("loss_shift", "loss_spike", "divergence")]
    warnings = [alert for alert in found if alert["severity"] != "info"]  # it may look like a faint spike at first
    assert warnings and 1200 <= warnings[0]["global_step"] < 1600, brief(alerts)
    assert len({alert["id"] for alert in found}) == 1, brief(alerts)


def test_shift_without_a_learning_rate_is_for_information(source: random.Random) -> None:
    losses = [*level(source, 800, 2.0, 0.04), *level(source, 400, 2.3, 0.04)]
    (opened,) = only_alert(diagnose(series("loss", losses)), "loss_shift")
    assert opened["severity"] == "info" and abs(opened["evidence"]["from_step"] - 800) <= 32
    assert opened["evidence"]["level_before"] == pytest.approx(2.0, rel=0.03)
    assert opened["message"].endswith("No learning rate is recorded; a schedule may be the reason.")


def test_shift_resolves_when_the_loss_is_back(source: random.Random) -> None:
    losses = [*level(source, 800, 2.0, 0.04), *level(source, 300, 2.3, 0.04), *level(source, 300, 2.0, 0.04)]
    _, resolved = only_alert(diagnose(series("loss", losses)), "loss_shift")
    assert resolved["outcome"].startswith("the loss is back at ") and 1100 <= resolved["global_step"] < 1140


def test_sudden_drop_to_a_tenth_is_reported(source: random.Random) -> None:
    losses = [value * (0.1 if at >= 900 else 1) for at, value in enumerate(falling(source, 1500))]
    (opened,) = only_alert(diagnose(series("loss", losses)), "loss_shift")
    assert opened["severity"] == "warning" and 900 < opened["global_step"] < 950
    assert opened["title"].startswith("Loss has been 90 % lower since about step 8")


def test_rarer_logging_explains_a_drop(source: random.Random) -> None:
    steps = [*range(100), *range(100, 30_000, 300)]
    losses = [(0.8 if at < 100 else 0.05) * (1 + source.gauss(0, 0.02)) for at in steps]
    alerts = diagnose(step(at, loss=loss) for at, loss in zip(steps, losses, strict=True))
    assert not alerts_of_rule(alerts, "loss_shift"), brief(alerts)


def test_noise_and_slow_changes_are_no_shift(source: random.Random) -> None:
    losses = [2 + 0.05 * math.sin(at / 300) + source.gauss(0, 0.4) for at in range(6000)]
    assert not alerts_of_rule(diagnose(series("loss", losses)), "loss_shift")


def test_shift_thresholds_are_configurable(source: random.Random) -> None:
    losses = [*level(source, 800, 2.0, 0.04), *level(source, 400, 2.3, 0.04)]
    assert diagnose(series("loss", losses), {"loss_shift": {"rise": 0.3}}) == []
    assert diagnose(series("loss", losses), {"loss_shift": {"sigmas": 100}}) == []
    drops = [value * (0.4 if at >= 900 else 1) for at, value in enumerate(falling(source, 1200))]
    assert diagnose(series("loss", drops)) == []
    assert only_alert(diagnose(series("loss", drops), {"loss_shift": {"drop": 0.5}}), "loss_shift")


# Reset -------------------------------------------------------------------------------------------------------------


def test_fresh_weights_are_a_reset_and_rules_start_over(source: random.Random) -> None:
    losses = [*falling(source, 1000), *falling(source, 1000), *falling(source, 1000)]
    alerts = diagnose(series("loss", losses))
    assert [history[0]["evidence"]["step"] for history in alerts_of_rule(alerts, "loss_reset")] == [1000, 2000], brief(
        alerts
    )
    assert {alert["rule"] for alert in alerts} == {"loss_reset"}
    opened, resolved = alerts_of_rule(alerts, "loss_reset")[0]
    assert opened["severity"] == "warning" and resolved["global_step"] < 1120
    evidence = opened["evidence"]
    assert evidence["first"] == losses[0] and evidence["value"] == losses[1000] and evidence["level_before"] < 3


def test_fast_fall_after_fresh_weights_is_a_reset(source: random.Random) -> None:
    """With one value in a hundred steps, only the first one is near the initial loss."""
    falls = [1.3 + 30 * math.exp(-3 * at) + 4 * math.exp(-at / 40) + source.gauss(0, 0.05) for at in range(200)]
    (opened, _) = only_alert(diagnose(series("loss", [*falls, *falls])), "loss_reset")
    assert opened["evidence"]["step"] == 200 and opened["global_step"] <= 204


def test_loss_that_stays_at_its_initial_value_diverged(source: random.Random) -> None:
    losses = [*falling(source, 1000), *level(source, 1000, 11.5, 0.01)]
    alerts = diagnose(series("loss", losses))
    assert not alerts_of_rule(alerts, "loss_reset"), brief(alerts)
    (opened,) = alerts_of_rule(alerts, "divergence")[0]
    assert opened["severity"] == "critical" and 1000 <= opened["global_step"] < 1080


def test_slow_spike_that_passes_the_initial_value_is_not_a_reset() -> None:
    for seed in range(4):
        source = random.Random(seed)
        losses = [(1 + 0.075 * at) ** -0.35 * (1 + source.gauss(0, 0.01)) for at in range(400)]
        losses[200:] = [loss * (1 + 3 * math.exp(-at / 25)) for at, loss in enumerate(losses[200:])]
        alerts = diagnose(series("loss", losses))
        assert not alerts_of_rule(alerts, "loss_reset"), brief(alerts)
        assert alerts_of_rule(alerts, "loss_spike")


def test_spike_from_the_initial_value_is_not_a_reset(source: random.Random) -> None:
    bump = [9.0 * math.exp(-index / 20) for index in range(300)]
    alerts = diagnose(series("loss", with_bump(falling(source, 2000), 1000, *bump)))
    assert not alerts_of_rule(alerts, "loss_reset") and {"loss_spike", "divergence"} & {a["rule"] for a in alerts}


def test_single_value_at_initial_loss_is_a_spike(source: random.Random) -> None:
    losses = falling(source, 1500)
    losses[1000] = losses[0]
    history = only_alert(diagnose(series("loss", losses)), "loss_spike")
    assert statuses(history) == ["opened", "updated", "resolved"]


def test_reset_tolerance_is_configurable(source: random.Random) -> None:
    losses = [*falling(source, 1000), *(loss * 0.8 for loss in falling(source, 1000))]
    assert not alerts_of_rule(diagnose(series("loss", losses)), "loss_reset")
    assert alerts_of_rule(diagnose(series("loss", losses), {"loss_reset": {"tolerance": 0.3}}), "loss_reset")


# Divergence --------------------------------------------------------------------------------------------------------


def test_divergence_is_one_critical_alert(source: random.Random) -> None:
    losses = with_bump(falling(source, 2500), 1500, *(min(4.0, index / 50) for index in range(1000)))
    alerts = diagnose(series("loss", losses))
    (opened,) = alerts_of_rule(alerts, "divergence")[0]
    assert len(alerts_of_rule(alerts, "divergence")) == 1 and opened["severity"] == "critical"
    assert 1500 < opened["global_step"] < 1600
    evidence = opened["evidence"]
    assert evidence["best"] == pytest.approx(2.2, abs=0.1) and 1000 < evidence["best_step"] < 1520
    assert evidence["value"] == losses[opened["global_step"]] > evidence["threshold"] > evidence["best"]
    assert 1500 < evidence["since_step"] < opened["global_step"]
    assert opened["title"].startswith(
        f"Loss has been diverging since step {evidence['since_step']}: {evidence['value']:.4g}, best was "
    )
    # Earlier alerts on the same fault are absorbed, and no other alert follows.
    others = [alert for alert in alerts if alert["rule"] != "divergence"]
    assert {alert["rule"] for alert in others} <= {"loss_spike", "loss_shift"}
    assert not others or others[-1]["outcome"] == "absorbed by divergence"


@pytest.mark.parametrize("at", [1500, 1507, 1511, 1512])
def test_divergence_names_its_onset(source: random.Random, at: int) -> None:
    """An earlier excursion, before the best step, is not the onset, wherever in a block the rise begins."""
    losses = with_bump(falling(source, 2500), at, *[1.5] * (2500 - at))
    for bad in (1200, 1230, 1260, 1290):
        losses[bad] += 2.0
    (opened,) = alerts_of_rule(diagnose(series("loss", losses)), "divergence")[0]
    evidence = opened["evidence"]
    assert evidence["since_step"] == at and evidence["best_step"] <= at


def test_slow_divergence_names_its_onset(source: random.Random) -> None:
    losses = with_bump(falling(source, 3000, 0.02), 1500, *(index / 200 for index in range(1500)))
    (opened,) = alerts_of_rule(diagnose(series("loss", losses)), "divergence")[0]
    assert 1500 - 16 <= opened["evidence"]["since_step"] <= 1500 + 64
    assert opened["evidence"]["since_step"] >= opened["evidence"]["best_step"]


def test_exploding_loss_is_detected_within_a_few_steps(source: random.Random) -> None:
    losses = [*falling(source, 400), *(10.0**index for index in range(2, 12))]
    alerts = diagnose(series("loss", losses))
    assert alerts_of_rule(alerts, "divergence")[0][0]["global_step"] <= 405


def test_divergence_resolves_and_spikes_are_reported_again(source: random.Random) -> None:
    losses = with_bump(falling(source, 4000), 1500, *[3.0] * 400)
    losses[3500] = 9.0
    alerts = diagnose(series("loss", losses))
    (history,) = alerts_of_rule(alerts, "divergence")
    assert statuses(history) == ["opened", "resolved"] and 1900 < history[-1]["global_step"] < 1940
    assert history[-1]["outcome"].startswith("loss is back at 2.")
    last = alerts_of_rule(alerts, "loss_spike")[-1]
    assert last[0]["title"].startswith("Loss spike at step 3500: 9, from 2.")
    begun = [history[0]["evidence"]["step"] for history in alerts_of_rule(alerts, "loss_spike")]
    assert begun == [1500, 3500], brief(alerts)


def test_absorbed_spike_is_not_reported_again(source: random.Random) -> None:
    back = [max(0.0, 3.0 - max(0, index - 60) * 0.02) for index in range(400)]
    alerts = diagnose(series("loss", with_bump(falling(source, 3000), 1500, *back)))
    assert [statuses(history) for history in alerts_of_rule(alerts, "divergence")] == [["opened", "resolved"]]
    (spike,) = alerts_of_rule(alerts, "loss_spike")
    assert spike[-1]["outcome"] == "absorbed by divergence", brief(alerts)


def warm_restarts(source: random.Random) -> Iterator[Record]:
    """Yield a run whose learning rate, and with it the loss, goes back up every thousand steps."""
    for at in range(4000):
        lr = 0.05 * (1 + math.cos(math.pi * (at % 1000) / 1000))
        loss = 0.04 + 5 * lr + (2.2 * math.exp(-at / 200) if at < 1000 else 0.0)
        yield step(at, loss=loss * (1 + source.gauss(0, 0.1)), lr=lr)


def test_warm_restarts_are_not_a_divergence(source: random.Random) -> None:
    assert diagnose(warm_restarts(source)) == []


def test_loss_that_follows_a_restart_slowly_does_not_diverge(source: random.Random) -> None:
    records, loss = [START], 1.0
    for index in range(2_000):
        phase = index % 500 / 500
        lr = 0.5 * (1 + math.cos(math.pi * phase))
        loss += (math.exp(-index / 800) * (0.6 + 0.6 * lr) - loss) / 12
        records.append(step(index, train_loss=loss * source.gauss(1, 0.01), lr=0.1 * lr))
    assert alerts_of_rule(diagnose(records), "divergence") == []


def test_cycle_of_a_recorded_learning_rate_is_no_divergence(source: random.Random) -> None:
    def records(end: float) -> Iterator[Record]:
        yield START
        for index in range(2_400):
            lr = 0.1 + abs(1 - index % 400 / 200)
            loss = (0.5 + math.exp(-index / 150)) * (1 + 0.5 * lr)
            loss *= end ** max(0.0, (index - 2_000) / 400) * source.gauss(1, 0.01)
            yield step(index, train_loss=loss, lr=0.01 * lr)

    assert alerts_of_rule(diagnose(records(1.0)), "divergence") == []
    assert alerts_of_rule(diagnose(records(6.0)), "divergence")


def test_slow_rise_that_recovers_is_usual(source: random.Random) -> None:
    losses = [1 + 0.3 * math.sin(index / 60) ** 2 + math.exp(-index / 100) for index in range(3_000)]
    alerts = diagnose(series("train_loss", [loss * source.gauss(1, 0.01) for loss in losses]))
    assert len(alerts_of_rule(alerts, "divergence")) <= 1


def test_loss_of_tasks_of_different_difficulty_does_not_diverge(source: random.Random) -> None:
    losses = [(4.0 if source.random() < 0.3 else 0.15) * source.gauss(1, 0.05) for _ in range(2_000)]
    assert alerts_of_rule(diagnose(series("train_loss", losses)), "divergence") == []


def test_slope_is_neither_spike_nor_shift(source: random.Random) -> None:
    losses = [1 + math.exp(-index / 60) + 0.3 * max(0, index - 600) / 800 for index in range(1_400)]
    records = [
        START,
        *(step(index, train_loss=loss * source.gauss(1, 0.005), lr=1e-3) for index, loss in enumerate(losses)),
    ]
    assert alerts_of_rule(diagnose(records), "loss_shift") == []
    assert alerts_of_rule(diagnose(records), "loss_spike") == []


def test_shift_while_the_learning_rate_rises_is_for_information(source: random.Random) -> None:
    rates = [1e-4 if index < 800 else min(1.4e-4, 1e-4 * 1.002 ** (index - 800)) for index in range(2_000)]
    losses = [2.0 * (1.2 if index > 810 else 1.0) * source.gauss(1, 0.01) for index in range(2_000)]
    records = [
        START,
        *(step(index, train_loss=loss, lr=rate) for index, (loss, rate) in enumerate(zip(losses, rates, strict=True))),
    ]
    assert {alert[0]["severity"] for alert in alerts_of_rule(diagnose(records), "loss_shift")} <= {"info"}


@pytest.mark.slow
def test_noisy_loss_does_not_diverge() -> None:
    for seed in range(200):
        source = random.Random(seed)
        losses = [0.3 * (0.3 + 0.7 * math.exp(-at / 1500)) * max(0.02, 1 + source.gauss(0, 0.35)) for at in range(400)]
        assert not alerts_of_rule(diagnose(series("loss", losses)), "divergence")


def test_divergence_after_lr_change_is_detected(source: random.Random) -> None:
    losses = [*falling(source, 1000), *level(source, 1000, 9.0, 0.02)]
    alerts = diagnose(series("loss", losses, lr=lambda at: 1e-4 if at < 1000 else 1e-2), {"loss_reset": False})
    assert alerts_of_rule(alerts, "divergence")[0][0]["global_step"] < 1100


def test_negative_loss_can_diverge(source: random.Random) -> None:
    losses = [-50 + 60 * math.exp(-at / 300) + source.gauss(0, 1) for at in range(1400)]
    assert not [alert for alert in diagnose(series("loss", losses)) if alert["rule"] != "plateau"]
    alerts = diagnose(series("loss", with_bump(losses, 1200, *(index / 2 for index in range(200)))))
    assert len(alerts_of_rule(alerts, "divergence")) == 1


def test_rising_loss_in_reinforcement_learning_is_ignored(source: random.Random) -> None:
    """The loss is a multiple of the KL divergence and rises together with the reward."""
    kls = [0.05 * min(1.0, at / 1000) * abs(1 + source.gauss(0, 0.2)) for at in range(3000)]
    rewards = [at / 3000 + source.gauss(0, 0.1) for at in range(3000)]
    records = (step(at, loss=round(0.04 * kls[at], 4), reward=rewards[at]) for at in range(3000))
    fired = {alert["rule"] for alert in diagnose(records)}
    assert not fired & {"divergence", "plateau", "dead_learning_rate"}


def test_divergence_shares_are_configurable(source: random.Random) -> None:
    losses = with_bump(falling(source, 2500), 1500, *(min(0.5, index / 200) for index in range(1000)))
    assert not alerts_of_rule(diagnose(series("loss", losses)), "divergence")
    strict = {"divergence": {"share_of_best": 0.12, "share_of_gain": 0.03}}
    assert len(alerts_of_rule(diagnose(series("loss", losses), strict), "divergence")) == 1


# Plateau -----------------------------------------------------------------------------------------------------------


def test_plateau_is_reported_once_as_info(source: random.Random) -> None:
    losses = [2 + 3 * math.exp(-at / 200) + source.gauss(0, 0.03) for at in range(8000)]
    (opened,) = only_alert(diagnose(series("loss", losses)), "plateau")
    assert opened["severity"] == "info" and 1500 <= opened["global_step"] < 4000
    evidence = opened["evidence"]
    assert evidence["level"] == pytest.approx(2.0, abs=0.05) and evidence["most_share"] < 0.01
    assert evidence["from_step"] < evidence["step"] == opened["global_step"]
    assert evidence["window_values"] == pytest.approx(evidence["step"] - evidence["from_step"], rel=0.1)
    assert opened["title"].startswith("Loss has been flat at ")


@pytest.mark.parametrize("log_every", [5, 10, 20, 50, 100])
def test_plateau_of_a_short_run_is_found(source: random.Random, log_every: int) -> None:
    """As in the fine-tuning of adapters: few values, and the loss stops falling early."""
    num = 4000 // log_every
    falling_at = [(1 + 30 * at / num) ** -0.35 for at in range(num)]
    flat = [falling_at[min(at, num // 8)] for at in range(num)]
    for losses, rules in ((falling_at, set()), (flat, {"plateau"})):
        records = (
            step(at * log_every, loss=loss * (1 + source.gauss(0, 0.01)), lr=1e-4) for at, loss in enumerate(losses)
        )
        alerts = diagnose([START | {"max_steps": 4000}, *records])
        assert {alert["rule"] for alert in alerts} == rules, brief(alerts)


def test_plateau_under_strong_noise_needs_more_values(source: random.Random) -> None:
    """As with a batch size of one: a few hundred values prove nothing, a few thousand do."""
    losses = [(0.1 + 0.1 * math.exp(-at / 200)) * math.exp(source.gauss(0, 0.2)) for at in range(6000)]
    (opened,) = only_alert(diagnose(series("loss", losses)), "plateau")
    assert 1000 < opened["global_step"] < 5500


def test_slow_start_of_a_long_run_is_not_a_plateau(source: random.Random) -> None:
    losses = [5 - at / 2000 + source.gauss(0, 0.03) for at in range(1000)]
    assert diagnose(series("loss", losses)) == []
    assert diagnose([START | {"max_steps": 8000}, *series("loss", losses)]) == []


def test_rarer_logging_after_the_start_is_not_a_plateau(source: random.Random) -> None:
    """Some trainers log each of the first steps, which belong to a warm-up, and then only a few."""
    steps = [*range(100), *range(100, 20_000, 100)]
    losses = [(6.9 if at < 100 else 2 + 4.9 * math.exp(-at / 8000)) + source.gauss(0, 0.01) for at in steps]
    assert diagnose(step(at, loss=loss) for at, loss in zip(steps, losses, strict=True)) == []


def test_plateau_resolves_when_the_loss_falls_again(source: random.Random) -> None:
    losses = [2 + 3 * math.exp(-at / 200) - max(0, at - 4000) / 4000 + source.gauss(0, 0.02) for at in range(6500)]
    opened, resolved = only_alert(diagnose(series("loss", losses)), "plateau")
    assert opened["global_step"] < 4000 < resolved["global_step"]
    assert resolved["outcome"].startswith("the loss is falling again, by ")


def test_lr_change_resolves_a_plateau(source: random.Random) -> None:
    losses = [2 + 3 * math.exp(-at / 200) + source.gauss(0, 0.02) for at in range(4100)]
    alerts = diagnose(series("loss", losses, lr=lambda at: 0.1 if at < 4000 else 0.01))
    assert only_alert(alerts, "plateau")[-1]["outcome"] == "the learning rate changed"


def test_end_of_schedule_is_not_a_plateau(source: random.Random) -> None:
    losses = [2 + 3 * max(0.0, 1 - at / 6000) + source.gauss(0, 0.03) for at in range(8000)]
    assert diagnose([START | {"max_steps": 8000}, *series("loss", losses, lr=cosine(8000))]) == []


def test_long_warm_up_is_not_a_plateau(source: random.Random) -> None:
    losses = level(source, 4000, 6.9, 0.003)
    assert diagnose(series("loss", losses, lr=lambda at: 1e-3 * (at + 1) / 4000)) == []
    assert only_alert(diagnose(series("loss", losses, lr=lambda at: 1e-3)), "plateau")


def test_slow_noisy_fall_is_not_a_plateau(source: random.Random) -> None:
    losses = [3 - 0.5 * at / 6000 + source.gauss(0, 0.3) for at in range(6000)]
    assert diagnose(series("loss", losses)) == []


def test_plateau_gain_is_configurable(source: random.Random) -> None:
    losses = [3 - 0.6 * at / 6000 + source.gauss(0, 0.02) for at in range(6000)]
    assert diagnose(series("loss", losses)) == []
    assert only_alert(diagnose(series("loss", losses), {"plateau": {"least_gain": 0.05}}), "plateau")


def test_spike_in_the_first_values_is_found(source: random.Random) -> None:
    for noise in (0.02, 0.2):
        for at in (8, 20, 40):
            losses = [10 * math.exp(-index / 25) + 2 + source.gauss(0, noise) for index in range(200)]
            losses[12 if at == 40 else at] *= 6
            losses[at] *= 6
            history = only_alert(diagnose(series("loss", losses)), "loss_spike")
            assert [alert["occurrence"]["step"] for alert in history if "occurrence" in alert][-1] == at


def test_noisy_start_has_no_spike() -> None:
    num_alerts = 0
    for seed in range(200):
        source = random.Random(seed)
        losses = [2.0 * source.lognormvariate(0, 0.3) for _ in range(40)]
        num_alerts += bool(diagnose(series("loss", losses)))
    assert num_alerts <= 2


# Overfitting -------------------------------------------------------------------------------------------------------


def with_evaluations(train: list[float], evaluate: dict[int, float]) -> Iterator[Record]:
    for record in series("train_loss", train):
        yield record
        at = record["global_step"]
        if at in evaluate:
            yield {"event": "validation", "time": 1000.0 + at, "global_step": at, "val_loss": evaluate[at]}


def test_overfitting_names_the_best_step(source: random.Random) -> None:
    values = {at: 2.2 + 0.8 * abs(at - 1000) / 1000 for at in range(100, 3000, 100)}
    alerts = diagnose(with_evaluations(falling(source, 3000, floor=1.0), values))
    (opened,) = only_alert(alerts, "overfitting")
    evidence = opened["evidence"]
    assert opened["severity"] == "warning" and evidence["best_step"] == 1000 and evidence["best"] == 2.2
    assert evidence["window_values"] == 3 and opened["global_step"] == evidence["step"]
    assert evidence["rise"] == pytest.approx((evidence["value"] - 2.2) / 2.2) and evidence["rise"] >= 0.03
    assert evidence["train_loss"] < evidence["train_loss_at_best"]
    assert opened["title"].startswith("Overfitting since step 1000: val_loss is 2.")


def test_overfitting_resolves_only_at_a_new_best(source: random.Random) -> None:
    values = [2.0, 2.1, 2.2, 2.3, 2.4, 2.05, 2.4, 2.01, 2.3, 1.99]
    evaluate = {100 * (index + 1): value for index, value in enumerate(values)}
    opened, resolved = only_alert(diagnose(with_evaluations(falling(source, 1100, floor=1.0), evaluate)), "overfitting")
    assert (opened["global_step"], resolved["global_step"]) == (500, 1000)
    assert resolved["outcome"] == "withdrawn: val_loss reached 1.99 at step 1000, a new best"


def test_noisy_validation_loss_is_rarely_overfitting() -> None:
    """The best of sixty noisy values is low by chance; values above it are not necessarily worse."""
    num_fired = 0
    for seed in range(20):
        source = random.Random(seed)
        values = {at: 2.0 * (1 + source.gauss(0, 0.05)) for at in range(20, 1200, 20)}
        alerts = diagnose(with_evaluations(falling(source, 1200, floor=1.0), values))
        num_fired += bool(alerts_of_rule(alerts, "overfitting"))
    assert num_fired <= 3


def test_rise_of_both_losses_is_not_overfitting(source: random.Random) -> None:
    train = [2.0 + max(0, at - 1000) / 2000 + source.gauss(0, 0.02) for at in range(2000)]
    values = {at: 2.2 + max(0, at - 1000) / 2000 for at in range(100, 2000, 100)}
    assert not alerts_of_rule(diagnose(with_evaluations(train, values)), "overfitting")


def test_overfitting_thresholds_are_configurable(source: random.Random) -> None:
    values = {at: 2.2 + 0.8 * abs(at - 1000) / 1000 for at in range(100, 2500, 100)}
    records = list(with_evaluations(falling(source, 2500, floor=1.0), values))
    at = only_alert(diagnose(records), "overfitting")[0]["global_step"]
    late = only_alert(diagnose(records, {"overfitting": {"patience": 8}}), "overfitting")[0]["global_step"]
    assert late > at and diagnose(records, {"overfitting": {"rise": 2.0}}) == []


def test_validation_sets_are_tracked_separately() -> None:
    records: list[Record] = []
    for at in range(20):
        records.append({"event": "validation", "time": 1.0 * at, "global_step": at, "val_loss": 3 - at / 20})
        records.append({"event": "validation", "time": 1.0 * at, "global_step": at, "eval_loss": 2 + 0.1 * at})
    (opened,) = only_alert(diagnose(records), "overfitting")
    assert opened["evidence"]["metric"] == "eval_loss" and opened["evidence"]["best_step"] == 0


def test_stale_training_loss_is_not_used_for_overfitting(source: random.Random) -> None:
    values = {at: 2.2 + 0.8 * abs(at - 1000) / 1000 for at in range(100, 3000, 100)}
    records = [
        record
        for record in with_evaluations(falling(source, 3000, floor=1.0), values)
        if record["event"] == "validation" or record["global_step"] < 200
    ]
    (opened,) = only_alert(diagnose(records), "overfitting")
    assert opened["title"].startswith("Validation loss has been rising since step")
    assert "train_loss" not in opened["evidence"] and "No training loss of that time" in opened["message"]


def test_rise_that_training_does_not_explain_is_info(source: random.Random) -> None:
    """Wrong weights in the evaluation, for example: the training loss is higher and hardly falls."""
    values = {at: 2.2 + 0.8 * abs(at - 1000) / 1000 for at in range(100, 3000, 100)}
    (opened,) = only_alert(diagnose(with_evaluations(falling(source, 3000, floor=5.0), values)), "overfitting")
    assert opened["severity"] == "info" and "which does not explain it" in opened["message"]


def test_rise_while_training_loss_is_as_high_is_info(source: random.Random) -> None:
    """Early in a run with augmented data: both losses are far from their end, and the evaluation is off for a while."""
    values = {at: 4.1 + max(0.0, abs(at - 400) - 30) / 100 for at in range(100, 1000, 30)}
    train = [max(4.05, 7 - at / 200) + source.gauss(0, 0.03) for at in range(1000)]
    (opened,) = only_alert(diagnose(with_evaluations(train, values)), "overfitting")
    assert opened["severity"] == "info" and "which does not explain it" in opened["message"]
    (opened,) = only_alert(diagnose(with_evaluations([0.8 * loss for loss in train], values)), "overfitting")
    assert opened["severity"] == "warning"


def test_slow_rise_under_heavy_noise_is_one_alert() -> None:
    """A small validation set: single values are worthless, the level of many is not."""
    for seed in range(3):
        source = random.Random(seed)
        rise = [1.0 + max(0, at - 200) / 300 for at in range(1200)]
        values = {at: 0.5 * up * math.exp(source.gauss(0, 0.25)) for at, up in enumerate(rise)}
        alerts = diagnose(with_evaluations(falling(source, 1200, floor=0.1), values))
        (opened,) = only_alert(alerts, "overfitting")
        assert opened["severity"] == "warning" and opened["global_step"] > 300


def test_noise_that_grows_is_neither_overfitting_nor_blow_up() -> None:
    for seed in range(3):
        source = random.Random(seed)
        values = {at: 0.5 * math.exp(source.gauss(0, 0.1 + at / 1200)) for at in range(1200)}
        assert diagnose(with_evaluations(falling(source, 1200, floor=0.1), values)) == []


def test_rise_before_any_learning_is_not_overfitting(source: random.Random) -> None:
    values = {
        at: 1.8 + 0.2 * math.sin(min(at, 200) / 200 * math.pi) - max(0, at - 200) / 500 for at in range(0, 600, 5)
    }
    train = [1.8 - at / 1000 + source.gauss(0, 0.01) for at in range(600)]
    assert diagnose(with_evaluations(train, values)) == []


def test_early_noise_of_evaluations_is_not_overfitting(source: random.Random) -> None:
    values = [30.8, 5.7, 12.4, 14.1, 7.1, 5.4, 12.6, 15.3, 13.2, 5.9, 4.0, 3.1, 2.6, 2.2, 2.0, 1.9]
    evaluate = {50 * (index + 1): value for index, value in enumerate(values)}
    assert diagnose(with_evaluations(falling(source, 900, floor=1.0), evaluate)) == []


def test_bump_of_validation_loss_that_recedes_is_not_overfitting(source: random.Random) -> None:
    bump = [0.0] * 15 + [0.25, 0.2, 0.16, 0.13, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01]
    evaluate = {100 * (index + 1): 2.2 - 0.005 * index + more for index, more in enumerate(bump)}
    assert diagnose(with_evaluations(falling(source, 2700, floor=1.0), evaluate)) == []


# Validation blow-up ------------------------------------------------------------------------------------------------


def test_sudden_validation_rise_is_a_blow_up(source: random.Random) -> None:
    values = {at: (2.2 if at < 1500 or at > 2500 else 240.0) + at / 1e5 for at in range(100, 3000, 100)}
    opened, resolved = only_alert(diagnose(with_evaluations(falling(source, 3000), values)), "validation_blow_up")
    assert (opened["severity"], opened["global_step"], resolved["global_step"]) == ("warning", 1600, 2600)
    assert opened["title"].startswith("val_loss is 109 times as high as before: 240, from 2.2")
    assert opened["evidence"]["level_before"] == pytest.approx(2.2, abs=0.1)


def test_single_bad_evaluation_is_no_blow_up(source: random.Random) -> None:
    values = {at: 2.2 if at != 1500 else 240.0 for at in range(100, 3000, 100)}
    assert diagnose(with_evaluations(falling(source, 3000), values)) == []


def test_small_validation_set_is_no_blow_up() -> None:
    """Heavy tails: values of several times the median come in pairs now and then."""
    for seed in range(4):
        source = random.Random(seed)
        values = {at: 0.5 * math.exp(source.gauss(0, 0.3) + (source.random() < 0.2) * 1.5) for at in range(700)}
        records = list(with_evaluations(falling(source, 700), values))
        assert not alerts_of_rule(diagnose(records), "validation_blow_up")
        values.update({at: 1000 * value for at, value in values.items() if at >= 500})
        records = list(with_evaluations(falling(random.Random(seed), 700), values))
        (history,) = alerts_of_rule(diagnose(records), "validation_blow_up")
        assert history[0]["global_step"] == 501


def test_blow_up_factor_is_configurable(source: random.Random) -> None:
    values = {at: 2.2 if at < 1500 else 5.0 for at in range(100, 3000, 100)}
    records = list(with_evaluations(falling(source, 3000), values))
    assert not alerts_of_rule(diagnose(records), "validation_blow_up")
    assert only_alert(diagnose(records, {"validation_blow_up": {"factor": 2.0}}), "validation_blow_up")


# Dead learning rate ------------------------------------------------------------------------------------------------


def test_zero_lr_in_the_middle_of_a_run_alerts(source: random.Random) -> None:
    losses = level(source, 2000, 2.0)
    alerts = diagnose(
        [START | {"max_steps": 2000}, *series("loss", losses, lr=lambda at: max(0.0, 1e-3 * (1 - at / 1000)))]
    )
    (opened,) = alerts_of_rule(alerts, "dead_learning_rate")[0]
    assert opened["severity"] == "critical" and 1000 + 31 <= opened["global_step"] <= 1000 + 48
    assert opened["evidence"]["value"] == 0 and opened["evidence"]["window_values"] == 32
    assert opened["title"].startswith("Learning rate has been zero for 32 values, up to step 10")


def test_zero_lr_at_the_end_of_a_schedule_is_ignored(source: random.Random) -> None:
    num = 2000
    records = series("loss", falling(source, num), lr=lambda at: max(0.0, 1e-3 * (1 - at / (num - 90))))
    assert diagnose([START | {"max_steps": num}, *records]) == []


def rounded_cosine(num: int, peak: float, digits: int) -> list[float]:
    """Return a schedule as many logs contain it: its last values are rounded to zero."""
    return [round(peak * 0.5 * (1 + math.cos(math.pi * at / num)), digits) for at in range(num)]


@pytest.mark.parametrize("peak", [2e-5, 1e-4, 3e-4])
@pytest.mark.parametrize("planned", [None, 3000])
def test_rounded_end_of_a_schedule_is_ignored(source: random.Random, peak: float, planned: int | None) -> None:
    lrs = rounded_cosine(3000, peak, 6)
    assert lrs.count(0.0) > 64
    records = series("loss", falling(source, 3000), lr=lambda at: lrs[at])
    assert diagnose([START | {"max_steps": planned}, *records]) == []


@pytest.mark.parametrize(
    "start",
    [
        {"max_steps": 3000},
        {"config": {"trainer": {"max_steps": 3000}}},
        {"config": {"config": {"process": [{"train_iters": 3000}]}}},
    ],
)
def test_schedule_that_ends_too_early_alerts(source: random.Random, start: dict[str, Any]) -> None:
    lrs = [*rounded_cosine(1500, 1e-4, 6), *[0.0] * 1500]
    records = [START | start, *series("loss", falling(source, 3000), lr=lambda at: lrs[at])]
    opened = alerts_of_rule(diagnose(records), "dead_learning_rate")[0][0]
    assert 1300 < opened["global_step"] < 1550


def test_run_that_goes_on_after_its_schedule_alerts(source: random.Random) -> None:
    lrs = [*rounded_cosine(1500, 1e-4, 6), *[0.0] * 1500]
    records = series("loss", falling(source, 3000), lr=lambda at: lrs[at])
    opened = alerts_of_rule(diagnose(records), "dead_learning_rate")[0][0]
    assert 1600 < opened["global_step"] < 1900


def test_announced_number_of_steps_is_the_end(source: random.Random) -> None:
    lrs = [*level(source, 2900, 1e-3), *[0.0] * 100]
    records = [*series("loss", falling(source, 3000), lr=lambda at: lrs[at])]
    span = {"event": "span_start", "time": 1.0, "name": "train", "attributes": {"train_iterations_target": 3000}}
    assert alerts_of_rule(diagnose(records), "dead_learning_rate")
    assert diagnose([span, *records]) == []


def test_zero_lr_alert_resolves_when_lr_is_back(source: random.Random) -> None:
    lr = lambda at: 0.0 if 500 <= at < 600 else 1e-3  # noqa: E731
    history = only_alert(diagnose(series("loss", level(source, 1000, 2.0), lr=lr)), "dead_learning_rate")
    assert statuses(history) == ["opened", "resolved"] and history[-1]["outcome"].startswith("lr is at 0.00")


def test_warm_up_from_zero_is_ignored(source: random.Random) -> None:
    records = series("loss", falling(source, 500), lr=lambda at: 0.0 if at < 20 else 1e-6 * at)
    assert diagnose(records) == []


def test_constant_loss_with_gradient_alerts() -> None:
    (opened,) = only_alert(diagnose(series("loss", [2.51234] * 3000, grad_norm=lambda at: 1.0)), "dead_learning_rate")
    assert opened["global_step"] == 31 and opened["title"] == "Loss is exactly 2.512 in all of the last 32 values"


def test_zero_lr_and_constant_loss_are_one_alert() -> None:
    alerts = diagnose(step(at, lr=0.0, loss=2.5) for at in range(300))
    assert len([alert for alert in alerts if alert["status"] == "opened"]) == 1, brief(alerts)


def test_dead_lr_blocks_are_configurable() -> None:
    (opened,) = only_alert(
        diagnose(series("loss", [2.512341234] * 300), {"dead_learning_rate": {"blocks": 10}}), "dead_learning_rate"
    )
    assert opened["global_step"] == 159


def test_slow_divergence_is_detected(source: random.Random) -> None:
    losses = [value * (1 + min(1.0, max(0, at - 2500) / 1500)) for at, value in enumerate(falling(source, 5000))]
    (opened,) = alerts_of_rule(diagnose(series("loss", losses)), "divergence")[0]
    assert 2500 < opened["evidence"]["since_step"] < opened["global_step"] < 4000


def test_divergence_in_the_first_steps_is_detected(source: random.Random) -> None:
    losses = [(1.6 if at < 12 else 11.0) + source.gauss(0, 0.05) for at in range(100)]
    (opened,) = alerts_of_rule(diagnose(series("loss", losses)), "divergence")[0]
    assert opened["global_step"] < 40


def test_skewed_losses_of_small_batches_do_not_spike() -> None:
    num_fired = 0
    for seed in range(10):
        source = random.Random(seed)
        losses = [(0.1 + 1 / (1 + at / 100)) * source.lognormvariate(0, 0.6) for at in range(3000)]
        num_fired += bool(alerts_of_rule(diagnose(series("loss", losses)), "loss_spike"))
    assert num_fired <= 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_tokens_per_step", lambda at: 30_000 + at * 7919 % 3000),
        ("batch_size", lambda at: 64 if at % 50 else 13),
        ("lr", lambda at: 1e-3 if at % 10 < 5 else 1e-4),
    ],
)
def test_frequent_changes_explain_nothing(name: str, value: object) -> None:
    losses = falling(random.Random(1), 1500)
    losses[1000] += 4.0
    alerts = diagnose(series("loss", losses, **{name: value}))
    assert [history[0]["global_step"] for history in alerts_of_rule(alerts, "loss_spike")] == [1000]


def test_expected_change_event_explains_a_jump(source: random.Random) -> None:
    records = list(series("loss", [*level(source, 1000, 2.0, 0.02), *level(source, 600, 2.6, 0.02)]))
    announcement = {"event": "event", "time": 1999.5, "name": "expected_change"}
    assert alerts_of_rule(diagnose(records), "loss_spike")
    assert diagnose([*records[:1000], announcement, *records[1000:]]) == []


def test_early_overflows_of_a_loss_scaler_are_ignored() -> None:
    norms = [math.inf] * 12 + [1.0 + at % 3 for at in range(300)]
    assert diagnose(series("grad_norm", norms)) == []


def test_actor_loss_does_not_diverge(source: random.Random) -> None:
    losses = [0.01 * at / 100 + source.gauss(0, 0.05) for at in range(3000)]
    alerts = diagnose(series("train/loss", losses, **{"rollout/ep_rew_mean": lambda at: at / 100}))
    assert "divergence" not in {alert["rule"] for alert in alerts}


# Loss scale --------------------------------------------------------------------------------------------------------


def test_repeated_loss_scale_reductions_alert() -> None:
    scales = [65536.0] * 100 + [65536.0 / 2**cut for cut in range(1, 8)] + [512.0] * 50
    (opened,) = only_alert(diagnose(series("loss_scale", scales)), "loss_scale_collapse")
    assert opened["severity"] == "critical" and opened["global_step"] == 102
    evidence = opened["evidence"]
    assert (evidence["value"], evidence["scale_before"], evidence["cuts"]) == (8192.0, 65536.0, 3)
    assert opened["title"] == "Loss scale collapsed to 8192 at step 102, from 65,536"


def test_searching_or_oscillating_loss_scale_is_ignored() -> None:
    search = [2.0**power for power in range(32, 15, -1)]
    breathing = [scale for _ in range(20) for scale in [65536.0] * 40 + [32768.0] * 40]
    assert diagnose(series("grad_scale", [*search, *breathing])) == []


def test_growing_loss_scale_resolves_the_alert() -> None:
    scales = [65536.0] * 100 + [32768.0, 16384.0, 8192.0] + [8192.0] * 100 + [16384.0] * 10
    _, resolved = only_alert(diagnose(series("loss_scale", scales)), "loss_scale_collapse")
    assert resolved["outcome"] == "the scale is growing again: 16,384"


def test_loss_scale_near_minimum_is_always_reported() -> None:
    scales = [2.0**power for power in range(16, -1, -1)]
    (opened,) = only_alert(diagnose(series("loss_scale", scales)), "loss_scale_collapse")
    assert opened["evidence"]["value"] == 2.0
    early = diagnose(series("loss_scale", scales), {"loss_scale_collapse": {"minimum": 128}})
    assert only_alert(early, "loss_scale_collapse")[0]["evidence"]["value"] == 256.0


def test_loss_scale_cuts_are_configurable() -> None:
    scales = [65536.0] * 100 + [65536.0 / 2**cut for cut in range(1, 6)] + [2048.0] * 50
    assert diagnose(series("loss_scale", scales), {"loss_scale_collapse": {"cuts": 6}}) == []


def test_nan_loss_scale_is_not_a_reduction() -> None:
    scales = [math.nan if at % 10 == 0 else 65536.0 for at in range(500)]
    assert diagnose(series("loss_scale", scales)) == []


def test_faint_spike_that_recovers_is_information(source: random.Random) -> None:
    losses = [1 + source.gauss(0, 0.02) for _ in range(600)]
    for value, severity in ((1.11, "info"), (1.4, "warning")):
        losses[400] = value
        alerts = alerts_of_rule(diagnose(series("loss", losses)), "loss_spike")
        assert {alert["severity"] for history in alerts for alert in history} <= {severity}
        assert alerts or severity == "info"
