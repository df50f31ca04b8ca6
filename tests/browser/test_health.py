"""The health page, and alerts in the list of runs and in charts."""

from __future__ import annotations

import math
import re
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import expect

import tachograph
from tachograph.black_box import Verdict
from tachograph.catalog import read_annotations
from tests.browser.conftest import wait_for_fit
from tests.browser.test_live import panel
from tests.conftest import wait_for
from tests.store import END, START, append, step, write

EVIDENCE = {"metric": "train_loss", "value": 8.123456, "level": math.inf, "silence_s": 93.0}


def alert(number=1, status="opened", at=120, severity="warning", **more):
    return {
        "event": "alert",
        "time": 1_000.0 + at,
        "global_step": at,
        "id": f"a{number}",
        "rule": "loss_spike",
        "status": status,
        "severity": severity,
        "title": f"Loss spike number {number}",
        "message": f"The loss rose at step {at}.",
        "evidence": EVIDENCE,
        "meaning": "A batch that is unlike the others.",
        "advice": ["Look at the data.", "Clip gradients."],
        **more,
    }


def steps(count=300):
    return [step(i, train_loss=8.0 if i == 120 else 2.0 + math.sin(i), grad_norm=1.0) for i in range(count)]


def details_of(page, number):
    return page.locator(f'[data-alert="a{number}"]')


def points_at(page, name, target):
    """Move the mouse to a step on a chart; the axis may grow while points arrive."""
    box = panel(page, name).locator(".plot").bounding_box()

    def step_at(share):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 80)
        page.wait_for_timeout(100)
        found = re.search(r"step (\d+)", panel(page, name).locator(".values").inner_text())
        return int(found[1]) if found else 0

    low, high = step_at(0.3), step_at(0.7)
    step_at(0.3 + 0.4 * (target - low) / max(1, high - low))
    return True


