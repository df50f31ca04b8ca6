"""Diagnosis while a run is being recorded: the alerts in the journal, and what readers see."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time

import pytest

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.reader import AlertHistory, overview
from tests.conftest import lines_of, wait_for

QUIET = {"git": False, "console": False, "system_interval_s": 0}


def losses(count: int, seed: int = 1):
    source = random.Random(seed)
    return [2 + 3 / (1 + step / 30) + source.gauss(0, 0.03) for step in range(count)]


def alerts_of(folder):
    return [record for record in lines_of(folder) if record["event"] == "alert"]


def test_spike_life_cycle_is_in_the_journal(logs):
    values = losses(600)
    values[300] *= 4
    with tachograph.init("x", log_dir=logs, **QUIET) as run:
        for step, loss in enumerate(values):
            run.log({"train_loss": loss, "lr": 1e-3, "grad_norm": 1.0 + loss / 10}, step=step)
    records = [alert for alert in alerts_of(logs / "x") if alert["rule"] == "loss_spike"]
    assert [alert["status"] for alert in records] == ["opened", "updated", "resolved"]
    assert len({alert["id"] for alert in records}) == 1
    (alert,) = [alert for alert in tachograph.read(logs / "x").alerts if alert.rule == "loss_spike"]
    assert (alert.opened_step, alert.is_open, alert.severity) == (300, False, "warning")
    assert alert.evidence["peak"] == pytest.approx(values[300])
    assert alert.evidence["class"] == "recovering"
    assert alert.num_occurrences == len(alert.occurrences) == 1
    assert alert.occurrences[0]["recovery_values"] <= 2
    assert alert.meaning and alert.advice


def test_alert_follows_its_cause_and_precedes_the_end(logs):
    with tachograph.init("x", log_dir=logs, **QUIET) as run:
        for step in range(100):
            run.log(train_loss=math.nan if step == 99 else 1.0 + step % 3, step=step)
    events = [record["event"] for record in lines_of(logs / "x") if record["event"] != "dump"]
    assert events[-3:] == ["step", "alert", "end"]


def test_live_and_offline_diagnosis_agree(logs):
    values = losses(1500, seed=5)
    values[500] = math.nan
    for step in (700, 703, 900):
        values[step] *= 3
    values[1200:] = [value * (1 + index / 20) for index, value in enumerate(values[1200:])]
    with tachograph.init("x", log_dir=logs, **QUIET) as run:
        for step, loss in enumerate(values):
            run.log({"train_loss": loss, "grad_norm": loss}, step=step)
            if step % 100 == 99:
                run.log_validation({"loss": loss + 0.1}, step=step)
                run.flush()

    def summary(alerts):
        return [
            (a.rule, a.severity, a.opened_step, a.resolved_step, a.title) for a in alerts if a.rule != "step_outliers"
        ]

    recorded = summary(tachograph.read(logs / "x").alerts)
    assert {rule for rule, *_ in recorded} >= {"not_finite", "loss_spike", "divergence"}
    assert summary(tachograph.diagnose(logs / "x").alerts) == recorded


def test_heartbeat_and_overview_count_open_alerts(logs):
    run = tachograph.init("x", log_dir=logs, **QUIET)
    for step in range(2000):
        run.log(train_loss=math.nan if step > 50 else 1.0 + step % 3, step=step)
    run.flush()
    run.finish()
    shown = overview(run.folder)
    assert (shown.num_open_alerts, shown.num_critical_alerts) == (1, 1)
    assert os.stat(run.folder.journal).st_size > 100_000  # the alert lies outside the tail that an overview reads


def test_resumed_run_abandons_old_alerts(logs):
    for attempt in range(2):
        with tachograph.init("x", log_dir=logs, resume=True, **QUIET) as run:
            for step in range(40):
                loss = math.nan if attempt == 0 and step == 39 else 1.0 + step % 3
                run.log(train_loss=loss, step=40 * attempt + step)
    history = tachograph.read(logs / "x")
    assert [alert.is_open for alert in history.alerts] == [False]
    assert history.alerts[0].resolved_time is None
    assert history.open_alerts == []
    assert overview(history.folder).num_open_alerts == 0


def test_rules_come_from_argument_config_and_environment(logs, monkeypatch):
    def rules_that_fired(**settings):
        with tachograph.init("x", log_dir=logs, **QUIET, **settings) as run:
            for step in range(50):
                run.log(train_loss=math.nan if step == 49 else 1.0 + step % 3, step=step)
        return [alert["rule"] for alert in alerts_of(run.folder.path)]

    assert rules_that_fired() == ["not_finite"]
    assert rules_that_fired(diagnose=False) == []
    assert rules_that_fired(rules={"not_finite": False}) == []
    assert rules_that_fired(config={"telemetry": {"rules": {"not_finite": False}}}) == []
    monkeypatch.setenv("TACHO_RULES", '{"not_finite": false}')
    assert rules_that_fired() == []
    assert rules_that_fired(rules={}) == ["not_finite"]


def test_signals_come_from_argument_config_and_environment(logs, monkeypatch):
    def rules_that_fired(**settings):
        with tachograph.init("x", log_dir=logs, **QUIET, **settings) as run:
            for step in range(50):
                run.log({"my/objective": math.nan if step == 49 else 1.0 + step % 3}, step=step)
        return [alert["rule"] for alert in alerts_of(run.folder.path)]

    assert rules_that_fired() == []
    assert rules_that_fired(signals={"loss": "my/objective"}) == ["not_finite"]
    assert rules_that_fired(config={"telemetry": {"signals": {"loss": ["my/objective"]}}}) == ["not_finite"]
    monkeypatch.setenv("TACHO_SIGNALS", '{"loss": "my/objective"}')
    assert rules_that_fired() == ["not_finite"]
    assert rules_that_fired(signals={}) == []
    monkeypatch.setenv("TACHO_SIGNALS", "loss=my/objective")
    with pytest.raises(ConfigError, match="environment variable TACHO_SIGNALS: expected a JSON object"):
        tachograph.init("y", log_dir=logs)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"loss_spikes": True}, "unknown rule rules.loss_spikes; did you mean 'loss_spike'?"),
        ({"loss_spike": {"sigma": 3}}, "unknown threshold rules.loss_spike.sigma; did you mean 'sigmas'?"),
        ({"loss_spike": {"sigmas": "many"}}, "rules.loss_spike.sigmas: expected `float`, got `str`"),
        ({"loss_spike": {"sigmas": 0.5}}, "rules.loss_spike.sigmas: expected `float` >= 2.0"),
        (
            {"loss_spike": 3},
            "rules.loss_spike=3: expected true, false or a dict of thresholds, such as {'sigmas': 5.0}",
        ),
        ([], "rules=[]: expected a dict, such as rules={'plateau': False}"),
    ],
)
def test_invalid_rules_raise_at_init(logs, rules, message):
    with pytest.raises(ConfigError) as error:
        tachograph.init("x", log_dir=logs, rules=rules)
    assert str(error.value) == message
    assert not logs.exists()


def test_invalid_rules_in_the_environment_raise(logs, monkeypatch):
    monkeypatch.setenv("TACHO_RULES", "plateau=false")
    with pytest.raises(ConfigError, match="environment variable TACHO_RULES: expected a JSON object"):
        tachograph.init("x", log_dir=logs)


def test_console_shows_one_line_per_alert(logs, capsys):
    with tachograph.init("x", log_dir=logs, git=False, system_interval_s=0) as run:
        for step in range(100):
            run.log(train_loss=math.nan if step >= 50 else 1.0 + step % 3, step=step)
    lines = [line for line in capsys.readouterr().out.splitlines() if "critical" in line]
    assert lines == ["[telemetry] critical: train_loss is NaN at step 50 (tacho doctor --explain not_finite)"]


@pytest.mark.expects_faults
def test_failing_rule_stops_diagnosis_only(logs, monkeypatch):
    from tachograph.diagnostics.rules import RULES

    def broken(self, stats):
        raise ZeroDivisionError("in a rule")

    monkeypatch.setattr(RULES["plateau"], "on_block", broken)
    with tachograph.init("x", log_dir=logs, **QUIET) as run:
        for step in range(100):
            run.log(train_loss=1.0 + step % 3, step=step)
    records = lines_of(logs / "x")
    assert sum(record["event"] == "step" for record in records) == 100
    (error,) = [record for record in records if record["event"] == "telemetry_error"]
    assert error["kind"] == "diagnosis_stopped"
    line = broken.__code__.co_firstlineno + 1
    assert error["reason"] == f"ZeroDivisionError: in a rule (line {line} of test_live_alerts.py, in broken)"


def test_hang_dumps_stacks_of_all_threads(logs, script):
    program = script(
        """
        import sys, threading, time, tachograph
        def waits_for_a_rank_that_died():
            run.log(train_loss=1.0, step=29)
            time.sleep(3600)
        run = tachograph.init("x", log_dir=sys.argv[1], rules={"hang": {"least_s": 1.5, "times_longest": 2}})
        for step in range(29):
            run.log(train_loss=1.0 + step % 3, step=step)
            time.sleep(0.02)
        threading.Thread(target=time.sleep, args=(3600,), name="a data worker", daemon=True).start()
        waits_for_a_rank_that_died()
        """,
        logs,
    )

    def last_alert():
        alerts = alerts_of(logs / "x") if (logs / "x" / "metrics.jsonl").exists() else []
        opened = [alert for alert in alerts if alert["status"] == "opened"]  # later ones may name the cause
        return opened and opened[-1]["global_step"] == 29 and opened[-1]

    alert = wait_for(last_alert, "the alert")
    assert alert["severity"] == "critical"
    stacks = (logs / "x" / alert["evidence"]["stacks"]).read_text()
    assert "waits_for_a_rank_that_died" in stacks
    assert "Thread a data worker" in stacks
    assert stacks.index("MainThread") < stacks.index("a data worker")
    program.process.send_signal(signal.SIGKILL)


def test_progress_resolves_the_hang(logs):
    rules = {"hang": {"least_s": 1.0, "times_longest": 1.5}}
    with tachograph.init("x", log_dir=logs, rules=rules, **QUIET) as run:
        run.log(train_loss=1.0, step=0)
        run.flush()
        wait_for(lambda: b'"rule":"hang"' in run.folder.journal.read_bytes(), "the alert")
        run.log(train_loss=1.0, step=1)
        wait_for(lambda: b'"status":"resolved"' in run.folder.journal.read_bytes(), "its end")
    statuses = [alert["status"] for alert in alerts_of(logs / "x") if alert["status"] != "updated"]  # with the cause
    assert statuses[:2] == ["opened", "resolved"]


def test_steps_waiting_in_a_window_are_not_a_hang(logs):
    """Log for twice as long as a hang, starting over if this thread had to wait so long that it was one."""

    def log_without_a_pause(name, hang_s):
        rules = {"hang": {"least_s": hang_s, "times_longest": 1.5, "first_step_s": hang_s}}
        with tachograph.init(name, log_dir=logs, rules=rules, log_every=100_000, **QUIET) as run:
            begin = logged_at = time.monotonic()
            longest_s = 0.0
            while logged_at - begin < 2.5 * hang_s:
                time.sleep(0.05)
                run.log(train_loss=1.0)
                longest_s = max(longest_s, time.monotonic() - logged_at)
                logged_at = time.monotonic()
        return max(longest_s, time.monotonic() - logged_at) < hang_s

    names = (f"x{hang_s}" for hang_s in (2, 4, 8, 16) if log_without_a_pause(f"x{hang_s}", hang_s))
    assert alerts_of(logs / next(names)) == []


def test_windows_do_not_hide_outliers_and_nan(logs):
    values = losses(4000)
    values[2005] *= 5
    values[3003] = math.nan
    with tachograph.init("x", log_dir=logs, log_every=10, **QUIET) as run:
        for step, loss in enumerate(values):
            run.log(train_loss=loss, step=step)
    found = {alert.rule: alert for alert in tachograph.read(logs / "x").alerts}
    assert found["loss_spike"].evidence["peak"] == pytest.approx(values[2005])
    assert 2005 <= found["loss_spike"].opened_step < 2015
    assert 3003 <= found["not_finite"].opened_step < 3013


def test_alert_history_tolerates_foreign_records():
    history = AlertHistory()
    for record in [
        {"event": "alert"},
        {
            "event": "alert",
            "id": 3,
            "severity": 7,
            "advice": "no list",
            "evidence": [],
            "occurrence": "no",
            "time": "x",
        },
        {"event": "alert", "id": "a", "rule": None, "status": "resolved", "global_step": 1.5},
    ]:
        history.add(record)
    json.dumps([alert.id for alert in history.alerts()])
    assert [alert.is_open for alert in history.alerts()] == [True, True, False]
    for index in range(2000):
        history.add({"event": "alert", "id": f"n{index}", "status": "opened"})
    assert len(history.alerts()) <= 500
    assert history.num_opened == 2003
