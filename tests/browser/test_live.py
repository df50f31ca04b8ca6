"""Live updates in the browser: points, crashes, control requests and reconnection."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import wait_for_run
from tests.conftest import lines_of, reserve_port, wait_for, wait_for_lines
from tests.store import END, START, step, write

TRAINER = """
import sys, time
import tachograph

logs = sys.argv[1]
run = tachograph.init(
    "greyjacket", log_dir=logs, config={"max_steps": 100000}, console=False, system_interval_s=0,
    control_interval_s=0.2, control_gap_s=0, flush_interval_s=0.05, git=False,
)
scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
step = 0
while not run.should_stop:
    run.log({"train_loss": 1000.0 + step, "lr": scale.value}, step=step)
    if run.should_checkpoint:
        run.log_checkpoint("model.pt", step=step)
    step += 1
    time.sleep(0.02)
run.finish()
"""


def panel(page, name):
    return page.locator(f'[data-metric="{name}"]')


def plot_box(page, name):
    """Return the position of a plot, once it is drawn and the page around it has its final layout."""
    expect(panel(page, name).locator(".values")).to_contain_text(re.compile(r"\d"))
    boxes = []

    def is_stable():
        page.wait_for_timeout(200)
        boxes.append(panel(page, name).locator(".plot").bounding_box())
        return len(boxes) > 3 and boxes[-1] and boxes[-1] == boxes[-2] == boxes[-3]

    wait_for(is_stable, "a stable layout")
    return boxes[-1]


def test_points_arrive_live(page, dashboard, script, logs):
    script(TRAINER, logs)
    wait_for_run(logs / "greyjacket")
    page.goto(dashboard().url + "#/run/greyjacket/charts")
    value = panel(page, "train_loss").locator(".values")
    expect(value).to_contain_text(re.compile(r"\d"))
    expect(panel(page, "train_loss").locator("canvas").first).to_be_visible()
    seen = value.inner_text()
    for _ in range(3):
        expect(value).not_to_have_text(seen)
        seen = value.inner_text()
    newest = max(record["train_loss"] for record in wait_for_lines(logs / "greyjacket") if record["event"] == "step")
    assert float(re.sub(r"\D", "", seen)) <= newest
    expect(page.locator("[data-fact=step]")).to_contain_text("of 100")


def test_trainer_acknowledges_new_log_interval(page, dashboard, script, logs):
    script(TRAINER, logs)
    wait_for_run(logs / "greyjacket")
    page.goto(dashboard().url + "#/run/greyjacket/control")
    control = page.locator('[data-control="log_every"]')
    expect(control.locator("[data-value]")).to_have_text("1")
    control.get_by_label("log_every, exact value").fill("20")
    control.get_by_role("button", name="Set").click()
    page.get_by_role("dialog").get_by_role("button", name="Set to 20").click()
    request = page.locator('[data-request="log_every"]')
    expect(request.locator("[data-status]")).to_have_text("applied")
    expect(control.locator("[data-value]")).to_have_text("20")
    control.get_by_label("log_every, exact value").fill("3")
    control.get_by_role("button", name="Set").click()
    page.get_by_role("dialog").get_by_role("button", name="Set to 3").click()
    expect(request.first.locator("[data-status]")).to_have_text("clamped")
    expect(control.locator("[data-value]")).to_have_text("5")
    changes = [record for record in wait_for_lines(logs / "greyjacket") if record["event"] == "control_change"]
    assert [(change["old"], change["new"], change["source"]) for change in changes] == [
        (1, 20, "dashboard"),
        (20, 5, "dashboard"),
    ]


def test_control_checkpoint_and_stop_reach_loop(page, dashboard, script, logs):
    trainer = script(TRAINER, logs)
    wait_for_run(logs / "greyjacket")
    page.goto(dashboard().url + "#/run/greyjacket/control")
    knob = page.locator('[data-control="lr_scale"]')
    knob.get_by_label("lr_scale, exact value").fill("2.5")
    knob.get_by_role("button", name="Set").click()
    page.get_by_role("dialog").get_by_role("button", name="Set to 2.5").click()
    expect(knob.locator("[data-value]")).to_have_text("2.5")
    page.get_by_role("button", name="Checkpoint now").click()
    page.get_by_role("dialog").get_by_role("button", name="Save a checkpoint").click()
    expect(page.locator('[data-request="checkpoint_now"] [data-status]')).to_have_text("applied")
    page.get_by_role("button", name="Stop the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert trainer.process.poll() is None
    page.get_by_role("button", name="Stop the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
    trainer.ok()
    expect(page.get_by_text("No training process accepts requests")).to_be_visible()
    assert any(record["event"] == "checkpoint" for record in lines_of(logs / "greyjacket"))


def test_killed_run_shows_as_crashed(page, dashboard, script, logs):
    trainer = script(TRAINER, logs)
    page.goto(dashboard().url)
    row = page.get_by_role("row", name=re.compile("greyjacket"))
    expect(row).to_contain_text("running")
    trainer.process.kill()
    trainer.process.wait()
    expect(row).to_contain_text("crashed")
    row.get_by_role("link", name="greyjacket").click()
    expect(page.locator("h1 + .badge, .head .badge")).to_contain_text("crashed")


@pytest.mark.complains
def test_lost_connection_is_shown_and_restored(page, dashboard, script, logs):
    script(TRAINER, logs)
    wait_for_run(logs / "greyjacket")
    port = str(reserve_port())
    first = dashboard("--port", port)
    page.goto(first.url + "#/run/greyjacket/charts")
    expect(panel(page, "train_loss").locator("canvas").first).to_be_visible()
    first.stop()
    expect(page.get_by_role("status")).to_contain_text("Connection lost")
    dashboard("--port", port)
    expect(page.get_by_text("Connection lost")).to_have_count(0)
    value = panel(page, "train_loss").locator(".values")
    seen = value.inner_text()
    expect(value).not_to_have_text(seen)


@pytest.mark.complains
def test_error_of_the_server_is_no_lost_connection(page, context, dashboard, logs):
    write(logs / "first", [START, step(0, train_loss=1.0), END])
    body = '{"error": {"code": "overloaded", "message": "too many connections"}}'
    answers = [
        {"status": 500, "content_type": "application/json", "body": body},
        {"status": 200, "content_type": "text/html", "body": "<p>Log in to the proxy</p>"},
    ]
    page.route("**/api/v1/live*", lambda route: route.fulfill(**answers[0]))
    page.goto(dashboard().url)
    notice = page.get_by_role("banner").get_by_role("status")
    expect(notice).to_contain_text("The server answered with an error (500).")
    expect(notice).to_have_attribute("title", "Too many connections.")
    answers.pop(0)
    expect(notice).to_have_text("The server answered, but without live updates.")
    expect(notice).to_have_attribute("title", "The answer is not a stream of changes.")
    page.unroute_all(behavior="ignoreErrors")
    expect(notice).to_have_count(0)


def test_silent_stream_is_noticed_and_replaced_by_polling(page, context, dashboard, logs):
    write(logs / "first", [START, step(0, train_loss=1.0), END])
    page.clock.install()
    page.route("**/api/v1/live*", lambda route: None)  # as a proxy that holds events back
    page.goto(dashboard().url)
    expect(page.get_by_role("link", name="first")).to_be_visible()
    write(logs / "second", [START, step(0, train_loss=1.0), END])
    page.clock.fast_forward(41_000)
    expect(page.get_by_role("status").filter(has_text="No live updates")).to_be_visible()
    expect(page.get_by_role("link", name="second")).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")
    page.clock.fast_forward(41_000)
    expect(page.get_by_text("No live updates")).to_have_count(0)


def test_new_run_appears_automatically(page, dashboard, script, logs):
    page.goto(dashboard().url)
    expect(page.get_by_text("tachograph.init")).to_be_visible()
    expect(page.get_by_text("tacho demo")).to_be_visible()
    script(TRAINER, logs)
    expect(page.get_by_role("link", name="greyjacket")).to_be_visible()


def test_appended_values_reach_the_page(page, dashboard, logs: Path):
    folder = logs / "hand"
    folder.mkdir(parents=True)
    journal = folder / "metrics.jsonl"
    journal.write_text('{"event":"start","time":1,"run_name":"hand","run_id":"00"}\n')

    def append(step: int) -> None:
        with journal.open("a") as file:
            file.write(f'{{"event":"step","time":{step + 2},"global_step":{step},"train_loss":{step}.25}}\n')

    append(0)
    page.goto(dashboard().url + "#/run/hand/charts?smooth=0")
    value = panel(page, "train_loss").locator(".values")
    expect(value).to_have_text("0.25")
    for number in range(1, 21):
        append(number)
        expect(value).to_have_text(f"{number}.25")
