"""The CSV mirror: wide, with growing columns, and always equal to the journal."""

from __future__ import annotations

import csv
import math
import shutil
import sys
import threading
import time

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tachograph
from tachograph.journal import RunFolder, _claim, is_csv_current, read_records, rebuild_csv
from tachograph.journal._csv import FIRST_COLUMNS, CsvMirror
from tachograph.records import StepTable
from tests.conftest import lines_of, wait_for


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_against_journal(folder):
    """Check that the mirror has a row per record with the same values, and that a rebuild yields the same bytes."""
    # After a fast run, a background process completes the mirror.
    wait_for(lambda: is_csv_current(RunFolder(folder)), "the mirror to be complete")
    rows = rows_of(folder / "metrics.csv")
    records = list(read_records(folder / "metrics.jsonl"))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        for name, cell in row.items():
            value = record.get(name)
            if value is None:
                assert cell == "" or name == "more"
            elif isinstance(value, bool):
                assert cell == str(value).lower()
            elif isinstance(value, (int, float)):
                assert float(cell) == value or (math.isnan(float(cell)) and math.isnan(value))
            elif isinstance(value, str):
                assert cell == value.replace("\n", "\\n")
    before = (folder / "metrics.csv").read_bytes()
    rebuild_csv(RunFolder(folder))
    assert (folder / "metrics.csv").read_bytes() == before
    return rows


