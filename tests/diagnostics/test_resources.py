"""Rules about GPUs and memory, from system samples."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from tests.diagnostics import (
    Record,
    alerts_of_rule,
    brief,
    diagnose,
    level,
    only_alert,
    series,
    statuses,
    step,
    system,
)


def while_training(
    samples: Iterator[dict[str, float]] | list[dict[str, float]], every_s: float = 10.0
) -> Iterator[Record]:
    """Yield system samples with a step between every two."""
    for index, fields in enumerate(samples):
        yield {**step(index, epoch=0), "time": 1000.0 + every_s * index}
        yield system(index, every_s, **fields)


# Utilisation -------------------------------------------------------------------------------------------------------


def test_idle_gpu_alerts_and_resolves(source: random.Random) -> None:
    busy = [*level(source, 60, 20.0, 0.2), *level(source, 60, 95.0, 0.03)]
    opened, resolved = only_alert(
        diagnose(while_training([{"gpu/0/util_pct": value, "gpu/0/mem_used_gb": 79.0} for value in busy])),
        "low_gpu_utilisation",
    )
    assert opened["severity"] == "warning" and opened["evidence"]["samples"] == 36
    assert opened["evidence"]["mean_pct"] == pytest.approx(20, abs=2) and opened["evidence"]["gpus"] == ["0"]
    assert opened["title"].startswith("GPU 0 is busy only ")
    assert resolved["outcome"].startswith("GPU 0 is busy at least 6")


def test_idle_gpus_of_a_node_share_one_alert(source: random.Random) -> None:
    samples = [{f"gpu/{gpu}/util_pct": 20.0 + gpu + source.gauss(0, 1) for gpu in range(8)} for _ in range(100)]
    (opened,) = only_alert(diagnose(while_training(samples)), "low_gpu_utilisation")
    assert opened["title"].startswith("GPUs 0, 1, 2, 3, 4, 5, 6, 7 are busy only ")
    assert opened["evidence"]["gpus"] == [str(gpu) for gpu in range(8)]


def test_more_idle_gpus_update_the_same_alert() -> None:
    samples = [{"gpu/0/util_pct": 10.0, "gpu/1/util_pct": 90.0 if at < 100 else 5.0} for at in range(300)]
    history = only_alert(diagnose(while_training(samples)), "low_gpu_utilisation")
    assert statuses(history) == ["opened", "updated"] and set(history[-1]["evidence"]["gpus"]) == {"0", "1"}


def test_utilisation_near_the_threshold_does_not_flap(source: random.Random) -> None:
    history = only_alert(
        diagnose(while_training([{"gpu/0/util_pct": source.gauss(50, 15)} for _ in range(3000)])), "low_gpu_utilisation"
    )
    assert statuses(history) == ["opened"]


def test_busy_gpu_with_pauses_is_ignored(source: random.Random) -> None:
    samples = [{"gpu/0/util_pct": 0.0 if at % 10 == 0 else 97.0, "gpu/0/mem_used_gb": 1.0} for at in range(300)]
    assert diagnose(while_training(samples)) == []


def test_idle_gpu_without_steps_is_ignored() -> None:
    samples = [system(at, **{"gpu/0/util_pct": 0.0}) for at in range(100)]
    assert diagnose(samples, {"hang": False}) == []
    assert diagnose([step(1, loss=1.0), *samples], {"hang": False}) == []


def test_utilisation_thresholds_are_configurable() -> None:
    samples = [{"gpu/0/util_pct": 30.0}] * 100
    assert diagnose(while_training(samples), {"low_gpu_utilisation": {"least_pct": 20}}) == []
    early = diagnose(while_training(samples), {"low_gpu_utilisation": {"samples": 4}})
    assert only_alert(early, "low_gpu_utilisation")[0]["global_step"] == 4


def test_data_stall_absorbs_low_gpu_utilisation() -> None:
    records: list[Record] = []
    for at in range(200):
        share = {"window/share_data": 0.6} if at >= 100 else {}
        records += [
            {**step(at, epoch=0, **share), "time": 1000.0 + 10 * at},
            system(at, **{"gpu/0/util_pct": 20.0}),
        ]
    alerts = diagnose(records)
    (low,), (stall,) = alerts_of_rule(alerts, "low_gpu_utilisation"), alerts_of_rule(alerts, "data_stall")
    assert low[-1]["outcome"] == "absorbed by data_stall" and statuses(stall) == ["opened"], brief(alerts)


# Memory growth -------------------------------------------------------------------------------------------------------


def host(used_gb: Callable[[int], float], num: int, total_gb: float = 64.0) -> list[dict[str, float]]:
    return [
        {"cpu_mem_rss_mb": 1024 * used_gb(at), "host_mem_available_gb": total_gb - used_gb(at)} for at in range(num)
    ]


def test_host_leak_alert_predicts_time_left(source: random.Random) -> None:
    used = lambda at: 8 + at / 360 * 4 + source.gauss(0, 0.02)  # noqa: E731 - 4 GiB an hour
    history = only_alert(diagnose(while_training(host(used, 360 * 3))), "memory_growth")
    opened = history[0]
    assert statuses(history) == ["opened"] and opened["severity"] == "warning"
    evidence = opened["evidence"]
    assert evidence["gb_per_hour"] == pytest.approx(4, rel=0.15) and evidence["limit_gb"] == pytest.approx(64, abs=0.1)
    assert evidence["hours_left"] == pytest.approx((64 - evidence["used_gb"]) / evidence["gb_per_hour"], rel=0.01)
    assert evidence["window_s"] >= 600 and evidence["metric"] == "cpu_mem_rss_mb"
    assert (
        opened["title"].startswith("Memory of the process grows by ")
        and " GiB per hour and will be full in " in opened["title"]
    )


def test_leak_becomes_critical_once_near_the_end(source: random.Random) -> None:
    used = lambda at: 8 + at / 360 * 12 + source.gauss(0, 0.02)  # noqa: E731
    history = only_alert(diagnose(while_training(host(used, 360 * 4))), "memory_growth")
    assert [alert["severity"] for alert in history] == ["warning", "critical"]
    assert history[-1]["evidence"]["hours_left"] <= 1


def test_leak_on_one_gpu_names_that_gpu(source: random.Random) -> None:
    samples = [
        {
            "gpu/0/mem_used_gb": 40.0,
            "gpu/0/mem_total_gb": 80.0,
            "gpu/1/mem_used_gb": 40 + at / 100,
            "gpu/1/mem_total_gb": 80.0,
        }
        for at in range(1000)
    ]
    history = only_alert(diagnose(while_training(samples)), "memory_growth")
    assert history[0]["title"].startswith("Memory of GPU 1 grows by 3.6 GiB per hour")


def test_memory_growth_that_stops_is_ignored(source: random.Random) -> None:
    """Caches and workers fill up in the first minutes."""
    used = lambda at: 8 + 12 * (1 - math.exp(-at / 12)) + source.gauss(0, 0.02)  # noqa: E731
    assert diagnose(while_training(host(used, 2000))) == []


def test_oscillating_or_noisy_memory_is_ignored(source: random.Random) -> None:
    assert diagnose(while_training(host(lambda at: 20 + 3 * math.sin(at / 7) + source.gauss(0, 0.5), 3000))) == []
    assert diagnose(while_training(host(lambda at: 20 + (at % 60) / 20, 3000))) == []


def test_growth_that_never_fills_memory_is_ignored(source: random.Random) -> None:
    assert diagnose(while_training(host(lambda at: 8 + at / 360 * 0.2 + source.gauss(0, 0.01), 3000, 512.0))) == []


def test_fixed_leak_is_resolved(source: random.Random) -> None:
    used = lambda at: 8 + min(at, 400) / 360 * 4 + source.gauss(0, 0.02)  # noqa: E731
    history = only_alert(diagnose(while_training(host(used, 3000))), "memory_growth")
    assert statuses(history) == ["opened", "resolved"]
    assert history[-1]["outcome"].startswith("the memory of the process has stopped growing, at 12.4")


@pytest.mark.parametrize("name", ["mem-allocated-bytes", "perf/max_memory_allocated_gb", "memory/max_active(GiB)"])
def test_leak_in_recorded_gpu_memory_alerts(source: random.Random, name: str) -> None:
    leak = [40e9 * (1 + 0.5 * at / 1000) * (1 + source.gauss(0, 0.005)) for at in range(1000)]
    (opened,) = only_alert(diagnose(series(name, leak)), "memory_growth")
    assert opened["title"].startswith(f"GPU memory ({name}) has grown by ") and opened["evidence"]["used"] > 40e9


def test_steady_recorded_gpu_memory_is_ignored(source: random.Random) -> None:
    for shape in ([1.0] * 2000, [1.4 - 0.4 * math.exp(-at / 60) for at in range(2000)]):
        used = [40e9 * share * (1 + source.gauss(0, 0.02)) for share in shape]
        assert diagnose(series("mem-allocated-bytes", used)) == []


def test_memory_horizon_is_configurable(source: random.Random) -> None:
    samples = host(lambda at: 8 + at / 360 * 4 + source.gauss(0, 0.02), 360)
    assert diagnose(while_training(samples), {"memory_growth": {"horizon_h": 2}}) == []
    soon = diagnose(while_training(samples), {"memory_growth": {"critical_h": 20}})
    assert only_alert(soon, "memory_growth")[0]["severity"] == "critical"


# Full memory ---------------------------------------------------------------------------------------------------------


def test_allocator_retries_are_updated_when_doubled() -> None:
    samples = (
        [{"gpu_alloc_retries": 0}] * 20
        + [{"gpu_alloc_retries": at} for at in range(1, 1001)]
        + [{"gpu_alloc_retries": 1000}] * 100
    )
    history = only_alert(diagnose(while_training(samples)), "near_oom")
    assert statuses(history) == ["opened", *["updated"] * 9, "resolved"], brief(history)
    assert history[0]["severity"] == "critical" and history[0]["evidence"]["retries"] == 1
    assert history[0]["title"] == "GPU memory is almost full: 1 allocation was retried"
    assert history[-1]["global_step"] == 20 + 1000 + 59


def test_full_host_memory_alert_does_not_flap(source: random.Random) -> None:
    used = [80.0] * 10 + [source.uniform(93, 99) for _ in range(300)] + [80.0] * 10
    samples = [{"host_mem_used_pct": pct, "host_mem_available_gb": 512 * (1 - pct / 100)} for pct in used]
    opened, resolved = only_alert(diagnose(while_training(samples)), "near_oom")
    assert opened["severity"] == "critical" and opened["evidence"]["used_pct"] >= 97
    assert opened["title"].endswith(" GiB left") and resolved["outcome"] == "host memory is 80 % full now"


def test_full_gpu_memory_alone_is_ignored() -> None:
    samples = [
        {"gpu/0/mem_used_gb": 79.9, "gpu/0/mem_total_gb": 80.0, "gpu_alloc_retries": 0, "host_mem_used_pct": 96.0}
    ] * 200
    assert diagnose(while_training(samples)) == []


def test_host_memory_limit_is_configurable() -> None:
    samples = [{"host_mem_used_pct": 90.0}] * 5
    (opened,) = only_alert(diagnose(while_training(samples), {"near_oom": {"host_used_pct": 85}}), "near_oom")
    assert opened["title"] == "Host memory is 90 % full"
