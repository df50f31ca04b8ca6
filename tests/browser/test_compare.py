"""The compare page: overlays of many runs, groups, axes, pins, export and shareable addresses."""

from __future__ import annotations

import csv
import math
import re

import numpy as np
from playwright.sync_api import expect

from tachograph.comparison import SeriesPoints, compare_groups, html_report
from tests.browser.conftest import wait_for_fit, wait_for_run
from tests.browser.test_charts import write_journal
from tests.comparison.evidence import make_run
from tests.comparison.journals import write_run
from tests.conftest import wait_for


def chart(page, name):
    return page.locator(f'[data-metric="{name}"]')


def painted(page, name):
    return int(chart(page, name).locator(".plot").get_attribute("data-painted") or 0)


def legend_names(page):
    return page.get_by_label("Legend").locator("li .name .whole").all_inner_texts()


def write_sweep(logs, num_runs):
    """Runs of two learning rates with different seeds; the loss of the last run diverges."""
    for index in range(num_runs):
        lr = 0.1 if index % 2 else 0.01
        level = index / num_runs + lr
        rows = [{"train_loss": level + 5 / (1 + step), "grad_norm": 1.0 + step % 7} for step in range(60)]
        if index == num_runs - 1:
            rows[30:] = [{"train_loss": 1e6 * step, "grad_norm": 1.0} for step in range(30)]
        write_journal(logs, f"run-{index:02d}", rows, config={"lr": lr, "seed": index})


