"""Events on disk, which the user may edit, hold back or delete at any time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import psutil
import pytest

from tachograph._base.guard import guard
from tachograph.usage import ListOf, Measure, OtlpLogs, TelemetryManager, _sender, _spool
from tachograph.usage._spool import keep_all_local
from tests.conftest import HANG_S, wait_for
from tests.receiver import Reply
from tests.usage.conftest import Absent, PostHogReceiver, num_spooled, spooled, wait_until_sent, wait_until_stored
from tests.usage.test_transport import PROGRAM, Configure, Start, epochs, finish, ready


def files(usage_dir: Path) -> list[Path]:
    return sorted((usage_dir / "greyjacket").glob("*.jsonl"))


def event(number: int, **changes: object) -> bytes:
    """Return a line that an ended process could have left."""
    values = {
        "uuid": f"00000000-0000-4000-8000-{number:012}", "event": "train-start", "app": "greyjacket",
        "timestamp": "2026-11-15T18:00:00Z", "run_id": "00000000-0000-4000-8000-000000000000",
        "properties": {"num_epochs": number},
    }  # fmt: skip
    return json.dumps({**values, **changes}).encode() + b"\n"


# Stored events -----------------------------------------------------------------------------------------------------


def test_stored_events_equal_sent_events(configure: Configure, receiver: PostHogReceiver, usage_dir: Path) -> None:
    manager = configure(version="1.4.0")
    manager.send_config({"anything": 1})
    manager.send_event("train-progress", {"step": 512, "metrics": {"loss": float("nan")}})
    sent = receiver.wait_for_events(3)
    kept = spooled(usage_dir)
    assert [event["event"] for event in kept] == ["config-loaded", "system-info", "train-progress"]
    for ours, theirs in zip(kept, sent, strict=True):
        assert set(ours) == {"uuid", "event", "timestamp", "run_id", "app", "app_version", "properties"}
        about = {name: theirs["properties"].pop(name) for name in list(theirs["properties"]) if name[0] == "$"}
        assert set(about) == {"$lib", "$lib_version", "$process_person_profile", "$geoip_disable", "$ip"}
        assert theirs == {
            "event": ours["event"], "uuid": ours["uuid"], "timestamp": ours["timestamp"], "distinct_id": ours["run_id"],
            "properties": {**ours["properties"], "app": ours["app"], "app_version": ours["app_version"]},
        }  # fmt: skip


@pytest.mark.parametrize("choice", ["on", "local"])
def test_files_are_readable_by_owner_only(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, choice: str
) -> None:
    before = os.umask(0o022)
    try:
        configure(choice=choice).send_event("train-start")
        if choice == "on":
            wait_until_sent(usage_dir)
        wait_for(lambda: spooled(usage_dir))
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(usage_dir)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in [usage_dir, *usage_dir.rglob("*")]
    }
    assert len(modes) >= 4
    wrong = {name: mode for name, mode in modes.items() if mode != (oct(0o600) if "." in name[1:] else oct(0o700))}
    assert wrong == {}


def test_local_events_are_never_sent(
    configure: Configure, receiver: PostHogReceiver, script: Start, usage_dir: Path
) -> None:
    program = ready(script(PROGRAM, receiver.address, "local", 3))
    wait_until_stored(usage_dir, 3)
    finish(program)
    assert len(spooled(usage_dir)) == 3
    manager = configure()
    manager.send_event("train-start", {"num_epochs": 77})
    receiver.wait(1)
    wait_until_sent(usage_dir)
    manager.shutdown(HANG_S)  # after a look at everything that is pending
    assert epochs(receiver) == [77]


# Limits ------------------------------------------------------------------------------------------------------------


def test_flood_never_blocks_and_losses_are_counted(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path
) -> None:
    receiver.reply(Reply(is_silent=True))
    manager = configure()
    manager.send_event("train-start")
    receiver.wait(1)  # from here on it hangs
    memory_bytes, slowest_s = psutil.Process().memory_info().rss, 0.0
    for number in range(5000):
        began_s = time.thread_time()
        manager.send_event("train-start", {"max_steps": number})
        slowest_s = max(slowest_s, time.thread_time() - began_s)
    assert slowest_s < 1  # far more than a collection of garbage takes
    assert psutil.Process().memory_info().rss - memory_bytes < 20 << 20
    assert manager._sender is not None
    assert len(manager._sender._queue) <= 1000
    sending = manager._sender._threads[1]
    manager.shutdown(timeout_s=0.1)
    assert sending.is_alive(), "the request still hangs: `shutdown` did not wait for it"
    wait_for(lambda: len(spooled(usage_dir)) + manager.num_lost == 5001, "all events, stored or counted")


def test_events_are_on_disk_while_network_hangs(receiver: PostHogReceiver, script: Start, usage_dir: Path) -> None:
    """Otherwise a process that is killed because it hangs would lose its events."""
    source = PROGRAM.replace(
        "sys.stdin.read()", "sys.stdin.readline()\nmanager.send_event('train-end')\nsys.stdin.read()"
    )
    receiver.reply(Reply(is_silent=True))
    program = ready(script(source, receiver.address, "on", 1))
    receiver.wait(1)
    assert program.process.stdin is not None
    program.process.stdin.write("go on\n")
    program.process.stdin.flush()
    wait_for(lambda: len(spooled(usage_dir)) == 2, "the second event in the file")


def test_torn_write_on_full_disk_is_counted(script: Start, usage_dir: Path) -> None:
    source = """
    import resource, time
    from tachograph.usage import ListOf, Measure, OtlpLogs, TelemetryManager, UsageConfig
    events = {"probed": {"values": ListOf("Values.", Measure("One."), 500)}}
    manager = TelemetryManager.configure(UsageConfig(app="greyjacket", events=events))
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # cuts the third line
    for number in range(4):
        manager.send_event("probed", {"values": [1.5] * 500})
    deadline_s = time.monotonic() + 60
    while manager.num_lost == 0 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    manager.shutdown(60)
    print(manager.num_lost)
    """
    code, out, _err = script(source).wait()
    assert code == 0
    # Events that are sent after the failure are in a second file.
    lines = [line for path in files(usage_dir) for line in path.read_bytes().splitlines(keepends=True)]
    assert all(line.endswith(b"\n") for line in lines)
    assert int(out) > 0
    assert len(lines) + int(out) == 4


@pytest.mark.expects_faults
def test_unwritable_folder_sends_nothing(
    configure: Configure, receiver: PostHogReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("TACHO_USAGE_DIR", str(tmp_path / "file" / "usage"))
    manager = configure()
    for _ in range(3):
        manager.send_event("train-start")
    wait_for(lambda: manager.num_lost == 3, what="the count")
    manager.send_event("train-end")
    manager.shutdown(HANG_S)
    assert receiver.requests == []
    assert (tmp_path / "file").read_text("utf-8") == "no folder"
    assert {place for place, _ in guard.faults} <= {
        "writing usage telemetry", "saving the usage telemetry configuration",
    }  # fmt: skip


# Withdrawn consent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kept here", "deleted"])
def test_withdrawal_applies_at_once(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sender, "_FIRST_RETRY_S", 0.1)
    receiver.reply(Reply(429, delay_s=HANG_S), Reply())
    manager = configure()
    manager.send_event("train-start", {"num_epochs": 1})
    receiver.wait(1)
    if how == "kept here":
        keep_all_local(usage_dir / "greyjacket")
    else:
        shutil.rmtree(usage_dir)
    manager.send_event("train-start", {"num_epochs": 2})
    receiver.released.set()
    wait_for(lambda: len(spooled(usage_dir)) == (2 if how == "kept here" else 1))
    time.sleep(1)  # ten times the wait before the next try
    manager.shutdown(HANG_S)
    assert len(receiver.requests) == 1, "it was sent again"
    if how == "kept here":
        assert [event["properties"]["num_epochs"] for event in spooled(usage_dir)] == [1, 2]
        assert [path.name.split(".", 1)[1] for path in files(usage_dir)] == ["local.jsonl"]
    else:  # deleting events withdraws consent; later ones are still visible locally
        assert [event["properties"]["num_epochs"] for event in spooled(usage_dir)] == [2]
        assert [path.name.split(".", 1)[1] for path in files(usage_dir)] == ["local.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kept here", "deleted"])
def test_withdrawal_applies_to_next_file(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, how: str
) -> None:
    """The file that follows a full one must not be sendable again."""
    manager = configure(events={"probed": {"values": ListOf("Values.", Measure("One."), 2100)}})
    manager.send_event("train-start", {"num_epochs": 1})
    receiver.wait_for_events(1)
    wait_until_sent(usage_dir)
    if how == "kept here":
        keep_all_local(usage_dir / "greyjacket")
    else:
        shutil.rmtree(usage_dir)
    num_events = 0
    for _ in range(2):
        for _ in range(80):  # of 16 kB each, more than one file holds
            manager.send_event("probed", {"values": [-0.0012] * 2100})
        num_events += 80
        wait_for(lambda wanted=num_events: num_spooled(usage_dir) >= wanted)  # type: ignore[misc]
    manager.send_event("train-start", {"num_epochs": 2})
    manager.shutdown(HANG_S)
    assert len(receiver.events()) == 1
    assert [path.name for path in files(usage_dir) if ".on." in path.name] == []


def test_held_back_events_stay_local(configure: Configure, absent: Absent, script: Start, usage_dir: Path) -> None:
    program = ready(script(PROGRAM, absent.address, "on", 3))
    wait_until_stored(usage_dir, 3)
    finish(program)
    keep_all_local(usage_dir / "greyjacket")
    receiver = absent.start()
    manager = configure(endpoint=receiver.address)
    manager.send_event("train-start", {"num_epochs": 77})
    receiver.wait(1)
    manager.shutdown(HANG_S)  # after a look at everything that is pending
    assert epochs(receiver) == [77]
    assert len(spooled(usage_dir)) == 4


def test_truncated_file_does_not_spin(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may empty the file; the sending thread must not spin."""
    monkeypatch.setattr(_sender, "_FIRST_RETRY_S", 0.1)
    receiver.reply(Reply(429, delay_s=HANG_S), Reply())
    manager = configure()
    manager.send_event("train-start", {"num_epochs": 1})
    receiver.wait(1)
    [path] = files(usage_dir)
    os.truncate(path, 0)
    looks: list[str] = []
    has_pending = _spool.Spool.has_pending.fget
    monkeypatch.setattr(_spool.Spool, "has_pending", property(lambda own: (looks.append("."), has_pending(own))[1]))
    receiver.released.set()
    wait_for(lambda: looks)
    time.sleep(1)
    path.unlink()  # ends a possible spin, for the sake of other tests
    assert len(looks) < 50, "a thread spins"
    assert len(receiver.requests) == 1
    assert manager.num_lost == 0


