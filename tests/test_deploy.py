"""The files in `deploy`: linted, and used for a real server behind real proxies."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tachograph.cli._serve import serve
from tachograph.journal import RunFolder
from tachograph.remote import Connection, RunSender, parse_server
from tachograph.server.columns import parse_address
from tachograph.server.team import ProxyTrust
from tachograph.server.team._metrics import COUNTERS
from tests.conftest import HANG_S, reserve_port, wait_for
from tests.remote.conftest import (
    Team,
    make_run,  # noqa: F401 - a fixture
    send_all,
)
from tests.store import append

DEPLOY = Path(__file__).parent.parent / "deploy"
MakeRun = Callable[..., RunFolder]


def needs(program: str) -> str:
    found = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")
    if found is None:
        pytest.skip(f"needs {program}: run `make tools`")
    return found


def test_dockerfile_has_no_warnings():
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("there is no hadolint for this machine")
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], check=False, capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stdout) == (0, "")


def options_of_serve(words: list[str]) -> dict[str, object]:
    """Return the options of a command line; fails for one that `tacho serve` does not know."""
    assert words[0] == "serve"
    return serve.make_context("serve", words[1:]).params


def test_compose_file_starts_the_server_behind_a_proxy():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    words = [word.partition("${")[0] or "x" for word in services["server"]["command"]]
    options = options_of_serve([word + ("tacho.example.org" if word.endswith("allow-host=") else "") for word in words])
    proxy_address = services["proxy"]["networks"]["proxy"]["ipv4_address"]
    assert options["trusted_proxies"] == (proxy_address,)
    assert options["data_dir"] == "/data"
    assert "ports" not in services["server"], "only the proxy is reachable from outside"
    assert parse_address(services["server"]["environment"]["TACHO_STORE"]).host == "clickhouse"
    volumes = {mount.split(":")[1] for mount in services["server"]["volumes"]}
    assert volumes == {"/data"}


def test_kubernetes_manifests_fit_together_and_the_server(team: Team):
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    by_kind = {document["kind"]: document for document in documents}
    assert {kind: document["apiVersion"] for kind, document in by_kind.items()} == {
        "Service": "v1",
        "StatefulSet": "apps/v1",
        "Ingress": "networking.k8s.io/v1",
    }
    for document in documents:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", document["metadata"]["name"])
    service, state, ingress = (by_kind[kind]["spec"] for kind in ("Service", "StatefulSet", "Ingress"))
    template = state["template"]
    assert template["metadata"]["labels"] == service["selector"] == state["selector"]["matchLabels"]
    assert state["serviceName"] == by_kind["Service"]["metadata"]["name"]
    assert state["replicas"] == 1
    (container,) = template["spec"]["containers"]
    options = options_of_serve(container["args"])
    port_names = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert port_names == {"http": options["port"]}
    assert service["ports"][0]["targetPort"] in port_names
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in port_names
        answer = team.client.get(container[probe]["httpGet"]["path"])
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), probe
    claims = {claim["metadata"]["name"] for claim in state["volumeClaimTemplates"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == claims | {volume["name"] for volume in template["spec"]["volumes"]}
    data_mount = next(path for path in mounts if str(options["data_dir"]).startswith(path + "/"))
    assert mounts[data_mount] in claims
    # The group of a volume is that of its pod, so the data folder, which must be private, is inside of it.
    uid = template["spec"]["securityContext"]["runAsUser"]
    assert f"USER {uid}" in (DEPLOY / "Dockerfile").read_text()
    secrets = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in container["env"]}
    assert secrets.keys() == {"TACHO_STORE", "TACHO_CLICKHOUSE_PASSWORD"}
    assert all(secret["optional"] for secret in secrets.values())
    (rule,) = ingress["rules"]
    assert rule["host"] in options["allow_hosts"]
    assert ingress["tls"][0]["hosts"] == [rule["host"]]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": by_kind["Service"]["metadata"]["name"], "port": {"name": service["ports"][0]["name"]}}


def test_dockerfile_starts_the_server():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    command = next(line.removeprefix("CMD ") for line in lines if line.startswith("CMD "))
    assert options_of_serve(yaml.safe_load(command))["host"] == "0.0.0.0"


def test_systemd_accepts_the_unit(tmp_path: Path):
    text = (DEPLOY / "tachograph.service").read_text()
    command = next(line for line in text.splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    program, *words = shlex.split(command)
    options_of_serve(words)
    analyze = needs("systemd-analyze")
    unit = tmp_path / "tachograph.service"
    unit.write_text(text.replace(program, sys.executable))
    done = subprocess.run([analyze, "verify", str(unit)], check=False, capture_output=True, text=True, timeout=HANG_S)
    complaints = [line for line in done.stderr.splitlines() if "tachograph" in line]
    assert complaints == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, with its key in the same folder."""
    folder = tmp_path_factory.mktemp("tls")
    command = [
        needs("openssl"),
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "3",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True, timeout=HANG_S)
    return folder / "cert.pem"


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    """A server that trusts a proxy on this machine."""
    proxy = ProxyTrust(["127.0.0.1"], "X-Remote-User", frozenset({"read"}))
    found = Team(tmp_path / "data", hosts=("localhost",), proxy=proxy)
    yield found
    found.client.close()
    for connection in found.connections:
        connection.close()
    found.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program; it is stopped at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start_program(*command: object, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start_program
    for process in started:
        process.terminate()
        process.communicate(timeout=HANG_S)


def check_through_proxy(url: str, team: Team, folder: RunFolder, client: httpx.Client) -> RunSender:
    """Send a run, read it, and get a live event, all through a proxy."""
    append(folder, [{"event": "event", "name": "big", "time": 1.0, "text": os.urandom(3 << 20).hex()}])
    key = team.token("write")
    connection = Connection(parse_server(url), lambda: key)
    team.connections.append(connection)
    sender = RunSender(folder, connection, lambda *report: None)
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()
    headers = team.headers("read")
    names = [run["name"] for run in client.get(f"{url}/api/v1/runs", headers=headers).json()["runs"]]
    assert names == ["default/run"]
    with client.stream("GET", f"{url}/api/v1/live", headers=headers) as live:
        assert next(live.iter_text())  # a proxy that buffers would hold it back
    return sender


def test_nginx_block_works(
    team: Team,
    make_run: MakeRun,  # noqa: F811
    certificate: Path,
    start: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    nginx, port = needs("nginx"), reserve_port()
    block = (DEPLOY / "nginx.conf").read_text()
    for old, new in {
        "listen 443": f"listen 127.0.0.1:{port}",
        "server_name tacho.example.org": "server_name localhost",
        "/etc/ssl/tacho.example.org.pem": str(certificate),
        "/etc/ssl/tacho.example.org.key": str(certificate.with_name("key.pem")),
        "127.0.0.1:8501": f"127.0.0.1:{team.port}",
        'proxy_set_header Connection "";': 'proxy_set_header Connection ""; proxy_set_header X-Remote-User "";',
    }.items():
        assert old in block
        block = block.replace(old, new)
    folders = "".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers could not use the folder of the test
    config.write_text(
        f"{user} daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log {tmp_path}/access.log; {folders}\n{block}\n}}\n"
    )
    start(nginx, "-c", config, "-p", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    url = f"https://localhost:{port}"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)), timeout=HANG_S) as client:
        wait_for(lambda: is_up(client, url))
        check_through_proxy(url, team, make_run("run"), client)
        answer = client.post(f"{url}/api/v1/login", json={"token": team.token("read")}, headers={"Origin": url})
        assert answer.status_code == 204, answer.text
        assert "secure" in answer.headers["set-cookie"].lower()
        assert client.get(f"{url}/api/v1/whoami").json()["name"] == "read"
        client.cookies.clear()
        spoofed = client.get(f"{url}/api/v1/runs", headers={"X-Remote-User": "mia"})
        assert spoofed.status_code == 401, "the proxy must remove the header that it sets itself"
    log = (tmp_path / "access.log").read_text()
    assert team.token("read") not in log
    assert team.token("write") not in log


