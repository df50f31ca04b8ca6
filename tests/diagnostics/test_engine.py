"""The rule engine as a whole: hostile values, batches, resumes, cost, and what readers make of its alerts."""

from __future__ import annotations

import gc
import math
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tachograph.diagnostics import RULES, RuleEngine, resolve_rules
from tachograph.diagnostics._signal_stats import SignalStats
from tachograph.diagnostics._signals import SIGNALS, scale_of
from tachograph.reader import AlertHistory
from tachograph.records import encode, signal_of
from tests.conftest import Script
from tests.diagnostics import (
    START,
    Record,
    alerts_of_rule,
    brief,
    checked,
    diagnose,
    falling,
    level,
    series,
    statuses,
    step,
    system,
)

NAMES = ("time", "global_step", "loss", "grad_norm", "lr", "sec_per_step", "kl", "entropy", "loss_scale", "batch_size")


def troubled(source: random.Random, num: int) -> list[list[float]]:
    """Return the rows of a run with one fault after another."""
    rows = []
    for at in range(num):
        loss = 2 + 8 * math.exp(-at / 200) + source.gauss(0, 0.05)
        phase = at % 4000
        loss += 5.0 if phase in (600, 640, 900) else 3.0 if 1500 <= phase < 1800 else 0.0
        norm = abs(source.gauss(1, 0.2)) * (50 if 2000 <= phase < 2100 else 1)
        took_s = 0.1 * (1 + source.gauss(0, 0.02)) * (1.2 if phase > 3000 else 1.0) + (
            9.0 if source.random() < 0.01 else 0
        )
        kl = 0.05 * source.lognormvariate(0, 0.3) + (3.0 if phase == 700 else 0.0)
        rows.append(
            [
                1e9 + 0.1 * at,
                at,
                math.nan if phase == 2500 else loss,
                math.inf if phase in (2700, 2701, 2702, 3300) else norm,
                1e-3 if phase < 3500 else 1e-4,
                took_s,
                kl,
                2 * math.exp(-at / 500),
                65536.0 if phase < 2800 else 65536.0 / 2 ** min(10, (phase - 2800) // 5),
                64 if phase < 3700 else 128,
            ]
        )
    return rows


def observe_singly(rows: list[list[Any]]) -> list[Record]:
    engine = RuleEngine()
    return [alert for row in rows for alert in engine.observe({"event": "step", **dict(zip(NAMES, row, strict=True))})]


def columns_of(rows: list[list[Any]]) -> list[list[Any]]:
    return [[row[index] for row in rows] for index in range(len(NAMES))]


def observe_batched(rows: list[list[Any]], cuts: list[int]) -> list[Record]:
    engine, alerts = RuleEngine(), []
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        alerts += engine.observe_steps(NAMES, columns_of(rows[begin:end]))
    return alerts


# Single records and batches ------------------------------------------------------------------------------------------


def test_batched_and_single_steps_give_the_same_alerts() -> None:
    rows = troubled(random.Random(1), 8000)
    alerts = checked(observe_singly(rows))
    assert len({alert["rule"] for alert in alerts}) >= 8, brief(alerts)
    for size in (1, 16, 100, 8000):
        assert [encode(alert) for alert in observe_batched(rows, list(range(size, 8000, size)))] == list(
            map(encode, alerts)
        )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_batch_boundaries_do_not_change_alerts(data: st.DataObject) -> None:
    rows = troubled(random.Random(data.draw(st.integers(0, 20))), 900)
    extreme = st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 1e6, 3, -7.5, 10**250])
    for at, place, value in data.draw(
        st.lists(st.tuples(st.integers(0, 899), st.integers(2, len(NAMES) - 1), extreme), max_size=60)
    ):
        for index in range(at, min(900, at + data.draw(st.sampled_from([1, 20, 200])))):
            rows[index][place] = value
    cuts = sorted(data.draw(st.sets(st.integers(1, 899), max_size=12)))
    alerts = [encode(alert) for alert in observe_singly(rows)]
    assert [encode(alert) for alert in observe_batched(rows, cuts)] == alerts


