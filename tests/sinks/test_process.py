"""Sinks in processes of their own: real processes, real signals, and clients that do their worst."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.reader import read
from tachograph.sinks import SINKS, SinkProcess, _config, read_lags, start_sinks
from tests.conftest import HANG_S, lines_of, wait_for, whole_lines

FOREVER_S = 900
"""How long the clients here block: far longer than any deadline of a test."""

PACKAGE = f"""
import atexit, json, os, sys, threading, time

class Recorder:
    name = "recorder"
    on_rejected = None

    def __init__(self, path, trouble=None, gate=None):
        self.path, self.trouble, self.gate = path, trouble, gate

    def note(self, **fields):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({{"pid": os.getpid(), **fields}}) + "\\n")

    def open(self, folder, start):
        self.note(call="open")
        if self.trouble == "thread":
            threading.Thread(target=time.sleep, args=({FOREVER_S},), daemon=False).start()
        elif self.trouble == "exit handler":
            atexit.register(time.sleep, {FOREVER_S})
        elif self.trouble == "print":
            print("print to stdout", flush=True)
            print("print to stderr", file=sys.stderr, flush=True)
            os.write(1, b"write to stdout")
            os.write(2, b"write to stderr")
            self.note(call="read", text=sys.stdin.read())

    def write(self, records):
        if self.trouble == "write":
            time.sleep({FOREVER_S})
        if self.trouble in ("raise late", "reject late"):
            self.note(call="write")
            while not os.path.exists(self.path + ".go"):
                time.sleep(0.05)
        if self.trouble in ("raise", "raise late"):
            raise ConnectionError("no route to the tool")
        if self.trouble == "reject late":
            self.on_rejected(len(records), "rows", "no such column")
        for record in records:
            self.note(record=record["event"], step=record.get("global_step"), status=record.get("status"))

    def close(self):
        if self.trouble == "close":
            time.sleep({FOREVER_S})
        while self.gate and not os.path.exists(self.gate):
            time.sleep(0.05)
        self.note(call="close")
"""

FOLLOW = """
import os, sys, time, tachograph
from tachograph.sinks import SinkProcess
log_dir, path, trouble = sys.argv[1:4]
BLOCKING = ("close", "write", "thread", "exit handler")
sink = SinkProcess("recorder", {"path": path, "trouble": trouble}, give_up_s=1.0 if trouble in BLOCKING else 60.0)
sink.wait_until_ready()
run = tachograph.init("x", log_dir=log_dir, git=False, exit_timeout_s=0.5)
sink.attach(run.folder, run.report_error)
run.add_follower(sink)
print(sink._process.pid, flush=True)

def finish():
    run.finish()
    run.finish(timeout_s=120)  # only waits for the journal
