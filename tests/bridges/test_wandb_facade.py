"""`tachograph.wandb`, next to the real package."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import math
import os
import pickle
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import tachograph
from tachograph import wandb
from tachograph.catalog import Catalog
from tachograph.cli._main import main
from tachograph.journal import RunFolder
from tachograph.store import MetricAxis, StoredRun
from tests.conftest import HANG_S, lines_of
from tests.remote.conftest import team  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, logs, tmp_path):
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    monkeypatch.setenv("TACHO_GIT", "false")
    monkeypatch.setenv("TACHO_SYSTEM_INTERVAL_S", "0")
    monkeypatch.chdir(tmp_path)
    yield
    wandb.finish()


def rows(folder):
    """Return step and values of the step records."""
    ours = {"event", "time", "sec_per_step", "cpu_mem_rss_mb", "nan_inf_detected", "global_step"}
    return [
        (record["global_step"], {name: value for name, value in record.items() if name not in ours})
        for record in lines_of(folder)
        if record["event"] == "step"
    ]


def events(folder, name):
    return [record for record in lines_of(folder) if record["event"] == "event" and record["name"] == name]


# Side by side --------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, math, sys
import numpy as np
if sys.argv[1] == "ours":
    import tachograph.wandb as wandb
else:
    import wandb
seen = []
def note(what, value):
    seen.append([what, json.loads(json.dumps(value, default=str))])
def attempt(what, call):
    try:
        note(what, ["returned", call()])
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        known = [kind for kind in ("KeyError", "AttributeError", "Error", "ValueError", "TypeError") if kind in kinds]
        note(what, ["raised", "Error" if "Error" in known else known])

note("before", [wandb.run is None])
attempt("log before init", lambda: wandb.log({"a": 1}))
attempt("config before init", lambda: wandb.config.lr)
attempt("summary before init", lambda: wandb.summary["a"])
attempt("define before init", lambda: wandb.define_metric("a"))
attempt("finish before init", lambda: wandb.finish())

config = {"lr": 0.1, "nested": {"depth": 2}, "dims": (1, 2), "flag": True, "none": None, "-dash": 1}
config["np"] = np.float32(0.5)
run = wandb.init(project="jackets", name="greyjacket", group="g", job_type="train", tags=["a", "b"], notes="n",
                 config=config, id="abc12345", mode="offline")
note("attributes", [run.id, run.project, run.group, run.job_type, list(run.tags), run.notes, run.step, run.offline,
                    run.disabled, run.sweep_id, run.resumed])
note("same run", [wandb.run is run, wandb.init() is run])
c = wandb.config
note("config", [c.lr, c["lr"], c.get("x", 3), "lr" in c, sorted(c.keys()), c.nested, c.dims, dict(c)["flag"], c.np])
attempt("missing attribute", lambda: c.missing)
attempt("missing item", lambda: c["missing"])
attempt("nested attribute", lambda: c.nested.depth)
attempt("change", lambda: setattr(c, "lr", 0.2))
attempt("change item", lambda: c.__setitem__("lr", 0.3))
attempt("same value", lambda: setattr(c, "lr", 0.1))
attempt("allowed change", lambda: c.update({"lr": 0.4}, allow_val_change=True))
attempt("new key", lambda: setattr(c, "epochs", 3))
attempt("defaults", lambda: c.setdefaults({"epochs": 9, "seed": 1}))
attempt("update", lambda: c.update({"seed": 1, "more": [1, 2]}))
note("config after", [c.lr, c.epochs, c.seed, c.more])

run.log({"loss": 1.0, "n": {"a": 1, "b": {"c": 2}}})
note("step", run.step)
run.log({"held": 1}, commit=False)
run.log({"held2": 2}, commit=False)
note("step", run.step)
run.log({"loss": 0.9})
note("step", run.step)
wandb.log({"at": 1}, step=10)
wandb.log({"at2": 2}, step=10)
note("step", run.step)
wandb.log({"joins": 3})
note("step", run.step)
wandb.log({"done": 4}, step=20, commit=True)
note("step", run.step)
wandb.log({"np": np.float32(1.5), "zero_d": np.array(2.5), "list": [1, 2, 3], "nan": math.nan, "none": None,
           "text": "x", "flag": True, "tuple": (1, 2)})
wandb.log({})
note("step", run.step)

s = run.summary
note("summary", [s["loss"], s.get("missing"), s["text"], s["n"]["a"], s["joins"]])
attempt("missing summary", lambda: s["missing"])
attempt("missing summary attribute", lambda: s.missing)
s["best"] = 0.5
s.update({"also": 1})
note("set", [s["best"], s.also])
run.define_metric("acc", summary="max")
run.define_metric("err", summary="min,mean")
run.define_metric("eval/*", step_metric="epoch")
for value in (0.1, 0.7, 0.3):
    run.log({"acc": value, "err": value, "epoch": int(10 * value)})
run.log({"eval/score": 5})
note("aggregates", [dict(s["acc"]), {key: round(value, 6) for key, value in dict(s["err"]).items()}])
attempt("bad summary", lambda: run.define_metric("x", summary="average"))
attempt("bad glob", lambda: run.define_metric("x*y"))
attempt("bad name", lambda: run.define_metric(5))
attempt("unknown attribute", lambda: setattr(run, "anything", 1))

t = wandb.Table(columns=["a", "b"], data=[[1, "x"]])
t.add_data(2, "y")
t.add_column("c", [True, False])
note("table", [t.columns, t.data, t.get_column("a")])
attempt("short row", lambda: t.add_data(1))
attempt("short column", lambda: t.add_column("d", [1]))
h = wandb.Histogram(np_histogram=([1, 2], [0.0, 1.0, 2.0]))
note("histogram", [list(h.histogram), list(h.bins)])
attempt("bad histogram", lambda: wandb.Histogram(np_histogram=([1, 2], [0.0])))
run.finish()
note("after", [wandb.run is None])
attempt("log after finish", lambda: wandb.log({"a": 1}))
attempt("second finish", lambda: (run.finish(), wandb.finish())[0])

off = wandb.init(mode="disabled", config={"lr": 1})
off.log({"a": 1})
note("disabled", [off.disabled, off.summary["a"], wandb.config.lr])
off.finish()
with open(sys.argv[2], "w") as file:
    json.dump(seen, file)
"""

