"""Rules about reinforcement learning and preference training."""

from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics import alerts_of_rule, diagnose, level, only_alert, series, statuses, step

# Entropy -----------------------------------------------------------------------------------------------------------


def test_collapsed_entropy_with_flat_reward_alerts(source: random.Random) -> None:
    entropies = [0.02 + 2.0 * math.exp(-at / 100) for at in range(1000)]
    rewards = [0.6 * (1 - math.exp(-at / 50)) + source.gauss(0, 0.05) for at in range(1000)]
    alerts = diagnose(series("entropy", entropies, reward=lambda at: rewards[at]))
    opened, updated = only_alert(alerts, "entropy_collapse")
    assert opened["severity"] == "warning" and 80 < opened["global_step"] < 200
    assert opened["title"].startswith("Entropy keeps falling and is at ")
    evidence = updated["evidence"]
    assert updated["status"] == "updated" and 200 < updated["global_step"] < 400
    assert evidence["share"] == pytest.approx(evidence["level"] / evidence["first"]) and evidence["share"] < 0.15
    assert evidence["reward"] == pytest.approx(0.6, abs=0.05)
    assert updated["message"] == "The reward has stopped rising."


def test_falling_entropy_without_gain_alerts_early(source: random.Random) -> None:
    entropies = [0.8 * (1.0 if at < 100 else 0.35 ** min(1.0, (at - 100) / 150)) for at in range(400)]
    rewards = [0.5 * (1 - math.exp(-at / 30)) + source.gauss(0, 0.03) for at in range(400)]
    noisy = [entropy * (1 + source.gauss(0, 0.05)) for entropy in entropies]
    (opened,) = only_alert(diagnose(series("entropy", noisy, reward=lambda at: rewards[at])), "entropy_collapse")
    assert 0.15 < opened["evidence"]["share"] < 0.4 and 150 < opened["global_step"] < 280


def test_slow_or_unpaid_fall_of_entropy_is_ignored(source: random.Random) -> None:
    slow = [(0.8 - 0.4 * at / 800) * (1 + source.gauss(0, 0.05)) for at in range(800)]
    flat = [0.5 + source.gauss(0, 0.03) for _ in range(800)]
    assert diagnose(series("entropy", slow, reward=lambda at: flat[at])) == []
    fast = [0.8 * 0.3 ** (at / 800) * (1 + source.gauss(0, 0.05)) for at in range(800)]
    assert diagnose(series("entropy", fast)) == []  # without a reward nothing says that it is a fault
    rising = [at / 800 + source.gauss(0, 0.03) for at in range(800)]
    assert diagnose(series("entropy", fast, reward=lambda at: rising[at])) == []


def test_falling_entropy_with_rising_reward_is_ignored(source: random.Random) -> None:
    entropies = [0.02 + 2.0 * math.exp(-at / 100) for at in range(1000)]
    rewards = [at / 250 + source.gauss(0, 0.05) for at in range(1000)]
    assert diagnose(series("entropy", entropies, reward=lambda at: rewards[at])) == []


def test_recovered_entropy_resolves_the_alert(source: random.Random) -> None:
    entropies = [
        *level(source, 200, 2.0),
        *(0.3 + source.gauss(0, 0.05) for _ in range(2000)),
        *level(source, 200, 2.0),
    ]
    history = only_alert(diagnose(series("entropy", entropies)), "entropy_collapse")
    assert statuses(history) == ["opened", "resolved"] and history[-1]["global_step"] > 2200
    assert history[0]["message"] == "No reward is recorded to compare with."


def test_negative_entropy_is_ignored(source: random.Random) -> None:
    entropies = [1.4 - 3 * at / 1000 + source.gauss(0, 0.02) for at in range(1000)]
    alerts = diagnose(series("entropy", [entropy for entropy in entropies if not 0 < entropy < 0.25]))
    assert alerts == []


