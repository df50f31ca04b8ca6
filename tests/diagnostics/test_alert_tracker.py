"""The history cycle of alerts, and the exact records they write."""

from __future__ import annotations

import math
from typing import Any

from tachograph.diagnostics import RuleEngine
from tachograph.diagnostics._alert_tracker import AlertTracker, Finding, RuleInfo
from tachograph.diagnostics._context import RunContext
from tachograph.reader import AlertHistory
from tachograph.records import AlertRecord, decode, encode

SPIKE = RuleInfo("loss_spike", "Meaning of loss_spike.", ("First.", "Second."), ())
NOT_FINITE = RuleInfo("not_finite", "Meaning of not_finite.", ("First.", "Second."), ("loss_spike",))
OOM = RuleInfo("near_oom", "Meaning of near_oom.", ("First.", "Second."), ())


class Scalar:
    """A number of another library, such as numpy."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


class Run:
    """A run at a given step and time, with one tracker."""

    def __init__(self) -> None:
        self.context = RunContext()
        self.tracker = AlertTracker(self.context, "ab-")

    def at(self, step: Any, time_s: float | None) -> Run:
        self.context.step, self.context.time_s = step, time_s
        self.tracker.close_expired()
        return self

    def report(
        self,
        rule: RuleInfo,
        title: str,
        message: str = "",
        *,
        key: str = "",
        severity: str = "warning",
        evidence: dict[str, Any] | None = None,
        occurrence: dict[str, Any] | None = None,
    ) -> None:
        self.tracker.report(rule, Finding(title, message, key, severity, evidence, occurrence))

    def records(self) -> list[dict[str, Any]]:
        return [alert.to_record() for alert in self.tracker.drain()]


# Written by the version that built the records as plain dicts. Journals must stay compatible to the byte.
EXPECTED = (
    '{"event":"alert","time":100.5,"global_step":10,"id":"ab-1","rule":"loss_spike","status":"opened",'
    '"severity":"warning","title":"Spike","message":"More.","evidence":{"metric":"loss","value":1.5,'
    '"steps":[1,2,null],"nested":{"b":"NaN"}},"occurrence":{"step":10,"class":"open"},'
    '"meaning":"Meaning of loss_spike.","advice":["First.","Second."]}'
    "\n"
    '{"event":"alert","time":101.5,"global_step":11,"id":"ab-1","rule":"loss_spike","status":"updated",'
    '"severity":"critical","title":"Spike","evidence":{"metric":"loss"},"occurrence":{"step":10,'
    '"class":"slow"}}'
    "\n"
    '{"event":"alert","time":102.5,"global_step":12,"id":"ab-1","rule":"loss_spike","status":"resolved",'
    '"severity":"critical","title":"Spike","outcome":"absorbed by not_finite","absorbed_by":"not_finite"}'
    "\n"
    '{"event":"alert","time":102.5,"global_step":12,"id":"ab-2","rule":"not_finite","status":"opened",'
    '"severity":"critical","title":"loss is NaN","message":"loss was NaN.","evidence":{"value":"NaN",'
    '"other":"-Infinity"},"meaning":"Meaning of not_finite.","advice":["First.","Second."]}'
    "\n"
    '{"event":"alert","time":103.5,"global_step":13,"id":"ab-2","rule":"not_finite","status":"resolved",'
    '"severity":"critical","title":"loss is NaN","outcome":"finite again"}'
    "\n"
    '{"event":"alert","id":"ab-3","rule":"near_oom","status":"opened","severity":"info","title":"Full",'
    '"meaning":"Meaning of near_oom.","advice":["First.","Second."]}'
    "\n"
    '{"event":"alert","time":104.5,"id":"ab-3","rule":"near_oom","status":"resolved","severity":"info",'
    '"title":"Full","outcome":"empty","evidence":{"used":1}}'
    "\n"
    '{"event":"alert","time":110.0,"global_step":20,"id":"ab-4","rule":"near_oom","status":"opened",'
    '"severity":"warning","title":"Full","meaning":"Meaning of near_oom.","advice":["First.","Second."]}'
    "\n"
    '{"event":"alert","time":111.0,"global_step":21,"id":"ab-4","rule":"near_oom","status":"resolved",'
    '"severity":"warning","title":"Full","outcome":"empty"}'
    "\n"
    '{"event":"alert","time":112.0,"global_step":22,"id":"ab-5","rule":"near_oom","status":"opened",'
    '"severity":"warning","title":"Full","meaning":"Meaning of near_oom.","advice":["First.","Second."]}'
    "\n"
    '{"event":"alert","time":114.0,"global_step":24,"id":"ab-5","rule":"near_oom","status":"updated",'
    '"severity":"warning","title":"Full again","occurrence":{"step":24}}'
    "\n"
    '{"event":"alert","time":130.0,"global_step":40,"id":"ab-5","rule":"near_oom","status":"resolved",'
    '"severity":"warning","title":"Full again","outcome":"empty again"}'
    "\n"
)


def scenario() -> list[dict[str, Any]]:
    run = Run()
    evidence = {
        "metric": "loss",
        "value": Scalar(1.5),
        "none": None,
        "steps": (1, Scalar(2), None),
        "nested": {"a": None, "b": math.nan},
    }
    run.at(10, 100.5).report(SPIKE, "Spike", "More.", evidence=evidence, occurrence={"step": 10, "class": "open"})
    run.at(11, 101.5).report(
        SPIKE, "Spike", severity="critical", evidence={"metric": "loss"}, occurrence={"step": 10, "class": "slow"}
    )
    run.at(Scalar(12), 102.5).report(
        NOT_FINITE,
        "loss is NaN",
        "loss was NaN.",
        severity="critical",
        key="loss",
        evidence={"value": math.nan, "other": -math.inf},
    )
    run.at(13, 103.5).report(SPIKE, "Suppressed")
    run.tracker.resolve("not_finite", "loss", "finite again")
    run.at(None, None).report(OOM, "Full", key="gpu", severity="info")
    run.at(None, 104.5).tracker.resolve("near_oom", "gpu", "empty", {"used": 1, "left": None})
    run.at(20, 110.0).report(OOM, "Full", key="gpu")
    run.at(21, 111.0).tracker.resolve("near_oom", "gpu", "empty")
    run.at(22, 112.0).report(OOM, "Full", key="gpu")  # the third alert of this fault: it gets a cooldown
    run.at(23, 113.0).tracker.resolve("near_oom", "gpu", "empty")
    run.at(24, 114.0).report(OOM, "Full again", key="gpu")
    run.at(25, 115.0).tracker.resolve("near_oom", "gpu", "empty again")
    return run.at(40, 130.0).records()


def test_records_are_compatible_to_the_byte() -> None:
    assert "".join(encode(record).decode() + "\n" for record in scenario()) == EXPECTED


def test_a_record_survives_parsing_and_building() -> None:
    for line in EXPECTED.splitlines():
        record = decode(line.encode())
        assert encode(AlertRecord.from_record(record).to_record()).decode() == line


def test_parsing_treats_wrong_types_as_missing() -> None:
    junk = {"event": "alert", "id": 3, "rule": None, "time": "x", "global_step": 1.5, "advice": "no", "evidence": []}
    parsed = AlertRecord.from_record(junk)
    assert (parsed.id, parsed.rule, parsed.status, parsed.severity) == ("3", "None", "updated", "warning")
    assert parsed.time is parsed.global_step is parsed.advice is parsed.evidence is parsed.title is None


def test_drain_returns_each_record_once() -> None:
    run = Run()
    run.at(1, 1.0).report(SPIKE, "Spike")
    assert [record["status"] for record in run.records()] == ["opened"]
    assert run.records() == []


def test_a_clock_set_back_ends_the_cooldown() -> None:
    run = Run()
    for start in (0.0, 100.0, 200.0):
        run.at(1, start).report(SPIKE, "Spike")
        run.at(1, start + 1).tracker.resolve("loss_spike", "", "over")
    assert run.tracker.num_open == (1, 0) and not run.tracker.is_open("loss_spike")
    run.at(1, 50.0)
    assert run.tracker.num_open == (0, 0)


def test_absorbed_rules_report_again_afterwards() -> None:
    run = Run()
    run.at(1, 1.0).report(NOT_FINITE, "NaN")
    run.report(SPIKE, "Spike")
    assert not run.tracker.is_open("loss_spike")
    run.tracker.resolve("not_finite", "", "over")
    run.report(SPIKE, "Spike")
    assert run.tracker.is_open("loss_spike")


CAUSE = {"text": "It was sample 41.", "confidence": "certain", "kind": "bad_input", "dump": "1-loss_spike"}


def test_cause_is_added_to_open_and_resolved_alerts() -> None:
    run = Run()
    run.at(10, 100.0).report(SPIKE, "Spike", message="More.")
    run.tracker.explain("ab-1", "loss_spike", CAUSE)
    run.at(11, 110.0).tracker.resolve("loss_spike", "", "recovered")
    run.at(12, 120.0).tracker.explain("ab-1", "loss_spike", {**CAUSE, "text": "Later."})
    run.tracker.explain("ab-2", "near_oom", CAUSE)
    records = run.records()
    assert [record["status"] for record in records] == ["opened", "updated", "resolved", "resolved"]
    assert records[1]["cause"] == CAUSE
    history = AlertHistory()
    for record in records:
        history.add(record)
    (alert,) = history.alerts()
    assert (alert.cause["text"], alert.is_open, alert.resolved_step) == ("Later.", False, 11)
    assert (alert.outcome, alert.message) == ("recovered", "More.")


def test_cause_finds_the_alert_of_its_rule_in_a_journal() -> None:
    engine = RuleEngine()
    opened = engine.observe({"event": "step", "time": 1.0, "global_step": 1, "train_loss": math.nan})
    dump = {"event": "dump", "time": 2.0, "dump": "1-exception", "reason": "exception", "rule": "not_finite"}
    verdict = {"text": "It was sample 41.", "confidence": "certain", "kind": "bad_input", "details": {"rows": [1]}}
    assert engine.observe({**dump, "alert_id": "other-7"}) == []
    assert engine.observe({**dump, "alert_id": "other-7", "verdict": "odd"}) == []
    assert engine.observe({**dump, "verdict": verdict}) == []
    (record,) = engine.observe({**dump, "alert_id": "other-7", "verdict": verdict})
    assert (record["id"], record["status"]) == (opened[0]["id"], "updated")
    assert record["cause"] == {**CAUSE, "dump": "1-exception"}
