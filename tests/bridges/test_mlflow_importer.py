"""`tacho import mlflow`: stores written by the real package, read without it."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import tracemalloc

import numpy as np
import pytest
from PIL import Image

import tachograph
from tachograph.importers import describe, import_runs
from tests.cli.test_cli import tacho
from tests.conftest import HANG_S, lines_of
from tests.importers.test_import import KILLS, check_killed_import
from tests.media.recording import content_of, picture_of
from tests.mlflow_database import copy_empty_database

pytestmark = [
    pytest.mark.xdist_group("mlflow"),  # which is slow to import
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),  # MLflow's own
]
TIME_MS = 1_700_000_000_000


@pytest.fixture(params=["database", "folder"])
def store(request, tmp_path, monkeypatch):
    """The path of a store, and its client."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # where MLflow puts artifacts beside a database
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    path = tmp_path / ("mlflow.db" if request.param == "database" else "mlruns")
    if request.param == "database":
        copy_empty_database(path)
    return path, MlflowClient(f"sqlite:///{path}" if request.param == "database" else path.as_uri())


def add_run(client, steps, name="lively-fox", begin=0, end=None, **options):
    from mlflow.entities import Metric, Param, RunTag

    experiment = client.get_experiment_by_name("jackets")
    experiment_id = experiment.experiment_id if experiment else client.create_experiment("jackets")
    tags = [RunTag("team", "a"), RunTag("mlflow.note.content", "a note")]
    run_id = options.get("run_id") or client.create_run(experiment_id, start_time=TIME_MS, run_name=name).info.run_id
    if "run_id" not in options:
        params = {"lr": "0.001", "depth": "2", "amp": "True", "name": "x", "version": "1.2.3", "api_key": "opaque"}
        client.log_batch(run_id, params=[Param(key, value) for key, value in params.items()], tags=tags)
    for step in range(begin, begin + steps):
        values = {"loss": 1 / (step + 1), "train/acc": math.nan if step == 1 else 0.5, "up": math.inf, "time": 1.0}
        time_ms = TIME_MS + 1_000 * step
        client.log_batch(run_id, metrics=[Metric(key, value, time_ms, step) for key, value in values.items()])
    if end:
        client.set_terminated(run_id, end, TIME_MS + 100_000)
    return run_id


def test_mlflow_runs_arrive_with_everything(store, logs, cli_import):
    path, client = store
    ids = [add_run(client, 5, end="FINISHED"), add_run(client, 2, "second", end="KILLED"), add_run(client, 1, "third")]
    client.delete_run(add_run(client, 1, "deleted"))
    reports = {report["run"]: report for report in cli_import(path)}
    assert sorted(reports) == ["lively-fox", "second", "third"]
    assert (reports["lively-fox"]["num_rows"], reports["lively-fox"]["metrics"]["loss"]) == (5, 5)
    history = tachograph.read(logs / "lively-fox")
    start = next(history.records("start"))
    assert start["imported_from"]["id"] == ids[0]
    assert (start["time"], start["project"], start["notes"]) == (TIME_MS / 1_000, "jackets", "a note")
    assert start["tags"] == ["team=a"]
    assert history.config == {
        "lr": 0.001, "depth": 2, "amp": True, "name": "x", "version": "1.2.3", "api_key": "[masked]",
    }  # fmt: skip
    loss, accuracy = history.series("loss"), history.series("train/acc")
    assert (list(loss.steps), list(loss.values)) == (list(range(5)), [1 / (step + 1) for step in range(5)])
    assert list(loss.times) == [TIME_MS / 1_000 + step for step in range(5)]
    assert math.isnan(accuracy.values[1])
    assert history.series("up").values[0] == math.inf
    assert list(history.series("time_").values) == [1.0] * 5
    assert (str(history.state), str(tachograph.read(logs / "third").state)) == ("finished", "stale")
    assert lines_of(logs / "second")[-1] == {
        "event": "end", "time": TIME_MS / 1_000 + 100, "status": "failed", "reason": "killed",
    }  # fmt: skip
    assert describe(path) == "mlflow"


@pytest.fixture
def cli_import(logs):
    return lambda path: json.loads(tacho("import", "mlflow", path, "--log-dir", logs, "--json"))