# File locks ----------------------------------------------------------------------------------------------------------


def test_file_of_running_process_is_not_sent_by_another(absent: Absent, script: Start, usage_dir: Path) -> None:
    waits_long = "import time\nfrom tachograph.usage import _sender\n_sender._FIRST_RETRY_S = 3600.0\n"
    has_tried = "while not manager._sender._retry_at_s: time.sleep(0.01)\nprint("
    alive = ready(script(waits_long + PROGRAM.replace("print(", has_tried), absent.address, "on", 3))
    assert len(spooled(usage_dir)) == 3
    receiver = absent.start()
    other = ready(script(PROGRAM, receiver.address, "on", 1))
    receiver.wait(1)
    wait_for(lambda: list(usage_dir.rglob("*.sent")), "the mark that its event is sent")
    finish(other)
    assert len(receiver.events()) == 1
    alive.process.send_signal(signal.SIGKILL)
    alive.process.wait()
    later = ready(script(PROGRAM, receiver.address, "on", 1))
    receiver.wait_for_events(5)
    finish(later)
    assert sorted(epochs(receiver)) == [0, 0, 0, 1, 2]


def test_killed_process_leaves_sendable_file(receiver: PostHogReceiver, script: Start, usage_dir: Path) -> None:
    source = PROGRAM.replace(
        "sys.stdin.read()", "import time\nwhile True: manager.send_event('train-end'); time.sleep(0.001)"
    )
    receiver.reply(Reply(), Reply(is_silent=True))
    program = ready(script(source, receiver.address, "on", 50))
    receiver.wait(2)
    wait_for(lambda: num_spooled(usage_dir) > 100, "events that were not sent")
    program.process.send_signal(signal.SIGKILL)
    assert program.wait()[0] == -signal.SIGKILL
    [path] = files(usage_dir)
    whole = path.read_bytes().rpartition(b"\n")[0]
    kept = {json.loads(line)["uuid"] for line in whole.splitlines()}
    assert len(kept) > 100
    first = {event["uuid"] for event in receiver.requests[0].json()["batch"]}
    del receiver.requests[1:]
    receiver.reply(Reply())
    later = ready(script(PROGRAM, receiver.address, "on", 1))
    receiver.wait_for_events(len(kept) + 1)
    finish(later)
    arrived = [event["uuid"] for event in receiver.events()]
    assert len(arrived) == len(set(arrived)) == len(kept) + 1, "events marked as sent are not sent again"
    assert first < kept < set(arrived)


