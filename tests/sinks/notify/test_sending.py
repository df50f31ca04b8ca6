"""Following a journal and sending, in this process: retries, rations, queues, and the end."""

from __future__ import annotations

import json
import threading
import time

import pytest

import tachograph
from tachograph.journal import RunFolder
from tachograph.reader import read
from tachograph.sinks.notify import NotifyFollower, open_channels, resolve_notify
from tachograph.sinks.notify._outbox import Outbox
from tachograph.sinks.notify._sender import TokenBucket
from tests.conftest import lines_of, wait_for
from tests.receiver import Reply
from tests.sinks.notify.conftest import message


def begin(logs, notify, **settings):
    given = {"log_dir": str(logs), "git": False, "system_interval_s": 0, "flush_interval_s": 0.02}
    return tachograph.init("x", notify=notify, **{**given, **settings})


def alert(run, number, status="opened", severity="warning"):
    fields = {"id": f"a{number}", "rule": "r", "status": status, "severity": severity, "title": f"Alert {number}"}
    run._add_record("alert", {**fields, "message": "m", "advice": ["wait"], "global_step": number})


def telemetry_errors(logs):
    return [record for record in lines_of(logs / "x") if record["event"] == "telemetry_error"]


def nobody_sends():
    names = {"tachograph-notify-webhook"}
    wait_for(lambda: not names & {thread.name for thread in threading.enumerate()}, what="the end of the threads")


def saved(logs):
    return json.loads((logs / "x" / ".tacho" / "notify.json").read_text())


def test_everything_that_happens_is_told_in_order(logs, receiver):
    with begin(logs, {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}) as run:
        receiver.wait(1)
        alert(run, 1)
        receiver.wait(2)
        run.log(train_loss=0.4, step=3)
        receiver.wait(3)
        alert(run, 1, "updated")
        alert(run, 1, "resolved")
    assert receiver.events() == ["start", "alert", "milestone", "resolved", "complete"]
    last = receiver.requests[-1].json()
    assert (last["run"], last["step"], last["metrics"], last["state"]) == ("x", 3, {"train_loss": 0.4}, "finished")
    assert last["host"]
    assert telemetry_errors(logs) == []


def test_the_last_word_is_there_before_finish_returns(logs, receiver):
    receiver.reply(Reply(delay_s=0.3))
    run = begin(logs, {"webhook": receiver.address})
    run.finish()
    assert sorted(receiver.events()) == ["complete", "start"]


def test_a_failure_of_the_run_is_told(logs, receiver):
    with pytest.raises(ValueError, match="boom"), begin(logs, {"webhook": receiver.address}):
        raise ValueError("boom")
    last = receiver.requests[-1].json()
    assert (last["event"], last["reason"], last["state"]) == ("error", "ValueError: boom", "failed")


def test_500_and_then_200(logs, receiver):
    receiver.reply(Reply(500), Reply(is_dropped=True), Reply())
    with begin(logs, {"webhook": {"url": receiver.address, "secret": "s"}}):
        receiver.wait(3)
    assert receiver.events() == ["start", "start", "start", "complete"]
    first, second = receiver.requests[:2]
    assert first.json()["id"] == second.json()["id"]
    told = telemetry_errors(logs)
    assert [record["kind"] for record in told] == ["notification_failed"] * 2
    assert told[0]["field"] == "webhook"
    assert told[0]["reason"] == "HTTP 500: ok; it will be tried again"


def test_a_retry_is_signed_anew(logs, receiver):
    receiver.reply(Reply(500, delay_s=0.6), Reply(body=b'{"code": 0}'))
    with begin(logs, {"lark": {"url": receiver.address, "secret": "s"}}):
        receiver.wait(2)
    first, second = (request.json() for request in receiver.requests[:2])
    assert second["timestamp"] > first["timestamp"]
    assert second["sign"] != first["sign"]
    assert second["card"] == first["card"]


def test_a_receiver_says_how_long_to_wait(logs, receiver):
    receiver.reply(Reply(429, headers={"Retry-After": "1.5"}), Reply())
    with begin(logs, {"webhook": receiver.address}):
        receiver.wait(2)
    assert receiver.requests[1].time - receiver.requests[0].time >= 1.5


