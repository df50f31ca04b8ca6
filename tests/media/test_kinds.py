"""Media other than images: tables, histograms, texts, sounds, clips, results and files."""

from __future__ import annotations

import gzip
import io
import json
import math
import wave
from fractions import Fraction

import numpy as np
import pandas
import pytest
from PIL import Image

import tachograph as tacho
from tachograph.testing import MemoryRun
from tests.conftest import lines_of
from tests.media.recording import content_of, picture_of, record, stored_files
from tests.tables import each

PICTURE = np.zeros((8, 8, 3), np.uint8)


def logged(value, name="x"):
    """Return what a run in memory records of one value."""
    run = MemoryRun()
    run.log({name: value}, step=1)
    return next(record for record in run.records if record["event"] in {"media", "histograms"})


def item_of(value):
    return logged(value)["items"][0]


def test_tables_of_all_sources_have_the_same_rows():
    rows = [{"prompt": "a", "score": 1.5, "ok": True, "none": None}, {"prompt": "b", "score": 2.5, "ok": False}]
    item = item_of(tacho.Table(rows=rows))
    assert item["columns"] == ["prompt", "score", "ok", "none"] and item["num_rows"] == 2 and item["rows"] == rows
    lists = [["a", 1], ["b", 2]]
    frame = pandas.DataFrame(lists, columns=["prompt", "score"])
    by_lists = item_of(tacho.Table(columns=["prompt", "score"], data=lists))
    by_frame = item_of(tacho.Table(dataframe=frame))
    assert by_lists["rows"] == by_frame["rows"] == [{"prompt": "a", "score": 1}, {"prompt": "b", "score": 2}]
    assert item_of(tacho.Table(rows=[]))["num_rows"] == 0


def test_tables_of_arrays_and_dataframes_with_columns():
    torch = pytest.importorskip("torch")
    numbers = [[1.0, 2.5], [3.0, math.inf]]
    rows = [{"a": 1.0, "b": 2.5}, {"a": 3.0, "b": math.inf}]
    array = np.array(numbers)
    sources = (
        array,
        torch.tensor(numbers),
        torch.tensor(numbers, dtype=torch.bfloat16),
        array.astype(object),
        pandas.DataFrame(array),
        list(array),
    )
    for data in sources:
        item = item_of(tacho.Table(columns=["a", "b"], data=data))
        assert item["rows"] == rows and item["columns"] == ["a", "b"] and item["num_rows"] == 2, data
    picture = np.array([[tacho.Image(PICTURE), "text"]], dtype=object)
    (row,) = item_of(tacho.Table(columns=["a", "b"], data=picture))["rows"]
    assert row["a"]["media"] == "image" and row["b"] == "text"
    for data in (array[:, :1], pandas.DataFrame(array[:, :1]), [[1]]):
        assert "2 c" in item_of(tacho.Table(columns=["a", "b"], data=data))["problem"]
    assert item_of(tacho.Table(columns=["a", "b"], data=np.array([["x", "y"]])))["rows"] == [{"a": "x", "b": "y"}]
    assert item_of(tacho.Table(columns=["a", "b"], data=array[:0]))["num_rows"] == 0
    with pytest.raises(TypeError, match="dataframe"):
        tacho.Table(dataframe=pandas.Series([1]))
    for data in (np.zeros(2), np.zeros((2, 2, 2)), torch.zeros(2), pandas.Series([1.0, 2.0])):
        with pytest.raises(TypeError, match="shape"):
            tacho.Table(columns=["a", "b"], data=data)
    run, table = MemoryRun(), tacho.Table(columns=["a", "b"], data=array)
    run.log({"t": table})
    assert item_of(table)["rows"] == rows


def test_small_types_of_jax_are_read():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        halves = np.full((4, 4, 3), 0.5, np.float32).astype(dtype)
        assert "problem" not in item_of(tacho.Image(halves))
        assert "problem" not in item_of(tacho.Video(halves[None]))
        assert "problem" not in item_of(tacho.Audio(halves[0], rate=8))
        assert "problem" not in item_of(tacho.Points(halves[0]))
        assert item_of(tacho.Table(columns=["a", "b", "c"], data=halves[0]))["rows"][0]["a"] == 0.5
        assert logged(tacho.Histogram(halves))["values"]["x"]["mean"] == 0.5
    assert logged(tacho.Histogram(np.ones(3, ml_dtypes.int4)))["values"]["x"]["n"] == 3


