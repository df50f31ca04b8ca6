"""The charts of W&B."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.plot import (
    CustomChart,
    bar,
    confusion_matrix,
    histogram,
    line,
    line_series,
    plot_table,
    pr_curve,
    roc_curve,
    scatter,
)

__all__ = [
    "CustomChart",
    "bar",
    "confusion_matrix",
    "histogram",
    "line",
    "line_series",
    "plot_table",
    "pr_curve",
    "roc_curve",
    "scatter",
]
