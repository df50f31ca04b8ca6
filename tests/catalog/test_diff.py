"""What differs between runs."""

from __future__ import annotations

import math

from tachograph.catalog import CapturedRun, diff_pair
from tachograph.catalog._captured_diff import diff_values
from tachograph.journal import RunFolder


def test_nan_equals_nan_and_a_missing_value_differs():
    assert diff_values([{"a": math.nan, "b": 1, "c": [2]}, {"a": math.nan, "b": 1.0, "c": [2]}, None]) == []
    found = diff_values([{"a": [1], "b": None}, {"a": [2]}, None, {}])
    assert [(each.name, each.values) for each in found] == [("a", [[1], [2], None, None])]


def test_a_run_without_packages_differs_in_none(tmp_path):
    runs = [
        CapturedRun(name, RunFolder(tmp_path / name), {"lr": lr, "model": {"depth": 2}}, {"host": "h"}, {})
        for name, lr in (("a", 0.1), ("b", 0.2))
    ]
    found = diff_pair(*runs)
    assert [(each.name, each.first, each.second) for each in found.config] == [("lr", 0.1, 0.2)]
    assert (found.git, found.packages, found.environment, found.code) == ([], [], [], [])
    reason = "the run has no captured code"
    assert found.notes == [f"{run}: no {part}: {reason}" for part in ("packages", "code") for run in ("a", "b")]
