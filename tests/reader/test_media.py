"""Media and histograms of a run, read from its journal and its files."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from PIL import Image

import tachograph
from tachograph.reader import MediaIndex
from tests.media_files import histograms, image, media, picture, store, table_file
from tests.store import END, START, append, opened, step, write


def test_media_are_listed_and_read_by_name_and_step(tmp_path):
    run = tmp_path / "r"
    red = image(run, caption="a red square", meta={"seed": 7, "prompt_id": "p"})
    rows = [{"text": "x", "picture": {"media": "image", **image(run, picture(8, 8, "blue"))}}]
    records = [
        START,
        step(1, loss=1.0),
        media("samples", "image", 10, red, {"problem": "an array of shape (2, 3, 4, 5, 6)"}),
        b'{"event":"media","time":1,"na',
        media("samples", "image", 20, red, num_dropped=3, reason="queue full"),
        media("table", "table", 20, table_file(run, rows)),
        media("note", "text", 20, {"text": "hello"}),
        histograms(20, weights={"edges": [0, 1, 2], "counts": [3, 4], "n": 7}),
        END,
    ]
    folder = write(run, records)
    history = tachograph.read(run)
    names = history.media.names
    assert list(names) == ["samples", "table", "note"]
    assert (names["samples"].kind, names["samples"].steps, names["samples"].num_items) == ("image", [10, 20], 3)
    assert names["samples"].num_dropped == 3
    first, second = history.media.items("samples", step=10)
    assert first.path.read_bytes() == picture()
    assert (first.caption, first.meta["seed"], first.step, first.index) == ("a red square", 7, 10, 0)
    assert (second.path, second.problem) == (None, "an array of shape (2, 3, 4, 5, 6)")
    assert next(history.media.items("table")).rows() == rows
    assert [item.fields["text"] for item in history.media.items("note")] == ["hello"]
    assert history.latest("media") == []  # only their positions are kept

    first.path.unlink()
    missing = next(history.media.items("samples"))
    assert missing.path is None and "missing" in missing.problem
    append(folder, [media("late", "text", 30, {"text": "later"})])
    history.refresh()
    assert "late" in history.media.names


def test_recorded_media_can_be_read(logs):
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    rows = [{"text": "x" * 100, "picture": tachograph.Image(pixels)} for _ in range(1_000)]  # too large for the journal
    with tachograph.init("m", log_dir=logs) as run:
        picture = tachograph.Image(pixels, caption="c", seed=3, lossless=True)
        run.log({"samples": [picture], "table": tachograph.Table(rows=rows)}, step=7)
        run.log({"weights": tachograph.Histogram([1.0, 2.0, math.nan])}, step=8)
    history = tachograph.read(run)
    (item,) = history.media.items("samples", step=7)
    assert (item.caption, item.meta["seed"], item.problem) == ("c", 3, None)
    with Image.open(item.path) as stored:
        assert np.array_equal(np.asarray(stored), pixels)
    (table,) = history.media.items("table")
    assert len(table.rows()) == 1_000
    (histogram,) = history.histograms("weights")
    assert (histogram.step, sum(histogram.counts), histogram.num_not_finite) == (8, 2, 1)


def test_histograms_have_edges_and_survive_odd_values(tmp_path):
    powers = {"exp2": [-1, 1], "counts": [1, 2, 5, 3, 4], "n": 16, "nonfinite": 1, "sampled": True, "max": math.inf}
    bad = [{}, {"counts": 3}, {"counts": [1], "edges": [0]}, {"counts": [1], "exp2": [5, 1]}, {"exp2": [0, 1e9]}]
    records = [histograms(i, w=value) for i, value in enumerate(bad)]
    folder = write(tmp_path / "r", [START, *records, histograms(9, w=powers), {"event": "histograms", "values": 3}])
    history = tachograph.read(folder.path)
    (histogram,) = history.histograms("w")
    assert histogram.edges == [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0]
    assert (histogram.step, histogram.num_values, histogram.num_not_finite) == (9, 16, 1)
    assert (histogram.is_sampled, histogram.max) == (True, None)
    with pytest.raises(KeyError, match="no histogram 'v'"):
        history.histograms("v")


def test_histogram_without_a_finite_value_has_its_step(logs):
    with tachograph.init("m", log_dir=logs) as run:
        for step, values in enumerate([[1.0, math.nan], [math.inf, math.nan, -math.inf], []]):
            run.log({"w": tachograph.Histogram(values)}, step=step)
    recorded = tachograph.read(run).histograms("w")
    assert [(each.step, each.num_values, each.num_not_finite) for each in recorded] == [(0, 1, 1), (1, 0, 3), (2, 0, 0)]


def test_malformed_records_of_media_are_no_error(tmp_path):
    odd = [
        {"items": 3},
        {"items": [3, {"sha256": "../../etc/passwd", "ext": "png"}, {"sha256": "a" * 64, "ext": "../x"}]},
        {"name": {}, "kind": [], "num_dropped": "many", "items": [{"index": "x", "caption": 3, "meta": 3}]},
        {"items": [{"masks": [3], "rows": [3, {"a": {"sha256": 3}}]}], "global_step": "x", "time": "NaN"},
    ]
    folder = write(tmp_path / "r", [START, *({"event": "media", **fields} for fields in odd)])
    items = list(tachograph.read(folder.path).media.items())
    assert len(items) == 4
    assert all(item.path is None for item in items)


def test_run_without_media_is_not_scanned(tmp_path, monkeypatch):
    folder = write(tmp_path / "r", [START, *(step(i, loss=1.0) for i in range(20))])
    history = tachograph.read(folder.path)
    folder.journal.unlink()  # what is not opened need not be there
    assert history.media.names == {}


def test_index_of_many_large_records_stays_small(tmp_path):
    run = tmp_path / "r"
    file = store(run, b"x", "png")
    text = "a long prompt " * 500
    records = (media("samples", "image", i, *[{**file, "caption": text}] * 4) for i in range(400))
    folder = write(run, [START, *records, END])
    tracemalloc.start()
    try:
        history = tachograph.read(folder.path)
        assert len(history.media.names["samples"].steps) == 400
        stored = opened(folder)
        assert len(stored.media.locations()) == 400
        assert folder.journal.stat().st_size > 10 * tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_stored_run_has_the_same_index_after_a_commit(tmp_path):
    run = tmp_path / "r"
    items = [image(run, picture(8, 8, (i, 0, 0))) for i in range(30)]
    records = [media("samples", "image", i, item, num_dropped=i % 3) for i, item in enumerate(items)]
    histogram = histograms(5, w={"edges": [0, 1], "counts": [1], "n": 1})
    steps = [step(i, loss=1.0) for i in range(10)]
    folder = write(run, [START, *steps, *records, histogram, END])
    fresh = opened(folder, segment_bytes=2_000)
    again = opened(folder, segment_bytes=2_000)  # from segments
    assert list(folder.cache.iterdir())

    def view(index: MediaIndex):
        return index.locations(), index.histogram_names(), [index.file(item["sha256"]) for item in items]

    assert view(again.media) == view(fresh.media) == view(tachograph.read(run)._media_index)
    assert None not in view(fresh.media)[2]
    assert fresh.digest.counts["media"] == 30


def test_texts_histograms_and_completions_are_media_too(tmp_path):
    """Of facades and importers, and of journals from before there was media."""
    at = {"event": "event", "time": 1.0, "global_step": 3}
    counts = {"counts": [1, 2], "edges": [0.0, 1.0, 2.0], "num_not_finite": 4}
    rows = [{"step": 5, "prompt": "2 + 2", "answer": "4"}, {"step": 7, "prompt": "3 + 3"}]
    run = tmp_path / "r"
    records = [
        START,
        step(1, loss=1.0),
        {**at, "name": "text", "tag": "note", "text": "**all good**"},
        {**at, "name": "histogram", "tag": "layer", **counts},
        {**at, "name": "histogram", "tag": "broken", "counts": [1], "edges": "none"},
        {**at, "name": "text", "tag": "none"},
        {"event": "completions", "time": 2.0, "table": "answers", "rows": rows},
        END,
    ]
    folder = write(run, records)
    history = tachograph.read(run)
    stored = opened(folder)
    assert stored.digest.counts == {"start": 1, "step": 1, "event": 4, "completions": 1, "end": 1}
    assert all("_media_place" not in record for record in stored.digest.latest("event"))
    for index in (stored.media, history._media_index):
        names = index.names()
        assert {name: (entry.kind, entry.steps, entry.num_items) for name, entry in names.items()} == {
            "note": ("text", [3], 1),
            "answers": ("table", [7], 1),
        }
        assert index.histogram_names() == {"layer": 1, "broken": 1}
        assert index.num_records == {"media": 2, "histograms": 2}
    (histogram,) = history.histograms("layer")
    assert (histogram.step, histogram.counts, histogram.num_values, histogram.num_not_finite) == (3, [1, 2], 3, 4)
    assert history.histograms("broken") == []
    assert next(history.media.items("note")).step == 3
