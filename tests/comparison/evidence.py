"""Make runs with known times and losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tachograph.comparison import RunEvidence, SeriesPoints, StepClock

__all__ = ["make_run", "training_curve"]


def training_curve(seed: int, num_steps: int = 2_000, *, batches: int = 0, level: float = 1.0) -> SeriesPoints:
    """Make a loss that falls; runs with the same `batches` rise and fall together, with noise by their seed."""
    steps = np.arange(num_steps, dtype=np.float64)
    trend = 2.0 + 4.0 * np.exp(-steps / (num_steps / 5))
    of_batches = np.random.default_rng(1_000 + batches).normal(0.0, 0.1, num_steps)
    of_seed = np.random.default_rng(seed).normal(0.0, 0.005, num_steps)
    return SeriesPoints(steps, level * (trend + of_batches + of_seed))


def make_run(
    name: str = "run",
    *,
    seed: int = 0,
    num_steps: int = 1_000,
    step_s: float = 0.2,
    noise: float = 0.01,
    factor: Any = 1.0,
    **fields: Any,
) -> RunEvidence:
    """Make a run whose steps take about `step_s`, times a factor or one factor per step."""
    random = np.random.default_rng(seed)
    each = step_s * np.exp(random.normal(0.0, noise, num_steps)) * factor
    steps = np.arange(num_steps + 1, dtype=np.float64)
    clock = StepClock(steps, np.concatenate([[0.0], np.cumsum(each)]))
    fields.setdefault("facts", {"host": "node1", "gpus": ["H100"], "world_size": 1})
    return RunEvidence(name, name, clock=clock, num_steps=num_steps, **fields)
