"""Synthetic runs, healthy or faulty, and helpers to check the alerts they cause."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tachograph.diagnostics import RULES, RuleEngine, resolve_rules
from tachograph.records import decode, encode

Record = dict[str, Any]

START: Record = {"event": "start", "time": 1_000.0, "run_id": "0123"}
SEEDS = (1, 2, 3)


def step(number: int, **values: Any) -> Record:
    return {"event": "step", "time": 1_000.0 + number, "global_step": number, **values}


def system(number: int, every_s: float = 10.0, **values: Any) -> Record:
    return {"event": "system", "time": 1_000.0 + every_s * number, **values}


def series(name: str, values: Iterable[Any], first: int = 0, **others: Callable[[int], Any]) -> Iterator[Record]:
    """Yield a step for each value; other metrics are functions of the step."""
    for number, value in enumerate(values, first):
        yield step(number, **{name: value}, **{other: of(number) for other, of in others.items()})


# Runs ----------------------------------------------------------------------------------------------------------------


def falling(source: random.Random, num: int, noise: float = 0.05, floor: float = 2.0) -> list[float]:
    """Return the losses of a language model that keeps learning."""
    return [
        floor + 8.8 * math.exp(-index / 150) + 0.8 / (1 + index / 500) + source.gauss(0, noise) for index in range(num)
    ]


def level(source: random.Random, num: int, value: float, share: float = 0.03) -> list[float]:
    """Return noisy values around a level; `share` is the relative noise."""
    return [value * (1 + source.gauss(0, share)) for _ in range(num)]


def cosine(num: int, peak: float = 3e-4, warm_up: int = 100) -> Callable[[int], float]:
    """Return a cosine schedule with a linear warm-up."""

    def lr(index: int) -> float:
        if index < warm_up:
            return peak * (index + 1) / warm_up
        return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, (index - warm_up) / (num - warm_up))))

    return lr


# Alerts --------------------------------------------------------------------------------------------------------------


def diagnose(records: Iterable[Record], rules: dict[str, Any] | None = None) -> list[Record]:
    """Run all rules over the records; return the checked alert records."""
    engine = RuleEngine(resolve_rules(rules))
    return checked([alert for record in records for alert in engine.observe(record)])


def checked(alerts: list[Record]) -> list[Record]:
    """Check that every alert record can be encoded, and that every alert goes opened, updated, resolved."""
    last_status: dict[str, str] = {}
    for alert in alerts:
        assert decode(encode(alert))["id"] == alert["id"]
        before, status = last_status.get(alert["id"]), alert["status"]
        assert (before is None) == (status == "opened"), f"{status} after {before}: {alert}"
        assert before != "resolved", f"record after resolution: {alert}"
        assert alert["rule"] in RULES and alert["severity"] in ("info", "warning", "critical")
        if status == "opened":
            assert alert["title"] and alert["meaning"] and alert["advice"] and alert["evidence"]
        if status != "resolved":
            assert not any(
                word in alert["title"] + alert.get("message", "") for word in ("None", "unknown", "inf %", "inf times")
            )
        else:
            assert alert["outcome"]
        last_status[alert["id"]] = status
    return alerts


def alerts_of_rule(alerts: list[Record], rule: str) -> list[list[Record]]:
    """Return the alerts of a rule, each as the list of its records."""
    by_id: dict[str, list[Record]] = {}
    for alert in alerts:
        if alert["rule"] == rule:
            by_id.setdefault(alert["id"], []).append(alert)
    return list(by_id.values())


def only_alert(alerts: list[Record], rule: str) -> list[Record]:
    """Return the records of the only alert, which must be of this rule."""
    found = alerts_of_rule(alerts, rule)
    assert len(found) == 1, f"{len(found)} alerts of {rule} in {brief(alerts)}"
    assert {alert["rule"] for alert in alerts} == {rule}, brief(alerts)
    return found[0]


def statuses(history: list[Record]) -> list[str]:
    return [alert["status"] for alert in history]


def brief(alerts: list[Record]) -> list[str]:
    """Return alerts in a readable form for assertion messages."""
    return [
        f"{alert['rule']} {alert['status']} at {alert.get('global_step')}: {alert.get('title') or alert['outcome']}"
        for alert in alerts
    ]
