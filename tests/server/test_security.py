"""The access gate: hosts, origins, tokens, paths and body sizes."""

from __future__ import annotations

import contextlib
import json
import socket
from urllib.parse import quote

import httpx
import pytest
from starlette.testclient import TestClient

from tachograph.server import Access, create_app
from tests.conftest import HANG_S
from tests.server.conftest import TOKEN, Served, check_error, write_run
from tests.store import START, step, write

JSON = {"Content-Type": "application/json"}
COOKIE = Access(TOKEN).cookie_value
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
    """A server that other machines can reach, and therefore has a token."""
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


def check_headers(headers):
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
def test_local_hosts_are_accepted(local, host):
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
def test_other_hosts_are_rejected(local, host, path):
    status, headers, body = local.raw(
        f"GET {path} HTTP/1.1\r\nHost: {host.format(port=local.port)}\r\nConnection: close\r\n\r\n".encode("latin-1")
    )
    assert status in {400, 421}
    assert b'"runs"' not in body
    if status == 421:
        check_headers(headers)
        assert json.loads(body)["error"]["code"] == "unknown_host"


def test_request_without_host_is_rejected(local):
    status, _, body = local.raw(b"GET /api/v1/runs HTTP/1.0\r\n\r\n")
    assert status == 421
    assert b'"runs"' not in body


def test_hosts_of_a_server_with_token(guarded):
    for host in ("dashboard.example", "DASHBOARD.example:9", socket.gethostname(), "10.1.2.3", "localhost"):
        assert guarded.client.get("/healthz", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "dashboard.example.evil.example"):
        check_error(guarded.client.get("/healthz", headers={"Host": host}), 421, "unknown_host")


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
def test_only_own_pages_can_change_state(local, tmp_path, headers, status):
    given = {name: value.format(host=f"127.0.0.1:{local.port}", port=local.port) for name, value in headers.items()}
    answer = local.client.post("/api/v1/login", content=b'{"token": ""}', headers={**JSON, **given})
    assert answer.status_code == (204 if status == 202 else status)
    check_headers(answer.headers)
    answer = local.client.post(
        "/api/v1/runs/r/controls", content=b'{"values": {"stop": true}}', headers={**JSON, **given}
    )
    check_error(answer, 409 if status == 202 else status)  # the run has ended