LEARNING_RATES: list[Callable[[int], float]] = [
    lambda at: 3e-4 * (1 - at / 4800),
    lambda at: 3e-4 * (1 - at % 500 / 510),  # restarts
    lambda at: 3e-4 if at % 700 < 600 else 3e-5,
    lambda at: 3e-4 * (0.5 + at * 7919 % 1000 / 1000),  # changes all the time
    lambda at: 3e-4 * (0.1 + at * 7919 % 1000 / 1000) if at % 900 < 150 else 1e-3,
    lambda at: max(0.0, 3e-4 * (1 - at / 1800)),
]


def test_quiet_blocks_that_are_skipped_do_not_change_alerts() -> None:
    names = ("time", "global_step", "train_loss", "lr", "grad_norm", "sec_per_step")
    num_alerts = 0
    for seed, lr_at in enumerate(LEARNING_RATES):
        source = random.Random(seed)
        noise, took_s = source.choice([0.005, 0.03, 0.2]), source.choice([0.01, 0.3])
        columns = [
            [(1 + at / 300) ** -0.3 * max(0.02, 1 + source.gauss(0, noise)) for at in range(2400)],
            list(map(lr_at, range(2400))),
            [math.exp(source.gauss(0, 0.3)) for _ in range(2400)],
            [took_s * math.exp(source.gauss(0, 0.03)) for _ in range(2400)],
        ]
        for _ in range(source.randrange(4)):
            begin, column = source.randrange(300, 2300), source.choice(columns)
            end = source.choice([begin + 1, begin + 40, 2400])
            change = source.choice([1.5, 4.0, 30.0, 0.0, math.nan])
            column[begin:end] = [change * value for value in column[begin:end]]
        columns = [[1000.0 + at for at in range(2400)], list(range(2400)), *columns]
        single, batched, alerts = RuleEngine(), RuleEngine(), ([], [])
        for row in zip(*columns, strict=True):
            alerts[0].extend(single.observe({"event": "step", **dict(zip(names, row, strict=True))}))
        at = 0
        while at < 2400:
            size = source.choice([5, 64, 100, 256, 700])
            alerts[1].extend(batched.observe_steps(names, [column[at : at + size] for column in columns]))
            at += size
        assert list(map(encode, alerts[0])) == list(map(encode, alerts[1])), seed
        num_alerts += len(alerts[0])
    assert num_alerts > 5


def test_rules_do_not_depend_on_others_being_on() -> None:
    """Also those that use statistics for which another rule sets the limits."""
    rows, quiet_rows = troubled(random.Random(1), 2400), troubled(random.Random(1), 700)[300:699]
    start = [[*row[:2], 2.0 + random.Random(at).gauss(0, 0.02), *row[3:]] for at, row in enumerate(quiet_rows)]
    rows = [[1000.0 + at, at, *row[2:]] for at, row in enumerate([*start, *rows])]
    judging = [name for name in RULES.names() if {"loss", "lr", "grad_norm", "step_s"} & set(RULES[name].block_signals)]
    num_alerts = 0
    for only in judging:
        enabled = resolve_rules({name: name == only for name in RULES.names()})
        single, batched = RuleEngine(enabled), RuleEngine(enabled)
        alerts = [
            alert for row in rows for alert in single.observe({"event": "step", **dict(zip(NAMES, row, strict=True))})
        ]
        parts = (rows[begin : begin + 300] for begin in range(0, len(rows), 300))
        in_batches = [alert for part in parts for alert in batched.observe_steps(NAMES, columns_of(part))]
        assert list(map(encode, in_batches)) == list(map(encode, alerts)), only
        num_alerts += len(alerts)
    assert num_alerts > 5