def test_many_runs_are_overlaid_grouped_and_exported(page, dashboard, logs, context):
    write_sweep(logs, 30)
    page.goto(dashboard().url + "#/table")
    page.get_by_label(re.compile("Select all")).check()
    page.get_by_role("button", name="Compare 30").click()
    expect(page).to_have_url(re.compile(r"#/compare/charts\?run="))
    wait_for(lambda: painted(page, "train_loss") == 30, "all lines are painted")

    # The run that diverged does not flatten the others, and the chart says so.
    expect(chart(page, "train_loss").get_by_role("button", name=re.compile("clipped"))).to_be_visible()

    # The legend shows the chart that was last under the pointer, sorted by value; a search and a click choose runs.
    chart(page, "train_loss").locator(".plot").hover()
    page.mouse.move(0, 0)
    wait_for(lambda: legend_names(page)[:2] == ["run-00", "run-02"], "the legend is sorted by the latest value")
    assert legend_names(page)[-1] == "run-29"
    page.get_by_label("Find runs in the legend").fill("run-2")
    expect(page.get_by_label("Legend").locator("li")).to_have_count(10)
    page.get_by_label("Show only run-28").click()
    wait_for(lambda: painted(page, "train_loss") == 1, "one line is painted")
    page.get_by_role("button", name=re.compile("show all")).click()
    page.get_by_role("button", name=re.compile("^run-29")).click()
    wait_for(lambda: painted(page, "train_loss") == 29, "a click hides a run")
    expect(chart(page, "train_loss").get_by_role("button", name=re.compile("clipped"))).to_have_count(0)

    # The cursor names the nearest run in all charts, with the mouse and with the keyboard.
    box = chart(page, "train_loss").locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.9)
    for name in ("train_loss", "grad_norm"):
        expect(chart(page, name).locator(".tip")).to_contain_text("run-00")
    expect(chart(page, "train_loss").get_by_role("status")).to_contain_text("step 4")
    page.mouse.move(0, 0)
    expect(page.locator(".tip")).to_have_count(0)
    chart(page, "train_loss").locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    expect(chart(page, "train_loss").get_by_role("status")).to_contain_text("run-02")

    # Groups: mean and range of all runs that differ only in their seed.
    page.get_by_label("Group the runs").click()
    page.get_by_role("button", name="Same config, except seeds").click()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Legend").locator("li")).to_have_count(2)
    expect(page.get_by_label("Legend").locator("li").first).to_contain_text("n=15")
    wait_for(lambda: painted(page, "train_loss") == 32, "members and two means are painted")

    # Export, with title and legend.
    def save(kind):
        chart(page, "train_loss").get_by_label("Export, enlarge or limit train_loss").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        return download.value.path().read_bytes()

    rows = list(csv.DictReader(save("CSV").decode().splitlines()))
    assert len([row for row in rows if row["run"] == "run-03"]) == 60
    means = [row for row in rows if row["num_runs"] == "15" and row["group"] == "lr=0.01"]
    assert math.isclose(float(means[0]["train_loss"]), 5.01 + sum(range(0, 30, 2)) / 30 / 15)
    assert float(means[0]["min"]) == 5.01
    svg = save("SVG").decode()
    assert "<svg" in svg and "train_loss · 2 groups" in svg and "lr=0.01 (n=15)" in svg
    assert save("PNG").startswith(b"\x89PNG")

    # Pin, arrange, limit, change the axes: another person sees the same.
    page.get_by_label("Pin grad_norm").click()
    page.get_by_label("Pin train_loss").click()
    pinned = page.get_by_label("Pinned charts")
    chart(page, "train_loss").get_by_label("Export, enlarge or limit train_loss").click()
    page.get_by_role("button", name="Move up").click()
    chart(page, "train_loss").get_by_label("Export, enlarge or limit train_loss").click()
    page.get_by_label("Highest value").fill("3")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_label("Horizontal axis").select_option("relative")
    handle = page.get_by_label(re.compile("^Resize grad_norm"))
    handle.press("ArrowDown")
    handle.press("ArrowRight")
    wait_for(lambda: chart(page, "grad_norm").bounding_box()["height"] == 315, "the chart is higher")
    handle.evaluate("element => element.scrollIntoView({block: 'center'})")
    box = handle.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + 4, box["y"] + 84, steps=4)
    page.mouse.up()
    wait_for(lambda: chart(page, "grad_norm").bounding_box()["height"] == 395, "the drag resizes the chart")
    page.get_by_role("button", name="log x").click()
    other = context.new_page()
    other.goto(page.url)
    wait_for(lambda: painted(other, "train_loss") == 32, "the shared view is painted")
    pinned = other.get_by_label("Pinned charts").locator("[data-metric]")
    expect(pinned).to_have_count(2)
    assert [each.get_attribute("data-metric") for each in pinned.all()] == ["train_loss", "grad_norm"]
    expect(other.get_by_label("Horizontal axis")).to_have_value("relative")
    expect(other.get_by_role("button", name="log x")).to_have_attribute("aria-pressed", "true")
    expect(chart(other, "train_loss").get_by_role("button", name="Reset limits")).to_be_visible()
    wait_for(lambda: chart(other, "grad_norm").bounding_box()["height"] == 395, "the size is shared")
    wait_for_fit(other)
    other.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(other)


