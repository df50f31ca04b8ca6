"""Which records give which messages."""

from __future__ import annotations

import math

import pytest

from tachograph.exceptions import ConfigError
from tachograph.records import decode, encode
from tachograph.sinks.notify import resolve_notify
from tachograph.sinks.notify._builder import BuilderState, MessageBuilder
from tachograph.sinks.notify._message import format_text, message_fields
from tachograph.sinks.notify._milestone import Milestone


def make_builder(state=None, **settings):
    return MessageBuilder("greyjacket", resolve_notify(settings), state or BuilderState())


def start(**fields):
    return {"event": "start", "time": 100.0, "run_id": "r1", "host": "gpu-box", "max_steps": 500, **fields}


def step(number, **metrics):
    return {"event": "step", "time": 100.0 + number, "global_step": number, **metrics}


def alert(status, severity="warning", **fields):
    given = {
        "event": "alert", "time": 200.0, "global_step": 7, "id": "a1", "rule": "loss_spike", "status": status,
        "severity": severity, "title": "Loss spike", "message": "it rose", "meaning": "a bad batch", "advice": ["wait"],
    }  # fmt: skip
    return {**given, **fields}


def build(builder, *records):
    return [message for record in records for message in builder.handle(decode(encode(record)))]


def titles(builder, *records):
    return [message.title for message in build(builder, *records)]


def test_messages_of_a_finished_run():
    first, last = build(
        make_builder(dashboard_url="http://runs.example.org/", project="jackets"),
        start(),
        step(3, train_loss=0.25, lr=3e-4, other=1.0),
        {"event": "validation", "time": 104.0, "global_step": 3, "val_loss": math.nan},
        {"event": "end", "time": 830.0, "status": "finished"},
    )
    assert (first.event, first.title, first.state, first.severity) == ("start", "Training started", "running", "info")
    assert (last.event, last.title, last.state) == ("complete", "Training complete", "finished")
    assert last.metrics == {"train_loss": 0.25, "val_loss": "NaN", "lr": 3e-4}
    assert (last.step, last.max_steps, last.duration_s) == (3, 500, 730.0)
    assert last.link == "http://runs.example.org/#/run/greyjacket"
    assert dict(message_fields(last))["Duration"] == "12 min 10 s"
    assert "train_loss: 0.25" in format_text(last)
    assert first.is_urgent
    assert last.is_urgent
    assert last.is_final


def test_run_name_is_quoted_in_link():
    builder = MessageBuilder("a b/#?ü", resolve_notify({"dashboard_url": "https://x.org/p"}), BuilderState())
    assert build(builder, start())[0].link == "https://x.org/p/#/run/a%20b%2F%23%3F%C3%BC"


@pytest.mark.parametrize(
    "config", [{"project": "p"}, {"wandb_project": "p"}, {"project": {"no": 1}, "project_name": "p"}]
)
def test_project_is_read_from_run_or_config(config):
    assert build(make_builder(), start(config=config))[0].project == "p"
    assert build(make_builder(), start(config=config, project="run"))[0].project == "run"
    assert build(make_builder(project="mine"), start(config=config, project="run"))[0].project == "mine"


def test_failure_message_has_reason():
    error = {"event": "error", "time": 110.0, "fatal": True, "error_type": "ValueError", "error_message": "bad shape"}
    end = {"event": "end", "time": 111.0, "status": "failed", "reason": "ValueError"}
    last = build(make_builder(), start(), error, end)[-1]
    assert (last.event, last.reason, last.severity) == ("error", "ValueError: bad shape", "critical")
    assert build(make_builder(), start(), {**end, "reason": "SIGTERM"})[-1].reason == "SIGTERM"
    aside = {**error, "fatal": False}
    assert build(make_builder(), start(), aside, {**end, "reason": "SIGTERM"})[-1].reason == "SIGTERM"
    first = {**end, "reason": "rank 2 (node2) was killed or crashed", "first_failed_rank": {"rank": 2, "host": "node2"}}
    assert build(make_builder(), start(), error, first)[-1].reason == "rank 2 (node2) was killed or crashed"


def test_resume_reports_missing_exit_record():
    again = start(time=300.0, resumed=True)
    killed = build(make_builder(), start(), step(1), again)[-1]
    assert killed.title == "Training resumed"
    assert "ended without an exit record" in killed.reason
    ended = {"event": "end", "time": 200.0, "status": "failed", "reason": "SIGTERM"}
    assert build(make_builder(), start(), ended, again)[-1].reason == ""


def test_messages_of_an_alert():
    records = [alert("opened"), alert("updated"), alert("updated", "critical"), alert("updated", "critical")]
    records += [alert("resolved", outcome="it fell again")]
    opened, risen, resolved = build(make_builder(), *records)
    assert (opened.event, opened.title, opened.severity, opened.reason) == ("alert", "Loss spike", "warning", "it rose")
    assert (opened.meaning, opened.advice, opened.rule, opened.step) == ("a bad batch", ("wait",), "loss_spike", 7)
    assert not opened.is_urgent
    assert (risen.event, risen.severity, risen.is_urgent) == ("alert", "critical", True)
    assert (resolved.event, resolved.title, resolved.reason) == ("resolved", "Resolved: Loss spike", "it fell again")
    assert len({opened.key, risen.key, resolved.key}) == 3


def test_cause_of_an_alert_is_a_message():
    cause = {"text": "It was sample 41.", "confidence": "certain", "kind": "bad_input", "dump": "1-loss_spike"}
    records = [alert("opened"), alert("updated", cause=cause), alert("resolved"), alert("resolved", cause=cause)]
    builder = make_builder(dashboard_url="http://runs.example.org")
    opened, explained, resolved = build(builder, *records)
    assert (explained.event, explained.title, explained.severity) == ("alert", "Cause: Loss spike", "warning")
    assert explained.reason == "It was sample 41. (certain)\nEvidence: tacho dump show greyjacket 1-loss_spike"
    assert explained.link == "http://runs.example.org/#/run/greyjacket/health"
    assert opened.link == resolved.link == "http://runs.example.org/#/run/greyjacket"