@pytest.mark.parametrize("reply", [Reply(404, b"no_service"), Reply(307, headers={"Location": "http://127.0.0.1:1/"})])
def test_what_is_refused_for_good_is_not_tried_again(logs, receiver, reply):
    receiver.reply(reply, Reply())
    with begin(logs, {"webhook": receiver.address}) as run:
        receiver.wait(1)
        wait_for(lambda: list(read(logs / "x").records("telemetry_error")))
        alert(run, 1)
        receiver.wait(2)
    assert receiver.events() == ["start", "alert", "complete"]
    assert [record["kind"] for record in telemetry_errors(logs)] == ["notification_lost"]
    assert "Training started: HTTP" in telemetry_errors(logs)[0]["reason"]


def test_a_channel_that_hangs_delays_no_other_and_not_the_end(logs, receiver, make_receiver, capsys):
    stuck = make_receiver()
    stuck.reply(Reply(delay_s=60))
    run = begin(logs, {"slack": receiver.address, "discord": stuck.address}, exit_timeout_s=0.7)
    receiver.wait(1)
    stuck.wait(1)
    began_s = time.monotonic()
    run.finish()
    took_s = time.monotonic() - began_s
    assert took_s < 1.5
    assert [json.loads(request.body)["text"] for request in receiver.requests][-1].startswith("[x] Training complete")
    out = capsys.readouterr().out
    assert "discord: 2 messages could not be sent in time" in out
    assert len(saved(logs)["queues"]["discord"]["waiting"]) == 2
    assert saved(logs)["queues"]["slack"]["waiting"] == []
    # It had its chance all the same, while the first still waited for an answer.
    assert "Training complete" in stuck.wait(2)[1].json()["embeds"][0]["title"]


def test_nobody_there_at_all(logs, capsys):
    run = begin(logs, {"slack": "http://127.0.0.1:9/canary"}, exit_timeout_s=0.5)
    began_s = time.monotonic()
    run.finish()
    assert time.monotonic() - began_s < 1.2
    assert (
        "slack: 2 messages could not be sent in time (it cannot be reached: Connection refused)"
        in capsys.readouterr().out
    )


def test_the_last_word_goes_first(logs, receiver):
    receiver.reply(Reply(delay_s=0.25))
    run = begin(logs, {"webhook": receiver.address})
    receiver.wait(1)
    for number in range(6):
        alert(run, number)
    run.finish(timeout_s=0.8)
    assert receiver.events()[:3] in (["start", "complete", "alert"], ["start", "alert", "complete"])
    assert saved(logs)["queues"]["webhook"]["waiting"]


def test_a_resume_sends_what_could_not_be_sent_and_nothing_twice(logs, receiver):
    receiver.reply(Reply(500))
    run = begin(logs, {"webhook": receiver.address}, exit_timeout_s=0.3)
    receiver.wait(1)
    run.finish()
    nobody_sends()
    receiver.requests.clear()
    receiver.reply(Reply())
    with begin(logs, {"webhook": receiver.address}, resume=True):
        receiver.wait(3)
    assert receiver.events() == ["start", "complete", "start", "complete"]
    assert [request.json()["title"] for request in receiver.requests][2] == "Training resumed"
    late = [record for record in telemetry_errors(logs) if record["kind"] == "notification_late"]
    assert late[0]["reason"] == "2 messages of the attempt before are sent now"
    receiver.requests.clear()
    with begin(logs, {"webhook": receiver.address}, resume=True):
        pass
    assert receiver.events() == ["start", "complete"]


def test_what_is_too_old_is_dropped_and_counted(logs, receiver):
    receiver.reply(Reply(500))
    begin(logs, {"webhook": receiver.address}, exit_timeout_s=0.2).finish()
    nobody_sends()
    path = logs / "x" / ".tacho" / "notify.json"
    state = saved(logs)
    for waiting in state["queues"]["webhook"]["waiting"]:
        waiting["time"] -= 3_700
    path.write_text(json.dumps(state))
    receiver.requests.clear()
    receiver.reply(Reply())
    with begin(logs, {"webhook": receiver.address}, resume=True):
        pass
    assert receiver.events() == ["start", "complete"]
    lost = [record for record in telemetry_errors(logs) if record["kind"] == "notification_lost"]
    assert lost[0]["reason"] == "2 messages of the attempt before were not sent in time and are dropped"


