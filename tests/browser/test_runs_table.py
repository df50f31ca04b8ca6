"""The table of runs: columns, expressions, groups, selection, actions with undo, and many runs."""

from __future__ import annotations

import os
import re

import msgspec
from playwright.sync_api import expect

from tachograph.catalog import annotate
from tachograph.catalog._annotations import Annotations
from tachograph.catalog._catalog import OWN_FOLDER
from tachograph.catalog._index import IndexEntry, index_path, save_index
from tachograph.catalog._summary import CatalogSummary, brief_summary, journal_key
from tachograph.journal import RunFolder
from tachograph.store import MetricAggregates
from tests.browser.test_charts import write_journal
from tests.browser.test_compare import painted, write_sweep
from tests.conftest import wait_for
from tests.store import END, START, step, write


def write_runs(logs):
    """Write six runs: two learning rates with three seeds each; `run-4` has the lowest validation loss."""
    for number in range(6):
        config = {"lr": 0.1 if number < 3 else 0.01, "seed": number % 3, "same": 1}
        start = {**START, "run_id": f"id{number}", "time": 1_000.0 + number, "config": config}
        steps = [step(i, train_loss=2.0 - i / 10, val_loss=abs(number - 4) + 1.5 - i / 10) for i in range(3)]
        write(logs / f"run-{number}", [start, *steps, END])


def names(page):
    return page.locator("[role=rowheader] a:not(.chip)").all_inner_texts()


def columns(page):
    return page.locator("[data-column]").evaluate_all("cells => cells.map(cell => cell.dataset.column)")


def test_table_finds_the_best_run(page, dashboard, logs):
    write_runs(logs)
    start = dashboard()
    page.goto(start.url + "#/table")
    row = page.get_by_role("row", name=re.compile("run-4"))
    expect(row.get_by_text("best:")).to_have_count(1)
    expect(page.locator("[data-column]")).to_have_count(8)
    assert columns(page) == [
        "state",
        "result",
        "config.lr",
        "config.seed",
        "loss",
        "steps",
        "duration",
        "started",
    ]

    # Sort, filter with completion, and see what is wrong with an expression.
    page.get_by_role("button", name="result", exact=True).click()
    expect(page.locator("[role=rowheader]").first).to_have_text("run-4")
    box = page.get_by_label("Search runs")
    box.press_sequentially("conf")
    suggestions = page.get_by_role("listbox", name="Suggestions").get_by_role("option").locator("code")
    expect(suggestions).to_have_text(["config.lr", "config.seed", "config.same"])
    box.press("Tab")
    expect(box).to_have_value("config.lr")
    box.press_sequentially("<0.05")
    expect(page.get_by_text("3 of 6 runs")).to_be_visible()
    box.press_sequentially(" steps>>1")
    expect(page.get_by_role("alert")).to_contain_text("expected a value after >")
    expect(page.locator("mark")).to_have_text(">")
    box.fill("config.lrr=1")
    expect(page.get_by_role("alert")).to_contain_text("did you mean config.lr")
    box.fill("config.lr<0.05")

    # Choose, move, pin and hide columns; the address is the view.
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Find a column").fill("val")
    page.get_by_label("Aggregate of val_loss").select_option("at_min")
    page.get_by_role("listitem").filter(has=page.get_by_label("Aggregate of val_loss")).get_by_role("checkbox").check()
    page.get_by_label("Find a column").fill("same")
    page.get_by_label("config.same").check()
    page.keyboard.press("Escape")
    page.locator("[data-column=steps] .title").focus()
    page.keyboard.press("Alt+ArrowLeft")
    page.locator("[data-column=loss]").hover()
    page.get_by_role("button", name="Column loss").click()
    page.get_by_role("button", name="Pin to the left").click()
    page.locator("[data-column=state]").hover()
    page.get_by_role("button", name="Column state").click()
    page.get_by_role("button", name="Hide").click()
    expect(page.locator("[data-column=state]")).to_have_count(0)
    chosen = columns(page)
    assert chosen[:4] == ["loss", "result", "config.lr", "config.seed"]
    assert chosen[-2:] == ["val_loss.at_min", "config.same"]
    page.get_by_role("button", name="Only what differs").click()
    expect(page.locator("[data-column='config.same']")).to_have_count(0)
    assert "config.seed" in columns(page)
    expect(page).to_have_url(re.compile("pin=loss"))
    shared = page.url
    assert "config.lr" in shared and "pin=loss" in shared and "sort=result" in shared

    # Another browser sees the same; this one remembers it.
    seen = columns(page)
    other = page.context.browser.new_context()
    second = other.new_page()
    second.goto(shared)
    expect(second.get_by_text("3 of 6 runs")).to_be_visible()
    expect(second.locator("[data-column='config.same']")).to_have_count(0)
    wait_for(lambda: columns(second) == seen, "the same columns")
    other.close()
    page.get_by_role("link", name="run-4").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("run-4")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(box).to_have_value("config.lr<0.05")
    page.get_by_role("link", name="Table").click()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_text("6 runs", exact=True)).to_be_visible()

    # Groups of runs that differ only in their seed.
    page.get_by_role("button", name="Group", exact=True).click()
    page.get_by_role("button", name="Same config, except seeds").click()
    page.keyboard.press("Escape")
    group = page.get_by_role("row", name=re.compile("3 runs"))
    expect(group).to_have_count(2)
    expect(group.filter(has_text="0.01").first).to_contain_text("1.967 ± 0.5774")
    group.first.get_by_role("button", name=re.compile("3 runs")).click()
    expect(page.locator("[role=rowheader] a")).to_have_count(3)


