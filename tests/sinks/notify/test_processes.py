"""Whole programs that finish, raise, are terminated, fork, are resumed, or are not rank 0."""

from __future__ import annotations

import json
import re
import signal
import sys
import time

import pytest

from tests.conftest import HANG_S, lines_of, wait_for
from tests.receiver import Reply

TRAIN = """
    import sys, time, tachograph
    logs, address, end = sys.argv[1:4]
    notify = {"webhook": address, "milestones": ["train_loss < 0.5"]}
    run = tachograph.init("x", log_dir=logs, notify=notify, resume=True, git=False, system_interval_s=0)
    for step in range(5):
        run.log(train_loss=1.0 / (step + 1), lr=3e-4, step=step)
    if end == "raises":
        raise ValueError("boom")
    if end == "waits":
        print("ready", flush=True)
        time.sleep(3600)
    if end == "ends in a hurry":  # its followers have less time than its journal
        for follower in run._followers:
            follower.close = lambda timeout_s, close=follower.close: close(min(timeout_s, 1.0))
    if end == "exits":
        sys.exit(3)
    if end == "finishes":
        run.finish()
"""


def events(receiver):
    return sorted(receiver.events())


@pytest.mark.parametrize("end", ["finishes", "simply ends"])
def test_finished_program_reports_completion(logs, script, receiver, end):
    script(TRAIN, logs, receiver.address, end).ok()
    assert events(receiver) == ["complete", "milestone", "start"]
    last = next(request.json() for request in receiver.requests if request.json()["event"] == "complete")
    assert (last["step"], last["metrics"]["train_loss"], last["metrics"]["lr"]) == (4, 0.2, 3e-4)
    assert last["reason"] == ""


@pytest.mark.parametrize(("end", "reason"), [("raises", "ValueError: boom"), ("exits", "exit code 3")])
def test_failed_program_reports_reason(logs, script, receiver, end, reason):
    code, _, _ = script(TRAIN, logs, receiver.address, end).wait()
    assert code in (1, 3)
    assert events(receiver) == ["error", "milestone", "start"]
    assert next(item.json() for item in receiver.requests if item.json()["event"] == "error")["reason"] == reason


def test_nan_loss_is_reported_end_to_end(logs, script, receiver):
    """From the training loop through the rules to the receiver."""
    script(
        """
        import math, sys, tachograph
        with tachograph.init("x", log_dir=sys.argv[1], notify={"webhook": sys.argv[2]}, git=False) as run:
            for step in range(120):
                run.log(train_loss=math.nan if step == 60 else 1.0 + step % 3, step=step)
        """,
        logs,
        receiver.address,
    ).ok()
    assert sorted(set(receiver.events())) == ["alert", "complete", "resolved", "start"]
    messages = {request.json()["title"]: request.json() for request in receiver.requests}  # also that it was slow
    alert, resolved = (messages[f"{prefix}train_loss is NaN at step 60"] for prefix in ("", "Resolved: "))
    assert (alert["event"], alert["severity"], resolved["event"]) == ("alert", "critical", "resolved")
    assert alert["advice"]


def test_terminated_program_reports_sigterm(logs, script, receiver):
    program = script(TRAIN, logs, receiver.address, "waits")
    assert program.process.stdout.readline()
    while "ready" not in program.process.stdout.readline():
        pass
    receiver.wait(2)
    program.process.send_signal(signal.SIGTERM)
    assert program.wait()[0] == -signal.SIGTERM
    if len(receiver.requests) == 2:  # a process that was asked to end does not wait long: a resumed run sends the rest
        script(TRAIN, logs, receiver.address, "exits").wait()
    assert events(receiver)[:3] == ["error", "milestone", "start"]
    error = next(item.json() for item in receiver.requests if item.json()["event"] == "error")
    assert error["reason"].splitlines()[0] == "SIGTERM"  # more lines name the dump, if it was written in time


def test_killed_program_is_resumed(logs, script, receiver):
    program = script(TRAIN, logs, receiver.address, "waits")
    receiver.wait(2)
    saved = logs / "x" / ".tacho" / "notify.json"
    # Killed before it has read the response, it would send the message again.
    is_answered = lambda: saved.exists() and not json.loads(saved.read_bytes())["queues"]["webhook"]["waiting"]  # noqa: E731
    wait_for(is_answered, what="the answers")
    program.process.kill()
    program.wait()
    assert events(receiver) == ["milestone", "start"]
    script(TRAIN, logs, receiver.address, "finishes").ok()
    assert events(receiver) == ["complete", "milestone", "start", "start"]
    again = next(item.json() for item in receiver.requests[2:] if item.json()["event"] == "start")
    assert again["title"] == "Training resumed"
    assert "ended without an exit record" in again["reason"]


def test_hanging_receiver_does_not_delay_exit(logs, script, receiver):
    receiver.reply(Reply(delay_s=HANG_S))
    program = script(TRAIN, logs, receiver.address, "ends in a hurry")
    start_s = time.monotonic()
    out = program.ok()
    assert time.monotonic() - start_s < HANG_S / 2
    assert re.search(r"webhook: [123] messages? not sent before exit.*; resume the run within an hour to send", out)
    receiver.reply(Reply())
    receiver.released.set()
    receiver.requests.clear()
    script(TRAIN, logs, receiver.address, "finishes").ok()
    assert events(receiver) == ["complete", "complete", "milestone", "start", "start"]
    kinds = [record["kind"] for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]
    assert kinds[-1] == "notification_late"


def test_only_rank_0_notifies(logs, script, receiver):
    script(TRAIN, logs, receiver.address, "finishes", env={"RANK": "1", "WORLD_SIZE": "2"}).ok()
    assert receiver.requests == []
    script(TRAIN, logs, receiver.address, "finishes", env={"RANK": "0", "WORLD_SIZE": "2"}).ok()
    assert events(receiver) == ["complete", "milestone", "start"]


def test_forked_child_sends_nothing(logs, script, receiver):
    script(
        """
        import os, sys, time, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], notify={"webhook": sys.argv[2]}, git=False)
        pid = os.fork()
        if pid == 0:
            run.event("from_the_child")
            run.finish("failed", reason="child")
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        run.finish()
        """,
        logs,
        receiver.address,
    ).ok()
    assert events(receiver) == ["complete", "start"]


def test_nothing_is_imported_without_notifications(logs, script):
    out = script(
        """
        import sys, tachograph
        tachograph.init("x", log_dir=sys.argv[1], git=False, console=False).finish()
        print(sorted({"urllib.request", "http.client", "smtplib", "tachograph.sinks.notify.slack"} & set(sys.modules)))
        """,
        logs,
    ).ok()
    assert out.strip() == "[]", f"{sys.version}: {out}"
