"""The whole page: hostile names, token, shortcuts, themes and small screens."""

from __future__ import annotations

import re
import signal

import pytest
from playwright.sync_api import expect

import tachograph
from tachograph.importers import import_runs
from tachograph.journal import RunFolder
from tachograph.reader.captured_code import write_code_file
from tests.browser.conftest import wait_for_fit
from tests.browser.test_charts import OPTIONS, write_journal
from tests.conftest import HANG_S, wait_for
from tests.foreign import connect_as_nobody
from tests.store import END, START, write

TABS = ["charts", "overview", "timeline", "health", "log", "events", "completions", "control"]
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "a&b=c#d?e",
    "100% sure",
    "..hidden-not",
    "quotes \"and\" 'more'",
    "новый-запуск-🚀",
    "{{7*7}}${7*7}",
    "javascript:alert(1)",
]


def test_hostile_names_are_shown_as_text(page, dashboard, logs):
    names = [name for name in HOSTILE if not name.startswith(".")]
    for name in names:
        write_journal(logs, name, [{"train_loss": 1.0, "<script>alert(2)</script>": 2.0}])
    with tachograph.init(
        "texts", log_dir=str(logs), config={"<b>x</b>": "<script>alert(3)</script>"}, **OPTIONS
    ) as run:
        run.event("<img src=x onerror=alert(4)>", note="</pre><script>alert(5)</script>")
        run.log({"train_loss": 1.0}, step=0)
    start = dashboard()
    for name in names:
        page.goto(start.url)
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        page.get_by_role("link", name="charts").click()
        expect(page.get_by_text("<script>alert(2)</script>").first).to_be_visible()
    page.goto(start.url + "#/run/texts/overview")
    expect(page.get_by_text("<script>alert(3)</script>")).to_be_visible()
    page.goto(start.url + "#/run/texts/events")
    page.get_by_text("<img src=x onerror=alert(4)>", exact=True).click()
    expect(page.get_by_text("</pre><script>alert(5)</script>")).to_be_visible()


@pytest.mark.complains
def test_page_requires_token(page, dashboard, logs, context):
    write_journal(logs, "secret-run", [{"train_loss": 1.0}])
    start = dashboard(token="open-sesame")
    page.goto(start.url)
    expect(page.get_by_role("heading", name="Enter the token")).to_be_visible()
    assert "secret-run" not in page.content()
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong token")
    page.get_by_label("Token").fill("open-sesame")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("link", name="secret-run")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="secret-run")).to_be_visible()


def test_printed_url_logs_in_and_hides_token(page, dashboard, logs):
    write_journal(logs, "secret-run", [{"train_loss": 1.0}])
    start = dashboard(token="open-sesame")
    assert start.address.endswith("#token=open-sesame")
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(start.address)
    expect(page.get_by_role("link", name="secret-run")).to_be_visible()
    assert "open-sesame" not in page.url
    assert "open-sesame" not in page.evaluate("document.cookie")
    assert not [url for url in requests if "open-sesame" in url.partition("#")[0]]
    page.get_by_role("link", name="secret-run").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("secret-run")
    page.go_back()
    expect(page.get_by_role("link", name="secret-run")).to_be_visible()
    assert "open-sesame" not in page.url


@pytest.mark.complains
def test_printed_url_logs_in_a_tab_that_asked_for_token(page, dashboard, logs):
    write_journal(logs, "secret-run", [{"train_loss": 1.0}])
    start = dashboard(token="open-sesame")
    page.goto(start.url)
    expect(page.get_by_role("heading", name="Enter the token")).to_be_visible()
    page.goto(start.address)  # only the fragment differs, so the browser does not load the page again by itself
    expect(page.get_by_role("link", name="secret-run")).to_be_visible()
    assert "open-sesame" not in page.url


@pytest.mark.complains
def test_another_user_learns_whose_dashboard_it_is(page, dashboard, logs):
    write_journal(logs, "secret-run", [{"train_loss": 1.0}])
    start = dashboard()
    with connect_as_nobody(int(start.url.rstrip("/").rpartition(":")[2])) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.get_by_role("heading", name="This dashboard belongs to another user")).to_be_visible()
        expect(page.get_by_text("start your own with `tacho ui")).to_be_visible()
        assert "secret-run" not in page.content()
        page.goto(f"http://127.0.0.1:{port}/#/run/secret-run/overview")
        expect(page.get_by_role("heading", name="This dashboard belongs to another user")).to_be_visible()
        assert "train_loss" not in page.content()
    page.goto(start.url)
    expect(page.get_by_role("link", name="secret-run")).to_be_visible()


