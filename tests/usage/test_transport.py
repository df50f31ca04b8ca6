"""Requests on the wire, and what happens when the network or the receiver fails."""

from __future__ import annotations

import json
import math
import socket
import stat
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import posthog
import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tachograph.usage import Choice, Count, JsonLines, ListOf, Measure, OtlpLogs, TelemetryManager, _sender
from tests.conftest import HANG_S, Script, wait_for
from tests.receiver import Reply
from tests.usage.conftest import Absent, PostHogReceiver, spooled, wait_until_sent, wait_until_stored

Configure = Callable[..., TelemetryManager]
Start = Callable[..., Script]

PROGRAM = """
import sys
from tachograph.usage import JsonLines, TelemetryManager, UsageConfig
address, choice, num_events = sys.argv[1], sys.argv[2], int(sys.argv[3])
endpoint = {"endpoint": address, "api_key": "phc_greyjacket"} if "//" in address else {"endpoint": JsonLines(address)}
manager = TelemetryManager.configure(UsageConfig(app="greyjacket", consent="opt-out", **endpoint), choice=choice)
for number in range(num_events):
    manager.send_event("train-start", {"num_epochs": number % 90})
print("ready", flush=True)
sys.stdin.read()
"""
"""Sends some events and runs until its input ends."""

TRIES_ONCE = """
from tachograph.usage import _sender
_sender._SEND_DELAY_S, _sender._FIRST_RETRY_S = 0.0, 3600.0
"""


def finish(program: Script) -> None:
    assert program.process.stdin is not None
    program.process.stdin.close()
    program.process.stdin = None
    code, _out, err = program.wait()
    assert (code, err) == (0, "")


def ready(program: Script) -> Script:
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "ready\n"
    return program


def epochs(receiver: PostHogReceiver) -> list[float]:
    return [event["properties"]["num_epochs"] for event in receiver.events()]


# PostHog -----------------------------------------------------------------------------------------------------------


