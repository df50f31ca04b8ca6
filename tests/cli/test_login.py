"""`tacho login`, `logout` and `whoami`, against a real HTTP server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import ssl
import stat
import subprocess
import sys

import pytest

from tests.cli.test_cli import tacho
from tests.conftest import HANG_S
from tests.receiver import Receiver, Reply

TOKEN = f"tk_0123abcd_{'Canary-7_' * 4}Canary7"
OTHER_TOKEN = f"tk_89abcdef_{'Magpie-3_' * 4}Magpie3"
FACTS = {
    "name": "ci",
    "id": "0123abcd",
    "scopes": ["read", "write"],
    "project": "vision",
    "expires": 1_900_000_000.0,
    "server": "0.9.0",
}
ACCEPTED = Reply(body=json.dumps(FACTS).encode())


@pytest.fixture
def server():
    receiver = Receiver()
    receiver.reply(ACCEPTED)
    yield receiver
    receiver.close()


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return tmp_path / "config"


@pytest.fixture
def credentials(config_home):
    return config_home / "tachograph" / "credentials.json"


def run(*arguments, text="", env=()):
    """Run a command; return exit code and output. No secret may be in it."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    try:
        done = tacho(*arguments, check=False, stdin=reading, env=env)
    finally:
        os.close(reading)
    out = " ".join(re.sub("[│╭╮╰╯─]", " ", done.stdout + done.stderr).split())
    assert "Canary" not in out and "Magpie" not in out
    assert "Traceback" not in out
    return done.returncode, out


def log_in(server, token=TOKEN, *options, env=()):
    return run("login", server.address, "--key-stdin", *options, text=f"{token}\n", env=env)


def test_login_checks_and_stores_the_key(server, credentials):
    code, out = log_in(server)
    assert (code, f"logged in to {server.address} as ci (read, write; project vision)" in out) == (0, True), out
    assert str(credentials) in out
    (request,) = server.requests
    assert request.path == "/api/v1/whoami"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in request.path
    assert json.loads(credentials.read_text())["servers"] == {server.address: TOKEN}
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600


def test_prefix_of_a_proxy_is_kept(server):
    assert run("login", f"{server.address}/team/", "--key-stdin", text=TOKEN)[0] == 0
    assert server.requests[0].path == "/team/api/v1/whoami"


def test_rejected_key_is_not_stored(server, credentials):
    server.reply(Reply(status=401, body=f"no such key {TOKEN}".encode()))
    code, out = log_in(server)
    assert (code, f"{server.address} rejected the key: it is unknown, expired or revoked" in out) == (1, True), out
    assert not credentials.exists()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=404), "no Tachograph server at"),
        (Reply(body=b"<html>hello</html>"), "no Tachograph server at"),
        (Reply(body=b'{"name": "ci"}'), "no Tachograph server at"),
        (Reply(body=b"[" * 60_000), "no Tachograph server at"),
        (Reply(status=502, body=f"bad gateway {TOKEN}".encode()), "HTTP 502: bad gateway [masked]. To store the key"),
        (Reply(status=429), "HTTP 429"),
        (Reply(is_dropped=True), "cannot connect"),
    ],
    ids=["404", "page", "half", "deep", "502", "429", "dropped"],
)
def test_unusable_answers_are_told_apart(server, credentials, reply, message):
    server.reply(reply)
    code, out = log_in(server)
    assert (code, message in out) == (1, True), out
    assert not credentials.exists()


def test_unreachable_server_suggests_no_check(server, credentials):
    server.close()
    code, out = log_in(server)
    assert (code, "add --no-check" in out) == (1, True), out
    code, out = log_in(server, TOKEN, "--no-check")
    assert (code, "logged in" in out) == (0, True), out
    assert TOKEN in credentials.read_text()


def test_redirect_to_another_host_gets_no_key(server, credentials):
    other = Receiver()
    other.reply(ACCEPTED)
    server.reply(Reply(status=307, headers={"Location": f"{other.address}/api/v1/whoami"}))
    code, out = log_in(server)
    other.close()
    assert (code, "redirected to another address" in out, other.requests) == (1, True, []), out
    assert not credentials.exists()


def test_key_as_an_argument_is_refused_and_not_shown(server, credentials):
    for arguments in ((server.address, TOKEN), (server.address, "--key", TOKEN), (server.address, f"--key={TOKEN}")):
        code, out = run("login", *arguments)
        assert (code, "a key cannot be an argument" in out) == (2, True), out
    code, out = run("login", TOKEN)
    assert (code, "the address of the server" in out) == (1, True), out
    assert (server.requests, credentials.exists()) == ([], False)


@pytest.mark.parametrize("text", ["", "hunter2", TOKEN[:-1], f"{TOKEN}{TOKEN}", f"{TOKEN}\n{OTHER_TOKEN}"])
def test_text_that_is_no_key_is_refused(server, text):
    code, out = run("login", server.address, "--key-stdin", text=text)
    assert (code, "the key in the standard input is" in out, "hunter2" in out) == (1, True, False), out
    assert server.requests == []


def test_login_without_a_terminal_needs_key_stdin(server):
    code, out = run("login", server.address, text=TOKEN)
    assert (code, "add --key-stdin" in out, server.requests) == (2, True, [])


