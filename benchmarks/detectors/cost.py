"""The cost of all rules per step, compared with encoding the same steps."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tachograph.diagnostics import RuleEngine
from tachograph.records import StepTable

_NAMES = ("time", "global_step", "train_loss", "lr", "grad_norm", "sec_per_step", "samples_per_sec")
_ROWS = 256
_TABLES = 200


class Cost(NamedTuple):
    all_us: float
    ratio: float
    description: str


def cost_us() -> Cost:
    """Return microseconds per step, as the median over several alternating repetitions."""
    tables = list(_tables())
    ours, encoding = [], []
    for _ in range(7):
        engine = RuleEngine()
        ours.append(_timed(partial(_observe, engine, tables)))
        encoding.append(_timed(lambda: [StepTable.encode(_NAMES, columns) for columns in tables]))
    per_step = 1e6 / (_ROWS * _TABLES)
    all_us = statistics.median(ours) * per_step
    return Cost(all_us, all_us / (statistics.median(encoding) * per_step), f"steps with {', '.join(_NAMES[2:])}")


def _tables() -> list[list[tuple[float, ...]]]:
    source = random.Random(1)
    tables = []
    for table in range(_TABLES):
        rows: list[list[float]] = []
        for row in range(_ROWS):
            step = table * _ROWS + row
            took_s = 0.01 * (1 + source.gauss(0, 0.02))
            loss = 2 + 3 / (1 + step / 500) + source.gauss(0, 0.05)
            norm = 1 + abs(source.gauss(0, 0.2))
            rows.append([1.7e9 + step * 0.01, step, loss, 3e-4 * (1 - step / 1e6), norm, took_s, 8 / took_s])
        tables.append(list(zip(*rows, strict=True)))
    return tables


def _observe(engine: RuleEngine, tables: list[list[tuple[float, ...]]]) -> None:
    for columns in tables:
        engine.observe_steps(_NAMES, columns)


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