def test_keyboard_shortcuts_work(page, dashboard, logs):
    write_journal(logs, "run", [{"train_loss": 1.0 + step} for step in range(9)])
    page.goto(dashboard().url + "#/run/run/overview")
    expect(page.get_by_role("heading", level=1)).to_have_text("run")
    for key, tab in zip("12345678", TABS, strict=True):
        page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"/{tab}"))
    page.keyboard.press("1")
    expect(page.get_by_label("Search metrics")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("1l")  # shortcuts are inactive in a field
    expect(page.get_by_label("Search metrics")).to_have_value("1l")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    expect(page.get_by_role("button", name="log y")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_theme_choice_is_kept(page, context, dashboard, logs):
    write_journal(logs, "run", [{"train_loss": 1.0}])
    page.emulate_media(color_scheme="dark")
    page.goto(dashboard().url)
    background = "getComputedStyle(document.documentElement).backgroundColor"
    expect(page.get_by_role("link", name="run", exact=True)).to_be_visible()
    dark = page.evaluate(background)
    page.keyboard.press("t")
    wait_for(lambda: page.evaluate(background) != dark, "the other theme")
    light = page.evaluate(background)
    page.reload()
    wait_for(lambda: page.evaluate(background) == light, "the chosen theme")


@pytest.mark.parametrize("tab", TABS)
def test_phone_needs_no_horizontal_scrolling(page, dashboard, logs, tab):
    write_journal(
        logs, "a-run-with-a-rather-long-name-that-goes-on-and-on", [{"train_loss": 1.0 + step} for step in range(9)]
    )
    page.set_viewport_size({"width": 390, "height": 800})
    start = dashboard()
    for address in (start.url, f"{start.url}#/run/a-run-with-a-rather-long-name-that-goes-on-and-on/{tab}"):
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_timeout(300)
        wait_for_fit(page)


def test_overview_shows_results_and_origin(page, dashboard, logs, tmp_path):
    table = tmp_path / "old.csv"
    table.write_text("step,loss\n0,1.5\n1,0.5\n", encoding="utf-8")
    import_runs("csv", [table], str(logs))
    with tachograph.init("new", log_dir=str(logs), **OPTIONS) as run:
        run.log_summary({"best_accuracy": 0.91})
    start = dashboard()
    page.goto(start.url + "#/run/new/overview")
    expect(page.get_by_role("heading", name="Results")).to_be_visible()
    expect(page.get_by_text("0.91")).to_be_visible()
    page.goto(start.url + "#/run/old/overview")
    expect(page.get_by_role("heading", name="Imported from")).to_be_visible()
    expect(page.get_by_text("old.csv").last).to_be_visible()
    assert "{" not in page.get_by_role("main").inner_text()


def test_overview_shows_what_plugins_did(page, dashboard, logs):
    with tachograph.init("new", log_dir=str(logs), **OPTIONS) as run:
        facts = {
            "slots": ["trainable parameters"],
            "options": {"spectrum_top_fraction": 0.5},
            "changes": {"parameters frozen": {"count": 2, "names": ["model.norm.weight", "lm_head.weight"]}},
            "hook_ms": {"post_model_build": 1500.0},
        }
        run.add_record("event", {"name": "plugin", "plugin": "spectrum", **facts})
        run.add_record("event", {"name": "plugin", "plugin": "idle", "contributes": ["callback X"]})
        run.log({"plugin/spectrum/active": 1.0, "plugin/spectrum/snr": 0.25, "plugin/idle/active": 0.0}, step=1)
    page.goto(dashboard().url + "#/run/new/overview")
    card = page.locator("section", has=page.get_by_role("heading", name="Plugins"))
    first, second = card.locator("article").nth(0), card.locator("article").nth(1)
    expect(first).to_contain_text("active")
    expect(first).to_contain_text("Set-up 1.5 s")
    expect(first).to_contain_text("0.25")
    first.get_by_text("2 parameters frozen").click()
    expect(first.get_by_text("lm_head.weight")).to_be_visible()
    expect(second).to_contain_text("no effect")


@pytest.mark.complains
def test_unknown_run_is_named_with_link_back(page, dashboard):
    page.goto(dashboard().url + "#/run/nowhere/charts")
    expect(page.get_by_text("no run 'nowhere' in the log folder")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


def test_nothing_is_loaded_from_other_hosts(page, dashboard, logs):
    write_journal(logs, "run", [{"train_loss": 1.0}])
    start = dashboard()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(start.url + "#/run/run/charts")
    expect(page.locator("canvas").first).to_be_visible()
    assert asked and all(url.startswith((start.url, "blob:", "data:")) for url in asked)


def test_server_stops_at_once_with_open_page(page, dashboard, logs):
    write_journal(logs, "run", [{"train_loss": 1.0}])
    start = dashboard()
    page.goto(start.url)
    expect(page.get_by_role("link", name="run", exact=True)).to_be_visible()
    page.goto("about:blank")
    start.process.send_signal(signal.SIGINT)
    start.process.wait(timeout=HANG_S)


def test_overview_shows_code_and_parents(page, dashboard, logs):
    write(logs / "base", [{**START, "run_id": "1"}, END])
    write(logs / "fork", [])
    patch = write_code_file(RunFolder(logs / "fork"), b"diff --git a/x b/x\n", ".patch")
    code = {
        "event": "code",
        "time": 1_001.0,
        "git": {"commit": "0123abc", "branch": "<b>trunk</b>", "dirty": True},
        "diff": {"file": patch, "num_files": 1, "size_bytes": 19},
        "files": {"num_files": 2},
        "packages": {"missing": "listing them took longer than 5 s"},
    }
    parents = [{"run_id": "1", "run_name": "base", "global_step": 40, "how": "resume"}]
    write(logs / "fork", [{**START, "parents": parents}, code, END])
    page.goto(dashboard().url + "#/run/fork/overview")
    card = page.locator("[data-code]")
    expect(card).to_contain_text("0123abc")
    expect(card).to_contain_text("<b>trunk</b>")
    expect(card).to_contain_text("No packages: listing them took longer than 5 s.")
    with page.expect_download() as download:
        card.get_by_role("link", name="Download the patch").click()
    assert download.value.path().read_bytes() == b"diff --git a/x b/x\n"
    lineage = page.locator("[data-lineage]")
    expect(lineage).to_contain_text("until step 40, resume")
    lineage.get_by_role("link", name="base").click()
    expect(page.get_by_role("heading", name="base")).to_be_visible()