"""


@pytest.fixture
def package(tmp_path):
    """A package with a sink, as an installed one: its module and the metadata that pip would generate."""
    site = tmp_path / "site"
    info = site / "recorder_sink-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "recorder_sink.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder-sink\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tachograph.sinks]\nrecorder = recorder_sink:Recorder\n")
    return {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def importable(package, monkeypatch):
    """Make the sink available to processes that the test itself starts."""
    monkeypatch.syspath_prepend(package["PYTHONPATH"].split(os.pathsep)[0])


@pytest.fixture
def notes(tmp_path):
    """The file that the sink writes to, as a function that returns its content."""
    path = tmp_path / "notes.jsonl"

    class Notes(type(path)):
        def read(self):
            return whole_lines(self)

        def calls(self):
            return [note["call"] for note in self.read() if "call" in note]

        def records(self):
            return [(note["record"], note["step"]) for note in self.read() if "record" in note]

    return Notes(path)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def kill_session(pid: int) -> None:
    """Kill a detached process and what it started."""
    assert pid > 0, "no pid was printed"  # 0 would kill the tests
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


@pytest.mark.parametrize("trouble", ["close", "write", "thread", "exit handler"])
def test_client_that_hangs_does_not_delay_exit(logs, notes, script, package, trouble):
    program = script(FOLLOW + "run.log(a=1.0)\nfinish()\nprint('finished')", logs, notes, trouble, env=package)
    out = program.ok()
    pid = int(next(line for line in out.splitlines() if line.isdigit()))
    assert "finished" in out
    assert lines_of(logs / "x")[-1]["event"] == "end"
    wait_for(lambda: not is_running(pid), "the end of the sink's process")
    expected = "recorder did not receive all records" if trouble in {"close", "write"} else ""
    assert expected in out


def test_sink_receives_every_record_before_exit(logs, notes, script, package):
    script(
        """
        import sys, tachograph
        with tachograph.init("x", log_dir=sys.argv[1], sinks=[{"recorder": {"path": sys.argv[2]}}], git=False,
                             system_interval_s=0, exit_timeout_s=60) as run:
            for step in range(500):
                run.log(a=float(step), step=step)
        """,
        logs,
        notes,
        env=package,
    ).ok()
    steps = [step for event, step in notes.records() if event == "step"]
    assert steps == list(range(500))
    assert notes.records()[-1][0] == "end"
    assert notes.calls() == ["open", "close"]
    assert len({note["pid"] for note in notes.read()}) == 1
    assert read_lags(RunFolder(logs / "x")) == []


@pytest.mark.parametrize("forks", [False, True])
def test_killed_run_is_exported_to_the_end(logs, notes, script, package, forks):
    """A forked child keeps the pipe to the sink's process open, as the workers of a data loader do."""
    program = script(
        FOLLOW
        + (
            f"child = os.fork()\nif child == 0:\n    time.sleep({FOREVER_S})\nprint(child, flush=True)\n"
            if forks
            else ""
        )
        + f"for step in range(100): run.log(a=1.0, step=step)\nrun.flush()\nprint('flushed')\ntime.sleep({FOREVER_S})",
        logs,
        notes,
        "none",
        env=package,
    )
    numbers = []
    for line in program.process.stdout:
        numbers += [int(line)] if line.strip().isdigit() else []
        if line.startswith("flushed"):
            break
    program.process.kill()
    try:
        wait_for(lambda: "close" in notes.calls(), "the sink's close")
        assert [step for event, step in notes.records() if event == "step"] == list(range(100))
        assert not any(event == "end" for event, _ in notes.records())
        wait_for(lambda: not is_running(numbers[0]), "the end of the sink's process")
    finally:
        if forks:
            os.kill(numbers[1], signal.SIGKILL)


def test_ctrl_c_ends_the_run_and_not_the_export(logs, notes, script, package):
    program = script(
        FOLLOW + f"run.log(a=1.0, step=7)\ntime.sleep({FOREVER_S})",
        logs,
        notes,
        "none",
        env=package,
        start_new_session=True,
    )
    wait_for(notes.calls, "the sink's open")
    os.killpg(program.process.pid, signal.SIGINT)  # as the terminal does
    code, _, err = program.wait()
    assert code != 0 and "KeyboardInterrupt" in err
    wait_for(lambda: "close" in notes.calls(), "the sink's close")
    assert [note["status"] for note in notes.read() if note.get("record") == "end"] == ["failed"]
    assert ("step", 7) in notes.records()


def test_client_cannot_print_or_read_the_terminal(logs, notes, script, package):
    code, out, err = script(FOLLOW + "run.finish(timeout_s=60)", logs, notes, "print", env=package).wait()
    assert code == 0
    assert "print to" not in out + err and "write to" not in out + err
    assert {"call": "read", "text": ""}.items() <= notes.read()[1].items()


def test_failures_are_recorded_and_shown(logs, notes, importable, cli):
    sink = SinkProcess("recorder", {"path": str(notes), "trouble": "raise"}, give_up_s=30.0)
    sink.wait_until_ready()
    run = tachograph.init("x", log_dir=str(logs), git=False, system_interval_s=0)
    sink.attach(run.folder, run.report_error)
    run.add_follower(sink)
    run.log(a=1.0, step=1)
    wait_for(lambda: read(logs / "x").latest("telemetry_error"), "the record of the failure")
    run.finish()
    (error,) = read(logs / "x").latest("telemetry_error")
    assert (error["kind"], error["field"]) == ("sink_failed", "recorder")
    (lag,) = read_lags(run.folder)
    assert lag.sink == "recorder"
    assert lag.num_records == len(lines_of(logs / "x"))
    assert lag.error == "ConnectionError: no route to the tool"
    shown = " ".join(cli("show", logs / "x").split())
    assert f"recorder has not received {lag.num_records} records: ConnectionError" in shown


