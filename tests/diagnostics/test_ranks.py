"""Ranks that are compared: simulated jobs with a fault, and jobs about which nothing may be said."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.ranks.jobs import NOISES, Fault, SimulatedJob, observe, slow_rank

from tachograph.diagnostics import RuleEngine

Alert = dict[str, Any]


def alerts_of(job: SimulatedJob, num_windows: int, engine: RuleEngine | None = None) -> list[Alert]:
    """Return the alerts of a job whose records arrive in order."""
    engine = RuleEngine() if engine is None else engine
    alerts = [alert for rank, record in enumerate(job.starts()) for alert in observe(engine, rank, record)]
    for _ in range(num_windows):
        for rank, record in enumerate(job.window()):
            alerts += observe(engine, rank, record)
    return alerts


def opened(alerts: list[Alert]) -> list[Alert]:
    return [alert for alert in alerts if alert["status"] == "opened"]


def only(alerts: list[Alert]) -> Alert:
    """Return the alert, if exactly one was opened."""
    first_records = opened(alerts)
    assert len(first_records) == 1, [alert["title"] for alert in first_records]
    return first_records[0]


def from_step(since: int, change: Callable[..., None]) -> Fault:
    def fault(times: Any, transfer: Any, first: int) -> None:
        if first >= since:
            change(times, transfer)

    return fault


def slow_host(times: Any, _transfer: Any) -> None:
    for phase in times.values():
        phase[:, 4:8] *= 1.2


def slow_stage(times: Any, _transfer: Any) -> None:
    for phase in times.values():
        phase[:, 12:] *= 1.3


def slow_loader(times: Any, _transfer: Any) -> None:
    times["data"][:, 5] += 0.03


def slow_link(_times: Any, transfer: Any) -> None:
    transfer *= 2.5


def slow_job(times: Any, _transfer: Any) -> None:
    for phase in times.values():
        phase[:] *= 1.2


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_rank_is_named_with_phase_and_cost(is_measured: bool) -> None:
    for excess in (0.3, 0.15, 0.1):
        job = SimulatedJob(8, "normal 3 %", 1, fault=slow_rank(2, excess, since=64), is_measured=is_measured, hosts=4)
        alert = only(alerts_of(job, 9))
        evidence = alert["evidence"]
        assert (alert["rule"], evidence["rank"], evidence["host"]) == ("straggler", 2, "node1")
        assert alert["global_step"] == evidence["step"] == 64 + 48 - 1
        assert evidence["since_step"] == 64
        # Without measured collectives, a small rise of the backward pass cannot be told from less waiting.
        assert evidence["phase"] == "forward and backward" or (not is_measured and excess < 0.2)
        # Another rank is the slowest then, a little slower than the median; phases alone show less.
        assert 0.3 * excess * 0.085 < evidence["cost_s"] < 1.05 * excess * 0.085
        if excess == 0.3:
            assert alert["severity"] == "critical"
            assert alert["title"].startswith("Rank 2 (node1) is ")
            assert " slower than the others in forward and backward: " in alert["title"]
            assert alert["title"].endswith(" h per day")


def test_cost_without_backward_is_a_lower_bound() -> None:
    job = SimulatedJob(8, "normal 3 %", 1, fault=slow_rank(2, 0.3), is_measured=False)
    alert = only(alerts_of(job, 5))
    assert "in forward: at least " in alert["title"]
    assert alert["evidence"]["phase"] == "forward"


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_data_loader_is_named(is_measured: bool) -> None:
    alert = only(
        alerts_of(SimulatedJob(8, "normal 3 %", 2, fault=from_step(32, slow_loader), is_measured=is_measured), 6)
    )
    assert (alert["rule"], alert["evidence"]["rank"], alert["evidence"]["phase"]) == ("straggler", 5, "data")
    assert alert["evidence"]["cost_s"] == pytest.approx(0.03, rel=0.15)
    assert alert["title"].startswith("Rank 5 (node0) takes 7 times as long as the others in data: ")


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_host_is_one_alert(is_measured: bool) -> None:
    for num_ranks, hosts in ((8, 2), (128, 32)):
        job = SimulatedJob(
            num_ranks, "normal 3 %", 3, fault=from_step(32, slow_host), is_measured=is_measured, hosts=hosts
        )
        alert = only(alerts_of(job, 8))
        assert (alert["rule"], alert["evidence"]["host"]) == ("straggler", "node1")
        assert alert["evidence"]["ranks"] == [4, 5, 6, 7]
        assert alert["global_step"] == 32 + 48 - 1
        assert alert["title"].startswith("All ranks of node1 are ")


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_link_accuses_no_rank(is_measured: bool) -> None:
    job = SimulatedJob(8, "normal 3 %", 4, fault=from_step(80, slow_link), is_measured=is_measured, hosts=2)
    alert = only(alerts_of(job, 20))
    assert alert["rule"] == "slow_communication"
    assert alert["global_step"] == 80 + 48 - 1
    assert alert["evidence"]["cost_s"] == pytest.approx(0.018, rel=0.15)


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_unequal_work_is_no_straggler(is_measured: bool) -> None:
    for num_ranks in (8, 64):
        alert = only(alerts_of(SimulatedJob(num_ranks, "lognormal 0.3", 5, is_measured=is_measured, hosts=2), 24))
        assert alert["rule"] == "unequal_work"
        assert alert["global_step"] < 64
        assert alert["evidence"]["cost_share"] > 0.1


def test_unequal_work_is_the_only_alert_of_few_ranks() -> None:
    for seed in range(4):
        for is_measured in (True, False):
            job = SimulatedJob(4, "lognormal 0.3", 30 + seed, is_measured=is_measured)
            assert [alert["rule"] for alert in alerts_of(job, 40)] == ["unequal_work"]


def test_work_that_varies_on_all_ranks_together_is_equal() -> None:
    lengths = random.Random(1)

    def long_batches(times: Any, _transfer: Any, _first: int) -> None:
        for row in range(len(times["forward"])):
            factor = lengths.lognormvariate(0, 0.3)
            for phase in times.values():
                phase[row] *= factor

    assert not alerts_of(SimulatedJob(8, "normal 3 %", 6, fault=long_batches), 32)


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_rank_is_found_behind_unequal_work(is_measured: bool) -> None:
    job = SimulatedJob(64, "lognormal 0.3", 7, fault=slow_rank(3, 0.5), is_measured=is_measured, hosts=8)
    stragglers = [alert for alert in opened(alerts_of(job, 12)) if alert["rule"] == "straggler"]
    assert [alert["evidence"]["rank"] for alert in stragglers] == [3]


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_stage_is_unequal_work(is_measured: bool) -> None:
    for hosts in (2, 4):  # with four hosts, each has one stage
        job = SimulatedJob(
            16, "normal 3 %", 8, fault=from_step(0, slow_stage), is_measured=is_measured, hosts=hosts, stages=4
        )
        alert = only(alerts_of(job, 8))
        assert (alert["rule"], alert["evidence"]["stage"], alert["global_step"]) == ("unequal_work", 3, 47)
        assert alert["evidence"]["excess"] == pytest.approx(0.3, abs=0.03)


def test_rank_is_compared_with_its_stage() -> None:
    def fault(times: Any, transfer: Any, first: int) -> None:
        slow_stage(times, transfer)
        slow_rank(1, 0.25)(times, transfer, first)

    alerts = opened(alerts_of(SimulatedJob(16, "normal 3 %", 9, fault=fault, stages=4), 8))
    assert {alert["rule"] for alert in alerts} == {"unequal_work", "straggler"}
    assert [alert["evidence"]["rank"] for alert in alerts if alert["rule"] == "straggler"] == [1]


@pytest.mark.slow
def test_nothing_is_said_about_healthy_jobs() -> None:
    for noise in NOISES[:-1]:
        for num_ranks, is_measured in ((2, True), (4, False), (8, True), (64, False)):
            job = SimulatedJob(num_ranks, noise, 10, is_measured=is_measured, hosts=max(1, num_ranks // 4))
            alerts = alerts_of(job, 32)
            assert not alerts, (noise, num_ranks, is_measured, alerts[0]["title"])


def test_small_or_common_slowness_is_no_straggler() -> None:
    for fault in (slow_rank(2, 0.05), from_step(80, slow_job), slow_rank(3, 0.3, ("optimizer",))):
        for is_measured in (True, False):
            alerts = alerts_of(SimulatedJob(8, "normal 3 %", 11, fault=fault, is_measured=is_measured), 40)
            assert not alerts, alerts[0]["title"]


def test_rest_of_rank_0_is_not_compared() -> None:
    job = SimulatedJob(8, "normal 3 %", 12)
    engine = RuleEngine()
    alerts: list[Alert] = []
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    for _ in range(16):
        for rank, record in enumerate(job.window()):
            times_ms = record["ms"]
            if rank == 0:  # it logs for 20 ms, so it waits less
                times_ms[0], times_ms[2], times_ms[8] = times_ms[0] + 20, times_ms[2] - 5, times_ms[8] - 5
            alerts += observe(engine, rank, record)
    assert not alerts


def test_too_few_ranks_are_compared_with_their_past() -> None:
    for num_ranks in (2, 3):
        for is_measured in (True, False):
            job = SimulatedJob(num_ranks, "normal 3 %", 13, fault=slow_rank(1, 0.3, since=128), is_measured=is_measured)
            alert = only(alerts_of(job, 16))
            assert (alert["evidence"]["rank"], alert["global_step"]) == (1, 128 + 48 - 1)
            assert "slower than before" in alert["title"] and "too few ranks" in alert["message"]
            assert not alerts_of(SimulatedJob(num_ranks, "normal 3 %", 14, fault=from_step(128, slow_job)), 24)


def test_straggler_recovers() -> None:
    def fault(times: Any, transfer: Any, first: int) -> None:
        if 32 <= first < 160:
            slow_rank(6, 0.3)(times, transfer, first)

    alerts = alerts_of(SimulatedJob(8, "normal 3 %", 15, fault=fault), 24)
    assert [(alert["status"], alert["global_step"]) for alert in alerts] == [("opened", 79), ("resolved", 160 + 48 - 1)]


@pytest.mark.parametrize("is_measured", [True, False], ids=["collectives", "phases"])
def test_slow_step_of_one_rank_names_it(is_measured: bool) -> None:
    def fault(times: Any, _transfer: Any, first: int) -> None:
        if first in (80, 160):
            for phase in times.values():
                phase[5, first // 16 - 3] *= 6

    alerts = alerts_of(SimulatedJob(8, "normal 3 %", 25, fault=fault, is_measured=is_measured, hosts=2), 48)
    assert {(alert["rule"], alert["severity"]) for alert in alerts} == {("step_outliers", "info")}
    assert [alert["status"] for alert in alerts] == ["opened", "updated", "resolved"]
    assert alerts[0]["title"].startswith("Step 85 took rank 2 (node0) ")
    assert [(alert["occurrence"]["step"], alert["occurrence"]["rank"]) for alert in alerts[:2]] == [(85, 2), (165, 7)]
    assert alerts[0]["global_step"] == 95


def test_two_slow_ranks_are_two_alerts_with_costs() -> None:
    def fault(times: Any, transfer: Any, first: int) -> None:
        slow_rank(2, 0.3)(times, transfer, first)
        slow_rank(9, 0.3)(times, transfer, first)

    alerts = opened(alerts_of(SimulatedJob(16, "normal 3 %", 16, fault=fault), 8))
    assert sorted(alert["evidence"]["rank"] for alert in alerts) == [2, 9]
    assert all(alert["evidence"]["cost_s"] > 0.015 for alert in alerts)


def test_order_of_arrival_does_not_matter() -> None:
    def records_of() -> list[list[tuple[int, Alert]]]:
        fault = slow_rank(5, 0.3, since=64)
        job = SimulatedJob(8, "normal 3 %", 17, fault=fault, hosts=2)
        rounds = [list(enumerate(job.starts()))]
        return rounds + [list(enumerate(job.window())) for _ in range(24)]

    expected = None
    for seed in range(4):
        source = random.Random(seed)
        queues: dict[int, list[Alert]] = {rank: [] for rank in range(8)}
        for records in records_of():
            for rank, record in records:
                queues[rank].append(record)
        engine, alerts = RuleEngine(), []
        while any(queues.values()):
            # A rank is at most three windows ahead of the last one.
            most = max(map(len, queues.values()))
            choice = [rank for rank, queue in queues.items() if queue and len(queue) > most - 3]
            rank = source.choice(choice) if seed else max(choice, key=lambda rank: (len(queues[rank]), -rank))
            alerts += observe(engine, rank, queues[rank].pop(0))
        assert len(opened(alerts)) == 1
        expected = expected or alerts
        assert alerts == expected


def test_windows_of_different_lengths_line_up() -> None:
    """Ranks double the length of their windows at different iterations."""
    engine, alerts = RuleEngine(), []
    job = SimulatedJob(8, "normal 3 %", 18, fault=slow_rank(3, 0.3, since=256))
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    pending: dict[int, list[Alert]] = {rank: [] for rank in range(8)}
    for index in range(64):
        for rank, record in enumerate(job.window()):
            length = 16 if index < 8 + 4 * (rank % 3) else 32 if index < 32 else 64
            pending[rank].append(record)
            if (record["last"] + 1) % length == 0:
                parts, pending[rank] = pending[rank], []
                times_ms = [sum(values) / len(parts) for values in zip(*(part["ms"] for part in parts), strict=True)]
                longest = max((part["max"] for part in parts), key=lambda pair: pair[0])
                merged = {**record, "n": 16 * len(parts), "ms": times_ms, "max": longest}
                alerts += observe(engine, rank, merged)
    alert = only(alerts)
    assert (alert["evidence"]["rank"], alert["evidence"]["since_step"]) == (3, 256)


def test_missing_ranks_are_left_out_and_counted() -> None:
    engine, alerts = RuleEngine(), []
    job = SimulatedJob(8, "normal 3 %", 19, fault=slow_rank(3, 0.3, since=256))
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    for index in range(40):
        for rank, record in enumerate(job.window()):
            if rank != 6 and not (rank == 7 and index > 5):  # one never reports, one stops
                alerts += observe(engine, rank, record)
    alert = only(alerts)
    assert (alert["evidence"]["rank"], alert["evidence"]["num_missing"]) == (3, 2)


def test_records_without_time_are_judged() -> None:
    engine, alerts = RuleEngine(), []
    job = SimulatedJob(8, "normal 3 %", 26, fault=slow_rank(3, 0.3))
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    for _ in range(8):
        for rank, record in enumerate(job.window()):
            if rank != 6:
                del record["time"]
                alerts += observe(engine, rank, record)
    assert only(alerts)["evidence"]["rank"] == 3


def test_ranks_that_report_again_are_compared_again() -> None:
    engine, alerts = RuleEngine(), []
    job = SimulatedJob(8, "normal 3 %", 27, fault=slow_rank(6, 0.3, since=512))
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    for index in range(48):
        for rank, record in enumerate(job.window()):
            if rank < 6 or index > 24:
                alerts += observe(engine, rank, record)
    alert = only(alerts)
    assert (alert["evidence"]["rank"], alert["evidence"]["num_missing"], alert["global_step"]) == (6, 0, 512 + 48 - 1)


def test_replaced_process_starts_with_no_history() -> None:
    engine, alerts = RuleEngine(), []
    job = SimulatedJob(8, "normal 3 %", 20, fault=slow_rank(3, 0.3))
    starts = list(job.starts())
    for rank, record in enumerate(starts):
        observe(engine, rank, record)
    for index in range(8):
        if index == 4:  # the replacement is slow, too
            start = {**starts[3], "process": {"host": "spare", "pid": 1}}
            alerts += engine.observe_rank(3, start)
        for rank, record in enumerate(job.window()):
            alerts += observe(engine, rank, record)
    summary = [(alert["status"], alert["title"].split(" is ")[0]) for alert in alerts]
    assert summary == [("opened", "Rank 3 (node0)"), ("resolved", "Rank 3 (node0)"), ("opened", "Rank 3 (spare)")]


def test_attempt_starts_over() -> None:
    engine = RuleEngine()
    for seed, num_ranks in ((21, 8), (22, 8), (23, 4)):  # the last one continues with fewer ranks
        alert = only(alerts_of(SimulatedJob(num_ranks, "normal 3 %", seed, fault=slow_rank(3, 0.3)), 4, engine))
        assert alert["global_step"] == 47


def test_windows_without_phases_are_not_judged() -> None:
    engine = RuleEngine()
    job = SimulatedJob(8, "normal 3 %", 24, fault=slow_rank(3, 0.3))
    for rank, record in enumerate(job.starts()):
        observe(engine, rank, record)
    for _ in range(8):
        for rank, record in enumerate(job.window()):
            assert not observe(engine, rank, {**record, "ms": record["ms"][:2] + [None] * 10})


def test_odd_records_are_ignored() -> None:
    engine = RuleEngine()
    for record in (
        {"event": "rank", "last": 15, "n": 16, "ms": [1.0, 0.1, 1.0, 0.1]},  # before any start
        {"event": "start", "world_size": "many", "process": "x", "mesh": [1]},
        {"event": "start", "world_size": -3},
        {"event": "step", "loss": 1.0},
        {"event": "start", "world_size": 4, "mesh": {"pipeline": "first"}},
        {"event": "rank", "last": 15, "n": 16, "ms": "x"},
        {"event": "rank", "last": -1, "n": 0, "ms": [0.0] * 12},
        {"event": "rank", "last": 1 << 40, "n": 1 << 30, "ms": [0.0] * 12},
        {"event": "end"},
    ):
        for rank in (1, 0, 9, -1, 1 << 40):
            assert not observe(engine, rank, {"time": 1.0, **record})
