"""Tests of `tacho export`, run as a child process; the tables are read with other programs."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
import pty
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tachograph
from tachograph.catalog.export import export_runs
from tachograph.catalog.export._rows import JournalSnapshot
from tachograph.exceptions import TableExportError
from tachograph.journal import RunFolder
from tachograph.records import METRIC_KINDS, encode
from tests.cli.test_cli import tacho
from tests.conftest import HANG_S, wait_for_lines

FORMATS = ["csv", "jsonl", "parquet"]
PLACES = ("run", "attempt", "kind", "step", "time")
ALL_KINDS = [text for kind in METRIC_KINDS for text in ("--kind", kind)]
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@pytest.fixture
def runs(logs):
    """A finished run, and one with two attempts that repeat a step."""
    options = {"log_dir": str(logs), "git": False, "console": False}
    with tachograph.init("good", **options) as run:
        for step in range(20):
            run.log({"train_loss": 1.0 / (step + 1), "tokens": 10**15 + step, "note": "text", "flag": True}, step=step)
        run.log_validation({"loss": 0.5}, step=19)
    for first in (0, 3):
        with tachograph.init("again", resume=True, **options) as run:
            for step in range(first, first + 5):
                run.log(train_loss=[math.nan, math.inf, -math.inf, 0.1, -0.0][step - first], step=step)
                if step == 4:
                    run.log(step=step, rare=1e-300)
    return logs


def write_run(folder, *lines):
    """Write a journal; lines may be records or any bytes."""
    folder.mkdir(parents=True)
    data = [line if isinstance(line, bytes) else encode(line) + b"\n" for line in lines]
    (folder / "metrics.jsonl").write_bytes(b"".join(data))
    return folder


def step_record(step, /, **metrics):
    return {"event": "step", "time": 1.7e9 + step, "global_step": step, **metrics}


def parse(data, name):
    """Return the rows of a table; a missing value has no entry."""
    if name == "jsonl":
        rows = [json.loads(line, parse_constant=pytest.fail) for line in data.decode().splitlines()]
        return [{name: NON_FINITE.get(str(value), value) for name, value in row.items()} for row in rows]
    if name == "csv":
        rows = csv.DictReader(io.StringIO(data.decode(), newline=""))
        texts = {"run", "kind", "metric"}
        return [
            {name: text if name in texts else float(text) for name, text in row.items() if text != ""} for row in rows
        ]
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def exported(tmp_path, name, *arguments):
    """Run the command and return the rows of its table."""
    if name == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"table.{name}"
    tacho("export", *arguments, "--output", path, "--force")
    return parse(path.read_bytes(), name)


def same(left, right):
    """Compare rows, in which NaN equals NaN."""
    return [*map(repr, map(sorted, map(numbers, left)))] == [*map(repr, map(sorted, map(numbers, right)))]


def numbers(row):
    return [(name, value if isinstance(value, str) else float(value)) for name, value in row.items()]


def series_rows(logs, name):
    """Return the values of a run as rows in the long form, according to `tachograph.read`."""
    history = tachograph.read(name, log_dir=logs)
    return [
        {"run": name, "attempt": attempt, "step": step, "time": time, "metric": metric, "value": value}
        for metric in history.metrics
        for step, value, time, attempt in zip(*history.series(metric), strict=True)
    ]


def by_metric(rows):
    return sorted(rows, key=lambda row: (row["run"], row["metric"]))


@pytest.mark.parametrize("name", FORMATS)
def test_wide_table_has_every_value(runs, tmp_path, name):
    rows = exported(tmp_path, name, "good", "again", "--log-dir", runs, *ALL_KINDS)
    found = [
        {**{place: row[place] for place in PLACES if place != "kind"}, "metric": metric, "value": value}
        for row in rows
        for metric, value in row.items()
        if metric not in PLACES
    ]
    expected = [*series_rows(runs, "again"), *series_rows(runs, "good")]
    assert same(by_metric(found), by_metric(expected))
    assert [row["kind"] for row in rows if row["run"] == "good" and "val_loss" in row] == ["validation"]
    assert not {"note", "flag", "nan_inf_detected"} & {column for row in rows for column in row}


@pytest.mark.parametrize("name", FORMATS)
def test_long_table_has_every_value(runs, tmp_path, name):
    rows = exported(tmp_path, name, "--all", "--long", "--log-dir", runs, *ALL_KINDS)
    assert {tuple(row) for row in rows} == {(*PLACES, "metric", "value")}
    kinds = [row.pop("kind") for row in rows]
    assert set(kinds) <= set(METRIC_KINDS)
    assert same(by_metric(rows), by_metric([*series_rows(runs, "again"), *series_rows(runs, "good")]))


def test_pandas_reads_every_format(runs, tmp_path):
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    for name in FORMATS:
        exported(tmp_path, name, "--all", "--log-dir", runs)
    frames = [
        pandas.read_parquet(tmp_path / "table.parquet"),
        pandas.read_csv(tmp_path / "table.csv"),
        pandas.read_json(tmp_path / "table.jsonl", lines=True, precise_float=True).astype({"train_loss": float}),
    ]
    for frame in frames:
        assert list(frame.columns[:5]) == list(PLACES)
        for run in ("good", "again"):
            rows = frame[(frame["run"] == run) & frame["kind"].eq("step")]
            history = tachograph.read(run, log_dir=runs)
            for metric in set(frame.columns[5:]) & set(history.metrics) - {"val_loss"}:
                series, found = history.series(metric), rows[rows[metric].notna()]
                is_number = ~pandas.isna(series.values)  # pandas does not distinguish NaN from a missing value
                # Its parsers may be wrong in the last digits.
                assert [*found[metric]] == pytest.approx([*series.values[is_number]], rel=1e-12, abs=0)
                assert [*found["step"]] == [*series.steps[is_number]]
    losses = parquet.read_table(tmp_path / "table.parquet")["train_loss"]
    rows = parse((tmp_path / "table.jsonl").read_bytes(), "jsonl")
    assert losses.null_count == sum("train_loss" not in row for row in rows)
    assert losses.null_count > 0
    assert sum(value.is_valid and math.isnan(value.as_py()) for value in losses) == 2


def test_duckdb_queries_every_format(runs, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    history = tachograph.read("good", log_dir=runs).series("train_loss")
    for name in FORMATS:
        rows = exported(tmp_path, name, "--all", "--log-dir", runs)
        reader = "read_json_auto" if name == "jsonl" else f"read_{name}"
        with duckdb.connect() as database:
            table = database.execute(f"CREATE TABLE t AS FROM {reader}('{tmp_path}/table.{name}')").execute
            assert table("SELECT count(*) FROM t").fetchone() == (len(rows),)
            loss = "train_loss::DOUBLE"  # in JSON lines, NaN is a text
            steps, values = zip(
                *table(f"SELECT step, {loss} FROM t WHERE run = 'good' AND kind = 'step' ORDER BY step").fetchall(),
                strict=True,
            )
            assert (list(steps), list(values)) == (list(history.steps), list(history.values))
            found = table(
                f"SELECT attempt, {loss} FROM t WHERE run = 'again' AND step = 0 AND kind = 'step'"
            ).fetchall()
            assert [(attempt, math.isnan(value)) for attempt, value in found] == [(0, True)]
            query = f"SELECT count(*) FROM t WHERE run = 'again' AND isinf({loss})"
            assert table(query).fetchone() == (4,)
            missing = sum("train_loss" not in row for row in rows)
            assert missing > 0
            assert table("SELECT count(*) FROM t WHERE train_loss IS NULL").fetchone() == (missing,)


def test_arrow_reads_missing_and_nan_from_csv(runs, tmp_path):
    arrow = pytest.importorskip("pyarrow.csv")
    rows = exported(tmp_path, "csv", "--all", "--log-dir", runs)
    table = arrow.read_csv(tmp_path / "table.csv", convert_options=arrow.ConvertOptions(null_values=[""]))
    found = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    assert same(found, rows)


def test_metrics_are_chosen_by_name_and_pattern(runs, tmp_path):
    rows = exported(tmp_path, "csv", "good", "--log-dir", runs, "--metrics", "val_*", "--metrics", "train_loss")
    assert {column for row in rows for column in row} == {*PLACES, "train_loss", "val_loss"}
    assert len(rows) == 21
    write_run(runs / "odd", step_record(0, **{"a[0]": 1.0, "a0": 2.0}))
    rows = exported(tmp_path, "csv", "odd", "--log-dir", runs, "--metrics", "a[0]*")
    assert [set(row) - {*PLACES} for row in rows] == [{"a[0]"}]


def test_metrics_bring_along_their_x_axis(runs, tmp_path):
    definition = {"event": "event", "time": 1.0, "name": "define_metric", "metric": "val/loss", "step_metric": "epoch"}
    train, validation = {"epoch": 2.0, "other": 3.0}, {"epoch": 2.0, "val/loss": 1.0}
    write_run(runs / "axis", definition, step_record(0, **train), step_record(1, **validation))
    (row,) = exported(tmp_path, "csv", "axis", "--log-dir", runs, "--metrics", "val/loss")
    assert {name: row[name] for name in row.keys() - {*PLACES}} == {"val/loss": 1.0, "epoch": 2.0}
    rows = exported(tmp_path, "csv", "axis", "--log-dir", runs, "--metrics", "other")
    assert [set(row) - {*PLACES} for row in rows] == [{"other"}]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("trainloss", "no run has a metric 'trainloss'; did you mean 'train_loss'?"),
        ("gpu*", "it is in records of the kind system: add --kind system"),
    ],
)
def test_unknown_metric_is_an_error(runs, metric, message):
    write_run(runs / "sampled", {"event": "system", "time": 1.0, "gpu_0/util": 3.0})
    done = tacho("export", "--all", "--log-dir", runs, "--to", "csv", "--metrics", metric, check=False, columns=200)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_system_and_profile_records_are_optional(runs, tmp_path):
    sample = {"event": "system", "time": 2.0, "cpu_pct": 3.0}
    profile = {"event": "profile", "time": 3.0, "profile/f": 0.1}
    write_run(runs / "sampled", sample, step_record(7, loss=1.0), sample, profile)
    where = ("sampled", "--log-dir", runs)
    assert [row["kind"] for row in exported(tmp_path, "csv", *where)] == ["step"]
    rows = exported(tmp_path, "jsonl", *where, "--kind", "system", "--kind", "profile")
    assert [(row["kind"], row.get("step")) for row in rows] == [("system", None), ("system", 7), ("profile", 7)]


def test_standard_output_is_the_default(runs, tmp_path):
    for name in ("csv", "jsonl"):
        rows = parse(tacho("export", "good", "--log-dir", runs, "--to", name).encode(), name)
        assert rows == exported(tmp_path, name, "good", "--log-dir", runs)
        assert parse(tacho("export", "good", "--log-dir", runs, "--to", name, "-o", "-").encode(), name) == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good"], "specify a format"),
        (["good", "-o", "table.xlsx"], "specify a format"),
        (["good", "-o", ""], "needs the name of a file"),
        (["--to", "csv"], "name the runs to export"),
        (["good", "--all", "--to", "csv"], "name the runs to export"),
        (["good", "--to", "parquet"], "specify --output FILE.parquet"),
    ],
)
def test_incomplete_arguments_are_rejected(runs, arguments, message):
    done = tacho("export", *arguments, "--log-dir", runs, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_unknown_run_is_an_error(runs, tmp_path):
    done = tacho("export", "good", "agian", "--log-dir", runs, "-o", tmp_path / "t.csv", check=False)
    assert done.returncode == 1
    assert "did you mean 'again'?" in done.stderr
    assert not (tmp_path / "t.csv").exists()


def test_missing_pyarrow_is_named_before_reading(tmp_path):
    code = "import sys; sys.modules['pyarrow'] = None; from tachograph.cli import main; main()"
    arguments = ["export", "no such run", "-o", str(tmp_path / "t.parquet")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'tachograph[parquet]'" in done.stderr
    assert "no such run" not in done.stderr


def test_existing_file_is_kept_unless_forced(runs, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("mine")
    done = tacho("export", "good", "--log-dir", runs, "-o", path, check=False)
    assert (done.returncode, path.read_text()) == (1, "mine")
    assert "use --force" in done.stderr
    tacho("export", "good", "--log-dir", runs, "-o", path, "--force")
    assert path.read_text().startswith("run,attempt,kind,step,time,train_loss,")
    assert [file.name for file in tmp_path.iterdir() if file != runs] == ["table.csv"]


def test_links_and_pipes_are_never_replaced(runs, tmp_path):
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("mine")
    link.symlink_to(target)
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for path in (link, pipe):
        done = tacho("export", "good", "--log-dir", runs, "--to", "csv", "-o", path, "--force", check=False)
        assert (done.returncode, "cannot write" in done.stderr) == (1, True)
    assert (target.read_text(), link.is_symlink(), pipe.is_fifo()) == ("mine", True, True)


def test_runs_with_the_same_name_have_their_paths(tmp_path):
    first = write_run(tmp_path / "a" / "x", step_record(0, loss=1.0))
    second = write_run(tmp_path / "b" / "x", step_record(0, loss=2.0))
    other = write_run(tmp_path / "b" / "y", step_record(0, loss=3.0))
    rows = exported(tmp_path, "csv", first, second, other, first, second / "metrics.jsonl")
    assert [(row["run"], row["loss"]) for row in rows] == [(str(first), 1), (str(second), 2), ("y", 3)]


@pytest.mark.parametrize("name", FORMATS)
def test_metrics_never_hide_the_other_columns(tmp_path, name):
    metrics = {"run": 1.0, "step": 2.0, "step_": 3.0, "kind": 4.0, "attempt": 5.0}
    run = write_run(tmp_path / "x", step_record(9, **metrics))
    assert same(
        exported(tmp_path, name, run),
        [
            {"run": "x", "attempt": 0, "kind": "step", "step": 9, "time": 1.7e9 + 9}
            | {"run_": 1.0, "step__": 2.0, "step_": 3.0, "kind_": 4.0, "attempt_": 5.0}
        ],
    )


def test_formulas_are_marked_as_text_in_csv(tmp_path):
    run = write_run(tmp_path / "x", step_record(0, **{"=1+1": -1.0, "a": 1.0}))
    assert tacho("export", run, "--to", "csv").splitlines()[0].endswith(",'=1+1,a")
    assert tacho("export", run, "--to", "csv").splitlines()[1].endswith(",-1.0,1.0")
    assert json.loads(tacho("export", run, "--to", "jsonl"))["=1+1"] == -1.0


def test_damaged_lines_are_skipped_and_counted(tmp_path):
    good = [step_record(step, loss=float(step)) for step in range(3)]
    torn = encode(step_record(3, loss=3.0))[:-4]
    run = write_run(tmp_path / "x", good[0], b"\x00\xff garbage\n", good[1], b"[1]\n", good[2], torn)
    done = tacho("export", run, "--to", "csv", check=False)
    assert done.returncode == 0
    assert [row["loss"] for row in parse(done.stdout.encode(), "csv")] == [0, 1, 2]
    assert done.stderr == "x: skipped 2 unreadable lines\n"


def test_records_of_odd_types_are_exported(tmp_path):
    run = write_run(
        tmp_path / "x",
        {"event": "step", "loss": 1.0},
        {"event": "step", "loss": "text", "time": "noon", "global_step": "one"},
        {"event": "step", "loss": None, "other": 2, "time": math.nan, "global_step": 2**60},
        {"event": "validation", "loss": 3, "time": 4, "global_step": 5},
        {"event": "start"},
        {"event": "start"},
        {"event": "test", "loss": [1.0], "acc": 10**200, "global_step": -1},
    )
    expected = [
        {"run": "x", "attempt": 0, "kind": "step", "loss": 1.0},
        {"run": "x", "attempt": 0, "kind": "step", "other": 2},
        {"run": "x", "attempt": 0, "kind": "validation", "step": 5, "time": 4, "loss": 3},
        {"run": "x", "attempt": 2, "kind": "test", "step": -1, "acc": 1e200},
    ]
    for name in FORMATS[:2]:
        assert same(exported(tmp_path, name, run), expected)
    assert same(exported(tmp_path, "parquet", run), expected)


def test_nothing_to_export_is_an_error(tmp_path):
    empty = write_run(tmp_path / "logs" / "empty")
    broken = write_run(tmp_path / "logs" / "broken", b"garbage\n", {"event": "start", "time": 1.0})
    path = tmp_path / "table.csv"
    for arguments in ([empty], [broken], ["--all", "--log-dir", tmp_path]):
        done = tacho("export", *arguments, "-o", path, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "nothing to export" in done.stderr
        assert ("unreadable lines: 1" in done.stderr) == (arguments == [broken])
    assert [file.name for file in tmp_path.iterdir()] == ["logs"]
    write_run(tmp_path / "logs" / "good", step_record(0, loss=1.0))
    done = tacho("export", "--all", "--log-dir", tmp_path / "logs", "-o", path, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "broken: skipped 1 unreadable line",
        "broken: nothing to export",
        "empty: nothing to export",
        f"{path}: 1 row of 1 run",
    ]


TRAIN = """
    import itertools, sys, time, tachograph
    run = tachograph.init("live", log_dir=sys.argv[1], git=False, console=False)
    for step in itertools.count():
        run.log({"loss": step / 2, f"metric_{step // 10}": 1.0}, step=step)
        time.sleep(0.001)
