"""Charts: zoom, NaN, many metrics, comparison, export and shareable addresses."""

from __future__ import annotations

import json
import math
import re
from urllib.parse import parse_qs, urlparse

import msgspec
from playwright.sync_api import expect

import tachograph
import tachograph.wandb as wandb
from tests.browser.test_live import panel, plot_box
from tests.conftest import wait_for

OPTIONS = {"console": False, "system_interval_s": 0, "git": False, "csv": False}


def record(logs, name, rows, **options):
    with tachograph.init(name, log_dir=str(logs), **OPTIONS, **options) as run:
        for step, row in enumerate(rows):
            run.log(row, step=step)


def write_journal(logs, name, rows, **facts):
    (logs / name).mkdir(parents=True)
    start = {"event": "start", "time": 0.0, "run_name": name, "run_id": "00", **facts}
    steps = ({"event": "step", "time": float(step), "global_step": step, **row} for step, row in enumerate(rows))
    end = {"event": "end", "time": float(10**9), "status": "finished"}
    (logs / name / "metrics.jsonl").write_bytes(msgspec.json.Encoder().encode_lines([start, *steps, end]))


def series_of(response):
    return response.json()["series"][0]["lines"][0]


def test_zoom_loads_finer_points_and_zoom_out_all(page, dashboard, logs):
    write_journal(
        logs, "long", [{"train_loss": math.sin(step / 500) + (step == 123_456) * 50} for step in range(200_000)]
    )
    address = dashboard().url + "#/run/long/charts"
    page.goto(address)
    read = "fetch('api/v1/runs/long/series?name=train_loss').then(answer => answer.json())"
    wait_for(lambda: page.evaluate(read)["series"][0]["lines"][0]["x"][-1:] == [199_999], "the whole journal is read")
    page.goto("about:blank")  # or the answer might be one that the page asked for before
    with page.expect_response(re.compile("/series")) as wide:
        page.goto(address)
    whole = series_of(wide.value)
    assert len(whole["x"]) < 5_000
    assert max(whole["y"]) > 49  # the outlier is kept
    plot = panel(page, "train_loss").locator(".plot")
    box = plot_box(page, "train_loss")
    with page.expect_response(re.compile("low=")) as near:
        page.mouse.move(box["x"] + box["width"] * 0.60, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.62, box["y"] + 60, steps=5)
        page.mouse.up()
    finer = series_of(near.value)
    spacing = (finer["x"][-1] - finer["x"][0]) / len(finer["x"])
    assert spacing < (whole["x"][-1] - whole["x"][0]) / len(whole["x"]) / 10
    expect(page).to_have_url(re.compile("low="))
    query = parse_qs(urlparse(page.url.replace("#", "")).query)
    assert 115_000 < float(query["low"][0]) < float(query["high"][0]) < 130_000
    plot.dblclick()
    expect(page).not_to_have_url(re.compile("low="))


def test_nan_and_infinity_are_marks_not_zero(page, dashboard, logs):
    bad = {10: math.nan, 11: math.nan, 20: math.inf, 30: -math.inf}
    record(
        logs, "diverged", [{"train_loss": bad.get(step, 5.0 + step)} for step in range(40)] + [{"train_loss": math.nan}]
    )
    start = dashboard()
    page.goto(start.url + "#/run/diverged/charts")
    expect(panel(page, "train_loss")).to_contain_text("5 ×")
    # No point is drawn at 0: the scale starts at the lowest finite value.
    ticks = page.evaluate("fetch('api/v1/runs/diverged/series?name=train_loss').then(answer => answer.json())")
    values = [value for value in ticks["series"][0]["lines"][0]["y"] if value is not None]
    assert min(values) == 5.0
    assert ticks["series"][0]["lines"][0]["y"].count(None) == 3
    page.goto(start.url + "#/table")
    expect(page.get_by_role("row", name=re.compile("diverged"))).to_contain_text("loss is NaN")
    page.goto(start.url + "#/run/diverged/overview")
    expect(page.get_by_text("5 not finite")).to_be_visible()


def test_thousand_metrics_stay_usable(page, dashboard, logs):
    names = [f"layer{index // 20}/weight{index % 20}" for index in range(1_000)]
    write_journal(logs, "wide", [dict.fromkeys(names, step * 0.5) for step in range(50)])
    page.goto(dashboard().url + "#/run/wide/charts")
    expect(page.locator("[data-metric]").first).to_be_visible()
    page.wait_for_timeout(1_000)
    assert page.locator("canvas").count() < 60  # only visible charts are drawn
    page.get_by_label("Search metrics").fill("layer17 weight3")
    expect(page.locator("[data-metric]")).to_have_count(1)
    expect(panel(page, "layer17/weight3").locator("canvas").first).to_be_visible()
    page.get_by_label("Search metrics").fill("/weight1[89]$/")
    expect(page.get_by_text("100 of 1000 metrics")).to_be_visible()


