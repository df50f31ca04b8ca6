"""False alarms and power of the search for changes in a series of runs: `python -m benchmarks.compare.history`."""

from __future__ import annotations

import numpy as np

from tachograph.comparison import find_changes

_NUM_RUNS = 50
_CHANGE_AT = 25
_MARGIN = 0.01
_CASES = ((0.003, 0.02), (0.01, 0.02), (0.01, 0.05), (0.03, 0.1))


def _series(seed: int, noise: float, change: float, *, is_heavy: bool) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.standard_t(3, _NUM_RUNS) / np.sqrt(3) if is_heavy else random.normal(size=_NUM_RUNS)
    levels: np.ndarray = noise * values + np.where(np.arange(_NUM_RUNS) < _CHANGE_AT, 0.0, np.log1p(change))
    return levels


def main(num_series: int = 1_000) -> None:
    """Print how often a change is found in series with and without one."""
    print(f"{num_series} series of {_NUM_RUNS} runs each")
    for noise in (0.003, 0.01, 0.03):
        for is_heavy in (False, True):
            found = sum(
                bool(find_changes(_series(seed, noise, 0.0, is_heavy=is_heavy), _MARGIN)) for seed in range(num_series)
            )
            kind = "t with 3 degrees" if is_heavy else "normal"
            print(f"no change, noise {noise:.1%} ({kind}): {found / num_series:.1%} false alarms")
    for noise, change in _CASES:
        results = [find_changes(_series(seed, noise, change, is_heavy=False), _MARGIN) for seed in range(num_series)]
        first = [changes[0] for changes in results if changes]
        delay = np.median([each.found_at - _CHANGE_AT + 1 for each in first])
        is_near = np.mean([abs(each.position - _CHANGE_AT) <= 1 for each in first])
        share = len(first) / num_series
        print(
            f"{change:+.0%}, noise {noise:.1%}: found {share:.1%}, after {delay:.0f} runs, in place ± 1 {is_near:.1%}"
        )


if __name__ == "__main__":
    main()