def test_import_of_a_growing_store_adds_what_is_new(store, logs, tmp_path):
    path, client = store
    run_id = add_run(client, 3)
    import_runs("mlflow", [path], str(logs))
    before = (logs / "lively-fox" / "metrics.jsonl").stat()
    (report,) = import_runs("mlflow", [path], str(logs))
    assert report.outcome == "unchanged"
    assert (logs / "lively-fox" / "metrics.jsonl").stat().st_mtime_ns == before.st_mtime_ns
    add_run(client, 3, begin=3, run_id=run_id)
    client.log_metric(run_id, "extra", 7.0, TIME_MS + 5_000, 5)  # one more value of the last step
    client.log_param(run_id, "late", "yes")
    (dry,) = import_runs("mlflow", [path], str(logs), dry_run=True)
    (report,) = import_runs("mlflow", [path], str(logs))
    assert (report.outcome, report.last_step, dry.num_rows) == ("updated", 5, report.num_rows)
    client.set_terminated(run_id, "FINISHED")
    import_runs("mlflow", [path], str(logs))
    history = tachograph.read(logs / "lively-fox")
    assert [row["global_step"] for row in history.records("step")] == list(range(6))
    assert list(history.series("extra").values) == [7.0]
    assert history.config["late"] == "yes"
    assert str(history.state) == "finished"


@pytest.mark.parametrize("kill", [KILLS[0], KILLS[4], KILLS[8]])
def test_killed_import_of_a_store_continues(store, tmp_path, script, kill):
    path, client = store
    run_id = add_run(client, 1)
    from mlflow.entities import Metric

    for begin in range(0, 600, 200):
        points = [Metric("loss", step / 3, TIME_MS + step, step) for step in range(begin, begin + 200)]
        client.log_batch(run_id, metrics=points)
    check_killed_import(script, "mlflow", path, tmp_path, kill, 5_000)


def test_system_metrics_of_mlflow_have_no_step(store, logs):
    path, client = store
    run_id = add_run(client, 1)
    client.log_metric(run_id, "system/cpu_utilization_percentage", 50.0, TIME_MS + 500, 0)
    client.log_metric(run_id, "loss", 0.25, TIME_MS + 1_000, 100)
    import_runs("mlflow", [path], str(logs))
    (system,) = tachograph.read(logs / "lively-fox").records("system")
    assert system == {"event": "system", "time": TIME_MS / 1_000 + 0.5, "cpu_utilization_percentage": 50.0}