def test_entropy_share_is_configurable(source: random.Random) -> None:
    entropies = [*level(source, 200, 2.0), *level(source, 200, 0.8)]
    assert diagnose(series("entropy", entropies)) == []
    assert only_alert(diagnose(series("entropy", entropies), {"entropy_collapse": {"share": 0.5}}), "entropy_collapse")


# KL ----------------------------------------------------------------------------------------------------------------


def test_kl_outliers_share_one_alert(source: random.Random) -> None:
    kls = level(source, 1000, 0.05, 0.1)
    kls[500], kls[550] = 4.0, 6.0
    history = only_alert(diagnose(series("kl", kls)), "kl_outlier")
    assert statuses(history) == ["opened", "updated", "resolved"]
    assert history[0]["evidence"]["value"] == 4.0 and history[0]["evidence"]["level"] == pytest.approx(0.05, rel=0.1)
    assert history[0]["title"].startswith("KL divergence of 4 at step 500, ") and history[1]["evidence"]["count"] == 2
    assert history[1]["title"] == "2 KL divergence outliers, most recently 6 at step 550"
    assert 550 + 128 <= history[2]["global_step"] <= 550 + 144


def test_lasting_kl_jump_is_not_reported_per_value(source: random.Random) -> None:
    history = only_alert(
        diagnose(series("kl", [*level(source, 500, 0.05, 0.1), *level(source, 500, 50.0, 0.1)])), "kl_outlier"
    )
    assert len(history) < 16 and history[-1]["status"] == "resolved"


def test_slowly_growing_or_tiny_kl_is_ignored(source: random.Random) -> None:
    assert diagnose(series("kl", [0.1 * at / 1000 * (1 + source.gauss(0, 0.2)) for at in range(3000)])) == []
    tiny = level(source, 1000, 1e-4, 0.1)
    tiny[500] = 0.01
    assert diagnose(series("kl", tiny)) == []


def test_kl_thresholds_are_configurable(source: random.Random) -> None:
    kls = level(source, 1000, 0.05, 0.1)
    kls[500] = 0.3
    assert only_alert(diagnose(series("kl", kls)), "kl_outlier")
    assert diagnose(series("kl", kls), {"kl_outlier": {"least": 0.5}}) == []
    assert diagnose(series("kl", kls), {"kl_outlier": {"sigmas": 500}}) == []


# Zero-variance rewards -----------------------------------------------------------------------------------------------


def test_equal_rewards_in_most_groups_alert(source: random.Random) -> None:
    shares = [*level(source, 96, 0.2), *(min(1.0, value) for value in level(source, 96, 0.95)), *level(source, 96, 0.2)]
    opened, resolved = only_alert(diagnose(series("frac_reward_zero_std", shares)), "zero_variance_rewards")
    assert opened["severity"] == "warning" and 96 < opened["global_step"] <= 127
    assert opened["evidence"]["share"] == pytest.approx(0.95, abs=0.05) and opened["evidence"]["window_values"] == 16
    assert opened["title"].startswith("All rewards are equal in 9") and resolved["global_step"] > 192


def test_equal_rewards_near_threshold_do_not_flap(source: random.Random) -> None:
    shares = [min(1.0, 0.8 + source.gauss(0, 0.08)) for _ in range(3000)]
    assert statuses(only_alert(diagnose(series("frac_reward_zero_std", shares)), "zero_variance_rewards")) == ["opened"]


def growing_share(source: random.Random, num: int = 400) -> list[float]:
    return [0.1 + 0.45 * max(0.0, at / num - 0.3) / 0.7 + source.gauss(0, 0.04) for at in range(num)]


def test_growing_share_of_equal_rewards_alerts(source: random.Random) -> None:
    shares = growing_share(source)
    (opened,) = only_alert(diagnose(series("frac_reward_zero_std", shares)), "zero_variance_rewards")
    assert 0.3 < opened["evidence"]["share"] < 0.6


