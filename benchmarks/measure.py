"""The workload of every subject, and the comparison of a cost with its baseline."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter

import msgspec

__all__ = ["Burst", "Rows", "Spread", "append_tuples", "bare_loop", "make_rows", "time_ns"]

Rows = Sequence[dict[str, float]]
Burst = Callable[[Rows, int], None]
"""Logs rows one by one, numbered from the given step."""

_METRICS = {
    "train_loss": 2.0,
    "lr": 3e-4,
    "grad_norm": 1.0,
    "weight_norm": 80.0,
    "perplexity": 7.4,
    "accuracy": 0.6,
    "tokens_per_sec": 41_000.0,
    "data_wait_ms": 3.0,
    "forward_ms": 40.0,
    "backward_ms": 80.0,
}


def make_rows(num_rows: int) -> list[dict[str, float]]:
    """Return rows of ten scalars with full floating-point precision, like measured values."""
    source = random.Random(0)
    return [{name: size * source.uniform(0.5, 1.5) for name, size in _METRICS.items()} for _ in range(num_rows)]


def bare_loop(rows: Rows, first_step: int) -> None:
    """Iterate over the rows and log nothing: the overhead that every other burst shares."""
    for _step, _metrics in enumerate(rows, first_step):
        pass


def append_tuples(rows: Rows, first_step: int) -> None:
    """Append a timestamped tuple for each row: the floor, the cheapest possible way to record."""
    append = [].append
    for step, metrics in enumerate(rows, first_step):
        append((perf_counter(), step, metrics))


def time_ns(burst: Burst, rows: Rows, first_step: int) -> float:
    """Return the time of a burst per row."""
    start_ns = time.perf_counter_ns()
    burst(rows, first_step)
    return (time.perf_counter_ns() - start_ns) / len(rows)


class Spread(msgspec.Struct, frozen=True):
    """Median and quartiles of many rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise at least one value."""
        known = sorted(values)
        if len(known) == 1:
            return cls(known[0], known[0], known[0])
        return cls(*statistics.quantiles(known, n=4, method="inclusive"))

    @classmethod
    def read(cls, value: Mapping[str, float]) -> Spread:
        """Decode the result of a child process."""
        return msgspec.convert(value, cls)

    def over(self, value: float) -> Spread:
        """Return the spread divided by a value."""
        return Spread(self.low / value, self.median / value, self.high / value)
