"""Local folders with the form of an id on the Hub: their names never leave the machine."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tachograph.usage import HubId, TelemetryManager, UsageConfig
from tachograph.usage._folder import app_folder
from tachograph.usage._local_paths import LOCAL_PATHS, is_path_key
from tachograph.usage._spool import read_events
from tests.conftest import HANG_S, wait_for
from tests.usage.conftest import spooled, wait_until_sent

PRIVATE = "google/private-name"
MAP = {"base_model": "model.name", "dataset": lambda config: config["data"]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder, with an empty home, without arguments."""
    for name in ("elsewhere", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PWD", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.argv", ["train"])
    yield
    LOCAL_PATHS.clear()


@pytest.fixture
def project(tmp_path):
    """A project with a model in a local folder, which is not the working directory."""
    folder = tmp_path / "project"
    (folder / PRIVATE).mkdir(parents=True)
    (folder / "train.yaml").write_text("model: {name: google/private-name}")
    return folder


def sent_id(config=None, value=PRIVATE, **arguments):
    """Return what is recorded as the base model for a value."""
    manager = TelemetryManager.configure(
        UsageConfig(app="greyjacket", organizations=["google"], config_map={"base_model": lambda _config: value}),
        choice="local",
    )
    manager.send_config({} if config is None else config, "config-processed", **arguments)
    manager.shutdown(HANG_S)
    [*_, kept] = read_events(app_folder("greyjacket"))
    TelemetryManager.reset()
    return kept.event["properties"]["base_model"]


def test_folder_beside_config_is_not_sent(project, configure, receiver, usage_dir):
    manager = configure(config_map=MAP)
    config = {"model": {"name": PRIVATE}, "data": PRIVATE}
    manager.send_config(config, file=project / "train.yaml")
    manager.send_event("model-load", {"base_model": PRIVATE})  # of the same process, without a config
    wait_until_sent(usage_dir)
    by_name = {event["event"]: event["properties"] for event in receiver.events()}
    assert by_name["config-loaded"]["base_model"] == by_name["config-loaded"]["dataset"] == "[redacted]"
    assert by_name["model-load"]["base_model"] == "[redacted]"
    assert b"private-name" not in receiver.raw


def test_id_without_local_folder_is_sent(project):
    assert sent_id() == PRIVATE
    assert sent_id(value="google/gemma-3", file=project.parent / "elsewhere" / "train.yaml") == "google/gemma-3"


@pytest.mark.parametrize("argument", ["{}", "--config={}"])
def test_file_on_command_line_needs_no_argument(script, project, tmp_path, argument):
    out = script(
        """
        from tachograph.usage import HubId
        print(HubId("").clean("google/private-name", ["google"]))
        """,
        argument.format(project / "train.yaml"),
        cwd=tmp_path / "elsewhere",
    ).ok()
    assert out.strip() == "[redacted]"


def test_folder_above_config_is_not_sent(project):
    (project / "configs" / "large").mkdir(parents=True)
    assert sent_id(file=project / "configs" / "large" / "train.yaml") == "[redacted]"
    assert sent_id(file=str(project / "configs" / "large" / ".." / "train.yaml")) == "[redacted]"


def test_folder_above_working_directory_is_not_sent(project, monkeypatch):
    (project / "scripts").mkdir()
    monkeypatch.chdir(project / "scripts")
    assert sent_id() == "[redacted]"


def test_links_are_followed_in_both_directions(project, tmp_path):
    linked = tmp_path / "linked.yaml"
    linked.symlink_to(project / "train.yaml")
    assert sent_id(file=linked) == "[redacted]", "beside the file that the link leads to"
    beside = tmp_path / "beside"
    (beside / "google").mkdir(parents=True)
    (beside / PRIVATE).symlink_to("nowhere")
    (beside / "train.yaml").symlink_to(tmp_path / "elsewhere" / "train.yaml")
    assert sent_id(file=beside / "train.yaml") == "[redacted]", "beside the link, although both links lead nowhere"


def test_home_is_expanded(tmp_path):
    (tmp_path / "home" / "models" / PRIVATE).mkdir(parents=True)
    assert sent_id() == PRIVATE
    assert sent_id(file="~/models/train.yaml") == "[redacted]"
    assert sent_id({"models": "~/models"}) == "[redacted]"
    assert sent_id({"models_dir": "$HOME/models"}) == "[redacted]"
    (tmp_path / "home" / PRIVATE).mkdir(parents=True)
    assert sent_id() == "[redacted]"


def test_folder_that_config_names_is_searched(project, tmp_path):
    (tmp_path / "store" / PRIVATE).mkdir(parents=True)
    for config in (
        {"model_root": str(tmp_path / "store")},
        {"cache": {"dir": "../store"}},
        {"index_file": str(tmp_path / "store" / "index.json")},
        {"own_config_path": str(tmp_path / "store" / "train.yaml")},
        argparse.Namespace(store=tmp_path / "store"),
    ):
        assert sent_id(config) == "[redacted]", config
    assert sent_id({"models_dir": "../store"}, file=project / "train.yaml") == "[redacted]"
    assert sent_id({"models_dir": "../nothing"}) == PRIVATE


@dataclasses.dataclass(slots=True)
class Slotted:
    model_path: object