def test_actions_are_undoable_and_report_failures(page, dashboard, logs):
    write_runs(logs)
    page.goto(dashboard().url + "#/table")
    expect(page.get_by_text("6 runs", exact=True)).to_be_visible()
    page.get_by_label("Select run-5").check()
    page.get_by_label("Select run-3").click(modifiers=["Shift"])
    bar = page.get_by_role("toolbar", name="Selected runs")
    expect(bar).to_contain_text("3 runs selected")

    bar.get_by_role("button", name="Tag the selected runs").click()
    page.get_by_label("Tags of 3 runs").fill("+paper")
    page.get_by_role("button", name="Tag 3 runs").click()
    notice = page.get_by_role("status")
    expect(notice).to_contain_text("Tagged 3 runs")
    expect(page.locator("[role=gridcell]", has_text="paper")).to_have_count(3)
    notice.get_by_role("button", name="Undo").click()
    expect(notice).to_contain_text("Undone for 3 runs")
    expect(page.locator("[role=gridcell]", has_text="paper")).to_have_count(0)

    bar.get_by_role("button", name="Archive").click()
    expect(page.get_by_text("3 of 6 runs")).to_be_visible()
    notice.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("6 runs", exact=True)).to_be_visible()

    # One of the runs cannot be removed: its journal is gone.
    (logs / "run-4" / "metrics.jsonl").rename(logs / "run-4" / "moved")
    bar.get_by_role("button", name="Trash").click()
    expect(notice).to_contain_text("Moved to the trash: 2 runs, 1 failed")
    expect(notice).to_contain_text("no run 'run-4'")
    expect(page.get_by_role("link", name="run-5")).to_have_count(0)
    page.get_by_role("link", name="Trash").click()
    page.get_by_role("button", name="Restore run-5").click()
    expect(page.get_by_role("button", name="Restore run-5")).to_have_count(0)
    page.get_by_role("link", name="All runs").click()
    page.get_by_role("link", name="Table").click()
    expect(page.get_by_role("link", name="run-5")).to_be_visible()

    # The keyboard alone.
    page.get_by_role("grid").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+ArrowDown")
    expect(bar).to_contain_text("2 runs selected")
    page.get_by_label("Select all runs that match").check()
    expect(bar).to_contain_text("4 runs selected")


