"""Traces of operations: made by a scheduler of pipelines, with a fault of known size."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from tachograph.cli._doctor import doctor
from tachograph.diagnostics.op_trace import find_imbalance, read_ops
from tachograph.exceptions import ConfigError

DP, STAGES, MICRO_BATCHES, STEPS = 8, 4, 8, 6
FORWARD_S, BACKWARD_S = 0.05, 0.1


def schedule(stage):
    """Return the order of operations of a stage: one forward, one backward, after a warm-up."""
    warm_up = min(STAGES - stage - 1, MICRO_BATCHES)
    order = [("forward", index) for index in range(warm_up)]
    for index in range(MICRO_BATCHES - warm_up):
        order += [("forward", warm_up + index), ("backward", index)]
    return order + [("backward", index) for index in range(MICRO_BATCHES - warm_up, MICRO_BATCHES)]


def run_job(duration_of, num_steps=STEPS):
    """Run the pipelines; returns rows of the table and the mean duration of a step."""
    rows, clock, step_times = [], 1_700_000_000.0, []
    for step in range(num_steps):
        end_of_step = clock
        for dp in range(DP):
            free, ends, queues = [clock] * STAGES, {}, [schedule(stage) for stage in range(STAGES)]
            while any(queues):
                for stage in range(STAGES):
                    while queues[stage]:
                        kind, index = queues[stage][0]
                        if kind == "forward":
                            needs = ends.get(("forward", stage - 1, index)) if stage else clock
                        elif stage == STAGES - 1:
                            needs = ends.get(("forward", stage, index))
                        else:
                            needs = ends.get(("backward", stage + 1, index))
                        if needs is None:
                            break
                        queues[stage].pop(0)
                        start, duration = max(free[stage], needs), duration_of(step, dp, stage, kind, index)
                        free[stage] = ends[kind, stage, index] = start + duration
                        rows.append([dp, stage, stage * DP + dp, step, f"{kind}-compute", start, duration, index])
            end_of_step = max(end_of_step, *free)
        step_times.append(end_of_step - clock)
        clock = end_of_step + 0.02
    return rows, float(np.mean(step_times))


def usual(kind):
    return FORWARD_S if kind == "forward" else BACKWARD_S


class Work:
    """Durations with noise, and the faults of a case."""

    def __init__(self, worker=1.0, last_stage=1.0, spread=0.0):
        self.worker, self.last_stage, self.spread = worker, last_stage, spread
        self.random = np.random.default_rng(0)
        self.lengths = {}

    def __call__(self, step, dp, stage, kind, index):
        length = self.lengths.setdefault((step, dp, index), np.exp(self.random.normal(0, self.spread)))
        factor = (self.worker if (dp, stage) == (5, 1) else 1) * (self.last_stage if stage == STAGES - 1 else 1)
        return usual(kind) * length * factor * (1 + 0.01 * self.random.normal())


HEADER = ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id"]


def write(path, rows, header=HEADER):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.mark.parametrize(
    ("work", "cause", "text"),
    [
        (Work(), None, ""),
        (Work(worker=1.4), "workers", "rank 13 (data-parallel 5, stage 1) takes 40 % longer than its peers"),
        (Work(last_stage=1.3), "stages", "stage 3, the last one, has 30 % more work than the other stages"),
        (Work(spread=0.3), "micro_batches", "probably their sequence lengths"),
        (Work(spread=0.4, last_stage=1.15), "micro_batches", "probably their sequence lengths"),
        (Work(spread=0.1, worker=1.6), "workers", "rank 13 (data-parallel 5, stage 1) takes 59 %"),
    ],
)
def test_largest_loss_is_the_cause(tmp_path, work, cause, text):
    rows, step_s = run_job(work)
    imbalance = find_imbalance(read_ops(write(tmp_path / "ops.csv", rows)))
    assert imbalance.step_s == pytest.approx(step_s, rel=1e-6), "the replay is the job"
    assert (imbalance.num_steps, imbalance.num_workers, imbalance.num_dropped_steps) == (STEPS, DP * STAGES, 0)
    assert sum(loss.seconds_per_step for loss in imbalance.losses) == pytest.approx(
        imbalance.step_s - imbalance.ideal_step_s, rel=0.02, abs=0.01
    )
    assert imbalance.is_balanced is (cause is None)
    if cause:
        assert imbalance.losses[0].cause == cause
        assert text in imbalance.losses[0].text
    if cause == "workers":
        assert imbalance.losses[0].workers == [13]
        assert max(imbalance.by_worker, key=imbalance.by_worker.get) == 13
        assert imbalance.slowest_share > 0.5
    if cause == "stages":
        assert max(imbalance.by_stage, key=imbalance.by_stage.get) == 3


def test_gain_of_a_worker_is_what_the_job_gains(tmp_path):
    slow, _ = run_job(Work(worker=1.4))
    imbalance = find_imbalance(read_ops(write(tmp_path / "ops.csv", slow)))
    _, step_s = run_job(Work())
    assert imbalance.by_worker[13] == pytest.approx(imbalance.step_s - step_s, rel=0.1)


def test_tables_in_other_forms_give_the_same_answer(tmp_path):
    rows, _ = run_job(Work(worker=1.4))
    expected = find_imbalance(read_ops(write(tmp_path / "a.csv", rows)))
    # Nanoseconds, no micro-batches, rows in any order, other operations, and incomplete steps at both ends.
    nanoseconds = [[*row[:5], int(row[5] * 1e9), int(row[6] * 1e9)] for row in rows]
    nanoseconds += [[0, 0, 0, 2, "grads-reduce-scatter", 1.7e18, 10**9], [0, 1, 8, 2, "forward-recv", 1.7e18, 10**9]]
    nanoseconds += [[0, 0, 0, 99, "forward-compute", 1.7e18, 10**9]]
    np.random.default_rng(0).shuffle(nanoseconds)
    other = find_imbalance(read_ops(write(tmp_path / "b.csv", nanoseconds, HEADER[:7])))
    assert other.num_dropped_steps == 1
    assert other.losses[0].text == expected.losses[0].text
    assert other.step_s == pytest.approx(expected.step_s, rel=1e-3)
    milliseconds = [[*row[:5], 1e3 * (row[5] - rows[0][5]), 1e3 * row[6], *row[7:]] for row in rows]  # not since 1970
    assert find_imbalance(read_ops(write(tmp_path / "d.csv", milliseconds))).step_s == pytest.approx(expected.step_s)
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(
        pa.table({name: [row[index] for row in rows] for index, name in enumerate(HEADER)}), tmp_path / "c.parquet"
    )
    assert find_imbalance(read_ops(tmp_path / "c.parquet")) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it has no rows"),
        ("a,b\n1,2\n", "no column 'dp_rank'; the table has a, b"),
        (",".join(HEADER) + "\n0,0,0,0,forward-compute,x,1,0\n", "a column of numbers has another value"),
        (",".join(HEADER) + "\n0,0,0,0,optimizer,1,1,0\n", "no forward or backward computation"),
        (",".join(HEADER) + "\n0,0,0,0,forward-compute,1,1,0\n", "nothing to compare: 1 complete steps of 1 workers"),
    ],
)
def test_unusable_tables_are_errors(tmp_path, content, message):
    path = tmp_path / "ops.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_ops(path)


def test_doctor_prints_causes_and_costs(tmp_path):
    rows, _ = run_job(Work(worker=1.4))
    path = write(tmp_path / "ops.csv", rows)
    result = CliRunner().invoke(doctor, ["--ops", str(path), "--fail-on", "warning"])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "Rank 13 (data-parallel 5, stage 1) takes 40 % longer than its peers" in text
    assert "times as long as with equal work" in text
    printed = json.loads(CliRunner().invoke(doctor, ["--ops", str(path), "--json"]).output)
    assert printed["losses"][0]["workers"] == [13]
    assert printed["slowdown"] > 1.1
    result = CliRunner().invoke(doctor, ["--ops", str(tmp_path / "nothing.csv")])
    assert isinstance(result.exception, ConfigError)
