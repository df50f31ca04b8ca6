"""`tacho import swanlab`: files written by the real package in offline mode, read without it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import tachograph
from tachograph.importers import describe, import_runs
from tests.cli.test_cli import tacho
from tests.conftest import HANG_S, lines_of
from tests.importers.test_import import KILLS, check_killed_import

SCRIPT = """
    import json, os, sys
    import swanlab

    folder, content = sys.argv[1], json.loads(sys.argv[2])
    off = dict.fromkeys(["hardware", "runtime", "requirements", "conda", "git", "swanlab"], False)
    settings = swanlab.Settings(interactive=False, probe=swanlab.Settings.Probe(**off))
    for number, (options, rows, extras, state, error) in enumerate(content):
        place = os.path.join(folder, f"part{number}")  # the folders of a second would have the same name
        run = swanlab.init(mode="offline", log_dir=place, project="proj", settings=settings, **options)
        for step, row in rows:
            run.log(row, step=step)
        if extras:
            table = swanlab.echarts.Table().add(["prompt", "reward"], [["a", 0.5], ["b", None]])
            bar = swanlab.echarts.Bar().add_xaxis(["a"]).add_yaxis("b", [1])
            run.log({"note": swanlab.Text("**bold**"), "samples": table, "bar": bar}, step=600)
            run.config.update({"late": [1, {"a": 2}]})
            print("a line of output")
        if state == "killed":
            run._components.stop()  # writes what SwanLab has queued
            run._core._store.ensure_flushed()
            os._exit(9)
        run.finish(state=state, error=error)
