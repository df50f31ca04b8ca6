"""Who may ask for what: hosts, origins, tokens, paths and sizes."""

from __future__ import annotations

import contextlib
import json
import socket
from urllib.parse import quote

import httpx
import pytest

from tachograph.server import Access
from tests.server.conftest import TOKEN, Served, fault, write_run
from tests.store import START, step, write

JSON = {"Content-Type": "application/json"}
POST = "\r\n".join(
    [
        "POST /api/v1/login HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Content-Length: {length}",
        "",
        "",
    ]
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that others can reach, and so asks for the token."""
    logs = tmp_path_factory.mktemp("guarded")
    write_run(logs)
    server = Served(logs, Access(token=TOKEN, hosts=("dashboard.example",)))
    yield server
    server.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    logs = tmp_path_factory.mktemp("local")
    write_run(logs)
    server = Served(logs)
    yield server
    server.close()


def is_safe(headers):
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "access-control-allow-origin" not in headers
    assert "cache-control" in headers


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:{port}", "localhost", "LOCALHOST:{port}", "[::1]:1", "127.8.9.1"]
)
def test_a_host_that_is_this_machine_is_answered(local, host):
    answer = local.client.get("/api/v1/runs", headers={"Host": host.format(port=local.port)})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "evil@127.0.0.1", "",
     " ", "0.0.0.0", "10.0.0.1", "192.168.0.1:{port}", "[::]", "[fe80::1]", "2130706433", "0x7f000001", "127.1",
     "localhost.", "localhost:", "localhost:port", "127.0.0.1:80:80", "[::1", "::1", "local host", "localhost/../evil",
     "[::1]x", "dashboard.example", "localhost\\evil", "loca\u00aelhost"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/v1/runs", "/", "/healthz"])
def test_any_other_host_is_not_answered(local, host, path):
    status, headers, body = local.raw(
        f"GET {path} HTTP/1.1\r\nHost: {host.format(port=local.port)}\r\nConnection: close\r\n\r\n".encode("latin-1")
    )
    assert status in {400, 421}
    assert b'"runs"' not in body
    if status == 421:
        is_safe(headers)
        assert json.loads(body)["error"]["code"] == "unknown_host"


def test_a_request_without_a_host_is_not_answered(local):
    status, _, body = local.raw(b"GET /api/v1/runs HTTP/1.0\r\n\r\n")
    assert status == 421
    assert b'"runs"' not in body


def test_names_of_a_server_that_others_can_reach(guarded):
    for host in ("dashboard.example", "DASHBOARD.example:9", socket.gethostname(), "10.1.2.3", "localhost"):
        assert guarded.client.get("/healthz", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "dashboard.example.evil.example"):
        fault(guarded.client.get("/healthz", headers={"Host": host}), 421, "unknown_host")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"Origin": "http://{host}"}, 202),
        ({"Origin": "http://{host}", "Sec-Fetch-Site": "same-origin"}, 202),
        ({"Sec-Fetch-Site": "same-origin"}, 202),
        ({"Sec-Fetch-Site": "none"}, 202),
        ({"Content-Type": "application/json; charset=utf-8"}, 202),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "file://{host}"}, 403),
        ({"Origin": "http://{host}.evil.example"}, 403),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({"Content-Type": "text/plain; application/json"}, 415),
    ],
)
def test_only_our_own_pages_may_change_something(local, tmp_path, headers, status):
    given = {name: value.format(host=f"127.0.0.1:{local.port}", port=local.port) for name, value in headers.items()}
    answer = local.client.post("/api/v1/login", content=b'{"token": ""}', headers={**JSON, **given})
    assert answer.status_code == (204 if status == 202 else status)
    is_safe(answer.headers)
    answer = local.client.post(
        "/api/v1/runs/r/controls", content=b'{"values": {"stop": true}}', headers={**JSON, **given}
    )
    fault(answer, 409 if status == 202 else status)  # the run has ended


def test_a_page_elsewhere_changes_no_file(logs, serve):
    folder = write(logs / "r", [START, step(0, a=1.0)])
    server = serve(logs)
    answer = server.client.post(
        "/api/v1/runs/r/controls", json={"values": {"stop": True}}, headers={"Origin": "http://evil.example"}
    )
    fault(answer, 403, "wrong_origin")
    assert not folder.control.exists()
    assert server.client.post("/api/v1/runs/r/controls", json={"values": {"stop": True}}).status_code == 202
    assert folder.control.exists()


API = [
    "/api/v1/runs",
    "/api/v1/runs/r",
    "/api/v1/runs/r/series?name=loss",
    "/api/v1/runs/r/export?name=loss",
    "/api/v1/live",
    "/api/v1/x",
]


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}, {"Authorization": f"Basic {TOKEN}"},
     {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Bearer {TOKEN[:-1]}"},
     {"Cookie": "tacho_token_0="}, {"Cookie": "tacho_token_0=wrong"}, {"Cookie": f"tacho_token_1={TOKEN}"},
     {"Cookie": f"token={TOKEN}"}, {"Cookie": ";;;=;"}, {"Authorization": "Bearer ключ".encode()},
     {"Authorization": b"Bearer \xff\xfe"}, {"Cookie": "tacho_token_0=ключ".encode()}],
)  # fmt: skip
def test_without_the_token_nothing_is_told(guarded, path, headers):
    answer = guarded.client.get(path, headers=headers)
    fault(answer, 401, "no_token")
    is_safe(answer.headers)
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": f"Bearer {TOKEN}"}, {"authorization": f"bearer  {TOKEN}"}, {"Cookie": f"tacho_token_0={TOKEN}"},
     {"Cookie": f"a=b; tacho_token_0={TOKEN}; c=d"}, {"Cookie": "tacho_token_0=x", "Authorization": f"Bearer {TOKEN}"}],
)  # fmt: skip
def test_with_the_token_all_is_told(guarded, headers):
    assert guarded.client.get("/api/v1/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("other", ['x={"a": [1]}', "a b=1", "ж=1", "x", "=", 'x="', "x=a,b", "x=[1]"])
def test_cookies_of_others_on_this_machine_do_not_lock_one_out(guarded, other):
    """Cookies know no ports: those of every other tool on localhost come along."""
    for cookie in (f"{other}; tacho_token_0={TOKEN}", f"tacho_token_0={TOKEN}; {other}"):
        assert guarded.client.get("/api/v1/runs", headers={"Cookie": cookie.encode()}).status_code == 200


def test_a_token_in_the_address_of_the_api_is_no_token(guarded):
    fault(guarded.client.get(f"/api/v1/runs?token={TOKEN}"), 401)


@pytest.mark.parametrize("path", ["/", "/index.html", "/healthz", "/api/v1/openapi.json", "/favicon.svg"])
def test_files_are_there_without_the_token(guarded, path):
    answer = guarded.client.get(path)
    assert answer.status_code == 200 or (path == "/favicon.svg" and answer.status_code == 404)  # not built
    is_safe(answer.headers)
    assert "0123" not in answer.text  # nothing of the run


def test_the_printed_address_lets_a_browser_in(guarded):
    with httpx.Client(base_url=guarded.url) as browser:
        answer = browser.get("/", params={"token": TOKEN, "run": "a b"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/?run=a+b")
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        assert "path=/" in flags
        assert "domain" not in flags
        is_safe(answer.headers)
        assert browser.get("/api/v1/runs").status_code == 200
    with httpx.Client(base_url=guarded.url) as stranger:
        for wrong in ("wrong", "", "ж", "%00", TOKEN.upper()):
            answer = stranger.get("/", params={"token": wrong})
            assert "set-cookie" not in answer.headers
        fault(stranger.get("/api/v1/runs"), 401)


def test_logging_in_with_the_token(guarded):
    with httpx.Client(base_url=guarded.url) as browser:
        for wrong in ("wrong", "", "ключ", TOKEN[:-1]):
            answer = browser.post("/api/v1/login", json={"token": wrong})
            fault(answer, 401, "wrong_token")
            assert "set-cookie" not in answer.headers
        fault(browser.post("/api/v1/login", json={"token": 5}), 400, "bad_body")
        fault(browser.post("/api/v1/login", json={"token": TOKEN}, headers={"Origin": "http://evil.example"}), 403)
        answer = browser.post("/api/v1/login", json={"token": TOKEN})
        assert answer.status_code == 204
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert browser.get("/api/v1/runs").status_code == 200


OUTSIDE = [
    "..", "../outside", "..%2foutside", "%2e%2e%2foutside", "%2e%2e/outside", "..%5coutside", "%252e%252e%252foutside",
    "/etc", "%2fetc", "//etc", "%00", "r%00", ".", "%2e", "r%2f..%2f..%2foutside", "%c0%ae%c0%ae", "%e2%80%a4%e2%80%a4",
    "link", "r/../../outside", "%ff", "~",
]  # fmt: skip


def test_no_path_of_a_request_leads_out_of_the_log_folder(tmp_path, serve):
    write(tmp_path / "outside", [START, step(0, secret=1.0)])
    write(tmp_path / "metrics", [START, step(0, secret=1.0)])
    write_run(tmp_path / "logs")
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "outside")
    server = serve(tmp_path / "logs")
    for name in OUTSIDE:
        for rest in ("", "/metrics", "/series?name=secret", "/export?name=secret", "/records"):
            status, headers, body = server.get_raw(f"/api/v1/runs/{name}{rest}")
            assert status in {400, 404}, (name, rest, body)
            assert b"secret" not in body.replace(b"'secret'", b"")
            if status == 404:
                is_safe(headers)
                assert json.loads(body)["error"]["code"] in {"no_such_run", "not_found"}


def test_no_path_of_a_request_leads_out_of_the_static_folder(tmp_path, serve):
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("the page")
    (static / "assets" / "a.js").write_text("script")
    (static / ".stamp").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    server = serve(tmp_path, static=static)
    assert server.client.get("/assets/a.js").text == "script"
    absolute = tmp_path / "secret.txt"
    for path in (
        "/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/assets/../../secret.txt",
        "/assets/..%5c..%5csecret.txt", f"/{quote(str(absolute), safe='')}", f"/{absolute}", "/.stamp",
        "/%2estamp", "/assets/", "/assets", "//etc/passwd", "/secret.txt%00.js", "/assets/%2e%2e/.stamp",
    ):  # fmt: skip
        status, headers, body = server.get_raw(path)
        assert status == 404, path
        assert b"root:" not in body
        assert body.count(b"secret") <= path.count("secret")
        is_safe(headers)


def test_asking_a_hostile_run_for_something_changes_no_file_elsewhere(tmp_path, serve):
    precious = tmp_path / "precious"
    precious.write_text("of somebody else")
    folder = write(tmp_path / "logs" / "r", [START, step(0, a=1.0)])
    folder.private.mkdir()
    for name in ("control.lock", "heartbeat.json"):
        (folder.private / name).symlink_to(precious)
    folder.control.symlink_to(precious)
    client = serve(tmp_path / "logs").client
    client.post("/api/v1/runs/r/controls", json={"values": {"stop": True}})
    client.get("/api/v1/runs")
    assert precious.read_text() == "of somebody else"


@pytest.mark.parametrize("length", [65_537, 10**9, 10**30, -1, "x", ""])
def test_a_body_that_says_it_is_too_long_is_not_read(local, length):
    assert local.raw(POST.format(length=length).encode())[0] in {400, 413}


def test_a_body_in_chunks_is_limited_too(local):
    def chunks():
        yield b'{"token": "'
        for _ in range(200):
            yield b"x" * 1_000
        yield b'"}'

    with contextlib.suppress(httpx.WriteError):  # the server may close before all is sent
        answer = local.client.post("/api/v1/login", content=chunks(), headers=JSON)
        fault(answer, 413, "too_large")
        is_safe(answer.headers)
    assert local.client.get("/healthz").status_code == 200


def test_a_body_just_small_enough_is_read(local):
    body = b'{"token": "x"}' + b" " * (65_536 - 14)
    assert local.client.post("/api/v1/login", content=body, headers=JSON).status_code == 204


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/healthz",
        "/api/v1/runs",
        "/api/v1/runs/r/export?name=loss",
        "/nothing",
        "/api/v1/runs/x",
        "/api/v1/openapi.json",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_every_answer_bears_the_headers(local, method, path):
    is_safe(local.client.request(method, path).headers)


def test_a_fault_of_the_server_itself_has_the_shape_and_the_headers(tmp_path, serve):
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "assets" / "a.js").write_text("script")
    server = serve(tmp_path, static=static)
    assert server.client.get("/assets/a.js").status_code == 200
    (static / "assets" / "a.js").unlink()  # a new build of the dashboard takes away the old one's files
    answers = [server.client.get("/assets/a.js")]
    server.client.close()
    answers.append(httpx.get(f"{server.url}/api/v1/runs", params=[("x", "1")] * 600))  # more than is taken apart
    for answer in answers:
        assert "Traceback" not in fault(answer, answer.status_code)
        is_safe(answer.headers)


def test_a_live_stream_bears_the_headers(local):
    with local.client.stream("GET", "/api/v1/live") as answer:
        is_safe(answer.headers)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"].startswith("text/event-stream")
