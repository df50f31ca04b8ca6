"""A team's server and its trainers through real trouble: at the end the files are identical, byte for byte."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.journal import RunFolder, RunState, current_state
from tachograph.reader import read
from tachograph.remote import Connection, RunSender, SendState, parse_server, read_send_state, store_token
from tachograph.server._copy_status import read_copy_status
from tachograph.server.team import KeyRing, keys_path
from tests.conftest import HANG_S, Script, lines_of, reserve_port, wait_for, wait_for_lines
from tests.preloaded import preloaded
from tests.remote.conftest import send_all
from tests.store import END, START, append, hears, step, write

TRAIN = """
    import select, sys, tachograph
    run = tachograph.init(sys.argv[2], log_dir=sys.argv[1], resume=True, git=False, console=False)
    print("started", flush=True)
    step = 0
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        run.log({f"metric_{number}": step * 0.1234567 + number for number in range(10)}, step=step)
        step += 1
    run.finish()
    print("finished", flush=True)
"""


class ServerProcess:
    """`tacho serve` in a process, which can be killed and started again on the same port."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys = KeyRing(keys_path(data_dir))
        self.tokens: dict[str, str] = {}
        self.process: subprocess.Popen[Any] | None = None
        self.connections: list[Connection] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "tachograph", "serve", "--data", str(self.data_dir), "--port", str(self.port)]
        self.process = preloaded("dashboard").popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.is_up, "the server")

    def is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def token(self, scope: str) -> str:
        if scope not in self.tokens:
            self.tokens[scope] = self.keys.create(scope, [scope])[1]
        return self.tokens[scope]

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a trainer that sends to this server."""
        return {"TACHO_MODE": "cloud", "TACHO_SERVER": self.url, "TACHO_API_KEY": self.token("write"), **more}

    def sender(self, folder: RunFolder, url: str = "", **options: Any) -> RunSender:
        """Return a sender in this process; what it reports is in `reports`."""
        key = self.token("write")
        reports: list[tuple[str, str, str]] = []
        connection = Connection(parse_server(url or self.url), lambda: key)
        sender = RunSender(folder, connection, lambda *report: reports.append(report), **options)
        sender.reports = reports  # type: ignore[attr-defined]
        self.connections.append(connection)
        return sender

    def request(self, method: str, path: str, scope: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token(scope)}"}
        return httpx.request(method, self.url + path, headers=headers, timeout=HANG_S, **options)

    def copies(self) -> set[bytes]:
        """Return the contents of all journals on the server."""
        return {path.read_bytes() for path in self.data_dir.glob("*/*/metrics.jsonl")}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    found = ServerProcess(tmp_path / "data")
    yield found
    for connection in found.connections:
        connection.close()
    found.kill()


def stop(training: Script) -> None:
    """Let a trainer finish its run."""
    assert training.process.stdin is not None
    training.process.stdin.write("stop\n")
    training.process.stdin.flush()
    hears(training, "finished")
    training.ok()


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def send_state(run: Path) -> SendState:
    """Return how far a run was sent; the client stores it after its first requests."""
    return read_send_state(RunFolder(run)) or SendState("")


def is_copied(server: ServerProcess, *runs: Path) -> bool:
    """Return whether the server has these runs, and no others."""
    return server.copies() == {(run / "metrics.jsonl").read_bytes() for run in runs}


def make_run(logs: Path, name: str = "x", num_steps: int = 2_000, run_id: str = "0123456789abcdef") -> RunFolder:
    records = [{**START, "run_name": name, "run_id": run_id}, *(step(number, loss=0.5) for number in range(num_steps))]
    return write(logs / name, records)


# The server is killed or away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_kills", [5, pytest.param(200, marks=pytest.mark.long)])
def test_repeated_kills_of_the_server_lose_nothing(server, logs, script, num_kills):
    """Kill and restart the server many times while a trainer sends to it, at random moments."""
    instants = random.Random(7)
    server.start()
    training = script(TRAIN, logs, "x", env=server.environment())
    copy = server.data_dir / "default" / "x" / "metrics.jsonl"
    for _ in range(num_kills):
        size = size_of(copy)
        wait_for(lambda size=size: size_of(copy) > size, "a batch")
        time.sleep(instants.choice([0.0, instants.uniform(0.0, 0.3)]))
        server.kill()
        server.start()
    stop(training)
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")
    assert current_state(RunFolder(copy.parent)) is RunState.FINISHED
    assert read(logs / "x").num_lost_records == 0


TRAIN_WITH_MEDIA = """
    import os, select, sys, tachograph
    run = tachograph.init(sys.argv[2], log_dir=sys.argv[1], git=False, console=False, csv=False)
    print("started", flush=True)
    step = 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        path = f"{sys.argv[1]}/file.bin"
        with open(path, "wb") as file:
            file.write(os.urandom(300_000))
        run.log({"loss": 0.5, "file": tachograph.File(path)}, step=step)
        run.flush()
        step += 1
    run.finish()
    print("finished", flush=True)