def test_new_columns_are_added_without_losing_values(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(100):
            run.log(
                {"train_loss": 1.0 / (step + 1), **{f"m{index}": step * 0.1 for index in range(step // 10)}}, step=step
            )
        run.log({"text": 'a "quoted", text\nof two lines', "nan": math.nan, "inf": -math.inf}, step=100)
        run.log_validation({"loss": 0.5}, step=100)
    rows = check_against_journal(logs / "x")
    header = list(rows[0])
    assert tuple(header[: len(FIRST_COLUMNS)]) == FIRST_COLUMNS
    last = rows[-3]
    assert (last["nan"], last["inf"]) == ("NaN", "-Infinity")
    frame = pd.read_csv(logs / "x" / "metrics.csv")
    assert math.isinf(frame["inf"].dropna().iloc[-1])


def test_keys_in_any_order_go_to_their_columns(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(50):
            run.log({"a": 1.0, "b": 2.0, "lr": 3.0}, step=3 * step)
            run.log({"lr": 3.0, "b": 2.0, "a": 1.0}, step=3 * step + 1)
            run.log({"b": 2.0}, step=3 * step + 2)
    rows = [row for row in check_against_journal(logs / "x") if row["event"] == "step"]
    assert {(row["a"], row["b"], row["lr"]) for row in rows} == {("1.0", "2.0", "3.0"), ("", "2.0", "")}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["train_loss", "lr", "a", "b,c", 'd"e', "ü", "f g", "time", "epoch"]),
            st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.text(max_size=5) | st.none(),
            max_size=5,
        ),
        max_size=40,
    ),
    st.integers(1, 3),
)
def test_mirror_equals_journal_for_any_values(logs, metrics, log_every):
    shutil.rmtree(logs, ignore_errors=True)
    with tachograph.init(
        "x",
        log_dir=str(logs),
        console=False,
        git=False,
        system_interval_s=0,
        log_every=log_every,
        flush_interval_s=0.01,
    ) as run:
        for step, values in enumerate(metrics):
            run.log(values, step=step)
    lines_of(logs / "x")
    rows = rows_of(logs / "x" / "metrics.csv")
    assert len(rows) == len(lines_of(logs / "x"))
    before = (logs / "x" / "metrics.csv").read_bytes()
    rebuild_csv(RunFolder(logs / "x"))
    assert (logs / "x" / "metrics.csv").read_bytes() == before


def test_rebuild_repairs_any_damage(logs):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(10):
            run.log(a=float(step), step=step)
    path = logs / "x" / "metrics.csv"
    good = path.read_bytes()
    folder = RunFolder(logs / "x")
    for damaged in (b"", good[: len(good) // 2], good + b"torn,ro", b"garbage\n" * 1000):
        path.write_bytes(damaged)
        assert not is_csv_current(folder)
        assert rebuild_csv(folder) == len(lines_of(logs / "x"))
        assert path.read_bytes() == good
        assert is_csv_current(folder)
    path.unlink()
    shutil.rmtree(folder.private)
    rebuild_csv(folder)
    assert path.read_bytes() == good


@pytest.mark.parametrize("damage", ["csv deleted", "cursor deleted", "torn row", "foreign file", "cursor too far"])
def test_resume_repairs_the_mirror(logs, damage):
    with tachograph.init("x", log_dir=str(logs)) as run:
        for step in range(10):
            run.log(a=float(step), step=step)
    folder = RunFolder(logs / "x")
    if damage == "csv deleted":
        folder.csv.unlink()
    elif damage == "cursor deleted":
        folder.csv_cursor.unlink()
    elif damage == "torn row":
        folder.csv.write_bytes(folder.csv.read_bytes() + b"step,17")
    elif damage == "foreign file":
        folder.csv.write_text("a,b\n1,2\n")
    else:
        folder.csv_cursor.write_text('{"journal_bytes":99999999,"csv_bytes":5,"columns":["event"]}')
    with tachograph.init("x", log_dir=str(logs), resume=True) as run:
        for step in range(10, 20):
            run.log(a=float(step), b=1.0, step=step)
    check_against_journal(logs / "x")


def test_mirror_can_be_disabled(logs, capsys):
    tachograph.init("x", log_dir=str(logs), csv=False).finish()
    assert not (logs / "x" / "metrics.csv").exists()
    assert "metrics.csv" not in capsys.readouterr().out


@pytest.mark.slow
def test_adding_forty_columns_is_not_quadratic(tmp_path):
    """Compare 200,000 rows whose columns appear one by one with the same rows with all columns at once."""

    def mirror(folder, num_columns_at):
        folder.mkdir()
        run = RunFolder(folder)
        run.private.mkdir()
        mirror = CsvMirror(run)
        num_rows, size, took_s = 0, 0, 0.0
        with open(run.journal, "wb") as journal:
            while num_rows < 200_000:
                names = ["time", "global_step", *(f"c{index}" for index in range(num_columns_at(num_rows)))]
                values = ",".join(f'"{name}":{number}' for number, name in enumerate(names))
                line = b'{"event":"step",' + values.encode() + b',"nan_inf_detected":false}\n'
                journal.write(line * 5000)
                journal.flush()
                size += 5000 * len(line)
                began_s = time.process_time()
                mirror.catch_up(size, budget_s=60)
                took_s += time.process_time() - began_s
                num_rows += 5000
        began_s = time.process_time()
        assert mirror.catch_up(size, budget_s=600, force=True)
        mirror.close()
        return took_s + time.process_time() - began_s

    growing_s = mirror(tmp_path / "growing", lambda row: 1 + row // 5_000)
    at_once_s = mirror(tmp_path / "at_once", lambda row: 20)
    with open(tmp_path / "growing" / "metrics.csv", "rb") as file:
        assert sum(1 for _ in file) == 200_001
    assert growing_s < 4 * at_once_s, f"{growing_s:.1f} s against {at_once_s:.1f} s"


@pytest.mark.slow
def test_columns_beyond_the_limit_share_one(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        for step in range(3000):
            run.log({f"name_{step}": float(step), "train_loss": 0.5}, step=step)
        run.flush()
    rows = check_against_journal(logs / "x")
    assert len(rows[0]) == 2001
    last = [row for row in rows if row["event"] == "step"][-1]
    assert last["more"] == '{"name_2999":2999.0}'
    assert last["train_loss"] == "0.5"


def test_layout_caches_are_bounded(logs):
    import random

    names = [f"m{number}" for number in range(40)]
    picks = random.Random(0)
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        for step in range(0, 3000, 10):
            metrics = dict.fromkeys(picks.sample(names, 8), 1.0)
            for repeated_step in range(step, step + 10):
                run.log(metrics, step=repeated_step)
        run.flush()
        assert len(run.backend.files._mirror._layouts) <= 256
        assert len(run.backend._builder._layouts) <= 256
    assert 0 < len(sys.modules[StepTable.__module__]._row_types) <= 256


def test_journal_is_written_during_a_mirror_rewrite(logs):
    """Adding a column to a large file is slow; records must not wait for it."""
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, flush_interval_s=0.05) as run:
        mirror = run.backend.files._mirror
        run.log(a=1.0, step=0)
        run.flush()
        real, seen = mirror._yield_to_writer, []

        def yield_to_writer():
            run.log(a=2.0, step=len(seen) + 1)
            before = (logs / "x" / "metrics.jsonl").stat().st_size
            real()
            seen.append((logs / "x" / "metrics.jsonl").stat().st_size > before)

        mirror._yield_to_writer = yield_to_writer
        run.log(new_name=1.0, step=1000)
        run.flush()
        mirror._yield_to_writer = real
    assert seen
    assert all(seen)
    check_against_journal(logs / "x")


@pytest.mark.parametrize("change", ["lines dropped", "journal deleted", "offset in a line", "zero", "negative"])
def test_outdated_cursor_is_ignored(logs, change):
    import json

    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        for step in range(50):
            run.log(a=float(step), step=step)
    folder = RunFolder(logs / "x")
    if change == "lines dropped":
        folder.journal.write_bytes(b"".join(folder.journal.read_bytes().splitlines(keepends=True)[:-4]))
    elif change == "journal deleted":
        folder.journal.unlink()
    else:
        cursor = json.loads(folder.csv_cursor.read_bytes())
        cursor["journal_bytes"] = {"offset in a line": cursor["journal_bytes"] - 7, "zero": 0, "negative": -5}[change]
        folder.csv_cursor.write_text(json.dumps(cursor))
    config = {f"name_{number}": "x" * 50 for number in range(100)}
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, resume=True, config=config) as run:
        for step in range(50, 60):
            run.log(a=float(step), step=step)
    check_against_journal(logs / "x")


def test_metric_named_like_the_overflow_column(logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0) as run:
        run.log({"more": 1.5, "x": 1.0}, step=0)
        run.log({"more": 2.5, "y": 7.0}, step=1)
    rows = check_against_journal(logs / "x")
    assert [row["more_"] for row in rows if row["event"] == "step"] == ["1.5", "2.5"]


def test_slow_mirror_is_not_reported_as_lost_records(logs, capsys):
    run = tachograph.init("x", log_dir=str(logs), git=False)
    release = threading.Event()
    run.backend.files.catch_up = lambda force=False, **_: force and release.wait(120)  # as if it took long at the end
    run.log(a=1.0, step=1)
    try:
        assert run.finish(timeout_s=60.0) is True
        assert lines_of(logs / "x")[-1]["event"] == "end"
        assert "could not be written" not in capsys.readouterr().err
    finally:
        release.set()


def test_mirror_that_is_behind_is_completed_after_the_run(logs, capsys):
    run = tachograph.init("x", log_dir=str(logs), git=False)
    run.backend.files.catch_up = lambda **_: None  # as if the mirror could not keep up
    run.backend.files._mirror.journal_bytes = 0
    for step in range(100):
        run.log({f"m{step // 10}": float(step)}, step=step)
    assert run.finish() is True
    num_records = len(lines_of(logs / "x"))
    assert f"metrics.csv lacks {num_records} records that the journal has; a background" in capsys.readouterr().out
    wait_for(lambda: is_csv_current(run.folder), "the complete CSV")
    assert len(check_against_journal(logs / "x")) == num_records
    assert [path.name for path in (logs / "x").glob(".metrics*")] == []


def test_fast_program_ends_with_a_true_message(logs, script):
    """The mirror cannot keep up with columns that appear all the time; only the journal has to be complete."""
    code, out, err = script(
        """
        import sys, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], git=False, system_interval_s=0, exit_timeout_s=120)
        for step in range(100_000):
            run.log({"train_loss": 1.0, f"m{step // 500}": 0.5}, step=step)
        print("complete" if run.finish() else "incomplete")
        """,
        logs,
    ).wait()
    assert code == 0
    assert "incomplete" not in out and "could not be written" not in err
    assert lines_of(logs / "x")[-1]["event"] == "end"
    folder = RunFolder(logs / "x")
    wait_for(lambda: is_csv_current(folder), "the complete CSV")
    assert (logs / "x" / "metrics.csv").read_bytes().count(b"\n") == len(lines_of(logs / "x")) + 1


def test_rebuild_leaves_the_file_of_a_running_writer_alone(logs, script):
    program = script(
        """
        import sys, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], git=False, console=False, system_interval_s=0)
        run.log(a=1.0); run.flush()
        print("running")
        sys.stdin.readline()
        """,
        logs,
    )
    assert program.process.stdout.readline() == "running\n"
    wait_for(lambda: is_csv_current(RunFolder(logs / "x")), "the first rows")
    inode = (logs / "x" / "metrics.csv").stat().st_ino
    assert rebuild_csv(RunFolder(logs / "x"), wait_s=0.3) is None
    assert (logs / "x" / "metrics.csv").stat().st_ino == inode
    program.process.stdin.write("\n")
    program.ok()
    assert rebuild_csv(RunFolder(logs / "x")) == len(lines_of(logs / "x"))


def test_resume_waits_for_a_short_lock(logs, script, monkeypatch):
    monkeypatch.setattr(_claim, "_SHORT_LOCK_S", 60.0)
    tachograph.init("x", log_dir=str(logs), git=False).finish()
    program = script(
        """
        import sys, time
        from tachograph.journal import RunFolder, lock_run_folder
        with lock_run_folder(RunFolder(sys.argv[1])):
            print("locked")
            time.sleep(0.3)
        """,
        logs / "x",
    )
    assert program.process.stdout.readline() == "locked\n"
    with tachograph.init("x", log_dir=str(logs), git=False, resume=True) as run:
        assert (run.name, run.resumed) == ("x", True)
    program.ok()