def test_values_that_rarely_change_are_judged_in_batches() -> None:
    names = ("time", "global_step", "train_loss", "lr", "iteration_time_ms", "batch_size", "loss_scale")
    num_alerts = 0
    for seed in range(4):
        source = random.Random(seed)
        noise = source.choice([0.02, 0.1])
        columns = [
            [(1 + at / 300) ** -0.3 * (1 + source.gauss(0, noise)) for at in range(1600)],
            [3e-4] * 1600,
            [20 * math.exp(source.gauss(0, 0.03)) for _ in range(1600)],
            [64 if at < 900 else 96 for at in range(1600)],
            [65536.0 if at < 500 else 65536.0 / 2 ** min(10, (at - 500) // 5) for at in range(1600)],
        ]
        for column in source.sample(columns, 2):
            begin = source.randrange(300, 1500)
            end = source.choice([begin + 1, begin + 40, 1600])
            column[begin:end] = [source.choice([1.5, 4.0, math.nan]) * value for value in column[begin:end]]
        columns = [[1000.0 + at for at in range(1600)], list(range(1600)), *columns]
        single = RuleEngine()
        alerts = [
            encode(alert)
            for row in zip(*columns, strict=True)
            for alert in single.observe({"event": "step", **dict(zip(names, row, strict=True))})
        ]
        for size in (1, 7, 64, 1000):
            engine, batched = RuleEngine(), []
            for at in range(0, 1600, size):
                batched += map(encode, engine.observe_steps(names, [column[at : at + size] for column in columns]))
            assert batched == alerts, (seed, size)
        num_alerts += len(alerts)
    assert num_alerts > 5


def test_single_and_batched_steps_can_alternate() -> None:
    rows = troubled(random.Random(2), 4000)
    engine, alerts = RuleEngine(), []
    for begin in range(0, 4000, 50):
        part = rows[begin : begin + 50]
        if begin % 100:
            alerts += engine.observe_steps(NAMES, columns_of(part))
        else:
            for row in part:
                alerts += engine.observe({"event": "step", **dict(zip(NAMES, row, strict=True))})
    assert list(map(encode, alerts)) == list(map(encode, observe_singly(rows)))


def test_batched_steps_with_evaluations_give_the_same_alerts() -> None:
    source, names = random.Random(1), ("time", "global_step", "val_loss", "sec_per_step")
    single, batched, alerts = RuleEngine(), RuleEngine(), ([], [])
    times = [*level(source, 1000, 0.1, 0.02), *level(source, 1000, 0.12, 0.02)]
    for at, took_s in enumerate(times):
        row = [1000.0 + at, at, 2.0, took_s]
        alerts[0].extend(single.observe({"event": "step", **dict(zip(names, row, strict=True))}))
        alerts[1].extend(batched.observe_steps(names, [[value] for value in row]))
    assert list(map(encode, alerts[0])) == list(map(encode, alerts[1]))


def test_numpy_values_give_encodable_alerts() -> None:
    numpy = pytest.importorskip("numpy")
    engine, alerts = RuleEngine(), []
    for row in troubled(random.Random(1), 3000):
        kinds = [float, int, numpy.float32, numpy.float64, numpy.float32, numpy.float64, *[numpy.float64] * 4]
        alerts += engine.observe_steps(NAMES, [[kind(value)] for kind, value in zip(kinds, row, strict=True)])
    assert len(checked(alerts)) > 5


def test_numpy_step_number_is_encodable() -> None:
    numpy = pytest.importorskip("numpy")
    alerts = []
    engine = RuleEngine()
    for at in range(100):
        alerts += engine.observe_steps(
            ("time", "global_step", "loss"),
            [[1000.0 + at], [numpy.int64(at)], [math.nan if at == 50 else 2.0 + at % 3]],
        )
    assert checked(alerts)


# Hostile values ----------------------------------------------------------------------------------------------------

JUNK: list[Any] = [
    None,
    "1.5",
    "",
    True,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    10**290,
    10**400,
    -3,
    0,
    0.0,
    1.5,
    [1.0],
    {"a": 1},
]
METRICS = [names[0] for names in SIGNALS.values()]
SYSTEM = [
    *("cpu_mem_rss_mb", "host_mem_available_gb", "host_mem_used_pct", "gpu_alloc_retries"),
    *("gpu/0/util_pct", "gpu/0/mem_used_gb", "gpu/0/mem_total_gb", "gpu//util_pct", "gpu/", "gpu/x"),
]


def junk(source: random.Random, num: int) -> Iterator[Record]:
    """Yield records with random wrong values."""
    for at in range(num):
        head: Record = {"time": source.choice([at, at, None, "x", math.nan, -5, 1e308])}
        head["global_step"] = source.choice([at, at, at - 500, None, 2**70, 1.5, "x", True, -1])
        kind = source.choice(
            ["step"] * 12
            + ["system"] * 4
            + ["validation", "epoch", "checkpoint", "span", "span_stop", "control_change", "error", "test", "to_come"]
        )
        names = SYSTEM if kind == "system" else METRICS
        fields = {name: source.choice(JUNK) for name in names if source.random() < 0.8}
        if kind in ("checkpoint", "span", "span_stop", "control_change"):
            fields = {
                "name": source.choice(["lr", "batch_size", "checkpoint_save_sync", None, 7]),
                "save_s": source.choice(JUNK),
                "duration_s": source.choice(JUNK),
            }
        record = {"event": kind, **head, **fields}
        for name in source.sample(sorted(record), 2):
            if name != "event" and source.random() < 0.3:
                del record[name]
        yield record


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_junk_records_never_raise(seed: int) -> None:
    engine = RuleEngine()
    for record in junk(random.Random(seed), 3000):
        for alert in engine.observe(record):
            encode(alert)
        for alert in engine.tick(float(record["time"] or 0) if isinstance(record.get("time"), (int, float)) else 0.0):
            encode(alert)


def constant(value: Any) -> Callable[[int], Any]:
    return lambda at: value


HOSTILE: dict[str, Callable[[int], Any]] = {
    "huge": constant(1e308),
    "below zero": constant(-4.0),
    "huge and below": lambda at: 1e308 if at % 3 else -1e308,
    "tiny": lambda at: 5e-324 * (at % 4),
    "whole and huge": lambda at: 10**299 + at,
    "from nothing to much": lambda at: 0.001 if at < 500 else 1e300,
    "all kinds of sizes": lambda at: 10.0 ** ((at * 7919) % 600 - 300),
    "a constant with one blip": lambda at: 2.0 if at != 700 else 3.0,
    "up and down": lambda at: float(at % 2),
    "missing": lambda at: None if at % 2 else 1.0,
    "nothing": constant(0.0),
    "nothing, then something": lambda at: 0.0 if at < 500 else 0.01 * (1 + at % 3),
    "nothing, now and then something": lambda at: 0.1 if at % 37 == 0 else 0.0,
}


def alerts_on_every_metric(value_at: Callable[[int], Any], num: int = 2000) -> list[Record]:
    engine, alerts = RuleEngine(), []
    for at in range(num):
        value = value_at(at)
        alerts += engine.observe(step(at, **dict.fromkeys(METRICS, value)))
        alerts += engine.observe(system(at, **dict.fromkeys(SYSTEM, value)))
    for alert in alerts:
        encode(alert)
    return alerts


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_series_cause_no_error_and_no_flood(what: str) -> None:
    alerts = alerts_on_every_metric(HOSTILE[what])
    assert sum(alert["status"] == "updated" for alert in alerts) < 60, brief(alerts[:20])


def test_missing_or_repeated_steps_and_times_are_tolerated() -> None:
    losses = falling(random.Random(1), 1500)
    losses[1000] += 4.0
    usual = [alert["rule"] for alert in diagnose(series("loss", losses))]
    back = [step(at % 300, loss=loss) for at, loss in enumerate(losses)]
    bare = [{"event": "step", "loss": loss} for loss in losses]
    gaps = [step(at * at, loss=loss) for at, loss in enumerate(losses)]
    for records in (back, gaps):
        assert [alert["rule"] for alert in diagnose(records)] == usual
    engine = RuleEngine()
    alerts = [alert for record in bare for alert in engine.observe(record)]
    assert [alert["rule"] for alert in alerts] == usual
    assert alerts[0]["global_step"] == 1000  # counted, because the records have none
    assert all(alert.get("time") is None for alert in alerts)


def test_recorded_alerts_are_not_observed() -> None:
    alerts = diagnose(series("loss", [*level(random.Random(1), 100, 2.0), math.nan]))
    assert alerts and RuleEngine().observe(alerts[0]) == []


# Life cycle ----------------------------------------------------------------------------------------------------------


def test_resume_abandons_open_alerts_and_starts_over() -> None:
    engine, losses = RuleEngine(prefix="x-"), falling(random.Random(1), 1000)
    first = [alert for record in series("loss", [*losses, math.nan]) for alert in engine.observe(record)]
    assert [alert["id"] for alert in first] == ["x-1"] and engine.num_open == (1, 1)
    assert engine.observe({**START, "max_steps": 3000}) == [] and engine.num_open == (0, 0)
    # It resumes from an earlier step with a higher loss: no spike, no divergence, no reset.
    second = [alert for record in series("loss", losses[200:], 200) for alert in engine.observe(record)]
    assert second == []
    third = [alert for record in series("loss", [math.nan] * 3, 1000) for alert in engine.observe(record)]
    assert [(alert["id"], alert["status"]) for alert in third] == [("x-2", "opened")]


def test_alert_ids_are_unique_over_attempts() -> None:
    engine, ids = RuleEngine(), []
    for attempt in range(3):
        engine.observe(START)
        alerts = engine.observe_steps(NAMES, columns_of(troubled(random.Random(attempt), 4000)))
        ids += [alert["id"] for alert in checked(alerts) if alert["status"] == "opened"]
    assert len(ids) == len(set(ids)) > 12


def test_absorbed_rule_is_suppressed_until_fault_is_over() -> None:
    source = random.Random(3)
    losses = level(source, 1000, 2.0, 0.02)
    losses[500] = 6.0
    losses[510] = math.nan
    losses[520] = losses[530] = 9.0  # spikes, but absorbed
    losses[900] = 6.0
    alerts = diagnose(series("loss", losses))
    first, last = alerts_of_rule(alerts, "loss_spike")
    assert statuses(first)[-1] == "resolved" and first[-1]["outcome"] == "absorbed by not_finite"
    assert first[-1]["global_step"] == 510 and last[0]["global_step"] == 900
    assert last[0]["evidence"]["num_spikes"] == 1


def test_disabled_rule_reports_and_absorbs_nothing() -> None:
    losses = level(random.Random(3), 600, 2.0, 0.02)
    losses[500], losses[505] = 6.0, math.nan
    alerts = diagnose(series("loss", losses), {"not_finite": False})
    assert {alert["rule"] for alert in alerts} == {"loss_spike"} and not any(
        alert.get("outcome", "").startswith("absorbed by") for alert in alerts
    )


def test_alert_has_time_and_step() -> None:
    (alert,) = diagnose(series("loss", [*level(random.Random(1), 100, 2.0), math.nan]))
    assert (alert["event"], alert["time"], alert["global_step"]) == ("alert", 1100.0, 100)


def test_signals_are_found_under_every_listed_name() -> None:
    for signal in ("loss", "grad_norm"):
        for name in SIGNALS[signal]:
            values = [*level(random.Random(1), 100, 2.0), *[math.nan] * 3]
            (alert,) = diagnose(series(name, values))
            assert alert["evidence"]["metric"] == name


def test_composed_names_of_frameworks_are_losses() -> None:
    train = ("train_loss_epoch", "train/loss_epoch", "Loss/train_epoch", "avg_train_loss", "epoch_loss", "loss_step")
    validation = ("val_loss_epoch", "val_loss/dataloader_idx_1", "eval_squad_loss", "eval/squad_loss", "dev_loss")
    gan = ("loss_G", "Loss_D", "train/g_loss", "lossG", "errD", "gan/discriminator_loss", "losses/gen_loss")
    other = ("train_value_loss", "loss_H", "test_loss", "train_kl_loss", "loss_weight", "f1_score")
    for names, signal in ((train, "loss"), (validation, "val_loss"), (gan, "adversarial_loss"), (other, None)):
        for name in names:
            assert (signal_of(name) or (None,))[0] == signal, name
    jump = [*level(random.Random(1), 100, 0.28), 1_222.0, *level(random.Random(2), 20, 0.28)]
    for name in train:
        assert any(alert["rule"] == "loss_spike" for alert in diagnose(series(name, jump))), name


def test_rising_loss_of_a_generator_is_no_divergence() -> None:
    rising = [0.7 + step / 300 for step in range(1500)]
    assert any(alert["rule"] == "divergence" for alert in diagnose(series("loss", rising)))
    assert not any(alert["severity"] == "critical" for alert in diagnose(series("g_loss", rising)))


def test_each_evaluation_set_has_a_loss_of_its_own() -> None:
    engine = RuleEngine()
    record = {"event": "validation", "time": 1.0, "global_step": 1, "eval_a_loss": math.nan, "eval_b_loss": 1.0}
    (alert,) = engine.observe(record)
    assert alert["evidence"]["metric"] == "eval_a_loss"
    # The mean of all sets comes under a plain name; then it alone is judged.
    engine = RuleEngine()
    assert engine.observe({**record, "eval_loss": 1.0}) == []


def test_entropy_loss_has_the_sign_of_an_entropy() -> None:
    assert scale_of("entropy", "train/entropy_loss") == -1 and scale_of("entropy", "actor/entropy_loss") == 1


def test_loss_of_epochs_is_judged_if_steps_have_none() -> None:
    losses = [*level(random.Random(1), 60, 2.0), math.nan]
    epochs = [{**record, "event": "epoch"} for record in series("train_loss", losses)]
    (alert,) = diagnose(epochs)
    assert alert["rule"] == "not_finite"
    steps = list(series("train_loss", level(random.Random(1), 5, 2.0)))
    assert diagnose([*steps, *epochs]) == []


def test_supervised_run_with_a_score_is_not_reinforcement() -> None:
    losses = [*level(random.Random(1), 100, 2.0), 20.0, *level(random.Random(2), 20, 2.0)]
    alerts = diagnose(series("loss", losses, val_f1_score=lambda at: 0.5))
    assert {alert["rule"] for alert in alerts} == {"loss_spike"}


def test_run_without_recognised_loss_says_so() -> None:
    records = list(series("my/objective", level(random.Random(1), 100, 2.0), accuracy=lambda at: 0.5))
    opened, resolved = diagnose([*records, *series("train_loss", [2.0], 100)])
    assert (opened["rule"], opened["severity"], opened["global_step"]) == ("no_training_loss", "info", 63)
    assert opened["evidence"]["metrics"] == ["my/objective", "accuracy"]
    assert resolved["outcome"] == "train_loss is the training loss"
    assert diagnose(series("reward", level(random.Random(1), 100, 2.0), accuracy=lambda at: 0.5)) == []


def test_run_with_losses_of_a_gan_has_a_training_loss() -> None:
    losses = series("loss_G", level(random.Random(1), 100, 2.0), **{"loss_D": lambda at: 0.7, "D(x)": lambda at: 0.5})
    assert diagnose(losses) == []


# Cost ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_does_not_grow_with_the_run() -> None:
    engine, source = RuleEngine(), random.Random(1)

    def observe_more(first: int, num_rows: int) -> None:
        rows = troubled(source, num_rows)
        engine.observe_steps(NAMES, columns_of(rows))
        for at in range(first, first + num_rows // 10):
            engine.observe(
                system(
                    at,
                    **{
                        "gpu/0/util_pct": 50.0 + at % 9,
                        "cpu_mem_rss_mb": 9000 + at % 7,
                        "host_mem_available_gb": 50.0,
                        "gpu/0/mem_used_gb": 40.0,
                        "gpu/0/mem_total_gb": 80.0,
                        "gpu_alloc_retries": at // 3,
                    },
                )
            )
            engine.observe({"event": "validation", "time": 1.0 * at, "global_step": at, "val_loss": 2.0 + at % 5})
            engine.observe({"event": "checkpoint", "time": 1000.0 * at, "save_s": 2.0})

    tracemalloc.start()  # first: what replaces an object that was not counted looks like growth
    try:
        observe_more(0, 8000)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        observe_more(800, 12_000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000  # state is replaced, not added


def test_batches_leave_nothing_to_the_garbage_collector() -> None:
    """It runs in the thread that allocates next, which may be the training thread."""
    engine, source = RuleEngine(), random.Random(1)
    names = ("time", "global_step", "train_loss", "lr", "grad_norm", "sec_per_step")

    def observe_table(number: int, lr_factor: float) -> None:
        rows = [
            (1.0 * step, step, 2 + source.gauss(0, 0.05), 3e-4 * lr_factor ** (step % 2), 1 + source.random(), 0.3)
            for step in range(256 * number, 256 * (number + 1))
        ]
        engine.observe_steps(names, list(zip(*rows, strict=True)))

    for number in range(4):
        observe_table(number, 1.0)
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(4, 20):
            observe_table(number, 1.0 if number < 12 else 3.0)  # quiet tables, then tables that are not
        num_unreachable = gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    assert num_unreachable < 100


@pytest.mark.parametrize("change", ["warmup", "event"])
def test_early_changes_do_not_slow_down_the_rest_of_the_run(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change pauses outlier detection. After that, most values are handled in batches again."""
    num_single = 0
    add = SignalStats.add

    def counting_add(stats: SignalStats, value: float) -> None:
        nonlocal num_single
        num_single += 1
        add(stats, value)

    monkeypatch.setattr(SignalStats, "add", counting_add)
    engine, source = RuleEngine(), random.Random(1)
    names = ("time", "global_step", "train_loss", "lr", "grad_norm", "sec_per_step")
    for first in range(0, 4096, 256):
        if first == 1024:
            num_single = 0
        rows = [
            (
                1.0 * at,
                at,
                1 + 3 * math.exp(-at / 2000) + source.gauss(0, 0.05),
                3e-6 * min(at + 1, 100),
                1 + source.random(),
                0.3 + source.gauss(0, 0.003),
            )
            for at in range(first, first + 256)
        ]
        if change == "event":
            rows = [(*row[:3], 3e-4, *row[4:]) for row in rows]
            if first == 512:
                engine.observe({"event": "event", "time": 1.0 * first, "name": "expected_change"})
        assert engine.observe_steps(names, list(zip(*rows, strict=True))) == []
    assert num_single < 0.05 * 4 * 3072


def test_time_per_step_does_not_grow_with_the_run() -> None:
    engine, rows = RuleEngine(), troubled(random.Random(1), 4000)
    columns, took_s = columns_of(rows), []
    for _ in range(12):
        begin = time.thread_time()
        engine.observe_steps(NAMES, columns)
        took_s.append(time.thread_time() - begin)
    assert min(took_s[-4:]) < 4 * min(took_s[:4])


@pytest.mark.slow
def test_number_of_cached_layouts_is_bounded() -> None:
    engine = RuleEngine()
    for at in range(300):
        engine.observe(step(at, loss=2.0, **{f"a/{at}": 1.0}))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at in range(300, 3000):
            engine.observe(step(at, loss=2.0 + at % 3, **{f"a/{at}": 1.0}))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000  # all of them would take several times as much


def test_nothing_heavy_is_imported(script: Callable[..., Script]) -> None:
    source = """
        import sys
        import tachograph.diagnostics
        print(sorted({"numpy", "torch", "pandas", "scipy", "starlette", "duckdb", "psutil"} & set(sys.modules)))
    """
    assert script(source).ok().strip() == "[]"


# Readers -------------------------------------------------------------------------------------------------------------


def read_alerts(records: list[Record]) -> AlertHistory:
    reader = AlertHistory()
    for record in records:
        reader.add(record)
    return reader


def test_reader_merges_records_of_each_alert() -> None:
    engine = RuleEngine()
    alerts = engine.observe_steps(NAMES, columns_of(troubled(random.Random(1), 4000)))
    reader = read_alerts([START, *alerts])
    opened = [alert for alert in alerts if alert["status"] == "opened"]
    assert [alert.id for alert in reader.alerts()] == [alert["id"] for alert in opened]
    assert (
        len(reader.open_alerts()),
        sum(alert.severity == "critical" for alert in reader.open_alerts()),
    ) == engine.num_open
    for alert in reader.alerts():
        history = [record for record in alerts if record["id"] == alert.id]
        assert alert.rule == history[0]["rule"] and alert.is_open == (history[-1]["status"] != "resolved")
        assert (alert.opened_time, alert.opened_step) == (history[0]["time"], history[0]["global_step"])
        assert (alert.updated_time, alert.updated_step) == (history[-1]["time"], history[-1]["global_step"])
        assert alert.title == [record["title"] for record in history if "title" in record][-1]
        for record in history:
            alert_evidence = record.get("evidence", {})
            assert alert_evidence.keys() <= alert.evidence.keys()
        assert alert.evidence.items() >= [record["evidence"] for record in history if "evidence" in record][-1].items()
        assert alert.meaning == history[0]["meaning"] and alert.advice == history[0]["advice"]
        assert alert.severity == history[-1]["severity"]
        if not alert.is_open:
            assert alert.outcome == history[-1]["outcome"] and alert.resolved_step == history[-1]["global_step"]
            assert alert.resolved_time == history[-1]["time"]


def test_reader_marks_abandoned_alerts_as_closed() -> None:
    alerts = diagnose(series("loss", [*level(random.Random(1), 100, 2.0), math.nan]))
    reader = read_alerts([START, *alerts, START])
    (alert,) = reader.alerts()
    assert not alert.is_open and alert.resolved_step is None and alert.attempt == 0 and reader.open_alerts() == []


def test_reader_keeps_final_state_of_each_occurrence() -> None:
    losses = level(random.Random(1), 1000, 2.0, 0.02)
    losses[500] = losses[560] = 6.0
    (alert,) = read_alerts(diagnose(series("loss", losses))).alerts()
    assert [occurrence["step"] for occurrence in alert.occurrences] == [500, 560]
    assert [occurrence["class"] for occurrence in alert.occurrences] == ["recovering"] * 2
    assert alert.num_occurrences == 2


def test_reader_counts_occurrences_of_different_steps() -> None:
    kls = level(random.Random(1), 1000, 0.05, 0.1)
    for at in (500, 520, 540):
        kls[at] = 5.0
    (alert,) = read_alerts(diagnose(series("kl", kls))).alerts()
    assert [occurrence["step"] for occurrence in alert.occurrences] == [500, 520, 540] and alert.num_occurrences == 3


def test_rules_do_not_change_records() -> None:
    records = list(series("loss", [*level(random.Random(1), 100, 2.0), math.nan]))
    copies = [dict(record) for record in records]
    assert list(map(encode, diagnose(records))) == list(map(encode, diagnose(records)))
    assert list(map(encode, records)) == list(map(encode, copies))


def test_engine_without_rules_reports_nothing() -> None:
    engine = RuleEngine({})
    columns = columns_of(troubled(random.Random(1), 1000))
    assert engine.observe_steps(NAMES, columns) == [] and engine.tick(1e9) == [] and engine.num_open == (0, 0)
    assert RuleEngine(resolve_rules(None)).observe_steps(NAMES, columns)


@pytest.mark.parametrize("every", [200, 500])
def test_recurring_fault_becomes_one_alert(every: int) -> None:
    losses = falling(random.Random(1), 30_000)
    for at in range(1000, 30_000, every):
        losses[at] = math.nan
    alerts = diagnose(series("loss", losses), {"plateau": False})
    assert len({alert["id"] for alert in alerts}) == 3
    assert len(alerts) < 150
    reader = AlertHistory()
    for alert in alerts:
        reader.add(alert)
    assert [alert.is_open for alert in reader.alerts()] == [False, False, True]
    assert reader.alerts()[-1].num_occurrences == len(alerts) - 4  # not counting the records of the first two


def test_cooldown_expires_when_the_fault_stays_away() -> None:
    losses = falling(random.Random(1), 30_000)
    for at in range(1000, 5000, 500):
        losses[at] = math.nan
    alerts = diagnose(series("loss", losses), {"plateau": False})
    assert alerts[-1]["status"] == "resolved"
    assert 4500 + 4 * 400 < alerts[-1]["global_step"] < 8000


@pytest.mark.parametrize("in_batches", [False, True])
def test_every_loss_of_a_run_must_be_finite(in_batches):
    engine = RuleEngine()
    for record in series("train_loss", [2.0] * 5):
        engine.observe(record)
    losses = [2.0] * 50 + [math.nan] * 20 + [2.0] * 5
    if in_batches:
        columns = [[100.0 + step for step in range(75)], list(range(75)), losses, losses]
        alerts = engine.observe_steps(("time", "global_step", "loss", "loss_total"), columns)
    else:
        alerts = [alert for record in series("loss", losses) for alert in engine.observe(record)]
    assert [(alert["rule"], alert["status"], alert["global_step"]) for alert in alerts] == [
        ("not_finite", "opened", 50),
        ("not_finite", "resolved", 70),
    ]
