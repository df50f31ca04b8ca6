"""Rules about time: slow steps, outliers, data stalls, hangs, checkpoints."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tachograph.diagnostics import RuleEngine, resolve_rules
from tests.diagnostics import (
    START,
    Record,
    alerts_of_rule,
    brief,
    checked,
    diagnose,
    level,
    only_alert,
    series,
    statuses,
    step,
)

# Slower steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usual_s", [0.1, 3.0])
def test_lasting_slowdown_is_a_regression(source: random.Random, usual_s: float) -> None:
    times = [*level(source, 800, usual_s, 0.05), *level(source, 800, 1.2 * usual_s, 0.05)]
    (opened,) = only_alert(diagnose(series("sec_per_step", times)), "throughput_regression")
    assert opened["severity"] == "warning" and 840 < opened["global_step"] < 920
    evidence = opened["evidence"]
    assert evidence["before_s"] == pytest.approx(usual_s, rel=0.03)
    assert evidence["after_s"] == pytest.approx(1.2 * usual_s, rel=0.03)
    assert evidence["rise"] == pytest.approx(0.2, abs=0.04) and abs(evidence["from_step"] - 800) <= 32
    assert " % longer since about step " in opened["title"]


def test_regression_resolves_without_flapping(source: random.Random) -> None:
    slow = level(source, 1600, 0.12, 0.06)
    times = [*level(source, 800, 0.1, 0.06), *slow, *level(source, 800, 0.1, 0.06)]
    history = only_alert(diagnose(series("sec_per_step", times)), "throughput_regression")
    assert statuses(history) == ["opened", "resolved"] and 2400 < history[-1]["global_step"] < 2450
    assert history[-1]["outcome"].endswith(" ms again")


@pytest.mark.parametrize("num", [400, 6000])
def test_step_time_that_creeps_up_is_a_regression(source: random.Random, num: int) -> None:
    times = [value * (1 + 0.5 * at / num) for at, value in enumerate(level(source, num, 0.5, 0.05))]
    history = only_alert(diagnose(series("sec_per_step", times)), "throughput_regression")
    assert history[0]["severity"] == "warning" and 0.2 <= history[0]["evidence"]["rise"] < 0.5
    assert " % longer than " in history[0]["title"] and history[0]["title"].count("values ago") == 1


def test_late_creep_of_a_long_run_is_a_regression(source: random.Random) -> None:
    times = [value * 1.8 ** max(0.0, at / 1500 - 3) for at, value in enumerate(level(source, 6000, 0.5, 0.05))]
    assert only_alert(diagnose(series("sec_per_step", times)), "throughput_regression")[0]["global_step"] > 4500


def test_small_drift_of_step_time_is_ignored(source: random.Random) -> None:
    times = [value * (1 + 0.15 * at / 6000) for at, value in enumerate(level(source, 6000, 0.1, 0.05))]
    assert diagnose(series("sec_per_step", times)) == []
    warming = [value * (1.3 - 0.3 * math.exp(-at / 40)) for at, value in enumerate(level(source, 6000, 0.1, 0.05))]
    assert diagnose(series("sec_per_step", warming)) == []


def test_longer_completions_are_no_creep(source: random.Random) -> None:
    times = [value * (1 + at / 3000) for at, value in enumerate(level(source, 3000, 20.0, 0.05))]
    assert diagnose(series("sec_per_step", times, reward=lambda at: at / 3000)) == []


def test_noise_is_not_a_regression(source: random.Random) -> None:
    times = [0.1 * source.lognormvariate(0, 0.25) for _ in range(8000)]
    assert diagnose(series("sec_per_step", times)) == []


def test_unexplained_step_time_jump_is_a_warning(source: random.Random) -> None:
    times = [*level(source, 400, 0.5, 0.01), *level(source, 2000, 1.0, 0.01)]
    opened, updated, resolved = only_alert(diagnose(series("sec_per_step", times)), "step_time_change")
    # It may be the first change of a schedule, until a schedule would have changed again.
    assert opened["severity"] == "info" and abs(opened["evidence"]["from_step"] - 400) <= 16
    assert updated["severity"] == "warning" and 1530 <= updated["global_step"] <= 1680
    assert opened["title"].startswith("Steps take 2 times as long since step ")
    assert updated["message"].endswith("No recorded change explains it, and no further one followed.")
    assert resolved["outcome"] == "the new step time is stable"


@pytest.mark.parametrize("work", ["batch_size", "num_tokens_per_step", "sequence_length"])
@pytest.mark.parametrize("times_longer", [1.35, 2.0])
def test_slowdown_at_constant_work_is_a_regression(source: random.Random, work: str, times_longer: float) -> None:
    times = [*level(source, 800, 0.5, 0.01), *level(source, 800, 0.5 * times_longer, 0.01)]
    records = (step(at, **{work: 4096}, sec_per_step=took_s) for at, took_s in enumerate(times))
    (opened,) = only_alert(diagnose(records), "throughput_regression")
    assert opened["severity"] == "warning" and opened["evidence"]["rise"] == pytest.approx(times_longer - 1, abs=0.02)


def test_step_times_that_rise_like_stairs_are_planned(source: random.Random) -> None:
    times = [*level(source, 700, 0.5, 0.01), *level(source, 700, 0.9, 0.01), *level(source, 700, 1.3, 0.01)]
    opened, updated, resolved = only_alert(diagnose(series("sec_per_step", times)), "step_time_change")
    assert (opened["severity"], updated["severity"], resolved["severity"]) == ("info", "info", "info")
    assert "It seems planned: " in updated["message"]


def test_step_times_that_double_again_and_again_are_planned(source: random.Random) -> None:
    times = [took for at, s in ((400, 0.5), (900, 1.0), (700, 2.0), (900, 4.0)) for took in level(source, at, s, 0.01)]
    alerts = diagnose(series("sec_per_step", times))
    assert {alert["severity"] for alert in alerts} == {"info"} and len(alerts_of_rule(alerts, "step_time_change")) <= 2


def test_step_time_that_returns_is_resolved(source: random.Random) -> None:
    times = [*level(source, 800, 0.5, 0.01), *level(source, 200, 1.0, 0.01), *level(source, 1200, 0.5, 0.01)]
    _, resolved = only_alert(diagnose(series("sec_per_step", times)), "step_time_change")
    assert resolved["outcome"].startswith("steps take 5") and resolved["severity"] == "info"


def test_step_time_jump_with_the_learning_rate_is_planned(source: random.Random) -> None:
    times = [*level(source, 800, 0.5, 0.01), *level(source, 800, 1.0, 0.01)]
    records = series("sec_per_step", times, lr=lambda at: 1e-3 if at < 800 else 1e-4)
    (opened, _) = only_alert(diagnose(records), "step_time_change")
    assert opened["severity"] == "info" and "the learning rate changed at that step" in opened["message"]


def test_step_time_jump_at_the_step_of_an_earlier_run_is_planned(source: random.Random) -> None:
    records = list(series("sec_per_step", [*level(source, 400, 0.5, 0.01), *level(source, 2000, 1.0, 0.01)]))

    def severities(step: int, factor: float, at: int = 0) -> list[str]:
        changes = [{"step": step, "factor": factor}, {"step": None}, "x"]
        baseline = {"event": "event", "name": "baseline_speed", "step_times_s": [], "step_time_changes": changes}
        alerts = diagnose([*records[:at], baseline, *records[at:]])
        return [alert["severity"] for alert in alerts if alert["rule"] == "step_time_change"]

    assert set(severities(415, 2.0)) == {"info"}
    assert set(severities(400, 1.9, at=1000)) == {"info"}  # earlier runs were read later
    assert "warning" in severities(600, 2.0) and "warning" in severities(400, 4.0)


def test_longer_sequences_explain_longer_steps(source: random.Random) -> None:
    times = [*level(source, 800, 0.1), *level(source, 800, 0.4)]
    records = (
        step(at, sequence_length=512 if at < 800 else 2048, batch_size=8, sec_per_step=times[at]) for at in range(1600)
    )
    assert diagnose(records) == []


def test_small_slowdown_of_noisy_steps_is_found(source: random.Random) -> None:
    times = [*level(source, 1500, 0.5, 0.1), *level(source, 1500, 0.56, 0.1)]
    opened = only_alert(diagnose(series("sec_per_step", times)), "throughput_regression")[0]
    assert (
        opened["evidence"]["rise"] == pytest.approx(0.12, abs=0.06) and abs(opened["evidence"]["from_step"] - 1500) < 64
    )


# Throughput ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["samples_per_sec", "throughput/device/TPS", "perf/throughput", "throughput(tps)"])
def test_lower_throughput_is_a_regression(source: random.Random, name: str) -> None:
    rates = [*level(source, 800, 5000.0), *level(source, 800, 3000.0), *level(source, 300, 5000.0)]
    opened, resolved = only_alert(diagnose(series(name, rates)), "throughput_regression")
    assert " % lower since about step " in opened["title"] and opened["title"].endswith(f" ({name})")
    assert opened["evidence"]["after"] == pytest.approx(3000, rel=0.03)
    assert opened["evidence"]["before"] == pytest.approx(5000, rel=0.03)
    assert resolved["outcome"].startswith("throughput is 5") or resolved["outcome"].startswith("throughput is 4")


def test_higher_or_noisy_throughput_is_ignored(source: random.Random) -> None:
    rates = [*level(source, 800, 3000.0, 0.15), *level(source, 800, 5000.0, 0.15)]
    assert diagnose(series("tokens_per_sec", [*rates, 0.0, -1.0])) == []


def test_throughput_beside_a_step_time_is_not_used(source: random.Random) -> None:
    times, rates = level(source, 1600, 0.5), [*level(source, 800, 100.0), *level(source, 800, 50.0)]
    assert diagnose(series("sec_per_step", times, samples_per_sec=lambda at: rates[at])) == []


# Slower steps ------------------------------------------------------------------------------------------------------


def test_slow_and_unsteady_steps_are_a_regression(source: random.Random) -> None:
    times = [*level(source, 800, 0.5, 0.02), *(0.8 * source.lognormvariate(0, 0.3) for _ in range(800))]
    assert only_alert(diagnose(series("sec_per_step", times)), "throughput_regression")


def test_larger_batch_explains_longer_steps(source: random.Random) -> None:
    times = [*level(source, 800, 0.1), *level(source, 800, 0.12), *level(source, 800, 0.4)]
    batches = [64] * 800 + [80] * 800 + [256] * 800
    assert diagnose(step(at, batch_size=batches[at], sec_per_step=times[at]) for at in range(2400)) == []


def test_steps_after_an_evaluation_are_ignored(source: random.Random) -> None:
    records: list[Record] = []
    for at, took_s in enumerate(level(source, 4000, 0.1)):
        if at % 50 == 49:
            records.append({"event": "validation", "time": 1000.0 + at, "global_step": at, "epoch": 0})
        records.append(step(at, sec_per_step=took_s + (40.0 if at % 50 == 49 else 0.0)))
    assert diagnose(records) == []


def test_regression_thresholds_are_configurable(source: random.Random) -> None:
    times = [*level(source, 800, 0.1, 0.02), *level(source, 800, 0.12, 0.02)]
    assert diagnose(series("sec_per_step", times), {"throughput_regression": {"rise": 0.5}}) == []
    planned = {"throughput_regression": {"scheduled_rise": 0.15}, "step_time_change": {"rise": 0.15}}
    assert only_alert(diagnose(series("sec_per_step", times), planned), "step_time_change")


def test_window_mean_is_a_step_time_signal(source: random.Random) -> None:
    times = [*level(source, 800, 0.1, 0.02), *level(source, 800, 0.12, 0.02)]
    assert only_alert(diagnose(series("window/iteration_sec_mean", times)), "throughput_regression")


# Outliers ----------------------------------------------------------------------------------------------------------


def test_irregular_slow_steps_alert(source: random.Random) -> None:
    times = level(source, 3000, 0.2)
    slow = sorted(source.sample(range(500, 1500), 40))
    for at in slow:
        times[at] = 4.0
    history = only_alert(diagnose(series("sec_per_step", times)), "step_outliers")
    assert history[0]["severity"] == "info" and history[0]["status"] == "opened" and history[-1]["status"] == "resolved"
    assert len(history) <= 6, brief(history)  # forty steps are not forty records
    evidence = history[0]["evidence"]
    assert evidence["count"] >= 5 and evidence["usual_s"] == pytest.approx(0.2, rel=0.05) and evidence["value_s"] == 4.0
    assert evidence["lost_s"] == pytest.approx(3.8 * evidence["count"], rel=0.02)
    assert evidence["steps"][-1] == evidence["step"] == history[0]["global_step"]
    assert set(evidence["steps"]) <= set(slow)
    assert history[-1]["global_step"] >= slow[-1] + 500


def test_regular_slow_steps_are_ignored(source: random.Random) -> None:
    times = level(source, 3000, 0.2)
    for at in range(99, 3000, 100):
        times[at] = 9.0
    assert diagnose(series("sec_per_step", times)) == []


@pytest.mark.parametrize("period", [4, 8, 25])
def test_slow_steps_at_short_intervals_alert(source: random.Random, period: int) -> None:
    times = level(source, 1500, 0.05)
    for at in range(300, 1200, period):
        times[at] *= 1 + period / 3
    opened, resolved = only_alert(diagnose(series("sec_per_step", times)), "step_outliers")
    assert opened["severity"] == "info" and opened["evidence"]["period"] == period
    assert opened["evidence"]["lost"] == pytest.approx(0.25, abs=0.02)
    assert opened["title"] == f"A slow step every {period} steps takes 25 % of the time"
    assert 300 + 8 * period <= opened["global_step"] <= 300 + 10 * period and resolved["global_step"] > 1200


def test_cheap_slow_steps_at_short_intervals_are_ignored(source: random.Random) -> None:
    times = level(source, 1500, 0.05)
    for at in range(300, 1500, 25):
        times[at] *= 2.5
    assert diagnose(series("sec_per_step", times)) == []


def test_single_very_slow_step_alerts(source: random.Random) -> None:
    times = level(source, 1500, 0.2)
    times[700] = 95.0
    opened, resolved = only_alert(diagnose(series("sec_per_step", times)), "step_outliers")
    assert opened["global_step"] == 700 and opened["title"].startswith("Step 700 took 95 s, ")
    assert resolved["outcome"] == "no slow step in the last 500 steps"


def test_single_slow_step_limit_is_configurable(source: random.Random) -> None:
    times = level(source, 1500, 0.2)
    times[700] = 5.0
    assert diagnose(series("sec_per_step", times)) == []
    assert only_alert(diagnose(series("sec_per_step", times), {"step_outliers": {"one_s": 2.0}}), "step_outliers")


def test_batch_size_change_resolves_step_outliers(source: random.Random) -> None:
    times, batches = level(source, 3000, 0.2), [64] * 1000 + [128] * 2000
    for at in source.sample(range(500, 900), 12):
        times[at] = 4.0
    history = only_alert(
        diagnose(step(at, batch_size=batches[at], sec_per_step=times[at]) for at in range(3000)), "step_outliers"
    )
    assert history[-1]["outcome"] == "the batch size changed"


# Data stalls ---------------------------------------------------------------------------------------------------------


def test_data_stall_opens_and_resolves(source: random.Random) -> None:
    shares = [*level(source, 30, 0.05), *level(source, 30, 0.5), *level(source, 30, 0.02)]
    opened, resolved = only_alert(diagnose(series("window/share_data", shares)), "data_stall")
    assert opened["severity"] == "warning" and 30 <= opened["global_step"] < 36
    assert opened["evidence"]["share"] == pytest.approx(
        sum(shares[opened["global_step"] - 5 : opened["global_step"] + 1]) / 6
    )
    assert resolved["status"] == "resolved" and 60 < resolved["global_step"] < 66


def test_data_stall_near_the_threshold_does_not_flap(source: random.Random) -> None:
    shares = [0.25 + source.gauss(0, 0.04) for _ in range(2000)]
    history = only_alert(diagnose(series("window/share_data", shares)), "data_stall")
    assert statuses(history) == ["opened"]


def test_one_slow_window_is_ignored() -> None:
    shares = [0.02] * 30 + [0.9] + [0.02] * 30
    assert diagnose(series("window/share_data", shares)) == []


def test_data_stall_thresholds_are_configurable(source: random.Random) -> None:
    shares = level(source, 30, 0.1)
    assert diagnose(series("data_wait_share", shares)) == []
    assert (
        only_alert(
            diagnose(series("data_wait_share", shares), {"data_stall": {"share": 0.05, "windows": 1}}), "data_stall"
        )[0]["global_step"]
        == 0
    )


# Hang --------------------------------------------------------------------------------------------------------------


def watch(engine: RuleEngine, seconds: range, every_s: int | None) -> list[Record]:
    """Let time pass, second by second, with a step now and then."""
    alerts: list[Record] = []
    for second in seconds:
        if every_s is not None and second % every_s == 0:
            alerts += engine.observe(
                {"event": "step", "time": float(second), "global_step": second // every_s, "loss": 1.0 + second % 7}
            )
        alerts += engine.tick(float(second))
    return alerts


def test_hang_opens_and_resolves() -> None:
    engine = RuleEngine()
    alerts = watch(engine, range(600), 1)
    assert alerts == []
    alerts = watch(engine, range(600, 2000), None)
    (opened,) = alerts
    assert (opened["rule"], opened["severity"], opened["global_step"]) == ("hang", "critical", 599)
    assert opened["evidence"]["waited_s"] == 601 and opened["evidence"]["limit_s"] == 600
    assert opened["title"] == "No progress for 10 min, since step 599"
    assert engine.num_open == (1, 1)
    (resolved,) = watch(engine, range(2000, 2600), 1)
    assert resolved["status"] == "resolved" and resolved["outcome"].startswith("the run continued after ")
    assert engine.num_open == (0, 0)
    checked([*alerts, resolved])


def test_long_steps_raise_the_hang_limit() -> None:
    engine = RuleEngine()
    assert watch(engine, range(3000), 250) == []
    assert watch(engine, range(3000, 4000), None) == []  # five times 250 s after the last step, at 2750 s
    assert watch(engine, range(4000, 4100), None)[0]["rule"] == "hang"


def test_more_time_is_allowed_before_the_first_step() -> None:
    engine = RuleEngine()
    engine.observe({**START, "time": 0.0})
    assert watch(engine, range(1800), None) == []
    (opened,) = watch(engine, range(1800, 3000), None)
    assert opened["title"].endswith("since the start")


@pytest.mark.parametrize(
    "event", ["span", "span_start", "event", "validation", "checkpoint", "epoch", "a_kind_to_come"]
)
def test_records_of_the_training_code_are_progress(event: str) -> None:
    engine = RuleEngine(resolve_rules({"hang": {"least_s": 10, "times_longest": 1.5}}))
    assert watch(engine, range(20), 1) == []
    for second in range(20, 200):
        assert engine.observe({"event": event, "time": float(second)}) == []
        assert engine.tick(float(second)) == []


@pytest.mark.parametrize("event", ["system", "profile", "alert", "telemetry_error", "control_change"])
def test_records_of_telemetry_itself_are_not_progress(event: str) -> None:
    engine = RuleEngine(resolve_rules({"hang": {"least_s": 10}}))
    watch(engine, range(20), 1)
    alerts: list[Record] = []
    for second in range(20, 60):
        alerts += engine.observe({"event": event, "time": float(second), "id": "1", "rule": "hang", "status": "opened"})
        alerts += engine.tick(float(second))
    assert [alert["rule"] for alert in alerts] == ["hang"]


def test_clock_set_back_is_not_a_hang() -> None:
    engine = RuleEngine()
    watch(engine, range(5000, 5100), 1)
    assert watch(engine, range(100, 350), None) == []


# Checkpoints -------------------------------------------------------------------------------------------------------


def saves(num: int, every_s: float, took_s: float, first_s: float = 1000.0) -> list[Record]:
    return [
        {
            "event": "span",
            "time": first_s + every_s * index,
            "span_id": str(index),
            "name": "checkpoint_save_sync",
            "duration_s": took_s,
        }
        for index in range(num)
    ]


def test_rare_checkpoints_alert_names_optimal_interval() -> None:
    (opened,) = only_alert(diagnose(saves(6, 6 * 3600, 40.0)), "checkpoint_interval")
    best_s = math.sqrt(2 * 24 * 3600 * 40)  # Young and Daly
    evidence = opened["evidence"]
    assert opened["severity"] == "info" and evidence["best_interval_s"] == pytest.approx(best_s)
    assert evidence["interval_s"] == 6 * 3600 and evidence["save_s"] == 40.0 and evidence["saves"] == 3
    assert opened["title"] == "Checkpoints are 6 h apart: a failure would lose a lot of work"
    assert opened["message"] == "A save takes 40 s; the optimal interval is about 43.8 min."


def test_expensive_checkpoints_alert() -> None:
    (opened,) = only_alert(diagnose(saves(10, 300, 60.0)), "checkpoint_interval")
    assert opened["evidence"]["share"] == pytest.approx(0.2)
    assert opened["title"] == "Saving checkpoints takes 20 % of the time"


def test_good_checkpoint_interval_resolves_the_alert() -> None:
    good = saves(10, 2600, 40.0)
    assert diagnose(good) == []
    _, resolved = only_alert(diagnose([*saves(5, 300, 60.0), *saves(10, 2600, 40.0, 1e5)]), "checkpoint_interval")
    assert resolved["outcome"] == "checkpoints are 43.3 min apart now and take 1.5 % of the time"


def test_save_recorded_twice_counts_once() -> None:
    records: list[Record] = []
    for save in saves(8, 2600, 40.0):
        records += [save, {"event": "checkpoint", "time": save["time"] + 0.5, "path": "x", "save_s": 40.0}]
    assert diagnose(records) == []


def test_failure_interval_is_configurable() -> None:
    rules: dict[str, Any] = {"checkpoint_interval": {"hours_between_failures": 2}}
    assert only_alert(diagnose(saves(6, 2600, 40.0), rules), "checkpoint_interval")


def test_other_spans_and_untimed_checkpoints_are_ignored() -> None:
    others = [{**save, "name": "model_forward"} for save in saves(20, 10, 9.0)]
    plain = [{"event": "checkpoint", "time": 1000.0 * index, "path": "x"} for index in range(20)]
    assert diagnose([*others, *plain]) == []


# Slower than earlier runs --------------------------------------------------------------------------------------------


def baseline_speed(*times: float) -> Record:
    return {"event": "event", "name": "baseline_speed", "perf_tag": "tag", "step_times_s": list(times)}


@pytest.mark.parametrize(("times", "factor", "is_slower"), [((0.5,), 1.1, True), ((0.5,), 1.04, False)])
def test_run_slower_than_earlier_runs_is_reported_once(
    source: random.Random, times: tuple[float, ...], factor: float, is_slower: bool
) -> None:
    steps = list(series("sec_per_step", level(source, 800, factor * times[0], 0.01)))
    found = diagnose([*steps[:10], baseline_speed(*times), *steps[10:]])
    assert [alert["rule"] for alert in found] == ["slower_than_baseline"] * is_slower
    if is_slower:
        assert found[0]["evidence"]["rise"] == pytest.approx(factor - 1, abs=0.01)
        assert found[0]["global_step"] < 250


def test_restless_or_scattered_runs_are_not_slower(source: random.Random) -> None:
    slow = list(series("sec_per_step", level(source, 800, 0.56, 0.01)))
    assert diagnose([baseline_speed(0.5, 0.45, 0.55, 0.6), *slow]) == []
    wander = [0.56 * math.exp(0.06 * math.sin(number / 40)) for number in range(800)]
    assert diagnose([baseline_speed(0.5), *series("sec_per_step", wander)]) == []
    assert diagnose([{**baseline_speed(), "step_times_s": "x"}, *slow]) == []


def test_earlier_runs_that_were_slow_do_not_hide_the_next_slow_run(source: random.Random) -> None:
    times = [0.5 * math.exp(source.gauss(0.0, 0.003)) for _ in range(10)]
    slow_at = {"scattered": {2, 7}, "newest": {0, 1}, "many": {1, 4, 8}, "changed": {0, 1, 2, 3}}
    for kind, numbers in slow_at.items():
        earlier = [1.1 * time_s if number in numbers else time_s for number, time_s in enumerate(times)]
        for factor, is_slower in ((1.0, False), (1.17 if kind != "changed" else 1.2, True)):
            steps = series("sec_per_step", level(source, 400, factor * 0.5, 0.01))
            found = diagnose([baseline_speed(*earlier), *steps])
            assert [alert["rule"] for alert in found] == ["slower_than_baseline"] * is_slower, (kind, factor)
    # Since the last four runs, 0.55 s are usual; two of ten show that a run can take that long.
    usual = series("sec_per_step", level(source, 400, 0.55, 0.01))
    assert diagnose([baseline_speed(*(1.1 * time_s for time_s in times[:4]), *times[4:]), *usual]) == []
    possible = series("sec_per_step", level(source, 400, 0.55, 0.01))
    assert diagnose([baseline_speed(times[0], 1.1 * times[1], *times[2:9], 1.1 * times[9]), *possible]) == []


def test_quantiles_are_those_of_comparisons() -> None:
    from tachograph.comparison import student_quantile
    from tachograph.diagnostics.rules.slower_than_baseline import _QUANTILES

    expected = [student_quantile(0.995, degrees) for degrees in range(4, 24)]
    assert list(_QUANTILES) == pytest.approx(expected, abs=1e-3)