def test_equal_rewards_of_solved_prompts_are_ignored(source: random.Random) -> None:
    rewards = [0.2 + 0.6 * at / 400 + source.gauss(0, 0.03) for at in range(400)]
    records = series("frac_reward_zero_std", growing_share(source), reward=lambda at: rewards[at])
    assert diagnose(records) == []
    shares = [0.3 + source.gauss(0, 0.1) for _ in range(1000)]
    assert diagnose(series("frac_reward_zero_std", shares)) == []


def test_zero_reward_std_replaces_a_missing_share() -> None:
    (opened,) = only_alert(diagnose(series("reward_std", [0.0] * 64)), "zero_variance_rewards")
    assert opened["title"] == "All rewards are equal in 100 % of the groups"
    both = series("reward_std", [0.0] * 64, frac_reward_zero_std=lambda at: 0.1)
    assert diagnose(both) == []


def test_equal_rewards_share_is_configurable() -> None:
    assert diagnose(series("frac_reward_zero_std", [0.5] * 64)) == []
    assert only_alert(
        diagnose(series("frac_reward_zero_std", [0.5] * 64), {"zero_variance_rewards": {"share": 0.4}}),
        "zero_variance_rewards",
    )


# Truncated completions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["completions/clipped_ratio", "train/completions/clipped_ratio"])
def test_truncated_completions_alert(name: str) -> None:
    shares = [0.1] * 96 + [0.97] * 96 + [0.5] * 96
    opened, resolved = only_alert(diagnose(series(name, shares)), "truncated_completions")
    assert opened["title"] == "97 % of the completions are cut off" and opened["global_step"] == 111
    assert resolved["outcome"] == "50 % of the completions are cut off now"


def test_truncation_near_the_threshold_does_not_flap(source: random.Random) -> None:
    shares = [min(1.0, 0.9 + source.gauss(0, 0.06)) for _ in range(3000)]
    assert statuses(only_alert(diagnose(series("clipped_ratio", shares)), "truncated_completions")) == ["opened"]


def test_truncated_share_threshold_is_configurable(source: random.Random) -> None:
    shares = level(source, 500, 0.6, 0.1)
    assert diagnose(series("clipped_ratio", shares)) == []
    assert only_alert(
        diagnose(series("clipped_ratio", shares), {"truncated_completions": {"share": 0.4}}), "truncated_completions"
    )


# Reward ------------------------------------------------------------------------------------------------------------


def up_and_down(source: random.Random, low: float, num: int = 1000) -> list[float]:
    """Return rewards that rise to 1 in half of the time, and then fall."""
    half = num // 2
    return [
        (at / half if at < half else 1 - (1 - low) * (at - half) / half) + source.gauss(0, 0.1) for at in range(num)
    ]


def test_falling_reward_alerts(source: random.Random) -> None:
    (opened,) = only_alert(diagnose(series("reward", up_and_down(source, 0.0))), "reward_drop")
    evidence = opened["evidence"]
    assert opened["severity"] == "warning" and 700 < opened["global_step"] < 900
    assert evidence["peak"] == pytest.approx(1.0, abs=0.1) and abs(evidence["peak_step"] - 500) < 100
    assert evidence["level"] == pytest.approx(0.45, abs=0.15)
    assert opened["title"].startswith("Reward fell to 0.") and " % of its gain." in opened["message"]


