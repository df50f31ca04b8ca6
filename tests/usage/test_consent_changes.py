"""Consent while a program runs: nothing is sent without a notice, or after consent was withdrawn."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tachograph.exceptions import ConfigError
from tachograph.usage import JsonLines, TelemetryManager, UsageConfig, decide, set_choice
from tachograph.usage import _notice as notice
from tachograph.usage._consent import ConsentGate, Decision
from tachograph.usage._folder import app_folder, usage_folder
from tachograph.usage._spool import Spool, read_events
from tests.conftest import HANG_S, wait_for
from tests.receiver import Reply


@pytest.fixture
def config(tmp_path):
    return UsageConfig(app="greyjacket", endpoint=JsonLines(tmp_path / "sent"), consent="opt-out")


@pytest.fixture
def pauses(monkeypatch):
    """Replace the pause of the notice by a list of its durations."""
    made = []
    monkeypatch.setattr(notice, "sleep", made.append)
    return made


def sent(tmp_path):
    path = tmp_path / "sent"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


def states():
    return [kept.state for kept in read_events(app_folder("greyjacket"))]


# The notice ----------------------------------------------------------------------------------------------------------


def test_opt_out_during_notice_is_respected(config, monkeypatch, tmp_path):
    monkeypatch.setattr(notice, "sleep", lambda _pause_s: set_choice("off", "greyjacket"))
    manager = TelemetryManager.configure(config)
    assert (manager.decision.mode, manager.enabled) == ("off", False)
    manager.send_event("train-start")
    manager.shutdown(HANG_S)
    assert (sent(tmp_path), states()) == ([], [])


@pytest.mark.parametrize("stream", [None, "closed"])
def test_nothing_is_sent_if_notice_cannot_be_shown(config, monkeypatch, tmp_path, stream):
    closed = open(tmp_path / "stream", "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr("sys.stderr", stream and closed)
    manager = TelemetryManager.configure(config)
    assert manager.decision.mode == "local"
    manager.send_event("train-start")
    manager.shutdown(HANG_S)
    assert (sent(tmp_path), states()) == ([], ["local"])


def test_process_that_becomes_main_later_sends_nothing(script, tmp_path):
    """`torch.multiprocessing.spawn`: each rank configures the app, then joins the group."""
    pytest.importorskip("torch")
    script(
        """
        import sys
        import torch.distributed as dist
        import torch.multiprocessing as mp
        from tachograph.usage import JsonLines, TelemetryManager, UsageConfig, _manager
        _manager._EXIT_TIMEOUT_S = 240.0  # for the disk of a busy machine
        def work(rank):
            config = UsageConfig(app="greyjacket", endpoint=JsonLines(sys.argv[1]), consent="opt-out")
            manager = TelemetryManager.configure(config)
            dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
            manager.send_event("train-start")
            dist.barrier()  # a rank that leaves while the other still connects makes that one fail
            dist.destroy_process_group()
        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """,
        tmp_path / "sent",
        tmp_path / "meeting",
    ).ok()
    assert (sent(tmp_path), states()) == ([], ["local"])


def test_inherited_run_id_does_not_replace_notice(config, pauses, capsys):
    """Two apps with one prefix, the first of which records locally."""
    TelemetryManager.configure(UsageConfig(app="other", env_prefix="GREYJACKET"), choice="local")
    TelemetryManager.configure(config)
    assert pauses == [10.0]
    assert "anonymous usage reports" in capsys.readouterr().err


def test_notice_of_one_app_does_not_block_another(config, monkeypatch):
    other = TelemetryManager.configure(UsageConfig(app="other"), choice="local")
    release = threading.Event()
    monkeypatch.setattr(notice, "sleep", lambda _pause_s: release.wait(HANG_S))
    thread = threading.Thread(target=TelemetryManager.configure, args=(config,))
    thread.start()
    wait_for(lambda: "greyjacket" in TelemetryManager._instances)
    other.send_event("train-start")
    assert TelemetryManager.get_instance("greyjacket").enabled is False  # not before the notice has been shown
    assert not release.is_set() and thread.is_alive()
    release.set()
    thread.join()
    assert TelemetryManager.get_instance("greyjacket").enabled is True


def test_ctrl_c_during_notice_leaves_app_unconfigured(config, monkeypatch):
    def interrupt(_pause_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(notice, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        TelemetryManager.configure(config)
    assert "not configured" in TelemetryManager.get_instance("greyjacket").decision.reason


# While a program runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "wanted"), [("off", ["sent"]), ("local", ["sent", "local"])])
def test_running_program_follows_stored_choice(config, pauses, tmp_path, mode, wanted):
    manager = TelemetryManager.configure(config)
    manager.send_event("train-start")
    wait_for(lambda: sent(tmp_path) == ["train-start"] and states() == ["sent"])
    set_choice(mode)
    manager.send_event("train-end")
    manager.shutdown(HANG_S)
    assert sent(tmp_path) == ["train-start"]
    assert sorted(states()) == sorted(wanted)


def test_choice_of_program_overrides_stored_choice(config, tmp_path):
    set_choice("off")
    manager = TelemetryManager.configure(config, choice="on")
    manager.send_event("train-start")
    manager.shutdown(HANG_S)
    assert sent(tmp_path) == ["train-start"]


def test_pending_events_are_not_sent_to_another_endpoint(configure, refusing, receiver):
    manager = configure(endpoint=refusing)
    manager.send_event("train-start", {"max_steps": 1})
    manager.shutdown(HANG_S)
    TelemetryManager.reset()
    manager = configure()
    manager.send_event("train-start", {"max_steps": 2})
    receiver.wait_for_events(1)
    manager.shutdown(HANG_S)  # after a look at everything that is pending
    assert [event["properties"]["max_steps"] for event in receiver.events()] == [2]


def test_events_on_disk_are_checked_before_sending(configure, absent):
    """The user, or an older version, may have written them."""
    manager = configure(endpoint=absent.address)
    manager.send_event("train-start", {"max_steps": 1})
    manager.shutdown(HANG_S)
    TelemetryManager.reset()
    [path] = app_folder("greyjacket").glob("*.on.jsonl")
    event = json.loads(path.read_text())
    lines = [
        {**event, "properties": {"max_steps": 3, "home": "/home/alice", "batch_size": "alice@acme.com"}},
        {**event, "event": "config-loaded", "properties": {"method": "acme_merger", "lora_rank": "acme_merger"}},
        {**event, "properties": {"max_steps": 51234567, "resumed": "acme_merger", "num_epochs": 1.23456}},
        {**event, "host": "gpu-box", "app_version": "1.0+alice"},
        {**event, "run_id": "alice"},
        {**event, "event": "train-secrets"},
        {**event, "app": "other"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    receiver = absent.start()
    configure(endpoint=receiver.address).send_event("train-end")
    receiver.wait_for_events(5)
    assert not [secret for secret in (b"alice", b"gpu-box", b"acme_merger") if secret in receiver.raw]
    recorded = [
        {name: value for name, value in event["properties"].items() if name[0] != "$" and name != "app"}
        for event in receiver.events()
    ]
    assert recorded[1:4] == [{"max_steps": 3}, {"method": "other"}, {"max_steps": 50_000_000, "num_epochs": 1.2}]
    assert len(recorded) == 5


def test_rejected_events_are_not_marked_as_sent(configure, receiver):
    receiver.reply(Reply(401, b"no such\nkey"), Reply())
    manager = configure()
    manager.send_event("train-start")
    wait_for(lambda: states() == ["refused"])
    [kept] = read_events(app_folder("greyjacket"))
    assert kept.refusal == "HTTP 401: no such key"
    manager.send_event("train-end")
    wait_for(lambda: states() == ["refused", "sent"])


def test_event_delivered_during_withdrawal_counts_as_sent(configure, receiver):
    from tachograph.usage._spool import keep_all_local

    receiver.reply(Reply(delay_s=HANG_S))
    configure().send_event("train-start")
    receiver.wait(1)
    keep_all_local(app_folder("greyjacket"))
    assert states() == ["local"]
    receiver.released.set()
    wait_for(lambda: states() == ["sent"])


def test_local_endpoint_bypasses_proxies(configure, make_receiver, receiver, monkeypatch):
    proxy = make_receiver()
    monkeypatch.setenv("http_proxy", proxy.address)
    monkeypatch.setenv("https_proxy", proxy.address)
    configure().send_event("train-start")
    receiver.wait(1)
    assert proxy.requests == []


# The gate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["choice", "environment", "stored", "circumstance", "policy"])
def test_gate_applies_stricter_stored_choice(source):
    gates = {mode: ConsentGate("greyjacket", Decision(mode, "", source)) for mode in ("off", "local", "on")}
    assert {mode: gate.mode() for mode, gate in gates.items()} == {"off": "off", "local": "local", "on": "on"}
    is_fixed = source in {"choice", "environment"}  # the user decided for this program
    for stored, wanted in (
        ("on", {"off": "off", "local": "local", "on": "on"}),
        ("local", {"off": "off", "local": "local", "on": "local"}),
        ("off", {"off": "off", "local": "off", "on": "off"}),
    ):
        set_choice(stored, "greyjacket")
        modes = {mode: gate.mode() for mode, gate in gates.items()}
        assert modes == ({mode: mode for mode in gates} if is_fixed else wanted)


def test_gate_allows_only_sendable_files_with_consent(tmp_path):
    gate = ConsentGate("greyjacket", Decision("on", "", "stored"))
    sendable, local = Spool.create(tmp_path, "endpoint"), Spool.create(tmp_path, None)
    assert (gate.allows(sendable), gate.allows(local)) == (True, False)
    set_choice("off", "greyjacket")
    assert not gate.allows(sendable)
    set_choice("on", "greyjacket")
    assert gate.allows(sendable)
    sendable.keep_local()
    assert not gate.allows(sendable)


def test_withdrawn_gate_never_allows_sending_again(tmp_path):
    gate = ConsentGate("greyjacket", Decision("on", "", "choice"))
    spool = Spool.create(tmp_path, "endpoint")
    assert gate.allows(spool)
    gate.withdraw()
    assert (gate.allows(spool), gate.mode()) == (False, "local")
    off = ConsentGate("greyjacket", Decision("off", "", "choice"))
    off.withdraw()
    assert off.mode() == "off"


# The stored choice ---------------------------------------------------------------------------------------------------


def mode():
    return decide("greyjacket", "GREYJACKET", "opt-out", environ={}).mode


def test_dangling_choice_file_means_off():
    usage_folder().mkdir(parents=True)
    (usage_folder() / "choices.json").symlink_to("/nowhere/at/all.json")
    assert mode() == "off"


def test_choice_file_that_is_pipe_or_endless_means_off():
    usage_folder().mkdir(parents=True)
    os.mkfifo(usage_folder() / "choices.json")
    assert mode() == "off"
    (usage_folder() / "choices.json").unlink()
    (usage_folder() / "choices.json").write_text('{"greyjacket":' * 100_000)
    assert mode() == "off"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_choice_file_of_another_user_means_off():
    set_choice("on", "greyjacket")
    assert mode() == "on"
    os.chown(usage_folder() / "choices.json", 65534, 65534)
    assert mode() == "off"


def test_concurrent_choices_are_all_stored():
    names = [f"app{number}" for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda name: set_choice("off", name), names))
    assert json.loads((usage_folder() / "choices.json").read_text()) == dict.fromkeys(names, "off")


@pytest.mark.parametrize("arguments", [("on",), ("on", "*"), ("on", "../x"), ("maybe", "greyjacket"), ("off", "")])
def test_invalid_choice_raises(arguments):
    with pytest.raises(ConfigError):
        set_choice(*arguments)
    assert not usage_folder().exists()


def test_relative_folder_does_not_follow_chdir(script, tmp_path):
    script(
        """
        import os
        from tachograph.usage import TelemetryManager, UsageConfig, set_choice
        set_choice("off", "greyjacket")
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        print(TelemetryManager.configure(UsageConfig(app="greyjacket")).decision.mode)
        """,
        env={"TACHO_USAGE_DIR": "state"},
        cwd=tmp_path,
    ).ok()
    assert (tmp_path / "state" / "choices.json").exists()
    assert not (tmp_path / "elsewhere" / "state").exists()