def test_failure_message_has_cause_of_its_dump():
    verdict = {"text": "Labels are too large.", "confidence": "certain", "kind": "index"}
    dump = {"event": "dump", "time": 105.0, "dump": "2-exception", "reason": "exception", "verdict": verdict}
    error = {"event": "error", "time": 110.0, "fatal": True, "error_type": "IndexError", "error_message": "target 7"}
    end = {"event": "end", "time": 111.0, "status": "failed", "reason": "IndexError"}
    reason = build(make_builder(), start(), error, dump, end)[-1].reason
    assert reason.startswith("IndexError: target 7\nCause: Labels are too large. (certain)\nEvidence: tacho dump show")
    assert build(make_builder(), start(), dump, start(time=120.0), error, end)[-1].reason == "IndexError: target 7"
    other = {**dump, "reason": "loss_spike"}
    assert build(make_builder(), start(), other, error, end)[-1].reason == "IndexError: target 7"


def test_repeated_record_gives_one_message():
    records = [start(), alert("opened"), alert("resolved"), {"event": "end", "time": 300.0, "status": "finished"}]
    builder = make_builder()
    assert len(build(builder, *records)) == 4
    assert build(builder, *records) == []
    assert build(make_builder(builder.state), *records) == []


@pytest.mark.parametrize(
    ("least", "severity", "num_messages"),
    [("warning", "info", 0), ("warning", "warning", 2), ("critical", "warning", 0), ("info", "info", 2)],
)
def test_min_severity(least, severity, num_messages):
    assert (
        len(build(make_builder(min_severity=least), alert("opened", severity), alert("resolved", severity)))
        == num_messages
    )


def test_alert_below_min_severity_is_sent_once_critical():
    found = build(make_builder(), alert("opened", "info"), alert("updated", "critical"), alert("resolved", "info"))
    assert [message.event for message in found] == ["alert", "resolved"]


def test_absorbed_alert_is_not_reported_as_resolved():
    records = [alert("opened"), alert("resolved", absorbed_by="divergence"), alert("opened", "critical", id="a2")]
    assert [message.event for message in build(make_builder(), *records)] == ["alert", "alert"]


def test_alert_with_unknown_fields_is_accepted():
    odd = {"event": "alert", "time": 1.0, "rule": "mine", "severity": "dreadful", "advice": "none", "title": None}
    assert titles(make_builder(), odd) == ["mine"]


def test_only_selected_events_give_messages():
    records = [start(), alert("opened"), alert("resolved"), step(1, train_loss=0.1)]
    records += [{"event": "end", "time": 300.0, "status": "finished"}]
    builder = make_builder(on=["resolved", "milestone"], milestones=["train_loss < 1"])
    assert titles(builder, *records) == ["Resolved: Loss spike", "Reached train_loss < 1"]


def test_milestone_is_reported_once_and_ignores_nan():
    builder = make_builder(milestones=["train_loss < 0.5", "step >= 3", "val_loss<=1e-1"])
    losses = [0.9, math.nan, -math.inf, 0.49, 0.3]
    found = build(builder, *(step(number, train_loss=loss) for number, loss in enumerate(losses)))
    assert [message.title for message in found] == ["Reached train_loss < 0.5", "Reached step >= 3"]
    assert found[0].reason == "train_loss is 0.49 at step 3."
    again = make_builder(builder.state, milestones=["train_loss < 0.5", "train_loss < 0.4"])
    assert titles(again, step(9, train_loss=0.1)) == ["Reached train_loss < 0.4"]


@pytest.mark.parametrize(
    ("text", "value", "is_met"),
    [("a < 1", 1, False), ("a <= 1", 1, True), ("a > 1", 1, False), ("a >= 1", 1, True), ("a >= 1", True, False),
     ("eval/acc top-1 >= .9", 0.95, True), ("a<-1e-3", -1, True), ("a < 1", "0", False), ("a < 1", None, False)],
)  # fmt: skip
def test_milestones(text, value, is_met):
    milestone = Milestone(text)
    assert (milestone.value_if_met({milestone.metric: value}) is not None) is is_met


@pytest.mark.parametrize(
    "text", ["loss", "loss < ", "< 1", "loss = 1", "loss == 1", "loss < x", "loss < nan", "a < 1 < 2", ""]
)
def test_invalid_milestones(text):
    with pytest.raises(ConfigError, match=r"is not a milestone; expected a metric, one of < <= > >= and a number"):
        Milestone(text)


def test_builder_state_is_bounded():
    builder = make_builder(min_severity="info")
    for number in range(5_000):
        builder.handle(alert("opened", "info", id=f"a{number}"))
    assert len(builder.state.seen) <= 2_000
    assert len(builder.state.severities) <= 2_000


def test_texts_are_cleaned_and_masked():
    nasty = "\x1b[31m\u202e line\r\none\0 " + "password=hunter22 " + "x" * 5_000
    found = build(
        make_builder(), start(), alert("opened", title=nasty, message=nasty, meaning=nasty, advice=[nasty] * 50)
    )[-1]
    for text in (found.title, found.reason, found.meaning, *found.advice):
        assert all(mark.isprintable() or mark == "\n" for mark in text)
        assert len(text) <= 2_000
    assert "\n" not in found.title
    assert len(found.advice) == 5
    assert "hunter22" not in found.reason