def test_growing_file_is_not_pruned(
    receiver: PostHogReceiver, script: Start, usage_dir: Path, configure: Configure
) -> None:
    """A training of weeks beside many short runs: its file is the oldest but still in use."""
    source = PROGRAM.replace(
        "sys.stdin.read()", "sys.stdin.readline()\nmanager.send_event('train-end')\nsys.stdin.read()"
    )
    training = ready(script(source, receiver.address, "on", 1))
    receiver.wait_for_events(1)
    wait_until_sent(usage_dir)
    [path] = files(usage_dir)
    for number in range(250):
        (path.parent / f"29991231T235959Z-{number:08x}.local.jsonl").write_bytes(event(number))
    configure().send_event("train-start")
    receiver.wait_for_events(2)
    assert training.process.stdin is not None
    training.process.stdin.write("go on\n")
    training.process.stdin.flush()
    receiver.wait_for_events(3)
    assert "train-end" in {event["event"] for event in receiver.events()}
    assert path.exists()
    assert len(files(usage_dir)) <= 202


# Broken lines ------------------------------------------------------------------------------------------------------

BROKEN = {
    "torn": event(7)[:60],
    "torn in a character": '{"uuid": "ü'.encode()[:-1],
    "empty": b"\n\n",
    "binary": bytes(range(256)) + b"\n",
    "other JSON": b'[1, 2]\nnull\n"x"\n{}\n{"uuid": 1, "event": 2}\n',
    "not a number": event(7, properties={"loss": float("nan")}),
    "too deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "no time": event(7, timestamp="yesterday"),
    "odd version": event(7, app_version={}),
}