def test_long_names_differ_above_the_charts(page, dashboard, logs):
    names = [f"a-long-name-of-an-experiment-lr{lr}-seed-1-with-the-same-end" for lr in ("0.001", "0.003")]
    for name in names:
        write_journal(logs, name, [{"train_loss": 1.0}])
    page.goto(f"{dashboard().url}#/run/{names[0]}/charts?with={names[1]}")
    for name, part in zip(names, ("0.001", "0.003"), strict=True):
        chip = page.locator(".chip.run").filter(has=page.get_by_title(name))
        expect(chip.locator(".shown")).to_have_text(re.compile(rf"….*{re.escape(part)}"))


def test_selected_runs_are_compared_in_charts(page, dashboard, logs, context):
    for name, factor in (("first", 1.0), ("second", 2.0), ("third", 3.0)):
        record(logs, name, [{"train_loss": factor * step} for step in range(30)], config={"lr": factor, "seed": 1})
    start = dashboard()
    page.goto(start.url + "#/table")
    page.get_by_label("Select first").check()
    page.get_by_label("Select third").check()
    page.get_by_role("button", name="Compare 2").click()
    page.locator('[data-metric="train_loss"] .plot').hover()  # the legend shows the chart that was last pointed at
    page.mouse.move(0, 0)
    for name, value in (("first", "29"), ("third", "87")):
        expect(page.get_by_label("Legend").get_by_role("listitem").filter(has_text=name)).to_contain_text(value)
    page.goto(start.url + "#/run/first/charts?with=third")
    expect(panel(page, "train_loss").locator(".values")).to_contain_text("87")
    expect(panel(page, "train_loss").locator(".values")).to_contain_text("29")
    page.get_by_label("Overlay another run").select_option("second")
    expect(panel(page, "train_loss").locator(".values")).to_contain_text("58")
    page.get_by_role("button", name="log y").click()
    page.get_by_label("Horizontal axis").select_option("relative")
    other = context.new_page()  # another user opens the same address
    other.goto(page.url)
    expect(panel(other, "train_loss").locator(".values")).to_contain_text("58")
    expect(other.get_by_role("button", name="log y")).to_have_attribute("aria-pressed", "true")
    expect(other.get_by_label("Horizontal axis")).to_have_value("relative")
    page.get_by_role("link", name="overview").click()
    page.get_by_label("Compare with the config of another run").select_option("second")
    expect(page.get_by_role("button", name="only differences (1)")).to_be_visible()
    expect(page.get_by_role("cell", name="seed")).to_have_count(0)


def test_panel_exports_csv_json_and_pictures(page, dashboard, logs):
    record(logs, "run", [{"train_loss": math.nan if step == 3 else step / 7} for step in range(5_000)])
    page.goto(dashboard().url + "#/run/run/charts")
    menu = page.get_by_label("Export, enlarge or limit train_loss")
    menu.click()
    with page.expect_download() as csv:
        panel(page, "train_loss").get_by_role("link", name="CSV").click()
    lines = csv.value.path().read_text().splitlines()
    assert len(lines) == 5_001
    assert lines[4].startswith("train_loss,0,3,") and lines[4].endswith(",nan")
    menu.click()
    with page.expect_download() as ndjson:
        panel(page, "train_loss").get_by_role("link", name="JSON").click()
    rows = [json.loads(line) for line in ndjson.value.path().read_text().splitlines()]
    assert [row["value"] for row in rows[2:5]] == [2 / 7, "NaN", 4 / 7]
    menu.click()
    with page.expect_download() as png:
        panel(page, "train_loss").get_by_role("button", name="Save PNG").click()
    assert png.value.path().read_bytes().startswith(b"\x89PNG")
    menu.click()
    with page.expect_download() as svg:
        panel(page, "train_loss").get_by_role("button", name="Save SVG").click()
    assert "train_loss · run" in svg.value.path().read_text()
    menu.click()
    panel(page, "train_loss").get_by_role("button", name="Enlarge", exact=True).click()
    expect(page.get_by_role("dialog").locator("canvas").first).to_be_visible()


def test_charts_of_a_run_are_arranged_as_those_of_many(page, dashboard, logs, context):
    """Pins, limits and both logarithmic axes are in the address; pins are kept for other runs, too."""
    rows = [{"train_loss": 3.0 / (1 + number), "reward": number - 2.0} for number in range(40)]
    record(logs, "run", rows)
    record(logs, "other", [{"train_loss": 1.0}] * 5)
    start = dashboard()
    page.goto(start.url + "#/run/run/charts")
    pinned = page.get_by_label("Pinned charts").locator("[data-metric]")
    for name in ("reward", "train_loss"):
        panel(page, name).get_by_label(f"Pin {name}").click()
    expect(pinned).to_have_count(2)
    for name in ("log x", "log y"):
        page.get_by_role("button", name=name).click()
    expect(panel(page, "reward")).to_contain_text("3 values ≤ 0 not shown on the logarithmic scale")
    page.get_by_label("Export, enlarge or limit train_loss").click()
    page.get_by_label("Highest value").fill("2.5")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(panel(page, "train_loss").get_by_role("button", name="Reset limits")).to_be_visible()
    other = context.new_page()
    other.goto(page.url)
    expect(panel(other, "train_loss").get_by_role("button", name="Reset limits")).to_be_visible()
    expect(other.get_by_label("Pinned charts").locator("[data-metric]")).to_have_count(2)
    assert other.get_by_role("button", name="log x").get_attribute("aria-pressed") == "true"
    page.goto(start.url + "#/run/other/charts")
    expect(pinned).to_have_count(1)  # it has no reward
    panel(page, "train_loss").get_by_label("Unpin train_loss").click()
    expect(pinned).to_have_count(0)


