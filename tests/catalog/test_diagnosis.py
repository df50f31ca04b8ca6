"""`tacho doctor` and `tachograph.diagnose`, on runs and on logs of other tools."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import math
import random

import pytest

import tachograph
from tachograph.exceptions import ConfigError, RunNotFoundError
from tachograph.importers import describe, read_log
from tests.cli.test_cli import tacho
from tests.conftest import wait_for


def rows(count: int = 400, spike_at: int = 200):
    source = random.Random(3)
    for step in range(count):
        loss = 2 + 3 / (1 + step / 30) + source.gauss(0, 0.03)
        yield step, loss * 4 if step == spike_at else loss


def spikes(diagnosis):
    return [alert.opened_step for alert in diagnosis.alerts if alert.rule == "loss_spike"]


def test_csv_log(tmp_path):
    path = tmp_path / "log.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "learning_rate", "note"])
        writer.writerows([step, loss, 1e-3, "text, with comma"] for step, loss in rows())
    diagnosis = tachograph.diagnose(path)
    assert spikes(diagnosis) == [200]
    assert diagnosis.signals == {"loss": "loss", "lr": "learning_rate"}
    assert (diagnosis.name, diagnosis.num_records) == ("log.csv", 400)


def test_gzipped_csv_with_semicolons(tmp_path):
    path = tmp_path / "log.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("iteration;train/loss\n")
        file.writelines(f"{step};{loss}\n" for step, loss in rows())
    assert spikes(tachograph.diagnose(path)) == [200]


def test_json_lines_of_another_tool(tmp_path):
    path = tmp_path / "log.jsonl"
    with open(path, "w") as file:
        for step, loss in rows():
            file.write(
                json.dumps({"_step": step, "train/loss": loss if step != 300 else math.nan, "x": {"y": 1}}) + "\n"
            )
        file.write('[1, 2]\nnot json\n{"_step": 400, "train/l')
    diagnosis = tachograph.diagnose(path)
    assert spikes(diagnosis) == [200]
    assert [alert.opened_step for alert in diagnosis.alerts if alert.rule == "not_finite"] == [300]


def test_copied_journal_is_read_as_a_log(tmp_path, logs):
    with tachograph.init("x", log_dir=logs, git=False, system_interval_s=0, console=False) as run:
        for step, loss in rows():
            run.log(train_loss=loss, step=step)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((logs / "x" / "metrics.jsonl").read_bytes())
    assert spikes(tachograph.diagnose(copy)) == spikes(tachograph.diagnose("x", logs)) == [200]


def test_transformers_trainer_state(tmp_path):
    history = [
        {"step": 10 * step, "loss": loss, "learning_rate": 1e-4, "grad_norm": 1.0} for step, loss in rows(120, 100)
    ]
    for index, loss in enumerate([1.0, 0.8, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]):
        history.insert(14 * (index + 1) + index, {"step": 140 * (index + 1) - 10, "eval_loss": loss, "epoch": index})
    history.append({"step": 1200, "train_loss": 2.2, "train_runtime": 10.0})
    state = json.dumps({"global_step": 1200, "log_history": history, "best_metric": math.nan})
    older, newer = tmp_path / "out" / "checkpoint-900", tmp_path / "out" / "checkpoint-1200"
    for folder, text in ((older, '{"log_history": []}'), (newer, state)):
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(text)
    for source in (newer / "trainer_state.json", newer, tmp_path / "out"):
        diagnosis = tachograph.diagnose(source)
        assert spikes(diagnosis) == [1000]
        (overfitting,) = [alert for alert in diagnosis.alerts if alert.rule == "overfitting"]
        assert overfitting.evidence["best_step"] == 410
        assert diagnosis.signals["val_loss"] == "eval_loss"


def test_trainer_state_tells_the_end_of_the_schedule(tmp_path):
    history = [
        {"step": 10 * step, "loss": loss, "learning_rate": 1e-3 if step < 200 else 0.0} for step, loss in rows(240, -1)
    ]
    path = tmp_path / "trainer_state.json"
    for max_steps, rules in ((2100, set()), (9000, {"dead_learning_rate"})):
        path.write_text(json.dumps({"log_history": history, "logging_steps": 10, "max_steps": max_steps}))
        assert {alert.rule for alert in tachograph.diagnose(path).alerts} == rules


def test_tensorboard_files(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path / "board"))
    for step, loss in rows():
        summary = Summary(value=[Summary.Value(tag="train/loss", simple_value=loss)])
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()
    (file,) = (tmp_path / "board").iterdir()
    for source in (file, tmp_path / "board"):
        diagnosis = tachograph.diagnose(source)
        assert spikes(diagnosis) == [200]
        assert diagnosis.signals["step_s"] == "sec_per_step"


def test_records_from_memory():
    records = ({"event": "step", "time": 1e9 + step, "global_step": step, "train_loss": loss} for step, loss in rows())
    assert spikes(tachograph.diagnose(records)) == [200]
    assert spikes(tachograph.diagnose(list(read_none()))) == []


def read_none():
    yield from ()


def test_step_times_are_derived_from_timestamps(tmp_path):
    path = tmp_path / "log.csv"
    begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    with open(path, "w") as file:
        file.write("timestamp,step,loss\n")
        for step in range(10):
            moment = begin + datetime.timedelta(seconds=2 * step)
            file.write(f"{moment.isoformat()},{step * 5},1.0\n")
    records = list(read_log(path))
    assert [record.get("sec_per_step") for record in records] == [None, *[0.4] * 9]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("state.json", "{}", "has no `log_history`"),
        ("state.json", "{", "is not valid JSON"),
        ("state.json", "[" * 100_000, "is not valid JSON"),
        ("log.csv.gz", "not packed", "cannot read"),
        ("log.txt", "x", "is not a known log"),
        ("log.csv", "", None),
        ("log.csv", "\x00\x00\x00\n\x00,\x00", None),
        ("log.jsonl", "\n\n[]\n3\n", None),
        ("log.csv", "step,loss\n1e400,2\nnan,3\n,\n5\n6,7,8,9\n", None),
    ],
)
def test_invalid_log_files_are_rejected_or_empty(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    if message is None:
        assert tachograph.diagnose(path).alerts == []
        return
    with pytest.raises(ConfigError) as error:
        tachograph.diagnose(path)
    assert message in str(error.value)
    assert name in str(error.value)


def test_endless_line_is_rejected(tmp_path):
    path = tmp_path / "bomb.csv"
    with open(path, "wb") as file:
        file.write(b"step,loss\n" + bytes(40 << 20))
    with pytest.raises(ConfigError, match="has a line of more than 8 MiB"):
        tachograph.diagnose(path)


def test_truncated_gzip_is_read_as_far_as_possible(tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"step,loss\n" + b"".join(b"%d,%f\n" % row for row in rows()))[:-200])
    assert tachograph.diagnose(path).num_records > 100


def test_folder_with_several_boards_is_ambiguous(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def write(folder):
        writer = EventFileWriter(str(tmp_path / folder))
        for step, loss in rows():
            summary = Summary(value=[Summary.Value(tag="train_loss", simple_value=loss)])
            writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
        writer.close()

    write("board/version_0")
    assert spikes(tachograph.diagnose(tmp_path / "board")) == [200]
    write("board/version_1")
    with pytest.raises(ConfigError, match="holds several runs: name one of version_0, version_1"):
        tachograph.diagnose(tmp_path / "board")


def test_recorded_hang_is_kept_offline(logs):
    rules = {"hang": {"least_s": 1.0, "times_longest": 1.5}}
    with tachograph.init("x", log_dir=logs, rules=rules, git=False, system_interval_s=0, console=False) as run:
        run.log(train_loss=1.0, step=0)
        run.flush()
        wait_for(lambda: b'"rule":"hang"' in run.folder.journal.read_bytes(), "the alert")
        # The evidence that is captured is no progress of the training.
        wait_for(lambda: b'"event":"dump"' in run.folder.journal.read_bytes(), "the dump")
    assert [alert.rule for alert in tachograph.diagnose("x", logs).alerts] == ["hang"]
    assert "1 alert" in tacho("ls", "--log-dir", logs)


def test_log_without_signals_fails_the_check(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("a;b\n1,5;2,5\n")
    assert "Nothing to diagnose: no known signal was recorded" in tacho("doctor", path)
    assert tacho("doctor", path, "--fail-on", "critical", check=False).returncode == 1


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("lr-AdamW", "lr"),
        ("Learning Rate", "lr"),
        ("Loss/train", "loss"),
        ("lm loss", "loss"),
        ("train_loss_step", "loss"),
        ("valid_loss", "val_loss"),
        ("grad-norm", "grad_norm"),
        ("test/loss", None),
        ("reduced_train_loss", "loss"),
        ("train_step_timing in s", "step_s"),
        ("train/CE loss", "loss"),
        ("optim/total grad norm", "grad_norm"),
        ("optim/LR (group 0)", "lr"),
        ("throughput/device/TPS", "throughput"),
        ("throughput/device/data loading (%)", "data_share"),
        ("actor/grad_norm", "grad_norm"),
        ("actor/entropy", "entropy"),
        ("timing_s/step", "step_s"),
        ("critic/score/mean", "reward"),
        ("response_length/clip_ratio", "truncated_share"),
        ("perf/throughput", "throughput"),
        ("iteration-time", "step_s"),
        ("learning-rate", "lr"),
        ("loss-scale", "loss_scale"),
        ("mem-allocated-bytes", "gpu_memory"),
        ("lm loss validation", "val_loss"),
        ("throughput(tps)", "throughput"),
        ("tokens_per_second_per_gpu", "throughput"),
        ("loss/train/total", "loss"),
    ],
)
def test_signal_names_of_other_tools(name, signal):
    records = [{"event": "step", "time": 1.0, "global_step": 1, name: 1.0}]
    assert list(tachograph.diagnose(records).signals) == ([signal] if signal else [])


def test_names_of_signals_can_be_added():
    records = [
        {"event": "step", "time": 1e9 + step, "global_step": step, "my/objective": loss, "train_loss": 1.0}
        for step, loss in rows()
    ]
    assert spikes(tachograph.diagnose(records)) == []
    diagnosis = tachograph.diagnose(records, signals={"loss": "my/objective"})
    assert spikes(diagnosis) == [200]
    assert diagnosis.signals == {"loss": "my/objective"}  # an added name comes before those we know
    assert tachograph.diagnose(records).other_metrics == ["my/objective"]
    assert tachograph.diagnose(records, signals={"reward": ["train_loss"]}).signals == {"reward": "train_loss"}


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"los": "x"}, "unknown signal signals.los.*did you mean 'loss'"),
        ({"loss": 3}, "signals.loss=3: expected the name of a metric"),
        ({"loss": [""]}, "signals.loss=.*expected the name of a metric"),
        ({"loss": "x y", "lr": "x_y"}, "signals.lr: 'x_y' is the name of signals.loss already"),
        (["loss"], "signals=.*expected a dict"),
    ],
)
def test_invalid_signals_are_named_in_the_error(signals, message):
    with pytest.raises(ConfigError, match=message):
        tachograph.diagnose([], signals=signals)


def test_step_times_in_milliseconds_are_converted():
    source = random.Random(1)
    times = [(100.0 if step < 800 else 120.0) * (1 + source.gauss(0, 0.02)) for step in range(1600)]
    records = [{"event": "step", "global_step": step, "step_time_ms": took} for step, took in enumerate(times)]
    (alert,) = tachograph.diagnose(records).alerts
    assert alert.rule == "throughput_regression"
    assert alert.evidence["before_s"] == pytest.approx(0.1, rel=0.02)


def test_shares_in_percent_are_converted():
    name = "throughput/device/data loading (%)"
    records = [{"event": "step", "time": 1.0 * step, "global_step": step, name: 40.0} for step in range(30)]
    (alert,) = tachograph.diagnose(records).alerts
    assert (alert.rule, alert.evidence["share"]) == ("data_stall", pytest.approx(0.4))
    assert tachograph.diagnose([{**record, name: 10.0} for record in records]).alerts == []


def test_numpy_values_of_records_are_converted():
    numpy = pytest.importorskip("numpy")
    records = [
        {
            "event": "step",
            "time": numpy.float64(1e9 + step),
            "global_step": numpy.int64(step),
            "train": {"loss": numpy.float32(loss)},
            "grad_norm": numpy.array(math.nan if step > 350 else 1.0),
        }
        for step, loss in rows()
    ]
    diagnosis = tachograph.diagnose(records)
    assert spikes(diagnosis) == [200]
    assert "not_finite" in {alert.rule for alert in diagnosis.alerts}
    assert diagnosis.signals == {"loss": "train/loss", "grad_norm": "grad_norm"}


def test_missing_signals_fail_the_check(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,accuracy\n" + "".join(f"{step},0.5\n" for step in range(50)))
    assert tacho("doctor", path, check=False).returncode == 0
    done = tacho("doctor", path, "--require-signals", check=False)
    assert done.returncode == 1
    assert "Nothing to diagnose" in done.stdout
    assert "Metrics that are no signals: accuracy." in done.stdout
    found = tacho("doctor", path, "--require-signals", "--signal", "reward=accuracy")
    assert "Signals: reward (accuracy)." in found


def test_mapped_loss_is_remembered_for_rules_and_table(logs):
    with tachograph.init("mapped", log_dir=logs, console=False) as run:
        for step in range(100):
            run.log({"my/objective": math.nan if step == 90 else 2.5}, step=step)
    assert "no_training_loss" in tacho("doctor", "mapped", "--log-dir", logs)
    assert "my/objective is NaN" in tacho("doctor", "mapped", "--log-dir", logs, "--map", "loss=my/objective")
    assert "my/objective is NaN" in tacho("doctor", "mapped", "--log-dir", logs)
    assert tachograph.diagnose("mapped", logs).signals["loss"] == "my/objective"
    other_name = tachograph.diagnose("mapped", logs, signals={"val_loss": "My/Objective"})
    assert other_name.signals["val_loss"] == "my/objective" and "loss" not in other_name.signals
    assert json.loads(tacho("ls", "--log-dir", logs, "--columns", "name,loss", "--json"))[0]["loss"] == 2.5
    done = tacho("doctor", "mapped", "--log-dir", logs, "--map", "los=my/objective", check=False)
    assert done.returncode == 1 and "unknown signal" in done.stderr


def test_missing_source_raises(tmp_path):
    with pytest.raises(RunNotFoundError):
        tachograph.diagnose(tmp_path / "nothing.csv")
    with pytest.raises(RunNotFoundError):
        tachograph.diagnose(tmp_path)
    assert describe(tmp_path) is None
    with pytest.raises(ConfigError, match="does not exist"):
        read_log(tmp_path / "nothing")


def test_command_shows_alerts(logs):
    with tachograph.init("x", log_dir=logs, git=False, system_interval_s=0, console=False) as run:
        for step, loss in rows():
            run.log({"train_loss": math.nan if step > 350 else loss, "[red]odd[/red]\x1b[2J": 1.0}, step=step)
    shown = tacho("doctor", "x", "--log-dir", logs)
    assert "critical" in shown
    assert "train_loss is NaN at step 351" in shown
    assert "Loss spike at step 200" in shown
    assert "tacho doctor --explain not_finite" in shown
    found = json.loads(tacho("doctor", "x", "--log-dir", logs, "--json"))
    assert {alert["rule"] for alert in found["alerts"]} == {"loss_spike", "not_finite"}
    assert found["signals"]["loss"] == "train_loss"
    assert tacho("doctor", "x", "--log-dir", logs, "--fail-on", "critical", check=False).returncode == 1
    off = ["--set", "not_finite=off", "--set", "loss_spike.sigmas=200"]
    assert "No problems found" in tacho("doctor", "x", "--log-dir", logs, "--fail-on", "info", *off)
    shown = tacho("show", "x", "--log-dir", logs)
    assert "train_loss is NaN at step 351" in shown
    assert json.loads(tacho("show", "x", "--log-dir", logs, "--json"))["alerts"][-1]["rule"] == "not_finite"


def test_rules_of_the_run_apply_offline(logs):
    rules = {"divergence": False, "exploding_gradients": False, "loss_spike": {"sigmas": 1e6}, "not_finite": True}
    with tachograph.init("x", log_dir=str(logs), console=False, rules=rules) as run:
        for step in range(300):
            run.log(train_loss=1.0 / (step + 1) if step < 200 else float(step), step=step)
    quiet = {alert.rule for alert in tachograph.diagnose(logs / "x").alerts}
    assert not quiet & {"divergence", "loss_spike"}
    assert "divergence" in {alert.rule for alert in tachograph.diagnose(logs / "x", rules={"divergence": True}).alerts}


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise ValueError('boom')", "The run failed: ValueError"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "The run crashed"),
    ],
)
def test_failed_run_fails_the_check(script, logs, ending, message):
    script(
        f"""
        import os, signal, time, tachograph
        with tachograph.init("x", log_dir={str(logs)!r}, console=False) as run:
            for step in range(30):
                run.log(train_loss=1.0 / (step + 1), step=step)
            run.flush()
            {ending}
        """
    ).wait()
    shown = tacho("doctor", "x", "--log-dir", logs)
    assert message in shown
    assert "tacho show x --log-dir" in shown
    assert "No problems found in its training metrics" in shown
    assert json.loads(tacho("doctor", "x", "--log-dir", logs, "--json"))["state"] in message
    assert tacho("doctor", "x", "--log-dir", logs, "--fail-on", "critical", check=False).returncode == 1


def test_command_explains_and_lists_rules(logs):
    shown = tacho("doctor", "--explain", "loss_spike", columns=100)
    assert "What it usually means" in shown
    assert "loss_spike.sigmas" in shown
    assert "hang" in tacho("doctor", "--rules")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "specify a run or a log file"),
        (["--explain", "spike"], "did you mean 'loss_spike'?"),
        (["nothing"], "no run 'nothing'"),
        (["x", "--set", "loss_spike"], "expected RULE.THRESHOLD=NUMBER or RULE=off"),
        (["x", "--set", "loss_spike.sigmas=-1"], "rules.loss_spike.sigmas"),
        (["x", "--set", "spikes=off"], "unknown rule"),
        (["x", "--signal", "loss"], "expected SIGNAL=METRIC"),
        (["x", "--signal", "los=x"], "unknown signal"),
    ],
)
def test_command_reports_usage_errors(tmp_path, arguments, message):
    done = tacho("doctor", *arguments, "--log-dir", tmp_path, check=False)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_missing_loss_is_reported(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,accuracy\n1,0.5\n")
    shown = tacho("doctor", path)
    assert "No training loss found" in shown
