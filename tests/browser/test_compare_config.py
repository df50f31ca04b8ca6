"""The compare page: what differs between runs, and sweeps."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tachograph.reader.captured_code import write_code_file
from tests.store import END, START, step, write


def write_sweep(logs):
    """Write 32 runs: the validation loss rises with `lr`; `run-00` is the best, and `run-31` has no finite loss."""
    for number in range(32):
        config = {
            "optimizer": {"lr": 10.0 ** (number / 8), "name": "sgd" if number % 2 else "adam"},
            "same": 1,
            "output_dir": f"/out/{number}",
        }
        folder = write(logs / f"run-{number:02d}", [])
        packages = write_code_file(folder, f"numpy==1.26\ntorch==2.{number % 2}\n".encode(), ".txt")
        code = {"event": "code", "time": 2_000.0, "packages": {"file": packages}}
        if number == 1:
            code["diff"] = {"file": write_code_file(folder, b"diff --git a/x b/x\n", ".patch"), "num_files": 1}
        loss = float("nan") if number == 31 else 1.0 + number / 10
        start = {**START, "run_id": f"id{number}", "time": 1_000.0 + number, "config": config}
        write(folder.path, [start, code, step(1, val_loss=loss, train_loss=loss - 0.5), END])


def test_differences_and_sweep(page, dashboard, logs):
    write_sweep(logs)
    start = dashboard()
    page.goto(f"{start.url}#/compare/differences?run=run-00&run=run-01&run=run-02")
    row = page.get_by_role("row", name=re.compile("^val_loss.best"))
    expect(row.get_by_role("cell")).to_have_text([re.compile("best:\\s*1"), "1.1", "1.2"])
    expect(page.get_by_role("row", name=re.compile("^optimizer.name")).get_by_role("cell")).to_have_text(
        ["adam", "sgd", "adam"]
    )
    expect(page.get_by_text("1 config key is equal in all runs. 1 more differ")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^output_dir"))).to_have_count(0)

    # Deltas to a reference, all keys, and another result; the address keeps them.
    page.get_by_role("button", name="Compare with run-01").click()
    expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile(r"1\.2\s*\+0\.1 \(\+9\.1 %\)"))
    page.get_by_role("button", name="only what differs").click()
    expect(page.get_by_role("row", name=re.compile("^output_dir")).get_by_role("cell")).to_have_count(3)
    page.get_by_label("Add a result", exact=True).select_option("train_loss")
    page.reload()
    expect(page.get_by_role("row", name=re.compile("^same"))).to_be_visible()
    expect(page.get_by_label("Reference run")).to_have_value("run-01")
    page.locator("summary", has_text="Packages").click()
    expect(page.get_by_role("row", name="torch 2.0 2.1 2.0")).to_be_visible()
    page.locator("summary", has_text="Code").click()
    with page.expect_download() as patch:
        page.get_by_role("link", name="run-01").last.click()
    assert patch.value.path().read_bytes() == b"diff --git a/x b/x\n"

    # All runs that match an expression, as rows that can be sorted.
    box = page.get_by_label("Compare all runs that match")
    box.fill("config.optimizer.lr>>1")
    box.press("Enter")
    expect(page.get_by_text("expected a value after >")).to_be_visible()
    box.fill("config.same=1")
    box.press("Enter")
    expect(page.get_by_text("32 runs", exact=True)).to_be_visible()
    page.get_by_role("columnheader", name="optimizer.lr").get_by_role("button").click()
    expect(page.get_by_role("rowheader").nth(1)).to_contain_text("run-00")  # behind the reference
    page.get_by_role("columnheader", name="optimizer.lr").get_by_role("button").click()
    expect(page.get_by_role("rowheader").nth(1)).to_contain_text("run-31")

    # Another tab keeps the choices of this one.
    page.get_by_role("link", name="sweep").click()
    expect(page.locator("[data-axis]")).to_have_count(3)
    page.get_by_role("link", name="differences").click()
    expect(page.get_by_label("Reference run")).to_have_value("run-01")
    expect(page.get_by_role("columnheader", name="optimizer.lr ↓")).to_be_visible()
    expect(page.locator("details[open] > summary")).to_contain_text(["Packages", "Code"])

    page.get_by_role("link", name="sweep").click()
    ranks = page.get_by_role("row", name=re.compile("^optimizer.lr"))
    expect(ranks.get_by_role("cell")).to_have_text(["optimizer.lr", "", "100 %", re.compile("… 100 %"), "100 %", ""])
    expect(page.locator("[data-axis]")).to_have_count(3)
    assert page.locator("[data-axis]").evaluate_all("axes => axes.map(axis => axis.dataset.axis)") == [
        "optimizer.lr",
        "optimizer.name",
        "val_loss.best",
    ]
    expect(page.locator('[data-axis="optimizer.lr"] .kind')).to_have_text("log")
    expect(page.get_by_text("1 run has no finite val_loss.best: dashed.")).to_be_visible()
    scatter = page.get_by_role("group", name="val_loss.best against optimizer.lr")
    expect(scatter.locator("circle")).to_have_count(31)

    # Brush the lower half of an axis, then name and open a run.
    axis = page.locator('[data-axis="optimizer.lr"] .grip').bounding_box()
    x, bottom = axis["x"] + axis["width"] / 2, axis["y"] + axis["height"]
    page.mouse.move(x, bottom - 1)
    page.mouse.down()
    page.mouse.move(x, bottom - axis["height"] / 2, steps=3)
    page.mouse.up()
    expect(page.locator("[data-shown]")).to_have_text("16 of 32 runs")
    expect(scatter.locator("circle")).to_have_count(16)
    page.get_by_role("link", name="charts", exact=True).click()
    expect(page.get_by_label("Horizontal axis")).to_be_visible()
    page.get_by_role("link", name="sweep").click()
    expect(page.locator("[data-shown]")).to_have_text("16 of 32 runs")
    page.reload()
    expect(page.locator("[data-shown]")).to_have_text("16 of 32 runs")
    page.get_by_label("Clear the selection of optimizer.lr").click()
    expect(page.locator("[data-shown]")).to_have_text("32 of 32 runs")

    # The same with the keyboard; the upper end of a category takes its runs with it.
    page.get_by_role("slider", name=re.compile("Select a part of optimizer.name")).focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("[data-shown]")).to_have_text("16 of 32 runs")
    page.keyboard.press("Escape")
    expect(page.locator("[data-shown]")).to_have_text("32 of 32 runs")
    page.get_by_label("Result", exact=True).select_option("train_loss")
    expect(page.get_by_role("group", name="train_loss.best against optimizer.lr")).to_be_visible()
    plot = page.get_by_role("group", name="train_loss.best against optimizer.lr")
    plot.locator("circle").first.hover()
    expect(page.get_by_role("status").filter(has_text="train_loss.best")).to_contain_text("run-")
    name = page.locator(".tip b").inner_text()
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(re.compile(f"#/run/{name}/charts"))

    page.goto(f"{start.url}#/compare/sweep?run=run-00&run=run-01&run=gone")
    expect(page.get_by_text("Too few runs: 2 have a result; at least 8 are needed.")).to_be_visible()
    expect(page.get_by_text("Not found, perhaps in the trash: gone.")).to_be_visible()