def test_run_returns_from_mlflow_as_it_was(tmp_path, logs, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the artifacts
    sinks = [{"mlflow": {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}}]
    options = {"log_dir": str(logs), "git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S}
    with tachograph.init("x", config={"lr": 0.5, "depth": 2}, tags=["a", "b"], sinks=sinks, **options) as run:
        for step in range(20):
            run.log({"train_loss": math.nan if step == 3 else 1 / (step + 1), "up": math.inf}, step=step)
        run.log_validation({"loss": 0.25}, step=20)  # values of one step would share a time in MLflow
    import_runs("mlflow", [tmp_path], str(tmp_path / "back"))
    before, after = tachograph.read(logs / "x"), tachograph.read(tmp_path / "back" / "x")
    assert after.config == before.config
    assert (next(after.records("start"))["tags"], str(after.state)) == (["a", "b"], "finished")
    for name in ("train_loss", "up", "val_loss"):
        old, new = before.series(name), after.series(name)
        assert (list(new.steps), repr(list(new.values))) == (list(old.steps), repr(list(old.values)))
        assert list(new.times) == pytest.approx(list(old.times), abs=0.001)


def media_of(run):
    """Return the records of media by name and step."""
    records = [line for line in lines_of(run) if line["event"] == "media"]
    return {(line["name"], line.get("global_step")): line for line in records}


@pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes")  # MLflow's use of pandas
def test_media_of_mlflow_arrives(store, logs, tmp_path):
    import pandas

    path, client = store
    run_id = add_run(client, 1)
    colours = [Image.new("RGB", (300, 200), (shade, 0, 0)) for shade in range(4)]
    for number, colour in enumerate(colours[:2]):
        client.log_image(run_id, colour, key="val/fox", step=7, timestamp=TIME_MS + number, synchronous=True)
    client.log_image(run_id, np.zeros((4, 4), np.uint8), key="val/fox", step=8, synchronous=True)
    client.log_image(run_id, colours[2], "plots/confusion.png")
    frame = pandas.DataFrame({"prompt": ["a", "b"], "score": [0.5, math.nan], "picture": [colours[3], colours[3]]})
    client.log_table(run_id, frame, "eval.json")
    client.log_text(run_id, "hello", "notes/said.txt")
    client.log_text(run_id, "**bold**", "report.md")
    client.log_text(run_id, "<b>hi</b>", "page.html")
    client.log_dict(run_id, {"a": 1}, "settings.json")
    client.log_text(run_id, "flavors:", "model/MLmodel")
    client.log_text(run_id, "torch", "model/requirements.txt")
    client.set_terminated(run_id, "FINISHED")
    (report,) = import_runs("mlflow", [path], str(logs))
    assert report.left_out == {"artifact": 1, "model": 1}
    run = logs / "lively-fox"
    media = media_of(run)
    assert {name: line["kind"] for (name, _), line in media.items()} == {
        "val/fox": "image", "plots/confusion": "image", "eval": "table", "notes/said": "text", "report": "markdown",
        "page": "html",
    }  # fmt: skip
    fox = media["val/fox", 7]
    assert fox["time"] == pytest.approx(TIME_MS / 1_000, abs=0.01)
    pictures = [picture_of(run, item) for item in fox["items"]]
    assert [(each.size, each.getpixel((0, 0))) for each in pictures] == [
        ((300, 200), (0, 0, 0)), ((300, 200), (1, 0, 0)),
    ]  # fmt: skip
    assert len(media["val/fox", 8]["items"]) == 1
    (table,) = media["eval", None]["items"]
    assert (table["columns"], table["num_rows"]) == (["prompt", "score", "picture"], 2)
    assert [(row["prompt"], row["score"]) for row in table["rows"]] == [("a", 0.5), ("b", None)]
    assert picture_of(run, table["rows"][0]["picture"]).size == (300, 200)
    assert media["notes/said", None]["items"][0]["text"] == "hello"
    assert media["report", None]["items"][0]["text"] == "**bold**"
    assert content_of(run, media["page", None]["items"][0]) == b"<b>hi</b>"
    assert not [item for line in media.values() for item in line["items"] if "problem" in item]
    assert lines_of(run)[-1]["event"] == "end"

    (again,) = import_runs("mlflow", [path], str(logs))
    assert again.outcome == "unchanged"
    client.log_image(run_id, colours[3], key="val/fox", step=9, synchronous=True)
    add_run(client, 1, begin=1, run_id=run_id)
    (more,) = import_runs("mlflow", [path], str(logs))
    assert more.outcome == "updated"
    assert {step for name, step in media_of(run) if name == "val/fox"} == {7, 8, 9}
    import_runs("mlflow", [path], str(tmp_path / "other"))
    assert lines_of(tmp_path / "other" / "lively-fox")[1:] == lines_of(run)[1:]  # as one import of the whole log


def test_pictures_of_older_versions_of_mlflow_arrive(tmp_path, logs):
    folder = tmp_path / "mlruns" / "7" / "a"
    images = folder / "artifacts" / "images"
    images.mkdir(parents=True)
    (folder / "meta.yaml").write_text("artifact_uri: s3://bucket/a\nlifecycle_stage: active\nrun_id: a\nrun_name: a\n")
    label = f"val#fox%step%3%timestamp%{TIME_MS}%01234567-89ab-cdef-0123-456789abcdef"
    Image.new("RGB", (8, 8)).save(images / f"{label}.png")
    Image.new("RGB", (4, 4)).save(images / f"{label}%compressed.webp")
    other = label.replace("%step%3%", "%step%4%")
    Image.new("RGB", (4, 4)).save(images / f"{other}%compressed.webp")  # the large one was deleted
    import_runs("mlflow", [tmp_path], str(logs))
    media = media_of(logs / "a")
    assert {place: [item["width"] for item in line["items"]] for place, line in media.items()} == {
        ("val/fox", 3): [8], ("val/fox", 4): [4],
    }  # fmt: skip


def test_artifacts_outside_the_log_are_not_read(tmp_path, logs, monkeypatch):
    from mlflow import MlflowClient

    (tmp_path / "secret" / "artifacts").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "secret" / "artifacts" / "a.png")
    store = tmp_path / "store"
    store.mkdir()
    monkeypatch.chdir(store)
    copy_empty_database(store / "mlflow.db")
    client = MlflowClient(f"sqlite:///{store}/mlflow.db")
    run_id = add_run(client, 1)
    client.log_image(run_id, Image.new("RGB", (4, 4)), key="inside", synchronous=True)
    (folder,) = store.rglob(f"{run_id}/artifacts")
    os.symlink(tmp_path / "secret" / "artifacts" / "a.png", folder / "link.png")
    os.symlink(tmp_path / "secret" / "artifacts", folder / "linked")
    table = {"columns": ["p"], "data": [[{"type": "image", "filepath": "../../../../../secret/artifacts/a.png"}]]}
    client.log_dict(run_id, table, "table.json")
    client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([{"path": "table.json", "type": "table"}]))
    import_runs("mlflow", [store], str(logs))
    media = media_of(logs / "lively-fox")
    assert {name for name, _ in media} == {"inside", "link", "table"}
    assert "there is no file" in media["link", None]["items"][0]["problem"]
    assert "there is no file" in media["table", None]["items"][0]["rows"][0]["p"]
    places = ["s3://bucket/a", str(tmp_path / "secret" / "artifacts"), "../secret/artifacts", ".", "a\0b", "file:///x"]
    for number, place in enumerate(places):
        with sqlite3.connect(store / "mlflow.db") as database:
            database.execute("UPDATE runs SET artifact_uri = ?, experiment_id = 'gone'", (place,))
        database.close()
        (report,) = import_runs("mlflow", [store], str(tmp_path / f"logs{number}"))
        assert report.left_out == {"artifacts outside the folder of the log": 1}, place
        assert media_of(tmp_path / f"logs{number}" / report.run) == {}, place


