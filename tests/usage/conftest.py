"""Fixtures: usage telemetry against a local PostHog server that records every byte."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tachograph.usage import TelemetryManager, UsageConfig, _consent
from tests.conftest import HANG_S, reserve_port, wait_for
from tests.receiver import Receiver, Reply, Request

_RANKS = ("RANK", "GLOBAL_RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def usage_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a folder per test, with no choices in the environment and no threads left behind."""
    circumstances = {*_consent._CI_VARIABLES, *_consent._OFFLINE_VARIABLES}
    known = circumstances | {*_RANKS, *_PROXIES, *(name.upper() for name in _PROXIES)}
    for name in list(os.environ):
        if name in known or "_USAGE_" in name or name.endswith("DO_NOT_TRACK"):
            monkeypatch.delenv(name)
    folder = tmp_path / "usage"
    monkeypatch.setenv("TACHO_USAGE_DIR", str(folder))
    yield folder
    TelemetryManager.reset()
    for thread in threading.enumerate():
        if thread.name == "tachograph-usage":
            thread.join(HANG_S)
            assert not thread.is_alive(), "the receiver is closed, but the sender still waits for it"


class PostHogReceiver(Receiver):
    """Accepts PostHog's batches as PostHog does: rejects and remembers every other shape."""

    def __init__(self, port: int = 0) -> None:
        self.problems: list[str] = []
        super().__init__(port)

    def reply_to(self, request: Request) -> Reply:
        reply = super().reply_to(request)
        problem = None if request.path.endswith("/v1/logs") else problem_of(request)
        if problem is None:
            return reply
        self.problems.append(problem)
        return Reply(400)

    def events(self) -> list[dict[str, Any]]:
        """Return every received event, including rejected ones."""
        return [event for request in list(self.requests) for event in request.json()["batch"]]

    def wait_for_events(self, num_events: int) -> list[dict[str, Any]]:
        wait_for(lambda: len(self.events()) >= num_events, f"event {num_events}")
        return self.events()


def problem_of(request: Request) -> str | None:
    """Return what is wrong with a PostHog batch, None if nothing is."""
    try:
        assert request.path == "/batch/", f"path {request.path}"
        assert request.headers["Content-Type"].startswith("application/json"), "content type"
        batch = request.json()
        assert isinstance(batch, dict), "no object"
        assert isinstance(batch["api_key"], str) and batch["api_key"], "api_key"
        assert isinstance(batch["batch"], list) and batch["batch"], "missing or empty batch"
        for event in batch["batch"]:
            assert isinstance(event["event"], str) and event["event"], "event"
            assert isinstance(event["distinct_id"], str) and event["distinct_id"], "distinct_id"
            assert isinstance(event["properties"], dict), "properties"
            uuid.UUID(event["uuid"])
            when = datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00"))
            assert when.tzinfo is not None, "a timestamp without a zone"
    except (AssertionError, KeyError, ValueError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error} in {request.body[:200]!r}"
    return None


@pytest.fixture
def make_receiver() -> Iterator[Callable[..., PostHogReceiver]]:
    made: list[PostHogReceiver] = []

    def make(port: int = 0) -> PostHogReceiver:
        made.append(PostHogReceiver(port))
        return made[-1]

    yield make
    for receiver in made:
        receiver.close()
    assert [receiver.problems for receiver in made if receiver.problems] == []


@pytest.fixture
def receiver(make_receiver: Callable[[], PostHogReceiver]) -> PostHogReceiver:
    return make_receiver()


@pytest.fixture
def refusing() -> str:
    """A reserved address that refuses connections."""
    return f"http://127.0.0.1:{reserve_port()}"


class Absent:
    """An address that refuses connections until `start` is called."""

    def __init__(self, make_receiver: Callable[..., PostHogReceiver]) -> None:
        self._make_receiver = make_receiver
        self.port = reserve_port()
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self) -> PostHogReceiver:
        return self._make_receiver(self.port)


@pytest.fixture
def absent(make_receiver: Callable[..., PostHogReceiver]) -> Absent:
    return Absent(make_receiver)


@pytest.fixture
def configure(receiver: PostHogReceiver) -> Callable[..., TelemetryManager]:
    """Return a function that configures the app "greyjacket" with consent: ``configure(version="1.2", choice=…)``."""

    def make(*, choice: Any = "on", **overrides: Any) -> TelemetryManager:
        given: dict[str, Any] = {
            "app": "greyjacket",
            "endpoint": receiver.address,
            "api_key": "phc_greyjacket",
            "organizations": ["google"],
            "consent": "opt-out",
        }
        if not isinstance(overrides.get("endpoint", ""), str):
            del given["api_key"]
        return TelemetryManager.configure(UsageConfig(**{**given, **overrides}), choice=choice)

    return make


def spooled(folder: Path) -> list[dict[str, Any]]:
    """Return every stored event, oldest first. Rejects everything that is not strict JSON."""

    def refuse(text: str) -> None:
        raise AssertionError(f"not valid JSON: {text}")

    blocks = [path.read_bytes().rpartition(b"\n")[0] for path in sorted(folder.rglob("*.jsonl"))]
    lines = [line for block in blocks for line in block.decode().splitlines()]  # without one that is being written
    return [json.loads(line, parse_constant=refuse) for line in lines]


def num_spooled(folder: Path) -> int:
    """Return the number of stored events without parsing them: tests ask for it until there are enough."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.jsonl"))


def wait_until_stored(folder: Path, num_events: int) -> None:
    """Wait until a running program has stored its events: it waits less than a second for them when it exits."""
    wait_for(lambda: num_spooled(folder) == num_events, "the stored events")


def wait_until_sent(folder: Path) -> None:
    """Wait until all stored events are marked as sent."""

    def is_sent() -> bool:
        paths = list(folder.rglob("*.on.jsonl"))
        return bool(paths) and all(
            path.with_suffix(".sent").exists()
            and path.with_suffix(".sent").read_text("ascii").startswith(f'{{"done": {path.stat().st_size},')
            for path in paths
        )

    wait_for(is_sent, "all events to be marked as sent")