@pytest.fixture
def cli():
    from click.testing import CliRunner

    from tachograph.cli._main import main

    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments]).output


def test_doctor_shows_errors_after_the_end(logs, notes, script, package, cli):
    expected = {
        "raise late": "recorder has not received 3 records: ConnectionError: no route to the tool",
        "reject late": "recorder: the receiver rejected 3 rows for good: no such column",
    }
    code = FOLLOW.replace('"x"', 'trouble.replace(" ", "-")') + "run.log(train_loss=1.0, step=1)\nfinish()"
    for trouble, message in expected.items():
        name = trouble.replace(" ", "-")
        out = script(code, logs, notes.with_name(name), trouble, env=package).ok()
        pid = int(next(line for line in out.splitlines() if line.isdigit()))
        assert not [record for record in lines_of(logs / name) if record["event"] == "telemetry_error"]
        notes.with_name(f"{name}.go").touch()  # the training process has ended, and the client answers only now
        wait_for(lambda pid=pid: not is_running(pid))
        text = " ".join(cli("doctor", name, "--log-dir", logs).split())
        assert message in text and "No problems found." not in text
        problems = json.loads(cli("doctor", name, "--log-dir", logs, "--json"))["recording_problems"]
        assert len(problems) == 1 and message in problems[0]
        assert message in " ".join(cli("show", name, "--log-dir", logs).split())


def test_death_of_the_sinks_process_is_recorded(logs, notes, importable):
    (sink,) = start_sinks({"recorder": {"path": str(notes)}})
    with tachograph.init("x", log_dir=str(logs), git=False, exit_timeout_s=FOREVER_S / 2) as run:
        sink.attach(run.folder, run.report_error)
        run.add_follower(sink)
        wait_for(notes.calls, "the sink's open")
        os.kill(sink._process.pid, signal.SIGKILL)
        wait_for(lambda: read(logs / "x").latest("telemetry_error"), "the record of the failure")
        start_s = time.monotonic()
    assert time.monotonic() - start_s < FOREVER_S / 4  # nobody waits for a process that has ended


def test_next_attempt_waits_for_the_export_of_the_last(logs, tmp_path, notes, importable):
    gate = tmp_path / "gate"
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        pass
    processes = []
    for _ in range(2):
        process = SinkProcess("recorder", {"path": str(notes), "gate": str(gate)})
        process.wait_until_ready()
        process.attach(run.folder, lambda *_: None)
        process.start()
        processes.append(process)
        wait_for(notes.calls, "the first open")
    first, second = processes
    assert not first.close(0.1)
    assert not second.close(1.0)
    assert notes.calls() == ["open"]
    gate.touch()
    assert first.close(HANG_S)
    assert second.close(HANG_S)
    assert notes.calls() == ["open", "close", "open", "close"]
    assert len([note for note in notes.read() if note.get("record") == "end"]) == 1


SLOW_PACKAGE = """
import os, time
while not os.path.exists({gate!r}):
    time.sleep(0.05)
raise ImportError("broken on this machine")
"""


def test_init_does_not_wait_for_the_packages_of_sinks(logs, tmp_path, monkeypatch, caplog):
    """Whatever only they can tell costs the sink, and is reported."""
    packages = ("mlflow", "swanlab", "tensorboard", "wandb")
    for package in packages:
        (tmp_path / "packages" / package).mkdir(parents=True)
        (tmp_path / "packages" / package / "__init__.py").write_text(SLOW_PACKAGE.format(gate=str(tmp_path / "gate")))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("SWANLAB_MODE", "offline")  # the default needs a key
    with tachograph.init("x", log_dir=str(logs), sinks=list(packages), git=False, exit_timeout_s=0.1) as run:
        run.log(a=1.0, step=1)
        (tmp_path / "gate").touch()  # only now can they be imported
        wait_for(lambda: len(failed_sinks(logs)) == len(packages), "the errors")
    assert all(f"sink {name!r} needs a package" in reason for name, reason in failed_sinks(logs).items())
    assert all("broken on this machine" in reason for reason in failed_sinks(logs).values())
    assert caplog.text.count("the run is recorded without this sink") == len(packages)
    assert [lag.sink for lag in read_lags(RunFolder(logs / "x"))] == sorted(packages)  # `tacho sync` can repeat it