OTHER_EXCEPTIONS = {"short column", "unknown attribute"}
"""Where W&B raises AssertionError and Exception."""


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory):
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("side")
    results = []
    for which in ("theirs", "ours"):
        (folder / which).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, which, str(folder / f"{which}.json")],
            cwd=folder / which, capture_output=True, text=True, timeout=HANG_S, check=False,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TACHO_"))},
                "WANDB_MODE": "offline", "WANDB_SILENT": "true", "TACHO_GIT": "false",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        results.append(json.loads((folder / f"{which}.json").read_text()))
    return folder, *results


def test_same_script_sees_the_same_answers(side_by_side):
    _, theirs, ours = side_by_side
    assert [name for name, _ in theirs] == [name for name, _ in ours]
    different = {
        name: (wanted, got)
        for (name, wanted), (_, got) in zip(theirs, ours, strict=True)
        if wanted != got and (name not in OTHER_EXCEPTIONS or wanted[0] != got[0])
    }
    assert different == {}


def test_same_script_records_the_same_rows(side_by_side):
    folder, *_ = side_by_side
    recorded: dict[int, dict] = {}
    for step, values in rows(folder / "ours" / "logs" / "greyjacket"):
        recorded.setdefault(step, {}).update(values)
    assert {step: values for step, values in recorded.items() if step < 22} == {
        0: {"loss": 1.0, "n/a": 1, "n/b/c": 2},
        1: {"held": 1, "held2": 2, "loss": 0.9},
        10: {"at": 1, "at2": 2, "joins": 3},
        20: {"done": 4},
        21: {
            "np": 1.5, "zero_d": 2.5, "list": [1, 2, 3], "nan": "NaN", "none": None, "text": "x", "flag": True,
            "tuple": [1, 2],
        },
    }  # fmt: skip
    last = max(recorded)
    assert recorded[last] == {"eval/score": 5, "epoch": 3}  # the step metric is inserted
    history = tachograph.read(folder / "ours" / "logs" / "greyjacket")
    assert history.config["lr"] == 0.4
    assert history.summary == {
        "best": 0.5, "also": 1, "acc": {"max": 0.7}, "err": {"min": 0.1, "mean": pytest.approx(1.1 / 3)},
    }  # fmt: skip
    assert history.facts["project"] == "jackets"
    assert not (folder / "ours" / "wandb").exists()


def test_every_argument_of_init_and_every_run_name_exists():
    theirs = pytest.importorskip("wandb")
    ours = inspect.signature(wandb.init).parameters
    assert set(inspect.signature(theirs.init).parameters) <= set(ours)
    public = {name for name in dir(theirs.Run) if not name.startswith("_")} - {"sync_dir"}
    assert public <= set(dir(wandb.Run))
    for name in ("log", "define_metric", "save", "alert"):
        wanted = inspect.signature(getattr(theirs.Run, name)).parameters
        assert list(wanted)[:3] == list(inspect.signature(getattr(wandb.Run, name)).parameters)[:3], name


# What is recorded ----------------------------------------------------------------------------------------------------


def test_run_is_recorded_without_wandb_and_without_network(logs, script):
    source = """
        import sys
        import tachograph.wandb as wandb
        wandb.login(key="0123456789abcdef0123456789abcdef01234567")
        run = wandb.init(project="p")
        for step in range(10):
            wandb.log({"loss": 1 / (step + 1)})
        print(sorted(name for name in ("wandb", "numpy", "socket_", "requests") if name in sys.modules), run.name)
        """
    out = script(source, env={"WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567", "WANDB_SILENT": "true"}).ok()
    assert out.startswith("[] ")
    name = out.split()[-1]
    assert len(name.split("-")) == 3
    assert [step for step, _ in rows(logs / name)] == list(range(10))
    assert str(tachograph.read(logs / name).state) == "finished"
    assert b"0123456789abcdef" not in b"".join(path.read_bytes() for path in (logs / name).rglob("*") if path.is_file())


def test_tables_histograms_and_charts_are_records(logs):
    with wandb.init(name="x") as run:
        table = wandb.Table(columns=["prompt", "score"], data=[["a", 1]])
        run.log({"samples": table, "loss": 1.0})
        table.add_data("b", wandb.Image(None))
        run.log({"samples": table})
        run.log({"weights": wandb.Histogram([1.0, 2.0, math.nan], num_bins=2), "array": np.arange(100.0)})
        run.log({"chart": wandb.plot.line(table, "prompt", "score", title="T")})
        run.log({"cm": wandb.plot.confusion_matrix(y_true=[0, 1, 1], preds=[0, 1, 0], class_names=["no", "yes"])})
        run.log({"pr": wandb.plot.pr_curve([0, 1, 1], np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))})
        run.log({"roc": wandb.plot.roc_curve([0, 1, 1], np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))})
        run.log({"series": wandb.plot.line_series([0, 1], [[1, 2], [3, 4]], keys=["a", "b"])})
    tables = [record for record in lines_of(logs / "x") if record["event"] == "completions"]
    by_name = {record["table"]: record["rows"] for record in tables[::-1]}
    assert [row["prompt"] for record in tables if record["table"] == "samples" for row in record["rows"]] == ["a", "b"]
    assert media_of(logs / "x")["cm"]["items"][0]["counts"] == [[1, 0], [1, 1]]
    assert {"pr", "roc", "series"} <= set(by_name)
    weights, array = events(logs / "x", "histogram")
    assert (weights["counts"], weights["num_not_finite"], len(array["counts"])) == ([1, 1], 1, 32)
    assert [chart["kind"] for chart in events(logs / "x", "chart")][:2] == ["line", "pr_curve"]


def media_of(folder):
    return {record["name"]: record for record in lines_of(folder) if record["event"] == "media"}


