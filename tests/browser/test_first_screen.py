"""The first screen of a run: its charts, with the verdict and the failure on top."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

import tachograph
from tests.browser.test_charts import OPTIONS, record, write_journal
from tests.browser.test_live import panel
from tests.conftest import HANG_S, wait_for

FAILING = """
import tachograph
with tachograph.init("broken", log_dir={logs!r}, system_interval_s=0, git=False) as run:
    for step in range(40):
        print("finished step", step)
        run.log({{"training_loss": 3.0 / (step + 1)}}, step=step)
    raise ValueError("shapes do not match")
"""


def shown_metrics(page):
    expect(page.locator("[data-metric]").first).to_be_visible()
    return [each.get_attribute("data-metric") for each in page.locator("details[open] [data-metric]").element_handles()]


def test_a_run_opens_on_its_charts_with_a_verdict(page, dashboard, logs):
    rows = [{"acc": step / 30, "training_loss": 1.0, "train/lr": 0.1, "window/x": 1.0} for step in range(30)]
    record(logs, "run", rows)
    page.goto(dashboard().url)
    page.get_by_role("link", name="run", exact=True).click()
    expect(page.get_by_role("link", name="charts")).to_have_attribute("aria-current", "page")
    expect(page.locator("[data-verdict]")).to_have_text("No open alerts.")
    wait_for(lambda: shown_metrics(page)[:2] == ["training_loss", "train/lr"], "the charts in this order")
    assert "acc" in shown_metrics(page)
    expect(panel(page, "window/x")).to_be_hidden()
    page.get_by_text("Windows").click()
    expect(panel(page, "window/x")).to_be_visible()


@pytest.mark.parametrize("tab", ["charts", "health"])
def test_a_failed_run_shows_its_failure_first(page, dashboard, logs, tmp_path, tab):
    script = tmp_path / "train.py"
    script.write_text(FAILING.format(logs=str(logs)), encoding="utf-8")
    command = [sys.executable, "-m", "tachograph", "run", "--log-dir", str(logs), "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 1, done.stderr
    page.goto(f"{dashboard().url}#/run/broken/{tab}")
    failure = page.get_by_label("Failure", exact=True)
    expect(failure.get_by_role("heading")).to_have_text("ValueError: shapes do not match")
    expect(failure).to_contain_text('raise ValueError("shapes do not match")')
    expect(failure).to_contain_text("finished step 39")
    failure.get_by_role("link", name="Show the steps before it").click()
    expect(panel(page, "training_loss")).to_be_visible()
    assert "high=39" in page.url


def test_a_metric_with_two_names_has_one_chart(page, dashboard, logs):
    rows = [{"loss": 3 / step, "train_loss": 3 / step, "lr": 0.1, "learning_rate": 0.1} for step in range(1, 30)]
    record(logs, "copies", rows)
    record(logs, "different", [{**row, "loss": row["loss"] + 0.1} for row in rows])
    start = dashboard()
    page.goto(start.url + "#/run/copies")
    expect(panel(page, "train_loss").locator("canvas").first).to_be_visible()
    names = ["train_loss", "lr"]
    wait_for(lambda: [name for name in shown_metrics(page) if name != "sec_per_step"] == names, "one chart of each")
    page.goto(start.url + "#/run/copies/charts?q=learning")
    expect(panel(page, "learning_rate")).to_be_visible()
    page.goto(start.url + "#/run/copies/overview")
    expect(page.get_by_role("cell", name="train_loss also loss")).to_be_visible()
    page.goto(start.url + "#/run/different")
    expect(panel(page, "loss")).to_be_visible()
    wait_for(lambda: shown_metrics(page)[:2] == ["loss", "train_loss"], "the charts in this order")


def test_internal_events_are_hidden_unless_asked_for(page, dashboard, logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        run.event("one_logger_initialization", world_size=1)
        run.event("mine")
    page.goto(dashboard().url + "#/run/run/events")
    expect(page.get_by_text("mine", exact=True)).to_be_visible()
    expect(page.get_by_text("one logger initialization")).to_be_hidden()
    page.get_by_role("button", name="Show routine events").click()
    expect(page.get_by_text("one logger initialization")).to_be_visible()


def test_steps_of_an_epoch_form_one_line(page, dashboard, logs):
    rows = [{"train_loss": 1.0 / (step + 1), "epoch": step // 100} for step in range(300)]
    write_journal(logs, "run", rows)
    page.goto(dashboard().url + "#/run/run/charts?x=epoch")
    expect(panel(page, "train_loss").locator("canvas").first).to_be_visible()
    read = "fetch('api/v1/runs/run/series?name=train_loss&x=epoch').then(answer => answer.json())"
    (line,) = page.evaluate(read)["series"][0]["lines"]
    assert line["x"] == pytest.approx([(step + 1) / 100 for step in range(300)])


def test_goodput_of_a_short_run_is_no_headline(page, dashboard, logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run, tachograph.training_loop():
        for step in range(20):
            with tachograph.training_iteration():
                run.log({"train_loss": 1.0}, step=step)
    page.goto(dashboard().url + "#/run/run/overview")
    expect(page.get_by_role("heading", name=re.compile("^Time of"))).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("Goodput"))).to_have_count(0)


def test_logged_data_without_a_chart_is_named(page, dashboard, logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        for step in range(20):
            run.log({"train_loss": 1.0, "vector": [1.0, 2.0], "odd": object()}, step=step)
        run.log("train_loss")
    page.goto(dashboard().url + "#/run/run")
    notices = page.get_by_text("3 things were logged that no chart shows")
    notices.click()
    for text in (
        "vector: a list of 2 values",
        "odd: values of type builtins.object",
        "expects a dict of metrics, got str",
    ):
        expect(page.get_by_role("listitem").filter(has_text=text)).to_be_visible()


def test_an_outlier_does_not_flatten_a_chart(page, dashboard, logs):
    values = [1.0 + step % 7 / 10 for step in range(300)]
    write_journal(logs, "run", [{"train_loss": value} for value in [*values[:150], 1e6, *values[151:]]])
    page.goto(dashboard().url + "#/run/run/charts")
    chart = panel(page, "train_loss")
    clipped = chart.get_by_role("button", name="1 clipped")
    expect(clipped).to_have_attribute("title", re.compile("^1 value of 1 line outside"))
    clipped.click()
    expect(chart.get_by_role("button", name="Clip outliers")).to_be_visible()