PATHS = [
    {"model_path": PRIVATE}, {"modelPath": PRIVATE}, {"MODEL_DIR": PRIVATE}, {"model-file": PRIVATE},
    {"paths": {"model": PRIVATE}}, {"data_files": {"train": [{"x": (PRIVATE,)}]}}, {"output_dir": f"runs/{PRIVATE}/1"},
    {"model": f"./{PRIVATE}"}, {"model": f"/data/{PRIVATE}"}, {"model": f"~/{PRIVATE}"}, {"model": f"file://x/{PRIVATE}"},
    {"model_path": "Google\\Private-Name"}, {"model": Path(PRIVATE)}, {"a": [{"b": Path(PRIVATE) / "x"}]},
    {"local_model": PRIVATE}, {"model_folder": f"{PRIVATE}/"}, {"vector_path": PRIVATE}, {"datadir": {PRIVATE}},
    SimpleNamespace(model=SimpleNamespace(save_path=PRIVATE)), argparse.Namespace(ckpt_dir=PRIVATE), Slotted(PRIVATE),
    Slotted({"x": PRIVATE}),
]  # fmt: skip


@pytest.mark.parametrize("config", PATHS, ids=range(len(PATHS)))
def test_value_that_config_calls_a_path_is_not_sent(config):
    """Although no such folder exists."""
    assert sent_id(config) == "[redacted]"


@pytest.mark.parametrize(
    "config",
    [
        {"model_name_or_path": PRIVATE}, {"nameOrPath": PRIVATE}, {"model": PRIVATE}, {"model_path": "google/other"},
        {"model_path": None, "dir": 3, "file": b"google/private-name"}, SimpleNamespace(base_model=PRIVATE), None, [],
        {"url": f"https://huggingface.co/{PRIVATE}"},
    ],
)  # fmt: skip
def test_value_that_config_calls_a_name_is_sent(config):
    assert sent_id(config) == PRIVATE


def test_path_in_config_map_makes_value_local(configure):
    class Config:
        """Its value can only be read as an attribute."""

        model_path = property(lambda self: PRIVATE)
        name_or_path = property(lambda self: "google/gemma-3")

    manager = configure(config_map={"base_model": "model_path", "dataset": "name_or_path"}, choice="local")
    manager.send_config(Config(), "config-processed")
    manager.shutdown(HANG_S)
    [kept] = read_events(app_folder("greyjacket"))
    assert kept.event["properties"] == {"base_model": "[redacted]", "dataset": "google/gemma-3"}


def test_folder_created_before_sending_is_not_sent(project, configure, absent, usage_dir):
    """Nobody listens while the event is recorded; the folder exists when the receiver starts."""
    (project / PRIVATE).rmdir()
    manager = configure(config_map=MAP, endpoint=absent.address)
    manager.send_config(
        {"model": {"name": PRIVATE}, "data": "google/other"}, "config-processed", file=project / "x.yaml"
    )
    [stored] = wait_for(lambda: spooled(usage_dir), "the event on disk")
    assert stored["properties"]["base_model"] == PRIVATE
    (project / PRIVATE).mkdir()
    receiver = absent.start()
    wait_until_sent(usage_dir)
    [sent] = receiver.events()
    assert sent["properties"]["base_model"] == "[redacted]"
    assert b"private-name" not in receiver.raw


def test_config_with_too_many_paths_makes_all_ids_local():
    assert sent_id({"files": [f"{number}/x" for number in range(1000)]}) == "[redacted]"
    assert sent_id({"files": [f"data/{number}.jsonl" for number in range(1000)]}) == PRIVATE
    assert sent_id({"numbers": list(range(100_000))}) == "[redacted]"


def test_config_that_contains_itself_is_read():
    config = {"a": [], "shared": (shared := {"x": PRIVATE})}
    config["a"].append(config)
    assert sent_id(config) == PRIVATE
    config["dirs"] = shared
    assert sent_id(config) == "[redacted]"


def test_unreadable_config_is_read_as_far_as_possible():
    class Broken(dict):
        def __getitem__(self, key):
            if key == "broken":
                raise ValueError("not set")
            return super().__getitem__(key)

    assert sent_id(Broken(broken=1, model_path=PRIVATE)) == "[redacted]"


def test_reset_forgets_configs(project):
    assert sent_id({"model_path": PRIVATE}, file=project / "train.yaml") == "[redacted]"
    assert HubId("").clean(PRIVATE, ["google"]) == PRIVATE


def test_deleted_working_directory_is_no_fault(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    try:
        assert HubId("").clean(PRIVATE, ["google"]) == PRIVATE
    finally:
        os.chdir(tmp_path)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("path", True), ("model_path", True), ("modelPath", True), ("MODEL_PATH", True), ("vector_path", True),
        ("data_dir", True), ("datadir", True), ("file", True), ("data_files", True), ("root", True), ("folder", True),
        ("local_name_or_path", True), ("model_name_or_path", False), ("NAME_OR_PATH", False), ("nameOrPath", False),
        ("model.name_or_path", False), ("paths.model", True), ("name", False), ("base_model", False), ("repo", False),
    ],
)  # fmt: skip
def test_keys_of_paths(key, wanted):
    assert is_path_key(key) is wanted
