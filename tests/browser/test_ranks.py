"""The ranks of a distributed run in the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.ranks.written_job import write_job
from tests.store import END, START, step, write


def test_ranks_show_who_is_slow_and_where_they_hung(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    write_job(logs / "job")
    page.goto(dashboard().url + "#/run/job")
    page.get_by_role("link", name="ranks", exact=True).click()
    rows = page.locator("[data-ranks] tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.first).to_contain_text("+30 %")
    expect(rows.first).to_contain_text("130 ms")
    expect(page.locator("[data-stacks]").first).to_contain_text("Rank 2 hung here")
    expect(page.locator("[data-stacks]").first).to_contain_text("in load")
    cells = page.locator("[data-rank-heat] canvas")
    expect(cells).to_be_visible()
    box = cells.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 4.5 / 6 * box["height"])
    expect(page.locator("[data-rank-heat] output")).to_contain_text("rank 4, iteration")
    expect(page.locator("[data-rank-heat] output")).to_contain_text("+30 %")


def test_run_of_one_process_has_no_ranks_tab(page: Page, dashboard: Callable[..., Any], logs: Path) -> None:
    write(logs / "alone", [START, *(step(i, loss=1.0) for i in range(20)), END])
    page.goto(dashboard().url + "#/run/alone")
    expect(page.get_by_role("link", name="overview", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="ranks", exact=True)).to_have_count(0)
