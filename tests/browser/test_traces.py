"""Traces in the dashboard: request, download, and profiling charts."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import wait_for_run
from tests.conftest import lines_of

TRAINER = """
import sys, time, torch, tachograph as tacho
from tachograph.integrations._common.tracer import StepTracer
torch.set_num_threads(1)
tacho.configure_profiling(tacho.ProfilingConfig(min_duration_ms=0))
often = {"control_interval_s": 0.1, "flush_interval_s": 0.05, "system_interval_s": 0}
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with tacho.init("greyjacket", log_dir=sys.argv[1], console=False, **often) as run:
    tracer = StepTracer(run)
    for step in range(100_000):
        with tacho.profile_block("forward"):
            loss = model(torch.ones(2, 8)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(train_loss=float(loss), step=step)
        tracer.step(step)
        time.sleep(0.02)
        if run.should_stop:
            break
"""


def test_trace_is_requested_stored_and_downloaded(page, dashboard, script, logs, tmp_path):
    trainer = script(TRAINER, logs, preload="torch")
    wait_for_run(logs / "greyjacket")
    page.goto(dashboard().url + "#/run/greyjacket/control")
    panel = page.locator("[data-traces]")
    steps = panel.get_by_label("Steps to profile")
    expect(steps).to_have_value("5")
    profile = panel.get_by_role("button", name="Profile")
    for wrong in ("0", "1001", "2.5", ""):
        steps.fill(wrong)
        expect(profile).to_be_disabled()
    steps.fill("3")
    profile.click()
    page.get_by_role("dialog").get_by_role("button", name="Profile").click()
    request = page.locator('[data-request="profile_steps"]')
    expect(request.locator("[data-status]")).to_have_text("applied")
    expect(request).to_contain_text("stored a trace of 3 steps")
    row = panel.locator("[data-trace]")
    expect(row).to_have_count(1)
    expect(row.get_by_role("cell").nth(1)).to_have_text("3")
    expect(row.get_by_role("cell").nth(3)).to_have_text(re.compile("kB$"))
    assert page.locator('[data-control="profile_steps"]').count() == 0
    with page.expect_download() as started:
        row.get_by_role("link", name="Download").click()
    path = Path(started.value.path())
    assert re.fullmatch(r"step-\d{6}-3\.json\.gz", started.value.suggested_filename)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert sum(event["name"] == "aten::linear" for event in events) == 3
    expect(panel.get_by_role("link", name="ui.perfetto.dev")).to_have_attribute("href", "https://ui.perfetto.dev")

    page.get_by_role("button", name="Stop the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
    trainer.ok()
    expect(page.get_by_text("No training process accepts requests")).to_be_visible()
    expect(row).to_have_count(1)
    expect(steps).to_have_count(0)
    assert [
        record["status"] for record in lines_of(logs / "greyjacket") if record.get("control") == "profile_steps"
    ] == [
        "pending",
        "applied",
    ]
    page.goto(page.url.replace("/control", "/charts"))
    group = page.locator("details", has=page.get_by_text("profiling", exact=False))
    expect(group.get_by_text("profiling/forward", exact=True)).to_be_visible()


def test_untraceable_run_shows_reason(page, dashboard, script, logs):
    trainer = script(
        """
        import sys, time, tachograph as tacho
        often = {"control_interval_s": 0.1, "flush_interval_s": 0.05, "system_interval_s": 0}
        with tacho.init("greyjacket", log_dir=sys.argv[1], console=False, **often) as run:
            for step in range(100_000):
                run.log(train_loss=1.0, step=step)
                time.sleep(0.02)
                if run.should_stop:
                    break
        """,
        logs,
    )
    wait_for_run(logs / "greyjacket")
    page.goto(dashboard().url + "#/run/greyjacket/control")
    page.locator("[data-traces]").get_by_role("button", name="Profile").click()
    page.get_by_role("dialog").get_by_role("button", name="Profile").click()
    request = page.locator('[data-request="profile_steps"]')
    expect(request.locator("[data-status]")).to_have_text("rejected")
    expect(request).to_contain_text("the steps of this run cannot be profiled")
    page.get_by_role("button", name="Stop the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
    trainer.ok()
