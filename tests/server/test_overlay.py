"""Series of several runs in one response, and means of groups."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import msgspec
import pytest

from tachograph.journal import RunFolder
from tachograph.server import _overlay
from tachograph.server._overlay_models import OverlayPage, OverlayQuery
from tachograph.server._series_cache import SeriesCache
from tachograph.store import Store, StoredRun
from tests.conftest import wait_for
from tests.media_files import media
from tests.store import END, START, append, lines, step, write

CONFIG = {"lr": 0.1, "seed": 1, "output_dir": "a"}


def start(**config):
    return {**START, "run_id": str(config), "batch_size": 4, "config": {**CONFIG, **config}}


def get(served, path, **query):
    answer = served.client.get(f"/api/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_series_of_several_runs_in_one_response(serve, tmp_path):
    write(tmp_path / "a", [start(), *(step(i, loss=float(i)) for i in range(100, 103)), END])
    write(tmp_path / "b", [start(), *(step(i, loss=-float(i), acc=0.5) for i in range(3)), END])
    served = serve(tmp_path)
    page = get(served, "series", run=["b", "gone", "a", "b"], name=["loss", "acc"], x="relative_step")
    assert [found["run"] for found in page["runs"]] == ["b", "gone", "a"]
    b, gone, a = page["runs"]
    single = get(served, "runs/b/series", name=["loss", "acc"], x="relative_step")
    assert (b["series"], b["version"], b["indexed"]) == (single["series"], single["version"], 1.0)
    assert "no run 'gone'" in gone["reason"]
    assert gone["series"] == []
    assert (a["series"][0]["lines"][0]["x"], a["series"][0]["reason"]) == ([0.0, 1.0, 2.0], None)
    assert (a["series"][1]["lines"], a["series"][1]["reason"]) == ([], "no metric 'acc' in this run")
    assert page["points"] == 2_000
    tokens = get(served, "series", run=["a"], name=["loss"], x="tokens")["runs"][0]["series"][0]
    assert tokens["lines"] == []
    assert "num_tokens" in tokens["reason"]
    samples = get(served, "series", run=["a"], name=["loss"], x="samples", low=405, high=405)
    assert samples["runs"][0]["series"][0]["lines"][0]["x"] == [404.0, 408.0]  # the neighbours of the range


def test_metrics_of_several_runs_in_one_response(serve, tmp_path):
    for name, values in {"a": {"loss": 1.0}, "b": {"loss": 1.0, "acc": 0.5}, "c": {"acc": 0.5}}.items():
        pictures = [media("samples", "text", 0, {"text": "hello"})] if name == "a" else []
        printed = {"event": "event", "time": 1.0, "name": "read_from_output", "metric": "acc"}
        write(tmp_path / name, [start(), printed, step(0, **values), *pictures, END])
    served = serve(tmp_path)
    page = get(served, "metrics", run=["b", "gone", "a", "c"])
    assert [run["has_media"] for run in page["runs"]] == [False, False, True, False]
    facts = ("name", "kind", "signal", "same_as", "x_metric", "is_printed")
    for run in page["runs"]:
        if run["run"] == "gone":
            assert (run["exists"], run["metrics"], "no run 'gone'" in run["reason"]) == (False, [], True)
            continue
        assert (run["exists"], run["indexed"], run["reason"]) == (True, 1.0, None)
        single = get(served, f"runs/{run['run']}/metrics")["metrics"]
        assert [page["metrics"][index] for index in run["metrics"]] == [
            {fact: metric[fact] for fact in facts} for metric in single
        ]
    assert [(metric["name"], metric["is_printed"]) for metric in page["metrics"]] == [("loss", False), ("acc", True)]


def test_points_per_line_shrink_with_the_number_of_runs(serve, tmp_path):
    for i in range(100):
        write(tmp_path / f"r{i}", [start(seed=i), *(step(at, loss=float(at * i)) for at in range(20)), END])
    served = serve(tmp_path)
    names = [f"r{i}" for i in range(100)]
    page = {}

    def is_read():
        page.update(get(served, "series", run=names, name="loss"))
        return all(found["indexed"] == 1 for found in page["runs"])

    wait_for(is_read)  # a request reads new runs for a limited time
    assert page["points"] == 1_000
    assert [found["series"][0]["lines"][0]["y"][-1] for found in page["runs"]] == [19.0 * i for i in range(100)]
    assert get(served, "series", run=names, name="loss", points=16)["points"] == 16
    answer = served.client.get("/api/v1/series", params={"run": [f"n{i}" for i in range(501)], "name": "loss"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_query")


@contextmanager
def thinned_runs():
    """Collect the names of the runs whose lines this thread computes."""
    found = []
    thins = StoredRun.series.__wrapped__.__code__

    def note(frame, event, _argument):
        if event == "call" and frame.f_code is thins:
            found.append(frame.f_locals["self"].folder.name)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def overlay(store, cache, runs, **query):
    page = _overlay.build_overlay_page(store, OverlayQuery(run=runs, name=["loss"], **query), cache)
    return msgspec.json.decode(msgspec.json.encode(page), type=OverlayPage).runs


def test_only_lines_of_runs_that_grew_are_thinned_again(tmp_path):
    names = [f"r{i}" for i in range(20)]
    for name in names:
        write(tmp_path / name, [START, *(step(at, loss=float(at)) for at in range(100))])
    store, cache = Store(tmp_path), SeriesCache()
    while any(run.indexed_share < 1 for run in overlay(store, cache, names)):
        pass
    append(RunFolder(tmp_path / "r7"), [step(100, loss=-1.0)])
    with thinned_runs() as thinned:
        pages = overlay(store, cache, names)
    assert thinned == ["r7"]
    assert pages[7].series[0].lines[0].y[-1] == -1.0
    for other in ({"x": "time"}, {"high": 5.0}, {"points": 50}):
        with thinned_runs() as thinned:
            pages = overlay(store, cache, names[:2], **other)
        assert thinned == ["r0", "r1"]
        assert pages == overlay(store, SeriesCache(), names[:2], **other)
    # A replaced journal, although it is as long as the one before.
    other = write(tmp_path / "other", [START, *(step(at, loss=float(at)) for at in range(99, -1, -1))])
    other.journal.rename(tmp_path / "r0" / "metrics.jsonl")
    assert overlay(store, cache, ["r0"])[0].series == overlay(Store(tmp_path), SeriesCache(), ["r0"])[0].series


def test_a_run_that_is_being_read_is_thinned_when_it_doubled(tmp_path, monkeypatch):
    monkeypatch.setattr(_overlay, "_MAX_TOTAL_REFRESH_S", 0.0)  # the test reads the journal, a block at a time
    write(tmp_path / "a", [START])
    with open(tmp_path / "a" / "metrics.jsonl", "ab") as file:
        for first in range(0, 16_000, 1_000):
            file.write(lines(step(at, loss=float(at), text="x" * 1_000) for at in range(first, first + 1_000)))
    store, cache = Store(tmp_path), SeriesCache()
    run = store.open("a")
    num_blocks, page = 0, overlay(store, cache, ["a"])[0]
    assert (page.indexed_share, page.series[0].lines) == (0.0, [])
    with thinned_runs() as thinned:
        while page.indexed_share < 1:
            run.refresh(0.0)
            num_blocks += 1
            page = overlay(store, cache, ["a"])[0]
            share = page.series[0].lines[0].num_points / 16_000
            assert share == pytest.approx(page.indexed_share, abs=0.01)  # the share that the line covers
            assert page.indexed_share > run.indexed_share / 2
    assert num_blocks > 12
    assert len(thinned) <= 6
    assert page.series[0].lines[0].num_points == 16_000
    append(RunFolder(tmp_path / "a"), [step(16_000, loss=1.0)])
    assert overlay(store, cache, ["a"])[0].indexed_share < 1


def test_cached_series_are_limited_in_bytes(tmp_path):
    names = [f"r{i}" for i in range(4)]
    for name in names:
        write(tmp_path / name, [START, *(step(at, loss=0.5) for at in range(1_000)), END])
    store, cache = Store(tmp_path), SeriesCache(max_bytes=30_000)
    overlay(store, cache, names)
    with thinned_runs() as thinned:
        overlay(store, cache, ["r3", "r2"])
        overlay(store, cache, ["r0"])
    assert thinned == ["r0"]


def test_live_run_grows_on_computed_axes(serve, tmp_path):
    folder = write(tmp_path / "a", [start(), *(step(i, loss=1.0, sec_per_step=0.5) for i in range(1, 4))])
    served = serve(tmp_path)

    def line(axis):
        return get(served, "runs/a/series", name="loss", x=axis)["series"][0]["lines"][0]["x"]

    assert (line("samples"), line("training_time")) == ([4.0, 8.0, 12.0], [0.5, 1.0, 1.5])
    append(folder, [step(4, loss=1.0, sec_per_step=1.0)])
    assert (line("samples"), line("training_time")) == ([4.0, 8.0, 12.0, 16.0], [0.5, 1.0, 1.5, 2.5])


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_export_has_the_positions_of_computed_axes(serve, tmp_path, kind):
    write(tmp_path / "a", [start(), *(step(i, loss=i / 2) for i in range(1, 4)), END])
    served = serve(tmp_path)
    query = {"name": "loss", "x": "samples", "low": 8, "format": kind}
    answer = served.client.get("/api/v1/runs/a/export", params=query)
    if kind == "csv":
        assert answer.text.splitlines() == [
            "name,attempt,step,time,epoch,samples,value",
            "loss,0,2,1002.0,,8.0,1.0",
            "loss,0,3,1003.0,,12.0,1.5",
        ]
    else:
        last = {"name": "loss", "attempt": 0, "step": 3, "time": 1003.0, "epoch": None, "samples": 12.0, "value": 1.5}
        assert [json.loads(line) for line in answer.text.splitlines()][1:] == [last]
    missing = served.client.get("/api/v1/runs/a/export", params={**query, "x": "tokens"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (409, "no_such_axis")


def test_groups_average_only_where_two_runs_have_data(serve, tmp_path):
    nan = float("nan")
    runs = {
        "s1": (start(seed=1, output_dir="x"), {0: 1.0, 10: 2.0, 20: 3.0, 30: 9.0}),
        "s2": (start(seed=2, output_dir="y"), {0: 3.0, 5: 100.0, 10: 4.0, 20: nan, 30: 1000.0}),
        "s3": (start(seed=3), {10: 9.0, 20: 7.0, 40: 5.0}),
        "alone": (start(lr=0.5), {0: 5.0, 1: 6.0}),
        "other": (start(lr=0.7), {}),
    }
    for name, (first, values) in runs.items():
        write(tmp_path / name, [first, *(step(at, loss=value) for at, value in values.items()), END])
    resumed = {**start(seed=2, output_dir="y"), "resumed": True}
    append(RunFolder(tmp_path / "s2"), [resumed, step(30, loss=1.0), END])  # repeats a step
    served = serve(tmp_path)
    query = {"run": list(runs), "by": "config", "name": "loss"}
    page = get(served, "series/groups", **query)
    assert (page["by"], page["indexed"]) == (["config.lr"], 1.0)
    assert page["reasons"] == {"other": "no metric 'loss' in this run"}
    first = page["groups"][0]
    assert (first["key"], first["label"], sorted(first["runs"])) == ([0.1], "lr=0.1", ["s1", "s2", "s3"])
    assert first["num_with_points"] == 3
    assert first["lines"] == {
        "x": [0.0, 10.0, 20.0, 30.0],
        "mean": [2.0, 5.0, 5.0, 5.0],
        "min": [1.0, 2.0, 3.0, 1.0],
        "max": [3.0, 9.0, 7.0, 9.0],
        "count": [2, 3, 2, 2],
    }
    rest = {group["label"]: group["lines"] for group in page["groups"][1:]}
    assert rest["lr=0.5"] == {"x": [0, 1], "mean": [5, 6], "min": [5, 6], "max": [5, 6], "count": [1, 1]}
    assert rest["lr=0.7"]["x"] == []
    # What else is shown does not change a mean.
    some = get(served, "series/groups", run=["s3", "s2", "s1"], by="config.lr", name="loss")
    assert [group["lines"] for group in some["groups"]] == [first["lines"]]
    # On an axis of time, runs have values between their points.
    times = get(served, "series/groups", run=["s1", "s3"], by="config", name="loss", x="relative", high=35)
    assert times["groups"][0]["lines"] == {
        "x": [10.0, 20.0],
        "mean": [5.5, 5.0],
        "min": [2.0, 3.0],
        "max": [9.0, 7.0],
        "count": [2, 2],
    }


def test_group_line_is_thinned_with_its_extremes(serve, tmp_path):
    for run in range(3):
        values = {at: float(run) for at in range(5_000)}
        values[1_234 + run] = 50.0 * (run - 1)
        write(tmp_path / f"r{run}", [start(seed=run), *(step(at, loss=y) for at, y in values.items()), END])
    served = serve(tmp_path)
    query = {"run": ["r0", "r1", "r2"], "by": "config", "name": "loss"}
    whole = get(served, "series/groups", **query, points=20_000)["groups"][0]["lines"]
    thin = get(served, "series/groups", **query, points=60)["groups"][0]["lines"]
    assert len(whole["x"]) == 5_000
    assert len(thin["x"]) <= 66
    assert (min(thin["min"]), max(thin["max"])) == (-50.0, 50.0)
    at = {x: place for place, x in enumerate(whole["x"])}
    for column, values in thin.items():
        assert values == [whole[column][at[x]] for x in thin["x"]]


def test_any_metric_is_an_x_axis(serve, tmp_path):
    """Values of x are joined by step, within an attempt; points without one are left out and counted."""
    records = [start(), step(1, loss=9.0), step(2, loss=8.0, reward=1.0), step(3, loss=7.0)]
    records += [
        step(4, reward=5.0),
        step(5, loss=6.0),
        step(6, loss=5.0, reward=3.0),
        step(7, loss=4.0, reward=float("nan")),
    ]
    resumed = {**start(), "resumed": True}
    records += [
        resumed,
        step(7, loss=3.0),
        step(8, loss=2.0, reward=2.0),
        {**step(9, val_loss=1.5), "event": "validation"},
    ]
    write(tmp_path / "a", [*records, END])
    served = serve(tmp_path)
    query = {"name": ["loss", "val_loss"], "x_metric": "reward"}
    loss, val_loss = get(served, "runs/a/series", **query)["series"]
    # Drawn in the order of steps; the NaN of x and what precedes the first value of each attempt have no place.
    assert [(line["attempt"], line["x"], line["y"]) for line in loss["lines"]] == [
        (0, [1.0, 1.0, 5.0, 3.0], [8.0, 7.0, 6.0, 5.0]),
        (1, [2.0], [2.0]),
    ]
    assert (loss["num_unplaced"], val_loss["num_unplaced"]) == (3, 0)
    assert (val_loss["lines"][0]["x"], val_loss["lines"][0]["y"]) == ([2.0], [1.5])
    assert get(served, "series", run="a", **query)["runs"][0]["series"] == [loss, val_loss]
    # A range filters points: the line is interrupted where it leaves the range, and runs to its edges.
    inside = get(served, "runs/a/series", name="loss", x_metric="reward", low=4)["series"][0]["lines"][0]
    assert (inside["x"], inside["y"]) == ([1.0, 5.0, 3.0], [7.0, 6.0, 5.0])
    missing = get(served, "series", run="a", name="loss", x_metric="gone")["runs"][0]["series"][0]
    assert (missing["lines"], missing["reason"]) == ([], "no metric 'gone' in this run")


def test_line_on_a_metric_that_goes_back_is_thinned_with_its_extremes(serve, tmp_path):
    def point(at):
        return step(at, loss=50.0 if at == 3_333 else at / 5_000, x=-7.0 if at == 2_222 else float(at % 1_000))

    write(tmp_path / "a", [start(), *map(point, range(5_000)), END])
    served = serve(tmp_path)
    line = get(served, "series", run="a", name="loss", x_metric="x", points=200)["runs"][0]["series"][0]["lines"][0]
    assert (line["num_points"], line["mean_x"]) == (5_000, [])
    assert len(line["x"]) < 250
    assert (min(line["x"]), max(line["x"]), max(line["y"])) == (-7.0, 999.0, 50.0)
    assert (333.0, 50.0) in list(zip(line["x"], line["y"], strict=True))
    part = get(served, "series", run="a", name="loss", x_metric="x", low=990, high=995)["runs"][0]["series"][0][
        "lines"
    ][0]
    assert part["y"].count(None) == 4  # five passes through the range


def test_means_on_a_metric_need_values_that_only_rise_or_fall(serve, tmp_path):
    for seed in range(3):
        rising = [step(i, loss=10.0 + seed - i, frames=100.0 * i + 10 * seed, lr=1 / (1 + i)) for i in range(5)]
        write(tmp_path / f"r{seed}", [start(seed=seed), *rising, END])
    write(tmp_path / "back", [start(lr=0.5), *(step(i, loss=1.0, frames=float(i % 3)) for i in range(9)), END])
    served = serve(tmp_path)
    query = {"run": ["r0", "r1", "r2", "back"], "by": "config.lr", "name": "loss"}
    first, second = get(served, "series/groups", **query, x_metric="frames")["groups"]
    assert (first["lines"]["x"][0], first["lines"]["x"][-1], first["reason"]) == (10.0, 410.0, None)
    assert first["lines"]["mean"][1] == pytest.approx((9.8 + 10.9 + 12.0) / 3)  # interpolated at 20 frames
    assert (second["lines"]["x"], second["num_with_points"]) == ([], 1)
    assert second["reason"] == "no mean: 'frames' goes up and down in 'back', so a position has several values"
    falling = get(served, "series/groups", **query, x_metric="lr")["groups"][0]
    assert falling["lines"]["x"] == pytest.approx([0.2, 0.25, 1 / 3, 0.5, 1.0])
    assert falling["lines"]["mean"] == [7.0, 8.0, 9.0, 10.0, 11.0]