def test_numbers_of_numpy_are_options():
    samples, frames = np.zeros(8), np.zeros((2, 4, 4, 3), np.uint8)
    for rate in (np.int64(8000), np.float32(8000), np.uint16(8000), np.array(8000), Fraction(8000)):
        assert item_of(tacho.Audio(samples, rate=rate))["rate"] == 8000
    assert item_of(tacho.Video(frames, fps=np.float64(12.5)))["fps"] == 12.5
    assert len(logged(tacho.Histogram([1, 2], bins=np.int32(4)))["values"]["x"]["counts"]) == 4
    low, high = np.float32(-1), np.int8(1)
    assert "clipped" not in item_of(tacho.Image(np.full((2, 2), -1.0), range=(low, high)))
    for rate in (True, np.bool_(True), "8000", np.array([1, 2])):
        with pytest.raises(TypeError, match="rate"):
            tacho.Audio(samples, rate=rate)


def test_a_list_with_histograms_says_what_it_leaves_out():
    run = MemoryRun()
    run.log({"two": [tacho.Histogram([1, 2]), tacho.Histogram([3, 4])], "x": [tacho.Histogram([5]), tacho.Text("a")]})
    run.log({"late": [tacho.Image(PICTURE), tacho.Histogram([1])]})
    (histograms,) = [record["values"] for record in run.records if record["event"] == "histograms"]
    assert {name: bins["max"] for name, bins in histograms.items()} == {"two": 2.0, "x": 5.0}
    (media,) = [record for record in run.records if record["event"] == "media"]
    assert (media["kind"], len(media["items"]), media["num_dropped"]) == ("image", 1, 1)
    errors = {line["field"]: line["reason"] for line in run.records if line["event"] == "telemetry_error"}
    assert set(errors) == {"two", "x", "late"} and all(
        "1 other ones were not recorded" in each for each in errors.values()
    )


def test_cells_are_copied_and_become_json():
    cells = {"list": [1, 2], "number": np.float32(0.5), "array": np.array(2.0), "nan": math.nan, "dict": {"a": 1}}
    run = MemoryRun()
    table = tacho.Table(rows=[{**cells, "picture": tacho.Image(PICTURE), "bad": tacho.Image(np.zeros(3))}])
    run.log({"t": table})
    cells["list"].append(3)
    row = next(record for record in run.records if record["event"] == "media")["items"][0]["rows"][0]
    assert row.pop("picture")["media"] == "image"
    assert "no picture" in row.pop("bad")
    assert math.isnan(row.pop("nan"))
    assert row == {"list": "[1,2]", "number": 0.5, "array": 2.0, "dict": '{"a":1}'}


def test_a_large_table_is_a_file(logs):
    rows = [{"index": index, "text": "x" * 100, "api_key": "sk-ant-REDACTED"} for index in range(2_000)]

    def log(run):
        run.log({"large": tacho.Table(rows=rows), "short": tacho.Table(rows=rows[:3])})
        run.log({"wrong": tacho.Table(columns=["a"], data=[[1, 2]])})

    media = {line["name"]: line["items"][0] for line in record(logs, log) if line["event"] == "media"}
    lines = gzip.decompress(content_of(logs / "media", media["large"])).splitlines()
    assert media["large"]["ext"] == "jsonl.gz" and media["large"]["num_rows"] == len(lines) == 2_000
    assert json.loads(lines[7])["index"] == 7
    assert b"hijklmnop" not in b"".join(lines)
    assert len(media["short"]["rows"]) == 3 and "sha256" not in media["short"]
    assert "1 cells" in media["wrong"]["problem"]


HISTOGRAMS = [
    ([0.0, 1.0, 2.0, 3.0], {"n": 4, "min": 0.0, "max": 3.0, "mean": 1.5, "nonfinite": 0}),
    ([1.0, math.nan, math.inf, -math.inf], {"n": 1, "min": 1.0, "max": 1.0, "std": 0.0, "nonfinite": 3}),
    ([], {"n": 0, "counts": [], "nonfinite": 0}),
    (np.full((3, 3), np.nan), {"n": 0, "nonfinite": 9}),
    (np.array([1e308, -1e308]), {"n": 2, "nonfinite": 0}),
    (np.array([5e-324, 0.0]), {"n": 2}),
    (np.array([7] * 5, np.int8), {"n": 5, "mean": 7.0}),
    ([True, False], {"n": 2, "mean": 0.5}),
]