def test_media_returns_from_mlflow_as_it_was(tmp_path, logs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sinks = [{"mlflow": {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "media": True}}]
    options = {"log_dir": str(logs), "git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S}
    rows = [{"prompt": "a", "score": 0.5, "picture": tachograph.Image(np.full((4, 4, 3), 9, np.uint8))}]
    with tachograph.init("x", sinks=sinks, **options) as run:
        for step in (5, 10):
            pixels = np.full((300, 200, 3), step, np.uint8)
            run.log(
                {"samples": tachograph.Image(pixels, lossless=True), "eval": tachograph.Table(rows=rows)}, step=step
            )
        run.log({"note": [tachograph.Text("a"), tachograph.Text("b")], "page": tachograph.Html("<b>hi</b>")}, step=10)
    import_runs("mlflow", [tmp_path], str(tmp_path / "back"))
    before, after = media_of(logs / "x"), media_of(tmp_path / "back" / "x")
    assert after.keys() == before.keys()
    for place, line in before.items():
        other = after[place]
        assert (other["kind"], len(other["items"])) == (line["kind"], len(line["items"]))
        for item, copy in zip(line["items"], other["items"], strict=True):
            assert "problem" not in copy
            assert {name: copy.get(name) for name in ("text", "columns")} == {
                name: item.get(name) for name in ("text", "columns")
            }
            assert [row["score"] for row in copy.get("rows", [])] == [row["score"] for row in item.get("rows", [])]
    for step in (5, 10):
        (old,), (new,) = before["samples", step]["items"], after["samples", step]["items"]
        pictures = [picture_of(folder / "x", item) for folder, item in ((logs, old), (tmp_path / "back", new))]
        assert pictures[0].tobytes() == pictures[1].tobytes()


def test_memory_does_not_grow_with_the_number_of_points(tmp_path):
    from mlflow import MlflowClient

    path = tmp_path / "mlflow.db"
    copy_empty_database(path)
    run_id = add_run(MlflowClient(f"sqlite:///{path}"), 1)

    def peak_bytes(num_steps):
        rows = ((f"m{n}", n / 3, TIME_MS + step, run_id, step, 0) for step in range(1, num_steps) for n in range(5))
        with sqlite3.connect(path) as database:
            database.execute("DELETE FROM metrics")
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.close()
        tracemalloc.start()
        (report,) = import_runs("mlflow", [path], str(tmp_path / str(num_steps)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.num_rows == num_steps - 1
        return peak

    assert peak_bytes(3_000) < 2 * peak_bytes(300) + (1 << 19)


def test_damaged_metric_file_is_imported_up_to_the_damage(tmp_path, logs, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_id = add_run(MlflowClient((tmp_path / "mlruns").as_uri()), 4)
    (file,) = tmp_path.glob(f"mlruns/*/{run_id}/metrics/loss")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"\x00garbage\n", lines[2], lines[3][:-3]]))  # the last line is torn
    (report,) = import_runs("mlflow", [tmp_path], str(logs))
    assert [(item.path, item.where) for item in report.damage] == [(str(file), f"byte {sum(map(len, lines[:2]))}")]
    assert report.metrics["loss"] == 3


def test_damaged_database_is_imported_up_to_the_damage(tmp_path, logs):
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run_id = add_run(client, 1)
    for begin in range(0, 6_000, 1_000):
        points = [Metric("loss", step / 3, TIME_MS + step, step) for step in range(begin, begin + 1_000)]
        client.log_batch(run_id, metrics=points)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        (page_size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    data = bytearray((tmp_path / "mlflow.db").read_bytes())
    # Overwrite the page of the table, not of an index, that has a row in the middle.
    at = data.index(b"loss" + struct.pack(">d", 3_001 / 3)) // page_size * page_size
    data[at : at + page_size] = b"\xff" * page_size
    (tmp_path / "mlflow.db").write_bytes(data)
    (report,) = import_runs("mlflow", [tmp_path / "mlflow.db"], str(logs))
    assert report.damage
    assert 0 < report.metrics["loss"] < 6_001
    assert report.damage[0].where.startswith("after row ")


def test_database_that_was_rewritten_is_not_mixed(tmp_path, logs):
    from mlflow import MlflowClient

    run_id = add_run(MlflowClient(f"sqlite:///{tmp_path}/mlflow.db"), 5)
    import_runs("mlflow", [tmp_path], str(logs))
    before = (logs / "lively-fox" / "metrics.jsonl").read_bytes()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("DELETE FROM metrics WHERE run_uuid = ? AND step < 4", (run_id,))
    database.close()
    (report,) = import_runs("mlflow", [tmp_path], str(logs))
    assert "has changed since it was imported" in report.error
    assert (logs / "lively-fox" / "metrics.jsonl").read_bytes() == before


def test_runs_without_metrics_are_imported(tmp_path, logs):
    """Git and archives keep no empty folder, so such a run may have nothing but its facts."""
    for name, content in (("only-facts", {}), ("with-params", {"params/lr": "0.1"})):
        folder = tmp_path / "mlruns" / "7" / name
        folder.mkdir(parents=True)
        (folder / "meta.yaml").write_text(
            f"artifact_uri: ./artifacts\nlifecycle_stage: active\nrun_id: {name}\nrun_name: {name}\n"
            "start_time: 1700000000000\nend_time: 1700000001000\nstatus: 3\n"
        )
        for path, text in content.items():
            (folder / path).parent.mkdir()
            (folder / path).write_text(text)
    (tmp_path / "mlruns" / "7" / "meta.yaml").write_text("artifact_location: x\nexperiment_id: '7'\nname: jackets\n")
    other_tool = tmp_path / "mlruns" / "7" / "other"
    other_tool.mkdir()
    (other_tool / "meta.yaml").write_text("run_id: of another tool\n")
    reports = import_runs("mlflow", [tmp_path / "mlruns"], str(logs))
    assert [(report.run, report.outcome) for report in reports] == [
        ("only-facts", "created"),
        ("with-params", "created"),
    ]
    starts = [lines_of(logs / name)[0] for name in ("only-facts", "with-params")]
    assert [start.get("config") for start in starts] == [None, {"lr": 0.1}]
