"""Receivers on this machine for the tests of notifications."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tachograph.sinks.notify import Message
from tests.receiver import Receiver


class WebhookReceiver(Receiver):
    """A receiver of webhooks."""

    def events(self) -> list[str]:
        """Return the events of the messages received, without a template."""
        return [request.json()["event"] for request in self.requests]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def make_receiver() -> Iterator[Callable[[], WebhookReceiver]]:
    made: list[WebhookReceiver] = []

    def make() -> WebhookReceiver:
        made.append(WebhookReceiver())
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()


@pytest.fixture
def receiver(make_receiver: Callable[[], WebhookReceiver]) -> WebhookReceiver:
    return make_receiver()


def message(**fields: Any) -> Message:
    given = {
        "key": "alert:7:opened", "event": "alert", "title": "Loss spike", "time": time.time(), "run": "greyjacket",
        "severity": "warning", "reason": "train_loss rose to 4.2", "advice": ("Lower the learning rate.",),
        "meaning": "A bad batch.", "step": 120, "max_steps": 500, "metrics": {"train_loss": 4.2, "lr": "NaN"},
        "duration_s": 754.0, "host": "gpu-box", "project": "jackets", "link": "http://runs/#/run/greyjacket",
    }  # fmt: skip
    return Message(**{**given, **fields})