def test_any_metric_as_x_axis_and_runs_outside(page, dashboard, logs):
    for index in range(12):
        level = 1e6 if index == 11 else 1.0
        rows = [
            {
                "train_loss": level * (2 + index / 10 + (step % 5) / 10),
                "reward": 10 * math.sin(step / 8),
                "frames": 4 * step,
            }
            for step in range(60)
        ]
        for row in rows[:3]:
            del row["reward"]
        write_journal(logs, f"run-{index:02d}", rows, config={"lr": 0.1, "seed": index})
    runs = "&".join(f"run=run-{index:02d}" for index in range(12))
    page.goto(f"{dashboard().url}#/compare/charts?{runs}")
    wait_for(lambda: painted(page, "train_loss") == 12, "all lines are painted")

    # A run of which nothing can be seen is named, and one click shows it.
    outside = chart(page, "train_loss").get_by_role("button", name=re.compile("outside"))
    expect(outside).to_contain_text("1 outside: run-11")
    outside.click()
    expect(outside).to_have_count(0)

    # A metric that goes up and down, found by a part of its name.
    page.get_by_label("Horizontal axis").select_option("a metric")
    with page.expect_response(re.compile("x_metric=reward")):
        page.get_by_label("Metric on the x axis").fill("reward")
    expect(page).to_have_url(re.compile("x=metric%3Areward"))
    expect(chart(page, "train_loss")).to_contain_text("36 without x")
    wait_for(lambda: painted(page, "train_loss") == 12, "all lines are painted")
    box = chart(page, "train_loss").locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.9)
    expect(chart(page, "train_loss").get_by_role("status")).to_contain_text(re.compile(r"reward \d"))
    with page.expect_response(re.compile("x_metric=reward.*low=")):
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.5, steps=5)
        page.mouse.up()
    page.get_by_role("button", name="Zoom out").click()
    page.get_by_label("Group the runs").click()
    page.get_by_role("button", name="Same config, except seeds").click()
    page.keyboard.press("Escape")
    expect(chart(page, "train_loss")).to_contain_text("no mean here")
    page.get_by_label("Metric on the x axis").fill("frames")
    expect(chart(page, "train_loss")).not_to_contain_text("no mean here")
    wait_for(lambda: painted(page, "train_loss") == 13, "the mean is painted")

    # The charts of one run have the same axes.
    page.goto(page.url.partition("#")[0] + "#/run/run-03/charts?x=metric:reward")
    expect(chart(page, "train_loss")).to_contain_text("3 without x")
    wait_for(lambda: painted(page, "train_loss") == 1, "the line is painted")
    with page.expect_response(re.compile("x=samples")):
        page.get_by_label("Horizontal axis").select_option("samples")


TRAINER = """
import sys
import tachograph

logs, name, batch_size, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = {"batch_size": batch_size, "eval_batch_size": batch_size, "lr": 0.1}
run = tachograph.init(
    name, log_dir=logs, config=config, console=False, system_interval_s=0, flush_interval_s=0.05, git=False
)
for step in range(1, last + 1):
    run.log({"train_loss": 9.0 - step / last, "num_tokens": 100 * batch_size * step}, step=step)
for line in sys.stdin:
    last += 1
    run.log({"train_loss": float(line), "num_tokens": 100 * batch_size * last}, step=last)
run.finish()
"""


def test_batch_sizes_choose_the_axis_and_live_runs_are_followed(page, dashboard, script, logs):
    script(TRAINER, logs, "small", 8, 400).ok()
    large = script(TRAINER, logs, "large", 32, 100).process
    wait_for_run(logs / "large")
    page.goto(dashboard().url + "#/compare/charts?run=small&run=large")

    # Equal steps are different amounts of data.
    expect(
        page.get_by_text("The x axis shows tokens, because equal steps are different amounts of data.")
    ).to_be_visible()
    expect(page.get_by_text("batch_size=8; batch_size=32")).to_be_visible()
    expect(page.get_by_label("Horizontal axis")).to_have_value("tokens")
    wait_for(lambda: painted(page, "train_loss") >= 2, "both lines are painted")
    chart(page, "train_loss").locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    expect(chart(page, "train_loss").get_by_role("status")).to_contain_text(re.compile(r"tokens 1[\d ]+"))
    page.get_by_role("button", name="Show steps").click()
    expect(page.get_by_label("Horizontal axis")).to_have_value("step")
    expect(page.get_by_text("because equal steps")).to_have_count(0)

    def log(value):
        large.stdin.write(f"{value}\n")
        large.stdin.flush()

    # Every tab follows a run that is recorded.
    page.get_by_role("link", name="differences").click()
    best = page.get_by_role("row", name=re.compile("^train_loss.best"))
    expect(best.get_by_role("cell")).to_have_text([re.compile("8"), re.compile("8")])
    log(7.25)
    expect(best.get_by_role("cell")).to_have_text([re.compile("8"), re.compile(r"best:\s*7.25")])
    page.get_by_role("link", name="sweep").click()
    axis = page.locator('[data-axis="train_loss.best"]')
    expect(axis).to_contain_text("7.25")
    log(6.5)
    expect(axis).to_contain_text("6.5")
    page.get_by_role("link", name="verdict").click()
    expect(page.locator("[data-verdict]").get_by_role("heading", level=2)).to_be_visible()
    with page.expect_response(re.compile("/api/v1/compare")):
        log(6.0)


