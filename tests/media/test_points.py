"""Clouds of points: what is stored of arrays, tensors and lists, and of data that is no cloud."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tachograph as tacho
from tachograph.cli._main import main
from tachograph.testing import MemoryRun
from tests.media.recording import content_of, record, stored_files
from tests.tables import each

XYZ = np.random.default_rng(0).normal(size=(50, 3))


def npy_of(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


NPY = npy_of(XYZ)


def item_of(value):
    run = MemoryRun()
    run.log({"x": value}, step=1)
    return next(line for line in run.records if line["event"] == "media")["items"][0]


def rows_of(folder: Path, item):
    """Return the rows of an item's file as numpy reads it."""
    rows = np.load(io.BytesIO(content_of(folder, item)), allow_pickle=False)
    assert rows.dtype == np.dtype("<f4") and rows.shape == (item["num_points"], len(item["columns"]))
    return rows


def recorded(logs, **values):
    """Log values in one call; return the folder, and the items by name."""
    lines = record(logs, lambda run: run.log(values, step=3))
    return logs / "media", {line["name"]: line["items"][0] for line in lines if line["event"] == "media"}


def test_points_are_npy_files_of_float32(logs):
    torch = pytest.importorskip("torch")
    valued = np.c_[XYZ, np.arange(50)]
    coloured = np.c_[XYZ, np.full((50, 3), [255, 128, 0])]
    folder, items = recorded(
        logs,
        plain=tacho.Points(XYZ, caption="scan", seed=4),
        valued=tacho.Points(valued, labels={0: "car", 1: "tree"}),
        coloured=tacho.Points(coloured.astype(np.float16)),
        tensor=tacho.Points(torch.tensor(XYZ, dtype=torch.bfloat16)),
        rows=tacho.Points([[0, 1, 2], (3, 4, 5)], colors=[[0, 0.5, 1], [1, 0, 0]]),
        all=tacho.Points(valued, colors=np.full((50, 3), 7, np.uint8)),
    )
    assert np.array_equal(rows_of(folder, items["plain"]), XYZ.astype(np.float32))
    plain = items["plain"]
    assert (plain["ext"], plain["caption"], plain["meta"]["seed"]) == ("npy", "scan", 4)
    assert plain["columns"] == ["x", "y", "z"] and not {"sampled_from", "nonfinite", "clipped", "labels"} & set(plain)
    assert np.allclose(plain["bounds"], [XYZ.min(0), XYZ.max(0)])
    assert items["valued"]["columns"][3:] == ["value"] and items["valued"]["labels"] == {"0": "car", "1": "tree"}
    assert rows_of(folder, items["valued"])[7, 3] == 7
    assert items["coloured"]["columns"][3:] == ["red", "green", "blue"]
    assert rows_of(folder, items["coloured"])[7, 3:].tolist() == [255, 128, 0]
    assert np.allclose(rows_of(folder, items["tensor"]), XYZ, rtol=0.01)
    assert rows_of(folder, items["rows"]).tolist() == [[0, 1, 2, 0, 128, 255], [3, 4, 5, 255, 0, 0]]
    assert rows_of(folder, items["all"])[7].tolist()[3:] == [7, 7, 7, 7]
    assert {item["num_points"] for item in items.values()} == {50, 2}


def test_points_of_files_and_bytes_are_read(logs, tmp_path):
    (tmp_path / "a.npy").write_bytes(NPY)
    np.save(tmp_path / "b.npy", np.asfortranarray(XYZ.astype(np.float32)))
    (tmp_path / "c.json").write_text(json.dumps({"type": "lidar/beta", "points": XYZ.tolist()}))
    folder, items = recorded(
        logs,
        path=tacho.Points(tmp_path / "a.npy", colors=np.zeros((50, 3), np.uint8)),
        text=tacho.Points(str(tmp_path / "b.npy")),
        json=tacho.Points(tmp_path / "c.json", labels=["unused"]),
        bytes=tacho.Points(NPY),
    )
    for name, item in items.items():
        assert np.array_equal(rows_of(folder, item)[:, :3], XYZ.astype(np.float32)), name
    assert items["path"]["columns"][3:] == ["red", "green", "blue"] and "labels" not in items["json"]


