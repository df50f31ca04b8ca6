"""Regressions: bugs found in use, each reproduced as it was found."""

from __future__ import annotations

import math
import re

import pytest
from playwright.sync_api import expect

import tachograph
from tests.browser.conftest import wait_for_run
from tests.browser.test_charts import OPTIONS, record, write_journal
from tests.browser.test_live import panel, plot_box
from tests.conftest import remove_folder, wait_for
from tests.store import START, step, write


def shown_range(page, name):
    """Return the labels of the x axis, captured by a spy on `fillText`."""
    return page.evaluate("window.texts").get(name, [])


SPY = """
window.texts = {};
const original = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  const panel = this.canvas.closest("[data-metric]");
  if (panel) (window.texts[panel.dataset.metric] ??= []).push(String(text));
  return original.call(this, text, ...rest);
};
"""


def test_axis_change_redraws_labels(page, context, dashboard, logs):
    record(logs, "run", [{"train_loss": float(number)} for number in range(300)])
    page.add_init_script(SPY)
    page.goto(dashboard().url + "#/run/run/charts")
    expect(panel(page, "train_loss").locator("canvas").first).to_be_visible()
    page.evaluate("window.texts = {}")
    page.get_by_label("Horizontal axis").select_option("time")
    texts = wait_for(lambda: shown_range(page, "train_loss"))
    assert not any("1970" in text for text in texts)


@pytest.mark.parametrize("address", ["#/table", "#/run/run/charts?with=other&with=other"])
def test_duplicate_keys_do_not_blank_the_page(page, dashboard, logs, address):
    record(logs, "run", [{"train_loss": 1.0}], tags=["twice", "twice"])
    record(logs, "other", [{"train_loss": 2.0}])
    page.goto(dashboard().url + address)
    expect(
        page.get_by_text("twice").first if address == "#/table" else panel(page, "train_loss").locator("canvas").first
    ).to_be_visible()


def test_nearly_constant_metric_does_not_break_others(page, dashboard, logs):
    rows = [
        {"flat": 5.0 + 1e-9 * math.sin(number), "zero": 0.0, "huge": 1e300 * number, "tiny": 5e-324}
        for number in range(50)
    ]
    record(logs, "run", rows)
    page.goto(dashboard().url + "#/run/run/charts")
    for name in ("flat", "zero", "huge", "tiny"):
        expect(panel(page, name).locator("canvas").first).to_be_visible()
        expect(panel(page, name)).not_to_contain_text("Cannot draw this chart")


def test_zooming_out_restores_all_spans(page, dashboard, logs):
    spans = (
        {
            "event": "span",
            "time": 1_001.0 + number / 50,
            "span_id": f"{number + 1:016x}",
            "name": "work",
            "duration_s": 0.01,
        }
        for number in range(30_000)
    )
    write(logs / "run", [START, *spans, {"event": "end", "time": 2_000.0, "status": "finished"}])
    page.goto(dashboard().url + "#/run/run/timeline")
    view = page.locator("[data-view]")
    expect(view).to_have_text("10 min 00 s")
    for _ in range(6):
        page.get_by_label("Zoom in").click()
    expect(view).not_to_have_text("10 min 00 s")
    with page.expect_response(lambda answer: "/spans" in answer.url and "low=" not in answer.url) as answer:
        page.get_by_role("button", name="Show everything").click()
    assert answer.value.json()["num_spans"] == 30_000
    expect(page.locator("[data-spans]")).to_have_attribute("data-spans", "30000")


def test_keys_select_spans_of_the_timeline(page, dashboard, logs):
    spans = (
        {
            "event": "span",
            "time": 1_200.0 + 100 * number,
            "span_id": f"{number + 1:016x}",
            "name": name,
            "duration_s": 50.0,
        }
        for number, name in enumerate(("load_data", "train", "evaluate"))
    )
    write(logs / "run", [START, *spans, {"event": "end", "time": 2_000.0, "status": "finished"}])
    page.goto(dashboard().url + "#/run/run/timeline")
    expect(page.locator("[data-spans]")).to_have_attribute("data-spans", "3")
    page.get_by_label("Timeline of spans").focus()
    selected = page.get_by_role("status")
    for key, name in (("n", "load data"), ("n", "train"), ("n", "evaluate"), ("p", "train")):
        page.keyboard.press(key)
        expect(selected).to_have_text(re.compile(rf"^{name} 50\.?0* s"))


