"""`tacho notify test` and `tacho notify settings`, as users and programs run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tachograph.sinks.notify import EVENTS, notify_table
from tests.conftest import HANG_S
from tests.preloaded import preloaded
from tests.receiver import Reply


def tacho(*arguments, **environment):
    return preloaded("commands").run(
        [sys.executable, "-m", "tachograph", "notify", "test", *map(str, arguments)],
        text=True, timeout=HANG_S, env={**os.environ, "COLUMNS": "200", **environment},
    )  # fmt: skip


def test_no_channel_configured_shows_how():
    done = tacho()
    assert done.returncode == 1
    assert "export TACHO_NOTIFY_SLACK_URL=" in done.stdout
    assert "notify:" in done.stdout


def test_every_setting_is_listed():
    command = [sys.executable, "-m", "tachograph", "notify", "settings"]
    environment = {**os.environ, "COLUMNS": "200"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    read = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=environment).stdout
    assert [row["env"] for row in json.loads(read)] == [row.env for row in notify_table()]
    for row in notify_table():
        assert row.env in shown


def test_each_channel_is_tested_and_reported(receiver, make_receiver):
    broken = make_receiver()
    broken.reply(Reply(404, b"no_service at canary-path-of-slack"))
    environment = {
        "TACHO_NOTIFY_WEBHOOK_URL": receiver.address,
        "TACHO_NOTIFY_SLACK_URL": f"{broken.address}/canary-path-of-slack",
    }
    done = tacho("--event", "error", **environment)
    assert done.returncode == 1
    assert re.search(r"webhook: arrived in \d+\.\d", done.stdout)
    assert re.search(r"slack: failed after \d+\.\d", done.stdout)
    assert "HTTP 404: no_service at [masked]" in done.stdout
    assert "notify.webhook has no secret" in done.stdout
    assert "canary" not in done.stdout + done.stderr
    assert receiver.events() == ["error"]
    assert "test error from `tacho notify test`" in receiver.requests[0].json()["reason"]
    assert len(broken.requests) == 1

    done = tacho("--channel", "webhook", "--json", **environment)
    assert done.returncode == 0
    assert [(item["channel"], item["arrived"]) for item in json.loads(done.stdout)] == [("webhook", True)]
    done = tacho("--channel", "lark", **environment)
    assert done.returncode == 1
    assert "configured channels: slack, webhook" in done.stderr


def test_command_reads_config_file(receiver, tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(
        f"telemetry:\n  notify:\n    webhook: {{url: '{receiver.address}', secret: s}}\n    project: jackets\n"
    )
    assert tacho("--config", path, "--event", "milestone").returncode == 0
    payload = receiver.requests[0].json()
    assert (payload["title"], payload["project"]) == ("Reached train_loss < 0.5", "jackets")
    section = {"notify": {"webhook": {"url": receiver.address, "secret": "s"}, "project": "coats"}}
    path.write_text(json.dumps({"config": {"process": [{"telemetry": section}]}}))
    assert tacho("--config", path).returncode == 0
    assert receiver.requests[1].json()["project"] == "coats"
    path.write_text("telemetry:\n  notify:\n    slack: {url: canary}\n")
    done = tacho("--config", path)
    assert done.returncode == 1
    assert "telemetry.notify.slack.url: expected an address" in done.stderr
    assert "canary" not in done.stdout + done.stderr


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_has_a_sample(event):
    from tachograph.sinks.notify import resolve_notify, sample_message

    sample = sample_message(event, resolve_notify(), host="gpu-box")
    assert sample.event == event
    assert sample.run == "sample-run"