def test_run_without_alerts_shows_empty_state(page, dashboard, logs):
    write(logs / "run", [START, *steps(), END])
    page.goto(dashboard().url + "#/run/run/overview")
    expect(page.get_by_role("heading", level=1)).to_have_text("run")
    page.keyboard.press("4")
    expect(page.get_by_role("heading", name="No alerts")).to_be_visible()
    expect(page.locator(".empty")).to_contain_text(
        "Rules only check metrics that you log, such as train_loss, grad_norm and lr."
    )
    expect(page.locator(".head .chip")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("1 … 9")
    expect(page.get_by_role("dialog")).to_contain_text("health")


def test_open_alerts_come_first_and_closed_are_folded(page, dashboard, logs):
    records = [
        alert(1, at=50),
        alert(1, "resolved", at=80, outcome="Back at the level before."),
        alert(2, at=120, occurrence={"step": 120}),
        alert(2, "updated", at=150, occurrence={"step": 150}),
        alert(3, at=200, severity="critical", title="Loss is NaN"),
    ]
    write(logs / "run", [START, *steps(), *records, END])
    page.goto(dashboard().url + "#/run/run/health")
    expect(page.get_by_role("status")).to_have_text("2 open when the run ended, 1 critical.")
    opened = page.get_by_role("article")
    expect(opened.get_by_role("heading", level=2)).to_have_text(["Loss is NaN", "Loss spike number 2"])
    expect(opened.locator(".row > .chip")).to_have_text(["critical", "warning"])
    second = details_of(page, 2)
    for text in (
        "since step 120",
        "2 times",
        "The loss rose at step 150.",
        "A batch that is unlike",
        "Clip gradients.",
    ):
        expect(second).to_contain_text(text)
    assert second.locator("dt, dd").all_inner_texts() == [
        *("metric", "train_loss", "value", "8.12346", "level", "∞", "silence", "1 min 33 s", "at steps", "120, 150"),
    ]
    first = details_of(page, 1)
    expect(first.locator("summary")).to_contain_text("steps 50 … 80")
    expect(first.get_by_text("Back at the level before.")).to_be_hidden()
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(first.get_by_text("Back at the level before.")).to_be_visible()
    expect(first).to_contain_text("was open for 30 s")


def test_cause_and_captured_evidence_are_shown(page, dashboard, logs):
    """Under the alert that a dump belongs to; a dump without one has a section of its own."""
    layers = [
        {"name": "first", "shape": [2], "weight": {"absmax": 1.0}, "gradient": {"absmax": 9.0, "non_finite": 0}},
        {"name": "head", "shape": [2], "weight": {"absmax": math.inf, "non_finite": 4}},
    ]
    with tachograph.init("run", log_dir=str(logs), console=False, system_interval_s=0, code=False, git=False) as run:
        run.add_record("alert", {key: value for key, value in alert().items() if key not in {"event", "time"}})
        run.dump_writer.add_part("layers", lambda context: {"layers": layers})
        run.dump_writer.write(
            "loss_spike",
            step=120,
            alert=alert(),
            verdict=Verdict(kind="k", text="It was <b>head</b>.", confidence="likely"),
        )
        run.dump_writer.write("memory", step=130)
    page.goto(dashboard().url + "#/run/run/health")
    dump = details_of(page, 1).locator("[data-dump]")
    expect(dump).to_contain_text("Cause (likely): It was <b>head</b>.")
    dump.locator("summary").click()
    expect(dump.locator("tbody tr").first).to_have_text(re.compile(r"head\s*∞.*4|head\s*Infinity.*4"))
    expect(dump.locator("tbody tr.bad")).to_have_count(1)
    expect(page.get_by_role("region", name="Captured evidence").locator("[data-dump]")).to_have_count(1)


def test_explain_command_is_copied(page, context, dashboard, logs):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    write(logs / "run", [START, alert()])
    page.goto(dashboard().url + "#/run/run/health")
    details_of(page, 1).get_by_role("button", name="Copy").click()
    expect(details_of(page, 1).get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "tacho doctor --explain loss_spike"


def test_evidence_is_drawn_and_judged(page, dashboard, logs):
    evidence = {"metric": "train_loss", "from_step": 110, "expected": [None, 4.0]}
    run = write(logs / "run", [START, *steps(), alert(1, at=120, evidence=evidence), END])
    page.goto(dashboard().url + "#/run/run/health")
    details = details_of(page, 1)
    expect(details.get_by_role("img", name="Chart of train_loss")).to_be_visible()
    expect(details.locator("canvas").first).to_be_visible()
    expect(details.locator("figcaption")).to_contain_text("the green band is what the rule expected")
    expect(details).to_contain_text("at most 4")
    wrong = details.get_by_role("button", name="Wrong")
    wrong.click()
    expect(wrong).to_have_attribute("aria-pressed", "true")
    field = "alert.loss_spike@120"
    wait_for(lambda: read_annotations(run).values.get(field) == "wrong", "the judgement")
    page.reload()
    expect(wrong).to_have_attribute("aria-pressed", "true")
    wrong.click()  # takes it back
    expect(wrong).to_have_attribute("aria-pressed", "false")
    wait_for(lambda: field not in read_annotations(run).values, "no judgement")


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_alerts_are_shown_as_text(page, dashboard, logs, width):
    image = "<img src=x onerror=alert(1)>"
    hostile = alert(
        title=image,
        message="<script>alert(2)</script> " + "m" * 10_000,
        meaning="{{7*7}} " + "w" * 3_000,
        rule="$(rm -rf ~); x",
        evidence={"metric": image, "<b>name</b>" * 20: "v" * 2_000, "deep": {"a": [[[[1]]]]}, "nan": math.nan},
        advice=["javascript:alert(3)", "a" * 5_000],
        occurrence={"step": image},
    )
    wrong_types = {"event": "alert", "id": None, "title": [1], "evidence": 7, "advice": {}, "severity": 1}
    malformed = [{"event": "alert"}, wrong_types]
    duplicates = [alert(id="x" * 1_000 + end, title=f"Duplicate {end}", evidence={}) for end in "ab"]
    write(logs / "run", [START, *steps(), hostile, *malformed, *duplicates])
    page.set_viewport_size({"width": width, "height": 800})
    start = dashboard()
    page.goto(start.url + "#/run/run/health")
    expect(page.get_by_role("heading", name=image)).to_be_visible()
    expect(page.get_by_text("<script>alert(2)</script>")).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("Duplicate"))).to_have_count(2)
    assert page.locator("main img, main script").count() == 0
    expect(details_of(page, 1).get_by_role("button", name="Copy")).to_have_count(0)  # no command
    wait_for_fit(page)
    details_of(page, 1).get_by_role("link", name="Show in charts").click()
    expect(page.get_by_text("No metric matches")).to_be_visible()
    for tab in ("charts", "timeline", "events"):
        page.goto(f"{start.url}#/run/run/{tab}")
        expect(page.get_by_role("link", name="4 alerts")).to_be_visible()
        page.wait_for_timeout(300)
        assert page.locator("main img").count() == 0
        wait_for_fit(page)


