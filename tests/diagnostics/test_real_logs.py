"""Detection quality on labelled logs of real runs, if available; `make bench-detectors` prints the same."""

from __future__ import annotations

import pytest
from benchmarks.detectors.data import folder, load
from benchmarks.detectors.score import Score, Targets


@pytest.mark.skipif(folder() is None, reason="the training logs are not part of the repository; set TRAINING_LOGS")
def test_rules_meet_detection_targets(capsys: pytest.CaptureFixture[str]) -> None:
    place = folder()
    assert place is not None
    targets = Targets()
    Score(load(place), targets).print()
    assert targets.are_met, capsys.readouterr().out
