"""`tacho import`: runs made from logs of rows, and what holds for every format."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import signal
from pathlib import Path

import pytest

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.importers import describe, import_runs
from tachograph.journal import RunFolder, compress_journal
from tachograph.store import Store
from tests.cli.test_cli import tacho
from tests.conftest import lines_of


def write_jsonl(path, rows, begin=0):
    with open(path, "a") as file:
        for step in range(begin, begin + rows):
            file.write(json.dumps({"step": step, "loss": 1 / (step + 1), "time": 1e9 + step}) + "\n")
    return path


def steps_of(folder):
    return [record["global_step"] for record in lines_of(folder) if record["event"] == "step"]


def only(reports):
    (report,) = reports
    return report


# What arrives --------------------------------------------------------------------------------------------------------


def test_csv_becomes_a_run_that_readers_show(tmp_path, logs):
    source = tmp_path / "metrics.csv"
    source.write_text("step,time,loss,note\n" + "".join(f"{n},{1e9 + n},{n / 4},x\n" for n in range(4)))
    tacho("import", "csv", source, "--log-dir", logs)
    history = tachograph.read(logs / "metrics")
    steps, values, times, _ = history.series("loss")
    assert (list(steps), list(values), list(times)) == ([0, 1, 2, 3], [0, 0.25, 0.5, 0.75], [1e9 + n for n in range(4)])
    start = next(history.records("start"))
    expected = {"format": "csv", "id": str(source), "path": str(source), "name": "metrics"}
    assert start["imported_from"] == expected
    assert (start["run_name"], start["resumed"], start["time"]) == ("metrics", False, 1e9)
    assert str(history.state) == "stale"  # a CSV file does not say how the run ended
    (listed,) = json.loads(tacho("ls", "--log-dir", logs, "--json"))
    assert (listed["name"], listed["step"], listed["started"]) == ("metrics", 3, 1e9)
    stored = Store(logs).open("metrics")  # what the dashboard reads
    stored.refresh()
    assert stored.metrics()["loss"].count == 4
    assert "loss" in tacho("show", "metrics", "--log-dir", logs)


def test_trainer_state_brings_end_and_best_result(tmp_path, logs):
    folder = tmp_path / "out" / "checkpoint-20"
    folder.mkdir(parents=True)
    state = {"best_metric": 0.5, "global_step": 20, "log_history": [{"step": 10, "loss": 2.0}], "max_steps": 40}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    report = only(import_runs("trainer_state", [tmp_path / "out"], str(logs)))
    assert (report.run, report.outcome, report.num_rows) == ("out", "created", 1)
    assert str(tachograph.read(logs / "out").state) == "stale"
    # The next checkpoint of the same folder continues the run and ends it.
    (tmp_path / "out" / "checkpoint-40").mkdir()
    state |= {"global_step": 40, "log_history": [*state["log_history"], {"step": 40, "loss": math.nan}]}
    (tmp_path / "out" / "checkpoint-40" / "trainer_state.json").write_text(json.dumps(state))
    assert only(import_runs("trainer_state", [tmp_path / "out"], str(logs))).outcome == "updated"
    history = tachograph.read(logs / "out")
    assert str(history.state) == "finished"
    assert history.summary == {"best_metric": 0.5}
    assert list(history.series("loss").steps) == [10, 40]
    assert history.attempts[-1].start["max_steps"] == 40
    assert len(history.attempts) == 1


def write_state(folder, rows, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    state = {"log_history": rows, "max_steps": 40, **fields}
    (folder / "trainer_state.json").write_text(json.dumps(state, sort_keys=True))


def test_checkpoints_of_a_training_are_one_run(tmp_path, logs):
    """Whichever of them are named, in any order, with the values that later ones lost."""
    rows = [{"step": step, "epoch": step / 10, "loss": 9.0 - step} for step in (1, 5, 10, 15, 20)]
    early_value = {"step": 5, "epoch": 0.5, "eval_loss": 3.5}
    output = tmp_path / "out"
    write_state(output / "checkpoint-5", [*rows[:2], early_value])
    write_state(output / "checkpoint-10", [*rows[:2], {**rows[2], "loss": -1.0}])  # replaced by later checkpoints
    write_state(output / "checkpoint-20", rows[2:])
    (output / "checkpoint-100").mkdir()
    (output / "checkpoint-100" / "trainer_state.json").write_text('{"log_history": [{"st')  # was killed meanwhile
    paths = sorted(output.glob("checkpoint-*"))
    orders = [[output], paths, paths[::-1], [path / "trainer_state.json" for path in paths], [paths[0]]]
    journals = []
    for number, order in enumerate(orders):
        report = only(import_runs("trainer_state", order, str(logs / str(number))))
        assert (report.run, report.outcome, report.num_rows) == ("out", "created", 6)
        assert "checkpoint-100" in report.damage[0].path
        journals.append((logs / str(number) / "out" / "metrics.jsonl").read_bytes())
    assert len(set(journals)) == 1
    history = tachograph.read(logs / "0" / "out")
    assert list(history.series("loss").values) == [row["loss"] for row in rows]
    assert list(history.series("eval_loss").steps) == [5]
    # Later states continue the run, also the one that the Trainer writes at the end.
    write_state(output / "checkpoint-100", [*rows[2:], {"step": 30, "loss": 0.5}])
    write_state(output, [*rows[2:], {"step": 30, "loss": 0.5}, {"step": 40, "train_runtime": 9.0}], global_step=200)
    report = only(import_runs("trainer_state", paths, str(logs / "0")))
    assert (report.outcome, report.num_rows, report.damage) == ("updated", 2, [])
    assert steps_of(logs / "0" / "out") == [1, 5, 5, 10, 15, 20, 30, 40]


def test_folder_of_trainings_gives_a_run_for_each(tmp_path, logs):
    for trial in ("run-0", "deep/er/run-1"):
        write_state(tmp_path / "sweep" / trial / "checkpoint-5", [{"step": 5, "loss": 1.0}])
        write_state(tmp_path / "sweep" / trial / "checkpoint-10", [{"step": 5, "loss": 1.0}, {"step": 10, "loss": 2.0}])
    reports = import_runs("trainer_state", [tmp_path / "sweep"], str(logs))
    assert [(report.run, report.num_rows) for report in reports] == [("deep-er-run-1", 2), ("run-0", 2)]
    assert describe(tmp_path / "sweep") is None  # a folder that contains a state somewhere may be anything


def test_texts_of_a_trainer_state_are_imported(tmp_path, logs):
    facts = {"best_model_checkpoint": "out/checkpoint-5", "best_metric": 0.5, "total_flos": 1e9}
    config = {"trial_name": "second", "trial_params": {"lr": "1e-3"}, "save_steps": 5}
    callbacks = {"TrainerControl": {"args": {}}, "EarlyStoppingCallback": {}}
    row = {"step": 5, "loss": "0.25", "phase": "warm-up", "is_good": True, "nested": {"a": 1, "b": "x"}, "none": None}
    write_state(tmp_path / "out" / "checkpoint-5", [row], stateful_callbacks=callbacks, epoch=1, **facts, **config)
    report = only(import_runs("trainer_state", [tmp_path / "out"], str(logs)))
    assert report.left_out == {"state of a callback": 2}
    history = tachograph.read(logs / "out")
    (step,) = history.records("step")
    expected = {"loss": 0.25, "phase": "warm-up", "is_good": True, "nested.a": 1, "nested.b": "x"}
    assert step == {"event": "step", "global_step": 5, **expected}
    assert (history.summary, history.config) == (facts, config)
    # Tables have numbers only; the report counts the other values.
    (tmp_path / "a.csv").write_text("step,loss,note,empty\n1,0.5,x,\n2,0.5,y,\n")
    report = only(import_runs("csv", [tmp_path / "a.csv"], str(logs)))
    assert report.left_out == {"value that is not a number": 2}
    with open(tmp_path / "a.csv", "a") as file:
        file.write("3,0.5,z,\n")
    assert only(import_runs("csv", [tmp_path / "a.csv"], str(logs))).left_out == {"value that is not a number": 2}


def test_journal_under_another_name_keeps_its_kinds(tmp_path, logs):
    with tachograph.init("x", log_dir=str(tmp_path / "old"), config={"lr": 1}, git=False, system_interval_s=0) as run:
        run.log(train_loss=1.0, step=0)
        run.log_validation({"loss": 2.0}, step=0)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((tmp_path / "old" / "x" / "metrics.jsonl").read_bytes())
    import_runs("jsonl", [copy], str(logs))
    history = tachograph.read(logs / "copy")
    assert str(history.state) == "finished"
    assert history.config == {"lr": 1}
    assert list(history.series("val_loss").values) == [2.0]


def test_secrets_of_a_source_are_masked(tmp_path, logs):
    secret = "hf_" + "a1B2" * 9
    row = {"event": "start", "time": 1e9, "config": {"api_key": "opaque", "url": f"https://x?token={secret}"}}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + '\n{"event": "step", "time": 2e9, "global_step": 1, "a": 1}\n')
    import_runs("jsonl", [tmp_path / "a.jsonl"], str(logs))
    journal = (logs / "a" / "metrics.jsonl").read_text()
    assert secret not in journal
    assert "opaque" not in journal


def test_metric_named_like_a_field_keeps_its_value(tmp_path, logs):
    (tmp_path / "a.csv").write_text("step,event,more,loss\n1,5,6,7\n")
    import_runs("csv", [tmp_path / "a.csv"], str(logs))
    assert lines_of(logs / "a")[-1] == {"event": "step", "global_step": 1, "event_": 5, "more_": 6, "loss": 7}


# Again, and after a kill ---------------------------------------------------------------------------------------------


def test_second_import_adds_only_what_is_new(tmp_path, logs):
    source = write_jsonl(tmp_path / "a.jsonl", 10)
    assert only(import_runs("jsonl", [source], str(logs))).num_rows == 10
    before = (logs / "a" / "metrics.jsonl").stat()
    assert only(import_runs("jsonl", [source], str(logs))).outcome == "unchanged"
    assert (logs / "a" / "metrics.jsonl").stat().st_mtime_ns == before.st_mtime_ns
    write_jsonl(source, 5, begin=10)
    report = only(import_runs("jsonl", [source], str(logs)))
    assert (report.outcome, report.num_rows, report.first_step, report.last_step) == ("updated", 5, 10, 14)
    assert steps_of(logs / "a") == list(range(15))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("format_name", ["csv", "jsonl"])
def test_import_of_a_growing_log_equals_one_of_the_whole(tmp_path, format_name, suffix):
    """Also if the log was cut in the middle of a line, or of a number."""
    source = tmp_path / f"a.{format_name}{suffix}"
    lines = [f"{n},{n / 7}\n" if format_name == "csv" else f'{{"step": {n}, "loss": {n / 7}}}\n' for n in range(12)]
    text = "".join(["step,loss\n" if format_name == "csv" else "", *lines]).encode()
    pack = gzip.compress if suffix else bytes
    source.write_bytes(pack(text))
    import_runs(format_name, [source], str(tmp_path / "whole"))
    expected = (tmp_path / "whole" / "a" / "metrics.jsonl").read_bytes()
    for number, end in enumerate(range(20, len(text), 9)):
        logs = tmp_path / f"logs{number}"
        for part in (text[:end], text[: end + 40], text):
            source.write_bytes(pack(part))
            import_runs(format_name, [source], str(logs))
        assert (logs / "a" / "metrics.jsonl").read_bytes() == expected, end


KILLS = [
    (*point, num_calls)
    for point in (("write_all", 0), ("write_all", 0.5), ("replace_file", 0))
    for num_calls in (1, 2, 3)
]


def check_killed_import(script, format_name, source, folder, kill, commit_bytes):
    """Kill an import and repeat it: the journal is that of one that was not killed."""
    import_runs(format_name, [source], str(folder / "whole"), name="a")
    function, share, num_calls = kill
    killed = script(
        """
        import os, signal, sys
        from tachograph.importers import _import
        format_name, source, logs, function = sys.argv[1:5]
        share, left, _import._COMMIT_BYTES = float(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7])
        _import._WRITE_BYTES = _import._COMMIT_BYTES // 2
        original = getattr(_import, function)

        def die(first, data, *rest, **options):
            global left
            left -= 1
            if left > 0:
                return original(first, data, *rest, **options)
            if share:
                original(first, data[: int(len(data) * share)])
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(_import, function, die)
        _import.import_runs(format_name, [source], logs, name="a")
        """,
        format_name, source, folder / "logs", function, share, num_calls, commit_bytes,
    )  # fmt: skip
    assert killed.wait()[0] == -signal.SIGKILL
    import_runs(format_name, [source], str(folder / "logs"), name="a")
    expected = (folder / "whole" / "a" / "metrics.jsonl").read_bytes()
    assert (folder / "logs" / "a" / "metrics.jsonl").read_bytes() == expected
    assert [path.name for path in (folder / "logs").iterdir()] == ["a"]


@pytest.mark.parametrize("kill", KILLS)
def test_killed_import_continues_to_the_same_journal(tmp_path, script, kill):
    check_killed_import(script, "jsonl", write_jsonl(tmp_path / "a.jsonl", 3_000), tmp_path, kill, 25_000)


def test_import_continues_a_compressed_journal(tmp_path, logs):
    source = write_jsonl(tmp_path / "log.jsonl", 500)
    import_runs("jsonl", [source], str(logs))
    folder = RunFolder(logs / "log")
    compress_journal(folder.journal, below=folder.path, publishing=lambda: contextlib.nullcontext(True))
    for dry_run in (True, False):  # without anything new, it stays compressed
        assert only(import_runs("jsonl", [source], str(logs), dry_run=dry_run)).num_records == 0
        assert not folder.journal.exists()
    write_jsonl(source, 10, begin=500)
    assert only(import_runs("jsonl", [source], str(logs))).num_records == 10
    assert steps_of(logs / "log") == list(range(510))
    assert not folder.compressed_journal.exists()


def test_lost_cursor_and_journal_are_restored(tmp_path, logs):
    source = write_jsonl(tmp_path / "a.jsonl", 20)
    import_runs("jsonl", [source], str(logs))
    journal, cursor = logs / "a" / "metrics.jsonl", logs / "a" / ".tacho" / "import.json"
    whole = journal.read_bytes()
    cursor.unlink()
    assert only(import_runs("jsonl", [source], str(logs))).outcome == "unchanged"
    journal.write_bytes(whole[:-100])
    import_runs("jsonl", [source], str(logs))
    assert journal.read_bytes() == whole
    cursor.write_text("garbage")
    assert only(import_runs("jsonl", [source], str(logs))).outcome == "unchanged"


def test_source_that_was_rewritten_is_not_mixed(tmp_path, logs):
    source = write_jsonl(tmp_path / "a.jsonl", 10)
    import_runs("jsonl", [source], str(logs))
    before = (logs / "a" / "metrics.jsonl").read_bytes()
    for rows, begin in ((10, 100), (3, 0)):
        source.unlink()
        write_jsonl(source, rows, begin)
        report = only(import_runs("jsonl", [source], str(logs)))
        assert report.outcome == "failed"
        assert "has changed since it was imported" in report.error
        assert (logs / "a" / "metrics.jsonl").read_bytes() == before


# Names and other runs ------------------------------------------------------------------------------------------------


def test_import_never_touches_a_run_of_another_source(tmp_path, logs):
    with tachograph.init("a", log_dir=str(logs), git=False, system_interval_s=0) as run:
        run.log(loss=5.0, step=0)
    before = (logs / "a" / "metrics.jsonl").read_bytes()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        write_jsonl(tmp_path / str(number) / "a.jsonl", 2)
    for _ in range(2):
        reports = import_runs("jsonl", [tmp_path / "1" / "a.jsonl", tmp_path / "2" / "a.jsonl"], str(logs))
        assert [report.run for report in reports] == ["a-2", "a-3"]
    assert (logs / "a" / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in logs.iterdir()) == ["a", "a-2", "a-3"]


def test_run_continued_after_its_import_is_left_alone(tmp_path, logs):
    source = write_jsonl(tmp_path / "a.jsonl", 3)
    import_runs("jsonl", [source], str(logs))
    with tachograph.init("a", log_dir=str(logs), resume=True, git=False, system_interval_s=0) as run:
        run.log(loss=0.125, step=99)
    before = (logs / "a" / "metrics.jsonl").read_bytes()
    assert only(import_runs("jsonl", [source], str(logs))).outcome == "unchanged"
    write_jsonl(source, 3, begin=3)
    report = only(import_runs("jsonl", [source], str(logs)))
    assert "was continued after its import" in report.error
    assert (logs / "a" / "metrics.jsonl").read_bytes() == before


def test_run_that_is_being_recorded_is_left_alone(tmp_path, logs, script):
    source = write_jsonl(tmp_path / "a.jsonl", 3)
    import_runs("jsonl", [source], str(logs))
    with tachograph.init("a", log_dir=str(logs), resume=True, git=False, system_interval_s=0):
        done = tacho("import", "jsonl", source, "--log-dir", logs, check=False)
    assert done.returncode == 1
    assert "is being written by another process" in " ".join(done.stdout.split())


def test_name_is_for_one_run_and_must_be_valid(tmp_path, logs):
    sources = [write_jsonl(tmp_path / name, 2) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(ConfigError, match="there are 2 runs, and only one can have the name"):
        import_runs("jsonl", sources, str(logs), name="x")
    with pytest.raises(ConfigError, match="path separator"):
        import_runs("jsonl", sources[:1], str(logs), name="../x")
    assert only(import_runs("jsonl", sources[:1], str(logs), name="x")).run == "x"
    assert "was imported as 'x'" in only(import_runs("jsonl", sources[:1], str(logs), name="y")).error
    assert [path.name for path in logs.iterdir()] == ["x"]


def test_name_of_the_source_is_made_valid(tmp_path, logs):
    source = write_jsonl(tmp_path / "a: b?*.x.jsonl", 2)
    assert only(import_runs("jsonl", [source], str(logs))).run == "a-b-.x"


def test_source_is_recognised_although_its_path_is_masked(tmp_path, logs):
    folder = tmp_path / ("hf_" + "a1B2" * 9)
    folder.mkdir()
    source = write_jsonl(folder / "a.jsonl", 3)
    assert only(import_runs("jsonl", [source], str(logs))).outcome == "created"
    assert folder.name not in (logs / "a" / "metrics.jsonl").read_text()
    assert only(import_runs("jsonl", [source], str(logs))).outcome == "unchanged"


def test_imported_run_accepts_no_requests(tmp_path, logs):
    import_runs("jsonl", [write_jsonl(tmp_path / "a.jsonl", 3)], str(logs))
    done = tacho("control", "a", "--stop", "--log-dir", logs, check=False)
    assert (done.returncode, (logs / "a" / "control.json").exists()) == (1, False)
    assert "was imported from another tool" in done.stderr


# The command ---------------------------------------------------------------------------------------------------------


def test_dry_run_reports_and_writes_nothing(tmp_path, logs):
    source = write_jsonl(tmp_path / "a.jsonl", 30)
    (report,) = json.loads(tacho("import", "jsonl", source, "--log-dir", logs, "--dry-run", "--json"))
    assert (report["run"], report["outcome"], report["num_rows"]) == ("a", "created", 30)
    assert (report["metrics"]["loss"], report["first_step"], report["last_step"]) == (30, 0, 29)
    assert "would be created" in tacho("import", "jsonl", source, "--log-dir", logs, "--dry-run")
    assert not logs.exists()
    tacho("import", "jsonl", source, "--log-dir", logs)
    other = write_jsonl(tmp_path / "a.ndjson", 1)
    assert "the name 'a' is in use" in tacho("import", "jsonl", other, "--log-dir", logs, "--dry-run")
    write_jsonl(source, 5, begin=30)
    before = (logs / "a" / "metrics.jsonl").read_bytes()
    (report,) = json.loads(tacho("import", "jsonl", source, "--log-dir", logs, "--dry-run", "--json"))
    assert (report["outcome"], report["num_rows"], report["first_step"]) == ("updated", 5, 30)
    assert (logs / "a" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("format_name", "name", "message"),
    [
        ("csv", "missing.csv", "does not exist"),
        ("csv", "a.jsonl", "is not a csv log but a jsonl log: tacho import jsonl"),
        ("tensorboard", "a.jsonl", "is not a tensorboard log but a jsonl log"),
        ("wandb", "a.txt", "is not a wandb log: expected"),
        ("tensorboard", ".", "is not a tensorboard log: expected"),
    ],
)
def test_path_that_cannot_be_imported_is_explained(tmp_path, logs, format_name, name, message):
    (tmp_path / "a.txt").write_text("x")
    write_jsonl(tmp_path / "a.jsonl", 2)
    done = tacho("import", format_name, tmp_path / name, "--log-dir", logs, check=False, columns=500)
    assert done.returncode == 1
    assert message in done.stderr
    assert not logs.exists()


def test_source_without_data_makes_no_run(tmp_path, logs):
    (tmp_path / "a.csv").write_text("step,loss\n")
    done = tacho("import", "csv", tmp_path / "a.csv", "--log-dir", logs, check=False)
    assert (done.returncode, "nothing to import was found" in done.stdout) == (1, True)
    assert not logs.exists()


DAMAGED = {
    "torn.jsonl": ('{"step": 1, "a": 1}\n{"step": 2, "a"', "line 2", "is not complete", 1),
    "middle.jsonl": ('{"step": 1, "a": 1}\n\x00\x01!\n{"step": 2, "a": 2}\n', "line 2", "not a JSON object", 2),
    "columns.csv": ("step,a,b\n1,1,1\n2,2\n", "line 3", "2 columns where 3 are expected", 2),
    "state.json": ('{"log_history": [{"step": 1, "a": 1}, {"step": 2, "a"', "after row 1", "at character", 1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_log_is_imported_up_to_the_damage(tmp_path, logs, name):
    content, where, reason, num_rows = DAMAGED[name]
    (tmp_path / name).write_text(content)
    format_name = {".jsonl": "jsonl", ".csv": "csv", ".json": "trainer-state"}[Path(name).suffix]
    (report,) = json.loads(tacho("import", format_name, tmp_path / name, "--log-dir", logs, "--json"))
    (damage,) = report["damage"]
    assert (damage["where"], report["num_rows"]) == (where, num_rows)
    assert reason in damage["reason"]
    again = tacho("import", format_name, tmp_path / name, "--log-dir", logs, columns=500)
    assert "unchanged" in again
    assert f"damaged at {where}" in again


def test_truncated_gzip_is_imported_with_a_warning(tmp_path, logs):
    text = "".join(f'{{"step": {n}, "loss": {n * 7919 % 1000}}}\n' for n in range(2_000)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text)[:-500])
    report = only(import_runs("jsonl", [tmp_path / "a.jsonl.gz"], str(logs)))
    assert report.num_rows > 100
    assert report.damage[-1].reason == "the compressed data is not complete"
