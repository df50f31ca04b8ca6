"""The completions page: search, folding, sorting, steps and live updates."""

from __future__ import annotations

import math
import re

import pytest
from playwright.sync_api import expect

import tachograph
from tests.browser.conftest import wait_for_fit, wait_for_run
from tests.browser.test_charts import OPTIONS
from tests.conftest import wait_for


def rows_of(page):
    return page.locator("tbody tr")


def texts(page, label):
    return page.locator(f'tbody td[data-label="{label}"]').all_inner_texts()


@pytest.fixture
def samples(logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        run.log(train_loss=1.0, step=1)
        for step in (10, 20, 30):
            rows = [
                {"step": step, "prompt": f"question {step}", "completion": f"answer {index}", "reward": index / 10}
                for index in range(3)
            ]
            run.log_completions(rows, step=step)
        long = "word " * 500 + "the NEEDLE at last " + "tail " * 300
        odd = {"step": 40, "prompt": "<img src=x onerror=alert(1)>", "completion": long, "reward": math.nan}
        run.log_completions([odd, {"step": 40, "chosen": "only a\nchosen one"}], step=40, num_dropped=7)


@pytest.fixture
def at(page, dashboard, samples):
    page.goto(dashboard().url + "#/run/run/completions")
    expect(rows_of(page)).to_have_count(11)
    return page


def test_all_columns_shown_newest_first(at):
    assert at.locator("th").all_inner_texts() == ["step", "prompt", "completion", "reward", "chosen"]
    assert texts(at, "step") == ["40", "40", *["30"] * 3, *["20"] * 3, *["10"] * 3]
    expect(at.get_by_role("status")).to_contain_text("11 samples; 7 dropped because the buffer was full")
    expect(at.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    expect(rows_of(at).nth(1).locator("td.absent")).to_have_count(3)  # missing values stay empty
    expect(rows_of(at).nth(0).locator("td.number.bad")).to_have_text("NaN")


def test_search_highlights_matches_in_folded_text(at):
    at.keyboard.press("/")
    at.keyboard.type("needle")
    expect(rows_of(at)).to_have_count(1)
    expect(at.locator("mark")).to_have_text("NEEDLE")
    expect(at.get_by_role("status")).to_contain_text("1 of 11 samples")
    at.get_by_label("Search completions").fill("zebra")
    expect(at.get_by_role("heading", name="No match")).to_be_visible()
    at.get_by_role("button", name="Show all").click()
    expect(rows_of(at)).to_have_count(11)


def test_long_text_unfolds_and_folds(at):
    cell = rows_of(at).first.locator('td[data-label="completion"]')
    assert len(cell.inner_text()) < 600
    cell.get_by_role("button", name="Unfold completion of step 40").click()
    expect(cell).to_contain_text("the NEEDLE at last")
    cell.get_by_role("button", name="Fold completion of step 40").click()
    expect(cell).not_to_contain_text("NEEDLE")


def test_slider_moves_between_steps_by_keyboard(at):
    slider = at.get_by_role("slider", name="Step")
    expect(slider).to_have_attribute("aria-valuetext", "all steps")
    slider.focus()
    at.keyboard.press("ArrowLeft")
    expect(at.locator("[data-step]")).to_have_text(re.compile(r"step\s*30"))
    expect(rows_of(at)).to_have_count(3)
    assert set(texts(at, "step")) == {"30"}
    at.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "step 10")
    expect(rows_of(at).first).to_contain_text("question 10")
    at.keyboard.press("End")
    expect(rows_of(at)).to_have_count(2)
    everything = at.get_by_role("button", name="All steps")
    expect(everything).to_have_attribute("aria-pressed", "false")
    everything.click()
    expect(rows_of(at)).to_have_count(11)


def test_numeric_sort_puts_missing_values_last(at):
    head = at.locator("th", has_text="reward")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert texts(at, "reward") == ["0.2"] * 3 + ["0.1"] * 3 + ["0"] * 3 + ["NaN"]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert texts(at, "reward") == ["0"] * 3 + ["0.1"] * 3 + ["0.2"] * 3 + ["NaN"]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "none")
    expect(at.locator("th", has_text="prompt").get_by_role("button")).to_have_count(0)


def test_phone_shows_each_sample_as_card(at):
    at.set_viewport_size({"width": 400, "height": 800})
    at.reload()
    expect(rows_of(at)).to_have_count(11)
    expect(at.locator("thead")).to_be_hidden()
    wait_for_fit(at)
    expect(at.get_by_role("link", name="completions")).to_be_in_viewport()
    wide = rows_of(at).first.locator('td[data-label="completion"]').bounding_box()
    assert wide["width"] > 300
    at.get_by_label("Sort by").select_option("-reward")
    wait_for(lambda: texts(at, "reward")[:3] == ["0.2"] * 3, "the sorted rows")


def test_table_filter_selects_table(page, dashboard, logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        run.log_completions([{"completion": "trained"}], step=1)
        run.log_completions([{"completion": "probed"}], step=2, table="probes")
    page.goto(dashboard().url + "#/run/run/completions")
    expect(rows_of(page)).to_have_count(2)
    page.get_by_label("Table").select_option("probes")
    expect(rows_of(page)).to_have_count(1)
    expect(rows_of(page)).to_contain_text("probed")


def test_empty_state_explains_how_to_record(page, dashboard, logs):
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        run.log(train_loss=1.0, step=1)
    url = dashboard().url
    page.goto(url + "#/run/run/overview")
    expect(page.get_by_role("link", name="completions")).to_have_count(0)  # an empty page has no tab
    page.goto(url + "#/run/run/completions")
    expect(page.get_by_role("heading", name="No completions")).to_be_visible()
    expect(page.get_by_text("tacho.Completions(run, every=100)")).to_be_visible()


def test_new_rows_appear_and_unfolded_stay_unfolded(page, dashboard, logs, script):
    source = """
        import sys, tachograph
        run = tachograph.init("run", log_dir=sys.argv[1], console=False, flush_interval_s=0.05, git=False)
        run.log_completions([{"completion": "first " * 200}], step=1)
        for number, line in enumerate(sys.stdin):
            run.log(train_loss=1.0, step=number)
            run.log_completions([{"completion": line.strip()}], step=number + 2)
    """
    trainer = script(source, logs)
    wait_for_run(logs / "run")
    page.goto(dashboard().url + "#/run/run/completions")
    expect(rows_of(page)).to_have_count(1)
    page.get_by_role("button", name="Unfold completion of step 1").click()
    trainer.process.stdin.write("something new\n")
    trainer.process.stdin.flush()
    expect(rows_of(page)).to_have_count(2)
    expect(rows_of(page).first).to_contain_text("something new")
    expect(page.get_by_role("button", name="Fold completion of step 1")).to_be_visible()
    trainer.ok()


def test_completions_are_not_events(page, dashboard, samples):
    page.goto(dashboard().url + "#/run/run/events")
    expect(page.locator(".record").first).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("completions"))).to_have_count(0)