@pytest.mark.complains
def test_failed_requests_recover_without_reload(page, context, dashboard, logs):
    write_journal(logs, "run", [{f"metric{index}": float(index) for index in range(30)} for _ in range(5)])
    page.goto(dashboard().url + "#/run/run/charts")
    expect(panel(page, "metric0").locator("canvas").first).to_be_visible()
    context.set_offline(True)
    panel(page, "metric29").scroll_into_view_if_needed()
    expect(page.get_by_role("alert")).to_contain_text("Cannot reach the server")
    context.set_offline(False)
    expect(panel(page, "metric29").locator(".values")).to_contain_text("29")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_old_error_is_still_shown_on_events_page(page, dashboard, logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        run.log_error(RuntimeError("the one that matters"))
        for number in range(3_000):
            run.event(f"happened {number % 7}")
        for _ in range(1_500):
            run.event("training_metrics_update")
    page.goto(dashboard().url + "#/run/run/events")
    tile = page.locator("section", has=page.get_by_role("heading", name="Errors"))
    expect(tile).to_contain_text("the one that matters")
    page.get_by_role("button", name=re.compile("^error")).click()
    expect(page.locator(".record")).to_have_count(1)


def test_expanded_event_stays_expanded_on_update(page, dashboard, logs, script):
    source = """
        import sys, time, tachograph
        run = tachograph.init("run", log_dir=sys.argv[1], console=False, flush_interval_s=0.05, git=False)
        run.event("the first")
        for number in range(1000):
            time.sleep(0.1)
            run.event(f"later {number}")
    """
    script(source, logs)
    wait_for_run(logs / "run")
    page.goto(dashboard().url + "#/run/run/events")
    page.get_by_text("the first", exact=True).click()
    expect(page.locator(".record[open]")).to_have_count(1)
    before = page.locator(".record").count()
    expect(page.locator(".record").nth(before + 5)).to_be_visible()
    expect(page.locator(".record[open]")).to_contain_text("the first")


@pytest.mark.complains
def test_deleted_run_shows_notice(page, dashboard, logs):
    record(logs, "run", [{"train_loss": 1.0}])
    page.goto(dashboard().url + "#/run/run/overview")
    expect(page.get_by_role("heading", level=1)).to_have_text("run")
    remove_folder(logs / "run")
    expect(page.get_by_role("status")).to_contain_text("no longer exists in the log folder")


def test_offscreen_charts_are_destroyed(page, dashboard, logs):
    write_journal(logs, "wide", [{f"m{index:03}": float(index) for index in range(300)} for _ in range(3)])
    page.goto(dashboard().url + "#/run/wide/charts?q=m")
    expect(panel(page, "m000").locator("canvas").first).to_be_visible()
    for name in ("m100", "m200", "m299"):
        panel(page, name).scroll_into_view_if_needed()
        expect(panel(page, name).locator("canvas").first).to_be_visible()
    wait_for(lambda: page.locator("canvas").count() < 60)
    panel(page, "m000").scroll_into_view_if_needed()
    expect(panel(page, "m000").locator("canvas").first).to_be_visible()


def test_legend_shows_latest_recorded_value(page, dashboard, logs):
    first = [step(number, train_loss=math.nan if number > 90 else 1.0) for number in range(100)]
    again = [step(number, train_loss=0.25) for number in range(50, 60)]
    write(logs / "run", [START, *first, {**START, "resumed": True, "time": 1_200.0}, *again])
    page.goto(dashboard().url + "#/run/run/charts")
    expect(panel(page, "train_loss").locator(".values")).to_have_text("0.25")


def test_control_field_accepts_empty_and_fractions(page, dashboard, logs, script):
    source = """
        import sys, time, tachograph
        run = tachograph.init("run", log_dir=sys.argv[1], console=False, flush_interval_s=0.05, git=False)
        run.control("dropout", 0.0, min=0.0, max=1.0)
        for number in range(10_000):
            run.log(train_loss=1.0, step=number)
            time.sleep(0.05)
    """
    script(source, logs)
    wait_for_run(logs / "run")
    page.goto(dashboard().url + "#/run/run/control")
    field = page.get_by_label("dropout, exact value")
    field.fill("")
    page.wait_for_timeout(500)
    expect(field).to_have_value("")
    field.press_sequentially("3e-1")  # not a number until it is complete
    expect(field).to_have_value("0.3")
    page.locator('[data-control="dropout"]').get_by_role("button", name="Set").click()
    expect(page.get_by_role("dialog")).to_contain_text("to 0.3")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("dropout", exact=True).fill("500")
    expect(field).to_have_value("0.5")


def test_browser_back_undoes_zoom(page, dashboard, logs):
    write_journal(logs, "run", [{"train_loss": float(number)} for number in range(1_000)])
    page.goto(dashboard().url + "#/run/run/charts")
    box = plot_box(page, "train_loss")
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50, steps=4)  # from right to left
    page.mouse.up()
    expect(page).to_have_url(re.compile("low="))
    page.go_back()
    expect(page).to_have_url(re.compile("charts$"))
    expect(panel(page, "train_loss")).to_be_visible()


def test_view_change_keeps_shown_values(page, context, dashboard, logs):
    record(logs, "run", [{"train_loss": 1.0 + number} for number in range(50)])
    page.add_init_script(SPY)
    page.goto(dashboard().url + "#/run/run/charts")
    value = panel(page, "train_loss").locator(".values")
    expect(value).to_have_text("50")
    for key in ("l", "t"):
        page.evaluate("window.texts = {}")
        page.keyboard.press(key)
        wait_for(lambda: shown_range(page, "train_loss"), f"a drawing after {key}")
        expect(value).to_have_text("50")