"""


def test_killed_server_and_sender_lose_no_media(server, logs, script, monkeypatch):
    server.start()
    environment = server.environment()
    logs.mkdir(exist_ok=True)
    training = script(TRAIN_WITH_MEDIA, logs, "x", env=environment)
    copy = server.data_dir / "default" / "x"

    def media(folder: Path) -> dict[str, bytes]:
        paths = [path for path in folder.glob("media/*/*") if not path.name.startswith(".")]
        return {path.name: path.read_bytes() for path in paths}

    for _ in range(2):
        num_files = len(media(copy))
        wait_for(lambda num_files=num_files: len(media(copy)) > num_files, "more media")
        server.kill()
        server.start()
    (sender,) = psutil.Process(training.process.pid).children()
    sender.kill()
    num_files = len(media(logs / "x"))
    wait_for(lambda: len(media(logs / "x")) > num_files + 3, "media without a sender")
    stop(training)
    assert len(media(copy)) < len(media(logs / "x"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["sync", "--status", str(logs / "x")])
    assert "left at" in result.output
    result = CliRunner().invoke(main, ["sync", str(logs / "x")])
    assert result.exit_code == 0, result.output
    assert media(copy) == media(logs / "x")
    assert is_copied(server, logs / "x")
    assert "complete at" in CliRunner().invoke(main, ["sync", "--status", str(logs / "x")]).output


@pytest.mark.slow
def test_power_failure_of_the_server_loses_nothing(server, logs):
    """The disk of the server has less than was acknowledged, and ends in the middle of a line."""
    folder = make_run(logs)
    sender = server.sender(folder)
    cuts = random.Random(3)
    for number in range(10):
        server.start()
        append(folder, [step(10_000 + number, loss=0.25)])
        send_all(sender)
        server.kill()
        copy = server.data_dir / "default" / "x" / "metrics.jsonl"
        with open(copy, "r+b") as file:
            file.truncate(cuts.randrange(copy.stat().st_size))
    server.start()
    append(folder, [END])
    send_all(sender)
    assert is_copied(server, folder.path)
    assert sender.state.generation == 1


def test_outage_of_an_hour_loses_nothing(server, logs):
    now_s = 0.0
    folder = make_run(logs)
    server.start()
    sender = server.sender(folder, clock=lambda: now_s)
    send_all(sender)
    server.kill()
    pauses: list[float] = []
    while now_s < 3600:
        append(folder, [step(10_000 + len(pauses), loss=0.25)])
        pause_s = sender.poll()
        pauses += [pause_s] if sender.state.error else []
        now_s += pause_s
    assert pauses[:7] == sorted(pauses[:7]), "they grow"
    assert all(48 <= pause <= 72 for pause in pauses[10:]), "to about a minute"
    assert len(set(pauses[10:])) > 10, "and differ, so that the trainers do not all come at once"
    assert [report[0] for report in sender.reports] == ["server_failed"]
    server.start()
    now_s += 100
    sender.poll(flush=True)
    append(folder, [END])
    send_all(sender)
    assert is_copied(server, folder.path)
    assert len(sender.reports) == 1


def test_unreachable_server_does_not_concern_training(server, logs, script):
    out = script(
        """
        import sys, tachograph
        with tachograph.init("x", log_dir=sys.argv[1], exit_timeout_s=0.5) as run:
            for step in range(1000):
                run.log(a=float(step), step=step)
        run.finish(timeout_s=120)  # only waits for the journal
        """,
        logs,
        env=server.environment(),
    ).ok()
    assert "did not receive all records" in out
    history = read(logs / "x")
    assert history.state is RunState.FINISHED
    assert history.counts["step"] == 1000
    server.start()  # the process that sends is still there
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")


def test_server_that_never_answers_holds_up_nothing(server, logs, script):
    with socket.create_server(("127.0.0.1", server.port)) as black_hole:
        training = script(TRAIN, logs, "x", env=server.environment(TACHO_EXIT_TIMEOUT_S="0.5"))
        hears(training, "started")
        connection, _ = black_hole.accept()
        assert connection.recv(100).startswith(b"PUT /api/v1/ingest/runs/")
        stop(training)  # although nothing was answered
        connection.close()
    server.start()
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")


# The trainer is killed, forks, or is one of two ----------------------------------------------------------------------


def test_killed_trainer_is_sent_to_the_end(server, logs, script):
    server.start()
    training = script(TRAIN, logs, "x", env=server.environment())
    copy = RunFolder(server.data_dir / "default" / "x")
    wait_for(lambda: copy.heartbeat.exists() and current_state(copy) is RunState.RUNNING)
    (sender,) = psutil.Process(training.process.pid).children()
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    data = (logs / "x" / "metrics.jsonl").read_bytes()
    wait_for(lambda: copy.journal.read_bytes() == data[: data.rfind(b"\n") + 1], "the copy")
    wait_for(lambda: not sender.is_running(), "the end of the sender")
    assert current_state(RunFolder(logs / "x")) is RunState.CRASHED
    wait_for(lambda: current_state(copy) is RunState.STALE, "the copy being stale")


def test_trainer_may_fork(server, logs, script):
    server.start()
    script(
        """
        import os, sys, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], git=False)
        for number in range(5):
            for step in range(number * 100, number * 100 + 100):
                run.log(a=float(step), step=step)
            pid = os.fork()
            if pid == 0:
                run.log(a=-1.0, step=-1)
                run.finish()
                os._exit(0) if number % 2 else sys.exit(0)
            os.waitpid(pid, 0)
        run.finish()
        """,
        logs,
        env=server.environment(PYTHONWARNINGS="ignore"),
    ).ok()
    assert read(logs / "x").counts["step"] == 500
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")


def test_two_trainers_with_one_name_are_two_runs(server, logs, script):
    server.start()
    trainers = [script(TRAIN, logs / place, "x", env=server.environment()) for place in ("a", "b")]
    for training in trainers:
        hears(training, "started")
    wait_for(lambda: len(server.copies()) == 2)
    for training in trainers:
        stop(training)
    wait_for(lambda: is_copied(server, logs / "a" / "x", logs / "b" / "x"), "the copies")
    assert sorted(path.name for path in (server.data_dir / "default").iterdir()) == ["x", "x-2"]
    modes = set()
    for path in [server.data_dir, *server.data_dir.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # the server replaces files, such as its counters
            modes.add(path.stat().st_mode & 0o077)
    assert modes == {0}


def test_two_trainers_with_one_id_are_both_kept(server, logs, script):
    """A run folder was copied to a second machine, and both continue it."""
    server.start()
    stop(script(TRAIN, logs / "a", "x", env={"TACHO_MODE": "local"}))
    shutil.copytree(logs / "a", logs / "b")
    trainers = [script(TRAIN, logs / place, "x", env=server.environment()) for place in ("a", "b")]
    for training in trainers:
        hears(training, "started")
    wait_for(lambda: len(server.copies()) == 2)
    for training in trainers:
        stop(training)
    wait_for(lambda: is_copied(server, logs / "a" / "x", logs / "b" / "x"), "the copies")


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_clock_of_the_trainer_does_not_matter(server, logs, script, tmp_path, ahead_s):
    """Every Python process of the trainer's machine has a clock that is an hour off."""
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "sitecustomize.py").write_text(
        f"import time\nright, right_ns = time.time, time.time_ns\ntime.time = lambda: right() + {ahead_s}\n"
        f"time.time_ns = lambda: right_ns() + {ahead_s} * 10**9\n"
    )
    path = os.pathsep.join([str(tmp_path / "wrong"), *filter(None, [os.environ.get("PYTHONPATH")])])
    server.start()
    training = script(TRAIN, logs, "x", env=server.environment(PYTHONPATH=path))
    copy = RunFolder(server.data_dir / "default" / "x")
    wait_for(lambda: size_of(copy.journal))
    wait_for(lambda: read_copy_status(copy).skew_s is not None)
    wait_for(lambda: current_state(copy) is RunState.RUNNING)
    assert abs(read_copy_status(copy).skew_s - ahead_s) < HANG_S
    assert abs(wait_for_lines(copy.path)[0]["time"] - ahead_s - time.time()) < HANG_S, "records keep their times"
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    wait_for(lambda: current_state(copy) is RunState.STALE, "the copy being stale")