def test_points_are_copied_by_the_call(logs):
    array, rows, colors = XYZ.copy(), [[1.0, 2.0, 3.0]], np.zeros((1, 3), np.uint8)

    def log(run):
        run.log({"array": tacho.Points(array), "rows": tacho.Points(rows, colors=colors)})
        array[:] = 0
        rows[0][0] = 9.0
        colors[:] = 9

    items = {line["name"]: line["items"][0] for line in record(logs, log)}
    assert np.array_equal(rows_of(logs / "media", items["array"]), XYZ.astype(np.float32))
    assert rows_of(logs / "media", items["rows"]).tolist() == [[1, 2, 3, 0, 0, 0]]


def test_many_points_are_thinned_evenly(logs):
    count = 1_000_001
    points = np.zeros((count, 3), np.float32)
    points[:, 0] = np.arange(count)
    points[1::2, 1] = np.nan
    folder, items = recorded(logs, huge=tacho.Points(points))
    item = items["huge"]
    assert (item["num_points"], item["sampled_from"], item["nonfinite"]) == (300_000, 500_001, 500_000)
    x = rows_of(folder, item)[:, 0]
    assert x[0] == 0 and set(np.diff(x)) == {2.0, 4.0} and x[-1] > count - 5
    assert item["bytes"] < 300_000 * 12 + 200


def test_a_call_of_too_many_bytes_is_dropped(logs):
    lines = record(logs, lambda run: run.log({"huge": tacho.Points(np.zeros((9_000_000, 3), np.float32))}))
    (line,) = [line for line in lines if line["event"] == "media"]
    assert line["items"] == [] and line["num_dropped"] == 1 and "MB" in line["reason"]


POINTS_LEFT_OUT = [
    ([[0, 0, 0], [math.nan, 1, 2], [1, -math.inf, 2]], 1, 2),
    (np.full((4, 3), np.nan), 0, 4),
    (np.full((2, 3), 1e300), 0, 2),
    ([[0, 0, 0, math.nan]], 0, 1),
    ([], 0, 0),
    (np.zeros((0, 6)), 0, 0),
    ([[1e30, 0, 0]], 1, 0),
]


@each("data, num_points, num_left_out", POINTS_LEFT_OUT)
def test_points_that_are_not_finite_are_counted(data, num_points, num_left_out):
    item = item_of(tacho.Points(data))
    assert (item["num_points"], item.get("nonfinite", 0)) == (num_points, num_left_out)
    assert ("bounds" in item) == (num_points > 0)
    json.dumps(item, allow_nan=False)


NO_CLOUDS = [
    (tacho.Points(np.zeros((3, 5))), r"(3, 5)"),
    (tacho.Points(np.zeros(3)), r"(3,)"),
    (tacho.Points(np.zeros((2, 3, 3))), r"(2, 3, 3)"),
    (tacho.Points(np.array(1.0)), r"()"),
    (tacho.Points([[1, 2], [3]]), "inhomogeneous"),
    (tacho.Points([["a", "b", "c"]]), "<U1"),
    (tacho.Points(np.zeros((2, 3), complex)), "complex128"),
    (tacho.Points([[10**400, 0, 0]]), "object"),
    (tacho.Points(object()), "cannot be stored as media"),
    (tacho.Points(XYZ, colors=np.zeros((49, 3))), r"(49, 3)"),
    (tacho.Points(XYZ, colors=[["red"] * 3] * 50), "<U3"),
    (tacho.Points(np.zeros((2, 6)), colors=np.zeros((2, 3))), "twice"),
    (tacho.Points("missing.npy"), "missing.npy"),
    (tacho.Points(b"v 0 0 0"), "no .npy file"),
    (tacho.Points(b'{"boxes": []}'), "no .npy file"),
    (tacho.Points(b'[[1, 2], "x"]'), "no .npy file"),
    (tacho.Points(b"[" * 100_000), "no .npy file"),
    (tacho.Points(NPY[:-1]), "no .npy file"),
    (tacho.Points(NPY.replace(b"(50, 3)", b"(9999999999999, 3)")), "no .npy file"),
    (tacho.Points(NPY.replace(b"<f8", b"|O ")), "no .npy file"),
    (tacho.Points(NPY[:20]), "no .npy file"),
]


