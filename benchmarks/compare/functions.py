"""Functions with known shares of their variance, to check the importance of keys with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["FUNCTIONS"]

Sweep = tuple[dict[str, list[Any]], np.ndarray, dict[str, float]]
"""The values of each key, the results, and the total Sobol index of each key."""


def _columns(values: np.ndarray) -> dict[str, list[Any]]:
    return {f"x{number}": column.tolist() for number, column in enumerate(values.T)}


def ishigami(random: np.random.Generator, num_runs: int) -> Sweep:
    """Draw from Ishigami and Homma (1990): the third key acts only together with the first one."""
    x = random.uniform(-np.pi, np.pi, (num_runs, 4))
    results = np.sin(x[:, 0]) + 7 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0])
    return _columns(x), results, {"x0": 0.5576, "x1": 0.4424, "x2": 0.2437, "x3": 0.0}


def branin(random: np.random.Generator, num_runs: int) -> Sweep:
    """Draw from Branin's function; its indices are integrals over a grid."""
    x = random.uniform(0.0, 1.0, (num_runs, 4))
    a, b = 15 * x[:, 0] - 5, 15 * x[:, 1]
    results = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10
    return _columns(x), results, {"x0": 0.7485, "x1": 0.8643, "x2": 0.0, "x3": 0.0}


def sum_and_product(random: np.random.Generator, num_runs: int) -> Sweep:
    """Draw from a line, a parabola and a product."""
    x = random.uniform(-1.0, 1.0, (num_runs, 5))
    line, parabola, product = 1 / 3, 2.25 * (1 / 5 - 1 / 9), 4 / 9
    total = line + parabola + product
    shares = {"x0": (line + product) / total, "x1": parabola / total, "x2": product / total, "x3": 0.0, "x4": 0.0}
    return _columns(x), x[:, 0] + 1.5 * x[:, 1] ** 2 + 2 * x[:, 0] * x[:, 2], shares


def optimum_in_the_middle(random: np.random.Generator, num_runs: int) -> Sweep:
    """Draw a sweep with the best learning rate in the middle of a logarithmic range, and hardly any other effect."""
    lr = 10 ** random.uniform(-4.0, -2.0, num_runs)
    width = 2 ** random.integers(6, 10, num_runs)
    optimizer = random.choice(["adam", "sgd", "lion"], num_runs)
    effects = {
        "lr": (np.log10(lr) + 3) ** 2,
        "width": -0.02 * np.log2(width),
        "optimizer": 0.1 * (optimizer == "sgd"),
    }
    variances = {"lr": 4 / 45, "width": 0.0004 * 1.25, "optimizer": 0.01 * 2 / 9}
    noise = random.normal(0.0, 0.02, num_runs)
    total = sum(variances.values()) + 0.0004
    columns = {"lr": lr.tolist(), "width": width.tolist(), "optimizer": optimizer.tolist()}
    return columns, sum(effects.values()) + noise, {name: value / total for name, value in variances.items()}


def noise(random: np.random.Generator, num_runs: int) -> Sweep:
    """Draw results that depend on nothing."""
    x = random.normal(size=(num_runs, 6))
    return _columns(x), random.normal(size=num_runs), {}


FUNCTIONS: dict[str, Callable[[np.random.Generator, int], Sweep]] = {
    "Ishigami": ishigami,
    "Branin": branin,
    "sum and product": sum_and_product,
    "optimum in the middle": optimum_in_the_middle,
    "noise": noise,
}
