"""Sending in this process: retries, the rate limit, the outbox and the end of a run."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from types import SimpleNamespace

import pytest

import tachograph
from tachograph.journal import RunFolder
from tachograph.reader import read
from tachograph.sinks import SinkDriver
from tachograph.sinks.notify import NotifySink, _sender, open_channels, resolve_notify
from tachograph.sinks.notify._outbox import Outbox
from tachograph.sinks.notify._sender import RateLimiter
from tests.conftest import HANG_S, lines_of, wait_for
from tests.receiver import Reply
from tests.sinks.notify.conftest import message


def begin(logs, notify, **settings):
    given = {"log_dir": str(logs), "git": False, "system_interval_s": 0, "flush_interval_s": 0.02}
    return tachograph.init("x", notify=notify, **{**given, **settings})


def alert(run, number, status="opened", severity="warning"):
    fields = {"id": f"a{number}", "rule": "r", "status": status, "severity": severity, "title": f"Alert {number}"}
    run.add_record("alert", {**fields, "message": "m", "advice": ["wait"], "global_step": number})


def telemetry_errors(logs):
    return [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]


def finish_in_a_hurry(run, follower_s):
    """End a run whose followers have less time than its journal."""
    for follower in run._followers:
        close = follower.close
        follower.close = lambda timeout_s, close=close: close(min(timeout_s, follower_s))
    assert run.finish(timeout_s=HANG_S)


def wait_until_senders_end():
    names = {"tachograph-notify-webhook"}
    wait_for(lambda: not names & {thread.name for thread in threading.enumerate()}, what="the end of the threads")


def saved(logs):
    return json.loads((logs / "x" / ".tacho" / "notify.json").read_text())


def test_lost_final_message_is_recorded(logs, receiver):
    receiver.reply(Reply(400, b"no such hook"))
    run = begin(logs, {"webhook": receiver.address}, exit_timeout_s=HANG_S)
    wait_for(lambda: telemetry_errors(logs), "the first loss")
    run.finish()
    reasons = [error["reason"] for error in telemetry_errors(logs)]
    assert [reason.partition(":")[0] for reason in reasons] == ["Training started", "Training complete"], reasons
    assert lines_of(logs / "x")[-1]["event"] == "telemetry_error"


def test_all_events_are_sent_in_order(logs, receiver):
    with begin(logs, {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}) as run:
        receiver.wait(1)
        alert(run, 1)
        receiver.wait(2)
        run.log(train_loss=0.4, step=3)
        receiver.wait(3)
        alert(run, 1, "updated")
        alert(run, 1, "resolved")
        receiver.wait(4)  # or the final message may overtake it
    assert receiver.events() == ["start", "alert", "milestone", "resolved", "complete"]
    last = receiver.requests[-1].json()
    assert (last["run"], last["step"], last["metrics"], last["state"]) == ("x", 3, {"train_loss": 0.4}, "finished")
    assert last["host"]
    assert telemetry_errors(logs) == []


def test_finish_waits_for_final_message(logs, receiver):
    receiver.reply(Reply(delay_s=0.3))
    run = begin(logs, {"webhook": receiver.address})
    run.finish()
    assert sorted(receiver.events()) == ["complete", "start"]


def test_failed_run_is_reported(logs, receiver):
    with pytest.raises(ValueError, match="boom"), begin(logs, {"webhook": receiver.address}):
        receiver.wait(1)  # or the final message may overtake the first one
        raise ValueError("boom")
    last = receiver.requests[-1].json()
    assert (last["event"], last["reason"], last["state"]) == ("error", "ValueError: boom", "failed")


def test_server_error_is_retried(logs, receiver):
    receiver.reply(Reply(500), Reply(is_dropped=True), Reply())
    with begin(logs, {"webhook": {"url": receiver.address, "secret": "s"}}):
        receiver.wait(3)
    assert receiver.events() == ["start", "start", "start", "complete"]
    first, second = receiver.requests[:2]
    assert first.json()["id"] == second.json()["id"]
    errors = telemetry_errors(logs)
    assert [record["kind"] for record in errors] == ["notification_failed"] * 2
    assert errors[0]["field"] == "webhook"
    assert errors[0]["reason"] == "HTTP 500: ok; will be retried"


def test_retry_has_new_signature(logs, receiver):
    receiver.reply(Reply(500, delay_s=0.6), Reply(body=b'{"code": 0}'))
    with begin(logs, {"lark": {"url": receiver.address, "secret": "s"}}):
        receiver.wait(2)
    first, second = (request.json() for request in receiver.requests[:2])
    assert second["timestamp"] > first["timestamp"]
    assert second["sign"] != first["sign"]
    assert second["card"] == first["card"]


def test_retry_after_header_is_respected(logs, receiver):
    receiver.reply(Reply(429, headers={"Retry-After": "1.5"}), Reply())
    with begin(logs, {"webhook": receiver.address}):
        receiver.wait(2)
    assert receiver.requests[1].time - receiver.requests[0].time >= 1.5


@pytest.mark.parametrize("reply", [Reply(404, b"no_service"), Reply(307, headers={"Location": "http://127.0.0.1:1/"})])
def test_permanent_rejection_is_not_retried(logs, receiver, reply):
    receiver.reply(reply, Reply())
    with begin(logs, {"webhook": receiver.address}) as run:
        receiver.wait(1)
        wait_for(lambda: list(read(logs / "x").records("telemetry_error")))
        alert(run, 1)
        receiver.wait(2)
    assert receiver.events() == ["start", "alert", "complete"]
    assert [record["kind"] for record in telemetry_errors(logs)] == ["notification_lost"]
    assert "Training started: HTTP" in telemetry_errors(logs)[0]["reason"]


def test_hanging_channel_delays_no_other_channel(logs, receiver, make_receiver):
    stuck = make_receiver()
    stuck.reply(Reply(delay_s=HANG_S))
    channels = {"slack": receiver.address, "discord": stuck.address, "timeout_s": 60}
    run = begin(logs, channels, exit_timeout_s=HANG_S)
    receiver.wait(1)
    stuck.wait(1)
    ending = threading.Thread(target=run.finish)
    ending.start()
    assert json.loads(receiver.wait(2)[1].body)["text"].startswith("[x] Training complete")
    # The second thread sends the final message while the first still waits for a response.
    assert "Training complete" in stuck.wait(2)[1].json()["embeds"][0]["title"]
    assert ending.is_alive()
    stuck.released.set()
    ending.join()
    assert [queue["waiting"] for queue in saved(logs)["queues"].values()] == [[], []]


def test_hanging_channel_does_not_delay_exit(logs, receiver, capsys):
    receiver.reply(Reply(delay_s=HANG_S))
    run = begin(logs, {"webhook": receiver.address, "timeout_s": 60}, exit_timeout_s=0.5)
    receiver.wait(1)
    start_s = time.monotonic()
    run.finish()
    assert time.monotonic() - start_s < HANG_S / 2
    assert re.search(r"webhook: [12] messages? not sent before exit", capsys.readouterr().out)
    assert saved(logs)["queues"]["webhook"]["waiting"]


def test_unreachable_channel_does_not_delay_exit(logs, capsys):
    run = begin(logs, {"slack": "http://127.0.0.1:9/canary"}, exit_timeout_s=0.5)
    wait_for(lambda: telemetry_errors(logs), "the first failure")
    start_s = time.monotonic()
    run.finish()
    assert time.monotonic() - start_s < HANG_S / 2
    wanted = r"slack: [12] messages? not sent before exit \(cannot connect: Connection refused\)"
    assert re.search(wanted, capsys.readouterr().out)


def test_final_message_is_not_delayed_by_others(logs, receiver):
    receiver.reply(Reply(delay_s=HANG_S))
    run = begin(logs, {"webhook": receiver.address, "timeout_s": 60}, exit_timeout_s=HANG_S)
    receiver.wait(1)
    for number in range(6):
        alert(run, number)
    ending = threading.Thread(target=run.finish)
    ending.start()
    receiver.wait(2)
    receiver.released.set()
    ending.join()
    assert receiver.events()[:2] == ["start", "complete"]
    assert sorted(receiver.events()[2:]) == ["alert"] * 6


def test_resume_sends_unsent_messages_and_none_twice(logs, receiver):
    receiver.reply(Reply(500))
    run = begin(logs, {"webhook": receiver.address})
    receiver.wait(1)
    finish_in_a_hurry(run, 0.3)
    wait_until_senders_end()
    receiver.requests.clear()
    receiver.reply(Reply())
    with begin(logs, {"webhook": receiver.address}, resume=True):
        receiver.wait(3)
    assert receiver.events() == ["start", "complete", "start", "complete"]
    assert [request.json()["title"] for request in receiver.requests][2] == "Training resumed"
    late = [record for record in telemetry_errors(logs) if record["kind"] == "notification_late"]
    assert re.fullmatch(r"sending [12] messages? left over from the previous attempt", late[0]["reason"])
    receiver.requests.clear()
    with begin(logs, {"webhook": receiver.address}, resume=True):
        receiver.wait(1)
    assert receiver.events() == ["start", "complete"]


def test_expired_messages_are_dropped_and_counted(logs, receiver):
    begin(logs, {"webhook": receiver.address}).finish()
    receiver.requests.clear()
    state = saved(logs)
    old = {"title": "Old", "time": time.time() - 3_700, "run": "x"}
    waiting = [{"key": event, "event": event, **old} for event in ("start", "complete")]
    state["queues"]["webhook"]["waiting"] = waiting
    (logs / "x" / ".tacho" / "notify.json").write_text(json.dumps(state))
    with begin(logs, {"webhook": receiver.address}, resume=True):
        receiver.wait(1)
    assert receiver.events() == ["start", "complete"]
    lost = [record for record in telemetry_errors(logs) if record["kind"] == "notification_lost"]
    assert lost[0]["reason"] == "2 messages from the previous attempt not sent in time and dropped"


def test_milestone_is_not_repeated_after_resume(logs, receiver):
    for _ in range(2):
        with begin(logs, {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}, resume=True) as run:
            run.log(train_loss=0.1, step=1)
    assert receiver.events().count("milestone") == 1


@pytest.mark.parametrize("had_outbox", [True, False])
def test_old_events_are_not_sent_without_outbox_file(logs, receiver, had_outbox):
    settings = {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}
    with begin(logs, settings if had_outbox else None) as run:
        run.log(train_loss=0.1, step=1)
        alert(run, 1)
    if had_outbox:
        (logs / "x" / ".tacho" / "notify.json").unlink()
    receiver.requests.clear()
    with begin(logs, settings, resume=True) as run:
        run.log(train_loss=0.1, step=2)
        receiver.wait(1)
    assert receiver.events() == ["start", "complete"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"queues": 7}', b"\0" * 100])
def test_corrupt_outbox_file_is_ignored(logs, receiver, content):
    begin(logs, {"webhook": receiver.address}).finish()
    (logs / "x" / ".tacho" / "notify.json").write_bytes(content)
    begin(logs, {"webhook": receiver.address}, resume=True).finish()
    assert receiver.events().count("start") == 2


def test_messages_over_rate_limit_are_summarised(logs, receiver):
    with begin(logs, {"webhook": receiver.address, "burst": 3, "per_minute": 0.01}) as run:
        receiver.wait(1)
        for number in range(20):
            alert(run, number)
        alert(run, 99, severity="critical")
        receiver.wait(5)
    events = receiver.events()
    assert events.count("start") == events.count("complete") == 1
    assert events.count("alert") == 4  # three within the limit, and the critical one
    assert "Alert 99" in [request.json()["title"] for request in receiver.requests]
    summary = next(request.json() for request in receiver.requests if request.json()["event"] == "more")
    assert summary["title"] == "… and 17 more"
    assert "- Alert 3\n" in summary["reason"]
    assert "- and 12 more" in summary["reason"]


def test_summary_is_sent_when_rate_limit_allows(logs, receiver):
    numbers = itertools.count()
    with begin(logs, {"webhook": receiver.address, "burst": 1, "per_minute": 120}) as run:
        wait_for(lambda: alert(run, next(numbers)) or "more" in receiver.events())
        assert "complete" not in receiver.events()


def test_rate_limiter(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(_sender, "time", SimpleNamespace(monotonic=lambda: now_s))
    limiter = RateLimiter(2, 60 * 50)
    assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]
    assert limiter.wait_s() == pytest.approx(0.02)
    now_s += 0.021
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    assert RateLimiter(1, 0.001).wait_s() == 0.0


def test_queue_is_bounded_and_keeps_urgent_messages(tmp_path):
    folder = RunFolder(tmp_path)
    folder.private.mkdir()
    outbox = Outbox(folder, ["slack"])
    outbox.open()
    outbox.put(message(key="start", event="start"))
    for number in range(1_000):
        outbox.put(message(key=f"a{number}", title=f"Alert {number}"))
    assert len(outbox.waiting("slack")) == 50
    assert outbox.waiting("slack")[0].event == "start"
    assert outbox.num_held("slack") == 951
    for number in range(1_000):
        outbox.put(message(key=f"c{number}", severity="critical"))
    assert len(outbox.waiting("slack")) == 50
    outbox.save()
    assert (folder.private / "notify.json").stat().st_size < 100_000
    again = Outbox(folder, ["slack"])
    again.open()
    assert again.waiting("slack") == outbox.waiting("slack")
    assert again.num_held("slack") == outbox.num_held("slack")


def test_messages_of_removed_channel_are_counted(tmp_path, logs, receiver):
    receiver.reply(Reply(500))
    run = begin(logs, {"webhook": receiver.address})
    receiver.wait(1)
    finish_in_a_hurry(run, 0.2)
    run = begin(logs, {"discord": receiver.address}, resume=True)

    def lost_channels():
        return [record["field"] for record in telemetry_errors(logs) if record["kind"] == "notification_lost"]

    wait_for(lambda: "webhook" in lost_channels(), "the loss")
    finish_in_a_hurry(run, 0.2)


def test_notifies_without_writable_folder(tmp_path, receiver):
    folder = RunFolder(tmp_path / "x")
    folder.path.mkdir()
    folder.journal.write_text(json.dumps({"event": "start", "time": time.time()}) + "\n")
    settings = resolve_notify({"webhook": receiver.address})
    sink = NotifySink(settings, open_channels(settings), report=lambda *_: None, print_line=print, start_s=0.0)
    driver = SinkDriver(folder, sink, lambda *_: None)  # there is no .tacho folder
    driver.start()
    receiver.wait(1)
    assert driver.close(HANG_S)


def test_missing_secret_is_warned_about_once(logs, receiver, capsys):
    begin(logs, {"webhook": receiver.address}).finish()
    out = capsys.readouterr().out
    assert out.count("notify.webhook has no secret") == 1
    assert "TACHO_NOTIFY_WEBHOOK_SECRET" in out
    assert "notifying webhook" in out


def test_config_section_alone_configures_channels(tmp_path, receiver):
    config = tmp_path / "train.yaml"
    config.write_text(
        f"name: x\nproject: jackets\ntelemetry:\n  log_dir: {tmp_path / 'logs'}\n  notify:\n"
        f"    on: [complete]\n    webhook: {{url: '{receiver.address}/canary-path', secret: canary-secret}}\n"
    )
    tachograph.init_from_config(config).finish()
    assert receiver.events() == ["complete"]
    assert receiver.requests[0].json()["project"] == "jackets"
    start = lines_of(tmp_path / "logs" / "x")[0]
    webhook = start["config"]["telemetry"]["notify"]["webhook"]
    assert webhook == {"url": "[masked]", "secret": "[masked]"}


def test_outbox_file_of_earlier_version_is_read(logs, receiver):
    """The names in the file are part of the format: a run must survive an upgrade between two attempts."""
    settings = {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}
    with begin(logs, None) as run:
        run.log(train_loss=0.1, step=1)
    waiting = {
        "key": "milestone:step >= 1",
        "event": "milestone",
        "title": "Left over",
        "time": time.time(),
        "run": "x",
    }
    held = {"num_messages": 0, "titles": [], "last": None}
    story = {"run_id": "r", "is_open": True, "seen": {"end:1.0": 1.0}, "reached": ["train_loss < 0.5"]}
    state = {
        "journal_bytes": (logs / "x" / "metrics.jsonl").stat().st_size,
        "story": story,
        "queues": {"webhook": {"waiting": [waiting], "held": held}},
    }
    (logs / "x" / ".tacho" / "notify.json").write_text(json.dumps(state))
    with begin(logs, settings, resume=True) as run:
        receiver.wait(2)
        run.log(train_loss=0.1, step=2)
    assert [request.json()["title"] for request in receiver.requests] == [
        "Left over",
        "Training resumed",
        "Training complete",
    ]
    assert "ended without an exit record" in receiver.requests[1].json()["reason"]
    assert set(saved(logs)) == {"journal_bytes", "story", "queues"}
    errors = telemetry_errors(logs)
    assert [record["reason"] for record in errors] == ["sending 1 message left over from the previous attempt"]


@pytest.mark.expects_faults
def test_record_that_cannot_be_handled_is_skipped(logs, receiver, monkeypatch):
    from tachograph.sinks.notify._builder import MessageBuilder

    handle = MessageBuilder.handle

    def fail_on_alert(builder, record):
        if record["event"] == "alert":
            raise KeyError("broken")
        return handle(builder, record)

    monkeypatch.setattr(MessageBuilder, "handle", fail_on_alert)
    with begin(logs, {"webhook": receiver.address}) as run:
        alert(run, 1)
        receiver.wait(1)
    assert receiver.events() == ["start", "complete"]
    assert telemetry_errors(logs) == []


def test_moved_run_is_linked_by_its_new_name(tmp_path, receiver):
    settings = resolve_notify({"webhook": receiver.address, "dashboard_url": "https://x.org"})
    sink = NotifySink(settings, open_channels(settings), report=lambda *_: None, print_line=print, start_s=0.0)
    for name in ("old", "new"):
        (tmp_path / name / ".tacho").mkdir(parents=True)
    driver = SinkDriver(RunFolder(tmp_path / "old"), sink, lambda *_: None)
    driver.move(RunFolder(tmp_path / "new"))
    (tmp_path / "new" / "metrics.jsonl").write_text(json.dumps({"event": "start", "time": time.time()}) + "\n")
    driver.start()
    assert driver.close(HANG_S)
    payload = receiver.requests[0].json()
    assert (payload["run"], payload["link"]) == ("new", "https://x.org/#/run/new")
    assert (tmp_path / "new" / ".tacho" / "notify.json").exists()
    assert not (tmp_path / "old" / ".tacho" / "notify.json").exists()
