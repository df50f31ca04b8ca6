"""Live updates, control requests and the command `tacho ui`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import anyio.to_thread
import httpx
import pytest

from tachograph.catalog import annotate
from tachograph.server import _live, create_app
from tachograph.server._run_list import RunList
from tachograph.store import Store
from tests.conftest import HANG_S, remove_folder, wait_for
from tests.server.conftest import check_error, write_run
from tests.store import END, START, append, hears, step, write

LIVE = "/api/v1/live"


def get(url, **options):
    return httpx.get(url, timeout=HANG_S, **options)


def is_change(name, **fields):
    def fits(event, data):
        return (
            event == "changed"
            and data["line"]["name"] == name
            and all(data["line"][key] == value for key, value in fields.items())
        )

    return fits


def test_new_record_is_reported(logs, serve, listen):
    folder = write(logs / "r", [START, step(0, train_loss=1.0)])
    events = listen(f"{serve(logs).url}{LIVE}", run="r")
    first = events.wait(is_change("r", step=0))
    for number in range(1, 11):
        append(folder, [step(number, train_loss=0.5)])
        found = events.wait(is_change("r", step=number))
        assert found["version"] != first["version"]


def test_only_changed_runs_are_reported(logs, serve, listen):
    folders = {name: write(logs / name, [START, step(0, a=1.0), END]) for name in "abc"}
    server = serve(logs)
    named, everything = listen(f"{server.url}{LIVE}", run=["a", "b"]), listen(f"{server.url}{LIVE}")
    for events, names in ((named, "ab"), (everything, "abc")):
        for name in names:
            events.wait(is_change(name))
        assert len(events.found) == len(names)
    append(folders["b"], [step(5, a=1.0)])
    append(folders["c"], [step(5, a=1.0)])
    named.wait(is_change("b", step=5))
    everything.wait(is_change("b", step=5))
    everything.wait(is_change("c", step=5))
    assert [data["line"]["name"] for _, data in named.found].count("a") == 1
    assert "c" not in [data["line"]["name"] for _, data in named.found]
    assert [data["line"]["name"] for _, data in everything.found].count("a") == 1


def test_stream_after_a_list_reports_only_later_changes(logs, serve, listen, monkeypatch):
    folders = {name: write(logs / name, [START, step(0, a=1.0), END]) for name in "abc"}
    server = serve(logs)
    page = server.client.get("/api/v1/runs").json()
    assert server.client.get("/api/v1/runs").json()["version"] == page["version"]
    append(folders["b"], [step(5, a=1.0)])
    remove_folder(folders["c"].path)
    later = server.client.get("/api/v1/runs").json()  # finds the changes before the stream does
    assert later["version"] != page["version"]
    monkeypatch.setattr(_live, "_KEEPALIVE_S", 0.0)
    for version, names in ((page["version"], ["b", "c"]), (later["version"], []), ("of-another-server", ["a", "b"])):
        events = listen(f"{server.url}{LIVE}", after=version)
        wait_for(lambda events=events: events.alive, "the events before")
        assert sorted(data["line"]["name"] if "line" in data else data["name"] for _, data in events.found) == names


@pytest.mark.parametrize("run", [[], ["a"]], ids=["in the list", "by name"])
def test_quiet_stream_says_that_it_is_alive(logs, serve, listen, run, monkeypatch):
    write(logs / "a", [START, step(0, a=1.0), END])
    events = listen(f"{serve(logs).url}{LIVE}", **({"run": run} if run else {}))
    events.wait(is_change("a"))
    assert _live._KEEPALIVE_S < 15
    monkeypatch.setattr(_live, "_KEEPALIVE_S", 0.0)
    wait_for(lambda: len(events.alive) > 2, "a sign of life")
    assert events.alive[0][1]["now"] > 1e9


@pytest.mark.parametrize("run", [[], ["a"]], ids=["in the list", "by name"])
def test_annotation_by_another_process_is_reported(logs, serve, listen, run):
    folder = write(logs / "a", [START, step(0, a=1.0), END])
    events = listen(f"{serve(logs).url}{LIVE}", **({"run": run} if run else {}))
    assert events.wait(is_change("a"))["line"]["annotated"] is None
    annotate(folder, [{"op": "add", "field": "tags", "value": "paper"}])
    events.wait(lambda event, data: event == "changed" and data["line"]["annotated"] is not None)


@pytest.mark.parametrize("run", [[], ["new"]], ids=["in the list", "by name"])
def test_new_and_deleted_runs_are_reported(logs, serve, listen, run):
    events = listen(f"{serve(logs).url}{LIVE}", **({"run": run} if run else {}))
    if run:
        events.wait(lambda event, data: event == "gone" and data["name"] == "new")
    write(logs / "new", [START, step(0, a=1.0)])
    events.wait(is_change("new"))
    events.found.clear()
    remove_folder(logs / "new")
    events.wait(lambda event, data: event == "gone" and data["name"] == "new")


@pytest.mark.parametrize("run", [[], ["live"]], ids=["in the list", "by name"])
def test_killed_process_is_reported_as_crashed(logs, serve, listen, trainer, run):
    events = listen(f"{serve(logs).url}{LIVE}", **({"run": run} if run else {}))
    events.wait(is_change("live", state="running"))
    trainer.process.kill()
    trainer.process.wait()
    events.wait(is_change("live", state="crashed"))


@pytest.mark.parametrize("run", [[], ["live"]], ids=["in the list", "by name"])
def test_resumed_run_is_reported_as_running(logs, serve, listen, trainer, script, run):
    trainer.process.kill()
    trainer.process.wait()
    events = listen(f"{serve(logs).url}{LIVE}", **({"run": run} if run else {}))
    events.wait(is_change("live", state="crashed"))
    again = script(TRAINER.replace('"live",', '"live", resume=True,'), logs)
    hears(again, "ready")
    events.wait(is_change("live", state="running"))


def test_replaced_journal_is_reported(logs, serve, listen):
    write(logs / "r", [START, *(step(i, a=1.0) for i in range(50))])
    server = serve(logs)
    events = listen(f"{server.url}{LIVE}", run="r")
    before = events.wait(is_change("r", step=49))["version"]
    write(logs / "other", [START, step(3, b=1.0)])
    os.replace(logs / "other" / "metrics.jsonl", logs / "r" / "metrics.jsonl")
    after = events.wait(is_change("r", step=3))["version"]
    assert after.split("-")[0] != before.split("-")[0]
    wait_for(lambda: [item["name"] for item in server.client.get("/api/v1/runs/r/metrics").json()["metrics"]] == ["b"])


def test_change_is_reported_with_many_runs(logs, serve, listen):
    for number in range(500):
        write(logs / f"run {number}", [START, step(0, a=1.0), END])
    events = listen(f"{serve(logs).url}{LIVE}")
    wait_for(lambda: len(events.found) == 500)
    write(logs / "new", [START, step(0, a=1.0)])
    events.wait(is_change("new"))


def test_disconnected_clients_leak_nothing(logs, serve, listen):
    write_run(logs)
    server = serve(logs)
    streams = [listen(f"{server.url}{LIVE}", run="r") for _ in range(10)] + [
        listen(f"{server.url}{LIVE}") for _ in range(10)
    ]
    for events in streams:
        events.wait(is_change("r"))
    assert len(server.server.server_state.tasks) == 20
    for events in streams:
        events.close()
    wait_for(lambda: not server.server.server_state.tasks, what="the end of the tasks")
    wait_for(lambda: not server.server.server_state.connections, what="the end of the connections")
    num_threads = threading.active_count()
    assert server.client.get("/healthz").status_code == 200
    assert threading.active_count() <= num_threads


@pytest.mark.slow
def test_many_watchers_do_not_block_requests(logs, serve, listen):
    write_run(logs)
    server = serve(logs)
    for _ in range(50):  # more than the server has threads
        listen(f"{server.url}{LIVE}", run="r")
    for _ in range(5):
        assert server.client.get("/api/v1/runs/r").status_code == 200


class CountingStore(Store):
    num_polls = 0

    def runs(self):
        self.num_polls += 1
        return super().runs()

    def open(self, run_id):
        self.num_polls += 1
        return super().open(run_id)


def test_streams_share_the_polls_of_the_list(logs, monkeypatch):
    for name in ("_LIST_INTERVAL_S", "_MAX_PAUSE_S"):  # however long the messages of all streams take
        monkeypatch.setattr(_live, name, HANG_S)
    write_run(logs)
    store, changes = CountingStore(logs), []

    async def main():
        updates = _live.LiveUpdates(store, RunList(store, lambda: changes.append("list")))
        streams = [updates.watch([], lambda: False) for _ in range(30)]
        for _ in range(2):  # the first message has no event
            messages = [await anext(stream) for stream in streams]
        assert [b'"name":"r"' in message for message in messages] == [True] * 30

    asyncio.run(main())
    assert (store.num_polls, changes) == (1, ["list"])


def test_streams_of_runs_poll_less_often_if_there_are_many(logs):
    write_run(logs)
    store = CountingStore(logs)

    async def main():
        updates = _live.LiveUpdates(store, RunList(store))
        updates._num_streams = 100_000
        stream = updates.watch(["r"], lambda: False)
        for _ in range(2):
            await anext(stream)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.5)

    asyncio.run(main())
    assert store.num_polls == 1


def test_health_is_answered_while_all_threads_are_busy(logs):
    async def main():
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        async with limiter, httpx.AsyncClient(transport=httpx.ASGITransport(create_app(logs))) as client:
            assert (await client.get("http://localhost/healthz", timeout=HANG_S)).status_code == 200

    asyncio.run(main())


def test_event_loop_is_imported_before_the_address_is_known(tmp_path):
    pytest.importorskip("uvloop")
    code = """if True:
        import os, sys
        from tachograph.server import serve

        def on_ready(url):
            print("uvloop" in sys.modules, flush=True)
            os._exit(0)

        serve(".", port=0, on_ready=on_ready)
    """
    # A Ctrl-C during this import can get lost, and everyone may press it once the address is printed.
    out = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True, timeout=HANG_S)
    assert out == "True\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_stops_with_open_streams(logs, dashboard, listen, number):
    write_run(logs)
    running = dashboard()
    url = f"http://127.0.0.1:{running.port}"
    for params in ({}, {"run": "r"}, {"run": "nobody"}):
        events = listen(f"{url}{LIVE}", **params)
        wait_for(lambda events=events: events.found)
    code, _, err = running.end(number)
    assert code in ({0, 130} if number == signal.SIGINT else {0, 143, -15})
    assert "Traceback" not in err
    assert err == ""


def test_command_stops_quietly_during_a_download(logs, dashboard):
    write(logs / "long", [START, *(step(i, loss=1 / (i + 1)) for i in range(100_000)), END])
    running = dashboard()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # the response does not fit into buffers
        connection.settimeout(HANG_S)
        connection.connect(("127.0.0.1", running.port))
        connection.sendall(
            f"GET /api/v1/runs/long/export?name=loss HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 200"
        code, _, err = running.end()
    assert code in {0, 130}
    assert err == ""


def test_command_prints_url_and_serves_folder(logs, dashboard):
    write_run(logs)
    running = dashboard()
    assert running.url.startswith("http://127.0.0.1:")
    assert "token" not in running.url
    found = get(f"{running.url}api/v1/runs").json()
    assert [run["name"] for run in found["runs"]] == ["r"]


def test_command_generates_and_requires_token(logs, dashboard):
    write_run(logs)
    running = dashboard("--host", "0.0.0.0")
    token = running.token
    assert len(token) >= 24
    url = f"http://127.0.0.1:{running.port}"
    check_error(get(f"{url}/api/v1/runs"), 401)
    assert get(f"{url}/api/v1/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    get(f"{url}/", params={"token": token})
    get(f"{url}/", params={"token": f"{token}x"})
    get(f"{url}/api/v1/runs/{token}", headers={"Authorization": f"Bearer {token}"})
    _, out, err = running.end()
    assert (out + err).count(token) == 1


@pytest.mark.parametrize("token", ["a&b=c#d", "100%", 'quo"te;', "+plus+"])
def test_given_token_works_as_printed(logs, dashboard, token):
    write_run(logs)
    running = dashboard(env={"TACHO_TOKEN": token})
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=HANG_S) as browser:
        check_error(browser.get("/api/v1/runs"), 401, "no_token")
        assert browser.post("/api/v1/login", json={"token": running.token}).status_code == 204
        assert browser.get("/api/v1/runs").status_code == 200, running.first_line


def test_token_is_read_from_file_or_standard_input(logs, tmp_path, dashboard):
    (tmp_path / "token").write_text("open-sesame\n")
    for options, given in ((["--token-file", str(tmp_path / "token")], None), (["--token-file", "-"], "open-sesame\n")):
        running = dashboard(*options, stdin=given)
        assert running.token == "open-sesame"
        command = Path(f"/proc/{running.process.pid}/cmdline").read_bytes()
        assert b"sesame" not in command
        check_error(get(f"http://127.0.0.1:{running.port}/api/v1/runs"), 401)


@pytest.mark.parametrize(
    ("options", "env", "expected"),
    [
        ((), {"TACHO_TOKEN": "two words"}, "invalid token"),
        ((), {"TACHO_TOKEN": "плюс"}, "invalid token"),
        ((), {"TACHO_TOKEN": "x" * 300}, "invalid token"),
        (("--token-file", os.devnull), {}, "is empty"),
        (("--token", "secret"), {}, "--token-file"),  # every user of the machine could read it
    ],
)
def test_unusable_token_is_rejected_at_startup(logs, options, env, expected):
    command = [sys.executable, "-m", "tachograph", "ui", "--log-dir", str(logs), "--port", "0", *options]
    env = {**os.environ, "COLUMNS": "300", **env}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_S, env=env)
    assert done.returncode in {1, 2}
    assert expected in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("token", ["", None])
def test_empty_token_is_replaced_by_generated_one(logs, dashboard, token):
    running = dashboard("--host", "0.0.0.0", env={} if token is None else {"TACHO_TOKEN": token})
    check_error(get(f"http://127.0.0.1:{running.port}/api/v1/runs", headers={"Authorization": "Bearer"}), 401)
    assert len(running.token) >= 24


def test_disconnecting_clients_cause_no_traceback(logs, dashboard):
    write(logs / "r", [START, *(step(i, a=float(i)) for i in range(20_000))])
    running = dashboard()
    host = "HTTP/1.1\r\nHost: localhost\r\n"
    post = f"POST /api/v1/login {host}Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"
    for request in (post, f"GET /api/v1/runs/r/export?name=a {host}\r\n", f"GET {LIVE} {host}\r\n"):
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(request.encode())
            if request != post:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert get(f"http://127.0.0.1:{running.port}/healthz").status_code == 200
    assert running.end()[2] == ""


def test_port_in_use_is_reported_in_one_line(logs, dashboard, script):
    running = dashboard()
    source = "import sys; from tachograph.cli import main; sys.argv = ['tacho', *sys.argv[1:]]; main()"
    code, _, err = script(source, "ui", "--log-dir", logs, "--port", running.port).wait()
    assert code == 1
    assert "--port" in err
    assert "Traceback" not in err


TRAINER = """
    import os, sys, time, tachograph
    run = tachograph.init("live", log_dir=sys.argv[1], git=False, system_interval_s=0, control_interval_s=0.05,
                          flush_interval_s=0.02, control_gap_s=3600)
    run.control("scale", 1.0, min=0.5, max=4.0)
    run.flush()
    print("ready", flush=True)
    for step in range(10**9):
        run.log(train_loss=1.0, step=step)
        if run.should_checkpoint:
            run.event("saved")
        if run.should_stop:
            break
        if os.path.exists(f"{sys.argv[1]}/no-gap"):  # as if the time between two changes had passed
            run.control_panel._gap_s = 0.0
        time.sleep(0.002)
    run.finish()
    """


@pytest.fixture
def trainer(logs, script):
    found = script(TRAINER, logs)
    hears(found, "ready")
    return found


def ask(client, **values):
    answer = client.post("/api/v1/runs/live/controls", json={"values": values})
    assert answer.status_code == 202, answer.text
    return answer.json()["ids"]


def answered(client, request_id, *statuses):
    """Wait for the training process to answer a request."""

    def look():
        answers = client.get("/api/v1/runs/live/controls").json()["answers"]
        return [item for item in answers if item["id"] == request_id and item["status"] in statuses]

    return wait_for(look, what=f"one of {statuses}")[0]


def test_trainer_applies_and_acknowledges_requests(logs, client, trainer):
    before = client.get("/api/v1/runs/live/controls").json()
    assert before["is_open"]
    assert {item["name"]: (item["value"], item["min"], item["max"]) for item in before["controls"]} == {
        "log_every": (1, 5, 2_000),
        "scale": (1.0, 0.5, 4.0),
    }
    first = ask(client, log_every=50)["log_every"]
    assert answered(client, first, "applied")["value"] == 50
    second = ask(client, log_every=100_000)["log_every"]
    assert answered(client, second, "pending")["wait_s"] >= 0
    (logs / "no-gap").touch()
    assert answered(client, second, "clamped")["control"] == "log_every"
    after = client.get("/api/v1/runs/live/controls").json()
    assert {item["name"]: item["value"] for item in after["controls"]}["log_every"] == 2_000
    assert [(change["old"], change["new"], change["source"]) for change in after["changes"]] == [
        (50, 2_000, "dashboard"),
        (1, 50, "dashboard"),
    ]


def test_controls_checkpoint_and_stop_reach_trainer(client, trainer):
    assert answered(client, ask(client, scale=9.0)["scale"], "clamped", "rejected")["control"] == "scale"
    ids = ask(client, checkpoint_now=True)
    answered(client, ids["checkpoint_now"], "applied")
    wait_for(
        lambda: any(item.get("name") == "saved" for item in client.get("/api/v1/runs/live/records").json()["records"])
    )
    ask(client, stop=True)
    trainer.ok()
    wait_for(lambda: client.get("/api/v1/runs/live").json()["state"] == "finished")
    assert not client.get("/api/v1/runs/live/controls").json()["is_open"]
    answer = client.post("/api/v1/runs/live/controls", json={"values": {"stop": True}})
    assert "no longer accepts requests" in check_error(answer, 409, "not_steerable")


def test_unknown_control_rejects_whole_request(logs, client, trainer):
    before = (logs / "live" / "control.json").read_bytes()
    answer = client.post("/api/v1/runs/live/controls", json={"values": {"scale": 2.0, "scala": 1.0}})
    assert "did you mean 'scale'" in check_error(answer, 409, "not_steerable")
    assert (logs / "live" / "control.json").read_bytes() == before