def test_notes_and_saved_views(page, dashboard, logs):
    write_runs(logs)
    start = dashboard()
    page.goto(start.url + "#/run/run-4/overview")
    notes = page.get_by_label("Notes", exact=True)
    notes.get_by_label("Name", exact=True).fill("long <b>warm-up</b>")
    notes.get_by_label("Name", exact=True).press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("long <b>warm-up</b>")
    notes.get_by_label("4 of 5").click()
    expect(notes.get_by_label("4 of 5")).to_have_attribute("aria-pressed", "true")
    notes.get_by_label("Tags").fill("paper")
    notes.get_by_label("Tags").press("Enter")
    expect(notes.locator(".chip")).to_contain_text("paper")
    notes.get_by_role("button", name="Write a note").click()
    notes.get_by_label("Note, in Markdown").fill("The **data**, <img src=x onerror=alert(1)> [x](javascript:alert(2))")
    notes.get_by_role("button", name="Save").click()
    expect(notes.locator(".markdown b")).to_have_text("data")
    expect(notes.locator(".markdown")).to_contain_text("<img src=x onerror=alert(1)> [x](javascript:alert(2))")
    notes.get_by_label("Step of the remark").fill("1200")
    notes.get_by_label("Remark about a step").fill("lr too high here")
    notes.get_by_role("button", name="Add").click()
    expect(notes.get_by_role("listitem")).to_contain_text("lr too high here")
    notes.get_by_role("button", name="Undo").click()
    expect(notes.get_by_role("listitem")).to_have_count(0)

    # A saved view is shared by everyone who uses the folder.
    page.goto(start.url + "#/?q=tag:paper&c=config.lr&c=rating&c=note&differ=1")
    row = page.get_by_role("row", name=re.compile("run-4"))
    expect(row).to_contain_text("long <b>warm-up</b>")
    expect(row).to_contain_text("★★★★")
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name of this view").fill("Paper runs")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="Paper runs")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_text("6 runs", exact=True)).to_be_visible()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("link", name="Paper runs").click()
    expect(page.get_by_label("Search runs")).to_have_value("tag:paper")
    expect(page.get_by_text("1 of 6 runs")).to_be_visible()
    expect(page.get_by_role("button", name="Only what differs")).to_have_attribute("aria-pressed", "true")
    wait_for(lambda: columns(page) == ["config.lr", "rating", "note"], "the columns of the view")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0] == "name,config.lr,rating,note"
    assert lines[1].startswith("run-4,0.01,4,")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="Delete the view Paper runs").click()
    expect(page.get_by_role("link", name="Paper runs")).to_have_count(0)
    page.keyboard.press("Escape")

    # A new run in a nested folder appears, opens and can be annotated.
    page.get_by_role("button", name="Reset").click()
    write(logs / "sweep" / "a b" / "run-9", [{**START, "time": 5_000.0, "group": "abc"}, step(1, train_loss=1.0), END])
    expect(page.get_by_role("link", name="sweep/a b/run-9")).to_be_visible()

    # Somebody else renames it; and a field whose name is half typed is waited for.
    annotate(RunFolder(logs / "run-2"), [{"op": "set", "field": "display_name", "value": "renamed"}])
    expect(page.get_by_role("link", name="renamed")).to_be_visible()
    page.get_by_label("Search runs").fill("config.l")
    expect(page.get_by_role("status").filter(has_text="As a field, it may continue: config.lr")).to_be_visible()
    expect(page.get_by_role("link", name="renamed")).to_be_visible()
    page.get_by_label("Search runs").fill("config.lr<0")
    expect(page.get_by_role("heading", name="No run matches")).to_be_visible()
    page.get_by_label("Search runs").fill("")
    page.get_by_role("link", name="sweep/a b/run-9").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("sweep/a b/run-9")
    expect(page.locator("[data-metric=train_loss] canvas").first).to_be_visible()
    page.get_by_role("link", name="overview").click()
    expect(notes.get_by_label("Group")).to_have_attribute("placeholder", "abc")
    notes.get_by_label("5 of 5").click()
    expect(notes.get_by_label("5 of 5")).to_have_attribute("aria-pressed", "true")


