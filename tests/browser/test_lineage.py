"""Runs that started from each other: the graph in the overview, and the lines of parents in charts."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.test_live import panel
from tests.conftest import remove_folder
from tests.store import END, START, step, write


def write_fork(logs, name, steps, parent=None, left_at=None):
    """Write a run `name` with the id `id-NAME` that started from a checkpoint of another one."""
    start = {**START, "run_name": name, "run_id": f"id-{name}", "time": 1_000.0 + steps.start}
    if parent is not None:
        start["parents"] = [
            {"run_id": f"id-{parent}", "run_name": parent, "global_step": left_at, "how": "resume"},
        ]
    losses = [step(i, loss=5 / (1 + i / 20) + 0.1 * (i % 3)) for i in steps]
    saved = {"event": "checkpoint", "global_step": steps[-1], "checkpoint_path": f"/x/{name}.pt", "time": 1_100.0}
    write(logs / name, [start, *losses, saved, END])


def test_graph_and_charts_follow_two_forks(page, dashboard, logs):
    write_fork(logs, "first", range(50))
    write_fork(logs, "second", range(20, 80), "first", 20)
    write_fork(logs, "third", range(60, 100), "second", 60)
    write_fork(logs, "sibling", range(60, 90), "second", 60)
    start = dashboard()
    page.goto(start.url + "#/run/third/overview")
    graph = page.get_by_label("Lineage")
    expect(graph.locator(".graph > div")).to_have_text(
        ["first until step 20, resume", "second until step 60, resume", "third this run"]
    )
    graph.get_by_role("link", name="second").click()
    expect(page.get_by_role("heading", name="second", level=1)).to_be_visible()
    expect(graph.locator(".graph > div")).to_have_text(
        ["first until step 20, resume", "second this run", "sibling from step 60, resume", "third from step 60, resume"]
    )

    # The charts show each parent up to the step at which its child left it; the address keeps the choice.
    page.goto(start.url + "#/run/third/charts")
    expect(panel(page, "loss")).to_be_visible()
    with page.expect_response(re.compile("runs/first/series.*high=20")) as answer:
        page.get_by_role("button", name="parents").click()
    assert answer.value.json()["series"][0]["lines"][0]["num_points"] <= 22  # with a neighbour, which is not drawn
    expect(page.locator("[data-parent]")).to_have_text(["second until step 60", "first until step 20"])
    expect(page).to_have_url(re.compile("parents=1"))
    expect(panel(page, "loss").locator(".plot")).to_have_attribute("data-painted", "3")
    page.get_by_label("Horizontal axis").select_option("time")
    expect(page.locator("[data-parent]")).to_have_count(0)
    expect(page.get_by_role("button", name="parents")).to_be_disabled()

    # A parent that was deleted keeps its name, its id and the step.
    remove_folder(logs / "first")
    page.goto(start.url + "#/run/second/overview")
    page.reload()
    expect(graph.locator(".graph > div").first).to_have_text(
        "first until step 20, resume, not in these folders, id id-first"
    )
    expect(graph.get_by_role("link", name="first")).to_have_count(0)