@each("points, reason", NO_CLOUDS)
def test_data_that_is_no_cloud_is_a_problem(points, reason):
    assert reason in item_of(points)["problem"]


def test_a_wrong_shape_is_reported_once(logs):
    def log(run):
        for step in range(5):
            run.log({"bad": tacho.Points(np.zeros((3, 5))), "loss": 1.0}, step=step)
        run.log({"good": [tacho.Points(XYZ), tacho.Points(np.zeros((1, 2))), tacho.Points(XYZ)]}, step=5)

    lines = record(logs, log)
    errors = [line for line in lines if line["event"] == "telemetry_error" and line["field"] == "bad"]
    assert len(errors) == 1 and "(3, 5)" in errors[0]["reason"]
    (good,) = [line for line in lines if line.get("name") == "good"]
    assert ["problem" in item for item in good["items"]] == [False, True, False]
    assert len(stored_files(logs / "media")) == 1  # equal clouds are one file


def test_colours_beyond_their_range_are_counted():
    assert item_of(tacho.Points([[0, 0, 0, 300, -1, 5]]))["clipped"] == 2
    assert item_of(tacho.Points([[0, 0, 0]], colors=[[1.5, 0.5, 0.0]]))["clipped"] == 1
    assert "clipped" not in item_of(tacho.Points([[0, 0, 0]], colors=np.array([[255, 0, 3]])))


MISTAKES = [
    lambda: tacho.Points(None),
    lambda: tacho.Points({"points": XYZ}),
    lambda: tacho.Points(3),
    lambda: tacho.Points(XYZ, colors="red"),
    lambda: tacho.Points(XYZ, labels="car"),
    lambda: tacho.Points(XYZ, labels=3),
    lambda: tacho.Points(XYZ, caption=3),
    lambda: tacho.Points(XYZ, boxes=[]),
]


@each("create", [(create,) for create in MISTAKES])
def test_mistakes_in_the_arguments_raise(create):
    with pytest.raises(TypeError):
        create()


def test_points_in_a_cell_say_so():
    table = tacho.Table(rows=[{"a": 1, "scan": tacho.Points(XYZ)}])
    assert "cannot be a cell" in item_of(table)["rows"][0]["scan"]


def test_points_are_read_exported_and_dropped(logs, tmp_path):
    def log(run):
        for step in range(3):
            run.log({"scan": tacho.Points(XYZ + step), "loss": 1.0}, step=step)

    record(logs, log)
    first, *_ = tacho.read(logs / "media").media.items("scan")
    with first.open() as file:
        assert np.allclose(np.load(file), XYZ)
    target = tmp_path / "scan.zip"
    result = CliRunner().invoke(main, ["media", "media", "scan", "-o", str(target), "--log-dir", str(logs)])
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(target) as archive:
        lines = [json.loads(line) for line in archive.read("items.jsonl").splitlines()]
        assert [line["num_points"] for line in lines] == [50, 50, 50]
        assert np.load(io.BytesIO(archive.read(lines[2]["file"]))).shape == (50, 3)
    options = ["--media", "drop", "--kind", "points", "--yes", "--log-dir", str(logs)]
    result = CliRunner().invoke(main, ["prune", *options])
    assert result.exit_code == 0, result.output
    assert len(stored_files(logs / "media")) == 2  # of the first and the newest step
