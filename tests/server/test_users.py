"""Who may use the dashboard: the owner's own processes, and everyone with the token."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tachograph.server import _peer as peer
from tachograph.server import _token as token_file
from tests.conftest import HANG_S, wait_for
from tests.foreign import connect_as_nobody, nobody
from tests.server.conftest import check_error, write_run
from tests.store import START, step, write

API = ["/api/v1/runs", "/api/v1/runs/r", "/api/v1/runs/r/export?name=loss", "/api/v1/live", "/api/v1/live?run=r"]

HANG_UP = """
body = '{"values": {"stop": true}}'
head = ["POST /api/v1/runs/r/controls HTTP/1.1", "Host: localhost", "Content-Type: application/json", sys.argv[2]]
request = "\\r\\n".join([*head, f"Content-Length: {len(body)}", "", body]).encode()
become_nobody()
for _ in range(50):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.sendall(request)
"""

needs_peers = pytest.mark.skipif(not peer.is_peer_known(), reason="this system cannot name the owner of a connection")


@pytest.fixture
def state(tmp_path, monkeypatch):
    """An empty state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tachograph"


@pytest.fixture
def running(logs, state, dashboard):
    write_run(logs)
    return dashboard()


def get(port, path, **headers):
    """Request a path; read only the beginning of a live stream."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S) as client:
        with client.stream("GET", path, headers=headers) as answer:
            if answer.headers["content-type"].startswith("text/event-stream"):
                next(answer.iter_raw())
            else:
                answer.read()
            return answer


@needs_peers
def test_own_processes_need_no_token(running):
    assert "token" not in running.url
    for path in API:
        assert get(running.port, path).status_code == 200, path


@needs_peers
def test_other_users_cannot_read(running):
    with connect_as_nobody(running.port) as port:
        for path in API:
            message = check_error(get(port, path), 401, "other_user")
            assert "belongs to another user" in message
            assert "tacho ui" in message
        assert get(port, "/").status_code == 200  # the page that explains it


@needs_peers
def test_other_users_cannot_stop_a_run(logs, state, dashboard):
    folder = write(logs / "r", [START, step(0, a=1.0)])
    running = dashboard()
    body = {"values": {"stop": True}}
    with connect_as_nobody(running.port) as port:
        check_error(
            httpx.post(f"http://127.0.0.1:{port}/api/v1/runs/r/controls", json=body, timeout=HANG_S), 401, "other_user"
        )
    assert not folder.control.exists()
    own_response = httpx.post(f"http://127.0.0.1:{running.port}/api/v1/runs/r/controls", json=body, timeout=HANG_S)
    assert own_response.status_code == 202


@needs_peers
def test_other_users_cannot_stop_a_run_by_hanging_up(logs, state, dashboard):
    """The kernel reports what is left of a closed socket as root's, and the tests may run as root."""
    folder = write(logs / "r", [START, step(0, a=1.0)])
    running = dashboard()
    token = (state / "dashboard" / "token").read_text()
    for header in ("X-Nothing: 1", f"Authorization: Bearer {token}"):  # the second time the request is accepted
        assert not folder.control.exists()
        with nobody(HANG_UP, str(running.port), header) as process:
            assert process.wait(HANG_S) == 0
        get(running.port, "/api/v1/runs")  # the server has handled the requests before
    wait_for(folder.control.exists)


@needs_peers
def test_token_lets_another_user_in(running, state):
    token = (state / "dashboard" / "token").read_text()
    with connect_as_nobody(running.port) as port:
        for path in API:
            assert get(port, path, Authorization=f"Bearer {token}").status_code == 200
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S) as browser:
            check_error(browser.post("/api/v1/login", json={"token": "wrong"}), 401, "wrong_token")
            assert browser.post("/api/v1/login", json={"token": token}).status_code == 204
            assert browser.get("/api/v1/runs").status_code == 200


@needs_peers
@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Context", "X-Real-IP", "Forwarded", "Via"]
)
def test_request_through_a_proxy_needs_token(running, header):
    """The proxy may run as the owner and forward requests of anyone."""
    check_error(get(running.port, "/api/v1/runs", **{header: "127.0.0.1"}), 401, "no_token")


@needs_peers
def test_headers_cannot_change_the_user(running):
    own = socket.create_connection(("127.0.0.1", running.port))
    with own, connect_as_nobody(running.port) as port:
        address = "{}:{}".format(*own.getsockname())
        for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
            check_error(get(port, "/api/v1/runs", **{header: address}), 401)


