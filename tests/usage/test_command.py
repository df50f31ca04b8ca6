"""`tacho usage`: what users see and decide."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.usage import Count, Flag, JsonLines, TelemetryManager, UsageConfig
from tachograph.usage._folder import app_folder, usage_folder
from tests.conftest import HANG_S
from tests.receiver import Reply


@pytest.fixture
def tacho():
    def run(*arguments, code=0, **environ):
        done = CliRunner().invoke(main, ["usage", *arguments], env=environ, prog_name="tacho")
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.output

    return run


def run_app(app="greyjacket", choice="on", **arguments):
    manager = TelemetryManager.configure(UsageConfig(app=app, **arguments), choice=choice)
    manager.send_event("train-start", {"max_steps": 512})
    manager.send_event("train-end", {"step": 512})
    manager.shutdown(HANG_S)
    TelemetryManager.reset(app)
    return manager


def test_status_without_apps(tacho):
    assert "No app with usage telemetry has run on this machine" in tacho("status")
    assert json.loads(tacho("status", "--json")) == []
    assert "no choice is stored for it" in tacho("status", "greyjacket")
    assert "nothing to delete" in tacho("purge")
    assert "no app with usage telemetry has run on this machine" in tacho("preview", code=1)
    tacho("off")
    assert "every app: off (set with `tacho usage off`). No app has run on this machine yet." in tacho("status")
    assert "greyjacket: off" in tacho("status", "greyjacket")
    assert "greyjacket: off (DO_NOT_TRACK is set to 1)" in tacho("status", "greyjacket", DO_NOT_TRACK="1")


def test_status_shows_decision_and_reason(tacho, tmp_path):
    run_app(endpoint=JsonLines(tmp_path / "sent"), consent="opt-out")
    text = tacho("status")
    for line in (
        "greyjacket: on",
        "policy of greyjacket is to send until you opt out",
        f"sends to       {tmp_path}/sent",
    ):
        assert line in text
    assert "2 events (2 sent)" in text
    assert "GREYJACKET_DO_NOT_TRACK is set to 1" in tacho("status", GREYJACKET_DO_NOT_TRACK="1")
    assert "this looks like CI: CI is set" in tacho("status", CI="1")
    [summary] = json.loads(tacho("status", "greyjacket", "--json"))
    assert (summary["mode"], summary["policy"], summary["is_explicit"]) == ("on", "opt-out", False)
    assert summary["num_events"] == {"sent": 2, "refused": 0, "waiting": 0, "local": 0}


def test_choice_applies_to_next_run(tacho, tmp_path):
    config = UsageConfig(app="greyjacket", endpoint=JsonLines(tmp_path / "sent"))
    for mode in ("on", "off", "local"):
        assert f"Stored: {mode} for greyjacket." in tacho(mode, "greyjacket")
        assert TelemetryManager.configure(config).decision.mode == mode
        TelemetryManager.reset()
    assert "greyjacket is still off: DO_NOT_TRACK is set to 1." in tacho("on", "greyjacket", DO_NOT_TRACK="1")


def test_stored_choice_is_forgotten(tacho, tmp_path):
    config = UsageConfig(app="greyjacket", endpoint=JsonLines(tmp_path / "sent"))
    before = TelemetryManager.configure(config).decision
    TelemetryManager.reset()
    assert "No choice is stored for greyjacket." in tacho("unset", "greyjacket")
    for forget in (("unset", "greyjacket"), ("unset",)):
        tacho("off", "greyjacket")
        tacho("local", "other")
        assert "Removed: the stored choice" in tacho(*forget)
        assert TelemetryManager.configure(config).decision == before
        TelemetryManager.reset()
        kept = json.loads(tacho("status", "other", "--json"))
        assert [summary["mode"] for summary in kept] == (["local"] if len(forget) == 2 else [])


def test_unknown_app_name_is_reported(tacho):
    run_app(choice="local")
    assert "leave the name out" in tacho("off", "all", code=1)
    assert "greyjackt has not run on this machine yet; did you mean 'greyjacket'?" in tacho("off", "greyjackt")
    [summary] = json.loads(tacho("status", "greyjackt", "--json"))
    assert (summary["app"], summary["mode"]) == ("greyjackt", "off")
    assert "known apps: greyjacket" in tacho("preview", "zzz", code=1)


def test_status_and_log_show_reason_of_rejection(tacho, receiver):
    receiver.reply(Reply(401, b"no such key"))
    run_app(endpoint=receiver.address, api_key="phc_x")
    assert "last rejection HTTP 401: no such key" in tacho("status")
    assert "(2 rejected)" in tacho("status")
    log = tacho("log")
    assert "  rejected  " in log and "[HTTP 401: no such key]" in log
    event = json.loads(tacho("log", "--json").splitlines()[0])
    assert (event["state"], event["refusal"]) == ("refused", "HTTP 401: no such key")
    assert "2 of them had reached the receiver" in tacho("purge")


def test_events_for_another_endpoint_are_not_waiting(tacho, refusing, absent):
    run_app(endpoint=refusing, api_key="phc_x")
    assert "2 events (2 waiting)" in tacho("status")
    TelemetryManager.configure(UsageConfig(app="greyjacket", endpoint=absent.address, api_key="phc_x"), choice="local")
    assert "2 events (2 local)" in tacho("status")
    assert [event["event"] for event in json.loads(tacho("preview"))["batch"]] == ["system-info"]


def test_on_requires_an_app_name(tacho):
    assert "Missing argument" in tacho("on", code=2)
    for name in ("../x", "A", "*", ""):
        assert "expected a name in lower case" in tacho("on", name, code=1)
        assert "expected a name in lower case" in tacho("off", name, code=1)
    assert not usage_folder().exists()


def test_off_holds_back_waiting_events(tacho, refusing):
    run_app(endpoint=refusing, api_key="phc_x")
    assert "2 events (2 waiting)" in tacho("status")
    text = tacho("off")
    assert "2 events waiting to be sent will stay on this machine" in text
    assert "2 events (2 local)" in tacho("status")
    assert "would send to" in tacho("status")


def test_preview_equals_request_sent_later(tacho, absent):
    """Including custom events, fields and organizations of the app."""
    config = UsageConfig(
        app="greyjacket",
        endpoint=absent.address,
        api_key="phc_x",
        organizations=["google"],
        events={"packed": {"num_packs": Count("Packs.")}, "train-start": {"is_fancy": Flag("Fancy.")}},
    )

    def run():
        manager = TelemetryManager.configure(config, choice="on")
        manager.send_config({})
        manager.send_event("model-load", {"base_model": "google/gemma-3-1b"})
        manager.send_event("packed", {"num_packs": 33})
        manager.send_event("train-start", {"is_fancy": True})
        manager.shutdown(HANG_S)
        TelemetryManager.reset()

    run()
    previewed = json.loads(tacho("preview"))
    names = ["config-loaded", "system-info", "model-load", "packed", "train-start"]
    assert [event["event"] for event in previewed["batch"]] == names
    receiver = absent.start()
    run()
    run_id = previewed["batch"][0]["distinct_id"]
    receiver.wait_for_events(2 * len(names))
    [sent] = [request.json() for request in receiver.requests if run_id.encode() in request.body]
    assert previewed == sent
    assert sent["batch"][2]["properties"]["base_model"] == "google/gemma-3-1b"


def test_preview_includes_system_info(tacho, refusing):
    run_app(endpoint=refusing, api_key="phc_x")
    body = json.loads(tacho("preview"))
    assert [event["event"] for event in body["batch"]] == ["train-start", "train-end", "system-info"]
    assert body["api_key"] == "phc_x"
    assert body["batch"][0]["properties"]["max_steps"] == 512
    assert body["batch"][2]["properties"]["os"] == "Linux"
    fields = tacho("preview", "greyjacket", "--fields")
    assert "train-progress: After the first step" in fields
    assert "metrics.loss: Loss." in fields


def test_preview_without_endpoint(tacho):
    run_app()
    event = json.loads(tacho("preview"))
    assert (event["event"], event["app"]) == ("system-info", "greyjacket")


def test_log_shows_state_of_each_event(tacho, refusing):
    run_app(choice="local", endpoint=refusing, api_key="phc_x")
    run_app(choice="on", endpoint=refusing, api_key="phc_x")
    lines = tacho("log").splitlines()
    assert [line.split()[1:3] for line in lines] == [
        ["local", "train-start"], ["local", "train-end"], ["waiting", "train-start"], ["waiting", "train-end"],
    ]  # fmt: skip
    assert '{"max_steps": 512}' in lines[0]
    [line] = tacho("log", "-n", "1", "--json").splitlines()
    assert json.loads(line)["state"] == "waiting"


def test_purge_deletes_and_lists_run_ids_of_sent_events(tacho, tmp_path):
    manager = run_app(endpoint=JsonLines(tmp_path / "sent"))
    run_app("other", choice="local")
    tacho("on", "greyjacket")
    text = tacho("purge", "greyjacket")
    assert "greyjacket: deleted 2 events" in text
    assert manager.run_id in text
    assert "0 events" in tacho("status", "greyjacket")
    assert "2 events" in tacho("status", "other")
    assert "other: deleted 2 events" in tacho("purge")
    assert sorted(path.name for path in usage_folder().rglob("*.*")) == ["app.json", "app.json", "choices.json"]
    assert "greyjacket: on" in tacho("status")  # stored choices are kept


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"app": "x", "env_prefix": "../", "consent": 7, "endpoint": {"kind": "os"}}']
)
def test_edited_app_file_is_not_trusted(tacho, content):
    run_app(choice="local")
    (app_folder("greyjacket") / "app.json").write_text(content)
    assert "greyjacket: local" in tacho("status")
    assert "the policy of greyjacket cannot be read; local is assumed" in tacho("status")
    tacho("preview")
    tacho("preview", "--fields")
    tacho("off")


def test_terminal_codes_in_files_are_escaped(tacho):
    run_app(choice="local")
    [path] = app_folder("greyjacket").glob("*.jsonl")
    path.write_text(path.read_text().replace("train-start", "\\u001b[31mred"))
    assert "\x1b" not in tacho("log")
    about = app_folder("greyjacket") / "app.json"
    about.write_text(about.read_text().replace("train-start", "\\u001b[31mred"))
    assert "\x1b" not in tacho("preview", "--fields")


def test_example_records_nothing_private(tacho):
    example = Path(__file__).parents[2] / "examples" / "usage_telemetry.py"
    patiently = (  # a busy machine may need longer than a process waits at its exit
        "import runpy, sys; from tachograph.usage import _manager; _manager._EXIT_TIMEOUT_S = 240.0; "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    command = [sys.executable, "-c", patiently, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "usage telemetry is local" in done.stdout
    log = tacho("log", "greyjacket")
    assert [line.split()[2] for line in log.splitlines()] == ["config-loaded", "system-info", "dataset-packed", "error"]
    assert "google/gemma-3-1b" in log
    assert "alice" not in log
