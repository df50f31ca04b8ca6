"""What a reader knows of each rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tachograph.journal import RunFolder
from tachograph.reader import read_ranks
from tachograph.records import PhaseTime, RankWindow
from tests.ranks.written_job import write_job


def test_last_iterations_without_phases_keep_the_times_of_the_last_window(tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    path = tmp_path / "job" / "ranks" / "00004.jsonl"
    rest = RankWindow(last_iteration=85, num_iterations=6, own=PhaseTime(0.21, 0.0))
    *records, end = path.read_text().splitlines()
    path.write_text("\n".join([*records, json.dumps({"event": "rank", "time": 1_006.0, **rest.to_fields()}), end, ""]))
    view = read_ranks(RunFolder(tmp_path / "job"))[4]
    assert (view.rank, view.num_iterations) == (4, 86)
    assert view.own_s == pytest.approx(0.13)
    assert view.wait_s == pytest.approx(0.07)
    assert view.mean_iteration_s == pytest.approx(0.21)
    assert view.score == pytest.approx(1 / 1.3)
