"""The log page: output of a program under `tacho run`, while it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect

import tachograph
from tests.conftest import HANG_S

PROGRAM = """
import sys, time
from pathlib import Path
import tachograph
run = tachograph.init("train", console=False)
for number in range(3000):
    print("line", number)
print("needle in a haystack of <b>lines</b>", flush=True)
while not Path("seen").exists():  # the order of lines of two streams is not certain
    time.sleep(0.05)
print("something is odd", file=sys.stderr, flush=True)
print("\\r 10 %", end="", file=sys.stderr, flush=True)
print("\\r 20 %", end="", file=sys.stderr, flush=True)
while not Path("go").exists():
    time.sleep(0.05)
print("\\r100 %", file=sys.stderr, flush=True)
print("token hf_abcdefghijklmnopqrstuvwxyz0123456789", flush=True)
raise ValueError("the end")
"""


def test_log_follows_searches_and_downloads(logs: Path, tmp_path: Path, dashboard, page: Page):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TACHO_LOG_DIR": str(logs)}
    command = [sys.executable, "-m", "tachograph", "run", "--", sys.executable, str(program)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    at = dashboard()
    page.goto(at.url)
    page.get_by_role("link", name="train", exact=True).click()
    page.get_by_role("link", name="log", exact=True).click()
    output = page.get_by_role("log", name="Output")
    expect(output.get_by_text("needle in a haystack")).to_be_visible()
    (tmp_path / "seen").touch()
    expect(output.get_by_text("something is odd")).to_be_visible()
    expect(output.locator(".stderr", has_text="something is odd")).to_be_visible()
    expect(output.get_by_text("20 %")).to_be_visible()  # a line that is not complete
    expect(output.get_by_text("10 %")).to_have_count(0)
    expect(page.get_by_role("status")).to_have_text("3002 lines")
    assert output.locator(".line").count() < 200, "only the lines in view are in the page"

    search = page.get_by_label("Search the output")
    search.fill("LINE 150")
    expect(page.get_by_role("status")).to_have_text("11 of 11")
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")
    expect(output.locator(".current")).to_have_text(re.compile("line 1509$"))
    expect(output.locator("mark").first).to_have_text("line 150")
    search.press("Enter")
    expect(output.locator(".current")).to_have_text(re.compile("line 1508$"))
    search.press("Shift+Enter")
    expect(page.get_by_role("status")).to_have_text("11 of 11")
    search.fill("")

    (tmp_path / "go").touch()
    assert process.communicate(timeout=HANG_S)[1] and process.returncode == 1
    expect(page.get_by_role("status")).to_have_text(re.compile(r"^30[01]\d lines$"))
    expect(output.locator(".current")).to_have_count(0)
    page.get_by_role("button", name="Follow").click()
    expect(output.get_by_text("ValueError: the end")).to_be_visible()
    expect(output.get_by_text("token [masked]")).to_be_visible()
    expect(output.get_by_text("100 %", exact=False)).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    text = download.value.path().read_text()
    assert text.startswith("line 0\nline 1\n") and "token [masked]" in text
    assert "needle in a haystack of <b>lines</b>\n" in text

    page.get_by_role("link", name="charts", exact=True).click()
    page.get_by_role("link", name="Show all output").click()
    expect(output.get_by_text("ValueError: the end")).to_be_visible()


def test_log_says_how_to_record_output(logs: Path, dashboard, page: Page):
    with tachograph.init("plain", log_dir=logs, console=False) as run:
        run.log({"loss": 1.0})
    page.goto(f"{dashboard().url}#/run/plain/log")
    expect(page.get_by_text("tacho run -- python train.py")).to_be_visible()
