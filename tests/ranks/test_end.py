"""Why rank 0 ended: because of another rank, or for a reason of its own."""

from __future__ import annotations

from tachograph.diagnostics import RankStatus
from tachograph.recorder._rank_monitor import explain_end, pause_s

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:23416: Connection reset by peer"
GONE = RankStatus(rank=2, host="node2", state="gone", iteration=59)
VICTIM = RankStatus(rank=1, host="node1", state="failed", error=LOST)
FAILED = RankStatus(rank=3, host="node2", state="failed", iteration=60, error="ValueError: sample 17 in /data/store")


def test_first_rank_that_ended_is_named() -> None:
    cases = [
        # A launcher stops the others, or their connections break.
        ("SIGTERM", "", [VICTIM, GONE], "rank 2 (node2) was killed or crashed after iteration 60;"),
        ("RuntimeError", LOST, [VICTIM, GONE], "rank 2 (node2) was killed or crashed after iteration 60;"),
        ("SIGTERM", "", [VICTIM, FAILED], "rank 3 (node2) failed after iteration 60: ValueError: sample 17"),
        ("RuntimeError", LOST, [FAILED, VICTIM], "rank 3 (node2) failed after iteration 60: ValueError: sample 17"),
        # A killed process leaves no error, so it is the cause of the others.
        ("SIGTERM", "", [FAILED, GONE], "rank 2 (node2) was killed"),
    ]
    for reason, error, statuses, expected in cases:
        explanation = explain_end(reason, error, statuses, 60)
        assert explanation is not None, (reason, statuses)
        assert explanation[0].startswith(expected), explanation[0]
        assert explanation[0].endswith(f"the other ranks ended because of it (rank 0: {reason})")


def test_reason_of_rank_zero_stays_if_it_is_its_own() -> None:
    own = "RuntimeError: CUDA out of memory"
    for reason, error, statuses in [
        ("RuntimeError", own, [GONE, VICTIM]),
        ("KeyboardInterrupt", "", [GONE]),
        ("SIGTERM", "", [VICTIM]),  # the first one is unknown
        ("SIGTERM", "", [RankStatus(rank=1), RankStatus(rank=2, state="ended")]),
        ("SIGTERM", "", []),
    ]:
        assert explain_end(reason, error, statuses, 60) is None, (reason, statuses)


def test_rank_that_never_recorded_anything_is_named_before_the_first_iteration() -> None:
    others = [RankStatus(rank=1), RankStatus(rank=3)]
    explanation = explain_end("SIGTERM", "", others, None, 4)
    assert explanation is not None
    assert explanation[0].startswith("rank 2 ended before recording anything, or is not recorded; ")
    assert explanation[1].rank == 2
    # It took part in iterations, so it was only not recorded; or most ranks are not.
    assert explain_end("SIGTERM", "", others, 10, 4) is None
    assert explain_end("SIGTERM", "", others, None, 64) is None


def test_one_slow_poll_does_not_delay_the_next_one() -> None:
    assert pause_s(5.0, 0.01) == pause_s(0.01, 5.0) == 2.0
    assert pause_s(0.2, 0.2) == 10.0
    assert pause_s(5.0, 5.0) == 15.0  # a rank that is gone is named within 25 seconds