@pytest.mark.parametrize("options", [[], ["--key-stdin"]])
def test_terminal_does_not_show_the_key(server, credentials, options):
    terminal, child_side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tachograph", "login", server.address, *options],
        stdin=child_side, stdout=child_side, stderr=child_side, start_new_session=True,
    )  # fmt: skip
    os.close(child_side)
    shown = b""
    with open(terminal, "rb", buffering=0) as screen:
        while b"Access key for" not in shown:  # the echo is off from here on
            assert select.select([screen], [], [], HANG_S)[0], f"no prompt: {shown!r}"
            shown += screen.read(4096)
        os.write(terminal, f"{TOKEN}\n".encode())
        with contextlib.suppress(OSError):  # the other side is closed
            while part := screen.read(4096):
                shown += part
        assert process.wait(HANG_S) == 0, shown
    assert b"logged in" in shown
    assert b"Canary" not in shown
    assert TOKEN in credentials.read_text()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("tacho.example.org", "not complete; expected one like https://"),
        ("http://tacho.example.org", "not encrypted"),
        ("https://me:pw@tacho.example.org", "user name or a password"),
    ],
)
def test_wrong_address_is_named(url, message):
    code, out = run("login", url, "--key-stdin", text=TOKEN)
    assert (code, message in out) == (1, True), out


def test_plain_http_goes_through_the_proxy_if_allowed(server):
    proxy = {"http_proxy": server.address}
    url = "http://tacho.example.org"
    code, out = run("login", url, "--key-stdin", "--allow-plain-http", text=TOKEN, env=proxy)
    assert (code, server.requests[0].path) == (0, f"{url}/api/v1/whoami"), out
    assert run("whoami", url, env=proxy)[0] == 0  # allowed by the login
    code, out = run("whoami", "http://other.example.org", env={**proxy, "TACHO_API_KEY": TOKEN})
    assert (code, "not encrypted" in out, len(server.requests)) == (1, True, 2), out
    allowed = {**proxy, "TACHO_API_KEY": TOKEN, "TACHO_ALLOW_PLAIN_HTTP": "1"}
    assert run("whoami", "http://other.example.org", env=allowed)[0] == 0


def test_certificate_of_an_own_authority_is_accepted(tmp_path, server):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.address.replace("http:", "https:")
    code, out = run("login", url, "--key-stdin", text=TOKEN)
    assert (code, "certificate is not trusted" in out, server.requests) == (1, True, []), out
    code, out = run("login", url, "--key-stdin", text=TOKEN, env={"SSL_CERT_FILE": str(certificate)})
    assert (code, len(server.requests)) == (0, 1), out


def test_whoami_shows_the_key(server, credentials):
    log_in(server)
    code, out = run("whoami")
    assert code == 0
    for expected in (f"server {server.address} (version 0.9.0)", "name ci", f"key id 0123abcd, from {credentials}",
                     "scopes read, write", "project vision", "expires 2030-03-17"):  # fmt: skip
        assert expected in out, out
    code, out = run("whoami", server.address, "--json")
    assert json.loads(out) == {"url": server.address, "source": str(credentials), **FACTS}


def test_variable_is_used_before_the_stored_key(server):
    code, out = log_in(server, env={"TACHO_API_KEY": OTHER_TOKEN})
    assert (code, "TACHO_API_KEY is set and has precedence" in out) == (0, True), out
    assert server.requests[-1].headers["Authorization"] == f"Bearer {TOKEN}"  # the one that was given is checked
    code, out = run("whoami", env={"TACHO_API_KEY": OTHER_TOKEN})
    assert (code, "from TACHO_API_KEY" in out) == (0, True), out
    assert server.requests[-1].headers["Authorization"] == f"Bearer {OTHER_TOKEN}"
    code, out = run("whoami", env={"TACHO_API_KEY": "hunter2"})
    assert (code, "TACHO_API_KEY is not an access key" in out, "hunter2" in out) == (1, True, False), out


def test_logout_removes_the_key(server, credentials):
    log_in(server)
    code, out = run("logout")
    assert (code, f"logged out of {server.address}" in out, TOKEN in credentials.read_text()) == (0, True, False)
    code, out = run("logout", server.address)
    assert (code, f"no key is stored for {server.address}" in out) == (1, True)
    code, out = run("whoami", server.address)
    assert (code, f"run tacho login {server.address}" in out) == (1, True)


def test_several_servers_must_be_named(server):
    log_in(server)
    run("login", "https://tacho.example.org", "--key-stdin", "--no-check", text=OTHER_TOKEN)
    for command in ("whoami", "logout"):
        code, out = run(command)
        assert (code, server.address in out, "https://tacho.example.org" in out) == (2, True, True), out
    assert run("whoami", server.address)[0] == 0
    assert run("logout", "https://tacho.example.org/")[0] == 0


def test_answer_of_the_server_cannot_drive_the_terminal(server):
    server.reply(Reply(body=json.dumps({**FACTS, "name": "\x1b[31mred[bold]", "scopes": ["\x07"] * 1000}).encode()))
    reading = os.open(os.devnull, os.O_RDONLY)
    done = tacho("whoami", server.address, check=False, stdin=reading, env={"TACHO_API_KEY": TOKEN})
    os.close(reading)
    assert done.returncode == 0, done.stderr
    assert "\\x1b[31mred[bold]" in done.stdout
    assert not {"\x1b", "\x07"} & set(done.stdout)