@each("values, expected", HISTOGRAMS)
def test_histograms_count_every_value(values, expected):
    bins = logged(tacho.Histogram(values, bins=8))["values"]["x"]
    assert expected.items() <= bins.items()
    if bins["n"]:
        assert sum(bins["counts"]) == bins["n"] and len(bins["edges"]) == len(bins["counts"]) + 1
        assert all(map(math.isfinite, bins["edges"]))


def test_counted_histograms_are_kept_as_they_are():
    run = MemoryRun()
    ready = tacho.Histogram(counts=[1, 0, 3], edges=[0, 1, 2, 4])
    wrong = tacho.Histogram(counts=[1], edges=[2, 1])
    run.log({"train_loss": 1.0, "a": ready, "b": tacho.Histogram([1]), "wrong": wrong, "text": tacho.Histogram(["a"])})
    (histograms,) = [line for line in run.records if line["event"] == "histograms"]
    assert set(histograms["values"]) == {"a", "b"}
    assert {"counts": [1, 0, 3], "edges": [0, 1, 2, 4], "n": 4, "min": 0, "max": 4}.items() <= histograms["values"][
        "a"
    ].items()
    assert {line["field"] for line in run.records if line["event"] == "telemetry_error"} == {"wrong", "text"}


def test_results_of_classifiers():
    matrix = item_of(tacho.ConfusionMatrix(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2]), ["a", "b", "c"]))
    assert matrix["labels"] == ["a", "b", "c"] and matrix["counts"] == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert item_of(tacho.ConfusionMatrix(["cat", "dog"], ["dog", "dog"]))["counts"] == [[0, 1], [0, 1]]
    assert "without a label" in item_of(tacho.ConfusionMatrix([0, 5], [0, 1], ["a", "b"]))["problem"]
    assert "problem" in item_of(tacho.ConfusionMatrix([0], [0, 1]))
    assert "problem" in item_of(tacho.ConfusionMatrix(list(range(500)), list(range(500))))
    curve = item_of(tacho.PRCurve([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]))["curves"][0]
    assert curve["recall"] == [0.5, 0.5, 1.0, 1.0] and abs(curve["average_precision"] - 0.8333333) < 1e-6
    many = np.random.default_rng(0).random((5_000, 3))
    curves = item_of(tacho.PRCurve(many.argmax(axis=1), many, ["a", "b", "c"]))["curves"]
    assert [curve["label"] for curve in curves] == ["a", "b", "c"]
    assert all(len(curve["recall"]) == 200 and curve["recall"][-1] == 1 for curve in curves)
    assert "problem" in item_of(tacho.PRCurve([0, 1], [0.5]))


def test_texts_are_inline_up_to_a_size(logs):
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    page = logs.parent / "page.html"
    page.write_text("<b>page</b>")

    def log(run):
        run.log({"text": tacho.Text(f"token {secret}", caption=f"caption {secret}"), "md": tacho.Markdown("**é**")})
        run.log({"long": tacho.Text(f"{secret} " + "é" * 40_000)})
        run.log({"html": tacho.Html("<i>x</i>"), "page": tacho.Html(str(page)), "path": tacho.Html(page)})

    media = {line["name"]: line["items"][0] for line in record(logs, log)}
    assert media["md"]["text"] == "**é**"
    assert "token" in media["text"]["text"] and secret not in json.dumps(media)
    long_text = content_of(logs / "media", media["long"]).decode()
    assert media["long"]["ext"] == "txt" and long_text.endswith("é" * 40_000) and secret not in long_text
    assert content_of(logs / "media", media["html"]) == b"<i>x</i>"
    assert media["page"]["sha256"] == media["path"]["sha256"] and media["page"]["ext"] == "html"