"""


def test_running_and_killed_runs_are_exported(logs, script, tmp_path):
    training = script(TRAIN, logs)
    wait_for_lines(logs / "live", 51)
    for name in FORMATS[:2]:
        rows = exported(tmp_path, name, "live", "--log-dir", logs)
        assert [row["step"] for row in rows] == [*range(len(rows))]
        assert [row["loss"] for row in rows] == [step / 2 for step in range(len(rows))]
        assert all(row[f"metric_{step // 10}"] == 1.0 for step, row in enumerate(rows))
    training.process.kill()
    training.process.wait()
    assert tachograph.read("live", log_dir=logs).state == "crashed"
    rows = exported(tmp_path, "csv", "live", "--log-dir", logs)
    assert len(rows) == len(tachograph.read("live", log_dir=logs).series("loss").steps)


def test_records_appended_meanwhile_are_left_out(tmp_path):
    folder = RunFolder(write_run(tmp_path / "x", step_record(0, loss=1.0)))
    snapshot = JournalSnapshot(folder)
    with open(folder.journal, "ab") as file:
        file.write(encode(step_record(1, loss=2.0, new=1.0)) + b"\n")
    assert snapshot.metric_kinds() == {"loss": {"step"}}
    assert [batch.values for batch in snapshot.rows({"loss", "new"}, METRIC_KINDS)] == [{"loss": [1.0]}]


@pytest.mark.parametrize("change", ["replace", "truncate", "delete"])
def test_replaced_journal_is_an_error(tmp_path, change):
    folder = RunFolder(write_run(tmp_path / "x", step_record(0, loss=1.0)))
    snapshot = JournalSnapshot(folder)
    if change == "replace":
        other = write_run(tmp_path / "y", step_record(0, name=1.0))
        os.replace(other / "metrics.jsonl", folder.journal)
    elif change == "truncate":
        folder.journal.write_bytes(b"")
    else:
        folder.journal.unlink()
    with pytest.raises(TableExportError, match="replaced|cannot read"):
        list(snapshot.rows({"loss"}, METRIC_KINDS))


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).filter(
    lambda name: name not in {"event", "time", "global_step"}
)
VALUES = st.one_of(st.floats(), st.integers(-(10**20), 10**20), st.text(max_size=5), st.booleans(), st.none())


@example([{"NaN": math.nan, "Infinity": 1.0, "null": -math.inf, "run": 1, "step": 2, "\u2028": 3.0, "": 4}])
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=8))
def test_any_names_and_values_survive(tmp_path_factory, records):
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("any") / "x"
    write_run(folder, *(step_record(step, **metrics) for step, metrics in enumerate(records)))
    expected = [
        (step, name, float(value))
        for step, metrics in enumerate(records)
        for name, value in metrics.items()
        if type(value) in {float, int}
    ]
    for name in FORMATS:
        for is_long in (False, True):
            file = io.BytesIO()
            if not expected:
                with pytest.raises(TableExportError):
                    export_runs([RunFolder(folder)], file, name, is_long=is_long)
                continue
            export_runs([RunFolder(folder)], file, name, is_long=is_long)
            found = read_values(file.getvalue(), name, is_long=is_long)
            names = [*dict.fromkeys(metric for _, metric, _ in expected)]
            escaped = csv_names(names) if name == "csv" else {metric: metric for metric in names}
            columns = escaped if is_long else wide_columns(names, escaped)
            wanted = sorted(repr((step, columns[metric], value)) for step, metric, value in expected)
            assert sorted(map(repr, found)) == wanted


def read_values(data, name, *, is_long):
    """Return the step, the column and the value of each value; reads by position, because names may be odd."""
    if name == "csv":
        (header, *rows) = csv.reader(io.StringIO(data.decode(), newline=""))
        rows = [[text or None for text in row] for row in rows]
    elif name == "parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(io.BytesIO(data))
        header, rows = table.column_names, [*zip(*(column.to_pylist() for column in table.columns), strict=True)]
    else:
        pairs = [json.loads(line) for line in data.decode().splitlines()]
        header = [*dict.fromkeys([*PLACES, *(column for row in pairs for column in row)])]
        rows = [[row.get(column) for column in header] for row in pairs]
    if is_long:
        assert header == [*PLACES, "metric", "value"]
        # An empty name is an empty cell.
        return [(int(row[3]), row[5] or "", float(row[6])) for row in rows]
    return [
        (int(row[3]), column, float(value))
        for row in rows
        for column, value in zip(header[5:], row[5:], strict=True)
        if value is not None
    ]


def wide_columns(names, escaped):
    """Return the column of each metric."""
    taken, columns = {*names, *PLACES}, {}
    for name in names:
        column = name
        while name in PLACES and column in taken:
            column += "_"
        columns[name] = column if name in PLACES else escaped[name]
    return columns


def csv_names(names):
    """Return the names as they are in a CSV, never formulas."""
    return {name: "'" + name if name[:1] in {"=", "+", "-", "@", "\t"} else name for name in names}


def test_terminal_shows_no_control_characters(tmp_path):
    run = write_run(tmp_path / "x", step_record(0, **{"\x1b[31mred\x9b": 1.0, "fine": 2.0}))
    for name in ("csv", "jsonl"):
        control, terminal = pty.openpty()
        command = [sys.executable, "-m", "tachograph", "export", str(run), "--to", name]
        subprocess.run(command, stdout=terminal, stderr=terminal, timeout=HANG_S, check=True)
        text = os.read(control, 65_536).decode()
        os.close(control)
        os.close(terminal)
        assert "red" in text
        assert "fine" in text
        assert not set(text) & {"\x1b", "\x9b"}


def write_long_run(folder, num_steps):
    """Write a long journal, quickly."""
    folder.mkdir(parents=True)
    metrics = ",".join(f'"metric_{index}":%r' for index in range(8))
    line = '{"event":"step","time":%r,"global_step":%d,' + metrics + ',"nan_inf_detected":false}\n'
    with open(folder / "metrics.jsonl", "w") as file:
        file.writelines(
            line % (1.7e9 + step, step, *(step + index / 8 for index in range(8))) for step in range(num_steps)
        )
    return folder


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Return a function that returns a run of this length, written once for all tests in this process."""
    return functools.cache(lambda num_steps: write_long_run(tmp_path_factory.mktemp("long") / "x", num_steps))


