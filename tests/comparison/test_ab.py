"""Judging arms that took turns, from journals with known times."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import tachograph
from tachograph.comparison import (
    ArmCommand,
    ArmRun,
    ArmSwitch,
    EqualWeightsLevel,
    SeriesPoints,
    TooShort,
    add_equal_weights,
    judge_differences,
    judge_equal_weights,
    measure_quads,
    report_arms,
    report_pairs,
    verdict_rows,
)
from tachograph.exceptions import RunNotFoundError
from tachograph.journal import RunFolder
from tests.comparison.evidence import make_run, training_curve


def make_arms(seed=0, *, effect=0.0, num_steps=480, block=10, drift=0.0, noise=0.02, stride=1):
    """Make the times of a run with switches; neighbouring steps are alike, and one in a hundred takes four times."""
    random = np.random.default_rng(seed)
    wander = np.zeros(num_steps)
    for step, change in enumerate(random.normal(0.0, noise, num_steps)):
        wander[step] = 0.5 * wander[step - 1] + change
    arms = [(0, 1, 1, 0)[step // block % 4] for step in range(num_steps)]
    seconds = 0.1 * np.exp(wander + drift * np.arange(num_steps) / num_steps + math.log1p(effect) * np.array(arms))
    seconds *= np.where(random.random(num_steps) < 0.01, 4.0, 1.0)
    switches = [ArmSwitch(-math.inf, 0)]
    switches += [ArmSwitch(step - 1.0, arms[step]) for step in range(1, num_steps) if arms[step] != arms[step - 1]]
    ends = np.arange(stride, num_steps, stride)
    means = [seconds[end - stride + 1 : end + 1].mean() for end in ends]
    return [switches], SeriesPoints(ends.astype(float), np.array(means))


def verdict_of(*arguments, margin=0.01, **options):
    return judge_differences(measure_quads(*make_arms(*arguments, **options)).differences, margin)


@pytest.mark.slow
def test_equal_arms_are_rarely_called_different():
    found = [verdict_of(seed, drift=0.3).direction for seed in range(200)]
    assert found.count("higher") <= 2
    assert found.count("lower") <= 2


@pytest.mark.parametrize(("effect", "at_least"), [(0.02, 16), (0.05, 20), (0.1, 20), (-0.05, 20)])
def test_effects_are_found(effect, at_least):
    found = [verdict_of(seed, effect=effect, drift=0.3) for seed in range(20)]
    wanted = "higher" if effect > 0 else "lower"
    assert [judgement.direction for judgement in found].count(wanted) >= at_least
    assert np.mean([math.expm1(judgement.difference) for judgement in found]) == pytest.approx(effect, abs=0.004)
    assert sum(judgement.low <= math.log1p(effect) <= judgement.high for judgement in found) >= 19


def test_drift_cancels():
    (steady,), (drifting,) = ([verdict_of(1, drift=drift, noise=0.001)] for drift in (0.0, 1.0))
    assert drifting.difference == pytest.approx(steady.difference, abs=1e-3)
    assert drifting.direction == "equal"


def test_too_little_says_what_is_missing():
    with pytest.raises(TooShort, match="5 whole quads A B B A; 6 are needed. Train for more steps: a quad takes 40"):
        measure_quads(*make_arms(num_steps=220))
    with pytest.raises(TooShort, match=r"a record covers 10 steps and a block 10.*log_every=1.*block=22"):
        measure_quads(*make_arms(num_steps=2_000, stride=10))
    with pytest.raises(TooShort, match="no times of steps"):
        measure_quads([[ArmSwitch(0.0, 0)]], SeriesPoints(np.empty(0), np.empty(0)))


def test_windows_inside_blocks_are_enough():
    found = measure_quads(*make_arms(num_steps=1_600, block=25, stride=10, effect=0.1))
    assert len(found.differences) >= 6
    assert judge_differences(found.differences, 0.01).direction == "higher"


def test_number_of_quads_that_would_settle_it():
    few = verdict_of(3, effect=0.02, noise=0.06, num_steps=280)
    assert few.direction == "unknown"
    assert few.runs_needed > 7
    enough = verdict_of(3, effect=0.02, noise=0.06, num_steps=40 * 3 * few.runs_needed)
    assert enough.direction == "higher"


def write_journal(folder, switches, times, *, each_block=False):
    """Write a run as the recorder does: the event of a switch lies before the first step of its arm."""
    folder.mkdir(parents=True)
    records = [{"event": "start", "time": 1.0, "run_name": folder.name, "run_id": folder.name, "schema": 1}]
    pending = list(switches)
    for step, seconds in zip(times.steps.tolist(), times.values.tolist(), strict=True):
        while pending and pending[0].step < step:
            switch = pending.pop(0)
            known = {} if math.isinf(switch.step) else {"global_step": int(switch.step)}
            records.append({"event": "event", "time": 2.0, "name": "ab_arm", "arm": "xy"[switch.arm], **known})
        records.append({"event": "step", "time": 2.0, "global_step": int(step), "sec_per_step": seconds})
    records.append({"event": "end", "time": 1e6, "status": "finished"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunFolder(folder)


def test_report_of_a_journal(logs):
    (switches,), times = make_arms(effect=0.05)
    report, (first, second) = report_arms(write_journal(logs / "one", switches, times))
    speed = report.metric("step_time")
    assert (speed.verdict, speed.runs_a, speed.repeats) == ("slower", 12, "quads")
    assert speed.b / speed.a - 1 == pytest.approx(speed.effect)
    assert report.headline.startswith("y compared with x: slower by 4.9 %")
    assert "12 quads A B B A of blocks of 10 steps" in report.basis
    assert (first.name, second.name) == ("x", "y")
    assert len(first.clock.steps) == len(second.clock.steps) == 24 * 8 + 1
    blocks = [ArmSwitch(step - 1.0, (0, 1, 1, 0)[step // 10 % 4]) for step in range(0, 480, 10)]
    same, _ = report_arms(write_journal(logs / "event-per-block", blocks, times))
    assert same.metric("step_time").effect == pytest.approx(speed.effect)


def test_report_of_a_resumed_run(logs):
    """The second attempt starts its schedule anew and repeats some steps."""
    for attempt in range(2):
        with tachograph.init("greyjacket", log_dir=logs, resume=bool(attempt)) as run:
            for step in range(attempt * 130, attempt * 130 + 150):
                arm = tachograph.ab("A", "B")
                run.log({"sec_per_step": 0.1 if arm == "A" else 0.12 + 0.0001 * (step % 7)}, step=step)
    report, _ = report_arms(run.folder)
    speed = report.metric("step_time")
    assert speed.runs_a == 6
    assert speed.verdict == "slower"
    assert speed.effect == pytest.approx(0.2, abs=0.01)


def test_run_without_arms(logs):
    with tachograph.init("greyjacket", log_dir=logs) as run:
        run.log(train_loss=1.0)
    with pytest.raises(RunNotFoundError, match="no A/B test was recorded in 'greyjacket'"):
        report_arms(run.folder)


def make_pairs(effect, *, num_pairs=5, spread=0.2, **fields):
    """Make pairs of runs on a machine that is faster at some times than at others."""
    random = np.random.default_rng(4)
    pairs = []
    for number in range(num_pairs):
        machine = math.exp(random.normal(0.0, spread))
        both = []
        for side, factor in enumerate((machine, machine * (1 + effect))):
            losses = training_curve(2 * number + side, 400)
            run = make_run(
                f"{'AB'[side]}-{number}", seed=10 * number + side, num_steps=400, factor=factor, loss=losses,
                config={"compile": bool(side), "bf16": bool(side)}, **fields,
            )  # fmt: skip
            both.append(ArmRun(run, 100 * factor))
        pairs.append((both[0], both[1]))
    return pairs


ARMS = (ArmCommand("A", "python train.py"), ArmCommand("B", "python train.py --compile"))


@pytest.mark.slow
def test_pairs_find_what_groups_cannot():
    report = report_pairs(make_pairs(0.03), ARMS)
    speed, wall = report.metric("step_time"), report.metric("wall_time")
    assert (speed.verdict, wall.verdict, speed.runs_a, speed.repeats) == ("slower", "slower", 5, "pairs")
    assert speed.low < 0.03 < speed.high
    assert report.headline.startswith("B compared with A: slower by 3.")
    assert report.metric("train_loss").verdict
    assert [change.name for change in report.config_diff] == ["command", "compile", "bf16"]
    assert report_pairs(make_pairs(0.0), ARMS).metric("step_time").verdict == "equal"


def test_few_pairs_give_no_verdict():
    report = report_pairs(make_pairs(0.5, num_pairs=2), ARMS)
    assert report.metric("step_time").verdict == "unknown"
    assert report.metric("step_time").reason == "2 pairs; 3 are needed"
    assert report_pairs(make_pairs(0.5, num_pairs=1), ARMS).metric("step_time").reason == "1 pair; 3 are needed"


def test_other_batch_size_is_not_a_change_of_speed():
    pairs = make_pairs(0.5)
    for number, (_, second) in enumerate(pairs):
        second.evidence.config["batch_size"] = 64
        pairs[number][0].evidence.config["batch_size"] = 32
    speed = report_pairs(pairs, ARMS).metric("step_time")
    assert speed.verdict == "not_comparable"
    assert "batch_size" in speed.reason


def test_commands_without_steps_are_compared_as_a_whole():
    pairs = [
        (ArmRun(make_run("a", num_steps=0), 1.0 + 0.01 * n), ArmRun(make_run("b", num_steps=0), 2.0)) for n in range(4)
    ]
    report = report_pairs(pairs, ARMS)
    assert report.metric("step_time").verdict == "unknown"
    assert report.headline.startswith("B compared with A: slower by 9")


def test_measured_peaks_replace_sampled_memory():
    pairs = []
    for number, (first, second) in enumerate([(1000.0, 800.0), (1001.0, 801.0), (1000.0, 799.0)]):
        arms = [
            ArmRun(make_run(f"{side}{number}", seed=10 * number + side, memory={"device_allocated": 5e9}), 100.0, peaks)
            for side, peaks in enumerate(({"device_allocated": first, "host": 7.0}, {"device_allocated": second}))
        ]
        pairs.append((arms[0], arms[1]))
    report = report_pairs(pairs, (ArmCommand("off", "a"), ArmCommand("on", "b")))
    (memory,) = [metric for metric in report.metrics if "memory" in metric.name]
    assert (memory.title, memory.verdict) == ("peak GPU memory", "less")
    assert memory.low < -0.19 < memory.high or memory.low < -0.2 < memory.high
    assert "20.0 % less GPU memory" in report.headline


def test_repeats_of_one_training_count_once_for_its_loss():
    curves = [training_curve(1, batches=1), training_curve(2, batches=2, level=1.001)]
    pairs = [
        tuple(ArmRun(make_run(f"{side}-{pair}", seed=pair, loss=curves[side]), 100.0) for side in (0, 1))
        for pair in range(3)
    ]
    arms = ArmCommand("off", "a"), ArmCommand("on", "b")
    loss = report_pairs(pairs, arms, is_repeated=True).metric("train_loss")
    assert (loss.runs_a, loss.runs_b, loss.verdict) == (1, 1, "unknown")
    same = [(pair[0], ArmRun(make_run(f"x{number}", loss=curves[0]), 100.0)) for number, pair in enumerate(pairs)]
    assert report_pairs(same, arms, is_repeated=True).metric("train_loss").verdict == "identical"


def test_equal_weights_are_judged_by_the_precision():
    def judge(differences, precision="float32", **options):
        return judge_equal_weights(EqualWeightsLevel("x", "x", (1.0, 1.0), differences, **options), precision)

    for differences, precision, is_gradient, verdict in (
        ([0.0, 0.0], "float32", False, "identical"),
        ([0.0, 1e-6], "float32", False, "rounding"),
        ([0.0, 2e-5], "float32", False, "different"),
        ([2e-5], "float32", True, "rounding"),
        ([4e-3], "bfloat16", False, "rounding"),
        ([4e-2], "bfloat16", True, "rounding"),
        ([0.2], "bfloat16", True, "different"),
        ([math.inf], "float16", True, "different"),
        ([None, None], "float32", True, "unknown"),
    ):
        assert judge(differences, precision, is_gradient=is_gradient).verdict == verdict
    metric = judge([None, 1e-6, 3e-6])
    assert (metric.effect, metric.low, metric.high, metric.runs_b) == (3e-6, 1e-6, 3e-6, 2)


def test_report_shows_differences_at_equal_weights():
    pairs = [tuple(ArmRun(make_run(f"{side}-{pair}", seed=pair), 100.0) for side in (0, 1)) for pair in range(3)]
    report = report_pairs(pairs, (ArmCommand("off", "a"), ArmCommand("on", "b")))
    levels = [
        EqualWeightsLevel("loss_start", "loss", (2.0, 2.0), [0.0, 0.0]),
        EqualWeightsLevel("gradient_start", "gradient", (1.0, 3.0), [2.0, 2.5], is_gradient=True),
    ]
    metrics = [judge_equal_weights(level, "float32") for level in levels]
    changed = add_equal_weights(report, metrics, ["a note"])
    assert changed.headline.endswith("; at equal weights, gradients differ")
    assert changed.warnings[-1] == "a note"
    assert [(row.effect, row.verdict, row.sign) for row in verdict_rows(changed)[-2:]] == [
        ("0 (0…0)", "identical", "same"),
        ("2.5 (2…2.5)", "different", "open"),
    ]
    assert add_equal_weights(report, metrics[:1], []).headline.endswith("at equal weights are identical")