SOUNDS = [
    (np.sin(np.arange(800) / 9), None, 1, 800),
    (np.zeros((800, 2), np.float32), None, 2, 800),
    (np.zeros((2, 800), np.int16), "CT", 2, 800),
    (np.full(800, 255, np.uint8), None, 1, 800),
    (np.full(800, 2**31 - 1, np.int32), None, 1, 800),
    ([0.0, 0.5, -0.5], None, 1, 3),
]


@each("samples, layout, num_channels, num_samples", SOUNDS)
def test_sounds_are_wave_files(tmp_path, samples, layout, num_channels, num_samples):
    folder = tmp_path / str(id(samples))
    (line,) = record(folder, lambda run: run.log({"voice": tacho.Audio(samples, rate=8_000, layout=layout)}))
    item = line["items"][0]
    with wave.open(io.BytesIO(content_of(folder / "media", item))) as sound:
        assert (sound.getnchannels(), sound.getnframes(), sound.getframerate()) == (num_channels, num_samples, 8_000)
    assert item["rate"] == 8_000 and item["seconds"] == num_samples / 8_000


def test_sounds_and_clips_of_files_are_stored_as_they_are(logs, tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(4_000)
        sound.writeframes(bytes(8_000))
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(100))
    with open(tmp_path / "huge.mp4", "wb") as file:
        file.write(b"\0\0\0\x18ftypmp42")
        file.truncate(3 << 30)  # a file without content: takes no space

    def log(run):
        run.log({"wav": tacho.Audio(tmp_path / "a.wav"), "mp4": tacho.Video(str(tmp_path / "clip.mp4"), fps=24)})
        run.log(
            {"huge": tacho.Video(tmp_path / "huge.mp4"), "text": tacho.Video(b"<script>"), "none": tacho.Audio("x")}
        )
        run.log({"clipped": tacho.Audio(np.array([2.0, np.nan, 0.5]), rate=10)})

    media = {line["name"]: line["items"][0] for line in record(logs, log) if line["event"] == "media"}
    assert (media["wav"]["rate"], media["wav"]["seconds"]) == (4_000, 1.0)
    assert content_of(logs / "media", media["mp4"]) == (tmp_path / "clip.mp4").read_bytes()
    assert media["mp4"]["fps"] == 24
    assert "3072 MB" in media["huge"]["problem"] and "log_file" in media["huge"]["problem"]
    assert "problem" in media["text"] and "problem" in media["none"]
    assert media["clipped"]["clipped"] == 2


def test_clips_of_frames(logs):
    frames = np.random.default_rng(0).integers(0, 256, (6, 33, 48, 3), dtype=np.uint8)

    def log(run):
        run.log(
            {
                "clip": tacho.Video(frames, fps=12.5),
                "list": tacho.Video(list(frames)),
                "grey": tacho.Video(frames[..., :1]),
            }
        )
        run.log({"wrong": tacho.Video(frames[0]), "empty": tacho.Video(frames[:0])})

    media = {line["name"]: line["items"][0] for line in record(logs, log) if line["event"] == "media"}
    clip = media["clip"]
    assert (clip["fps"], clip["num_frames"]) == (12.5, 6)
    assert clip["ext"] in {"mp4", "webp"}
    if clip["ext"] == "webp":
        assert Image.open(io.BytesIO(content_of(logs / "media", clip))).n_frames == 6
    assert media["list"]["num_frames"] == media["grey"]["num_frames"] == 6
    assert "no video" in media["wrong"]["problem"] and "empty" in media["empty"]["problem"]


def test_files_are_copied_or_pointed_at(logs, tmp_path):
    path = tmp_path / "report.PDF"
    path.write_bytes(b"%PDF" + bytes(5_000_000))

    def log(run):
        run.log({"train_loss": 1.0}, step=5)
        run.log_file(path, name="report")
        run.log_file(path, keep=False)
        run.log({"file": tacho.File(path, name="r.pdf", caption="all")}, step=6)
        run.log_file(tmp_path / "none")
        run.log_file(tmp_path)

    media = [line for line in record(logs, log) if line["event"] == "media"]
    first, pointer, last, *problems = (line["items"][0] for line in media)
    assert content_of(logs / "media", first) == path.read_bytes()
    assert (first["ext"], first["file_name"], media[0]["name"], media[0]["global_step"]) == (
        "pdf",
        "report.PDF",
        "report",
        5,
    )
    assert pointer == {**pointer, "path": str(path), "sha256": first["sha256"], "bytes": first["bytes"]}
    assert "kept" not in pointer, "the first call has stored the same content"
    assert (last["file_name"], last["caption"]) == ("r.pdf", "all")
    assert len(stored_files(logs / "media")) == 1
    assert all("problem" in item for item in problems) and len(problems) == 2


