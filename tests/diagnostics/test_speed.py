"""Rules about time: slower steps, outliers, waiting for data, hangs, checkpoints."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tachograph.diagnostics import RuleEngine, resolve_rules
from tests.diagnostics import (
    SEEDS,
    START,
    Record,
    brief,
    checked,
    diagnose,
    level,
    series,
    statuses,
    step,
    the_only,
)


@pytest.fixture(params=SEEDS)
def source(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


# Slower steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usual_s", [0.1, 3.0])
def test_steps_that_take_longer_from_some_point_on(source: random.Random, usual_s: float) -> None:
    times = [*level(source, 800, usual_s, 0.05), *level(source, 800, 1.2 * usual_s, 0.05)]
    (opened,) = the_only(diagnose(series("sec_per_step", times)), "throughput_regression")
    assert opened["severity"] == "warning" and 840 < opened["global_step"] < 920
    evidence = opened["evidence"]
    assert evidence["before_s"] == pytest.approx(usual_s, rel=0.03)
    assert evidence["after_s"] == pytest.approx(1.2 * usual_s, rel=0.03)
    assert evidence["rise"] == pytest.approx(0.2, abs=0.04) and abs(evidence["from_step"] - 800) <= 32
    assert " % longer since about step " in opened["title"]


def test_a_regression_is_over_when_steps_are_fast_again_and_does_not_flap(source: random.Random) -> None:
    slow = level(source, 1600, 0.12, 0.06)
    times = [*level(source, 800, 0.1, 0.06), *slow, *level(source, 800, 0.1, 0.06)]
    life = the_only(diagnose(series("sec_per_step", times)), "throughput_regression")
    assert statuses(life) == ["opened", "resolved"] and 2400 < life[-1]["global_step"] < 2450
    assert life[-1]["outcome"].endswith(" ms again")


def test_a_slow_drift_of_the_step_time_is_none_of_its_business(source: random.Random) -> None:
    times = [value * (1 + at / 6000) for at, value in enumerate(level(source, 6000, 0.1, 0.05))]
    assert diagnose(series("sec_per_step", times)) == []


def test_noise_is_no_regression(source: random.Random) -> None:
    times = [0.1 * source.lognormvariate(0, 0.25) for _ in range(8000)]
    assert diagnose(series("sec_per_step", times)) == []


def test_a_clean_jump_is_told_as_planned_and_is_then_known(source: random.Random) -> None:
    times = [*level(source, 800, 0.5, 0.01), *level(source, 1600, 1.0, 0.01)]
    opened, resolved = the_only(diagnose(series("sec_per_step", times)), "step_time_change")
    assert opened["severity"] == "info" and abs(opened["evidence"]["from_step"] - 800) <= 16
    assert opened["title"].startswith("Steps take 2 times as long since step ")
    assert resolved["outcome"] == "the new step time is stable"


def test_steps_that_become_slow_and_unsteady_are_no_plan(source: random.Random) -> None:
    times = [*level(source, 800, 0.5, 0.02), *(0.8 * source.lognormvariate(0, 0.3) for _ in range(800))]
    assert the_only(diagnose(series("sec_per_step", times)), "throughput_regression")


def test_a_larger_batch_explains_longer_steps(source: random.Random) -> None:
    times = [*level(source, 800, 0.1), *level(source, 800, 0.12), *level(source, 800, 0.4)]
    batches = [64] * 800 + [80] * 800 + [256] * 800
    assert diagnose(step(at, batch_size=batches[at], sec_per_step=times[at]) for at in range(2400)) == []


def test_steps_after_an_evaluation_do_not_count(source: random.Random) -> None:
    records: list[Record] = []
    for at, took_s in enumerate(level(source, 4000, 0.1)):
        if at % 50 == 49:
            records.append({"event": "validation", "time": 1000.0 + at, "global_step": at, "val_accuracy": 0.5})
        records.append(step(at, sec_per_step=took_s + (40.0 if at % 50 == 49 else 0.0)))
    assert diagnose(records) == []


def test_how_much_longer_is_a_setting(source: random.Random) -> None:
    times = [*level(source, 800, 0.1, 0.02), *level(source, 800, 0.12, 0.02)]
    assert diagnose(series("sec_per_step", times), {"throughput_regression": {"rise": 0.5}}) == []
    planned = {"throughput_regression": {"scheduled_rise": 0.15}, "step_time_change": {"rise": 0.15}}
    assert the_only(diagnose(series("sec_per_step", times), planned), "step_time_change")


def test_the_window_of_a_trainer_is_understood_too(source: random.Random) -> None:
    times = [*level(source, 800, 0.1, 0.02), *level(source, 800, 0.12, 0.02)]
    assert the_only(diagnose(series("window/iteration_sec_mean", times)), "throughput_regression")


# Outliers ----------------------------------------------------------------------------------------------------------


def test_steps_that_take_far_longer_now_and_then(source: random.Random) -> None:
    times = level(source, 3000, 0.2)
    slow = sorted(source.sample(range(500, 1500), 40))
    for at in slow:
        times[at] = 4.0
    life = the_only(diagnose(series("sec_per_step", times)), "step_outliers")
    assert life[0]["severity"] == "info" and life[0]["status"] == "opened" and life[-1]["status"] == "resolved"
    assert len(life) <= 6, brief(life)  # forty steps are not forty records
    evidence = life[0]["evidence"]
    assert evidence["count"] >= 5 and evidence["usual_s"] == pytest.approx(0.2, rel=0.05) and evidence["value_s"] == 4.0
    assert evidence["lost_s"] == pytest.approx(3.8 * evidence["count"], rel=0.02)
    assert evidence["steps"][-1] == evidence["step"] == life[0]["global_step"]
    assert set(evidence["steps"]) <= set(slow)
    assert life[-1]["global_step"] >= slow[-1] + 500


def test_slow_steps_at_a_regular_distance_are_work_that_somebody_planned(source: random.Random) -> None:
    times = level(source, 3000, 0.2)
    for at in range(99, 3000, 100):
        times[at] = 9.0
    assert diagnose(series("sec_per_step", times)) == []


def test_one_step_that_cost_much_time_is_told_alone(source: random.Random) -> None:
    times = level(source, 1500, 0.2)
    times[700] = 95.0
    opened, resolved = the_only(diagnose(series("sec_per_step", times)), "step_outliers")
    assert opened["global_step"] == 700 and opened["title"].startswith("Step 700 took 95 s, ")
    assert resolved["outcome"] == "no slow step in the last 500 steps"


def test_what_one_step_may_lose_is_a_setting(source: random.Random) -> None:
    times = level(source, 1500, 0.2)
    times[700] = 5.0
    assert diagnose(series("sec_per_step", times)) == []
    assert the_only(diagnose(series("sec_per_step", times), {"step_outliers": {"one_s": 2.0}}), "step_outliers")


def test_outliers_of_smaller_batches_are_not_counted_with_those_of_larger_ones(source: random.Random) -> None:
    times, batches = level(source, 3000, 0.2), [64] * 1000 + [128] * 2000
    for at in source.sample(range(500, 900), 12):
        times[at] = 4.0
    life = the_only(
        diagnose(step(at, batch_size=batches[at], sec_per_step=times[at]) for at in range(3000)), "step_outliers"
    )
    assert life[-1]["outcome"] == "the batch size changed"


# Waiting for data --------------------------------------------------------------------------------------------------


def test_waiting_for_data(source: random.Random) -> None:
    shares = [*level(source, 30, 0.05), *level(source, 30, 0.5), *level(source, 30, 0.02)]
    opened, resolved = the_only(diagnose(series("window/share_data", shares)), "data_stall")
    assert opened["severity"] == "warning" and 30 <= opened["global_step"] < 36
    assert opened["evidence"]["share"] == pytest.approx(
        sum(shares[opened["global_step"] - 5 : opened["global_step"] + 1]) / 6
    )
    assert resolved["status"] == "resolved" and 60 < resolved["global_step"] < 66


def test_waiting_around_the_threshold_does_not_flap(source: random.Random) -> None:
    shares = [0.25 + source.gauss(0, 0.04) for _ in range(2000)]
    life = the_only(diagnose(series("window/share_data", shares)), "data_stall")
    assert statuses(life) == ["opened"]


def test_one_window_of_waiting_is_nothing() -> None:
    shares = [0.02] * 30 + [0.9] + [0.02] * 30
    assert diagnose(series("window/share_data", shares)) == []


def test_the_share_of_waiting_is_a_setting(source: random.Random) -> None:
    shares = level(source, 30, 0.1)
    assert diagnose(series("data_wait_share", shares)) == []
    assert (
        the_only(
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


def test_a_run_that_stands_still_and_goes_on() -> None:
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


def test_a_run_with_long_steps_is_given_longer() -> None:
    engine = RuleEngine()
    assert watch(engine, range(3000), 250) == []
    assert watch(engine, range(3000, 4000), None) == []  # five times 250 s after the last step, at 2750 s
    assert watch(engine, range(4000, 4100), None)[0]["rule"] == "hang"


def test_loading_and_compiling_may_take_their_time() -> None:
    engine = RuleEngine()
    engine.observe({**START, "time": 0.0})
    assert watch(engine, range(1800), None) == []
    (opened,) = watch(engine, range(1800, 3000), None)
    assert opened["title"].endswith("since the start")


@pytest.mark.parametrize(
    "event", ["span", "span_start", "event", "validation", "checkpoint", "epoch", "a_kind_to_come"]
)
def test_any_record_of_the_training_code_is_progress(event: str) -> None:
    engine = RuleEngine(resolve_rules({"hang": {"least_s": 10, "times_longest": 1.5}}))
    assert watch(engine, range(20), 1) == []
    for second in range(20, 200):
        assert engine.observe({"event": event, "time": float(second)}) == []
        assert engine.tick(float(second)) == []


@pytest.mark.parametrize("event", ["system", "profile", "alert", "telemetry_error", "control_change"])
def test_what_goes_on_without_the_training_code_is_no_progress(event: str) -> None:
    engine = RuleEngine(resolve_rules({"hang": {"least_s": 10}}))
    watch(engine, range(20), 1)
    told: list[Record] = []
    for second in range(20, 60):
        told += engine.observe({"event": event, "time": float(second), "id": "1", "rule": "hang", "status": "opened"})
        told += engine.tick(float(second))
    assert [alert["rule"] for alert in told] == ["hang"]


def test_a_clock_that_goes_back_is_no_hang() -> None:
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


def test_checkpoints_that_come_too_seldom_are_told_the_best_interval() -> None:
    (opened,) = the_only(diagnose(saves(6, 6 * 3600, 40.0)), "checkpoint_interval")
    best_s = math.sqrt(2 * 24 * 3600 * 40)  # Young and Daly
    evidence = opened["evidence"]
    assert opened["severity"] == "info" and evidence["best_interval_s"] == pytest.approx(best_s)
    assert evidence["interval_s"] == 6 * 3600 and evidence["save_s"] == 40.0 and evidence["saves"] == 3
    assert opened["title"] == "Checkpoints are 6 h apart: a failure would lose a lot of work"
    assert opened["message"] == "A save takes 40 s; the optimal interval is about 43.8 min."


def test_checkpoints_that_take_too_much_of_the_time() -> None:
    (opened,) = the_only(diagnose(saves(10, 300, 60.0)), "checkpoint_interval")
    assert opened["evidence"]["share"] == pytest.approx(0.2)
    assert opened["title"] == "Saving checkpoints takes 20 % of the time"


def test_checkpoints_at_a_good_interval_are_fine_and_resolve_it() -> None:
    good = saves(10, 2600, 40.0)
    assert diagnose(good) == []
    _, resolved = the_only(diagnose([*saves(5, 300, 60.0), *saves(10, 2600, 40.0, 1e5)]), "checkpoint_interval")
    assert resolved["outcome"] == "checkpoints are 43.3 min apart now and take 1.5 % of the time"


def test_a_save_that_is_told_twice_is_one_save() -> None:
    records: list[Record] = []
    for save in saves(8, 2600, 40.0):
        records += [save, {"event": "checkpoint", "time": save["time"] + 0.5, "path": "x", "save_s": 40.0}]
    assert diagnose(records) == []


def test_how_often_things_fail_is_a_setting() -> None:
    rules: dict[str, Any] = {"checkpoint_interval": {"hours_between_failures": 2}}
    assert the_only(diagnose(saves(6, 2600, 40.0), rules), "checkpoint_interval")


def test_other_spans_and_checkpoints_without_a_time_are_left_alone() -> None:
    others = [{**save, "name": "model_forward"} for save in saves(20, 10, 9.0)]
    plain = [{"event": "checkpoint", "time": 1000.0 * index, "path": "x"} for index in range(20)]
    assert diagnose([*others, *plain]) == []
