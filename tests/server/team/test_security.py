"""A team's server as an attacker sees it: keys, cookies, projects, paths, bodies, and secrets."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from tachograph.journal import RunFolder
from tachograph.server._routes import ROUTES
from tachograph.server.team import KeyRing, ProxyTrust
from tachograph.server.team._access import TeamAccess
from tests.conftest import HANG_S, Script, read_files, wait_for
from tests.remote.conftest import Team, send_all
from tests.store import START, step, write

RUN = "alpha%2Fhidden"
VIEW = {"name": "mine", "filter": "loss > 0"}
ARTIFACT = {"version": {"name": "..", "version": "v0", "digest": ""}, "time": 1.0}
NOTE = {"changes": [{"field": "note", "value": "hello"}]}


class Row(NamedTuple):
    """A request, the scope that it needs, and the status that it gets with it."""

    request: str
    scope: str
    """A scope; `open` if nothing is needed, `any` if any valid key will do."""
    status: int = 200
    elsewhere: int = 200
    """The status for a key with all scopes in another project."""
    body: Any = None
    route: str = ""
    """The route, if it differs from the request without its query."""


TABLE = [
    Row("GET /healthz", "open"),
    Row("GET /readyz", "open"),
    Row("GET /metrics", "read", elsewhere=403),
    Row("GET /api/v1/openapi.json", "open"),
    Row("POST /api/v1/login", "open", 401, 401, {"token": "wrong"}),
    Row("GET /help/", "open", route="GET /help/{page:path}"),
    Row("GET /help", "open", 307, 307),
    Row("GET /", "open", route="GET /{path:path}"),
    Row("GET /nothing", "open", 404, 404, route="GET /{path:path}"),
    Row("GET /api/v1/nothing", "read", 404, 404, route="GET /{path:path}"),
    Row("GET /api/v1/live", "read"),
    Row("GET /api/v1/whoami", "any"),
    Row("GET /api/v1/runs", "read"),
    Row(f"GET /api/v1/runs/{RUN}", "read", 200, 404, route="GET /api/v1/runs/{run}"),
    *(
        Row(f"GET /api/v1/runs/{RUN}/{part}", "read", status, 404, route=f"GET /api/v1/runs/{{run}}/{route}")
        for part, status, route in [
            ("lineage", 200, "lineage"),
            ("metrics", 200, "metrics"),
            ("series?name=loss", 200, "series"),
            ("export?name=loss", 200, "export"),
            ("spans", 200, "spans"),
            ("spans/00", 404, "spans/{span}"),
            ("records", 200, "records"),
            ("alerts", 200, "alerts"),
            ("dumps", 200, "dumps"),
            ("dumps/1-hang", 404, "dumps/{dump}"),
            ("completions", 200, "completions"),
            ("controls", 200, "controls"),
            (f"diff/{RUN}", 200, "diff/{other}"),
            ("patch", 404, "patch"),
            ("ranks", 200, "ranks"),
            ("ranks/heat", 200, "ranks/heat"),
            ("traces", 200, "traces"),
            ("traces/step-1.json.gz", 404, "traces/{trace}"),
            ("media", 200, "media"),
            ("media/items?name=x", 200, "media/items"),
            ("media/metric?name=x&metric=y", 200, "media/metric"),
            ("media/export?name=x", 404, "media/export"),
            ("media/histograms?name=x", 404, "media/histograms"),
            (f"media/tables/{'0' * 64}", 404, "media/tables/{sha256}"),
            (f"media/blobs/{'0' * 64}", 404, "media/blobs/{sha256}"),
            (f"media/frames/{'0' * 64}", 404, "media/frames/{sha256}"),
            ("output", 200, "output"),
            ("output/text", 200, "output/text"),
            ("annotations", 200, "annotations"),
        ]
    ),
    Row(f"GET /api/v1/metrics?run={RUN}", "read"),
    Row(f"GET /api/v1/series?run={RUN}&name=loss", "read"),
    Row(f"GET /api/v1/series/groups?run={RUN}&name=loss&by=config", "read"),
    Row(f"GET /api/v1/compare?run={RUN}&against={RUN}", "read", 200, 404),
    Row("GET /api/v1/table", "read"),
    Row("GET /api/v1/table.csv", "read"),
    Row("GET /api/v1/table/groups?by=config", "read"),
    Row("GET /api/v1/table/fields", "read"),
    Row(f"GET /api/v1/diff?run={RUN}", "read", 200, 404),
    Row(f"GET /api/v1/importance?run={RUN}", "read", 200, 404),
    Row("GET /api/v1/artifacts", "read"),
    Row("GET /api/v1/artifacts/nothing", "read", 404, 404, route="GET /api/v1/artifacts/{name}"),
    Row(
        f"GET /api/v1/artifacts/nothing/files/{'0' * 64}?version=v0",
        "read",
        404,
        404,
        route="GET /api/v1/artifacts/{name}/files/{sha256}",
    ),
    Row("GET /api/v1/views", "read"),
    Row("GET /api/v1/views/hidden-view", "read", 200, 404, route="GET /api/v1/views/{slug}"),
    Row("GET /api/v1/trash", "read"),
    Row(
        f"POST /api/v1/runs/{RUN}/controls",
        "control",
        202,
        404,
        {"values": {"stop": True}},
        "POST /api/v1/runs/{run}/controls",
    ),
    Row(f"POST /api/v1/runs/{RUN}/annotations", "control", 200, 404, NOTE, "POST /api/v1/runs/{run}/annotations"),
    Row("POST /api/v1/bulk", "control", body={"runs": ["nothing"], **NOTE}),
    Row("POST /api/v1/bulk", "admin", body={"action": "trash", "runs": ["nothing"]}),
    Row("POST /api/v1/bulk", "admin", body={"action": "restore", "runs": ["nothing"]}),
    Row("PUT /api/v1/views/mine", "control", body=VIEW, route="PUT /api/v1/views/{slug}"),
    Row("DELETE /api/v1/views/nothing", "control", 404, 404, route="DELETE /api/v1/views/{slug}"),
    Row("PUT /api/v1/ingest/runs/ID", "write", 200, 403, {"run_name": "new"}, "ingest register"),
    Row("PUT /api/v1/ingest/runs/ID/beat", "write", 200, 403, {}, "ingest beat"),
    Row("PUT /api/v1/ingest/runs/ID/journal/0?offset=0", "write", 413, 403, {}, "ingest journal"),
    Row("PUT /api/v1/ingest/runs/ID/files/output/x?offset=0", "write", 413, 403, {}, "ingest files"),
    Row(f"HEAD /api/v1/ingest/blobs/{'0' * 64}", "write", 404, 404, None, "ingest blobs"),
    Row(f"PUT /api/v1/ingest/blobs/{'0' * 64}", "write", 400, 400, {}, "ingest blobs"),
    Row(f"HEAD /api/v1/ingest/blobs/{'0' * 64}?run=ID", "write", 404, 403, None, "ingest blobs"),
    Row(f"PUT /api/v1/ingest/blobs/{'0' * 64}?run=ID&ext=png&offset=0&size=9", "write", 400, 403, {}, "ingest blobs"),
    Row("PUT /api/v1/ingest/runs/ID/rank-map", "write", 413, 403, {}, "ingest rank map"),
    Row("PUT /api/v1/ingest/runs/ID/media", "write", 200, 403, {"files": []}, "ingest media"),
    Row("PUT /api/v1/ingest/runs/ID/artifacts", "write", 400, 403, ARTIFACT, "ingest artifacts"),
    Row("PUT /api/v1/ingest/nothing", "write", 404, 404, {}, "ingest"),
    Row("GET /api/v1/ingest/runs/ID", "write", 405, 405, None, "ingest"),
]
ADDRESSES = itertools.count(1)


class Guarded(Team):
    """A server with the keys and cookies of the table, and a run in the project `alpha`."""

    def __init__(self, data_dir: Path) -> None:
        # Each request claims another address, so that wrong keys are not counted together.
        super().__init__(data_dir, proxy=ProxyTrust(["127.0.0.1"]))
        self.principals: dict[str, tuple[dict[str, str], set[str]]] = {}
        """By name the headers, and the scopes that they give; none for rejected ones."""
        for name, scopes in {
            "read": ["read"],
            "write": ["write"],
            "control": ["control"],
            "read+control": ["read", "control"],
            "admin": ["admin"],
        }.items():
            token = self.token(*scopes, name=name)
            self.principals[name] = ({"Authorization": f"Bearer {token}"}, set(scopes))
            answer = self.request("POST /api/v1/login", json={"token": token})
            assert answer.status_code == (204 if {"read", "admin"} & set(scopes) else 403)
            if answer.status_code == 204:
                self.principals[f"cookie of {name}"] = (cookie_of(answer), {*scopes, "cookie"})
        revoked = self.token("admin", name="revoked")
        cookie = cookie_of(self.request("POST /api/v1/login", json={"token": revoked}))
        self.app.keys.revoke("revoked")
        expired, expired_token = self.app.keys.create("expired", ["admin"], lifetime_s=1e-6)
        content = f"{expired.id}.{int(time.time()) + 1000}"
        self.principals |= {
            "none": ({}, set()),
            "wrong": ({"Authorization": f"Bearer tk_00000000_{'x' * 43}"}, set()),
            "revoked": ({"Authorization": f"Bearer {revoked}"}, set()),
            "expired": ({"Authorization": f"Bearer {expired_token}"}, set()),
            "cookie of revoked": (cookie, set()),
            "cookie of expired": ({"Cookie": f"tacho_session={content}.{self.app.access._sign(content)}"}, set()),
        }
        other = self.token("admin", "read", "write", "control", name="beta", project="beta")
        self.elsewhere = [
            {"Authorization": f"Bearer {other}"},
            cookie_of(self.request("POST /api/v1/login", json={"token": other})),
        ]

    def request(self, request: str, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        """Make a request from an address of its own; of an endless answer only the head is read."""
        method, _, target = request.partition(" ")
        given = {"X-Forwarded-For": f"10.0.{next(ADDRESSES) >> 8}.{next(ADDRESSES) & 255}", **(headers or {})}
        with self.client.stream(method, target, headers=given, **options) as answer:
            if not target.startswith("/api/v1/live"):
                answer.read()
        self.client.cookies.clear()
        return answer


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 204, answer.text
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    team = Guarded(folder / "data")
    records = [{**START, "run_name": "hidden", "run_id": "1d" * 8, "project": "alpha", "config": {"hidden_lr": 1}}]
    run = write(folder / "hidden", [*records, *(step(number, loss=0.5, hidden_metric=1.0) for number in range(20))])
    sender = team.sender(run, remote_control=True)
    send_all(sender)
    view = {"name": "hidden", "filter": "hidden_lr > 0"}
    answer = team.request("PUT /api/v1/views/hidden-view", team.headers("admin"), json=view)
    assert answer.status_code == 200, answer.text
    for name in ("write", "admin"):
        team.request(f"PUT /api/v1/ingest/runs/of-{name}", team.principals[name][0], json={"run_name": "hidden-2"})
    yield team
    team.client.close()
    for connection in team.connections:
        connection.close()
    team.stop()


def route_of(row: Row) -> str:
    return row.route or row.request.partition("?")[0]


def expected(row: Row, name: str, scopes: set[str]) -> int:
    """Return the status that a principal gets."""
    is_ingest = route_of(row).startswith("ingest")
    is_rejected = not scopes or (is_ingest and "cookie" in scopes)
    if row.scope == "open":
        # These look at a key if there is one, and show more with it.
        return 401 if row.request == "GET /readyz" and name in {"wrong", "revoked", "expired"} else row.status
    if is_rejected:
        return 401
    needs = set() if row.scope == "any" else {row.scope} if is_ingest else {"read", row.scope}
    return row.status if "admin" in scopes or needs <= scopes else 403


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.request} {row.scope}")
def test_every_route_with_every_key(guarded: Guarded, row: Row):
    options = {} if row.body is None else {"json": row.body}
    found, wanted = {}, {}
    for name, (headers, scopes) in guarded.principals.items():
        target = row.request.replace("ID", f"of-{name}")
        if name == "control" or not scopes:
            target = row.request.replace("ID", "of-write")
        found[name] = guarded.request(target, headers, **options).status_code
        wanted[name] = expected(row, name, scopes)
    assert found == wanted


def test_scope_is_checked_before_the_request_is_read(guarded: Guarded):
    headers = {**guarded.principals["read"][0], "Content-Type": "application/json"}
    for row in TABLE:
        if row.scope in {"control", "write"}:
            target = row.request.partition("?")[0] + "?unknown=1"
            response = guarded.request(target, headers, content=b"not JSON")
            assert response.status_code == 403, (row, response.text)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.request} {row.scope}")
def test_key_of_another_project_sees_nothing(guarded: Guarded, row: Row):
    options = {} if row.body is None else {"json": row.body}
    for number, headers in enumerate(guarded.elsewhere):
        is_ingest = route_of(row).startswith("ingest")
        answer = guarded.request(row.request.replace("ID", "of-write"), headers, **options)
        assert answer.status_code == (401 if is_ingest and number else row.elsewhere), answer.text
        if "live" not in row.request:
            text = answer.text.replace("alpha/hidden", "").replace("hidden-view", "")  # quoted from the request
            assert "hidden" not in text


def starlette_of(app: Any) -> Starlette:
    """Return the application inside of its wrappers."""
    while not isinstance(app, Starlette):
        inner = [cell.cell_contents for cell in app.__closure__ if callable(cell.cell_contents)]
        assert len(inner) == 1
        app = inner[0]
    return app


def test_table_names_every_route(guarded: Guarded):
    named = {route_of(row) for row in TABLE}
    known = {f"{route.method} {route.path}" for route in ROUTES}
    for route in starlette_of(guarded.app._all_projects_app).routes:
        methods = route.methods or {"GET"}  # type: ignore[attr-defined]
        known |= {f"{method} {route.path}" for method in methods - {"HEAD"}}  # type: ignore[attr-defined]
    # `login` answers GET only to say that it does not.
    assert known - named - {"GET /api/v1/login", "GET /api/v1/logout", "POST /api/v1/logout"} == set()


# What is served without a key ----------------------------------------------------------------------------------------


def test_readiness_tells_strangers_no_details(guarded: Guarded):
    for name, (headers, scopes) in guarded.principals.items():
        if scopes:
            answer = guarded.request("GET /readyz", headers).json()
            assert (answer["free_bytes"] is not None) is bool({"read", "admin"} & scopes), name
    assert guarded.request("GET /readyz").json()["free_bytes"] is None
    assert guarded.request("GET /readyz", guarded.elsewhere[0]).json()["free_bytes"] is None


# Keys and cookies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    ["/?token={}", "/api/v1/runs?key={}", "/api/v1/runs/{}", "/{}", "/api/v1/ingest/runs/x?token={}", "/healthz?{}"],
)
def test_key_in_an_address_is_rejected(guarded: Guarded, target: str, caplog: pytest.LogCaptureFixture, capfd: Any):
    token = guarded.token("read", name="read")
    encoded = "%74" + token[1:]
    for text in (token, encoded, token.upper()):
        for headers in ({}, guarded.principals["write"][0]):
            answer = guarded.request(f"GET {target.format(text)}", headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "key_in_address")
            assert token[12:] not in answer.text
    shown = capfd.readouterr()
    assert token[12:] not in shown.out + shown.err + caplog.text
    metrics = guarded.request("GET /metrics", guarded.principals["admin"][0]).text
    assert token[12:] not in metrics


def test_changed_cookies_are_rejected(guarded: Guarded):
    token = guarded.token("read", name="read")
    admin_id = guarded.token("admin", name="admin")[3:11]
    cookie = cookie_of(guarded.request("POST /api/v1/login", json={"token": token}))["Cookie"]
    name, _, value = cookie.partition("=")
    key_id, expires, signature = value.split(".")
    assert token[12:] not in value
    assert guarded.request("GET /api/v1/runs", {"Cookie": cookie}).status_code == 200
    past = f"{key_id}.{int(time.time()) - 1}"
    flipped = signature[:-1] + ("0" if signature[-1] != "0" else "1")
    for changed in (
        *(f"{admin_id}.{expires}.{signature}", f"{key_id}.{int(expires) + 1}.{signature}"),
        *(f"{key_id}.{expires}.{flipped}", f"{key_id}.{expires}.", f"{key_id}.{expires}", f"{key_id}..{signature}"),
        *(f"{key_id}.{expires}.{signature.upper()}", f"{key_id}.{expires}.{signature}.{signature}", "", ".", ".."),
        *(f"{past}.{guarded.app.access._sign(past)}", token, f"{key_id}.{expires}.{'0' * 64}", "9" * 5_000),
    ):
        answer = guarded.request("GET /api/v1/runs", {"Cookie": f"{name}={changed}"})
        assert answer.status_code == 401, changed
    assert guarded.request("GET /api/v1/runs", {"Authorization": f"Bearer {value}"}).status_code == 401


def test_cookie_of_another_server_is_rejected(guarded: Guarded, team: Team):
    """The same key id, but another secret signs the cookies."""
    content = f"{guarded.token('admin', name='admin')[3:11]}.{int(time.time()) + 1000}"
    forged = f"tacho_session={content}.{team.app.access._sign(content)}"
    assert guarded.request("GET /api/v1/runs", {"Cookie": forged}).status_code == 401
    path = guarded.data_dir / ".server" / "session.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_cookie_flags(guarded: Guarded):
    login = {"json": {"token": guarded.token("read", name="read")}}
    for proto, is_secure in (("https", True), ("http", False), ("https, http", False), (None, False)):
        headers = {"X-Forwarded-Proto": proto} if proto else {}
        flags = guarded.request("POST /api/v1/login", headers, **login).headers["set-cookie"].lower()
        assert "httponly" in flags and "samesite=strict" in flags and "path=/" in flags and "domain" not in flags
        assert ("secure" in flags) is is_secure


def test_secrets_are_compared_in_constant_time():
    """Every comparison of a secret goes through `compare_digest`; none uses `==` or a dictionary of secrets."""
    source = Path(KeyRing.check.__code__.co_filename).read_text(encoding="utf-8")
    assert "hmac.compare_digest(_digest(match[2])," in "".join(source.split())
    access = Path(TeamAccess.identify.__code__.co_filename).read_text(encoding="utf-8")
    assert "hmac.compare_digest(signature" in access
    for text in (source, access):
        assert not re.search(r"(sha256|signature|secret|token) ?[!=]= ?\w", text)


# Other sites ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({}, True),
        ({"Origin": "{url}"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "{url}.evil.example"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
    ],
)
def test_other_sites_change_nothing(guarded: Guarded, headers: dict[str, str], is_allowed: bool):
    cookie = guarded.principals["cookie of admin"][0]
    given = {**cookie, **{name: value.format(url=guarded.url) for name, value in headers.items()}}
    for row in TABLE:
        method = row.request.partition(" ")[0]
        if method != "GET" and not route_of(row).startswith("ingest"):
            options = {} if row.body is None else {"json": row.body}
            status = guarded.request(row.request, given, **options).status_code
            assert status == (row.status if is_allowed else 403), row.request
            if method == "POST":
                form = {"content": b"x=1", "headers": {**given, "Content-Type": "application/x-www-form-urlencoded"}}
                assert guarded.client.request(method, row.request.partition(" ")[2], **form).status_code in {403, 415}


def test_other_host_names_are_rejected(guarded: Guarded):
    """Otherwise a page could point its own domain at this server."""
    admin = guarded.principals["cookie of admin"][0]
    for row in TABLE:
        if not route_of(row).startswith("ingest"):
            options = {} if row.body is None else {"json": row.body}
            for host in ("evil.example", "localhost.evil.example", "evil@localhost"):
                assert guarded.request(row.request, {**admin, "Host": host}, **options).status_code == 421, row.request


# Proxies -------------------------------------------------------------------------------------------------------------


def test_forwarded_headers_count_only_from_proxies(team: Team):
    """A client cannot get around the limit of wrong keys by claiming another address each time."""
    wrong = {"Authorization": f"Bearer tk_00000000_{'x' * 43}"}
    statuses = [
        team.client.get("/api/v1/runs", headers={**wrong, "X-Forwarded-For": f"10.0.0.{number}"}).status_code
        for number in range(12)
    ]
    assert statuses == [401] * 10 + [429] * 2
    login = team.client.post(
        "/api/v1/login", json={"token": team.token("read")}, headers={"X-Forwarded-Proto": "https"}
    )
    assert "secure" not in login.headers["set-cookie"].lower()
    assert team.client.get("/api/v1/runs", headers=team.headers("read")).status_code == 200


@pytest.mark.parametrize("form", ["one header", "two headers"])
def test_address_of_a_client_behind_a_proxy(guarded: Guarded, form: str):
    """A proxy appends the address to the header that the client sent, or adds a header after it."""
    client = "192.0.2.1" if form == "one header" else "192.0.2.2"
    statuses = []
    for number in range(12):
        claimed = f"10.1.{number}.1"
        values = [f"{claimed}, {client}"] if form == "one header" else [claimed, client]
        headers = [("Authorization", f"Bearer tk_00000000_{'x' * 43}"), *(("X-Forwarded-For", text) for text in values)]
        statuses.append(guarded.client.get("/api/v1/runs", headers=headers).status_code)
    assert statuses == [401] * 10 + [429] * 2


def test_users_of_a_proxy_count_only_from_it(tmp_path: Path):
    for network, status in (("127.0.0.1", 200), ("10.0.0.0/8", 401)):
        team = Team(tmp_path / str(status), proxy=ProxyTrust([network], "X-Remote-User"))
        try:
            assert team.client.get("/api/v1/runs", headers={"X-Remote-User": "mia"}).status_code == status
            for headers in ([], [("X-Remote-User", "")], [("X-Remote-User", "mia"), ("X-Remote-User", "root")]):
                assert team.client.get("/api/v1/runs", headers=headers).status_code == 401
            user = {"X-Remote-User": "mia"}
            assert team.client.put("/api/v1/ingest/runs/x", json={"run_name": "x"}, headers=user).status_code == 401
            body = {"values": {"stop": True}}
            answer = team.client.post("/api/v1/runs/x/controls", json=body, headers=user)
            assert answer.status_code == (403 if status == 200 else 401)
        finally:
            team.client.close()
            team.stop()


# Paths and headers ---------------------------------------------------------------------------------------------------

ODD = [
    *("..", "%2e%2e", "..%2f..%2f.server%2fkeys.json", "%2fetc%2fpasswd", "..%5c..", "%00", "x%00", "."),
    *("%ff", "%c0%ae%c0%ae", "%e2%80%ae", "%0d%0aSet-Cookie:%20a=b", "x" * 5_000, ".server", "%252e%252e", "~"),
]


def raw(team: Team, request: bytes) -> bytes:
    """Send bytes, and return all that the server answers until it closes the connection."""
    data = b""
    with socket.create_connection(("127.0.0.1", team.port), timeout=HANG_S) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while block := connection.recv(65_536):
                data += block
    return data


def raw_request(team: Team, method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{team.port}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def test_odd_paths_reach_nothing(guarded: Guarded):
    key = guarded.principals["admin"][0]["Authorization"]
    before = sorted(path for path in guarded.data_dir.rglob("*") if ".tacho" not in str(path))
    for name in ODD:
        for method, route in (
            *(("GET", f"/api/v1/runs/{name}{rest}") for rest in ("", "/metrics", "/output/text", "/patch")),
            *(("GET", f"/api/v1/runs/{RUN}/{part}/{name}") for part in ("spans", "traces", "diff", "dumps")),
            *(("GET", f"/{path}{name}") for path in ("", "help/", "assets/", "api/v1/views/")),
            ("PUT", f"/api/v1/ingest/runs/of-admin/journal/{name}?offset=0"),
            ("PUT", f"/api/v1/ingest/runs/of-admin/files/output/{name}?offset=0"),
            ("PUT", f"/api/v1/ingest/runs/of-admin/files/{name}/x?offset=0"),
        ):
            lines = (f"Authorization: {key}", "Connection: close", "Content-Length: 0")
            answer = raw(guarded, raw_request(guarded, method, route, *lines))
            head, _, body = answer.partition(b"\r\n\r\n")
            is_page = route in {"/.", "/help/."} or b" 307 " in head
            assert int(head.split()[1]) in {400, 404, 413} or is_page, (route, answer[:200])
            assert b"set-cookie" not in head.lower()
            assert b"sha256" not in body and b"root:" not in body
    after = sorted(path for path in guarded.data_dir.rglob("*") if ".tacho" not in str(path))
    assert after == before


@pytest.mark.parametrize("name", ["a\r\nSet-Cookie: x=y", 'a"; filename="evil.html', "\u202egnp", "a\0b", "é" * 100])
def test_names_of_runs_inject_no_headers(team: Team, name: str):
    body = {"run_name": name, "project": name}
    answer = team.client.put("/api/v1/ingest/runs/abc", json=body, headers=team.headers("write"))
    assert answer.status_code == 200, answer.text
    (folder,) = [path.parent for path in team.data_dir.glob("*/*/.tacho")]
    write(folder, [{**START, "run_id": "abc"}, step(1, loss=0.5)])
    run = quote(answer.json()["run"], safe="")
    for part in ("export?name=loss", "output/text"):
        found = team.client.get(f"/api/v1/runs/{run}/{part}", headers=team.headers("read"))
        assert found.status_code == 200, found.text
        assert "set-cookie" not in found.headers
        assert found.headers["content-disposition"].count('"') == 2
        assert "html" not in found.headers["content-type"]


# Connections ---------------------------------------------------------------------------------------------------------

INNER = b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("key", ["none", "wrong", "read", "write"])
@pytest.mark.parametrize("target", ["/api/v1/ingest/runs/x", "/api/v1/ingest/nothing", "/api/v1/views/x", "/nothing"])
def test_rest_of_a_rejected_body_is_no_request(guarded: Guarded, target: str, key: str):
    headers = [f"{name}: {value}" for name, value in guarded.principals[key][0].items()]
    padded = INNER + b" " * (200_000 - len(INNER))  # longer than the body that the dashboard accepts
    for body in (INNER, padded):
        request = raw_request(guarded, "PUT", target, *headers, f"Content-Length: {len(body)}", body=body)
        answer = raw(guarded, request + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert 1 <= answer.count(b"HTTP/1.1 ") <= 2
        assert b'"scopes"' not in answer
        assert b"log in with" not in answer or key == "none"
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        request = raw_request(guarded, "PUT", target, *headers, "Transfer-Encoding: chunked", body=chunked)
        answer = raw(guarded, request + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert 1 <= answer.count(b"HTTP/1.1 ") <= 2


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5, 6",),
        ("Content-Length: -1",),
        ("Content-Length: +5",),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Host: evil.example",),
        ("Bad Header: 1",),
        ("X: a\0b",),
    ],
    ids=lambda lines: lines[0][:30],
)
def test_ambiguous_requests_are_rejected_and_closed(guarded: Guarded, lines: tuple[str, ...]):
    key = f"Authorization: {guarded.principals['admin'][0]['Authorization']}"
    for target in ("/api/v1/ingest/runs/x", "/api/v1/views/x"):
        request = raw_request(guarded, "PUT", target, key, *lines, body=b"0\r\n\r\n" + INNER)
        answer = raw(guarded, request)  # returns only when the server closes the connection
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert not answer or int(answer.split()[1]) in {400, 413, 431, 501}


@pytest.mark.parametrize("line", ["X: " + "x" * (4 << 20), "\r\n".join(["X: y"] * (1 << 20))], ids=["long", "many"])
def test_huge_headers_are_rejected(guarded: Guarded, line: str):
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        answer = raw(guarded, raw_request(guarded, "GET", "/healthz", line))
        assert not answer or int(answer.split()[1]) in {400, 431}
    assert guarded.request("GET /healthz").status_code == 200


# Secrets -------------------------------------------------------------------------------------------------------------

CANARIES = [
    "sk-proj-" + "Canary1" * 6,
    "hf_" + "Canary2" * 5,
    "ghp_" + "Canary3x" * 4 + "abcd",
    "AKIA" + "CANARY4XCANARY4X",
]


def test_secrets_of_a_run_do_not_reach_the_server(team: Team, script: Callable[..., Script], tmp_path: Path):
    token = team.token("write")
    program = """
        import contextlib, glob, os, sys
        import tachograph
        secrets = sys.stdin.read().split()
        run = tachograph.init(name="r", log_dir=sys.argv[1], mode="cloud", server=sys.argv[2], config={
            "api_key": secrets[0], "nested": {"text": f"use {secrets[1]} here"}, "url": f"https://u:{secrets[2]}@host/x"})
        tachograph.log({"loss": 0.5}, step=1)
        shown = b""
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # the process has ended
                shown += open(path, "rb").read()
        assert os.environ["TACHO_API_KEY"].encode()[12:] not in shown
        raise ValueError(f"cannot log in with {secrets[3]} and {os.environ['TACHO_API_KEY']}")
    """
    environment = {"TACHO_API_KEY": token, "OPENAI_API_KEY": CANARIES[0], "HF_TOKEN": CANARIES[1]}
    started = script(program, tmp_path / "logs", team.url, env=environment)
    _, errors = started.process.communicate("\n".join(CANARIES), timeout=HANG_S)
    assert "ValueError" in errors
    folder = RunFolder(tmp_path / "logs" / "r")
    copy = RunFolder(team.data_dir / "default" / "r")
    wait_for(lambda: copy.exists() and copy.journal.read_bytes() == folder.journal.read_bytes(), "sending")
    assert b"cannot log in with" in copy.journal.read_bytes()
    metrics = team.client.get("/metrics", headers=team.headers("read")).text
    for root in (team.data_dir, tmp_path / "logs"):
        for path, data in read_files(root).items():
            found = [text for text in (*CANARIES, token, token[12:]) if text.encode() in data]
            assert not found, path
    assert not [text for text in (*CANARIES, token[12:]) if text in metrics]