class Hostile:
    """Data whose attributes raise, like those of a proxy object whose server is gone."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class ArrayLike:
    """An array of a library that nobody has heard of."""

    shape, dtype, nbytes = (4, 4), np.dtype("u1"), 16

    def __array__(self, dtype=None, copy=None):
        return np.full((4, 4), 7, np.uint8)


def test_data_of_any_kind_is_recorded_or_a_problem(logs):
    """Nothing is lost without a word, and nothing costs more than its own item."""
    recursive: list = []
    recursive.append(recursive)
    image = tacho.Image(PICTURE)
    good = {
        "array-like": tacho.Image(ArrayLike()),
        "generator": tacho.Table(rows=({"a": number} for number in range(3))),
        "lists": tacho.Table(columns=["a"], data=([number] for number in range(3))),
        "odd cells": tacho.Table(
            rows=[{"a": recursive, "b": [image], "c": 10**400, "d": {1}, "e": b"x"}, {}, {"z": 1}]
        ),
    }
    bad = {
        "hostile": tacho.Image(Hostile()),
        "no rows": tacho.Table(rows=[3]),
        "no lists": tacho.Table(columns=["a"], data=["x"]),
        "ragged": tacho.Table(columns=["a", "b"], data=[[1], [1, 2, 3]]),
    }
    histograms = {
        "texts": tacho.Histogram(["a"]),
        "text edges": tacho.Histogram(counts=[1], edges=["a", "b"]),
        "huge counts": tacho.Histogram(counts=[1e308] * 3, edges=[0, 1, 2, 3]),
        "ragged values": tacho.Histogram([[1], [2, 3]]),
    }

    def log(run):
        run.log({**good, **bad, **histograms, "fine": tacho.Histogram([1.0])}, step=1)

    lines = record(logs, log)
    items = {line["name"]: line["items"][0] for line in lines if line["event"] == "media"}
    assert [name for name, item in items.items() if "problem" in item] == list(bad)
    assert items["generator"]["rows"] == items["lists"]["rows"] == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert picture_of(logs / "media", items["array-like"]).getpixel((0, 0)) == 7
    assert items["odd cells"]["num_rows"] == 3 and "list of media" in items["odd cells"]["rows"][0]["b"]
    (values,) = (line["values"] for line in lines if line["event"] == "histograms")
    assert list(values) == ["fine"]
    errors = [line["field"] for line in lines if line["event"] == "telemetry_error"]
    assert {*bad, *histograms} <= {*errors}
    with pytest.raises(ValueError, match="appears twice"):
        tacho.Table(columns=["a", "b", "a"], data=[])


def test_a_file_that_is_not_kept_is_linked_if_it_is_small(logs, tmp_path):
    small, large = tmp_path / "small.pdf", tmp_path / "large.bin"
    small.write_bytes(b"%PDF")
    large.write_bytes(bytes(2_000_000))

    def log(run):
        run.log_file(small, keep=False)
        run.log_file(large, keep=False)

    media = {line["name"]: line["items"][0] for line in record(logs, log, media_max_mb=1) if line["event"] == "media"}
    pointer, linked = media["large.bin"], media["small.pdf"]
    assert (pointer["kept"], pointer["path"], pointer["bytes"]) == (False, str(large), 2_000_000)
    assert linked["path"] == str(small) and "kept" not in linked
    small.unlink()
    assert content_of(logs / "media", linked) == b"%PDF"
    assert len(stored_files(logs / "media")) == 1


def test_the_csv_mirror_has_no_items(logs):
    def log(run):
        run.log({"train_loss": 1.0, "p": tacho.Image(PICTURE), "h": tacho.Histogram([1.0])}, step=1)

    record(logs, log, csv=True)
    header, *rows = (logs / "media" / "metrics.csv").read_text().splitlines()
    assert not {"items", "values"} & set(header.split(","))
    assert len(rows) == len(lines_of(logs / "media"))