def is_up(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_caddyfile_works(
    team: Team,
    make_run: MakeRun,  # noqa: F811
    start: Callable[..., object],
    tmp_path: Path,
):
    caddy, port = needs("caddy"), reserve_port()
    # Without a certificate, which Caddy would request from the network.
    env = {**os.environ, "TACHO_HOST": f"http://127.0.0.1:{port}", "TACHO_UPSTREAM": f"127.0.0.1:{team.port}"}
    env |= {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    config = tmp_path / "Caddyfile"
    config.write_text("{\n\tadmin off\n\tgrace_period 1s\n}\n" + (DEPLOY / "Caddyfile").read_text())
    start(caddy, "run", "--adapter", "caddyfile", "--config", config, env=env)
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(timeout=HANG_S, trust_env=False) as client:
        wait_for(lambda: is_up(client, url))
        check_through_proxy(url, team, make_run("run"), client)


def test_serve_with_a_certificate_and_a_graceful_end(
    certificate: Path, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    command = [sys.executable, "-u", "-m", "tachograph", "serve", "--data", tmp_path / "data", "--port", "0"]
    process = start(*command, "--tls-cert", certificate, "--tls-key", certificate.with_name("key.pem"))
    assert process.stdout is not None
    line, *hint = (process.stdout.readline() for _ in range(3))
    assert "tacho keys create" in hint[-1]
    url = line.partition(" at ")[2].split()[0].rstrip("/")
    assert url.startswith("https://127.0.0.1:")
    with httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)), timeout=HANG_S) as client:
        wait_for(lambda: is_up(client, url))
        assert client.get(f"{url}/readyz").json()["status"] == "ok"
        assert client.get(f"{url}/api/v1/runs").status_code == 401
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=HANG_S)
    assert "Traceback" not in rest
    assert process.returncode in {0, -signal.SIGTERM}