# Between them --------------------------------------------------------------------------------------------------------


class Proxy:
    """Passes requests on to a server, and does something else to those for which `faults` has a word."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.faults: list[str] = []
        self.num_done = 0
        self._random = random.Random(5)
        self._late: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as file:
                while (request := _read_message(file)) and self._pass_on(client, *request):
                    pass

    def _pass_on(self, client: socket.socket, head: bytes, body: bytes) -> bool:
        """Handle one request; return whether the connection stays open."""
        fault = ""
        if self.faults and (self.faults[0] not in BATCHES or b"/journal/" in head):
            fault = self.faults.pop(0)
        self.num_done += bool(fault)
        if fault == "drop":
            return False
        if fault == "bad gateway":
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>")
            return True
        if fault == "cut request":
            with socket.create_connection(("127.0.0.1", self.port)) as upstream:
                upstream.sendall(head + body[: len(body) // 2])
            return False
        if fault == "late":  # arrives after the requests that follow
            self._late.append(head + body)
            return False
        if fault == "flip body":
            body = self._flip(body)
        if fault.startswith("flip header "):
            name = fault.removeprefix("flip header ").encode()
            place = head.lower().index(name) + len(name)
            head = head[:place] + (b"1" if head[place : place + 1] != b"1" else b"2") + head[place + 1 :]
        if fault == "delay":
            time.sleep(0.3)
        answer = b""
        for data in [head + body] * (3 if fault == "repeat" else 1):
            answer = self._ask(data)
        for data in self._late if fault != "late" else []:
            self._ask(data)
        self._late.clear()
        if fault == "drop answer":
            return False
        if fault == "cut answer":
            client.sendall(answer[:-5])
            return False
        if fault == "flip answer":
            place = answer.index(b"\r\n\r\n") + 4
            answer = answer[:place] + self._flip(answer[place:])
        client.sendall(answer)
        return True

    def _ask(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port)) as upstream, upstream.makefile("rb") as file:
            upstream.sendall(data)
            return b"".join(_read_message(file) or ())

    def _flip(self, data: bytes) -> bytes:
        place = self._random.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << self._random.randrange(8)]) + data[place + 1 :]


def _read_message(file: Any) -> tuple[bytes, bytes] | None:
    """Read a request or an answer; return None at the end of the connection."""
    lines = []
    while (line := file.readline()) and line != b"\r\n":
        lines.append(line)
    lengths = [int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")]
    return (b"".join(lines) + b"\r\n", file.read(lengths[0] if lengths else 0)) if lines else None


ANY_REQUEST = ["drop", "bad gateway", "cut request", "late", "delay", "repeat", "drop answer", "cut answer"]
BATCHES = [
    "flip body",
    "flip header ?offset=",
    "flip header tacho-bytes: ",
    "flip header tacho-sha256: ",
    "flip header tacho-before: ",
    "flip answer",
]


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    found = Proxy(server.port)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*ANY_REQUEST, *BATCHES])
def test_bad_connection_does_not_change_the_copy(server, proxy, logs, fault):
    server.start()
    folder = make_run(logs)
    sender = server.sender(folder, proxy.url)
    sender.poll(flush=True)
    for number in range(20):
        append(folder, [step(10_000 + 10 * number + index, loss=0.25) for index in range(number % 7 + 1)])
        sender._beat_s = sender._clock()  # the next request is a batch
        proxy.faults = [fault]
        while proxy.faults:
            sender.poll(flush=True, ignore_pause=True)
        send_all(sender)
    append(folder, [END])
    send_all(sender)
    assert proxy.num_done == 20
    assert is_copied(server, folder.path)
    assert (sender.state.generation, sender.state.run) == (1, "default/x")
    assert "server_diverged" not in [report[0] for report in sender.reports]


def test_trainer_behind_a_bad_connection(server, proxy, logs, script):
    """All faults in any order, at requests of any kind."""
    server.start()
    order = random.Random(11)
    for _ in range(40):
        proxy.faults += [order.choice(ANY_REQUEST), *[""] * order.randrange(3)]
    training = script(TRAIN, logs, "x", env=server.environment(TACHO_SERVER=proxy.url))
    wait_for(lambda: not proxy.faults, "the faults")
    stop(training)
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")


# The server's disk, its keys and its users ---------------------------------------------------------------------------


def limit_files(process: subprocess.Popen[Any], num_bytes: int) -> None:
    """Let no file of a process become larger, as on a full disk."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def test_full_disk_of_the_server_loses_nothing(server, logs, script):
    server.start()
    training = script(TRAIN, logs, "x", env=server.environment())
    copy = server.data_dir / "default" / "x" / "metrics.jsonl"
    wait_for(lambda: size_of(copy))
    limit_files(server.process, size_of(copy) + 20_000)
    wait_for(lambda: "HTTP 507" in send_state(logs / "x").error)
    size = size_of(logs / "x" / "metrics.jsonl")
    wait_for(lambda: size_of(logs / "x" / "metrics.jsonl") > size + 10_000, "more steps")
    limit_files(server.process, resource.RLIM_INFINITY)
    stop(training)
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")
    # A busy server may also answer too late, which is another failure.
    reasons = [record["reason"] for record in lines_of(logs / "x") if record.get("kind") == "server_failed"]
    assert sum("disk of the server is full" in reason for reason in reasons) == 1, reasons


