"""Secrets planted in every field of every event must not appear in any byte that is sent, stored or printed."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.usage import (
    Choice,
    Count,
    Device,
    Flag,
    Group,
    HubId,
    ListOf,
    Measure,
    ModelType,
    OtlpLogs,
    Seconds,
    Size,
    TelemetryManager,
    UsageConfig,
    Version,
)
from tests.conftest import HANG_S
from tests.usage.conftest import PostHogReceiver, spooled
from tests.usage.planted import SECRETS, LeakyObject, StickyText, filled, leaked, leaves, machine, numbers, shapes

Configure = Callable[..., TelemetryManager]

EVENTS = {
    "probed": {
        "flag": Flag("A flag."),
        "device": Device("A device."),
        "deep": Group("A group.", {"deeper": Group("Another.", {"ids": ListOf("Ids.", HubId("One."))})}),
        "lists": ListOf("Lists.", ListOf("Of lists.", Version("Of versions."))),
        "sizes": ListOf("Sizes.", Size("One.")),
        "seconds": Seconds("Time."),
        "count": Count("A count."),
        "measure": Measure("A measure."),
        "kind": ModelType("A kind."),
        "choice": Choice("A choice.", "one", "two"),
        "version": Version("A version."),
    }
}
SCHEMAS = UsageConfig(app="greyjacket", events=EVENTS).schemas
NAMES = [name for name in SCHEMAS if name != "error"]
CONFIG_FIELDS = SCHEMAS["config-loaded"].fields

ALLOWED_TEXTS = {"other", "[redacted]", "1.4.2"}
"""The only texts that may be sent for private values. The last one is a version without its local part."""


def is_coarse(number: float) -> bool:
    """Return whether a number has at most two digits, or is a digit times a power of two, or so many millions."""
    if len(re.sub(r"e.*|\D", "", repr(abs(number))).strip("0")) <= 2:
        return True
    unit = 1000 ** max(2, int(math.log10(abs(number))) // 3) if abs(number) >= 1e6 else 1
    eighths = abs(number) / unit * 8
    while eighths % 2 == 0:
        eighths /= 2
    return eighths in {1, 3, 5, 7, 9}


class Canary:
    """Sends events and searches all outputs for secrets."""

    def __init__(
        self, configure: Configure, receiver: PostHogReceiver, usage_dir: Path, capture: Callable[[], str]
    ) -> None:
        self.configure = configure
        self.receiver = receiver
        self.usage_dir = usage_dir
        self._capture = capture
        self._num_sent = 0

    def send(self, things: Iterator[Any], how: Callable[[TelemetryManager, Any], None], **config: Any) -> None:
        """Send some values in portions that fit the queue."""
        while portion := [thing for _, thing in zip(range(400), things, strict=False)]:
            TelemetryManager.reset()
            manager = self.configure(**{"events": EVENTS, **config})
            manager._sent_system_info = True  # tested separately
            for thing in portion:
                how(manager, thing)
            manager.shutdown(HANG_S)
            assert manager.num_lost == 0
            self._num_sent += len(portion)
        assert self._num_sent > 0

    def events(self) -> list[dict[str, Any]]:
        events = self.receiver.events()
        assert len(events) == self._num_sent, "every event arrived"
        return events

    def places(self) -> dict[str, bytes]:
        kept = spooled(self.usage_dir)
        files = [path for path in self.usage_dir.rglob("*") if path.is_file()]
        return {
            "what was received": self.receiver.raw,
            "OTLP": b"".join(OtlpLogs("http://127.0.0.1:1").body([event]) for event in kept),
            "the files": b"\n".join(path.name.encode() + path.read_bytes() for path in files),
            "what was printed": self._capture().encode(),
        }

    def check(self, allowed: set[str] = ALLOWED_TEXTS, more: tuple[str, ...] = ()) -> None:
        about = {"app", "app_version", "$lib", "$lib_version", "$process_person_profile", "$geoip_disable", "$ip"}
        sent = set()
        for event in self.events():
            properties = {name: value for name, value in event["properties"].items() if name not in about}
            assert set(properties) <= set(SCHEMAS[event["event"]].fields)
            sent |= set(leaves(properties))
        assert {text for text in sent if isinstance(text, str)} <= allowed
        numbers = [number for number in sent if type(number) in (int, float)]
        assert [number for number in numbers if not is_coarse(number)] == []
        assert leaked(self.places(), more=(*machine(), *more)) == []


@pytest.fixture
def canary(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, capfd: Any, caplog: pytest.LogCaptureFixture
) -> Canary:
    def capture() -> str:
        out, err = capfd.readouterr()
        return f"{out}{err}{caplog.text}"

    return Canary(configure, receiver, usage_dir, capture)


def test_canary_search_finds_planted_secrets(canary: Canary) -> None:
    """Proves that the tests below can fail."""
    canary.send(iter([{}]), lambda manager, values: manager.send_event("train-start", values))
    canary.check()
    with pytest.raises(AssertionError):
        canary.check(more=("phc_greyjacket",))
    for secret in SECRETS:
        for data in (secret.encode(), f"x{secret!r}x".encode(), secret.encode("utf-16")[2:]):
            assert leaked({"there": data})
    (canary.usage_dir / "note.txt").write_text("hunter2", encoding="utf-8")
    assert leaked(canary.places()) == ["b'hunter2' in the files"]


# Events ------------------------------------------------------------------------------------------------------------


def extras(secret: str) -> dict[Any, Any]:
    """Return properties with unknown keys, some of which are not texts."""
    keys = [
        secret,
        StickyText(secret),
        secret.encode(),
        (secret,),
        frozenset({secret}),
        4915123456789,
        None,
        LeakyObject(secret),
    ]
    return dict.fromkeys(keys, secret) | {"api_key": secret, "output_dir": secret, "$set": {"email": secret}}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_field_passes_on_a_secret(canary: Canary, name: str) -> None:
    fields = list(SCHEMAS[name].fields.items())

    def planted() -> Iterator[dict[str, Any]]:
        for make in shapes().values():
            for secret in SECRETS:
                yield filled(fields, lambda make=make, secret=secret: make(secret)) | extras(secret)
        for make in shapes().values():  # and a scalar in place of a group or a list
            for secret in list(SECRETS)[::5]:
                yield {field: make(secret) for field, _ in fields}

    canary.send(planted(), lambda manager, values: manager.send_event(name, values))
    assert {event["event"] for event in canary.events()} == {name}
    canary.check()


def test_no_exact_number_is_sent(canary: Canary) -> None:
    values = list(numbers())
    planted = (
        (name, filled(SCHEMAS[name].fields.items(), lambda value=value: value)) for name in NAMES for value in values
    )
    canary.send(planted, lambda manager, pair: manager.send_event(*pair))
    versions = {"52.520008", "1234.5678", "0.123456"}  # valid versions
    canary.check(ALLOWED_TEXTS | versions)
    for event in canary.events():
        for name, value in event["properties"].items():
            if versions & set(map(str, leaves(value))):
                assert name in {"version", "lists", "python", "packages"}


# Configs -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_config_is_read_by_map_only(canary: Canary) -> None:
    """Configs as dicts, objects and dataclasses, read by paths and by functions."""

    def configs() -> Iterator[Any]:
        for make in shapes().values():
            for secret in list(SECRETS)[::3]:
                values = {**{name: make(secret) for name in CONFIG_FIELDS}, "wandb_api_key": secret}
                kind = dataclasses.make_dataclass("Config", ["section"])
                yield {"section": values, secret: values, "section.name": secret}
                yield SimpleNamespace(section=SimpleNamespace(**values))
                yield argparse.Namespace(section=values)
                yield kind(values)
                yield LeakyObject(secret)
                yield {"section": LeakyObject(secret, raises=False)}
                yield make(secret)

    paths = {name: f"section.{name}" for name in CONFIG_FIELDS}
    canary.send(configs(), lambda manager, config: manager.send_config(config, "config-processed"), config_map=paths)
    canary.check()


def test_config_map_function_may_return_or_raise_anything(canary: Canary) -> None:
    secrets = list(SECRETS)
    made = [make(secret) for make in shapes().values() for secret in secrets[::5]]
    functions = {name: (lambda config: config) for name in CONFIG_FIELDS}
    functions["optimizer"] = lambda config: (_ for _ in ()).throw(ValueError(str(secrets)))
    canary.send(iter(made), lambda manager, config: manager.send_config(config), config_map=functions)
    canary.check()


# Models and adapters -----------------------------------------------------------------------------------------------

CONFIG_OF_MODEL = (
    "_name_or_path", "model_type", "num_hidden_layers", "hidden_size", "vocab_size", "num_local_experts", "num_experts",
    "_attn_implementation", "quantization_config", "torch_dtype", "auto_map", "architectures",
)  # fmt: skip
ADAPTER = (
    "peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "bias", "target_modules", "use_dora", "use_rslora",
    "base_model_name_or_path", "revision",
)  # fmt: skip


def model(value: Any) -> Any:
    config = SimpleNamespace(**dict.fromkeys(CONFIG_OF_MODEL, value))
    return SimpleNamespace(config=config, dtype=value, name_or_path=value)


PLAIN = {
    name: make
    for name, make in shapes().items()
    if "raising" not in name and "leaky" not in name and "as a" not in name
}


def test_model_and_adapter_send_only_schema_fields(canary: Canary) -> None:
    made = [make(secret) for make in PLAIN.values() for secret in list(SECRETS)[::2]]
    canary.send(iter(made), lambda manager, value: manager.send_model(model(value)))
    canary.send(
        iter(made), lambda manager, value: manager.send_adapter(SimpleNamespace(**dict.fromkeys(ADAPTER, value)))
    )
    assert {event["event"] for event in canary.events()} == {"model-load", "adapter-load"}
    canary.check(ALLOWED_TEXTS | {"none"})


@pytest.mark.expects_faults
def test_failing_attribute_is_dropped_and_not_quoted(canary: Canary) -> None:
    """One failing attribute of a foreign class must neither drop the event nor put its text into a log."""
    good = {"num_hidden_layers": 30, "hidden_size": 4000}

    class Failing:
        def __init__(self, attribute: str) -> None:
            self.attribute = attribute

        def __getattr__(self, name: str) -> Any:
            if name == self.attribute:
                raise RuntimeError("acme_merger")
            if name in good:
                return good[name]
            raise AttributeError(name)

    def send_model(manager: TelemetryManager, config: Any) -> None:
        manager.send_model(SimpleNamespace(config=config, dtype="bfloat16"))

    odd = [SimpleNamespace(**{**good, attribute: LeakyObject("acme_merger")}) for attribute in CONFIG_OF_MODEL]
    canary.send(iter([*odd, *map(Failing, CONFIG_OF_MODEL)]), send_model)
    assert leaked(canary.places()) == []
    assert {event["properties"]["dtype"] for event in canary.events()} == {"bfloat16"}


@pytest.mark.expects_faults
def test_failing_model_is_not_quoted(canary: Canary) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("acme_merger")

    class Parameter:
        requires_grad = True

        def numel(self) -> int:
            raise RuntimeError("acme_merger")

    broken = SimpleNamespace(config=SimpleNamespace(hidden_size=4000), parameters=lambda: [Parameter()])
    for kind in (Failing(), LeakyObject("acme_merger"), LeakyObject("acme_merger", raises=False), broken):
        TelemetryManager.reset()
        manager = canary.configure()
        manager.send_event("train-start")
        manager.send_model(kind)
        manager.send_adapter(kind)
        manager.shutdown(HANG_S)
    assert len(canary.receiver.events()) >= 4
    assert leaked(canary.places()) == []


@pytest.mark.expects_faults
def test_failing_key_is_not_quoted(canary: Canary) -> None:
    class Key(str):
        def __eq__(self, _other: object) -> bool:
            raise ValueError("acme_merger")

        def __hash__(self) -> int:
            return hash("max_steps")

    canary.send(
        iter([{Key("x"): 1, "num_epochs": 7}]), lambda manager, values: manager.send_event("train-start", values)
    )
    assert leaked(canary.places()) == []
    assert canary.events()[0]["properties"]["num_epochs"] == 7


# The rest of an event ----------------------------------------------------------------------------------------------


def test_environment_and_machine_are_not_sent(canary: Canary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "acme-merger"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for number, secret in enumerate(SECRETS):
        monkeypatch.setenv(f"SECRET_{number}", secret.replace("\x00", ""))
    for secret in SECRETS:
        TelemetryManager.reset()
        monkeypatch.setenv("GREYJACKET_USAGE_RUN_ID", secret.replace("\x00", ""))
        manager = canary.configure()
        assert manager.run_id != secret
        manager.send_event("train-start")
        manager.shutdown(HANG_S)
    manager = (TelemetryManager.reset(), canary.configure())[1]
    manager.send_config({})
    manager.shutdown(HANG_S)
    assert "system-info" in {event["event"] for event in canary.receiver.events()}
    assert leaked(canary.places(), more=machine()) == []


VERSIONS = (*SECRETS, "1.0+acme_merger", "1.0.dev20261115+g1a2b3c4.alice", "0151.23456789", "10.11.12.13")


def places_after_versions(canary: Canary) -> dict[str, bytes]:
    for version in VERSIONS:
        canary.send(iter([{}]), lambda manager, values: manager.send_event("train-start", values), version=version)
        [path] = canary.usage_dir.rglob("app.json")  # kept: the next version overwrites it
        path.rename(path.with_name(f"app.{len(list(path.parent.iterdir()))}.txt"))
    return canary.places()


def test_sent_app_version_hides_who_built_it(canary: Canary) -> None:
    places = places_after_versions(canary)
    sent = {place: data for place, data in places.items() if place in {"what was received", "OTLP"}}
    assert leaked(sent, more=("23456789", "10.11.12.13", "g1a2b3c4")) == []


def test_stored_app_version_hides_who_built_it(canary: Canary) -> None:
    assert leaked({"the files": places_after_versions(canary)["the files"]}, more=("10.11.12.13", "g1a2b3c4")) == []


# Hub ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, sent",
    [
        ("google/gemma-3", "google/gemma-3"),
        ("Google/gemma-3", "Google/gemma-3"),
        ("google/here", "[redacted]"),
        ("google/link", "[redacted]"),
        ("google/a/b", "[redacted]"),
        ("google/../x", "[redacted]"),
        ("google/..", "[redacted]"),
        ("google//x", "[redacted]"),
        ("/google/x", "[redacted]"),
        ("./google/x", "[redacted]"),
        ("google\\x", "[redacted]"),
        ("google/x\n", "[redacted]"),
        ("google/x ", "[redacted]"),
        ("google／x", "[redacted]"),
        ("google/hf_KqRtVwYzAbCdEfGhJkMnPqRsTuVwXyZa12", "[redacted]"),
        ("google/alice@acme", "[redacted]"),
        ("googleish/x", "[redacted]"),
        ("acme/google/x", "[redacted]"),
        ("gemma-3", "[redacted]"),
    ],
)
def test_hub_id_is_sent_only_if_unambiguous(
    canary: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, sent: str
) -> None:
    (tmp_path / "google" / "here").mkdir(parents=True)
    os.symlink(tmp_path / "nowhere", tmp_path / "google" / "link")
    monkeypatch.chdir(tmp_path)
    values = {"base_model": given, "dataset": given, "output_dir": "google/x", "hub_model_id": "google/x"}
    canary.send(iter([values]), lambda manager, config: manager.send_event("config-processed", config))
    [event] = canary.events()
    properties = {name: value for name, value in event["properties"].items() if name[0] != "$" and name[:3] != "app"}
    assert properties == {"base_model": sent, "dataset": sent}
