"""Artifacts on a team's server: sent after the records, stored by content, and used from other machines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.cli._main import main
from tachograph.exceptions import ArtifactError
from tachograph.journal import RunFolder
from tachograph.journal.artifacts import ArtifactStore, ArtifactVersion, collect_sources
from tachograph.remote import (
    RunSender,
    ServerArtifacts,
    artifact_lag_bytes,
    hash_bytes,
    parse_server,
    read_send_state,
)
from tachograph.server.team import count_kept_bytes, create_backup, restore_backup
from tests.conftest import wait_for
from tests.remote.conftest import Team, send_all
from tests.remote.test_hostile_server import REGISTERED, HostileServer, hostile, is_registration
from tests.store import append, step

__all__ = ["hostile"]

MakeRun = Callable[..., RunFolder]
API = "/api/v1/ingest"
RUN_ID = "0123456789abcdef"
PART_BYTES = 64 << 10


def log(folder: RunFolder, name: str, files: dict[str, bytes], *aliases: str, time: float = 100.0) -> ArtifactVersion:
    """Store an artifact of a run and append its record, as `Run.log_artifact` does."""
    store = ArtifactStore(folder.path.parent)
    version = store.add(name, collect_sources(files), type="model", metadata={"loss": float("nan")}, aliases=aliases)
    record = {"event": "event", "name": "artifact", "time": time, "artifact": name, "version": version.version}
    append(folder, [{**record, "digest": version.digest, "aliases": ["latest", *aliases]}])
    return version


def on_server(team: Team, **key: Any) -> ServerArtifacts:
    os.environ["TACHO_API_KEY"] = team.token("read", **key)
    try:
        return ServerArtifacts(parse_server(team.url))
    finally:
        del os.environ["TACHO_API_KEY"]


def blobs(team: Team) -> list[Path]:
    return [path for path in (team.data_dir / ".server" / "blobs").rglob("*") if path.is_file()]


def with_small_parts(sender: RunSender) -> RunSender:
    sender._artifacts._part_bytes = PART_BYTES
    sender._artifacts._adapt_part_size = lambda duration_s: None  # type: ignore[method-assign]
    return sender


def test_artifact_arrives_and_is_used_elsewhere(team: Team, make_run: MakeRun, tmp_path: Path):
    folder = make_run()
    files = {"model.pt": os.urandom(5 << 20), "sub/empty": b"", "sub/copy": b"same", "note.txt": b"same"}
    version = log(folder, "model", files, "best")
    append(folder, [step(9)])
    sender = team.sender(folder, team.token("write", name="vision", project="vision"))
    send_all(sender)
    assert (sender.num_sent_bytes, artifact_lag_bytes(folder, 0)) == (
        folder.journal.stat().st_size + (5 << 20) + 4,
        (5 << 20) + 4,
    )
    assert artifact_lag_bytes(folder, sender.state.artifact_offset) == 0
    used = on_server(team, name="reader", project="vision").find("model:best")
    assert (str(used), used.digest, used.size_bytes, used.run_id) == ("model:v0", version.digest, (5 << 20) + 8, RUN_ID)
    assert str(used.metadata["loss"]) == "nan"
    used.verify()
    out = Path(used.download(tmp_path / "out"))
    assert {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()} == files
    # The same store is readable on the server's machine.
    ArtifactStore(team.data_dir / "vision").find("model:best").verify()
    again = team.sender(folder, team.token("write", name="vision"))
    send_all(again)
    assert again.num_sent_bytes == 0


def test_server_numbers_versions_and_keeps_newer_aliases(team: Team, make_run: MakeRun, tmp_path: Path):
    one = make_run("one", run_id="1" * 16)
    two = RunFolder(tmp_path / "elsewhere" / "two")
    make_run("two", run_id="2" * 16).path.rename(tmp_path / "two")
    two.path.parent.mkdir()
    (tmp_path / "two").rename(two.path)
    old = log(one, "model", {"a": b"old"}, "best", time=100.0)
    new = log(two, "model", {"a": b"new"}, "best", time=200.0)
    senders = [team.sender(folder) for folder in (one, two, one)]
    for sender in senders:  # the first run is sent once more after the second one
        send_all(sender)
    server = on_server(team)
    assert [(str(each), each.digest) for each in server.versions()] == [
        ("model:v0", old.digest),
        ("model:v1", new.digest),
    ]
    assert {str(server.find(f"model:{alias}")) for alias in ("best", "latest")} == {"model:v1"}
    log(one, "model", {"a": b"old"}, "best", time=300.0)
    send_all(team.sender(one))
    assert str(server.find("model:best")) == "model:v0"
    # What was removed on the server does not come back by itself, but it does if it is logged again.
    store = ArtifactStore(team.data_dir / "default")
    store.remove("model", "v1")
    send_all(team.sender(two))
    assert [str(each) for each in server.versions()] == ["model:v0"]
    log(two, "model", {"a": b"new"}, time=4e9)
    send_all(team.sender(two))
    assert [str(each) for each in server.versions()] == ["model:v0", "model:v2"]


def test_artifact_resumes_after_both_sides_restart(team: Team, make_run: MakeRun):
    folder = make_run()
    log(folder, "model", {"model.pt": os.urandom(1 << 20)})
    first = with_small_parts(team.sender(folder))
    wait_for(lambda: first.poll(flush=True) is not None and first._artifacts.num_sent_bytes >= 5 * PART_BYTES)
    assert not first.is_complete
    assert on_server(team).versions() == [], "a version appears when all of its files have arrived"
    state = read_send_state(folder)
    assert state is not None and state.artifact_offset == 0
    # Not closed, as if it was killed.
    team.stop()
    team.start()
    second = team.sender(folder)
    send_all(second)
    assert second._artifacts.num_sent_bytes == (1 << 20) - 5 * PART_BYTES
    on_server(team).find("model").verify()


def test_journal_and_media_overtake_an_artifact(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    log(folder, "model", {"model.pt": os.urandom(1 << 20)})
    sender = with_small_parts(team.sender(folder))
    number = 10
    while not sender.is_complete:
        append(folder, [step(number)])
        number += 1
        sender.poll(flush=True)
        assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()
    assert number >= 10 + (1 << 20) // PART_BYTES


def test_artifacts_that_cannot_be_sent_are_counted(team: Team, make_run: MakeRun):
    folder = make_run()
    store = ArtifactStore(folder.path.parent)
    log(folder, "removed", {"a": b"removed"})
    store.remove("removed", "v0")
    content = store.find(str(log(folder, "damaged", {"a": b"damaged"}))).files[0].sha256
    lost = log(folder, "lost", {"a": b"lost"}).files[0].sha256
    log(folder, "good", {"a": b"good"})
    contents = folder.path.parent / ".tachograph" / "artifacts" / "files"
    (contents / lost[:2] / lost).unlink()
    damaged = contents / content[:2] / content
    damaged.chmod(0o644)
    damaged.write_bytes(b"changed")
    sender = team.sender(folder)
    send_all(sender)
    assert (sender.state.num_rejected_artifacts, sender.state.num_missing_artifacts) == (1, 2)
    ((kind, _, reason),) = sender.reports  # type: ignore[attr-defined]
    assert (kind, "removed:v0" in reason) == ("artifact_not_sent", True)
    assert [str(each) for each in on_server(team).versions()] == ["good:v0"]


def test_quota_counts_artifacts_and_gc_frees_it(team: Team, make_run: MakeRun):
    folder = make_run()
    log(folder, "model", {"model.pt": os.urandom(300_000)})
    small = team.sender(folder, team.token("write", name="small", max_bytes=200_000))
    wait_for(lambda: small.poll(flush=True) > 10, "a pause")
    assert "its limit" in small.state.error
    assert not small.is_complete
    other = make_run("other", run_id="f" * 16)
    log(other, "model", {"model.pt": (data := os.urandom(100_000))})
    send_all(team.sender(other, team.token("write", name="large", max_bytes=200_000)))
    manifest = team.data_dir / "default" / ".tachograph" / "artifacts" / "names" / "model" / "v0.json"
    journal_bytes = team.data_dir.joinpath("default", "other", "metrics.jsonl").stat().st_size
    assert count_kept_bytes(team.data_dir)["large"] == 100_000 + manifest.stat().st_size + journal_bytes
    store = ArtifactStore(team.data_dir / "default")
    assert store.collect_garbage(grace_s=3_600).num_files == 0
    team.app.blobs.collect(grace_s=0)
    store.find("model").verify()
    store.remove("model", "v0")
    assert store.collect_garbage().num_files == 1
    assert team.app.blobs.collect(grace_s=0).num_bytes >= 100_000
    assert count_kept_bytes(team.data_dir)["large"] == journal_bytes
    assert hash_bytes(data) not in {path.name for path in blobs(team)}


def test_backup_has_artifacts(team: Team, make_run: MakeRun, tmp_path: Path):
    folder = make_run()
    log(folder, "model", {"model.pt": os.urandom(300_000)}, "best")
    send_all(team.sender(folder))
    create_backup(team.data_dir, tmp_path / "backup.tar.gz")
    assert (tmp_path / "backup.tar.gz").stat().st_size < 400_000
    restore_backup(tmp_path / "backup.tar.gz", tmp_path / "restored")
    ArtifactStore(tmp_path / "restored" / "default").find("model:best").verify()


def test_no_key_reads_or_writes_other_projects(team: Team, make_run: MakeRun):
    folder = make_run()
    sha256 = log(folder, "secret", {"a": b"secret"}).files[0].sha256
    send_all(team.sender(folder, team.token("write", name="alpha", project="alpha")))
    send_all(team.sender(make_run("other", run_id="f" * 16), team.token("write", name="beta", project="beta")))
    url = f"/api/v1/artifacts/secret/files/{sha256}?version=v0"

    def get(path: str, *scopes: str, **key: Any) -> Any:
        return team.client.get(path, headers=team.headers(*(scopes or ("read",)), **key))

    assert get(url, name="alpha-reader", project="alpha").content == b"secret"
    assert get(f"{url}&project=alpha", name="all").content == b"secret"
    for project in ("", "&project=alpha", "&project=..%2Falpha", "&project=%2E%2E"):
        answer = get(url + project, name="beta-reader", project="beta")
        assert (answer.status_code, b"secret" in answer.content.replace(b"secret:v0", b"")) == (404, False)
    assert get("/api/v1/artifacts", name="beta-reader", project="beta").json()["artifacts"] == []
    assert get("/api/v1/artifacts/secret?project=alpha", name="beta-reader", project="beta").status_code == 404
    assert get(url, "write", name="alpha").status_code == 403, "a key that may only send"
    # Naming the hash of a file of another project does not make it part of one's own.
    version = {"name": "stolen", "version": "v0", "digest": "", "files": [["a", 6, sha256]]}
    version["files"] = [{"path": "a", "size_bytes": 6, "sha256": sha256}]
    body = {"version": version, "time": 1.0}
    beta = team.headers("write", name="beta")
    answer = team.client.put(f"{API}/runs/{'f' * 16}/artifacts", json=body, headers=beta)
    assert answer.json() == {"missing": {sha256: 0}, "version": "", "is_removed": False}
    assert team.client.put(f"{API}/runs/{RUN_ID}/artifacts", json=body, headers=beta).status_code == 403
    rival = team.headers("write", name="rival", project="alpha")
    assert team.client.put(f"{API}/runs/{RUN_ID}/artifacts", json=body, headers=rival).status_code == 403


def test_hostile_versions_are_rejected(team: Team, make_run: MakeRun):
    send_all(team.sender(make_run()))
    headers = team.headers("write")
    sha256 = hash_bytes(b"data")

    def put(files: Any, **more: Any) -> Any:
        version = {"name": "model", "version": "v0", "digest": "", "files": files, **more}
        body = {"version": version, "time": 1.0}
        return team.client.put(f"{API}/runs/{RUN_ID}/artifacts", json=body, headers=headers)

    team.client.put(f"{API}/blobs/{sha256}?run={RUN_ID}", content=b"data", headers=headers)
    good = {"path": "a", "size_bytes": 4, "sha256": sha256}
    for path in ("../a", "/etc/passwd", "a/../../b", "C:/x", "a\\b", "", ".", "a//b", "a\0b", "x" * 300):
        assert put([{**good, "path": path}]).status_code == 400, path
    for change in (
        {"sha256": "../../../etc/passwd"}, {"sha256": ""}, {"sha256": sha256.upper()}, {"size_bytes": 5},
        {"size_bytes": -1}, {"size_bytes": "4"}, {"path": 7},
    ):  # fmt: skip
        assert put([{**good, **change}]).status_code == 400, change
    assert put([good, good]).status_code == 400
    for more in (
        {"name": "../model"}, {"name": ".server"}, {"name": ""}, {"aliases": ["a/b"]}, {"aliases": ["v7"]},
        {"metadata": []},
    ):  # fmt: skip
        assert put([good], **more).status_code == 400, more
    # A file of the server cannot be had by a reference to it.
    passwd = Path("/etc/passwd").read_bytes()
    reference = {"path": "p", "size_bytes": len(passwd), "sha256": hash_bytes(passwd), "url": "/etc/passwd"}
    assert put([good, reference], log_dir="/etc").json()["version"] == "v0"
    reader = team.headers("read")
    answer = team.client.get(f"/api/v1/artifacts/model/files/{hash_bytes(passwd)}?version=v0", headers=reader)
    assert (answer.status_code, b"root:" in answer.content) == (404, False)
    names = {path.name for path in (team.data_dir / "default").rglob("*")}
    assert {"model", "v0.json", sha256} <= names
    assert not list(team.data_dir.parent.rglob("passwd"))


def test_downloads_are_never_shown_by_a_browser(team: Team, make_run: MakeRun):
    folder = make_run()
    page = b"<script>alert(document.cookie)</script>"
    version = log(folder, "pages", {'a "quoted"\r\nX: y.html': page, "b.svg": b"<svg onload='alert(1)'/>"})
    send_all(team.sender(folder))
    for file in version.files:
        answer = team.client.get(
            f"/api/v1/artifacts/pages/files/{file.sha256}",
            params={"version": "v0", "file_name": file.path},
            headers=team.headers("read"),
        )
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment; filename=")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert "x" not in answer.headers


@pytest.mark.parametrize(
    ("answer", "is_complete"),
    [
        ((404, {"error": {"code": "not_found", "message": "no such route"}}), True),
        ((200, {"missing": {"0" * 64: 5}}), True),
        ((200, {"missing": {}, "version": "v0"}), True),
        ((200, {"missing": "x"}), False),
        ((500, b""), False),
    ],
    ids=["old server", "other file", "accepted", "wrong type", "error"],
)
def test_any_answer_about_artifacts_is_survived(
    hostile: HostileServer, make_run: MakeRun, answer: tuple[int, Any], is_complete: bool
):
    folder = make_run()
    log(folder, "model", {"a": b"data"})
    size = folder.journal.stat().st_size

    def answers(path: str) -> tuple[int, Any]:
        if is_registration(path):
            return 200, REGISTERED
        return (200, {"have": size}) if path.endswith(("beat", "?offset=0")) and "blobs" not in path else answer

    sender = hostile.sender(folder)
    hostile.answers = answers
    for _ in range(10):
        sender.poll(flush=True, ignore_pause=True)
    assert sender.is_complete is is_complete
    assert len(hostile.requests) < 40


def test_run_uses_artifacts_of_the_server(team: Team, make_run: MakeRun, tmp_path: Path, monkeypatch):
    folder = make_run()
    log(folder, "model", {"a.txt": b"theirs"}, "best")
    send_all(team.sender(folder))
    monkeypatch.setenv("TACHO_API_KEY", team.token("read", "write"))
    monkeypatch.chdir(tmp_path)
    run = tachograph.init("here", log_dir=tmp_path / "mine", server=team.url)
    try:
        used = run.use_artifact("model:best")
        assert Path(used.download(), "a.txt").read_bytes() == b"theirs"
        assert Path(used.path).name == f"model-v0-{used.digest[:8]}"
        run.log_artifact("model", {"a.txt": b"mine"}, aliases=["mine"]).wait()
        assert Path(run.use_artifact("model:latest").download(tmp_path / "out"), "a.txt").read_bytes() == b"mine"
        assert Path(run.use_artifact("model:best").download(tmp_path / "out"), "a.txt").read_bytes() == b"theirs"
        theirs = run.use_artifact("model:best", from_server=True)
        assert Path(theirs.download(tmp_path / "out"), "a.txt").read_bytes() == b"theirs"
        for reference in ("model:nothing", "nothing"):
            with pytest.raises(ArtifactError, match="nothing"):
                run.use_artifact(reference)
    finally:
        run.finish()
    records = [record for record in tachograph.read(run.folder.path).records() if record.get("name") == "artifact_used"]
    assert [record.get("server") for record in records] == [team.url, None, team.url, team.url]
    local = tachograph.init("local", log_dir=tmp_path / "mine")
    try:
        with pytest.raises(ArtifactError, match="not sent to a server"):
            local.use_artifact("model:best", from_server=True)
    finally:
        local.finish()


def test_command_asks_the_server(team: Team, make_run: MakeRun, tmp_path: Path, monkeypatch):
    for project in ("alpha", "beta"):
        folder = make_run(project, run_id=project[0] * 16)
        log(folder, f"model-{project}", {"a.txt": project.encode()}, "best")
        log(folder, "both", {"a.txt": project.encode()})
        send_all(team.sender(folder, team.token("write", name=project, project=project)))
    monkeypatch.setenv("TACHO_API_KEY", team.token("read"))

    def tacho(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["artifact", *arguments, "--server", team.url])

    result = tacho("ls", "--files")
    assert result.exit_code == 0, result.output
    assert [name in result.output for name in ("model-alpha:v0", "model-beta:v0", "best", "a.txt")] == [True] * 4
    assert "model-beta" not in tacho("ls", "--project", "alpha").output
    result = tacho("get", "model-alpha:best", str(tmp_path / "out"))
    assert (result.exit_code, (tmp_path / "out" / "a.txt").read_text()) == (0, "alpha")
    result = tacho("get", "both", str(tmp_path / "out"))
    assert (result.exit_code, "'beta'" in result.output) == (1, True)
    assert tacho("get", "both", str(tmp_path / "out"), "--project", "beta").exit_code == 0
    assert (tmp_path / "out" / "a.txt").read_text() == "beta"
    assert "4 versions verified, 0 problems" in tacho("verify").output
    content = next((team.data_dir / "alpha" / ".tachograph" / "artifacts" / "files").glob("*/*"))
    content.chmod(0o644)
    content.write_bytes(b"ALPHA")
    result = tacho("verify")
    assert (result.exit_code, "was changed on" in result.output) == (1, True)
