"""`control.json`: readers write requests, the trainer validates and applies them."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

import tachograph
from tachograph.journal import ControlFile, RunFolder, write_requests
from tachograph.journal._control_file import ControlFileError, read_requests
from tachograph.reader import read
from tests.conftest import HANG_S, wait_for

SETTINGS = {"control_interval_s": 0.05, "flush_interval_s": 0.05, "system_interval_s": 0, "git": False}


def acks(folder):
    """Return the control and status of every acknowledged request."""
    return [
        (record["control"], record["status"])
        for record in read(folder).latest("event")
        if record.get("name") == "control_ack"
    ]


class Loop:
    """A training loop in a background thread that runs until a stop is requested."""

    def __init__(self, run):
        self.run = run
        self.num_checkpoints = 0
        self.stopped = threading.Event()
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self):
        for step in range(10**9):
            self.run.log(a=float(step), step=step)
            self.num_checkpoints += self.run.should_checkpoint
            if self.run.should_stop or self._stop_requested.is_set():
                break
            time.sleep(0.002)
        self.stopped.set()

    def stop(self):
        self._stop_requested.set()
        self._thread.join()


@pytest.fixture
def loop(logs):
    run = tachograph.init("x", log_dir=str(logs), control_gap_s=0.5, **SETTINGS)
    run.control("lr_scale", 1.0, min=0.1, max=10.0)
    loop = Loop(run)
    yield loop
    loop.stop()
    run.finish()


def test_init_creates_control_file(logs):
    with tachograph.init("x", log_dir=str(logs)):
        content = json.loads((logs / "x" / "control.json").read_bytes())
    assert content["log_every"] == 1
    assert content["timestamp"] == pytest.approx(time.time(), abs=60)


def test_log_every_returns_to_its_initial_value(loop, logs):
    folder = RunFolder(logs / "x")
    write_requests(folder, {"log_every": 50}, source="cli")
    wait_for(lambda: loop.run.log_every == 50)
    initial = wait_for(lambda: loop.run.flush() and read(logs / "x").controls["log_every"]).initial
    write_requests(folder, {"log_every": initial}, source="cli")
    wait_for(lambda: loop.run.log_every == 1)
    write_requests(folder, {"log_every": 2}, source="cli")  # any other value is still limited
    wait_for(lambda: loop.run.log_every == 5)


def test_legacy_control_file_is_applied(loop, logs):
    (logs / "x" / "control.json").write_text(json.dumps({"log_every": 100, "timestamp": time.time()}))
    wait_for(lambda: loop.run.log_every == 100)
    change = wait_for(lambda: loop.run.flush() and read(logs / "x").latest("control_change"))[0]
    assert (change["name"], change["old"], change["new"], change["source"]) == ("log_every", 1, 100, "file")
    loop.stop()
    loop.run.flush()
    history = read(logs / "x")
    kinds = [(record["event"], record.get("global_step")) for record in history.records()]
    after = [step for event, step in kinds[kinds.index(("control_change", None)) :] if event == "step"]
    assert all(step % 100 == 0 for step in after[:-1])  # `flush` may close the last window early


def test_requests_from_several_sources_are_applied(loop, logs):
    folder = RunFolder(logs / "x")
    write_requests(folder, {"lr_scale": 2.0}, source="cli")
    write_requests(folder, {"log_every": 50}, source="dashboard")
    wait_for(lambda: loop.run.log_every == 50)
    wait_for(lambda: {("lr_scale", "applied"), ("log_every", "applied")} <= set(acks(logs / "x")))
    changes = read(logs / "x").latest("control_change")
    assert {(change["name"], change["new"]) for change in changes} == {("lr_scale", 2.0), ("log_every", 50)}


def test_newest_pending_request_wins(loop, logs):
    folder = RunFolder(logs / "x")
    loop.run.control_panel._gap_s = 3600.0
    write_requests(folder, {"lr_scale": 2.0}, source="cli")
    wait_for(lambda: ("lr_scale", "applied") in acks(logs / "x"))
    write_requests(folder, {"lr_scale": 3.0}, source="cli")
    wait_for(lambda: acks(logs / "x").count(("lr_scale", "pending")) == 2)
    write_requests(folder, {"lr_scale": 4.0}, source="cli")
    wait_for(lambda: ("lr_scale", "superseded") in acks(logs / "x"))
    assert acks(logs / "x").count(("lr_scale", "applied")) == 1
    loop.run.control_panel._gap_s = 0.0
    wait_for(lambda: acks(logs / "x").count(("lr_scale", "applied")) == 2)
    changes = [change["new"] for change in read(logs / "x").latest("control_change")]
    assert changes == [2.0, 4.0]


def test_checkpoint_and_stop_requests_reach_loop(loop, logs):
    folder = RunFolder(logs / "x")
    for number in (1, 2):
        write_requests(folder, {"checkpoint_now": True}, source="cli")
        wait_for(lambda number=number: loop.num_checkpoints == number)
    write_requests(folder, {"stop": True}, source="cli")
    assert loop.stopped.wait(HANG_S)
    assert loop.num_checkpoints == 2


def test_resume_ignores_requests_to_earlier_attempt(logs):
    with tachograph.init("x", log_dir=str(logs), **SETTINGS):
        write_requests(RunFolder(logs / "x"), {"stop": True, "log_every": 500}, source="cli")
    with tachograph.init("x", log_dir=str(logs), resume=True, **SETTINGS) as run:
        for step in range(50):
            run.log(a=1.0, step=step)
            time.sleep(0.005)
        assert not run.should_stop
        assert run.log_every == 1


HOSTILE = {
    "empty": b"",
    "not json": b"{log_every: 5",
    "not an object": b"[1, 2]",
    "a number": b"7",
    "huge": b'{"log_every": 5, "x": "' + b"x" * 200_000 + b'"}',
    "deep": b"[" * 60_000,
    "bytes": bytes(range(256)),
    "wrong type": b'{"log_every": "fast"}',
    "nested": b'{"log_every": {"value": 5}}',
    "null": b'{"log_every": null}',
    "huge number": b'{"log_every": 1' + b"0" * 400 + b"}",
    "unknown name": b'{"learning_rate": 5}',
    "odd ids": b'{"log_every": "x", "ids": [1, 2], "timestamp": {}, "source": 7}',
    "path": b'{"../../etc/passwd": 1}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_invalid_control_file_is_reported_once(logs, content):
    with tachograph.init("x", log_dir=str(logs), **SETTINGS) as run:
        run.log(a=1.0)
        path = logs / "x" / "control.json"
        (logs / "new").write_bytes(content)
        (logs / "new").rename(path)  # a file that is half written would be reported, too
        errors = wait_for(lambda: read(logs / "x").latest("telemetry_error"))
        os.utime(path)
        time.sleep(0.2)
        run.log(a=2.0)
        assert run.log_every == 1
        assert len(errors) == len(read(logs / "x").latest("telemetry_error")) == 1
        write_requests(RunFolder(logs / "x"), {"log_every": 10}, source="cli")  # a valid request still works
        wait_for(lambda: run.log(a=3.0) or run.log_every == 10)


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "unreadable"])
def test_non_regular_control_file_is_ignored(logs, tmp_path, kind):
    """Opening a pipe would block the trainer, and a link could point to any file."""
    with tachograph.init("x", log_dir=str(logs), **SETTINGS) as run:
        path = logs / "x" / "control.json"
        path.unlink()
        if kind == "link":
            (tmp_path / "other.json").write_text('{"log_every": 500}')
            path.symlink_to(tmp_path / "other.json")
        elif kind == "dangling link":
            path.symlink_to(tmp_path / "nothing")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif os.getuid():  # root can read any file, so only test that a missing file is not an error
            (tmp_path / "new.json").write_text('{"log_every": 500}')
            (tmp_path / "new.json").chmod(0)
            (tmp_path / "new.json").rename(path)
        is_reported = kind != "unreadable" or os.getuid() != 0
        wait_for(lambda: not is_reported or read(logs / "x").latest("telemetry_error"))
        for _ in range(30):
            run.log(a=1.0)
            time.sleep(0.01)
        assert run.log_every == 1
        assert len(read(logs / "x").latest("telemetry_error")) == is_reported


def test_unreadable_control_file_error_states_cause(tmp_path, script, open_folder):
    folder = RunFolder(open_folder)
    folder.control.write_text("{}")
    folder.control.chmod(0)
    out = script(
        """
        import os, sys
        from tachograph.journal import RunFolder
        from tachograph.journal._control_file import ControlFileError, read_requests
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            read_requests(RunFolder(sys.argv[1]))
        except ControlFileError as error:
            print(error)
        """,
        open_folder,
    ).ok()
    assert "Permission denied" in out


def test_concurrent_requests_are_all_stored(logs):
    folder = RunFolder(logs)
    logs.mkdir()

    def write(name):
        for number in range(50):
            write_requests(folder, {f"{name}{number}": number}, source="test")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_requests(folder)) == 200


def test_poll_returns_each_request_once(tmp_path):
    folder = RunFolder(tmp_path)
    file = ControlFile(folder)
    file.reset({"log_every": 1}, 0.0)
    assert file.poll() == []
    write_requests(folder, {"log_every": 7}, source="a")
    assert [request.value for request in file.poll()] == [7]
    assert file.poll() == []
    write_requests(folder, {"other": 1}, source="b")
    assert [request.name for request in file.poll()] == ["other"]
    write_requests(folder, {"log_every": 7}, source="a")  # repeating the value is a new request
    assert [request.name for request in file.poll()] == ["log_every"]
    folder.control.write_text("nonsense")
    with pytest.raises(ControlFileError):
        file.poll()
    assert file.poll() == []


def answers_by_id(folder):
    """Return the statuses of each request, by its id, in order."""
    found = {}
    for record in read(folder).latest("event", "control_ack"):
        found.setdefault(record["id"], []).append((record["status"], record["source"]))
    return found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lr_scale", [2.0, 3.0, 4.0]),
        ("log_every", [10, 20, 30]),
        ("checkpoint_now", [True, True, True]),
        ("stop", [True, True, True]),
    ],
)
def test_each_request_within_one_poll_is_answered(logs, name, values):
    """The trainer is not polling while the requests are made."""
    folder = RunFolder(logs / "x")
    with tachograph.init("x", log_dir=str(logs), control_gap_s=0.0, **SETTINGS) as run:
        run.control("lr_scale", 1.0, min=0.1, max=10.0)
        poll, run.backend.poll_controls = run.backend.poll_controls, lambda: None
        run.flush()
        senders = ["cli", "dashboard", "cli"]
        ids = [
            write_requests(folder, {name: value}, source=sender)[name]
            for value, sender in zip(values, senders, strict=True)
        ]
        write_requests(folder, {"unknown": 1}, source="other")
        run.backend.poll_controls = poll
        wait_for(lambda: "unknown" in {control for control, _ in acks(logs / "x")})
        run.log(a=1.0)
        assert run.should_checkpoint == (name == "checkpoint_now")
        assert run.should_stop == (name == "stop")
    found = answers_by_id(logs / "x")
    for request, sender in zip(ids[:-1], senders, strict=False):
        assert found[request] == [("pending", sender), ("superseded", sender)]
    assert found[ids[-1]] == [("pending", "cli"), ("applied", "cli")]


def test_request_right_after_init_is_answered(logs):
    for number in range(20):
        settings = {**SETTINGS, "flush_interval_s": 0.01}  # `init` does not wait for the first write
        with tachograph.init(f"x{number}", log_dir=str(logs), console=False, **settings) as run:
            request = write_requests(run.folder, {"log_every": 10}, source="cli")["log_every"]
            wait_for(lambda run=run, request=request: request in answers_by_id(run.folder.path))


def test_invalid_request_is_answered_although_it_was_replaced(loop, logs):
    folder = RunFolder(logs / "x")
    first = write_requests(folder, {"lr_scale": "fast", "profile_steps": 0}, source="cli")
    second = write_requests(folder, {"lr_scale": 2.0, "profile_steps": 1}, source="cli")
    wait_for(lambda: ("applied", "cli") in answers_by_id(logs / "x").get(second["lr_scale"], []))
    found = answers_by_id(logs / "x")
    assert found[first["lr_scale"]] == found[first["profile_steps"]] == [("rejected", "cli")]


@pytest.mark.slow
def test_replaced_requests_do_not_overfill_the_control_file(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(1_000):
        write_requests(folder, {"log_every": number, "text": "x" * (number % 3_000)}, source="cli")
    assert folder.control.stat().st_size <= 64 << 10
    requests = read_requests(folder)
    assert [request.value for request in requests[-2:]] == [999, "x" * 999]
    assert len({request.id for request in requests}) == len(requests) > 10


@pytest.mark.parametrize("replaced", [7, "x", [1], [[1, 2, 3, 4]], [["a", 1]], {"a": 1}, None])
def test_invalid_list_of_replaced_requests_is_ignored(tmp_path, replaced):
    folder = RunFolder(tmp_path)
    folder.control.write_text(json.dumps({"log_every": 7, "replaced": replaced}))
    assert [(request.name, request.value) for request in read_requests(folder)] == [("log_every", 7)]
    write_requests(folder, {"log_every": 8}, source="cli")
    assert [request.value for request in read_requests(folder)] == [7, 8]