def write_summaries(logs, num_runs, num_keys):
    """Write short journals and an index that has everything about them, as if each had been read before."""
    entries, overview = [], None
    for number in range(num_runs):
        name = f"run-{number:05d}"
        write(logs / name, [{**START, "run_name": name, "time": 1_000.0 + number}, step(1, loss=1.0), END])
        key = journal_key(os.stat(logs / name / "metrics.jsonl"))
        overview = overview or brief_summary(RunFolder(logs / name), key, None).overview
        summary = CatalogSummary(
            journal=key,
            is_full=True,
            has_end=True,
            overview=msgspec.structs.replace(overview, name=name, started=1_000.0 + number),
            config={f"key_{key_number:03d}": number * 1_000 + key_number for key_number in range(num_keys)},
            metrics={"loss": MetricAggregates(1, 0, 1.0, float(number), 1.0)},
        )
        entries.append(IndexEntry(name, summary, 0, Annotations()))
    save_index(index_path(logs / OWN_FOLDER), entries, below=logs)


def test_many_runs_and_columns_need_few_elements(page, dashboard, logs):
    write_summaries(logs, 3_000, 500)
    view = "&".join(f"c=config.key_{number:03d}" for number in range(500))
    page.goto(f"{dashboard().url}#/?{view}&sort=name")
    expect(page.get_by_role("link", name="run-00000")).to_be_visible()
    expect(page.locator("[data-column='config.key_000']")).to_be_visible()
    grid = page.get_by_role("grid")
    count = "grid => grid.querySelectorAll('*').length"
    assert grid.evaluate(count) < 4_000
    grid.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("link", name="run-02999")).to_be_visible()
    grid.evaluate("grid => grid.scrollTo({ left: grid.scrollWidth })")
    expect(page.locator("[data-column='config.key_499']")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("run-02999"))).to_contain_text("2\u202f999\u202f499")
    assert grid.evaluate(count) < 4_000
    assert page.locator("[data-column]").count() < 30

    # The charts beside the same list draw the first runs, and others that are chosen.
    page.get_by_role("link", name="Charts").click()
    expect(page.get_by_text("Charts draw the first 200 runs of this list.")).to_be_visible()
    expect(page.locator("[data-drawn]")).to_contain_text("200 of 3000 drawn")
    wait_for(lambda: painted(page, "loss") == 200, "the first runs are painted")
    grid.focus()
    page.keyboard.press("End")
    page.get_by_label("Draw run-02999").click()
    expect(page.locator("[data-drawn]")).to_contain_text("201 of")
    wait_for(lambda: painted(page, "loss") == 201, "the chosen run is painted, too")
    assert grid.evaluate(count) < 4_000


def test_columns_are_resized_from_their_menus(page, dashboard, logs):
    write_sweep(logs, 3)
    page.goto(dashboard().url + "#/table")
    head = page.get_by_role("columnheader", name="loss").first
    before = head.bounding_box()["width"]
    page.get_by_label("Column loss", exact=True).press("Enter")
    page.get_by_role("button", name="Wider").press("Enter")
    wait_for(lambda: head.bounding_box()["width"] == before + 60, "the column is wider")
    page.reload()
    wait_for(lambda: head.bounding_box()["width"] == before + 60, "the width is kept")


def test_names_differ_in_a_narrow_table(page, dashboard, logs):
    names = [
        f"sweep-transformer-width{width}-lr{lr}-seed{seed}-v1"
        for width in (64, 512)
        for lr in (0.0003, 0.001)
        for seed in range(2)
    ]
    for name in names:
        write_journal(logs, name, [{"train_loss": 1.0}])
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(dashboard().url + "#/table")
    expect(page.get_by_role("rowheader")).to_have_count(len(names))
    texts = page.locator(".shown")
    expect(texts).to_have_count(len(names))
    values = {tuple(re.findall(r"\d+(?:\.\d+)?", text)[:3]) for text in texts.all_inner_texts()}
    assert values == {
        (str(width), str(lr), str(seed)) for width in (64, 512) for lr in (0.0003, 0.001) for seed in (0, 1)
    }
    assert texts.evaluate_all("each => each.every(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)")
