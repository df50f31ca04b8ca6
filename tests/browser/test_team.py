"""The dashboard of a team's server: log in with a key, roles, projects, runs that are received, and log out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tachograph.remote import Connection, RunSender, parse_server
from tachograph.server.team import KeyRing, keys_path
from tests.conftest import HANG_S, wait_for
from tests.preloaded import preloaded
from tests.store import END, START, hears, step, write

TRAINER = """
import sys, time
import tachograph

logs, server, name, project, remote_control = sys.argv[1:]
run = tachograph.init(
    name, log_dir=logs, server=server, project=project, remote_control=bool(remote_control),
    log_every=1, control_interval_s=0.2, control_gap_s=0, flush_interval_s=0.05, console=False,
    system_interval_s=0, git=False, code=False, csv=False,
)
run.control("lr_scale", 1.0, min=0.1, max=10.0)
step = 0
while not run.should_stop:
    run.log({"train_loss": 3 / (1 + step)}, step=step)
    step += 1
    if step == 1:
        print("ready", flush=True)
    time.sleep(0.05)
run.finish()
"""


class Team:
    """`tacho serve` as a process, with keys."""

    def __init__(self, data: Path) -> None:
        data.mkdir()
        self.data = data
        self.keys = KeyRing(keys_path(data))
        self.writer = self.key("ci", "write")
        command = [sys.executable, "-m", "tachograph", "serve", "--data", str(data), "--port", "0"]
        self.process = preloaded("dashboard").popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert self.process.stdout
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, self.process.communicate()
        self.url = found[0]

    def key(self, name: str, *scopes: str, project: str | None = None) -> str:
        return self.keys.create(name, scopes, project=project)[1]

    def runs(self, key: str) -> list[str]:
        answer = httpx.get(f"{self.url}api/v1/runs", headers={"Authorization": f"Bearer {key}"}, timeout=HANG_S)
        return sorted(run["name"] for run in answer.json()["runs"] if run["step"] is not None)

    def stop(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=HANG_S)
        return err


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    found = Team(tmp_path / "data")
    yield found
    assert found.stop() == ""


@pytest.fixture
def train(team: Team, script, logs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Start a training program whose run is sent to the server; it ends with the test."""
    started = []
    monkeypatch.setenv("TACHO_API_KEY", team.writer)

    def start(name: str, project: str, *, remote_control: bool = False) -> None:
        program = script(TRAINER, logs, team.url.rstrip("/"), name, project, "yes" if remote_control else "")
        started.append(program)
        hears(program, "ready")
        wait_for(lambda: f"{project}/{name}" in team.runs(reader), f"run {name} on the server")

    reader = team.key("watcher", "read")
    yield start
    for program in started:
        program.process.kill()
        program.process.wait()


def log_in(page: Page, key: str) -> None:
    page.get_by_label("Access key").fill(key)
    page.get_by_role("button", name="Log in").click()


def log_out(page: Page) -> None:
    page.get_by_role("button", name="Account").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Access key")).to_be_visible()


@pytest.mark.complains  # the browser logs each 401
def test_people_log_in_with_a_key_and_see_their_project(page, team, train):
    train("small", "nlp")
    train("vit", "vision")
    page.goto(f"{team.url}#/run/vision%2Fvit/overview")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    log_in(page, "tk_00000000_" + "x" * 43)
    expect(page.get_by_role("alert")).to_have_text("Wrong, expired or revoked access key.")
    log_in(page, team.key("sender", "write"))
    expect(page.get_by_role("alert")).to_contain_text("lacks the scope `read`")
    log_in(page, team.key("ada", "read"))
    expect(page.get_by_role("heading", name="vision/vit")).to_be_visible()  # the address is kept
    expect(page.get_by_role("button", name="Account: ada")).to_contain_text("read")
    page.goto(f"{team.url}#/table")
    table = page.get_by_role("grid").or_(page.get_by_role("table"))
    expect(table.get_by_role("link", name="nlp/small")).to_be_visible()
    page.get_by_label("Project").select_option("vision")
    expect(table.get_by_role("link", name="vision/vit")).to_be_visible()
    expect(table.get_by_role("link", name="nlp/small")).to_have_count(0)
    page.get_by_label("Project").select_option("")
    expect(table.get_by_role("link", name="nlp/small")).to_be_visible()
    log_out(page)

    log_in(page, team.key("nlp-ada", "read", project="nlp"))
    expect(page.get_by_role("button", name="Account: nlp-ada")).to_contain_text("project nlp")
    expect(table.get_by_role("link", name="small", exact=True)).to_be_visible()
    expect(table.get_by_role("link", name="vit")).to_have_count(0)
    expect(page.get_by_label("Project")).to_have_count(0)
    page.goto(f"{team.url}#/run/nlp%2Fsmall/charts")  # shared by someone who sees all projects
    expect(page.get_by_role("heading", name="small", exact=True)).to_be_visible()
    expect(page.locator("[data-fact=heard]")).to_contain_text(re.compile(r"\d+ s ago"))
    assert "#/run/small/" in page.url


