"""`tacho import wandb`: files written by the real package in offline mode, read without it."""

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
from tests.conftest import lines_of
from tests.importers.test_import import KILLS, check_killed_import
from tests.media.recording import content_of, picture_of

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_API_KEY": ""}
SCRIPT = """
    import json, math, os, sys
    import wandb

    folder, content = sys.argv[1], json.loads(sys.argv[2])
    for run_options, rows, summary, exit_code in content:
        run = wandb.init(dir=folder, project="proj", **run_options)
        run.define_metric("val/loss", step_metric="epoch", summary="min")
        run.define_metric("los*", step_metric="clock", step_sync=False)
        for step, row in rows:
            run.log(row, step=step)
        if summary:
            run.summary.update(summary)
            run.config.update({"late": [1, {"a": 2}]})
            run.alert(title="attention", text="the loss")
            run.log({"table": wandb.Table(columns=["a"], data=[[1]]), "hist": wandb.Histogram([1, 2, 2], num_bins=4)})
        if exit_code == "killed":
            os._exit(9)
        run.finish(exit_code=exit_code)
"""
CONFIG = {"lr": 1e-3, "optimizer": {"name": "adamw", "betas": [0.9, 0.95]}, "hf_token": "opaque", "none": None}
ROWS = [
    [0, {"loss": 2.5, "count": 7, "nested": {"a": 1, "deep": {"b": -0.5}}, "is_good": True, "phase": "warm-up"}],
    [10, {"loss": math.nan, "time": 3, "large": 1e300, "list": [1, 2]}],
    [11, {"loss": -math.inf, "val/loss": 3.25, "epoch": 1, "ünïcode/名前": 4}],
    [500, {"loss": 0.1, "val/loss": 4.5, "epoch": 2, "long": "x" * 40_000}],  # crosses a block of the file
]