def failed_sinks(logs):
    errors = read(logs / "x").latest("telemetry_error")
    return {record["field"]: record["reason"] for record in errors if record["kind"] == "sink_failed"}


def test_missing_package_of_a_sink_is_an_error_of_init(logs, monkeypatch):
    for name in ("mlflow", "swanlab", "tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"No module named '{name}'\): pip install 'tachograph\[{name}\]'"):
            tachograph.init("x", log_dir=str(logs), sinks=[name])
    assert not logs.exists()


def test_option_checks_have_the_parameters_of_the_sinks():
    for name, check in _config._OPTION_CHECKS.items():
        check_options = importlib.import_module(f"tachograph.bridges.{check.module}").check_options
        parameters = inspect.signature(SINKS.load(name)).parameters.values()
        assert [(p.name, p.default) for p in inspect.signature(check_options).parameters.values()] == [
            (p.name, p.default) for p in parameters
        ], name
    assert _config._OPTION_CHECKS.keys() == SINKS.built_in.keys()


def test_option_that_cannot_be_passed_on_is_an_error(logs, importable):
    with pytest.raises(ConfigError, match="sink 'recorder': an option cannot be passed to the process of the sink"):
        tachograph.init("x", log_dir=str(logs), sinks=[{"recorder": {"path": lambda: None}}])
    assert not logs.exists()


def test_failed_start_of_the_run_ends_the_sinks_process(logs, notes, importable):
    logs.write_text("a file")
    before = children()
    with pytest.raises(tachograph.exceptions.LogDirError):
        tachograph.init("x", log_dir=str(logs), sinks=[{"recorder": {"path": str(notes)}}])
    wait_for(lambda: children() <= before, "the end of the sink's process")
    assert notes.calls() == []


def children() -> set[int]:
    import psutil

    pids = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            pids |= {child.pid} if child.status() != psutil.STATUS_ZOMBIE else set()
    return pids


def test_only_rank_0_starts_sinks(logs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = children()
    run = tachograph.init("x", log_dir=str(logs), tensorboard=True)
    assert children() <= before
    run.finish()


@pytest.fixture
def silent_server():
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("server", ["unresolvable", "refused", "silent", "refused, exception"])
def test_unreachable_wandb_does_not_delay_exit(logs, script, silent_server, server):
    address = {"unresolvable": "http://no-such-host.invalid", "silent": silent_server}.get(server, "http://127.0.0.1:9")
    last = (
        "raise RuntimeError('boom')" if server.endswith("exception") else "run.finish()\nprint('finished', flush=True)"
    )
    program = script(
        "import atexit, sys, time, tachograph\n"
        "atexit.register(lambda: run.finish(timeout_s=120))\n"  # after the run has ended: only waits for the journal
        "run = tachograph.init('x', log_dir=sys.argv[1], wandb=True, git=False, exit_timeout_s=1)\n"
        "print(run._followers[0]._process.pid, flush=True)\n"
        "for step in range(20): run.log(train_loss=1.0, step=step); time.sleep(0.1)\n" + last,
        logs,
        env={"WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567", "WANDB_BASE_URL": address, "WANDB_MODE": "online"},
    )
    pid = 0
    for line in program.process.stdout:
        pid = int(line) if line.strip().isdigit() else pid
        if "wandb did not receive all records" in line:
            break
    try:
        assert program.process.wait(60) == (1 if server.endswith("exception") else 0)  # W&B itself waits 90 s
    except subprocess.TimeoutExpired:
        pytest.fail("the process did not exit")
    finally:
        kill_session(pid)
    assert "end" in [record["event"] for record in lines_of(logs / "x")]