def test_closed_pipe_ends_the_export_quietly(long_run):
    run = long_run(20_000)
    command = f"{sys.executable} -m tachograph export {run} --to csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=HANG_S)
    assert done.stdout.startswith("run,attempt,")
    assert "Traceback" not in done.stderr


PEAK = """
    import sys
    from tachograph.cli._main import main
    main(sys.argv[1:], standalone_mode=False)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(int(status["VmHWM"].split()[0]) << 10)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak memory from /proc")
@pytest.mark.xdist_group("long_run")
@pytest.mark.parametrize("name", FORMATS)
def test_memory_does_not_grow_with_a_run(tmp_path, script, long_run, name):
    """Memory may not depend on the length: a list of the records would take several times the size of the journal."""
    if name == "parquet":
        pytest.importorskip("pyarrow")
    peaks, sizes = [], []
    # The rows of a group of a Parquet file are in memory, so only a file with several groups shows the difference.
    lengths = (80_000, 320_000) if name == "parquet" else (20_000, 80_000)
    for num_steps in lengths:
        run = long_run(num_steps)
        path = tmp_path / f"{num_steps}.{name}"
        peaks.append(int(script(PEAK, "export", run, "--output", path).ok()))
        sizes.append((run / "metrics.jsonl").stat().st_size)
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 4
    if name == "parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        assert table["step"].to_pylist() == [*range(320_000)]
        assert table["metric_3"].to_pylist() == [step + 3 / 8 for step in range(320_000)]


def files_in(folder):
    return {file.name for file in folder.iterdir()}


INTERRUPTED = """
    import os, signal, sys
    from tachograph.catalog.export import _formats
    from tachograph.cli import main

    number, folder = int(sys.argv[1]), sys.argv[2]

    def interrupt(write):
        def add(writer, *batch):
            num_rows = write(writer, *batch)
            if any(file.stat().st_size > 1000 for file in os.scandir(folder)):
                signal.raise_signal(number)
            return num_rows
        return add

    for writer in _formats._CsvWriter, _formats._ParquetWriter:
        writer.add = interrupt(writer.add)
    sys.argv = ["tacho", "export", sys.argv[3], "-o", sys.argv[4]]
    main()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_interrupted_export_leaves_no_table(tmp_path, long_run, script, name, number):
    if name == "parquet":
        pytest.importorskip("pyarrow")
    run, target = long_run(80_000), tmp_path / "out"
    target.mkdir()
    path = target / f"table.{name}"
    code, _, err = script(INTERRUPTED, int(number), target, run, path, preload="command").wait()
    assert code == (130 if number == signal.SIGINT else -number), err
    assert not path.exists()
    if number == signal.SIGINT:
        assert files_in(target) == set()
    tacho("export", write_run(tmp_path / "y", step_record(0, loss=1.0)), "-o", path)
    assert path.exists()


@pytest.mark.slow
def test_failed_write_leaves_no_file(tmp_path, long_run):
    run, target = long_run(20_000), tmp_path / "out"
    target.mkdir()
    for name in FORMATS:
        if name == "parquet":
            pytest.importorskip("pyarrow")
        done = subprocess.run(
            [sys.executable, "-m", "tachograph", "export", str(run), "-o", str(target / f"table.{name}")],
            capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "300"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        )  # fmt: skip
        assert done.returncode == 1
        assert "cannot write" in done.stderr
        assert "Traceback" not in done.stderr
        assert files_in(target) == set()