def test_verdict_judges_groups_and_keeps_them_in_the_address(page, dashboard, logs):
    for number in range(3):
        write_run(logs, f"old-{number}", seed=number, start={"git": {"commit": f"{number:040x}"}})
        write_run(logs, f"new-{number}", seed=10 + number, factor=1.05)
    names = [f"{side}-{number}" for side in ("old", "new") for number in range(3)]
    page.goto(f"{dashboard().url}#/compare/verdict?" + "&".join(f"run={name}" for name in names))
    card = page.locator("[data-verdict]")
    expect(card.get_by_role("row", name=re.compile(r"^step time \d"))).to_contain_text("not enough evidence")
    for name in ("old-1", "old-2"):
        page.get_by_label(f"Side of {name}").select_option("before")
    expect(card.get_by_role("heading", level=2)).to_have_text(re.compile("^Slower by 5"))
    expect(card.get_by_role("row", name=re.compile(r"^step time \d"))).to_contain_text("slower")
    expect(card).to_contain_text("tacho compare new-0 new-1 new-2 --against old-0 old-1 old-2")
    page.reload()
    expect(card.get_by_role("heading", level=2)).to_have_text(re.compile("^Slower by 5"))
    page.get_by_role("button", name="Swap sides").click()
    expect(card.get_by_role("heading", level=2)).to_have_text(re.compile("^Faster by 4"))
    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)


def test_verdict_groups_runs_that_differ_only_in_seeds(page, dashboard, logs):
    names = []
    for width, level in ((64, 1.0), (128, 0.9), (256, 0.8)):
        for seed in range(2):
            names.append(f"w{width}-{seed}")
            schedule = f"cosine-without-restarts-{width}"
            start = {"config": {"width": width, "seed": seed, "name_of_the_schedule": schedule}}
            write_run(logs, names[-1], seed=width + seed, factor=width / 64, level=level, start=start)
    page.goto(f"{dashboard().url}#/compare/verdict?" + "&".join(f"run={name}" for name in names))
    card = page.locator("[data-verdict]")
    expect(card).to_contain_text("tacho compare w128-0 w128-1 --against w64-0 w64-1")
    expect(card.get_by_role("row", name=re.compile("^training loss"))).to_contain_text("better")
    speed = card.get_by_role("row", name=re.compile(r"^step time \d"))
    expect(speed).to_contain_text("not comparable: different config.width")
    page.get_by_label("Group after").select_option(index=3)  # width 256
    expect(card).to_contain_text("tacho compare w256-0 w256-1 --against w64-0 w64-1")
    card.get_by_label("judge also what is not comparable").check()
    expect(speed).to_contain_text("slower")
    expect(card).to_contain_text("--anyway")

    page.set_viewport_size({"width": 400, "height": 800})
    wait_for_fit(page)


def test_report_shows_its_verdicts_on_a_phone(page, tmp_path):
    def make_group(name, level):
        results = [SeriesPoints(np.arange(9.0), np.full(9, level + 0.01 * seed)) for seed in range(3)]
        return [make_run(f"{name}-{seed}", result_name="val_acc", result=result) for seed, result in enumerate(results)]

    groups = (make_group("first-with-a-long-name", 0.5), make_group("second-with-a-long-name", 0.7))
    report = compare_groups(*groups)
    (tmp_path / "report.html").write_text(html_report([report], [groups]))
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto((tmp_path / "report.html").as_uri())
    verdict = page.locator(".verdicts tr", has_text="val_acc").locator("td", has_text="better")
    expect(verdict).to_be_visible()
    box = verdict.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 400
    wait_for_fit(page)