"""
CONFIG = {"lr": 1e-3, "optimizer": {"name": "adamw", "betas": [0.9, 0.95]}, "hf_token": "opaque"}
ROWS = [
    [0, {"loss": 2.5, "count": 7, "nested": {"a": 1, "deep": {"b": -0.5}}, "zero": 0}],
    [10, {"loss": math.nan, "time": 3, "large": 1e300}],
    [11, {"loss": -math.inf, "val/loss": 3.25, "epoch": 1, "ünïcode/名前": 4}],
    [500, {"loss": 0.1, **{f"metric{number}": number for number in range(2_000)}}],  # crosses blocks of the file
]


@pytest.fixture(scope="module")
def swanlab_folder(tmp_path_factory):
    """A folder with three runs, the last of which has two attempts."""
    folder = tmp_path_factory.mktemp("project")
    named = {"id": "named", "name": "My run: 1/2", "tags": ["a", "b"], "description": "as before", "config": CONFIG}
    resumed = {"id": "resumed", "name": "resumed", "resume": "allow"}
    again = [[step, {"loss": float(step)}] for step in range(5)]
    content = [
        [{**named, "group": "g", "job_type": "train", "workspace": "team"}, ROWS, True, "success", None],
        [{"id": "failed", "name": "failed"}, again, False, "crashed", "Traceback …\n  a line\nValueError: boom"],
        [{**resumed, "config": {"lr": 1}}, again, False, "aborted", "KeyboardInterrupt"],
        [
            {**resumed, "config": {"lr": 2}},
            [[step, {"loss": -1.0}] for step in range(3, 8)],
            False,
            "killed",
            None,
        ],
    ]
    (folder / "log.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(folder / "log.py"), str(folder), json.dumps(content)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWANLAB_")}
    environment["SWANLAB_ROOT"] = str(folder)
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    return folder


def file_of(swanlab_folder, run_id):
    return next(swanlab_folder.glob(f"*/run-*/run-{run_id}.swanlab"))


def test_every_value_arrives(swanlab_folder, logs):
    tacho("import", "swanlab", swanlab_folder, "--log-dir", logs)
    history = tachograph.read(logs / "My-run-1-2")
    rows = list(history.records("step"))
    names = ("event", "time", "global_step")
    assert [row["global_step"] for row in rows] == [0, 10, 11, 500]
    assert repr([dict(sorted((n, row[n]) for n in row if n not in names)) for row in rows[:3]]) == repr(
        [
            {"count": 7.0, "loss": 2.5, "nested/a": 1.0, "nested/deep/b": -0.5, "zero": 0.0},
            {"large": 1e300, "loss": math.nan, "time_": 3.0},
            {"epoch": 1.0, "loss": -math.inf, "val/loss": 3.25, "ünïcode/名前": 4.0},
        ]
    )
    assert [rows[3][f"metric{number}"] for number in range(2_000)] == list(range(2_000))
    start = history.attempts[0].start
    assert start["imported_from"]["id"] == "team/proj/named"
    assert {name: start[name] for name in ("name", "tags", "notes", "group", "job_type", "project", "workspace")} == {
        "name": "My run: 1/2", "tags": ["a", "b"], "notes": "as before", "group": "g", "job_type": "train",
        "project": "proj", "workspace": "team",
    }  # fmt: skip
    assert history.config == {**CONFIG, "hf_token": "[masked]", "late": [1, {"a": 2}]}
    (note,) = history.latest("event", "text")
    assert (note["tag"], note["text"], note["global_step"]) == ("note", "**bold**", 600)
    (table,) = history.records("completions")
    assert (table["table"], table["global_step"]) == ("samples", 600)
    assert [row["prompt"] for row in table["rows"]] == ["a", "b"]
    assert str(history.state) == "finished"
    assert start["time"] <= rows[0]["time"] <= rows[-1]["time"] <= history.attempts[0].end["time"]
    assert "opaque" not in (logs / "My-run-1-2" / "metrics.jsonl").read_text()


def test_left_out_parts_are_counted(swanlab_folder, logs):
    (report,) = import_runs("swanlab", [file_of(swanlab_folder, "named")], str(logs))
    assert report.left_out.keys() == {"chart", "line of output"}
    assert report.left_out["chart"] == 1


def test_exit_states_and_attempts_arrive(swanlab_folder, logs):
    reports = import_runs("swanlab", [swanlab_folder], str(logs))
    assert sorted(report.run for report in reports) == ["My-run-1-2", "failed", "resumed"]
    failed = tachograph.read(logs / "failed")
    assert (str(failed.state), failed.attempts[0].end["reason"]) == ("failed", "crashed: ValueError: boom")
    resumed = tachograph.read(logs / "resumed")
    assert [attempt.start["resumed"] for attempt in resumed.attempts] == [False, True]
    assert resumed.attempts[0].end["reason"] == "aborted: KeyboardInterrupt"
    assert str(resumed.state) == "stale"  # it was killed, or still runs somewhere else
    assert resumed.config == {"lr": 2}
    before = {path: path.read_bytes() for path in logs.glob("*/metrics.jsonl")}
    assert {report.outcome for report in import_runs("swanlab", [swanlab_folder], str(logs))} == {"unchanged"}
    assert {path: path.read_bytes() for path in logs.glob("*/metrics.jsonl")} == before


def test_dry_run_writes_nothing(swanlab_folder, logs):
    reports = import_runs("swanlab", [swanlab_folder], str(logs), dry_run=True)
    assert [report.num_rows for report in reports] == [4, 5, 10]
    assert not logs.exists()


def test_second_file_of_a_run_continues_its_import(swanlab_folder, logs):
    first, second = sorted(swanlab_folder.glob("*/run-*/run-resumed.swanlab"))
    assert import_runs("swanlab", [first], str(logs))[0].outcome == "created"
    assert import_runs("swanlab", [second.parent], str(logs))[0].outcome == "updated"
    assert [path.name for path in logs.iterdir()] == ["resumed"]
    assert len(tachograph.read(logs / "resumed").attempts) == 2


def test_package_is_not_needed(swanlab_folder, logs, tmp_path, script):
    (tmp_path / "hidden").mkdir()
    for name in ("swanlab", "google"):
        (tmp_path / "hidden" / f"{name}.py").write_text("raise ModuleNotFoundError('as if it were not installed')")
    out = script(
        """
        import sys
        from tachograph.importers import import_runs
        print([report.outcome for report in import_runs("swanlab", [sys.argv[1]], sys.argv[2])])
        """,
        swanlab_folder, logs, env={"PYTHONPATH": str(tmp_path / "hidden")},
    ).ok()  # fmt: skip
    assert out == "['created', 'created', 'created']\n"


@pytest.mark.parametrize("run_id", ["failed", "resumed"])
def test_import_of_a_growing_file_equals_one_of_the_whole(swanlab_folder, tmp_path, run_id):
    source = sorted(swanlab_folder.glob(f"*/run-*/run-{run_id}.swanlab"))[-1]
    whole = source.read_bytes()
    folder = tmp_path / "run-1"
    shutil.copytree(source.parent, folder)
    file = folder / source.name
    import_runs("swanlab", [file], str(tmp_path / "whole"), name="a")
    expected = (tmp_path / "whole" / "a" / "metrics.jsonl").read_bytes()
    for number, end in enumerate(range(10, len(whole), len(whole) // 40)):
        logs = tmp_path / f"logs{number}"
        for part in (whole[:end], whole[: end + 300], whole):
            file.write_bytes(part)
            import_runs("swanlab", [file], str(logs), name="a")
        assert (logs / "a" / "metrics.jsonl").read_bytes() == expected, end


@pytest.mark.parametrize("kill", KILLS)
def test_killed_import_continues_to_the_same_journal(swanlab_folder, tmp_path, script, kill):
    check_killed_import(script, "swanlab", file_of(swanlab_folder, "failed"), tmp_path, kill, 200)


def test_any_damage_ends_the_import_at_its_place(swanlab_folder, tmp_path):
    whole = file_of(swanlab_folder, "failed").read_bytes()
    file = tmp_path / "run-failed.swanlab"
    file.write_bytes(whole)
    import_runs("swanlab", [file], str(tmp_path / "whole"), name="a")
    expected = [row for row in lines_of(tmp_path / "whole" / "a") if row["event"] == "step"]
    for number, offset in enumerate(range(0, len(whole), max(len(whole) // 100, 1))):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        (report,) = import_runs("swanlab", [file], str(tmp_path / f"logs{number}"), name="a")
        assert report.damage, offset
        assert int(report.damage[0].where.removeprefix("byte ")) <= offset
        rows = lines_of(tmp_path / f"logs{number}" / "a") if report.num_records else []
        rows = [row for row in rows if row["event"] == "step"]
        assert rows == expected[: len(rows)]
        assert report.outcome == ("created" if report.num_records else "empty")


def test_names_in_a_log_lead_nowhere_else(swanlab_folder, tmp_path, logs):
    folder = tmp_path / "run-1"
    shutil.copytree(file_of(swanlab_folder, "named").parent, folder)
    (file,) = folder.glob("*.swanlab")
    (text,) = folder.glob("media/text/*.txt")
    text.unlink()
    text.symlink_to("/etc/passwd")
    (report,) = import_runs("swanlab", [file], str(logs))
    assert report.left_out["text"] == 1
    assert "root:" not in (logs / report.run / "metrics.jsonl").read_text()


def test_config_of_a_run_is_not_executed(swanlab_folder, tmp_path, logs):
    folder = tmp_path / "run-1"
    shutil.copytree(file_of(swanlab_folder, "failed").parent, folder)
    (folder / "files").mkdir(exist_ok=True)
    made = tmp_path / "made"
    (folder / "files" / "config.yaml").write_text(f"a: {{value: !!python/object/apply:os.mkdir [{made}]}}\n")
    (report,) = import_runs("swanlab", [folder], str(logs))
    assert "not valid YAML" in report.damage[0].reason
    assert not made.exists()


def test_run_comes_back_as_the_sink_exported_it(logs, tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path))
    sinks = [{"swanlab": {"mode": "offline", "project": "p"}}]
    options = {"git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S}
    with tachograph.init("x", log_dir=str(logs), sinks=sinks, config={"lr": 0.5}, **options) as run:
        for step in (0, 1, 2, 1, 2, 3):  # steps that go back
            run.log(train_loss=float(step), step=step)
    assert describe(logs / "x" / "swanlab") == "swanlab"
    import_runs("swanlab", [logs / "x" / "swanlab"], str(tmp_path / "again"))
    before, after = tachograph.read(logs / "x"), tachograph.read(tmp_path / "again" / "x")
    for history in (before, after):
        assert [row["global_step"] for row in history.records("step")] == [0, 1, 2, 1, 2, 3]
    assert after.config == before.config
    assert str(after.state) == "finished"


def test_diagnose_reads_a_swanlab_file(swanlab_folder):
    assert tachograph.diagnose(file_of(swanlab_folder, "failed")).signals["loss"] == "loss"