def test_keys_and_pinches_work_on_the_chart_of_a_run(page, dashboard, logs, context):
    record(logs, "run", [{"train_loss": 100.0 + number, "lr": 1.0} for number in range(101)])
    page.goto(dashboard().url + "#/run/run/charts")
    box = plot_box(page, "train_loss")
    panel(page, "train_loss").locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    for name, value in (("train_loss", "151"), ("lr", "1")):  # the cursor is shared by all charts
        expect(panel(page, name).locator(".values")).to_have_text(re.compile(rf"step 51\s*{value}$"))
    expect(panel(page, "train_loss").get_by_role("status")).to_have_text(re.compile("151$"))  # for screen readers
    page.keyboard.press("Escape")
    expect(panel(page, "train_loss").locator(".values")).to_have_text("200")

    touch = context.new_cdp_session(page)
    middle, height = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def fingers(kind, *apart):
        points = [{"x": middle + sign * each, "y": height, "id": sign + 1} for each in apart for sign in (-1, 1)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", 20)
    fingers("touchMove", 60)
    fingers("touchEnd")
    expect(page).to_have_url(re.compile("low="))
    query = parse_qs(urlparse(page.url.replace("#", "")).query)
    assert 20 < float(query["low"][0]) < 50 < float(query["high"][0]) < 80


def test_attempts_of_resumed_run_share_one_axis(page, dashboard, logs):
    record(logs, "resumed", [{"train_loss": 1.0 + step} for step in range(50)])
    with tachograph.init("resumed", log_dir=str(logs), resume=True, **OPTIONS) as run:
        for step in range(30, 60):
            run.log({"train_loss": 100.0 + step}, step=step)
    start = dashboard()
    page.goto(start.url + "#/run/resumed/overview")
    expect(page.get_by_role("heading", name="2 attempts")).to_be_visible()
    expect(page.get_by_text("repeated 20 steps")).to_be_visible()
    answer = page.evaluate("fetch('api/v1/runs/resumed/series?name=train_loss').then(answer => answer.json())")
    assert [(line["attempt"], line["x"][0], line["x"][-1]) for line in answer["series"][0]["lines"]] == [
        (0, 0.0, 49.0),
        (1, 30.0, 59.0),
    ]


def test_metrics_are_drawn_on_the_axis_of_define_metric(page, dashboard, logs, monkeypatch):
    """Also those that a pattern defines, and those that were logged before; the step is one click away."""
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    with wandb.init(project="p", name="axes", settings={"silent": True}) as run:
        run.log({"early/score": 1.0, "epoch": 0})
        run.define_metric("early/*", step_metric="epoch")
        run.define_metric("val/*", step_metric="epoch")
        for number in range(1, 41):
            run.log({"loss": 1 / number})
            if number % 10 == 0:
                run.log({"val/acc": 0.5, "early/score": 2.0, "epoch": 7 * number})
    with page.expect_response(re.compile("x_metric=epoch")):
        page.goto(dashboard().url + "#/run/axes/charts")
    read = "fetch('api/v1/runs/axes/series?name=val/acc&name=early/score&x_metric=epoch').then(answer => answer.json())"
    lines = {series["name"]: series["lines"][0]["x"] for series in page.evaluate(read)["series"]}
    assert lines == {"val/acc": [70, 140, 210, 280], "early/score": [0, 70, 140, 210, 280]}
    for name in lines:
        expect(panel(page, name)).to_contain_text("by epoch")
    expect(panel(page, "loss")).not_to_contain_text("by")
    box = plot_box(page, "val/acc")
    page.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2)
    expect(panel(page, "val/acc")).to_contain_text(re.compile(r"epoch 2[678]\d"))
    with page.expect_response(re.compile("x_metric=epoch.*low=")):  # the address of the page keeps the range of steps
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=5)
        page.mouse.up()
    assert "low=" not in page.url
    page.get_by_role("button", name="Zoom out").click()
    with page.expect_response(re.compile(r"/series\?x=step&points=.*val%2Facc")):
        page.get_by_role("button", name="own axes").click()
    expect(panel(page, "val/acc")).not_to_contain_text("by epoch")

    # Runs that are compared use these axes, too.
    page.goto(page.url.partition("#")[0] + "#/compare/charts?run=axes")
    expect(panel(page, "val/acc")).to_contain_text("by epoch")
    expect(panel(page, "loss")).not_to_contain_text("by")
    with page.expect_response(re.compile("name=val%2Facc&x=step&points")):
        page.get_by_role("button", name="own axes").click()
    expect(panel(page, "val/acc")).not_to_contain_text("by epoch")
