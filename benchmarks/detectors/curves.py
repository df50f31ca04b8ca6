"""Parts of synthetic curves: falling losses, kinds of noise, intervals and schedules, all drawn from seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Record = dict[str, Any]
Rng = np.random.Generator
Values = np.ndarray


def falling(rng: Rng, progress: Values) -> Values:
    """Return a falling curve from about 1 to a floor."""
    floor = rng.uniform(0.05, 0.7)
    speed = 10 ** rng.uniform(0.3, 1.8)
    is_exponential = rng.random() < 0.5
    shape = np.exp(-speed * progress) if is_exponential else (1 + speed * 10 * progress) ** -rng.uniform(0.2, 0.8)
    slow = 1 - rng.uniform(0, 0.3) * progress
    return floor * slow + (1 - floor) * shape


def noise(rng: Rng, num_values: int, sigma: float) -> Values:
    """Return factors around one: of Gaussian, skewed, heavy-tailed or, if it is small, correlated noise.

    No value is more than four spreads from the others: a single one further away is a spike, whatever its cause.
    """
    family = rng.integers(4 if sigma < 0.05 else 3)
    if family == 0:
        draws = rng.normal(size=num_values)
    elif family == 1:
        draws = rng.standard_t(6, size=num_values) / 1.22
    elif family == 2:
        draws = (rng.gamma(4, size=num_values) - 4) / 2
    else:
        draws = wandering(rng, num_values, 0.8)
    return np.exp(sigma * np.clip(draws, -4, 4))


def wandering(rng: Rng, num_values: int, correlation: float) -> Values:
    """Return correlated noise with a spread of one."""
    draws = rng.normal(size=num_values) * math.sqrt(1 - correlation**2)
    values = np.empty(num_values)
    value = rng.normal()
    for index, draw in enumerate(draws):
        value = correlation * value + draw
        values[index] = value
    return values


def any_sigma(rng: Rng) -> float:
    return float(10 ** rng.uniform(-2, -0.6))


def any_scale(rng: Rng) -> float:
    return float(10 ** rng.uniform(-1, 1))


def warm_cosine(num_values: int) -> Values:
    progress = np.arange(num_values) / num_values
    return np.asarray(np.minimum(1, progress / 0.05 + 1 / num_values) * 0.5 * (1 + np.cos(np.pi * progress)))


def step_records(columns: dict[str, Values], log_every: int = 1, step_s: float = 0.1) -> Iterator[Record]:
    """Yield step records; NaN means that a value is not recorded."""
    num_values = len(next(iter(columns.values())))
    for index in range(num_values):
        step = index * log_every
        record: Record = {"event": "step", "time": step * step_s, "global_step": step}
        record.update(
            (name, float(values[index])) for name, values in columns.items() if values[index] == values[index]
        )
        yield record


def every(values: Values, number: int) -> Values:
    """Keep every n-th value."""
    return np.where(np.arange(len(values)) % number == number - 1, values, np.nan)


def any_interval(rng: Rng) -> int:
    return int(rng.choice([1, 1, 10, 50, 100]))