@pytest.mark.complains
def test_scopes_decide_what_is_offered(page, team, train):
    train("steered", "nlp", remote_control=True)
    train("closed", "nlp")
    page.goto(f"{team.url}#/run/nlp%2Fsteered/control")
    log_in(page, team.key("ada", "read"))
    knob = page.locator('[data-control="lr_scale"]')
    expect(knob.get_by_label("lr_scale, exact value")).to_be_disabled()
    stop = page.get_by_role("button", name="Stop the run")
    expect(stop).to_be_disabled()
    reason = "The key ada lacks the scope control."
    expect(page.get_by_role("status").filter(has_text=reason)).to_be_visible()
    expect(page.locator("fieldset", has=stop)).to_have_attribute("title", reason)
    page.goto(f"{team.url}#/run/nlp%2Fsteered/overview")
    expect(page.get_by_role("button", name="Write a note")).to_be_disabled()
    page.goto(f"{team.url}#/run/nlp%2Fclosed/control")
    expect(page.locator("[data-problem]")).to_contain_text("remote_control=True")
    expect(stop).to_have_count(0)
    page.goto(f"{team.url}#/table")
    page.get_by_role("checkbox").nth(1).check()
    trash = page.get_by_role("button", name="Trash", exact=True)
    expect(trash).to_be_disabled()
    expect(trash).to_have_attribute("title", "The key ada lacks the scope admin.")
    expect(page.get_by_role("button", name="Archive", exact=True)).to_be_disabled()
    log_out(page)

    page.goto(f"{team.url}#/run/nlp%2Fsteered/control")
    log_in(page, team.key("grace", "read", "control"))
    knob.get_by_label("lr_scale, exact value").fill("4")
    knob.get_by_role("button", name="Set").click()
    page.get_by_role("dialog").get_by_role("button", name="Set to 4").click()
    expect(page.locator('[data-request="lr_scale"] [data-status]')).to_have_text("applied")
    expect(knob.locator("[data-value]")).to_have_text("4")


@pytest.mark.complains
def test_late_run_says_what_is_missing(page, team, logs):
    run_id = "0123456789abcdef"
    folder = write(logs / "late", [{**START, "run_id": run_id}, step(0, train_loss=1.0), END])
    sender = RunSender(folder, Connection(parse_server(team.url.rstrip("/")), lambda: team.writer), print)
    wait_for(lambda: sender.poll(flush=True, ignore_pause=True) >= 0 and sender.is_complete)
    sender.close()
    page.goto(f"{team.url}#/run/default%2Flate/charts")
    log_in(page, team.key("ada", "read"))
    expect(page.get_by_role("heading", name="default/late")).to_be_visible()
    expect(page.locator("[data-late]")).to_have_count(0)
    headers = {"Authorization": f"Bearer {team.writer}", "Tacho-Now": str(time.time() + 3_700)}
    beat = f"{team.url}api/v1/ingest/runs/{run_id}/beat"
    assert httpx.put(beat, json={"lag_bytes": 2_300_000}, headers=headers, timeout=HANG_S).status_code == 200
    page.reload()  # the state of an ended run is checked less often
    expect(page.locator("[data-late]")).to_contain_text("2.3 MB not received yet.")
    expect(page.locator("[data-late]")).to_contain_text("The clock of this machine is 1 h")


@pytest.mark.complains
def test_page_asks_to_log_in_when_the_key_is_revoked(page, team, train):
    train("small", "nlp")
    page.goto(f"{team.url}#/run/nlp%2Fsmall/charts")
    log_in(page, team.key("ada", "read"))
    expect(page.locator("[data-fact=heard]")).to_be_visible()
    team.keys.revoke("ada")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
