"""Back-ups of a team's server: a drill with trainers and a killed server, and archives that must not be restored."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.server.team import BackupError, KeyRing, RunCopies, create_backup, keys_path, restore_backup
from tests.conftest import wait_for
from tests.faults.test_server import TRAIN, ServerProcess, is_copied, stop
from tests.store import hears


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data")
    yield process
    process.kill()


def journals(data_dir: Path) -> dict[str, bytes]:
    paths = sorted(data_dir.glob("*/*/metrics.jsonl"))
    return {path.relative_to(data_dir).as_posix(): path.read_bytes() for path in paths}


def test_trainers_continue_on_a_restored_server(server: ServerProcess, script: Any, tmp_path: Path):
    server.start()
    environment, logs = server.environment(), tmp_path / "logs"
    trainings = [script(TRAIN, logs, name, env=environment) for name in ("one", "two")]
    for training in trainings:
        hears(training, "started")
    wait_for(lambda: sum(len(data) > 50_000 for data in journals(server.data_dir).values()) == 2, "the runs")
    acknowledged = journals(server.data_dir)
    archive, restored = tmp_path / "backup.tar.gz", tmp_path / "restored"
    result = CliRunner().invoke(main, ["backup", "--data", str(server.data_dir), "--to", str(archive)])
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    sizes = {name: len(data) for name, data in journals(server.data_dir).items()}
    wait_for(lambda: all(len(data) > sizes[name] for name, data in journals(server.data_dir).items()), "more records")
    server.kill()
    result = CliRunner().invoke(main, ["restore", str(archive), "--data", str(restored)])
    assert result.exit_code == 0, result.output
    lost, copies = journals(server.data_dir), journals(restored)
    assert copies.keys() == acknowledged.keys()
    for name, data in copies.items():
        assert data.startswith(acknowledged[name])
        assert lost[name].startswith(data)
        assert data.endswith(b"\n")
    assert not (restored / ".server" / "session.key").exists()
    server.data_dir = restored
    server.start()
    for training in trainings:
        stop(training)
    wait_for(lambda: is_copied(server, logs / "one", logs / "two"), "the rest of the runs")
    assert journals(restored).keys() == acknowledged.keys()  # no second copy


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data folder of a server with a key, a run and a line that is being written."""
    folder = tmp_path / "data"
    RunCopies(folder).close()
    KeyRing(keys_path(folder)).create("ci", ["write"])
    (folder / "default" / "run" / ".tacho" / "cache").mkdir(parents=True)
    (folder / "default" / "run" / ".tacho" / "cache" / "columns").write_bytes(b"x")
    (folder / "default" / "run" / "metrics.jsonl").write_bytes(b'{"event": "step"}\n{"event": ')
    (folder / "default" / "run" / "console.log").write_bytes(b"no newline")
    (folder / ".server" / "session.key").write_bytes(b"s" * 32)
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def test_archive_has_complete_lines_and_no_session_secret(data_dir: Path, tmp_path: Path):
    archive, restored = tmp_path / "backup.tar.gz", tmp_path / "restored"
    summary = create_backup(data_dir, archive)
    restored.mkdir()  # empty
    assert restore_backup(archive, restored) == summary
    files = sorted(path.relative_to(restored).as_posix() for path in restored.rglob("*") if path.is_file())
    assert files == [
        ".server/audit.jsonl",
        ".server/keys.json",
        "default/run/console.log",
        "default/run/metrics.jsonl",
    ]
    assert (restored / "default/run/metrics.jsonl").read_bytes() == b'{"event": "step"}\n'
    assert [key.name for key in KeyRing(keys_path(restored)).list()] == ["ci"]
    assert stat.S_IMODE(restored.stat().st_mode) == 0o700
    with pytest.raises(BackupError, match="not an empty folder"):
        restore_backup(archive, restored)
    with pytest.raises(BackupError, match="exists"):
        create_backup(data_dir, archive)
    with pytest.raises(BackupError, match="in the data folder"):
        create_backup(data_dir, data_dir / "backup.tar.gz")
    with pytest.raises(BackupError, match="not the data folder"):
        create_backup(tmp_path, tmp_path / "other.tar.gz")


def test_damaged_and_hostile_archives_are_not_restored(data_dir: Path, tmp_path: Path):
    archive = tmp_path / "backup.tar.gz"
    create_backup(data_dir, archive)
    plain = gzip.decompress(archive.read_bytes())

    def with_member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"x") -> bytes:
        output = io.BytesIO()
        with tarfile.open(fileobj=output, mode="w:gz") as members:
            header = tarfile.TarInfo(name)
            header.type, header.linkname, header.size = kind, "/etc/passwd", len(data) if kind == tarfile.REGTYPE else 0
            members.addfile(header, io.BytesIO(data))
        return output.getvalue()

    broken = {
        "cut": archive.read_bytes()[:-200],
        "changed bytes of the compressed data": archive.read_bytes()[:100] + b"\xff" * 40 + archive.read_bytes()[140:],
        "cut member": gzip.compress(plain[:1_000]),
        "no manifest": with_member("default/run/metrics.jsonl"),
        "changed byte": gzip.compress(plain.replace(b'{"event": "step"}', b'{"event": "stop"}')),
        "no archive": b"hello",
        "empty": b"",
        **{name: with_member(name) for name in ("../out", "/tmp/out", "a/../../out", "a//b", "./a", "a\\..\\b")},
        "link": with_member("link", tarfile.SYMTYPE),
        "hard link": with_member("link", tarfile.LNKTYPE),
        "pipe": with_member("pipe", tarfile.FIFOTYPE),
        "device": with_member("device", tarfile.CHRTYPE),
    }
    before = sorted(os.listdir(tmp_path))
    for case, content in broken.items():
        archive.write_bytes(content)
        with pytest.raises(BackupError):
            restore_backup(archive, tmp_path / "restored")
        assert sorted(os.listdir(tmp_path)) == before, case
