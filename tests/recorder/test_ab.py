"""`tachograph.ab`: the schedule of arms, and what is recorded of it."""

from __future__ import annotations

import logging

import pytest

import tachograph
from tests.conftest import lines_of


def switches_of(run):
    found = [record for record in lines_of(run.folder.path) if record.get("name") == "ab_arm"]
    return [(record["arm"], record.get("global_step")) for record in found]


def train(run, num_steps, *arms, first_step=0, **options):
    used = []
    for step in range(first_step, first_step + num_steps):
        used.append(tachograph.ab(*arms, **options))
        run.log(train_loss=1.0, step=step)
    return used


def test_arms_take_turns_and_switches_are_recorded(logs):
    with tachograph.init("greyjacket", log_dir=logs) as run:
        used = train(run, 40, "eager", "fast", block=5)
    order = ["eager", "fast", "fast", "eager"] * 2
    assert used == [arm for arm in order for _ in range(5)]
    assert switches_of(run) == [("eager", None), ("fast", 4), ("eager", 14), ("fast", 24), ("eager", 34)]
    event = next(record for record in lines_of(run.folder.path) if record.get("name") == "ab_arm")
    assert (event["arms"], event["block"]) == (["eager", "fast"], 5)


def test_switches_know_the_step_inside_a_window(logs):
    with tachograph.init("greyjacket", log_dir=logs, log_every=7) as run:
        train(run, 20, "A", "B", block=5)
    assert switches_of(run) == [("A", None), ("B", 4), ("A", 14)]


def test_single_name_is_off_and_on(logs):
    assert tachograph.ab("fused") == ""
    with tachograph.init("greyjacket", log_dir=logs) as run:
        assert train(run, 8, "fused", block=4) == [""] * 4 + ["fused"] * 4
    assert [arm for arm, _ in switches_of(run)] == ["off", "fused"]
    assert tachograph.ab("fused") == ""


def test_first_arm_without_a_recording_run(logs, monkeypatch):
    assert {tachograph.ab("A", "B") for _ in range(50)} == {"A"}
    with tachograph.init("greyjacket", log_dir=logs, enabled=False) as run:
        assert set(train(run, 50, "A", "B")) == {"A"}
    with tachograph.init("greyjacket", log_dir=logs) as run:
        assert set(train(run, 15, "A", "B")) == {"A", "B"}
    assert {tachograph.ab("A", "B") for _ in range(50)} == {"A"}


def test_new_run_starts_with_the_first_arm(logs):
    for _ in range(2):
        with tachograph.init("greyjacket", log_dir=logs) as run:
            assert train(run, 14, "A", "B") == ["A"] * 10 + ["B"] * 4
        assert [arm for arm, _ in switches_of(run)] == ["A", "B"]


def test_all_ranks_follow_one_schedule(logs, monkeypatch):
    """A rank may have no run, and a run may start or end in the middle of a block."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    expected = [arm for arm in "abba" * 4 for _ in range(10)]
    used = [tachograph.ab("a", "b") for _ in range(13)]
    monkeypatch.setenv("RANK", "0")
    with tachograph.init("greyjacket", log_dir=logs) as run:
        used += train(run, 30, "a", "b")
    used += [tachograph.ab("a", "b") for _ in range(57)]
    assert used == expected[:100]
    assert [arm for arm, _ in switches_of(run)][:2] == ["b", "a"]


def test_wrong_arguments_warn_once_and_never_raise(logs, caplog):
    with tachograph.init("greyjacket", log_dir=logs) as run, caplog.at_level(logging.WARNING, "tachograph"):
        for _ in range(3):
            assert tachograph.ab("A", "B", "C") == "A"
            assert tachograph.ab("C", "D", block=2) == "C"
            assert tachograph.ab(["E"], "F") == ["E"]
            assert tachograph.ab() == ""
            assert tachograph.ab("G", "G") == "G"
        assert switches_of(run) == []
        assert tachograph.ab("H", "I") == "H"
        assert {tachograph.ab("J", "K") for _ in range(30)} == {"J"}
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert "a run has one A/B test at a time" in warnings[-1]


@pytest.fixture(autouse=True)
def forget_schedules():
    """Forget the schedule and the warnings of earlier tests in this process."""
    from tachograph.recorder.collectors import ab

    ab._schedules.clear()
    ab._reported_problems.clear()
