"""Alerts that people call right or wrong: annotations, counts, and cases to share."""

from __future__ import annotations

import json
import math

import pytest

from tachograph.catalog import annotate, count_judgements, export_cases, judgement_field
from tachograph.diagnostics import RULES, looser_setting, threshold_table
from tachograph.exceptions import TachographError
from tachograph.journal import find_run, list_runs
from tests.cli.test_catalog_commands import tacho
from tests.store import END, START, step, write


def alert(rule="loss_spike", at=30, **more):
    return {
        "event": "alert",
        "time": 1_000.0 + at,
        "global_step": at,
        "id": f"{rule}{at}",
        "rule": rule,
        "status": "opened",
        "severity": "warning",
        "title": "secret title",
        "message": "secret message",
        "evidence": {"metric": "secret_loss", "value": 9.0, "step": at, "host": "secret-host", "flag": True},
        **more,
    }


@pytest.fixture
def logs(tmp_path):
    """Three runs, each with a spike at step 30; the third also has one at step 50."""
    values = [9.0 if i == 30 else math.nan if i == 40 else 2.0 for i in range(60)]
    steps = [step(i, secret_loss=value) for i, value in enumerate(values)]
    for name in ("first", "second", "third"):
        alerts = [alert(), alert(at=50)] if name == "third" else [alert()]
        write(tmp_path / name, [START, *steps, *alerts, END])
    return tmp_path


def judge(logs, run, rule, step, judgement):
    annotate(find_run(run, logs), [{"op": "set", "field": judgement_field(rule, step), "value": judgement}])


def test_cases_have_numbers_and_nothing_else(logs):
    judge(logs, "first", "loss_spike", 30, "wrong")
    judge(logs, "third", "loss_spike", 50, "right")
    first, third = export_cases(sorted(list_runs(logs), key=lambda folder: folder.name))
    assert "secret" not in json.dumps([first, third])
    assert (first["rule"], first["judgement"], third["judgement"]) == ("loss_spike", "wrong", "right")
    assert first["evidence"] == {"value": 9.0}  # neither texts nor steps
    assert first["steps"][0] == -30 and first["steps"][-1] == 29
    assert first["values"][first["steps"].index(0)] == 9.0
    assert first["values"][first["steps"].index(10)] == "nan"


def test_judgements_are_checked_and_counted(logs):
    with pytest.raises(TachographError, match=r"alert.loss_spike@30: expected right, wrong or null, got 'maybe'"):
        judge(logs, "first", "loss_spike", 30, "maybe")
    for run in ("first", "second", "third"):
        judge(logs, run, "loss_spike", 30, "wrong")
    judge(logs, "third", "loss_spike", 50, "right")
    judge(logs, "third", "hang", None, "right")
    assert [tuple(judged) for judged in count_judgements(logs)] == [("hang", 1, 0), ("loss_spike", 1, 3)]
    assert [judged.is_mostly_wrong for judged in count_judgements(logs)] == [False, True]
    judge(logs, "third", "loss_spike", 50, None)
    assert tuple(count_judgements(logs)[1]) == ("loss_spike", 0, 3)


def test_looser_settings_name_thresholds_that_exist():
    settings = {rule: looser_setting(rule) for rule in RULES}
    assert settings["loss_spike"] == "loss_spike.sigmas=8"
    assert settings["not_finite"] == ""
    for rule, setting in settings.items():
        if setting:
            name, _, value = setting.removeprefix(f"{rule}.").partition("=")
            assert float(value) != next(row.default for row in threshold_table(RULES[rule]) if row.name == name)


def test_doctor_judges_and_says_which_rule_is_mostly_wrong(logs, tmp_path):
    where = ("--log-dir", logs)
    for run in ("first", "second"):
        tacho("doctor", run, "--judge", "loss_spike=wrong", *where)
    assert "several alerts match; they are: loss_spike@30, loss_spike@50" in tacho(
        "doctor", "third", "--judge", "loss_spike=wrong", *where, code=1
    )
    assert "no such alert; the run has: loss_spike@30" in tacho(
        "doctor", "first", "--judge", "plateau=right", *where, code=1
    )
    assert "expected RULE=wrong or RULE@STEP=right" in tacho("doctor", "first", "--judge", "x=y", *where, code=1)
    output = tacho("doctor", "third", "--judge", "loss_spike@50=wrong", "--signal", "loss=secret_loss", *where)
    assert "3 of 3 judged alerts of loss_spike were wrong: --set loss_spike.sigmas=8" in " ".join(output.split())
    cases = tmp_path / "cases.jsonl"
    assert "3 alerts written" in tacho("doctor", "--feedback", cases, *where)
    assert len(cases.read_text().splitlines()) == 3
    tacho("doctor", "first", "--feedback", cases, *where)
    assert len(cases.read_text().splitlines()) == 1
    assert "no alert was judged" in tacho("doctor", "--feedback", cases, "--log-dir", tmp_path / "none", code=1)