def test_registering_on_a_full_disk_leaves_nothing_behind(server, logs):
    server.start()
    sender = server.sender(make_run(logs))
    server.token("read")
    limit_files(server.process, 0)
    for _ in range(5):
        sender.poll(flush=True, ignore_pause=True)
    assert "HTTP 50" in sender.state.error
    limit_files(server.process, resource.RLIM_INFINITY)
    send_all(sender)
    assert sender.state.run == "default/x"
    assert [path.name for path in (server.data_dir / "default").iterdir()] == ["x"]


def test_revoked_key_can_be_replaced_during_a_run(server, logs, script, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    address = parse_server(server.url)
    store_token(address, server.keys.create("ci", ["write"])[1])
    server.start()
    training = script(TRAIN, logs, "x", env={"TACHO_MODE": "cloud", "TACHO_SERVER": server.url})
    wait_for(server.copies)
    server.keys.revoke("ci")
    wait_for(lambda: "revoked" in send_state(logs / "x").error)
    size = size_of(logs / "x" / "metrics.jsonl")
    wait_for(lambda: size_of(logs / "x" / "metrics.jsonl") > size + 10_000, "more steps")
    store_token(address, server.keys.create("ci", ["write"])[1])
    stop(training)
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")


def trash(server: ServerProcess, run: str) -> None:
    body = {"action": "trash", "runs": [run], "force": True}
    answer = server.request("POST", "/api/v1/bulk", "admin", json=body)
    assert answer.json()["num_failed"] == 0, answer.text


def test_deleted_run_is_not_sent_again(server, logs, script):
    server.start()
    stop(script(TRAIN, logs, "x", env=server.environment()))
    wait_for(lambda: is_copied(server, logs / "x"), "the copy")
    trash(server, "default/x")
    server.kill()
    server.start()
    training = script(TRAIN, logs, "x", env=server.environment())  # a second attempt
    wait_for(lambda: send_state(logs / "x").is_gone)
    stop(training)
    assert server.copies() == set()
    assert len(read(logs / "x").attempts) == 2


def test_folder_deleted_during_a_run_is_not_sent_again(server, logs, script):
    server.start()
    training = script(TRAIN, logs, "x", env=server.environment())
    wait_for(server.copies)
    # The server may write to the folder while it is deleted. As long as a part of it is left, the rest is sent again.
    copy = server.data_dir / "default"
    wait_for(lambda: shutil.rmtree(copy, ignore_errors=True) or not copy.exists())
    wait_for(lambda: send_state(logs / "x").is_gone)
    stop(training)
    assert server.copies() == set()
    assert read(logs / "x").state is RunState.FINISHED
    # A busy server may also answer too late, which is another failure.
    reasons = [record["reason"] for record in lines_of(logs / "x") if record.get("kind") == "server_failed"]
    assert sum("deleted on the server" in reason for reason in reasons) == 1, reasons


def test_deleted_run_does_not_get_the_folder_of_another(server, logs):
    """A new run has the name of a deleted one, whose client has forgotten everything."""
    server.start()
    old, new = make_run(logs / "old"), make_run(logs / "new", num_steps=3, run_id="f" * 16)
    send_all(server.sender(old))
    trash(server, "default/x")
    newer = server.sender(new)
    newer.poll(flush=True)
    assert newer.state.run == "default/x"
    shutil.rmtree(old.private)
    sender = server.sender(old)
    sender.poll(flush=True)
    assert sender.state.is_gone
    send_all(newer)
    assert is_copied(server, new.path)