def test_foreign_page_changes_no_file(logs, serve):
    folder = write(logs / "r", [START, step(0, a=1.0)])
    server = serve(logs)
    answer = server.client.post(
        "/api/v1/runs/r/controls", json={"values": {"stop": True}}, headers={"Origin": "http://evil.example"}
    )
    check_error(answer, 403, "wrong_origin")
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
     {"Cookie": "tacho_token_0="}, {"Cookie": "tacho_token_0=wrong"}, {"Cookie": f"tacho_token_1={COOKIE}"},
     {"Cookie": f"tacho_token_0={TOKEN}"}, {"Cookie": f"tacho_token_0={Access(TOKEN, port=1).cookie_value}"},
     {"Cookie": f"token={TOKEN}"}, {"Cookie": ";;;=;"}, {"Authorization": "Bearer ключ".encode()},
     {"Authorization": b"Bearer \xff\xfe"}, {"Cookie": "tacho_token_0=ключ".encode()}],
)  # fmt: skip
def test_api_requires_token(guarded, path, headers):
    answer = guarded.client.get(path, headers=headers)
    check_error(answer, 401, "no_token")
    check_headers(answer.headers)
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": f"Bearer {TOKEN}"}, {"authorization": f"bearer  {TOKEN}"}, {"Cookie": f"tacho_token_0={COOKIE}"},
     {"Cookie": f"a=b; tacho_token_0={COOKIE}; c=d"},
     {"Cookie": "tacho_token_0=x", "Authorization": f"Bearer {TOKEN}"}],
)  # fmt: skip
def test_token_grants_access(guarded, headers):
    assert guarded.client.get("/api/v1/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("other", ['x={"a": [1]}', "a b=1", "ж=1", "x", "=", 'x="', "x=a,b", "x=[1]"])
def test_foreign_cookies_do_not_break_login(guarded, other):
    """Cookies ignore ports: the browser also sends the cookies of every other tool on localhost."""
    for cookie in (f"{other}; tacho_token_0={COOKIE}", f"tacho_token_0={COOKIE}; {other}"):
        assert guarded.client.get("/api/v1/runs", headers={"Cookie": cookie.encode()}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/v1/runs"])
def test_token_in_query_is_ignored(guarded, path):
    """A query ends up in histories and logs of proxies."""
    answer = guarded.client.get(path, params={"token": TOKEN})
    assert answer.status_code == (401 if path.startswith("/api") else 200)
    assert "set-cookie" not in answer.headers


def test_cookie_does_not_reveal_token(guarded):
    """Cookies ignore ports: a browser sends them to every server on this host, whoever runs it."""
    answer = guarded.client.post("/api/v1/login", json={"token": TOKEN})
    assert TOKEN not in answer.headers["set-cookie"]
    cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
    check_error(
        httpx.get(f"{guarded.url}/api/v1/runs", headers={"Authorization": f"Bearer {cookie}"}, timeout=HANG_S), 401
    )


@pytest.mark.parametrize("path", ["/", "/index.html", "/healthz", "/api/v1/openapi.json", "/favicon.svg"])
def test_static_files_need_no_token(guarded, path):
    answer = guarded.client.get(path)
    assert answer.status_code == 200 or (path == "/favicon.svg" and answer.status_code == 404)  # not built
    check_headers(answer.headers)
    assert "0123" not in answer.text  # no data of the run


def test_login_sets_cookie_for_correct_token(guarded):
    with httpx.Client(base_url=guarded.url, timeout=HANG_S) as browser:
        for wrong in ("wrong", "", "ключ", TOKEN[:-1]):
            answer = browser.post("/api/v1/login", json={"token": wrong})
            check_error(answer, 401, "wrong_token")
            assert "set-cookie" not in answer.headers
        check_error(browser.post("/api/v1/login", json={"token": 5}), 400, "bad_body")
        foreign = {"Origin": "http://evil.example"}
        check_error(browser.post("/api/v1/login", json={"token": TOKEN}, headers=foreign), 403)
        answer = browser.post("/api/v1/login", json={"token": TOKEN})
        assert answer.status_code == 204
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        assert "path=/" in flags
        assert "domain" not in flags
        check_headers(answer.headers)
        assert browser.get("/api/v1/runs").status_code == 200


def test_logout_removes_cookie(guarded):
    with httpx.Client(base_url=guarded.url, timeout=HANG_S) as browser:
        assert browser.get("/api/v1/login").json() == {"needs": "token"}
        browser.post("/api/v1/login", json={"token": TOKEN})
        assert browser.get("/api/v1/runs").status_code == 200
        check_error(browser.post("/api/v1/logout", json={}, headers={"Origin": "http://evil.example"}), 403)
        assert browser.get("/api/v1/runs").status_code == 200
        assert browser.post("/api/v1/logout", json={}).status_code == 204
        check_error(browser.get("/api/v1/runs"), 401)


OUTSIDE = [
    "..", "../outside", "..%2foutside", "%2e%2e%2foutside", "%2e%2e/outside", "..%5coutside", "%252e%252e%252foutside",
    "/etc", "%2fetc", "//etc", "%00", "r%00", ".", "%2e", "r%2f..%2f..%2foutside", "%c0%ae%c0%ae", "%e2%80%a4%e2%80%a4",
    "link", "r/../../outside", "%ff", "~",
]  # fmt: skip


def test_run_names_cannot_escape_log_folder(tmp_path, serve):
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
                check_headers(headers)
                assert json.loads(body)["error"]["code"] in {"no_such_run", "not_found"}


def test_paths_cannot_escape_static_folder(tmp_path, serve):
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
        check_headers(headers)


def test_request_does_not_follow_links_out_of_run(tmp_path, serve):
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    folder = write(tmp_path / "logs" / "r", [START, step(0, a=1.0)])
    folder.private.mkdir()
    for name in ("control.lock", "heartbeat.json"):
        (folder.private / name).symlink_to(precious)
    folder.control.symlink_to(precious)
    client = serve(tmp_path / "logs").client
    client.post("/api/v1/runs/r/controls", json={"values": {"stop": True}})
    client.get("/api/v1/runs")
    assert precious.read_text() == "untouched"


@pytest.mark.parametrize("length", [65_537, 10**9, 10**30, -1, "x", ""])
def test_oversized_content_length_is_rejected(local, length):
    assert local.raw(POST.format(length=length).encode())[0] in {400, 413}


def test_chunked_body_is_limited(local):
    def chunks():
        yield b'{"token": "'
        for _ in range(200):
            yield b"x" * 1_000
        yield b'"}'

    with contextlib.suppress(httpx.WriteError):  # the server may close the connection early
        answer = local.client.post("/api/v1/login", content=chunks(), headers=JSON)
        check_error(answer, 413, "too_large")
        check_headers(answer.headers)
    assert local.client.get("/healthz").status_code == 200


def test_body_at_size_limit_is_accepted(local):
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
def test_every_response_has_security_headers(local, method, path):
    check_headers(local.client.request(method, path).headers)


def test_scripts_are_sent_compressed_to_browsers(tmp_path, serve):
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    script = "script " * 10_000
    (static / "assets" / "a.js").write_text(script)
    server = serve(tmp_path, static=static)
    answers = {
        encoding: httpx.get(f"{server.url}/assets/a.js", headers={"Accept-Encoding": encoding}, timeout=HANG_S)
        for encoding in ("gzip, deflate, br, zstd", "identity")
    }
    assert [answer.text == script for answer in answers.values()] == [True, True]
    assert [answer.headers.get("content-encoding") for answer in answers.values()] == ["gzip", None]
    sizes = [int(answer.headers["content-length"]) for answer in answers.values()]
    assert sizes[0] < sizes[1] / 10
    assert len({answer.headers["etag"] for answer in answers.values()}) == 2
    assert {answer.headers["vary"] for answer in answers.values()} == {"Accept-Encoding"}


@pytest.mark.parametrize(("address", "encoding"), [("10.0.0.7", "gzip"), ("127.0.0.1", None)])
def test_long_answers_are_compressed_for_other_machines(tmp_path, address, encoding):
    write(tmp_path / "r", [START, *(step(at, loss=at / 7) for at in range(2_000))])
    app = create_app(tmp_path, Access(TOKEN, hosts=("dashboard.example",)))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://dashboard.example", headers=headers, client=(address, 5_000)) as client:
        answer = client.get("/api/v1/runs/r/series?name=loss")
        assert (answer.status_code, answer.headers.get("content-encoding")) == (200, encoding)
        assert len(answer.json()["series"][0]["lines"][0]["x"]) == 2_000
        assert (int(answer.headers["content-length"]) < len(answer.content) / 2) == (encoding is not None)
        assert answer.headers["vary"] == "Accept-Encoding"
        tag = {"If-None-Match": answer.headers["etag"]}
        assert client.get("/api/v1/runs/r/series?name=loss", headers=tag).status_code == 304
        plain = client.get("/api/v1/runs/r/series?name=loss", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content
        assert "content-encoding" not in client.get("/api/v1/runs/r").headers  # short


def test_server_errors_have_error_body_and_headers(tmp_path, serve):
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "assets" / "a.js").write_text("script")
    server = serve(tmp_path, static=static)
    assert server.client.get("/assets/a.js").status_code == 200
    (static / "assets" / "a.js").unlink()  # a rebuild of the dashboard removes the old files
    answers = [server.client.get("/assets/a.js")]
    server.client.close()
    answers.append(
        httpx.get(f"{server.url}/api/v1/runs", params=[("x", "1")] * 600, timeout=HANG_S)
    )  # above the limit of parameters
    for answer in answers:
        assert "Traceback" not in check_error(answer, answer.status_code)
        check_headers(answer.headers)


def test_live_stream_has_security_headers(local):
    with local.client.stream("GET", "/api/v1/live") as answer:
        check_headers(answer.headers)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"].startswith("text/event-stream")