@pytest.mark.parametrize("options", [("--host", "0.0.0.0"), ("--host", "127.0.0.1")])
def test_given_token_is_required_of_everyone(logs, state, dashboard, options):
    write_run(logs)
    running = dashboard(*options, env={"TACHO_TOKEN": "open-sesame"})
    assert running.token == "open-sesame"
    check_error(get(running.port, "/api/v1/runs"), 401, "no_token")
    assert get(running.port, "/api/v1/runs", Authorization="Bearer open-sesame").status_code == 200
    files = [path for path in state.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name == "token" or b"open-sesame" in path.read_bytes()]


def test_server_for_other_machines_needs_token(logs, state, dashboard):
    write_run(logs)
    running = dashboard("--host", "0.0.0.0")
    check_error(get(running.port, "/api/v1/runs"), 401, "no_token")
    assert get(running.port, "/api/v1/runs", Authorization=f"Bearer {running.token}").status_code == 200
    assert dashboard("--host", "0.0.0.0").token == running.token  # a restart keeps addresses valid


def test_token_stays_out_of_the_browser_command_line(logs, state, tmp_path, dashboard):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    running = dashboard("--host", "0.0.0.0", "--open", env={"BROWSER": f"{browser} %s"})
    opened = wait_for(lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text().strip())
    assert running.token not in opened
    page = Path(opened.removeprefix("file://"))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert f"#token={running.token}" in page.read_text()
    running.end()
    assert not page.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@needs_peers
def test_own_connection_is_recognised(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener, socket.create_connection(listener.getsockname()[:2]), listener.accept()[0] as accepted:
        assert peer.find_peer_uid(accepted) == os.geteuid()


@needs_peers
def test_ipv4_in_ipv6_connection_is_recognised():
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        mapped = stack.enter_context(socket.socket(socket.AF_INET6))
        try:
            mapped.connect(("::ffff:127.0.0.1", plain.getsockname()[1]))
        except OSError:
            pytest.skip("this machine has no IPv6")
        accepted = stack.enter_context(plain.accept()[0])
        assert peer.find_peer_uid(accepted) == os.geteuid()


@needs_peers
@pytest.mark.parametrize("end", ["close", "shutdown", "reset"])
def test_closed_connection_has_no_user(end):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        with listener.accept()[0] as accepted, client:
            if end == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if end == "shutdown":
                client.shutdown(socket.SHUT_WR)
            else:
                client.close()
            assert wait_for(lambda: peer.find_peer_uid(accepted) is None)


def test_token_file_is_private(state):
    token = token_file.load_token()
    path = token_file.token_path()
    assert len(token) >= 24
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert token_file.load_token() == token
    assert os.listdir(path.parent) == ["token"]


@pytest.mark.slow
def test_servers_starting_together_agree_on_token(state):
    program = "from tachograph.server._token import load_token; input(); print(load_token())"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    found = {process.communicate()[0].strip() for process in started}
    assert len(found) == 1
    assert found != {""}


@pytest.mark.parametrize("trap", ["readable", "link", "dangling link", "empty", "folder readable"])
def test_unsafe_token_file_is_replaced(state, tmp_path, trap):
    old = token_file.load_token()
    path = token_file.token_path()
    target = tmp_path / "target"
    if trap == "readable":
        path.chmod(0o644)
    elif trap == "empty":
        path.write_text("")
    elif trap == "folder readable":
        path.parent.chmod(0o755)
    else:
        path.unlink()
        path.symlink_to(target)
        if trap == "link":
            target.write_text("planted-token")
            target.chmod(0o600)
    found = token_file.load_token()
    assert (found == old) == (trap == "folder readable")
    assert found != "planted-token"
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not target.exists() or target.read_text() == "planted-token"


@pytest.mark.parametrize("owned", ["file", "folder"])
def test_files_of_another_user_are_not_used(state, owned):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can create a file of another user")
    path = token_file.token_path()
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("planted-token")
    path.chmod(0o600)
    os.chown(path if owned == "file" else path.parent, 65_534, 65_534)
    if owned == "folder":
        with pytest.raises(OSError, match="not a folder of this user"):
            token_file.load_token()
    else:
        assert token_file.load_token() != "planted-token"


def test_server_starts_without_a_place_for_the_token(logs, tmp_path, dashboard):
    write_run(logs)
    (tmp_path / "file").write_text("")
    running = dashboard(env={"XDG_STATE_HOME": str(tmp_path / "file")})
    assert len(running.token) >= 24
    check_error(get(running.port, "/api/v1/runs"), 401, "no_token")
    assert get(running.port, "/api/v1/runs", Authorization=f"Bearer {running.token}").status_code == 200
