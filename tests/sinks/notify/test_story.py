"""Which records give rise to which messages."""

from __future__ import annotations

import math

import pytest

from tachograph.exceptions import ConfigError
from tachograph.records import decode, encode
from tachograph.sinks.notify import resolve_notify
from tachograph.sinks.notify._message import fields_of, text_of
from tachograph.sinks.notify._milestone import Milestone
from tachograph.sinks.notify._story import Story, StoryState


def story(state=None, **settings):
    return Story("greyjacket", resolve_notify(settings), state or StoryState())


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


def told(teller, *records):
    return [message for record in records for message in teller.take(decode(encode(record)))]


def titles(teller, *records):
    return [message.title for message in told(teller, *records)]


def test_a_run_from_start_to_end():
    first, last = told(
        story(dashboard_url="http://runs.example.org/", project="jackets"),
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
    assert dict(fields_of(last))["Duration"] == "12 min 10 s"
    assert "train_loss: 0.25" in text_of(last)
    assert first.is_urgent
    assert last.is_urgent
    assert last.is_final


def test_a_run_name_is_quoted_in_the_link():
    teller = Story("a b/#?ü", resolve_notify({"dashboard_url": "https://x.org/p"}), StoryState())
    assert told(teller, start())[0].link == "https://x.org/p/#/run/a%20b%2F%23%3F%C3%BC"


@pytest.mark.parametrize(
    "config", [{"project": "p"}, {"wandb_project": "p"}, {"project": {"no": 1}, "project_name": "p"}]
)
def test_the_project_of_the_config(config):
    assert told(story(), start(config=config))[0].project == "p"
    assert told(story(project="mine"), start(config=config))[0].project == "mine"


def test_a_failure_says_why():
    error = {"event": "error", "time": 110.0, "fatal": True, "error_type": "ValueError", "error_message": "bad shape"}
    end = {"event": "end", "time": 111.0, "status": "failed", "reason": "ValueError"}
    last = told(story(), start(), error, end)[-1]
    assert (last.event, last.reason, last.severity) == ("error", "ValueError: bad shape", "critical")
    assert told(story(), start(), {**end, "reason": "SIGTERM"})[-1].reason == "SIGTERM"
    aside = {**error, "fatal": False}
    assert told(story(), start(), aside, {**end, "reason": "SIGTERM"})[-1].reason == "SIGTERM"


def test_a_resume_says_how_the_attempt_before_ended():
    again = start(time=300.0, resumed=True)
    killed = told(story(), start(), step(1), again)[-1]
    assert killed.title == "Training resumed"
    assert "ended without a word" in killed.reason
    ended = {"event": "end", "time": 200.0, "status": "failed", "reason": "SIGTERM"}
    assert told(story(), start(), ended, again)[-1].reason == ""


def test_the_life_of_an_alert():
    records = [alert("opened"), alert("updated"), alert("updated", "critical"), alert("updated", "critical")]
    records += [alert("resolved", outcome="it fell again")]
    opened, risen, resolved = told(story(), *records)
    assert (opened.event, opened.title, opened.severity, opened.reason) == ("alert", "Loss spike", "warning", "it rose")
    assert (opened.meaning, opened.advice, opened.rule, opened.step) == ("a bad batch", ("wait",), "loss_spike", 7)
    assert not opened.is_urgent
    assert (risen.event, risen.severity, risen.is_urgent) == ("alert", "critical", True)
    assert (resolved.event, resolved.title, resolved.reason) == ("resolved", "Resolved: Loss spike", "it fell again")
    assert len({opened.key, risen.key, resolved.key}) == 3


def test_the_same_record_twice_is_one_message():
    records = [start(), alert("opened"), alert("resolved"), {"event": "end", "time": 300.0, "status": "finished"}]
    teller = story()
    assert len(told(teller, *records)) == 4
    assert told(teller, *records) == []
    assert told(story(teller.state), *records) == []


@pytest.mark.parametrize(
    ("least", "severity", "num_told"),
    [("warning", "info", 0), ("warning", "warning", 2), ("critical", "warning", 0), ("info", "info", 2)],
)
def test_the_least_severity(least, severity, num_told):
    assert len(told(story(min_severity=least), alert("opened", severity), alert("resolved", severity))) == num_told


def test_an_alert_that_was_not_worth_telling_becomes_critical():
    found = told(story(), alert("opened", "info"), alert("updated", "critical"), alert("resolved", "info"))
    assert [message.event for message in found] == ["alert", "resolved"]


def test_an_alert_that_became_part_of_another_is_not_told_as_over():
    records = [alert("opened"), alert("resolved", absorbed_by="divergence"), alert("opened", "critical", id="a2")]
    assert [message.event for message in told(story(), *records)] == ["alert", "alert"]


def test_an_alert_of_a_kind_we_do_not_know():
    odd = {"event": "alert", "time": 1.0, "rule": "mine", "severity": "dreadful", "advice": "none", "title": None}
    assert titles(story(), odd) == ["mine"]


def test_only_what_was_asked_for():
    records = [start(), alert("opened"), alert("resolved"), step(1, train_loss=0.1)]
    records += [{"event": "end", "time": 300.0, "status": "finished"}]
    teller = story(on=["resolved", "milestone"], milestones=["train_loss < 1"])
    assert titles(teller, *records) == ["Resolved: Loss spike", "Reached train_loss < 1"]


def test_a_milestone_is_told_once_and_not_by_nan():
    teller = story(milestones=["train_loss < 0.5", "step >= 3", "val_loss<=1e-1"])
    losses = [0.9, math.nan, -math.inf, 0.49, 0.3]
    found = told(teller, *(step(number, train_loss=loss) for number, loss in enumerate(losses)))
    assert [message.title for message in found] == ["Reached train_loss < 0.5", "Reached step >= 3"]
    assert found[0].reason == "train_loss is 0.49 at step 3."
    again = story(teller.state, milestones=["train_loss < 0.5", "train_loss < 0.4"])
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
def test_what_is_no_milestone(text):
    with pytest.raises(ConfigError, match=r"is no milestone; a metric, one of < <= > >= and a number"):
        Milestone(text)


def test_what_is_remembered_is_bounded():
    teller = story(min_severity="info")
    for number in range(5_000):
        teller.take(alert("opened", "info", id=f"a{number}"))
    assert len(teller.state.seen) <= 2_000
    assert len(teller.state.severities) <= 2_000


def test_texts_are_tidy_and_masked():
    nasty = "\x1b[31m\u202e line\r\none\0 " + "password=hunter22 " + "x" * 5_000
    found = told(story(), start(), alert("opened", title=nasty, message=nasty, meaning=nasty, advice=[nasty] * 50))[-1]
    for text in (found.title, found.reason, found.meaning, *found.advice):
        assert all(mark.isprintable() or mark == "\n" for mark in text)
        assert len(text) <= 2_000
    assert "\n" not in found.title
    assert len(found.advice) == 5
    assert "hunter22" not in found.reason