def test_page_works_with_10000_alerts(page, dashboard, logs):
    write(logs / "run", [START, *steps(), *(alert(i, at=i % 300) for i in range(10_000))])
    start = dashboard()
    page.goto(start.url + "#/run/run/health")
    expect(page.get_by_role("article")).to_have_count(200)
    expect(page.get_by_text("9800 more alerts are in the journal.")).to_be_visible()
    expect(page.get_by_role("link", name="500 alerts")).to_be_visible()
    page.goto(start.url + "#/run/run/charts")
    expect(panel(page, "train_loss").get_by_role("link", name="200 alerts")).to_be_visible()


def test_alert_opens_updates_and_resolves_live(page, dashboard, logs):
    run = write(logs / "run", [START, *steps()])
    page.goto(dashboard().url + "#/run/run/health")
    expect(page.get_by_role("heading", name="No alerts")).to_be_visible()
    append(run, [alert()])
    expect(page.get_by_role("article", name="Loss spike number 1")).to_be_visible()
    chip = page.locator(".head .chip")
    expect(chip).to_have_text("1 alert")
    expect(chip).to_have_class(re.compile(r"\bwarn\b"))
    append(run, [alert(status="updated", at=130, severity="critical", title="Worse", message="It came back.")])
    expect(page.get_by_role("article", name="Worse")).to_contain_text("It came back.")
    expect(chip).to_have_class(re.compile(r"\bbad\b"))
    append(run, [alert(status="resolved", at=140, outcome="It went away.")])
    over = page.get_by_label("Closed alerts")
    expect(over).to_contain_text("Loss spike number 1")
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page.get_by_role("status")).to_have_text("No open alerts, 1 closed.")
    expect(chip).to_have_count(0)


def test_expanded_alert_stays_expanded_on_update(page, dashboard, logs):
    run = write(logs / "run", [START, alert(), alert(status="resolved", outcome="It went away.")])
    page.goto(dashboard().url + "#/run/run/health")
    details_of(page, 1).locator("summary").click()
    append(run, [alert(2), alert(2, "resolved"), alert(3)])
    expect(details_of(page, 3)).to_be_visible()
    expect(details_of(page, 2)).to_be_visible()
    expect(details_of(page, 1).get_by_text("It went away.")).to_be_visible()


def test_alerts_show_in_list_and_on_every_tab(page, dashboard, logs):
    write(logs / "bad", [START, *steps(), alert(1), alert(2, severity="critical")])
    write(logs / "warned", [START, *steps(), alert(1)])
    write(logs / "fine", [START, *steps(), alert(1), alert(1, "resolved")])
    page.goto(dashboard().url + "#/table")
    row = {name: page.get_by_role("row", name=re.compile(name)) for name in ("bad", "warned", "fine")}
    expect(row["bad"].locator(".chip")).to_have_text(["2 alerts"])
    expect(row["bad"].locator(".chip")).to_have_class(re.compile(r"\bbad\b"))
    expect(row["warned"].locator(".chip")).to_have_class(re.compile(r"\bwarn\b"))
    expect(row["fine"].locator(".chip")).to_have_count(0)
    row["bad"].get_by_role("link", name="2 alerts").click()
    expect(page).to_have_url(re.compile("#/run/bad/health"))
    expect(page.get_by_role("article")).to_have_count(2)
    for key in "123456":
        page.keyboard.press(key)
        expect(page.locator(".head").get_by_role("link", name="2 alerts")).to_be_visible()
    page.locator(".head").get_by_role("link", name="2 alerts").click()
    expect(page).to_have_url(re.compile("#/run/bad/health"))


