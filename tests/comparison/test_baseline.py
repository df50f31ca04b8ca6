"""Baseline files: what is kept of runs is enough to judge others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tachograph.comparison import Baseline, BaselineError, compare_groups, load_baseline, save_baseline
from tests.comparison.evidence import make_run, training_curve


def run(name, seed, *, num_steps=2_000, level=1.0, batches=0, **options):
    fields = {"perf_tags": ("tag",), "memory": {"device_allocated": 1e10, "host": 2e9}, "config": {"lr": 0.1}}
    made = make_run(name, seed=seed, num_steps=num_steps, **{**fields, **options})
    return replace(made, loss=training_curve(seed, num_steps, batches=batches, level=level))


@pytest.fixture
def baseline(tmp_path):
    found = Baseline()
    for number in range(3):
        assert found.add(run(f"base-{number}", number)) == []
    save_baseline(tmp_path / "baseline.json", found)
    return load_baseline(tmp_path / "baseline.json")


@pytest.mark.parametrize("num_steps", [2_000, 1_990, 1_000, 3_000])
@pytest.mark.parametrize(("factor", "level"), [(1.0, 1.0), (1.05, 1.0), (1.0, 1.02)])
def test_verdicts_are_those_of_the_journals(baseline, num_steps, factor, level):
    second = [run("new", 9, num_steps=num_steps, factor=factor, level=level)]
    # The loss falls at the same rate in long and short runs.
    second = [replace(second[0], loss=training_curve(9, 3_000, level=level).between(0, num_steps - 1))]
    first = [run(f"base-{number}", number) for number in range(3)]
    first = [replace(each, loss=training_curve(number, 3_000).between(0, 1_999)) for number, each in enumerate(first)]
    kept = Baseline()
    for each in first:
        kept.add(each)
    by_journal, by_file = compare_groups(first, second), compare_groups(kept.evidence(), second)
    for name in ("step_time", "device_memory", "host_memory", "train_loss"):
        journal, file = by_journal.metric(name), by_file.metric(name)
        assert journal is not None
        assert file is not None
        assert (file.verdict, file.noise_source) == (journal.verdict, journal.noise_source)
        assert file.effect == pytest.approx(journal.effect, abs=0.002)


def test_other_batches_are_recognised(baseline):
    found = compare_groups(baseline.evidence(), [run("new", 9, batches=5)]).metric("train_loss")
    assert found is not None
    assert found.noise > 0.01  # three seeds against one, of another order of the data


def test_accepted_run_with_other_batches_is_the_new_reference(baseline):
    baseline.add(run("new-1", 9, batches=5, level=1.2), accepted="other data")
    assert baseline.add(run("new-2", 10, batches=5, level=1.2)) == []
    found = compare_groups(baseline.evidence(), [run("new-3", 11, batches=5, level=1.2)]).metric("train_loss")
    assert found is not None
    assert found.runs_a == 2
    assert found.noise < 0.004  # the batches are recognised as the same
    assert not found.is_different


def test_large_config_keeps_the_keys_that_matter(tmp_path):
    config = {f"key_{number}": "x" * 70 for number in range(500)} | {"model.hidden_size": 512}
    found = Baseline()
    found.add(run("base", 0, config=config))
    save_baseline(tmp_path / "baseline.json", found)
    found = load_baseline(tmp_path / "baseline.json")
    assert found.config["model.hidden_size"] == 512
    new = found.comparable(run("new", 1, config=config))
    assert compare_groups(found.evidence(), [new]).config_diff == []
    with pytest.raises(BaselineError, match="hidden_size"):
        found.add(run("other", 1, config={**config, "model.hidden_size": 1024}))


def test_short_run_says_what_is_missing():
    found = Baseline()
    missing = found.add(run("short", 0, num_steps=50))
    assert [line.partition(":")[0] for line in missing] == ["speed", "training loss"]
    report = compare_groups(found.evidence(), [run("new", 1)])
    assert {metric.verdict for metric in report.metrics if metric.name in {"step_time", "train_loss"}} == {"unknown"}


def test_file_of_twenty_full_runs_is_small(tmp_path):
    found = Baseline()
    for number in range(25):
        made = run(f"training-of-the-night-{number:04}", number, num_steps=20_000)
        validations = made.loss.between(0, 20_000)
        facts = {"host": f"node-{number}", "gpus": ["NVIDIA H100 80GB HBM3"] * 8, "git.commit": f"{number:040x}"}
        steps = np.arange(0, 20_000, 500)
        made = replace(
            made,
            run_id=f"{number:032x}",
            session_tag=f"training-of-the-night-{number:032x}",
            facts={**facts, "torch": "2.9.0+cu128", "python": "3.12.1", "world_size": 8},
            val_loss=validations._replace(steps=validations.steps[steps], values=validations.values[steps]),
        )
        found.add(made)
    save_baseline(tmp_path / "baseline.json", found)
    assert len(load_baseline(tmp_path / "baseline.json").runs) == 20
