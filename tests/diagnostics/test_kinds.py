"""Healthy runs of the kinds that `make bench-detectors` makes have no warning; a few of each, to be fast."""

from __future__ import annotations

from itertools import islice

from benchmarks.detectors.healthy import runs_of, warnings_of

_KINDS = (
    "small validation set",
    "warm restarts",
    "curriculum",
    "mixup",
    "adversarial",
    "every 500 steps",
    "two digits",
    "negative",
    "late decay",
)
_NUM_RUNS = 5


def test_healthy_runs_of_many_kinds_have_no_warning() -> None:
    for kind in _KINDS:
        for number, records in enumerate(islice(runs_of(kind, 0), _NUM_RUNS)):
            assert not warnings_of(records), (kind, number)