@pytest.mark.expects_faults
@pytest.mark.parametrize("kind", ["PostHog", "OtlpLogs"])
def test_broken_line_loses_only_itself(
    configure: Configure, receiver: PostHogReceiver, usage_dir: Path, kind: str
) -> None:
    manager = configure(endpoint=OtlpLogs(receiver.address) if kind == "OtlpLogs" else receiver.address)
    folder = usage_dir / "greyjacket"
    receiver_tag = _spool._tag(manager.config.receiver.name)
    wanted: dict[str, str] = {}
    for number, (name, line) in enumerate(BROKEN.items()):
        before, after = 100 + number, 200 + number
        path = folder / f"20261115T180000Z-{number:08x}-{receiver_tag}.on.jsonl"
        path.write_bytes(event(before) + line + (event(after) if line.endswith(b"\n") else b""))
        wanted[f"4000-8000-{before:012}"] = f"before {name}"
        if line.endswith(b"\n"):
            wanted[f"4000-8000-{after:012}"] = f"after {name}"
    manager.send_event("train-start")

    def missing() -> list[str]:
        return [name for uuid, name in wanted.items() if uuid.encode() not in receiver.raw]

    with contextlib.suppress(AssertionError):
        wait_for(lambda: not missing())
    receiver.problems.clear()
    assert (missing(), guard.faults) == ([], [])
    manager.send_event("train-end")
    wait_for(lambda: b"train-end" in receiver.raw, "the process's own events after it")
    assert {uuid: receiver.raw.count(uuid.encode()) for uuid in wanted} == dict.fromkeys(wanted, 1)
    assert guard.faults == []
    receiver.problems.clear()  # the real PostHog accepts an invalid time


@pytest.mark.slow
def test_large_events_are_not_torn(configure: Configure, receiver: PostHogReceiver, usage_dir: Path) -> None:
    fields = {"values": ListOf("Values.", Measure("One."), 2100)}
    manager = configure(events={"probed": fields}, choice="on")
    for _ in range(80):  # of 16 kB each
        manager.send_event("probed", {"values": [-0.0012] * 2100})
    wait_for(lambda: num_spooled(usage_dir) == 80)
    kept = {event["uuid"] for event in spooled(usage_dir)}
    wait_until_sent(usage_dir)
    arrived = {event["uuid"] for event in receiver.events()}
    assert len(arrived) + manager.num_lost == 80
    assert kept == arrived


def test_reset_closes_the_file(configure: Configure, receiver: PostHogReceiver, refusing: str, usage_dir: Path) -> None:
    def num_open() -> int:
        return sum(str(usage_dir) in file.path for file in psutil.Process().open_files())

    for _ in range(3):
        configure(endpoint=refusing).send_event("train-start")
        TelemetryManager.reset()
    wait_for(lambda: len(spooled(usage_dir)) == 3)
    wait_for(lambda: num_open() == 0, "the end of the open files")
