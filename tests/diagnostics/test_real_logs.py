"""Detection quality on labelled logs of real runs, if available; `make bench-detectors` prints the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.detectors.data import Logs, folder, load, load_small_models
from benchmarks.detectors.judge import judge
from benchmarks.detectors.score import Score, Targets


@pytest.fixture(scope="module")
def place() -> Path:
    place = folder()
    if place is None:
        pytest.skip("the training logs are not part of the repository; set TRAINING_LOGS")
    return place


@pytest.fixture(scope="module")
def logs(place: Path) -> Logs:
    return load(place)


@pytest.mark.xdist_group("real_logs")
@pytest.mark.slow
def test_rules_meet_detection_targets(logs: Logs, capsys: pytest.CaptureFixture[str]) -> None:
    targets = Targets()
    Score(logs, targets).print(has_comparators=False)
    assert targets.are_met, capsys.readouterr().out


@pytest.mark.xdist_group("real_logs")
@pytest.mark.slow
def test_batches_of_real_steps_give_the_same_alerts(place: Path, logs: Logs) -> None:
    runs = {**logs.runs, **load_small_models(place)}
    for number, run in enumerate(sorted(runs)[::20]):
        alerts = judge(runs[run], table_rows=None)
        for table_rows in ((1, 64), (7, 1000))[number % 2]:
            assert judge(runs[run], table_rows) == alerts, (run, table_rows)
