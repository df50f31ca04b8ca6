"""Which rank is missing, which one a job waits for, and when nothing may be said."""

from __future__ import annotations

from typing import Any

from tachograph.diagnostics import RankStatus, RuleEngine, list_ranks, resolve_rules


def statuses(iteration: int, others: str = "backward", **changed: RankStatus) -> list[RankStatus]:
    """Return the statuses of four ranks; `r2=RankStatus(...)` replaces one of them."""
    usual = [
        RankStatus(rank=rank, host=f"node{rank // 2 + 1}", iteration=iteration, phase=others, phase_s=1.0)
        for rank in range(4)
    ]
    return [changed.get(f"r{status.rank}", status) for status in usual]


def observe(
    engine: RuleEngine, times: list[tuple[float, list[RankStatus]]], world_size: int = 4
) -> list[dict[str, Any]]:
    alerts = []
    for time_s, ranks in times:
        alerts += engine.observe_statuses(ranks, world_size, time_s)
    return alerts


def train(engine: RuleEngine, seconds: int = 40, pace: int = 1) -> list[dict[str, Any]]:
    """Let all ranks complete an iteration every `pace` seconds."""
    return observe(engine, [(float(second), statuses(second // pace)) for second in range(seconds)])


def new_engine(**thresholds: Any) -> RuleEngine:
    return RuleEngine(resolve_rules({"rank_hang": thresholds} if thresholds else None))


def opened(alerts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(alert["rule"], alert["title"]) for alert in alerts if alert["status"] == "opened"]


def test_heartbeat_from_before_the_hang_does_not_tell_who_waits() -> None:
    engine = new_engine(least_s=1.0, times_longest=1.5)
    train(engine)
    stuck = RankStatus(rank=2, iteration=39, phase="data", phase_s=1.0, location="train.py:31")
    late = RankStatus(rank=1, iteration=38, phase="forward", phase_s=0.1, location="train.py:35", age_s=2.0)
    ranks = statuses(39, r1=late, r2=stuck)
    assert observe(engine, [(41.0, ranks), (43.0, ranks)]) == []
    (alert,) = observe(engine, [(45.0, statuses(39, r2=stuck))])
    assert alert["evidence"]["ranks"] == [2]
    assert "3 ranks wait in backward" in alert["title"]


def test_rank_that_has_not_arrived_is_named() -> None:
    engine = new_engine()
    assert train(engine) == []
    stuck = RankStatus(rank=2, host="node2", iteration=39, phase="data", phase_s=74.0, location="train.py:31")
    ranks = statuses(39, r2=stuck)
    assert observe(engine, [(float(second), ranks) for second in range(40, 95, 5)]) == []
    alerts = observe(engine, [(101.0, ranks), (110.0, ranks)])
    assert opened(alerts) == [
        (
            "rank_hang",
            "Rank 2 (node2) has not arrived: waiting for data (train.py:31) for 74 s; 3 ranks wait in backward",
        )
    ]
    (alert,) = alerts
    assert alert["severity"] == "critical"
    assert alert["evidence"]["ranks"] == [2]
    (resolved,) = observe(engine, [(115.0, statuses(40))])
    assert (resolved["status"], resolved["rule"]) == ("resolved", "rank_hang")


def test_ranks_that_disagree_are_named() -> None:
    engine = new_engine()
    train(engine)
    other = RankStatus(rank=2, host="node2", iteration=39, phase="", collective="broadcast")
    ranks = [
        RankStatus(rank=status.rank, iteration=39, collective="all_reduce") if status.rank != 2 else other
        for status in statuses(39)
    ]
    ((_, title),) = opened(observe(engine, [(40.0, ranks), (200.0, ranks)]))
    assert title == "Ranks disagree: rank 2 (node2) is in broadcast, 3 in all_reduce"


def test_groups_with_calls_of_their_own_do_not_disagree() -> None:
    engine = new_engine()
    train(engine)
    calls = ["all_reduce #13 of dp", "all_reduce #13 of dp", "all_gather #40 of tp", "all_gather #40 of tp"]
    ranks = [RankStatus(rank=rank, iteration=39, collective=call) for rank, call in enumerate(calls)]
    ((_, title),) = opened(observe(engine, [(40.0, ranks), (200.0, ranks)]))
    assert title == (
        "Communication stands still: 2 ranks wait in all_reduce #13 of dp, 2 ranks wait in all_gather #40 of tp"
    )
    engine = new_engine()
    train(engine)
    ranks[1] = RankStatus(rank=1, iteration=39, collective="all_reduce #12 of dp")
    ((_, title),) = opened(observe(engine, [(40.0, ranks), (200.0, ranks)]))
    assert title == "Ranks disagree: rank 1 is in all_reduce #12 of dp, 1 in all_reduce #13 of dp"


def test_nobody_is_accused_if_all_wait() -> None:
    engine = new_engine()
    train(engine)
    ((_, title),) = opened(observe(engine, [(40.0, statuses(39)), (200.0, statuses(39))]))
    assert title == "Communication stands still: all 4 ranks wait in backward"
    engine = new_engine()
    train(engine)
    ((_, title),) = opened(observe(engine, [(40.0, statuses(39)), (200.0, statuses(39))], world_size=5))
    assert title == "4 ranks wait in backward; rank 4 is not recorded"


def test_long_pauses_are_no_hang() -> None:
    engine = new_engine()
    train(engine)
    for phase in ("validation", "checkpoint", "testing"):
        ranks = statuses(39, others=phase)
        assert observe(engine, [(float(second), ranks) for second in range(40, 600, 20)]) == [], phase
    # Compiling the first step takes long, too.
    engine = new_engine()
    first = [RankStatus(rank=rank, phase="forward") for rank in range(4)]
    assert observe(engine, [(float(second), first) for second in range(0, 1700, 50)]) == []
    # So do slow iterations: five times the longest one so far.
    engine = new_engine()
    train(engine, seconds=1000, pace=40)
    slow = statuses(24, others="forward")
    assert observe(engine, [(float(second), slow) for second in range(1000, 1150, 10)]) == []


def test_rank_that_dies_is_the_only_alert() -> None:
    engine = new_engine()
    train(engine)
    gone = RankStatus(rank=2, host="node2", iteration=39, state="gone")
    ranks = statuses(39, r2=gone)
    alerts = observe(engine, [(float(second), ranks) for second in range(40, 300, 5)])
    assert opened(alerts) == [("rank_gone", "Rank 2 (node2) is gone after iteration 39: the others wait for it")]
    # Ranks that die because of it are not reported again.
    both = statuses(39, r2=gone, r3=RankStatus(rank=3, host="node2", iteration=39, state="gone"))
    assert observe(engine, [(305.0, both)]) == []


def test_silent_rank_is_reported_and_may_return() -> None:
    engine = new_engine()
    train(engine)
    silent = statuses(39, r1=RankStatus(rank=1, host="node1", iteration=39, state="silent"))
    ((rule, title),) = opened(observe(engine, [(40.0, silent), (44.0, silent)]))
    assert (rule, title) == ("rank_gone", "Rank 1 (node1) has fallen silent after iteration 39: the others wait for it")
    (resolved,) = observe(engine, [(50.0, statuses(40))])
    assert (resolved["status"], resolved["outcome"]) == ("resolved", "all ranks are back")


def test_ranks_that_end_normally_are_no_fault() -> None:
    engine = new_engine()
    train(engine)
    # Another rank may still save its results.
    ended = statuses(39, others="checkpoint", r2=RankStatus(rank=2, state="ended", iteration=39))
    assert observe(engine, [(float(second), ended) for second in range(40, 400, 5)]) == []


def test_rank_that_ended_while_others_wait_is_named() -> None:
    for state, word in (("ended", "ended"), ("failed", "failed")):
        engine = new_engine()
        train(engine)
        ranks = statuses(39, r2=RankStatus(rank=2, host="node2", state=state, iteration=39))
        ((rule, title),) = opened(observe(engine, [(float(second), ranks) for second in range(40, 200, 5)]))
        assert (rule, title) == ("rank_hang", f"Rank 2 (node2) has {word} already; 3 ranks wait in backward")


def test_rare_observations_do_not_count_as_long_iterations() -> None:
    """Rank 0 reads the other ranks more rarely if their files are slow; its limit must not grow with the pauses."""
    engine = new_engine()
    assert observe(engine, [(float(second), statuses(second)) for second in range(0, 400, 40)]) == []
    ((rule, _),) = opened(observe(engine, [(400.0, statuses(360)), (440.0, statuses(360))]))
    assert rule == "rank_hang"


def test_ranks_are_listed_in_few_words() -> None:
    ranks = [RankStatus(rank=rank, host="node1") for rank in range(20)]
    assert list_ranks(ranks[:1]) == "rank 0 (node1)"
    assert list_ranks(ranks[:2]) == "ranks 0 and 1 (node1)"
    assert list_ranks(ranks) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more (node1)"
    assert list_ranks([ranks[0], RankStatus(rank=1, host="node2")]) == "ranks 0 and 1"


def test_ranks_that_end_one_after_the_other_are_no_fault() -> None:
    engine = new_engine()
    train(engine)
    leaving = statuses(39, r2=RankStatus(rank=2, state="gone", iteration=39))
    left = [RankStatus(rank=rank, state="gone" if rank else "running", iteration=39) for rank in range(4)]
    assert observe(engine, [(40.0, leaving), (42.0, left)]) == []