def test_a_milestone_is_not_told_again_after_a_resume(logs, receiver):
    for _ in range(2):
        with begin(logs, {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}, resume=True) as run:
            run.log(train_loss=0.1, step=1)
    assert receiver.events().count("milestone") == 1


@pytest.mark.parametrize("was_told", [True, False])
def test_without_its_cursor_an_old_journal_is_not_told_again(logs, receiver, was_told):
    settings = {"webhook": receiver.address, "milestones": ["train_loss < 0.5"]}
    with begin(logs, settings if was_told else None) as run:
        run.log(train_loss=0.1, step=1)
        alert(run, 1)
    if was_told:
        (logs / "x" / ".tacho" / "notify.json").unlink()
    receiver.requests.clear()
    with begin(logs, settings, resume=True) as run:
        run.log(train_loss=0.1, step=2)
    assert receiver.events() == ["start", "complete"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"queues": 7}', b"\0" * 100])
def test_a_torn_cursor_is_no_reason_to_fail(logs, receiver, content):
    begin(logs, {"webhook": receiver.address}).finish()
    (logs / "x" / ".tacho" / "notify.json").write_bytes(content)
    begin(logs, {"webhook": receiver.address}, resume=True).finish()
    assert receiver.events().count("start") == 2


def test_a_flood_is_rationed_and_summed_up(logs, receiver):
    with begin(logs, {"webhook": receiver.address, "burst": 3, "per_minute": 1}) as run:
        receiver.wait(1)
        for number in range(20):
            alert(run, number)
        alert(run, 99, severity="critical")
        receiver.wait(5)
    events = receiver.events()
    assert events.count("start") == events.count("complete") == 1
    assert events.count("alert") == 4  # three of the ration, and the critical one
    assert "Alert 99" in [request.json()["title"] for request in receiver.requests]
    summary = next(request.json() for request in receiver.requests if request.json()["event"] == "more")
    assert summary["title"] == "… and 17 more"
    assert "- Alert 3\n" in summary["reason"]
    assert "- and 12 more" in summary["reason"]


def test_the_summary_comes_by_itself_when_there_is_room_again(logs, receiver):
    with begin(logs, {"webhook": receiver.address, "burst": 1, "per_minute": 120}) as run:
        for number in range(4):
            alert(run, number)
        wait_for(lambda: "more" in receiver.events(), 5)
        assert "complete" not in receiver.events()


def test_a_bucket():
    bucket = TokenBucket(2, 60 * 50)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    assert 0 < bucket.wait_s() <= 0.02
    time.sleep(0.03)
    assert bucket.take()
    assert TokenBucket(1, 0.001).wait_s() == 0.0


def test_a_queue_is_bounded_and_keeps_what_is_urgent(tmp_path):
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


def test_a_channel_that_is_gone_is_counted(tmp_path, logs, receiver):
    receiver.reply(Reply(500))
    begin(logs, {"webhook": receiver.address}, exit_timeout_s=0.2).finish()
    begin(logs, {"discord": receiver.address}, exit_timeout_s=0.2, resume=True).finish()
    assert "webhook" in [record["field"] for record in telemetry_errors(logs) if record["kind"] == "notification_lost"]


def test_a_folder_that_cannot_be_written_still_notifies(tmp_path, receiver):
    folder = RunFolder(tmp_path / "x")
    folder.path.mkdir()
    folder.journal.write_text(json.dumps({"event": "start", "time": time.time()}) + "\n")
    settings = resolve_notify({"webhook": receiver.address})
    follower = NotifyFollower(
        folder, settings, open_channels(settings), report=lambda *_: None, say=print, began_s=0.0
    )  # there is no .tacho
    follower.start()
    receiver.wait(1)
    assert follower.close(5)


def test_settings_without_a_secret_are_told_once(logs, receiver, capsys):
    begin(logs, {"webhook": receiver.address}).finish()
    out = capsys.readouterr().out
    assert out.count("notify.webhook has no secret") == 1
    assert "TACHO_NOTIFY_WEBHOOK_SECRET" in out
    assert "notifying webhook" in out


def test_the_config_section_is_enough(tmp_path, receiver):
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
