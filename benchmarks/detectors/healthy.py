"""Counts the warnings of the rules on healthy synthetic runs, each of which is false."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.detectors.curves import Record
from benchmarks.detectors.judge import judge
from benchmarks.detectors.kinds import KINDS
from benchmarks.detectors.unseen_kinds import UNSEEN_KINDS

_NUM_RUNS = 20
"""Runs of each kind in each half."""


def runs_of(kind: str, half: int) -> Iterator[list[Record]]:
    """Return the runs of a kind that belong to one half: 0 for tuning, 1 for the final figures."""
    make = KINDS.get(kind) or UNSEEN_KINDS[kind]
    seed = list(KINDS).index(kind) if kind in KINDS else 1000 + list(UNSEEN_KINDS).index(kind)
    for number in range(_NUM_RUNS):
        yield [{"event": "start", "time": 0.0}, *make(np.random.default_rng((17, half, seed, number)))]


def warnings_of(records: list[Record]) -> Counter[str]:
    """Return how many alerts at warning or above a run has, by rule."""
    alerts = {
        (alert["rule"], alert["id"])
        for alert in judge(records)
        if alert["status"] != "resolved" and alert["severity"] != "info"
    }
    return Counter(rule for rule, _ in alerts)


def print_healthy(require: Callable[[str, bool], None]) -> None:
    """Print the share of healthy runs with a warning, by kind and half; the unseen kinds have no half for tuning."""
    print(f"{'healthy runs with a warning':28}{'tuned':>8}{'held out':>10}{'most':>6}  rules")
    for kinds, halves in ((KINDS, (0, 1)), (UNSEEN_KINDS, (1,))):
        totals = Counter(dict.fromkeys(halves, 0))
        for kind in kinds:
            warned, most, rules = [0, 0], 0, defaultdict[str, int](int)
            for half in halves:
                for records in runs_of(kind, half):
                    counts = warnings_of(records)
                    warned[half] += bool(counts)
                    most = max(most, counts.total())
                    for rule in counts if half == halves[0] else ():
                        rules[rule] += 1
                totals[half] += warned[half]
            names = ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items()))
            shares = [f"{warned[half]}/{_NUM_RUNS}" if half in halves else "" for half in (0, 1)]
            print(f"{kind:28}{shares[0]:>8}{shares[1]:>10}{most:>6}  {names}", flush=True)
        num_runs = _NUM_RUNS * len(kinds)
        totals_text = [f"{100 * totals[half] / num_runs:.1f} %" if half in halves else "" for half in (0, 1)]
        name = "all" if kinds is KINDS else "all unseen kinds"
        print(f"{name:28}{totals_text[0]:>8}{totals_text[1]:>10}")
        require(f"a warning on <= 2 % of the healthy runs: {name}", max(totals.values()) <= 0.02 * num_runs)