@pytest.mark.slow
def test_check_reports_problems(start: Callable[..., subprocess.Popen[str]], tmp_path: Path):
    data = tmp_path / "data"
    command = [sys.executable, "-m", "tachograph", "serve", "--data", data, "--check"]
    env = {**os.environ, "COLUMNS": "500"}  # the path may be long, and lines are not wrapped
    assert "is not a folder" in start(*command, env=env).communicate(timeout=HANG_S)[0]
    (data / ".server").mkdir(parents=True)
    process = start(*command, env=env)
    assert "ok: " in process.communicate(timeout=HANG_S)[0]
    assert process.returncode == 0
    (data / ".server" / "keys.json").write_text("{")
    (data / ".server" / "keys.json").chmod(0o600)
    (data / ".server").chmod(0o700)
    process = start(*command, env=env)
    assert "is damaged" in process.communicate(timeout=HANG_S)[0]
    assert process.returncode == 1


def test_board_about_servers_uses_metrics_that_exist(tmp_path: Path):
    team = Team(tmp_path / "data", store="clickhouse://127.0.0.1:1/nothing")
    try:
        text = team.client.get("/metrics", headers=team.headers("read")).text
    finally:
        team.client.close()
        team.stop()
    metrics = {f"tachograph_{name}_total" for name in COUNTERS} | set(re.findall(r"^(\w+) ", text, re.MULTILINE))
    panels = json.loads((DEPLOY / "grafana-servers.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    used = {
        name for panel in panels for query in panel["targets"] for name in re.findall(r"tachograph_\w+", query["expr"])
    }
    assert used <= metrics
    assert metrics <= used, "each has a panel"