def test_chip_counts_alerts_older_than_the_tail(page, dashboard, logs):
    write(logs / "run", [START, alert(at=0, severity="critical"), *steps(20_000)])
    start = dashboard()
    for tab in ("health", "events", "charts"):
        page.goto(f"{start.url}#/run/run/{tab}")
        page.reload()
        expect(page.locator(".head .chip")).to_have_text("1 alert")
        page.wait_for_timeout(500)  # the list, which knows less, may arrive later
        expect(page.locator(".head .chip")).to_have_text("1 alert")


def test_show_in_charts_zooms_to_affected_steps(page, dashboard, logs):
    before, after = steps(5_000)[:160], steps(5_000)[160:]
    write(logs / "run", [START, *before, alert(), alert(status="resolved", at=160), *after])
    page.goto(dashboard().url + "#/run/run/health?smooth=0")
    details_of(page, 1).locator("summary").click()
    with page.expect_response(re.compile("/series.*low=")):
        details_of(page, 1).get_by_role("link", name="Show in charts").click()
    query = parse_qs(urlparse(page.url.replace("#", "")).query)
    assert (query["q"], query["smooth"]) == (["/^train_loss$/"], ["0"])
    assert (float(query["low"][0]), float(query["high"][0])) == (70, 210)
    expect(panel(page, "train_loss").locator("canvas").first).to_be_visible()
    expect(panel(page, "grad_norm")).to_have_count(0)
    page.go_back()
    expect(page).to_have_url(re.compile("/health"))


def test_charts_mark_alerts_of_their_metric(page, dashboard, logs):
    anywhere = alert(2, at=20, title="The disk is full", evidence={})
    write(logs / "run", [START, *steps(), alert(), alert(status="resolved", at=160), anywhere])
    page.goto(dashboard().url + "#/run/run/charts")
    expect(panel(page, "train_loss").get_by_role("link", name="2 alerts")).to_be_visible()
    expect(panel(page, "grad_norm").get_by_role("link", name="1 alert")).to_be_visible()
    tip = page.get_by_role("tooltip")
    wait_for(lambda: points_at(page, "train_loss", 120) and tip.count() == 1, what="the tooltip")
    expect(tip).to_have_text("Loss spike number 1")
    points_at(page, "train_loss", 250)
    expect(tip).to_have_count(0)
    page.get_by_label("Horizontal axis").select_option("epoch")
    expect(panel(page, "train_loss").get_by_role("link", name=re.compile("alert"))).to_have_count(0)
    page.get_by_label("Horizontal axis").select_option("relative")
    panel(page, "grad_norm").get_by_role("link", name="1 alert").click()
    expect(page).to_have_url(re.compile("/health"))


def test_titles_of_alerts_are_read_on_a_phone(page, dashboard, logs):
    title = "Loss has been diverging since step 120: 30, best was 0.5656"
    closed = [alert(1, title=title), alert(1, "resolved", title=title, at=130)]
    opened = alert(2, title="train_loss is NaN", message="A sentence that needs more space than is left.")
    write(logs / "run", [START, *steps(), *closed, opened, END])
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(dashboard().url + "#/run/run/health")
    is_whole = "each => each.scrollWidth <= each.clientWidth + 1"
    assert details_of(page, 1).locator("summary .title").evaluate(is_whole)
    wait_for_fit(page)
    page.goto(page.url.partition("#")[0] + "#/run/run/events")
    assert page.locator("summary .title").filter(has_text="train_loss is NaN").evaluate(is_whole)
    wait_for_fit(page)


def test_events_page_counts_alerts_not_records(page, dashboard, logs):
    records = [alert(1), *(alert(1, "updated", at=120 + i) for i in range(5)), alert(2), alert(2, "resolved")]
    run = write(logs / "run", [START, *steps(), *records])
    page.goto(dashboard().url + "#/run/run/events")
    tile = page.locator(".tiles section").first
    expect(tile.locator(".big")).to_have_text("1")
    expect(tile.locator(".big")).to_have_class(re.compile(r"\bwarn\b"))
    append(run, [alert(1, "resolved")])
    expect(tile.locator(".big")).to_have_text("none")
    tile.get_by_role("link", name="Show closed alerts").click()
    expect(page).to_have_url(re.compile("/health"))