def test_posthog_batch_has_expected_shape(configure: Configure, receiver: PostHogReceiver) -> None:
    manager = configure(version="1.4.0")
    manager.send_event("train-start", {"max_steps": 512, "resumed": False, "num_epochs": math.inf})
    manager.send_event("train-end")
    start, end = receiver.wait_for_events(2)
    assert [start["event"], end["event"]] == ["train-start", "train-end"]
    assert start["distinct_id"] == end["distinct_id"] == manager.run_id
    assert start["uuid"] != end["uuid"]
    about = {name: start["properties"].pop(name) for name in ("$lib", "$lib_version", "app", "app_version")}
    assert about.pop("$lib_version")
    assert about == {"$lib": "tachograph", "app": "greyjacket", "app_version": "1.4.0"}
    assert start["properties"] == {
        "max_steps": 512, "resumed": False, "num_epochs": "Infinity",
        "$process_person_profile": False, "$geoip_disable": True, "$ip": None,
    }  # fmt: skip
    age = datetime.now(timezone.utc) - datetime.fromisoformat(start["timestamp"].replace("Z", "+00:00"))
    assert timedelta(0) <= age < timedelta(minutes=1)
    [request] = receiver.requests
    assert request.json()["api_key"] == "phc_greyjacket"
    assert set(request.headers) <= {
        "Accept-Encoding", "Content-Length", "Content-Type", "Host", "User-Agent", "Connection",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_packed", [False, True])
def test_receiver_accepts_batches_of_real_client(receiver: PostHogReceiver, is_packed: bool) -> None:
    client = posthog.Posthog("phc_x", host=receiver.address, gzip=is_packed, disable_geoip=True, max_retries=0)
    client.capture("train-start", distinct_id="someone", properties={"max_steps": 500})
    client.shutdown()
    [event] = receiver.wait_for_events(1)
    assert event["event"] == "train-start"
    assert event["properties"]["max_steps"] == 500
    assert ("Content-Encoding" in receiver.requests[0].headers) is is_packed


def test_receiver_rejects_invalid_batches(configure: Configure, receiver: PostHogReceiver) -> None:
    """Proves that the receiver's check can fail."""
    from tachograph._base.http import post

    post(lambda: f"{receiver.address}/batch/", b'{"api_key":"phc_x","batch":[{"event":"x"}]}', {}, timeout_s=HANG_S)
    post(lambda: f"{receiver.address}/capture/", b"{}", {}, timeout_s=HANG_S)
    assert len(receiver.problems) == 2
    receiver.problems.clear()


def test_before_send_can_cancel_an_open_connection(receiver: PostHogReceiver) -> None:
    from tachograph._base.http import DeliveryError, post

    accepted: list[Any] = []
    process_request = receiver.process_request

    def accept(request: Any, client_address: Any) -> None:
        accepted.append(client_address)
        process_request(request, client_address)

    def cancel() -> None:
        wait_for(lambda: accepted, what="the connection")  # the hook runs after connecting …
        raise DeliveryError("cancelled", may_retry=True, wait_s=3.0)

    receiver.process_request = accept  # type: ignore[method-assign]
    with pytest.raises(DeliveryError, match="^cancelled$") as failure:
        post(lambda: f"{receiver.address}/batch/", b"{}", {}, timeout_s=HANG_S, before_send=cancel)
    assert (failure.value.may_retry, failure.value.wait_s) == (True, 3.0)
    assert failure.value.__context__ is None
    time.sleep(0.1)
    assert receiver.requests == []  # … and before anything is sent


def test_file_endpoint_writes_nothing_if_cancelled(tmp_path: Path) -> None:
    from tachograph._base.http import DeliveryError

    def cancel() -> None:
        raise DeliveryError("cancelled")

    with pytest.raises(DeliveryError, match="cancelled"):
        JsonLines(tmp_path / "sent").send([{"event": "x"}], 5.0, cancel)
    assert not (tmp_path / "sent").exists()


def test_other_posthog_user_in_process_is_unaffected(configure: Configure, receiver: PostHogReceiver) -> None:
    def state() -> dict[str, Any]:
        plain = (str, int, float, bool, type(None), list, dict)
        return {name: value for name, value in vars(posthog).items() if isinstance(value, plain) and name[0] != "_"}

    before = state()
    assert {"api_key", "host", "project_api_key", "default_client"} <= set(before)
    configure().send_event("train-start")
    receiver.wait_for_events(1)
    assert state() == before


def test_custom_field_is_not_overwritten(configure: Configure, receiver: PostHogReceiver) -> None:
    """Either declaring the name raises, or its value arrives."""
    from tachograph.exceptions import ConfigError

    try:
        manager = configure(events={"app-opened": {"app": Choice("Which part of it.", "studio")}}, version="1.0")
    except ConfigError:
        return
    manager.send_event("app-opened", {"app": "studio"})
    assert receiver.wait_for_events(1)[0]["properties"]["app"] == "studio"


def test_batches_are_small_and_in_order(configure: Configure, receiver: PostHogReceiver) -> None:
    manager = configure()
    for number in range(250):
        manager.send_event("train-start", {"num_epochs": number % 90})
    assert [int(number) for number in epochs(receiver)] == []  # sending does not block
    receiver.wait_for_events(250)
    assert epochs(receiver) == [number % 90 for number in range(250)]
    sizes = [len(request.json()["batch"]) for request in receiver.requests]
    assert max(sizes) <= 100
    assert len(sizes) <= 5, "events are batched"
    assert len({event["uuid"] for event in receiver.events()}) == 250


# OTLP --------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return an OTLP value as a Python value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: plain(item.value) for item in value.kvlist_value.values}
    return getattr(value, kind)


def test_otlp_request_is_parsed_completely(configure: Configure, receiver: PostHogReceiver, usage_dir: Path) -> None:
    events = {
        "probed": {
            "values": ListOf("Values.", ListOf("Some.", Measure("One."))),
            "count": Count("A count."),
            "ratio": Measure("A ratio."),
        }
    }
    manager = configure(
        endpoint=OtlpLogs(f"{receiver.address}/", {"X-Team": "grey"}), events=events, version="2.1.0+cu128"
    )
    manager.send_config({}, "config-loaded")  # system-info follows, with groups and lists of groups
    manager.send_event("probed", {"values": [[1.5, math.nan], [-math.inf]], "count": 10**17, "ratio": 3})
    manager.send_event("train-progress", {"metrics": {"loss": math.nan, "ppl": math.inf}, "gpu_memory": [2 << 30, 0]})
    try:
        raise RuntimeError("of no interest")
    except RuntimeError as error:
        manager.send_error(error)
    wait_until_sent(usage_dir)
    records, resources = [], []
    for request in receiver.requests:
        assert (request.path, request.headers["X-Team"]) == ("/v1/logs", "grey")
        parsed = Parse(request.body, ExportLogsServiceRequest(), ignore_unknown_fields=False)
        for resource in parsed.resource_logs:
            resources.append({item.key: plain(item.value) for item in resource.resource.attributes})
            records += [record for scope in resource.scope_logs for record in scope.log_records]
    about = {"service.name": "greyjacket", "service.version": "2.1.0+cu128", "service.instance.id": manager.run_id}
    assert resources == [about] * len(resources)
    kept = spooled(usage_dir)
    assert [record.event_name for record in records] == [event["event"] for event in kept]
    assert {event["event"] for event in kept} == {"config-loaded", "system-info", "probed", "train-progress", "error"}
    for record, event in zip(records, kept, strict=True):
        attributes = {item.key: plain(item.value) for item in record.attributes}
        assert attributes.pop("log.record.uid") == event["uuid"]
        assert attributes == event["properties"]
        assert record.body.string_value == event["event"]
        assert record.severity_number == (17 if event["event"] == "error" else 9)
    by_name = {event["event"]: event["properties"] for event in kept}
    assert by_name["probed"] == {"values": [[1.5, "NaN"], ["-Infinity"]], "count": 10**17, "ratio": 3.0}
    assert by_name["train-progress"]["metrics"] == {"loss": "NaN", "ppl": "Infinity"}
    assert by_name["system-info"]["packages"]["numpy"]


def test_otlp_keeps_exact_time_of_event() -> None:
    def nanoseconds(timestamp: str) -> int:
        event = {"uuid": "u", "event": "x", "timestamp": timestamp, "run_id": "r", "app": "a", "properties": {}}
        parsed = Parse(OtlpLogs("http://127.0.0.1:1").body([event]), ExportLogsServiceRequest())
        return int(parsed.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano)

    began_s = int(datetime(2026, 11, 15, 18, 0, tzinfo=timezone.utc).timestamp())
    times_ns = [nanoseconds(f"2026-11-15T18:00:00.{millisecond:03}Z") for millisecond in range(1000)]
    assert times_ns == [(began_s * 1000 + millisecond) * 1_000_000 for millisecond in range(1000)]


# Files -------------------------------------------------------------------------------------------------------------


def test_processes_append_whole_lines_to_one_file(script: Start, tmp_path: Path, usage_dir: Path) -> None:
    path = tmp_path / "shared.jsonl"
    programs = [script(PROGRAM, path, "on", 150) for _ in range(2)]
    for program in programs:
        finish(ready(program))
    wait_until_sent(usage_dir)
    lines = path.read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert len({event["uuid"] for event in events}) == len(events) == 300
    assert len({event["run_id"] for event in events}) == 2
    by_id = {event["uuid"]: event for event in spooled(usage_dir)}
    assert all(by_id[event["uuid"]] == event for event in events)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_unwritable_file_is_retried_later(configure: Configure, script: Start, tmp_path: Path, usage_dir: Path) -> None:
    path = tmp_path / "not_there_yet" / "shared.jsonl"
    program = ready(script(PROGRAM, path, "on", 3))
    wait_until_stored(usage_dir, 3)
    finish(program)
    assert not path.parent.exists()
    path.parent.mkdir()
    configure(endpoint=JsonLines(path)).send_event("train-end")
    wait_for(lambda: path.exists() and len(path.read_text("utf-8").splitlines()) == 4, what="all four")


# Failures ----------------------------------------------------------------------------------------------------------


FAILURES = {
    "500": Reply(500),
    "429": Reply(429, headers={"Retry-After": "60"}),
    "silent": Reply(is_silent=True),
    "refused": None,
}


@pytest.mark.parametrize("reply", FAILURES.values(), ids=FAILURES)
def test_undelivered_events_are_sent_by_next_process(
    absent: Absent, script: Start, usage_dir: Path, reply: Reply | None
) -> None:
    if reply is not None:
        receiver = absent.start()
        receiver.reply(reply, Reply())
    first = ready(script(TRIES_ONCE + PROGRAM, absent.address, "on", 3))
    wait_until_stored(usage_dir, 3)
    if reply is not None:
        receiver.wait(1)
    finish(first)
    kept = spooled(usage_dir)
    assert len(kept) == 3
    assert not list(usage_dir.rglob("*.sent"))
    if reply is None:
        receiver = absent.start()
    before = len(receiver.requests)
    assert before == (0 if reply is None else 1)
    later = ready(script(PROGRAM, receiver.address, "on", 1))
    wait_for(lambda: sum(len(request.json()["batch"]) for request in receiver.requests[before:]) >= 4)
    wait_until_sent(usage_dir)
    finish(later)
    arrived = [event["uuid"] for request in receiver.requests[before:] for event in request.json()["batch"]]
    assert len(arrived) == len(set(arrived)) == 4
    assert {event["uuid"] for event in kept} < set(arrived)


@pytest.mark.parametrize("status", [400, 413])
def test_rejected_batch_is_dropped_and_counted(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sender, "_SEND_DELAY_S", 3.0)  # both events are in one batch, on a slow machine too
    receiver.reply(Reply(status), Reply())
    manager = configure()
    manager.send_event("train-start", {"num_epochs": 1})
    manager.send_event("train-start", {"num_epochs": 2})
    wait_for(lambda: manager.num_lost == 2, what="the count")
    manager.send_event("train-start", {"num_epochs": 3})
    receiver.wait(2)
    wait_until_sent(usage_dir)
    assert [len(request.json()["batch"]) for request in receiver.requests] == [2, 1]
    assert epochs(receiver) == [1, 2, 3]
    assert manager.num_lost == 2


def test_rejected_batch_is_not_sent_by_next_process(receiver: PostHogReceiver, script: Start, usage_dir: Path) -> None:
    receiver.reply(Reply(400), Reply())
    first = ready(script(PROGRAM, receiver.address, "on", 3))
    wait_until_sent(usage_dir)
    finish(first)
    later = ready(script(PROGRAM, receiver.address, "on", 1))
    receiver.wait(2)
    finish(later)
    assert [len(request.json()["batch"]) for request in receiver.requests] == [3, 1]


def test_losses_are_known_after_shutdown(configure: Configure, receiver: PostHogReceiver) -> None:
    receiver.reply(Reply(400))
    manager = configure()
    manager.send_event("train-start")
    wait_for(lambda: manager.num_lost == 1)
    manager.shutdown()
    assert manager.num_lost == 1


def test_redirects_are_not_followed(
    configure: Configure, make_receiver: Callable[[], PostHogReceiver], receiver: PostHogReceiver
) -> None:
    elsewhere = make_receiver()
    for status in (302, 308):
        TelemetryManager.reset()
        receiver.reply(Reply(status, headers={"Location": f"{elsewhere.address}/batch/"}))
        manager = configure()
        manager.send_event("train-start")
        wait_for(lambda manager=manager: manager.num_lost == 1, what="the loss")
    assert len(receiver.requests) == 2
    assert elsewhere.requests == []


def test_unresolvable_name_is_retried(configure: Configure, usage_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unresolved(host: str, *_arguments: Any, **_named: Any) -> Any:
        asked.append(host)  # without a real query, which would leave the machine
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    manager = configure(endpoint="https://telemetry.invalid")
    manager.send_event("train-start")
    wait_for(lambda: asked, what="a look-up")
    assert set(asked) == {"telemetry.invalid"}
    manager.shutdown(HANG_S)
    assert manager.num_lost == 0
    assert len(spooled(usage_dir)) == 1
    assert not list(usage_dir.rglob("*.sent"))


def test_retry_after_is_respected(configure: Configure, receiver: PostHogReceiver) -> None:
    receiver.reply(Reply(429, headers={"Retry-After": "1"}, delay_s=HANG_S), Reply())
    manager = configure()
    manager.send_event("train-start", {"num_epochs": 1})
    receiver.wait(1)
    manager.send_event("train-start", {"num_epochs": 2})
    began_s = time.monotonic()
    receiver.released.set()
    receiver.wait(2)
    assert time.monotonic() - began_s >= 0.9
    first, second = (request.json()["batch"] for request in receiver.requests)
    assert [event["uuid"] for event in second][:1] == [event["uuid"] for event in first]
    assert len(second) == 2
    assert manager.num_lost == 0


def test_retry_after_zero_does_not_cause_hammering(configure: Configure, receiver: PostHogReceiver) -> None:
    receiver.reply(Reply(429, headers={"Retry-After": "0"}))
    configure().send_event("train-start")
    began_s = time.monotonic()
    receiver.wait(1)
    time.sleep(2.2)
    assert len(receiver.requests) <= 1 + (time.monotonic() - began_s) / 0.9
