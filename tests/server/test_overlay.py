"""Series of several runs in one response, and means of groups."""

from __future__ import annotations

import json

import pytest

from tachograph.journal import RunFolder
from tests.conftest import wait_for
from tests.store import END, START, append, step, write

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
