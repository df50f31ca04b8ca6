"""Secrets are planted in every setting, every channel fails, and then all files and output are searched."""

from __future__ import annotations

import logging
import os
import traceback

import pytest
import yaml

from tachograph.sinks.notify import DeliveryError, open_channels, resolve_notify
from tests.conftest import HANG_S, lines_of
from tests.receiver import Reply
from tests.sinks.notify.conftest import message

PROGRAM = """
    import logging, sys, time, tachograph
    logging.basicConfig(level=logging.DEBUG)
    run = tachograph.init_from_config(sys.argv[1], exit_timeout_s=0.5)
    print(repr(run), run.facts)
    run.log(train_loss=0.1, step=1)
    fields = [f'"field":"{name}"'.encode() for name in ("lark", "slack", "webhook")]
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and not all(map(run.folder.journal.read_bytes().__contains__, fields)):
        time.sleep(0.05)
    raise RuntimeError("boom")
"""


def echo(receiver):
    """A response that quotes the request, as some receivers do in their errors."""
    return Reply(400, f"no hook at {receiver.address}/canary-path-1 with key canary-secret-1 or canary-token".encode())


def test_no_secret_is_written_anywhere(tmp_path, logs, script, receiver, make_receiver):
    broken, strict = make_receiver(), make_receiver()
    broken.reply(Reply(500, b"canary-path-2 is down"))
    strict.reply(Reply(200, b'{"code": 19021, "msg": "sign of canary-secret-2 at /hook/canary-path-4 does not match"}'))
    receiver.reply(echo(receiver))
    section = {
        "lark": {"url": f"{strict.address}/hook/canary-path-4", "secret": "canary-secret-2"},
        "slack": {"url": f"{broken.address}/services/canary-path-2?key=canary-query"},
        "discord": {"url": "http://canary-host.invalid/canary-path-3"},
        "webhook": {"url": f"{receiver.address}/canary-path-1", "secret": "canary-secret-1",
                    "authorization": "Bearer canary-token", "template": {"key": "canary-template"}},
        "email": {"host": "127.0.0.1", "port": 9, "to": ["a@x.org"], "sender": "t@x.org", "user": "me",
                  "password": "canary-secret-4", "security": "plain"},
        "milestones": ["train_loss < 0.5"],
    }  # fmt: skip
    config = {"name": "x", "telemetry": {"log_dir": str(logs), "git": False, "notify": section}}
    config["swanlab_lark_webhook_url"] = config["slack_url"] = "https://x.org/canary-flat"
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    code, out, err = script(PROGRAM, path).wait()
    assert code == 1, out
    assert receiver.requests, out + err
    assert broken.requests
    assert strict.requests
    for text in (out, err):
        assert "canary" not in text
    files = [os.path.join(folder, name) for folder, _, names in os.walk(logs) for name in names]
    assert len(files) >= 4
    for file in files:
        with open(file, "rb") as opened:
            assert b"canary" not in opened.read(), file
    records = lines_of(logs / "x")
    failed = {record["field"] for record in records if record["event"] == "telemetry_error"}
    assert failed >= {"lark", "slack", "webhook"}
    start = next(record for record in records if record["event"] == "start")
    assert start["config"]["telemetry"]["notify"]["lark"] == {"url": "[masked]", "secret": "[masked]"}
    assert start["config"]["telemetry"]["notify"]["milestones"] == ["train_loss < 0.5"]


@pytest.mark.parametrize(
    "settings",
    [
        {"slack": "http://127.0.0.1:9/canary-path"},
        {"slack": "http://canary-host.invalid/canary-path"},
        {"webhook": {"url": "http://127.0.0.1:9/x", "authorization": "canary é"[:6], "secret": "canary-s"}},
        {"slack": f"http://{'canary' * 20}.org/x"},  # a host name that is too long for DNS
    ],
)
def test_delivery_error_quotes_no_address(settings, caplog):
    caplog.set_level(logging.DEBUG)
    channel = open_channels(resolve_notify(settings))[0]
    with pytest.raises(DeliveryError) as failure:
        channel.send(message(), 0.5)
    assert "canary" not in "".join(traceback.format_exception(failure.value))
    assert failure.value.__context__ is None
    assert "canary" not in caplog.text


def test_secrets_in_a_response_are_masked(receiver):
    receiver.reply(echo(receiver))
    given = {
        "url": f"{receiver.address}/canary-path-1",
        "secret": "canary-secret-1",
        "authorization": "Bearer canary-token",
    }
    with pytest.raises(DeliveryError, match=r"HTTP 400: no hook at \[masked\] with key \[masked\] or \[masked\]"):
        open_channels(resolve_notify({"webhook": given}))[0].send(message(), HANG_S)


@pytest.mark.expects_faults
def test_internal_error_quotes_no_secret(receiver, logs, caplog):
    """An exception inside a channel loses only its message, and its text is masked."""
    import tachograph
    from tachograph.sinks import SinkDriver
    from tachograph.sinks.notify import NotifySink

    settings = resolve_notify({"slack": f"{receiver.address}/canary-path"})
    channel = open_channels(settings)[0]
    send = channel.send

    def fail_on_start(message, timeout_s):
        if message.event == "start":
            raise KeyError(f"{receiver.address}/canary-path")
        send(message, timeout_s)

    channel.send = fail_on_start
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        sink = NotifySink(settings, [channel], report=run.report_error, print_line=run.print_line, start_s=0.0)
        run.add_follower(SinkDriver(run.folder, sink, run.report_error))
    assert len(receiver.requests) == 1
    assert "suppressed a telemetry fault while notifying slack" in caplog.text
    assert "canary" not in caplog.text