def test_cells_of_tables_are_media_or_reported(logs):
    pil = pytest.importorskip("PIL.Image")
    cells = {
        "page": wandb.Html("<b>"),
        "clip": wandb.Video(np.zeros((3, 3, 16, 16), np.uint8)),
        "sound": wandb.Audio(np.zeros(100), sample_rate=100),
        "bare": pil.new("L", (4, 4)),
        "list": [wandb.Image(np.eye(3))],
        "counts": wandb.Histogram([1.0]),
        "plain": [1, 2],
    }
    with wandb.init(name="x") as run:
        for _ in range(2):
            run.log({"all": wandb.Table(columns=list(cells), data=[list(cells.values())] * 2)})
        run.log({"texts": wandb.Table(columns=["list", "n"], data=[[[wandb.Image(np.eye(3))], 1]])})
    media = media_of(logs / "x")
    (row, _) = media["all"]["items"][0]["rows"]
    names = ("page", "clip", "sound", "bare")
    assert [row[name]["media"] for name in names] == ["html", "video", "audio", "image"]
    assert (row["list"], row["counts"]) == ("[Image]", "[Histogram]")
    (texts,) = [record for record in lines_of(logs / "x") if record["event"] == "completions"]
    assert texts["rows"][0]["list"] == "[Image]"
    errors = [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert [error["field"] for error in errors] == ["all.list", "all.counts", "texts.list"]
    assert {error["kind"] for error in errors} == {"value_not_stored"}


def test_media_in_summary_belong_to_last_step(logs):
    with wandb.init(name="x") as run:
        run.log({"loss": 1.0})
        run.log({"loss": 0.5})
        picture = wandb.Image(np.eye(3))
        run.summary["best"] = picture
        run.summary.update({"inner": {"picture": picture, "n": 1}, "rows": wandb.Table(["a"], [[1]]), "accuracy": 0.5})
        assert run.summary["best"] is picture and run.summary["accuracy"] == 0.5
    media = {name: (record["kind"], record["global_step"]) for name, record in media_of(logs / "x").items()}
    assert media == {"best": ("image", 1), "inner/picture": ("image", 1)}
    (table,) = [record for record in lines_of(logs / "x") if record["event"] == "completions"]
    assert (table["table"], table["global_step"]) == ("rows", 1)
    assert [event["summary"] for event in events(logs / "x", "summary")] == [{"inner": {"n": 1}, "accuracy": 0.5}]
    assert not [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]


def test_pictures_sounds_and_pages_are_recorded(logs, tmp_path, caplog):
    pil = pytest.importorskip("PIL.Image")
    pil.new("RGB", (4, 2)).save(tmp_path / "a.png")
    (tmp_path / "page.html").write_text("<b>page</b>")
    pixels = np.full((4, 6, 3), 255, dtype=np.uint8)
    boxes = {"truth": {"box_data": [
        {"position": {"minX": 0, "maxX": 0.5, "minY": 0.5, "maxY": 1}, "class_id": 1, "scores": {"iou": 0.5}},
        {"position": {"middle": [3, 2], "width": 2, "height": 2}, "domain": "pixel", "box_caption": "dog"},
    ], "class_labels": {1: "fox"}}}  # fmt: skip
    masks = {"prediction": {"mask_data": np.ones((4, 6), dtype=np.uint8), "class_labels": {1: "fox"}}}
    with caplog.at_level(logging.WARNING, "tachograph"), wandb.init(name="x") as run:
        picture = wandb.Image(pixels, caption="white", boxes=boxes, masks=masks)
        pixels[:] = 0  # the picture is a copy
        run.log({"picture": picture, "loss": 1.0})
        run.log({"list": [wandb.Image(str(tmp_path / "a.png")), wandb.Image(np.eye(3)), wandb.Image("missing.png")]})
        run.log({"pil": wandb.Image(pil.new("L", (3, 3))), "bare": pil.new("L", (3, 3))})
        run.log({
            "nested": {"video": wandb.Video(np.zeros((3, 3, 8, 8), dtype=np.uint8), fps=2)},
            "voice": wandb.Audio(np.zeros(80), sample_rate=8000, caption="hm"),
            "page": wandb.Html(str(tmp_path / "page.html")),
            "text": wandb.Html("<i>text</i>"),
        })  # fmt: skip
        table = wandb.Table(columns=["prompt", "picture"], data=[["a", wandb.Image(np.zeros((2, 2)))]])
        run.log({"table": table})
        table.add_data("b", wandb.Image(np.ones((2, 2))))
        run.log({"table": table, "molecule": wandb.Molecule("x"), "broken": wandb.Image(None)})
    media = media_of(logs / "x")
    (item,) = media["picture"]["items"]
    assert (media["picture"]["kind"], media["picture"]["global_step"], item["caption"]) == ("image", 0, "white")
    assert (item["width"], item["height"], item["masks"]["prediction"]["labels"]) == (6, 4, {"1": "fox"})
    assert item["boxes"] == [
        {"x": 0, "y": 2, "width": 3, "height": 2, "label": "fox", "score": 0.5},
        {"x": 2, "y": 1, "width": 2, "height": 2, "label": "dog"},
    ]
    stored_path = logs / "x" / "media" / item["sha256"][:2] / f"{item['sha256']}.{item['ext']}"
    assert np.asarray(pil.open(stored_path)).min() == 255
    assert [bool(each.get("problem")) for each in media["list"]["items"]] == [False, False, True]
    kinds = {name: record["kind"] for name, record in media.items()}
    assert (kinds["pil"], kinds["bare"]) == ("image", "image")
    assert [kinds[name] for name in ("nested/video", "voice", "page", "text")] == ["video", "audio", "html", "html"]
    tables = [record for record in lines_of(logs / "x") if record["event"] == "media" and record["kind"] == "table"]
    rows_of_tables = [record["items"][0]["rows"] for record in tables]
    assert [[row["prompt"] for row in table_rows] for table_rows in rows_of_tables] == [["a"], ["b"]]
    assert rows_of_tables[0][0]["picture"]["media"] == "image"
    (counted,) = events(logs / "x", "not_recorded")
    assert (counted["Molecule"], counted["Image"]) == (1, 1)
    assert [values for _, values in rows(logs / "x")] == [{"loss": 1.0}]


def test_points_are_recorded(logs, tmp_path):
    rows = np.arange(12.0).reshape(4, 3)
    (tmp_path / "scan.pts.json").write_text('{"type": "lidar/beta", "points": [[1, 2, 3], [4, NaN, 6]]}')
    (tmp_path / "mesh.obj").write_text("v 0 0 0")
    with wandb.init(name="x") as run:
        cloud = wandb.Object3D(rows, caption="four")
        rows[:] = 0  # the points are a copy
        lidar = {"type": "lidar/beta", "points": [[0, 1, 2, 7]], "boxes": np.array([{"corners": []}])}
        run.log({
            "cloud": cloud,
            "lidar": [wandb.Object3D(lidar), wandb.Object3D.from_point_cloud(points=[[0, 1, 2, 9, 9, 9]])],
            "file": wandb.Object3D(str(tmp_path / "scan.pts.json")),
            "mesh": wandb.Object3D.from_file(str(tmp_path / "mesh.obj")),
            "numpy": wandb.Object3D.from_numpy(np.zeros((2, 5))),
            "none": wandb.Object3D(None),
        })  # fmt: skip
    media = media_of(logs / "x")
    kinds = {name: record["kind"] for name, record in media.items()}
    assert kinds == dict.fromkeys(["cloud", "lidar", "file", "numpy"], "points") | {"mesh": "file"}
    (item,) = media["cloud"]["items"]
    assert (item["bounds"], item["caption"]) == ([[0, 1, 2], [9, 10, 11]], "four")
    category, coloured = media["lidar"]["items"]
    assert category["columns"][3:] == ["value"] and category["labels"]["7"] == "7"
    assert coloured["columns"][3:] == ["red", "green", "blue"]
    assert (media["file"]["items"][0]["num_points"], media["file"]["items"][0]["nonfinite"]) == (1, 1)
    assert media["mesh"]["items"][0]["file_name"] == "mesh.obj"
    assert "(2, 5)" in media["numpy"]["items"][0]["problem"]
    (counted,) = events(logs / "x", "not_recorded")
    assert counted["Object3D"] == 1


def test_figures_are_drawn_when_they_are_created(logs):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = pyplot.figure(figsize=(1, 1))
    with wandb.init(name="x") as run:
        picture = wandb.Image(pyplot)
        pyplot.clf()
        run.log({"picture": picture, "figure": figure, "current": pyplot})
    pyplot.close(figure)
    assert {record["kind"] for record in media_of(logs / "x").values()} == {"image"}


def test_floats_of_pictures_have_the_range_of_their_values(logs):
    pil = pytest.importorskip("PIL.Image")
    cases = {"share": ([0.0, 0.5, 1.0], [0, 128, 255]), "signed": ([-1.0, 0.0, 1.0], [0, 128, 255])}
    cases["byte"] = ([0.0, 64.0, 255.0], [0, 64, 255])
    with wandb.init(name="x") as run:
        for name, (values, _) in cases.items():
            run.log({name: wandb.Image(np.array([values]))})
    for name, (_, pixels) in cases.items():
        (item,) = media_of(logs / "x")[name]["items"]
        path = logs / "x" / "media" / item["sha256"][:2] / f"{item['sha256']}.{item['ext']}"
        assert np.asarray(pil.open(path)).tolist() == [pixels], name


@pytest.mark.parametrize("value", [5, [1], None, "text"])
def test_wrong_rows_do_not_raise(logs, value):
    with wandb.init(name="x") as run:
        run.log(value)
        run.log({"good": 1, "odd": object(), 5: 2})
        run.log({"later": 1}, step="many")
    assert rows(logs / "x") == [(0, {"good": 1, "5": 2}), (1, {"later": 1})]
    errors = [record["field"] for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert errors == ["log", "odd", "step"]


def test_global_step_in_a_row_is_its_step(logs):
    with wandb.init(name="x") as run:
        run.log({"loss": 1.0, "global_step": 500})
        run.log({"loss": 0.5, "global_step": np.int64(600)})
        run.log({"loss": 0.2, "global_step": 700}, step=3)
        assert (run.step, run.summary["global_step"]) == (3, 600)
    assert rows(logs / "x") == [(500, {"loss": 1.0}), (600, {"loss": 0.5}), (3, {"loss": 0.2, "global_step_": 700})]


def test_axes_of_metrics_are_recorded(logs):
    """By name, for each metric that a pattern means; a definition of its own comes first."""
    with wandb.init(name="axes") as run:
        run.log({"early/a": 1.0, "epoch": 3, "n": {"early": 1.0}})
        run.define_metric("epoch")
        for pattern in ("early/*", "n/*", "val/*"):
            run.define_metric(pattern, step_metric="epoch")
        run.define_metric("val/own", summary="min")
        run.log({"val/a": 1.0, "val/own": 1.0, "train/a": 1.0})
    stored = StoredRun(RunFolder(logs / "axes"))
    stored.refresh()
    step_metrics = stored.digest.step_metrics
    assert [step_metrics.get(name) for name in ("early/a", "n/early", "val/a")] == ["epoch"] * 3
    assert not step_metrics.keys() & {"epoch", "val/own", "train/a"}
    (line,), _ = stored.series("val/a", axis=MetricAxis("epoch"))
    assert (line.x, line.y) == ([3.0], [1.0])
    assert stored.series("val/a", axis=MetricAxis("unknown"))[0] == []


def test_each_new_table_is_recorded_whole(logs):
    with wandb.init(name="x") as run:
        for number in range(20):  # a new table may have the address of an old one
            run.log({"samples": wandb.Table(columns=["a"], data=[[number]])})
    tables = [record for record in lines_of(logs / "x") if record["event"] == "completions"]
    assert [row["a"] for record in tables for row in record["rows"]] == list(range(20))


@pytest.mark.xdist_group("torch")
def test_tensors_are_copied_and_free_their_graph(logs):
    torch = pytest.importorskip("torch")
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    with wandb.init(name="x") as run:
        loss = (weight * 2).sum()
        kept = weakref.ref(loss)
        run.log({"loss": loss})
        run.log({"total": total}, commit=False)
        total += 5  # after it was logged
        run.log({"other": 1})
        del loss
        assert kept() is None
        assert (run.summary["loss"], run.summary["total"]) == (6.0, 0.0)
    assert rows(logs / "x") == [(0, {"loss": 6.0}), (1, {"total": 0.0, "other": 1})]


def test_program_that_never_finishes_its_run_loses_nothing(logs, script):
    source = """
        import tachograph.wandb as wandb
        run = wandb.init(name="x")
        run.define_metric("acc", summary="max")
        run.log({"acc": 0.5})
        run.log({"held": 1}, commit=False)
        """
    script(source).ok()
    history = tachograph.read(logs / "x")
    assert (str(history.state), history.summary) == ("finished", {"acc": {"max": 0.5}})
    assert rows(logs / "x") == [(0, {"acc": 0.5}), (1, {"held": 1})]


def test_steps_that_go_back_are_kept(logs, caplog):
    with caplog.at_level(logging.WARNING, "tachograph"), wandb.init(name="x") as run:
        run.log({"a": 1}, step=100)
        run.log({"b": 2}, step=5)
        run.log({"b": 3}, step=6)
    assert rows(logs / "x") == [(100, {"a": 1}), (5, {"b": 2}), (6, {"b": 3})]
    assert len(caplog.records) == 1


def test_held_values_take_the_step_of_the_commit(logs):
    with wandb.init(name="x") as run:
        run.log({"a": 1}, commit=False)
        run.log({}, step=7, commit=True)
        run.log({"late": 1}, commit=False)
    assert rows(logs / "x") == [(7, {"a": 1}), (8, {"late": 1})]


@pytest.mark.parametrize(
    "config",
    [{"lr": 0.1}, argparse.Namespace(lr=0.1), SimpleNamespace(flag_values_dict=lambda: {"lr": 0.1}), "config.yaml"],
)
def test_config_may_be_many_things(logs, tmp_path, config):
    (tmp_path / "config.yaml").write_text("wandb_version: 1\nlr: {desc: rate, value: 0.1}\n")
    (tmp_path / "config-defaults.yaml").write_text("lr: 9\nseed: 3\n")
    with wandb.init(name="x", config=config, config_exclude_keys=["absent"]):
        assert (wandb.config.lr, wandb.config.seed) == (0.1, 3)
    assert tachograph.read(logs / "x").config == {"lr": 0.1, "seed": 3}


def test_environment_gives_defaults(logs, monkeypatch, tmp_path):
    for name, value in {"PROJECT": "p", "NAME": "from env", "TAGS": "a, b", "RUN_GROUP": "g", "DIR": "out"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    with wandb.init() as run:
        assert (run.project, run.name, run.tags, run.group) == ("p", "from env", ("a", "b"), "g")
    assert (tmp_path / "out" / "logs" / "from-env").is_dir()


def test_disabled_run_can_be_pickled():
    """A trainer that holds its logger is sent to worker processes."""
    with wandb.init(mode="disabled", config={"lr": 0.1}) as run:
        run.log({"a": 2.0})
        copy = pickle.loads(pickle.dumps(run))
    assert (copy.id, copy.config["lr"], copy.summary["a"], copy.disabled) == (run.id, 0.1, 2.0, True)
    copy.log({"a": 3.0})
    copy.finish()


def test_missing_integrations_are_explained():
    for name in ("keras", "lightning.fabric"):
        with pytest.raises(ModuleNotFoundError, match=r"use tachograph\.integrations"):
            importlib.import_module(f"tachograph.wandb.integration.{name}")


@pytest.mark.parametrize("variable", ["WANDB_MODE=disabled", "WANDB_DISABLED=true", "TACHO_MODE=disabled"])
def test_disabled_run_records_nothing(logs, monkeypatch, variable):
    monkeypatch.setenv(*variable.split("="))
    with wandb.init(config={"lr": 1}) as run:
        run.log({"a": 1})
        run.log({"a": 2}, step=5, commit=False)
        assert (run.disabled, run.summary["a"], run.config.lr, run.log_artifact("f").wait().version) == (
            True,
            2,
            1,
            "v0",
        )
        assert isinstance(run, importlib.import_module("tachograph.wandb.sdk.lib").RunDisabled)
    assert (wandb.run, logs.exists()) == (None, False)


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, {"mode": "offline"}, "local"),
        ({}, {"mode": "online"}, "local"),
        ({"WANDB_MODE": "online"}, {}, "local"),
        ({"TACHO_SERVER": "https://tacho.example.org"}, {"mode": "offline"}, "offline"),
        ({"TACHO_SERVER": "https://tacho.example.org", "WANDB_MODE": "dryrun"}, {}, "offline"),
        ({}, {"mode": "offline", "config": {"telemetry": {"server": "https://tacho.example.org"}}}, "offline"),
        ({"TACHO_SERVER": "https://tacho.example.org", "TACHO_MODE": "local"}, {"mode": "offline"}, "local"),
        ({"TACHO_MODE": "offline"}, {"mode": "online"}, "offline"),
    ],
)
def test_offline_run_is_not_sent(logs, monkeypatch, capsys, environment, arguments, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with wandb.init(name="x", **arguments):
        wandb.log({"a": 1})
    assert (logs / "x" / ".tacho" / "destination.json").exists() is (expected == "offline")
    printed = capsys.readouterr().out
    assert "[telemetry] wandb calls are recorded here; nothing is sent to W&B\n" in printed
    assert ("tacho sync" in printed) is (expected == "offline")


def test_online_run_is_sent_to_configured_server(logs, monkeypatch, team):  # noqa: F811
    monkeypatch.setenv("TACHO_SERVER", team.url)
    monkeypatch.setenv("TACHO_API_KEY", team.token("write"))
    with wandb.init(name="x", mode="online"):
        wandb.log({"a": 1})
    (copy,) = team.data_dir.glob("*/x/metrics.jsonl")
    assert copy.read_bytes() == (logs / "x" / "metrics.jsonl").read_bytes()


def test_resume_finds_runs_by_id(logs, caplog):
    with pytest.raises(wandb.UsageError, match="no run with the id 'abc'"):
        wandb.init(id="abc", resume="must")
    with wandb.init(name="x", id="abc", resume="allow") as run:
        run.log({"a": 1})
        assert not run.resumed
    with wandb.init(id="abc", resume="must") as run:
        assert (run.resumed, run.id, run.step) == (True, "abc", 1)
        run.log({"a": 2})
    assert rows(logs / "x") == [(0, {"a": 1}), (1, {"a": 2})]
    with pytest.raises(wandb.UsageError, match="has the id"):
        wandb.init(id="abc", resume="never")
    with caplog.at_level(logging.WARNING, "tachograph"), wandb.init(name="y", id="abc"):
        pass
    assert "there is a run with the id 'abc'" in caplog.text
    with pytest.raises(wandb.UsageError, match="expected one of allow"):
        wandb.init(id="abc", resume="sometimes")


def test_auto_resume_continues_a_run_that_failed(logs):
    for expected in (0, 1):
        with pytest.raises(RuntimeError), wandb.init(name="x", resume="auto") as run:
            assert run.step == expected
            run.log({"a": 1})
            raise RuntimeError("stop")
    assert len(tachograph.read(logs / "x").attempts) == 2


def test_second_init_follows_reinit(logs):
    first = wandb.init(name="a")
    assert wandb.init(name="b", config={"lr": 1}) is first
    second = wandb.init(name="b", reinit=True)
    assert (second is not first, first._is_finished, wandb.run is second) == (True, True, True)
    third = wandb.init(name="c", reinit="create_new")
    assert not second._is_finished
    third.finish()
    assert wandb.run is second
    second.finish()
    assert sorted(path.name for path in logs.iterdir()) == ["a", "b", "c"]


def test_facade_joins_a_run_of_ours(logs):
    with tachograph.init("mine", config={"lr": 1}) as run:
        with wandb.init(name="other", config={"lr": 1, "more": 2}) as joined:
            joined.log({"loss": 1.0})
        assert (run.status, wandb.run) == ("running", None)
    assert [path.name for path in logs.iterdir()] == ["mine"]
    assert tachograph.read(logs / "mine").config == {"lr": 1, "more": 2}


def test_exit_code_and_exception_fail_the_run(logs):
    wandb.init(name="a")
    wandb.finish(exit_code=3)
    with pytest.raises(ValueError), wandb.init(name="b"):
        raise ValueError("bad")
    assert [str(tachograph.read(logs / name).state) for name in "ab"] == ["failed", "failed"]


def test_alert_is_recorded_once_per_interval(logs):
    with wandb.init(name="x") as run:
        for _ in range(3):
            run.alert("Low accuracy", "below 0.1", level=wandb.AlertLevel.ERROR, wait_duration=300)
        run.alert("Other", level="WARN")
    alerts = tachograph.read(logs / "x").alerts
    assert [(alert.title, alert.severity) for alert in alerts] == [("Low accuracy", "critical"), ("Other", "warning")]


def test_saved_files_are_links_in_the_run_folder(logs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_text("weights")
    with wandb.init(name="x") as run:
        assert run.save("out/*.bin") == [str(logs / "x" / "files" / "model.bin")]
        assert run.save("out/model.bin", base_path=".") == [str(logs / "x" / "files" / "out" / "model.bin")]
        assert run.save("../../outside", base_path=".") == []
        run.log_artifact("out/model.bin", name="m", type="model", aliases=["best"])
    assert (logs / "x" / "files" / "model.bin").read_text() == "weights"
    (artifact,) = events(logs / "x", "artifact")
    fields = ("artifact", "version", "type", "aliases", "size_bytes")
    assert [artifact[name] for name in fields] == ["m", "v0", "model", ["latest", "best"], 7]


@pytest.mark.parametrize("name", ["sweep", "agent", "sklearn", "attach"])
def test_what_is_missing_says_so(name):
    assert not hasattr(wandb, name)
    with pytest.raises(wandb.Error, match=f"wandb.{name} is not available here"):
        getattr(wandb, name)


def test_unsupported_arguments_say_so(logs):
    with pytest.raises(wandb.Error, match="cannot be forked"):
        wandb.init(fork_from="abc?_step=3")
    with pytest.raises(wandb.UsageError, match="mode='ofline'"):
        wandb.init(mode="ofline")
    with wandb.init(name="x") as run:
        with pytest.raises(wandb.CommError, match="artifact 'model:latest' not found"):
            run.use_artifact("model:latest")
        with pytest.raises(wandb.Error, match="files are not stored"):
            run.restore("model.bin")


def test_places_that_code_imports_from_exist():
    for name in ("errors.CommError", "sdk.wandb_run.Run", "sdk.lib.RunDisabled", "sdk.lib.disabled.RunDisabled",
                 "wandb_run.Run", "data_types.Image", "util.generate_id", "sdk.lib.runid.generate_id",
                 "sdk.data_types.video.Video", "env.API_KEY"):  # fmt: skip
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(f"tachograph.wandb.{module}"), attribute) is not None
    assert len(wandb.util.generate_id()) == 8
    assert importlib.import_module("packaging.version").Version(wandb.__version__).minor > 12
    assert {"log", "config", "run", "summary"} <= set(dir(wandb))


def test_function_taken_before_init_uses_the_current_run(logs):
    log = wandb.log
    with wandb.init(name="x"):
        log({"a": 1})
    with pytest.raises(wandb.Error, match="call wandb.init"):
        log({"a": 1})
    assert rows(logs / "x") == [(0, {"a": 1})]


@pytest.mark.xdist_group("torch")
def test_sync_tensorboard_records_the_writer(logs, script):
    pytest.importorskip("torch")
    source = """
        import torch
        import tachograph.wandb as wandb
        wandb.init(project="p", name="x", sync_tensorboard=True, monitor_gym=True, save_code=True, config={"seed": 1})
        from torch.utils.tensorboard import SummaryWriter  # after `init`
        writer = SummaryWriter("runs/x")
        for step in (0, 10, 20):
            writer.add_scalar("losses/value", 1.0 / (step + 1), step)
        writer.add_scalars("rates", {"a": 1.0, "b": 2.0}, global_step=20)
        writer.add_text("note", text_string="all good")
        writer.add_histogram("weights", torch.arange(4.0), 20)
        writer.close()
        wandb.finish()
        SummaryWriter("runs/y").add_scalar("after", 1.0, 0)
        wandb.init(project="p", name="again", sync_tensorboard=True)
        SummaryWriter("runs/z").add_scalar("second", 1.0, 3)
        wandb.finish()
        """
    code, _out, err = script(textwrap.dedent(source), preload="torch").wait()
    assert (code, "no effect here: monitor_gym, save_code" in err) == (0, True), err
    expected = [(step, ["losses/value"]) for step in (0, 10, 20)] + [(20, ["rates/a", "rates/b"])]
    assert [(step, list(values)) for step, values in rows(logs / "x")] == expected
    assert [event["text"] for event in events(logs / "x", "text")] == ["all good"]
    assert [sum(event["counts"]) for event in events(logs / "x", "histogram")] == [4]
    assert [(step, list(values)) for step, values in rows(logs / "again")] == [(3, ["second"])]


def test_notes_and_names_may_change(logs):
    with wandb.init(name="x", settings=wandb.Settings(run_notes="first", silent=True)) as run:
        assert run.notes == "first"
        run.notes, run.tags, run.name = "second", ("a",), "renamed"
        assert (run.notes, run.tags, run.name, run.project_name(), run.get_url()) == (
            "second", ("a",), "renamed", "uncategorized", str(logs / "x"),
        )  # fmt: skip
        run.watch(object())
        run.log_code(".")
        run.mark_preempting()
    for is_full in (False, True):
        (row,) = Catalog(str(logs)).rows(is_full=is_full)
        assert [row.get(field) for field in ("display_name", "tags", "note")] == ["renamed", ["a"], "second"]
    shown = CliRunner().invoke(main, ["show", "x", "--log-dir", str(logs)]).output
    assert all(text in shown for text in ("renamed", "second")), shown
    assert wandb.Api().run("x").notes == "second"


def test_keys_that_are_no_texts_become_texts(logs):
    with wandb.init(name="x") as run:
        run.log({1: 2.0, "loss": 3.0})
        run.define_metric("*", step_metric="epoch", summary="min")
        run.log({1: 2.0, "loss": 3.0, "epoch": 1, None: {2: 1.0}})
        run.log({2: 4.0}, commit=False)
        run.log({(1, 2): 5.0})
    expected = [{"1": 2.0, "loss": 3.0}, {"1": 2.0, "loss": 3.0, "epoch": 1, "None/2": 1.0},
                {"2": 4.0, "(1, 2)": 5.0, "epoch": 1}]  # fmt: skip
    assert [values for _, values in rows(logs / "x")] == expected


def test_artifacts_are_found_by_version_and_alias(logs, tmp_path):
    for number, aliases in enumerate([["best"], None, "newest"]):
        path = tmp_path / "model.bin"  # the same path: the content is copied when it is added
        path.write_text(str(number))
        with wandb.init(name=f"train-{number}") as run:
            artifact = wandb.Artifact("net", type="model", metadata={"depth": number})
            artifact.add_file(path, name="weights/net.bin")
            path.write_text("changed")
            assert (artifact.state, artifact.name, artifact.is_draft(), artifact.size) == ("PENDING", "net", True, 1)
            with pytest.raises(AttributeError, match="prior to logging"):
                _ = artifact.version
            assert run.log_artifact(artifact, aliases=aliases) is artifact
            artifact.wait(timeout=HANG_S)
            assert (artifact.version, artifact.name, artifact.state) == (f"v{number}", f"net:v{number}", "COMMITTED")
            with pytest.raises(AttributeError, match="finalized"):
                artifact.add_file(path)
            assert run.use_artifact("net:latest").version == f"v{number}"
    with wandb.init(name="evaluate") as run:
        expected = {"net": 2, "net:latest": 2, "net:v0": 0, "net:best": 0, "net:newest": 2, "me/p/net:v1": 1}
        for name, number in expected.items():
            used = run.use_artifact(name, type="model")
            assert (used.version, used.metadata, used.type) == (f"v{number}", {"depth": number}, "model"), name
            assert Path(used.download(), "weights", "net.bin").read_text() == str(number)
            assert used.download().endswith(f"artifacts/net:v{number}")
            used.verify()
        assert Path(run.use_model("net:v1")).read_text() == "1"
        assert run.use_artifact(used) is used
        assert used.get_path("weights/net.bin").download(tmp_path / "one") == str(
            tmp_path / "one" / "weights" / "net.bin"
        )
        assert ([file.name for file in used.files()], used.logged_by().name) == (["weights/net.bin"], "train-1")
        for name, error, text in [
            ("net:v3", wandb.CommError, "'net:v3' not found"),
            ("nett", wandb.CommError, "did you mean 'net'"),
        ]:
            with pytest.raises(error, match=text):
                run.use_artifact(name)
        with pytest.raises(ValueError, match="does not match type model"):
            run.use_artifact("net", type="dataset")
        with pytest.raises(KeyError, match="not contained"):
            used.get_path("net.bin")
        (tmp_path / "artifacts" / "net:v1" / "more").write_text("")
        with pytest.raises(ValueError, match="not a member"):
            used.verify()
    assert [event["version"] for event in events(logs / "evaluate", "artifact_used")][:3] == ["v2", "v2", "v0"]
    api = wandb.Api()
    assert api.artifact("net:best").version == "v0" and not api.artifact_exists("net:v7")
    assert [artifact.version for artifact in api.artifacts("model", "net")] == ["v2", "v1", "v0"]
    assert [run.name for run in api.artifact("net:v0").used_by()] == ["evaluate", "train-0"]
    assert [artifact.name for artifact in api.run("train-2").logged_artifacts()] == ["net:v2"]
    assert {artifact.name for artifact in api.run("evaluate").used_artifacts()} == {"net:v0", "net:v1", "net:v2"}


def test_artifact_of_written_files_folders_tables_and_links(logs, tmp_path):
    (tmp_path / "data" / "part").mkdir(parents=True)
    (tmp_path / "data" / "part" / "b.txt").write_text("b")
    with wandb.init(name="x") as run:
        artifact = wandb.Artifact("data", type="dataset")
        with artifact.new_file("a.txt") as file:
            file.write("ä")
        with artifact.new_file("a.bin", mode="wb") as file:
            file.write(b"1")
        with pytest.raises(ValueError, match="already exists"), artifact.new_file("a.txt"):
            pass
        with pytest.raises(RuntimeError), artifact.new_file("broken"):
            raise RuntimeError
        artifact.add_dir(tmp_path / "data", name="folder")
        artifact.add_reference("s3://bucket/c.bin")
        artifact.add_reference(f"file://{tmp_path}/data/part/b.txt", name="here.txt")
        artifact.add(wandb.Table(columns=["a"], data=[[1], [float("nan")]]), "rows")
        for name in ("../out", "/etc/passwd", ""):
            with pytest.raises(ValueError, match=r"must be relative|without"):
                artifact.add_file(tmp_path / "data" / "part" / "b.txt", name=name or "..")
        with pytest.raises(ValueError, match="not a file"):
            artifact.add_file("missing")
        with pytest.raises(ValueError, match="same path twice"):
            artifact.add_file(tmp_path / "data" / "part" / "b.txt", name="a.txt")
        with pytest.raises(ValueError, match="alphanumeric"):
            wandb.Artifact("a/b", type="dataset")
        digest = artifact.digest
        run.log_artifact(artifact).wait()
        paths = ["a.bin", "a.txt", "c.bin", "folder/part/b.txt", "here.txt", "rows.table.json"]
        assert [file.path for file in artifact.files()] == paths and artifact.digest == digest
        with pytest.raises(wandb.CommError, match=r"reference to 's3://bucket/c.bin'"):
            artifact.download()
        folder = Path(artifact.download(tmp_path / "out", allow_missing_references=True))
        assert [(folder / name).read_text() for name in ("a.txt", "here.txt")] == ["ä", "b"]
        assert artifact.get("rows").data[0] == [1] and artifact.get("missing") is None
        run.link_artifact(artifact, "registry/chosen data", aliases=["production"])
        assert run.use_artifact("chosen-data:production").digest == digest
        again = wandb.Artifact("data", type="dataset")
        again.add_dir(tmp_path / "data", name="folder")
        assert run.use_artifact(again).version == "v1"
        artifact.aliases.append("stable")
        artifact.save()
        assert wandb.Api().artifact("data:stable").version == "v0"
        run.log_model(tmp_path / "data", name="m")
        assert Path(run.use_model("m")).parts[-2:] == ("part", "b.txt")
    assert os.listdir(logs / ".tachograph" / "artifacts" / "staging") == []


def test_artifact_returns_pictures_and_sounds_of_tables(logs, caplog):
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (30, 20, 3), dtype=np.uint8)
    mask = np.eye(30, 20, dtype=np.uint8)
    boxes = {"truth": {"box_data": [{"position": {"middle": [3, 2], "width": 2, "height": 2}, "domain": "pixel"}]}}
    cells = {
        "picture": wandb.Image(pixels, caption="c", masks={"m": {"mask_data": mask}}, boxes=boxes),
        "list": [wandb.Image(pixels), pil.new("L", (4, 4))],
        "page": wandb.Html("<b>"),
        "clip": wandb.Video(np.zeros((3, 3, 16, 16), np.uint8), fps=2),
        "sound": wandb.Audio(np.zeros(100), sample_rate=100),
        "counts": wandb.Histogram([1.0, 2.0], num_bins=2),
        "number": float("nan"),
        "molecule": wandb.Molecule("x"),
    }
    with caplog.at_level(logging.WARNING, "tachograph"), wandb.init(name="x") as run:
        artifact = wandb.Artifact("data", type="dataset")
        artifact.add(wandb.Table(columns=list(cells), data=[list(cells.values()), [None] * len(cells)]), "rows")
        entry = artifact.add(wandb.Image(pixels), "one")
        for wrong in ("text", wandb.Image(None)):
            with pytest.raises(ValueError, match="Artifact.add"):
                artifact.add(wrong, "wrong")
        assert run.log_artifact(artifact).wait() is artifact and run.logged_artifacts() == [artifact]
        used_artifact = run.use_artifact("data:latest")
        assert run.used_artifacts() == [used_artifact]
        row, empty_row = used_artifact.get("rows").data
        one = used_artifact.get("one")
    assert entry.path == "one.image-file.json"
    assert (
        len([file for file in artifact.files() if file.path.startswith("media/images/") and "mask" not in file.path])
        == 2
    )
    assert empty_row == [None] * len(cells)
    values = dict(zip(cells, row, strict=True))
    assert isinstance(values["picture"], wandb.Image) and values["picture"].caption == "c"
    assert (np.asarray(values["picture"].image) == pixels).all() and (np.asarray(one.image) == pixels).all()
    assert (values["picture"].media.masks["m"][0] == mask).all() and values["picture"].media.boxes[0]["x"] == 2
    assert [np.asarray(picture.image).shape for picture in values["list"]] == [(30, 20, 3), (4, 4)]
    assert [type(values[name]).__name__ for name in ("page", "clip", "sound")] == ["Html", "Video", "Audio"]
    assert values["counts"].histogram == [1, 1] and math.isnan(values["number"]) and values["molecule"] is None
    errors = [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert [(error["kind"], error["field"]) for error in errors] == [("value_not_stored", "data/rows.molecule")]


# Api -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(logs):
    for number, lr in enumerate([0.1, 0.2, 0.3]):
        with wandb.init(
            project="p",
            name=f"run-{number}",
            id=f"id{number}",
            config={"lr": lr, "model": {"depth": number}},
            tags=["t"],
        ) as run:
            for step in range(4):
                run.log({"loss": (3 - number) / (step + 1)})
                if step % 2:
                    run.log({"accuracy": step / 10}, step=step)
            run.summary["best"] = number
    with pytest.raises(ValueError, match="boom"), wandb.init(project="other", name="failed", config={"lr": 9}) as run:
        raise ValueError("boom")
    return wandb.Api(timeout=30)


def test_api_finds_a_run_by_any_path(recorded):
    for path in ("me/p/id1", "p/id1", "id1", "me/p/runs/id1", "/me/p/id1", "run-1"):
        run = recorded.run(path)
        assert (run.id, run.name, run.project, run.state) == ("id1", "run-1", "p", "finished"), path
    assert run.config == {"lr": 0.2, "model": {"depth": 1}}
    assert (run.summary["loss"], run.summary["best"], run.summary["_step"]) == (0.5, 1, 3)
    assert run.tags == ["t"] and run.lastHistoryStep == 3
    with pytest.raises(wandb.CommError, match="Could not find run 'p/nowhere'"):
        recorded.run("p/nowhere")


def test_api_reads_rows_by_step(recorded):
    run = recorded.run("p/id0")
    rows = list(run.scan_history())
    assert [(row["_step"], row["loss"]) for row in rows] == [(0, 3.0), (1, 1.5), (2, 1.0), (3, 0.75)]
    assert [row.get("accuracy") for row in rows] == [None, 0.1, None, 0.3]
    assert list(run.scan_history(keys=["accuracy"])) == [{"accuracy": 0.1}, {"accuracy": 0.3}]
    assert [row["_step"] for row in run.scan_history(min_step=1, max_step=3)] == [1, 2]
    assert run.history(samples=2, keys=["loss"], pandas=False) == [
        {"_step": 0, "loss": 3.0},
        {"_step": 3, "loss": 0.75},
    ]
    pandas = pytest.importorskip("pandas")
    frame = run.history()
    assert isinstance(frame, pandas.DataFrame) and frame["loss"].tolist() == [3.0, 1.5, 1.0, 0.75]
    assert "metrics.jsonl" in [file.name for file in run.files()]
    with run.file("metrics.jsonl").download() as file:
        assert json.loads(file.readline())["event"] == "start"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"config.lr": 0.2}, ["run-1"]),
        ({"config.lr.value": {"$gt": 0.1}}, ["run-1", "run-2"]),
        ({"config.model.depth": {"$in": [0, 2]}}, ["run-0", "run-2"]),
        ({"$or": [{"config.lr": 0.1}, {"summary_metrics.best": {"$gte": 2}}]}, ["run-0", "run-2"]),
        ({"$and": [{"state": "finished"}, {"display_name": {"$regex": "^run-[01]$"}}]}, ["run-0", "run-1"]),
        ({"tags": "t", "config.lr": {"$not": {"$lt": 0.3}}}, ["run-2"]),
        ({"config.nothing": {"$exists": True}}, []),
        ({"config.lr": {"$ne": 0.2}}, ["run-0", "run-2"]),
    ],
)
def test_api_filters_runs(recorded, filters, expected):
    assert [run.name for run in recorded.runs("me/p", filters=filters, order="+config.lr")] == expected


def test_api_lists_and_sorts_runs(recorded):
    assert [run.name for run in recorded.runs("p", order="-summary_metrics.best")] == ["run-2", "run-1", "run-0"]
    every = recorded.runs()
    assert len(every) == 4 and {run.state for run in every} == {"finished", "failed"}
    assert [run.name for run in recorded.runs(filters={"state": "failed"})] == ["failed"]
    assert every[0].name == "run-0" and len(every[:2]) == 2
    with pytest.raises(wandb.Error, match="'\\$where' of a filter is not supported"):
        recorded.runs(filters={"$where": "this.lr > 1"})
    with pytest.raises(wandb.Error, match="only runs and artifacts can be read"):
        recorded.sweep("p/s")
    with pytest.raises(wandb.Error, match="cannot be changed"):
        every[0].delete()