@pytest.mark.parametrize("num", [100, 400])
def test_collapse_of_a_reward_alerts_in_short_runs(source: random.Random, num: int) -> None:
    rewards = [0.1 + 0.6 * (1 - math.exp(-3 * at / num)) + source.gauss(0, 0.03) for at in range(num)]
    for at in range(num // 2, num):
        rewards[at] *= math.exp(-(at - num // 2) / 15)
    (opened,) = only_alert(diagnose(series("reward", rewards)), "reward_drop")
    assert num // 2 < opened["global_step"] < num // 2 + 50


def test_collapse_of_a_reward_that_never_rose_alerts(source: random.Random) -> None:
    rewards = [*level(source, 200, 0.8, 0.1), *level(source, 200, 0.2, 0.1)]
    (opened,) = only_alert(diagnose(series("reward", rewards)), "reward_drop")
    assert 200 < opened["global_step"] < 240 and opened["message"].startswith("It started at 0.")


def test_recovered_reward_resolves_the_alert(source: random.Random) -> None:
    rewards = [*up_and_down(source, 0.2), *level(source, 500, 1.0, 0.1)]
    assert statuses(only_alert(diagnose(series("reward", rewards)), "reward_drop")) == ["opened", "resolved"]


def test_noisy_or_slightly_lower_reward_is_ignored(source: random.Random) -> None:
    assert diagnose(series("reward", up_and_down(source, 0.7))) == []
    assert diagnose(series("reward", [at / 2000 + source.gauss(0, 0.5) for at in range(3000)])) == []


def test_wandering_reward_is_ignored() -> None:
    """The mean of the last episodes, as many trainers log it, has neighbours that are alike."""
    num_alerts = 0
    for seed in range(20):
        source, wander, rewards = random.Random(seed), 0.0, []
        for at in range(1000):
            wander = 0.85 * wander + source.gauss(0, 0.05)
            rewards.append(0.5 * (1 - math.exp(-at / 150)) + wander)
        num_alerts += bool(diagnose(series("reward", rewards)))
    assert num_alerts <= 2


def test_falling_preference_rewards_are_ignored(source: random.Random) -> None:
    records = (
        step(
            at,
            loss=0.69 * math.exp(-at / 500) + source.gauss(0, 0.02),
            **{"rewards/chosen": -at / 100, "rewards/margins": at / 200},
        )
        for at in range(1500)
    )
    assert diagnose(records) == []


def test_reward_drop_share_is_configurable(source: random.Random) -> None:
    rewards = up_and_down(source, 0.6)
    assert alerts_of_rule(diagnose(series("reward", rewards), {"reward_drop": {"share": 0.2}}), "reward_drop")
    assert diagnose(series("reward", up_and_down(source, 0.0)), {"reward_drop": {"share": 3.0}}) == []


def test_fall_in_the_last_records_is_found(source: random.Random) -> None:
    rewards = [*(-1_600 + source.gauss(0, 60) for _ in range(100)), -5_000.0, -20_000.0, -30_431.0]
    (opened,) = only_alert(diagnose(series("reward", rewards)), "reward_drop")
    assert opened["global_step"] == 102


def test_single_low_reward_is_ignored(source: random.Random) -> None:
    rewards = [-1_600 + source.gauss(0, 60) for _ in range(200)]
    rewards[100] = -20_000.0
    rewards[150] = -20_000.0
    assert diagnose(series("reward", rewards)) == []


def test_sudden_entropy_collapse_is_a_fault_while_reward_rises(source: random.Random) -> None:
    entropies = [*level(source, 160, 0.8), *level(source, 160, 0.08)]
    (opened,) = only_alert(diagnose(series("entropy", entropies, reward=lambda at: at / 100)), "entropy_collapse")
    assert opened["global_step"] < 200


def test_falling_entropy_of_supervised_training_is_healthy(source: random.Random) -> None:
    entropies = [2.0 * math.exp(-at / 100) + 0.05 for at in range(600)]
    assert diagnose(series("entropy", entropies, loss=lambda at: 2.0 * math.exp(-at / 100) + 0.1)) == []


def test_single_kl_outliers_are_info_and_several_a_warning(source: random.Random) -> None:
    values = level(source, 400, 0.02, 0.1)
    values[100] = values[200] = 2.0
    assert {alert["severity"] for alert in diagnose(series("kl", values))} == {"info"}
    values[300:306] = [2.0] * 6
    history = alerts_of_rule(diagnose(series("kl", values)), "kl_outlier")[-1]
    assert any(alert["severity"] == "warning" and alert["global_step"] == 303 for alert in history)