@pytest.fixture(scope="module")
def wandb_folder(tmp_path_factory):
    """A folder with three runs, the last of which has two attempts."""
    folder = tmp_path_factory.mktemp("project")
    named = {"id": "named", "name": "My run: 1/2", "tags": ["a", "b"], "notes": "as before", "config": CONFIG}
    again = [[step, {"loss": float(step)}] for step in range(5)]
    content = [
        [{**named, "group": "g", "job_type": "train"}, ROWS, {"best": 0.5, "by": {"split": [1, 2]}}, 0],
        [{"id": "failed"}, again, {}, 3],
        [{"id": "resumed", "resume": "allow"}, again, {}, 1],
        [{"id": "resumed", "resume": "allow"}, [[step, {"loss": -1.0}] for step in range(3, 8)], {}, "killed"],
    ]
    (folder / "log.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(folder / "log.py"), str(folder), json.dumps(content)]
    done = subprocess.run(command, env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    return folder / "wandb"


def file_of(wandb_folder, run_id):
    return next(wandb_folder.glob(f"offline-run-*/run-{run_id}.wandb"))


def test_every_value_arrives(wandb_folder, logs):
    tacho("import", "wandb", wandb_folder, "--log-dir", logs)
    history = tachograph.read(logs / "My-run-1-2")
    rows = [record for record in history.records("step") if "loss" in record]
    names = ("event", "time", "global_step")
    assert [row["global_step"] for row in rows] == [0, 10, 11, 500]
    assert repr([dict(sorted((n, row[n]) for n in row if n not in names)) for row in rows]) == repr(
        [
            {"count": 7, "is_good": True, "loss": 2.5, "nested.a": 1, "nested.deep.b": -0.5, "phase": "warm-up"},
            {"large": 1e300, "list": [1, 2], "loss": math.nan, "time_": 3},
            {"epoch": 1, "loss": -math.inf, "val/loss": 3.25, "ünïcode/名前": 4},
            {"epoch": 2, "long": "x" * 40_000, "loss": 0.1, "val/loss": 4.5},
        ]
    )
    start = history.attempts[0].start
    assert start["imported_from"]["id"] == "proj/named"
    assert {name: start[name] for name in ("name", "tags", "notes", "group", "job_type", "project")} == {
        "name": "My run: 1/2", "tags": ["a", "b"], "notes": "as before", "group": "g", "job_type": "train",
        "project": "proj",
    }  # fmt: skip
    assert history.config == {**CONFIG, "hf_token": "[masked]", "late": [1, {"a": 2}]}
    assert (history.summary["best"], history.summary["by"]) == (0.5, {"split": [1, 2]})
    assert history.summary["val/loss"] == {"min": 3.25}
    axes = {record["metric"]: record.get("step_metric") for record in history.latest("event", "define_metric")}
    assert axes == {"loss": "clock", "val/loss": "epoch"}
    (histogram,) = history.latest("event", "histogram")
    assert (histogram["tag"], histogram["counts"], histogram["edges"][-1]) == ("hist", [1, 0, 0, 2], 2)
    assert history.latest("event", "alert")[0]["title"] == "attention"
    assert str(history.state) == "finished"
    assert start["time"] <= rows[0]["time"] <= rows[-1]["time"] <= history.attempts[0].end["time"]
    shown = " ".join(tacho("show", "My-run-1-2", "--log-dir", logs, columns=400).split())
    assert "notes as before" in shown
    assert f"imported wandb: {file_of(wandb_folder, 'named')}" in shown
    assert "opaque" not in (logs / "My-run-1-2" / "metrics.jsonl").read_text()


def test_files_are_found_at_any_depth(wandb_folder, tmp_path, logs):
    deep_folder = tmp_path / "project" / "experiments" / "a" / "b" / "wandb"
    shutil.copytree(wandb_folder, deep_folder)
    shutil.copytree(wandb_folder, tmp_path / "project" / "copy" / "of" / "it" / "wandb")
    assert describe(tmp_path / "project") is None  # only if the format is named
    expected = {report.run: report.num_records for report in import_runs("wandb", [wandb_folder], str(logs / "1"))}
    for number, path in enumerate((tmp_path / "project", deep_folder.parent), 2):
        reports = import_runs("wandb", [path], str(logs / str(number)))
        assert {report.run: report.num_records for report in reports} == expected


def test_exit_code_and_attempts_arrive(wandb_folder, logs):
    reports = import_runs("wandb", [wandb_folder], str(logs))
    assert sorted(report.run for report in reports) == ["My-run-1-2", "failed", "resumed"]
    failed = tachograph.read(logs / "failed")
    assert (str(failed.state), failed.attempts[0].end["reason"]) == ("failed", "exit code 3")
    resumed = tachograph.read(logs / "resumed")
    assert [attempt.start["resumed"] for attempt in resumed.attempts] == [False, True]
    assert resumed.attempts[0].end["status"] == "failed"
    assert str(resumed.state) == "stale"  # it was killed, or still runs somewhere else
    assert list(resumed.series("loss", overlap="latest").values)[:3] == [0, 1, 2]
    before = {path: path.read_bytes() for path in logs.glob("*/metrics.jsonl")}
    assert {report.outcome for report in import_runs("wandb", [wandb_folder], str(logs))} == {"unchanged"}
    assert {path: path.read_bytes() for path in logs.glob("*/metrics.jsonl")} == before


def test_second_file_of_a_run_continues_its_import(wandb_folder, logs):
    first, second = sorted(wandb_folder.glob("offline-run-*/run-resumed.wandb"))
    assert import_runs("wandb", [first], str(logs))[0].outcome == "created"
    assert import_runs("wandb", [second.parent], str(logs))[0].outcome == "updated"
    assert [path.name for path in logs.iterdir()] == ["resumed"]
    assert len(tachograph.read(logs / "resumed").attempts) == 2


def test_package_is_not_needed(wandb_folder, logs, tmp_path, script):
    (tmp_path / "hidden").mkdir()
    for name in ("wandb", "google", "tensorboard"):
        (tmp_path / "hidden" / f"{name}.py").write_text("raise ModuleNotFoundError('as if it were not installed')")
    out = script(
        """
        import sys
        from tachograph.importers import import_runs
        print([report.outcome for report in import_runs("wandb", [sys.argv[1]], sys.argv[2])])
        """,
        wandb_folder, logs, env={"PYTHONPATH": str(tmp_path / "hidden")},
    ).ok()  # fmt: skip
    assert out == "['created', 'created', 'created']\n"


def test_import_of_a_growing_file_equals_one_of_the_whole(wandb_folder, tmp_path):
    whole = file_of(wandb_folder, "failed").read_bytes()
    file = tmp_path / "offline-run-1" / "run-failed.wandb"
    file.parent.mkdir()
    file.write_bytes(whole)
    import_runs("wandb", [file], str(tmp_path / "whole"))
    expected = (tmp_path / "whole" / "failed" / "metrics.jsonl").read_bytes()
    for number, end in enumerate(range(10, len(whole), len(whole) // 40)):
        logs = tmp_path / f"logs{number}"
        for part in (whole[:end], whole[: end + 300], whole):
            file.write_bytes(part)
            import_runs("wandb", [file], str(logs))
        assert (logs / "failed" / "metrics.jsonl").read_bytes() == expected, end


@pytest.mark.parametrize("kill", KILLS)
def test_killed_import_continues_to_the_same_journal(wandb_folder, tmp_path, script, kill):
    check_killed_import(script, "wandb", file_of(wandb_folder, "failed"), tmp_path, kill, 200)


def test_any_damage_ends_the_import_at_its_place(wandb_folder, tmp_path):
    whole = file_of(wandb_folder, "failed").read_bytes()
    file = tmp_path / "run-failed.wandb"
    file.write_bytes(whole)
    import_runs("wandb", [file], str(tmp_path / "whole"), name="a")
    expected = lines_of(tmp_path / "whole" / "a")
    for number, offset in enumerate(range(0, len(whole), len(whole) // 150)):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        (report,) = import_runs("wandb", [file], str(tmp_path / f"logs{number}"), name="a")
        assert report.damage, offset
        stopped = int(report.damage[0].where.removeprefix("byte "))
        assert stopped <= offset
        rows = lines_of(tmp_path / f"logs{number}" / "a") if report.num_records else []
        rows = [row for row in rows if row["event"] == "step"]
        assert rows == [row for row in expected if row["event"] == "step"][: len(rows)]
        assert report.outcome == ("created" if report.num_records else "empty")


def test_exported_run_is_imported(tmp_path, logs):
    folder = tmp_path / "run-20240101_000000-abc" / "files"
    folder.mkdir(parents=True)
    rows = [{"_step": 5 * n, "_timestamp": 1e9 + n, "_runtime": n, "loss": n / 2, "a": {"b": n}} for n in range(3)]
    (folder / "wandb-history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"_step": 1')
    (folder / "wandb-summary.json").write_text(json.dumps({"_step": 10, "best": 0.5, "t": {"_type": "table-file"}}))
    config = "_wandb: {value: {x: 1}}\nlr: {desc: null, value: 0.1}\nkey: {value: !!set {a}}\n"
    (folder / "config.yaml").write_text(config)
    assert describe(folder) == "wandb"
    (report,) = import_runs("wandb", [folder.parent], str(logs))
    assert [damage.where for damage in report.damage] == ["line 4"]
    history = tachograph.read(logs / "run-20240101_000000-abc")
    assert list(history.series("loss").steps) == [0, 5, 10]
    assert list(history.series("a.b").values) == [0, 1, 2]
    assert (history.config["lr"], history.summary) == (0.1, {"best": 0.5})


def test_config_of_an_export_is_not_executed(tmp_path, logs):
    (tmp_path / "wandb-summary.json").write_text('{"best": 1}')
    (tmp_path / "config.yaml").write_text(f"a: {{value: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]}}\n")
    (report,) = import_runs("wandb", [tmp_path], str(logs))
    assert "not valid YAML" in report.damage[0].reason
    assert not (tmp_path / "made").exists()
    assert tachograph.read(logs / report.run).summary == {"best": 1}


def test_diagnose_reads_a_wandb_file(wandb_folder, tmp_path):
    shutil.copy(file_of(wandb_folder, "failed"), tmp_path)
    assert tachograph.diagnose(tmp_path / "run-failed.wandb").signals["loss"] == "loss"


def test_pictures_and_pages_are_imported(tmp_path, logs, script):
    program = """
        import sys, numpy as np, wandb
        run = wandb.init(dir=sys.argv[1], project="p", id="media")
        pictures = [np.full((8, 8, 3), value, np.uint8) for value in (10, 200)]
        run.log({"one": wandb.Image(pictures[0], caption="a fox"), "loss": 1.0}, step=3)
        run.log({"several": [wandb.Image(picture, caption=f"nr {n}") for n, picture in enumerate(pictures)]}, step=4)
        run.log({"nested": {"page": wandb.Html("<b>hi</b>", inject=False)}, "lost": wandb.Image(pictures[1])}, step=5)
        run.finish()
    """
    script(program, tmp_path, env=OFFLINE).ok()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (lost,) = (folder / "files" / "media" / "images").glob("lost_*")
    lost.unlink()
    lost.symlink_to("/etc/passwd")
    (report,) = import_runs("wandb", [folder], logs)
    assert report.left_out == {
        "image: there is no file 'media/images/" + lost.name + "' beside the log, or it is too large": 1
    }
    run_folder = logs / report.run
    media = {line["name"]: line for line in lines_of(run_folder) if line["event"] == "media"}
    assert [item.get("caption") for item in media["several"]["items"]] == ["nr 0", "nr 1"]
    assert (media["one"]["global_step"], media["one"]["items"][0]["caption"]) == (3, "a fox")
    colours = [picture_of(run_folder, item).getpixel((0, 0)) for item in media["several"]["items"]]
    assert colours == [(10, 10, 10), (200, 200, 200)]
    assert content_of(run_folder, media["nested.page"]["items"][0]) == b"<b>hi</b>"
    assert "problem" in media["lost"]["items"][0]
    assert [line["loss"] for line in lines_of(run_folder) if line["event"] == "step"] == [1.0]
