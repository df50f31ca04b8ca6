"""Finding changes in a series of runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tachograph.comparison import SeriesPoints, find_changes, judge_history
from tests.comparison.evidence import make_run

NUM_RUNS = 50


def series(seed, noise, *, change=0.0, heavy=False):
    random = np.random.default_rng(seed)
    values = random.standard_t(3, NUM_RUNS) / np.sqrt(3) if heavy else random.normal(size=NUM_RUNS)
    return noise * values + np.where(np.arange(NUM_RUNS) < 25, 0.0, np.log1p(change))


@pytest.mark.parametrize(("noise", "heavy"), [(0.003, False), (0.03, False), (0.03, True)])
def test_false_alarms_are_rare(noise, heavy):
    alarms = sum(bool(find_changes(series(seed, noise, heavy=heavy), 0.01)) for seed in range(100))
    assert alarms <= 2


@pytest.mark.parametrize(("change", "noise"), [(0.05, 0.01), (0.02, 0.003), (0.1, 0.03)])
def test_change_is_found_in_place_after_a_few_runs(change, noise):
    found = [find_changes(series(seed, noise, change=change), 0.01) for seed in range(40)]
    assert sum(bool(changes) for changes in found) >= 39
    places = [abs(changes[0].position - 25) <= 1 for changes in found if changes]
    assert sum(places) >= 0.95 * len(places)
    delays = [changes[0].found_at - 24 for changes in found if changes]
    assert np.median(delays) <= 5
    assert all(changes[0].difference > 0 for changes in found if changes)


def test_search_starts_anew_after_a_change():
    levels = np.concatenate([np.zeros(15), np.full(15, 0.05), np.zeros(15)])
    levels += np.random.default_rng(1).normal(0.0, 0.003, len(levels))
    assert [change.position for change in find_changes(levels, 0.01)] == [15, 30]
    assert find_changes(levels[:9], 0.01) == []
    exact = find_changes(np.repeat([0.0, 0.02], 8), 0.01)
    assert [change.position for change in exact] == [8]
    assert find_changes(np.full(40, 24.5), 0.01) == []


def test_short_runs_do_not_hide_a_change():
    def night(number, **options):
        facts = {"host": "node1" if number < 9 else "node2", "git.commit": f"{number:040x}"}
        return replace(make_run(f"night-{number}", seed=number, **options), started=float(number), facts=facts)

    runs = [night(number, factor=1.0 if number < 9 else 1.03) for number in range(12)]
    runs.insert(4, replace(make_run("short", num_steps=150), started=4.5))
    report = judge_history(runs[::-1])
    [change] = report.new_regressions
    assert (change.name, change.before, change.run) == ("step_time", "night-8", "night-9")
    assert change.effect == pytest.approx(0.03, abs=0.004)
    assert change.hosts == ["node1", "node2"]
    assert "commits 000000000000..000000000000" in change.text
    assert judge_history(runs[:5]).missing


def test_validation_losses_at_the_same_steps_are_a_series():
    def night(number, level=1.0, steps=(100, 200, 300, 400), **fields):
        random = np.random.default_rng(number)
        values = level * (2.0 - np.array(steps) / 1000) * np.exp(random.normal(0.0, 0.002, len(steps)))
        curve = SeriesPoints(np.array(steps, dtype=np.float64), fields.pop("values", values))
        config = {"dataset": fields.pop("dataset", "c4")}
        return replace(make_run(f"night-{number}", seed=number, val_loss=curve, config=config), started=float(number))

    runs = [night(number, level=1.0 if number < 9 else 1.03) for number in range(12)]
    runs.insert(3, night(30, level=5.0, steps=(150, 250, 350)))  # validated at other steps
    runs.insert(4, night(31, level=5.0, dataset="pile"))
    runs[3], runs[4] = (replace(run, started=2.5) for run in runs[3:5])
    [change] = judge_history(runs, ["val_loss"]).new_regressions
    assert (change.title, change.verdict, change.run) == ("validation loss", "worse", "night-9")
    assert change.effect == pytest.approx(0.03, abs=0.004)
    # What cannot be judged is stated.
    for newest, reason in (
        (night(20, values=np.array([1.0, 1.0, 1.0, np.nan])), "the last validations of 'night-20' are not all finite"),
        (night(20, steps=(100, 200)), "'night-20' has 2 validations; 3 are needed"),
        (night(20, level=-1.0), "only values above 0 can be judged"),
        (night(20, steps=(111, 222, 333)), "1 runs can be compared with the newest one; 10 are needed"),
    ):
        found = judge_history([*runs, newest], ["val_loss"])
        assert (found.changes, found.missing) == ([], [f"validation loss: {reason}"])
    assert judge_history([make_run(f"{number}") for number in range(12)], ["val_loss"]).missing == []
    parts = [replace(run, session_tag="one") for run in runs]
    assert judge_history(parts, ["val_loss"]).num_runs == 1
